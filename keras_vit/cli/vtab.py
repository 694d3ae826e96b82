"""`vtab`: a model fine-tuned on the tasks of VTAB-1k, beside the paper's."""

import dataclasses
from enum import StrEnum
from pathlib import Path
from typing import Annotated

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
    training_run,
)


class Protocol(StrEnum):
    """What is trained on; see `transfer.vtab.run.PROTOCOLS`."""

    train800val200 = "train800val200"
    train800 = "train800"


def vtab(
    model: Annotated[
        str, typer.Argument(help="A name (ViT-L/16@imagenet21k), or a file.", show_default=False)
    ],
    out: Annotated[
        Path,
        typer.Option("--out", help="Folder for the tasks and their results.", show_default=False),
    ],
    tasks: Annotated[
        str | None,
        typer.Option("--tasks", help="Some of the 19, or a group: natural,dmlab; all by default."),
    ] = None,
    data_dir: DataDir = None,
    protocol: Annotated[
        Protocol,
        typer.Option(
            "--protocol",
            help="Train on 1,000 images and measure on the test images; or on 800, and measure on 200.",
        ),
    ] = Protocol.train800val200,
    more: Set = None,
    seed: Annotated[int, typer.Option("--seed", help="Of everything random.")] = 0,
    devices: Devices = "auto",
    smoke: SmokeRun = False,
    force: Force = False,
) -> Answer:
    """Fine-tune a model on VTAB-1k: 19 tasks of 1,000 images, with the means of the paper's Table 9.

    Tasks that are finished in the folder are not run again: run the same command again to go on after an
    interruption, or with other tasks to add them. The data must be prepared by tensorflow-datasets.
    """
    from keras_vit.train.distribute import open_devices

    placement = open_devices(devices)
    from keras_vit.cli.progress import epoch_lines
    from keras_vit.results.tables import beside_published
    from keras_vit.transfer.vtab.means import means
    from keras_vit.transfer.vtab.run import RESULTS, run_vtab
    from keras_vit.transfer.vtab.tasks import TASKS

    chosen = named(tasks)
    with training_run(out), epoch_lines() as lines:

        def callbacks(name: str, epochs: int):
            log(f"{name} ({chosen.index(name) + 1} of {len(chosen)} tasks): {epochs} epochs")
            return (lines(epochs),)

        rows = run_vtab(
            model,
            out,
            placement=placement,
            tasks=chosen,
            protocol=protocol.value,
            data_dir=data_dir,
            changes=more or (),
            seed=seed,
            smoking=smoke,
            force=force,
            command=command_line(),
            callbacks=callbacks,
        )
    titles = {f"VTAB {task.title}": name for name, task in TASKS.items()}
    found = means({titles[row.data]: row.value for row in rows})
    data = {
        "out": str(out),
        "results": [row.to_dict() for row in rows],
        "means": dataclasses.asdict(found),
    }
    beside = beside_published("9", rows).markdown().rstrip("\n")
    return Answer(data, (beside, "", f"written: {out / RESULTS} and a report for each task"))


def named(text: str | None) -> tuple[str, ...]:
    """The tasks that a comma-separated list of tasks and groups names, in the paper's order.

    Raises:
        ValueError: there is no such task or group.
    """
    from keras_vit.transfer.vtab.tasks import GROUPS, TASKS, find

    if text is None:
        return tuple(TASKS)
    wanted = set()
    for word in (part.strip() for part in text.split(",")):
        group = {name for name, task in TASKS.items() if task.group == word}
        if word in GROUPS:
            wanted |= group
        else:
            wanted.add(find(word).name)
    return tuple(name for name in TASKS if name in wanted)
