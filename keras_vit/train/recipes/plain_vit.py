"""Better plain ViT baselines for ImageNet-1k (arXiv 2205.01580)."""

import dataclasses

from keras_vit.train.recipe import Loss, Recipe, Schedule
from keras_vit.train.recipes.common import (
    ADAM_BIG_VISION,
    IMAGENET,
    INCEPTION,
    one_of,
    paper_network,
    row_of,
)

MODELS = ("ViT-S/16",)


def s16(model: str = "ViT-S/16", *, epochs: int = 90) -> Recipe:
    """ViT-S/16 on ImageNet from scratch: the baseline for small budgets.

    Paper: arXiv 2205.01580; big_vision configs/vit_s16_i1k.py.
    Command: keras-vit train plain/s16 --data folder:imagenet --out runs/s16
    Expected: top-1 at 224 px: 76.5 (90 epochs), 78.5 (150), 80.0 (300).
    Source: arXiv 2205.01580.
    Deviations: none known. The authors hold the last 1 % of the training images out.

    Args:
        model: ViT-S/16.
        epochs: 90, 150 or 300.
    """
    name = "plain/s16"
    variant = row_of(name, model, MODELS)
    one_of(name, "epochs", epochs, (90, 150, 300), "; another length is set with --set epochs=")
    return Recipe(
        name=name,
        epochs=epochs,
        batch_size=1024,
        schedule=Schedule(base_lr=1e-3, decay="cosine", warmup_steps=10_000),
        # As the configuration counts it: not times the rate.
        optimizer=dataclasses.replace(ADAM_BIG_VISION, weight_decay=1e-4, decay_times_lr=False),
        loss=Loss(kind="softmax"),
        augment=dataclasses.replace(INCEPTION, mixup=0.2, randaugment=(2, 10)),
        image_size=224,
        changes=(
            ("pool", "gap"),
            ("posemb", "sincos2d"),
            *paper_network(variant, dropout=0.0),
        ),
        **IMAGENET,
    )
