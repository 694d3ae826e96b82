"""What is inside a .tflite file: operations, types of the weights, what XNNPACK takes over."""

import collections
from pathlib import Path
from typing import Any

from keras_vit.export.artifact import interpreter


def operations(path: str | Path) -> tuple[dict[str, int], dict[str, int]]:
    """Counts of operations by name, and bytes of constants by type, most first."""
    from ai_edge_litert.tools import flatbuffer_utils

    model: Any = flatbuffer_utils.read_model(str(path))
    counts, constants = collections.Counter(), collections.Counter()
    for graph in model.subgraphs:
        for operator in graph.operators:
            custom = model.operatorCodes[operator.opcodeIndex].customCode
            name = custom.decode() if custom else None
            counts[name or flatbuffer_utils.opcode_to_name(model, operator.opcodeIndex)] += 1
        # Several tensors may share one buffer; it is stored once.
        for buffer, kind in {t.buffer: t.type for t in graph.tensors}.items():
            data = model.buffers[buffer].data
            if data is not None:
                constants[flatbuffer_utils.type_to_name(kind)] += len(data)
    return dict(counts.most_common()), dict(constants.most_common())


def delegation(path: str | Path) -> tuple[int | None, dict[str, int]]:
    """(pieces of the graph that XNNPACK took over, counts of the operations it left).

    The runtime keeps the original nodes in its list and appends one DELEGATE node for each piece.
    Which nodes a piece replaced follows from the graph: those on the way back from the outputs of
    the DELEGATE node to its inputs. The pieces are None when the runtime gives no such list.
    """
    runtime = interpreter(path)
    runtime.allocate_tensors()
    try:
        nodes = runtime._get_ops_details()
    except AttributeError:
        return None, {}
    delegates = [node for node in nodes if node["op_name"] == "DELEGATE"]
    originals = [node for node in nodes if node["op_name"] != "DELEGATE"]
    maker = {tensor: node["index"] for node in originals for tensor in node["outputs"]}
    inputs = {node["index"]: node["inputs"] for node in originals}
    taken = set()
    for delegate in delegates:
        stop, pending = set(delegate["inputs"]), list(delegate["outputs"])
        while pending:
            node = maker.get(pending.pop())
            if node is not None and node not in taken:
                taken.add(node)
                pending += [tensor for tensor in inputs[node] if tensor not in stop]
    left = collections.Counter(n["op_name"] for n in originals if n["index"] not in taken)
    return len(delegates), dict(left.most_common())
