"""The training step under the compiler of TPUs, against the authors' own code under the same compiler.

    python -m benchmarks.tpu [--only ViT-B/16,...]

Needs `pip install 'keras-vit-zoo[tpu-plan]'` and no TPU. Every step is compiled for one core of TPU v3 in
a process of its own: Adam with decoupled decay, softmax over 1000 classes, 224 pixels, mixed_bfloat16.
Writes `benchmarks/tpu.json` and its block of `benchmarks/README.md`. Images per second are the compiler's
estimate and do not depend on this machine; compiling is told in CPU seconds, which hardly do.
"""

import argparse
import dataclasses
import json
import os
import resource
import subprocess
import sys
from pathlib import Path

from benchmarks.table import replace_block

HERE = Path(__file__).parent
# Batch per core, and images per second and core of vision_transformer (c6de1e5) with its Adam step,
# compiled by libtpu 0.0.52 from JAX 0.10.2.
OFFICIAL = {
    "ViT-S/16": (64, 970),
    "ViT-B/16": (32, 344),
    "ViT-L/16": (16, 99),
    "ViT-H/14": (8, 34),
    "R50+ViT-B/16": (32, 223),
}
RATES = (0.0, 0.1)


def measure(name: str, dropout: float) -> dict:
    """One step, compiled in this process."""
    from keras_vit.studies import lowering
    from keras_vit.studies.figures import compiled
    from keras_vit.studies.topology import parse
    from keras_vit.train.recipe import Optimizer, Recipe
    from keras_vit.zoo.variants import VARIANTS

    batch, official = OFFICIAL[name]
    where = parse("v3-2")
    recipe = Recipe(batch_size=batch, optimizer=Optimizer(weight_decay=0.03, clip_norm=None))
    spec = dataclasses.replace(VARIANTS[name].spec, dropout=dropout)
    model = lowering.abstract_model(spec, recipe, 100_000, "mixed_bfloat16")
    lowered = lowering.lower_step(model, lowering.topology_devices(where)[:1], batch)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_utime
    found = compiled(lowered, where)
    return {
        "model": name,
        "batch": batch,
        "dropout": dropout,
        "images_per_second_per_core": batch / found.seconds if found.seconds else None,
        "official": official,
        "memory": found.memory,
        "compile_cpu_seconds": resource.getrusage(resource.RUSAGE_SELF).ru_utime - before,
    }


def row(name: str, dropout: float) -> dict:
    """One step, compiled in a process of its own."""
    from keras_vit.studies.process import ENVIRONMENT

    code = f"import json; from benchmarks.tpu import measure; print(json.dumps(measure({name!r}, {dropout})))"
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code],
        env={**os.environ, **ENVIRONMENT},
        cwd=HERE.parent,
        check=True,
        capture_output=True,
        text=True,
    )
    return json.loads(done.stdout.splitlines()[-1])


def table(rows: list[dict], versions: dict[str, str]) -> str:
    """The rows in Markdown."""
    lines = [
        "| model | batch per core | dropout | images/s/core | authors' code | ratio | memory | compiling |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for r in rows:
        speed = r["images_per_second_per_core"]
        lines.append(
            f"| {r['model']} | {r['batch']} | {r['dropout']:g} | {speed:.0f} | {r['official']} | "
            f"**{speed / r['official']:.2f}** | {r['memory'] / 2**30:.2f} GiB | "
            f"{r['compile_cpu_seconds']:.0f} CPU s |"
        )
    about = ", ".join(f"{k} {v}" for k, v in versions.items())
    return "\n".join([*lines, "", f"TPU v3, by {about}."])


def main() -> None:
    from importlib.metadata import version

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default=",".join(OFFICIAL), help="models, others keep their rows")
    args = parser.parse_args()
    path = HERE / "tpu.json"
    kept = json.loads(path.read_text()) if path.exists() else {"rows": []}
    found = {(r["model"], r["dropout"]): r for r in kept["rows"]}
    for rate in RATES:
        for name in args.only.split(","):
            found[name, rate] = row(name, rate)
            print(json.dumps(found[name, rate]), flush=True)
            ordered = [found[n, r] for r in RATES for n in OFFICIAL if (n, r) in found]
            versions = {n: version(n) for n in ("jax", "libtpu", "keras")}
            path.write_text(json.dumps({"rows": ordered, "versions": versions}, indent=1) + "\n")
            replace_block(HERE / "README.md", "tpu", table(ordered, versions))


if __name__ == "__main__":
    main()
