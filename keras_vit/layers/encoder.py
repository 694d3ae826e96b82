"""The encoder block (equations 2 and 3 of the paper) and its parts."""

from typing import Any

import keras
from keras import ops

from keras_vit.layers.attention import MultiHeadAttention
from keras_vit.layers.common import PACKAGE, gelu
from keras_vit.layers.dropout import Dropout
from keras_vit.layers.norm import LayerNorm
from keras_vit.layers.remat import Block


@keras.saving.register_keras_serializable(package=PACKAGE)
class StochasticDepth(keras.layers.Layer):
    """Drops a residual branch for whole examples and rescales the rest, in training only.

    Args:
        rate: probability in [0, 1) that an example loses the branch.

    Source: arXiv 1603.09382; survivors are divided by 1 - rate, so inference needs no change.
    """

    def __init__(self, rate: float, seed: int | None = None, **kwargs):
        super().__init__(**kwargs)
        self.rate = rate
        self.seed = seed
        self.seed_generator = keras.random.SeedGenerator(seed)
        self.built = True

    def call(self, x, training=None):
        if not training or self.rate == 0.0:
            return x
        shape = (ops.shape(x)[0],) + (1,) * (len(x.shape) - 1)
        draw = keras.random.uniform(shape, seed=self.seed_generator)
        keep = ops.cast(draw >= self.rate, x.dtype) / ops.cast(1.0 - self.rate, x.dtype)
        return x * keep

    def compute_output_shape(self, input_shape):
        return input_shape

    def get_config(self):
        return {**super().get_config(), "rate": self.rate, "seed": self.seed}


def maybe_drop(x, layer: keras.layers.Layer | None, training):
    """What a dropout or stochastic depth makes of a tensor; the tensor where there is none."""
    return x if layer is None else layer(x, training=training)


@keras.saving.register_keras_serializable(package=PACKAGE)
class LayerScale(keras.layers.Layer):
    """Multiplies each channel of a residual branch by a learned number.

    Args:
        initial: value at the start.

    Source: arXiv 2103.17239, section 2.
    """

    def __init__(self, initial: float, **kwargs):
        super().__init__(**kwargs)
        self.initial = initial

    def build(self, input_shape):
        self.scale = self.add_weight(
            name="scale",
            shape=(input_shape[-1],),
            initializer=keras.initializers.Constant(self.initial),
        )

    def call(self, x):
        return x * self.scale

    def compute_output_shape(self, input_shape):
        return input_shape

    def get_config(self):
        return {**super().get_config(), "initial": self.initial}


@keras.saving.register_keras_serializable(package=PACKAGE)
class MlpBlock(keras.layers.Layer):
    """Dense, GELU, Dense, with dropout after each.

    Args:
        mlp_dim: width of the hidden layer.
        dropout: rate in [0, 1).
        activation: `gelu_tanh` or `gelu`.

    Source: initialisers of vision_transformer models_vit.py (xavier uniform, bias N(0, 1e-6)).
    """

    def __init__(self, mlp_dim: int, dropout: float = 0.0, activation: str = "gelu_tanh", **kwargs):
        super().__init__(**kwargs)
        self.mlp_dim = mlp_dim
        self.dropout = dropout
        self.activation = activation
        self.dense1: Any = None  # made by build()
        self.dense2: Any = None
        self.dropout1 = Dropout(dropout, dtype=self.dtype_policy) if dropout else None
        self.dropout2 = Dropout(dropout, dtype=self.dtype_policy) if dropout else None

    def build(self, input_shape):
        options = {
            "kernel_initializer": "glorot_uniform",
            "bias_initializer": keras.initializers.RandomNormal(stddev=1e-6),
            "dtype": self.dtype_policy,
        }
        self.dense1 = keras.layers.Dense(self.mlp_dim, name="dense1", **options)
        self.dense2 = keras.layers.Dense(input_shape[-1], name="dense2", **options)
        self.dense1.build(input_shape)
        self.dense2.build((*input_shape[:-1], self.mlp_dim))

    def call(self, x, training=None):
        x = gelu(self.dense1(x), self.activation)
        x = maybe_drop(x, self.dropout1, training)
        x = self.dense2(x)
        x = maybe_drop(x, self.dropout2, training)
        return x

    def compute_output_shape(self, input_shape):
        return input_shape

    def get_config(self):
        config = {"mlp_dim": self.mlp_dim, "dropout": self.dropout, "activation": self.activation}
        return {**super().get_config(), **config}


