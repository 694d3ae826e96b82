"""How long the regression on a whole set of features takes, against the least it has to do.

    python -m benchmarks.features [--rounds 3] [--rows 100000] [--dim 1024] [--classes 1000]
                                  [--most-rows 1281167]

Ours is `keras_vit.transfer.fewshot.decompose_blocks` on float32 features that lie on disk in shards, as
`keras_vit.transfer.features.extract` leaves them: reading, whitening, class sums, X'X in float64 over
blocks, eigen-decomposition. The peer is NumPy's X'X of the same rows, already in memory in float64, and
`numpy.linalg.eigh` of it, nothing else. Rounds alternate; the ratio is the median over rounds, and may
be 1.5. Memory is what Python and NumPy allocate in one more round of ours, and in one with as many rows as
ImageNet has (5.2 GB on disk; --most-rows 0 leaves it out). Writes `benchmarks/features.json` and the table in `benchmarks/README.md`.
"""

import argparse
import json
import os
import statistics
import tempfile
import time
import tracemalloc
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("KERAS_BACKEND", "tensorflow")

import numpy as np

from benchmarks.table import replace_block

HERE = Path(__file__).parent
LIMIT = 1.5
SHARD = 16_384  # rows of 1024 features in 64 MB


def write_features(folder: Path, rows: int, dim: int, classes: int):
    """Correlated features of random images, in shards, read back mapped."""
    from keras_vit.transfer.features import FeatureSet

    rng = np.random.default_rng(0)
    labels = rng.integers(0, classes, rows).astype(np.int32)
    mixing = rng.normal(size=(dim, dim)).astype(np.float32) / np.float32(np.sqrt(dim))
    shards = []
    for number, first in enumerate(range(0, rows, SHARD)):
        size = min(SHARD, rows - first)
        path = folder / f"{number}.npy"
        np.save(path, rng.standard_normal((size, dim), dtype=np.float32) @ mixing + 1)
        shards.append(np.load(path, mmap_mode="r"))
    return FeatureSet("made up", tuple(shards), labels, tuple(map(str, range(classes))))


def measure(rows: int, dim: int, classes: int, rounds: int) -> dict:
    """Seconds of both sides, round by round, and the peak of memory of ours."""
    from keras_vit.transfer.fewshot import decompose_blocks

    with tempfile.TemporaryDirectory() as folder:
        features = write_features(Path(folder), rows, dim, classes)
        x = np.concatenate([shard.astype(np.float64) for shard in features.shards])
        taken: dict[str, list[float]] = {"ours": [], "product": [], "eigh": []}
        for _ in range(rounds):
            times = [time.perf_counter()]
            product = x.T @ x
            times.append(time.perf_counter())
            np.linalg.eigh(product)
            times.append(time.perf_counter())
            decompose_blocks(features.blocks(), classes)
            times.append(time.perf_counter())
            for name, seconds in zip(("product", "eigh", "ours"), np.diff(times), strict=True):
                taken[name].append(float(seconds))
        del x
        peak = peak_mb(features, classes)
    ratios = [
        o / (p + e) for o, p, e in zip(taken["ours"], taken["product"], taken["eigh"], strict=True)
    ]
    return {
        "rows": rows,
        "dim": dim,
        "classes": classes,
        "rounds": rounds,
        "seconds": {name: round(statistics.median(t), 2) for name, t in taken.items()},
        "ratio": round(statistics.median(ratios), 3),
        "ratios": [round(r, 3) for r in sorted(ratios)],
        "limit": LIMIT,
        "features_mb": round(4e-6 * rows * dim),
        "peak_mb": peak,
    }


def peak_mb(features, classes: int) -> int:
    """The peak of what Python and NumPy allocate for the regression."""
    from keras_vit.transfer.fewshot import decompose_blocks

    tracemalloc.start()
    decompose_blocks(features.blocks(), classes)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return round(peak / 1e6)


def memory_of(rows: int, dim: int, classes: int) -> dict:
    """The memory of the regression on a large set."""
    with tempfile.TemporaryDirectory() as folder:
        peak = peak_mb(write_features(Path(folder), rows, dim, classes), classes)
    return {"rows": rows, "features_mb": round(4e-6 * rows * dim), "peak_mb": peak}


def table(found: dict) -> str:
    """The numbers in Markdown."""
    seconds, ratios = found["seconds"], found["ratios"]
    return "\n".join(
        [
            "| regression on all rows | ours | X'X in NumPy | its eigen-decomposition | "
            "ours / both (range) | memory of ours |",
            "| --- | --- | --- | --- | --- | --- |",
            f"| {found['rows']:,} x {found['dim']}, {found['classes']} classes "
            f"| {seconds['ours']:.1f} s | {seconds['product']:.1f} s | {seconds['eigh']:.1f} s "
            f"| **{found['ratio']:.2f}** ({ratios[0]:.2f}-{ratios[-1]:.2f}) "
            f"| {found['peak_mb']} MB of {found['features_mb']} MB |",
            *(
                f"| {most['rows']:,} x {found['dim']}, {found['classes']} classes | | | | "
                f"| {most['peak_mb']} MB of {most['features_mb']} MB |"
                for most in found["large"]
            ),
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name, default in (("rounds", 3), ("rows", 100_000), ("dim", 1024), ("classes", 1000)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--most-rows", type=int, default=1_281_167)
    options = parser.parse_args()
    most, shape = options.most_rows, (options.dim, options.classes)
    found = measure(options.rows, *shape, options.rounds)
    found["large"] = [memory_of(most, *shape)] if most else []
    print(json.dumps(found, indent=1))
    (HERE / "features.json").write_text(json.dumps(found, indent=1) + "\n", "utf-8")
    replace_block(HERE / "README.md", "features", table(found))


if __name__ == "__main__":
    main()
