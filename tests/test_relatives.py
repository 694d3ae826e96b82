"""DeiT, DINOv2 and MAE: against Hugging Face's models, and against the float64 reference."""

import dataclasses
import importlib.util
import json
import re
from pathlib import Path

import keras
import numpy as np
import pytest
from safetensors.numpy import load_file

import keras_vit
from keras_vit import posemb
from keras_vit.layers import LayerScale, RegisterTokens, SwiGLU
from keras_vit.model import VisionModel
from keras_vit.spec import ViTSpec
from keras_vit.zoo.formats.entry import Entry
from keras_vit.zoo.formats.keys import Weights
from keras_vit.zoo.weights import model_of

ORACLES = Path(__file__).parent / "oracles"
# Two float32 implementations of these two-block models differ by about 2e-6 on values of 3; the tanh
# GELU moves them by 2e-4, an epsilon of 1e-12 instead of 1e-6 by 1e-5.
TOLERANCE = 1e-5

# Parts of a key of Hugging Face -> those of a variable of ours.
PARTS = (
    ("embeddings.cls_token", "cls/token"),
    ("embeddings.position_embeddings", "posembed_input/table"),
    ("embeddings.patch_embeddings.projection", "embedding"),
    ("encoder.layer.", "encoderblock_"),
    ("attention.attention.", "attention."),
    ("attention.output.dense", "attention.out"),
    ("intermediate.dense", "mlp.dense1"),
    ("output.dense", "mlp.dense2"),
    ("layernorm_before", "norm1"),
    ("layernorm_after", "norm2"),
    ("layer_scale1.lambda1", "scale1.scale"),
    ("layer_scale2.lambda1", "scale2.scale"),
    ("mlp.fc", "mlp.dense"),
    ("mlp.weights_out", "mlp.down"),
)


def ours(key: str, array: np.ndarray) -> dict[str, np.ndarray]:
    """A tensor of Hugging Face under our names and in our form."""
    if key.endswith("mask_token"):  # for masked training only
        return {}
    if array.ndim == 2 and key.endswith("weight"):
        array = array.T
    elif array.ndim == 4:
        array = array.transpose(2, 3, 1, 0)
    name = re.sub(r"^layernorm", "encoder_norm", key)
    for theirs, mine in PARTS:
        name = name.replace(theirs, mine)
    name = name.replace("weight", "scale" if "norm" in name else "kernel").replace(".", "/")
    if "weights_in" in key:
        gate, up = np.split(array, 2, axis=-1)
        name = name.replace("kernels_in", "{}")
        return {name.format("gate"): gate, name.format("up"): up}
    return {name: array}


def read(name: str) -> tuple[Weights, dict[str, np.ndarray], dict]:
    """The weights of a fixture, what goes in and comes out, and its configuration."""
    folder = ORACLES / "hf" / name
    found = {}
    for key, array in load_file(folder / "model.safetensors").items():
        found.update(ours(key, array))
    entries = {k: Entry(v.shape, v.dtype, lambda v=v: v) for k, v in found.items()}
    names = {k: k for k in entries}
    weights = Weights(name, entries, names, {k: v.shape for k, v in entries.items()})
    with np.load(ORACLES / "hf" / f"{name}_io.npz") as file:
        arrays = dict(file)
    return weights, arrays, json.loads((folder / "config.json").read_text())


def spec_of(config: dict, image_size: tuple[int, int]) -> ViTSpec:
    size = config["hidden_size"]
    mlp_dim = config.get("intermediate_size", size * config.get("mlp_ratio", 0))
    swiglu = config.get("use_swiglu_ffn", False)
    return ViTSpec(
        hidden_size=size,
        mlp_dim=(int(mlp_dim * 2 / 3) + 7) // 8 * 8 if swiglu else mlp_dim,
        num_heads=config["num_attention_heads"],
        num_layers=config["num_hidden_layers"],
        patch_size=config["patch_size"],
        image_size=image_size,
        num_classes=0,
        activation=config["hidden_act"],
        norm_epsilon=config["layer_norm_eps"],
        layer_scale=config.get("layerscale_value"),
        ffn="swiglu" if swiglu else "mlp",
    )


def array(x) -> np.ndarray:
    return keras.ops.convert_to_numpy(x)


def close(found, expected, tolerance=TOLERANCE):
    found = array(found)
    assert found.shape == expected.shape
    np.testing.assert_allclose(found, expected, rtol=0, atol=tolerance)


@pytest.mark.parametrize("case", ["", "_interp_0", "_interp_1"], ids=["32x32", "48x48", "56x40"])
@pytest.mark.parametrize("name", ["dinov2", "dinov2_swiglu"])
def test_dinov2_at_its_own_and_at_other_sizes(name, case):
    weights, arrays, config = read(name)
    x = arrays[f"input{case}"]
    model = model_of(weights, spec_of(config, x.shape[1:3]), posemb_resize="bicubic")
    assert model.count_params() == model.spec.num_params
    close(model.features("encoded")(x), arrays[f"last_hidden_state{case}"])
    if not case:
        close(model(x), arrays["pooler_output"])


