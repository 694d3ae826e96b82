"""A recipe is data: what to optimise, how long, at which rates, with which augmentation."""

import dataclasses
from typing import Any

from keras_vit.data.augment import Augment
from keras_vit.pretext.objective import Pretext

OPTIMIZERS = ("adamw", "sgd")
DECAYS = ("cosine", "linear", "constant", "stairs", "rsqrt")
LOSSES = ("softmax", "sigmoid")
MOMENT_DTYPES = ("float32", "bfloat16")


def _one_of(part: Any, field: str, allowed: tuple[str, ...]) -> None:
    value = getattr(part, field)
    if value not in allowed:
        raise ValueError(f"{field} must be one of {list(allowed)}, got {value!r}.")


def _numbers(part: Any, *fields: str) -> None:
    for field in fields:
        if not 0.0 <= getattr(part, field) < float("inf"):
            raise ValueError(f"{field} must be zero or more, got {getattr(part, field)}.")


def _shares(part: Any, *fields: str) -> None:
    for field in fields:
        if not 0.0 <= getattr(part, field) < 1.0:
            raise ValueError(f"{field} must be in [0, 1), got {getattr(part, field)}.")


@dataclasses.dataclass(frozen=True)
class Schedule:
    """The learning rate over the run: a linear warm-up, then a decay.

    Attributes:
        base_lr: peak rate.
        decay: `cosine` to 0, `linear` to `end_lr`, `constant`, `stairs`, or `rsqrt`.
        warmup_steps: steps of warm-up, None for `warmup_fraction` of the run.
        warmup_fraction: share of the steps spent warming up.
        end_lr: the last rate of the linear decay.
        stairs: shares of the run after which `stairs` divides the rate by 10.
        timescale: steps in which `rsqrt` falls by the square root of 2.
        cooldown_steps: last steps, in which the rate goes linearly to 0 whatever the decay.
    """

    base_lr: float = 1e-3
    decay: str = "cosine"
    warmup_steps: int | None = None
    warmup_fraction: float = 0.1
    end_lr: float = 1e-5
    stairs: tuple[float, ...] = ()
    timescale: int = 10_000
    cooldown_steps: int = 0

    def __post_init__(self):
        _one_of(self, "decay", DECAYS)
        _numbers(self, "base_lr", "end_lr")
        _shares(self, "warmup_fraction")
        if self.warmup_steps is not None and self.warmup_steps < 0:
            raise ValueError(
                f"warmup_steps must be zero or more, or None for warmup_fraction, got {self.warmup_steps}."
            )
        if self.timescale < 1 or self.cooldown_steps < 0:
            raise ValueError(
                f"timescale must be at least 1 and cooldown_steps zero or more, got "
                f"{self.timescale} and {self.cooldown_steps}."
            )
        object.__setattr__(self, "stairs", tuple(self.stairs))
        if list(self.stairs) != sorted(self.stairs) or any(not 0 < s < 1 for s in self.stairs):
            raise ValueError(
                f"stairs must be rising shares of the run in (0, 1), got {self.stairs}."
            )
        if bool(self.stairs) != (self.decay == "stairs"):
            raise ValueError(f"stairs={self.stairs} does not go with decay={self.decay!r}.")

    def warmup(self, total_steps: int) -> int:
        """Steps of warm-up in a run of `total_steps`."""
        if self.warmup_steps is not None:
            return self.warmup_steps
        return int(self.warmup_fraction * total_steps)


@dataclasses.dataclass(frozen=True)
class Optimizer:
    """How gradients become updates.

    Attributes:
        name: `adamw`, or `sgd` with momentum.
        beta_1, beta_2, epsilon: of Adam.
        momentum: of SGD.
        weight_decay: decoupled, on kernels only.
        decay_times_lr: whether a step removes `weight_decay * lr(t)` of a kernel, as the papers count
            it, or `weight_decay * lr(t) / base_lr`, as the configurations of big_vision do.
        moment_dtype: of the first moment (Adam) or the momentum (SGD).
        clip_norm: bound on the global norm of the averaged gradient, None for no clipping.
        accumulation_steps: parts that a batch is computed in, one after the other.
        layer_decay: factor on the rate per block counted from the head; 1 for none.
        average: Polyak factor of the averaged weights that are evaluated and kept, None for none.
    """

    name: str = "adamw"
    beta_1: float = 0.9
    beta_2: float = 0.999
    epsilon: float = 1e-8
    momentum: float = 0.9
    weight_decay: float = 0.0
    decay_times_lr: bool = True
    moment_dtype: str = "float32"
    clip_norm: float | None = 1.0
    accumulation_steps: int = 1
    layer_decay: float = 1.0
    average: float | None = None

    def __post_init__(self):
        _one_of(self, "name", OPTIMIZERS)
        _one_of(self, "moment_dtype", MOMENT_DTYPES)
        _numbers(self, "weight_decay", "epsilon")
        _shares(self, "beta_1", "beta_2", "momentum")
        if self.clip_norm is not None and not self.clip_norm > 0.0:
            raise ValueError(f"clip_norm must be positive or None, got {self.clip_norm}.")
        if self.accumulation_steps < 1:
            raise ValueError(
                f"accumulation_steps must be at least 1, got {self.accumulation_steps}."
            )
        if not 0.0 < self.layer_decay <= 1.0:
            raise ValueError(f"layer_decay must be in (0, 1], got {self.layer_decay}.")
        if self.average is not None and not 0.0 < self.average < 1.0:
            raise ValueError(f"average must be in (0, 1) or None, got {self.average}.")


