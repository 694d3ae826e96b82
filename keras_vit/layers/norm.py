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
        x = at_least_float32(x)
        centred = x - ops.mean(x, axis=-1, keepdims=True)
        variance = ops.mean(centred * centred, axis=-1, keepdims=True)
        normed = centred * ops.rsqrt(variance + self.epsilon)
        return ops.cast(normed * _as(self.scale, x) + _as(self.bias, x), self.compute_dtype)

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
        x = at_least_float32(x)
        centred = x - self._group_mean(x)
        variance = self._group_mean(centred * centred)  # (B, 1, 1, C)
        normed = centred * (ops.rsqrt(variance + self.epsilon) * _as(self.scale, x))
        return ops.cast(normed + _as(self.bias, x), self.compute_dtype)

    def _group_mean(self, x):
        """(B, h, w, C) -> (B, 1, 1, C), every channel the mean of its group.

        First over the pixels of each channel, then over the channels of a group. TensorFlow's CPU
        kernel for both at once adds numbers one by one: 40 times the rounding error (which 50 layers
        turn into 2e-4 of a logit) and 2 to 10 times the time.
        """
        channels = x.shape[-1]
        mean = ops.mean(x, axis=(1, 2), keepdims=True)
        if (size := channels // self.groups) > 1:
            mean = ops.sum(ops.reshape(mean, (-1, 1, self.groups, size)), axis=3, keepdims=True)
            # Divides and spreads at once.
            mean = mean * ops.full((1, 1, 1, size), 1.0 / size, dtype=mean.dtype)
            mean = ops.reshape(mean, (-1, 1, 1, channels))
        return mean

    def get_config(self):
        return {**super().get_config(), "groups": self.groups, "epsilon": self.epsilon}


def _as(variable, x):
    """A variable in the type of a tensor: under a pure half policy it is half precision itself."""
    return ops.cast(variable, x.dtype)


def _scale_and_bias(layer: keras.layers.Layer, size: int):
    options = {"shape": (size,), "autocast": False}
    return (
        layer.add_weight(name="scale", initializer="ones", **options),
        layer.add_weight(name="bias", initializer="zeros", **options),
    )
