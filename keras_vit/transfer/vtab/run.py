"""Running VTAB-1k: the paper's fine-tuning of each task, one row of results each."""

import dataclasses
import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np

from keras_vit.data.sources import Source
from keras_vit.results import store
from keras_vit.results.store import Result
from keras_vit.train import overrides, recipes, rundir
from keras_vit.train import task as training
from keras_vit.train.placement import Placement
from keras_vit.train.recipes import smoke
from keras_vit.transfer.vtab.tasks import TASKS, Task, check_task, find, open_task

RECIPE = "paper/finetune-vtab"
# Name: what is trained on, and what is measured on.
PROTOCOLS = {"train800val200": ("train800val200", "test"), "train800": ("train800", "val200")}
# The images are repeated before they are shuffled, as in VTAB's code (data/base.py). The state of a run is
# kept after each epoch: 2,500 times if one were 1,000 images and so a single update of 512.
REPEATS = 64
RESULTS = "results.jsonl"
Callbacks = Callable[[str, int], tuple[keras.callbacks.Callback, ...]]


def repeated(source: Source, times: int = REPEATS) -> Source:
    """The same images several times over, without copies of them."""
    images = dataclasses.replace(source, images=list(source.images))
    return images.take(np.tile(np.arange(len(source)), times))


def run_vtab(
    model: str,
    out: Path,
    *,
    placement: Placement,
    tasks: Sequence[str] = tuple(TASKS),
    protocol: str = "train800val200",
    data_dir: str | None = None,
    changes: Iterable[str] = (),
    seed: int = 0,
    smoking: bool = False,
    force: bool = False,
    command: str | None = None,
    callbacks: Callbacks = lambda name, epochs: (),
) -> list[Result]:
    """Fine-tunes a model on each task and measures it; adds a row for each to `out/results.jsonl`.

    A task that is finished in `out` is not run again, one that was interrupted goes on from its last
    checkpoint, and later calls may add tasks. No fine-tuned models are kept.

    Args:
        model: a checkpoint or a file.
        out: folder, with one for each task.
        placement: the devices, opened before anything was computed.
        tasks: names of `TASKS`.
        protocol: `train800val200` trains on the 1,000 images and measures on the test images;
            `train800` trains on 800 of them and measures on the other 200, to choose settings by.
        data_dir: where tensorflow-datasets keeps its files.
        changes: `part.field=value` texts, other values for fields of the recipe.
        seed: of everything random.
        smoking: a few steps of a tiny network on made-up images.
        force: run the tasks again.
        command: noted in the results.
        callbacks: from the name of a task and its epochs to further Keras callbacks.

    Returns:
        All rows of `out`; none in other processes than the first.

    Raises:
        ValueError: no such task or protocol, data that is not prepared (all of it is named before
            anything is trained), or `out` holds runs with other settings.
        FileExistsError, OSError: `out` cannot be used.

    Source: arXiv 2010.11929, Table 4 and appendix B.1.1; arXiv 1910.04867, section 3.
    """
    if protocol not in PROTOCOLS:
        raise ValueError(f"protocol must be one of {list(PROTOCOLS)}, got {protocol!r}.")
    out, chosen, changes = Path(out), [find(name) for name in tasks], list(changes)
    if placement.is_chief:
        rundir.check_out(out, force)
    waiting = [task for task in chosen if force or not (out / task.name / "report.json").is_file()]
    if not smoking:
        _check_data(waiting, data_dir)
    settings = {"protocol": protocol, "seed": seed, **({"smoke": True} if smoking else {})}
    about = {"study": "vtab", "model": model, "changes": changes, **settings}
    if placement.is_chief:
        rundir.start(out, about, force)
    placement.barrier("begun")
    rows = store.read(out / RESULTS) if (out / RESULTS).is_file() else []
    for task in chosen:
        folder = out / task.name
        if task in waiting:
            report = training.run_task(
                _task(task, model, protocol, data_dir, changes, seed, smoking),
                folder,
                placement=placement,
                smoke=smoking,
                force=force,
                command=command,
                callbacks=lambda epochs, name=task.name: callbacks(name, epochs),
                writes=(),
            )
        else:
            report = json.loads((folder / "report.json").read_text("utf-8"))
        if placement.is_chief:
            row = _row(task, model, report, settings)
            if task in waiting or row.key not in {known.key for known in rows}:
                rows = store.add(out / RESULTS, [row])
        placement.barrier(f"measured {task.name}")
    return rows if placement.is_chief else []


def _check_data(tasks: list[Task], data_dir: str | None) -> None:
    problems = []
    for task in tasks:
        try:
            check_task(task.name, data_dir=data_dir)
        except ValueError as error:
            problems.append(f"{task.name}: {error}")
    if problems:
        raise ValueError(
            f"the data of {len(problems)} of {len(tasks)} tasks is missing; leave them out, or prepare "
            f"it:\n" + "\n".join(problems)
        )


def _task(
    task: Task,
    model: str,
    protocol: str,
    data_dir: str | None,
    changes: list[str],
    seed: int,
    smoking: bool,
) -> training.Task:
    variant = training.variant_of(model)
    recipe = overrides.apply(recipes.resolve(RECIPE, variant, task=task.name), changes)
    recipe = dataclasses.replace(recipe, seed=seed)
    if smoking:
        recipe = smoke.smoke(recipe)
        spec = smoke.tiny_network(variant, recipe)
        train, test = (smoke.images(spec, count) for count in (8, 6))
    else:
        train, test = (
            open_task(task.name, part, data_dir=data_dir) for part in PROTOCOLS[protocol]
        )
    if isinstance(train, Source):
        train = repeated(train)
    return training.Task(recipe.name, model, recipe, train, None, test)


def _row(task: Task, model: str, report: dict[str, Any], settings: dict[str, Any]) -> Result:
    recipe, measured = report["recipe"], report["evaluation"]
    return Result(
        study="vtab",
        model=model,
        data=f"VTAB {task.title}",
        metric="accuracy",
        value=report["accuracy"],
        examples=measured["examples"],
        interval=tuple(measured["interval"]),
        settings={**settings, "steps": report["steps"], "resolution": recipe["image_size"]},
        command=report["command"],
        when=store.now(),
        versions=report["versions"],
    )
