"""Reading and writing safetensors, one file or many: the header is checked whole before any value.

The header is parsed here and not by the library, which maps the file into memory: a mapping counts
as memory of this process until it is closed, and a file that shrinks meanwhile ends the process.

Source: the format's description, https://github.com/huggingface/safetensors.
"""

import json
import os
import re
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from keras_vit.zoo.formats.entry import (
    MAX_ARRAYS,
    Entry,
    check_name,
    existing,
    nbytes,
    quoted,
    read_at,
    upcast,
)

MAX_HEADER = 8 * 2**20  # bytes; the largest public model of the family needs half a megabyte
MAX_SHARDS = 1000
INDEX_SUFFIX = ".safetensors.index.json"
PREFERRED = ("model.safetensors", f"model{INDEX_SUFFIX}")

DTYPES = {
    "BOOL": np.bool_,
    "U8": np.uint8,
    "I8": np.int8,
    "U16": np.uint16,
    "I16": np.int16,
    "F16": np.float16,
    "BF16": ml_dtypes.bfloat16,
    "U32": np.uint32,
    "I32": np.int32,
    "F32": np.float32,
    "U64": np.uint64,
    "I64": np.int64,
    "F64": np.float64,
}

_SHARD = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*\.safetensors")


def open_safetensors(path: str | os.PathLike) -> dict[str, Entry]:
    """Every tensor by name, read lazily: one allocation and no copy each.

    Args:
        path: a `.safetensors` file, the index of a sharded model, or a folder that holds either.

    Raises:
        FileNotFoundError: no such file, or a shard is missing.
        ValueError: not safetensors, truncated, hostile, or shards that disagree with their index.
    """
    path = Path(path)
    if path.is_dir():
        path = _file_in(path)
    path = existing(path)
    with path.open("rb") as file:
        starts_as_json = file.read(1) == b"{"
    if not starts_as_json:
        return _open_one(path)
    entries: dict[str, Entry] = {}
    owners = _index(path)
    for shard in sorted(set(owners.values())):
        found = _open_one(existing(path.parent / shard))
        for key, entry in found.items():
            if owners.get(key) != shard:
                raise ValueError(
                    f"{path} and its shards disagree: {shard} holds {quoted(key)}, which the index "
                    f"has in {owners.get(key, 'no file')}."
                )
            entries[key] = entry
    if missing := [key for key in owners if key not in entries]:
        raise ValueError(
            f"{path} lists {len(missing)} tensors that its shards lack, such as "
            f"{quoted(missing[0])}: fetch {owners[missing[0]]} again."
        )
    return entries


def write_safetensors(
    path: str | os.PathLike,
    arrays: dict[str, np.ndarray],
    metadata: dict[str, str] | None = None,
) -> None:
    """Writes arrays beside the target, then renames: never a half file.

    The library writes from the arrays' own memory (safetensors 0.8; older releases copy them all).

    Args:
        path: target.
        arrays: by tensor name.
        metadata: free text for the header; `{"format": "pt"}` is what PyTorch tools expect.

    Raises:
        OSError: the folder cannot be written.
        ValueError: a type that the format has no name for.
    """
    from safetensors import SafetensorError
    from safetensors.numpy import save_file

    path = Path(path)
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    allowed = {np.dtype(dtype) for dtype in DTYPES.values()}
    for key, array in arrays.items():
        if array.dtype.newbyteorder("=") not in allowed:
            raise ValueError(f"safetensors has no type for {quoted(key)} of {array.dtype}.")
    # The library reads memory in C order, whatever order an array has.
    plain = {
        key: np.ascontiguousarray(array)
        .astype(array.dtype.newbyteorder("="), copy=False)
        .reshape(array.shape)
        for key, array in arrays.items()
    }
    try:
        part.touch()  # for the plain OSError of a folder that cannot be written
        save_file(plain, part, metadata)
        os.replace(part, path)
    except SafetensorError as error:
        raise OSError(f"{path} could not be written ({error}).") from None
    finally:
        part.unlink(missing_ok=True)


