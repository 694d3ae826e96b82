"""The embedded models, trained on Fashion-MNIST, and the paper's comparison in miniature.

Command: `keras-vit train fashion_mnist/vit --out runs/vit --seed 0`, and so on for every task below.
Expected: docs/runs.md, and the cards of the embedded models, which are files of these runs.
Deviations from the paper's recipes: the networks are tiny and see few images, so batches are small and
the rate is high, AdamW decays little, labels are smoothed; pooling is by the mean, as in "Better plain
ViT baselines" (arXiv 2205.01580); no dropout.
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
    """A variant or checkpoint, its recipe and the classes it learns."""

    model: str
    recipe: Recipe
    classes: tuple[int, ...] = tuple(range(10))

    @property
    def spec(self) -> Spec:
        """The network, with a head for the task's classes."""
        spec = VARIANTS[self.model.partition("@")[0]].spec
        size = self.recipe.image_size
        changes = {"image_size": (size, size)} if size else {}
        return dataclasses.replace(spec, num_classes=len(self.classes), **changes)

    def data(self, split: str) -> Source:
        """`train` or `test` images of the task's classes."""
        source = fashion_mnist(split)
        return source if len(self.classes) == 10 else source.classes(self.classes)


# The same for a network of each kind, and a forward pass costs each of them the same within 5 %.
COMPARISON = Recipe(
    name="fashion_mnist",
    epochs=2,
    batch_size=64,
    schedule=Schedule(2e-3),
    optimizer=Optimizer(weight_decay=0.05),
    loss=Loss(label_smoothing=0.05),
    augment=Augment(flip=True),
    dtype="mixed_bfloat16",
    examples=60_000,
    classes=10,
)
# The paper's fine-tuning (section 4.1), with a batch and a length for a small set.
HIGHER_RESOLUTION = Recipe(
    name="fashion_mnist",
    epochs=1,
    batch_size=64,
    schedule=Schedule(0.03),
    optimizer=Optimizer("sgd"),
    augment=Augment(flip=True),
    image_size=40,
    from_checkpoint=True,
    dtype="mixed_bfloat16",
    examples=60_000,
    classes=10,
)

TASKS = {
    "vit": Task("ViT-Mini/4", COMPARISON),
    "hybrid": Task("R14+ViT-Mini/4", COMPARISON),
    "bit": Task("BiT-Mini", COMPARISON),
    "ten": Task("ViT-Mini/4", dataclasses.replace(COMPARISON, epochs=16)),
    "eight": Task(
        "ViT-Mini/4", dataclasses.replace(COMPARISON, epochs=14, examples=48_000, classes=8), EIGHT
    ),
    "ten_40": Task("ViT-Mini/4@fashion_mnist", HIGHER_RESOLUTION),
}
