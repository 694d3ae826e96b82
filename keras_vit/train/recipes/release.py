"""The settings of the released ImageNet-21k checkpoints of vision_transformer."""

import dataclasses

from keras_vit.train.recipe import Recipe, Schedule
from keras_vit.train.recipes.common import (
    ADAM,
    IMAGENET21K,
    INCEPTION,
    PRETRAINING,
    SIGMOID_21K,
    paper_network,
    row_of,
)

MODELS = ("ViT-B/16", "ViT-B/32", "ViT-L/16", "ViT-L/32", "ViT-H/14")


def imagenet21k(model: str = "ViT-B/16") -> Recipe:
    """Pre-training on ImageNet-21k, as the released checkpoints were made.

    Paper: arXiv 2010.11929; the authors in vision_transformer issues 2, 34 and 237.
    Command: keras-vit train release/imagenet21k --model ViT-B/16 --data folder:imagenet21k
        --out runs/release
    Expected: top-1 of the 21,843 classes on held-out images: ViT-B/16 47.88, B/32 44.04, L/16 49.90,
        L/32 45.42, H/14 49.06.
    Source: vision_transformer issue 62.
    Deviations: none known. The authors' 12.4 million images are those left after removing
        duplicates of the test sets, each with one label; that list is not public. Weight decay on
        kernels only (big_vision), of which the issues say nothing.
    """
    name = "release/imagenet21k"
    variant = row_of(name, model, MODELS)
    return Recipe(
        name=name,
        epochs=90,
        schedule=Schedule(base_lr=1e-3, decay="linear", warmup_steps=10_000, end_lr=1e-5),
        optimizer=dataclasses.replace(ADAM, weight_decay=0.03),
        loss=SIGMOID_21K,
        augment=INCEPTION,
        changes=paper_network(variant, dropout=0.1),
        **PRETRAINING,
        **{**IMAGENET21K, "examples": 12_400_000},
    )
