"""The published numbers beside which one's own are read: tables of the paper and what it compares with.

They lie in `published/*.csv`, one number a line as it was printed, with its source.
"""

import csv
import dataclasses
import functools
from importlib import resources
from typing import Any

from keras_vit.results.names import VTAB_GROUPS
from keras_vit.results.store import Result

PAPER = "arXiv 2010.11929"
STUDY = "published"
AVG5 = ("ReaL", "CIFAR-10", "CIFAR-100", "Pets", "Flowers-102")
TABLE7_MEAN = ("ImageNet", "CIFAR-10", "CIFAR-100", "Pets", "Flowers-102")
VTAB_MEANS = {
    **{group: tuple(f"VTAB {t}" for t in tasks) for group, tasks in VTAB_GROUPS.items()},
    "VTAB": tuple(f"VTAB {task}" for tasks in VTAB_GROUPS.values() for task in tasks),
}


@dataclasses.dataclass(frozen=True)
class Layout:
    """How a published table is printed, and which of a user's results belong beside it.

    Attributes:
        title: of the table.
        index: fields of a result that tell the rows apart.
        column: field of a result that names its column, None for `names.column_name`.
        columns: in order.
        means: columns that are the mean of others.
        decimals: of percentages.
        transposed: whether models are columns.
        studies: of a user's results; None for all but those of frozen features.
    """

    title: str
    index: tuple[str, ...]
    columns: tuple[str, ...]
    column: str | None = None
    means: dict[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
    decimals: int = 2
    transposed: bool = False
    studies: tuple[str, ...] | None = None


TRANSFER = ("ImageNet", "ReaL", "CIFAR-10", "CIFAR-100", "Pets", "Flowers-102")
LAYOUTS = {
    "2": Layout(
        "State of the art, mean and standard deviation of three fine-tunings",
        ("model", "settings.pretraining"),
        (*TRANSFER, "VTAB", "TPUv3-core-days"),
        means={"VTAB": VTAB_MEANS["VTAB"]},
    ),
    "5": Layout(
        "Transfer by pre-training set, at 384 px", ("model", "settings.pretraining"), TRANSFER
    ),
    "6": Layout(
        "Scaling: pre-training on JFT-300M, transfer at 384 px",
        ("model", "settings.pretraining", "settings.epochs"),
        (*TRANSFER, "exaFLOPs", "avg-5"),
        means={"avg-5": AVG5},
    ),
    "7": Layout(
        "ResNets pre-trained with Adam and with SGD",
        ("model", "settings.pretraining", "settings.optimizer"),
        (*TABLE7_MEAN, "mean"),
        means={"mean": TABLE7_MEAN},
    ),
    "8": Layout(
        "Position embeddings of ViT-B/16: ImageNet, linear on five images a class",
        ("model", "settings.posemb"),
        ("stem", "layers", "layers_shared"),
        column="settings.posemb_at",
        decimals=3,
        studies=("fewshot", "posemb"),
    ),
    "9": Layout(
        "VTAB-1k by task",
        ("model", "settings.pretraining"),
        (*(part for group in VTAB_GROUPS for part in (*VTAB_MEANS[group], group)), "VTAB"),
        means=VTAB_MEANS,
        decimals=1,
        transposed=True,
        studies=("vtab",),
    ),
    "figure 2": Layout(
        "VTAB-1k by group",
        ("model", "settings.pretraining", "settings.note"),
        ("VTAB", *VTAB_GROUPS),
        means=VTAB_MEANS,
        studies=("vtab",),
    ),
    "others": Layout(
        "Other numbers that the paper gives or quotes",
        ("model", "settings.pretraining", "settings.protocol"),
        ("ImageNet", "ObjectNet", "ObjectNet top-5"),
        decimals=1,
    ),
}


def published(table: str | int | None = None) -> list[Result]:
    """The numbers of a table, or of all of them, in the order in which they are printed.

    Shares lie in [0, 1]; `std` is in the same unit. Figure 2 is the paper's bars as far as their
    numbers are known: its ViT are the means of Table 9.

    Args:
        table: `2`, `5`, `6`, `7`, `8`, `9`, `figure 2` or `others`; None for all.

    Raises:
        ValueError: no such table.
    """
    if table is None:
        return [row for name in LAYOUTS for row in published(name)]
    return list(_rows(layout_name(table)))


def layout_name(table: str | int) -> str:
    """The key of a table in `LAYOUTS`: `Table 6`, `figure-2` and `figure_2` are understood.

    Raises:
        ValueError: no such table.
    """
    name = str(table).strip().lower().removeprefix("table").replace("_", " ").replace("-", " ")
    if (name := name.strip()) not in LAYOUTS:
        raise ValueError(f"no published table {table!r}: there are {', '.join(LAYOUTS)}.")
    return name


@functools.cache
def _rows(name: str) -> tuple[Result, ...]:
    file = name.replace(" ", "_") if name in ("figure 2", "others") else f"table_{name}"
    path = resources.files("keras_vit.results").joinpath("published", f"{file}.csv")
    lines = csv.DictReader(path.read_text("utf-8").splitlines())
    rows = tuple(_result(line) for line in lines)
    return (*_bars_of_tables(), *rows) if name == "figure 2" else rows


def _result(line: dict[str, str]) -> Result:
    percent = line["unit"] == "percent"
    scale, digits = (100, 2) if percent else (1, 0)

    def number(text: str) -> float:
        # Rounded to the digits that were printed: 0.9955, not 0.9954999999999999.
        return round(float(text) / scale, len(text.partition(".")[2]) + digits)

    return Result(
        study=STUDY,
        model=line["model"],
        data=line["data"],
        metric=line["metric"],
        value=number(line["value"]),
        unit="share" if percent else line["unit"],
        std=number(line["std"]) if line.get("std") else None,
        settings={
            key.removeprefix("settings."): _plain(value)
            for key, value in line.items()
            if key.startswith("settings.") and value
        },
        source=line["source"],
    )


def _plain(text: str) -> Any:
    return int(text) if text.isdigit() else text


def _bars_of_tables() -> list[Result]:
    """The bars of Figure 2 that follow from tables: ViT-H/14's, and the mean of BiT-L's."""
    tasks = {r.data: r.value for r in _rows("9") if r.model == "ViT-H/14"}
    rows = []
    for data in ("VTAB", *VTAB_GROUPS):
        values = [tasks[part] for part in VTAB_MEANS[data]]
        rows.append(
            Result(
                study=STUDY,
                model="ViT-H/14",
                data=data,
                metric="accuracy",
                value=round(sum(values) / len(values), 6),
                settings={"pretraining": "JFT-300M"},
                source=f"{PAPER}, mean of Table 9",
            )
        )
    return [*rows, *(r for r in _rows("2") if r.model.startswith("BiT-L") and r.data == "VTAB")]
