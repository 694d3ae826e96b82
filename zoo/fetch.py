"""The file of a checkpoint: where it is on this machine, or how it gets there.

Looked for in this order: KERAS_VIT_MIRROR (a directory that holds the files under their published
paths, or flat), the cache, the cache of Hugging Face's hub for the sources that lie there, and for
the embedded models the package itself. The cache is `cache_dir`, else KERAS_VIT_CACHE, else
KERAS_HOME/keras_vit where KERAS_HOME is set, else ~/.cache/keras_vit. `find` looks; `fetch` also
downloads: from KERAS_VIT_MIRROR when that is an address, then from the card's sources in turn.

A source in the container of `card.file` is that file: it must have the card's size and hash and
lies in the cache under its published path. A source in another container has a path of its own.
"""

import os
import shlex
import warnings
from collections.abc import Iterator
from importlib import resources
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, NamedTuple

from keras_vit.card import Card
from keras_vit.zoo import lock
from keras_vit.zoo.cards import all_cards, card_spec
from keras_vit.zoo.lock import sha256
from keras_vit.zoo.sources import Hub, Local, Source, Web, cache_key, check_container, parse

if TYPE_CHECKING:
    from keras_vit.zoo.download import Expected
    from keras_vit.zoo.reporting import Progress

MIRROR_VARIABLE = "KERAS_VIT_MIRROR"
CACHE_VARIABLE = "KERAS_VIT_CACHE"

# How far a file may be from a predicted size. Writers of npz differ by 20 bytes per array in the
# archive and up to 48 in the array headers; the largest checkpoint has 522 arrays (36 KB).
PREDICTION_SLACK = 64 * 1024  # bytes
# What a container of another kind may hold besides float32 parameters.
CONTAINER_SLACK = 16 * 2**20  # bytes


class Place(NamedTuple):
    """A file of a card: where it lies, its path below a cache, whether it is `card.file`."""

    path: Path
    key: str
    published: bool


class Candidate(NamedTuple):
    """A source of a card: its path below the cache (None: known once fetched), and as in Place."""

    source: Source
    key: str | None
    published: bool


def cache_folder(cache_dir: str | os.PathLike | None = None) -> Path:
    """The directory that holds fetched checkpoints under their published paths."""
    if chosen := cache_dir or os.environ.get(CACHE_VARIABLE):
        return Path(chosen).expanduser()
    if home := os.environ.get("KERAS_HOME"):
        return Path(home).expanduser() / "keras_vit"
    return Path("~/.cache/keras_vit").expanduser()


def wants_offline(offline: bool | None) -> bool:
    """The argument, or for None what HF_HUB_OFFLINE says."""
    if offline is not None:
        return offline
    return os.environ.get("HF_HUB_OFFLINE", "").strip().upper() in ("1", "ON", "YES", "TRUE")


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
    place = _look(card, folder)
    if place is None:
        raise FileNotFoundError(_missing(card, folder, wants_offline(offline)))
    return _checked(place, card, folder)


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
    place = _look(card, folder)
    if place is not None:
        try:
            return _checked(place, card, folder)
        except ValueError as error:
            if offline or not place.path.is_relative_to(folder) or not card.sources:
                raise
            warnings.warn(f"{error} It is fetched again now.", stacklevel=2)
    candidates = [] if offline or _is_local(card) else list(_candidates(card))
    if not candidates:
        raise FileNotFoundError(_missing(card, folder, offline))
    return _from_sources(card, folder, candidates, progress)


def check(path: Path, card: Card) -> Path:
    """The path, if the file there can be the card's.

    A predicted size leaves `PREDICTION_SLACK` bytes; a known one must match. The hash is compared
    where the card has one.

    Raises:
        FileNotFoundError: no such file.
        ValueError: size or hash differ; the message names both.
    """
    if not path.is_file():
        raise FileNotFoundError(f"{path} of {card.name} does not exist.")
    if not _size_fits(path, card):
        about = "about " if card.size_predicted else ""
        raise ValueError(
            f"{path} has {path.stat().st_size:,} bytes, but {card.name} has {about}{card.size:,}: it "
            f"is truncated or another file. Fetch it again, or give its path as weights= to load it "
            f"as it is."
        )
    if card.sha256 is not None and (found := lock.digest_of(path)) != card.sha256:
        raise ValueError(
            f"{path} has the SHA-256 {found}, but {card.name} has {card.sha256}: it was changed or "
            f"is another file. Fetch it again."
        )
    return path


