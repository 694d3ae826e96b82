"""MLP-Mixer (arXiv 2105.01601) on ImageNet."""

import dataclasses

from keras_vit.train.recipe import Recipe, Schedule
from keras_vit.train.recipes.common import (
    ADAM,
    IMAGENET,
    INCEPTION,
    PRETRAINING,
    SIGMOID_1K,
    one_of,
    row_of,
)

MODELS = ("Mixer-B/16",)


def imagenet(model: str = "Mixer-B/16", *, epochs: int = 300) -> Recipe:
    """Mixer-B/16 on ImageNet from scratch.

    Paper: arXiv 2105.01601; big_vision configs/mlp_mixer_i1k.py.
    Command: keras-vit train mixer/imagenet --data folder:imagenet --out runs/mixer
    Expected: top-1 at 224 px: 76.3 (300 epochs), 70.5 (60).
    Source: big_vision configs/mlp_mixer_i1k.py.
    Deviations: none known. The configuration's linear_end of 1e-5 is a share of the peak rate, as its
        schedule is a factor on it: the last rate is 1e-8.

    Args:
        model: Mixer-B/16.
        epochs: 300 or 60.
    """
    name = "mixer/imagenet"
    row_of(name, model, MODELS)
    one_of(name, "epochs", epochs, (60, 300), "; another length is set with --set epochs=")
    return Recipe(
        name=name,
        epochs=epochs,
        schedule=Schedule(base_lr=1e-3, decay="linear", warmup_steps=10_000, end_lr=1e-8),
        optimizer=dataclasses.replace(ADAM, weight_decay=1e-4, decay_times_lr=False, clip_norm=1.0),
        loss=SIGMOID_1K,
        augment=dataclasses.replace(INCEPTION, mixup=0.5, randaugment=(2, 15)),
        changes=(("stochastic_depth", 0.1),),
        **PRETRAINING,
        **IMAGENET,
    )
