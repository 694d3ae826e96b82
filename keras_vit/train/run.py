"""One training run: `model.fit` with a recipe, a state that survives a kill, and the best weights kept."""

import dataclasses
import json
import os
import platform
import time
import zipfile
import zlib
from pathlib import Path
from typing import Any

import keras
import numpy as np

from keras_vit.data.batches import Batches
from keras_vit.data.sources import Source
from keras_vit.model import VisionModel
from keras_vit.train.recipe import Recipe
from keras_vit.train.schedules import WarmupDecay


@dataclasses.dataclass(frozen=True)
class Result:
    """What a run did.

    Attributes:
        history: per epoch, Keras's names to values.
        best_epoch: 1-based epoch whose weights the model holds now.
        seconds: training time over all sittings.
        resumed_from: epochs that an earlier sitting had done.
    """

    history: list[dict[str, float]]
    best_epoch: int
    seconds: float
    resumed_from: int


def make_optimizer(
    recipe: Recipe, model: keras.Model, total_steps: int
) -> keras.optimizers.Optimizer:
    """The recipe's optimizer; weight decay touches kernels only, never norms, biases, tokens or tables."""
    schedule = WarmupDecay(
        recipe.base_lr, total_steps, int(recipe.warmup_fraction * total_steps), recipe.decay
    )
    options = {
        "learning_rate": schedule,
        "global_clipnorm": recipe.clip_norm,
        "weight_decay": recipe.weight_decay or None,
    }
    if recipe.optimizer == "sgd":
        optimizer = keras.optimizers.SGD(momentum=0.9, **options)
    else:
        optimizer = keras.optimizers.AdamW(**{**options, "weight_decay": recipe.weight_decay})
    if recipe.weight_decay:
        spared = [v for v in model.trainable_variables if v.path.split("/")[-1] != "kernel"]
        optimizer.exclude_from_weight_decay(var_list=spared)
    return optimizer


def compile_for(model: VisionModel, recipe: Recipe, total_steps: int, multi_label: bool) -> None:
    """Compiles the model with the recipe's optimizer, the loss of the task and an accuracy."""
    logits = not model.spec.classifier_activation
    if multi_label:
        loss = keras.losses.BinaryCrossentropy(
            from_logits=logits, label_smoothing=recipe.label_smoothing
        )
        accuracy = keras.metrics.BinaryAccuracy("accuracy", threshold=0.0 if logits else 0.5)
    else:
        loss = keras.losses.CategoricalCrossentropy(
            from_logits=logits, label_smoothing=recipe.label_smoothing
        )
        accuracy = keras.metrics.CategoricalAccuracy("accuracy")
    model.compile(make_optimizer(recipe, model, total_steps), loss, metrics=[accuracy])


def batches_for(model: VisionModel, source: Source, recipe: Recipe, *, training: bool) -> Batches:
    """The batches of a source as this model takes them."""
    return Batches(
        source,
        model.spec.image_size,
        model.spec.in_channels,
        model.preprocessing,
        batch_size=recipe.batch_size,
        training=training,
        augment=recipe.augment if training else (),
        mixup_alpha=recipe.mixup_alpha if training else 0.0,
        class_weights=balanced_weights(source) if training and recipe.class_weights else None,
        seed=recipe.seed,
        drop_last=training,
    )


def balanced_weights(source: Source) -> np.ndarray:
    """(classes,) weights n / (classes * count): their mean over the examples is 1."""
    if source.multi_label:
        counts = source.labels.sum(axis=0)
    else:
        counts = np.bincount(source.labels, minlength=source.num_classes)
    return (counts.sum() / (source.num_classes * np.maximum(counts, 1))).astype(np.float32)


def fit(
    model: VisionModel,
    train: Source,
    recipe: Recipe,
    *,
    validation: Source | None = None,
    out: str | Path | None = None,
    verbose: int | str = "auto",
    callbacks: tuple[keras.callbacks.Callback, ...] = (),
) -> Result:
    """Trains a model, resuming a run that `out` already holds.

    After every epoch the whole state goes to `out/state.npz`, written aside and renamed, so a kill
    or Ctrl-C at any moment loses at most one epoch and a second call with the same arguments goes
    on to the same numbers. At the end the model holds the weights of the best validation accuracy
    (of the last epoch when there is no validation set).

    Args:
        model: changed in place.
        train: training images.
        recipe: what to do.
        validation: images to choose the best epoch by.
        out: folder for state and recipe; None keeps nothing.
        verbose: as in Keras.
        callbacks: further Keras callbacks.

    Raises:
        ValueError: `out` holds the state of another recipe, data set or model; classes differ.
        FloatingPointError: the loss became NaN or infinite; the last good state stays in `out`.
    """
    if train.num_classes != model.spec.num_classes:
        raise ValueError(
            f"{train.name} has {train.num_classes} classes, but the head of the model has "
            f"{model.spec.num_classes}: load it with num_classes={train.num_classes}."
        )
    keras.utils.set_random_seed(recipe.seed)
    batches = batches_for(model, train, recipe, training=True)
    compile_for(model, recipe, recipe.epochs * len(batches), train.multi_label)
    model.optimizer.build(model.trainable_variables)
    keeper = _Keeper(model, recipe, batches, Path(out) if out else None, validation is not None)
    keeper.resume()
    resumed_from = len(keeper.history)
    if resumed_from < recipe.epochs and not keeper.exhausted:
        model.fit(
            batches,
            initial_epoch=resumed_from,
            epochs=recipe.epochs,
            validation_data=batches_for(model, validation, recipe, training=False)
            if validation
            else None,
            callbacks=[keeper, *callbacks],
            shuffle=False,  # Batches shuffles by itself, reproducibly
            verbose=verbose,
        )
    keeper.restore_best()
    return Result(keeper.history, keeper.best_epoch, keeper.seconds, resumed_from)


