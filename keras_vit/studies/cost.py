"""What a network costs, counted from its spec by formula: nothing is built, at any resolution.

All counts are for one image.

- A multiply-accumulate (MAC) is one product of a convolution, a dense layer or one of the matrix
  products of attention, added up. Norms, biases, activations, softmax, pooling and the standardising
  of kernels are not counted, nor are a convolution's products with the padding around its input: so
  counts the ViT paper in its Table 6.
- A MAC is two floating-point operations (FLOPs). The backward pass takes twice the forward pass,
  training three times.
- Activations are the tensors that the backward pass reads, each counted once: the input of every dense
  layer, convolution, norm and GELU, both factors of every product of two tensors, the result of every
  softmax, ReLU and tanh, and the images. Weights, the loss, the masks of dropout and what is only
  there for a moment are not among them. Source: arXiv 2205.05198, section 4.1, without dropout. With
  `remat` a run keeps less; what a compiler needs at its peak is more.
"""

import dataclasses
from math import prod

from keras_vit.spec import HybridSpec, MixerSpec, ResNetBody, ResNetSpec, Spec, ViTSpec

TRAINING = 3  # forward passes that a forward and a backward pass are worth
DTYPES = {
    "float32": 4,
    "mixed_float16": 2,
    "mixed_bfloat16": 2,
    "float16": 2,
    "bfloat16": 2,
    "float64": 8,
}
"""Bytes of an activation by Keras dtype policy; the few that mixed policies keep in float32 count as
the others."""


@dataclasses.dataclass(frozen=True)
class Cost:
    """What a network costs for one image; the module says what is counted.

    Attributes:
        parameters: numbers that are learned.
        macs: multiply-accumulates of a forward pass.
        flops_forward, flops_training: operations of a forward pass, and of one with its backward pass.
        activation_bytes: bytes that are kept from the forward for the backward pass.
        tokens: inside the encoder; for a ResNet the cells of its last feature map.
        training_exaflops: 1e18 operations of a whole training, None where its length is not known.
    """

    parameters: int
    macs: int
    flops_forward: int
    flops_training: int
    activation_bytes: int
    tokens: int
    training_exaflops: float | None = None


def cost(spec: Spec, *, images: float | None = None, dtype: str = "float32") -> Cost:
    """Counts what a network costs.

    Args:
        spec: of any family.
        images: that a training sees in all, examples times epochs; None for no training.
        dtype: Keras dtype policy, one of `DTYPES`.

    Raises:
        ValueError: no such dtype.
    """
    if dtype not in DTYPES:
        raise ValueError(f"dtype must be one of {', '.join(DTYPES)}, got {dtype!r}.")
    whole = Part(kept=prod(spec.image_size) * spec.in_channels) + _network(spec)
    training = TRAINING * 2 * whole.macs
    return Cost(
        parameters=spec.num_params,
        macs=whole.macs,
        flops_forward=2 * whole.macs,
        flops_training=training,
        activation_bytes=DTYPES[dtype] * whole.kept,
        tokens=spec.num_tokens if isinstance(spec, ViTSpec) else prod(spec.grid),
        training_exaflops=None if images is None else training * images / 1e18,
    )


@dataclasses.dataclass(frozen=True)
class Part:
    """A piece of a network.

    Attributes:
        macs: multiply-accumulates.
        kept: numbers that the backward pass reads, without the input, which belongs to the piece
            before.
    """

    macs: int = 0
    kept: int = 0

    def __add__(self, other: "Part") -> "Part":
        return Part(self.macs + other.macs, self.kept + other.kept)

    def __mul__(self, times: int) -> "Part":
        return Part(self.macs * times, self.kept * times)


def _network(spec: Spec) -> Part:
    if isinstance(spec, ResNetSpec):
        return trunk(spec.body, spec.image_size, spec.in_channels) + head(spec)
    if isinstance(spec, MixerSpec):
        return mixer(spec)
    return transformer(spec)


def transformer(spec: ViTSpec) -> Part:
    """A Vision Transformer, with the ResNet before it in a hybrid."""
    channels, before = spec.in_channels, Part()
    if isinstance(spec, HybridSpec):
        channels = spec.resnet.num_features
        before = trunk(spec.resnet, spec.image_size, spec.in_channels)
    found = before + embedding(spec.grid, spec.patch_size, channels, spec.hidden_size)
    found += encoder_block(spec) * spec.num_layers
    found += pooling(spec)
    return found + head(spec, outputs=tokens_out(spec)) * (1 + int(spec.distilled))


def embedding(grid: tuple[int, int], patch_size: tuple[int, int], channels: int, size: int) -> Part:
    """The patches, or what is left of an image after them, as tokens. Keeps nothing of its own."""
    return Part(dense(prod(grid), prod(patch_size) * channels, size))


def dense(rows: int, inputs: int, outputs: int) -> int:
    """Multiply-accumulates of a dense layer on so many rows."""
    return rows * inputs * outputs


def encoder_block(spec: ViTSpec) -> Part:
    """A block of the encoder; an axial one is one along rows and one along columns."""
    n, d = spec.num_tokens, spec.hidden_size
    axes = spec.grid if spec.attention == "axial" else (n,)
    found = Part()
    for length in axes:
        rows = n // length
        attended = attention(length, length, d, spec.num_heads, relative=spec.posemb == "relative")
        branches = attended * rows + mlp(n, d, spec.mlp_dim, spec.ffn)
        # Each branch: what comes in, its norm, and what a learned scale multiplies.
        around = 2 * (2 + int(spec.layer_scale is not None)) * n * d
        found += branches + Part(kept=around)
    return found


