"""The Vision Transformer inside whatever model a user has, and what its tokens stand for."""

import keras

from keras_vit.model import VisionModel
from keras_vit.spec import HybridSpec, MixerSpec, ResNetSpec, ViTSpec

# What the output is made from, hence whose row of the rollout is the answer.
QUERIES = {
    "token": "class token",
    "token_unpooled": "class token",
    "first": "first patch",
    "gap": "mean over patches",
    "map": "mean over patches",
    "none": "mean over patches",
}


def find_backbone(model: keras.Model) -> VisionModel:
    """The `VisionModel` with attention that a model is or contains, at any depth.

    Args:
        model: a `VisionModel`, or a Sequential, Functional or subclassed model around one.

    Raises:
        TypeError: there is none, or it has no attention (BiT, Mixer), or there are several.
    """
    found = list(_backbones(model))
    if len(found) != 1:
        held = f"{len(found)} of them: give one" if found else "none: build one with keras_vit.load"
        raise TypeError(
            f"inspection needs one Vision Transformer of this package in the model, and "
            f"{getattr(model, 'name', type(model).__name__)!r} holds {held}."
        )
    check_attention(found[0])
    return found[0]


def _backbones(model):
    if isinstance(model, VisionModel):
        yield model
        return
    inner = (
        model._flatten_layers(include_self=False) if isinstance(model, keras.layers.Layer) else ()
    )
    seen = set()
    for layer in inner:
        if isinstance(layer, VisionModel) and id(layer) not in seen:
            seen.add(id(layer))
            yield layer


def check_attention(model: VisionModel) -> None:
    """Refuses a network without attention.

    Raises:
        TypeError: BiT, Mixer, or no encoder blocks; the message names the reason.
    """
    name = model.card.name if model.card else model.name
    if isinstance(model.spec, ResNetSpec):
        why = "is a ResNet (BiT): it has convolutions and no attention to inspect"
    elif isinstance(model.spec, MixerSpec):
        why = "is an MLP-Mixer: an MLP mixes its patches, so it has no attention to inspect"
    elif not model.spec.num_layers:
        why = "has no encoder blocks (num_layers=0), so no attention to inspect"
    elif model.spec.attention == "axial":
        why = "attends along rows and along columns, never from all patches to all"
    else:
        return
    raise TypeError(f"{name} {why}; use a ViT or a hybrid.")


def transformer_spec(model: VisionModel) -> ViTSpec:
    """The spec of a model that `find_backbone` gave."""
    check_attention(model)
    return model.spec  # pyright: ignore[reportReturnType]


def pixels_per_token(spec: ViTSpec) -> tuple[int, int]:
    """Pixels of the image from one patch token to the next, (down, across).

    The patch size; for a hybrid the stride of its ResNet times that: 16 for R50+ViT-B/16, whose
    patches are single cells of a feature map of stride 16.
    """
    stride = 1
    if isinstance(spec, HybridSpec):
        stride = 2 ** (2 + max(len(spec.resnet.block_units) - 1, 0))
    return spec.patch_size[0] * stride, spec.patch_size[1] * stride
