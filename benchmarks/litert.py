"""Latency and size of .tflite files: ours, KerasHub's, and the matrix products of each alone.

    PYTHONPATH=FOLDER_OF_KERAS_HUB python -m benchmarks.litert [--seconds 12] [--only ViT-Ti/16 ...]

ViT-Ti, S and B/16 against KerasHub's ViT, BiT-R50x1 against its ResNet-50 v2; 224 pixels, 1000 classes,
one image, random weights of which none is zero (a bias of zeros would be dropped by the converter).
KerasHub's models go through Keras's own export, and through ai-edge-quantizer with the recipe of our
`dynamic_int8`. All files of a row take turns, and who begins changes, so that a busy moment hits all of
them; a ratio is the median over rounds. The bound is what a file takes that holds nothing but the
convolutions and matrix products of the other, with their shapes, each on its own input. Writes
`benchmarks/litert.json` and the table in `benchmarks/README.md`.
"""

import argparse
import json
import math
import os
import tempfile
import time
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("KERAS_BACKEND", "tensorflow")

import numpy as np

from benchmarks.__main__ import ours, theirs, versions
from benchmarks.table import replace_block

HERE = Path(__file__).parent
MODELS = ("ViT-Ti/16", "ViT-S/16", "ViT-B/16", "BiT-R50x1")
MODES = ("float32", "dynamic_int8")
THREADS = (1, 2)
SHAPE = (1, 224, 224, 3)
LIMIT = 1.03  # of KerasHub's time, anywhere
PRODUCTS = ("CONV_2D", "FULLY_CONNECTED", "BATCH_MATMUL")


def resnet50():
    """KerasHub's ResNet-50 v2 classifier."""
    import keras_hub

    backbone = keras_hub.models.ResNetBackbone(
        input_conv_filters=[64],
        input_conv_kernel_sizes=[7],
        stackwise_num_filters=[64, 128, 256, 512],
        stackwise_num_blocks=[3, 4, 6, 3],
        stackwise_num_strides=[1, 2, 2, 2],
        block_type="bottleneck_block",
        use_pre_activation=True,
        image_shape=SHAPE[1:],
    )
    return keras_hub.models.ResNetImageClassifier(backbone=backbone, num_classes=1000)


def fill(model) -> None:
    """Random weights, so that no bias, scale or kernel is left out as a zero or a one."""
    rng = np.random.default_rng(0)
    for variable in model.weights:
        if len(variable.shape) == 1 or "bias" in variable.path or "head" in variable.path:
            noise = rng.uniform(0.01, 0.1, variable.shape)
            variable.assign(np.asarray(variable) + noise.astype("float32"))


def write_ours(name: str, folder: Path) -> dict[str, Path]:
    """Our files of a model, without the checks and timings of `keras_vit.export.litert`."""
    from keras_vit.export import graph
    from keras_vit.export.inference import inference_outputs
    from keras_vit.export.litert import convert

    model = ours(name, "float32")
    fill(model)
    stored, _ = graph.stored_model(model)
    path = folder / "ours_float32.tflite"
    path.write_bytes(convert(inference_outputs(stored), "logits", SHAPE[0], 0))
    return _with_int8(path)


def write_theirs(name: str, folder: Path) -> dict[str, Path]:
    """KerasHub's files of the model of the same size, by Keras's own export."""
    import tensorflow as tf

    model = resnet50() if name.startswith("BiT") else theirs(name, "float32")
    fill(model)
    path = folder / "theirs_float32.tflite"
    signature = [tf.TensorSpec(SHAPE, name="images")]
    model.export(str(path), format="litert", input_signature=signature)
    return _with_int8(path)


def write_products(source: Path, path: Path) -> dict[str, Path]:
    """A file of the convolutions and matrix products of another, in their order.

    Each reads the latest results that have as many numbers as it takes, so that caches are as warm as
    in the network, or an input of the file where there are none. What the numbers are does not matter;
    biases keep them from becoming denormal, which would be slow.
    """
    import tensorflow as tf

    products = list(_products(source))
    # Which earlier result each operand is; those that stay unread are outputs, or they were left out.
    sources, sizes, inputs, unread = [], {}, [], set()
    for n, (kind, left, right, result, _) in enumerate(products):
        operands = (left, right) if kind == "BATCH_MATMUL" else (left,)
        chosen = []
        for shape in operands:
            size = math.prod(shape)
            earlier = [i for i in sizes.get(size, ()) if i not in chosen]
            if not earlier:
                inputs.append(tf.TensorSpec(shape, name=f"x{len(inputs)}"))
                earlier = [-len(inputs)]
                sizes.setdefault(size, []).extend(earlier)
            chosen.append(earlier[-1])
        unread -= set(chosen)
        unread.add(n)
        sizes.setdefault(math.prod(result), []).append(n)
        sources.append(chosen)
    rng = np.random.default_rng(0)

    def random(shape):
        return tf.constant(rng.uniform(-0.1, 0.1, shape).astype("float32"))

    def run(*given):
        results = {-n: x for n, x in enumerate(given, 1)}
        for n, (kind, left, right, _, options) in enumerate(products):
            x = tf.reshape(results[sources[n][0]], left)
            if kind == "CONV_2D":
                stride = (options.strideH, options.strideW)
                border = "VALID" if options.padding else "SAME"
                y = tf.nn.conv2d(x, random((*right[1:], right[0])), stride, border)
                y = y + random(right[:1])
            elif kind == "FULLY_CONNECTED":
                y = tf.matmul(x, random(right[::-1])) + random(right[:1])
            else:
                other = tf.reshape(results[sources[n][1]], right)
                y = tf.matmul(x, other, transpose_b=bool(options.adjY))
            results[n] = y
        return [results[n] for n in sorted(unread)]

    function = tf.function(run).get_concrete_function(*inputs)
    converter = tf.lite.TFLiteConverter.from_concrete_functions([function], tf.Module())
    path.write_bytes(converter.convert())
    return _with_int8(path)


