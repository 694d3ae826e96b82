"""The ResNets with GroupNorm: the stem of hybrids, BiT (arXiv 1912.11370), and the V1 network."""

import keras
from keras import layers

from keras_vit.layers import BottleneckUnit, GroupNorm, RootPool, StdConv2D
from keras_vit.models.head import add_head
from keras_vit.spec import ResNetBody, ResNetSpec

Endpoints = dict[str, keras.KerasTensor]


def resnet(spec: ResNetSpec, dtype=None) -> tuple[keras.KerasTensor, Endpoints]:
    """Builds the network of a spec.

    Args:
        spec: the architecture.
        dtype: Keras dtype policy of every layer, None for the global one.

    Returns:
        The symbolic input (B, H, W, C) and the endpoints in order: `root` and `block{i}`
        (B, h, w, channels), `encoded` (the last feature map), `pre_logits` (B, F) and, with a head,
        `logits` and `probabilities`.
    """
    images = keras.Input((*spec.image_size, spec.in_channels), name="images")
    endpoints: Endpoints = {}
    x = trunk(spec.body, images, endpoints, dtype)
    endpoints["encoded"] = x
    x = layers.GlobalAveragePooling2D(name="gap", dtype=dtype)(x)
    endpoints["pre_logits"] = x
    add_head(spec, x, endpoints, dtype)
    return images, endpoints


def trunk(body: ResNetBody, x, endpoints: Endpoints, dtype=None) -> keras.KerasTensor:
    """Root and stages: (B, H, W, C) -> (B, h, w, features); adds `root` and `block{i}`."""
    conv = {
        "padding": body.padding,
        "standardization": body.weight_standardization,
        "epsilon": body.weight_epsilon,
    }
    norm = {"groups": body.norm_groups, "epsilon": body.norm_epsilon}

    x = StdConv2D(body.root_width, 7, 2, **conv, name="conv_root", dtype=dtype)(x)
    if not body.preactivation:
        x = GroupNorm(**norm, name="gn_root", dtype=dtype)(x)
        x = layers.ReLU(name="relu_root", dtype=dtype)(x)
    x = RootPool(body.padding, body.pool_border, name="pool_root", dtype=dtype)(x)
    endpoints["root"] = x

    for stage, units in enumerate(body.block_units):
        for unit in range(units):
            x = BottleneckUnit(
                body.stage_width(stage),
                strides=2 if stage and not unit else 1,
                preactivation=body.preactivation,
                conv=conv,
                norm=norm,
                name=f"block{stage + 1}_unit{unit + 1}",
                dtype=dtype,
            )(x)
        endpoints[f"block{stage + 1}"] = x
    if body.preactivation:
        x = GroupNorm(**norm, name="final_norm", dtype=dtype)(x)
        x = layers.ReLU(name="final_relu", dtype=dtype)(x)
    return x
