"""SavedModel for servers: several signatures, any batch, preprocessing inside."""

import collections
from pathlib import Path
from typing import Any

import numpy as np

from keras_vit.data.decode import decode_jpeg
from keras_vit.export import graph, verify
from keras_vit.export.benchmark import costs
from keras_vit.export.output import check_output, put_in_place, workplace
from keras_vit.export.report import Report, versions

DECODED_CHANNELS = (1, 3)  # what image files hold


def saved_model(
    model: Any,
    path: str | Path,
    *,
    images: Any = None,
    labels: Any = None,
    force: bool = False,
    allow: bool = False,
) -> Report:
    """Exports a model as a SavedModel folder, runs it, compares it with the model, and reports.

    Signatures, each with one input `images` and any batch size: `serving_default` (preprocessed
    float32 images -> `logits`, `probabilities`), `serve_uint8` (uint8 images of any size -> the
    same), `serve_jpeg` (the bytes of JPEG files, (B,) strings, each of its own size -> the same; for
    models of 1 or 3 channels), `features` (-> `features`, what the head sees), and Keras's own
    `serve` (-> `output_0`, what calling the model gives). A model without a head gives `features`
    everywhere. The folder loads with TensorFlow alone.

    Args:
        model: a VisionModel.
        path: the folder to write; the report is `report.json` in it.
        images: to compare on: uint8 images (B, h, w, C) or preprocessed floats (B, H, W, C); None
            makes seeded synthetic ones.
        labels: class indices (B,) of the images, for the accuracy in the report.
        force: replace an earlier export.
        allow: keep the folder also when a comparison fails; its report says so.

    Raises:
        TypeError, ValueError: the model or the images are wrong.
        FileExistsError, OSError: the output exists or cannot be written.
        RuntimeError: Keras does not run on TensorFlow.
        ExportError: the SavedModel does not do what the model does and is not allowed to differ.
    """
    graph.check_model(model)
    target = check_output(path, force=force, folder=True)
    graph.check_backend()
    inputs, synthetic = verify.model_inputs(model, images)
    labels = verify.class_indices(labels, len(inputs))
    float_copy, note = graph.float32_model(model)
    outputs = graph.named_outputs(float_copy)
    stored, stored_note = graph.stored_model(float_copy)

    with workplace(target) as folder:
        made = folder / target.name
        _write(stored, graph.named_outputs(stored), made)
        comparisons, signatures, operations = _check(
            float_copy, outputs, made, inputs, synthetic, target, labels, allow
        )
        report = Report(
            format="tf_saved_model",
            mode="float32",
            artifact=target.name,
            size=sum(file.stat().st_size for file in made.rglob("*") if file.is_file()),
            source=graph.source(model),
            class_names=model.class_names,
            versions=versions(),
            signatures=signatures,
            operations=operations,
            comparisons=comparisons,
            **costs(made, inputs[:1]),
            notes=graph.notes(float_copy, note, stored_note),
        )
        put_in_place(made, target, report)
    return report


def _write(model: Any, outputs: Any, folder: Path) -> None:
    import keras
    import tensorflow as tf

    preprocessor = model.preprocessor
    kept = ("logits", "probabilities") if model.spec.num_classes else ("features",)
    called = "probabilities" if model.spec.classifier_activation else kept[0]

    def served(images):
        found = outputs(images, training=False)
        return {name: found[name] for name in kept}

    floats = tf.TensorSpec((None, *outputs.inputs[0].shape[1:]), tf.float32, name="images")
    pixels = tf.TensorSpec((None, None, None, model.spec.in_channels), tf.uint8, name="images")
    strings = tf.TensorSpec((None,), tf.string, name="images")

    def of_file(contents):
        return preprocessor(decode_jpeg(contents, model.spec.in_channels)[None])[0]

    def of_files(contents):
        # One by one, because every image may have another size.
        made = tf.TensorSpec(outputs.inputs[0].shape[1:], tf.float32)
        return served(tf.map_fn(of_file, contents, fn_output_signature=made))

    endpoints = {
        "serving_default": (served, floats),
        "serve_uint8": (lambda images: served(preprocessor(images)), pixels),
        "features": (
            lambda images: {"features": outputs(images, training=False)["features"]},
            floats,
        ),
        "serve": (lambda images: outputs(images, training=False)[called], floats),
    }
    if model.spec.in_channels in DECODED_CHANNELS:
        endpoints["serve_jpeg"] = (of_files, strings)
    archive = keras.export.ExportArchive()
    archive.track(outputs)
    for name, (function, signature) in endpoints.items():
        archive.add_endpoint(name, function, [signature])
    archive.write_out(str(folder), verbose=False)


def _check(
    model: Any,
    outputs: Any,
    folder: Path,
    inputs: np.ndarray,
    synthetic: bool,
    path: Path,
    labels: np.ndarray | None,
    allow: bool,
):
    """Runs every signature against the Keras model: (comparisons, signatures, operations)."""
    import tensorflow as tf

    loaded = tf.saved_model.load(str(folder))
    pixels = verify.synthetic_images((*model.spec.image_size, model.spec.in_channels))
    main = "probabilities" if model.spec.num_classes else "features"
    called = main if model.spec.classifier_activation or main == "features" else "logits"
    cases = {  # signature -> (images, input of the Keras model, output there, output here)
        "serving_default": (inputs, inputs, main, main),
        "serve_uint8": (pixels, verify.model_inputs(model, pixels)[0], main, main),
        "features": (inputs, inputs, "features", "features"),
        "serve": (inputs, inputs, called, "output_0"),
    }
    if model.spec.in_channels in DECODED_CHANNELS:
        files = np.array([tf.io.encode_jpeg(image).numpy() for image in pixels], object)
        decoded = np.stack([decode_jpeg(file, model.spec.in_channels) for file in files])
        cases["serve_jpeg"] = (files, verify.model_inputs(model, decoded)[0], main, main)
    comparisons, signatures = {}, {}
    for name, (given, keras_input, output, key) in cases.items():
        signature = loaded.signatures[name]  # pyright: ignore[reportAttributeAccessIssue]
        reference = verify.run_in_chunks(lambda x: outputs(x, training=False), keras_input)[output]

        def run(x, signature=signature):
            return signature(images=tf.constant(x))

        comparisons[name] = verify.compare(
            output,
            reference,
            verify.run_in_chunks(run, given)[key],
            "float32",
            synthetic=synthetic or given is not inputs,
            what=f"signature {name} of {path}",
            labels=labels if given is inputs else None,
            sigmoid=model.spec.classifier_activation == "sigmoid",
            allow=allow,
        )
        arguments = signature.structured_input_signature[1]
        signatures[name] = {
            "inputs": {n: _described(spec) for n, spec in arguments.items()},
            "outputs": {n: _described(spec) for n, spec in signature.structured_outputs.items()},
        }
    graph_def = loaded.signatures["serving_default"].graph.as_graph_def()  # pyright: ignore
    nodes = [*graph_def.node, *(n for f in graph_def.library.function for n in f.node_def)]
    operations = dict(collections.Counter(node.op for node in nodes).most_common())
    return comparisons, signatures, operations


def _described(spec: Any) -> list[Any]:
    return [spec.shape.as_list(), spec.dtype.name]
