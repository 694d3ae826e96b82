"""The checkpoints: one row per file in the TOML tables beside this module.

A table is `[defaults]`, merged into every row, and `[[card]]` rows whose keys are the fields of
`keras_vit.card.Card`. KERAS_VIT_CARDS may list directories (separated as PATH is) of a user's own
tables: their rows add to these, or replace the row of the same variant and tag. A `file` that lies
beside a user's table is used from there.

Tags read `SERIES_DATA[_ft_DATA][_PIXELS][_timm]`:

- series: `orig` (arXiv 2010.11929), `augreg` (2106.10270), `sam` (2106.01548), `gsam` (2203.08065);
- data: `in21k` or `in1k`, the data of pre-training; `ft_in1k`: fine-tuned on ImageNet-1k after it;
- pixels: of the fine-tuned file. What was only pre-trained has none and is at 224;
- `timm`: where the authors recommend one file and timm picked another, timm's. Without it, the
  authors' recommendation, or the only known pick.

The source of a metric begins with who reports it: `authors`, `timm`, or a command of this project.
"""

import dataclasses
import functools
import os
import tomllib
from importlib import resources
from pathlib import Path, PurePosixPath
from typing import Any

from keras_vit.card import Card
from keras_vit.spec import ViTSpec
from keras_vit.zoo.variants import VARIANTS

TABLES = ("original.toml", "augreg.toml", "sam.toml", "embedded.toml")
CARDS_VARIABLE = "KERAS_VIT_CARDS"


def all_cards() -> dict[str, Card]:
    """Every known checkpoint by its full name `variant@tag`, small variants first.

    Raises:
        ValueError: a user's table is broken; the message names file and row.
    """
    own = os.environ.get(CARDS_VARIABLE, "")
    return dict(_merged(tuple(folder for folder in own.split(os.pathsep) if folder)))


def tags(variant: str) -> list[str]:
    """The tags of a variant; empty when nothing was released."""
    return [card.tag for card in all_cards().values() if card.variant == variant]


def card_spec(card: Card) -> ViTSpec:
    """The network of a checkpoint: its variant, with what the card says is different."""
    return dataclasses.replace(
        VARIANTS[card.variant].spec,
        num_classes=card.num_classes,
        image_size=card.image_size,
        **card.spec,
    )


@functools.cache
def _shipped() -> tuple[Card, ...]:
    folder = resources.files("keras_vit.zoo.cards")
    rows = []
    for name in TABLES:
        rows += read_table(folder.joinpath(name).read_text("utf-8"), name)
    return tuple(rows)


@functools.cache
def _merged(folders: tuple[str, ...]) -> dict[str, Card]:
    found = {card.name: card for card in _shipped()}
    for folder in folders:
        for path in _tables_in(Path(folder).expanduser()):
            for card in read_table(_text(path), str(path)):
                beside = path.parent / card.file if card.file else None
                if beside is not None and beside.is_file():
                    card = dataclasses.replace(card, file=str(beside.resolve()))
                found[card.name] = card
    rank = {variant: i for i, variant in enumerate(VARIANTS)}
    return dict(sorted(found.items(), key=lambda item: rank[item[1].variant]))


def _tables_in(folder: Path) -> list[Path]:
    if not folder.is_dir():
        raise ValueError(
            f"{CARDS_VARIABLE} names {folder}, which is no directory: give directories of .toml "
            f"tables, separated by {os.pathsep!r}."
        )
    return sorted(folder.glob("*.toml"))


def _text(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as e:
        raise ValueError(f"{path} cannot be read as a table of cards: {e}.") from None


def read_table(text: str, where: str) -> list[Card]:
    """Cards of one TOML table.

    Args:
        text: content of the table.
        where: its name, for error messages.

    Raises:
        ValueError: no TOML, or a row that is no card; the message names table and row.
    """
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as e:
        raise ValueError(f"{where} is no valid TOML: {e}.") from None
    if extra := sorted(set(table) - {"defaults", "card"}):
        raise ValueError(
            f"{where} has {extra}: a table of cards holds [defaults] and [[card]] rows."
        )
    defaults, rows = table.get("defaults", {}), table.get("card", [])
    if not isinstance(defaults, dict) or not isinstance(rows, list):
        raise ValueError(f"{where}: write [defaults] once and [[card]] with double brackets.")
    cards: dict[str, Card] = {}
    for number, row in enumerate(rows, 1):
        label = f"{where}, row {number} ({row.get('variant', '?')}@{row.get('tag', '?')})"
        try:
            card = _checked(Card.from_dict({**defaults, **row}))
        except (ValueError, TypeError, AttributeError) as e:
            raise ValueError(f"{label}: {e}") from None
        if card.name in cards:
            raise ValueError(f"{label}: this variant and tag stand in an earlier row already.")
        cards[card.name] = card
    return list(cards.values())


_KINDS: dict[str, tuple[type, ...]] = {
    "variant": (str,),
    "tag": (str,),
    "description": (str,),
    "file": (str, type(None)),
    "sources": (tuple,),
    "hub": (str, type(None)),
    "size": (int, type(None)),
    "size_predicted": (bool,),
    "sha256": (str, type(None)),
    "num_classes": (int,),
    "class_names": (tuple, str, type(None)),
    "image_size": (tuple,),
    "spec": (dict,),
    "posemb_resize": (str,),
    "usable_head": (bool,),
    "pretraining": (str,),
    "license": (str,),
    "aliases": (tuple,),
    "note": (str,),
}


def _checked(card: Card) -> Card:
    """The card, or ValueError for what only shows when it is used."""
    for field, kinds in _KINDS.items():
        value: Any = getattr(card, field)
        if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
            wanted = " or ".join(_TOML_NAMES[kind] for kind in kinds if kind is not type(None))
            raise ValueError(f"{field} must be {wanted}, got {value!r}.")
    if card.variant not in VARIANTS:
        raise ValueError(f"variant {card.variant!r} is none of {list(VARIANTS)}.")
    if not card.tag or set(card.tag) & set("@/\\ "):
        raise ValueError(f"tag {card.tag!r} must be a word without spaces, @ and slashes.")
    if card.file is not None:
        path = PurePosixPath(card.file)
        if path.is_absolute() or ".." in path.parts or "\\" in card.file or not path.name:
            raise ValueError(f"file {card.file!r} must be a relative path without `..`.")
    if isinstance(card.class_names, tuple) and len(card.class_names) != card.num_classes:
        raise ValueError(
            f"{len(card.class_names)} class_names for num_classes = {card.num_classes}: give one each."
        )
    if card.sha256 is not None and not _is_sha256(card.sha256):
        raise ValueError(f"sha256 {card.sha256!r} must be 64 lower-case hexadecimal digits.")
    card_spec(card)  # raises for a spec or an image size that cannot be built
    return card


_TOML_NAMES = {
    str: "a string",
    int: "an integer",
    bool: "true or false",
    tuple: "a list",
    dict: "a table",
}


def _is_sha256(text: str) -> bool:
    return len(text) == 64 and not set(text) - set("0123456789abcdef")
