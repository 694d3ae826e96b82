"""Reading `.npz` files without trusting them: headers first, no pickle, checked before use."""

import dataclasses
import os
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from numpy.lib import format as npy


@dataclasses.dataclass(frozen=True)
class Entry:
    """One array of a file: its shape is known, its values are read on demand.

    Attributes:
        shape: of the stored array.
        dtype: as stored; bfloat16 arrives as two-byte void.
        read: gives the values, halves cast up to float32.
    """

    shape: tuple[int, ...]
    dtype: np.dtype
    read: Callable[[], np.ndarray]


def open_npz(path: str | os.PathLike) -> dict[str, Entry]:
    """Every array of a file by name, read lazily so that a 1.2 GB file needs no 1.2 GB twice.

    Checksums are verified first, so what follows never stops half-way.

    Raises:
        FileNotFoundError: no such file.
        ValueError: not an npz, truncated, damaged, or with pickled objects.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"{path} does not exist: give the path of a checkpoint file.")
    try:
        with zipfile.ZipFile(path) as archive:
            if damaged := archive.testzip():
                raise ValueError(f"{path} is damaged at {damaged!r} (checksum): fetch it again.")
            return {
                name.removesuffix(".npy"): _entry(path, archive, name)
                for name in archive.namelist()
                if name.endswith(".npy")
            }
    except zipfile.BadZipFile:
        with path.open("rb") as file:
            head = file.read(4)
        reason = (
            "is truncated: fetch it again"
            if head == b"PK\x03\x04"
            else "is not an npz file: give a checkpoint in the official npz layout"
        )
        raise ValueError(f"{path} {reason}.") from None


def _entry(path: Path, archive: zipfile.ZipFile, name: str) -> Entry:
    with archive.open(name) as file:
        try:
            version = npy.read_magic(file)
            read_header = (
                npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
            )
            shape, _, dtype = read_header(file)
        except ValueError as error:
            raise ValueError(f"{path} has a broken array {name!r}: {error}.") from None
    if dtype.hasobject:
        raise ValueError(
            f"{path} holds pickled objects at {name!r}, which can run code: it is refused. Save it "
            f"again as plain arrays."
        )
    return Entry(tuple(shape), dtype, lambda: _read(path, name))


def _read(path: Path, name: str) -> np.ndarray:
    with zipfile.ZipFile(path) as archive, archive.open(name) as file:
        return upcast(npy.read_array(file, allow_pickle=False))


def upcast(array: np.ndarray) -> np.ndarray:
    """float16 and bfloat16 (which NumPy stores as two-byte void) to float32, exactly."""
    if array.dtype == np.dtype("V2"):
        array = array.view(ml_dtypes.bfloat16)
    return array.astype(np.float32) if array.dtype.itemsize == 2 else array


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
