"""What tests/test_distribute.py runs in processes of their own, whose devices are set before they start.

`python distributed.py FOLDER devices cpu:1 cpu:2 ...` trains once on each and writes what came out to
FOLDER/DEVICES.npz; `DEVICES@PARALLEL` spreads the model too, `A>B` goes on on B with what A began.
`FOLDER workers PARALLEL SECONDS` trains as one of the processes that the environment names, with a
pause after each epoch.
"""

import json
import shutil
import sys
import time
from pathlib import Path

import keras
import numpy as np

from keras_vit.data.sources import arrays
from keras_vit.model import VisionModel
from keras_vit.spec import ViTSpec
from keras_vit.train import run
from keras_vit.train.distribute import open_devices
from keras_vit.train.recipe import Optimizer, Recipe, Schedule

SPEC = ViTSpec(
    hidden_size=8,
    mlp_dim=12,
    num_heads=4,
    num_layers=1,
    patch_size=4,
    image_size=8,
    in_channels=1,
    num_classes=4,
)
RECIPE = Recipe(
    epochs=2,
    batch_size=16,
    schedule=Schedule(base_lr=1e-2, warmup_steps=1),
    optimizer=Optimizer(weight_decay=0.01, clip_norm=0.2, accumulation_steps=2, average=0.7),
)


def source(count: int, seed: int):
    """uint8 images whose class is which corner is bright."""
    rng = np.random.default_rng(seed)
    images, labels = rng.integers(0, 160, (count, 8, 8, 1), np.uint8), np.arange(count) % 4
    for image, label in zip(images, labels, strict=True):
        top, left = 4 * (label // 2), 4 * (label % 2)
        image[top : top + 4, left : left + 4] += 80
    return arrays(images, labels, list("abcd"), f"corners{seed}")


def model() -> VisionModel:
    """The same weights on every backend, none at its initial zeros."""
    made, rng = VisionModel(SPEC), np.random.default_rng(1)
    for variable in made.weights:
        variable.assign(0.3 * rng.normal(size=variable.shape) + variable.path.endswith("scale"))
    return made


class Pause(keras.callbacks.Callback):
    """Time to be killed in."""

    def __init__(self, seconds: float):
        super().__init__()
        self.seconds = seconds

    def on_epoch_end(self, epoch, logs=None):
        print(f"epoch {epoch}", flush=True)
        time.sleep(self.seconds)


def train(placement, out: Path, pause: float | None = None):
    """Trains in a scope; gives the model and what the run reported."""
    trained = model()
    done = run.fit(
        trained,
        source(48, 0),
        RECIPE,
        validation=source(22, 1),  # the last batch is not full
        out=out,
        placement=placement,
        verbose=0,
        callbacks=() if pause is None else (Pause(pause),),
    )
    return trained, done


def report(path: Path, trained, done, **more) -> None:
    """The losses of a run, and the averaged weights that it leaves in the model."""
    about = {"history": done.history, "resumed_from": done.resumed_from, **more}
    weights = {v.path: whole(v) for v in trained.weights}
    np.savez(path, about=np.array(json.dumps(about)), **weights)


def whole(variable) -> np.ndarray:
    """The value of a variable, also of one that is spread over several hosts."""
    if keras.backend.backend() == "jax" and not variable.value.is_fully_addressable:
        from jax.experimental import multihost_utils

        return np.asarray(multihost_utils.process_allgather(variable.value, tiled=True))
    return keras.ops.convert_to_numpy(variable)


def on_devices(folder: Path, names: list[str]) -> None:
    """Trains on each device set."""
    for name in names:
        before, _, devices = name.rpartition(">")
        kind, _, parallel = devices.partition("@")
        if before:
            first_epoch_of(folder / f"run-{before}", folder / f"run-{name}")
        placement = open_devices(kind, model_parallel=int(parallel or 1))
        with placement.scope():
            trained, done = train(placement, folder / f"run-{name}")
            report(folder / f"{name}.npz", trained, done)
            if name == "cpu:2":
                more_of_tensorflow(folder, placement, trained)


def first_epoch_of(run: Path, copy: Path) -> None:
    """A copy of a run's folder as it was after the first of two epochs."""
    shutil.copytree(run, copy)
    shutil.rmtree(copy / "checkpoints" / "step_000000006")


def more_of_tensorflow(folder: Path, placement, trained: VisionModel) -> None:
    """A saved model with its predictions, and the batches that replicas get of a recipe's 8."""
    trained.save(folder / "saved.keras")
    images = np.random.default_rng(2).uniform(-1, 1, (4, 8, 8, 1)).astype(np.float32)
    np.savez(folder / "saved.npz", images=images, logits=trained(images))
    recipe = Recipe(batch_size=8)
    feed = run.feed_for(trained, source(48, 0), recipe, training=True, shard=placement.shard)
    given = next(iter(placement.keras_data(feed, 0, 1)))[0]
    local = placement.strategy.experimental_local_results(given)
    (folder / "sizes.json").write_text(json.dumps([int(part.shape[0]) for part in local]))


def on_workers(folder: Path, parallel: int, pause: float) -> None:
    """Trains as one of the processes that the environment names."""
    placement = open_devices("multi-worker", model_parallel=parallel)
    with placement.scope():
        told = [placement.any_host(placement.is_chief), placement.any_host(False)]
        told.append(placement.from_chief(0.25 + placement.process[0]) == 0.25)
        trained, done = train(placement, folder / "run-workers", pause)
        path = folder / f"worker{placement.process[0]}.npz"
        report(path, trained, done, told=told, replicas=placement.replicas)


if __name__ == "__main__":
    if sys.argv[2] == "devices":
        on_devices(Path(sys.argv[1]), sys.argv[3:])
    else:
        on_workers(Path(sys.argv[1]), int(sys.argv[3]), float(sys.argv[4]))
