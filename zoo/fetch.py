"""Where the file of a checkpoint is on this machine, or how to get it there.

Looked for in this order: KERAS_VIT_MIRROR (a directory that holds the files under their published
paths, or flat), the cache (`cache_dir`, else KERAS_VIT_CACHE, else ~/.cache/keras_vit), and for the
embedded models the package itself. Nothing is downloaded.
"""

import hashlib
import os
import shlex
from importlib import resources
from pathlib import Path

from keras_vit.card import Card
from keras_vit.zoo.cards import all_cards

MIRROR_VARIABLE = "KERAS_VIT_MIRROR"
CACHE_VARIABLE = "KERAS_VIT_CACHE"

# How far a file may be from a predicted size. Writers of npz differ by 20 bytes per array in the
# archive and up to 48 in the array headers; the largest checkpoint has 522 arrays (36 KB).
PREDICTION_SLACK = 64 * 1024  # bytes


def cache_folder(cache_dir: str | os.PathLike | None = None) -> Path:
    """The directory that holds fetched checkpoints under their published paths."""
    chosen = cache_dir or os.environ.get(CACHE_VARIABLE) or Path("~/.cache/keras_vit")
    return Path(chosen).expanduser()


def find(
    card: Card, cache_dir: str | os.PathLike | None = None, offline: bool | None = None
) -> Path:
    """The file of a checkpoint, checked against its card.

    Args:
        card: the checkpoint.
        cache_dir: None for KERAS_VIT_CACHE or ~/.cache/keras_vit.
        offline: the machine has no network: a missing file is explained without commands that
            need one.

    Raises:
        FileNotFoundError: it is not here; the message says what, from where, and where to put it.
        ValueError: a file of that name has another size or hash than the card.
    """
    if card.file is None:
        raise FileNotFoundError(f"{card.name} names no file: give weights= the path of yours.")
    if Path(card.file).is_absolute():  # beside a user's own table of cards
        return check(Path(card.file), card)
    if card.file.startswith("embedded/"):
        return check(_embedded(card), card)
    mirror = _mirror()
    for candidate in _candidates(card, mirror):
        if candidate.is_file():
            return check(candidate, card)
    if mirror is not None and (flat := mirror / Path(card.file).name).is_file():
        return _flat(flat, card)
    target = cache_folder(cache_dir) / card.file
    if target.is_file():
        return check(target, card)
    raise FileNotFoundError(_missing(card, target, offline))


def check(path: Path, card: Card) -> Path:
    """The path, if the file there can be the card's.

    A predicted size leaves `PREDICTION_SLACK` bytes; a known one must match. The hash is computed
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
    if card.sha256 is not None and (found := sha256(path)) != card.sha256:
        raise ValueError(
            f"{path} has the SHA-256 {found}, but {card.name} has {card.sha256}: it was changed or "
            f"is another file. Fetch it again."
        )
    return path


def sha256(path: Path) -> str:
    """Hash of a file, read in pieces."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _size_fits(path: Path, card: Card) -> bool:
    if card.size is None:
        return True
    return abs(path.stat().st_size - card.size) <= (PREDICTION_SLACK if card.size_predicted else 0)


def _mirror() -> Path | None:
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


def _candidates(card: Card, mirror: Path | None) -> list[Path]:
    """Places below the mirror where only this card's file can lie: with and without the bucket."""
    if mirror is None or card.file is None:
        return []
    bucket, _, inner = card.file.partition("/")
    return [mirror / bucket / inner, *([mirror / inner] if "/" in inner else [])]


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


def _missing(card: Card, target: Path, offline: bool | None) -> str:
    size = ""
    if card.size is not None:
        about = "about " if card.size_predicted else ""
        size = f" ({about}{card.size:,} bytes, {card.size / 2**20:.1f} MiB)"
    lines = [f"the weights of {card.name} are not on this machine: {card.file}{size}."]
    if card.sources:
        lines.append("It is published at:")
        lines += [f"  {source}" for source in card.sources]
    if any("/vit_models/" in source for source in card.sources):
        lines.append("(Its bucket has refused reads without an account since February 2026.)")
    if card.hub:
        lines.append(
            f"In another format, which this version does not read: huggingface.co/{card.hub}"
        )
    lines.append(f"Put it at {target},")
    lines.append(f"or name a directory that holds {card.file} in {MIRROR_VARIABLE},")
    lines.append("or give the path of any copy as weights=.")
    named = os.environ.get(MIRROR_VARIABLE, "")
    if "://" in named:
        lines.append(
            f"{MIRROR_VARIABLE}={named} is an address; this version reads directories only."
        )
    if card.sources and not offline:
        lines.append("To fetch it:")
        folder = shlex.quote(str(target.parent))
        # The last source is the one that needs no account.
        source, where = shlex.quote(card.sources[-1]), shlex.quote(str(target))
        lines.append(f"  mkdir -p {folder} && curl -fL -o {where} {source}")
    return "\n".join(lines)
