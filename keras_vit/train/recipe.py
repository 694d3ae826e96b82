"""A recipe is data: what to optimise, how long, with which augmentation."""

import dataclasses
import json
from pathlib import Path
from typing import Any

from keras_vit.data.augment import AUGMENTATIONS
from keras_vit.train.schedules import DECAYS

OPTIMIZERS = ("adamw", "sgd")


@dataclasses.dataclass(frozen=True)
class Recipe:
    """Everything of a training run but the model and the data.

    Attributes:
        epochs: passes over the training set.
        batch_size: examples per step, over all devices.
        optimizer: `adamw`, or `sgd` with momentum 0.9.
        base_lr: peak learning rate.
        warmup_fraction: share of the steps spent warming up.
        decay: `cosine`, `linear` or `constant`.
        weight_decay: decoupled, times the learning rate, on kernels only.
        clip_norm: global gradient norm, None for no clipping.
        label_smoothing: share of the target spread over all classes.
        augment: names of `keras_vit.data.augment.AUGMENTATIONS`.
        mixup_alpha: 0 for none.
        class_weights: `None`, or `balanced` (inverse frequency of the training set).
        early_stopping: epochs without a better validation score before stopping, None for never.
        dtype: Keras dtype policy, None for the global one.
        seed: of initialisation, order, augmentation and dropout.
    """

    epochs: int = 10
    batch_size: int = 64
    optimizer: str = "adamw"
    base_lr: float = 1e-3
    warmup_fraction: float = 0.1
    decay: str = "cosine"
    weight_decay: float = 0.0
    clip_norm: float | None = 1.0
    label_smoothing: float = 0.0
    augment: tuple[str, ...] = ()
    mixup_alpha: float = 0.0
    class_weights: str | None = None
    early_stopping: int | None = None
    dtype: str | None = None
    seed: int = 0

    def __post_init__(self):
        if self.optimizer not in OPTIMIZERS:
            raise ValueError(
                f"optimizer must be one of {list(OPTIMIZERS)}, got {self.optimizer!r}."
            )
        if self.decay not in DECAYS:
            raise ValueError(f"decay must be one of {list(DECAYS)}, got {self.decay!r}.")
        if self.class_weights not in (None, "balanced"):
            raise ValueError(
                f"class_weights must be None or 'balanced', got {self.class_weights!r}."
            )
        for field in ("epochs", "batch_size"):
            if getattr(self, field) < 1:
                raise ValueError(f"{field} must be at least 1, got {getattr(self, field)}.")
        if unknown := sorted(set(self.augment) - set(AUGMENTATIONS)):
            raise ValueError(f"unknown augmentations {unknown}: there are {sorted(AUGMENTATIONS)}.")
        for field in ("warmup_fraction", "label_smoothing"):
            if not 0.0 <= getattr(self, field) < 1.0:
                raise ValueError(f"{field} must be in [0, 1), got {getattr(self, field)}.")
        for field in ("base_lr", "weight_decay", "mixup_alpha"):
            if not 0.0 <= getattr(self, field) < float("inf"):
                raise ValueError(f"{field} must be zero or more, got {getattr(self, field)}.")
        if self.clip_norm is not None and not self.clip_norm > 0.0:
            raise ValueError(f"clip_norm must be positive or None, got {self.clip_norm}.")
        if self.early_stopping is not None and self.early_stopping < 1:
            raise ValueError(
                f"early_stopping must be at least 1 epoch or None, got {self.early_stopping}."
            )
        object.__setattr__(self, "augment", tuple(self.augment))

    def save(self, path: Path, **more: Any) -> None:
        """Writes the recipe and what belongs to it (versions, data, model) as JSON."""
        path.write_text(json.dumps({"recipe": dataclasses.asdict(self), **more}, indent=2) + "\n")
