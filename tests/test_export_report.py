"""What is refused before and after an export, the report, and exporting from another backend."""

import dataclasses
import inspect
import json
import os
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from keras_vit import export
from keras_vit.export import __main__ as command
from keras_vit.export import process
from keras_vit.export.artifact import Artifact
from keras_vit.export.verify import (
    agreement_note,
    compare,
    measure_latency,
    model_inputs,
    synthetic_images,
)
from keras_vit.spec import ViTSpec

pytestmark = pytest.mark.tf_only

SPEC = ViTSpec(
    hidden_size=24,
    mlp_dim=40,
    num_heads=3,
    num_layers=1,
    patch_size=7,
    image_size=28,
    in_channels=1,
    num_classes=5,
)
FROM_JAX = """
import sys
import keras
import numpy as np
from keras_vit import cli, export
folder = sys.argv[1]
model = keras.saving.load_model(f"{folder}/model.keras")
assert keras.backend.backend() == "jax"
try:
    export.litert(model, f"{folder}/no.tflite")
except RuntimeError as error:
    print(error)
code = cli.run(
    f"export {folder}/model.keras -o {folder}/jax.tflite --quantize int8 --input uint8 --output logits "
    f"--data folder:{folder}/photos --max-drop 0.5 --float-layers head --calibration percentile:99.9 "
    f"--allow".split()
)
images = np.load(f"{folder}/images.npy")
found = export.open_artifact(f"{folder}/jax.tflite").predict(images)
wanted = model.probabilities(np.asarray(model.preprocessor(images)))
print(code, (found.argmax(-1) == wanted.argmax(-1)).mean())
"""


@pytest.fixture(scope="module")
def model(random_model):
    return random_model(SPEC)