def _products(path: Path):
    """Kind, shapes of both operands and of the result, and options, of every product in a file."""
    from ai_edge_litert.tools import flatbuffer_utils

    content = flatbuffer_utils.read_model(str(path))
    net = content.subgraphs[0]
    for op in net.operators:
        kind = flatbuffer_utils.opcode_to_name(content, op.opcodeIndex)
        if kind in PRODUCTS:
            tensors = (*op.inputs[:2], op.outputs[0])
            left, right, result = (tuple(map(int, net.tensors[i].shape)) for i in tensors)
            if kind == "FULLY_CONNECTED":
                left = (math.prod(left) // right[-1], right[-1])
            yield kind, left, right, result, op.builtinOptions


def _with_int8(path: Path) -> dict[str, Path]:
    from keras_vit.export.quantize import quantized

    small = path.with_name(path.name.replace("float32", "dynamic_int8"))
    small.write_bytes(quantized(path.read_bytes(), "dynamic_int8"))
    return {"float32": path, "dynamic_int8": small}


def race(files: dict[str, Path], threads: int, seconds: float) -> dict[str, list[float]]:
    """Milliseconds of every file in each of many rounds, by name."""
    from keras_vit.export.benchmark import prepared

    runs = {name: prepared(path, threads) for name, path in files.items()}
    times: dict[str, list[float]] = {name: [] for name in runs}
    order, end = list(runs), time.monotonic() + seconds
    while time.monotonic() < end or len(times[order[0]]) < 7:
        order.append(order.pop(0))
        for name in order:
            runs[name]()  # its weights come into the caches
            start = time.perf_counter()
            runs[name]()
            times[name].append(1e3 * (time.perf_counter() - start))
    return times


def measure(name: str, seconds: float) -> list[dict]:
    """The rows of one model: each mode with each number of threads."""
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        made = {"ours": write_ours(name, place), "theirs": write_theirs(name, place)}
        made["bound"] = write_products(made["ours"]["float32"], place / "bound_float32.tflite")
        for mode in MODES:
            for threads in THREADS:
                files = {side: paths[mode] for side, paths in made.items()}
                times = race(files, threads, seconds)
                row = {"model": name, "mode": mode, "threads": threads}
                row |= {f"{side}_ms": float(np.median(t)) for side, t in times.items()}
                row |= _ratio("ratio", times["ours"], times["theirs"])
                row |= _ratio("over_bound", times["ours"], times["bound"])
                row |= {f"{s}_bytes": files[s].stat().st_size for s in ("ours", "theirs")}
                row["rounds"] = len(times["ours"])
                rows.append(row)
                print(_line(row), flush=True)
    return rows


def _ratio(name: str, a: list[float], b: list[float]) -> dict[str, float]:
    low, middle, high = np.percentile(np.divide(a, b), (25, 50, 75))
    return {name: float(middle), f"{name}_low": float(low), f"{name}_high": float(high)}


HEADER = """| model | mode | threads | ours | KerasHub | ours / KerasHub (middle half) | ours / products alone | size, ours and KerasHub |
| --- | --- | --- | --- | --- | --- | --- | --- |"""


def _line(row: dict) -> str:
    return (
        f"| {row['model']} | {row['mode']} | {row['threads']} | {row['ours_ms']:.1f} ms | "
        f"{row['theirs_ms']:.1f} ms | **{row['ratio']:.2f}** ({row['ratio_low']:.2f}-"
        f"{row['ratio_high']:.2f}) | {row['over_bound']:.2f} | {row['ours_bytes'] / 1e6:.1f}, "
        f"{row['theirs_bytes'] / 1e6:.1f} MB |"
    )


def failures(rows: list[dict]) -> list[str]:
    """Rows where we are behind KerasHub."""
    return [
        f"{r['model']}, {r['mode']}, {r['threads']} threads: {r['ratio']:.2f} of KerasHub's time"
        for r in rows
        if r["ratio"] > LIMIT
    ]


def main() -> int:
    """Measures, writes the results and the table, and checks the limits."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seconds", type=float, default=12.0, help="of each row")
    parser.add_argument("--only", nargs="+", choices=MODELS, default=MODELS)
    args = parser.parse_args()
    file = HERE / "litert.json"
    known = json.loads(file.read_text("utf-8"))["rows"] if file.exists() else []
    for name in args.only:
        known = [row for row in known if row["model"] != name] + measure(name, args.seconds)
        known.sort(key=lambda row: MODELS.index(row["model"]))
        about = versions()
        file.write_text(json.dumps({"rows": known, "versions": about}, indent=1) + "\n", "utf-8")
    told = ", ".join(f"{k} {v}" for k, v in versions().items())
    table = "\n".join([HEADER, *map(_line, known), "", f"Measured with {told}."])
    replace_block(HERE / "README.md", "litert", table)
    print("\n".join(failures(known)))
    return 1 if failures(known) else 0


if __name__ == "__main__":
    raise SystemExit(main())
