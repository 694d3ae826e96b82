"""`study`: the paper's studies, planned, run and drawn."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from keras_vit.cli.common import Answer, DataDir, command_line, log, table, training_run

if TYPE_CHECKING:
    from keras_vit.studies.study import Study

FIGURE = "figure.png"


def study(
    name: Annotated[
        str,
        typer.Argument(help="data-size/few-shot, scaling/compute, ...; or list.", metavar="NAME"),
    ],
    out: Annotated[
        Path | None, typer.Option("--out", help="Folder of rows, tables and figure.")
    ] = None,
    scale: Annotated[str, typer.Option("--scale", help="mini (Fashion-MNIST) or paper.")] = "mini",
    plan: Annotated[
        bool, typer.Option("--plan", help="Say what would be trained and what it costs, no more.")
    ] = False,
    data: Annotated[
        str | None, typer.Option("--data", help="Training images; Fashion-MNIST's by default.")
    ] = None,
    test: Annotated[str | None, typer.Option("--test", help="Test images of its classes.")] = None,
    transfer: Annotated[
        str | None,
        typer.Option(
            "--transfer",
            help="Images of other classes: a linear classifier learns them from five each on frozen "
            "features, as the paper's few-shot numbers are made.",
        ),
    ] = None,
    transfer_test: Annotated[
        str | None, typer.Option("--transfer-test", help="Images that this is tested on.")
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option(
            "--only", help="A curve to run, beside others in other processes.", metavar="CURVE"
        ),
    ] = None,
    data_dir: DataDir = None,
    smoke: Annotated[
        bool, typer.Option("--smoke", help="A few steps of the first two networks on few images.")
    ] = False,
) -> Answer:
    """Repeat a study of the paper: every training leaves a row, and the same command goes on.

    Rows stand in OUT/results.jsonl (and .csv), with seed and standard deviation, tables in OUT/study.md and
    the curves, beside the paper's where they are printed, in OUT/figure.png.
    """
    from keras_vit.studies import catalogue

    if name == "list":
        return _list()
    found = catalogue.find(name, scale)
    if smoke:
        found = catalogue.smoke(found)
    if only:
        found = found.parts(only)
    if plan:
        return _plan(found)
    if out is None:
        raise ValueError(
            "a study is run into a folder: give --out, or --plan to see what it takes."
        )
    from keras_vit.cli.progress import epoch_lines
    from keras_vit.studies import drawing, running

    images = _data(scale, data, test, transfer, transfer_test, data_dir, smoke)
    out.mkdir(parents=True, exist_ok=True)
    with training_run(out), epoch_lines() as lines:
        rows = running.run(
            found,
            images,
            out,
            command=command_line(),
            log=log,
            callbacks=lambda epochs: (lines(epochs),),
        )
    return _written(found, rows, out, drawing)


def _data(
    scale: str,
    data: str | None,
    test: str | None,
    transfer: str | None,
    transfer_test: str | None,
    data_dir: str | None,
    smoke: bool,
) -> Any:
    """The images of a study: Fashion-MNIST's, or those that are named."""
    from keras_vit.data.sources import fashion_mnist, open_feed_source, open_source
    from keras_vit.studies.catalogue import SMOKE_IMAGES
    from keras_vit.studies.running import Data

    if (transfer is None) != (transfer_test is None):
        raise ValueError("--transfer and --transfer-test belong together: give both or neither.")
    pair = None
    if transfer is not None and transfer_test is not None:
        pair = (
            open_source(transfer, data_dir=data_dir),
            open_source(transfer_test, data_dir=data_dir),
        )
    if data is None and test is None and scale == "mini":
        if not smoke:
            return Data(fashion_mnist("train"), fashion_mnist("test"), pair)
        train, tested = (
            fashion_mnist(f"subset_{split}").take(range(count))
            for split, count in zip(("train", "test"), SMOKE_IMAGES, strict=True)
        )
        return Data(train, tested, pair)
    if data is None or test is None:
        raise ValueError(
            "--data and --test belong together, and --scale paper needs them: give both."
        )
    train, tested = (open_feed_source(each, data_dir=data_dir) for each in (data, test))
    if not data.startswith("tfds:") or "[" in data:
        return Data(train, tested, pair)
    split = data if data.count(":") > 1 else f"{data}:train"

    def slices(first: int, last: int) -> Any:
        return open_feed_source(f"{split}[{first}:{last}]", data_dir=data_dir)

    return Data(train, tested, pair, slices)


def _list() -> Answer:
    from keras_vit.studies import catalogue

    rows = []
    for name in catalogue.STUDIES:
        study, paper = (catalogue.find(name, scale) for scale in catalogue.SCALES)
        rows.append((name, study.source, str(_trainings(study)), str(_trainings(paper))))
    data = [dict(zip(("name", "source", "mini", "paper"), row, strict=True)) for row in rows]
    return Answer(data, (table(("study", "repeats", "trainings, mini", "paper"), rows, 2),))


def _trainings(study: "Study") -> int:
    return sum(sum(counts) for counts in map(study.runs_of, study.cells))


def _plan(study: "Study") -> Answer:
    """What is trained, with the compute of all of it."""
    from keras_vit.studies.drawing import place_name

    rows, cells, total = [], [], 0.0
    for cell in study.cells:
        tried, final = study.runs_of(cell)
        each = study.cost_of(cell).training_exaflops or 0.0
        total += each * (tried + final)
        images = cell.images or study.available
        cells.append(
            {
                "curve": cell.curve,
                "at": cell.at,
                "model": cell.model,
                "images": images,
                "tried": [c.label for c in cell.candidates] if tried else [],
                "seeds": list(study.seeds),
                "exaflops_each": each,
                "recipes": [c.recipe.to_dict() for c in cell.candidates],
            }
        )
        place = place_name(study.axis, cell.at)
        rows.append((cell.curve, place, cell.model, f"{images:,}", tried, final, f"{each:.3g}"))
    head = ("curve", study.axis.label, "network", "images", "to choose", "seeds", "exaFLOPs each")
    about = f"{study.title}. {study.source}. {_trainings(study)} trainings, {total:.3g} exaFLOPs in all."
    data = {"name": study.name, "source": study.source, "exaflops": total, "cells": cells}
    return Answer(data, (about, "", table(head, rows, 3)))


def _written(study: "Study", rows: list[Any], out: Path, drawing: Any) -> Answer:
    """Tables and figure of the rows there are."""
    from keras_vit.analysis.figures import png
    from keras_vit.train.rundir import write_bytes, write_text

    found = drawing.tables(study, rows)
    parts = [f"# {study.title}\n\nRepeats {study.source}; `{command_line()}`.\n"]
    for metric, made in found.items():
        parts.append(
            f"{drawing.METRICS[metric]}, mean and standard deviation over seeds:\n\n{made.markdown()}"
        )
    try:
        write_bytes(out / FIGURE, png(drawing.figure(study, rows)))
        parts.append(f"![{study.title}]({FIGURE})\n")
    except ImportError as missing:
        parts.append(f"There is no figure: {missing}\n")
    write_text(out / "study.md", "\n".join(parts))
    data = {"name": study.name, "out": str(out), "rows": [row.to_dict() for row in rows]}
    views = [table(made.head, [*made.rows], made.left) for made in found.values()]
    return Answer(data, (*views, "", f"written: {out}/results.jsonl, study.md, {FIGURE}"))
