"""What int8 does to a real, trained network: DINOv2's ViT-S/14 on photographs it was not calibrated on.

    python -m benchmarks.real_int8 [--processes 2]        (needs what examples/few_shot_dinov2.py needs)

Files that give the class token are calibrated on the stamps of Tux Paint that are not of the six kinds of the
few-shot example, and run on those of the six kinds and on photographs of scikit-image and scikit-learn.
Told are the cosine of the class token to float32's, and the few-shot accuracy on it, by the example's
regression, with the same pictures to learn from in every mode. `int8 naive` quantises everything and is no
mode of ours. Writes `benchmarks/real_int8.json` and the table in `docs/real_weights.md`.
"""

import argparse
import concurrent.futures
import importlib
import importlib.util
import json
import multiprocessing
import os
import sys
import tempfile
import types
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("KERAS_BACKEND", "tensorflow")

import numpy as np

from benchmarks.quantize import Files
from benchmarks.table import replace_block

HERE = Path(__file__).parent
MODES = ("float32", "dynamic_int8", "int8", "int8 naive")
COSINE, POINTS = 0.99, 2.0  # what int8 must keep of the class token, and may lose of accuracy
SHOTS, DRAWS = (3, 5, 8), 20
CALIBRATION = 192  # at most
NO_PHOTOGRAPHS = {"symbols", "seasonal", "people"}
PHOTOGRAPHS = {
    "skimage": (
        "data/chelsea.png", "data/astronaut.png", "data/coffee.png", "data/rocket.jpg",
        "data/motorcycle_left.png", "data/retina.jpg", "data/hubble_deep_field.jpg", "data/ihc.png",
    ),
    "sklearn": ("datasets/images/china.jpg", "datasets/images/flower.jpg"),
}  # fmt: skip


def example() -> types.ModuleType:
    """examples/few_shot_dinov2.py as a module."""
    folder = str(HERE.parent / "examples")
    sys.path.insert(0, folder)
    try:
        return importlib.import_module("few_shot_dinov2")
    finally:
        sys.path.remove(folder)


def other_stamps(few_shot: types.ModuleType, stamps: Path) -> list[Path]:
    """Photographs among the stamps that are of none of the kinds the example tests on."""
    tested = [stamps / folder for folder in few_shot.CLASSES.values()]
    left_out = few_shot.DRAWN | NO_PHOTOGRAPHS
    found = sorted(stamps.rglob("*.png"))
    return [
        path
        for path in found
        if not left_out & set(path.parts) and not any(path.is_relative_to(t) for t in tested)
    ][:CALIBRATION]


def photographs() -> list[Path]:
    """Pictures that fill their frame."""
    found = []
    for package, names in PHOTOGRAPHS.items():
        spec = importlib.util.find_spec(package)
        if spec and spec.origin:
            found += [Path(spec.origin).parent / name for name in names]
    return [path for path in found if path.is_file()]


def cosines(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Of every row of (n, D) with its counterpart."""
    return (a * b).sum(axis=1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)


def accuracies(few_shot: types.ModuleType, tokens: np.ndarray, labels: np.ndarray) -> dict:
    """Shots per class -> mean accuracy in percent over the example's draws."""
    found = {}
    for shots in SHOTS:
        draws = few_shot.draws_of(labels, shots, DRAWS)
        values = [few_shot.ridge_accuracy(tokens, labels, train) for train in draws]
        found[str(shots)] = round(100 * float(np.mean(values)), 2)
    return found


def to_table(rows: dict) -> str:
    """The Markdown table: a row per mode."""
    lines = [
        "| mode | size | cosine, stamps: mean, smallest | photographs: mean, smallest | "
        + " | ".join(f"{shots} per class" for shots in SHOTS)
        + " |",
        "| --- |" + " --: |" * (3 + len(SHOTS)),
    ]
    for mode, row in rows.items():
        near = [
            f"{row[k]['mean']:.4f}, {row[k]['smallest']:.4f}" for k in ("stamps", "photographs")
        ]
        shots = [f"{row['few_shot'][str(k)]:.1f}" for k in SHOTS]
        cells = [f"`{mode}`", f"{row['megabytes']:.1f} MB", *near, *shots]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def failures(rows: dict) -> list[str]:
    """What int8 loses beyond its bounds."""
    row, found = rows["int8"], []
    for kind in ("stamps", "photographs"):
        if row[kind]["smallest"] < COSINE:
            found.append(f"{kind}: cosine {row[kind]['smallest']:.4f}, expected {COSINE}")
    for shots, value in row["few_shot"].items():
        if rows["float32"]["few_shot"][shots] - value > POINTS:
            found.append(f"{shots} per class: {value} %, expected at most {POINTS} points less")
    return found


def main() -> int:
    """Measures, writes the results and the table, and checks the bounds."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--processes", type=int, default=2, help="that run files at a time")
    args = parser.parse_args()
    few_shot = example()
    import keras_vit
    from keras_vit.data.images import read_image
    from keras_vit.export.sensitivity import outputs_of

    paths, labels = few_shot.find_pictures(few_shot.STAMPS)
    others, whole = other_stamps(few_shot, few_shot.STAMPS), photographs()
    rows = {}
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        dinov2 = few_shot.dinov2_from_onnx
        dinov2.convert(dinov2.find_onnx(), Path(folder) / "dinov2-s14")
        model = keras_vit.load(Path(folder) / "dinov2-s14", image_size=224)

        def prepared(images):
            return np.concatenate([np.asarray(model.preprocessor(x[None])) for x in images])

        given = prepared([few_shot.square(path) for path in paths])
        calibration = prepared([few_shot.square(path) for path in others])
        given = np.concatenate([given, prepared([read_image(path) for path in whole])])
        files = Files(model, Path(folder), calibration, output="features")
        expected = None
        with concurrent.futures.ProcessPoolExecutor(args.processes, context) as pool:
            for mode in MODES:
                content, parts = files.made(mode), np.array_split(given, 4 * args.processes)
                tokens = np.concatenate(list(pool.map(outputs_of, [content] * len(parts), parts)))
                expected = tokens if expected is None else expected
                near = cosines(tokens, expected)
                rows[mode] = {
                    "megabytes": round(len(content) / 1e6, 2),
                    **{
                        kind: {
                            "images": len(part),
                            "mean": round(float(part.mean()), 5),
                            "smallest": round(float(part.min()), 5),
                        }
                        for kind, part in (
                            ("stamps", near[: len(paths)]),
                            ("photographs", near[len(paths) :]),
                        )
                    },
                    "few_shot": accuracies(few_shot, tokens[: len(paths)], labels),
                }
                print(f"{mode}: {rows[mode]}", flush=True)
    results = {"calibration_images": len(calibration), "draws": DRAWS, "modes": rows}
    (HERE / "real_int8.json").write_text(json.dumps(results, indent=1) + "\n", "utf-8")
    replace_block(HERE.parent / "docs" / "real_weights.md", "real_int8", to_table(rows))
    print("\n".join(failures(rows)))
    return 1 if failures(rows) else 0


if __name__ == "__main__":
    raise SystemExit(main())
