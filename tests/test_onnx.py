"""ONNX files: valid, the same numbers in onnxruntime, and labels inside."""

import dataclasses
import importlib.util
import runpy
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from keras_vit import export
from keras_vit.cli.classifier import open_classifier
from keras_vit.export.benchmark import benchmark
from keras_vit.export.verify import BOUNDS, model_inputs, synthetic_images
from keras_vit.spec import ResNetBody, ResNetSpec

MISSING = [n for n in ("onnx", "onnxruntime", "tf2onnx") if not importlib.util.find_spec(n)]
pytestmark = [
    pytest.mark.tf_only,
    pytest.mark.skipif(bool(MISSING), reason=f"not installed: {MISSING} (extra [onnx])"),
]

exports = SimpleNamespace(**runpy.run_path(str(Path(__file__).with_name("exports.py"))))
SPEC, CARD = exports.SPEC, exports.CARD


@pytest.fixture(scope="module", params=["gelu", pytest.param("gelu_tanh", marks=pytest.mark.full)])
def model(request, random_model):
    return random_model(dataclasses.replace(SPEC, activation=request.param), card=CARD)


@pytest.fixture(scope="module")
def exported(model, tmp_path_factory):
    path = tmp_path_factory.mktemp("onnx") / "model.onnx"
    labels = np.arange(16) % 4  # of the synthetic images
    return path, model.export(path, format="onnx", labels=labels)


@pytest.mark.parametrize("batch", [1, 3, 32])
def test_onnxruntime_gives_what_keras_gives(model, exported, batch):
    import onnxruntime

    session = onnxruntime.InferenceSession(str(exported[0]))
    x = model_inputs(model, synthetic_images((50, 45, 3), batch, seed=5))[0]
    found = session.run(["features", "logits", "probabilities"], {"images": x})
    expected = (np.asarray(model.features("pre_logits")(x)), np.asarray(model(x)))
    for one, other in zip(found, (*expected, model.probabilities(x)), strict=True):
        np.testing.assert_allclose(
            one, other, atol=1e-4, rtol=0
        )  # logits reach 10, float32 sums in another order


def test_the_file_is_valid_and_the_exact_gelu_is_made_of_erf(model, exported):
    import onnx

    path, report = exported
    onnx.checker.check_model(str(path), full_check=True)
    exact = model.spec.activation == "gelu"
    assert report.operations.get("Erf", 0) == (SPEC.num_layers if exact else 0)
    assert "Erfc" not in report.operations
    assert report.signatures["serving_default"]["inputs"] == {
        "images": [[None, 32, 40, 3], "float32"]
    }
    assert set(report.comparisons) == {"serving_default", "features", "logits"}
    assert report.comparison.output == "probabilities"
    assert export.Report.read(path) == report
    assert {p.name for p in path.parent.iterdir()} == {"model.onnx", "model.onnx.json"}


def test_the_report_has_what_that_of_a_tflite_has(model, exported):
    report = exported[1]
    assert (report.latency.threads, report.latency_2.threads) == (1, 2)
    assert 0 < report.latency_2.low_ms <= report.latency_2.median_ms <= report.latency_2.high_ms
    assert report.peak_memory is None or 4 * SPEC.num_params < report.peak_memory < 2e8
    assert report.runtimes == {"opset": {"version": 17, "runtime": "1.12"}}
    assert len(report.source["weights_sha256"]) == 64 and report.versions["onnxruntime"]
    classes = model.probabilities(model_inputs(model, None)[0]).argmax(-1)
    accuracy = float((classes == np.arange(16) % 4).mean())
    for name in ("serving_default", "logits"):
        comparison = report.comparisons[name]
        assert comparison.accuracy == comparison.model_accuracy == accuracy
        # float32 sums in another order; logits reach 10.
        assert 0 < comparison.mean_logit_error <= comparison.largest_logit_error < 1e-3
    assert report.comparisons["features"].accuracy is None
    text = report.to_text()
    assert "needs onnxruntime 1.12" in text and "GPU" not in text and "of logits" in text


def test_bench_times_a_file(exported):
    (found,) = benchmark([exported[0]], threads=(1, 2), rounds=3)
    assert found.adb is None and [latency.threads for latency in found.latencies] == [1, 2]
    assert found.peak_memory is None or found.peak_memory > 4 * SPEC.num_params


def test_a_file_that_differs_is_kept_where_that_is_allowed(model, tmp_path, monkeypatch):
    monkeypatch.setitem(BOUNDS, "float32", ("largest_error", 0.0))
    with pytest.raises(export.ExportError, match="differs from the Keras model"):
        export.onnx(model, tmp_path / "model.onnx")
    assert not list(tmp_path.iterdir())
    report = export.onnx(model, tmp_path / "model.onnx", allow=True)
    assert len(report.failed) == 3 and export.Report.read(tmp_path / "model.onnx") == report


def test_a_file_alone_says_what_it_is(model, exported, tmp_path):
    (tmp_path / "alone.onnx").write_bytes(exported[0].read_bytes())
    classifier = open_classifier(str(tmp_path / "alone.onnx"))
    assert (classifier.kind, classifier.class_names) == ("onnx", CARD.class_names)
    assert classifier.preprocessing == CARD.preprocessing
    assert classifier.image_size == (32, 40)
    x = model_inputs(model, None)[0]
    np.testing.assert_allclose(classifier.predict(x), model.probabilities(x), atol=1e-5, rtol=0)


@pytest.mark.full
def test_kernels_are_stored_standardised(random_model, tmp_path):
    spec = ResNetSpec(ResNetBody((1, 1), 0.5), image_size=(45, 32), num_classes=3)
    report = export.onnx(random_model(spec), tmp_path / "bit.onnx")
    assert any("standardised" in note for note in report.notes)


def test_an_operation_onnx_does_not_have_is_an_error(model, tmp_path, monkeypatch):
    module = importlib.import_module("keras_vit.export.onnx")
    if model.spec.activation != "gelu":
        pytest.skip("its GELU has no Erfc")
    monkeypatch.setattr(module, "_replace_erfc", lambda graph, format: None)
    with pytest.raises(export.ExportError, match=r"wrote no valid ONNX: .*Erfc"):
        export.onnx(model, tmp_path / "new" / "model.onnx")
    assert not list(tmp_path.iterdir())


def test_refusals(model, tmp_path, monkeypatch):
    with pytest.raises(ValueError, match=r"must end in \.onnx"):
        export.onnx(model, tmp_path / "model.tflite")
    (tmp_path / "no.onnx").write_bytes(b"nothing")
    with pytest.raises(ValueError, match=r"no\.onnx cannot be opened"):
        export.open_artifact(tmp_path / "no.onnx")
    with pytest.raises(FileExistsError, match="exists already"):
        export.onnx(model, tmp_path / "no.onnx")
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda n: None if n == "tf2onnx" else find(n))
    with pytest.raises(RuntimeError, match=r"need tf2onnx: pip install .*\[onnx\]"):
        export.onnx(model, tmp_path / "model.onnx")