def test_another_rule_for_positions_is_seen():
    weights, arrays, config = read("dinov2")
    x, expected = arrays["input_interp_1"], arrays["last_hidden_state_interp_1"]
    for method in ("align_corners", "half_pixel", "bicubic_antialias"):
        model = model_of(weights, spec_of(config, (56, 40)), posemb_resize=method)
        assert np.abs(array(model.features("encoded")(x)) - expected).max() > 1e-3


def test_mae_encoder_with_nothing_masked():
    weights, arrays, config = read("vit_mae")
    model = model_of(weights, spec_of(config, (32, 32)))
    close(model.features("encoded")(arrays["input"]), arrays["last_hidden_state"])


def test_mae_encoder_on_the_tokens_that_a_mask_leaves():
    weights, arrays, config = read("vit_mae")
    model = model_of(weights, spec_of(config, (32, 32)))
    x = array(model.features("posembed_input")(arrays["input"]))
    kept = np.argsort(arrays["noise"], axis=1)[:, :4]  # a quarter of 16, in the order of the noise
    patches = np.take_along_axis(x[:, 1:], kept[:, :, None], axis=1)
    x = np.concatenate([x[:, :1], patches], axis=1)
    for i in range(config["num_hidden_layers"]):
        x = model.get_layer(f"encoderblock_{i}")(x)
    close(model.get_layer("encoder_norm")(x), arrays["last_hidden_state_masked"])
    assert (np.take_along_axis(arrays["mask"], kept, axis=1) == 0).all()


# The NumPy reference, float64, prime-ish sizes.


def reference():
    spec = importlib.util.spec_from_file_location("numpy_vit", ORACLES / "numpy_vit.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.vit


BASE = ViTSpec(28, 37, 7, 2, (5, 3), image_size=(35, 33), in_channels=5, num_classes=11)
DISTILLED, REGISTERS = {"distilled": True, "activation": "gelu"}, {"num_registers": 5}
CASES = {
    "distilled": DISTILLED,
    "distilled_without_head": {**DISTILLED, "num_classes": 0},
    "distilled_registers": {**DISTILLED, **REGISTERS},
    "distilled_before_tokens": {**DISTILLED, "posemb_includes_cls": False},
    "registers": REGISTERS,
    "registers_per_token": {**REGISTERS, "pool": "token_unpooled"},
    "registers_before_cls": {**REGISTERS, "posemb_includes_cls": False},
    "layer_scale": {"layer_scale": 0.1},
    "swiglu": {"ffn": "swiglu"},
    "swiglu_map": {"ffn": "swiglu", "pool": "map", "activation": "gelu"},
    "dinov2_g_reg": {**REGISTERS, "ffn": "swiglu", "layer_scale": 1.0, "num_classes": 0},
}


@pytest.fixture(scope="module")
def built():
    """`built(case)`: model, images and the reference's endpoints, made once."""
    found = {}

    def make(case):
        if case not in found:
            spec = dataclasses.replace(BASE, **CASES[case])
            model, rng = VisionModel(spec), np.random.default_rng(19)
            for variable in model.weights:
                variable.assign(rng.normal(0.0, 0.3, variable.shape))
            params = {v.path: array(v).astype(np.float64) for v in model.weights}
            x = rng.uniform(-1, 1, (3, *spec.image_size, 5)).astype(np.float32)
            found[case] = model, x, reference()(spec, params, x)
        return found[case]

    return make


@pytest.mark.parametrize("case", CASES)
def test_matches_the_float64_reference(built, case):
    model, x, expected = built(case)
    names = list(expected)
    values = keras.Model(model.inputs[0], [model.endpoints[n] for n in names])(x)
    for name, value in zip(names, values, strict=True):
        # float32 rounding, relative to the size of the values; see test_vit_oracles.py.
        close(
            value, expected[name].astype(np.float32), 5e-6 * max(1.0, np.abs(expected[name]).max())
        )
    close(model(x), array(values[-1]), 1e-6)  # the same graph, which XLA may fuse otherwise
    assert model.count_params() == model.spec.num_params


@pytest.mark.parametrize("case", ["distilled", "registers", "distilled_registers"])
def test_prefix_tokens_in_endpoints_attention_and_maps(built, case):
    model, x, _ = built(case)
    spec, (h, w) = model.spec, model.spec.grid
    prefix = 1 + spec.distilled + spec.num_registers
    assert (spec.num_prefix_tokens, spec.num_tokens) == (prefix, prefix + h * w)
    for name in ("posembed_input", "encoderblock_1", "encoded"):
        assert model.endpoints[name].shape == (None, prefix + h * w, 28)
    attention = array(model.features("attention_1")(x))
    assert attention.shape == (3, 7, prefix + h * w, prefix + h * w)
    np.testing.assert_allclose(attention.sum(-1), 1.0, atol=1e-5)  # rows of a float32 softmax
    tokens = array(model.features("encoded")(x))
    found = array(model.features("encoded", as_map=True)(x))
    np.testing.assert_array_equal(found, tokens[:, prefix:].reshape(3, h, w, 28))


def test_the_logits_of_deit_are_the_mean_of_two_heads(built):
    model, x, _ = built("distilled")
    first, second = (array(model.features(n)(x)) for n in ("pre_logits", "pre_logits_dist"))
    p = {v.path: array(v).astype(np.float64) for v in model.weights}
    one = first @ p["head/kernel"] + p["head/bias"]
    other = second @ p["head_dist/kernel"] + p["head_dist/bias"]
    assert np.abs(one - other).max() > 0.1
    close(model(x), ((one + other) / 2).astype(np.float32))


def test_positions_are_added_before_registers_come_in(built):
    model, x, _ = built("registers")
    table = array(model.get_layer("posembed_input").table)
    assert table.shape == (1, 1 + 77, 28)  # none for the five registers
    tokens = array(model.features("posembed_input")(x))
    registers = array(model.get_layer("registers").tokens)
    np.testing.assert_array_equal(tokens[:, 1:6], np.repeat(registers, 3, 0))


@pytest.mark.parametrize("dtype", ["mixed_bfloat16", "mixed_float16"])
def test_mixed_precision_keeps_float32_weights_and_follows_float32(built, dtype):
    model, x, _ = built("dinov2_g_reg")
    half = model.with_spec(model.spec, dtype=dtype)
    for path in ("encoderblock_0/scale1/scale", "registers/tokens"):
        assert next(v for v in half.weights if v.path == path).dtype == "float32"
    block = half.get_layer("encoderblock_0")
    x32 = array(model.features("posembed_input")(x))
    scaled = block.scale1(keras.ops.cast(x32, half.policy.compute_dtype))
    assert keras.backend.standardize_dtype(scaled.dtype) == half.policy.compute_dtype
    found = array(keras.ops.cast(half(x), "float32"))
    # Normalised features of size 1 and 0.3-sized scales; two blocks lose a few of the 8 (or 11)
    # bits of a half.
    tolerance = {"mixed_bfloat16": 0.15, "mixed_float16": 0.02}[dtype]
    np.testing.assert_allclose(found, array(model(x)), rtol=0, atol=tolerance)


@pytest.mark.parametrize(
    "layer", [LayerScale(0.5), SwiGLU(16, 0.1), RegisterTokens(3, 2)], ids=lambda layer: layer.name
)
def test_layers_are_rebuilt_from_their_config(layer):
    x = np.random.default_rng(0).normal(size=(2, 6, 8)).astype(np.float32)
    expected = array(layer(x))
    again = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(layer))
    again(x)
    for new, old in zip(again.weights, layer.weights, strict=True):
        assert new.path.split("/")[1:] == old.path.split("/")[1:]
        new.assign(old)
    np.testing.assert_array_equal(array(again(x)), expected)
    shape = layer.compute_output_spec(keras.KerasTensor((None, 6, 8))).shape
    assert tuple(shape[1:]) == expected.shape[1:]


