"""`convert` and `export`: the same model in another container."""

import os
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from keras_vit.cli.classifier import ImageSize
from keras_vit.cli.common import (
    Answer,
    Classes,
    Force,
    bytes_text,
    check_file,
    check_parent,
    log,
    open_data,
    size_option,
)

VERIFY_LIMIT = 64  # images of --data an export is compared on
CALIBRATION_LIMIT = 128  # and a static one calibrated on
BUDGET_LIMIT = 512  # and accuracy measured on, for --max-drop

Model = Annotated[
    str, typer.Argument(help="A name, or the path of a checkpoint.", show_default=False)
]

# Suffix of an output: its format. Without one it is a folder.
SUFFIXES = {
    ".npz": "google_npz",
    ".safetensors": "timm",
    ".weights.h5": "keras_weights",
    ".keras": "keras",
    "": "huggingface",
}
SUFFIXES_OF = {layout: suffix for suffix, layout in SUFFIXES.items()} | {"keras_hub": ""}


class Dtype(StrEnum):
    """Choices of convert --dtype."""

    float32 = "float32"
    float16 = "float16"


class Layout(StrEnum):
    """Choices of convert --format."""

    google_npz = "google_npz"
    timm = "timm"
    huggingface = "huggingface"
    keras_hub = "keras_hub"
    keras_weights = "keras_weights"
    keras = "keras"


class Format(StrEnum):
    """Choices of export --format."""

    litert = "litert"
    onnx = "onnx"
    saved_model = "saved_model"


class Quantize(StrEnum):
    """Choices of export --quantize."""

    float32 = "float32"
    float16 = "float16"
    dynamic_int8 = "dynamic_int8"
    int4_weights = "int4_weights"
    int8 = "int8"
    int16x8 = "int16x8"


class Input(StrEnum):
    """Choices of export --input."""

    float32 = "float32"
    uint8 = "uint8"


class Output(StrEnum):
    """Choices of export --output."""

    probabilities = "probabilities"
    logits = "logits"
    features = "features"


def convert(
    model: Model,
    out: Annotated[
        Path,
        typer.Argument(
            help="OUT.npz (official layout), OUT.safetensors (timm), OUT.weights.h5 or OUT.keras "
            "(Keras), or a folder (Hugging Face, KerasHub).",
            show_default=False,
        ),
    ],
    format: Annotated[
        Layout | None, typer.Option("--format", help="By default by the name of the output.")
    ] = None,
    dtype: Annotated[
        Dtype, typer.Option("--dtype", help="Of all formats but Keras's own.")
    ] = Dtype.float32,
    image_size: ImageSize = None,
    force: Force = False,
) -> Answer:
    """Convert a checkpoint to another container.

    Beside the file, or in the folder, lies a .json with what weights cannot say: specification,
    classes, preprocessing.
    """
    layout = _layout(out, format)
    if SUFFIXES_OF[layout]:
        check_file(out, (SUFFIXES_OF[layout],), force)
    elif os.path.lexists(out) and not force:
        raise FileExistsError(f"{out} exists: give another name, or --force to replace it.")
    check_parent(out)
    if layout in ("keras", "keras_weights") and dtype != Dtype.float32:
        raise ValueError(f"{out.name} keeps float32 weights: leave --dtype out.")
    size = size_option(image_size)
    from keras_vit.zoo.api import load, save_weights_as

    loaded = load(model, image_size=size)
    if layout != "keras":
        save_weights_as(loaded, out, format=layout, dtype=dtype.value, force=force)
    else:
        part = out.with_name(f".{out.stem}.part.keras")
        try:
            loaded.save(part)
            os.replace(part, out)
        finally:
            part.unlink(missing_ok=True)
    files = list(out.iterdir()) if out.is_dir() else [out]
    written = sum(file.stat().st_size for file in files)
    data = {
        "model": model,
        "out": str(out),
        "format": layout,
        "bytes": written,
        "spec": loaded.spec.to_dict(),
    }
    return Answer(data, (f"written: {out}, {bytes_text(written)}",))


def _layout(out: Path, format: Layout | None) -> str:
    """The format of an output: as asked, else by its suffix."""
    if format is not None:
        return format.value
    for suffix, layout in SUFFIXES.items():
        if out.name.endswith(suffix) and (suffix or not out.suffix):
            return layout
    raise ValueError(
        f"the output must end in {', '.join(filter(None, SUFFIXES))} or in nothing for a folder, got "
        f"{str(out)!r}."
    )


