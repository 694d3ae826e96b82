"""Whether training works on the devices named: a network of one block, a few steps, about a minute."""

import time
from typing import Any

import keras
import numpy as np

from keras_vit.data.sources import arrays
from keras_vit.model import VisionModel
from keras_vit.spec import ViTSpec
from keras_vit.train import hardware, run
from keras_vit.train.distribute import open_devices
from keras_vit.train.recipe import Recipe

WHEELS = ("keras", *hardware.TENSORFLOW_WHEELS, "jax", "jaxlib", "libtpu")
STEPS = 8


def check_devices(devices: str = "auto", *, model_parallel: int = 1) -> dict[str, Any]:
    """Trains a network of one block on the devices and says what ran where.

    Args:
        devices, model_parallel: as in `open_devices`, before anything else has been computed.

    Returns `devices` (kind), `replicas`, `first_step_seconds` (with compilation), `step_seconds`,
    `loss` before and after, and `versions` of the wheels found.

    Raises:
        ValueError: there are no such devices, or training does not work on them.
    """
    placement = open_devices(devices, model_parallel=model_parallel)
    batch = 16 * placement.replicas
    recipe = Recipe(epochs=2, batch_size=batch)
    times = _Times()
    with placement.scope():
        spec = ViTSpec(
            hidden_size=32,
            mlp_dim=64,
            num_heads=4,
            num_layers=1,
            patch_size=(8, 8),
            image_size=(32, 32),
            num_classes=2,
        )
        try:
            done = run.fit(
                VisionModel(spec),
                _halves(STEPS // 2 * batch),
                recipe,
                placement=placement,
                verbose=0,
                callbacks=(times,),
            )
        except (RuntimeError, ValueError, OSError, NotImplementedError) as error:
            text = " ".join(str(error).split())
            raise ValueError(
                f"{placement.replicas} {placement.kind.upper()} replicas were found, but a training "
                f"step on them fails ({type(error).__name__}: {text[:300]}): compare the versions "
                f"with those of docs/tpu.md."
            ) from error
    losses = [epoch["loss"] for epoch in done.history]
    return {
        "devices": placement.kind,
        "replicas": placement.replicas,
        "first_step_seconds": round(times.first, 2),
        "step_seconds": round(times.later, 4),
        "loss": losses,
        "versions": {w: v for w in WHEELS if (v := hardware.version(w)) is not None},
    }


def check_tpu() -> bool:
    """Trains a network of one block on this machine's TPU, prints what was found, and whether it works."""
    try:
        found = check_devices("tpu")
    except ValueError as error:
        print(error)
        return False
    print(said(found))
    return True


def said(found: dict[str, Any]) -> str:
    """What `check_devices` found, in one line."""
    versions = ", ".join(f"{wheel} {version}" for wheel, version in found["versions"].items())
    return (
        f"training works on {found['replicas']} {found['devices'].upper()} replicas: first step "
        f"{found['first_step_seconds']} s, then {found['step_seconds']} s each ({versions})."
    )


class _Times(keras.callbacks.Callback):
    """Seconds of the first step and of the last epoch's steps."""

    first = later = 0.0

    def on_epoch_begin(self, epoch, logs=None):
        self._begun = time.monotonic()

    def on_train_batch_end(self, batch, logs=None):
        self.first = self.first or time.monotonic() - self._begun

    def on_epoch_end(self, epoch, logs=None):
        self.later = (time.monotonic() - self._begun) / (STEPS // 2)


def _halves(count: int):
    """Images whose upper or lower half is bright."""
    images = np.random.default_rng(0).integers(0, 128, (count, 32, 32, 3), np.uint8)
    labels = np.arange(count) % 2
    images[labels == 0, :16] += 127
    images[labels == 1, 16:] += 127
    return arrays(images, labels, ["upper", "lower"], "halves")
