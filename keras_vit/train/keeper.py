"""The callback that keeps a run: its checkpoints, its metrics, its best weights, its end."""

import contextlib
import json
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np

from keras_vit.model import VisionModel
from keras_vit.train.checkpoint import Checkpoint, Checkpoints
from keras_vit.train.recipe import Recipe
from keras_vit.train.rundir import write_json, write_text
from keras_vit.train.schedules import from_recipe

METRICS = "metrics.jsonl"
LOG_STEPS = 50  # steps between two lines of it within an epoch


class Preempted(SystemExit):
    """SIGTERM came: the state is saved, and the process ends with exit code 0."""

    def __init__(self, text: str):
        super().__init__(0)
        self.text = text

    def __str__(self) -> str:
        return self.text


class Keeper(keras.callbacks.Callback):
    """Saves checkpoints, writes metrics, keeps the best weights, stops early, on NaN and on SIGTERM.

    Args:
        model: compiled, its optimizer built.
        recipe: of the run.
        about: plain values that must be the same for a run to go on (spec, data).
        total: steps of the run.
        per_epoch: steps of an epoch.
        out: folder of the run, None to keep nothing.
        placement: devices; its first process writes.
        validates: whether epochs have a validation score.
        checkpoint_steps: steps between checkpoints within an epoch, None for none.
        versions: noted in every checkpoint.
    """

    def __init__(
        self,
        model: VisionModel,
        recipe: Recipe,
        about: dict[str, Any],
        total: int,
        per_epoch: int,
        *,
        out: Path | None,
        placement: Any,
        validates: bool,
        checkpoint_steps: int | None,
        versions: dict[str, str],
    ):
        super().__init__()
        self.set_model(model)
        self.recipe, self.total, self.per_epoch, self.out = recipe, total, per_epoch, out
        self.validates, self.checkpoint_steps, self.versions = validates, checkpoint_steps, versions
        self.fingerprint = json.loads(json.dumps({"recipe": recipe.to_dict(), **about}))
        self.chief = placement is None or placement.is_chief
        self.history: list[dict[str, float]] = []
        self.step, self.seconds, self.best_epoch = 0, 0.0, 0
        self.best: list[np.ndarray] | None = None
        self.checkpoints: Checkpoints | None = None
        self._metrics: list[np.ndarray] = []  # of an epoch that was begun, until it goes on
        self._terminated = False
        self._swapped = False
        self._started, self._epoch_start = time.monotonic(), 0
        if out:
            try:
                out.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise ValueError(f"{out} cannot be made a folder for the run ({error}).") from None
            shared = {"host": placement.shard, "barrier": placement.barrier} if placement else {}
            self.checkpoints = Checkpoints(out / "checkpoints", **shared)

    # The life of a run ---------------------------------------------------------------------------

    def resume(self) -> int:
        """Takes up the last checkpoint, if there is one, and says how many steps were done."""
        found = self.checkpoints.latest() if self.checkpoints else None
        if found is None:
            return 0
        about = found.about
        if differ := [k for k, v in self.fingerprint.items() if about["fingerprint"].get(k) != v]:
            raise ValueError(
                f"{self.out} holds a run with another {' and '.join(differ)}: give a new folder, "
                f"or the same arguments to go on with it."
            )
        self._restore(found)
        self.step, self.seconds = about["step"], about["seconds"]
        self.history, self.best_epoch = about["history"], about["best_epoch"]
        self._cut_metrics()
        return self.step

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Turns SIGTERM into a checkpoint, and waits at the end for what is still being written."""

        def note(*_):
            self._terminated = True

        # Only the main thread may handle signals; elsewhere they stay what they were.
        main = threading.current_thread() is threading.main_thread()
        before = signal.signal(signal.SIGTERM, note) if main else None
        try:
            yield
        finally:
            if main:
                signal.signal(signal.SIGTERM, before)
            if self._swapped:
                self._swap()
            if self.checkpoints:
                self.checkpoints.wait()

    @property
    def exhausted(self) -> bool:
        """Whether early stopping is due."""
        patience = self.recipe.early_stopping
        return bool(patience and self.history and len(self.history) - self.best_epoch >= patience)

    def restore_best(self) -> None:
        """Puts the best weights into the model; averaged ones when the run averages."""
        if self.validates and self.best is None and self.checkpoints:
            found = self.checkpoints.best()
            self.best = found.arrays if found else None
        if self.validates and self.best is not None:
            for variable, value in zip(self.model.weights, self.best, strict=True):
                variable.assign(value)
        elif self._averages():
            self._swap()
            self._swapped = False  # the averages are the weights from here on

    # What Keras calls ----------------------------------------------------------------------------

    def on_epoch_begin(self, epoch, logs=None):
        self._started, self._epoch_start = time.monotonic(), self.step
        if self._metrics:
            for variable, value in zip(self.model.metrics_variables, self._metrics, strict=True):
                variable.assign(value)
            self._metrics = []

    def on_train_batch_end(self, batch, logs=None):
        before, self.step = self.step, self._epoch_start + batch + 1
        found = {name: float(value) for name, value in (logs or {}).items()}
        if not np.isfinite(found.get("loss", 0.0)):
            self._stop_at_nan(found["loss"])
        if self.step // LOG_STEPS > before // LOG_STEPS:
            self._log(found)
        every = self.checkpoint_steps
        due = bool(every) and self.step // every > before // every
        if (due or self._terminated) and self.step % self.per_epoch and self.step < self.total:
            self._save(inside=True)
            self._leave_if_terminated()

    def on_test_begin(self, logs=None):
        if self._averages():
            self._swap()

    def on_test_end(self, logs=None):
        if self._swapped:
            self._swap()

    def on_epoch_end(self, epoch, logs=None):
        self.history.append({k: float(v) for k, v in (logs or {}).items()})
        self._log(self.history[-1])
        scores = [e.get("val_accuracy", float(i)) for i, e in enumerate(self.history)]
        if scores[-1] > max(scores[:-1], default=-1.0):
            self.best_epoch = len(self.history)
            self._keep_best()
        self._save(inside=False)
        self._leave_if_terminated()
        if self.exhausted:
            self.model.stop_training = True

    # Parts ---------------------------------------------------------------------------------------

    def _save(self, inside: bool) -> None:
        """Saves the whole state; `inside` an epoch with the sums of its metrics."""
        now = time.monotonic()
        self.seconds, self._started = self.seconds + now - self._started, now
        if not self.checkpoints:
            return
        self._sync()
        variables = self._state()
        if inside:
            variables += self.model.metrics_variables
        about = {
            "fingerprint": self.fingerprint,
            "history": self.history,
            "seconds": self.seconds,
            "best_epoch": self.best_epoch,
            "versions": self.versions,
        }
        self.checkpoints.save(self.step, variables, about)
        if self.chief and self.out:
            texts = {**self.fingerprint, "versions": self.versions}
            write_json(self.out / "recipe.json", texts)

    def _restore(self, found: Checkpoint) -> None:
        variables = self._state()
        if len(found.arrays) < len(variables):
            raise ValueError(
                f"the checkpoint {found.path} holds {len(found.arrays)} arrays, but this run has "
                f"{len(variables)}: it was written by another version; start anew in a new folder."
            )
        for variable, value in zip(variables, found.arrays, strict=False):
            variable.assign(value)
        self._metrics = found.arrays[len(variables) :]

    def _state(self) -> list[Any]:
        # model.variables holds the seeds of dropout besides the weights.
        return [*self.model.variables, *self.model.optimizer.variables]

    def _sync(self) -> None:
        """On JAX, the state of a running fit lives outside of the variables until asked for."""
        if keras.backend.backend() == "jax":
            self.model.jax_state_sync()

    def _averages(self) -> list[Any]:
        """Averaged weights, one for each trainable variable; none when the recipe has none."""
        optimizer = getattr(self.model.optimizer, "inner_optimizer", self.model.optimizer)
        return optimizer._model_variables_moving_average if optimizer.use_ema else []

    def _swap(self) -> None:
        """Exchanges the weights and their averages."""
        self._swapped = not self._swapped
        for weight, average in zip(self.model.trainable_variables, self._averages(), strict=True):
            kept = keras.ops.convert_to_numpy(weight)
            weight.assign(average)
            average.assign(kept)

    def _keep_best(self) -> None:
        if not self.validates:
            return
        if self._averages():
            self._swap()
        if self.checkpoints:
            self.checkpoints.save_best(self.model.weights, {"epoch": self.best_epoch})
        else:
            self.best = [keras.ops.convert_to_numpy(w) for w in self.model.weights]
        if self._swapped:
            self._swap()

    def _leave_if_terminated(self) -> None:
        if not self._terminated:
            return
        if self.checkpoints:
            self.checkpoints.wait()
        where = f"; run the same command again to go on from {self.out}" if self.out else ""
        raise Preempted(f"stopped by SIGTERM after step {self.step} of {self.total}{where}.")

    def _stop_at_nan(self, loss: float) -> None:
        epoch, step = divmod(self.step - 1, self.per_epoch)
        good = self.checkpoints.steps() if self.checkpoints else []
        kept = (
            f"The last good checkpoint is that of step {good[-1]} in {self.out}."
            if good
            else ("Nothing was saved yet." if self.out else "Nothing was kept: give out= a folder.")
        )
        raise FloatingPointError(
            f"the loss became {loss} in epoch {epoch + 1} at step {step + 1} (learning rate "
            f"{self._rate(self.step - 1):.3g}): lower schedule.base_lr "
            f"({self.recipe.schedule.base_lr:g}). {kept}"
        )

    def _rate(self, step: int) -> float:
        return float(from_recipe(self.recipe.schedule, self.total)(step))

    def _log(self, values: dict[str, float]) -> None:
        """A line of metrics.jsonl."""
        if not (self.chief and self.out):
            return
        line = {
            "step": self.step,
            "epoch": round(self.step / self.per_epoch, 4),
            "lr": self._rate(self.step - 1),
            "seconds": round(self.seconds + time.monotonic() - self._started, 3),
            **values,
        }
        with (self.out / METRICS).open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")

    def _cut_metrics(self) -> None:
        """Drops lines that an earlier sitting wrote after its last checkpoint."""
        if not (self.chief and self.out and (self.out / METRICS).is_file()):
            return
        lines = (self.out / METRICS).read_text("utf-8").splitlines()
        kept = [line for line in lines if _step_of(line) <= self.step]
        write_text(self.out / METRICS, "".join(f"{line}\n" for line in kept))


def _step_of(line: str) -> float:
    """The step of a line of metrics; a line that was cut off counts as the last."""
    try:
        return json.loads(line)["step"]
    except (ValueError, KeyError, TypeError):
        return float("inf")
