"""Reading zip archives (npz, `.keras`) without trusting them.

`zipfile` reads the table of members; everything the table says is checked here against the members
themselves, and their bytes are read straight from the file: at its speed, and never more of them
than the table promised.
"""

import dataclasses
import io
import struct
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path

from keras_vit.zoo.formats.entry import MAX_ARRAYS, check_unpacked, quoted

MAX_TABLE = 8 * 2**20  # bytes of the table of members; ViT-H needs a tenth of a megabyte
MAX_DEFLATE = 1032  # bytes that one byte of a deflate stream can stand for
CHUNK = 2**18
ENCRYPTED = 0x01 | 0x40  # flags


@dataclasses.dataclass(frozen=True)
class Member:
    """One file of an archive, as the table and the header before its bytes agree.

    Attributes:
        path, name: the archive, and the member's name.
        start, packed: offset and size of the stored bytes.
        size, crc: of the member unpacked.
        deflated: False when stored as is.
    """

    path: Path
    name: str
    start: int
    packed: int
    size: int
    crc: int
    deflated: bool

    def damaged(self, how: str) -> ValueError:
        """The error for a member that is not what the table promised."""
        return ValueError(f"{self.path} is damaged at {quoted(self.name)} ({how}): fetch it again.")


def names(path: Path, what: str) -> list[str]:
    """Names of all members, nothing else checked; arguments and errors as in `members`."""
    return [info.filename for info in _table(path, what)[0]]


def members(path: Path, what: str) -> list[Member]:
    """Every member of an archive, checked before anything is unpacked.

    Args:
        path: the archive.
        what: what it should be, for the message when it is no archive at all: `an npz file`.

    Raises:
        ValueError: no zip archive, truncated, encrypted, packed in an unusual way, with names that
            leave a folder or stand twice, with members that overlap or unpack to absurd sizes.
    """
    infos, end = _table(path, what)
    with path.open("rb") as file:
        found = [_member(path, file, info, end) for info in infos]
    seen: set[str] = set()
    for member in found:
        if member.name in seen:
            raise ValueError(f"{path} has two members {quoted(member.name)}: refused.")
        seen.add(member.name)
    last = 0
    for member in sorted(found, key=lambda m: m.start):
        if member.start < last:
            raise ValueError(f"{path} has members that overlap at {quoted(member.name)}: refused.")
        last = member.start + member.packed
    check_unpacked(path, sum(member.size for member in found if member.deflated))
    return found


def beginning(file: io.BufferedReader, member: Member, wanted: int) -> bytes:
    """The first bytes of a member, fewer when it is shorter; no checksum is compared."""
    wanted = min(member.size, wanted)
    file.seek(member.start)
    if not member.deflated:
        return file.read(wanted)
    found = b""
    for chunk in _inflated(file, member, wanted):
        found += chunk
        if len(found) >= wanted:
            break
    return found[:wanted]


def chunks(file: io.BufferedReader, member: Member) -> Iterator[bytes | memoryview]:
    """The bytes of a member piece by piece; a piece is valid until the next one is asked for.

    Raises:
        ValueError: at the latest after the last piece, when size or checksum are not as promised.
    """
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


def content(member: Member) -> bytes:
    """A whole member, for small ones; errors as in `chunks`."""
    with member.path.open("rb") as file:
        return b"".join(bytes(chunk) for chunk in chunks(file, member))


class _Bounded(io.BufferedReader):
    """A file that refuses to read more at once than a sane table of members has."""

    def read(self, size: int | None = -1, /) -> bytes:
        if size is None or size > MAX_TABLE:
            raise zipfile.BadZipFile("its table of members is too large")
        return super().read(size)


def _table(path: Path, what: str) -> tuple[list[zipfile.ZipInfo], int]:
    """The members, and the offset of the table, where all of them must end."""
    with _Bounded(io.FileIO(path)) as file:
        head = file.read(4)
        try:
            with zipfile.ZipFile(file) as archive:
                infos, end = archive.infolist(), archive.start_dir
        except (zipfile.BadZipFile, NotImplementedError, ValueError, OSError, struct.error) as e:
            if head == b"PK\x03\x04" and "File is not a zip file" in str(e):
                raise ValueError(f"{path} is truncated: fetch it again.") from None
            if head[:2] == b"PK":
                raise ValueError(f"{path} has a broken table of members ({e}).") from None
            raise ValueError(f"{path} is not {what}: give the path of one.") from None
    if len(infos) > MAX_ARRAYS:
        raise ValueError(f"{path} has {len(infos)} members, more than {MAX_ARRAYS}: refused.")
    return infos, end


def _member(path: Path, file: io.BufferedReader, info: zipfile.ZipInfo, end: int) -> Member:
    name = info.filename
    if name != info.orig_filename or name.startswith("/") or set("\\:") & set(name):
        raise ValueError(f"{path} has a member {quoted(info.orig_filename)}: refused as a path.")
    if ".." in name.split("/"):
        raise ValueError(f"{path} has a member {quoted(name)}, which leaves its folder: refused.")
    if info.flag_bits & ENCRYPTED:
        raise ValueError(f"{path} is encrypted at {quoted(name)}: unpack it and save it again.")
    deflated = info.compress_type == zipfile.ZIP_DEFLATED
    if not deflated and info.compress_type != zipfile.ZIP_STORED:
        raise ValueError(
            f"{path} is packed in an unusual way at {quoted(name)}: save it again with NumPy."
        )
    member = Member(path, name, 0, info.compress_size, info.file_size, info.CRC, deflated)
    # A table may give any place, also one before the file when something stands in front of it.
    file.seek(min(max(info.header_offset, 0), end))
    local = file.read(30)
    if len(local) < 30 or local[:4] != b"PK\x03\x04":
        raise member.damaged("no header in its place")
    flags, method = struct.unpack_from("<HH", local, 6)
    name_size, extra_size = struct.unpack_from("<HH", local, 26)
    written = file.read(name_size).decode("utf-8" if flags & 0x800 else "cp437", "replace")
    if written != name or method != info.compress_type:
        raise member.damaged("two headers that differ")
    start = info.header_offset + 30 + name_size + extra_size
    if start + member.packed > end:
        raise member.damaged("it reaches beyond the archive")
    if (member.size > MAX_DEFLATE * member.packed) if deflated else member.size != member.packed:
        raise member.damaged("an impossible size")
    return dataclasses.replace(member, start=start)


def _stored(file: io.BufferedReader, member: Member) -> Iterator[memoryview]:
    """The same buffer again and again: it stays in the processor's cache."""
    buffer, left = memoryview(bytearray(CHUNK)), member.packed
    while left and (count := file.readinto(buffer[:left])):
        left -= count
        yield buffer[:count]


def _inflated(file: io.BufferedReader, member: Member, step: int) -> Iterator[bytes]:
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
