"""Running a recipe: network, data and devices from their names, the run, and what it leaves behind."""

import dataclasses
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import keras

from keras_vit.card import Card
from keras_vit.data.sources import open_feed_source
from keras_vit.model import VisionModel
from keras_vit.pretext import figure
from keras_vit.pretext.model import MaskedPatchModel
from keras_vit.spec import Spec, changed
from keras_vit.train import overrides, recipes, rundir
from keras_vit.train import report as reports
from keras_vit.train.distribute import Placement
from keras_vit.train.evaluate import evaluate_model
from keras_vit.train.finetune import fingerprint, rebuilt
from keras_vit.train.losses import init_head_bias
from keras_vit.train.recipe import Recipe
from keras_vit.train.recipes import fashion_mnist
from keras_vit.train.recipes import smoke as smoking
from keras_vit.train.run import Result, fit, versions
from keras_vit.zoo import api, loading, names
from keras_vit.zoo.variants import VARIANTS

PREFIX = "fashion_mnist/"
MODEL_FILES = ("model.keras", "model.npz")
SPLITS = {"full": ("train", "test"), "subset": ("subset_train", "subset_test")}


@dataclasses.dataclass(frozen=True)
class Task:
    """A recipe with what it is run on.

    Attributes:
        name: of the recipe.
        model: a variant, a checkpoint or a file.
        recipe: resolved.
        train: training images.
        validation: images to choose the best epoch by, None to keep the last.
        test: images that the result is measured on, None for `validation`.
    """

    name: str
    model: str
    recipe: Recipe
    train: Any
    validation: Any = None
    test: Any = None


def resolve(
    name: str,
    *,
    model: str | None = None,
    data: str | None = None,
    validation: str | None = None,
    data_dir: str | None = None,
    options: Iterable[str] = (),
    changes: Iterable[str] = (),
    seed: int | None = None,
    smoke: bool = False,
) -> Task:
    """The task that names stand for.

    Args:
        name: of a recipe, `paper/imagenet`, or of a published training, `fashion_mnist/vit`.
        model: what the recipe trains; None for its default.
        data: training images by name; a published training has its own.
        validation: images to choose the best epoch by.
        data_dir: of tensorflow-datasets.
        options: `key=value` texts, arguments of the recipe's function.
        changes: `part.field=value` texts, other values for fields of the recipe.
        seed: of everything random, None for the recipe's.
        smoke: a few steps of a tiny network of the same family on made-up images.

    Raises:
        ValueError: something of that does not exist; the message says what does.
    """
    options, published = list(options), fashion_mnist.TASKS.get(name.removeprefix(PREFIX))
    if name.startswith(PREFIX) and published:
        refused = [k for k, v in {"--model": model, "--with": options}.items() if v]
        if refused:
            raise ValueError(f"{name} has a model of its own: leave out {' and '.join(refused)}.")
        recipe, model = published.recipe, published.model
    else:
        if name.startswith(PREFIX):
            known = ", ".join(PREFIX + task for task in fashion_mnist.TASKS)
            raise ValueError(f"no training task {name!r}: there are {known}.")
        given = overrides.options(recipes.find(name), options)
        recipe = recipes.resolve(name, model and variant_of(model), **given)
        model = model or recipes.default_model(name)
    recipe = overrides.apply(recipe, changes)
    if seed is not None:
        recipe = dataclasses.replace(recipe, seed=seed)
    if smoke:
        recipe = smoking.smoke(recipe)
        source = smoking.images(
            smoking.tiny_network(variant_of(model), recipe), recipe.examples or 1
        )
        return Task(name, model, recipe, source, test=source)
    if published:
        if data not in (None, *SPLITS):
            raise ValueError(f"data must be one of {list(SPLITS)}, got {data!r}.")
        train, test = (published.data(split) for split in SPLITS[data or "full"])
        return Task(name, model, recipe, train, test=test)
    if data is None:
        raise ValueError(
            f"{name} needs training images: give --data folder:PATH or tfds:NAME:SPLIT."
        )
    held_out = open_feed_source(validation, data_dir=data_dir) if validation else None
    return Task(name, model, recipe, open_feed_source(data, data_dir=data_dir), held_out, held_out)


