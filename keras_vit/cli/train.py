"""`train`: the trainings that made the models of the package."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from keras_vit.cli.common import Answer, Force, bytes_text, command_line, interrupted_run, log
from keras_vit.cli.evaluate import evaluation_view


class Images(StrEnum):
    """Choices of --data."""

    full = "full"
    subset = "subset"


def train(
    task: Annotated[
        str,
        typer.Argument(help="fashion_mnist/ten or fashion_mnist/eight.", show_default=False),
    ],
    out: Annotated[
        Path, typer.Option("--out", help="Folder for model and report.", show_default=False)
    ],
    epochs: Annotated[
        int | None, typer.Option("--epochs", min=1, help="Another number than the recipe's.")
    ] = None,
    data: Annotated[
        Images, typer.Option("--data", help="All 60,000 images, or the 3,000 of the package.")
    ] = Images.full,
    force: Force = False,
) -> Answer:
    """Train a model of the package from random weights, as it was trained for the package.

    All of Fashion-MNIST takes about an hour on 2 cores. Run the same command again to go on after
    an interruption.
    """
    from keras_vit.train.rundir import check_out

    check_out(out, force)
    from keras_vit.cli.progress import EpochLines
    from keras_vit.train.task import run_task

    lines: list[EpochLines] = []

    def callbacks(count: int) -> tuple[EpochLines, ...]:
        log(f"{task}: {count} epochs, state kept in {out} after each")
        lines.append(EpochLines(count))
        return tuple(lines)

    try:
        report: dict[str, Any] = run_task(
            task,
            out,
            epochs=epochs,
            data=data.value,
            force=force,
            command=command_line(),
            callbacks=callbacks,
        )
    except KeyboardInterrupt:
        raise interrupted_run(out) from None
    finally:
        for line in lines:
            line.stop()
    written = (
        f"written: {out}/model.keras, model.npz ({bytes_text(report['file_bytes'])}), report.json"
    )
    return Answer(
        {"out": str(out), **report}, (*evaluation_view(report["evaluation"]), "", written)
    )