def attention(queries: int, keys: int, size: int, heads: int, *, relative: bool = False) -> Part:
    """Attention of some tokens to others: four projections and two products.

    With relative positions each query also meets the embeddings of all 2N - 1 distances.
    """
    macs = 2 * dense(queries + keys, size, size) + 2 * queries * keys * size
    if relative:
        macs += queries * (2 * keys - 1) * size
    # Query, key, value, weights, and what they mix.
    return Part(macs, 2 * (queries + keys) * size + heads * queries * keys)


def mlp(rows: int, size: int, hidden: int, ffn: str = "mlp") -> Part:
    """Two dense layers around a GELU; or gate, value and output of SwiGLU."""
    if ffn == "swiglu":  # gate, its SiLU, value, and their product
        return Part(3 * dense(rows, size, hidden), 4 * rows * hidden)
    return Part(2 * dense(rows, size, hidden), 2 * rows * hidden)


def pooling(spec: ViTSpec) -> Part:
    """From the tokens after the last block to the input of the head."""
    d, n = spec.hidden_size, spec.num_tokens
    found = Part(kept=n * d if spec.num_layers else 0)  # what the last norm takes
    if spec.pool == "map":
        found += Part(kept=n * d) + attention(1, n, d, spec.num_heads)
        # The learned query, what the norm takes and gives.
        found += Part(kept=3 * d) + mlp(1, d, spec.mlp_dim)
    if spec.representation_size:
        rows = tokens_out(spec)
        found += Part(dense(rows, d, spec.representation_size), rows * d)
    return found


def tokens_out(spec: ViTSpec) -> int:
    """Tokens that the head sees: one, or all where nothing is pooled."""
    return spec.num_tokens if spec.pool in ("none", "token_unpooled") else 1


def head(spec: Spec, outputs: int = 1) -> Part:
    """The linear layer to the classes and its input."""
    size = spec.feature_size
    return Part(dense(outputs, size, spec.num_classes), outputs * size if spec.num_classes else 0)


def mixer(spec: MixerSpec) -> Part:
    """An MLP-Mixer."""
    n, d = prod(spec.grid), spec.hidden_size
    # Two branches: what comes in and its norm.
    block = mlp(d, n, spec.tokens_mlp_dim) + mlp(n, d, spec.channels_mlp_dim) + Part(kept=4 * n * d)
    found = embedding(spec.grid, spec.patch_size, spec.in_channels, d)
    return found + block * spec.num_layers + Part(kept=n * d) + head(spec)


def trunk(body: ResNetBody, image_size: tuple[int, int], channels: int) -> Part:
    """Root and stages of a ResNet, with what the last norm keeps."""
    height, width = (-(-side // 2) for side in image_size)
    root = height * width * body.root_width
    found = Part(convolution(body, image_size, 7, 2, channels, body.root_width), root)
    if not body.preactivation:
        found += Part(kept=root)  # what the norm takes, beside what the pool takes
    size, channels = (-(-height // 2), -(-width // 2)), body.root_width
    for stage, units in enumerate(body.block_units):
        for unit in range(units):
            strides = 2 if stage and not unit else 1
            found += resnet_unit(body, size, channels, body.stage_width(stage), strides)
            size = (-(-size[0] // strides), -(-size[1] // strides))
            channels = 4 * body.stage_width(stage)
    last = prod(size) * channels
    return found + Part(kept=2 * last if body.preactivation else last)


def resnet_unit(
    body: ResNetBody, size: tuple[int, int], channels: int, mid: int, strides: int
) -> Part:
    """A bottleneck unit on a feature map (h, w) of so many channels."""
    after = (-(-size[0] // strides), -(-size[1] // strides))
    macs = (
        convolution(body, size, 1, 1, channels, mid)
        + convolution(body, size, 3, strides, mid, mid)
        + convolution(body, after, 1, 1, mid, 4 * mid)
    )
    inside = prod(size) * mid, prod(after) * mid, prod(after) * 4 * mid
    kept = prod(size) * channels + 2 * (inside[0] + inside[1])
    # Norm and ReLU come first: of the input too, and of the last convolution's result not.
    kept += prod(size) * channels if body.preactivation else inside[2]
    if channels != 4 * mid or strides != 1:  # the projection of the shortcut
        macs += convolution(body, size, 1, strides, channels, 4 * mid)
        kept += 0 if body.preactivation else inside[2]
    return Part(macs, kept)


def convolution(
    body: ResNetBody, size: tuple[int, int], kernel: int, strides: int, inputs: int, outputs: int
) -> int:
    """Multiply-accumulates of a convolution on a map (h, w), without those with the padding."""
    height, width = (taps(side, kernel, strides, body.padding) for side in size)
    return height * width * inputs * outputs


def taps(length: int, kernel: int, strides: int, padding: str) -> int:
    """How often a kernel meets a pixel along one axis, over all places that it is put at.

    Args:
        length: pixels.
        kernel, strides: pixels.
        padding: `same` or `fixed`, see `ResNetBody`.
    """
    places = -(-length // strides)
    low = (kernel - 1) // 2
    if padding == "same":
        low = max((places - 1) * strides + kernel - length, 0) // 2
    starts = (place * strides - low for place in range(places))
    return sum(min(start + kernel, length) - max(start, 0) for start in starts)