@pytest.mark.timeout(900)  # three processes that import a framework each
def test_model_of_another_backend_is_exported_by_a_process_of_its_own(model, tmp_path):
    model.save(tmp_path / "model.keras")
    images = synthetic_images((28, 28, 1), 40)
    np.save(tmp_path / "images.npy", images)
    classes = model.probabilities(np.asarray(model.preprocessor(images))).argmax(-1)
    for i, image in enumerate(images):
        folder = tmp_path / "photos" / f"class {classes[i]}"
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image[..., 0]).save(folder / f"{i}.png")
    done = subprocess.run(
        [sys.executable, "-c", FROM_JAX, str(tmp_path)],
        env={**os.environ, "KERAS_BACKEND": "jax"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    refusal, *_, result = done.stdout.strip().splitlines()
    assert "KERAS_BACKEND=jax" in refusal and "in_tensorflow_process(model, path, ...)" in refusal
    code, agreement = result.split()
    assert code == "0" and float(agreement) >= 0.8  # of int8
    report = export.Report.read(tmp_path / "jax.tflite")
    assert (report.mode, report.comparison.output) == ("int8", "logits")
    assert report.signatures["serving_default"]["inputs"]["images"][1] == "uint8"
    assert (
        report.quantization["float_layers"] == ["head"] and "head" in report.quantization["float"]
    )
    assert report.quantization["calibration"] == "percentile:99.9"
    assert report.quantization["calibration_images"] == report.comparison.images == 40
    assert report.quantization["sensitivity"] is not None
    # The folders are the classes that the model gives.
    assert report.comparison.model_accuracy == 1.0 and report.comparison.accuracy >= 0.8


@pytest.mark.parametrize(
    "options",
    [
        {
            "quantize": "int8", "batch": 2, "input": "uint8", "output": "logits",
            "labels": np.arange(16) % 5, "float_layers": ["head", "-odd.*"],
            "calibration": "percentile:99.5", "max_drop": 0.015, "force": True, "allow": True,
        },
        {"quantize": "int16x8", "strict": True},
        {"quantize": None, "batch": None},
        {"format": "onnx", "labels": np.arange(16), "allow": True},
        {"format": "tf_saved_model", "labels": np.arange(16), "force": True},
    ],
)  # fmt: skip
def test_every_option_travels_to_the_other_process(model, tmp_path, monkeypatch, options):
    arrived = {}

    def export_there(model, path, **given):
        arrived.update(given, path=path, weights=len(model.weights))
        return SimpleNamespace(to_text=str)

    def run(words, **_):
        monkeypatch.setattr(sys, "argv", words[2:])
        return SimpleNamespace(returncode=command.main(), stderr="")

    name = options.get("format", "litert")
    monkeypatch.setitem(export.FORMATS, name, export_there)
    monkeypatch.setattr(process.subprocess, "run", run)
    monkeypatch.setattr(process.Report, "read", lambda path: "the report")
    target = tmp_path / f"model{process.SUFFIXES[name]}"
    images = np.random.default_rng(0).uniform(-1, 1, (16, 28, 28, 1)).astype(np.float32)
    assert export.in_tensorflow_process(model, target, images=images, **options) == "the report"
    assert arrived.pop("path") == str(target) and arrived.pop("weights") == len(model.weights)
    np.testing.assert_array_equal(arrived.pop("images"), images)
    np.testing.assert_array_equal(arrived.pop("labels"), options.get("labels"))
    known = inspect.signature(export.litert if name == "litert" else export.onnx).parameters
    wanted = {key: p.default for key, p in known.items() if p.default is not p.empty}
    wanted |= {"float_layers": []} if name == "litert" else {}
    wanted |= {key: value for key, value in options.items() if key != "format"}
    for key in ("images", "labels", "progress"):
        wanted.pop(key, None)
    assert arrived == wanted


def test_the_other_process_takes_every_option_there_is():
    there = set(inspect.signature(export.in_tensorflow_process).parameters) - {"format"}
    assert there == set(inspect.signature(export.litert).parameters) - {"progress"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"quantize": "int2"}, "quantize must be None or one of .*'dynamic_int8'.*, got 'int2'"),
        ({"batch": 0}, "batch must be a positive number, or None for a resizable file, got 0"),
        ({"output": "scores"}, "output must be one of .*, got 'scores'"),
        (
            {"images": np.zeros((2, 27, 28, 1), np.float32)},
            r"got float32 of shape \(2, 27, 28, 1\)",
        ),
        (
            {"images": np.zeros((0, 28, 28, 1), np.float32)},
            r"got float32 of shape \(0, 28, 28, 1\)",
        ),
        ({"images": np.zeros((2, 28, 28, 1), np.int64)}, "must be uint8 .* or preprocessed floats"),
    ],
)
def test_wrong_arguments_are_refused_in_one_sentence(model, tmp_path, options, message):
    with pytest.raises(ValueError, match=message):
        export.litert(model, tmp_path / "model.tflite", **options)
    assert not list(tmp_path.iterdir())


def test_wrong_outputs_and_models_are_refused(model, tmp_path):
    import keras

    with pytest.raises(ValueError, match=r"must end in \.tflite, got '.*model\.onnx'"):
        export.litert(model, tmp_path / "model.onnx")
    plain = keras.Sequential([keras.layers.Input((2,)), keras.layers.Dense(1)])
    for exporter in (export.litert, export.saved_model):
        with pytest.raises(TypeError, match=r"only models of this package.*got Sequential"):
            exporter(plain, tmp_path / "model.tflite")
    with pytest.raises(ValueError, match=r"format must be one of \['litert'.*, got 'torch'"):
        export.in_tensorflow_process(model, tmp_path / "model", format="torch")


def test_existing_file_or_report_needs_force(model, tmp_path):
    path = tmp_path / "model.tflite"
    for taken in (path, tmp_path / "model.tflite.json"):
        taken.write_text("mine")
        for exporter in (export.litert, export.in_tensorflow_process):
            with pytest.raises(FileExistsError, match=f"{taken.name} exists already"):
                exporter(model, path)
        assert taken.read_text() == "mine"
        taken.unlink()
    path.mkdir()
    with pytest.raises(FileExistsError, match="is no file that could be replaced"):
        export.litert(model, path, force=True)


