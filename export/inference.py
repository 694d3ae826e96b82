"""The form of a network that .tflite files hold: the same numbers, by less arithmetic.

The model, its files and its layer names stay as they are; what is rewritten is the graph that is
converted. Every step is exact algebra, and every export compares its file with the model.

- Only the class token of the last block is read, so there are no queries, no MLP and no norms of the
  other tokens in it.
- For so few queries keys and values of all tokens are dearer than the products they are for:
  `q (x K)' = (q K') x'` and `a (x V) = (a x) V`.
- A convolution whose stride is its kernel is a matrix product of patches.

Of ViT-Ti/16's time on one thread they save about 7, 2 and 1 %.
"""

from typing import Any

import keras
import numpy as np
from keras import ops

from keras_vit.export import graph
from keras_vit.layers import EncoderBlock, TakeToken


def inference_outputs(model: Any) -> Any:
    """`graph.named_outputs` of a model with its layers replaced by what computes less.

    The weights are shared, and replacements have the names of what they replace.
    """
    tokens = tokens_read(model.spec)
    last = f"encoderblock_{getattr(model.spec, 'num_layers', 0) - 1}"

    def replacement(layer):
        if type(layer) is keras.layers.Conv2D and cuts_patches(layer):
            return PatchProduct(layer)
        if tokens and layer.name == last and attends_plainly(layer):
            return LastBlock(layer, tokens)
        if isinstance(layer, TakeToken):
            return OneToken(layer)
        return layer

    return keras.models.clone_model(graph.named_outputs(model), clone_function=replacement)


def tokens_read(spec: Any) -> int:
    """How many tokens, from the first, are read behind the encoder; 0 for all."""
    if getattr(spec, "pool", None) not in ("token", "first"):
        return 0
    return 2 if spec.distilled else 1


def cuts_patches(conv: keras.layers.Conv2D) -> bool:
    """Whether a convolution reads every pixel once, and several at a time."""
    height, width = conv.input.shape[1:3]
    rows, columns = conv.kernel_size
    return (
        conv.strides == conv.kernel_size
        and conv.padding == "valid"
        and rows * columns > 1
        and height % rows == width % columns == 0
    )


def attends_plainly(block: Any) -> bool:
    """Whether a block has the attention that `FewQueries` computes, without relative positions."""
    return type(block) is EncoderBlock and not block.attention.relative


class PatchProduct(keras.layers.Layer):
    """A patch embedding as one product: (B, H, W, C) -> (B, h, w, D).

    The kernels of a phone's convolution walk over its places, here 256 of three numbers each.

    Args:
        conv: the convolution, whose weights it shares.
    """

    def __init__(self, conv: keras.layers.Conv2D):
        super().__init__(name=conv.name, dtype=conv.dtype_policy)
        self.conv = conv

    def call(self, images):
        _, height, width, channels = images.shape
        rows, columns = self.conv.kernel_size
        down, across = height // rows, width // columns
        # (B*h, rows, w, columns*C): of rank 4, which phones take.
        x = ops.reshape(images, (-1, rows, across, columns * channels))
        x = ops.transpose(x, (0, 2, 1, 3))
        x = ops.reshape(x, (-1, down, across, rows * columns * channels))
        kernel = ops.reshape(self.conv.kernel, (rows * columns * channels, -1))
        return ops.matmul(x, kernel) + self.conv.bias


class LastBlock(keras.layers.Layer):
    """An encoder block for the tokens that are read behind it: (B, N, D) -> (B, tokens, D).

    Args:
        block: the block, whose layers it shares.
        tokens: how many, from the first.
    """

    def __init__(self, block: EncoderBlock, tokens: int):
        super().__init__(name=block.name, dtype=block.dtype_policy)
        self.block = block
        self.tokens = tokens
        self.attention = FewQueries(block.attention)

    def call(self, x):
        block = self.block
        context = block.norm1(x)
        y = self.attention(context[:, : self.tokens], context)
        x = x[:, : self.tokens] + (y if block.scale1 is None else block.scale1(y))
        y = block.mlp(block.norm2(x))
        return x + (y if block.scale2 is None else block.scale2(y))


class FewQueries(keras.layers.Layer):
    """Attention of a few tokens to many, without keys and values: (B, n, D), (B, N, D) -> (B, n, D).

    A query of one head stands in the channels of that head, with zeros beside it, so that all heads go
    through one product with the kernel of the keys. The bias of the keys adds the same number to all
    scores of a query, which the softmax takes out; that of the values stays, because weights sum to 1.

    Args:
        attention: the attention, whose projections it shares.
    """

    def __init__(self, attention: Any):
        super().__init__(name=attention.name, dtype=attention.dtype_policy)
        self.attention = attention
        self.key = TransposedDense(attention.key)
        heads, size = attention.num_heads, attention.key.kernel.shape[-1]
        of_head = np.repeat(np.eye(heads, dtype=np.float32), size // heads, axis=1)
        self.of_head = of_head.reshape(1, 1, heads, size)

    def call(self, x, context):
        _, queries, size = x.shape
        heads = self.attention.num_heads
        query = self.attention.query(x) * self.attention.scaling
        query = ops.reshape(query, (-1, queries, 1, size)) * self.of_head  # (B, n, H, D)
        query = self.key(ops.reshape(query, (-1, queries * heads, size)))  # (B, n*H, D)
        weights = ops.softmax(ops.matmul(query, ops.transpose(context, (0, 2, 1))))  # (B, n*H, N)
        mixed = self.attention.value(ops.matmul(weights, context))  # (B, n*H, D), each head by all
        mixed = ops.reshape(mixed, (-1, queries, heads, size)) * self.of_head
        return self.attention.out(ops.sum(mixed, axis=2))


class TransposedDense(keras.layers.Layer):
    """The product with a dense layer's kernel from its outputs to its inputs.

    Args:
        dense: the layer.
    """

    def __init__(self, dense: keras.layers.Dense):
        super().__init__(name=dense.name, dtype=dense.dtype_policy)
        self.dense = dense

    def call(self, x):
        return ops.matmul(x, ops.transpose(self.dense.kernel))


class OneToken(keras.layers.Layer):
    """Takes one token without dropping an axis in the slice, which delegates would leave to others.

    Args:
        taken: the layer that it replaces.
    """

    def __init__(self, taken: TakeToken):
        super().__init__(name=taken.name, dtype=taken.dtype_policy)
        self.index = taken.index

    def call(self, x):
        if x.shape[1] > 1:
            x = x[:, self.index : self.index + 1]
        return ops.reshape(x, (-1, x.shape[-1]))
