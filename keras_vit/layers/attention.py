"""Multi-head attention as in the paper's appendix A, with separate projections."""

from typing import Any

import keras
from keras import ops

from keras_vit.layers.common import PACKAGE, at_least_float32
from keras_vit.layers.dropout import Dropout
from keras_vit.layers.positions import offset_scores


@keras.saving.register_keras_serializable(package=PACKAGE)
class MultiHeadAttention(keras.layers.Layer):
    """Softmax attention with biases on all four projections.

    Query, key and value are three Dense layers: fusing them is no faster on CPU and makes a rank-5
    tensor that phone delegates refuse. The softmax runs in float32 under mixed policies; under
    float16 the scores do as well, because they leave float16's range.

    Args:
        num_heads: must divide the width of the input.
        dropout: rate on the attention weights.
        relative: each query also meets an embedding of its distance to the key, the same for all
            heads, and that score is added before the softmax (arXiv 2010.11929, appendix D.4). The
            distance is along the sequence, in which a class token has its place.
    """

    def __init__(self, num_heads: int, dropout: float = 0.0, *, relative: bool = False, **kwargs):
        super().__init__(**kwargs)
        self.num_heads = num_heads
        self.dropout = dropout
        self.relative = relative
        self.query: Any = None  # the four projections are made by build()
        self.key: Any = None
        self.value: Any = None
        self.out: Any = None
        self.weights_dropout = Dropout(dropout, dtype=self.dtype_policy) if dropout else None

    def build(self, x_shape, context_shape=None):
        context_shape = context_shape or x_shape
        size = x_shape[-1]
        self.scaling = (size // self.num_heads) ** -0.5
        for name, shape in (
            ("query", x_shape),
            ("key", context_shape),
            ("value", context_shape),
            ("out", x_shape),
        ):
            dense = keras.layers.Dense(
                size, kernel_initializer="glorot_uniform", name=name, dtype=self.dtype_policy
            )
            dense.build(shape)
            setattr(self, name, dense)
        if self.relative:
            self.offsets = self.add_weight(
                name="offsets",
                shape=(2 * x_shape[1] - 1, size // self.num_heads),
                initializer=keras.initializers.RandomNormal(stddev=0.02),
            )

    def call(self, x, context=None, training=None):
        """(B, N, D) queries, optional (B, M, D) context -> (B, N, D)."""
        context = x if context is None else context
        weights = self.attention_weights(x, context)
        if self.weights_dropout is not None:
            weights = self.weights_dropout(weights, training=training)
        mixed = ops.matmul(weights, self._split_heads(self.value(context)))  # (B, H, N, D/H)
        mixed = ops.transpose(mixed, (0, 2, 1, 3))  # (B, N, H, D/H)
        return self.out(ops.reshape(mixed, (-1, mixed.shape[1], x.shape[-1])))

    def attention_weights(self, x, context=None):
        """Softmax weights (B, H, N, M) before dropout, in the compute dtype."""
        context = x if context is None else context
        query = self._split_heads(self.query(x) * ops.cast(self.scaling, self.compute_dtype))
        key = self._split_heads(self.key(context))
        if self.compute_dtype == "float16":
            query, key = at_least_float32(query), at_least_float32(key)
        scores = ops.matmul(query, ops.transpose(key, (0, 1, 3, 2)))  # (B, H, N, M)
        if self.relative:
            scores = scores + offset_scores(query, ops.cast(self.offsets, query.dtype))
        return ops.cast(ops.softmax(at_least_float32(scores)), self.compute_dtype)

    def _split_heads(self, x):
        x = ops.reshape(x, (-1, x.shape[1], self.num_heads, x.shape[-1] // self.num_heads))
        return ops.transpose(x, (0, 2, 1, 3))  # (B, H, N, D/H)

    def compute_output_shape(self, x_shape, context_shape=None):
        return x_shape

    def get_config(self):
        config = {"num_heads": self.num_heads, "dropout": self.dropout, "relative": self.relative}
        return {**super().get_config(), **config}
