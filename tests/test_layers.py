"""Single layers against the official units, and the properties that whole-model tests would hide."""

from pathlib import Path

import keras
import numpy as np
import pytest
from keras import ops

from keras_vit.layers import (
    ClassToken,
    Dropout,
    EncoderBlock,
    LayerNorm,
    MapHead,
    MlpBlock,
    MultiHeadAttention,
    PositionEmbedding,
    StochasticDepth,
    TakeToken,
)
from keras_vit.layers.common import gelu

with np.load(Path(__file__).parent / "oracles" / "units.npz") as _file:
    UNITS = {k: _file[k] for k in _file.files if k.startswith(("layernorm", "gelu", "attention"))}


def array(x):
    return ops.convert_to_numpy(x)


def norm(epsilon=1e-6, dtype="float32"):
    layer = LayerNorm(epsilon, dtype=dtype)
    layer.build((None, 5, 64))
    layer.scale.assign(UNITS["layernorm/scale"])
    layer.bias.assign(UNITS["layernorm/bias"])
    return layer


@pytest.mark.case("L21")
@pytest.mark.parametrize("scale", ["1", "0.01", "0.001", "0.0001"])
def test_layer_norm(scale):
    x, expected = UNITS[f"layernorm/scale{scale}/input"], UNITS[f"layernorm/scale{scale}/output"]
    # At 1e-4 the variance is a hundredth of the epsilon: float32 in two orders, 1e-6 apart.
    np.testing.assert_allclose(array(norm()(x)), expected, rtol=0, atol=5e-6)


@pytest.mark.case("L21")
@pytest.mark.parametrize("epsilon", [1e-5, 1e-12, 1e-3])
def test_another_epsilon_is_seen_at_small_scale(epsilon):
    x, expected = UNITS["layernorm/scale0.001/input"], UNITS["layernorm/scale0.001/output"]
    assert np.abs(array(norm(epsilon)(x)) - expected).max() > 0.1


@pytest.mark.case("L21")
def test_a_row_of_variance_1e_3_keeps_std_0_9995():
    x = np.tile([0.0316228, -0.0316228], 32).astype(np.float32)[None, None]
    layer = LayerNorm()
    assert abs(array(layer(x)).std() - 0.9995) < 1e-4


@pytest.mark.parametrize(
    "dtype",
    # JAX has float64 only on request.
    ["mixed_float16", "mixed_bfloat16", pytest.param("float64", marks=pytest.mark.tf_only)],
)
def test_layer_norm_in_other_precisions(dtype):
    layer = norm(dtype=dtype)
    x, expected = UNITS["layernorm/scale1/input"], UNITS["layernorm/scale1/output"]
    found = layer(ops.cast(x, layer.compute_dtype))
    assert keras.backend.standardize_dtype(found.dtype) == layer.compute_dtype
    assert layer.scale.dtype == ("float64" if dtype == "float64" else "float32")
    tolerance = {"mixed_float16": 5e-3, "mixed_bfloat16": 4e-2, "float64": 5e-6}[dtype]
    np.testing.assert_allclose(array(ops.cast(found, "float32")), expected, atol=tolerance)


def test_layer_norm_of_large_half_precision_values_is_finite():
    # The square of 300 leaves float16; the layer works in float32.
    x = ops.cast(np.tile([300.0, -300.0], (1, 1, 32)), "float16")
    assert np.isfinite(array(norm(dtype="mixed_float16")(x))).all()


@pytest.mark.case("L20")
def test_gelu_tanh_and_exact():
    x = UNITS["gelu/input"]
    np.testing.assert_allclose(array(gelu(x, "gelu_tanh")), UNITS["gelu/output"], atol=1e-6)
    np.testing.assert_allclose(array(gelu(x, "gelu")), UNITS["gelu/erf_for_reference"], atol=1e-6)
    point = np.array([2.699], np.float32)
    assert abs(float(gelu(point, "gelu_tanh")[0]) - float(gelu(point, "gelu")[0])) > 2e-4


def attention(dtype="float32"):
    layer = MultiHeadAttention(3, dtype=dtype)
    layer.build((None, 7, 24))
    for name in ("query", "key", "value", "out"):
        dense = getattr(layer, name)
        dense.kernel.assign(UNITS[f"attention/{name}/kernel"].reshape(24, 24))
        dense.bias.assign(UNITS[f"attention/{name}/bias"].reshape(24))
    return layer


def test_attention_and_its_weights():
    layer, x = attention(), UNITS["attention/input"]
    np.testing.assert_allclose(array(layer(x)), UNITS["attention/output"], atol=2e-6)
    weights = array(layer.attention_weights(x))
    np.testing.assert_allclose(weights, UNITS["attention/weights"], atol=1e-6)


