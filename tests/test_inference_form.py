"""What is converted computes less than the model and gives the same numbers."""

import importlib

import numpy as np
import pytest

from keras_vit import export
from keras_vit.export import graph
from keras_vit.export.inference import inference_outputs
from keras_vit.export.paths import operation_table
from keras_vit.export.verify import model_inputs
from keras_vit.spec import HybridSpec, MixerSpec, ResNetBody, ViTSpec

pytestmark = pytest.mark.tf_only

PLAIN = {
    "hidden_size": 24, "mlp_dim": 16, "num_heads": 3, "num_layers": 2, "patch_size": (7, 4),
    "image_size": (28, 20), "num_classes": 7,
}  # fmt: skip
SPECS = {
    "class token": ViTSpec(**PLAIN),
    "no head": ViTSpec(**{**PLAIN, "num_classes": 0}),
    "distilled": ViTSpec(**PLAIN, distilled=True, activation="gelu"),
    "registers": ViTSpec(
        **PLAIN, num_registers=3, layer_scale=0.1, ffn="swiglu", posemb_includes_cls=False
    ),
    "first token": ViTSpec(**PLAIN, pool="first", representation_size=9),
    "relative": ViTSpec(**PLAIN, posemb="relative"),
    "gap": ViTSpec(**PLAIN, pool="gap"),
    "map": ViTSpec(**PLAIN, pool="map"),
    "all tokens": ViTSpec(**PLAIN, pool="token_unpooled"),
    "pixels left over": ViTSpec(**{**PLAIN, "image_size": (30, 23)}, allow_crop=True),
    "hybrid": HybridSpec(
        24, 40, 3, 1, 1, resnet=ResNetBody((1, 1), 0.5), image_size=(45, 32), num_classes=7
    ),
    "mixer": MixerSpec(24, 16, 40, 2, (8, 7), image_size=(24, 28), num_classes=7),
}


@pytest.mark.parametrize("name", SPECS)
def test_the_form_gives_the_numbers_of_the_model(random_model, name):
    model = random_model(SPECS[name])
    x = model_inputs(model, None)[0][:3]
    expected, found = graph.named_outputs(model)(x), inference_outputs(model)(x)
    assert set(found) == set(expected)
    for output, values in expected.items():
        # Sums of a few dozen float32 numbers in another order.
        scale = max(1.0, np.abs(values).max())
        np.testing.assert_allclose(found[output], values, atol=2e-5 * scale, rtol=0)


@pytest.fixture(scope="module")
def table(random_model):
    """Operations of the class-token model by layer, with the shapes of their results."""
    convert = importlib.import_module("keras_vit.export.litert").convert
    content = convert(inference_outputs(random_model(SPECS["class token"])), "logits", 1, 0)
    from ai_edge_litert.tools import flatbuffer_utils

    (net,) = flatbuffer_utils.read_model_from_bytearray(bytearray(content)).subgraphs
    return [
        (op, tuple(net.tensors[net.operators[op.index].outputs[0]].shape))
        for op in operation_table(content)
    ]


def test_the_last_block_computes_the_class_token_alone(table):
    tokens, heads = 21, 3
    shapes = {}
    for op, shape in table:
        if op.kind == "FULLY_CONNECTED":
            shapes[op.layer] = int(np.prod(shape[:-1]))
    for layer in ("query", "key", "value", "out"):
        assert shapes[f"encoderblock_0/attention/{layer}"] == tokens
    assert shapes["encoderblock_0/mlp/dense1"] == tokens
    for layer, rows in (("query", 1), ("key", heads), ("value", heads), ("out", 1)):
        assert shapes[f"encoderblock_1/attention/{layer}"] == rows
    assert shapes["encoderblock_1/mlp/dense1"] == shapes["encoderblock_1/mlp/dense2"] == 1
    assert shapes["embedding"] == 20


def test_every_operation_keeps_a_documented_name(table):
    layers = {op.layer for op, _ in table}
    block = ("norm1", "attention", "norm2", "mlp", "residual")
    inner = ("attention/query", "attention/key", "attention/value", "attention/out")
    inner = (*inner, "mlp/dense1", "mlp/dense2")
    expected = {f"encoderblock_{i}/{part}" for i in (0, 1) for part in (*block, *inner)}
    known = {
        *expected,
        "encoderblock_1",
        "embedding",
        "cls",
        "posembed_input",
        "encoder_norm",
        "head",
    }
    assert expected <= layers <= known


@pytest.mark.parametrize("mode", ["int8", "int4_weights"])
def test_integer_files_of_the_form(random_model, tmp_path, mode):
    spec = ViTSpec(**{**PLAIN, "hidden_size": 32, "num_heads": 2, "mlp_dim": 64, "patch_size": 4})
    model = random_model(spec)
    images = model_inputs(model, None)[0]
    options = {"strict": True, "images": images} if mode == "int8" else {}
    path = tmp_path / "a.tflite"
    report = export.litert(model, path, quantize=mode, **options)
    assert report.comparison.relative_error <= report.comparison.bound[1]
    if mode == "int8":  # nothing of it needs floats
        assert report.quantization["float"] == {}
    else:
        kernels = {op.layer for op in operation_table(path.read_bytes())}
        assert "embedding" in kernels and report.weights["INT8"] >= 4 * 4 * 3 * 32
