"""How many images a second the ImageNet training pipeline gives, against TensorFlow's bare operations.

    python -m benchmarks.pipeline [--rounds 9] [--threads 1] [--folder DIR_OF_500x375_JPEGS]

Ours is `keras_vit.data.pipeline.Pipeline` on files: reading, Inception crop fused with decoding, resize
to 224, flip, normalisation, batches of 64. The peer is `tf.image.decode_and_crop_jpeg` and a bilinear
`tf.image.resize` of the same files on the same boxes, with the same reading, batches and threads, and
nothing else. Rounds alternate, each on an iterator that has run dry of what was made in between; the
ratio is the median over pairs of neighbouring rounds. Two rows more: the same with RandAugment. Writes
`benchmarks/pipeline.json` and the table in `benchmarks/README.md`.
"""

import argparse
import io
import json
import os
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("KERAS_BACKEND", "tensorflow")

import numpy as np

from benchmarks.table import replace_block

HERE = Path(__file__).parent
BATCH, SIZE, LIMIT = 64, (224, 224), 0.8
UNTIMED, TIMED = 6, 16  # batches: more are never made in advance than the first number
SETTLED = 1.0  # seconds, after which nothing more is made in advance
RANDAUGMENT = {"light2": (2, 10), "medium2": (2, 15)}


def photographs() -> list[np.ndarray]:
    """Those of scikit-learn, or gradients with noise where it is not installed."""
    try:
        from sklearn.datasets import load_sample_images
    except ImportError:
        rng, (y, x) = np.random.default_rng(0), np.mgrid[:427, :640]
        smooth = np.stack([x * 0.3, y * 0.5, (x + y) * 0.2], axis=-1)
        return [(smooth + rng.normal(0, 12, smooth.shape)).clip(0, 255).astype(np.uint8)]
    return list(load_sample_images().images)


def write_files(folder: Path, count: int = 64) -> list[str]:
    """500x375 JPEGs of quality 90: different parts of the photographs."""
    from PIL import Image

    rng, images, paths = np.random.default_rng(0), photographs(), []
    for i in range(count):
        left, top = int(rng.integers(0, 80)), int(rng.integers(0, 7))
        part = Image.fromarray(images[i % len(images)]).crop((left, top, left + 560, top + 420))
        stream = io.BytesIO()
        part.resize((500, 375), Image.Resampling.BICUBIC).save(stream, "JPEG", quality=90)
        paths.append(str(folder / f"{i}.jpg"))
        Path(paths[-1]).write_bytes(stream.getvalue())
    return paths


def ours(paths: list[str], threads: int, randaugment=None):
    """Our training pipeline over the files, again and again."""
    from keras_vit.card import Preprocessing
    from keras_vit.data.augment import Augment
    from keras_vit.data.pipeline import Pipeline
    from keras_vit.data.sources import Source

    names = tuple(f"class {i}" for i in range(1000))
    source = Source("files", paths, np.arange(len(paths)) % 1000, names)
    augment = Augment(crop="inception", flip=True, randaugment=randaugment)
    return Pipeline(
        source,
        SIZE,
        3,
        Preprocessing(),
        batch_size=BATCH,
        training=True,
        augment=augment,
        threads=threads,
    )


