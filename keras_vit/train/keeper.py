"""The callback that keeps a run: its checkpoints, its metrics, its best weights, its end."""

import contextlib
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np

from keras_vit.model import VisionModel
from keras_vit.train import rundir
from keras_vit.train.checkpoint import Checkpoints
from keras_vit.train.preemption import Preempted, on_sigterm
from keras_vit.train.recipe import Recipe
from keras_vit.train.schedules import from_recipe

METRICS = "metrics.jsonl"
LOG_STEPS = 50  # steps between two lines of it within an epoch
ASK_STEPS = 10  # steps between two questions among several processes whether SIGTERM came


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
        versions: noted beside the recipe.

    Raises:
        ValueError: `out` cannot be made a folder.
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
        self.placement, self.validates = placement, validates
        self.alone = placement is None or placement.process[1] == 1
        self.checkpoint_steps, self.versions = checkpoint_steps, versions
        self.fingerprint = json.loads(json.dumps({"recipe": recipe.to_dict(), **about}))
        self.writes = out is not None and (placement is None or placement.is_chief)
        self.rate = from_recipe(recipe.schedule, total)
        self.history: list[dict[str, float]] = []
        self.step, self.seconds, self.lines = 0, 0.0, 0
        self.best_epoch, self.best_step = 0, 0
        self.unvalidated: dict[str, float] | None = None  # training logs of an epoch
        self.checkpoints: Checkpoints | None = None
        self._best: list[np.ndarray] = []  # the state of the best epoch, where no folder keeps it
        self._metrics: list[np.ndarray] = []  # of an epoch that was begun, until it goes on
        self._terminated, self._cut_short, self._swapped = False, False, False
        self._started, self._epoch_start = time.monotonic(), 0
        if out:
            shared = {"host": placement.process, "barrier": placement.barrier} if placement else {}
            try:
                self.checkpoints = Checkpoints(out / "checkpoints", **shared)
            except OSError as error:
                raise ValueError(f"{out} cannot be made a folder for the run ({error}).") from None

    # The life of a run ---------------------------------------------------------------------------

    def resume(self) -> int:
        """Takes up the last checkpoint, if there is one, and says how many steps were done."""
        found = self.checkpoints.latest() if self.checkpoints else None
        if found:
            about = found.about
            kept = about["fingerprint"]
            if differ := [k for k, v in self.fingerprint.items() if kept.get(k) != v]:
                raise ValueError(
                    f"{self.out} holds a run with another {' and '.join(differ)}: give a new "
                    f"folder, or the same arguments to go on with it."
                )
            self._metrics = self._restore(found.arrays, found.path)
            self.step, self.seconds, self.lines = about["step"], about["seconds"], about["lines"]
            self.history, self.unvalidated = about["history"], about["unvalidated"]
            self.best_epoch, self.best_step = about["best_epoch"], about["best_step"]
        if self.writes and self.out:
            self._cut_metrics(self.out / METRICS)
            texts = {**self.fingerprint, "versions": self.versions}
            rundir.write_json(self.out / "recipe.json", texts)
        return self.step

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Turns SIGTERM into a checkpoint, and waits at the end for what is still being written."""
        with on_sigterm(self._note):
            try:
                yield
                if self.checkpoints:
                    self.checkpoints.finish()
            finally:
                if self._swapped:
                    # After an error; on JAX the arrays may have gone into the step that failed.
                    with contextlib.suppress(Exception):
                        self._swap()
                if self.checkpoints:
                    self.checkpoints.wait()

    @property
    def exhausted(self) -> bool:
        """Whether early stopping is due."""
        patience = self.recipe.early_stopping
        return bool(patience and self.history and len(self.history) - self.best_epoch >= patience)

    def restore_best(self) -> None:
        """Puts the best weights into the model; averaged ones when the run averages.

        Raises:
            ValueError: their checkpoint was damaged since.
        """
        if self.validates and self.best_epoch and self.best_step != self.step:
            if self.checkpoints:
                found = self.checkpoints.load(self.best_step)
                self._restore(found.arrays, found.path)
            else:
                self._restore(self._best)
        if self._averages():
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
        self._refuse_nan(found, "loss")
        if self.step // LOG_STEPS > before // LOG_STEPS:
            self._log(found)
        if self.step == self.total or self.step % self.per_epoch == 0:
            return  # what is due now comes when the epoch has been validated
        every = self.checkpoint_steps
        leaves = self._must_leave(asks=self.step // ASK_STEPS > before // ASK_STEPS)
        if leaves or (every and self.step // every > before // every):
            self._save(inside=True)
        if leaves:
            self._leave()

    def on_test_begin(self, logs=None):
        if self._averages():
            self._swap()

    def on_test_batch_end(self, batch, logs=None):
        if self._terminated and self.alone:
            self._cut_short = self.model.stop_evaluating = True

    def on_test_end(self, logs=None):
        if self._swapped:
            self._swap()

    def on_epoch_end(self, epoch, logs=None):
        found = {name: float(value) for name, value in (logs or {}).items()}
        if self._cut_short:
            # The score is that of a part of the images: resuming begins with a whole validation.
            self.unvalidated = {k: v for k, v in found.items() if not k.startswith("val_")}
            self._save()
            self._leave()
        self.unvalidated = None
        self._refuse_nan(found, "val_loss")
        self.history.append(found)
        self._log(found)
        scores = [e.get("val_accuracy", float(i)) for i, e in enumerate(self.history)]
        if scores[-1] > max(scores[:-1], default=-1.0):
            self.best_epoch, self.best_step = len(self.history), self.step
            if self.validates and not self.checkpoints:
                self._best = [np.array(keras.ops.convert_to_numpy(v)) for v in self._state()]
        self._save()
        if self._must_leave(asks=True):
            self._leave()
        if self.exhausted:
            self.model.stop_training = True

    # Parts ---------------------------------------------------------------------------------------

    def _note(self) -> None:
        self._terminated = True

    def _must_leave(self, asks: bool) -> bool:
        """Whether SIGTERM has come; among several processes, when one asks, whether to any."""
        if self.alone:
            return self._terminated
        return asks and self.placement.any_host(self._terminated)

    def _leave(self) -> None:
        where = "; nothing is kept"
        if self.checkpoints:
            self.checkpoints.finish()
            where = f"; run the same command again to go on from {self.out}"
        raise Preempted(f"stopped by SIGTERM after step {self.step} of {self.total}{where}.")

    def _save(self, inside: bool = False) -> None:
        """Saves the whole state; inside an epoch, with the sums of its metrics."""
        now = time.monotonic()
        self.seconds, self._started = self.seconds + now - self._started, now
        if not self.checkpoints:
            return
        # The loss is one step behind the weights: what it would stop at must not be saved before.
        for variable in self.model.trainable_variables:
            if not keras.ops.all(keras.ops.isfinite(variable)):
                self._stop(f"the weight {variable.path} became NaN or infinite")
        about = {
            "fingerprint": self.fingerprint,
            "history": self.history,
            "unvalidated": self.unvalidated,
            "seconds": self.seconds,
            "lines": self.lines,
            "best_epoch": self.best_epoch,
            "best_step": self.best_step,
        }
        sums = self.model.metrics_variables if inside else []
        best = self.best_step if self.validates else None
        self.checkpoints.save(self.step, [*self._state(), *sums], about, best)

    def _restore(self, arrays: list[np.ndarray], path: Path | None = None) -> list[np.ndarray]:
        """Gives the state its values, and back what there is beyond."""
        variables = self._state()
        if len(arrays) < len(variables):
            raise ValueError(
                f"the checkpoint {path} holds {len(arrays)} arrays, but this run has "
                f"{len(variables)}: it was written by another version; start anew in a new folder."
            )
        for variable, value in zip(variables, arrays, strict=False):
            variable.assign(value)
        return arrays[len(variables) :]

    def _state(self) -> list[Any]:
        # Asking Keras for a callback's model brings the state of a running fit into its variables.
        # They hold the seeds of dropout besides the weights.
        return [*self.model.variables, *self.model.optimizer.variables]

    def _averages(self) -> list[Any]:
        """Averaged weights, one for each trainable variable; none when the recipe has none."""
        optimizer = getattr(self.model.optimizer, "inner_optimizer", self.model.optimizer)
        return optimizer._model_variables_moving_average if optimizer.use_ema else []

    def _swap(self) -> None:
        """Exchanges the weights and their averages."""
        self._swapped = not self._swapped
        for weight, average in zip(self.model.trainable_variables, self._averages(), strict=True):
            kept = keras.ops.copy(weight)  # as a tensor, TensorFlow gives the variable itself
            weight.assign(average)
            average.assign(kept)

    def _refuse_nan(self, found: dict[str, float], name: str) -> None:
        if not np.isfinite(found.get(name, 0.0)):
            self._stop(f"the {name} became {found[name]}")

    def _stop(self, what: str) -> None:
        kept = "Nothing was kept: give out= a folder."
        if self.checkpoints:
            self.checkpoints.wait()
            steps = self.checkpoints.steps()
            last = f"The last good checkpoint is that of step {steps[-1]} in" if steps else ""
            kept = f"{last or 'No checkpoint was written yet to'} {self.out}."
        raise FloatingPointError(
            f"{what} at step {self.step} of {self.total}, in epoch "
            f"{-(-self.step // self.per_epoch)}, at a learning rate of "
            f"{self._rate_of(self.step):.3g}: lower schedule.base_lr, now "
            f"{self.recipe.schedule.base_lr:g}. {kept}"
        )

    def _rate_of(self, step: int) -> float:
        """The learning rate with which a step, counted from 1, was made."""
        return float(self.rate(step - 1))

    def _log(self, values: dict[str, float]) -> None:
        """A line of metrics.jsonl."""
        if not (self.writes and self.out):
            return
        line = {
            "step": self.step,
            "epoch": round(self.step / self.per_epoch, 4),
            "lr": self._rate_of(self.step),
            "seconds": round(self.seconds + time.monotonic() - self._started, 3),
            **values,
        }
        rundir.append_text(self.out / METRICS, json.dumps(line) + "\n")
        self.lines += 1

    def _cut_metrics(self, path: Path) -> None:
        """Drops the lines that an earlier sitting wrote after its last checkpoint."""
        if path.is_file():
            lines = path.read_text("utf-8", errors="replace").splitlines(keepends=True)
            rundir.write_text(path, "".join(lines[: self.lines]))
