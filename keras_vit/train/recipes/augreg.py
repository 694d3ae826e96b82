"""AugReg ("How to train your ViT?", arXiv 2106.10270): pre-training and fine-tuning grids."""

import dataclasses
import itertools

from keras_vit.train.recipe import Recipe, Schedule
from keras_vit.train.recipes.common import (
    ADAM_BIG_VISION,
    IMAGENET,
    IMAGENET21K,
    INCEPTION,
    PRETRAINING,
    SGD_FINETUNE,
    SIGMOID_1K,
    SIGMOID_21K,
    one_of,
    row_of,
)
from keras_vit.zoo.augreg import MODELS as RELEASED

# Level: mixup, RandAugment (operations, magnitude). The released files call light1 and light2
# light0 and light1. (2, 0) is not nothing: some operations do something at magnitude 0.
LEVELS = {
    "none": (0.0, None),
    "light1": (0.0, (2, 0)),
    "light2": (0.2, (2, 10)),
    "medium1": (0.2, (2, 15)),
    "medium2": (0.5, (2, 15)),
    "strong1": (0.5, (2, 20)),
    "strong2": (0.8, (2, 20)),
}
WEIGHT_DECAYS = (0.1, 0.03)

# The authors' choice of level per model: big_vision configs/vit_i21k.py, vit_i1k.py.
LEVEL_21K = {
    "ViT-Ti/16": "none",
    "ViT-S/32": "none",
    "ViT-S/16": "light1",
    "ViT-B/32": "light2",
    "ViT-B/16": "light2",
    "ViT-L/16": "medium2",
}
LEVEL_1K = {
    "ViT-Ti/16": "light1",
    "ViT-S/32": "medium1",
    "ViT-S/16": "medium2",
    "ViT-B/32": "medium2",
    "ViT-B/16": "medium2",
    "ViT-L/16": "medium2",
}
MODELS = tuple(variant for variant, _ in RELEASED.values())

_SHORT_RATES = (0.001, 0.003, 0.01, 0.03)
# Data: steps, peak rates; examples, classes. Each at 224 and 384 pixels: 68 runs per model.
FINETUNE = {
    "imagenet": ((20_000,), (0.01, 0.03), 1_281_167, 1000),
    "pets": ((500, 2500), _SHORT_RATES, 3680, 37),
    "kitti": ((500, 2500), _SHORT_RATES, None, 4),
    "cifar100": ((2500, 10_000), _SHORT_RATES, 50_000, 100),
    "resisc45": ((2500, 10_000), _SHORT_RATES, None, 45),
}
RESOLUTIONS = (224, 384)


def imagenet21k(
    model: str = "ViT-B/16",
    *,
    level: str | None = None,
    weight_decay: float = 0.1,
    regularized: bool = False,
    epochs: int = 300,
) -> Recipe:
    """Pre-training on ImageNet-21k with a level of augmentation and regularisation.

    Paper: arXiv 2106.10270, section 3; big_vision configs/vit_i21k.py.
    Command: keras-vit train augreg/imagenet21k --model ViT-B/16 --data folder:imagenet21k
        --out runs/augreg
    Expected: ImageNet top-1 after fine-tuning at 384 px: ViT-L/16 85.59, B/16 85.49, S/16 83.73,
        B/32 83.59, S/32 79.58, Ti/16 78.22, R50+ViT-L/32 85.99, R26+ViT-S/32 83.85.
    Source: arXiv 2106.10270, the best of the grid for each model.
    Deviations: a class token, as in the released files, where the configuration has mean pooling.
        Weight decay is the paper's 0.1 times the rate, the configuration's 1e-4 at a peak of 1e-3.

    Args:
        model: one of the released networks.
        level: none, light1, light2, medium1, medium2, strong1 or strong2; None for the authors'
            choice, which six models have.
        weight_decay: 0.1 or 0.03.
        regularized: dropout and stochastic depth of 0.1, or none.
        epochs: 300 or 30.
    """
    name = "augreg/imagenet21k"
    one_of(name, "epochs", epochs, (30, 300), "; another length is set with --set epochs=")
    recipe = _pretraining(name, model, level, LEVEL_21K, weight_decay, regularized)
    return dataclasses.replace(recipe, epochs=epochs, loss=SIGMOID_21K, **IMAGENET21K)