def peer(paths: list[str], threads: int, steps: int):
    """TensorFlow's operations on the boxes that the first steps of `ours` have."""
    import tensorflow as tf

    from keras_vit.data.crops import inception_box
    from keras_vit.data.rules import stream_of

    per_epoch = len(paths) // BATCH
    orders = [
        np.random.default_rng((0, e)).permutation(len(paths)) for e in range(-(-steps // per_epoch))
    ]
    files, order = (
        tf.constant(paths),
        tf.constant(np.concatenate([o[: per_epoch * BATCH] for o in orders])),
    )
    stream = tf.constant(stream_of(0, "box"), tf.int64)

    def image(number):
        contents = tf.io.read_file(files[order[number]])
        box = inception_box(tf.io.extract_jpeg_shape(contents), tf.stack([stream, number]))
        return tf.image.resize(tf.image.decode_and_crop_jpeg(contents, box, channels=3), SIZE)

    options = tf.data.Options()
    options.deterministic = True
    options.autotune.enabled = False
    options.threading.private_threadpool_size = threads
    options.threading.max_intra_op_parallelism = 1
    images = tf.data.Dataset.range(steps * BATCH)
    images = images.map(image, num_parallel_calls=threads, deterministic=True)
    return images.batch(BATCH, drop_remainder=True).prefetch(2).with_options(options)


def seconds(batches: Iterator) -> tuple[float, float]:
    """(processor time of all threads, wall time) of `TIMED` batches, after those that were ready."""
    for _ in range(UNTIMED):
        next(batches)
    start = time.process_time(), time.perf_counter()
    for _ in range(TIMED):
        next(batches)
    passed = time.process_time() - start[0], time.perf_counter() - start[1]
    time.sleep(SETTLED)
    return passed


def measure(paths: list[str], threads: int, rounds: int) -> dict:
    """Images a second of each pipeline, and ours over the peer's."""
    steps = (rounds + 1) * (UNTIMED + TIMED)
    sides = {"ours": ours(paths, threads).keras_data(0, steps), "peer": peer(paths, threads, steps)}
    for name, setting in RANDAUGMENT.items():
        sides[name] = ours(paths, threads, setting).keras_data(0, steps)
    running = {name: iter(batches) for name, batches in sides.items()}
    taken: dict[str, list[tuple[float, float]]] = {name: [] for name in sides}
    for number in range(rounds + 1):
        for name, batches in running.items():
            passed = seconds(batches)
            if number:  # the first round traces and warms up
                taken[name].append(passed)
    found = {"threads": threads, "rounds": rounds}
    found["bytes_per_file"] = round(statistics.mean(Path(p).stat().st_size for p in paths))
    for clock, kind in enumerate(("per_processor_second", "per_wall_second")):
        times = {name: [pair[clock] for pair in pairs] for name, pairs in taken.items()}
        rates = {name: BATCH * TIMED / statistics.median(t) for name, t in times.items()}
        ratios = sorted(b / a for a, b in zip(times["ours"], times["peer"], strict=True))
        found[kind] = {
            "images": {name: round(rate, 1) for name, rate in rates.items()},
            "ratio": round(statistics.median(ratios), 3),
            "ratios": [round(r, 3) for r in ratios],
        }
    return found


def table(found: dict) -> str:
    """The numbers in Markdown."""
    kind = found["per_processor_second"]
    rates, ratios, wall = kind["images"], kind["ratios"], found["per_wall_second"]["ratio"]
    rows = [
        ("inception crop, resize, flip, normalise", "ours"),
        ("the same and RandAugment (2, 10), light2", "light2"),
        ("the same and RandAugment (2, 15), medium2", "medium2"),
        ("decode_and_crop_jpeg and resize of TensorFlow, alone", "peer"),
    ]
    lines = [
        "| pipeline on 500x375 JPEGs | images per second of processor time | ours / TensorFlow (range) |"
    ]
    lines.append("| --- | --- | --- |")
    for what, name in rows:
        ratio = (
            f"**{kind['ratio']:.2f}** ({ratios[0]:.2f}-{ratios[-1]:.2f}); by the clock {wall:.2f}"
        )
        lines.append(f"| {what} | {rates[name]:.0f} | {ratio if name == 'ours' else ''} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--folder", type=Path, help="JPEGs to read instead of those made here")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if options.folder:
            paths = sorted(str(path) for path in options.folder.glob("*.jpg"))
        else:
            paths = write_files(Path(folder))
        found = measure(paths, options.threads, options.rounds)
    print(json.dumps(found, indent=1))
    (HERE / "pipeline.json").write_text(json.dumps(found, indent=1) + "\n", "utf-8")
    replace_block(HERE / "README.md", "pipeline", table(found))


if __name__ == "__main__":
    main()
