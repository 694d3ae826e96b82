"""ONNX files: valid, the same numbers in onnxruntime, and labels inside."""

import dataclasses
import importlib.util

import numpy as np
import pytest

from keras_vit import export
from keras_vit.card import Card, Preprocessing
from keras_vit.cli.classifier import open_classifier
from keras_vit.export.verify import model_inputs, synthetic_images
from keras_vit.spec import ResNetBody, ResNetSpec, ViTSpec

MISSING = [n for n in ("onnx", "onnxruntime", "tf2onnx") if not importlib.util.find_spec(n)]
pytestmark = [
    pytest.mark.tf_only,
    pytest.mark.skipif(bool(MISSING), reason=f"not installed: {MISSING} (extra [onnx])"),
]

SPEC = ViTSpec(
    hidden_size=24,
    mlp_dim=40,
    num_heads=3,
    num_layers=1,
    patch_size=8,
    image_size=(32, 40),
    in_channels=3,
    num_classes=4,
)
CARD = Card(
    variant="ViT-Test/8",
    tag="random",
    num_classes=4,
    class_names=("ant", "bee", "cat", "dog"),
    preprocessing=Preprocessing(resize="shorter_side", resize_to=36, mean=(120.0,), std=(60.0,)),
)


@pytest.fixture(scope="module", params=["gelu", pytest.param("gelu_tanh", marks=pytest.mark.full)])
def model(request, random_model):
    return random_model(dataclasses.replace(SPEC, activation=request.param), card=CARD)


@pytest.fixture(scope="module")
def exported(model, tmp_path_factory):
    path = tmp_path_factory.mktemp("onnx") / "model.onnx"
    return path, model.export(path, format="onnx")


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
