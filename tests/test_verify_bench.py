"""`keras-vit verify` and `bench` on files of this package and of others, and what reports say at export."""

import dataclasses
import json
import os
import runpy
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from keras_vit import cli, export
from keras_vit.card import Preprocessing
from keras_vit.export import benchmark, runtimes
from keras_vit.export.graph import weights_sha256
from keras_vit.export.verify import BOUNDS

pytestmark = pytest.mark.tf_only

exports = SimpleNamespace(**runpy.run_path(str(Path(__file__).with_name("exports.py"))))
SPEC = dataclasses.replace(exports.SPEC, image_size=(24, 32))
NAMES = exports.NAMES
CARD = dataclasses.replace(exports.CARD, preprocessing=Preprocessing(mean=(120.0,), std=(60.0,)))


@pytest.fixture(scope="module")
def place(random_model, tmp_path_factory):
    """A model, its exports, a file of another tool, and photographs of its classes."""
    folder = tmp_path_factory.mktemp("verify")
    model = random_model(SPEC, card=CARD)
    model.save(folder / "model.keras")
    for name, options in {"plain": {}, "pixels": {"input": "uint8", "output": "logits"}}.items():
        export.litert(model, folder / f"{name}.tflite", **options)
    _stripped(folder / "plain.tflite", folder / "foreign.tflite")
    rng = np.random.default_rng(0)
    for name in NAMES:
        (folder / "photos" / name).mkdir(parents=True)
        for i in range(10):
            pixels = rng.integers(0, 256, (5, 4, 3), np.uint8)
            image = Image.fromarray(pixels).resize((50, 40), Image.Resampling.BILINEAR)
            image.save(folder / "photos" / name / f"{i}.png")
    return folder


def _stripped(path, to):
    """A file as another tool writes it: no signature, no metadata, no report."""
    from ai_edge_litert.tools import flatbuffer_utils

    parsed = flatbuffer_utils.read_model(str(path))
    parsed.metadata, parsed.signatureDefs = [], []
    to.write_bytes(bytes(flatbuffer_utils.convert_object_to_bytearray(parsed)))


def call(capsys, *words):
    capsys.readouterr()
    code = cli.run([str(word) for word in words])
    return code, *capsys.readouterr()


def verify(capsys, place, name, *options):
    words = ["verify", place / name, "--against", place / "model.keras"]
    words += ["--data", f"folder:{place / 'photos'}", "--json", *options]
    code, out, _ = call(capsys, *words)
    return code, json.loads(out)


@pytest.fixture
def truth(place):
    """(probabilities of the model, class indices) of the photographs, without this package's feeds."""
    import keras

    model = keras.saving.load_model(place / "model.keras")
    files = [place / "photos" / name / f"{i}.png" for name in NAMES for i in range(10)]
    from keras_vit.layers.preprocessor import preprocess

    pixels = np.stack([np.asarray(Image.open(file)) for file in files])
    scores = model.probabilities(preprocess(pixels, SPEC.image_size, CARD.preprocessing))
    return scores, np.repeat(np.arange(4), 10)


def test_a_good_file_agrees_and_is_as_accurate_as_its_model(capsys, place, truth):
    code, found = verify(capsys, place, "plain.tflite")
    scores, classes = truth
    accuracy = float((scores.argmax(1) == classes).mean())
    assert code == 0 and found["good"] and found["images"] == 40
    assert found["agreement"] == 1.0 and found["accuracy"] == found["model_accuracy"] == accuracy
    # float32 sums in another order; a logit is the logarithm of a probability of at least 1e-6.
    assert 0 < found["largest_error"] < 1e-5 and found["largest_logit_error"] < 1e-3
    assert found["mean_error"] < found["largest_error"]
    assert found["unknown"] == []
    assert found["operations"]["FULLY_CONNECTED"] == 8 and found["partitions"] == 1
    assert found["runtimes"]["GELU"] == {"version": 1, "runtime": "2.9"}
    assert found["runtime"] == "2.9"
    assert found["gpu"] == {}


def test_pixels_and_logits_are_compared_end_to_end(capsys, place):
    code, found = verify(capsys, place, "pixels.tflite", "--limit", "20", "--min-agreement", "0.9")
    # The model sees resized photographs before their values are rounded.
    assert code == 0 and found["output"] == "logits" and found["images"] == 20
    assert found["largest_error"] < 0.05 and found["accuracy"] is not None


