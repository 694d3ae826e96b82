"""What a study found: a table, and its figure with the paper's numbers beside it."""

import dataclasses
import statistics
from collections.abc import Iterable, Sequence
from typing import Any

from keras_vit.analysis.figures import check_installed, new_figure
from keras_vit.results.published import published
from keras_vit.results.store import Result
from keras_vit.results.tables import Table, pivot
from keras_vit.studies.study import Axis, Study

METRICS = {"accuracy": "test accuracy, %", "few-shot": "5-shot accuracy on other images, %"}
MARKERS = "os^Dv*P"
FAMILIES = {
    "ViT": lambda name: name.startswith("ViT"),
    "ResNet (BiT)": lambda name: "ViT" not in name,
    "Hybrid": lambda name: "+" in name,
}


def tables(study: Study, rows: Sequence[Result]) -> dict[str, Table]:
    """A table for each number that was measured: curves by places, mean and deviation over seeds."""
    found = {}
    for metric in METRICS:
        mine = [row for row in rows if row.metric == metric]
        if mine:
            places = dict.fromkeys(place_name(study.axis, cell.at) for cell in study.cells)
            named = [_named(study.axis, row) for row in mine]
            found[metric] = pivot(
                named, ("settings.curve",), column="settings.at", columns=list(places)
            )
    return found


def place_name(axis: Axis, at: float | str) -> str:
    """A place along the axis in words."""
    if isinstance(at, str):
        return at
    return f"{at:,.0f}" if at >= 1000 and not axis.names else f"{at:.3g}"


def _named(axis: Axis, row: Result) -> Result:
    """A row with nothing in its settings but what places it in the table."""
    kept = {
        "curve": row.settings["curve"],
        "at": place_name(axis, row.settings["at"]),
        "seed": row.settings["seed"],
    }
    return dataclasses.replace(row, settings=kept)


def figure(study: Study, rows: Sequence[Result]) -> Any:
    """A matplotlib figure: a panel for each number measured, and one for the paper's.

    Every point is the mean over the seeds, with their sample standard deviation.

    Raises:
        ImportError: matplotlib is missing.
    """
    check_installed()
    measured = [metric for metric in METRICS if any(row.metric == metric for row in rows)]
    panels = len(measured) + int(study.published is not None)
    made = new_figure(5.2 * panels, 4.2)
    axes = made.subplots(1, panels, squeeze=False)[0]
    for panel, metric in zip(axes, measured, strict=False):
        _curves(panel, study, [row for row in rows if row.metric == metric])
        panel.set_ylabel(METRICS[metric])
        panel.set_title("measured here", fontsize=9)
    if study.published is not None:
        _published(axes[-1], study.published)
    made.suptitle(f"{study.title} ({study.source})", fontsize=10)
    return made


def _curves(panel: Any, study: Study, rows: Sequence[Result]) -> None:
    places = list(dict.fromkeys(cell.at for cell in study.cells))
    for index, curve in enumerate(dict.fromkeys(cell.curve for cell in study.cells)):
        mine = [row for row in rows if row.settings["curve"] == curve]
        points = []
        for at in dict.fromkeys(row.settings["at"] for row in mine):
            values = [100 * row.value for row in mine if row.settings["at"] == at]
            x = places.index(at) if study.axis.names else at
            spread = statistics.stdev(values) if len(values) > 1 else 0.0
            points.append((x, statistics.fmean(values), spread))
        if points:
            x, y, spread = zip(*sorted(points), strict=True)
            style = "none" if study.axis.names else "-"
            panel.errorbar(x, y, yerr=spread, label=curve, marker=MARKERS[index % len(MARKERS)],
                           linestyle=style, capsize=3, markersize=5, linewidth=1.3)  # fmt: skip
    _dress(panel, study.axis, places)


def _published(panel: Any, table: str) -> None:
    """Table 6 as in Figure 5: ImageNet against the compute of pre-training."""
    rows = published(table)
    values = _by_run(row for row in rows if row.data == "ImageNet" and row.metric == "accuracy")
    compute = _by_run(row for row in rows if row.metric == "exaflops")
    for index, (family, belongs) in enumerate(FAMILIES.items()):
        points = sorted(
            (compute[run], 100 * values[run])
            for run in values
            if run in compute and belongs(run[0])
        )
        if points:
            x, y = zip(*points, strict=True)
            panel.plot(x, y, label=family, marker=MARKERS[index], linestyle="-", markersize=5)
    panel.set_ylabel("ImageNet accuracy after fine-tuning, %")
    panel.set_title(f"the paper's Table {table}", fontsize=9)
    _dress(panel, Axis("compute of pre-training, exaFLOPs", log=True), ())


def _by_run(rows: Iterable[Result]) -> dict[tuple[str, Any], float]:
    return {(row.model, row.settings.get("epochs")): row.value for row in rows}


def _dress(panel: Any, axis: Axis, places: Sequence[float | str]) -> None:
    panel.set_xlabel(axis.label)
    if axis.log:
        panel.set_xscale("log")
    if axis.names:
        panel.set_xticks(range(len(places)), [str(place) for place in places], fontsize=8)
        panel.set_xlim(-0.5, len(places) - 0.5)
    panel.grid(alpha=0.25)
    panel.legend(fontsize=8, frameon=False)
