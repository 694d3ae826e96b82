"""ONNX through Keras's own exporter, repaired where that writes files no runtime opens.

The exporter has no rule for `Erfc`, which the exact GELU is made of: it writes the TensorFlow operation
as it stands, logs a line and reports success. Here it becomes 1 - Erf, every file is checked against
the standard, and then run in onnxruntime.
"""

import contextlib
import importlib
import importlib.util
import json
import logging
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from keras_vit.export import graph, verify
from keras_vit.export.artifact import Artifact, open_artifact
from keras_vit.export.benchmark import costs
from keras_vit.export.metadata import metadata_of, metadata_to_dict
from keras_vit.export.output import check_output, put_in_place, workplace
from keras_vit.export.report import Report, versions
from keras_vit.export.size import LIMIT, estimated_size

OPSET = 17  # of 2022; what runtimes of the last years open
FIRST_RUNTIME = (
    "1.12"  # of onnxruntime that has it. Source: its table of versions, "ONNX opset support"
)
METADATA = "keras_vit"  # key of what the file says of itself


def onnx(
    model: Any,
    path: str | Path,
    *,
    images: Any = None,
    labels: Any = None,
    force: bool = False,
    allow: bool = False,
) -> Report:
    """Exports a model as an .onnx file, runs it in onnxruntime, compares it, and reports.

    The file takes `images`, preprocessed float32 (B, H, W, C) with any batch, and gives `features`,
    and `logits` and `probabilities` where there is a head. Labels and preprocessing stand in its
    metadata under `keras_vit`.

    Args:
        model: a VisionModel.
        path: the file to write; the report goes to `<path>.json`.
        images: to compare on: uint8 images (B, h, w, C) or preprocessed floats (B, H, W, C); None
            makes seeded synthetic ones.
        labels: class indices (B,) of the images, for the accuracy in the report.
        force: replace an earlier export.
        allow: keep the file also when a comparison fails; its report says so.

    Raises:
        TypeError, ValueError: the model or the images are wrong; the file would exceed 2 GiB.
        FileExistsError, OSError: the output exists or cannot be written.
        RuntimeError: Keras does not run on TensorFlow, or a package is missing.
        ExportError: the file is invalid, or does not do what the model does and is not allowed to
            differ.
    """
    graph.check_model(model)
    if (size := estimated_size(model.spec, "float32")) > LIMIT:
        raise ValueError(
            f"this model needs {size / 1e9:.2f} GB, and an .onnx file holds at most "
            f"{LIMIT / 1e9:.2f} GB: export a SavedModel instead."
        )
    target = check_output(path, force=force, folder=False, suffix=".onnx")
    graph.check_backend()
    _check_packages()
    inputs, synthetic = verify.model_inputs(model, images)
    labels = verify.class_indices(labels, len(inputs))
    float_copy, note = graph.float32_model(model)
    outputs = graph.named_outputs(float_copy)
    reference = verify.run_in_chunks(lambda x: outputs(x, training=False), inputs)
    stored, stored_note = graph.stored_model(float_copy)

    with workplace(target) as folder:
        made = folder / target.name
        main = "probabilities" if model.spec.num_classes else "features"
        operations = _write(graph.named_outputs(stored), made, metadata_of(model, main, "float32"))
        artifact = open_artifact(made)
        found = verify.run_in_chunks(artifact.run, inputs)
        comparisons = {
            name: verify.compare(
                name,
                reference[name],
                found[name],
                "float32",
                synthetic=synthetic,
                what=f"output {name} of {target}",
                labels=labels,
                sigmoid=model.spec.classifier_activation == "sigmoid",
                allow=allow,
            )
            for name in sorted(reference, key=lambda name: name != main)
        }
        comparisons = {"serving_default": comparisons.pop(main), **comparisons}
        report = Report(
            format="onnx",
            mode="float32",
            artifact=target.name,
            size=made.stat().st_size,
            source=graph.source(model),
            class_names=model.class_names,
            versions=versions(),
            signatures={"serving_default": _ends(artifact, found)},
            operations=operations,
            comparisons=comparisons,
            **costs(made, inputs[:1]),
            runtimes={"opset": {"version": OPSET, "runtime": FIRST_RUNTIME}},
            notes=graph.notes(float_copy, note, stored_note),
        )
        put_in_place(made, target, report)
    return report


