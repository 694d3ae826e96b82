"""`speed`: images per second and the largest batch, by the clock here or by the compiler of TPUs."""

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from keras_vit.cli.common import Answer, command_line, log, table

if TYPE_CHECKING:
    from keras_vit.results.store import Result

FIGURE = "figure.png"
ROWS = "results.jsonl"


def speed(
    models: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[MODEL]...",
            help="Names of networks; Figure 12's by default.",
            show_default=False,
        ),
    ] = None,
    image_size: Annotated[
        str | None,
        typer.Option("--image-size", help="Pixels: 64,128. By default 64,128,224,384,512."),
    ] = None,
    batch: Annotated[
        str | None,
        typer.Option("--batch", help="Images at once. By default 1,8,32; 32,128 with --topology."),
    ] = None,
    topology: Annotated[
        str | None,
        typer.Option(
            "--topology",
            help="Ask the compiler of TPUs about a core of v3-8, ...; measure nothing.",
        ),
    ] = None,
    doubling: Annotated[
        bool,
        typer.Option(
            "--doubling",
            help="With --topology: double the batch until the compiler refuses it. By default the "
            "largest one is read off a straight line through two programs.",
        ),
    ] = False,
    dtype: Annotated[
        str | None,
        typer.Option(
            "--dtype", help="Keras dtype policy. By default float32; bfloat16 with --topology."
        ),
    ] = None,
    rounds: Annotated[
        int | None,
        typer.Option("--rounds", min=1, help="Timed runs, of which the median counts; 5."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="Folder of rows, table and figure.")
    ] = None,
    smoke: Annotated[
        bool,
        typer.Option(
            "--smoke", help="Tiny networks of the first two families, at two sizes and batches."
        ),
    ] = False,
) -> Answer:
    """Repeat Figure 12: inference with random weights, images per second at the best batch size.

    Measures on the device that Keras has; networks take turns. With --topology the compiler of TPUs says what
    one core would do, and the largest batch that fits; a program takes it half a minute. Rows stand in
    OUT/results.jsonl (and .csv); the same command goes on where it ended. What exceeds the memory of a CPU
    ends the process: choose batches that fit.
    """
    from keras_vit.results import store
    from keras_vit.studies import speed as study

    sizes = _numbers("--image-size", image_size, study.SIZES)
    batches = _numbers("--batch", batch, study.COMPILED_BATCHES if topology else study.BATCHES)
    names = list(dict.fromkeys(models or study.NETWORKS))
    if smoke:
        names, sizes, batches = names[:2], sizes[:2], batches[:2]
    if doubling and topology is None:
        raise ValueError("--doubling asks the compiler of TPUs: give --topology too.")
    if rounds is not None and topology is not None:
        raise ValueError(
            "--rounds belongs to the clock, which --topology does not use: leave it out."
        )
    dtype = dtype or ("bfloat16" if topology else "float32")
    study.check(dtype, sizes, batches)
    for name in names:
        for size in sizes:
            study.network(name, size, smoke=smoke)
    found: list[Result] = []
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        store.check(out / ROWS)
        found = store.read(out / ROWS) if (out / ROWS).exists() else []

    def keep(row: "Result") -> None:
        if out is not None:
            store.add(out / ROWS, [row])

    wishes: dict[str, Any] = {
        "dtype": dtype, "smoke": smoke, "rows": found, "command": command_line(), "keep": keep, "log": log,
    }  # fmt: skip
    try:
        if topology is None:
            rows = study.by_clock(names, sizes, batches, rounds=rounds or study.ROUNDS, **wishes)
        else:
            from keras_vit.studies import process

            process.check_installed()
            rows = study.by_compiler(
                names, sizes, batches, process.tpu_speed,
                topology=topology, doubling=doubling, **wishes,
            )  # fmt: skip
    except KeyboardInterrupt:
        where = "nothing is kept without --out" if out is None else f"kept in {out}: finished rows"
        raise KeyboardInterrupt(f"{where}; run the same command again to go on") from None
    return _written(rows, out, dtype, topology)


def _numbers(option: str, text: str | None, default: tuple[int, ...]) -> list[int]:
    words = [str(n) for n in default] if text is None else [w.strip() for w in text.split(",")]
    if not all(word.isdigit() for word in words):
        raise ValueError(f"{option} takes numbers such as 64,128, got {text!r}.")
    return [int(word) for word in words]


def _written(rows: "list[Result]", out: Path | None, dtype: str, topology: str | None) -> Answer:
    """Table and figure of the rows there are."""
    from keras_vit.analysis.figures import png
    from keras_vit.studies import speed_drawing as drawing
    from keras_vit.studies.speed import device, summaries
    from keras_vit.train.rundir import write_bytes, write_text

    found, core = summaries(rows), topology is not None
    made = drawing.summary_table(found, core=core)
    if topology is None:
        about = f"measured on {device()['device']}, {device()['backend']}, {dtype}"
    else:
        about = f"by the compiler, one core of {topology}, {dtype}; a best case"
    data = {
        "out": None if out is None else str(out),
        "points": [dataclasses.asdict(one) for one in found],
        "rows": [row.to_dict() for row in rows],
    }
    view: list[Any] = [table(made.head, [*made.rows], made.left), "", about]
    if out is None:
        return Answer(data, tuple(view))
    title = f"Inference, {about} (Figure 12)"
    parts = [f"# {title}\n\n`{command_line()}`\n", made.markdown()]
    try:
        write_bytes(out / FIGURE, png(drawing.figure(found, title, core=core)))
        parts.append(f"![{title}]({FIGURE})\n")
    except ImportError as missing:
        parts.append(f"There is no figure: {missing}\n")
    write_text(out / "speed.md", "\n".join(parts))
    return Answer(data, (*view, f"written: {out}/{ROWS}, speed.md, {FIGURE}"))
