"""Test accuracy of the embedded Fashion-MNIST models in every mode of a .tflite file.

    python -m benchmarks.quantize [--images 10000] [--only int8 ...] [--models ViT ...] [--processes 2]

Each model is converted once, quantised as `keras_vit.export.litert` does it, calibrated on 128 training
images where a mode needs that, and run on the test images: all 10,000 where the set is installed, else
the 1,000 that ship with the package. `int8 naive` quantises every operation, which is no mode of ours.
The last model is the ViT with a massive activation planted into one token, as large transformers have
them: 50 times the spread of the residual stream where it is widest. Results are kept as they come, so that an interrupted run goes on. Writes
`benchmarks/quantize.json` and the table in `docs/export.md`.
"""

import argparse
import concurrent.futures
import functools
import json
import multiprocessing
import os
import tempfile
import time
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("KERAS_BACKEND", "tensorflow")

import numpy as np

from benchmarks.table import replace_block

HERE = Path(__file__).parent
MODELS = {
    "ViT": "ViT-Mini/4@fashion_mnist",
    "hybrid": "R14+ViT-Mini/4@fashion_mnist",
    "BiT": "BiT-Mini@fashion_mnist",
    "ViT, planted outlier": "ViT-Mini/4@fashion_mnist",
}
MODES = ("float32", "float16", "dynamic_int8", "int4_weights", "int8", "int8 naive", "int16x8")
# Points of accuracy that a mode may lose.
LIMITS = {"float16": 0.1, "dynamic_int8": 0.2, "int8": 1.0, "int16x8": 0.2}
CALIBRATION = 128
PLANTED = 1000  # test images of the model with the outlier


def plant_outlier(model, images) -> None:
    """Makes one channel of one token 50 times the spread of the residual stream."""
    last = f"encoderblock_{model.spec.num_layers - 1}"
    spread = float(np.asarray(model.features(last)(images)).std())
    table = next(v for v in model.weights if v.path.endswith("posembed_input/table"))
    values = np.array(table)
    values[0, 0, 7] = 50.0 * spread
    table.assign(values)


class Files:
    """The files of one model in every mode, from one conversion."""

    def __init__(self, model, folder: Path, calibration, output: str = "logits"):
        from keras_vit import export

        self.model, self.images = model, calibration
        export.litert(model, folder / "float32.tflite", output=output)
        self.content = (folder / "float32.tflite").read_bytes()

    @functools.cached_property
    def ranges(self):
        from keras_vit.export.calibrate import activation_ranges

        return activation_ranges(self.content, self.images)

    def made(self, mode: str) -> bytes:
        """The file of a mode, with what `keras_vit.export.litert` leaves in float32."""
        from keras_vit.export.quantize import chosen_operations, quantized

        if mode == "float32":
            return self.content
        kind = mode.split()[0]
        keep = () if "naive" in mode else chosen_operations(self.content, kind, (), strict=False)
        return quantized(self.content, kind, ranges=self.ranges, in_float=keep)


def measure(content: bytes, test: np.ndarray, labels: np.ndarray, pool) -> dict:
    """Accuracy, size, and the time that all images took, of one file."""
    from keras_vit.export.sensitivity import outputs_of

    start = time.perf_counter()
    parts = np.array_split(test, 20)
    found = np.concatenate(list(pool.map(outputs_of, [content] * len(parts), parts))).argmax(1)
    return {
        "images": len(test),
        "accuracy": round(100 * float((found == labels).mean()), 2),
        "megabytes": round(len(content) / 1e6, 3),
        "seconds": round(time.perf_counter() - start, 1),
    }


def to_table(results: dict) -> str:
    """The Markdown table: a row per mode."""
    names = list(results["models"])
    lines = [
        "| mode | " + " | ".join(f"{name}: top-1, size" for name in names) + " |",
        "| --- |" + " --- |" * len(names),
    ]
    for mode in MODES:
        cells = []
        for name in names:
            row = results["models"][name].get(mode)
            if row is None:
                cells.append("")
            else:
                cells.append(f"{row['accuracy']:.2f} %, {row['megabytes']:.2f} MB")
        lines.append(f"| `{mode}` | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def failures(results: dict) -> list[str]:
    """Modes that lose more than they may, in the models that nothing was planted into."""
    found = []
    for name, rows in results["models"].items():
        for mode, limit in LIMITS.items():
            if "planted" in name and mode != "int8":
                continue
            row = rows.get(mode)
            if row is None:
                continue
            lost = rows["float32"]["accuracy"] - row["accuracy"]
            if lost > limit:
                found.append(f"{name}, {mode}: {lost:.2f} points lost, expected at most {limit}")
    return found


def main() -> int:
    """Measures what is missing, writes the results and the table, and checks the limits."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--images", type=int, default=10_000, help="test images")
    parser.add_argument("--only", nargs="+", choices=MODES, default=MODES, help="modes to run")
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--processes", type=int, default=2, help="that run files at a time")
    parser.add_argument("--fresh", action="store_true", help="measure what is known again")
    args = parser.parse_args()
    import keras_vit
    from keras_vit.data.sources import fashion_mnist
    from keras_vit.export.verify import model_inputs

    try:
        train, data = fashion_mnist("train"), fashion_mnist("test")
    except ValueError:
        train, data = fashion_mnist("subset_train"), fashion_mnist("subset_test")
    count = min(args.images, len(data))
    file = HERE / "quantize.json"
    results = {"images": count, "calibration_images": CALIBRATION, "models": {}}
    if file.exists() and not args.fresh:
        known = json.loads(file.read_text("utf-8"))
        results = known if known["images"] == count else results
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(args.processes, context) as pool:
        for name in args.models:
            source = MODELS[name]
            rows = results["models"].setdefault(name, {})
            wanted = [mode for mode in args.only if mode not in rows]
            if name == "BiT":
                wanted = [mode for mode in wanted if mode != "int4_weights"]
            if not wanted:
                continue
            model = keras_vit.load(source)
            calibration = model_inputs(model, np.asarray(train.images[:CALIBRATION]))[0]
            test = model_inputs(model, np.asarray(data.images[:count]))[0]
            if "planted" in name:
                plant_outlier(model, calibration)
                test = test[:PLANTED]
            with tempfile.TemporaryDirectory() as folder:
                files = Files(model, Path(folder), calibration)
                for mode in wanted:
                    rows[mode] = measure(files.made(mode), test, data.labels[: len(test)], pool)
                    print(f"{name}, {mode}: {rows[mode]}", flush=True)
                    file.write_text(json.dumps(results, indent=1) + "\n", "utf-8")
    replace_block(HERE.parent / "docs" / "export.md", "quantize", to_table(results))
    print(to_table(results))
    print("\n".join(failures(results)))
    return 1 if failures(results) else 0


if __name__ == "__main__":
    raise SystemExit(main())
