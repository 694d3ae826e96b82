"""What a .tflite file asks of the runtime: versions of its operations, and what a GPU does not take."""

from pathlib import Path
from typing import Any

# Operation -> the first runtime of each of its versions, from version 1 on.
# Source: runtime_version.cc of TensorFlow Lite (see NOTICE); the operations of image models.
FIRST_RUNTIMES = {
    "ABS": "1.13 2.4 2.5 2.6 2.12",
    "ADD": "1.5 1.14 2.4 2.6",
    "AVERAGE_POOL_2D": "1.5 1.14 2.3",
    "BATCH_MATMUL": "2.3 2.3 2.4 2.5",
    "BROADCAST_TO": "- 2.5 2.5",
    "CAST": "1.5 2.7 2.8 2.9",
    "CONCATENATION": "1.5 1.14 2.3",
    "CONV_2D": "1.5 1.14 1.14 2.3 2.4 2.9",
    "DEPTHWISE_CONV_2D": "1.5 1.12 1.14 2.2 2.3 2.3",
    "DEQUANTIZE": "1.13.1 1.14 1.15 2.2 2.7",
    "DIV": "1.6 2.3",
    "EXP": "1.7",
    "EXPAND_DIMS": "1.10",
    "FILL": "1.13 2.3 2.5 2.12",
    "FULLY_CONNECTED": "1.5 1.10 1.14 1.14 2.0 2.1 2.3 2.3 2.3",
    "GATHER": "1.6 1.14 1.15 2.4 2.5",
    "GELU": "2.9 2.9",
    "HARD_SWISH": "1.15",
    "LOG": "1.14",
    "LOGISTIC": "1.14 1.14 2.3",
    "MAXIMUM": "1.14 1.14 2.3 2.3",
    "MAX_POOL_2D": "1.5 1.14 2.3",
    "MEAN": "1.6 1.14 2.4",
    "MINIMUM": "1.14 1.14 2.3 2.3",
    "MUL": "1.5 1.14 1.15 2.3 2.6",
    "NEG": "1.9",
    "PACK": "1.11 1.14 2.3",
    "PAD": "1.5 1.14 2.4 2.6",
    "POW": "1.10",
    "REDUCE_PROD": "1.11 2.6",
    "RELU6": "1.5 1.14 2.5",
    "RESHAPE": "1.5",
    "RSQRT": "1.10 2.5",
    "SHAPE": "1.10",
    "SLICE": "1.14 1.14 1.14 2.4 2.5",
    "SOFTMAX": "1.5 1.14 2.3",
    "SPLIT": "1.5 1.14 1.14 2.3",
    "SQRT": "1.10",
    "SQUARE": "1.12",
    "SQUARED_DIFFERENCE": "1.13.1 2.5",
    "SQUEEZE": "1.6 2.5",
    "STRIDED_SLICE": "1.6 1.14 2.1 2.2 2.5 2.6",
    "SUB": "1.6 1.14 2.3 2.4 2.4",
    "SUM": "1.10 1.15",
    "TANH": "1.14 1.14 2.3",
    "TILE": "1.10.1 2.2 2.8",
    "TRANSPOSE": "1.6 1.14 1.15 2.3 2.4",
    "UNPACK": "1.11 1.14 2.2 2.3",
}