def imagenet(
    model: str = "ViT-B/16",
    *,
    level: str | None = None,
    weight_decay: float = 0.1,
    regularized: bool = False,
) -> Recipe:
    """Training on ImageNet from scratch with a level of augmentation and regularisation.

    Paper: arXiv 2106.10270, section 3; big_vision configs/vit_i1k.py.
    Command: keras-vit train augreg/imagenet --model ViT-S/16 --data folder:imagenet
        --out runs/augreg
    Expected: top-1 at 224 px: ViT-B/16 79.84, S/16 79.00, L/16 75.72, B/32 74.42, Ti/16 72.59, S/32
        72.07.
    Source: arXiv 2106.10270, the best of the grid for each model.
    Deviations: no `pre_logits`, as in the released files and the paper, where the configuration has
        one. Weight decay is the paper's 0.1 times the rate, the configuration's 1e-4 at a peak of 1e-3.

    Args:
        model: one of the released networks.
        level: none, light1, light2, medium1, medium2, strong1 or strong2; None for the authors'
            choice, which six models have.
        weight_decay: 0.1 or 0.03.
        regularized: dropout and stochastic depth of 0.1, or none.
    """
    name = "augreg/imagenet"
    recipe = _pretraining(name, model, level, LEVEL_1K, weight_decay, regularized)
    return dataclasses.replace(recipe, epochs=300, loss=SIGMOID_1K, **IMAGENET)


def finetune(
    model: str = "ViT-B/16@augreg_in21k",
    *,
    data: str = "imagenet",
    steps: int | None = None,
    lr: float | None = None,
    image_size: int = 384,
) -> Recipe:
    """Fine-tuning of an AugReg checkpoint: one point of the published grid.

    Paper: arXiv 2106.10270, section 3.4; big_vision configs/transfer.py.
    Command: keras-vit train augreg/finetune --model ViT-B/16@augreg_in21k --with data=pets
        --with lr=0.003 --data tfds:oxford_iiit_pet --out runs/pets
    Expected: ImageNet top-1 from ImageNet-21k at 384 px: ViT-L/16 85.59, B/16 85.49, S/16 83.73; at
        224 px 83.98, 83.96, 80.46.
    Source: arXiv 2106.10270.
    Deviations: none known. Dropout is 0, as the authors' configuration forces it to be. The rates of
        the shorter runs differ most: sweep them.

    Args:
        model: one of the released networks.
        data: imagenet, pets, kitti, cifar100 or resisc45.
        steps: of the grid; None for its longer runs.
        lr: of the grid; None for 0.03 on ImageNet and 0.01 else.
        image_size: 224 or 384 pixels.
    """
    name = "augreg/finetune"
    row_of(name, model, MODELS)
    one_of(name, "data", data, FINETUNE)
    all_steps, rates, examples, classes = FINETUNE[data]
    where = f"{name} on {data}"
    if steps is None:
        steps = max(all_steps)
    if lr is None:
        lr = 0.03 if data == "imagenet" else 0.01
    one_of(where, "steps", steps, all_steps, "; another length is set with --set steps=")
    one_of(where, "lr", lr, rates, "; another rate is set with --set schedule.base_lr=")
    one_of(where, "image_size", image_size, RESOLUTIONS)
    return Recipe(
        name=name,
        epochs=None,
        steps=steps,
        batch_size=512,
        schedule=Schedule(base_lr=lr, decay="cosine", warmup_steps=100 if steps == 500 else 500),
        from_checkpoint=True,
        optimizer=SGD_FINETUNE,
        augment=INCEPTION,
        image_size=image_size,
        changes=(("dropout", 0.0), ("stochastic_depth", 0.0), ("representation_size", None)),
        examples=examples,
        classes=classes,
    )


def grid(make=imagenet21k, model: str = "ViT-B/16") -> tuple[Recipe, ...]:
    """The 28 pre-trainings of a model: levels, regularisation and weight decays."""
    points = itertools.product(LEVELS, (False, True), WEIGHT_DECAYS)
    return tuple(
        make(model, level=level, regularized=regularized, weight_decay=decay)
        for level, regularized, decay in points
    )


def finetune_grid(model: str = "ViT-B/16@augreg_in21k") -> tuple[Recipe, ...]:
    """The 68 fine-tunings of a checkpoint."""
    return tuple(
        finetune(model, data=data, steps=count, lr=rate, image_size=pixels)
        for data, (steps, rates, *_) in FINETUNE.items()
        for count, rate, pixels in itertools.product(steps, rates, RESOLUTIONS)
    )


def _pretraining(
    name: str,
    model: str,
    level: str | None,
    defaults: dict[str, str],
    weight_decay: float,
    regularized: bool,
) -> Recipe:
    variant = row_of(name, model, MODELS)
    level = defaults.get(variant) if level is None else level
    if level is None:
        raise ValueError(
            f"the authors name no level of augmentation for {variant}: give level={'|'.join(LEVELS)}."
        )
    one_of(name, "level", level, LEVELS)
    one_of(name, "weight_decay", weight_decay, WEIGHT_DECAYS)
    mixup, randaugment = LEVELS[level]
    rate = 0.1 if regularized else 0.0
    return Recipe(
        name=name,
        schedule=Schedule(base_lr=1e-3, decay="cosine", warmup_steps=10_000),
        optimizer=dataclasses.replace(ADAM_BIG_VISION, weight_decay=weight_decay),
        augment=dataclasses.replace(INCEPTION, mixup=mixup, randaugment=randaugment),
        changes=(("dropout", rate), ("stochastic_depth", rate)),
        **PRETRAINING,
    )
