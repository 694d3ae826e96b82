"""Running a published training task: fit, measure on the test images, write what the zoo ships."""

import dataclasses
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras

from keras_vit.card import Card
from keras_vit.data.sources import Source
from keras_vit.model import VisionModel
from keras_vit.train import rundir
from keras_vit.train.evaluate import evaluate
from keras_vit.train.finetune import fingerprint, rebuilt
from keras_vit.train.recipes.fashion_mnist import TASKS, Task
from keras_vit.train.run import fit, versions
from keras_vit.zoo import api

PREFIX = "fashion_mnist/"
SPLITS = {"full": ("train", "test"), "subset": ("subset_train", "subset_test")}


def find_task(name: str) -> Task:
    """The task of a name such as `fashion_mnist/ten`.

    Raises:
        ValueError: there is none.
    """
    key = name.removeprefix(PREFIX)
    if not name.startswith(PREFIX) or key not in TASKS:
        known = ", ".join(PREFIX + task for task in TASKS)
        raise ValueError(f"no training task {name!r}: there are {known}.")
    return TASKS[key]


def run_task(
    name: str,
    out: Path,
    *,
    epochs: int | None = None,
    data: str = "full",
    force: bool = False,
    command: str | None = None,
    callbacks: Callable[[int], tuple[keras.callbacks.Callback, ...]] = lambda epochs: (),
) -> dict[str, Any]:
    """Trains a task from random weights and writes `model.keras`, `model.npz` and `report.json`.

    The npz is in the official layout at float16, as the zoo ships it, and the accuracy is that of
    the very file. The last epoch is kept: nothing is chosen by looking at test images.

    Args:
        name: `fashion_mnist/ten` or `fashion_mnist/eight`.
        out: folder; an interrupted run there is taken up again.
        epochs: another number than the recipe's.
        data: `full` (60,000 images) or `subset` (the 3,000 that ship with the package).
        force: replace what `out` holds.
        command: noted in the report.
        callbacks: from the number of epochs to further Keras callbacks.

    Raises:
        ValueError: no such task, the data is not here, or `out` holds another run.
        FileExistsError, OSError: `out` cannot be used.
    """
    task = find_task(name)
    rundir.check_out(out, force)
    if data not in SPLITS:
        raise ValueError(f"data must be one of {list(SPLITS)}, got {data!r}.")
    train, test = (task.data(split) for split in SPLITS[data])
    recipe = dataclasses.replace(task.recipe, epochs=epochs) if epochs else task.recipe
    keras.utils.set_random_seed(recipe.seed)
    model = VisionModel(task.spec, dtype=recipe.dtype)
    about = {"task": name, "train": fingerprint(train), "test": fingerprint(test)}
    rundir.start(out, about, force)
    result = fit(model, train, recipe, out=out, verbose=0, callbacks=callbacks(recipe.epochs))
    final = rebuilt(model, None, "float32")
    final.card = _card(name, train, final)
    part = out / "model.part.keras"
    final.save(part)
    os.replace(part, out / "model.keras")
    api.save_weights_as(final, out / "model.npz", dtype="float16", force=True)
    shipped = api.load(out / "model.npz")
    measured = evaluate(
        shipped.probabilities,
        test,
        image_size=shipped.spec.image_size,
        channels=shipped.spec.in_channels,
        preprocessing=shipped.preprocessing,
        batch_size=500,
    )
    report = {
        "command": command,
        **about,
        "accuracy": measured.accuracy,
        "evaluation": measured.to_dict(),
        "epochs": len(result.history),
        "resumed_from": result.resumed_from,
        "seed": recipe.seed,
        "seconds": round(result.seconds, 1),
        "history": result.history,
        "recipe": dataclasses.asdict(recipe),
        "spec": final.spec.to_dict(),
        "parameters": final.spec.num_params,
        "file_bytes": (out / "model.npz").stat().st_size,
        "versions": versions(),
    }
    rundir.write_json(out / "report.json", report)
    rundir.finish(out)
    return report


def _card(name: str, train: Source, model: VisionModel) -> Card:
    return Card(
        variant="ViT-Mini/4",
        tag=name.replace("/", "_"),
        description=f"Trained on {train.name} with keras-vit train {name}.",
        num_classes=train.num_classes,
        class_names=train.class_names,
        image_size=model.spec.image_size,
        pretraining=f"Fashion-MNIST, {len(train):,} training images, from scratch",
        license="Apache-2.0",
    )
