"""Whether bytes can be the container that a file name promises: their first ones, and their extent.

Servers answer with web pages, pointers and error documents in place of files, and break off. What
is found here is cheap and told in a few words; the readers of `formats/` check all the rest.
"""

import json
import struct
import zipfile
from pathlib import Path

HEAD = 64  # bytes that are enough to judge by
MAX_HEADER = 100 * 2**20  # bytes of a safetensors header, as its own reader allows

_ZIP, _HDF5 = b"PK\x03\x04", b"\x89HDF\r\n\x1a\n"
_NAMES = {
    ".npz": "an npz archive",
    ".keras": "a .keras archive",
    ".safetensors": "a safetensors file",
    ".h5": "an HDF5 file",
    ".json": "a JSON file",
}


def wrong_start(head: bytes, suffix: str) -> str | None:
    """What the first bytes are instead of the container of that suffix, or None when they fit.

    Args:
        head: the first `HEAD` bytes, or all of a shorter file.
        suffix: of the file's name, with its dot.
    """
    if _starts_right(head, suffix):
        return None
    wanted = _NAMES.get(suffix, f"a {suffix} file")
    text = head.lstrip(b"\xef\xbb\xbf \t\r\n")
    if text.startswith(b"version https://git-lfs"):
        return f"a pointer of Git LFS, not {wanted}"
    if text.startswith(b"<"):
        return f"a web page, not {wanted}"
    return f"not {wanted}" if head else f"empty, not {wanted}"


def incomplete(path: Path, suffix: str) -> str | None:
    """Why a file cannot be whole, or None when its own table of contents ends where it does."""
    size = path.stat().st_size
    if suffix in (".npz", ".keras"):
        return None if zipfile.is_zipfile(path) else "its table of contents is missing"
    if suffix == ".safetensors":
        end = _end_of_safetensors(path)
        return None if end == size else _ends(end, size)
    if suffix == ".h5":
        end = _end_of_hdf5(path)
        return None if end is None or end <= size else _ends(end, size)
    if suffix == ".json":
        try:
            json.loads(path.read_bytes())
        except (ValueError, RecursionError):
            return "it is no valid JSON"
    return None


def _starts_right(head: bytes, suffix: str) -> bool:
    if suffix in (".npz", ".keras"):
        return head.startswith(_ZIP)
    if suffix == ".h5":
        return head.startswith(_HDF5)
    if suffix == ".safetensors":
        return len(head) > 8 and head[8:9] == b"{" and 2 <= _header_size(head) <= MAX_HEADER
    if suffix == ".json":
        return head.lstrip()[:1] in (b"{", b"[")
    return True


def _header_size(head: bytes) -> int:
    return struct.unpack("<Q", head[:8])[0]


def _end_of_safetensors(path: Path) -> int:
    """Where the last tensor ends; -1 when the header cannot be read."""
    with path.open("rb") as file:
        head = file.read(8)
        if len(head) < 8 or _header_size(head) > MAX_HEADER:
            return -1
        size = _header_size(head)
        header = file.read(size)
    try:
        entries = json.loads(header)
        ends = [int(e["data_offsets"][1]) for n, e in entries.items() if n != "__metadata__"]
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return -1
    return 8 + size + max(ends, default=0)


def _end_of_hdf5(path: Path) -> int | None:
    """The end-of-file address in the superblock; None where its version is not known."""
    with path.open("rb") as file:
        head = file.read(HEAD)
    if len(head) < HEAD:
        return HEAD
    version = head[8]
    # Versions 0 and 1 hold the size of an offset at byte 13, 2 and 3 at byte 9 (HDF5 format, II.A).
    if version in (0, 1) and head[13] == 8:
        return struct.unpack_from("<Q", head, 40 if version == 0 else 44)[0]
    if version in (2, 3) and head[9] == 8:
        return struct.unpack_from("<Q", head, 28)[0]
    return None


def _ends(end: int, size: int) -> str:
    if end < 0:
        return "its header cannot be read"
    return f"its table of contents ends at byte {end:,}, the file at {size:,}"
