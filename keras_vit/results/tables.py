"""Tables of results: rows and columns by what the results say, in Markdown."""

import dataclasses
import json
import statistics
from collections.abc import Iterable, Mapping, Sequence

from keras_vit.results.names import column_name, model_name, pretraining_name
from keras_vit.results.published import AVG5, LAYOUTS, Layout, layout_name, published
from keras_vit.results.store import Result

MISSING = "–"
REPETITION = "seed"  # a setting of which repetitions have different values
SUMMARY = "seeds"  # a setting of what is the mean over them already
SPREADS = ("std", "interval", None)
FROM = "from"
HERE = "measured here"
# Studies of frozen features, whose accuracies mean something else than those of a whole model.
FROZEN = ("fewshot", "knn", "probe", "posemb")


@dataclasses.dataclass(frozen=True)
class Table:
    """Texts in rows and columns.

    Attributes:
        head: names of the columns.
        rows: as many texts each.
        left: how many columns at the left name the row.
    """

    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    left: int = 1

    def markdown(self) -> str:
        """The table as Markdown."""
        rules = ["---"] * self.left + ["--:"] * (len(self.head) - self.left)
        rows = (self.head, tuple(rules), *self.rows)
        return "".join(f"| {' | '.join(map(_escaped, row))} |\n" for row in rows)

    def transposed(self) -> "Table":
        """Columns as rows; what named a row comes to stand over its column."""
        head = ("", *(", ".join(c for c in r[: self.left] if c) for r in self.rows))
        numbers = range(self.left, len(self.head))
        return Table(head, tuple((self.head[i], *(r[i] for r in self.rows)) for i in numbers))


def mean_of(values: Mapping[str, float], parts: Sequence[str]) -> float | None:
    """Mean of some columns, None unless all of them are there."""
    return statistics.fmean(values[p] for p in parts) if all(p in values for p in parts) else None


def avg5(results: Iterable[Result]) -> float | None:
    """Figure 5's mean over ReaL, CIFAR-10, CIFAR-100, Pets and Flowers-102 of one model.

    Args:
        results: of one model, on these data sets under any of their names, and on others.

    Returns:
        In [0, 1], or None unless all five are there.
    """
    return mean_of({column_name(r): r.value for r in results}, AVG5)


def pivot(
    results: Iterable[Result],
    index: Sequence[str] = ("model",),
    *,
    column: str | None = None,
    columns: Sequence[str] | None = None,
    means: Mapping[str, Sequence[str]] | None = None,
    decimals: int = 2,
    spread: str | None = "std",
    best: bool = False,
) -> Table:
    """One row for each value of the index, one column for each data set.

    Several results in one cell are taken for repetitions: the cell has their mean and their sample
    standard deviation. Where one of them is a mean over seeds already, it stands for all.

    Args:
        results: rows come in the order in which they first occur here.
        index: fields that tell rows apart: `model`, `study`, `settings.shots`, ...
        column: field that names the column, None for the data set (`names.column_name`).
        columns: which columns, in order; None for those that occur. What a column lacks is –.
        means: columns that are the mean of others; computed where all of those are there.
        decimals: of percentages.
        spread: what stands beside a number where it is known: `std`, `interval` or None.
        best: print the largest percentage of each column in bold.
    """
    if spread not in SPREADS:
        raise ValueError(f"spread must be one of {list(SPREADS)}, got {spread!r}.")
    rows: dict[tuple[str, ...], dict[str, list[Result]]] = {}
    for result in results:
        place = tuple(_field(result, name) for name in index)
        name = _field(result, column) if column else column_name(result)
        rows.setdefault(place, {}).setdefault(name, []).append(result)
    if columns is None:
        columns = list(dict.fromkeys(name for row in rows.values() for name in row))
    cells = {place: _cells(row, means or {}) for place, row in rows.items()}
    top = {
        name: max((c[name].value for c in cells.values() if name in c), default=None)
        for name in columns
    }

    def text(row: Mapping[str, Result], name: str) -> str:
        if name not in row:
            return MISSING
        found = cell(row[name], decimals=decimals, spread=spread)
        marked = best and row[name].unit == "share" and row[name].value == top[name]
        return f"**{found}**" if marked else found

    named = [name.removeprefix("settings.") for name in index]
    return Table(
        (*named, *(c.removeprefix("VTAB ") for c in columns)),
        tuple((*place, *(text(cells[place], name) for name in columns)) for place in rows),
        len(index),
    )


def cell(result: Result, *, decimals: int = 2, spread: str | None = "std") -> str:
    """One number: percentages with so many decimals, others as they are.

    Args:
        spread: what stands beside it where it is known: `std`, `interval` or None.
    """
    percent = result.unit == "share"

    def shown(value: float) -> str:
        if percent:
            return f"{100 * value:.{decimals}f}"
        return f"{value:,.0f}" if value == round(value) or value >= 1000 else f"{value:.4g}"

    text = shown(result.value)
    if spread == "std" and result.std is not None:
        return f"{text} ± {shown(result.std)}"
    if spread == "interval" and result.interval is not None:
        low, high = result.interval
        return f"{text} ({shown(low)}–{shown(high)})"
    return text


