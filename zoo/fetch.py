"""The file of a checkpoint: where it is on this machine, or how it gets there.

Looked for in this order: KERAS_VIT_MIRROR (a directory that holds the files under their published
paths, or flat), the cache, the cache of Hugging Face's hub for the sources that lie there, and for
the embedded models the package itself. The cache is `cache_dir`, else KERAS_VIT_CACHE, else
KERAS_HOME/keras_vit where KERAS_HOME is set, else ~/.cache/keras_vit. `find` looks; `fetch` also
downloads: from KERAS_VIT_MIRROR when that is an address, then from the card's sources in turn.
"""

import os
import shlex
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

from keras_vit.card import Card
from keras_vit.zoo.fetching import lock
from keras_vit.zoo.fetching.places import (
    CACHE_VARIABLE,
    MIRROR_VARIABLE,
    PREDICTION_SLACK,
    Candidate,
    Place,
    cache_folder,
    candidates,
    cap_of,
    check,
    checked,
    is_embedded,
    look,
    plain_host,
    wants_offline,
)
from keras_vit.zoo.fetching.sources import Hub, cache_key, check_container

if TYPE_CHECKING:
    from keras_vit.zoo.fetching.download import Expected
    from keras_vit.zoo.fetching.reporting import Progress

__all__ = [
    "CACHE_VARIABLE",
    "MIRROR_VARIABLE",
    "PREDICTION_SLACK",
    "cache_folder",
    "cap_of",
    "check",
    "fetch",
    "find",
    "lock_entry",
    "planned",
    "wants_offline",
]


def find(
    card: Card, cache_dir: str | os.PathLike | None = None, offline: bool | None = None
) -> Path:
    """The file of a checkpoint on this machine, checked against its card; no network is used.

    Args:
        card: the checkpoint.
        cache_dir: None for the usual one, see the top of this module.
        offline: the machine has no network: a missing file is explained without commands that
            need one.

    Raises:
        FileNotFoundError: it is not here; the message says what, from where, and where to put it.
        ValueError: a file of that name has another size or hash than the card, than the lock file
            lists, or than was seen first.
    """
    folder = cache_folder(cache_dir)
    place = look(card, folder)
    if place is None:
        raise FileNotFoundError(_missing(card, folder, wants_offline(offline)))
    return checked(place, card, folder)


def fetch(
    card: Card,
    cache_dir: str | os.PathLike | None = None,
    offline: bool | None = None,
    progress: "Progress" = None,
) -> Path:
    """The file of a checkpoint: the one that is here, else downloaded into the cache.

    A file in the cache that fails its check is fetched again, with a warning, and replaced once
    the new one is right.

    Args:
        card: the checkpoint.
        cache_dir: None for the usual one, see the top of this module.
        offline: never touch the network; None for what HF_HUB_OFFLINE says.
        progress: None for a bar when stderr is a terminal, see `reporting.reporter`.

    Raises:
        FileNotFoundError: no source gives it; the message says why each does not, and all that
            `find` says.
        ValueError: a file that is here is another one, and cannot be replaced.
        OSError: the disk is full, or the cache cannot be written.
    """
    folder, offline = cache_folder(cache_dir), wants_offline(offline)
    lock.check_lock_file()
    place = look(card, folder)
    if place is not None:
        try:
            return checked(place, card, folder)
        except ValueError as error:
            if offline or not place.path.is_relative_to(folder) or not card.sources:
                raise
            warnings.warn(f"{error} It is fetched again now.", stacklevel=2)
    tries = [] if offline or is_embedded(card) else list(candidates(card))
    if not tries:
        raise FileNotFoundError(_missing(card, folder, offline))
    return _from_sources(card, folder, tries, progress)


def planned(
    card: Card, cache_dir: str | os.PathLike | None = None
) -> tuple[str | None, str | None, Path | None]:
    """(source that `fetch` would try first, where it goes, the file that is here), without network.

    Each is None where there is none; the file is not checked.
    """
    folder = cache_folder(cache_dir)
    place = look(card, folder)
    here = place.path if place else None
    for source, key, _ in [] if is_embedded(card) else candidates(card):
        if key is None and isinstance(source, Hub):
            key = f"hub/{source.repo}/(commit of {source.revision or 'main'})/{source.file}"
        return str(source), str(folder / (key or cache_key(source))), here
    return None, None, here


