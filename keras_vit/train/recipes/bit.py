"""Big Transfer (BiT, arXiv 1912.11370): pre-training, and the HyperRule of its fine-tuning."""

from keras_vit.data.augment import Augment
from keras_vit.spec import ResNetSpec, pair
from keras_vit.train.recipe import Loss, Optimizer, Recipe, Schedule
from keras_vit.train.recipes.common import (
    IMAGENET,
    IMAGENET21K,
    INCEPTION,
    PRETRAINING,
    SIGMOID_21K,
    one_of,
    row_of,
)
from keras_vit.zoo.variants import VARIANTS

MODELS = tuple(name for name in VARIANTS if name.startswith("BiT-R"))
HYPERRULE_MODELS = tuple(
    name for name, variant in VARIANTS.items() if isinstance(variant.spec, ResNetSpec)
)
V1_MODELS = tuple(name for name in VARIANTS if name.startswith("ResNet-GN-R"))
SETTINGS = ("paper", "big_vision")

# 90 epochs, the rate divided by 10 after 30, 60 and 80: section 3.3.
STAIRS = (30 / 90, 60 / 90, 80 / 90)
# Rates and decays are stated for 256 images and scaled to the batch.
SCALE = PRETRAINING["batch_size"] / 256

# bit_hyperrule.py. Below so many training images: warm-up, three drops, last step; mixup.
HYPERRULE = (
    (20_000, (100, 200, 300, 400, 500), 0.0),
    (500_000, (500, 3000, 6000, 9000, 10_000), 0.1),
    (float("inf"), (500, 6000, 12_000, 18_000, 20_000), 0.1),
)
SMALL_AREA = 96 * 96  # pixels


def imagenet21k(model: str = "BiT-R50x1", *, settings: str = "paper") -> Recipe:
    """Pre-training of BiT-M on ImageNet-21k.

    Paper: arXiv 1912.11370, section 3.3; big_vision configs/bit_i21k.py.
    Command: keras-vit train bit/imagenet21k --model BiT-R50x1 --data folder:imagenet21k
        --out runs/bit-m
    Expected: after the HyperRule BiT-R50x1 80.68 on ImageNet and 97.4 on CIFAR-10, R101x3 98.6 and
        R152x2 98.5 on CIFAR-10.
    Source: big_transfer README.
    Deviations: none known. Where the paper is silent: sigmoid loss and head bias, crop and flip, both
        as in big_vision; weight decay on kernels only, decoupled from the momentum.

    Args:
        model: a BiT ResNet.
        settings: `paper` (stairs), or `big_vision` (cosine, clipping, another weight decay).
    """
    name = "bit/imagenet21k"
    row_of(name, model, MODELS)
    one_of(name, "settings", settings, SETTINGS)
    if settings == "paper":
        schedule, optimizer = _paper(0.03)
    else:
        schedule, optimizer = _big_vision(0.03, 3e-5, warmup_steps=5000)
    return Recipe(
        name=name,
        epochs=90,
        schedule=schedule,
        optimizer=optimizer,
        loss=SIGMOID_21K,
        augment=INCEPTION,
        **PRETRAINING,
        **IMAGENET21K,
    )


def imagenet(model: str | None = None, *, settings: str = "paper") -> Recipe:
    """Training of BiT-S on ImageNet.

    Paper: arXiv 1912.11370, section 3.3; big_vision configs/bit_i1k.py.
    Command: keras-vit train bit/imagenet --model BiT-R50x1 --data folder:imagenet --out runs/bit-s
    Expected: top-1 of a ResNet-50 with GroupNorm and standardised kernels 76.0.
    Source: arXiv 1912.11370, Table 4.
    Deviations: none known. Where the paper is silent: crop and flip as in big_vision; weight decay on
        kernels only, decoupled from the momentum.

    Args:
        model: a BiT ResNet; with `big_vision` one of its V1 networks, ResNet-GN. None for 50x1.
        settings: `paper` (stairs), or `big_vision` (cosine, clipping, other rates).
    """
    name = "bit/imagenet"
    one_of(name, "settings", settings, SETTINGS)
    if settings == "paper":
        row_of(f"{name} with settings=paper", model or "BiT-R50x1", MODELS)
        schedule, optimizer = _paper(0.03)
    else:
        row_of(f"{name} with settings=big_vision", model or "ResNet-GN-R50x1", V1_MODELS)
        schedule, optimizer = _big_vision(0.1, 1e-4, warmup_steps=1000)
    return Recipe(
        name=name,
        epochs=90,
        schedule=schedule,
        optimizer=optimizer,
        loss=Loss(kind="softmax"),
        augment=INCEPTION,
        **PRETRAINING,
        **IMAGENET,
    )


def hyperrule(
    model: str = "BiT-R50x1",
    *,
    examples: int,
    image_size: tuple[int, int],
    classes: int | None = None,
) -> Recipe:
    """Fine-tuning by BiT-HyperRule: no search, the settings follow from the data.

    Paper: arXiv 1912.11370, section 3.3; big_transfer bit_hyperrule.py.
    Command: keras-vit train bit/hyperrule --model BiT-R50x1@imagenet21k --with examples=50000
        --with image_size=32,32 --data tfds:cifar10 --out runs/bit
    Expected: CIFAR-10 97.4, CIFAR-100 86.6, ImageNet 80.68 with BiT-M R50x1.
    Source: big_transfer README.
    Deviations: mixup's partner is the neighbour in the batch, not the mirrored place, and its weight at
        most one half: in shuffled batches the same. The paper has 448 and 384 px in place of 512 and
        480 but for R152x4; the code, which this follows, has not. The authors' TF2 and JAX code flips
        every image; here, as in their PyTorch code, half of them.

    Args:
        model: a ResNet.
        examples: images of the whole training set.
        image_size: pixels (height, width) of the data's images.
        classes: of the data, for plans.
    """
    name = "bit/hyperrule"
    row_of(name, model, HYPERRULE_MODELS)
    if examples < 1:
        raise ValueError(f"{name} needs the number of training images, got examples={examples}.")
    height, width = pair(image_size, "image_size")
    resize, crop = (160, 128) if height * width < SMALL_AREA else (512, 480)
    supports, mixup = next(row[1:] for row in HYPERRULE if examples < row[0])
    warmup, *stairs, last = supports
    return Recipe(
        name=name,
        from_checkpoint=True,
        epochs=None,
        steps=last,
        batch_size=512,
        schedule=Schedule(
            base_lr=0.003,
            decay="stairs",
            warmup_steps=warmup,
            stairs=tuple(step / last for step in stairs),
        ),
        optimizer=Optimizer(name="sgd", momentum=0.9, clip_norm=None),
        augment=Augment(crop="random", resize=resize, flip=True, mixup=mixup),
        image_size=crop,
        examples=examples,
        classes=classes,
    )


def _paper(rate: float) -> tuple[Schedule, Optimizer]:
    schedule = Schedule(base_lr=rate * SCALE, decay="stairs", warmup_steps=5000, stairs=STAIRS)
    return schedule, Optimizer(name="sgd", momentum=0.9, weight_decay=1e-4, clip_norm=None)


def _big_vision(rate: float, decay: float, warmup_steps: int) -> tuple[Schedule, Optimizer]:
    schedule = Schedule(base_lr=rate * SCALE, decay="cosine", warmup_steps=warmup_steps)
    return schedule, Optimizer(
        name="sgd",
        momentum=0.9,
        moment_dtype="bfloat16",
        weight_decay=decay * SCALE,
        decay_times_lr=False,
        clip_norm=1.0,
    )