@dataclasses.dataclass(frozen=True)
class Loss:
    """What is minimised.

    Attributes:
        kind: `softmax` cross-entropy, or `sigmoid` cross-entropy summed over the classes.
        label_smoothing: softmax: share of the target spread over all classes; sigmoid: targets
            become `smoothing` and `1 - smoothing`.
        head_bias: initial bias of the head (-10 with `sigmoid` and thousands of classes).
        class_weights: None, or `balanced` (inverse frequency of the training set).
    """

    kind: str = "softmax"
    label_smoothing: float = 0.0
    head_bias: float = 0.0
    class_weights: str | None = None

    def __post_init__(self):
        _one_of(self, "kind", LOSSES)
        _shares(self, "label_smoothing")
        if self.class_weights not in (None, "balanced"):
            raise ValueError(
                f"class_weights must be None or 'balanced', got {self.class_weights!r}."
            )


@dataclasses.dataclass(frozen=True)
class Recipe:
    """Everything of a training run but the network and the images.

    Attributes:
        name: `paper/imagenet21k`; empty for one made by hand.
        epochs: passes over the training set; None with `steps`.
        steps: updates; None with `epochs`.
        batch_size: examples per update, over all devices.
        schedule, optimizer, loss, augment: see there.
        pretext: what is predicted; other than labels, `loss` and the images' labels are ignored.
        image_size: pixels of training, None for the network's.
        from_checkpoint: start from a checkpoint's weights under a new head, not from random ones.
        changes: fields of the network's spec that the recipe sets, such as dropout: pairs.
        examples: size of the training set it is meant for, for plans; None when open.
        classes: of that training set, for plans; None when open.
        early_stopping: epochs without a better validation score before stopping, None for never.
        frozen: regular expressions; layers whose whole path matches are not trained.
        remat: recompute the blocks' activations in the backward pass, to save memory.
        dtype: Keras dtype policy, None for the global one.
        seed: of initialisation, order, augmentation and dropout.
    """

    name: str = ""
    epochs: float | None = 10
    steps: int | None = None
    batch_size: int = 64
    schedule: Schedule = Schedule()
    optimizer: Optimizer = Optimizer()
    loss: Loss = Loss()
    augment: Augment = dataclasses.field(default_factory=Augment)
    pretext: Pretext = dataclasses.field(default_factory=Pretext)
    image_size: int | None = None
    from_checkpoint: bool = False
    changes: tuple[tuple[str, Any], ...] = ()
    examples: int | None = None
    classes: int | None = None
    early_stopping: int | None = None
    frozen: tuple[str, ...] = ()
    remat: bool = False
    dtype: str | None = None
    seed: int = 0

    def __post_init__(self):
        for field in ("changes", "frozen"):
            object.__setattr__(self, field, tuple(getattr(self, field)))
        if (self.epochs is None) == (self.steps is None):
            raise ValueError(
                f"a recipe is as long as its epochs or its steps say: give one of them and None for "
                f"the other, got epochs={self.epochs} and steps={self.steps}."
            )
        if self.epochs is not None and not 0 < self.epochs < float("inf"):
            raise ValueError(f"epochs must be more than 0, got {self.epochs}.")
        if self.steps is not None and self.steps < 1:
            raise ValueError(f"steps must be at least 1, got {self.steps}.")
        if self.batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, got {self.batch_size}.")
        if self.batch_size % self.optimizer.accumulation_steps:
            raise ValueError(
                f"batch_size {self.batch_size} cannot be computed in "
                f"accumulation_steps={self.optimizer.accumulation_steps} equal parts: give a multiple."
            )
        if self.early_stopping is not None and self.early_stopping < 1:
            raise ValueError(
                f"early_stopping must be at least 1 epoch or None, got {self.early_stopping}."
            )

    def total_steps(self, steps_per_epoch: int) -> int:
        """Updates of the whole run."""
        return self.steps or max(1, round((self.epochs or 0) * steps_per_epoch))

    def to_dict(self) -> dict[str, Any]:
        """Plain values only, for JSON."""
        return dataclasses.asdict(self)
