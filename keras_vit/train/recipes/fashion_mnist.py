"""The embedded models: a small ViT for 28x28 grey images, trained on Fashion-MNIST.

Command: `keras-vit train fashion_mnist/ten --out runs/ten` (and `fashion_mnist/eight`).
Expected: the cards of `ViT-Mini/4@fashion_mnist` state what these runs measured.
Deviations from the paper's recipe: the set is small, so there is more augmentation (flip, shift,
erasing, mixup), mean pooling as in "Better plain ViT baselines" (arXiv 2205.01580), no dropout.
"""

import dataclasses

from keras_vit.data.sources import Source, fashion_mnist
from keras_vit.spec import Spec
from keras_vit.train.recipe import Recipe
from keras_vit.zoo.variants import VARIANTS

HELD_OUT = (5, 8)  # Sandal, Bag: the two classes that the eight-class model never sees
EIGHT = tuple(i for i in range(10) if i not in HELD_OUT)


@dataclasses.dataclass(frozen=True)
class Task:
    """A model, its data and its recipe."""

    spec: Spec
    recipe: Recipe
    classes: tuple[int, ...]

    def data(self, split: str) -> Source:
        """`train` or `test` images of the task's classes."""
        source = fashion_mnist(split)
        return source if len(self.classes) == 10 else source.classes(self.classes)


def mini_spec(num_classes: int) -> Spec:
    """ViT-Mini/4: 306,000 parameters, 49 tokens."""
    return dataclasses.replace(VARIANTS["ViT-Mini/4"].spec, num_classes=num_classes)


RECIPE = Recipe(
    epochs=24,
    batch_size=128,
    base_lr=2e-3,
    weight_decay=0.05,
    label_smoothing=0.05,
    augment=("flip", "shift", "erase"),
    mixup_alpha=0.1,
    dtype="mixed_bfloat16",
)

TASKS = {
    "ten": Task(mini_spec(10), RECIPE, tuple(range(10))),
    "eight": Task(mini_spec(8), dataclasses.replace(RECIPE, epochs=20), EIGHT),
}
