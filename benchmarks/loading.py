"""How long and how lean `keras_vit.load` is, against reading the same file into NumPy.

    python -m benchmarks.loading [--rounds 5] [--only ViT-L/16,R50+ViT-L/32,BiT-R152x4]

For each model a file of random weights in the official layout is written, then, in interleaved fresh
processes with a warm file cache: NumPy reads all of it; the network is built without a value in it;
`keras_vit.load` does everything. The ratio is (load - build) / read, the memory what the process grew
by at its peak, over the bytes of the parameters. Two rows more: the catalogue in a fresh process, and
what importing this package adds to Keras. Writes `benchmarks/loading.json` and the tables in
`benchmarks/README.md`.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import numpy as np

from benchmarks.table import replace_block

HERE = Path(__file__).parent
MODELS = ("ViT-L/16", "R50+ViT-L/32", "BiT-R152x4")
LIMITS = {"ratio": 1.5, "memory": 1.3}

# What is asked for in a fresh process, and the seconds it may take.
STARTUP = {
    "list_models() and card(), importing included": (
        "",
        "import keras_vit; keras_vit.list_models(); keras_vit.card('ViT-L/16')",
        0.3,
    ),
    "import keras_vit after import keras": ("import keras", "import keras_vit", 0.15),
}

MEASURE = r"""
import os, re, time
def resident(): return int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
def peak(): return 1024 * int(re.search(r"VmHWM:\s+(\d+)", open("/proc/self/status").read())[1])
{prepare}
base = resident()
start = time.perf_counter()
{work}
print(time.perf_counter() - start, peak() - base)
"""
KERAS = "import keras; keras.ops.zeros(1); import keras_vit; from keras_vit.zoo import loading, variants"
STEPS = {
    "read": ("import numpy", "kept = {{k: v for k, v in numpy.load({path!r}).items()}}"),
    "build": (
        KERAS + "; from keras_vit.model import VisionModel",
        "with keras.StatelessScope(initialize_variables=False):\n"
        "    kept = VisionModel(variants.VARIANTS[{name!r}].spec)",
    ),
    "load": (KERAS, "kept = keras_vit.load({name!r}, weights={path!r})"),
}


def write_random(name: str, path: Path) -> int:
    """A file of random weights of a variant in the official layout; returns the parameters' bytes."""
    import keras

    from keras_vit.model import VisionModel
    from keras_vit.zoo.formats import google_npz
    from keras_vit.zoo.formats.keys import file_shape, key_of
    from keras_vit.zoo.variants import VARIANTS

    spec = VARIANTS[name].spec
    with keras.StatelessScope(initialize_variables=False):
        shapes = {v.path: tuple(v.shape) for v in VisionModel(spec).weights}
    table, draw = google_npz.table_of(spec), np.random.default_rng(0)
    with zipfile.ZipFile(path, "w") as archive:
        for variable, shape in shapes.items():
            values = draw.random(file_shape(table, variable, shape, spec), np.float32) - 0.5
            with archive.open(f"{key_of(table, variable)}.npy", "w", force_zip64=True) as file:
                np.lib.format.write_array(file, values)
    return 4 * spec.num_params


def measure(step: str, name: str, path: Path) -> tuple[float, float]:
    """(seconds, bytes the process grew by at its peak) of one step in a fresh process."""
    prepare, work = STEPS[step]
    return in_fresh_process(prepare, work.format(name=name, path=str(path)))


def in_fresh_process(prepare: str, work: str) -> tuple[float, float]:
    """(seconds, bytes the process grew by at its peak) of some lines of code."""
    code = MEASURE.format(prepare=prepare, work=work)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code], check=True, capture_output=True, text=True
    )
    seconds, grown = done.stdout.split()[-2:]
    return float(seconds), float(grown)


def row(name: str, rounds: int, folder: Path) -> dict:
    """One model's numbers: medians over interleaved rounds, after one that is not counted."""
    path = folder / "weights.npz"
    size = write_random(name, path)
    found = {step: [] for step in STEPS}
    for _ in range(rounds + 1):
        for step, results in found.items():
            results.append(measure(step, name, path))
    path.unlink()
    seconds = {step: [s for s, _ in results[1:]] for step, results in found.items()}
    ratios = [
        (load - build) / read
        for read, build, load in zip(*(seconds[s] for s in STEPS), strict=True)
    ]
    return {
        "model": name,
        "bytes": size,
        **{step: statistics.median(values) for step, values in seconds.items()},
        "ratio": statistics.median(ratios),
        "ratios": sorted(round(r, 3) for r in ratios),
        "memory": max(grown for _, grown in found["load"]) / size,
    }


def startup(rounds: int) -> list[dict]:
    """Median seconds of each row of `STARTUP`, after one round that is not counted."""
    rows = []
    for what, (prepare, work, limit) in STARTUP.items():
        seconds = [in_fresh_process(prepare, work)[0] for _ in range(rounds + 1)][1:]
        rows.append({"what": what, "seconds": statistics.median(seconds), "limit": limit})
        print(json.dumps(rows[-1]), flush=True)
    return rows


def startup_table(rows: list[dict]) -> str:
    """The rows of `startup` in Markdown."""
    lines = ["| what | seconds | at most |", "| --- | --- | --- |"]
    lines += [f"| {r['what']} | **{r['seconds']:.2f}** | {r['limit']:.2f} |" for r in rows]
    return "\n".join(lines)


def table(rows: list[dict]) -> str:
    """The rows in Markdown."""
    lines = [
        "| model | parameters | NumPy reads | network is built | load | (load - build) / read (range) "
        "| peak memory / parameters |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    lines += [
        f"| {r['model']} | {r['bytes'] / 1e9:.2f} GB | {r['read']:.2f} s | {r['build']:.2f} s | "
        f"{r['load']:.2f} s | **{r['ratio']:.2f}** ({r['ratios'][0]:.2f}-{r['ratios'][-1]:.2f}) | "
        f"**{r['memory']:.2f}** |"
        for r in rows
    ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", default=",".join(MODELS), help="others keep their rows")
    args = parser.parse_args()
    results = HERE / "loading.json"
    kept = json.loads(results.read_text()) if results.exists() else {"load": {}}
    kept["startup"] = startup(args.rounds)
    with tempfile.TemporaryDirectory() as folder:
        for name in filter(None, args.only.split(",")):
            kept["load"][name] = row(name, args.rounds, Path(folder))
            print(json.dumps(kept["load"][name]), flush=True)
    rows = [kept["load"][name] for name in MODELS if name in kept["load"]]
    results.write_text(json.dumps(kept, indent=1) + "\n")
    replace_block(HERE / "README.md", "loading", table(rows))
    replace_block(HERE / "README.md", "startup", startup_table(kept["startup"]))
    over = [r["model"] for r in rows if any(r[k] > limit for k, limit in LIMITS.items())]
    over += [r["what"] for r in kept["startup"] if r["seconds"] > r["limit"]]
    if over:
        sys.exit(f"above the limits: {', '.join(over)}")


if __name__ == "__main__":
    main()
