"""Memory that goes back to the system as soon as it is free."""

import contextlib
import ctypes
import gc
import sys
from collections.abc import Iterator

M_MMAP_THRESHOLD = -3  # of malloc.h
SMALL, USUAL = 2**18, 2**25  # bytes; the second is where glibc's own rule ends


@contextlib.contextmanager
def returned_at_once() -> Iterator[None]:
    """Blocks of a quarter of a megabyte and more leave the process when they are freed.

    glibc keeps what is freed, up to 32 MB a block, for the next time. The converter copies all weights
    a few times over, and what it keeps of that would be twice the weights. Without glibc nothing
    changes.
    """
    libc = ctypes.CDLL(None) if sys.platform == "linux" else None
    if libc is None or not hasattr(libc, "mallopt"):
        yield
        return
    libc.mallopt(M_MMAP_THRESHOLD, SMALL)
    try:
        yield
    finally:
        libc.mallopt(M_MMAP_THRESHOLD, USUAL)
        gc.collect()  # what the converter restored refers to itself
        libc.malloc_trim(0)
