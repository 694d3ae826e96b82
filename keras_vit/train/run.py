"""One training run: `model.fit` with a recipe, a state that survives a kill, and the best weights kept."""

import dataclasses
import os
import platform
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np

from keras_vit.data.batches import Batches
from keras_vit.data.sources import Source
from keras_vit.layers.remat import set_remat
from keras_vit.model import VisionModel
from keras_vit.pretext.model import MaskedPatchModel
from keras_vit.pretext.objective import Pretext
from keras_vit.train.keeper import Keeper
from keras_vit.train.losses import make_loss
from keras_vit.train.optimizers import make_optimizer
from keras_vit.train.recipe import Recipe


@dataclasses.dataclass(frozen=True)
class Result:
    """What a run did.

    Attributes:
        history: per epoch, Keras's names to values.
        best_epoch: 1-based epoch whose weights the model holds now.
        seconds: training time over all sittings.
        resumed_from: steps that earlier sittings had done.
        steps: of the whole run.
    """

    history: list[dict[str, float]]
    best_epoch: int
    seconds: float
    resumed_from: int
    steps: int


def compile_for(
    model: VisionModel,
    recipe: Recipe,
    total_steps: int,
    multi_label: bool = False,
    steps_per_execution: int = 1,
) -> None:
    """Compiles the model with the recipe's optimizer and loss, and an accuracy.

    A `MaskedPatchModel` has loss and accuracy of its own.

    Raises:
        ValueError: the model gives probabilities, or is not for what the recipe predicts.
    """
    if recipe.pretext != getattr(model, "pretext", Pretext()):
        raise ValueError(
            f"the recipe predicts {recipe.pretext.target}, but the model was not made for it: build "
            f"keras_vit.pretext.model.MaskedPatchModel(spec, recipe.pretext), or a VisionModel for "
            f"labels."
        )
    if model.spec.classifier_activation:
        raise ValueError(
            f"{model.name} gives probabilities ({model.spec.classifier_activation}), but training "
            f"needs logits: build or load it with classifier_activation=None."
        )
    set_remat(model, recipe.remat)
    how: dict[str, Any] = {
        "clip_norm": recipe.optimizer.clip_norm,
        "accumulation_steps": recipe.optimizer.accumulation_steps,
        "steps_per_execution": steps_per_execution,
    }
    optimizer = make_optimizer(recipe, model, total_steps)
    if isinstance(model, MaskedPatchModel):
        model.compile(optimizer, **how)
        return
    loss = dataclasses.replace(recipe.loss, kind="sigmoid") if multi_label else recipe.loss
    accuracy = (
        keras.metrics.BinaryAccuracy("accuracy", threshold=0.0)
        if multi_label
        else keras.metrics.CategoricalAccuracy("accuracy")
    )
    model.compile(optimizer, make_loss(loss), weighted_metrics=[accuracy], **how)
    # Keras builds metrics at the first step, but a checkpoint within an epoch is restored before it.
    with keras.StatelessScope():
        outputs = keras.ops.zeros((1, model.spec.num_classes))
        model.compute_metrics(None, outputs, outputs, keras.ops.ones((1,)))


def feed_for(
    model: VisionModel,
    source: Any,
    recipe: Recipe,
    *,
    training: bool,
    pad: bool = False,
    shard: tuple[int, int] = (0, 1),
):
    """The batches of a source as this model and recipe take them.

    On NumPy where that does, on tf.data where images stream from disk or the recipe crops.
    """
    options: dict[str, Any] = {
        "batch_size": recipe.batch_size,
        "training": training,
        "augment": recipe.augment if training else None,
        "seed": recipe.seed,
        "pad": pad,
        "shard": shard,
    }
    if training and recipe.loss.class_weights and not recipe.pretext.self_supervised:
        options["class_weights"] = balanced_weights(source)
    spec = model.spec
    arguments = (source, spec.image_size, spec.in_channels, model.preprocessing)
    if isinstance(source, Source) and (recipe.augment.plain or not training):
        return Batches(*arguments, **options)
    from keras_vit.data.pipeline import Pipeline

    return Pipeline(*arguments, **options)


def balanced_weights(source: Source) -> np.ndarray:
    """(classes,) weights n / (classes * count): their mean over the examples is 1."""
    if source.multi_label:
        counts = source.labels.sum(axis=0)
    else:
        counts = np.bincount(source.labels, minlength=source.num_classes)
    return (counts.sum() / (source.num_classes * np.maximum(counts, 1))).astype(np.float32)


