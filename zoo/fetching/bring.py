"""One file from one source to its place in the cache, once for all processes that want it."""

import dataclasses
import hashlib
from collections.abc import Callable
from pathlib import Path

from keras_vit.zoo.fetching import bucket, hub, lock, web
from keras_vit.zoo.fetching.download import Expected, Opener, WrongContent, download, make_folder
from keras_vit.zoo.fetching.process_lock import one_process
from keras_vit.zoo.fetching.reporting import Progress, reporter
from keras_vit.zoo.fetching.sources import Bucket, Hub, Source, Web, cache_key
from keras_vit.zoo.fetching.web import Access, SourceFailed


def bring(
    source: Source,
    folder: Path,
    expected: Expected,
    *,
    progress: Progress = None,
    key: str | None = None,
    is_good: Callable[[Path, str], bool] | None = None,
    plain_host: str | None = None,
) -> Path:
    """A file of the cache, fetched unless it is there.

    Args:
        source: where from; a hub source is brought at the commit that it stands for now.
        folder: the cache.
        expected: what it must be; what a hub says of its files is added to it.
        progress: see `reporting.reporter`.
        key: path below the cache, None for the source's own.
        is_good: whether a file (its path, its key) that lies there already may be kept; None for the rules of
            `lock.py` and the expected size.
        plain_host: host that may be asked over http://.

    Raises:
        SourceFailed: this source does not give it.
        LocalTrouble: this machine cannot take it.
        Stopped: Ctrl-C.
    """
    if isinstance(source, Hub):
        resolved = hub.resolve(source)
        there = hub.cached(resolved.source, folder) if key is None else None
        if there and (is_good is None or is_good(*there)):
            path = there[0]
        else:
            expected = with_hub(expected, resolved)
            path = bring_pinned(
                resolved.source, folder, expected, progress=progress, key=key, is_good=is_good
            )
        hub.remember(source, resolved.source.revision or "", folder)
        return path
    return bring_pinned(
        source,
        folder,
        expected,
        progress=progress,
        key=key,
        is_good=is_good,
        plain_host=plain_host,
    )


def bring_pinned(
    source: Source,
    folder: Path,
    expected: Expected,
    *,
    progress: Progress = None,
    key: str | None = None,
    is_good: Callable[[Path, str], bool] | None = None,
    plain_host: str | None = None,
) -> Path:
    """`bring` for a source that names one content; the hub is not asked about it."""
    lock.check_lock_file()
    opener = _opener(source, plain_host)
    key = key or cache_key(source)
    target = folder / key
    keep = is_good or (lambda path, key: _is_as_seen(path, key, expected))
    make_folder(target.parent)
    with reporter(target.name, progress) as report:

        def on_wait() -> None:
            report.say("another process is fetching it; waiting for that one")

        with one_process(target, on_wait):
            if not (target.is_file() and keep(target, key)):
                digest = download(
                    opener,
                    _identity(source),
                    target,
                    expected,
                    report,
                    lambda digest: lock.refused(target, key, digest),
                )
                lock.write_record(target, str(source), digest)
    return target


def _opener(source: Source, plain_host: str | None) -> Opener:
    if isinstance(source, Hub):
        return lambda offset, validator: web.open_file(
            hub.address(source), offset, validator, hub.access()
        )
    if isinstance(source, Bucket):
        return lambda offset, validator: bucket.open_bucket(source, offset, validator)
    if isinstance(source, Web):
        if bucket.of_web(source) is not None:
            return lambda offset, validator: bucket.open_public(source, offset, validator)
        access = Access(plain_host=plain_host)
        return lambda offset, validator: web.open_file(source, offset, validator, access)
    raise SourceFailed("does not exist")


def _is_as_seen(path: Path, key: str, expected: Expected) -> bool:
    try:
        lock.check_seen(path, key)
    except ValueError:
        return False
    return expected.wrong_size(path.stat().st_size) is None


def with_hub(expected: Expected, resolved: hub.Resolved) -> Expected:
    """What is expected, with the size and hash that the hub keeps for the file."""
    if resolved.size is not None and (wrong := expected.wrong_size(resolved.size)):
        raise WrongContent(f"offers {wrong}")
    theirs, ours = resolved.sha256, expected.sha256
    if theirs and ours and theirs != ours:
        raise WrongContent(f"offers a file with the SHA-256 {theirs} instead of {ours}")
    if resolved.size is None:
        return dataclasses.replace(expected, sha256=ours or theirs)
    return dataclasses.replace(expected, size=resolved.size, slack=0, sha256=ours or theirs)


def _identity(source: Source) -> str:
    """A source as partial files name it: an address may hold a password or a signature."""
    text = source.url if isinstance(source, Web) else str(source)
    return f"{source} {hashlib.sha256(text.encode()).hexdigest()}"
