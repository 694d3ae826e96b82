"""The embedded models: a small ViT for 28x28 grey images, trained on Fashion-MNIST.

Command: `keras-vit train fashion_mnist/ten --out runs/ten` (and `fashion_mnist/eight`).
Expected: the cards of `ViT-Mini/4@fashion_mnist` state what these runs measured.
Deviations from the paper's recipe: the set is small, so there is more augmentation (flip, shift,
erasing, mixup), mean pooling as in "Better plain ViT baselines" (arXiv 2205.01580), no dropout.
"""

import dataclasses

from keras_vit.data.augment import Augment
from keras_vit.data.sources import Source, fashion_mnist
from keras_vit.spec import Spec
from keras_vit.train.recipe import Loss, Optimizer, Recipe, Schedule
from keras_vit.zoo.variants import VARIANTS

HELD_OUT = (5, 8)  # Sandal, Bag: the two classes that the eight-class model never sees
EIGHT = tuple(i for i in range(10) if i not in HELD_OUT)


@dataclasses.dataclass(frozen=True)
class Task:
    """A variant, its recipe and the classes it learns."""

    model: str
    recipe: Recipe
    classes: tuple[int, ...] = tuple(range(10))

    @property
    def spec(self) -> Spec:
        """The network, with a head for the task's classes."""
        return dataclasses.replace(VARIANTS[self.model].spec, num_classes=len(self.classes))

    def data(self, split: str) -> Source:
        """`train` or `test` images of the task's classes."""
        source = fashion_mnist(split)
        return source if len(self.classes) == 10 else source.classes(self.classes)


RECIPE = Recipe(
    name="fashion_mnist",
    epochs=24,
    batch_size=128,
    schedule=Schedule(2e-3),
    optimizer=Optimizer(weight_decay=0.05),
    loss=Loss(label_smoothing=0.05),
    augment=Augment(flip=True, shift=True, erase=0.5, mixup=0.1),
    dtype="mixed_bfloat16",
)

TASKS = {
    "ten": Task("ViT-Mini/4", RECIPE),
    "eight": Task("ViT-Mini/4", dataclasses.replace(RECIPE, epochs=20), EIGHT),
}
