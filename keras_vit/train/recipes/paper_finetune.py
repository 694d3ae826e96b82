"""Fine-tuning as in the Vision Transformer paper (arXiv 2010.11929): every row of its Table 4."""

import dataclasses
import re

from keras_vit.train.recipe import Recipe, Schedule
from keras_vit.train.recipes.common import (
    INCEPTION,
    SGD_FINETUNE,
    finetuned_network,
    one_of,
    row_of,
)
from keras_vit.zoo.variants import VARIANTS


@dataclasses.dataclass(frozen=True)
class Row:
    """A row of Table 4.

    Attributes:
        steps: updates of 512 images.
        rates: peak rates of the sweep.
        rate: the one to take without a sweep: vision_transformer's, or big_vision's for the
            short runs.
        dev_split: share of the training images that the sweep is judged on.
        examples, classes: of the training set; None where it is open.
    """

    steps: int
    rates: tuple[float, ...]
    rate: float
    dev_split: str
    examples: int | None = None
    classes: int | None = None


_FINE = (0.001, 0.003, 0.01, 0.03)

TABLE_4 = {
    "imagenet": Row(20_000, (0.003, 0.01, 0.03, 0.06), 0.03, "1 % of train", 1_281_167, 1000),
    "cifar100": Row(10_000, _FINE, 0.03, "2 % of train", 50_000, 100),
    "cifar10": Row(10_000, _FINE, 0.03, "2 % of train", 50_000, 10),
    "pets": Row(500, _FINE, 0.01, "10 % of train", 3680, 37),
    "flowers": Row(500, _FINE, 0.01, "10 % of train", 2040, 102),
    "vtab": Row(2500, (0.01,), 0.01, "200 validation images", 1000, None),
}

# Plain networks, hybrids and ResNets, as the paper and the code with it fine-tune; those of this
# package, for small images, too.
MODELS = tuple(name for name in VARIANTS if re.match(r"ViT-|R\d*\+|BiT-|ResNet-", name))
# Table 2's ImageNet column, section 4.1: pixels, with averaged weights.
HIGH_RESOLUTION = {"ViT-L/16": 512, "ViT-H/14": 518}

# arXiv 1912.11370, supplement F: tasks whose labels a flip or a crop would change.
NO_FLIP = ("dsprites-orientation", "dsprites-location", "smallnorb-azimuth")
NO_CROP = ("clevr-count", "clevr-distance", "dmlab", "kitti-distance", "dsprites-location")
VTAB_TASKS = (
    "caltech101", "cifar100", "dtd", "flowers102", "pets", "sun397", "svhn",
    "camelyon", "eurosat", "resisc45", "retinopathy",
    "clevr-count", "clevr-distance", "dmlab", "dsprites-location", "dsprites-orientation",
    "kitti-distance", "smallnorb-azimuth", "smallnorb-elevation",
)  # fmt: skip


def imagenet(
    model: str = "ViT-L/16@imagenet21k", *, lr: float | None = None, high_resolution: bool = False
) -> Recipe:
    """Fine-tuning on ImageNet.

    Paper: arXiv 2010.11929, Table 4 and section 4.1; vit_jax/configs/common.py.
    Command: keras-vit train paper/finetune-imagenet --model ViT-L/16@imagenet21k
        --data folder:imagenet --out runs/l16
    Expected: top-1 from ImageNet-21k weights: ViT-B/16 83.97, B/32 81.28, L/16 85.15, L/32 80.99,
        H/14 85.13; with high_resolution L/16 85.30.
    Source: arXiv 2010.11929, Tables 5 and 2.
    Deviations: none known. As in the code, where the paper is silent: warm-up of 500 steps, momentum
        in bfloat16, rate 0.03 without a sweep, Inception crop. Dropout as in the authors'
        configurations. ViT-H/14 at 384 px drops the last 6 pixels as their code does.

    Args:
        model: any plain ViT, hybrid or ResNet.
        lr: a rate of the sweep; None for 0.03.
        high_resolution: 512 px for ViT-L/16, 518 for ViT-H/14, and averaged weights (0.9999).
    """
    name = "paper/finetune-imagenet"
    if not high_resolution:
        return _finetuning(name, model, lr)
    variant = row_of(f"{name} with high_resolution", model, HIGH_RESOLUTION)
    recipe = _finetuning(name, model, lr, HIGH_RESOLUTION[variant])
    optimizer = dataclasses.replace(recipe.optimizer, average=0.9999)
    return dataclasses.replace(recipe, optimizer=optimizer)


def cifar10(model: str = "ViT-B/16@imagenet21k", *, lr: float | None = None) -> Recipe:
    """Fine-tuning on CIFAR-10.

    Paper: arXiv 2010.11929, Table 4; vit_jax/configs/common.py and vit.py.
    Command: keras-vit train paper/finetune-cifar10 --model ViT-B/16@imagenet21k
        --data tfds:cifar10 --out runs/cifar10
    Expected: top-1 from ImageNet-21k weights: ViT-B/16 98.95, B/32 98.79, L/16 99.16, L/32 99.13,
        H/14 99.27.
    Source: arXiv 2010.11929, Table 5.
    Deviations: none known. As in the code, where the paper is silent: warm-up of 500 steps, momentum
        in bfloat16, Inception crop, rate 0.03 without a sweep, 0.01 for ViT-B/16. big_vision crops
        CIFAR at random from 448 px: --set augment.crop=random --set augment.resize=448.

    Args:
        model: any plain ViT, hybrid or ResNet.
        lr: a rate of the sweep; None for the code's.
    """
    name = "paper/finetune-cifar10"
    # vit_jax/configs/vit.py has another rate for this one.
    lower = lr is None and row_of(name, model, MODELS) == "ViT-B/16"
    return _finetuning(name, model, 0.01 if lower else lr)


