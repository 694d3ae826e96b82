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

# Operations the GPU delegate has a rule for. Source: gpu_compatibility.cc of TensorFlow Lite.
GPU_OPERATIONS = frozenset(
    """
    ABS ADD ADD_N ATAN2 AVERAGE_POOL_2D BATCH_MATMUL CAST CEIL CONCATENATION CONV_2D COS CUMSUM
    DENSIFY DEPTHWISE_CONV_2D DEPTH_TO_SPACE DEQUANTIZE DIV ELU EMBEDDING_LOOKUP EQUAL EXP FLOOR
    FLOOR_DIV FLOOR_MOD FULLY_CONNECTED GATHER GELU GREATER GREATER_EQUAL HARD_SWISH LEAKY_RELU LESS
    LESS_EQUAL LOG LOGICAL_AND LOGISTIC LSTM MAXIMUM MAX_POOL_2D MEAN MINIMUM MIRROR_PAD MUL NEG
    NOT_EQUAL ONE_HOT PACK PAD PADV2 POW PRELU QUANTIZE REDUCE_MAX REDUCE_MIN REDUCE_PROD RELU RELU6
    RELU_N1_TO_1 RESHAPE RESIZE_BILINEAR RESIZE_NEAREST_NEIGHBOR RSQRT SELECT SELECT_V2 SIGN SIN SLICE
    SOFTMAX SPACE_TO_DEPTH SPLIT SPLIT_V SQRT SQUARE SQUARED_DIFFERENCE STRIDED_SLICE SUB SUM TANH
    TILE TRANSPOSE TRANSPOSE_CONV UNPACK
    """.split()
)
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

    Of these rules the ones that matter for image models are applied; nothing was run on a GPU.
    (The analyzer in the wheels of TensorFlow and LiteRT finds every file compatible.)
    """
    from ai_edge_litert.tools import flatbuffer_utils

    model: Any = flatbuffer_utils.read_model(str(path))
    found = {}
    for graph in model.subgraphs:
        for operator in graph.operators:
            custom = model.operatorCodes[operator.opcodeIndex].customCode
            name = flatbuffer_utils.opcode_to_name(model, operator.opcodeIndex)
            if custom:
                found[custom.decode()] = "it is a custom operation"
            elif name not in GPU_OPERATIONS:
                found[name] = "the delegate has no rule for it"
            elif name == "CAST":
                ends = [graph.tensors[i].type for i in (operator.inputs[0], operator.outputs[0])]
                kinds = [flatbuffer_utils.type_to_name(kind) for kind in ends]
                if tuple(kinds) not in GPU_CASTS:
                    found[name] = f"it casts {kinds[0]} to {kinds[1]}"
            elif name == "STRIDED_SLICE":
                options, rank = (
                    operator.builtinOptions,
                    len(graph.tensors[operator.inputs[0]].shape),
                )
                masks = options.ellipsisMask, options.newAxisMask, options.shrinkAxisMask
                if any(masks) or rank not in (3, 4):
                    found[name] = "it drops or adds an axis, or is not of rank 3 or 4"
    return found
