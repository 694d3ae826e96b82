"""The Vision Transformer on one page (arXiv 2010.11929, section 3.1, figure 1)."""

import keras
import numpy as np
from keras import layers

from keras_vit.layers import (
    ClassToken,
    EncoderBlock,
    FirstToken,
    LayerNorm,
    MapHead,
    PositionEmbedding,
)
from keras_vit.spec import ViTSpec


def vit(spec: ViTSpec, dtype=None) -> tuple[keras.KerasTensor, dict[str, keras.KerasTensor]]:
    """Builds the network of a spec.

    Args:
        spec: the architecture.
        dtype: Keras dtype policy of every layer, None for the global one.

    Returns:
        The symbolic input (B, H, W, C) and the endpoints in order: `embedding` (B, h, w, D),
        `posembed_input` (B, N, D), `encoderblock_{i}` (B, N, D), `encoded` (B, N, D),
        `pre_logits` (B, F) and, with a head, `logits` (B, num_classes) in float32, then
        `probabilities` when the spec has a classifier activation. For the unpooled kinds the
        last ones keep the token axis.
    """
    images = keras.Input((*spec.image_size, spec.in_channels), name="images")
    endpoints = {}

    x = layers.Conv2D(
        spec.hidden_size,
        spec.patch_size,
        strides=spec.patch_size,
        padding="valid",
        kernel_initializer="lecun_normal",
        name="embedding",
        dtype=dtype,
    )(images)
    endpoints["embedding"] = x  # (B, h, w, D)
    x = layers.Reshape((-1, spec.hidden_size), name="patch_tokens", dtype=dtype)(x)  # (B, h*w, D)

    add_positions = PositionEmbedding(spec.grid, spec.posemb, name="posembed_input", dtype=dtype)
    cls_before_positions = spec.posemb == "learn" and spec.posemb_includes_cls
    if spec.has_cls and cls_before_positions:
        x = ClassToken(name="cls", dtype=dtype)(x)  # (B, 1 + h*w, D)
    if spec.posemb != "none":
        x = add_positions(x)
    if spec.has_cls and not cls_before_positions:
        x = ClassToken(name="cls", dtype=dtype)(x)
    endpoints["posembed_input"] = x
    embedding_dropout = spec.dropout if spec.embedding_dropout is None else spec.embedding_dropout
    if embedding_dropout:
        x = layers.Dropout(embedding_dropout, name="posembed_dropout", dtype=dtype)(x)
    endpoints["embedded"] = x  # what the first block sees; private

    for i, rate in enumerate(np.linspace(0.0, spec.stochastic_depth, spec.num_layers)):
        x = EncoderBlock(
            spec.num_heads,
            spec.mlp_dim,
            dropout=spec.dropout,
            attention_dropout=spec.attention_dropout,
            stochastic_depth=float(rate),
            activation=spec.activation,
            norm_epsilon=spec.norm_epsilon,
            name=f"encoderblock_{i}",
            dtype=dtype,
        )(x)
        endpoints[f"encoderblock_{i}"] = x
    x = LayerNorm(spec.norm_epsilon, name="encoder_norm", dtype=dtype)(x)
    endpoints["encoded"] = x

    if spec.pool in ("token", "first"):
        x = FirstToken(name="first_token", dtype=dtype)(x)  # (B, D)
    elif spec.pool == "gap":
        x = layers.GlobalAveragePooling1D(name="gap", dtype=dtype)(x)
    elif spec.pool == "map":
        x = MapHead(
            spec.num_heads,
            spec.mlp_dim,
            spec.activation,
            spec.norm_epsilon,
            name="map",
            dtype=dtype,
        )(x)
    if spec.representation_size:
        x = layers.Dense(
            spec.representation_size,
            activation="tanh" if spec.representation_tanh else None,
            kernel_initializer="lecun_normal",
            name="pre_logits",
            dtype=dtype,
        )(x)
    endpoints["pre_logits"] = x

    if spec.num_classes:
        # Zero kernel as in the paper; float32 so that logits and losses never are half precision.
        x = layers.Dense(
            spec.num_classes,
            kernel_initializer="zeros",
            bias_initializer=keras.initializers.Constant(spec.head_bias_init),
            name="head",
            dtype=head_dtype(dtype),
        )(x)
        endpoints["logits"] = x
        if spec.classifier_activation:
            x = layers.Activation(
                spec.classifier_activation, name="probabilities", dtype=head_dtype(dtype)
            )(x)
            endpoints["probabilities"] = x
    return images, endpoints


def head_dtype(dtype) -> str:
    """The variable dtype of a policy: float32 under the mixed ones."""
    policy = keras.dtype_policies.get(dtype or keras.config.dtype_policy())
    return policy.variable_dtype
