"""Where the file of a checkpoint may lie on this machine, where it is published, and what it must be.

A source in the container of `card.file` is that file: it must have the card's size and hash and
lies in the cache under its published path. A source in another container has a path of its own.
"""

import os
from collections.abc import Iterator
from importlib import resources
from pathlib import Path, PurePosixPath
from typing import NamedTuple
from urllib.parse import urlsplit

from keras_vit.card import Card
from keras_vit.zoo.cards import all_cards, card_spec
from keras_vit.zoo.fetching import lock
from keras_vit.zoo.fetching.sources import Hub, Local, Source, Web, cache_key, parse

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


def cap_of(card: Card) -> int:
    """The most bytes that any container of a checkpoint may have; no server has a say in it."""
    room = int(4 * card_spec(card).num_params * 1.1) + CONTAINER_SLACK
    return max((card.size or 0) + PREDICTION_SLACK, room)


def look(card: Card, folder: Path) -> Place | None:
    """The first place that has the card's file, in the order that `fetch.py` tells."""
    if card.file is None and not card.sources:
        raise FileNotFoundError(f"{card.name} names no file: give weights= the path of yours.")
    if card.file and Path(card.file).is_absolute():  # beside a user's own table of cards
        return Place(Path(card.file), "", True)
    if is_embedded(card):
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
    for candidate in candidates(card):
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
        from keras_vit.zoo.fetching import hub

        there = hub.cached(source, folder)
        return Place(there[0], key or there[1], published) if there else None
    path = folder / (key or cache_key(source))
    return Place(path, key or cache_key(source), published) if path.is_file() else None


def checked(place: Place, card: Card, folder: Path) -> Path:
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


def candidates(card: Card) -> Iterator[Candidate]:
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


def plain_host() -> str | None:
    """The host that the user named with http:// in KERAS_VIT_MIRROR."""
    mirror = os.environ.get(MIRROR_VARIABLE, "")
    if not mirror.startswith("http://"):
        return None
    return urlsplit(mirror).hostname


def _suffix(name: str | None) -> str:
    return PurePosixPath(name or "").suffix.lower()


def is_embedded(card: Card) -> bool:
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