def _check_packages() -> None:
    """Refuses to begin where something is missing, with a RuntimeError."""
    missing = [n for n in ("tf2onnx", "onnx", "onnxruntime") if not importlib.util.find_spec(n)]
    if missing:
        raise RuntimeError(
            f'exports to ONNX need {" and ".join(missing)}: pip install "keras-vit-zoo[onnx]".'
        )


def _write(outputs: Any, path: Path, metadata: Any) -> dict[str, int]:
    """Writes a named model to a file that every check passes; returns its operations."""
    import collections

    import keras

    # Type checkers take `import onnx` for this very file.
    format: Any = importlib.import_module("onnx")
    height, width, channels = outputs.inputs[0].shape[1:]
    outputs(np.zeros((1, height, width, channels), np.float32))  # the exporter asks for a call
    signature = [
        keras.InputSpec(shape=(None, height, width, channels), dtype="float32", name="images")
    ]
    raw = path.with_suffix(".raw.onnx")
    with _quiet():
        keras.Model.export(
            outputs,
            str(raw),
            format="onnx",
            input_signature=signature,
            opset_version=OPSET,
            verbose=False,
        )
    made = format.load(str(raw))
    raw.unlink()
    _replace_erfc(made.graph, format)
    _name_batch(made.graph)
    # keras.Model gives a dict in the order of its sorted names.
    expected = sorted(outputs.output)
    if [output.name for output in made.graph.output] != expected:
        found = [output.name for output in made.graph.output]
        raise verify.ExportError(f"the exporter gave outputs {found}, expected {expected}.")
    entry = made.metadata_props.add()
    entry.key, entry.value = METADATA, json.dumps(metadata_to_dict(metadata))
    try:
        format.checker.check_model(made, full_check=True)
    except Exception as error:
        first = str(error).strip().split("\n")[0]
        raise verify.ExportError(f"the exporter wrote no valid ONNX: {first}") from None
    format.save(made, str(path))
    counts = collections.Counter(node.op_type for node in made.graph.node)
    return dict(counts.most_common())


def _replace_erfc(made: Any, format: Any) -> None:
    """`Erfc`, which ONNX does not have, as 1 - Erf."""
    nodes = []
    for node in made.node:
        if node.op_type != "Erfc":
            nodes.append(node)
            continue
        one, erf = f"{node.output[0]}/one", f"{node.output[0]}/erf"
        made.initializer.append(
            format.numpy_helper.from_array(np.ones((), np.float32), name=one)
        )  # fmt: skip
        nodes.append(format.helper.make_node("Erf", [node.input[0]], [erf], name=erf))
        nodes.append(
            format.helper.make_node("Sub", [one, erf], [node.output[0]], name=node.output[0])
        )
    del made.node[:]
    made.node.extend(nodes)


def _name_batch(made: Any) -> None:
    """Calls the free first dimension of every end `batch`."""
    for end in (*made.input, *made.output):
        end.type.tensor_type.shape.dim[0].dim_param = "batch"


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without the exporter's lines about operations that are replaced afterwards."""
    before = logging.root.manager.disable
    logging.disable(logging.ERROR)
    try:
        with warnings.catch_warnings():
            # Its patch for NumPy 2 asks for `np.object`.
            warnings.simplefilter("ignore", FutureWarning)
            yield
    finally:
        logging.disable(before)


def _ends(artifact: Artifact, found: dict[str, np.ndarray]) -> dict[str, Any]:
    return {
        "inputs": {"images": [list(artifact.input_shape), "float32"]},
        "outputs": {n: [[None, *y.shape[1:]], str(y.dtype)] for n, y in found.items()},
    }