def test_unwritable_output_is_one_sentence(model, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match=r"cannot write to .*file: .*; choose a folder"):
        export.litert(model, tmp_path / "file" / "model.tflite")
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_failed_replacement_keeps_the_earlier_export(model, tmp_path, monkeypatch):
    path = tmp_path / "model.tflite"
    path.write_text("earlier")
    module = sys.modules["keras_vit.export.litert"]

    def refuse(*args):
        raise export.ExportError("the converter refused the model: no kernel")

    monkeypatch.setattr(module, "convert", refuse)
    with pytest.raises(export.ExportError, match="no kernel"):
        export.litert(model, path, force=True)
    assert path.read_text() == "earlier"
    assert [p.name for p in tmp_path.iterdir()] == ["model.tflite"]


def test_comparison_measures_what_it_says():
    reference = np.array([[0.7, 0.3], [0.4, 0.6]])
    found = np.array([[0.7, 0.3], [0.4, 0.59]])
    with pytest.raises(export.ExportError, match=r"relative error of probabilities is 0.032"):
        compare("probabilities", reference, found, "float16", synthetic=False, what="x")
    result = compare("probabilities", reference, found, "dynamic_int8", synthetic=False, what="x")
    assert result.largest_error == pytest.approx(0.01)
    assert result.mean_error == pytest.approx(0.0025)
    # rms of the differences 0.005 over the standard deviation 0.158 of the reference
    assert result.relative_error == pytest.approx(0.005 / np.sqrt(0.025), rel=1e-6)
    assert (result.agreement, result.images) == (1.0, 2)
    # Logits up to a constant: only log 0.6 - log 0.59 of the last image's best class is left, seen
    # from it in the other class.
    assert result.largest_logit_error == pytest.approx(np.log(0.6 / 0.59))
    assert result.mean_logit_error == pytest.approx(np.log(0.6 / 0.59) / 4)
    as_logits = compare("logits", reference, found, "dynamic_int8", synthetic=True, what="x")
    assert as_logits.largest_logit_error == pytest.approx(0.01)
    features = compare("features", reference, found, "dynamic_int8", synthetic=True, what="x")
    assert features.largest_logit_error is features.agreement is None


def test_a_failed_check_can_be_allowed_and_is_told():
    reference, found = np.array([[0.7, 0.3], [0.4, 0.6]]), np.array([[0.3, 0.7], [0.4, 0.6]])
    options = {"synthetic": False, "what": "x", "labels": np.array([0, 0])}
    with pytest.raises(export.ExportError, match=r"relative error .* nothing was written"):
        compare("probabilities", reference, found, "dynamic_int8", **options)
    result = compare("probabilities", reference, found, "dynamic_int8", **options, allow=True)
    assert result.failed.startswith("x differs from the Keras model") and result.agreement == 0.5
    assert (result.accuracy, result.model_accuracy) == (0.0, 0.5)
    near = np.array([[0.49, 0.51], [0.4, 0.6]])
    few = compare("probabilities", near[:, ::-1], near, "int4_weights", **options, allow=True)
    assert few.failed and few.agreement == 0.0
    good = compare("probabilities", reference, reference, "dynamic_int8", **options, allow=True)
    assert good.failed is None
    with pytest.raises(export.ExportError, match="differs from the Keras model"):
        compare("probabilities", reference, found * np.nan, "float16", **options, allow=True)


@pytest.mark.case("Q02")
def test_disagreement_is_judged_on_given_images_only():
    reference = np.tile([0.51, 0.49, 0.0], (10, 1))
    found = reference.copy()
    found[0] = [0.49, 0.51, 0.0]
    made_up = compare("probabilities", reference, found, "dynamic_int8", synthetic=True, what="x")
    assert made_up.agreement == 0.9
    assert "only 90.0% of the synthetic images" in agreement_note(made_up)
    assert agreement_note(dataclasses.replace(made_up, agreement=0.95)) is None
    with pytest.raises(export.ExportError, match=r"same top-1 class .* only 90.0% of 10 images"):
        compare("probabilities", reference, found, "dynamic_int8", synthetic=False, what="x")


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_not_finite_outputs_fail(bad):
    reference = np.array([[0.7, 0.3]])
    with pytest.raises(export.ExportError, match="differs from the Keras model"):
        compare(
            "probabilities",
            reference,
            np.array([[bad, 0.3]]),
            "dynamic_int8",
            synthetic=False,
            what="x",
        )


