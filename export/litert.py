"""LiteRT (.tflite) for phones: one signature, fixed batch, builtin operations only."""

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from keras_vit.export import flatbuffer, graph, verify
from keras_vit.export.artifact import Artifact, open_artifact
from keras_vit.export.benchmark import adb_command, costs
from keras_vit.export.memory import returned_at_once
from keras_vit.export.metadata import mediapipe_note, metadata_of, with_metadata
from keras_vit.export.modes import Options, check_quantization, quantization_notes, quantize_file
from keras_vit.export.output import check_output, put_in_place, workplace
from keras_vit.export.report import DELEGATE_NOTE, Report, versions
from keras_vit.export.runtimes import gpu_problems, required_runtimes
from keras_vit.export.size import check_size, estimated_size

SIGNATURE = "serving_default"
LARGE = 2**28  # bytes of float32 weights
RESIZABLE_NOTE = (
    "the batch can be resized at run time; the shape operations this needs split the graph into "
    "many partitions, so batch=1 is faster on phones."
)


def litert(
    model: Any,
    path: str | Path,
    *,
    quantize: str | None = None,
    batch: int | None = 1,
    input: str = "float32",
    output: str = "probabilities",
    images: Any = None,
    labels: Any = None,
    float_layers: Sequence[str] = (),
    strict: bool = False,
    calibration: str = "minmax",
    max_drop: float | None = None,
    force: bool = False,
    allow: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> Report:
    """Exports a model as a .tflite file, runs it, compares it with the model, and reports.

    Args:
        model: a VisionModel.
        path: the file to write; the report goes to `<path>.json`.
        quantize: None for float32, `float16` (half the size, same speed), `dynamic_int8` (a
            quarter of the size, about twice as fast on CPUs; try it first for phones),
            `int4_weights` (an eighth), or for NPUs `int8` and `int16x8`, which need images.
        batch: images in one run. The file is then not resizable; None makes one that is, at the
            price of shape operations.
        input: `float32`, preprocessed images, or `uint8`, pixels of 0..255 at the size of the model:
            the normalisation is then inside the file, and the app only resizes.
        output: `probabilities`, `logits`, or `features` (before the head).
        images: to calibrate and compare on: uint8 images (B, h, w, C) or preprocessed floats
            (B, H, W, C); None makes seeded synthetic ones, which calibrate nothing.
        labels: class indices (B,) of the images, for the accuracy in the report and for `max_drop`.
        float_layers: patterns of layer names that stay in float32: `["head",
            "encoderblock_.*/norm.*"]`. `int8` adds the residual stream of transformers by itself.
        strict: of `int8` and `int16x8`: all integers, input and output too, or it fails.
        calibration: of the same two: `minmax`, or `percentile:99.9` to cut rare values off.
        max_drop: of the same two: share of correct images that may be lost (0.01 is a point); the
            most sensitive blocks stay in float32 until it is kept.
        force: replace an earlier export.
        allow: keep the file also when the comparison fails; its report says so.
        progress: called with (done, total) while images are calibrated on and blocks are ranked.

    Raises:
        ValueError, TypeError: an argument is wrong; the file would exceed 2 GiB.
        FileExistsError, OSError: the output exists or cannot be written.
        RuntimeError: Keras does not run on TensorFlow.
        ExportError: conversion fails, or the file does not do what the model does and is not allowed
            to differ.
    """
    mode = quantize or "float32"
    check_options(batch, output, input)
    graph.check_model(model)
    options = Options(tuple(float_layers), strict, calibration, max_drop)
    check_quantization(
        model.spec, mode, options, batch=batch, input=input, images=images, labels=labels
    )
    check_size(model.spec, mode)
    target = check_output(path, force=force, folder=False)
    if output != "features" and not model.spec.num_classes:
        raise ValueError(f"this model has no head, so no {output}: use output='features'.")
    graph.check_backend()
    from keras_vit.export.inference import inference_outputs  # only now: it is made of Keras layers

    inputs, synthetic = verify.model_inputs(model, images)
    labels = verify.class_indices(labels, len(inputs))
    given = inputs
    if input == "uint8":
        given, inputs = graph.rounded_pixels(model, inputs)
    float_copy, note = graph.float32_model(model)
    outputs = graph.named_outputs(float_copy)
    reference = verify.run_in_chunks(lambda x: {output: outputs(x, training=False)[output]}, inputs)

    stored, stored_note = graph.stored_model(float_copy)
    outputs = inference_outputs(stored)

    with workplace(target) as folder:
        made, base = folder / target.name, folder / "float32.tflite"
        normalization = graph.normalization(model) if input == "uint8" else None
        expected_size = estimated_size(model.spec, "float32")
        with returned_at_once():
            content = convert(outputs, output, batch, expected_size, normalization)
        base.write_bytes(content)
        details = None
        if mode != "float32":
            content, details = quantize_file(
                content,
                mode,
                options,
                source=model,
                inputs=inputs,
                given=given,
                labels=labels,
                progress=progress,
            )
        made.write_bytes(with_metadata(content, metadata_of(model, output, input)))
        artifact = open_artifact(made)
        found = verify.run_in_chunks(artifact.run, given)
        comparison = verify.compare(
            output,
            reference[output],
            found[output],
            mode,
            synthetic=synthetic,
            what=str(target),
            labels=labels,
            sigmoid=model.spec.classifier_activation == "sigmoid",
            allow=allow,
        )
        operations, weights = flatbuffer.operations(made)
        if flex := [name for name in operations if name.startswith("Flex")]:
            raise verify.ExportError(
                f"{target} would need TensorFlow operations {flex}; nothing was written."
            )
        signatures = _signatures(artifact, output, found[output], batch, details)
        del artifact, content  # each holds all weights
        partitions, undelegated = flatbuffer.delegation(made)
        one = given[:1] if batch is None else np.repeat(given[:1], batch, axis=0)
        baseline = None
        if mode != "float32":
            runtime = open_artifact(base)
            latency = verify.measure_latency(lambda: runtime.run(one), threads=1)
            del runtime
            baseline = {"size": base.stat().st_size, "latency": vars(latency)}
        report = Report(
            format="litert",
            mode=mode,
            artifact=target.name,
            size=made.stat().st_size,
            source=graph.source(model),
            class_names=model.class_names,
            versions=versions(),
            signatures=signatures,
            operations=operations,
            comparisons={SIGNATURE: comparison},
            weights=weights,
            partitions=partitions,
            undelegated=undelegated,
            baseline=baseline,
            quantization=details,
            **costs(made, one),
            runtimes=required_runtimes(made),
            gpu=gpu_problems(made),
            adb=adb_command(target),
            notes=graph.notes(
                float_copy,
                note,
                stored_note,
                verify.agreement_note(comparison),
                RESIZABLE_NOTE if batch is None else None,
                *quantization_notes(mode, details),
                mediapipe_note(model, input),
                f"latency is that of one run with {batch} images." if batch and batch > 1 else None,
                DELEGATE_NOTE,
            ),
        )
        put_in_place(made, target, report)
    return report


def check_options(batch: int | None, output: str, input: str = "float32") -> None:
    """Refuses options that do not exist, with a ValueError."""
    if input not in graph.INPUTS:
        raise ValueError(f"input must be one of {list(graph.INPUTS)}, got {input!r}.")
    if output not in graph.OUTPUTS:
        raise ValueError(f"output must be one of {list(graph.OUTPUTS)}, got {output!r}.")
    if batch is not None and (not isinstance(batch, int) or batch < 1):
        raise ValueError(
            f"batch must be a positive number, or None for a resizable file, got {batch!r}."
        )


def convert(
    outputs: Any,
    output: str,
    batch: int | None,
    expected_size: int,
    normalization: Any = None,
) -> bytes:
    """The float32 .tflite of one named output, from a temporary SavedModel with one signature.

    Args:
        outputs: a Keras model with a dict of outputs, as `inference.inference_outputs` makes it.
        output: the one to keep, under this name; the converter drops the rest.
        batch: images in one run, or None.
        expected_size: bytes; beyond `LARGE` weights are stored after the flatbuffer.
        normalization: a layer from uint8 pixels to the input of the model, which becomes a part of
            the file; None for one that takes what the model takes.

    Raises:
        ExportError: the converter refuses the graph.
    """
    import keras
    import tensorflow as tf

    def served(images):
        given = images if normalization is None else normalization(images)
        return {output: outputs(given, training=False)[output]}

    shape = (batch, *outputs.inputs[0].shape[1:])
    kind = tf.float32 if normalization is None else tf.uint8
    archive = keras.export.ExportArchive()
    archive.track(outputs)
    archive.add_endpoint(SIGNATURE, served, [tf.TensorSpec(shape, kind, name="images")])
    with tempfile.TemporaryDirectory() as folder:
        archive.write_out(folder, verbose=False)
        converter = tf.lite.TFLiteConverter.from_saved_model(folder, signature_keys=[SIGNATURE])
        # Without TensorFlow's own operations among them, a graph that needs one fails here rather
        # than on the phone.
        converter.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS]
        # The alternative is packed again in Python, twice, which takes five times the weights.
        converter._experimental_use_buffer_offset = expected_size > LARGE
        try:
            return converter.convert()
        except Exception as error:
            first = str(error).strip().split("\n")[0]
            raise verify.ExportError(f"the converter refused the model: {first}") from error


def _signatures(
    artifact: Artifact,
    output: str,
    found: np.ndarray,
    batch: int | None,
    details: dict[str, Any] | None,
) -> dict[str, Any]:
    # What a strict file takes and gives; `artifact` converts from and to floats.
    ends = details or {}
    taken = ends["input"]["dtype"] if "input" in ends else artifact.input_type
    given = ends["output"]["dtype"] if "output" in ends else str(found.dtype)
    inputs = {"images": [list(artifact.input_shape), taken]}
    return {
        SIGNATURE: {
            "inputs": inputs,
            "outputs": {output: [[batch, *found.shape[1:]], given]},
        }
    }
