"""Reading HDF5 weights (Keras `.weights.h5`, KerasHub presets) as plain arrays and nothing else.

HDF5 can point into other files, compute data sets, call plug-ins to unpack them, and loop. Weights
need none of it, so everything but plain data sets in plain groups is refused before a value is read.
The library is asked only where the bytes are: reading them here is as fast, and its gzip unpacks
whatever a piece holds into memory, a thousand times the size of the piece.
"""

import dataclasses
import math
import os
import zlib
from collections.abc import Iterator
from pathlib import Path

import h5py
import numpy as np

from keras_vit.zoo.formats.entry import (
    MAX_ARRAYS,
    Entry,
    check_name,
    check_unpacked,
    existing,
    nbytes,
    quoted,
    read_at,
    upcast,
)

MAX_DEPTH = 64  # groups in groups; Keras nests a dozen
MAX_PIECE = 16 * 2**20  # bytes of one piece of an array that is smaller than this
GZIP, SHUFFLE = h5py.h5z.FILTER_DEFLATE, h5py.h5z.FILTER_SHUFFLE


@dataclasses.dataclass(frozen=True)
class Plain:
    """An array of numbers, all inside the file.

    Attributes:
        shape, dtype: as stored.
        offset: of the first byte, for arrays in one piece.
        values: of arrays that are small enough to stand in the file's own tables.
        pieces: (position in the array, filters to skip as a bit mask, offset, bytes).
        piece_shape: of every piece; those at the border are stored whole.
        filters: GZIP and SHUFFLE in the order of writing.
    """

    shape: tuple[int, ...]
    dtype: np.dtype
    offset: int | None = None
    values: np.ndarray | None = None
    pieces: tuple[tuple[tuple[int, ...], int, int, int], ...] = ()
    piece_shape: tuple[int, ...] = ()
    filters: tuple[int, ...] = ()

    @property
    def nbytes(self) -> int:
        """Bytes of the array when read."""
        return nbytes(self.shape, self.dtype)


def open_hdf5(path: str | os.PathLike) -> dict[str, Entry]:
    """Every data set by its path in the file (`layers/dense/vars/0`), read lazily.

    Raises:
        FileNotFoundError: no such file.
        ValueError: not HDF5, truncated, damaged, or with anything but plain arrays.
    """
    file = existing(path)
    return {
        name: Entry(plain.shape, plain.dtype, lambda n=name, p=plain: upcast(_read(file, n, p)))
        for name, plain in refuse(file).items()
    }


def refuse(path: str | os.PathLike, name: str | None = None) -> dict[str, Plain]:
    """Refuses a file that holds anything but plain arrays, or more than it has bytes for.

    Args:
        path: the HDF5 file.
        name: what to call it in messages, if it was unpacked from another file.

    Raises:
        ValueError: the first thing that is not plain.
    """
    path = Path(path)
    shown = path if name is None else Path(name)
    found: dict[str, Plain] = {}
    size = path.stat().st_size
    try:
        with h5py.File(path, "r") as file:
            for key, dataset in _walk(shown, file):
                try:
                    check_name(key)
                    found[key] = _plain(dataset, size)
                except ValueError as error:
                    raise _Refused(f"{shown} has a broken array: {quoted(key)} {error}.") from None
                if len(found) > MAX_ARRAYS:
                    raise _Refused(f"{shown} has more than {MAX_ARRAYS} arrays: refused.")
    except _Refused:
        raise
    except Exception as error:
        # HDF5 answers broken files with OSError, KeyError, RuntimeError and more.
        raise ValueError(_reason(path, shown, error)) from None
    if sum(plain.nbytes for plain in found.values() if not plain.pieces) > size:
        raise ValueError(f"{shown} has arrays in the same place: refused.")
    check_unpacked(path, sum(plain.nbytes for plain in found.values() if plain.pieces))
    return found


class _Refused(ValueError):
    """A finished message, as against an error that HDF5 raised."""


def _reason(path: Path, shown: Path, error: Exception) -> str:
    if not h5py.is_hdf5(path):
        return f"{shown} is no HDF5 file."
    if "truncated" in str(error):
        return f"{shown} is truncated: fetch it again."
    detail = " ".join(str(error).split())[:200]
    return f"{shown} is a damaged HDF5 file ({detail}): fetch it again."


def _walk(shown: Path, file: h5py.File) -> Iterator[tuple[str, h5py.Dataset]]:
    """Every data set with its path; raises for links, loops and what is neither array nor group."""
    waiting: list[tuple[str, h5py.Group, int]] = [("", file["/"], 0)]
    groups = 0
    seen = {_address(waiting[0][1])}
    while waiting:
        prefix, group, depth = waiting.pop()
        links = group.id.links
        groups += 1
        if depth > MAX_DEPTH or groups > MAX_ARRAYS:
            raise _Refused(f"{shown} nests groups without end: refused.")
        for raw in group.id:
            key = prefix + raw.decode("utf-8", "backslashreplace")
            if links.get_info(raw).type != h5py.h5l.TYPE_HARD:
                raise _Refused(
                    f"{shown} has a link at {quoted(key)}, which can point outside of it: refused."
                )
            item = h5py.h5o.open(group.id, raw)
            if isinstance(item, h5py.h5g.GroupID):
                inner = h5py.Group(item)
                if _address(inner) in seen:
                    raise _Refused(f"{shown} has a group in two places, {quoted(key)}: refused.")
                seen.add(_address(inner))
                waiting.append((f"{key}/", inner, depth + 1))
            elif isinstance(item, h5py.h5d.DatasetID):
                yield key, h5py.Dataset(item)
            else:
                raise _Refused(f"{shown} has no array at {quoted(key)}: refused.")


