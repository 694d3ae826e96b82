"""Which layer of the network every operation of a .tflite file came from.

Tensor names in a file are those of Keras's name scopes after the converter has renamed and joined
them: `vit_outputs_1/encoderblock_0_1/norm1_1/Mean`, several names with `;` between them for fused
operations, and `StatefulPartitionedCall:0` for the output. Patterns of a user are matched against the
documented layer names instead, through the table made here.
"""

import dataclasses
import difflib
import functools
import re
from collections.abc import Iterable, Sequence
from typing import Any

# Operations that hold a kernel: the piece of a joined name that is theirs ends in one of these.
KERNEL_KINDS = ("FULLY_CONNECTED", "CONV_2D", "DEPTHWISE_CONV_2D")
KERNEL_ENDS = ("Tensordot", "MatMul", "convolution")
# Ends that tell which piece of a joined name belongs to an operation of a kind.
ENDS = {
    "ADD": ("add",),
    "SUB": ("sub",),
    "MUL": ("mul",),
    "MEAN": ("Mean",),
    "RSQRT": ("Rsqrt",),
    "SOFTMAX": ("Softmax",),
    "GELU": ("Gelu",),
    "CONCATENATION": ("concat",),
}


@dataclasses.dataclass(frozen=True)
class Operation:
    """One operation of a file.

    Attributes:
        index: its place in the graph.
        kind: `FULLY_CONNECTED`, `ADD`, ...
        layer: the layer it came from, `encoderblock_0/attention/query`; the addition that closes a
            residual branch is `<block>/residual`. Empty for what belongs to no layer.
        scope: what ai-edge-quantizer matches its regular expressions with.
    """

    index: int
    kind: str
    layer: str
    scope: str

    @property
    def paths(self) -> tuple[str, ...]:
        """The layer and every layer around it, innermost first."""
        parts = self.layer.split("/")
        return tuple("/".join(parts[:n]) for n in range(len(parts), 0, -1))


def operation_table(model: bytes) -> tuple[Operation, ...]:
    """The path table of a float32 .tflite file, in the order of its operations."""
    from ai_edge_litert.tools import flatbuffer_utils

    content: Any = flatbuffer_utils.read_model_from_bytearray(bytearray(model))
    (graph,) = content.subgraphs
    names = [tensor.name.decode() for tensor in graph.tensors]
    rows = []
    for index, operator in enumerate(graph.operators):
        kind = flatbuffer_utils.opcode_to_name(content, operator.opcodeIndex)
        outputs = [names[i] for i in operator.outputs if i >= 0]
        inputs = [i for i in operator.inputs if i >= 0]
        stored = [content.buffers[graph.tensors[i].buffer].data is not None for i in inputs]
        # The output of the file has lost its name; that of the kernel stays.
        known = [*outputs, *(names[i] for i, s in zip(inputs, stored, strict=True) if s)]
        layer = _layer(kind, known)
        if kind == "ADD" and len(inputs) == 2 and not any(stored):
            layer = f"{layer}/residual" if layer else "residual"
        rows.append(Operation(index, kind, layer, "".join(f"{name};" for name in outputs)))
    return tuple(rows)


def select(table: Sequence[Operation], patterns: Iterable[str]) -> tuple[Operation, ...]:
    """The operations of the layers that the patterns name.

    Args:
        table: of `operation_table`.
        patterns: regular expressions, each for the whole name of a layer. `encoderblock_3` takes
            everything inside that block, `encoderblock_.*/norm.*` the norms of all blocks,
            `.*/residual` the additions that close the branches.

    Raises:
        ValueError: a pattern is no regular expression, or matches no layer; near names are given.
    """
    if isinstance(patterns, str):
        raise ValueError(f"float_layers must be a list of patterns, got the text {patterns!r}.")
    chosen: set[int] = set()
    for pattern in patterns:
        try:
            fits = re.compile(pattern).fullmatch
        except re.error as error:
            raise ValueError(
                f"float_layers: {pattern!r} is no regular expression ({error}): write a layer name, "
                f"for example 'head' or 'encoderblock_.*/norm.*'."
            ) from None
        found = {op.index for op in table if op.layer and any(map(fits, op.paths))}
        if not found:
            known = dict.fromkeys(path for op in table for path in reversed(op.paths) if path)
            near = difflib.get_close_matches(pattern, known, n=4, cutoff=0.3) or list(known)[:4]
            raise ValueError(
                f"float_layers: {pattern!r} matches no layer; near names are {', '.join(near)}."
            )
        chosen |= found
    return tuple(op for op in table if op.index in chosen)


def blocks(table: Sequence[Operation]) -> tuple[str, ...]:
    """The outermost layers that compute something, in the order of the network."""
    return tuple(dict.fromkeys(op.paths[-1] for op in table if op.layer))


def _layer(kind: str, names: Sequence[str]) -> str:
    """The layer path in the names of an operation's outputs and constants."""
    pieces = [piece for name in names for piece in name.split(";") if "/" in piece]
    if not pieces:
        return ""
    wanted = KERNEL_ENDS if kind in KERNEL_KINDS else ENDS.get(kind, ())

    def fits(piece: str) -> bool:
        layer, rest = _split(piece)
        return bool(layer) and any(part.startswith(wanted) for part in rest if wanted)

    return _split(next(filter(fits, pieces), pieces[0]))[0]


@functools.cache
def _split(piece: str) -> tuple[str, tuple[str, ...]]:
    """`vit_1/encoderblock_0_1/norm1_1/Mean_1` -> (`encoderblock_0/norm1`, (`Mean_1`,)).

    Keras opens the scope of a layer twice, so that every layer name carries an `_1` that is not its
    own, and the first one is the model's. What follows the layers are names of functions.
    """
    _, *parts = piece.split("/")
    layers = []
    for part in parts:
        if not re.fullmatch(r"[a-z]\w*_1", part) or re.fullmatch(
            r"(add|sub|mul|transpose|strided_slice)_1", part
        ):
            break
        layers.append(part.removesuffix("_1"))
    return "/".join(layers), tuple(parts[len(layers) :])
