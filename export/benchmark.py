"""How fast an exported file of any tool runs here, how much memory it takes, and how to ask a phone."""

import contextlib
import dataclasses
import json
import os
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from keras_vit.export.artifact import interpreter, onnx_session, open_artifact, runtime_class
from keras_vit.export.report import Latency
from keras_vit.export.verify import measure_latency

ROUNDS = 30
WARM_UP = 3
PATIENCE = 600  # seconds for a process that measures
STATUS = "/proc/self/status"  # of a process, on Linux
THREADS = (1, 2)  # that reports have a latency with
PHONE_FOLDER = "/data/local/tmp"
# Of .onnx files: the types their inputs can have here.
ONNX_TYPES = {"float": "float32", "double": "float64", "float16": "float16", "uint8": "uint8",
              "int8": "int8", "int32": "int32", "int64": "int64"}  # fmt: skip
# Run by a process of its own: the peak of this one has seen everything it ever did.
MEMORY = """
import sys
from keras_vit.export.benchmark import import_runtime, peak_of_process, prepared
import_runtime(sys.argv[1])
run = prepared(sys.argv[1], int(sys.argv[2]), load=False)
before = peak_of_process()
run()
print(peak_of_process() - before)
"""
SAVED_MODEL = """
import sys
from keras_vit.export.benchmark import print_costs
print_costs(sys.argv[1], sys.argv[2], int(sys.argv[3]))
"""


@dataclasses.dataclass(frozen=True)
class Benchmark:
    """One file.

    Attributes:
        path: the file.
        size: bytes.
        latencies: one for each number of threads.
        peak_memory: bytes that loading it and running it once add to a process; None where the
            system does not tell.
        adb: shell commands that measure it on a phone (.tflite).
    """

    path: Path
    size: int
    latencies: tuple[Latency, ...]
    peak_memory: int | None
    adb: str | None

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {
            **dataclasses.asdict(self),
            "path": str(self.path),
            "latencies": [dataclasses.asdict(latency) for latency in self.latencies],
        }


def benchmark(
    paths: Sequence[str | Path],
    *,
    threads: Sequence[int] = (1, 2),
    rounds: int = ROUNDS,
    progress: Callable[[int, int], None] | None = None,
) -> list[Benchmark]:
    """Times files against each other: in each round every file runs once, so that all see the same machine.

    Args:
        paths: .tflite and .onnx files, also of other tools; their inputs get seeded random numbers,
            and free dimensions are 1.
        threads: of the runtime, one latency for each.
        rounds: runs of each, after a warm-up.
        progress: called with (done, total) rounds.

    Raises:
        FileNotFoundError, ValueError: a path is no such file, or it cannot be run.
        RuntimeError: its runtime is not installed.
    """
    files = [_checked(path) for path in paths]
    runs = [(i, t, prepared(path, t)) for i, path in enumerate(files) for t in threads]
    times: list[list[float]] = [[] for _ in runs]
    for round_ in range(-WARM_UP, rounds):
        # Another begins each time: who comes after a large file finds cold caches.
        for k in np.roll(np.arange(len(runs)), round_):
            start = time.perf_counter()
            runs[k][2]()
            if round_ >= 0:
                times[k].append(1e3 * (time.perf_counter() - start))
        if progress and round_ >= 0:
            progress(round_ + 1, rounds)
    found = []
    for i, path in enumerate(files):
        latencies = tuple(_latency(times[k], t) for k, (file, t, _) in enumerate(runs) if file == i)
        memory = peak_memory(path, max(threads))
        adb = None if path.suffix == ".onnx" else adb_command(path)
        found.append(Benchmark(path, path.stat().st_size, latencies, memory, adb))
    return found


def _checked(path: str | Path) -> Path:
    path = Path(path)
    if not path.exists():
        raise FileNotFoundError(f"{path} does not exist: give .tflite or .onnx files.")
    if path.is_dir():
        raise ValueError(
            f"{path} is a folder; the threads of a SavedModel are those of its process: its report has "
            f"the latency with one and with two."
        )
    if path.suffix == ".onnx":
        return path
    with path.open("rb") as file:
        if file.read(8)[4:] != b"TFL3":
            raise ValueError(
                f"{path} is no .tflite or .onnx file: export one with keras-vit export."
            )
    return path


def _latency(times: list[float], threads: int) -> Latency:
    low, median, high = np.percentile(times, (10, 50, 90))
    return Latency(float(median), float(low), float(high), len(times), threads)


def prepared(path: str | Path, threads: int, load: bool = True) -> Callable[[], Any]:
    """A call that runs a file once on random input.

    Args:
        path: a .tflite or .onnx file.
        threads: of the runtime.
        load: open the file now, else in the first call.

    Raises:
        ValueError: the runtime refuses the file.
    """
    opener = _opened_onnx if Path(path).suffix == ".onnx" else _opened
    opened = [opener(path, threads)] if load else []

    def run():
        if not opened:
            opened.append(opener(path, threads))
        opened[0]()

    return run


def import_runtime(path: str | Path) -> None:
    """Imports what runs a file, so that its memory is not counted as the file's."""
    if Path(path).suffix == ".onnx":
        import onnxruntime  # noqa: F401
    else:
        runtime_class()