def run_task(
    task: Task,
    out: Path,
    *,
    placement: Placement,
    smoke: bool = False,
    checkpoint_steps: int | None = None,
    force: bool = False,
    command: str | None = None,
    callbacks: Callable[[int], tuple[keras.callbacks.Callback, ...]] = lambda epochs: (),
    writes: Sequence[str] = MODEL_FILES,
) -> dict[str, Any]:
    """Trains and writes `model.keras`, `model.npz`, `report.json`, `report.md` and `curves.svg`.

    After masked patch prediction the files hold the encoder without a head, and
    `reconstructions.png` shows what it predicts.

    The npz is in the official layout at float16, as the zoo ships it, and the accuracy is that of
    the very file; without an npz, it is that of the weights in float32.

    Args:
        task: from `resolve`.
        out: folder; an interrupted run there is taken up again.
        placement: the devices, opened before anything was computed.
        smoke: the task was resolved as a smoke run.
        checkpoint_steps: steps between checkpoints, besides those after each epoch.
        force: replace what `out` holds.
        command: noted in the report.
        callbacks: from the number of epochs to further Keras callbacks.
        writes: which of `MODEL_FILES` to write.

    Raises:
        ValueError: the data is not here, or `out` holds another run.
        FileExistsError, OSError: `out` cannot be used.
    """
    recipe = task.recipe
    if placement.is_chief:
        rundir.check_out(out, force)
    about = {"task": task.name, "model": task.model, "train": fingerprint(task.train)}
    with placement.scope():
        keras.utils.set_random_seed(recipe.seed)
        model = network_of(task, smoke)
        if placement.is_chief:
            rundir.start(out, about, force)
        placement.barrier("begun")
        result = fit(
            model,
            task.train,
            recipe,
            validation=task.validation,
            out=out,
            placement=placement,
            checkpoint_steps=checkpoint_steps,
            verbose=0,
            callbacks=callbacks(epochs_of(task)),
        )
        weights = {v.path: placement.whole(v) for v in model.weights}
    report = {
        "command": command,
        **about,
        "epochs": len(result.history),
        "steps": result.steps,
        "resumed_from": result.resumed_from,
        "seed": recipe.seed,
        "seconds": round(result.seconds, 1),
        "history": result.history,
        "recipe": recipe.to_dict(),
        "devices": {"kind": placement.kind, "replicas": placement.replicas},
        "versions": versions(),
    }
    if placement.is_chief:
        report |= _write(task, model, weights, out, writes)
        if isinstance(model, MaskedPatchModel):
            report |= _of_patches(task, model, weights, result, out)
        reports.write_training(out, report)
        rundir.write_json(out / "report.json", report)
        rundir.finish(out)
    placement.barrier("written")
    return report


def network_of(task: Task, smoke: bool = False) -> VisionModel:
    """The network of a task: random weights, or those of its checkpoint under a new head.

    A `MaskedPatchModel` where patches are predicted.
    """
    recipe, changes = task.recipe, dict(task.recipe.changes)
    classes = 0 if recipe.pretext.self_supervised else task.train.num_classes
    if smoke:
        spec = smoking.tiny_network(variant_of(task.model), recipe)
        model = _random(spec, recipe)
    elif recipe.from_checkpoint:
        model = api.load(
            task.model,
            num_classes=classes,
            new_head=bool(classes),
            image_size=recipe.image_size,
            allow_crop=bool(changes.get("allow_crop", False)),
            dropout=changes.get("dropout"),
            attention_dropout=changes.get("attention_dropout"),
            stochastic_depth=changes.get("stochastic_depth"),
            dtype=recipe.dtype,
        )
        if not classes:
            trained, model = model, _random(model.spec, recipe, model.card)
            model.take_encoder(trained)
    else:
        changes["num_classes"] = classes
        if recipe.image_size:
            changes["image_size"] = (recipe.image_size, recipe.image_size)
        spec = changed(VARIANTS[variant_of(task.model)].spec, changes, task.model)
        model = _random(spec, recipe)
    if recipe.loss.head_bias and classes:
        init_head_bias(model, recipe.loss.head_bias)
    return model


