"""Us against KerasHub's ViT: same sizes, same machine, interleaved rounds, paired median ratios.

    python -m benchmarks [--rounds 7] [--only inference,training,import,load]

Needs `pip install keras-hub` beside `keras-vit-zoo[export]`. Writes `benchmarks/results.json` and
the table in `benchmarks/README.md`. A ratio above 1 means that keras_vit is the faster (or, for
memory, the smaller) of the two. Rounds alternate A B A B, so that a machine whose speed drifts
slows both; the ratio is the median of the ratios of the pairs.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.table import replace_block

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("KERAS_BACKEND", "tensorflow")

HERE = Path(__file__).parent
SIZES = {
    "ViT-Ti/16": {"hidden_dim": 192, "mlp_dim": 768, "num_heads": 3, "num_layers": 12},
    "ViT-S/16": {"hidden_dim": 384, "mlp_dim": 1536, "num_heads": 6, "num_layers": 12},
    "ViT-B/16": {"hidden_dim": 768, "mlp_dim": 3072, "num_heads": 12, "num_layers": 12},
}
POLICIES = ("float32", "mixed_bfloat16")


def ours(name: str, dtype: str):
    """Our model of a size, random weights, 1000 classes."""
    import keras_vit

    return keras_vit.build(name, dtype=dtype)


def theirs(name: str, dtype: str):
    """KerasHub's classifier of the same size; its head is float32 like ours."""
    import keras_hub

    backbone = keras_hub.models.ViTBackbone(
        image_shape=(224, 224, 3), patch_size=16, dtype=dtype, **SIZES[name]
    )
    return keras_hub.models.ViTImageClassifier(
        backbone=backbone, num_classes=1000, pooling="token", preprocessor=None
    )


def paired(a, b, rounds: int) -> dict:
    """Times two callables in turn and gives medians in seconds and the median ratio b / a."""
    a(), b()  # compile
    times = {"ours": [], "theirs": []}
    for _ in range(rounds):
        for side, call in (("ours", a), ("theirs", b)):
            start = time.perf_counter()
            call()
            times[side].append(time.perf_counter() - start)
    ratios = [y / x for x, y in zip(times["ours"], times["theirs"], strict=True)]
    return {
        "ours": statistics.median(times["ours"]),
        "theirs": statistics.median(times["theirs"]),
        "ratio": statistics.median(ratios),
        "ratios": [round(r, 3) for r in sorted(ratios)],
    }


def inference(rounds: int) -> list[dict]:
    """Eight images through a compiled forward pass."""
    import numpy as np
    import tensorflow as tf

    rows = []
    x = tf.constant(np.random.default_rng(0).uniform(-1, 1, (8, 224, 224, 3)).astype("float32"))
    for name in ("ViT-S/16", "ViT-B/16"):
        for dtype in POLICIES:
            models = ours(name, dtype), theirs(name, dtype)
            calls = [tf.function(lambda x, m=m: m(x, training=False)) for m in models]
            result = paired(*(lambda c=c: c(x).numpy() for c in calls), rounds)
            rows.append(_row("inference, batch 8", name, dtype, result, 8, "images/s"))
    return rows


def training(rounds: int) -> list[dict]:
    """One AdamW step on eight (ViT-B: four) images, graph mode on both sides."""
    import keras
    import numpy as np

    rows = []
    for name, batch in (("ViT-S/16", 8), ("ViT-B/16", 4)):
        rng = np.random.default_rng(0)
        x = rng.uniform(-1, 1, (batch, 224, 224, 3)).astype("float32")
        y = rng.integers(0, 1000, batch)
        for dtype in POLICIES:
            models = ours(name, dtype), theirs(name, dtype)
            for model in models:
                loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
                model.compile(keras.optimizers.AdamW(1e-4), loss, jit_compile=False)
            result = paired(*(lambda m=m, x=x, y=y: m.train_on_batch(x, y) for m in models), rounds)
            rows.append(
                _row(f"training step, batch {batch}", name, dtype, result, batch, "images/s")
            )
    return rows