def fit(
    model: VisionModel,
    train: Any,
    recipe: Recipe,
    *,
    validation: Any = None,
    out: str | os.PathLike | None = None,
    placement: Any = None,
    checkpoint_steps: int | None = None,
    verbose: int | str = "auto",
    callbacks: tuple[keras.callbacks.Callback, ...] = (),
) -> Result:
    """Trains a model, resuming a run that `out` already holds.

    The whole state goes to `out/checkpoints` after every epoch, and every `checkpoint_steps`, written
    aside and renamed, so a kill at any moment loses what came after the last one, and a second call
    with the same arguments goes on to the same numbers; a damaged checkpoint is passed over for the
    one before. SIGTERM saves and ends the process with exit code 0. At the end the model holds the
    weights of the best validation accuracy (of the last epoch when there is no validation set);
    averaged ones when the recipe averages.

    Args:
        model: changed in place; made under the placement's scope. A `MaskedPatchModel` when the
            recipe predicts patches.
        train: a `Source`, or what `keras_vit.data.pipeline.Pipeline` takes.
        recipe: what to do.
        validation: images to choose the best epoch by.
        out: folder for checkpoints, metrics and recipe; None keeps nothing.
        placement: on which devices (`keras_vit.train.distribute`); None for Keras's default.
        checkpoint_steps: steps between checkpoints; None for one after each epoch.
        verbose: as in Keras.
        callbacks: further Keras callbacks.

    Raises:
        ValueError: `out` holds the state of another recipe, data set or model; classes differ.
        FloatingPointError: the loss became NaN or infinite; the last good state stays in `out`.
        OSError: a checkpoint could not be written; earlier ones are untouched.
        SystemExit: with code 0, after SIGTERM (`preemption.Preempted`).
    """
    labelled = not recipe.pretext.self_supervised
    if labelled and train.num_classes != model.spec.num_classes:
        raise ValueError(
            f"{train.name} has {train.num_classes} classes, but the head of the model has "
            f"{model.spec.num_classes}: load it with num_classes={train.num_classes}."
        )
    keras.utils.set_random_seed(recipe.seed)
    shard = placement.shard if placement else (0, 1)
    feed = feed_for(model, train, recipe, training=True, shard=shard)
    total = recipe.total_steps(feed.steps_per_epoch)
    _freeze(model, recipe.frozen)
    parts = (feed.steps_per_epoch, total, checkpoint_steps or 0)
    per_call = placement.steps_per_call(*parts) if placement else 1
    compile_for(model, recipe, total, train.multi_label, per_call)
    model.optimizer.build(model.trainable_variables)
    data: Callable = placement.keras_data if placement else _keras_data
    watched: dict[str, Any] = {}
    if validation:
        pad = bool(placement and placement.full_batches)
        held_out = feed_for(model, validation, recipe, training=False, pad=pad, shard=shard)
        watched = {
            "validation_data": data(held_out, 0, held_out.steps_per_epoch),
            "validation_steps": held_out.steps_per_epoch,
        }
    keeper = Keeper(
        model,
        recipe,
        {"spec": model.spec.to_dict(), "data": feed.identity()},
        total,
        feed.steps_per_epoch,
        out=Path(out) if out else None,
        placement=placement,
        validates=bool(validation),
        checkpoint_steps=checkpoint_steps,
        versions=versions(),
    )
    resumed_from = keeper.resume()
    together = Together(
        [keeper, *callbacks], add_history=True, add_progbar=verbose != 0, model=model
    )
    model.stop_training = False
    told = {"verbose": verbose, "epochs": -(-total // feed.steps_per_epoch)}
    with keeper.watching(), together:
        if keeper.unvalidated is not None:
            together.set_params({**told, "steps": watched["validation_steps"]})
            scores = model.evaluate(
                watched["validation_data"],
                steps=watched["validation_steps"],
                callbacks=together,
                return_dict=True,
            )
            logs = keeper.unvalidated | {f"val_{name}": value for name, value in scores.items()}
            together.on_epoch_end((resumed_from - 1) // feed.steps_per_epoch, logs)
        for start, stop, epochs in sittings(resumed_from, total, feed.steps_per_epoch):
            if keeper.exhausted or model.stop_training:
                break
            first, steps = start // feed.steps_per_epoch, (stop - start) // epochs
            together.set_params({**told, "steps": steps})
            model.fit(
                data(feed, start, stop),
                initial_epoch=first,
                epochs=first + epochs,
                steps_per_epoch=steps,
                callbacks=together,
                shuffle=False,  # feeds shuffle by themselves, reproducibly
                **watched,
            )
    keeper.restore_best()
    return Result(keeper.history, keeper.best_epoch, keeper.seconds, resumed_from, total)


def sittings(start: int, total: int, per_epoch: int) -> list[tuple[int, int, int]]:
    """(first step, step after the last, epochs) of the calls of `fit` that finish a run.

    The rest of an epoch that was begun, the whole epochs, and the part of one that may come last.
    """
    found, step = [], start
    first_whole = min(-(-start // per_epoch) * per_epoch, total)
    if start < first_whole:
        step = first_whole
        found.append((start, step, 1))
    whole = (total - step) // per_epoch
    if whole > 0:
        found.append((step, step + whole * per_epoch, whole))
        step += whole * per_epoch
    if step < total:
        found.append((step, total, 1))
    return found


class Together(keras.callbacks.CallbackList):
    """Callbacks for which the sittings of a run are one training, begun and ended once."""

    def __enter__(self):
        super().on_train_begin()
        return self

    def __exit__(self, kind, error, trace):
        if error is None:  # as in Keras
            super().on_train_end()

    def on_train_begin(self, logs=None):
        pass

    def on_train_end(self, logs=None):
        pass


def versions() -> dict[str, str]:
    """Versions that a report needs."""
    return {
        "keras": keras.__version__,
        "backend": keras.backend.backend(),
        "numpy": np.__version__,
        "python": platform.python_version(),
    }


def _keras_data(feed: Any, start: int, stop: int) -> Any:
    return feed.keras_data(start, stop)


def _freeze(model: VisionModel, patterns: tuple[str, ...]) -> None:
    """Makes the layers whose whole path matches a pattern untrainable.

    Raises:
        ValueError: a pattern matches nothing.
    """
    layers = model._flatten_layers(include_self=False)
    for pattern in patterns:
        found = [x for x in layers if re.fullmatch(pattern, x.path) and x.weights]
        if not found:
            names = ", ".join(x.name for x in model.layers if x.weights)
            raise ValueError(f"frozen={pattern!r} matches no layer: there are {names}.")
        for layer in found:
            layer.trainable = False
