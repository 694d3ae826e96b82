"""Running exported files: one object for a SavedModel folder, a .tflite and an .onnx file."""

import contextlib
import dataclasses
import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from keras_vit.export.metadata import Metadata, metadata_from_dict, read_metadata
from keras_vit.export.report import Report

Outputs = dict[str, np.ndarray]


@dataclasses.dataclass(frozen=True)
class Artifact:
    """An exported model that can be run.

    Attributes:
        path: the file or folder.
        format: `litert`, `onnx` or `tf_saved_model`.
        input_shape: (B, H, W, C) of what is run; None is any size.
        outputs: names of what `run` returns.
        run: images (B, H, W, C) of `input_type` -> outputs by name, for any B.
        report: what lies beside the artifact, None where nothing does.
        metadata: what stands in a .tflite or .onnx file, None where nothing does.
        input_type: `float32`, preprocessed, or `uint8`, pixels at the size of the model.
    """

    path: Path
    format: str
    input_shape: tuple[int | None, ...]
    outputs: tuple[str, ...]
    run: Callable[[np.ndarray], Outputs]
    report: Report | None = None
    metadata: Metadata | None = None
    input_type: str = "float32"

    def predict(self, images: Any) -> np.ndarray:
        """Preprocessed float images (B, H, W, C) -> probabilities (B, classes).

        Where pixels go in, floats of 0..255 are rounded to them.

        Raises:
            ValueError: the images have the wrong shape or type, or the artifact has no classes.
        """
        outputs = self.run(self.checked(images))
        if "probabilities" in outputs:
            return outputs["probabilities"]
        if "logits" in outputs:
            return as_probabilities(outputs["logits"], self.sigmoid)
        if len(outputs) == 1 and "features" not in outputs:
            return next(iter(outputs.values()))  # a file of someone else, taken as it is
        raise ValueError(
            f"{self.path} gives {list(outputs)}, which are no probabilities: use run(images), or "
            f"export again with output='probabilities'."
        )

    @property
    def sigmoid(self) -> bool:
        """Whether an image can have several classes, as the report or the metadata says."""
        if self.report:
            return self.report.source["spec"].get("classifier_activation") == "sigmoid"
        return bool(self.metadata and self.metadata.sigmoid)

    def checked(self, images: Any) -> np.ndarray:
        """The images as the artifact takes them, or a ValueError that says what is wrong with them."""
        images = np.asarray(images)
        expected = self.input_shape[1:]
        fits = images.ndim == 4 and all(
            want is None or want == got
            for want, got in zip(expected, images.shape[1:], strict=True)
        )
        if fits and self.input_type == "uint8":
            return pixels(images, str(self.path))
        if not fits or not np.issubdtype(images.dtype, np.floating):
            raise ValueError(
                f"{self.path} takes preprocessed float images of shape (batch, "
                f"{', '.join(map(str, expected))}), got {images.dtype} of shape {images.shape}: pass "
                f"8-bit images through model.preprocessor first."
            )
        return np.ascontiguousarray(images, np.float32)


def pixels(images: np.ndarray, what: str) -> np.ndarray:
    """Whole numbers in 0..255 as uint8.

    Args:
        images: uint8, or floats of about 0..255, which are rounded and cut.
        what: names the taker in the error.

    Raises:
        ValueError: floats that are no pixels, normalised ones above all.
    """
    if images.dtype == np.uint8:
        return images
    low, high = (float(images.min()), float(images.max())) if images.size else (0.0, 0.0)
    # Bicubic resizing leaves 0..255 a little; what is small and negative was normalised.
    normalised = low < 0.0 and high < 16.0
    if not np.issubdtype(images.dtype, np.floating) or normalised or not high < 512.0:
        raise ValueError(
            f"{what} takes 8-bit pixels and normalises them itself, got {images.dtype} from {low:.3g} "
            f"to {high:.3g}: pass uint8 images of its size, not preprocessed ones."
        )
    return np.clip(np.rint(images), 0, 255).astype(np.uint8)