def export(
    model: Model,
    out: Annotated[
        Path,
        typer.Option(
            "-o",
            "--out",
            help="FILE.tflite, FILE.onnx, or a SavedModel folder.",
            show_default=False,
        ),
    ],
    format: Annotated[
        Format | None, typer.Option("--format", help="By default by the name of the output.")
    ] = None,
    quantize: Annotated[
        Quantize,
        typer.Option(
            "--quantize", help="Of a .tflite file. int8 and int16x8 are for NPUs and need --data."
        ),
    ] = Quantize.float32,
    float_layers: Annotated[
        list[str] | None,
        typer.Option(
            "--float-layers",
            metavar="PATTERN",
            help="Layers that stay in float32, such as 'encoderblock_.*/norm.*'; may be repeated.",
            show_default=False,
        ),
    ] = None,
    strict: Annotated[
        bool,
        typer.Option("--strict", help="int8, int16x8: all integers, input too, or it fails."),
    ] = False,
    calibration: Annotated[
        str,
        typer.Option(
            "--calibration", help="int8, int16x8: minmax, or percentile:P such as percentile:99.9."
        ),
    ] = "minmax",
    max_drop: Annotated[
        float | None,
        typer.Option(
            "--max-drop",
            help="int8, int16x8: accuracy that may be lost on --data, 0.01 for a point; the most "
            "sensitive blocks stay in float32 until it is kept.",
            show_default=False,
        ),
    ] = None,
    batch: Annotated[
        int,
        typer.Option("--batch", min=0, help="Images in one run of a .tflite; 0 for any number."),
    ] = 1,
    input: Annotated[
        Input,
        typer.Option(
            "--input",
            help="Of a .tflite file: preprocessed float32 images, or uint8 pixels, with the "
            "normalisation inside the file.",
        ),
    ] = Input.float32,
    output: Annotated[
        Output, typer.Option("--output", help="Of a .tflite file.")
    ] = Output.probabilities,
    data: Annotated[
        str | None,
        typer.Option("--data", help="Images to calibrate and compare on; synthetic by default."),
    ] = None,
    classes: Classes = None,
    image_size: ImageSize = None,
    allow: Annotated[
        bool,
        typer.Option("--allow", help="Keep it also if the comparison fails; the report says so."),
    ] = False,
    force: Force = False,
) -> Answer:
    """Export to LiteRT (.tflite), ONNX or SavedModel; run it and compare it before it is kept.

    A report lies beside the artifact. A failed comparison is an error and nothing is written, unless
    --allow.
    Where Keras runs on JAX, a process of its own with TensorFlow does the work.
    """
    if format is None:
        format = {".tflite": Format.litert, ".onnx": Format.onnx}.get(
            out.suffix, Format.saved_model
        )
    plain = (Quantize.float32, Input.float32, Output.probabilities, 1)
    special = float_layers or strict or calibration != "minmax" or max_drop is not None
    if format != Format.litert and (special or (quantize, input, output, batch) != plain):
        raise ValueError(
            f"{out} is no .tflite file, so it knows no --quantize with its options, --input, --output "
            f"and --batch: leave them out."
        )
    from keras_vit.export import output as outputs

    if os.path.lexists(out) and not force:
        raise FileExistsError(f"{out} exists: give another name, or --force to replace it.")
    folder, suffix = format == Format.saved_model, f".{format.value}".replace("litert", "tflite")
    outputs.check_output(out, force=force, folder=folder, suffix=suffix)
    check_parent(out)
    size = size_option(image_size)
    source = open_data(data, classes) if data else None
    from keras_vit.zoo.api import load

    loaded = load(model, image_size=size)
    static = quantize in (Quantize.int8, Quantize.int16x8)
    limit = CALIBRATION_LIMIT if static else VERIFY_LIMIT
    limit = limit if max_drop is None else BUDGET_LIMIT
    known = set(loaded.class_names)
    labelled = bool(source and not source.multi_label and set(source.class_names) <= known)
    if source and (labelled or max_drop is not None):
        from keras_vit.train.evaluate import align

        source = align(source, loaded.class_names)
    images, labels = _images(loaded, source, limit) if source else (None, None)
    log(f"exporting {model} to {out} ...")
    report = export_model(
        loaded,
        out,
        format="tf_saved_model" if folder else format.value,
        quantize=None if quantize == Quantize.float32 else quantize.value,
        batch=batch or None,
        input=input.value,
        output=output.value,
        images=images,
        labels=labels if labelled or max_drop is not None else None,
        force=force,
        allow=allow,
        float_layers=float_layers or [],
        strict=strict,
        calibration=calibration,
        max_drop=max_drop,
    )
    return Answer({"out": str(out), **report.to_dict()}, (report.to_text(),))


def export_model(
    model,
    path,
    *,
    format: str,
    images=None,
    labels=None,
    force: bool = False,
    allow: bool = False,
    **options,
):
    """Exports in this process where Keras runs on TensorFlow, else in one of its own.

    Args:
        model: a VisionModel.
        path: target.
        format: `litert`, `onnx` or `tf_saved_model`.
        images, labels, force, allow: as in `keras_vit.export`.
        options: of `keras_vit.export.litert`; the other formats take none.
    """
    import keras

    from keras_vit import export as exports

    options = options if format == "litert" else {}
    options |= {"images": images, "labels": labels, "force": force, "allow": allow}
    if keras.backend.backend() != "tensorflow":
        return exports.in_tensorflow_process(model, path, format=format, **options)
    if format != "litert":
        return exports.FORMATS[format](model, path, **options)
    from keras_vit.cli.progress import counter

    with counter("calibrating") as progress:
        return exports.litert(model, path, progress=progress, **options)


def _images(model, source, limit):
    """(images of a source as the model takes them, evenly over the set, their class indices)."""
    import numpy as np

    from keras_vit.data.batches import Batches

    count = min(limit, len(source))
    part = source.take(np.linspace(0, len(source) - 1, count).astype(int))
    batches = Batches(
        part, model.spec.image_size, model.spec.in_channels, model.preprocessing, batch_size=count
    )
    images, labels, *_ = batches[0]
    if not len(images):
        raise ValueError(f"none of {count} images of {source.name} can be read.")
    return images, np.asarray(labels).argmax(-1)
