"""A training run in processes that are killed: sittings.py PLAN.json, for tests/test_robust.py.

The plan is a list of runs, {"folder": ..., "sittings": [point, ...]}. Every sitting is a process of its
own, forked before the backend has started, which ends itself with SIGKILL at its point, goes on to the
end without one, or gets a signal. Prints a line for each run: how its sittings ended, what came out.
"""

import contextlib
import hashlib
import io
import json
import os
import shutil
import signal
import sys
import threading
from pathlib import Path

import keras
import numpy as np

from keras_vit.data.augment import Augment
from keras_vit.data.sources import arrays
from keras_vit.model import VisionModel
from keras_vit.spec import ViTSpec
from keras_vit.train import run, rundir
from keras_vit.train.checkpoint import Checkpoints
from keras_vit.train.recipe import Optimizer, Recipe, Schedule

# Keras asks for it in every fit, also on JAX: imported before the forks, it is imported once.
with contextlib.suppress(ImportError):
    import tensorflow as tf

SPEC = ViTSpec(
    hidden_size=12,
    mlp_dim=20,
    num_heads=3,
    num_layers=1,
    patch_size=4,
    image_size=8,
    in_channels=1,
    num_classes=3,
    pool="gap",
    dropout=0.1,
    attention_dropout=0.1,
    stochastic_depth=0.1,
)
RECIPE = Recipe(
    epochs=2.5,  # of 5 steps: 12 steps
    batch_size=8,
    schedule=Schedule(5e-3),
    optimizer=Optimizer(
        weight_decay=0.01,
        moment_dtype="bfloat16",
        clip_norm=0.5,
        average=0.8,
    ),
    augment=Augment(flip=True, shift=True, erase=0.5, mixup=0.4),
)


def images(count: int, seed: int):
    rng = np.random.default_rng(seed)
    pixels = rng.integers(0, 256, (count, 8, 8, 1), np.uint8)
    return arrays(pixels, np.arange(count) % 3, ["a", "b", "c"], f"noise{seed}")


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class Points(keras.callbacks.Callback):
    """Acts at the n-th call of a hook of Keras."""

    def __init__(self, point: dict):
        super().__init__()
        self.point, self.seen = point, {}

    def _reached(self, hook: str) -> None:
        self.seen[hook] = self.seen.get(hook, 0) + 1
        if (self.point.get("at"), self.point.get("n")) == (hook, self.seen[hook]):
            if name := self.point.get("signal"):
                for _ in range(2):  # the second must change nothing
                    os.kill(os.getpid(), getattr(signal, name))
            else:
                die()

    def on_train_batch_begin(self, batch, logs=None):
        self._reached("step begin")

    def on_train_batch_end(self, batch, logs=None):
        self._reached("step")
        if self.point.get("at") == "seconds" and self.seen["step"] == 1:
            threading.Timer(self.point["n"], die).start()

    def on_test_batch_end(self, batch, logs=None):
        self._reached("validation")

    def on_epoch_end(self, epoch, logs=None):
        self._reached("epoch")


def arm(point: dict) -> None:
    """Makes the n-th call of what a checkpoint is written with the last thing this process does."""

    def deadly(function, half):
        count = 0

        def called(*arguments, **options):
            nonlocal count
            count += 1
            if count < point["n"]:
                return function(*arguments, **options)
            if point.get("signal"):
                os.kill(os.getpid(), getattr(signal, point["signal"]))
                return function(*arguments, **options)
            half(*arguments, **options)
            return die()

        return called

    def half_savez(file, **values):
        whole = io.BytesIO()
        real_savez(whole, **values)
        file.write(whole.getvalue()[: whole.tell() // 2])
        file.flush()

    def half_rmtree(path, **_):
        for file in Path(path).glob("*.npz"):
            file.unlink()

    def half_append(path, text):
        real_append(path, text[: len(text) // 2])

    real_savez, real_append, real_rename = np.savez, rundir.append_text, os.rename
    after = real_rename if point.get("after") else lambda *_: None
    for place, name, half in (
        (np, "savez", half_savez),
        (os, "fsync", lambda *_: None),
        (os, "rename", after),
        (os, "replace", lambda *_: None),
        (shutil, "rmtree", half_rmtree),
        (rundir, "append_text", half_append),
    ):
        if point.get("at") == name:
            setattr(place, name, deadly(getattr(place, name), half))


def digest(values) -> str:
    found = hashlib.sha256()
    for value in values:
        found.update(np.ascontiguousarray(value).tobytes())
    return found.hexdigest()


def sit(folder: Path, point: dict) -> None:
    if keras.backend.backend() == "tensorflow":
        tf.config.experimental.enable_op_determinism()
    arm(point)
    keras.utils.set_random_seed(0)
    model = VisionModel(SPEC)
    result = run.fit(
        model,
        images(44, 0),
        RECIPE,
        validation=images(20, 1),
        out=folder,
        checkpoint_steps=2,
        verbose=0,
        callbacks=(Points(point),),
    )
    last = Checkpoints(folder / "checkpoints").latest()
    found = {
        "resumed_from": result.resumed_from,
        "weights": digest(keras.ops.convert_to_numpy(w) for w in model.weights),
        "state": digest(last.arrays),
        "history": result.history,
        "metrics": [
            {k: v for k, v in json.loads(line).items() if k != "seconds"}
            for line in (folder / "metrics.jsonl").read_text().splitlines()
        ],
    }
    (folder / "final.json").write_text(json.dumps(found))


def forked(folder: Path, point: dict) -> int:
    """The exit status of a sitting, negative for a signal."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            sit(folder, point)
            code = 0
        except SystemExit as left:
            code = left.code
        except BaseException as error:
            print(f"{type(error).__name__}: {error}", file=sys.stderr)
        finally:
            sys.stderr.flush()
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def main(plan: str) -> None:
    for each in json.loads(Path(plan).read_text()):
        folder, ends = Path(each["folder"]), []
        for point in each["sittings"]:
            code = forked(folder, point)
            steps = sorted((folder / "checkpoints").glob("step_*"))
            ends.append({**point, "exit": code, "checkpoints": [int(p.name[5:]) for p in steps]})
        final = folder / "final.json"
        found = json.loads(final.read_text()) if final.is_file() else {}
        print(json.dumps({"ends": ends, **found}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
