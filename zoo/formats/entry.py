"""What every container is read as, and the rules that all of them share."""

import dataclasses
import math
import os
from collections.abc import Callable
from pathlib import Path

import ml_dtypes
import numpy as np

MAX_ARRAYS = 30_000  # of one file; the largest public checkpoint has about two thousand
MAX_NAME = 1024  # characters
MAX_RANK = 32  # what the oldest supported NumPy can hold
MAX_ELEMENTS = 2**48  # sizes of zero count as one, so that no product overflows
# Compressed files may unpack to this many times their own size, and always to the allowance: float
# weights shrink by less than two, files of zeros (a fresh head) by a thousand.
MAX_RATIO = 100
RATIO_ALLOWANCE = 64 * 2**20  # bytes
PIECE = 2**20  # bytes that are read at once
ALIGNMENT = 64  # bytes, what TensorFlow and JAX ask of memory that is not theirs


@dataclasses.dataclass(frozen=True)
class Entry:
    """One array of a file: its shape is known, its values are read on demand.

    Attributes:
        shape: of the stored array.
        dtype: as stored; bfloat16 arrives as two-byte void.
        read: gives the values, halves cast up to float32. What was damaged since the file was
            opened raises ValueError.
    """

    shape: tuple[int, ...]
    dtype: np.dtype
    read: Callable[[], np.ndarray]


def upcast(array: np.ndarray) -> np.ndarray:
    """float16 and bfloat16 (which NumPy stores as two-byte void) to float32, exactly.

    Everything else keeps its type: float64 would lose digits, integers are no weights. Bytes in
    foreign order are put into this machine's.
    """
    if array.dtype == np.dtype("V2"):
        array = array.view(ml_dtypes.bfloat16)
    if array.dtype in (np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16)):
        return array.astype(np.float32)
    return array.astype(array.dtype.newbyteorder("="), copy=False)


def existing(path: str | os.PathLike) -> Path:
    """The path of a file that is there.

    Raises:
        FileNotFoundError: no such file.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"{path} does not exist: give the path of a checkpoint file.")
    return path


def check_name(name: str) -> None:
    """Refuses names that would garble a message or a table.

    Raises:
        ValueError: empty, not printable or longer than MAX_NAME.
    """
    if not name or len(name) > MAX_NAME or not name.isprintable():
        raise ValueError(f"has the name {quoted(name)}, which is no name of a weight")


def nbytes(shape: tuple[int, ...], dtype: np.dtype) -> int:
    """Bytes of an array that a file claims to hold, before anything of that size is made.

    Raises:
        ValueError: no array can have this shape; the message goes after the array's name.
    """
    if len(shape) > MAX_RANK or any(size < 0 for size in shape):
        raise ValueError(f"has an impossible shape ({len(shape)} axes)")
    if math.prod(max(size, 1) for size in shape) > MAX_ELEMENTS:
        raise ValueError("has an absurd shape")
    return math.prod(shape) * dtype.itemsize


def check_unpacked(path: Path, total: int) -> None:
    """Refuses compressed arrays that together unpack to far more than any weights would.

    Raises:
        ValueError: more than MAX_RATIO times the file, and more than the allowance.
    """
    size = path.stat().st_size
    if total > max(MAX_RATIO * size, RATIO_ALLOWANCE):
        raise ValueError(
            f"{path} has {size} bytes and claims to unpack to {total}, which no weights do: refused."
        )


def quoted(name: str) -> str:
    """A name from a file as part of a one-line message: quoted, escaped, shortened."""
    return ascii(name if len(name) <= 80 else name[:77] + "...")


def read_at(
    path: Path,
    name: str,
    shape: tuple[int, ...],
    dtype: np.dtype,
    at: int,
    seen: Callable[[memoryview], None] | None = None,
) -> np.ndarray:
    """An array stored as plain bytes, with one allocation and no copy.

    Args:
        path, name: the file, and the array's name for messages.
        shape, dtype: of the array, C order.
        at: offset of its first byte.
        seen: called with each piece as it is read, while the processor still has it at hand.

    Raises:
        ValueError: the file has become shorter.
    """
    array = aligned(shape, dtype)
    left = array.reshape(-1).view(np.uint8).data
    try:
        with path.open("rb", buffering=0) as file:
            file.seek(at)
            while left:
                count = file.readinto(left[:PIECE])
                if not count:
                    raise ValueError(f"{path} was cut short at {quoted(name)} while it was read.")
                if seen is not None:
                    seen(left[:count])
                left = left[count:]
    except OSError as error:
        raise ValueError(f"{path} cannot be read at {quoted(name)} ({error}).") from None
    return array


def aligned(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """An array whose memory a backend can take over as it is: it begins at a multiple of 64 bytes."""
    size = nbytes(shape, dtype)
    memory = np.empty(size + ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % ALIGNMENT
    return memory[start : start + size].view(dtype).reshape(shape)
