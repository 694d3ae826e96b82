"""The engine that brings one file from one source to its place, or leaves the place as it was.

Bytes go to `NAME.part`, with `NAME.part.json` beside it: which source and version they are of, how
many are safely on disk, and their hash. An interrupted download goes on from there when the server
still has that version. Only a file whose size, hash and container are right gets its name, in one
step. What a server says is never trusted: the most a file may hold comes from the caller.
"""

import dataclasses
import errno
import os
import shutil
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

from keras_vit.zoo.fetching import magic
from keras_vit.zoo.fetching.partial import CHUNK, Partial
from keras_vit.zoo.fetching.reporting import Reporter
from keras_vit.zoo.fetching.web import Broken, Restart, SourceFailed, Stream, TryLater

ATTEMPTS = 4  # of one source whose connection breaks
PAUSE_SECONDS = 1.0  # between two of them
SHORTEST_WAIT_SECONDS = 5.0  # for a busy server, whatever it asks for
PATIENCE_SECONDS = 60.0  # the longest that a busy server is waited for
RESTARTS = 2
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)

Opener = Callable[[int, str | None], AbstractContextManager[Stream]]  # (offset, validator)


class LocalTrouble(OSError):
    """This machine cannot take the file, whatever its source."""

    def __init__(self, number: int, text: str):
        super().__init__(text)  # alone, so that no [Errno] stands before the sentence
        self.errno = number


class WrongContent(SourceFailed):
    """What the source sends is not the file; nothing of it is kept."""


class Stopped(KeyboardInterrupt):
    """Ctrl-C during a download; the text says what is kept."""


@dataclasses.dataclass(frozen=True)
class Expected:
    """What a download must turn out to be.

    Attributes:
        cap: the most bytes it may have.
        size: its bytes, where they are known.
        slack: how far from `size` it may be.
        sha256: its hash, where one is known.
    """

    cap: int
    size: int | None = None
    slack: int = 0
    sha256: str | None = None

    @property
    def most(self) -> int:
        """The most bytes that can be right."""
        return self.cap if self.size is None else min(self.cap, self.size + self.slack)

    def wrong_size(self, size: int) -> str | None:
        """What is wrong with a size, or None."""
        if self.size is not None and abs(size - self.size) > self.slack:
            about = "about " if self.slack else ""
            return f"{size:,} bytes instead of {about}{self.size:,}"
        return f"{size:,} bytes, more than the {self.cap:,} allowed" if size > self.cap else None


def download(
    opener: Opener,
    key: str,
    target: Path,
    expected: Expected,
    reporter: Reporter,
    accept: Callable[[str], str | None] = lambda digest: None,
) -> str:
    """Brings a file to its place; the caller holds the lock of the target.

    Args:
        opener: gives the stream of the source from an offset on.
        key: of the source: a partial file is continued only from the source it came from.
        target: where the file goes; its folder exists.
        expected: size, hash and cap.
        reporter: told about progress.
        accept: why a file with this hash must not be taken, or None.

    Returns:
        The SHA-256 of the file.

    Raises:
        SourceFailed: this source does not give it; the text ends a sentence that begins with it.
        LocalTrouble: disk full or not writable.
        Stopped: Ctrl-C.
    """
    part = Partial(target, key)
    attempts = restarts = 0
    patience = PATIENCE_SECONDS
    while True:
        try:
            return _attempt(part, opener, expected, reporter, accept)
        except Restart:
            part.drop()
            restarts += 1
            if restarts > RESTARTS:
                raise SourceFailed("changes its content again and again") from None
        except TryLater as error:
            seconds = max(error.seconds, SHORTEST_WAIT_SECONDS)
            if seconds > patience:
                raise
            patience -= seconds
            reporter.say(f"the server is busy, waiting {seconds:.0f} seconds")
            time.sleep(seconds)
        except Broken:
            if not part.is_usable(expected.sha256 is not None):
                part.drop()
            attempts += 1
            if attempts >= ATTEMPTS:
                raise
            time.sleep(PAUSE_SECONDS)
        except WrongContent:
            part.drop()
            raise
        except KeyboardInterrupt:
            raise Stopped(part.kept()) from None
        except OSError as error:
            raise _local(error, target, part) from None


