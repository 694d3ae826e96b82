"""Normalisation in the form that quantises.

Written with SUB, MUL, MEAN and RSQRT only, on tensors of rank 4 at most: Keras's own
LayerNormalization leaves float NEG operations in fully integer LiteRT files, and its
GroupNormalization makes tensors of rank 5.
"""

import keras
from keras import ops

from keras_vit.layers.common import PACKAGE, at_least_float32


@keras.saving.register_keras_serializable(package=PACKAGE)
class LayerNorm(keras.layers.Layer):
    """LayerNorm over the last axis, computed in float32 whatever the policy.

    Args:
        epsilon: added to the variance; 1e-6 in the original code.
    """

    def __init__(self, epsilon: float = 1e-6, **kwargs):
        super().__init__(**kwargs)
        self.epsilon = epsilon

    def build(self, input_shape):
        self.scale, self.bias = _scale_and_bias(self, input_shape[-1])

    def call(self, x):
        normed = _normalize(at_least_float32(x), (-1,), self.epsilon)
        return ops.cast(normed * self.scale + self.bias, self.compute_dtype)

    def get_config(self):
        return {**super().get_config(), "epsilon": self.epsilon}


@keras.saving.register_keras_serializable(package=PACKAGE)
class GroupNorm(keras.layers.Layer):
    """GroupNorm over height, width and the channels of a group: (B, h, w, C) -> the same.

    Args:
        groups: must divide the channels.
        epsilon: added to the variance; 1e-6 in hybrids, 1e-5 in BiT.
    """

    def __init__(self, groups: int = 32, epsilon: float = 1e-6, **kwargs):
        super().__init__(**kwargs)
        self.groups = groups
        self.epsilon = epsilon

    def build(self, input_shape):
        if input_shape[-1] % self.groups:
            raise ValueError(
                f"GroupNorm with {self.groups} groups cannot divide {input_shape[-1]} channels."
            )
        self.scale, self.bias = _scale_and_bias(self, input_shape[-1])

    def call(self, x):
        _, height, width, channels = x.shape
        grouped = (-1, height * width, self.groups, channels // self.groups)
        normed = _normalize(ops.reshape(at_least_float32(x), grouped), (1, 3), self.epsilon)
        normed = ops.reshape(normed, (-1, height, width, channels))
        return ops.cast(normed * self.scale + self.bias, self.compute_dtype)

    def get_config(self):
        return {**super().get_config(), "groups": self.groups, "epsilon": self.epsilon}


def _scale_and_bias(layer: keras.layers.Layer, size: int):
    options = {"shape": (size,), "autocast": False}
    return (
        layer.add_weight(name="scale", initializer="ones", **options),
        layer.add_weight(name="bias", initializer="zeros", **options),
    )


def _normalize(x, axes: tuple[int, ...], epsilon: float):
    centred = x - ops.mean(x, axis=axes, keepdims=True)
    variance = ops.mean(centred * centred, axis=axes, keepdims=True)
    return centred * ops.rsqrt(variance + epsilon)
