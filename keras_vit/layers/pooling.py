"""Attention pooling."""

import keras
from keras import ops

from keras_vit.layers.attention import MultiHeadAttention
from keras_vit.layers.common import PACKAGE
from keras_vit.layers.encoder import MlpBlock
from keras_vit.layers.norm import LayerNorm


@keras.saving.register_keras_serializable(package=PACKAGE)
class MapHead(keras.layers.Layer):
    """Multi-head attention pooling with one learned query: (B, N, D) -> (B, D).

    Source: big_vision models/vit.py `MAPHead` (arXiv 2106.04560).
    """

    def __init__(
        self, num_heads: int, mlp_dim: int, activation: str, norm_epsilon: float, **kwargs
    ):
        super().__init__(**kwargs)
        self.config = {
            "num_heads": num_heads,
            "mlp_dim": mlp_dim,
            "activation": activation,
            "norm_epsilon": norm_epsilon,
        }
        policy = {"dtype": self.dtype_policy}
        self.attention = MultiHeadAttention(num_heads, name="attention", **policy)
        self.norm = LayerNorm(norm_epsilon, name="norm", **policy)
        self.mlp = MlpBlock(mlp_dim, 0.0, activation, name="mlp", **policy)

    def build(self, input_shape):
        probe_shape = (None, 1, input_shape[-1])
        self.probe = self.add_weight(
            name="probe", shape=(1, 1, input_shape[-1]), initializer="glorot_uniform"
        )
        self.attention.build(probe_shape, input_shape)
        self.norm.build(probe_shape)
        self.mlp.build(probe_shape)

    def call(self, x):
        probe = ops.zeros_like(x[:, :1]) + ops.cast(self.probe, x.dtype)  # (B, 1, D)
        x = self.attention(probe, context=x)
        x = x + self.mlp(self.norm(x))
        return x[:, 0]

    def compute_output_shape(self, input_shape):
        return (input_shape[0], input_shape[-1])

    def get_config(self):
        return {**super().get_config(), **self.config}