@keras.saving.register_keras_serializable(package=PACKAGE)
class SwiGLU(keras.layers.Layer):
    """silu(gate(x)) * up(x), then down: the gated MLP of DINOv2-g, with biases.

    Args:
        mlp_dim: width of gate and value each.
        dropout: rate in [0, 1) before and after the last projection.

    Source: arXiv 2002.05202, equation 6.
    """

    def __init__(self, mlp_dim: int, dropout: float = 0.0, **kwargs):
        super().__init__(**kwargs)
        self.mlp_dim = mlp_dim
        self.dropout = dropout
        self.gate: Any = None  # made by build()
        self.up: Any = None
        self.down: Any = None
        self.dropout1 = Dropout(dropout, dtype=self.dtype_policy) if dropout else None
        self.dropout2 = Dropout(dropout, dtype=self.dtype_policy) if dropout else None

    def build(self, input_shape):
        inner = (*input_shape[:-1], self.mlp_dim)
        for name, shape, size in (
            ("gate", input_shape, self.mlp_dim),
            ("up", input_shape, self.mlp_dim),
            ("down", inner, input_shape[-1]),
        ):
            dense = keras.layers.Dense(
                size, kernel_initializer="glorot_uniform", name=name, dtype=self.dtype_policy
            )
            dense.build(shape)
            setattr(self, name, dense)

    def call(self, x, training=None):
        x = ops.silu(self.gate(x)) * self.up(x)
        x = maybe_drop(x, self.dropout1, training)
        x = self.down(x)
        x = maybe_drop(x, self.dropout2, training)
        return x

    def compute_output_shape(self, input_shape):
        return input_shape

    def get_config(self):
        return {**super().get_config(), "mlp_dim": self.mlp_dim, "dropout": self.dropout}


@keras.saving.register_keras_serializable(package=PACKAGE)
class EncoderBlock(Block):
    """x + attention(norm(x)), then x + mlp(norm(x)).

    Args:
        num_heads: attention heads.
        mlp_dim: width of the MLP's hidden layer.
        dropout: rate after attention and inside the MLP.
        attention_dropout: rate on the attention weights.
        stochastic_depth: rate at which each of the two branches is dropped for an example.
        activation: `gelu_tanh` or `gelu`.
        norm_epsilon: epsilon of both norms.
        layer_scale: initial value of the learned scale of both branches, None for no scale.
        ffn: `mlp` or `swiglu`.
        relative: positions as distances inside attention, see `MultiHeadAttention`.
    """

    def __init__(
        self,
        num_heads: int,
        mlp_dim: int,
        *,
        dropout: float = 0.0,
        attention_dropout: float = 0.0,
        stochastic_depth: float = 0.0,
        activation: str = "gelu_tanh",
        norm_epsilon: float = 1e-6,
        layer_scale: float | None = None,
        ffn: str = "mlp",
        relative: bool = False,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.config = {
            "num_heads": num_heads,
            "mlp_dim": mlp_dim,
            "dropout": dropout,
            "attention_dropout": attention_dropout,
            "stochastic_depth": stochastic_depth,
            "activation": activation,
            "norm_epsilon": norm_epsilon,
            "layer_scale": layer_scale,
            "ffn": ffn,
            "relative": relative,
        }
        policy = {"dtype": self.dtype_policy}
        self.norm1 = LayerNorm(norm_epsilon, name="norm1", **policy)
        self.attention = MultiHeadAttention(
            num_heads, attention_dropout, relative=relative, name="attention", **policy
        )
        self.dropout = Dropout(dropout, **policy) if dropout else None
        self.norm2 = LayerNorm(norm_epsilon, name="norm2", **policy)
        self.mlp = (
            MlpBlock(mlp_dim, dropout, activation, name="mlp", **policy)
            if ffn == "mlp"
            else SwiGLU(mlp_dim, dropout, name="mlp", **policy)
        )
        scaled = layer_scale is not None
        self.scale1 = LayerScale(layer_scale, name="scale1", **policy) if scaled else None
        self.scale2 = LayerScale(layer_scale, name="scale2", **policy) if scaled else None
        self.stochastic_depth = (
            StochasticDepth(stochastic_depth, **policy) if stochastic_depth else None
        )

    def build(self, input_shape):
        layers = (self.norm1, self.attention, self.scale1, self.norm2, self.mlp, self.scale2)
        for layer in layers:
            if layer is not None:
                layer.build(input_shape)

    def call(self, x, training=None, return_attention=False):
        """(B, N, D) -> (B, N, D), or only the attention weights (B, H, N, N) when asked."""
        if return_attention:
            return self.attention.attention_weights(self.norm1(x))
        y = self.attention(self.norm1(x), training=training)
        y = maybe_drop(y, self.dropout, training)
        if self.scale1 is not None:
            y = self.scale1(y)
        x = x + maybe_drop(y, self.stochastic_depth, training)
        y = self.mlp(self.norm2(x), training=training)
        if self.scale2 is not None:
            y = self.scale2(y)
        return x + maybe_drop(y, self.stochastic_depth, training)

    def compute_output_spec(self, x, training=None, return_attention=False):
        shape = x.shape
        if return_attention:
            shape = (x.shape[0], self.config["num_heads"], x.shape[1], x.shape[1])
        return keras.KerasTensor(shape, dtype=self.compute_dtype)

    def get_config(self):
        return {**super().get_config(), **self.config}
