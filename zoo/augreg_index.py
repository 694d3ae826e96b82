"""The index of the AugReg files: which of them is best, as their authors choose.

They publish index.csv beside the files, a line for each of the 51,509 fine-tuned ones. The user's
copy is read, one model at a time; nothing is kept.

Source: vit_jax_augreg.ipynb; vit_jax/train.py for the order of choice.
"""

import csv
import math
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from keras_vit.zoo.augreg import DATASETS, FOLDER, MODELS, Settings, parse

INDEX_URL = f"https://storage.googleapis.com/{FOLDER}/index.csv"
INDEX_VARIABLE = "KERAS_VIT_AUGREG_INDEX"
INDEX_CAP = 256 * 2**20  # bytes; 51,509 lines have some 20 MB

COLUMNS = ("ds", "final_val", "final_test", "filename")
TUNED_COLUMNS = ("adapt_ds", "adapt_final_val", "adapt_final_test", "adapt_filename")


class Row(NamedTuple):
    """A line of the index.

    Attributes:
        settings: of its file.
        val: top-1 % on the validation split that choices are made by: of pre-training's data, or
            of fine-tuning's.
        test: top-1 % on the test split, NaN where the index has none.
    """

    settings: Settings
    val: float
    test: float


def index_path(path: str | os.PathLike | None = None) -> Path:
    """The user's copy of the index: the argument, KERAS_VIT_AUGREG_INDEX, or in the cache.

    Raises:
        FileNotFoundError: there is none; the message says where it is published.
    """
    from keras_vit.zoo.fetch import cache_folder

    chosen = path or os.environ.get(INDEX_VARIABLE)
    found = Path(chosen).expanduser() if chosen else cache_folder() / FOLDER / "index.csv"
    if not found.is_file():
        raise FileNotFoundError(
            f"{found} is not here: the index of the AugReg files is published at {INDEX_URL} (without "
            f"an account refused since February 2026); put a copy there, or name it with --index or in "
            f"{INDEX_VARIABLE}."
        )
    return found


def read_index(path: str | os.PathLike, model: str, dataset: str | None = None) -> list[Row]:
    """The lines of a model in the authors' order of choice, best first.

    They choose by the validation split, and so does this: among files pre-trained on ImageNet-21k
    (then those on ImageNet-1k) the one with the best `final_val`; for a data set among those the
    fine-tuned file with the best `adapt_final_val`. The test accuracy stands beside it.

    Args:
        path: index.csv.
        model: as in the index, `B/16`.
        dataset: None for the pre-trained files, else the data of fine-tuning.

    Raises:
        ValueError: no such model or data set, or no such table; the message names file and line.
    """
    if model not in MODELS:
        raise ValueError(f"no AugReg model {model!r}: there are {', '.join(MODELS)}.")
    if dataset is not None and dataset not in DATASETS:
        raise ValueError(f"no AugReg fine-tuning on {dataset!r}: there are {', '.join(DATASETS)}.")
    path = Path(path)
    if path.stat().st_size > INDEX_CAP:
        raise ValueError(f"{path} has more than {INDEX_CAP >> 20} MiB: it is no index of AugReg.")
    rows = {row.settings: row for row in _lines(path, model, dataset) if not math.isnan(row.val)}
    return sorted(rows.values(), key=lambda row: (row.settings.data != "i21k", -row.val))


def _lines(path: Path, model: str, dataset: str | None) -> Iterator[Row]:
    prefix = re.sub(r"[/+]", "_", model) + "-"
    try:
        with path.open(encoding="utf-8", newline="") as file:
            reader = csv.reader(file)
            header = next(reader, [])
            wanted = ("name", *COLUMNS, *(TUNED_COLUMNS if dataset else ()))
            if missing := [column for column in wanted if column not in header]:
                raise ValueError(
                    f"{path} has no columns {missing}: it is no index of AugReg, which is {INDEX_URL}."
                )
            at = [header.index(column) for column in wanted]
            last = max(at)
            for cells in reader:
                if not cells:
                    continue
                if len(cells) <= last:
                    raise ValueError(
                        f"{path}, line {reader.line_num} has {len(cells)} cells instead of "
                        f"{len(header)}: fetch it again."
                    )
                values = [cells[i] for i in at]
                if values[0] != model or (dataset and values[5] != dataset):
                    continue
                yield _row(values, prefix, dataset, f"{path}, line {reader.line_num}")
    except (csv.Error, UnicodeDecodeError) as error:
        raise ValueError(f"{path} cannot be read as a table: {error}.") from None


def _row(values: list[str], prefix: str, dataset: str | None, where: str) -> Row:
    val, test, name = values[6:9] if dataset else values[2:5]
    settings = parse(name)
    if settings is None or not settings.stem.startswith(prefix):
        raise ValueError(f"{where}: {name[:200]!r} is no name of a file of {values[0]}.")
    if (settings.fine_tuning is None) == bool(dataset):
        raise ValueError(f"{where}: {name[:200]!r} does not fit its column.")
    return Row(settings, _percent(val, where), _percent(test, where))


def _percent(text: str, where: str) -> float:
    """An accuracy in percent, from a fraction or a percentage; NaN for none."""
    try:
        value = float(text or "nan")
    except ValueError:
        value = -1.0
    if not math.isnan(value) and not 0.0 <= value <= 100.0:
        raise ValueError(f"{where}: {text[:40]!r} is no accuracy.")
    return 100.0 * value if value <= 1.0 else value