class _Keeper(keras.callbacks.Callback):
    """Saves state after every epoch, remembers the best weights, stops early and on NaN."""

    def __init__(
        self,
        model: VisionModel,
        recipe: Recipe,
        batches: Batches,
        out: Path | None,
        validates: bool,
    ):
        super().__init__()
        self.set_model(model)
        self.recipe, self.batches, self.out, self.validates = recipe, batches, out, validates
        train = batches.source
        self.history: list[dict[str, float]] = []
        self.seconds = 0.0
        self.best_epoch = 0
        self.best: list[np.ndarray] | None = None
        self.fingerprint = {
            "recipe": json.loads(json.dumps(dataclasses.asdict(recipe))),
            "spec": model.spec.to_dict(),
            "data": {"name": train.name, "examples": len(train), "labels": _crc(train.labels)},
        }
        if out:
            try:
                out.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise ValueError(f"{out} cannot be made a folder for the run ({error}).") from None

    @property
    def exhausted(self) -> bool:
        """Whether early stopping is due."""
        patience = self.recipe.early_stopping
        return bool(patience and self.history and len(self.history) - self.best_epoch >= patience)

    def on_epoch_begin(self, epoch, logs=None):
        # Set here, because Keras tells a data set once more often than there are epochs that one
        # is over. Epochs count from 1, as in what is printed.
        self.batches.set_epoch(epoch + 1)
        self.started = time.monotonic()

    def on_train_batch_end(self, batch, logs=None):
        loss = (logs or {}).get("loss", 0.0)
        if not np.isfinite(loss):
            raise FloatingPointError(
                f"the loss became {loss} in epoch {len(self.history) + 1} at step {batch + 1}: lower "
                f"base_lr ({self.recipe.base_lr}). The last good state is that of epoch "
                f"{len(self.history)}" + (f" in {self.out / 'state.npz'}." if self.out else ".")
            )

    def on_epoch_end(self, epoch, logs=None):
        self.seconds += time.monotonic() - self.started
        self.history.append({k: float(v) for k, v in (logs or {}).items()})
        scores = [e.get("val_accuracy", float(i)) for i, e in enumerate(self.history)]
        if scores[-1] > max(scores[:-1], default=-1.0):
            self.best_epoch = len(self.history)
            self.best = [keras.ops.convert_to_numpy(w) for w in self.model.weights]
        self._save()
        if self.exhausted:
            self.model.stop_training = True

    def restore_best(self) -> None:
        """Puts the best weights into the model."""
        if self.best is not None and self.validates:
            for variable, value in zip(self.model.weights, self.best, strict=True):
                variable.assign(value)

    def _state_variables(self) -> list[Any]:
        # model.variables holds the seeds of dropout besides the weights.
        return [*self.model.variables, *self.model.optimizer.variables]

    def _save(self) -> None:
        if not self.out:
            return
        arrays: dict[str, Any] = {
            f"now/{i}": _numpy(v) for i, v in enumerate(self._state_variables())
        }
        arrays |= {f"best/{i}": v for i, v in enumerate(self.best or [])}
        about = {
            **self.fingerprint,
            "history": self.history,
            "seconds": self.seconds,
            "best_epoch": self.best_epoch,
            "versions": versions(),
        }
        part = self.out / "state.part.npz"
        try:
            np.savez(part, about=np.array(json.dumps(about)), **arrays)
            os.replace(part, self.out / "state.npz")
        finally:
            part.unlink(missing_ok=True)
        self.recipe.save(
            self.out / "recipe.json", **{k: about[k] for k in ("spec", "data", "versions")}
        )

    def resume(self) -> None:
        """Takes up the state in `out`, if there is one."""
        if not self.out or not (self.out / "state.npz").is_file():
            return
        path = self.out / "state.npz"
        try:
            # An open file, because np.load leaves one open when it fails.
            with path.open("rb") as opened, np.load(opened, allow_pickle=False) as file:
                state = {name: file[name] for name in file.files}
            about = json.loads(str(state["about"]))
        except (ValueError, OSError, EOFError, KeyError, zipfile.BadZipFile) as error:
            raise ValueError(f"{path} cannot be read ({error}): delete it to start anew.") from None
        differ = [k for k, v in self.fingerprint.items() if about[k] != v]
        if differ:
            raise ValueError(
                f"{self.out} holds a run with another {' and '.join(differ)}: give a new folder, "
                f"or the same arguments to go on with it."
            )
        for i, variable in enumerate(self._state_variables()):
            variable.assign(state[f"now/{i}"])
        count = sum(name.startswith("best/") for name in state)
        self.best = [state[f"best/{i}"] for i in range(count)] or None
        self.history, self.seconds = about["history"], about["seconds"]
        self.best_epoch = about["best_epoch"]


def versions() -> dict[str, str]:
    """Versions that a report needs."""
    return {
        "keras": keras.__version__,
        "backend": keras.backend.backend(),
        "numpy": np.__version__,
        "python": platform.python_version(),
    }


def _numpy(variable) -> np.ndarray:
    value = keras.ops.convert_to_numpy(variable)
    return value.astype(np.float32) if value.dtype.name == "bfloat16" else value


def _crc(labels: np.ndarray) -> int:
    return zlib.crc32(np.ascontiguousarray(labels).tobytes())