def planned(
    card: Card, cache_dir: str | os.PathLike | None = None
) -> tuple[str | None, str | None, Path | None]:
    """(source that `fetch` would try first, where it goes, the file that is here), without network.

    Each is None where there is none; the file is not checked.
    """
    folder = cache_folder(cache_dir)
    place = _look(card, folder)
    here = place.path if place else None
    for source, key, _ in [] if _is_local(card) else _candidates(card):
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
    place = _look(card, folder)
    if place is None:
        raise FileNotFoundError(_missing(card, folder, wants_offline(None)))
    path, key, published = place
    if not key:
        raise ValueError(f"{card.name} is the file {path}, which has no published path to lock.")
    if published:
        check(path, card)
    floating = None
    for source in (candidate.source for candidate in _candidates(card)):
        if isinstance(source, Hub) and not source.pinned and key.startswith(f"hub/{source.repo}/"):
            floating = f"{source.repo}@{source.revision or 'main'}"
    return lock.entry(key, path, next(iter(card.sources), ""), floating)


def cap_of(card: Card) -> int:
    """The most bytes that any container of a checkpoint may have; no server has a say in it."""
    room = int(4 * card_spec(card).num_params * 1.1) + CONTAINER_SLACK
    return max((card.size or 0) + PREDICTION_SLACK, room)


def _from_sources(
    card: Card, folder: Path, candidates: list[Candidate], progress: "Progress"
) -> Path:
    from keras_vit.zoo.web import SourceFailed

    failures = []
    for candidate in candidates:
        try:
            check_container(candidate.source)
            return _from_source(card, folder, candidate, progress)
        except ValueError as error:
            failures.append(str(error))
        except SourceFailed as error:
            failures.append(f"{candidate.source}: {error}")
    raise FileNotFoundError(_missing(card, folder, False, failures))


def _from_source(card: Card, folder: Path, candidate: Candidate, progress: "Progress") -> Path:
    from keras_vit.zoo.bring import bring

    def is_good(path: Path, key: str) -> bool:
        try:
            _checked(Place(path, key, candidate.published), card, folder)
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
        plain_host=_plain_host(),
    )


def _expected(card: Card, published: bool) -> "Expected":
    from keras_vit.zoo.download import Expected

    if not published:
        return Expected(cap_of(card))
    slack = PREDICTION_SLACK if card.size_predicted else 0
    return Expected(cap_of(card), card.size, slack, card.sha256)


def _look(card: Card, folder: Path) -> Place | None:
    """The first place that has the card's file, in the order at the top of this module."""
    if card.file is None and not card.sources:
        raise FileNotFoundError(f"{card.name} names no file: give weights= the path of yours.")
    if card.file and Path(card.file).is_absolute():  # beside a user's own table of cards
        return Place(Path(card.file), "", True)
    if _is_local(card):
        return Place(_embedded(card), card.file or "", True)
    mirror = _mirror_folder()
    if mirror is not None and card.file:
        for inner in _published_paths(card.file):
            if (mirror / inner).is_file():
                return Place(mirror / inner, card.file, True)
        flat = mirror / PurePosixPath(card.file).name
        if flat.is_file():
            return Place(_flat(flat, card), card.file, True)
    if card.file and (folder / card.file).is_file():
        return Place(folder / card.file, card.file, True)
    for candidate in _candidates(card):
        if place := _source_here(candidate, card, folder, mirror):
            return place
    return None


def _source_here(
    candidate: Candidate, card: Card, folder: Path, mirror: Path | None
) -> Place | None:
    """The file of one source, if it is on this machine."""
    source, key, published = candidate
    if isinstance(source, Local):
        return Place(source.path, key or "", published) if source.path.is_file() else None
    if isinstance(source, Hub):
        if source.file is None:
            return None
        if mirror is not None and (path := mirror / source.repo / source.file).is_file():
            return Place(path, key or "", published)
        from keras_vit.zoo import hub

        there = hub.cached(source, folder)
        return Place(there[0], key or there[1], published) if there else None
    path = folder / (key or cache_key(source))
    return Place(path, key or cache_key(source), published) if path.is_file() else None


