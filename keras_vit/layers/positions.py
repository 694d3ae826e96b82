"""Where a token is: tables that are added to the tokens, and embeddings of offsets."""

import keras
from keras import ops

from keras_vit.layers.common import PACKAGE
from keras_vit.posemb import sincos2d


@keras.saving.register_keras_serializable(package=PACKAGE)
class PositionEmbedding(keras.layers.Layer):
    """Adds a position table to the tokens.

    Args:
        grid: (h, w), patches down and across.
        kind: `learn` for a trained table of as many entries as there are tokens, `sincos2d` for
            the fixed one (patch tokens only).
    """

    def __init__(self, grid, kind: str = "learn", **kwargs):
        super().__init__(**kwargs)
        self.grid = tuple(grid)
        self.kind = kind

    def build(self, input_shape):
        if self.kind == "learn":
            self.table = self.add_weight(
                name="table",
                shape=(1, *input_shape[1:]),
                initializer=keras.initializers.RandomNormal(stddev=0.02),
            )
        else:
            self.table = sincos2d(self.grid, input_shape[-1])

    def call(self, x):
        return x + ops.cast(self.table, x.dtype)

    def compute_output_shape(self, input_shape):
        return input_shape

    def get_config(self):
        return {**super().get_config(), "grid": list(self.grid), "kind": self.kind}


@keras.saving.register_keras_serializable(package=PACKAGE)
class AxisPositionEmbedding(keras.layers.Layer):
    """Adds to each patch the embedding of its column and that of its row, one after the other.

    Each takes half of the channels. Tokens before the patches have entries of their own in full
    width: the paper does not say what the class token gets.

    Args:
        grid: (h, w), patches down and across.

    Source: arXiv 2010.11929, appendix D.4, "2-dimensional positional embedding": X, then Y.
    """

    def __init__(self, grid, **kwargs):
        super().__init__(**kwargs)
        self.grid = tuple(grid)

    def build(self, input_shape):
        height, width = self.grid
        tokens, size = input_shape[1:]
        prefix = tokens - height * width

        def table(name: str, shape: tuple[int, ...]):
            init = keras.initializers.RandomNormal(stddev=0.02)
            return self.add_weight(name=name, shape=shape, initializer=init)

        self.columns = table("columns", (1, 1, width, size // 2))
        self.rows = table("rows", (1, height, 1, size // 2))
        self.prefix = table("prefix", (1, prefix, size)) if prefix else None

    def call(self, x):
        return x + ops.cast(self.table(), x.dtype)

    def table(self):
        """What is added: (1, N, D)."""
        height, width = self.grid
        half = self.rows.shape[-1]
        axes = (
            ops.broadcast_to(self.columns, (1, height, width, half)),
            ops.broadcast_to(self.rows, (1, height, width, half)),
        )
        patches = ops.reshape(ops.concatenate(axes, axis=-1), (1, height * width, 2 * half))
        return patches if self.prefix is None else ops.concatenate([self.prefix, patches], axis=1)

    def compute_output_shape(self, input_shape):
        return input_shape

    def get_config(self):
        return {**super().get_config(), "grid": list(self.grid)}


def offset_scores(query, offsets):
    """Scores of each query against the embedding of how far each key is from it.

    Query n and key m meet the embedding of m - n, whose place in the table is m - n + N - 1. All
    products are made first; then each row moves left by one more than the row above, which a
    reshape to rows that are one shorter does without any indices.

    Args:
        query: (B, H, N, d).
        offsets: (2N - 1, d), from -(N - 1) to N - 1.

    Returns:
        (B, H, N, N).

    Source: the moving of rows is that of Music Transformer, arXiv 1809.04281, section 3.4.1.
    """
    heads, tokens = query.shape[1:3]
    scores = ops.matmul(query, ops.transpose(offsets))  # (B, H, N, 2N - 1)
    scores = ops.pad(scores, ((0, 0), (0, 0), (0, 0), (0, 1)))  # rows of 2N
    scores = ops.reshape(scores, (-1, heads, 2 * tokens * tokens))
    first = tokens - 1  # where key 0 of query 0 lies
    scores = scores[..., first : first + tokens * (2 * tokens - 1)]
    return ops.reshape(scores, (-1, heads, tokens, 2 * tokens - 1))[..., :tokens]
