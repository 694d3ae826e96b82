"""How large a .tflite file will be, computed before any graph is built."""

from typing import Any

# Offsets inside a flatbuffer are signed 32-bit numbers.
LIMIT = 2**31 - 1
# Names, shapes and operators. Measured: 3.8 kB, and 6.6 kB for each encoder block (float32), with
# 1.1 kB more where every kernel has its own DEQUANTIZE.
FIXED, PER_BLOCK, PER_BLOCK_FLOAT16 = 3_800, 6_600, 1_100
SCALE_BYTES = 12  # of each output channel of an int8 kernel: float32 scale, int64 zero point


def estimated_size(spec: Any, mode: str) -> int:
    """Bytes of the .tflite file of a spec in `float32`, `float16` or `dynamic_int8`.

    Only kernels shrink: biases, norms and the position table stay float32 in every mode.
    """
    kernels, channels = _kernels(spec)
    rest = 4 * (spec.num_params - kernels) + FIXED + PER_BLOCK * spec.num_layers
    if mode == "float16":
        return rest + 2 * kernels + PER_BLOCK_FLOAT16 * spec.num_layers
    if mode == "dynamic_int8":
        return rest + kernels + SCALE_BYTES * channels
    return rest + 4 * kernels


def check_size(spec: Any, mode: str) -> None:
    """Refuses a file that its format cannot hold.

    Raises:
        ValueError: the file would be larger than 2 GiB; the message names the modes that fit.
    """
    size = estimated_size(spec, mode)
    if size <= LIMIT:
        return
    sizes = {other: estimated_size(spec, other) for other in ("float16", "dynamic_int8")}
    fits = [f"quantize={name!r} ({n / 1e9:.2f} GB)" for name, n in sizes.items() if n <= LIMIT]
    advice = f"use {' or '.join(fits)}" if fits else "export a SavedModel instead"
    raise ValueError(
        f"this model needs {size / 1e9:.2f} GB as {mode}, and a .tflite file holds at most "
        f"{LIMIT / 1e9:.2f} GB: {advice}."
    )


def _kernels(spec: Any) -> tuple[int, int]:
    """(numbers in all kernels, output channels of all kernels)."""
    d, m, (height, width) = spec.hidden_size, spec.mlp_dim, spec.patch_size
    blocks = spec.num_layers + (spec.pool == "map")
    kernels = height * width * spec.in_channels * d + blocks * (4 * d * d + 2 * d * m)
    channels = d + blocks * (5 * d + m)
    if spec.representation_size:
        kernels += d * spec.representation_size
        channels += spec.representation_size
    return kernels + spec.feature_size * spec.num_classes, channels + spec.num_classes
