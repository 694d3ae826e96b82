"""Smaller LiteRT files from a float32 one, by ai-edge-quantizer.

All modes start from the same converted file, so a model is converted once. Against the converter's
own float16 the result is equal: ViT-Ti/16 11.6 MB (converter 11.5), 18.2 ms (18.3), largest error in
probability 1.3e-3 (1.3e-3). Its dynamic int8 was slower and less exact.

`int8` leaves two parts of transformers in float32. The residual stream, measured on a ViT of four
blocks with a massive activation in one token (`tests/test_quantize.py` plants it), top-1 of 1000
images, float32 89.8 %:

| in float32 | top-1 |
| --- | --- |
| nothing | 14.5 |
| norms, or residual additions, or both | 16.1, 14.7, 13.5 |
| both and the position embedding | 89.9 |

One place where the stream is int8 is enough to lose it, and the squares inside a norm have the square
of its range. And attention between its projections, together with the embedding, which gives the
stream. Measured on a trained DINOv2 ViT-S/14 (12 blocks, 257 tokens), smallest and mean cosine of the
class token to float32's over 22 photographs:

| besides the stream in float32 | smallest | mean |
| --- | --- | --- |
| nothing | 0.958 | 0.985 |
| softmax | 0.958 | 0.986 |
| softmax, product of queries and keys | 0.971 | 0.987 |
| softmax, both products | 0.988 | 0.995 |
| softmax, both products, embedding | 0.992 | 0.995 |

Probabilities of many tokens are small: one in 257 is a single step of int8. What kernels add to the
stream has a scale for every channel besides (`channels`). ResNets have neither: BiT keeps 99.7 % of its
classes with everything in int8.
"""

import contextlib
import io
import re
import warnings
from collections.abc import Collection, Iterable, Sequence
from typing import Any

import numpy as np

from keras_vit.export.calibrate import Ranges
from keras_vit.export.channels import with_channel_scales
from keras_vit.export.paths import Operation, operation_table, select

MODES = ("float32", "float16", "dynamic_int8", "int8", "int16x8", "int4_weights")
STATIC = ("int8", "int16x8")  # need calibration
# The layers that the residual stream of ViT and Mixer passes through, and those that begin it.
STREAM = (
    r"(encoderblock|mixerblock)_\d+/(norm\d|residual|scale\d)",
    r"encoder_norm|embedding|posembed_input|patch_tokens|cls|dist|registers|map/(norm|residual)",
)
# Its own operations, between the kernels of queries, keys, values and output.
ATTENTION = r"(encoderblock_\d+|map)/attention"
INT4_BLOCK = 32  # inputs of a kernel that share a scale
MOVES = ("RESHAPE", "TRANSPOSE")  # no arithmetic, so the type they run in costs no accuracy


def stream_operations(table: Sequence[Operation]) -> tuple[Operation, ...]:
    """What `int8` leaves in float32 when nothing else is asked: the stream and attention itself."""
    fits = [re.compile(pattern).fullmatch for pattern in STREAM]
    attends = re.compile(ATTENTION).fullmatch
    # What normalises pixels belongs to no layer. In a hybrid the ResNet follows.
    first = next((op for op in table if op.layer), None)
    pixels = first.index if first and first.layer == "embedding" else 0
    return tuple(
        op
        for op in table
        if op.index < pixels
        or any(fit(path) for fit in fits for path in op.paths)
        or (attends(op.layer) and op.kind not in MOVES)
    )


def chosen_operations(
    model: bytes, mode: str, float_layers: Iterable[str], *, strict: bool
) -> tuple[Operation, ...]:
    """The operations that stay in float32: those of the mode, and those of the layers named.

    Raises:
        ValueError: a pattern matches no layer.
    """
    table = operation_table(model)
    chosen = {op.index for op in select(table, float_layers)}
    if mode == "int8" and not strict:
        chosen |= {op.index for op in stream_operations(table)}
    return tuple(op for op in table if op.index in chosen)