def _checked(place: Place, card: Card, folder: Path) -> Path:
    """The path of a place whose file passes every check that applies to it."""
    path, key, published = place
    if published:
        check(path, card)
    elif path.stat().st_size > cap_of(card):
        raise ValueError(
            f"{path} has {path.stat().st_size:,} bytes, more than the {cap_of(card):,} that any file "
            f"of {card.name} can have."
        )
    if not key:
        return path
    return lock.check_seen(path, key, recorded=path.is_relative_to(folder))


def _candidates(card: Card) -> Iterator[Candidate]:
    """Sources in order: the mirror's addresses, then the card's own."""
    own = []
    for text in card.sources:
        try:
            source = parse(text)
        except ValueError:
            continue
        published = bool(card.file) and _suffix(source.file) == _suffix(card.file)
        key = card.file if published else None
        if key is None and not isinstance(source, Hub):
            key = cache_key(source)
        own.append(Candidate(source, key, published))
    mirror = os.environ.get(MIRROR_VARIABLE, "").rstrip("/")
    if "://" in mirror:
        for path in _published_paths(card.file):
            yield Candidate(_at(mirror, path), card.file, True)
        for source, _, published in own:
            if isinstance(source, Hub) and source.pinned and source.file and not published:
                yield Candidate(
                    _at(mirror, f"{source.repo}/{source.file}"), cache_key(source), False
                )
    yield from own


def _at(mirror: str, path: str) -> Source:
    source = parse(f"{mirror}/{path}")
    if not isinstance(source, Web):
        raise ValueError(
            f"{MIRROR_VARIABLE}={mirror} must be a directory, or an https:// or http:// address."
        )
    return source


def _published_paths(file: str | None) -> list[str]:
    """A published path with and without its bucket."""
    if not file:
        return []
    inner = file.partition("/")[2]
    return [file, *([inner] if "/" in inner else [])]


def _plain_host() -> str | None:
    """The host that the user named with http:// in KERAS_VIT_MIRROR."""
    mirror = os.environ.get(MIRROR_VARIABLE, "")
    if not mirror.startswith("http://"):
        return None
    from urllib.parse import urlsplit

    return urlsplit(mirror).hostname


def _suffix(name: str | None) -> str:
    return PurePosixPath(name or "").suffix.lower()


def _is_local(card: Card) -> bool:
    return bool(card.file) and (card.file or "").startswith("embedded/")


def _size_fits(path: Path, card: Card) -> bool:
    if card.size is None:
        return True
    return abs(path.stat().st_size - card.size) <= (PREDICTION_SLACK if card.size_predicted else 0)


def _mirror_folder() -> Path | None:
    named = os.environ.get(MIRROR_VARIABLE, "")
    if not named or "://" in named:
        return None
    folder = Path(named).expanduser()
    if not folder.is_dir():
        raise FileNotFoundError(
            f"{MIRROR_VARIABLE} names {named}, which is no directory: name one that holds the "
            f"checkpoints under their published paths, or unset it."
        )
    return folder


def _flat(path: Path, card: Card) -> Path:
    """A file found by its bare name, which several releases share: its size must single it out."""
    check(path, card)
    others = [
        other.name
        for other in all_cards().values()
        if other.file and Path(other.file).name == path.name and other.name != card.name
    ]
    fitting = [name for name in others if _size_fits(path, all_cards()[name])]
    if fitting:
        raise ValueError(
            f"{path} may be {card.name} or {' or '.join(fitting)}, whose files have the same name and "
            f"size: put it at {card.file} below {MIRROR_VARIABLE}, or give its path as weights=."
        )
    return path


def _embedded(card: Card) -> Path:
    name = Path(card.file or "").name
    path = Path(str(resources.files("keras_vit.zoo") / "embedded" / name))
    if not path.is_file():
        raise FileNotFoundError(
            f"{card.name} ships inside the package, but {path} is missing: reinstall keras-vit-zoo."
        )
    return path


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
            # The last source is the one that needs no account.
            target = folder / card.file
            where, there = shlex.quote(str(target.parent)), shlex.quote(str(target))
            lines.append(f"  mkdir -p {where} && curl -fL -o {there} {shlex.quote(by_hand[-1])}")
    return "\n".join(lines)


__all__ = [
    "cache_folder",
    "cap_of",
    "check",
    "fetch",
    "find",
    "lock_entry",
    "planned",
    "sha256",
    "wants_offline",
]
