"""What the studies share that run on Fashion-MNIST: networks of a few hundred thousand parameters."""

import dataclasses
from typing import Any

from keras_vit.data.augment import Augment
from keras_vit.studies.study import Candidate, one
from keras_vit.train.recipe import Optimizer, Recipe, Schedule

EXAMPLES, CLASSES = 60_000, 10
HELD_OUT = 0.05
SEEDS = (0, 1, 2)

# The comparison of docs/runs.md in a little more than one pass over all images, without smoothed labels.
RECIPE = Recipe(
    name="study",
    epochs=None,
    steps=1200,
    batch_size=64,
    schedule=Schedule(2e-3),
    optimizer=Optimizer(weight_decay=0.05),
    augment=Augment(flip=True),
    dtype="mixed_bfloat16",
)
# Two ViTs, a hybrid and a BiT: curve -> (variant, fields that differ from it).
NETWORKS: dict[str, tuple[str, dict[str, Any]]] = {
    "ViT-Mini/4": ("ViT-Mini/4", {}),
    "ViT-Mini/7": ("ViT-Mini/4", {"patch_size": (7, 7)}),
    "R14+ViT-Mini/4": ("R14+ViT-Mini/4", {}),
    "BiT-Mini": ("BiT-Mini", {}),
}


def network(curve: str, **settings: Any) -> tuple[str, tuple[Candidate, ...]]:
    """The variant of a curve, and its one recipe with other values for fields of `Recipe`."""
    variant, changes = NETWORKS[curve]
    return variant, one(dataclasses.replace(RECIPE, **settings), **changes)
