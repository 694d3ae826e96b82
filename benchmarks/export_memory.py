"""Memory that converting ViT-L/16 takes, with random weights.

    python -m benchmarks.export_memory [--model ViT-L/16] [--modes float32 dynamic_int8 int8]

Each mode runs in a process of its own: the model is built, exported by `keras_vit.export.litert`, which also
compares and times it, and the largest resident memory of the process is read from the kernel (VmHWM). Linux.
Writes `benchmarks/export_memory.json`.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).parent
MODES = ("float32", "dynamic_int8", "int8")
LIMIT = 8.0  # GB
IMAGES = 16  # to calibrate and compare on; the least that a static mode takes


def measure(name: str, mode: str) -> dict:
    """Builds, exports, and reads the peak of this process."""
    import tempfile

    import keras

    import keras_vit
    from keras_vit.export.verify import synthetic_images

    keras.utils.set_random_seed(0)
    model = keras_vit.build(name)
    kernel = model.get_layer("head").kernel  # of zeros, which give nothing to compare
    kernel.assign(keras.random.normal(kernel.shape, stddev=0.02, seed=1))
    built = peak_gigabytes()
    images = synthetic_images((*model.spec.image_size, model.spec.in_channels), IMAGES)
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        report = keras_vit.export.litert(
            model,
            Path(folder) / "model.tflite",
            quantize=None if mode == "float32" else mode,
            images=images,
        )
    return {
        "parameters": model.spec.num_params,
        "built_gb": built,
        "peak_gb": peak_gigabytes(),
        "file_gb": round(report.size / 1e9, 3),
        "seconds": round(time.perf_counter() - start),
    }


def peak_gigabytes() -> float:
    """VmHWM of this process."""
    lines = Path("/proc/self/status").read_text("utf-8").splitlines()
    (kilobytes,) = (line.split()[1] for line in lines if line.startswith("VmHWM"))
    return round(int(kilobytes) * 1024 / 1e9, 2)


def in_a_process(name: str, mode: str) -> dict:
    """`measure` in a fresh process.

    Raises:
        RuntimeError: it failed; the message has the end of what it said.
    """
    code = f"import json; from benchmarks.export_memory import measure; print(json.dumps(measure({name!r}, {mode!r})))"
    environment = {**os.environ, "KERAS_BACKEND": "tensorflow", "TF_CPP_MIN_LOG_LEVEL": "2"}
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env=environment,
        cwd=HERE.parent,
    )
    if done.returncode:
        raise RuntimeError(f"{name} as {mode} failed:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout.strip().splitlines()[-1])


def main() -> int:
    """Measures every mode, writes the results, and fails above the limit."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", default="ViT-L/16")
    parser.add_argument("--modes", nargs="+", choices=MODES, default=MODES)
    args = parser.parse_args()
    file = HERE / "export_memory.json"
    results = json.loads(file.read_text("utf-8")) if file.exists() else {}
    rows = results.setdefault(args.model, {})
    for mode in args.modes:
        rows[mode] = in_a_process(args.model, mode)
        print(f"{args.model}, {mode}: {rows[mode]}", flush=True)
        file.write_text(json.dumps(results, indent=1) + "\n", "utf-8")
    above = [m for m in args.modes if rows[m]["peak_gb"] > LIMIT]
    print(f"above {LIMIT} GB: {', '.join(above) or 'none'}")
    return 1 if above else 0


if __name__ == "__main__":
    raise SystemExit(main())
