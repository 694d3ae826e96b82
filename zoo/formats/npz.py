"""Reading `.npz` files without trusting them: headers first, no pickle, checked before use.

An npz is a zip of `.npy` members, each a short text header and the bytes of one array.
"""

import dataclasses
import os
import re
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from keras_vit.zoo.formats.archive import Member, beginning, chunks, members
from keras_vit.zoo.formats.entry import (
    Entry,
    check_name,
    existing,
    nbytes,
    quoted,
    read_at,
    upcast,
)

__all__ = ["Entry", "open_npz", "upcast", "write_npz"]

MAX_HEADER = 10_000  # bytes of one array's header, as NumPy has it

# {'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }, with any order and spacing. Matched
# instead of evaluated: an evaluator has more to give than three values.
_ITEM = rb"\s*+'(descr|fortran_order|shape)'\s*+:\s*+('[^'\"\\]*+'|True|False|\([0-9,\s]*+\))\s*+"
_HEADER = re.compile(rb"\{(?:" + _ITEM + rb",)*+(?:" + _ITEM + rb")?\s*+\}\s*+")
_DESCR = re.compile(r"[<>|=]?[biufcSUV]\d{1,6}")


def open_npz(path: str | os.PathLike, *, verify: bool = True) -> dict[str, Entry]:
    """Every array of a file by name, read lazily so that a 1.2 GB file needs no 1.2 GB twice.

    Names, headers and sizes of all members are checked here, before any value is read.

    Args:
        path: the file.
        verify: also compare every checksum, which reads the file once. With False the checksum of
            an array is compared when it is read, so that a load reads once in all: for callers who
            throw everything away when a later array turns out to be damaged.

    Raises:
        FileNotFoundError: no such file.
        ValueError: not an npz, truncated, damaged, hostile, or with pickled objects.
    """
    path = existing(path)
    found = members(path, "an npz file")
    with path.open("rb") as file:
        arrays = [
            _array(member, beginning(file, member, MAX_HEADER + 12))
            for member in found
            if member.name.endswith(".npy")
        ]
        if found and not arrays:
            raise ValueError(f"{path} is a zip archive without arrays: give an npz file.")
        for array in arrays if verify else ():
            for _ in chunks(file, array.member):
                pass
    return {
        array.key: Entry(array.shape, array.dtype, lambda a=array: upcast(_read(a)))
        for array in arrays
    }


@dataclasses.dataclass(frozen=True)
class _Array:
    """A member and what its own header says.

    Attributes:
        key: the array's name.
        header: its bytes.
        shape, dtype, fortran: of the array; `fortran` when the first axis runs fastest.
    """

    member: Member
    key: str
    header: bytes
    shape: tuple[int, ...]
    dtype: np.dtype
    fortran: bool


def _array(member: Member, data: bytes) -> _Array:
    """The array that a member is, or ValueError for what is no plain array of numbers."""
    key, where = member.name.removesuffix(".npy"), f"{member.path} has a broken array"
    try:
        check_name(key)
        header, descr, fortran, shape = _header(data)
        if descr.lstrip("|").startswith("O"):
            raise ValueError(
                "holds pickled objects, which can run code: it is refused; save it again as plain "
                "arrays"
            )
        dtype = _dtype(descr)
        if len(header) + nbytes(shape, dtype) != member.size:
            raise ValueError("has a shape that its size disagrees with")
    except ValueError as error:
        raise ValueError(f"{where}: {quoted(key)} {error}.") from None
    return _Array(member, key, header, shape, dtype, fortran)


def _header(data: bytes) -> tuple[bytes, str, bool, tuple[int, ...]]:
    """Header bytes, type, order and shape of an array from the first bytes of an `.npy`."""
    if data[:6] != b"\x93NUMPY" or len(data) < 12:
        raise ValueError("is no array")
    version = tuple(data[6:8])
    if version not in ((1, 0), (2, 0), (3, 0)):
        raise ValueError(f"has the unknown version {version}")
    begin = 10 if version == (1, 0) else 12
    length = int.from_bytes(data[8:begin], "little")
    text = data[begin : begin + length]
    if length > MAX_HEADER or len(text) < length:
        raise ValueError("has a header that is too long")
    items = re.findall(_ITEM, text) if _HEADER.fullmatch(text) else []
    values = dict(items)
    if len(items) != 3 or len(values) != 3:
        raise ValueError("is no plain array of numbers")
    descr, order, shape = (values[name] for name in (b"descr", b"fortran_order", b"shape"))
    sizes = [size.strip() for size in shape[1:-1].split(b",")]
    if not sizes[-1]:
        sizes.pop()
    if not (
        descr.startswith(b"'") and shape.startswith(b"(") and order in (b"True", b"False")
    ) or not all(size.isdigit() and len(size) < 20 for size in sizes):
        raise ValueError("is no plain array of numbers")
    return (
        data[: begin + length],
        descr[1:-1].decode("latin-1"),
        order == b"True",
        tuple(int(size) for size in sizes),
    )


def _dtype(descr: str) -> np.dtype:
    try:
        dtype = np.dtype(descr) if _DESCR.fullmatch(descr) else None
    except (TypeError, ValueError):
        dtype = None
    if dtype is None or not dtype.itemsize or dtype.hasobject:
        raise ValueError(f"has the unknown type {quoted(descr)}")
    return dtype


def _read(array: _Array) -> np.ndarray:
    """The values of an array, with its checksum compared."""
    member, shape = array.member, array.shape[::-1] if array.fortran else array.shape
    if member.deflated:
        values = np.empty(shape, array.dtype)
        flat, at = _bytes(values), -len(array.header)
        with existing(member.path).open("rb") as file:
            for chunk in chunks(file, member):
                part = chunk[max(-at, 0) :]
                at += len(chunk) - len(part)
                flat[at : at + len(part)] = np.frombuffer(part, np.uint8)
                at += len(part)
    else:
        at = member.start + len(array.header)
        checksum = zlib.crc32(array.header)

        def add(piece: memoryview) -> None:
            nonlocal checksum
            checksum = zlib.crc32(piece, checksum)

        values = read_at(member.path, array.key, shape, array.dtype, at, add)
        if checksum != member.crc:
            raise member.damaged("checksum")
    return values.T if array.fortran else values


def _bytes(array: np.ndarray) -> np.ndarray:
    return array.reshape(-1).view(np.uint8)


def write_npz(path: str | os.PathLike, arrays: dict[str, np.ndarray]) -> None:
    """Writes sorted, uncompressed arrays beside the target, then renames: never a half file.

    Raises:
        OSError: the folder cannot be written.
    """
    path = Path(path)
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with part.open("wb") as file:
            ordered: dict[str, Any] = {key: arrays[key] for key in sorted(arrays)}
            np.savez(file, **ordered)
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)