def test_a_file_of_another_tool_is_verified_and_says_what_is_unknown(capsys, place):
    code, found = verify(capsys, place, "foreign.tflite")
    assert code == 0 and found["agreement"] == 1.0 and found["largest_error"] < 1e-5
    assert [sentence[:30] for sentence in found["unknown"]] == [
        "it says nothing of its preproc",
        "it names no classes: they are ",
    ]


def test_a_wrong_file_is_exit_1_unless_allowed(capsys, place, random_model):
    other = random_model(SPEC, seed=1, card=CARD)
    export.litert(other, place / "other.tflite", force=True)
    code, found = verify(capsys, place, "other.tflite")
    assert code == 1 and not found["good"] and found["agreement"] < 0.9
    assert found["largest_error"] > 0.2
    assert verify(capsys, place, "other.tflite", "--allow")[0] == 0
    assert verify(capsys, place, "other.tflite", "--min-agreement", "0")[0] == 0
    words = ["verify", place / "other.tflite", "--against", place / "model.keras"]
    code, out, _ = call(capsys, *words, "--data", f"folder:{place / 'photos'}")
    assert code == 1 and "NOT GOOD: the agreement is below 95%" in out and "LiteRT from" in out


def test_other_classes_and_other_shapes_are_one_sentence(capsys, place, random_model):
    import tensorflow as tf

    few = random_model(dataclasses.replace(SPEC, num_classes=3))
    export.litert(few, place / "few.tflite", force=True)
    first = tf.function(
        lambda x: tf.reduce_mean(x, (2, 3)), [tf.TensorSpec((1, 3, 24, 32), tf.float32)]
    )
    converter = tf.lite.TFLiteConverter.from_concrete_functions([first.get_concrete_function()])
    (place / "first.tflite").write_bytes(converter.convert())
    for name, text in (("few", "the model 4 classes"), ("first", "channels first")):
        words = ["verify", place / f"{name}.tflite", "--against", place / "model.keras"]
        code, out, err = call(capsys, *words, "--data", f"folder:{place / 'photos'}")
        assert code == 2 and out == "" and text in err, err


def test_a_report_tells_at_export_what_verify_and_bench_tell(capsys, place, truth, random_model):
    words = ["export", place / "model.keras", "-o", place / "told.tflite", "--json"]
    code, out, _ = call(capsys, *words, "--data", f"folder:{place / 'photos'}")
    scores, classes = truth
    report = export.Report.read(place / "told.tflite")
    assert code == 0 and json.loads(out)["adb"] == report.adb
    accuracy = float((scores.argmax(1) == classes).mean())
    assert report.comparison.accuracy == report.comparison.model_accuracy == accuracy
    assert report.latency_2.threads == 2 and 0 < report.latency_2.low_ms
    assert report.peak_memory is None or report.peak_memory > 4 * SPEC.num_params
    assert report.runtimes["GELU"]["runtime"] == "2.9" and report.gpu == {}
    assert f"adb push {place / 'told.tflite'}" in report.adb
    text = report.to_text()
    assert f"accuracy {accuracy:.1%} (the model {accuracy:.1%})" in text
    assert "needs LiteRT 2.9" in text and "with 2 threads" in text
    assert 0 < report.comparison.mean_logit_error <= report.comparison.largest_logit_error < 1e-3
    assert "(of logits " in text and "CHECK FAILED" not in text and report.failed == ()
    same, other = (random_model(SPEC, seed=seed, card=CARD) for seed in (0, 1))
    assert report.source["weights_sha256"] == weights_sha256(same) != weights_sha256(other)
    assert len(report.source["weights_sha256"]) == 64


def test_a_failed_check_is_kept_where_that_is_allowed(capsys, place, tmp_path, monkeypatch):
    monkeypatch.setitem(BOUNDS, "float32", ("largest_error", 0.0))
    words = ["export", place / "model.keras", "-o", tmp_path / "differs.tflite", "--json"]
    code, out, err = call(capsys, *words)
    assert code == 1 and out == "" and "largest error of probabilities is" in err
    assert "nothing was written" in err and not list(tmp_path.iterdir())
    code, out, _ = call(capsys, *words, "--allow")
    (sentence,) = export.Report.read(tmp_path / "differs.tflite").failed
    assert code == 0 and json.loads(out)["comparisons"]["serving_default"]["failed"] == sentence
    assert "largest error of probabilities is" in sentence and "nothing" not in sentence
    report = export.Report.read(tmp_path / "differs.tflite")
    assert f"CHECK FAILED: {sentence}" in report.to_text()