# Operations the GPU delegate has a rule for, and below what the rules ask of them.
# Source: tensorflow/lite/tools/versioning/gpu_compatibility.cc; types and ranks of tensors:
# tensorflow/lite/delegates/gpu/common/model_builder.cc (IsAllAllowedTensors), model_builder_helper.cc.
GPU_OPERATIONS = frozenset(
    """
    ABS ADD ADD_N ATAN2 AVERAGE_POOL_2D BATCH_MATMUL CAST CEIL CONCATENATION CONV_2D COS CUMSUM
    DENSIFY DEPTHWISE_CONV_2D DEPTH_TO_SPACE DEQUANTIZE DIV DYNAMIC_UPDATE_SLICE ELU EMBEDDING_LOOKUP
    EQUAL EXP FLOOR FLOOR_DIV FLOOR_MOD FULLY_CONNECTED GATHER GELU GREATER GREATER_EQUAL HARD_SWISH LEAKY_RELU LESS
    LESS_EQUAL LOG LOGICAL_AND LOGISTIC LSTM MAXIMUM MAX_POOL_2D MEAN MINIMUM MIRROR_PAD MUL NEG
    NOT_EQUAL ONE_HOT PACK PAD PADV2 POW PRELU QUANTIZE REDUCE_MAX REDUCE_MIN REDUCE_PROD RELU RELU6
    RELU_N1_TO_1 RESHAPE RESIZE_BILINEAR RESIZE_NEAREST_NEIGHBOR RSQRT SELECT SELECT_V2 SIGN SIN SLICE
    SOFTMAX SPACE_TO_DEPTH SPLIT SPLIT_V SQRT SQUARE SQUARED_DIFFERENCE STRIDED_SLICE SUB SUM TANH
    STABLEHLO_CLAMP TILE TRANSPOSE TRANSPOSE_CONV
    """.split()
)
# Of one input that changes from run to run; shapes, axes and paddings are constants.
GPU_ONE_INPUT = frozenset(
    """
    ABS AVERAGE_POOL_2D CEIL COS DEPTH_TO_SPACE ELU EXP FLOOR GELU HARD_SWISH LOG LOGISTIC MAX_POOL_2D
    MEAN MIRROR_PAD NEG PAD PADV2 QUANTIZE REDUCE_MAX REDUCE_MIN REDUCE_PROD RESHAPE RESIZE_BILINEAR
    RESIZE_NEAREST_NEIGHBOR RSQRT SIGN SIN SPACE_TO_DEPTH SQRT SQUARE SUM TANH TILE TRANSPOSE
    """.split()
)
GPU_REDUCTIONS = frozenset("MEAN REDUCE_MAX REDUCE_MIN REDUCE_PROD SUM".split())
GPU_RANK, GPU_SLICED_RANKS = 4, (3, 4)
GPU_REFUSED_TYPES = ("INT16", "INT64", "FLOAT64")
GPU_CASTS = {
    *((a, b) for a in ("FLOAT32", "INT32") for b in ("FLOAT32", "INT32")),
    *(("BOOL", b) for b in ("FLOAT16", "FLOAT32")),
    *((a, "BOOL") for a in ("FLOAT16", "FLOAT32")),
}


def first_runtime(operation: str, version: int) -> str | None:
    """The first LiteRT (TensorFlow Lite) version that runs an operation; None where unknown."""
    known = FIRST_RUNTIMES.get(operation, "").split()
    found = known[version - 1] if 0 < version <= len(known) else "-"
    return None if found == "-" else found


def required_runtimes(path: str | Path) -> dict[str, dict[str, Any]]:
    """Operation -> `version`, the highest in the file, and `runtime`, the first that runs it or None."""
    from ai_edge_litert.tools import flatbuffer_utils

    model: Any = flatbuffer_utils.read_model(str(path))
    versions: dict[str, int] = {}
    for index, code in enumerate(model.operatorCodes):
        name = code.customCode.decode() if code.customCode else None
        name = name or flatbuffer_utils.opcode_to_name(model, index)
        versions[name] = max(versions.get(name, 0), int(code.version))
    return {
        name: {"version": version, "runtime": first_runtime(name, version)}
        for name, version in sorted(versions.items())
    }


def newest(runtimes: dict[str, dict[str, Any]]) -> str | None:
    """The runtime that all known operations need."""
    known = [found["runtime"] for found in runtimes.values() if found["runtime"]]
    return max(known, key=lambda text: tuple(map(int, text.split("."))), default=None)


def gpu_problems(path: str | Path) -> dict[str, str]:
    """Operations that the GPU delegate does not take, with the reason, by its published rules.

    Of these rules the ones that image models meet are applied; nothing was run on a GPU. Which versions
    of an operation a delegate takes depends on its release and is not looked at.
    (The analyzer in the wheels of TensorFlow and LiteRT finds every file compatible.)
    """
    from ai_edge_litert.tools import flatbuffer_utils

    model: Any = flatbuffer_utils.read_model(str(path))
    found: dict[str, str] = {}
    for graph in model.subgraphs:
        for operator in graph.operators:
            custom = model.operatorCodes[operator.opcodeIndex].customCode
            name = flatbuffer_utils.opcode_to_name(model, operator.opcodeIndex)
            if custom:
                found[custom.decode()] = "it is a custom operation"
                continue
            inputs, outputs = (
                [_Tensor(model, graph.tensors[i]) for i in ends if i >= 0]
                for ends in (operator.inputs, operator.outputs)
            )
            reason = gpu_reason(name, operator.builtinOptions, inputs, outputs)
            if reason:
                found.setdefault(name, reason)
    return found


