"""Learning-rate schedules of the original code."""

import keras
from keras import ops

from keras_vit.layers.common import PACKAGE

DECAYS = ("cosine", "linear", "constant")


@keras.saving.register_keras_serializable(package=PACKAGE)
class WarmupDecay(keras.optimizers.schedules.LearningRateSchedule):
    """Linear warm-up times cosine or linear decay, evaluated before each step from 0 on.

    Args:
        base_lr: the peak.
        total_steps: steps of the whole run.
        warmup_steps: steps of warm-up; the first step then has rate 0, as in the original.
        decay: `cosine` to 0, `linear` to `linear_end`, or `constant`.
        linear_end: the last rate of the linear decay.

    Source: vision_transformer utils.py `create_learning_rate_schedule`; oracle `schedules.npz`.
    """

    def __init__(
        self,
        base_lr: float,
        total_steps: int,
        warmup_steps: int = 0,
        decay: str = "cosine",
        linear_end: float = 1e-5,
    ):
        super().__init__()
        if decay not in DECAYS:
            raise ValueError(f"decay must be one of {list(DECAYS)}, got {decay!r}.")
        if not 0 <= warmup_steps < max(total_steps, 1):
            raise ValueError(
                f"warmup_steps must be less than the {total_steps} steps of the run, got {warmup_steps}."
            )
        self.config = {
            "base_lr": base_lr,
            "total_steps": total_steps,
            "warmup_steps": warmup_steps,
            "decay": decay,
            "linear_end": linear_end,
        }

    def __call__(self, step):
        c = self.config
        step = ops.cast(step, "float32")
        progress = (step - c["warmup_steps"]) / float(c["total_steps"] - c["warmup_steps"])
        progress = ops.clip(progress, 0.0, 1.0)
        if c["decay"] == "cosine":
            lr = c["base_lr"] * 0.5 * (1.0 + ops.cos(3.141592653589793 * progress))
        elif c["decay"] == "linear":
            lr = c["linear_end"] + (c["base_lr"] - c["linear_end"]) * (1.0 - progress)
        else:
            lr = c["base_lr"] * ops.ones_like(progress)
        if c["warmup_steps"]:
            lr = lr * ops.minimum(1.0, step / float(c["warmup_steps"]))
        return lr

    def get_config(self):
        return dict(self.config)