def parse_json(text: bytes, where: str) -> dict[str, Any]:
    """A JSON object from an untrusted file: no key twice, no NaN, no depth that ends the process.

    Args:
        text: UTF-8; the caller has bounded its size.
        where: what it is, for messages.

    Raises:
        ValueError: anything else.
    """
    try:
        value = json.loads(
            text.decode("utf-8"), object_pairs_hook=_unique, parse_constant=_no_constant
        )
    except (ValueError, RecursionError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else error
        raise ValueError(f"{where} is broken: no JSON ({reason}).") from None
    if not isinstance(value, dict):
        raise ValueError(f"{where} is broken: no JSON object.")
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key stands there twice")
    return found


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no number of JSON")


def _file_in(folder: Path) -> Path:
    """The file of a folder that holds the whole model."""
    for name in PREFERRED:
        if (folder / name).is_file():
            return folder / name
    for pattern in (f"*{INDEX_SUFFIX}", "*.safetensors"):
        found = sorted(p for p in folder.glob(pattern) if p.is_file())
        if len(found) == 1:
            return found[0]
        if found:
            names = ", ".join(quoted(p.name) for p in found[:5])
            raise ValueError(f"{folder} holds several models ({names}): give the path of one.")
    raise FileNotFoundError(f"{folder} holds no .safetensors file: give the folder of a model.")


def _index(path: Path) -> dict[str, str]:
    """Tensor name -> name of its shard, a plain file beside the index."""
    if path.stat().st_size > MAX_HEADER:
        raise ValueError(f"{path} is larger than any index: refused.")
    owners = parse_json(path.read_bytes(), str(path)).get("weight_map")
    if not isinstance(owners, dict) or not owners:
        raise ValueError(f"{path} is no index of shards: it has no `weight_map`.")
    if len(owners) > MAX_ARRAYS:
        raise ValueError(f"{path} lists {len(owners)} tensors, more than {MAX_ARRAYS}: refused.")
    shards = set()
    for key, shard in owners.items():
        try:
            check_name(key)
        except ValueError as error:
            raise ValueError(f"{path} {error}: refused.") from None
        if not isinstance(shard, str) or not _SHARD.fullmatch(shard):
            raise ValueError(
                f"{path} puts {quoted(key)} into {quoted(str(shard))}: a shard must be a "
                f".safetensors file beside the index."
            )
        shards.add(shard)
    if len(shards) > MAX_SHARDS:
        raise ValueError(f"{path} lists {len(shards)} shards, more than {MAX_SHARDS}: refused.")
    return owners


def _open_one(path: Path) -> dict[str, Entry]:
    size = path.stat().st_size
    with path.open("rb") as file:
        head = file.read(9)
        length = int.from_bytes(head[:8], "little")
        if len(head) < 9 or head[8:] != b"{":
            raise ValueError(f"{path} is no safetensors file.")
        if length > size - 8:
            raise ValueError(f"{path} is truncated: fetch it again.")
        if length > MAX_HEADER:
            raise ValueError(
                f"{path} has a header of {length} bytes, which no model needs: refused."
            )
        file.seek(8)
        header = parse_json(file.read(length), f"{path}: the header")
    metadata = header.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(v, str) for v in metadata.values()):
        raise ValueError(f"{path} has metadata that is no text: refused.")
    if len(header) > MAX_ARRAYS:
        raise ValueError(f"{path} has {len(header)} tensors, more than {MAX_ARRAYS}: refused.")
    placed = []
    for key, about in header.items():
        try:
            check_name(key)
            placed.append((*_place(about), key))
        except ValueError as error:
            raise ValueError(f"{path} has a broken tensor: {quoted(key)} {error}.") from None
    data, at, entries = 8 + length, 0, {}
    for begin, end, _, _, key in sorted(placed, key=lambda p: p[:2]):
        if begin != at:
            how = "overlaps another" if begin < at else "leaves a gap"
            raise ValueError(f"{path} has a broken tensor: {quoted(key)} {how}.")
        at = end
    if data + at != size:
        what = "is truncated: fetch it again" if data + at > size else "has bytes of no tensor"
        raise ValueError(f"{path} {what}.")
    for begin, _, shape, dtype, key in placed:
        entries[key] = Entry(
            shape,
            dtype,
            lambda k=key, s=shape, d=dtype, b=begin: upcast(read_at(path, k, s, d, data + b)),
        )
    return entries


def _place(about: Any) -> tuple[int, int, tuple[int, ...], np.dtype]:
    """(begin, end, shape, dtype) of one tensor; offsets count from the end of the header."""
    if not isinstance(about, dict) or set(about) != {"dtype", "shape", "data_offsets"}:
        raise ValueError("has no dtype, shape and data_offsets")
    if not isinstance(about["dtype"], str) or about["dtype"] not in DTYPES:
        raise ValueError(f"has dtype {quoted(str(about['dtype']))}, which is none of {[*DTYPES]}")
    shape, offsets = about["shape"], about["data_offsets"]
    for values in (shape, offsets):
        if not isinstance(values, list) or not all(type(v) is int and v >= 0 for v in values):
            raise ValueError("has a shape or offsets that are no whole numbers")
    if len(offsets) != 2:
        raise ValueError("has no begin and end")
    dtype = np.dtype(DTYPES[about["dtype"]])
    if nbytes(tuple(shape), dtype) != offsets[1] - offsets[0]:
        raise ValueError("has a shape that its size disagrees with")
    return offsets[0], offsets[1], tuple(shape), dtype
