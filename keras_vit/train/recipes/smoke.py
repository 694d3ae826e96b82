"""Recipes and networks shrunk until a run takes a second: to see that all parts fit together."""

import dataclasses
from typing import Any

import numpy as np

from keras_vit.data.sources import Source
from keras_vit.spec import HybridSpec, MixerSpec, ResNetBody, ResNetSpec, Spec, ViTSpec, changed
from keras_vit.train.recipe import Recipe
from keras_vit.train.recipes.common import spec_of

STEPS = 4
BATCH_SIZE = 4
WIDTH = 16  # channels of a token
CLASSES = 3


def smoke(recipe: Recipe) -> Recipe:
    """The same recipe for `STEPS` small batches at the network's own size.

    Optimizer, loss, augmentation, kind of schedule and changes of the network stay; a warm-up is one
    step, drops and cool-down keep their shares of the run.
    """
    schedule = recipe.schedule
    warms_up = (
        schedule.warmup_steps if schedule.warmup_steps is not None else schedule.warmup_fraction
    )
    short = dataclasses.replace(
        schedule,
        warmup_steps=1 if warms_up else 0,
        cooldown_steps=1 if schedule.cooldown_steps else 0,
        timescale=min(schedule.timescale, STEPS),
    )
    parts = recipe.optimizer.accumulation_steps
    width = {"representation_size": WIDTH}
    return dataclasses.replace(
        recipe,
        epochs=None,
        steps=STEPS,
        batch_size=max(BATCH_SIZE, parts),
        schedule=short,
        augment=dataclasses.replace(recipe.augment, resize=None),
        image_size=None,
        changes=tuple((k, width.get(k, v) if v else v) for k, v in recipe.changes),
        examples=STEPS * max(BATCH_SIZE, parts),
        classes=CLASSES,
    )


def tiny(spec: Spec) -> Spec:
    """A network of the same family with the same fields, but few, narrow blocks and few tokens."""
    small: dict[str, Any] = {"num_classes": CLASSES}
    if isinstance(spec, ResNetSpec):
        return dataclasses.replace(spec, body=_tiny_body(spec.body), image_size=(64, 64), **small)
    patch = tuple(min(4, side) for side in spec.patch_size)
    # Stochastic depth spares the first block.
    blocks = min(2 if spec.stochastic_depth else 1, spec.num_layers)
    small |= {"hidden_size": WIDTH, "num_layers": blocks, "patch_size": patch}
    side = 2  # pixels of the image per pixel of a patch, so that there are 2 x 2 patches
    if isinstance(spec, HybridSpec):
        small["resnet"] = _tiny_body(spec.resnet)
        side *= 2 ** (2 + max(0, len(spec.resnet.block_units) - 1))
    small["image_size"] = (side * patch[0], side * patch[1])
    if isinstance(spec, MixerSpec):
        return dataclasses.replace(spec, tokens_mlp_dim=8, channels_mlp_dim=24, **small)
    if isinstance(spec, ViTSpec) and spec.representation_size:
        small["representation_size"] = WIDTH
    return dataclasses.replace(spec, mlp_dim=24, num_heads=2, **small)


def tiny_network(model: str, recipe: Recipe) -> Spec:
    """The shrunk network of a variant as a recipe changes it."""
    return tiny(changed(spec_of(model), dict(recipe.changes), model))


def images(spec: Spec, examples: int, seed: int = 0) -> Source:
    """Random images of a network's size, a little larger, with the classes of its head in turn."""
    rng = np.random.default_rng(seed)
    height, width = (side + side // 4 for side in spec.image_size)
    pixels = rng.integers(0, 256, (examples, height, width, spec.in_channels), np.uint8)
    labels = (np.arange(examples) % spec.num_classes).astype(np.int32)
    names = tuple(f"class {i}" for i in range(spec.num_classes))
    return Source(f"synthetic[{examples}]", pixels, labels, names)


def _tiny_body(body: ResNetBody) -> ResNetBody:
    # 8 channels at the root, in groups of 4.
    units = (1,) * len(body.block_units)
    return dataclasses.replace(body, block_units=units, width_factor=1 / 8, norm_groups=4)
