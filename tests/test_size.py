"""What does not fit into a file is refused before anything is built or converted."""

import importlib
from types import SimpleNamespace

import pytest

from keras_vit import export
from keras_vit.export import size
from keras_vit.spec import ViTSpec
from keras_vit.zoo.variants import VARIANTS

pytestmark = pytest.mark.tf_only

TINY = ViTSpec(
    hidden_size=8, mlp_dim=16, num_heads=2, num_layers=1, patch_size=4, image_size=(8, 8),
    num_classes=3,
)  # fmt: skip


@pytest.fixture
def nothing_is_built(monkeypatch):
    for name in ("named_outputs", "float32_model"):
        monkeypatch.setattr(
            f"keras_vit.export.graph.{name}", lambda *_: pytest.fail("it was built")
        )


def test_vit_h_14_is_too_large_for_onnx(tmp_path, nothing_is_built):
    spec = VARIANTS["ViT-H/14"].spec
    # 632 million numbers of four bytes; LIMIT is what a protobuf message holds, 2 GiB.
    assert 4 * spec.num_params < size.estimated_size(spec, "float32") < 2.6e9
    assert size.LIMIT == 2**31 - 1
    with pytest.raises(ValueError, match=r"needs 2\.53 GB, and an \.onnx file holds at most 2\.15"):
        export.onnx(SimpleNamespace(spec=spec), tmp_path / "huge.onnx")
    assert list(tmp_path.iterdir()) == []


def test_the_limit_of_onnx_is_that_of_the_computed_size(random_model, tmp_path, monkeypatch):
    module = importlib.import_module("keras_vit.export.onnx")
    needed = size.estimated_size(TINY, "float32")
    model = random_model(TINY)
    monkeypatch.setattr(module, "LIMIT", needed - 1)
    with pytest.raises(ValueError, match="export a SavedModel instead"):
        export.onnx(model, tmp_path / "model.onnx")
    monkeypatch.setattr(module, "LIMIT", needed)  # fits, so what comes next refuses
    with pytest.raises(ValueError, match=r"must end in \.onnx"):
        export.onnx(model, tmp_path / "model.tflite")
    assert list(tmp_path.iterdir()) == []