def check_space(folder: Path, needed: int) -> None:
    """Refuses a download that cannot fit.

    Raises:
        LocalTrouble: with both numbers.
    """
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise LocalTrouble(
            errno.ENOSPC,
            f"{folder} has {free / 1e6:,.1f} MB free and {needed / 1e6:,.1f} MB are needed: free "
            f"some, or name another disk in KERAS_VIT_CACHE or cache_dir=.",
        )


def make_folder(folder: Path) -> None:
    """Makes a folder of the cache and sees that files can be written there.

    Raises:
        LocalTrouble: they cannot.
    """
    probe = folder / f".{os.getpid()}.probe"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise _local(error, folder / "x", None) from None


def _attempt(
    part: Partial,
    opener: Opener,
    expected: Expected,
    reporter: Reporter,
    accept: Callable[[str], str | None],
) -> str:
    offset = part.resume(can_trust_hash=expected.sha256 is not None)
    if not offset or offset != part.total:
        with opener(offset, part.validator) as stream:
            if stream.start != offset:  # the server begins again: it has another version
                part.begin()
            _receive(part, stream, expected, reporter)
    problem = _problem(part, expected) or accept(part.digest.hexdigest())
    if problem:
        if offset and not part.restarted:
            part.restarted = True
            raise Restart  # the two halves may not belong together
        raise WrongContent(problem)
    part.finish()
    return part.digest.hexdigest()


def _receive(part: Partial, stream: Stream, expected: Expected, reporter: Reporter) -> None:
    """Appends what the stream gives until it ends."""
    if part.size and part.validator and stream.validator not in (None, part.validator):
        raise Restart  # the server says which version it has, yet went on in the middle of it
    if stream.total is not None:
        if problem := expected.wrong_size(stream.total):
            raise SourceFailed(f"offers {problem}")
        if part.size and (part.total or stream.total) != stream.total:
            raise Restart
        check_space(part.path.parent, stream.total - part.size)
    elif expected.size is not None:
        check_space(part.path.parent, expected.size - part.size)
    part.total, part.validator = stream.total, stream.validator
    suffix = part.target.suffix
    reporter.update(part.size, stream.total)
    with part.opened() as file:
        try:
            while data := stream.read(CHUNK):
                if part.size + len(data) > expected.most:
                    raise WrongContent(
                        f"sends more than the {expected.most:,} bytes that it can have"
                    )
                part.write(file, data)
                if len(part.head) >= magic.HEAD and part.size - len(data) < magic.HEAD:
                    if wrong := magic.wrong_start(bytes(part.head), suffix):
                        raise WrongContent(f"sends {wrong}")
                reporter.update(part.size, stream.total)
            if stream.total is not None and part.size < stream.total:
                raise Broken(f"broke off with {stream.total - part.size:,} bytes missing")
        finally:
            part.note(file)


def _problem(part: Partial, expected: Expected) -> str | None:
    """What is wrong with a file that has arrived, as the end of a sentence."""
    if wrong := magic.wrong_start(bytes(part.head), part.target.suffix):
        return f"sends {wrong}"
    if wrong := expected.wrong_size(part.size):
        return f"sends {wrong}"
    found = part.digest.hexdigest()
    if expected.sha256 is not None and found != expected.sha256:
        return f"sends a file with the SHA-256 {found} instead of {expected.sha256}"
    if wrong := magic.incomplete(part.path, part.target.suffix):
        return f"sends a file that is not whole: {wrong}"
    return None


def _local(error: OSError, target: Path, part: Partial | None) -> OSError:
    """What to tell about an error of this machine's own disk."""
    if isinstance(error, LocalTrouble):
        return error
    folder, why = target.parent, error.strerror or str(error)
    if error.errno in FULL:
        if part:
            part.drop()
        return LocalTrouble(
            error.errno,
            f"the disk of {folder} is full ({why}); the partial file was removed: free some space, "
            f"or name another disk in KERAS_VIT_CACHE or cache_dir=.",
        )
    return LocalTrouble(
        error.errno or errno.EIO,
        f"cannot write to {folder} ({why}): name a folder that can be written in KERAS_VIT_CACHE or "
        f"cache_dir=.",
    )
