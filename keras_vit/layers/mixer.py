"""The block of MLP-Mixer."""

import keras
from keras import ops

from keras_vit.layers.common import PACKAGE
from keras_vit.layers.encoder import MlpBlock, StochasticDepth, maybe_drop
from keras_vit.layers.norm import LayerNorm
from keras_vit.layers.remat import Block


@keras.saving.register_keras_serializable(package=PACKAGE)
class MixerBlock(Block):
    """x + mlp over tokens of norm(x), then x + mlp over channels of norm(x): (B, N, D) -> the same.

    Args:
        tokens_mlp_dim, channels_mlp_dim: hidden widths of the two MLPs.
        stochastic_depth: rate at which each of the two branches is dropped for an example.
        activation: `gelu_tanh` or `gelu`.
        norm_epsilon: epsilon of both norms.

    Source: vision_transformer models_mixer.py `MixerBlock`.
    """

    def __init__(
        self,
        tokens_mlp_dim: int,
        channels_mlp_dim: int,
        *,
        stochastic_depth: float = 0.0,
        activation: str = "gelu_tanh",
        norm_epsilon: float = 1e-6,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.config = {
            "tokens_mlp_dim": tokens_mlp_dim,
            "channels_mlp_dim": channels_mlp_dim,
            "stochastic_depth": stochastic_depth,
            "activation": activation,
            "norm_epsilon": norm_epsilon,
        }
        policy = {"dtype": self.dtype_policy}
        self.norm1 = LayerNorm(norm_epsilon, name="norm1", **policy)
        self.token_mixing = MlpBlock(tokens_mlp_dim, 0.0, activation, name="token_mixing", **policy)
        self.norm2 = LayerNorm(norm_epsilon, name="norm2", **policy)
        self.channel_mixing = MlpBlock(
            channels_mlp_dim, 0.0, activation, name="channel_mixing", **policy
        )
        self.stochastic_depth = (
            StochasticDepth(stochastic_depth, **policy) if stochastic_depth else None
        )

    def build(self, input_shape):
        batch, tokens, size = input_shape
        self.norm1.build(input_shape)
        self.token_mixing.build((batch, size, tokens))
        self.norm2.build(input_shape)
        self.channel_mixing.build(input_shape)

    def call(self, x, training=None):
        y = ops.transpose(self.norm1(x), (0, 2, 1))  # (B, D, N)
        y = ops.transpose(self.token_mixing(y, training=training), (0, 2, 1))
        x = x + maybe_drop(y, self.stochastic_depth, training)
        y = self.channel_mixing(self.norm2(x), training=training)
        return x + maybe_drop(y, self.stochastic_depth, training)

    def compute_output_shape(self, input_shape):
        return input_shape

    def get_config(self):
        return {**super().get_config(), **self.config}