GPU_CASES = {  # operations that are refused -> (a function, shapes of its inputs)
    "TOPK_V2 STRIDED_SLICE": (
        lambda tf, x: tf.math.top_k(tf.nn.relu(x)[:, 0], 1)[0],
        [(1, 4, 4, 3)],
    ),
    "UNPACK": (lambda tf, x: tf.nn.relu(tf.unstack(x, axis=1)[1]), [(1, 4, 4, 3)]),
    "MUL": (lambda tf, x, y: x * y, [(1, 5, 1), (1, 1, 5)]),
    "ADD": (lambda tf, x, y: x + y, [(1, 5, 3), (5, 3)]),
    "SLICE": (lambda tf, x: tf.slice(tf.nn.relu(x), [0, 1], [1, 2]), [(1, 4)]),
    "": (
        lambda tf, x: tf.nn.softmax(
            tf.reduce_mean(tf.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))[:, 1:], (1, 2)) @ np.eye(3, 4, dtype="f4")
        ) * tf.nn.gelu(tf.reduce_sum(tf.concat([x, x], 1) + 1.5)),
        [(1, 4, 4, 3)],
    ),
}  # fmt: skip


@pytest.mark.parametrize("refused", GPU_CASES)
def test_what_a_gpu_does_not_take(tmp_path, refused):
    import tensorflow as tf

    function, shapes = GPU_CASES[refused]
    signature = [tf.TensorSpec(shape, tf.float32) for shape in shapes]
    made = tf.function(lambda *x: function(tf, *x), signature)
    converter = tf.lite.TFLiteConverter.from_concrete_functions([made.get_concrete_function()])
    (tmp_path / "case.tflite").write_bytes(converter.convert())
    found = runtimes.gpu_problems(tmp_path / "case.tflite")
    assert set(refused.split()) <= set(found) and bool(refused) == bool(found), found


@pytest.mark.parametrize(
    ("name", "options", "tensors", "reason"),
    [  # tensors: (shape, type, whether it is a constant), the last one is the output
        ("RELU", {}, [((1, 2, 2, 2, 6), "FLOAT32", False)] * 2, "it has a tensor of rank 5"),
        ("ADD", {}, [((1, 4), "INT16", False)] * 3, "it computes in INT16"),
        ("MEAN", {}, [((1, 4, 4), "FLOAT32", False), ((1,), "INT32", False), ((1, 4), "FLOAT32", False)],
         "it has 2 inputs that are no constants"),
        ("SOFTMAX", {"beta": 2.0}, [((1, 4), "FLOAT32", False)] * 2, "its beta is 2"),
        ("FULLY_CONNECTED", {"weightsFormat": 1}, [((1, 4), "FLOAT32", False)] * 3, "are shuffled"),
        ("FULLY_CONNECTED", {"weightsFormat": 0, "keepNumDims": True},
         [((1, 5, 4), "FLOAT32", False), ((3, 4), "INT8", True), ((5, 3), "FLOAT32", False)],
         "its output has another rank"),
        ("FULLY_CONNECTED", {"weightsFormat": 0, "keepNumDims": False},
         [((1, 5, 4), "FLOAT32", False), ((3, 4), "INT8", True), ((5, 3), "FLOAT32", False)], None),
        ("ADD", {}, [((1, 5, 5, 3), "FLOAT32", False), ((5, 5, 3), "FLOAT32", True),
                     ((1, 5, 5, 3), "FLOAT32", False)], None),
        ("ADD", {}, [((2, 5, 5, 3), "FLOAT32", False), ((5, 5, 3), "FLOAT32", True),
                     ((2, 5, 5, 3), "FLOAT32", False)], "it broadcasts [5, 5, 3] to [2, 5, 5, 3]"),
        ("PACK", {}, [((1, 4), "FLOAT32", False)] * 3, None),
        ("PAD", {}, [((1, 4), "FLOAT32", False), ((2, 2), "INT32", True), ((3, 4), "FLOAT32", False)],
         "its paddings are of shape [2, 2]"),
    ],
)  # fmt: skip
def test_gpu_rules(name, options, tensors, reason):
    *inputs, output = (
        SimpleNamespace(shape=list(shape), type=kind, constant=constant)
        for shape, kind, constant in tensors
    )
    found = runtimes.gpu_reason(name, SimpleNamespace(**options), inputs, [output])
    assert found is None if reason is None else reason in found


