"""Reading `.npz` files without trusting them: headers first, no pickle, checked before use.

An npz is a zip of `.npy` members. `zipfile` reads the table of members; everything it says is
checked here against the members themselves, and values are read straight from the file.
"""

import dataclasses
import io
import os
import re
import struct
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

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

__all__ = ["Entry", "open_npz", "upcast", "write_npz"]

MAX_TABLE = 8 * 2**20  # bytes of a zip's table of members; ViT-H needs a tenth of a megabyte
MAX_HEADER = 10_000  # bytes of one array's header, as NumPy has it
MAX_DEFLATE = 1032  # bytes that one byte of a deflate stream can stand for
CHUNK = 2**18

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
    with path.open("rb") as file:
        infos, end = _table(path)
        members = [_member(path, file, info, end) for info in infos]
        _check_layout(path, members)
        if verify:
            for member in members:
                for _ in _chunks(file, member):
                    pass
    return {
        member.key: Entry(member.shape, member.dtype, lambda m=member: upcast(_read(m)))
        for member in members
    }


@dataclasses.dataclass(frozen=True)
class _Member:
    """One array of a file, as the table, the local header and the array's own header agree.

    Attributes:
        path, key: the file and the array's name.
        start, packed: offset and size of the stored bytes.
        size, crc: of the member unpacked.
        deflated: False when stored as is.
        header: bytes of the array's header.
        shape, dtype, fortran: of the array.
    """

    path: Path
    key: str
    start: int
    packed: int
    size: int
    crc: int
    deflated: bool
    header: bytes = b""
    shape: tuple[int, ...] = ()
    dtype: np.dtype = dataclasses.field(default_factory=lambda: np.dtype(np.uint8))
    fortran: bool = False

    def damaged(self, how: str) -> ValueError:
        return ValueError(f"{self.path} is damaged at {quoted(self.key)} ({how}): fetch it again.")


class _Bounded(io.BufferedReader):
    """A file that refuses to read more at once than a sane table of members has."""

    def read(self, size: int | None = -1, /) -> bytes:
        if size is None or size > MAX_TABLE:
            raise zipfile.BadZipFile("its table of members is too large")
        return super().read(size)


def _table(path: Path) -> tuple[list[zipfile.ZipInfo], int]:
    """The members that are arrays, and the offset of the table, where all of them must end."""
    with _Bounded(io.FileIO(path)) as file:
        head = file.read(4)
        try:
            with zipfile.ZipFile(file) as archive:
                infos, end = archive.infolist(), archive.start_dir
        except (
            zipfile.BadZipFile,
            NotImplementedError,
            ValueError,
            OSError,
            struct.error,
        ) as error:
            if head == b"PK\x03\x04" and "File is not a zip file" in str(error):
                raise ValueError(f"{path} is truncated: fetch it again.") from None
            if head[:2] == b"PK":
                raise ValueError(f"{path} has a broken table of members ({error}).") from None
            raise ValueError(
                f"{path} is not an npz file: give a checkpoint in the official npz layout."
            ) from None
    if len(infos) > MAX_ARRAYS:
        raise ValueError(f"{path} has {len(infos)} members, more than {MAX_ARRAYS}: refused.")
    arrays = [info for info in infos if info.filename.endswith(".npy")]
    if infos and not arrays:
        raise ValueError(
            f"{path} is a zip archive without arrays: give a checkpoint in the npz layout."
        )
    return arrays, end


def _member(path: Path, file: io.BufferedReader, info: zipfile.ZipInfo, end: int) -> _Member:
    """What a member is, or ValueError for everything that is not a plain array in its place."""
    name = info.filename
    if name != info.orig_filename or name.startswith("/") or set("\\:") & set(name):
        raise ValueError(f"{path} has a member {quoted(info.orig_filename)}: refused as a path.")
    if ".." in name.split("/"):
        raise ValueError(f"{path} has a member {quoted(name)}, which climbs folders: refused.")
    if info.flag_bits & 0x41:
        raise ValueError(f"{path} is encrypted at {quoted(name)}: unpack it and save it again.")
    deflated = info.compress_type == zipfile.ZIP_DEFLATED
    if not deflated and info.compress_type != zipfile.ZIP_STORED:
        raise ValueError(
            f"{path} is compressed in an unusual way at {quoted(name)}: save it again with NumPy."
        )
    key = name.removesuffix(".npy")
    member = _Member(path, key, 0, info.compress_size, info.file_size, info.CRC, deflated)
    file.seek(info.header_offset)
    local = file.read(30)
    if len(local) < 30 or local[:4] != b"PK\x03\x04":
        raise member.damaged("no header in its place")
    flags, method = struct.unpack_from("<HH", local, 6)
    name_size, extra_size = struct.unpack_from("<HH", local, 26)
    stored_name = file.read(name_size)
    coding = "utf-8" if flags & 0x800 else "cp437"
    if stored_name.decode(coding, "replace") != name or method != info.compress_type:
        raise member.damaged("two headers that differ")
    start = info.header_offset + 30 + name_size + extra_size
    if start + member.packed > end:
        raise member.damaged("it reaches beyond the archive")
    if (member.size > MAX_DEFLATE * member.packed) if deflated else member.size != member.packed:
        raise member.damaged("an impossible size")
    member = dataclasses.replace(member, start=start)
    try:
        check_name(key)
        header, descr, fortran, shape = _header(_beginning(file, member))
        dtype = _dtype(descr)
        if len(header) + nbytes(shape, dtype) != member.size:
            raise ValueError("has a shape that its size disagrees with")
    except ValueError as error:
        if "pickled" in str(error):
            raise ValueError(
                f"{path} holds pickled objects at {quoted(name)}, which can run code: it is "
                f"refused. Save it again as plain arrays."
            ) from None
        raise ValueError(f"{path} has a broken array: {quoted(name)} {error}.") from None
    return dataclasses.replace(member, header=header, shape=shape, dtype=dtype, fortran=fortran)