def test_layer_scale_starts_at_its_value_and_swiglu_drops_in_training_only():
    scale = LayerScale(1e-5)
    np.testing.assert_allclose(array(scale(np.ones((1, 2, 3), np.float32))), 1e-5)
    layer, x = SwiGLU(16, 0.5), np.ones((2, 3, 8), np.float32)
    np.testing.assert_array_equal(array(layer(x)), array(layer(x, training=False)))
    first, second = (array(layer(x, training=True)) for _ in range(2))
    assert np.abs(first - second).max() > 1e-3


@pytest.mark.parametrize("case", ["distilled", "dinov2_g_reg"])
def test_keras_files_keep_every_weight(built, tmp_path, case):
    model, x, _ = built(case)
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    assert again.spec == model.spec
    np.testing.assert_array_equal(array(again(x)), array(model(x)))


def test_models_with_registers_antialias_their_positions_and_others_do_not(tmp_path):
    for name, count, method in (("plain", 0, "bicubic"), ("registers", 3, "bicubic_antialias")):
        spec = ViTSpec(16, 32, 2, 1, 8, image_size=48, num_classes=0, activation="gelu")
        model = VisionModel(dataclasses.replace(spec, layer_scale=1.0, num_registers=count))
        table = model.get_layer("posembed_input").table
        table.assign(np.random.default_rng(4).normal(size=table.shape))
        keras_vit.save_weights_as(model, tmp_path / name, format="huggingface")
        (tmp_path / name / "keras_vit.json").unlink()  # as if Hugging Face had written it
        smaller = keras_vit.load(tmp_path / name, image_size=24)
        expected = posemb.resize(array(table), (6, 6), (3, 3), num_prefix=1, method=method)
        np.testing.assert_array_equal(
            array(smaller.get_layer("posembed_input").table), expected.astype(np.float32)
        )
