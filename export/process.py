"""Exporting from a process that runs another backend, by a process of its own that runs TensorFlow."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from keras_vit.export import graph
from keras_vit.export.litert import check_options
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
    force: bool = False,
) -> Report:
    """Exports a model of any backend: saves it, and runs `python -m keras_vit.export` on the file.

    Args:
        model: a VisionModel.
        path: the file or folder to write.
        format: `litert`, or `onnx` and `tf_saved_model`, which know no `quantize`, `batch`, `input` and `output`.
        quantize, batch, input, output, images, force: as for `litert`.

    Raises:
        ValueError, TypeError, FileExistsError: as for `litert`, before anything is started.
        ExportError: the other process failed; the message is its last line.
    """
    if format not in SUFFIXES:
        raise ValueError(f"format must be one of {list(SUFFIXES)}, got {format!r}.")
    graph.check_model(model)
    folder = format == "tf_saved_model"
    options = []
    if format == "litert":
        mode = quantize or "float32"
        check_options(mode, batch, output, input)
        check_size(model.spec, mode)
        options = ["--quantize", mode, "--batch", str(batch or 0)]
        options += ["--input", input, "--output", output]
    target = check_output(path, force=force, folder=folder, suffix=SUFFIXES[format])
    target = target.absolute()
    with tempfile.TemporaryDirectory() as work:
        saved = Path(work) / "model.keras"
        model.save(saved)
        if images is not None:
            np.save(Path(work) / "images.npy", np.asarray(images))
            options += ["--images", str(Path(work) / "images.npy")]
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
            [*command, *options, *(["--force"] if force else [])],
            env={**os.environ, "KERAS_BACKEND": "tensorflow"},
            capture_output=True,
            text=True,
            check=False,
        )
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"it ended with code {done.returncode}"]
        raise ExportError(f"the export process failed: {lines[-1].removeprefix('error: ')}")
    return Report.read(target)
