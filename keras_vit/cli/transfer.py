"""`transfer`: fine-tuning as the paper measures it."""

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
    command_line,
    log,
    table,
    training_run,
)


def transfer(
    model: Annotated[
        str, typer.Argument(help="A checkpoint by name, or a file.", show_default=False)
    ],
    out: Annotated[
        Path, typer.Option("--out", help="Folder for runs and report.", show_default=False)
    ],
    data: Annotated[
        str | None,
        typer.Option(
            "--data",
            help="pets, cifar10, tfds:NAME, folder:PATH (with train and test), or an .npz.",
            show_default=False,
        ),
    ] = None,
    test: Annotated[
        str | None, typer.Option("--test", help="Test images, where the data has none of its own.")
    ] = None,
    protocol: Annotated[
        str,
        typer.Option("--protocol", help="paper (a sweep of Table 4), or hyperrule (BiT, ResNets)."),
    ] = "paper",
    rates: Annotated[
        str | None, typer.Option("--rates", help="Other peak rates to try: 0.003,0.01.")
    ] = None,
    seeds: Annotated[
        str, typer.Option("--seeds", help="Of the final runs; the paper has three: 0,1,2.")
    ] = "0",
    high_resolution: Annotated[
        bool,
        typer.Option("--high-resolution", help="ImageNet as in Table 2: 512 px, averaged weights."),
    ] = False,
    more: Set = None,
    results: Annotated[
        Path | None, typer.Option("--results", help="Add the number to this store, a .jsonl.")
    ] = None,
    data_dir: DataDir = None,
    devices: Devices = "auto",
    smoke: SmokeRun = False,
    force: Force = False,
) -> Answer:
    """Fine-tune as the paper does: choose the rate on held-out images, train on all, test.

    What is finished is kept in the folder: run the same command again to go on after an
    interruption.
    """
    from keras_vit.train.distribute import open_devices

    placement = open_devices(devices)
    from keras_vit.cli.progress import epoch_lines
    from keras_vit.results import store
    from keras_vit.transfer import protocol as protocols

    seed_numbers = tuple(map(int, _numbers("--seeds", seeds)))
    if smoke:
        images = protocols.made_up(model)
    elif data:
        images = protocols.images(data, test=test, data_dir=data_dir, seed=seed_numbers[0])
    else:
        raise ValueError("transfer needs images: give --data pets, tfds:NAME or folder:PATH.")
    with training_run(out), epoch_lines() as lines:

        def callbacks(name: str, epochs: int):
            log(f"{name}: {epochs} epochs")
            return (lines(epochs),)

        report = protocols.run_transfer(
            model,
            images,
            out,
            placement=placement,
            protocol=protocol,
            rates=_numbers("--rates", rates) if rates else None,
            high_resolution=high_resolution,
            changes=more or (),
            seeds=seed_numbers,
            smoking=smoke,
            force=force,
            command=command_line(),
            callbacks=callbacks,
        )
    if results and placement.is_chief:
        store.add(results, [protocols.result_of(report)])
    return Answer({"out": str(out), **report}, _view(report, out))


def _view(report: dict[str, Any], out: Path) -> tuple[Any, ...]:
    view: list[Any] = []
    if report["sweep"]:
        rows = [(name, f"{value:.2%}") for name, value in report["sweep"].items()]
        view += [table(("setting", "held-out accuracy"), rows), ""]
    low, high = report["evaluation"]["interval"]
    spread = (
        f" ± {report['std']:.2%}" if report["std"] is not None else f" ({low:.2%} to {high:.2%})"
    )
    view.append(
        f"{report['model']} on {report['data']}: {report['accuracy']:.2%}{spread} of "
        f"{report['evaluation']['examples']:,} test images, with {report['chosen']}"
    )
    view += _beside(report)
    view += ["", f"written: {out}/report.json and {out}/final_{report['seeds'][0]}/model.keras"]
    return tuple(view)


def _beside(report: dict[str, Any]) -> list[Any]:
    """What Table 5 of the paper has for these images."""
    from keras_vit.results.published import published

    rows = [
        (row.model, row.settings["pretraining"], f"{row.value:.2%}")
        for row in published(5)
        if row.data == report["data"] and row.metric == "accuracy"
    ]
    return ["", table(("paper, Table 5", "pre-training", "accuracy"), rows, left=2)] if rows else []


def _numbers(option: str, text: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise ValueError(
            f"{option} takes numbers with commas between them, got {text!r}."
        ) from None