def _opened(path: str | Path, threads: int) -> Callable[[], Any]:
    rng = np.random.default_rng(0)
    try:
        runtime = interpreter(path, threads)
        for details in runtime.get_input_details():
            signature = details.get("shape_signature", details["shape"])
            if any(size < 0 for size in signature):
                runtime.resize_tensor_input(details["index"], [max(1, s) for s in signature])
        runtime.allocate_tensors()
    except (ValueError, RuntimeError) as error:
        raise ValueError(
            f"{path} cannot be run: {' '.join(str(error).split())}; an operation of TensorFlow or of "
            f"one's own needs the runtime it was made for."
        ) from None
    for details in runtime.get_input_details():
        numbers = _random(rng, details["shape"], np.dtype(details["dtype"]))
        runtime.set_tensor(details["index"], numbers)
    return runtime.invoke


def _opened_onnx(path: str | Path, threads: int) -> Callable[[], Any]:
    session, rng = onnx_session(path, threads), np.random.default_rng(0)
    given = {}
    for entry in session.get_inputs():
        kind = entry.type.removeprefix("tensor(").removesuffix(")")
        if kind not in ONNX_TYPES:
            raise ValueError(f"{path} cannot be timed: its input {entry.name} is {entry.type}.")
        shape = [size if isinstance(size, int) else 1 for size in entry.shape]
        given[entry.name] = _random(rng, shape, np.dtype(ONNX_TYPES[kind]))
    return lambda: session.run(None, given)


def _random(rng: np.random.Generator, shape: Any, kind: np.dtype) -> np.ndarray:
    """Numbers in -1..1, those of integer types in -128..255 as far as they reach."""
    numbers = rng.uniform(-1.0, 1.0, shape)
    if kind.kind in "iu":
        limits = np.iinfo(kind)
        low, high = max(limits.min, -128), min(limits.max, 255)
        numbers = low + (high - low) * (numbers + 1.0) / 2.0
    return numbers.astype(kind)


def costs(path: Path, images: np.ndarray) -> dict[str, Any]:
    """`latency`, `latency_2` and `peak_memory` of an artifact, as reports have them.

    TensorFlow's threads are those of a process, so a SavedModel is timed in processes of its own; where
    they give nothing, here, with the threads TensorFlow chooses.

    Args:
        path: a .tflite or .onnx file or a SavedModel folder.
        images: one run's input, as the artifact takes it.
    """
    if path.is_dir():
        found = _saved_model_costs(path, images)
        if len(found) == len(THREADS):
            latencies = [Latency(**each["latency"]) for each in found]
            memory = found[0]["memory"]
        else:
            artifact = open_artifact(path)
            latencies = [measure_latency(lambda: artifact.run(images), threads=None), None]
            memory = None
    else:
        latencies = []
        for threads in THREADS:
            artifact = open_artifact(path, threads=threads)
            latencies.append(measure_latency(lambda run=artifact.run: run(images), threads=threads))
        memory = peak_memory(path)
    return {"latency": latencies[0], "latency_2": latencies[1], "peak_memory": memory}


def _saved_model_costs(path: Path, images: np.ndarray) -> list[dict[str, Any]]:
    """What `print_costs` prints for each number of threads; fewer where a process fails."""
    found = []
    with tempfile.TemporaryDirectory() as work:
        file = Path(work) / "images.npy"
        np.save(file, images)
        for threads in THREADS:
            command = [sys.executable, "-c", SAVED_MODEL, str(path.absolute()), str(file)]
            with contextlib.suppress(subprocess.TimeoutExpired):
                done = subprocess.run(
                    [*command, str(threads)],
                    capture_output=True,
                    text=True,
                    check=False,
                    timeout=PATIENCE,
                )
                lines = done.stdout.splitlines()
                found += [json.loads(line) for line in lines if line.startswith("{")]
    return found


def print_costs(path: str, images: str, threads: int) -> None:
    """Prints a line of JSON: `latency`, and `memory`, bytes or null.

    Args:
        path: a SavedModel folder.
        images: an .npy file with one run's input.
        threads: of TensorFlow, which must not have run before in this process.
    """
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(threads)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    given, known = np.load(images), os.path.exists(STATUS)
    before = peak_of_process() if known else 0
    artifact = open_artifact(path)
    artifact.run(given)
    memory = peak_of_process() - before if known else None
    latency = measure_latency(lambda: artifact.run(given), threads=threads)
    print(json.dumps({"latency": vars(latency), "memory": memory}), flush=True)


def peak_of_process() -> int:
    """Bytes of memory this process has held at most. Linux."""
    with open(STATUS) as status:
        return next(1024 * int(line.split()[1]) for line in status if line.startswith("VmHWM"))


def peak_memory(path: str | Path, threads: int = 1) -> int | None:
    """Bytes that loading a file and running it once add to a process; None where nothing tells."""
    if not os.path.exists(STATUS):
        return None
    command = [sys.executable, "-c", MEMORY, str(path), str(threads)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    try:
        return int(done.stdout.split()[-1])
    except (IndexError, ValueError):
        return None


def adb_command(path: str | Path, threads: int = 1) -> str:
    """Shell commands that measure a file on a phone with TensorFlow Lite's own benchmark_model."""
    name = Path(path).name
    there = shlex.quote(f"{PHONE_FOLDER}/{name}")
    return f"adb push {shlex.quote(str(path))} {PHONE_FOLDER}/ && adb shell " + shlex.quote(
        f"{PHONE_FOLDER}/benchmark_model --graph={there} --num_threads={threads} --num_runs=50"
    )
