"""The Vision Transformer on one page (arXiv 2010.11929, section 3.1, figure 1)."""

import keras
import numpy as np
from keras import layers

from keras_vit.layers import (
    AxialBlock,
    AxisPositionEmbedding,
    ClassToken,
    Dropout,
    EncoderBlock,
    LayerNorm,
    MapHead,
    PositionEmbedding,
    RegisterTokens,
    TakeToken,
)
from keras_vit.models.head import add_head, add_outputs, dense_head, head_dtype
from keras_vit.spec import ViTSpec

Endpoints = dict[str, keras.KerasTensor]


def vit(spec: ViTSpec, dtype=None) -> tuple[keras.KerasTensor, Endpoints]:
    """Builds the network of a spec.

    Args:
        spec: the architecture.
        dtype: Keras dtype policy of every layer, None for the global one.

    Returns:
        The symbolic input (B, H, W, C) and the endpoints in order: `embedding` (B, h, w, D),
        `posembed_input` (B, N, D), `encoderblock_{i}` (B, N, D), `encoded` (B, N, D), with a
        distillation token `pre_logits_dist` (B, D), `pre_logits` (B, F) and, with a head, `logits`
        (B, num_classes) in float32, then `probabilities` when the spec has a classifier activation.
        For the unpooled kinds the last ones keep the token axis.
    """
    images = keras.Input((*spec.image_size, spec.in_channels), name="images")
    endpoints: Endpoints = {}
    transformer(spec, images, endpoints, dtype)
    return images, endpoints


def transformer(spec: ViTSpec, x, endpoints: Endpoints, dtype=None) -> None:
    """From pixels or a feature map (B, h', w', C) to the outputs, all of them added to `endpoints`."""
    x = layers.Conv2D(
        spec.hidden_size,
        spec.patch_size,
        strides=spec.patch_size,
        padding="valid",
        kernel_initializer="lecun_normal",
        name="embedding",
        dtype=dtype,
    )(x)
    endpoints["embedding"] = x  # (B, h, w, D)
    x = layers.Reshape((-1, spec.hidden_size), name="patch_tokens", dtype=dtype)(x)  # (B, h*w, D)

    if spec.num_layers:
        x = add_tokens(spec, x, endpoints, dtype)  # (B, N, D)
        x = encode(spec, x, endpoints, dtype)

    features = pool(spec, x, dtype)  # (B, F)
    if spec.distilled:
        # Before pre_logits, so that without a head the class token is the model's output.
        distilled = TakeToken(1, name="distillation_token", dtype=dtype)(x)  # (B, D)
        endpoints["pre_logits_dist"] = distilled
    endpoints["pre_logits"] = features
    if not spec.distilled:
        add_head(spec, features, endpoints, dtype)
    elif spec.num_classes:
        heads = (dense_head(spec, "head", dtype), dense_head(spec, "head_dist", dtype))
        logits = layers.Average(name="mean_of_heads", dtype=head_dtype(dtype))(
            [head(token) for head, token in zip(heads, (features, distilled), strict=True)]
        )
        add_outputs(spec, logits, endpoints, dtype)


def add_tokens(spec: ViTSpec, x, endpoints: Endpoints, dtype=None) -> keras.KerasTensor:
    """Patch tokens (B, h*w, D) -> (B, N, D): class and other tokens before them, positions added."""
    cls_before_positions = spec.posemb_at != "stem" or (
        spec.posemb in ("learn", "2d") and spec.posemb_includes_cls
    )
    if cls_before_positions:
        x = prepend_tokens(spec, x, dtype)
    if spec.posemb_at == "stem" and spec.posemb not in ("none", "relative"):
        x = positions(spec, "posembed_input", dtype)(x)
    if not cls_before_positions:
        x = prepend_tokens(spec, x, dtype)
    if spec.num_registers:
        others = spec.num_prefix_tokens - spec.num_registers
        x = RegisterTokens(spec.num_registers, others, name="registers", dtype=dtype)(x)
    endpoints["posembed_input"] = x
    rate = spec.dropout if spec.embedding_dropout is None else spec.embedding_dropout
    if rate:
        x = Dropout(rate, name="posembed_dropout", dtype=dtype)(x)
    return x


def positions(spec: ViTSpec, name: str, dtype=None) -> layers.Layer:
    """The layer that adds position embeddings to tokens."""
    if spec.posemb == "2d":
        return AxisPositionEmbedding(spec.grid, name=name, dtype=dtype)
    return PositionEmbedding(spec.grid, spec.posemb, name=name, dtype=dtype)


def prepend_tokens(spec: ViTSpec, x, dtype=None) -> keras.KerasTensor:
    """The class token first, the distillation token second, where the spec has them."""
    if spec.distilled:
        x = ClassToken(name="dist", dtype=dtype)(x)
    return ClassToken(name="cls", dtype=dtype)(x) if spec.has_cls else x


def encode(spec: ViTSpec, x, endpoints: Endpoints, dtype=None) -> keras.KerasTensor:
    """The encoder (equations 2 to 4) on tokens (B, N, D)."""
    shared = positions(spec, "posembed_input", dtype) if spec.posemb_at == "layers_shared" else None
    for i, rate in enumerate(np.linspace(0.0, spec.stochastic_depth, spec.num_layers)):
        if spec.posemb_at == "layers":
            x = positions(spec, f"posembed_{i}", dtype)(x)
        elif shared is not None:
            x = shared(x)
        endpoints[f"into_encoderblock_{i}"] = x  # private
        x = encoder_block(spec, float(rate), f"encoderblock_{i}", dtype)(x)
        endpoints[f"encoderblock_{i}"] = x
    x = LayerNorm(spec.norm_epsilon, name="encoder_norm", dtype=dtype)(x)
    endpoints["encoded"] = x
    return x


def encoder_block(spec: ViTSpec, stochastic_depth: float, name: str, dtype=None) -> layers.Layer:
    """One block of the encoder, (B, N, D) -> (B, N, D)."""
    config = {
        "num_heads": spec.num_heads,
        "mlp_dim": spec.mlp_dim,
        "dropout": spec.dropout,
        "attention_dropout": spec.attention_dropout,
        "stochastic_depth": stochastic_depth,
        "activation": spec.activation,
        "norm_epsilon": spec.norm_epsilon,
        "layer_scale": spec.layer_scale,
        "ffn": spec.ffn,
        "relative": spec.posemb == "relative",
    }
    if spec.attention == "axial":
        return AxialBlock(spec.grid, block=config, name=name, dtype=dtype)
    return EncoderBlock(**config, name=name, dtype=dtype)


def pool(spec: ViTSpec, x, dtype=None) -> keras.KerasTensor:
    """Tokens (B, N, D) -> features (B, F) as the spec's `pool` and `representation_size` say."""
    if spec.pool in ("token", "first"):
        x = TakeToken(0, name="first_token", dtype=dtype)(x)  # (B, D)
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
    return x
