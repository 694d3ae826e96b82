"""MLP-Mixer (arXiv 2105.01601, figure 1)."""

import keras
import numpy as np
from keras import layers

from keras_vit.layers import LayerNorm, MixerBlock
from keras_vit.models.head import add_head
from keras_vit.spec import MixerSpec


def mixer(spec: MixerSpec, dtype=None) -> tuple[keras.KerasTensor, dict[str, keras.KerasTensor]]:
    """Builds the network of a spec.

    Args:
        spec: the architecture.
        dtype: Keras dtype policy of every layer, None for the global one.

    Returns:
        The symbolic input (B, H, W, C) and the endpoints in order: `embedding` (B, h, w, D),
        `mixerblock_{i}` and `encoded` (B, N, D), `pre_logits` (B, D) and, with a head, `logits`
        and `probabilities`.
    """
    images = keras.Input((*spec.image_size, spec.in_channels), name="images")
    endpoints = {}
    x = layers.Conv2D(
        spec.hidden_size,
        spec.patch_size,
        strides=spec.patch_size,
        kernel_initializer="lecun_normal",
        name="embedding",
        dtype=dtype,
    )(images)
    endpoints["embedding"] = x  # (B, h, w, D)
    x = layers.Reshape((-1, spec.hidden_size), name="patch_tokens", dtype=dtype)(x)  # (B, N, D)
    for i, rate in enumerate(np.linspace(0.0, spec.stochastic_depth, spec.num_layers)):
        x = MixerBlock(
            spec.tokens_mlp_dim,
            spec.channels_mlp_dim,
            stochastic_depth=float(rate),
            activation=spec.activation,
            norm_epsilon=spec.norm_epsilon,
            name=f"mixerblock_{i}",
            dtype=dtype,
        )(x)
        endpoints[f"mixerblock_{i}"] = x
    x = LayerNorm(spec.norm_epsilon, name="encoder_norm", dtype=dtype)(x)
    endpoints["encoded"] = x
    x = layers.GlobalAveragePooling1D(name="gap", dtype=dtype)(x)  # (B, D)
    endpoints["pre_logits"] = x
    add_head(spec, x, endpoints, dtype)
    return images, endpoints
