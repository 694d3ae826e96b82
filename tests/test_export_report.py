"""What is refused before and after an export, the report, and exporting from another backend."""

import dataclasses
import json
import os
import subprocess
import sys

import numpy as np
import pytest

from keras_vit import export
from keras_vit.export import __main__ as command
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
import numpy as np
from keras_vit import export
from keras_vit.model import VisionModel
from keras_vit.spec import ViTSpec
from keras_vit.export.verify import model_inputs
model = VisionModel(ViTSpec(24, 40, 3, 1, 7, image_size=28, in_channels=1, num_classes=5))
rng = np.random.default_rng(0)
for variable in model.weights:
    variable.assign(rng.normal(size=variable.shape) * 0.3)
try:
    export.litert(model, sys.argv[1])
except RuntimeError as error:
    print(error)
inputs = model_inputs(model, None)[0]
report = export.in_tensorflow_process(model, sys.argv[1], quantize="float16", images=inputs)
found = export.open_artifact(sys.argv[1]).predict(inputs)
print(report.mode, report.comparison.synthetic, np.abs(found - model.probabilities(inputs)).max())
"""


@pytest.fixture(scope="module")
def model(random_model):
    return random_model(SPEC)


def test_model_of_another_backend_is_exported_by_a_process_of_its_own(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", FROM_JAX, str(tmp_path / "jax.tflite")],
        env={**os.environ, "KERAS_BACKEND": "jax"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    refusal, result = done.stdout.strip().splitlines()
    assert "KERAS_BACKEND=jax" in refusal and "in_tensorflow_process(model, path, ...)" in refusal
    mode, synthetic, error = result.split()
    assert (mode, synthetic) == ("float16", "False")
    assert float(error) < 1e-2  # float16 weights; 1.3e-3 measured on larger models
    assert {p.name for p in tmp_path.iterdir()} == {"jax.tflite", "jax.tflite.json"}


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
