"""Layer normalisation in the form that quantises."""

import keras
from keras import ops

from keras_vit.layers.common import PACKAGE, at_least_float32


@keras.saving.register_keras_serializable(package=PACKAGE)
class LayerNorm(keras.layers.Layer):
    """LayerNorm over the last axis, computed in float32 whatever the policy.

    Written with SUB, MUL, MEAN and RSQRT only: Keras's own LayerNormalization leaves float NEG
    operations in fully integer LiteRT files.

    Args:
        epsilon: added to the variance; 1e-6 in the original code.
    """

    def __init__(self, epsilon: float = 1e-6, **kwargs):
        super().__init__(**kwargs)
        self.epsilon = epsilon

    def build(self, input_shape):
        size = (input_shape[-1],)
        self.scale = self.add_weight(name="scale", shape=size, initializer="ones", autocast=False)
        self.bias = self.add_weight(name="bias", shape=size, initializer="zeros", autocast=False)

    def call(self, x):
        centred = at_least_float32(x)
        centred = centred - ops.mean(centred, axis=-1, keepdims=True)
        variance = ops.mean(centred * centred, axis=-1, keepdims=True)
        normed = centred * ops.rsqrt(variance + self.epsilon)
        return ops.cast(normed * self.scale + self.bias, self.compute_dtype)

    def get_config(self):
        return {**super().get_config(), "epsilon": self.epsilon}
