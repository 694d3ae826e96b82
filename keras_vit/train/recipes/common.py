"""What several recipes share: Adam as in the papers, the augmentation of all of them, data sets."""

import dataclasses
from collections.abc import Iterable
from typing import Any

from keras_vit.data.augment import Augment
from keras_vit.spec import Spec, ViTSpec, changed
from keras_vit.train.recipe import Loss, Optimizer
from keras_vit.zoo.spellings import variant_of
from keras_vit.zoo.variants import VARIANTS

# Examples and classes of the training sets, for plans.
JFT: dict[str, Any] = {"examples": 303_000_000, "classes": 18_291}
IMAGENET21K: dict[str, Any] = {"examples": 14_197_122, "classes": 21_843}
IMAGENET: dict[str, Any] = {"examples": 1_281_167, "classes": 1000}

# Adam (0.9, 0.999) without clipping: arXiv 2010.11929, Table 3.
ADAM = Optimizer(name="adamw", beta_1=0.9, beta_2=0.999, clip_norm=None)
# big_vision's: clipped at 1, the first moment in half precision.
ADAM_BIG_VISION = dataclasses.replace(ADAM, clip_norm=1.0, moment_dtype="bfloat16")
# SGD of vision_transformer/train.py: clipped at 1, the momentum in half precision, no weight decay.
SGD_FINETUNE = Optimizer(name="sgd", momentum=0.9, clip_norm=1.0, moment_dtype="bfloat16")

# A box of 5 to 100 % of the image and a flip: in every pre-training of these authors.
INCEPTION = Augment(crop="inception", crop_area=(0.05, 1.0), flip=True)

# One sigmoid per class, each unlikely at first.
SIGMOID_21K = Loss(kind="sigmoid", head_bias=-10.0)
SIGMOID_1K = Loss(kind="sigmoid", head_bias=-6.9)

# Of every pre-training here: updates of 4096 images, 224 pixels.
PRETRAINING: dict[str, Any] = {"batch_size": 4096, "image_size": 224}


def row_of(recipe: str, model: str, rows: Iterable[str]) -> str:
    """The row that a model means, in any of its spellings, with or without `@tag`.

    Raises:
        ValueError: there is none; the message names those that there are.
    """
    rows = tuple(rows)
    variant = variant_of(str(model).partition("@")[0]) or model
    if variant not in rows:
        raise ValueError(f"{recipe} has no row for {model!r}: it has {', '.join(rows)}.")
    return variant


def one_of(recipe: str, what: str, value: Any, choices: Iterable[Any], more: str = "") -> Any:
    """`value` if it is one of the published choices.

    Raises:
        ValueError: it is none; the message names them, and `more`.
    """
    choices = tuple(choices)
    if value not in choices:
        listed = " or ".join(f"{choice}" for choice in choices)
        raise ValueError(f"{recipe} knows {what}={listed}, got {value!r}{more}.")
    return value


def spec_of(variant: str) -> Spec:
    """The network of a variant as it is pre-trained at 224 pixels."""
    return VARIANTS[variant].spec


def paper_network(variant: str, dropout: float) -> tuple[tuple[str, Any], ...]:
    """Changes that make a network the paper's in pre-training: dropout, and `pre_logits` as wide as it.

    A ResNet has neither.
    """
    spec = spec_of(variant)
    if not isinstance(spec, ViTSpec):
        return ()
    return (("dropout", dropout), ("representation_size", spec.hidden_size))


def finetuned_network(variant: str, image_size: int) -> tuple[tuple[str, Any], ...]:
    """Changes for fine-tuning: the dropout of the authors' configuration, no `pre_logits`.

    Where the patches do not fill the image, the rest is dropped as in the official code (/14 at 384).
    """
    spec = spec_of(variant)
    if not isinstance(spec, ViTSpec):
        return ()
    changes = (("dropout", VARIANTS[variant].dropout), ("representation_size", None))
    try:
        changed(spec, {"image_size": (image_size, image_size)})
    except ValueError:
        return (*changes, ("allow_crop", True))
    return changes