def study_tables(results: Sequence[Result], **options) -> dict[str, Table]:
    """A table for each study: a row for each model and choice of settings.

    Args:
        results: of any studies.
        options: of `pivot`.
    """
    studies: dict[str, list[Result]] = {}
    for result in results:
        studies.setdefault(result.study, []).append(result)
    return {
        study: pivot(rows, ("model", *_varying(rows)), **options) for study, rows in studies.items()
    }


def beside_published(table: str | int, results: Iterable[Result], **options) -> Table:
    """A published table with a user's results as rows of their own, below the same model's.

    A model is the same when its variant is; its rows come below those of the same pre-training,
    where that is known. Results of studies that do not belong to the table are left out.

    Args:
        table: see `published`.
        results: measured ones.
        options: of `pivot`, `decimals`, `spread` and `best`.
    """
    layout = LAYOUTS[layout_name(table)]
    mine = [_as_row(r, layout) for r in results if _belongs(r, layout)]
    extra = [name for name in _varying(mine) if name not in layout.index]
    rows, index = published(table), layout.index
    if mine:
        index = (*index, *extra, "settings." + FROM)
        rows = _placed([_marked(r, "the paper") for r in rows], mine)
    options = {"decimals": layout.decimals, **options}
    made = pivot(
        rows, index, column=layout.column, columns=layout.columns, means=layout.means, **options
    )
    return made.transposed() if layout.transposed else made


def _belongs(result: Result, layout: Layout) -> bool:
    fits = result.study in layout.studies if layout.studies else result.study not in FROZEN
    name = _field(result, layout.column) if layout.column else column_name(result)
    return fits and name in {
        *layout.columns,
        *(p for parts in layout.means.values() for p in parts),
    }


_POSEMB = {"learn": "1-D", "2d": "2-D"}  # of ViTSpec; the paper's names


def _as_row(result: Result, layout: Layout) -> Result:
    settings = dict(result.settings)
    if pretraining := pretraining_name(result):
        settings["pretraining"] = pretraining
    if "posemb" in settings:
        settings["posemb"] = _POSEMB.get(settings["posemb"], settings["posemb"])
    return _marked(dataclasses.replace(result, settings=settings), HERE)


def _marked(result: Result, origin: str) -> Result:
    return dataclasses.replace(result, settings={**result.settings, FROM: origin})


def _placed(paper: list[Result], mine: list[Result]) -> list[Result]:
    """The paper's results, and below those of the same model one's own."""
    models = [(model_name(r.model), r.settings.get("pretraining")) for r in paper]
    after: dict[int, list[Result]] = {}
    for result in mine:
        model, data = model_name(result.model), result.settings.get("pretraining")
        same = [i for i, (m, _) in enumerate(models) if m == model]
        exact = [i for i in same if models[i][1] == data]
        after.setdefault((exact or same or [len(paper) - 1])[-1], []).append(result)
    found = []
    for i, result in enumerate(paper):
        found += [result, *after.get(i, [])]
    return found


def _varying(results: Iterable[Result]) -> list[str]:
    """`settings.NAME` of what tells results apart that would share a cell otherwise.

    The rate of fine-tuning that differs from data set to data set does not; two rates on one do.
    """
    seen: dict[tuple[str, str, str], set[str]] = {}
    for result in results:
        for name in result.settings:
            value = json.dumps(result.settings[name], sort_keys=True)
            seen.setdefault((name, result.model, column_name(result)), set()).add(value)
    found = dict.fromkeys(name for (name, *_), values in seen.items() if len(values) > 1)
    return [f"settings.{name}" for name in found if name != REPETITION]


def _field(result: Result, name: str | None) -> str:
    if name and name.startswith("settings."):
        value = result.settings.get(name.removeprefix("settings."))
    else:
        value = getattr(result, name or "model")
    return "" if value is None else str(value)


def _cells(
    row: Mapping[str, list[Result]], means: Mapping[str, Sequence[str]]
) -> dict[str, Result]:
    found = {name: _combined(results) for name, results in row.items()}
    values = {name: result.value for name, result in found.items()}
    for name, parts in means.items():
        value = mean_of(values, parts)
        if name not in found and value is not None:
            first = found[parts[0]]
            found[name] = dataclasses.replace(first, value=value, std=None, interval=None)
    return found


def _combined(results: list[Result]) -> Result:
    # A row that is a mean over seeds itself stands for the rows of its seeds.
    results = [r for r in results if SUMMARY in r.settings] or results
    if len(results) == 1:
        return results[0]
    values = [r.value for r in results]
    mean = statistics.fmean(values)
    return dataclasses.replace(
        results[0], value=mean, std=statistics.stdev(values), interval=None, examples=None
    )


def _escaped(text: str) -> str:
    plain = "".join(c if c.isprintable() else "?" for c in text)
    return plain.replace("|", "\\|")
