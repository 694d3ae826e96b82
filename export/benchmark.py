"""How fast a .tflite file of any tool runs here, how much memory it takes, and how to ask a phone."""

import dataclasses
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from keras_vit.export.artifact import interpreter
from keras_vit.export.report import Latency

ROUNDS = 30
WARM_UP = 3
PHONE_FOLDER = "/data/local/tmp"
# Run by a process of its own: the peak of this one has seen everything it ever did.
MEMORY = """
import sys
from keras_vit.export.artifact import runtime_class
from keras_vit.export.benchmark import peak_of_process, prepared
runtime_class()
run = prepared(sys.argv[1], int(sys.argv[2]), load=False)
before = peak_of_process()
run()
print(peak_of_process() - before)
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
        adb: shell commands that measure it on a phone.
    """

    path: Path
    size: int
    latencies: tuple[Latency, ...]
    peak_memory: int | None
    adb: str

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
        paths: .tflite files, also of other tools; their inputs get seeded random numbers, and free
            dimensions are 1.
        threads: of the runtime, one latency for each.
        rounds: runs of each, after a warm-up.
        progress: called with (done, total) rounds.

    Raises:
        FileNotFoundError, ValueError: a path is no .tflite file, or it cannot be run.
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
        found.append(Benchmark(path, path.stat().st_size, latencies, memory, adb_command(path)))
    return found


def _checked(path: str | Path) -> Path:
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"{path} does not exist: give .tflite files.")
    with path.open("rb") as file:
        if file.read(8)[4:] != b"TFL3":
            raise ValueError(f"{path} is no .tflite file: export one with keras-vit export.")
    return path


def _latency(times: list[float], threads: int) -> Latency:
    low, median, high = np.percentile(times, (10, 50, 90))
    return Latency(float(median), float(low), float(high), len(times), threads)


def prepared(path: str | Path, threads: int, load: bool = True) -> Callable[[], None]:
    """A call that runs a file once on random input.

    Args:
        path: a .tflite file.
        threads: of the runtime.
        load: open the file now, else in the first call.

    Raises:
        ValueError: the runtime refuses the file.
    """
    opened: list[Any] = []

    def run():
        if not opened:
            opened.append(_opened(path, threads))
        opened[0].invoke()

    if load:
        opened.append(_opened(path, threads))
    return run


def _opened(path: str | Path, threads: int) -> Any:
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
        kind = np.dtype(details["dtype"])
        numbers = rng.uniform(-1.0, 1.0, details["shape"])
        if kind.kind in "iu":
            limits = np.iinfo(kind)
            low, high = max(limits.min, -128), min(limits.max, 255)
            numbers = low + (high - low) * (numbers + 1.0) / 2.0
        runtime.set_tensor(details["index"], numbers.astype(kind))
    return runtime


def peak_of_process() -> int:
    """Bytes of memory this process has held at most. Linux."""
    with open("/proc/self/status") as status:
        return next(1024 * int(line.split()[1]) for line in status if line.startswith("VmHWM"))


def peak_memory(path: str | Path, threads: int = 1) -> int | None:
    """Bytes that loading a file and running it once add to a process; None where nothing tells."""
    if not os.path.exists("/proc/self/status"):
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
