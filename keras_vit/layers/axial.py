"""Attention along rows, then along columns, instead of over all patches at once."""

import keras
from keras import ops

from keras_vit.layers.common import PACKAGE
from keras_vit.layers.encoder import EncoderBlock
from keras_vit.layers.remat import Block


@keras.saving.register_keras_serializable(package=PACKAGE)
class AxialBlock(Block):
    """An encoder block on each row of the patch grid, then one on each column.

    Both have an MLP of their own, so there are twice the parameters of an `EncoderBlock`, and each
    attention meets w or h tokens instead of h*w.

    Args:
        grid: (h, w), patches down and across.
        block: arguments of both encoder blocks.

    Source: arXiv 2010.11929, appendix D.6, "Axial-ViT".
    """

    def __init__(self, grid, *, block: dict, **kwargs):
        super().__init__(**kwargs)
        self.grid = tuple(grid)
        self.block = block
        self.row = EncoderBlock(**block, name="row", dtype=self.dtype_policy)
        self.column = EncoderBlock(**block, name="column", dtype=self.dtype_policy)

    def build(self, input_shape):
        height, width = self.grid
        self.row.build((None, width, input_shape[-1]))
        self.column.build((None, height, input_shape[-1]))

    def call(self, x, training=None):
        """(B, h*w, D) -> (B, h*w, D)."""
        (height, width), size = self.grid, x.shape[-1]
        x = self.row(ops.reshape(x, (-1, width, size)), training=training)
        x = ops.transpose(ops.reshape(x, (-1, height, width, size)), (0, 2, 1, 3))
        x = self.column(ops.reshape(x, (-1, height, size)), training=training)
        x = ops.transpose(ops.reshape(x, (-1, width, height, size)), (0, 2, 1, 3))
        return ops.reshape(x, (-1, height * width, size))

    def compute_output_shape(self, input_shape):
        return input_shape

    def get_config(self):
        return {**super().get_config(), "grid": list(self.grid), "block": self.block}