def open_artifact(
    path: str | Path, *, threads: int = 1, signature: str = "serving_default"
) -> Artifact:
    """Opens a SavedModel folder, a .tflite or an .onnx file for running.

    Args:
        path: what an export of this package (or, for .tflite, of any other) wrote.
        threads: threads of the runtime of a file; a SavedModel runs with TensorFlow's.
        signature: of a SavedModel, for example `features`; a .tflite file has one.

    Raises:
        FileNotFoundError: nothing is there.
        ValueError: it is neither kind.
        RuntimeError: no runtime is installed.
    """
    path = Path(path)
    if not path.exists():
        raise FileNotFoundError(
            f"{path} does not exist: expected a SavedModel folder or a .tflite file."
        )
    report = None
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        report = Report.read(path)  # anything else that lies there under this name is not ours
    if path.is_dir() and (path / "saved_model.pb").is_file():
        return _open_saved_model(path, signature, report)
    if path.is_file() and path.suffix == ".onnx":
        return _open_onnx(path, threads, report)
    if path.is_file():
        with path.open("rb") as file:
            if file.read(8)[4:] == b"TFL3":
                return _open_litert(path, threads, report)
    raise ValueError(
        f"{path} is neither a SavedModel folder (saved_model.pb inside) nor a .tflite or .onnx file: "
        f"export the model first with keras_vit.export."
    )


def runtime_class() -> Any:
    """The interpreter of `ai_edge_litert`, or of TensorFlow where that is not installed.

    Raises:
        RuntimeError: neither is installed.
    """
    try:
        from ai_edge_litert.interpreter import Interpreter
    except ImportError:
        try:
            import tensorflow as tf
        except ImportError:
            raise RuntimeError(
                "running a .tflite file needs the package ai-edge-litert or tensorflow: install one "
                "of them, for example with pip install ai-edge-litert."
            ) from None
        return tf.lite.Interpreter
    return Interpreter


def interpreter(path: str | Path, threads: int = 1) -> Any:
    """A LiteRT interpreter of a file.

    Raises:
        RuntimeError: no runtime is installed.
    """
    made = runtime_class()
    with warnings.catch_warnings():
        # TensorFlow's own interpreter says that it is deprecated; it is the fallback on purpose.
        warnings.filterwarnings("ignore", message=".*tf.lite.Interpreter is deprecated")
        return made(model_path=str(path), num_threads=threads)


def _open_litert(path: Path, threads: int, report: Report | None) -> Artifact:
    runtime = interpreter(path, threads)
    signatures = runtime.get_signature_list()
    if signatures:
        key = "serving_default" if "serving_default" in signatures else next(iter(signatures))
        runner, names = runtime.get_signature_runner(key), tuple(signatures[key]["outputs"])
    else:
        runner = _Plain(runtime)
        names = tuple(runner.get_output_details())
    (name, details), *others = runner.get_input_details().items()
    if others or len(details["shape_signature"]) != 4:
        raise ValueError(f"{path} has other inputs than one batch of images (B, H, W, C).")
    shape = tuple(None if size < 0 else int(size) for size in details["shape_signature"])

    # Integer files of quantisers: `run` takes and gives floats all the same.
    entry, ends = _scale(details), runner.get_output_details()
    scales = {n: _scale(end, (*SIGNED, np.uint8)) for n, end in ends.items()}

    def once(images: np.ndarray) -> Outputs:
        if entry:
            limits = np.iinfo(details["dtype"])
            steps = np.rint(images / entry[0]) + entry[1]
            images = np.clip(steps, limits.min, limits.max).astype(details["dtype"])
        outputs = runner(**{name: images})
        return {
            n: (y.astype(np.float32) - s[1]) * np.float32(s[0]) if (s := scales.get(n)) else y
            for n, y in outputs.items()
        }

    def run(images: np.ndarray) -> Outputs:
        if shape[0] is None:
            return once(images)
        # A fixed batch cannot be resized once XNNPACK has taken over, so larger ones are cut into
        # pieces and the last piece is filled up with copies of its last image.
        found = []
        for start in range(0, len(images), shape[0]):
            piece = images[start : start + shape[0]]
            missing = shape[0] - len(piece)
            filled = np.concatenate([piece, np.repeat(piece[-1:], missing, axis=0)])
            outputs = once(filled)
            found.append({n: y[: len(piece)] for n, y in outputs.items()})
        return {n: np.concatenate([part[n] for part in found]) for n in names}

    metadata = None
    with contextlib.suppress(ValueError):  # damaged or of another kind: it runs all the same
        metadata = read_metadata(path)
    kind = "float32" if entry else np.dtype(details["dtype"]).name
    return Artifact(path, "litert", shape, names, run, report, metadata, kind)


