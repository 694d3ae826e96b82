"""Exporting from a process that runs another backend, by a process of its own that runs TensorFlow."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from keras_vit.export import graph
from keras_vit.export.litert import check_options
from keras_vit.export.modes import Options, check_quantization
from keras_vit.export.output import check_output
from keras_vit.export.report import Report
from keras_vit.export.size import check_size
from keras_vit.export.verify import ExportError

SUFFIXES = {"litert": ".tflite", "onnx": ".onnx", "tf_saved_model": ""}


def in_tensorflow_process(
    model: Any,
    path: str | Path,
    *,
    format: str = "litert",
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
) -> Report:
    """Exports a model of any backend: saves it, and runs `python -m keras_vit.export` on the file.

    Args:
        model: a VisionModel.
        path: the file or folder to write.
        format: `litert`, or `onnx` and `tf_saved_model`, which take `images`, `labels`, `force` and
            `allow` only.
        quantize, batch, input, output, images, labels, float_layers, strict, calibration, max_drop,
            force, allow: as for `litert`.

    Raises:
        ValueError, TypeError, FileExistsError: as for `litert`, before anything is started.
        ExportError: the other process failed; the message is its last line.
    """
    if format not in SUFFIXES:
        raise ValueError(f"format must be one of {list(SUFFIXES)}, got {format!r}.")
    graph.check_model(model)
    folder = format == "tf_saved_model"
    plain = format != "litert"
    options = []
    if not plain:
        mode = quantize or "float32"
        check_options(batch, output, input)
        how = Options(tuple(float_layers), strict, calibration, max_drop)
        check_quantization(
            model.spec, mode, how, batch=batch, input=input, images=images, labels=labels
        )
        check_size(model.spec, mode)
        options = ["--quantize", mode, "--batch", str(batch or 0)]
        options += ["--input", input, "--output", output, "--calibration", calibration]
        options += [
            f"--float-layers={layer}" for layer in float_layers
        ]  # one may begin with a dash
        options += ["--strict"] if strict else []
        options += [] if max_drop is None else ["--max-drop", repr(float(max_drop))]
    options += ["--force"] if force else []
    options += ["--allow"] if allow else []
    target = check_output(path, force=force, folder=folder, suffix=SUFFIXES[format])
    target = target.absolute()
    with tempfile.TemporaryDirectory() as work:
        saved = Path(work) / "model.keras"
        model.save(saved)
        for name, values in (("images", images), ("labels", labels)):
            if values is not None:
                np.save(Path(work) / f"{name}.npy", np.asarray(values))
                options += [f"--{name}", str(Path(work) / f"{name}.npy")]
        command = [
            sys.executable,
            "-m",
            "keras_vit.export",
            str(saved),
            str(target),
            "--format",
            format,
        ]
        done = subprocess.run(
            [*command, *options],
            env={**os.environ, "KERAS_BACKEND": "tensorflow"},
            capture_output=True,
            text=True,
            check=False,
        )
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"it ended with code {done.returncode}"]
        raise ExportError(f"the export process failed: {lines[-1].removeprefix('error: ')}")
    return Report.read(target)
