"""`train`: a recipe of a paper, on a network, images and devices."""

from pathlib import Path
from typing import Annotated, Any

import typer

from keras_vit.cli.common import (
    Answer,
    DataDir,
    Devices,
    Force,
    Set,
    SmokeRun,
    bytes_text,
    command_line,
    log,
    training_run,
)
from keras_vit.cli.evaluate import evaluation_view


def train(
    recipe: Annotated[
        str,
        typer.Argument(
            help="paper/imagenet, augreg/imagenet21k, fashion_mnist/ten, ...", show_default=False
        ),
    ],
    out: Annotated[
        Path, typer.Option("--out", help="Folder for model and report.", show_default=False)
    ],
    model: Annotated[
        str | None,
        typer.Option("--model", help="A name, or a file to start from; the recipe's by default."),
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(
            "--data",
            help="folder:PATH, tfds:NAME:SPLIT or an .npz; images:PATH where labels are ignored; of "
            "Fashion-MNIST full or subset.",
        ),
    ] = None,
    val: Annotated[
        str | None, typer.Option("--val", help="Images to choose the best epoch by.")
    ] = None,
    data_dir: DataDir = None,
    options: Annotated[
        list[str] | None,
        typer.Option(
            "--with", help="An option of the recipe: epochs=30, level=medium1.", metavar="KEY=VALUE"
        ),
    ] = None,
    more: Set = None,
    seed: Annotated[int | None, typer.Option("--seed", help="Of everything random.")] = None,
    devices: Devices = "auto",
    model_parallel: Annotated[
        int,
        typer.Option(
            "--model-parallel", min=1, help="Devices that share one copy of the weights (JAX)."
        ),
    ] = 1,
    checkpoint_steps: Annotated[
        int | None,
        typer.Option("--checkpoint-steps", min=1, help="Besides one after each epoch."),
    ] = None,
    smoke: SmokeRun = False,
    force: Force = False,
) -> Answer:
    """Train a network by a recipe of a paper, or as the models of the package were trained.

    The state is kept after every epoch: run the same command again to go on after an interruption.
    SIGTERM saves it and exits with code 0.
    """
    from keras_vit.train.distribute import open_devices
    from keras_vit.train.rundir import check_out

    placement = open_devices(devices, model_parallel=model_parallel)
    if placement.is_chief:
        check_out(out, force)
    from keras_vit.cli.progress import epoch_lines
    from keras_vit.train.task import resolve, run_task

    task = resolve(
        recipe,
        model=model,
        data=data,
        validation=val,
        data_dir=data_dir,
        options=options or (),
        changes=more or (),
        seed=seed,
        smoke=smoke,
    )
    with training_run(out), epoch_lines() as lines:

        def callbacks(count: int):
            log(f"{recipe}: {count} epochs, state kept in {out} after each")
            return (lines(count),)

        report: dict[str, Any] = run_task(
            task,
            out,
            placement=placement,
            smoke=smoke,
            checkpoint_steps=checkpoint_steps,
            force=force,
            command=command_line(),
            callbacks=callbacks,
        )
    size = bytes_text(report["file_bytes"])
    written = f"written: {out}/model.keras, model.npz ({size}), report.md and report.json"
    measured = evaluation_view(report["evaluation"]) if "evaluation" in report else ()
    if patches := report.get("pretext"):
        measured = (
            f"loss {patches['loss']:.4f}, colour class of a corrupted patch right "
            f"{patches['accuracy']:.2%}; {patches['examples']:,} images of {patches['data']}",
        )
    return Answer({"out": str(out), **report}, (*measured, "", written))