def test_what_a_gpu_does_not_take_of_our_files(capsys, place):
    _, found = verify(capsys, place, "pixels.tflite", "--limit", "4")
    assert found["gpu"]["CAST"] == "it casts UINT8 to FLOAT32"
    assert set(found["gpu"]) == {"CAST"}


def test_runtimes_of_operations():
    # runtime_version.cc: the third FULLY_CONNECTED needs 1.14, the ninth 2.3, and 1.10 is before 1.5.
    assert runtimes.first_runtime("FULLY_CONNECTED", 3) == "1.14"
    assert runtimes.first_runtime("FULLY_CONNECTED", 9) == "2.3"
    assert runtimes.first_runtime("FULLY_CONNECTED", 99) is None
    assert runtimes.first_runtime("BROADCAST_TO", 1) is runtimes.first_runtime("NEW", 1) is None
    needed = {str(i): {"version": 1, "runtime": v} for i, v in enumerate(("1.5", "1.10", None))}
    assert runtimes.newest(needed) == "1.10" and runtimes.newest({}) is None


def test_bench_times_any_files_in_turns(capsys, place, monkeypatch):
    order, prepared = [], benchmark.prepared

    def noted(path, threads):
        run = prepared(path, threads)
        return lambda: order.append((path.name, threads)) or run()

    monkeypatch.setattr(benchmark, "prepared", noted)
    files = [place / "plain.tflite", place / "foreign.tflite", place / "pixels.tflite"]
    code, out, _ = call(capsys, "bench", *files, "--threads", "1,2", "--rounds", "4", "--json")
    found = json.loads(out)
    assert code == 0 and [one["path"] for one in found] == [str(file) for file in files]
    for one, file in zip(found, files, strict=True):
        assert one["size"] == file.stat().st_size
        assert [latency["threads"] for latency in one["latencies"]] == [1, 2]
        for latency in one["latencies"]:
            assert latency["runs"] == 4
            assert 0 < latency["low_ms"] <= latency["median_ms"] <= latency["high_ms"]
        # At least the weights, and less than a process of Python with NumPy.
        assert one["peak_memory"] is None or 4 * SPEC.num_params < one["peak_memory"] < 2e8
        assert f"{file} /data/local/tmp/ && adb shell" in one["adb"]
    rounds = [order[i : i + 6] for i in range(0, len(order), 6)]
    assert len(rounds) == 3 + 4 and all(len(set(one)) == 6 for one in rounds)
    assert len({one[0] for one in rounds}) > 1


def test_peak_memory_grows_with_the_weights(tmp_path):
    import tensorflow as tf

    if not os.path.exists("/proc/self/status"):
        pytest.skip("only Linux tells the peak memory of a process")
    kernel = np.random.default_rng(0).normal(size=(2000, 4000)).astype(np.float32)
    made = tf.function(lambda x: x @ kernel, [tf.TensorSpec((1, 2000), tf.float32)])
    converter = tf.lite.TFLiteConverter.from_concrete_functions([made.get_concrete_function()])
    (tmp_path / "large.tflite").write_bytes(converter.convert())
    # The kernel of 32 MB from the file, and once more in the order XNNPACK computes in.
    assert 32e6 < benchmark.peak_memory(tmp_path / "large.tflite") < 120e6


def test_bench_refuses_what_it_cannot_run(capsys, place):
    (place / "text.tflite").write_text("no model")
    for words, text in (
        ([place / "text.tflite"], "is no .tflite or .onnx file"),
        ([place / "photos"], "is a folder; the threads of a SavedModel are those of its process"),
        ([place / "none.tflite"], "does not exist"),
        ([place / "plain.tflite", "--threads", "one"], "takes numbers such as 1,2"),
    ):
        code, out, err = call(capsys, "bench", *words)
        assert code == 2 and out == "" and text in err


def test_adb_commands_survive_odd_names():
    command = benchmark.adb_command("my models/it's.tflite", threads=4)
    import shlex

    words = shlex.split(command)
    assert words[:4] == ["adb", "push", "my models/it's.tflite", "/data/local/tmp/"]
    there = shlex.split(words[-1])
    assert there[1] == "--graph=/data/local/tmp/it's.tflite" and there[2] == "--num_threads=4"
