"""The checkpoints: one row per file in the TOML tables beside this module.

A table is `[defaults]`, merged into every row, and `[[card]]` rows whose keys are the fields of
`keras_vit.card.Card`. KERAS_VIT_CARDS may list directories (separated as PATH is) of a user's own
tables: their rows add to these, or replace the row of the same variant and tag. A `file` that lies
beside a user's table is used from there.

Tags read `SERIES_DATA[_ft_DATA][_EPOCHSep][_PIXELS][_timm]`:

- series: `orig` (arXiv 2010.11929, 2105.01601), `augreg` (2106.10270), `sam` (2106.01548), `gsam`
  (2203.08065), `plain` (2205.01580), `bit` (1912.11370), `distill` and `teacher` (2106.05237),
  `flexi` and its baselines `fixed16`, `fixed30` (2212.08013), `deit` (2012.12877), `dino`
  (2104.14294), `dinov2` (2304.07193), `mae` (2111.06377), `augreg2` and `miil` (2104.10972) of timm;
- data: `in1k`, `in21k` or `lvd142m`, the data of pre-training; `ft_DATA`: what it was fine-tuned on;
- epochs: where the authors published several;
- pixels: of the fine-tuned file, and where several exist. Else it is at its variant's size;
- `timm`: where the authors recommend one file and timm picked another, timm's; and where timm's has
  the trunk alone. Without it, the authors' recommendation, or the only known pick.

Two groups are not rows but made from a pattern: `vtab_TASK_runN` of BiT (`keras_vit.zoo.vtab`), and
the 50,000 files of AugReg by their names (`keras_vit.zoo.augreg`).

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
from keras_vit.spec import Spec
from keras_vit.zoo.fetching.sources import parse
from keras_vit.zoo.variants import VARIANTS
from keras_vit.zoo.vtab import vtab_cards

TABLES = (
    "original.toml",
    "augreg.toml",
    "sam.toml",
    "mixer.toml",
    "bit.toml",
    "big_vision.toml",
    "relatives.toml",
    "timm.toml",
    "embedded.toml",
)
LABEL_LISTS = {"imagenet2012": 1000, "imagenet21k": 21843}  # of keras_vit.data.labels
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


def card_spec(card: Card) -> Spec:
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
    return (*rows, *vtab_cards())


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
    except (ValueError, RecursionError) as e:
        raise ValueError(f"{where} is no valid TOML: {_line(e)}.") from None
    if extra := sorted(set(table) - {"defaults", "card"}):
        raise ValueError(
            f"{where} has {_line(extra)}: a table of cards holds [defaults] and [[card]] rows."
        )
    defaults, rows = table.get("defaults", {}), table.get("card", [])
    if not isinstance(defaults, dict) or not isinstance(rows, list):
        raise ValueError(f"{where}: write [defaults] once and [[card]] with double brackets.")
    cards: dict[str, Card] = {}
    for number, row in enumerate(rows, 1):
        row = row if isinstance(row, dict) else {}
        name = f"{row.get('variant', '?')}@{row.get('tag', '?')}"
        label = f"{where}, row {number} ({_line(name)})"
        try:
            card = _checked(Card.from_dict({**defaults, **row}))
        except ValueError as e:
            raise ValueError(f"{label}: {_line(e)}") from None
        if card.name in cards:
            raise ValueError(f"{label}: this variant and tag stand in an earlier row already.")
        cards[card.name] = card
    return list(cards.values())


def _line(value: Any) -> str:
    """A value in a message: on one line, without control characters, and not too long."""
    text = "".join(c if c.isprintable() else " " for c in str(value))
    return text if len(text) < 400 else f"{text[:400]}..."


def _checked(card: Card) -> Card:
    """The card, or ValueError for what only shows when it is used."""
    if card.variant not in VARIANTS:
        raise ValueError(f"variant {card.variant!r} is none of {list(VARIANTS)}.")
    if not card.tag or not card.tag.isprintable() or set(card.tag) & set("@/\\ "):
        raise ValueError(f"tag {card.tag!r} must be a word without spaces, @ and slashes.")
    if card.file is not None:
        path = PurePosixPath(card.file)
        bad = path.is_absolute() or ".." in path.parts or "\\" in card.file or not path.name
        if bad or not card.file.isprintable():
            raise ValueError(f"file {card.file!r} must be a relative path without `..`.")
    for source in card.sources:
        parse(source)
    if card.num_classes < 0 or (card.size is not None and card.size <= 0):
        raise ValueError("num_classes must be 0 or more, and size positive or left out.")
    _check_names(card)
    if card.sha256 is not None and not _is_sha256(card.sha256):
        raise ValueError(f"sha256 {card.sha256!r} must be 64 lower-case hexadecimal digits.")
    if taken := sorted({"num_classes", "image_size"} & set(card.spec)):
        raise ValueError(f"{taken} are fields of the card itself, not of its spec.")
    try:
        if card_spec(card).num_params <= 0:
            raise ValueError("the spec has no parameters.")
    except (TypeError, AttributeError, OverflowError) as e:
        raise ValueError(f"spec {_line(card.spec)} fits no {card.variant}: {e}.") from None
    return card


def _check_names(card: Card) -> None:
    names = card.class_names
    if isinstance(names, str) and names not in LABEL_LISTS:
        raise ValueError(
            f"class_names {names!r} is no shipped list: there are {list(LABEL_LISTS)}."
        )
    count = LABEL_LISTS[names] if isinstance(names, str) else len(names or ())
    if names is not None and count != card.num_classes:
        raise ValueError(
            f"{count} class_names for num_classes = {card.num_classes}: give one each."
        )


def _is_sha256(text: str) -> bool:
    return len(text) == 64 and not set(text) - set("0123456789abcdef")
