"""What was exported, from what, how it compares with the Keras model, how large and how fast it is."""

import dataclasses
import importlib.metadata
import json
import platform
from pathlib import Path
from typing import Any

DELEGATE_NOTE = (
    "partitions and undelegated operations are those of the CPU delegate XNNPACK on this machine; "
    "GPU and NPU delegates were not tried."
)
PACKAGES = (
    *("keras", "tensorflow", "ai-edge-litert", "ai-edge-quantizer", "numpy"),
    *("onnx", "onnxruntime", "tf2onnx"),
)


@dataclasses.dataclass(frozen=True)
class Comparison:
    """One output of the artifact against the same output of the Keras model.

    Attributes:
        output: `probabilities`, `logits` or `features`.
        images: how many were run.
        synthetic: True when no images were given and seeded ones were made.
        largest_error: largest absolute difference of one number.
        mean_error: mean absolute difference.
        relative_error: root mean square of the differences, over the standard deviation of the
            Keras outputs; unlike the absolute errors it does not depend on how sharp they are.
        agreement: share of images with the same top-1 class; None where there are no classes.
        bound: `(name of an error above, largest value that passes)`.
        accuracy, model_accuracy: shares of images with the right class, of the artifact and of the
            Keras model; None where no labels were given.
        largest_logit_error, mean_logit_error: of the logits; probabilities give them up to a constant
            for each image, where they have digits. None for features.
        failed: what is wrong, in a sentence, where a file that fails this check was allowed.
    """

    output: str
    images: int
    synthetic: bool
    largest_error: float
    mean_error: float
    relative_error: float
    agreement: float | None
    bound: tuple[str, float]
    accuracy: float | None = None
    model_accuracy: float | None = None
    largest_logit_error: float | None = None
    mean_logit_error: float | None = None
    failed: str | None = None


@dataclasses.dataclass(frozen=True)
class Latency:
    """Time of one image on the machine that exported, in milliseconds.

    Attributes:
        median_ms: the median run.
        low_ms, high_ms: the fastest and the slowest tenth begin here.
        runs: timed runs, after a warm-up.
        threads: threads of the runtime; None where TensorFlow decides, which is told their number only
            in a process of its own.
    """

    median_ms: float
    low_ms: float
    high_ms: float
    runs: int
    threads: int | None