@pytest.mark.case("T09")
@pytest.mark.parametrize("dtype", ["mixed_float16", "mixed_bfloat16"])
def test_scores_of_1e5_stay_finite_in_half_precision(dtype):
    layer, x = attention(dtype), UNITS["attention/input"]
    for dense in (layer.query, layer.key):
        dense.kernel.assign(dense.kernel * 300.0)
    query, key = array(layer.query(x)).astype(np.float64), array(layer.key(x)).astype(np.float64)
    assert np.abs(query[:, :, :8] @ key[:, :, :8].transpose(0, 2, 1)).max() > 1e5
    weights = array(ops.cast(layer.attention_weights(x), "float32"))
    assert np.isfinite(weights).all()
    np.testing.assert_allclose(weights.sum(-1), 1.0, atol=2e-2)
    assert np.isfinite(array(ops.cast(layer(x), "float32"))).all()


@pytest.mark.case("T06")
def test_stochastic_depth_keeps_the_mean_and_drops_whole_examples():
    layer, x = StochasticDepth(0.25, seed=3), np.ones((4000, 2, 3), np.float32)
    np.testing.assert_array_equal(array(layer(x, training=False)), x)
    np.testing.assert_array_equal(array(layer(x)), x)
    out = array(layer(x, training=True))
    assert {round(float(v), 5) for v in np.unique(out)} == {0.0, round(1 / 0.75, 5)}
    assert (out == out[:, :1, :1]).all()
    assert abs(out.mean() - 1.0) < 0.03  # six standard errors of 4000 draws


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_dropout_is_that_of_keras(dtype):
    x = np.random.default_rng(0).normal(size=(64, 33)).astype("float32")
    mine, theirs = (
        kind(0.3, seed=5, dtype=dtype)(x, training=True) for kind in (Dropout, keras.layers.Dropout)
    )
    kept = keras.ops.convert_to_numpy(keras.ops.cast(mine, "float32"))
    np.testing.assert_array_equal(
        kept, keras.ops.convert_to_numpy(keras.ops.cast(theirs, "float32"))
    )
    assert 0.25 < np.mean(kept == 0.0) < 0.35  # 2112 draws: a standard deviation is 0.01


def test_dropout_acts_in_training_only():
    block = EncoderBlock(2, 16, dropout=0.5, attention_dropout=0.5, stochastic_depth=0.5)
    x = np.random.default_rng(0).normal(size=(3, 5, 8)).astype(np.float32)
    block.build(x.shape)
    np.testing.assert_array_equal(array(block(x)), array(block(x, training=False)))
    first, second = array(block(x, training=True)), array(block(x, training=True))
    assert np.abs(first - second).max() > 1e-3


def test_map_head_pools_any_number_of_tokens():
    layer = MapHead(2, 16, "gelu_tanh", 1e-6)
    x = np.random.default_rng(0).normal(size=(3, 5, 8)).astype(np.float32)
    assert layer(x).shape == (3, 8)
    shuffled = x[:, [4, 2, 0, 1, 3]]  # no positions inside: order of tokens does not matter
    np.testing.assert_allclose(array(layer(x)), array(layer(shuffled)), atol=1e-6)


@pytest.mark.parametrize(
    "layer",
    [
        LayerNorm(1e-5),
        MultiHeadAttention(2, 0.1),
        MlpBlock(16, 0.1, "gelu"),
        EncoderBlock(2, 16, dropout=0.1, attention_dropout=0.2, stochastic_depth=0.3),
        MapHead(2, 16, "gelu", 1e-5),
        StochasticDepth(0.1, seed=1),
        ClassToken(),
        TakeToken(),
        PositionEmbedding((2, 3)),
        PositionEmbedding((2, 3), "sincos2d"),
    ],
    ids=lambda layer: layer.name,
)
def test_every_layer_is_rebuilt_from_its_config(layer):
    x = np.random.default_rng(0).normal(size=(2, 6, 8)).astype(np.float32)
    expected = array(layer(x))
    again = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(layer))
    assert type(again) is type(layer)
    again(x)
    for new, old in zip(again.weights, layer.weights, strict=True):
        assert new.path.split("/")[1:] == old.path.split("/")[1:]
        new.assign(old)
    np.testing.assert_array_equal(array(again(x)), expected)
    assert tuple(layer.compute_output_spec(keras.KerasTensor((None, 6, 8))).shape[1:]) == tuple(
        expected.shape[1:]
    )