def imports(rounds: int) -> list[dict]:
    """A fresh interpreter that imports the package; ours loads Keras on first use only."""
    rows = []
    for what, mine in (
        ("import", "import keras_vit"),
        ("import with Keras", "import keras_vit; keras_vit.VisionModel"),
    ):
        result = paired(
            lambda code=mine: subprocess.run([sys.executable, "-c", code], check=True),
            lambda: subprocess.run(
                [sys.executable, "-W", "ignore", "-c", "import keras_hub"], check=True
            ),
            max(3, rounds // 2),
        )
        rows.append(_row(what, "", "", result, 0, "s"))
    return rows


LOAD = r"""
import json, os, re, time, keras
keras.ops.zeros(1)
{imports}
base = int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
start = time.perf_counter()
{load}
seconds = time.perf_counter() - start
peak = 1024 * int(re.search(r"VmHWM:\s+(\d+)", open("/proc/self/status").read())[1]) - base
print(json.dumps([seconds, peak]))
"""


def load(rounds: int) -> list[dict]:
    """Loading ViT-B/16 from a local file: our npz against a KerasHub preset."""
    import keras_vit

    with tempfile.TemporaryDirectory() as folder:
        mine, peer = str(Path(folder) / "b16.npz"), str(Path(folder) / "preset")
        model = ours("ViT-B/16", "float32")
        head = model.get_layer("head")
        head.kernel.assign(head.kernel + 0.01)  # an all-zero head would warn
        keras_vit.save_weights_as(model, mine)
        size = os.path.getsize(mine)
        theirs("ViT-B/16", "float32").save_to_preset(peer)
        codes = (
            LOAD.format(
                imports="import keras_vit.zoo.loading",
                load=f"keras_vit.load({mine!r})",
            ),
            LOAD.format(
                imports="import keras_hub",
                load=f"keras_hub.models.ViTImageClassifier.from_preset({peer!r})",
            ),
        )
        found = {"ours": [], "theirs": []}
        for _ in range(max(3, rounds // 2)):
            for side, code in zip(found, codes, strict=True):
                done = subprocess.run(
                    [sys.executable, "-W", "ignore", "-c", code],
                    check=True,
                    capture_output=True,
                    text=True,
                )
                found[side].append(json.loads(done.stdout.splitlines()[-1]))
    rows = []
    for column, what, unit, scale in (
        (0, "load time", "s", 1.0),
        (1, "load peak memory", "x file", size),
    ):
        pairs = [
            (a[column] / scale, b[column] / scale) for a, b in zip(*found.values(), strict=True)
        ]
        ratios = sorted(b / a for a, b in pairs)
        result = {
            "ours": statistics.median(a for a, _ in pairs),
            "theirs": statistics.median(b for _, b in pairs),
            "ratio": statistics.median(ratios),
            "ratios": [round(r, 3) for r in ratios],
        }
        rows.append(_row(what, "ViT-B/16", "float32", result, 0, unit))
    return rows


def _row(what: str, name: str, dtype: str, result: dict, items: int, unit: str) -> dict:
    values = {side: items / result[side] if items else result[side] for side in ("ours", "theirs")}
    row = {"what": what, "model": name, "dtype": dtype, "unit": unit, **values}
    row |= {"ratio": result["ratio"], "ratios": result["ratios"]}
    print(_line(row), flush=True)
    return row


def _line(row: dict) -> str:
    spread = f"{row['ratios'][0]:.2f}-{row['ratios'][-1]:.2f}"
    return (
        f"| {row['what']} | {row['model']} | {row['dtype']} | {row['ours']:.2f} {row['unit']} | "
        f"{row['theirs']:.2f} {row['unit']} | **{row['ratio']:.2f}** ({spread}) |"
    )


PARTS = {
    "inference": inference,
    "training": training,
    "import": imports,
    "load": load,
}
HEADER = "| what | model | dtype | keras_vit | KerasHub | ratio (range) |\n| --- | --- | --- | --- | --- | --- |"


def versions() -> dict[str, str]:
    """What was measured, and on what."""
    from importlib.metadata import version

    names = ("keras", "keras-hub", "tensorflow", "ai-edge-litert", "ai-edge-quantizer", "numpy")
    cpu = next(
        (
            line.split(":")[1].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if "model name" in line
        ),
        platform.processor(),
    )
    return {**{n: version(n) for n in names}, "cpu": cpu, "cores": str(os.cpu_count())}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument(
        "--only", default=",".join(PARTS), help="parts to run, others keep their rows"
    )
    args = parser.parse_args()
    results = HERE / "results.json"
    kept = json.loads(results.read_text()) if results.exists() else {"parts": {}}
    for part in args.only.split(","):
        kept["parts"][part] = PARTS[part](args.rounds)
    kept["versions"] = versions()
    results.write_text(json.dumps(kept, indent=1) + "\n")
    rows = [_line(row) for part in PARTS for row in kept["parts"].get(part, [])]
    about = ", ".join(f"{k} {v}" for k, v in kept["versions"].items())
    table = "\n".join([HEADER, *rows, "", f"Measured with {about}."])
    replace_block(HERE / "README.md", "results", table)


if __name__ == "__main__":
    main()