def _check_layout(path: Path, members: list[_Member]) -> None:
    """No name twice, no byte in two members (a quine or a bomb), no bomb by size."""
    keys: set[str] = set()
    for member in members:
        if member.key in keys:
            raise ValueError(f"{path} has two arrays {quoted(member.key)}: refused.")
        keys.add(member.key)
    last = 0
    for member in sorted(members, key=lambda m: m.start):
        if member.start < last:
            raise ValueError(f"{path} has members that overlap at {quoted(member.key)}: refused.")
        last = member.start + member.packed
    check_unpacked(path, sum(member.size for member in members if member.deflated))


def _beginning(file: io.BufferedReader, member: _Member) -> bytes:
    """The first bytes of a member, enough for its header."""
    wanted = min(member.size, MAX_HEADER + 12)
    file.seek(member.start)
    if not member.deflated:
        return file.read(wanted)
    found = b""
    for chunk in _inflated(file, member, wanted):
        found += chunk
        if len(found) >= wanted:
            break
    return found[:wanted]


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
    if descr.lstrip("|").startswith("O"):
        raise ValueError("holds pickled objects")
    try:
        dtype = np.dtype(descr) if _DESCR.fullmatch(descr) else None
    except (TypeError, ValueError):
        dtype = None
    if dtype is None or not dtype.itemsize or dtype.hasobject:
        raise ValueError(f"has the unknown type {quoted(descr)}")
    return dtype


def _read(member: _Member) -> np.ndarray:
    """The values of a member, with its checksum compared."""
    shape = member.shape[::-1] if member.fortran else member.shape
    if member.deflated:
        array = np.empty(shape, member.dtype)
        flat, at = _bytes(array), -len(member.header)
        with existing(member.path).open("rb") as file:
            for chunk in _chunks(file, member):
                skipped = min(max(-at, 0), len(chunk))
                at += skipped
                part = chunk[skipped:]
                flat[at : at + len(part)] = np.frombuffer(part, np.uint8)
                at += len(part)
    else:
        at = member.start + len(member.header)
        array = read_at(member.path, member.key, shape, member.dtype, at)
        if zlib.crc32(_bytes(array), zlib.crc32(member.header)) != member.crc:
            raise member.damaged("checksum")
    return array.T if member.fortran else array


def _bytes(array: np.ndarray) -> np.ndarray:
    return array.reshape(-1).view(np.uint8)


def _chunks(file: io.BufferedReader, member: _Member) -> Iterator[bytes | memoryview]:
    """The bytes of a member piece by piece; raises when they are not what the table promised."""
    file.seek(member.start)
    crc = size = 0
    for chunk in _inflated(file, member, CHUNK) if member.deflated else _stored(file, member):
        size += len(chunk)
        if size > member.size:
            raise member.damaged("longer than it says")
        crc = zlib.crc32(chunk, crc)
        yield chunk
    if size != member.size:
        raise member.damaged("shorter than it says")
    if crc != member.crc:
        raise member.damaged("checksum")


def _stored(file: io.BufferedReader, member: _Member) -> Iterator[memoryview]:
    """The same buffer again and again: it stays in the processor's cache."""
    buffer, left = memoryview(bytearray(CHUNK)), member.packed
    while left and (count := file.readinto(buffer[:left])):
        left -= count
        yield buffer[:count]


def _inflated(file: io.BufferedReader, member: _Member, step: int) -> Iterator[bytes]:
    """Unpacks at most `step` bytes at a time, so that memory stays bounded whatever is inside."""
    unpack, left, waiting = zlib.decompressobj(-zlib.MAX_WBITS), member.packed, b""
    while not unpack.eof:
        if not waiting:
            waiting = file.read(min(CHUNK, left))
            left -= len(waiting)
        try:
            chunk = unpack.decompress(waiting, step)
        except zlib.error:
            raise member.damaged("broken compression") from None
        if not waiting and not chunk and not unpack.eof:
            raise member.damaged("it ends early")
        waiting = unpack.unconsumed_tail
        if chunk:
            yield chunk


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