def quantized(
    model: bytes,
    mode: str,
    *,
    ranges: Ranges | None = None,
    in_float: Collection[Operation] = (),
    whole: bool = False,
) -> bytes:
    """A float32 .tflite in another mode.

    Args:
        model: the float32 file.
        mode: `float16` stores kernels in half precision and computes in float32. `dynamic_int8`
            stores kernels in int8 with a scale for each output channel and quantises activations
            while running. `int4_weights` stores kernels of dense layers in 4 bits with a scale for
            every 32 inputs, and the rest as dynamic_int8. `int8` and `int16x8` compute with
            activations of 8 and 16 bits and int8 kernels, at scales fixed by `ranges`; `int8` with
            a scale for every channel where a dense layer gives float32 (`channels`).
        ranges: of `calibrate.activation_ranges`, for `int8` and `int16x8`.
        in_float: operations that stay in float32.
        whole: whether input and output are integers as well (`int8`, `int16x8`); else float32.
    """
    from ai_edge_quantizer import qtyping, quantizer, recipe

    names = qtyping.TFLOperationName
    tool = quantizer.Quantizer(model)
    keep = recipe.AlgorithmName.NO_QUANTIZE
    if mode == "float16":
        half = qtyping.TensorQuantizationConfig(num_bits=16, dtype=qtyping.TensorDataType.FLOAT)
        config = qtyping.OpQuantizationConfig(
            weight_tensor_config=half,
            compute_precision=qtyping.ComputePrecision.FLOAT,
            explicit_dequantize=True,
        )
        tool.update_quantization_recipe(
            ".*", names.ALL_SUPPORTED, config, algorithm_key=recipe.AlgorithmName.FLOAT_CASTING
        )
    elif mode in STATIC:
        static = recipe.static_wi8_ai8 if mode == "int8" else recipe.static_wi8_ai16
        tool.load_quantization_recipe(static())
        if not whole:
            for end in (names.INPUT, names.OUTPUT):
                tool.update_quantization_recipe(".*", end, algorithm_key=keep)
    else:
        tool.load_quantization_recipe(recipe.dynamic_wi8_afp32())
        # The query of attention pooling is a constant, the left side of its BATCH_MATMUL. As int8
        # against a float right side no kernel takes it; all others have two activations anyway.
        tool.update_quantization_recipe(".*", names.BATCH_MATMUL, algorithm_key=keep)
        if mode == "int4_weights":
            for op in _blockwise(model):
                tool.add_dynamic_config(
                    _exactly(op),
                    names.FULLY_CONNECTED,
                    num_bits=4,
                    granularity=qtyping.QuantGranularity.BLOCKWISE_32,
                )
    for op in in_float:
        tool.update_quantization_recipe(_exactly(op), names.ALL_SUPPORTED, algorithm_key=keep)
    ranges = Ranges() if ranges is None else ranges
    calibration = _shaped(model, ranges) if mode in STATIC else None
    # One of its progress bars cannot be switched off, and its interpreter warns of its own options.
    with contextlib.redirect_stderr(io.StringIO()), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*experimental_preserve_all_tensors")
        result = tool.quantize(calibration, enable_progress_bar=False, enable_progress_report=False)
    made = bytes(result.quantized_model)
    return with_channel_scales(made, ranges.peaks) if mode == "int8" else made


def left_in_float(model: bytes) -> tuple[Operation, ...]:
    """The operations of a finished file that compute in float32, without those that convert types.

    An operation computes in float when its result is float32 and it is neither QUANTIZE nor
    DEQUANTIZE; kernels may still be stored in fewer bits.
    """
    from ai_edge_litert import schema_py_generated as schema

    _, graph = _read(model)
    found = []
    for op in operation_table(model):
        outputs = [graph.tensors[i] for i in graph.operators[op.index].outputs if i >= 0]
        if op.kind not in ("DEQUANTIZE", "QUANTIZE") and any(
            t.type == schema.TensorType.FLOAT32 for t in outputs
        ):
            found.append(op)
    return tuple(found)


def by_layer(operations: Iterable[Operation]) -> dict[str, dict[str, int]]:
    """layer -> how many operations of each kind; the key of those of no layer is `-`."""
    counts: dict[str, dict[str, int]] = {}
    for op in operations:
        kinds = counts.setdefault(op.layer or "-", {})
        kinds[op.kind] = kinds.get(op.kind, 0) + 1
    return counts


def _exactly(op: Operation) -> str:
    return f"^{re.escape(op.scope)}$"


def _blockwise(model: bytes) -> list[Operation]:
    """Dense layers whose inputs divide into blocks; head and patches are too small to gain."""
    content, graph = _read(model)
    found = []
    for op in operation_table(model):
        if op.kind == "FULLY_CONNECTED" and not op.layer.startswith(("head", "embedding")):
            kernel = graph.tensors[graph.operators[op.index].inputs[1]]
            stored = content.buffers[kernel.buffer].data is not None
            if stored and kernel.shape[-1] % INT4_BLOCK == 0:
                found.append(op)
    return found


def _shaped(model: bytes, ranges: Ranges) -> dict[str, dict[str, np.ndarray]]:
    """Ranges as ai-edge-quantizer takes them: arrays of the rank of their tensor."""
    tensors = {t.name.decode(): len(t.shape) for t in _read(model)[1].tensors}
    return {
        name: {
            "min": np.full([1] * tensors[name], low, np.float32),
            "max": np.full([1] * tensors[name], high, np.float32),
        }
        for name, (low, high) in ranges.items()
        if name in tensors
    }


def _read(model: bytes) -> tuple[Any, Any]:
    from ai_edge_litert.tools import flatbuffer_utils

    content: Any = flatbuffer_utils.read_model_from_bytearray(bytearray(model))
    (graph,) = content.subgraphs
    return content, graph