class _Tensor:
    """What the rules ask of a tensor."""

    def __init__(self, model: Any, tensor: Any):
        from ai_edge_litert.tools import flatbuffer_utils

        buffer = model.buffers[tensor.buffer]
        self.constant = (buffer.data is not None and len(buffer.data) > 0) or buffer.offset > 1
        self.shape = [] if tensor.shape is None else [int(size) for size in tensor.shape]
        self.type = flatbuffer_utils.type_to_name(tensor.type)


def gpu_reason(
    name: str, options: Any, inputs: list[_Tensor], outputs: list[_Tensor]
) -> str | None:
    """Why the GPU delegate does not take an operation; None where no rule is against it.

    Args:
        name: of the operation.
        options: its builtin options.
        inputs, outputs: its tensors, with `shape`, `type` and `constant`.
    """
    if name not in GPU_OPERATIONS:
        return "the delegate has no rule for it"
    running = [tensor for tensor in inputs if not tensor.constant]
    for tensor in (*running, *outputs):
        if tensor.type in GPU_REFUSED_TYPES:
            return f"it computes in {tensor.type}"
        if len(tensor.shape) > GPU_RANK:
            return f"it has a tensor of rank {len(tensor.shape)}, and {GPU_RANK} is the most"
    if name in GPU_ONE_INPUT and len(running) != 1:
        return f"it has {len(running)} inputs that are no constants, and 1 is expected"
    if name in GPU_REDUCTIONS and (len(inputs) < 2 or inputs[1].type != "INT32"):
        return "its axes are no INT32"
    if name == "CAST" and (ends := (inputs[0].type, outputs[0].type)) not in GPU_CASTS:
        return f"it casts {ends[0]} to {ends[1]}"
    if name == "DEQUANTIZE" and inputs[0].type == "INT16":
        return "it converts from INT16"
    if name == "FULLY_CONNECTED":
        return _fully_connected_reason(options, inputs, outputs, len(running))
    if name in ("ADD", "MUL"):
        return _broadcast_reason(name, inputs)
    if name in ("SLICE", "STRIDED_SLICE") and len(inputs[0].shape) not in GPU_SLICED_RANKS:
        return f"it slices a tensor of rank {len(inputs[0].shape)}, and 3 or 4 is expected"
    if name == "STRIDED_SLICE" and any(
        (options.ellipsisMask, options.newAxisMask, options.shrinkAxisMask)
    ):
        return "it drops or adds an axis"
    if name == "SOFTMAX" and options.beta != 1.0:
        return f"its beta is {options.beta:g}, and 1 is expected"
    if name in ("PAD", "PADV2", "MIRROR_PAD") and inputs[1].shape not in ([3, 2], [4, 2]):
        return f"its paddings are of shape {inputs[1].shape}, and [3, 2] or [4, 2] is expected"
    if name == "GATHER" and (
        inputs[0].type == "INT32" or inputs[1].type != "INT32" or len(inputs[1].shape) != 1
    ):
        return "its indices are no INT32 vector, or it gathers INT32"
    return None


def _fully_connected_reason(
    options: Any, inputs: list[_Tensor], outputs: list[_Tensor], running: int
) -> str | None:
    if options.weightsFormat:
        return "its weights are shuffled"
    if inputs[0].constant or running > 2:
        return "its input is a constant, or its bias is none"
    if options.keepNumDims and len(inputs[0].shape) != len(outputs[0].shape):
        return "its output has another rank than its input"
    return None


def _broadcast_reason(name: str, inputs: list[_Tensor]) -> str | None:
    """Of two tensors with sizes (or ranks) that differ."""
    if len(inputs) != 2:
        return f"it has {len(inputs)} inputs, and 2 are expected"
    a, b = sorted((tensor.shape for tensor in inputs), key=len)
    if len(a) == len(b):
        smaller, larger = (
            any(f(x, y) for x, y in zip(a, b, strict=True)) for f in (int.__lt__, int.__gt__)
        )
        return (
            "each input is smaller in a dimension" if name == "MUL" and smaller and larger else None
        )
    fits = len(a) < 2 or (
        len(b) == GPU_RANK
        and (
            (len(a) == 3 and b[0] == 1)
            or (a == [1, 1] and b[0] == 1)
            or (len(a) == 2 and (b[0], b[3]) == (a[0], a[1]))
        )
    )
    return None if fits else f"it broadcasts {a} to {b}"