@dataclasses.dataclass(frozen=True)
class Report:
    """The report that lies beside every artifact.

    Attributes:
        format: `litert`, `onnx` or `tf_saved_model`.
        mode: a name of `keras_vit.export.quantize.MODES`.
        artifact: name of the file or folder.
        size: bytes of the file, or of all files of the folder.
        source: `spec`, `card` (None for a model without one; it names the checkpoint's file and
            hash), `dtype`, `num_params` and `weights_sha256`, over names and values of all weights.
        class_names: names of the outputs in order.
        versions: of Python and the packages that took part.
        signatures: name -> `{"inputs": {name: [shape, dtype]}, "outputs": {...}}`; None in a
            shape is any size.
        operations: how often each operation occurs.
        weights: bytes of constants by type (LiteRT).
        partitions: pieces that XNNPACK took over (LiteRT); None where unknown.
        undelegated: operations that XNNPACK left to the plain kernels (LiteRT).
        comparisons: signature -> comparison with the Keras model.
        latency: of `serving_default` with one image.
        baseline: `size` and `latency` of the float32 file that a smaller mode was made from.
        quantization: of a smaller mode: `float_layers` as asked for, and `float`, the operations
            that compute in float32 (layer -> kind -> count); of static ones also `calibration`,
            `calibration_images`, `strict`, with it `input` and `output` (dtype, scale, zero_point),
            and `sensitivity` where blocks were chosen for a budget.
        notes: sentences a user should know.
        latency_2: the same latency with two threads; None where it could not be measured.
        peak_memory: bytes that loading and running the artifact add to a process; None where unknown.
        runtimes: operation -> `version` and `runtime`, the first LiteRT that runs it or None; of an
            .onnx file the same of its `opset` and onnxruntime.
        gpu: operations that GPU delegates do not take by their rules, with the reason (LiteRT).
        adb: shell commands that measure the file on a phone (LiteRT).
    """

    format: str
    mode: str
    artifact: str
    size: int
    source: dict[str, Any]
    class_names: tuple[str, ...]
    versions: dict[str, str]
    signatures: dict[str, Any]
    operations: dict[str, int]
    comparisons: dict[str, Comparison]
    latency: Latency
    weights: dict[str, int] = dataclasses.field(default_factory=dict)
    partitions: int | None = None
    undelegated: dict[str, int] = dataclasses.field(default_factory=dict)
    baseline: dict[str, Any] | None = None
    quantization: dict[str, Any] | None = None
    notes: tuple[str, ...] = ()
    latency_2: Latency | None = None
    peak_memory: int | None = None
    runtimes: dict[str, Any] = dataclasses.field(default_factory=dict)
    gpu: dict[str, str] = dataclasses.field(default_factory=dict)
    adb: str | None = None

    @property
    def comparison(self) -> Comparison:
        """The comparison of `serving_default`."""
        return self.comparisons["serving_default"]

    @property
    def failed(self) -> tuple[str, ...]:
        """What is wrong with an artifact that was allowed all the same; empty for a good one."""
        return tuple(c.failed for c in self.comparisons.values() if c.failed)

    def to_dict(self) -> dict[str, Any]:
        """Plain values only, as they are written to JSON."""
        return json.loads(json.dumps(dataclasses.asdict(self)))

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "Report":
        """Rebuilds a report from `to_dict()`."""
        values = dict(values)
        values["comparisons"] = {
            name: Comparison(**{**c, "bound": tuple(c["bound"])})
            for name, c in values["comparisons"].items()
        }
        for field in ("latency", "latency_2"):
            values[field] = values.get(field) and Latency(**values[field])
        for field in ("class_names", "notes"):
            values[field] = tuple(values[field])
        return cls(**values)

    @classmethod
    def read(cls, artifact: str | Path) -> "Report":
        """The report beside an artifact.

        Raises:
            FileNotFoundError: there is none.
        """
        return cls.from_dict(json.loads(report_path(artifact).read_text("utf-8")))

    def to_json(self) -> str:
        """The text of the report file."""
        return json.dumps(self.to_dict(), indent=1, ensure_ascii=False) + "\n"

    def to_text(self) -> str:
        """A few lines for people."""
        time, lines = (
            self.latency,
            [f"{self.artifact}: {self.format} {self.mode}, {_size(self.size)}"],
        )
        if self.baseline:
            lines[0] += f" (float32: {_size(self.baseline['size'])})"
        for name, c in self.comparisons.items():
            agreement = "" if c.agreement is None else f", top-1 agreement {c.agreement:.1%}"
            kind = "synthetic images" if c.synthetic else "images"
            lines.append(
                f"  {name}: {c.output} of {c.images} {kind}, largest error {c.largest_error:.1e}, "
                f"mean {c.mean_error:.1e}{_logits(c)}{agreement}{_accuracy(c)}"
            )
        lines += [f"  CHECK FAILED: {sentence}" for sentence in self.failed]
        threads = "default threads" if time.threads is None else f"{time.threads} thread(s)"
        latency = f"{time.median_ms:.2f} ms ({time.low_ms:.2f} to {time.high_ms:.2f}), {threads}"
        if self.baseline:
            latency += f"; float32: {self.baseline['latency']['median_ms']:.2f} ms"
        if self.latency_2:
            latency += f"; {self.latency_2.median_ms:.2f} ms with 2 threads"
        memory = f", {_size(self.peak_memory)} of memory" if self.peak_memory else ""
        lines.append(f"  one image: {latency}{memory}")
        if self.partitions is not None:
            left = ", ".join(f"{n} {name}" for name, n in self.undelegated.items()) or "none"
            lines.append(
                f"  XNNPACK partitions: {self.partitions}, operations left outside: {left}"
            )
        if self.runtimes:
            newest = max(
                (found["runtime"] for found in self.runtimes.values() if found["runtime"]),
                key=lambda text: tuple(map(int, text.split("."))),
                default="of unknown version",
            )
            if self.format == "onnx":
                lines.append(f"  needs onnxruntime {newest}")
            else:
                gpu = ", ".join(self.gpu) or "nothing that is known"
                lines.append(f"  needs LiteRT {newest}; GPU delegates do not take: {gpu}")
        lines += [f"  note: {note}" for note in self.notes]
        return "\n".join(lines + ([f"  on a phone: {self.adb}"] if self.adb else []))


def report_path(artifact: str | Path) -> Path:
    """Where the report of an artifact lies: `<file>.json`, or `<folder>/report.json`."""
    artifact = Path(artifact)
    return artifact / "report.json" if artifact.is_dir() else Path(f"{artifact}.json")


def versions() -> dict[str, str]:
    """Versions of Python, of this package and of what takes part in exports."""
    found = {"python": platform.python_version()}
    for package in ("keras-vit-zoo", *PACKAGES):
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def _logits(c: Comparison) -> str:
    if c.largest_logit_error is None or c.mean_logit_error is None or c.output == "logits":
        return ""
    return f" (of logits {c.largest_logit_error:.1e}, {c.mean_logit_error:.1e})"


def _accuracy(c: Comparison) -> str:
    if c.accuracy is None or c.model_accuracy is None:
        return ""
    return f", accuracy {c.accuracy:.1%} (the model {c.model_accuracy:.1%})"


def _size(number: int) -> str:
    return f"{number / 1e6:.2f} MB"