def _address(group: h5py.Group) -> int:
    return h5py.h5o.get_info(group.id).addr


def _plain(dataset: h5py.Dataset, size: int) -> Plain:
    """Where the numbers of a data set are.

    Raises:
        ValueError: it is not plain; the message goes after its name.
    """
    properties = dataset.id.get_create_plist()
    layout = properties.get_layout()
    if layout == h5py.h5d.VIRTUAL or properties.get_external_count():
        raise ValueError("has its data outside of the file")
    if dataset.shape is None:
        raise ValueError("holds nothing")
    dtype = dataset.dtype
    bfloat16 = dtype == np.dtype("V2")  # as Keras stores it
    if dtype.hasobject or not (bfloat16 or dtype.kind in "biuf"):
        raise ValueError(f"holds {_kind(dtype)} instead of numbers")
    if not bfloat16 and h5py.h5t.py_create(dtype, logical=True) != dataset.id.get_type():
        raise ValueError("holds numbers of an unusual layout")
    plain = Plain(dataset.shape, dtype)
    if layout == h5py.h5d.CHUNKED:
        return _in_pieces(dataset, plain, size)
    if dataset.id.get_storage_size() != plain.nbytes:
        raise ValueError("has a shape that its size disagrees with")
    if layout == h5py.h5d.COMPACT or not plain.nbytes:
        return dataclasses.replace(plain, values=np.asarray(dataset[()]))
    offset = dataset.id.get_offset()
    if offset is None or offset + plain.nbytes > size:
        raise ValueError("reaches beyond the file")
    return dataclasses.replace(plain, offset=offset)


def _in_pieces(dataset: h5py.Dataset, plain: Plain, size: int) -> Plain:
    properties = dataset.id.get_create_plist()
    filters = tuple(properties.get_filter(i)[0] for i in range(properties.get_nfilters()))
    if unknown := [f for f in filters if f not in (GZIP, SHUFFLE)]:
        raise ValueError(
            f"is packed by the HDF5 filter {unknown[0]}; known are gzip and shuffle: save it again "
            f"without compression"
        )
    shape, piece = plain.shape, properties.get_chunk()
    if math.prod(piece) * plain.dtype.itemsize > max(plain.nbytes, MAX_PIECE):
        raise ValueError("has pieces larger than itself")
    wanted = math.prod(-(-whole // part) for whole, part in zip(shape, piece, strict=True))
    if wanted > dataset.id.get_num_chunks():
        raise ValueError("lacks some of its pieces")
    pieces = []
    dataset.id.chunk_iter(
        lambda p: pieces.append((p.chunk_offset, p.filter_mask, p.byte_offset, p.size))
    )
    inside = {
        at
        for at, _, offset, count in pieces
        if all(0 <= a < n and not a % step for a, n, step in zip(at, shape, piece, strict=True))
        and 0 <= offset <= size - count
    }
    if len(pieces) != wanted or len(inside) != wanted:
        raise ValueError("has pieces that do not make a whole")
    return dataclasses.replace(plain, pieces=tuple(pieces), piece_shape=piece, filters=filters)


def _kind(dtype: np.dtype) -> str:
    return "objects" if dtype.hasobject else "records" if dtype.names else f"{dtype.name} values"


def _read(path: Path, name: str, plain: Plain) -> np.ndarray:
    if plain.values is not None:
        return plain.values
    if plain.offset is not None:
        return read_at(path, name, plain.shape, plain.dtype, plain.offset)
    array = np.empty(plain.shape, plain.dtype)
    count = math.prod(plain.piece_shape) * plain.dtype.itemsize
    for at, mask, offset, size in plain.pieces:
        data = read_at(path, name, (size,), np.dtype(np.uint8), offset)
        for i in reversed(range(len(plain.filters))):
            if mask >> i & 1:
                continue
            if plain.filters[i] == GZIP:
                data = np.frombuffer(_unzipped(path, name, data, count), np.uint8)
            else:
                data = data[: data.size // plain.dtype.itemsize * plain.dtype.itemsize]
                data = np.ascontiguousarray(data.reshape(plain.dtype.itemsize, -1).T).reshape(-1)
        if data.size != count:
            raise ValueError(f"{path} is damaged at {quoted(name)} (size): fetch it again.")
        place = array[tuple(slice(a, a + n) for a, n in zip(at, plain.piece_shape, strict=True))]
        block = data.view(plain.dtype).reshape(plain.piece_shape)
        place[...] = block[tuple(slice(n) for n in place.shape)]
    return array


def _unzipped(path: Path, name: str, data: np.ndarray, limit: int) -> bytes:
    """One unpacked piece; never more than a byte above the limit, whatever the data says."""
    unpack = zlib.decompressobj()
    try:
        found = unpack.decompress(data.data, limit + 1)
    except zlib.error:
        found = b""
    if not unpack.eof:
        raise ValueError(f"{path} is damaged at {quoted(name)} (compression): fetch it again.")
    return found