def _random(spec: Spec, recipe: Recipe, card: Card | None = None) -> VisionModel:
    if recipe.pretext.self_supervised:
        return MaskedPatchModel(spec, recipe.pretext, card=card, dtype=recipe.dtype)
    return VisionModel(spec, card=card, dtype=recipe.dtype)


def epochs_of(task: Task) -> int:
    """Epochs of a task's run, the last of which may be a part."""
    per_epoch = max(1, len(task.train) // task.recipe.batch_size)
    return -(-task.recipe.total_steps(per_epoch) // per_epoch)


def variant_of(model: str) -> str:
    """The variant that a name or a file stands for.

    Raises:
        ValueError: the file does not say what network it holds, or there is no such model.
    """
    path = loading.as_path(model)
    if path is None:
        return names.resolve(model)[0]
    card = loading.of_file(path, None).card
    if card is None or card.variant not in VARIANTS:
        raise ValueError(
            f"{model} does not say which network of the zoo it holds, and recipes differ by network: "
            f"put the .json beside it that keras-vit writes, or use keras-vit finetune."
        )
    return card.variant


def _write(
    task: Task, model: VisionModel, weights: dict[str, Any], out: Path, writes: Sequence[str]
) -> dict[str, Any]:
    """Writes the trained model; what there is to say of it, measured on the file itself."""
    final = rebuilt(model, None, "float32", {k: lambda v=v: v for k, v in weights.items()})
    final.card = _card(task, final)
    found: dict[str, Any] = {"spec": final.spec.to_dict(), "parameters": final.spec.num_params}
    if "model.keras" in writes:
        part = out / "model.part.keras"
        final.save(part)
        os.replace(part, out / "model.keras")
    if "model.npz" in writes:
        api.save_weights_as(final, out / "model.npz", dtype="float16", force=True)
        found["file_bytes"] = (out / "model.npz").stat().st_size
        final = api.load(out / "model.npz")
    if task.test is None or task.recipe.pretext.self_supervised:
        return found
    measured = evaluate_model(final, task.test, batch_size=500)
    return {
        **found,
        "test": fingerprint(task.test),
        "accuracy": measured.accuracy,
        "evaluation": measured.to_dict(),
    }


def _of_patches(
    task: Task, model: MaskedPatchModel, weights: dict[str, Any], result: Result, out: Path
) -> dict[str, Any]:
    """Draws reconstructions; the scores of the best epoch, on images of validation if there are any."""
    last = result.history[result.best_epoch - 1]
    seen = task.validation or task.train
    prefix = "val_" if task.validation else ""
    copy = MaskedPatchModel(model.spec, model.pretext, card=model.card, dtype="float32")
    for variable in copy.trainable_variables:
        variable.assign(weights[variable.path])
    return {
        "pretext": {
            "data": seen.name,
            "examples": len(seen),
            "held_out": bool(task.validation),
            "loss": last[f"{prefix}loss"],
            "accuracy": last[f"{prefix}accuracy"],
            "figure": figure.write(copy, task.test or seen, out / figure.FILE),
        }
    }


def _card(task: Task, model: VisionModel) -> Card:
    train, before = task.train, model.card
    start = f"from {before.name}" if before else "from scratch"
    return Card(
        variant=before.variant if before else variant_of(task.model),
        tag=task.name.replace("/", "_"),
        description=f"Trained on {train.name} with keras-vit train {task.name}.",
        num_classes=model.spec.num_classes,
        class_names=train.class_names if model.spec.num_classes else None,
        image_size=model.spec.image_size,
        preprocessing=model.preprocessing,
        pretraining=f"{train.name}, {len(train):,} training images, {start}",
        license=before.license if before else "Apache-2.0",
    )