class _Plain:
    """Runs a file without signatures, as old converters leave them, like one that has one."""

    def __init__(self, runtime: Any):
        self.runtime = runtime
        runtime.allocate_tensors()
        self.inputs = {end["name"]: end for end in runtime.get_input_details()}
        self.outputs = {end["name"]: end for end in runtime.get_output_details()}

    def get_input_details(self) -> dict[str, Any]:
        return self.inputs

    def get_output_details(self) -> dict[str, Any]:
        return self.outputs

    def __call__(self, **arrays: np.ndarray) -> Outputs:
        for name, array in arrays.items():
            end = self.inputs[name]
            if tuple(array.shape) != tuple(end["shape"]):
                self.runtime.resize_tensor_input(end["index"], array.shape)
                self.runtime.allocate_tensors()
            self.runtime.set_tensor(end["index"], array)
        self.runtime.invoke()
        return {n: self.runtime.get_tensor(end["index"]) for n, end in self.outputs.items()}


SIGNED = (np.int8, np.int16)


def _scale(details: dict[str, Any], kinds: tuple[Any, ...] = SIGNED) -> tuple[float, int] | None:
    """(scale, zero point) of an integer end of a file; None for floats, and for pixels."""
    scale, zero = details["quantization"]
    return (scale, zero) if scale and details["dtype"] in kinds else None


def _open_saved_model(path: Path, key: str, report: Report | None) -> Artifact:
    try:
        import tensorflow as tf
    except ImportError:
        raise RuntimeError(
            'running a SavedModel needs TensorFlow: pip install "keras-vit-zoo[tf]".'
        ) from None
    loaded = tf.saved_model.load(str(path))
    with contextlib.suppress(KeyError):
        signature = loaded.signatures[key]  # pyright: ignore[reportAttributeAccessIssue]
        (name, spec), *_ = signature.structured_input_signature[1].items()

        def run(images: np.ndarray, loaded=loaded) -> Outputs:
            # `loaded` is named here because a signature alone does not keep its variables alive.
            return {n: y.numpy() for n, y in signature(**{name: tf.constant(images)}).items()}

        outputs = tuple(signature.structured_outputs)
        return Artifact(path, "tf_saved_model", tuple(spec.shape), outputs, run, report)
    raise ValueError(f"{path} has no signature {key}: export it with keras_vit.export.")


def onnx_session(path: str | Path, threads: int = 1) -> Any:
    """An onnxruntime session of a file, on the CPU.

    Raises:
        RuntimeError: onnxruntime is not installed.
        ValueError: it refuses the file.
    """
    try:
        import onnxruntime
    except ImportError:
        raise RuntimeError(
            "running an .onnx file needs onnxruntime: pip install onnxruntime."
        ) from None
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = threads, 4
    try:
        return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # each kind of fault has a class of its own
        raise ValueError(f"{path} cannot be opened: {' '.join(str(error).split())}") from None


def _open_onnx(path: Path, threads: int, report: Report | None) -> Artifact:
    session = onnx_session(path, threads)
    entry, *others = session.get_inputs()
    if others or len(entry.shape) != 4 or entry.type != "tensor(float)":
        raise ValueError(f"{path} has other inputs than one batch of float images.")
    shape = tuple(size if isinstance(size, int) else None for size in entry.shape)
    outputs = tuple(output.name for output in session.get_outputs())

    def run(images: np.ndarray) -> Outputs:
        return dict(zip(outputs, session.run(None, {entry.name: images}), strict=True))

    metadata = None
    with contextlib.suppress(ValueError, TypeError, KeyError):  # of another tool
        values = session.get_modelmeta().custom_metadata_map["keras_vit"]
        metadata = metadata_from_dict(json.loads(values))
    return Artifact(path, "onnx", shape, outputs, run, report, metadata)


def as_probabilities(logits: np.ndarray, sigmoid: bool) -> np.ndarray:
    """Logits (B, classes) as probabilities, of one class per image or of several."""
    if sigmoid:
        return 1.0 / (1.0 + np.exp(-logits))
    powers = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return powers / powers.sum(axis=-1, keepdims=True)
