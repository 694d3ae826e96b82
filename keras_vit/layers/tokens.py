"""Tokens beside those of the patches."""

import keras
from keras import ops

from keras_vit.layers.common import PACKAGE


@keras.saving.register_keras_serializable(package=PACKAGE)
class ClassToken(keras.layers.Layer):
    """Prepends one learned token: (B, N, D) -> (B, N + 1, D)."""

    def build(self, input_shape):
        self.token = self.add_weight(
            name="token", shape=(1, 1, input_shape[-1]), initializer="zeros"
        )

    def call(self, x):
        # Zeros of x's own shape rather than a broadcast to the dynamic batch: no shape ops in
        # LiteRT files.
        token = ops.zeros_like(x[:, :1]) + ops.cast(self.token, x.dtype)
        return ops.concatenate([token, x], axis=1)

    def compute_output_shape(self, input_shape):
        return (input_shape[0], input_shape[1] + 1, input_shape[2])

    def get_config(self):
        # Keras's automatic config gives up on a dtype policy that is an object.
        return super().get_config()


@keras.saving.register_keras_serializable(package=PACKAGE)
class RegisterTokens(keras.layers.Layer):
    """Inserts learned tokens: (B, N, D) -> (B, N + count, D).

    Args:
        count: how many.
        after: tokens that stay before them (class token: 1, with a distillation token 2).

    Source: arXiv 2309.16588.
    """

    def __init__(self, count: int, after: int = 1, **kwargs):
        super().__init__(**kwargs)
        self.count = count
        self.after = after

    def build(self, input_shape):
        self.tokens = self.add_weight(
            name="tokens",
            shape=(1, self.count, input_shape[-1]),
            initializer=keras.initializers.RandomNormal(stddev=0.02),
        )

    def call(self, x):
        tokens = ops.zeros_like(x[:, :1]) + ops.cast(self.tokens, x.dtype)  # see ClassToken
        return ops.concatenate([x[:, : self.after], tokens, x[:, self.after :]], axis=1)

    def compute_output_shape(self, input_shape):
        return (input_shape[0], input_shape[1] + self.count, input_shape[2])

    def get_config(self):
        return {**super().get_config(), "count": self.count, "after": self.after}


@keras.saving.register_keras_serializable(package=PACKAGE)
class TakeToken(keras.layers.Layer):
    """Takes one token: (B, N, D) -> (B, D).

    Args:
        index: which.
    """

    def __init__(self, index: int = 0, **kwargs):
        super().__init__(**kwargs)
        self.index = index

    def call(self, x):
        return x[:, self.index]

    def compute_output_shape(self, input_shape):
        return (input_shape[0], input_shape[-1])

    def get_config(self):
        return {**super().get_config(), "index": self.index}