def cifar100(model: str = "ViT-B/16@imagenet21k", *, lr: float | None = None) -> Recipe:
    """Fine-tuning on CIFAR-100.

    Paper: arXiv 2010.11929, Table 4; vit_jax/configs/common.py.
    Command: keras-vit train paper/finetune-cifar100 --model ViT-B/16@imagenet21k
        --data tfds:cifar100 --out runs/cifar100
    Expected: top-1 from ImageNet-21k weights: ViT-B/16 91.67, B/32 91.97, L/16 93.44, L/32 93.04,
        H/14 93.82.
    Source: arXiv 2010.11929, Table 5.
    Deviations: none known. As in the code, where the paper is silent: warm-up of 500 steps, momentum
        in bfloat16, Inception crop, rate 0.03 without a sweep.

    Args:
        model: any plain ViT, hybrid or ResNet.
        lr: a rate of the sweep; None for 0.03.
    """
    return _finetuning("paper/finetune-cifar100", model, lr)


def pets(model: str = "ViT-B/16@imagenet21k", *, lr: float | None = None) -> Recipe:
    """Fine-tuning on Oxford-IIIT Pet.

    Paper: arXiv 2010.11929, Table 4; big_vision configs/transfer.py.
    Command: keras-vit train paper/finetune-pets --model ViT-B/16@imagenet21k
        --data tfds:oxford_iiit_pet --out runs/pets
    Expected: top-1 from ImageNet-21k weights: ViT-B/16 94.43, B/32 93.02, L/16 94.73, L/32 93.09,
        H/14 94.82.
    Source: arXiv 2010.11929, Table 5.
    Deviations: none known. As in the code, where the paper is silent: warm-up of 100 steps, momentum
        in bfloat16, Inception crop, rate 0.01 without a sweep.

    Args:
        model: any plain ViT, hybrid or ResNet.
        lr: a rate of the sweep; None for 0.01.
    """
    return _finetuning("paper/finetune-pets", model, lr)


def flowers(model: str = "ViT-B/16@imagenet21k", *, lr: float | None = None) -> Recipe:
    """Fine-tuning on Oxford Flowers-102.

    Paper: arXiv 2010.11929, Table 4; big_vision configs/transfer.py.
    Command: keras-vit train paper/finetune-flowers --model ViT-B/16@imagenet21k
        --data tfds:oxford_flowers102 --out runs/flowers
    Expected: top-1 from ImageNet-21k weights: ViT-B/16 99.38, B/32 99.11, L/16 99.61, L/32 99.19,
        H/14 99.51.
    Source: arXiv 2010.11929, Table 5.
    Deviations: none known. As in the code, where the paper is silent: warm-up of 100 steps, momentum
        in bfloat16, Inception crop, rate 0.01 without a sweep.

    Args:
        model: any plain ViT, hybrid or ResNet.
        lr: a rate of the sweep; None for 0.01.
    """
    return _finetuning("paper/finetune-flowers", model, lr)


def vtab(model: str = "ViT-L/16@imagenet21k", *, task: str | None = None) -> Recipe:
    """Fine-tuning on the 1,000 images of a VTAB task.

    Paper: arXiv 2010.11929, Table 4 and appendix B.1.1; augmentation: arXiv 1912.11370, supplement F.
    Command: keras-vit train paper/finetune-vtab --model ViT-L/16@imagenet21k --with task=dmlab
        --data folder:dmlab --out runs/dmlab
    Expected: mean top-1 over the 19 tasks: ViT-H/14 (JFT) 77.63, L/16 (JFT) 76.28, L/16
        (ImageNet-21k) 72.72.
    Source: arXiv 2010.11929, Table 2.
    Deviations: none known. As in the code, where the paper is silent: warm-up of 500 steps, momentum
        in bfloat16.

    Args:
        model: any plain ViT, hybrid or ResNet.
        task: what must not be flipped or cropped, None for a task that may be both.
    """
    name = "paper/finetune-vtab"
    if task is not None:
        one_of(name, "task", task, VTAB_TASKS)
    recipe = _finetuning(name, model, None)
    crop = {"crop": "none"} if task in NO_CROP else {"crop": "random", "resize": 448}
    augment = dataclasses.replace(recipe.augment, flip=task not in NO_FLIP, **crop)
    return dataclasses.replace(recipe, augment=augment)


def _finetuning(name: str, model: str, lr: float | None, image_size: int = 384) -> Recipe:
    variant = row_of(name, model, MODELS)
    row = TABLE_4[name.rsplit("-", 1)[1]]
    if lr is not None:
        one_of(name, "lr", lr, row.rates, "; another rate is set with --set schedule.base_lr=")
    return Recipe(
        name=name,
        epochs=None,
        steps=row.steps,
        batch_size=512,
        schedule=Schedule(
            base_lr=row.rate if lr is None else lr,
            decay="cosine",
            warmup_steps=100 if row.steps == 500 else 500,
        ),
        from_checkpoint=True,
        optimizer=SGD_FINETUNE,
        augment=INCEPTION,
        image_size=image_size,
        changes=finetuned_network(variant, image_size),
        examples=row.examples,
        classes=row.classes,
    )