def test_synthetic_images_are_seeded_and_natural():
    images = synthetic_images((28, 20, 3))
    np.testing.assert_array_equal(images, synthetic_images((28, 20, 3)))
    assert images.dtype == np.uint8 and images.shape == (16, 28, 20, 3)
    assert (images.min(axis=(1, 2, 3)) == 0).all() and (images.max(axis=(1, 2, 3)) == 255).all()
    flat = images.reshape(16, -1).astype(float)
    others = np.corrcoef(flat)[~np.eye(16, dtype=bool)]
    assert np.abs(others).max() < 0.9  # sixteen images, not one
    # Neighbours are alike, unlike in noise.
    assert np.corrcoef(images[:, :-1].ravel(), images[:, 1:].ravel())[0, 1] > 0.5


def test_uint8_images_are_preprocessed(model):
    pixels = np.full((2, 50, 40, 1), 255, np.uint8)
    inputs, synthetic = model_inputs(model, pixels)
    assert not synthetic and inputs.shape == (2, 28, 28, 1)
    np.testing.assert_allclose(inputs, 1.0, atol=1e-6)


def test_latency_counts_its_runs():
    calls = []
    latency = measure_latency(lambda: calls.append(1), threads=1, runs=7)
    assert latency.runs == 7 and len(calls) == 10  # three of them to warm up
    calls.clear()
    slow = measure_latency(lambda: calls.append(1), threads=1, seconds=0.0)
    assert slow.runs == 3 and len(calls) == 4


def test_logits_become_probabilities(tmp_path):
    logits = np.array([[1000.0, 999.0]], np.float32)
    artifact = Artifact(tmp_path, "litert", (1, 2, 2, 1), ("logits",), lambda x: {"logits": logits})
    found = artifact.predict(np.zeros((1, 2, 2, 1), np.float32))
    np.testing.assert_allclose(found, [[1 / (1 + np.exp(-1)), 1 / (1 + np.exp(1))]], rtol=1e-5)


def test_opening_what_is_no_artifact(tmp_path):
    with pytest.raises(FileNotFoundError, match="does not exist: expected a SavedModel folder or"):
        export.open_artifact(tmp_path / "nothing.tflite")
    (tmp_path / "text.tflite").write_text("not a flatbuffer")
    for path in (tmp_path, tmp_path / "text.tflite"):
        with pytest.raises(ValueError, match="neither a SavedModel folder"):
            export.open_artifact(path)


def test_command_says_in_one_line_what_is_wrong(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(
        sys, "argv", ["export", str(tmp_path / "no.keras"), str(tmp_path / "x.tflite")]
    )
    assert command.main() == 1
    error = capsys.readouterr().err
    assert error.startswith("error: ") and len(error.strip().splitlines()) == 1


def test_command_exports_a_keras_file(model, tmp_path, monkeypatch, capsys):
    model.save(tmp_path / "model.keras")
    np.save(tmp_path / "images.npy", synthetic_images((28, 28, 1), 24))
    output = tmp_path / "model.tflite"
    arguments = ["export", tmp_path / "model.keras", output, "--output", "logits"]
    arguments += ["--images", tmp_path / "images.npy"]
    monkeypatch.setattr(sys, "argv", [str(a) for a in arguments])
    assert command.main() == 0
    assert "logits of 24 images" in capsys.readouterr().out
    values = json.loads((tmp_path / "model.tflite.json").read_text("utf-8"))
    assert values["comparisons"]["serving_default"]["agreement"] == 1.0
    assert values["versions"]["keras-vit-zoo"]
