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

Model = Annotated[str, typer.Argument(help="A name, or a .keras or .npz file.", show_default=False)]


class Dtype(StrEnum):
    """Choices of convert --dtype."""

    float32 = "float32"
    float16 = "float16"


class Format(StrEnum):
    """Choices of export --format."""

    litert = "litert"
    saved_model = "saved_model"


class Quantize(StrEnum):
    """Choices of export --quantize."""

    float32 = "float32"
    float16 = "float16"
    dynamic_int8 = "dynamic_int8"


class Output(StrEnum):
    """Choices of export --output."""

    probabilities = "probabilities"
    logits = "logits"
    features = "features"


def convert(
    model: Model,
    out: Annotated[
        Path,
        typer.Argument(help="OUT.npz (the official layout) or OUT.keras.", show_default=False),
    ],
    dtype: Annotated[Dtype, typer.Option("--dtype", help="Of an .npz.")] = Dtype.float32,
    image_size: ImageSize = None,
    force: Force = False,
) -> Answer:
    """Convert a checkpoint between the official npz layout and a .keras file.

    Beside an .npz lies a .json with what weights cannot say: specification, classes, preprocessing.
    """
    check_file(out, (".npz", ".keras"), force)
    if out.suffix == ".keras" and dtype != Dtype.float32:
        raise ValueError("a .keras file keeps float32 weights: leave --dtype out.")
    size = size_option(image_size)
    from keras_vit.zoo.api import load, save_weights_as

    loaded = load(model, image_size=size)
    if out.suffix == ".npz":
        save_weights_as(loaded, out, dtype=dtype.value, force=force)
    else:
        part = out.with_name(f".{out.stem}.part.keras")
        try:
            loaded.save(part)
            os.replace(part, out)
        finally:
            part.unlink(missing_ok=True)
    written = out.stat().st_size
    data = {"model": model, "out": str(out), "bytes": written, "spec": loaded.spec.to_dict()}
    return Answer(data, (f"written: {out}, {bytes_text(written)}",))


def export(
    model: Model,
    out: Annotated[
        Path,
        typer.Option(
            "-o", "--out", help="FILE.tflite, or a SavedModel folder.", show_default=False
        ),
    ],
    format: Annotated[
        Format | None, typer.Option("--format", help="By default by the name of the output.")
    ] = None,
    quantize: Annotated[
        Quantize, typer.Option("--quantize", help="Of a .tflite file.")
    ] = Quantize.float32,
    batch: Annotated[
        int,
        typer.Option("--batch", min=0, help="Images in one run of a .tflite; 0 for any number."),
    ] = 1,
    output: Annotated[
        Output, typer.Option("--output", help="Of a .tflite file.")
    ] = Output.probabilities,
    data: Annotated[
        str | None, typer.Option("--data", help="Images to compare on; synthetic by default.")
    ] = None,
    classes: Classes = None,
    image_size: ImageSize = None,
    force: Force = False,
) -> Answer:
    """Export to LiteRT (.tflite) or SavedModel; run it and compare it before it is kept.

    A report lies beside the artifact. A failed comparison is an error and nothing is written.
    Where Keras runs on JAX, a process of its own with TensorFlow does the work.
    """
    folder = format == Format.saved_model or (format is None and out.suffix != ".tflite")
    if folder and (quantize, output, batch) != (Quantize.float32, Output.probabilities, 1):
        raise ValueError("a SavedModel knows no --quantize, --output and --batch: leave them out.")
    from keras_vit.export import output as outputs

    if os.path.lexists(out) and not force:
        raise FileExistsError(f"{out} exists: give another name, or --force to replace it.")
    outputs.check_output(out, force=force, folder=folder)
    check_parent(out)
    size = size_option(image_size)
    source = open_data(data, classes) if data else None
    from keras_vit.zoo.api import load

    loaded = load(model, image_size=size)
    images = _images(loaded, source) if source else None
    log(f"exporting {model} to {out} ...")
    report = export_model(
        loaded,
        out,
        folder=folder,
        quantize=None if quantize == Quantize.float32 else quantize.value,
        batch=batch or None,
        output=output.value,
        images=images,
        force=force,
    )
    return Answer({"out": str(out), **report.to_dict()}, (report.to_text(),))


def export_model(model, path, *, folder: bool, images=None, force: bool = False, **options):
    """Exports in this process where Keras runs on TensorFlow, else in one of its own.

    Args:
        model: a VisionModel.
        path: target.
        folder: a SavedModel, else a .tflite file.
        images, force: as in `keras_vit.export`.
        options: of `keras_vit.export.litert`; a SavedModel takes none.
    """
    import keras

    from keras_vit import export as exports

    options = {} if folder else options
    if keras.backend.backend() != "tensorflow":
        form = "tf_saved_model" if folder else "litert"
        return exports.in_tensorflow_process(
            model, path, format=form, images=images, force=force, **options
        )
    if folder:
        return exports.saved_model(model, path, images=images, force=force)
    return exports.litert(model, path, images=images, force=force, **options)


def _images(model, source):
    """The first images of a source as the model takes them, evenly over the set."""
    import numpy as np

    from keras_vit.data.batches import Batches

    count = min(VERIFY_LIMIT, len(source))
    part = source.take(np.linspace(0, len(source) - 1, count).astype(int))
    batches = Batches(
        part, model.spec.image_size, model.spec.in_channels, model.preprocessing, batch_size=count
    )
    images = batches[0][0]
    if not len(images):
        raise ValueError(f"none of {count} images of {source.name} can be read.")
    return images
