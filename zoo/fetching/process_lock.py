"""One process at a time: a lock that the system takes back when its holder dies."""

import contextlib
import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows: downloads work there, two at once may fetch the same file twice
    fcntl = None

# What a file system without locks answers: two at once may then fetch the same file twice, too.
NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP)


@contextlib.contextmanager
def one_process(target: Path, on_wait: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Holds the lock of a target file, which need not exist; its folder must.

    Args:
        target: the lock lies beside it as `.NAME.lock` and is removed when free.
        on_wait: called once when another process holds it.
    """
    if fcntl is None:
        yield
        return
    path = target.with_name(f".{target.name}.lock")
    descriptor = _acquire(path, on_wait)
    try:
        yield
    finally:
        # Removed while it is held: whoever waited for it sees that it is gone and takes a new one.
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)
        os.close(descriptor)


def _acquire(path: Path, on_wait: Callable[[], None]) -> int:
    """An open, locked descriptor of the file that lies at the path now."""
    said = False
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)  # pyright: ignore
            except BlockingIOError:
                if not said:
                    on_wait()
                    said = True
                fcntl.flock(descriptor, fcntl.LOCK_EX)  # pyright: ignore
            except OSError as error:
                if error.errno not in NO_LOCKS:
                    raise
                return descriptor
            if _is_at(path, descriptor):
                return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)


def _is_at(path: Path, descriptor: int) -> bool:
    try:
        there, here = path.stat(), os.fstat(descriptor)
    except OSError:
        return False
    return (there.st_dev, there.st_ino) == (here.st_dev, here.st_ino)
