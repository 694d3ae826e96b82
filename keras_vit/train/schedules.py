"""Learning-rate schedules of the original code."""

import keras
from keras import ops

from keras_vit.layers.common import PACKAGE
from keras_vit.train.recipe import DECAYS, Schedule


def from_recipe(
    schedule: Schedule, total_steps: int
) -> keras.optimizers.schedules.LearningRateSchedule:
    """The learning rates of a recipe over a run of `total_steps`.

    Raises:
        ValueError: the warm-up is as long as the run or longer.
    """
    return WarmupDecay(
        schedule.base_lr,
        total_steps,
        schedule.warmup(total_steps),
        schedule.decay,
        schedule.end_lr,
        stairs=[round(share * total_steps) for share in schedule.stairs],
        timescale=schedule.timescale,
        cooldown_steps=schedule.cooldown_steps,
    )


@keras.saving.register_keras_serializable(package=PACKAGE)
class WarmupDecay(keras.optimizers.schedules.LearningRateSchedule):
    """Linear warm-up times a decay, evaluated before each step from 0 on.

    Args:
        base_lr: the peak.
        total_steps: steps of the whole run.
        warmup_steps: steps of warm-up; the first step then has rate 0, as in the original.
        decay: `cosine` to 0, `linear` to `linear_end`, `constant`, `stairs`, or `rsqrt`.
        linear_end: the last rate of the linear decay.
        stairs: steps after which `stairs` divides the rate by 10; the step of that number still has
            the higher rate.
        timescale: steps after the warm-up in which `rsqrt` falls by the square root of 2.
        cooldown_steps: last steps, in which the rate goes linearly to 0 whatever the decay.

    The call takes a step (whole number, below 2**24: it is computed in float32) and gives a float32
    scalar.

    Source: vision_transformer utils.py `create_learning_rate_schedule`, big_vision utils.py under the
    same name, big_transfer bit_hyperrule.py `get_lr`; oracle `schedules.npz`.
    """

    def __init__(
        self,
        base_lr: float,
        total_steps: int,
        warmup_steps: int = 0,
        decay: str = "cosine",
        linear_end: float = 1e-5,
        stairs: list[int] | tuple[int, ...] = (),
        timescale: int = 10_000,
        cooldown_steps: int = 0,
    ):
        super().__init__()
        if decay not in DECAYS:
            raise ValueError(f"decay must be one of {list(DECAYS)}, got {decay!r}.")
        if not 0 <= warmup_steps < max(total_steps, 1):
            raise ValueError(
                f"warmup_steps must be less than the {total_steps} steps of the run, got {warmup_steps}: "
                f"train longer, or set schedule.warmup_steps."
            )
        self.config = {
            "base_lr": base_lr,
            "total_steps": total_steps,
            "warmup_steps": warmup_steps,
            "decay": decay,
            "linear_end": linear_end,
            "stairs": list(stairs),
            "timescale": timescale,
            "cooldown_steps": cooldown_steps,
        }

    def __call__(self, step):
        c = self.config
        step = ops.cast(step, "float32")
        lr = c["base_lr"] * ops.ones_like(step)
        after_warmup = step - c["warmup_steps"]
        progress = ops.clip(after_warmup / float(c["total_steps"] - c["warmup_steps"]), 0.0, 1.0)
        if c["decay"] == "cosine":
            lr = c["base_lr"] * 0.5 * (1.0 + ops.cos(3.141592653589793 * progress))
        elif c["decay"] == "linear":
            lr = c["linear_end"] + (c["base_lr"] - c["linear_end"]) * (1.0 - progress)
        elif c["decay"] == "stairs":
            for stair in c["stairs"]:
                lr = ops.where(step > stair, lr / 10.0, lr)
        elif c["decay"] == "rsqrt":
            lr = lr * ops.rsqrt(1.0 + ops.maximum(after_warmup, 0.0) / float(c["timescale"]))
        if c["warmup_steps"]:
            lr = lr * ops.minimum(1.0, step / float(c["warmup_steps"]))
        if c["cooldown_steps"]:
            left = (float(c["total_steps"]) - step) / float(c["cooldown_steps"])
            # The original goes below 0 when a run goes on beyond its end; no run does.
            lr = lr * ops.clip(left, 0.0, 1.0)
        return lr

    def get_config(self):
        return dict(self.config)
