"""Figure 12 drawn: images per second against the size of the images, and the largest batch."""

from collections.abc import Sequence
from typing import Any

from keras_vit.analysis.figures import new_figure
from keras_vit.results.tables import MISSING, Table
from keras_vit.studies.drawing import MARKERS
from keras_vit.studies.speed import Summary

HOW = {
    "compiled": "compiled; twice as many do not fit",
    "line": "a straight line through the two largest programs",
    "at least": "at least; one program was compiled",
    "nothing fits": "not one image fits",
}


def summary_table(found: Sequence[Summary], *, core: bool) -> Table:
    """The points as a table.

    Args:
        found: of `keras_vit.studies.speed.summaries`.
        core: they are those of a TPU's core, with the largest batch.
    """
    head = ("network", "pixels", f"images/s{'/core' if core else ''}, at most", "at a batch of")
    rows = []
    for one in found:
        rate = MISSING if one.rate is None else digits(one.rate)
        row = (one.model, str(one.image_size), rate, str(one.batch or MISSING))
        if core:
            row += (f"{one.largest:,}" if one.largest else MISSING, HOW.get(one.how, MISSING))
        rows.append(row)
    return Table((*head, "largest batch", "known by") if core else head, tuple(rows))


def digits(rate: float) -> str:
    """A rate with three digits that mean something."""
    return f"{rate:,.0f}" if rate >= 100 else f"{rate:.3g}"


def figure(found: Sequence[Summary], title: str, *, core: bool) -> Any:
    """A matplotlib figure: the peak rate, and beside it the largest batch of a core.

    Raises:
        ImportError: matplotlib is missing.
    """
    made = new_figure(10.4 if core else 5.6, 4.2)
    axes = made.subplots(1, 2 if core else 1, squeeze=False)[0]
    labels = (
        f"images per second{' and core' if core else ''}, best batch",
        "largest batch of a core",
    )
    for panel, field, label in zip(axes, ("rate", "largest"), labels, strict=False):
        _curves(panel, found, field)
        panel.set_ylabel(label)
    made.suptitle(title, fontsize=10)
    return made


def _curves(panel: Any, found: Sequence[Summary], field: str) -> None:
    sizes = sorted({one.image_size for one in found})
    for index, model in enumerate(dict.fromkeys(one.model for one in found)):
        points = sorted(
            (one.image_size, getattr(one, field))
            for one in found
            if one.model == model and getattr(one, field)
        )
        if points:
            x, y = zip(*points, strict=True)
            panel.plot(x, y, label=model, marker=MARKERS[index % len(MARKERS)], markersize=5)
    panel.set_xlabel("image size, pixels")
    if panel.lines:
        panel.set_xscale("log", base=2)
        panel.set_yscale("log")
        panel.legend(fontsize=8, frameon=False)
    panel.set_xticks(sizes, [str(size) for size in sizes])
    panel.minorticks_off()
    panel.grid(alpha=0.25)
