"""Masked patch prediction on Fashion-MNIST, then 1, 10 and 100 % of the labels, against random weights.

    python -m benchmarks.masked_patch [--out runs/masked_patch] [--only START] [--small]

Takes about an hour and a quarter on two cores, if two processes share it: one with --only random, one
with --only masked. Every finished run is a row of `benchmarks/masked_patch.jsonl`, and the
pre-training keeps its checkpoints in --out, so the same command goes on after an interruption. Writes
the table and the reconstructions of `docs/pretext.md`. `--small` is a minute on the 4,000 images that
ship with the package, into --out alone.
"""

import argparse
import dataclasses
import os
import shutil
import sys
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("KERAS_BACKEND", "tensorflow")

from benchmarks.table import replace_block

HERE = Path(__file__).parent
PAGE = HERE.parent / "docs" / "pretext.md"
RESULTS = HERE / "masked_patch.jsonl"


def small(plan):
    """The same parts for a few steps."""
    return dataclasses.replace(
        plan,
        pretrain=dataclasses.replace(plan.pretrain, epochs=1),
        steps=((0.1, 20), (1.0, 40)),
        rates=(1e-3, 2e-3),
        held_out=500,
        seeds=(0, 1),
    )


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.masked_patch")
    parser.add_argument("--out", type=Path, default=Path("runs/masked_patch"))
    parser.add_argument("--only", choices=("random", "masked"), help="one start, beside the other")
    parser.add_argument("--small", action="store_true")
    options = parser.parse_args(arguments)
    from keras_vit.cli.progress import epoch_lines
    from keras_vit.data.sources import fashion_mnist
    from keras_vit.pretext import study
    from keras_vit.pretext.figure import FILE

    plan, results, splits = study.Plan(), RESULTS, ("train", "test")
    if options.small:
        plan, results = small(plan), options.out / RESULTS.name
        splits = ("subset_train", "subset_test")
    train, test = (fashion_mnist(split) for split in splits)
    with epoch_lines() as lines:
        rows = study.run_study(
            plan,
            train,
            test,
            options.out,
            results,
            starts=[s for s in study.STARTS if s.startswith(options.only or "")],
            command="python -m benchmarks.masked_patch",
            log=lambda text: print(text, file=sys.stderr, flush=True),
            callbacks=lambda epochs: (lines(epochs),),
        )
    print(study.table(rows))
    if not options.small:
        text, drawn = study.table(rows), options.out / study.ENCODER / FILE
        if drawn.is_file():
            kept = PAGE.parent / "pretext" / FILE
            kept.parent.mkdir(exist_ok=True)
            shutil.copy(drawn, kept)
            text += f"\n![test images, what the network saw, wanted, predicted](pretext/{FILE})\n"
        replace_block(PAGE, "study", text)


if __name__ == "__main__":
    main()
