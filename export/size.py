"""How large a .tflite file will be, computed before any graph is built."""

from collections.abc import Iterator
from typing import Any

from keras_vit.spec import HybridSpec, MixerSpec, ResNetBody, ResNetSpec

# Offsets inside a flatbuffer are signed 32-bit numbers.
LIMIT = 2**31 - 1
# Names, shapes and operators, measured on small models of every family (float32); float16 files have
# a DEQUANTIZE for each kernel of a block. Convolutions have theirs inside.
FIXED, PER_UNIT, PER_NORMED_STAGE = 4_000, 10_400, 2_000
PER_BLOCK = {"mlp": 7_700, "swiglu": 9_500, "mixer": 6_850}
PER_BLOCK_FLOAT16 = 1_100
SCALE_BYTES = 12  # of each output channel of an int8 kernel: float32 scale, int64 zero point
# Of static modes: scale and zero point of each bias (which int16x8 stores in 64 bits), and those of
# activations, measured as the rest.
STATIC_BYTES, STATIC_PER_UNIT, STATIC_PER_BLOCK = {"int8": 12, "int16x8": 16}, 2_000, 3_500
CHANNEL_BYTES = 4  # int8: the scale of a channel of what a block adds to the stream
INT4_BLOCK, INT4_SCALE = 32, 2  # inputs that share a scale, and bytes of that scale


def estimated_size(spec: Any, mode: str) -> int:
    """Bytes of the .tflite file of a spec in a mode of `quantize.MODES`.

    Only kernels shrink: biases, norms and the position table have 32 bits in nearly every mode.
    Layers that a user leaves in float32 are not counted.
    """
    kernels = [*_convolutions(spec), *_dense(spec), *_heads(spec)]
    numbers = sum(inputs * outputs for inputs, outputs in kernels)
    rest = 4 * (spec.num_params - numbers) + _graph(spec)
    if mode == "float16":
        return rest + 2 * numbers + PER_BLOCK_FLOAT16 * getattr(spec, "num_layers", 0)
    if mode == "float32":
        return rest + 4 * numbers
    channels = sum(outputs for _, outputs in kernels)
    size = rest + numbers + SCALE_BYTES * channels
    if mode == "int4_weights":
        for inputs, outputs in _dense(spec):
            if inputs % INT4_BLOCK == 0:
                blocks = inputs * outputs // INT4_BLOCK
                size -= inputs * outputs // 2 + SCALE_BYTES * outputs - INT4_SCALE * blocks
    if mode in STATIC_BYTES:
        size += STATIC_BYTES[mode] * channels + STATIC_PER_UNIT * _units(spec)
        size += STATIC_PER_BLOCK * getattr(spec, "num_layers", 0)
    if mode == "int8" and not isinstance(spec, ResNetSpec):
        size += 2 * CHANNEL_BYTES * spec.hidden_size * spec.num_layers
        # The embedding stays in float32.
        numbers, channels = list(_patches(spec))[-1]
        size += 3 * numbers * channels - (SCALE_BYTES + STATIC_BYTES[mode]) * channels
    return size


def _units(spec: Any) -> int:
    """Bottleneck units."""
    body = getattr(spec, "resnet", None) or getattr(spec, "body", None)
    return sum(body.block_units) if body else 0


def _graph(spec: Any) -> int:
    """Bytes of everything that is no number."""
    size = FIXED
    for body in (getattr(spec, "resnet", None), getattr(spec, "body", None)):
        if body is not None:
            size += PER_UNIT * sum(body.block_units)
            size += 0 if body.preactivation else PER_NORMED_STAGE * (1 + len(body.block_units))
    kind = "mixer" if isinstance(spec, MixerSpec) else getattr(spec, "ffn", "mlp")
    blocks = getattr(spec, "num_layers", 0) + (getattr(spec, "pool", None) == "map")
    return size + PER_BLOCK[kind] * blocks


def check_size(spec: Any, mode: str) -> None:
    """Refuses a file that its format cannot hold.

    Raises:
        ValueError: the file would be larger than 2 GiB; the message names the modes that fit.
    """
    size = estimated_size(spec, mode)
    if size <= LIMIT:
        return
    others = ("float16", "dynamic_int8", "int8", "int16x8", "int4_weights")
    if isinstance(spec, ResNetSpec):
        others = others[:-1]  # has no dense layers
    sizes = {other: estimated_size(spec, other) for other in others if other != mode}
    fits = [f"quantize={name!r} ({n / 1e9:.2f} GB)" for name, n in sizes.items() if n <= LIMIT]
    advice = f"use {' or '.join(fits)}" if fits else "export a SavedModel instead"
    raise ValueError(
        f"this model needs {size / 1e9:.2f} GB as {mode}, and a .tflite file holds at most "
        f"{LIMIT / 1e9:.2f} GB: {advice}."
    )


# A kernel here is (numbers for each output channel, output channels).
Kernels = Iterator[tuple[int, int]]


def _convolutions(spec: Any) -> Kernels:
    if isinstance(spec, ResNetSpec):
        yield from _trunk(spec.body, spec.in_channels)
    else:
        yield from _patches(spec)


def _dense(spec: Any) -> Kernels:
    if not isinstance(spec, ResNetSpec):
        yield from _mixer_blocks(spec) if isinstance(spec, MixerSpec) else _encoder(spec)


def _heads(spec: Any) -> Kernels:
    heads = 1 + int(getattr(spec, "distilled", False))
    yield from [(spec.feature_size, spec.num_classes)] * (heads if spec.num_classes else 0)


def _patches(spec: Any) -> Kernels:
    channels, (height, width) = spec.in_channels, spec.patch_size
    if isinstance(spec, HybridSpec):
        yield from _trunk(spec.resnet, channels)
        channels = spec.resnet.num_features
    yield height * width * channels, spec.hidden_size


def _trunk(body: ResNetBody, channels: int) -> Kernels:
    yield 7 * 7 * channels, body.root_width
    channels = body.root_width
    for stage, units in enumerate(body.block_units):
        mid = body.stage_width(stage)
        yield channels, 4 * mid  # of the shortcut
        for _ in range(units):
            yield from ((channels, mid), (9 * mid, mid), (mid, 4 * mid))
            channels = 4 * mid


def _encoder(spec: Any) -> Kernels:
    d, m = spec.hidden_size, spec.mlp_dim
    mlp = [(d, m), (m, d)]
    ffn = [(d, m), *mlp] if spec.ffn == "swiglu" else mlp
    for _ in range(spec.num_layers):
        yield from [(d, d)] * 4 + ffn
    if spec.pool == "map":
        yield from [(d, d)] * 4 + mlp
    if spec.representation_size:
        yield d, spec.representation_size


def _mixer_blocks(spec: MixerSpec) -> Kernels:
    tokens, d = spec.grid[0] * spec.grid[1], spec.hidden_size
    for _ in range(spec.num_layers):
        for size, hidden in ((tokens, spec.tokens_mlp_dim), (d, spec.channels_mlp_dim)):
            yield from ((size, hidden), (hidden, size))