def lock_entry(card: Card, cache_dir: str | os.PathLike | None = None) -> lock.Entry:
    """What a lock file lists for a card, of the file that is here.

    Raises:
        FileNotFoundError: it is not here.
        ValueError: it is not the card's, or a file of the user's own without a published path.
    """
    folder = cache_folder(cache_dir)
    place = look(card, folder)
    if place is None:
        raise FileNotFoundError(_missing(card, folder, wants_offline(None)))
    path, key, published = place
    if not key:
        raise ValueError(f"{card.name} is the file {path}, which has no published path to lock.")
    if published:
        check(path, card)
    floating = None
    for source in (candidate.source for candidate in candidates(card)):
        if isinstance(source, Hub) and not source.pinned and key.startswith(f"hub/{source.repo}/"):
            floating = f"{source.repo}@{source.revision or 'main'}"
    return lock.entry(key, path, next(iter(card.sources), ""), floating)


def _from_sources(card: Card, folder: Path, tries: list[Candidate], progress: "Progress") -> Path:
    from keras_vit.zoo.fetching.web import SourceFailed

    failures = []
    for candidate in tries:
        try:
            check_container(candidate.source)
            return _from_source(card, folder, candidate, progress)
        except ValueError as error:
            failures.append(str(error))
        except SourceFailed as error:
            failures.append(f"{candidate.source}: {error}")
    raise FileNotFoundError(_missing(card, folder, False, failures))


def _from_source(card: Card, folder: Path, candidate: Candidate, progress: "Progress") -> Path:
    from keras_vit.zoo.fetching.bring import bring

    def is_good(path: Path, key: str) -> bool:
        try:
            checked(Place(path, key, candidate.published), card, folder)
        except ValueError:
            return False
        return True

    return bring(
        candidate.source,
        folder,
        _expected(card, candidate.published),
        progress=progress,
        key=candidate.key,
        is_good=is_good,
        plain_host=plain_host(),
    )


def _expected(card: Card, published: bool) -> "Expected":
    from keras_vit.zoo.fetching.download import Expected

    if not published:
        return Expected(cap_of(card))
    slack = PREDICTION_SLACK if card.size_predicted else 0
    return Expected(cap_of(card), card.size, slack, card.sha256)


def _missing(card: Card, folder: Path, offline: bool, failures: list[str] | None = None) -> str:
    """What a missing file is, where it is published, what failed, and how it gets here."""
    size = ""
    if card.size is not None:
        about = "about " if card.size_predicted else ""
        size = f" ({about}{card.size:,} bytes, {card.size / 2**20:.1f} MiB)"
    named = card.file or next(iter(card.sources), "")
    lines = [f"the weights of {card.name} are not on this machine: {named}{size}."]
    if card.sources:
        lines.append("It is published at:")
        lines += [f"  {source}" for source in card.sources]
    if any("/vit_models/" in source for source in card.sources):
        lines.append("(Its bucket has refused reads without an account since February 2026.)")
    if card.hub:
        lines.append(f"The same weights in another container: huggingface.co/{card.hub}")
    if failures:
        lines.append("None of these gave it:")
        lines += [f"  {failure}" for failure in failures]
    if card.file:
        lines.append(f"Put it at {folder / card.file},")
        lines.append(f"or name a directory or server that holds {card.file} in {MIRROR_VARIABLE},")
        lines.append("or give the path of any copy as weights=.")
    else:
        lines.append("Give the path of any copy as weights=.")
    if card.sources and not offline:
        lines.append(f"To fetch it{' when that has changed' if failures else ''}:")
        lines.append(f"  keras-vit fetch {shlex.quote(card.name)}")
        by_hand = [s for s in card.sources if s.startswith("https://")]
        if by_hand and card.file:
            # Copies outside of Google's buckets, which need no account, stand last.
            target = folder / card.file
            where, there = shlex.quote(str(target.parent)), shlex.quote(str(target))
            lines.append(f"  mkdir -p {where} && curl -fL -o {there} {shlex.quote(by_hand[-1])}")
    return "\n".join(lines)
