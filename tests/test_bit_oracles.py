"""BiT and the V1 ResNet of big_vision against outputs of the official code."""

import dataclasses

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.spec import ResNetBody, ResNetSpec
from keras_vit.zoo.formats import read_weights
from keras_vit.zoo.infer import spec_of
from keras_vit.zoo.variants import BIT_NUMERICS, VARIANTS
from keras_vit.zoo.weights import load_weights

# Two float32 implementations differ by about 2e-6 here; the other border of the max-pool moves a
# logit by 2e-3 to 5e-3. The hybrids' standardisation moves one by 9e-6 and GroupNorm epsilon 1e-6 by
# less: tests/test_units.py tells those apart.
TOLERANCE = 1e-5
BIT = ("bit_1_1_w05", "bit_1_1_1_1_w1")


def array(x):
    return keras.ops.convert_to_numpy(x)


def spec_of_bit(fixture, x, **changes):
    body = ResNetBody(
        tuple(fixture.config["block_units"]),
        fixture.config["width_factor"],
        **{**BIT_NUMERICS, **changes},
    )
    return ResNetSpec(body, image_size=x.shape[1:3], num_classes=10)


@pytest.mark.parametrize("border", ["zero", "-inf"])
@pytest.mark.parametrize("name", BIT)
@pytest.mark.case("L23")
def test_bit_with_either_border_of_the_max_pool(official, name, border):
    # zero: the authors' three implementations; -inf: big_vision's reading of the same files.
    fixture = official.read(name)
    outputs = {"zero": "output", "-inf": "output_bigvision_neginf_maxpool"}
    other = {"zero": "-inf", "-inf": "zero"}[border]
    runs = fixture.runs(outputs[border])
    assert len(runs) == {"bit_1_1_w05": 4, "bit_1_1_1_1_w1": 2}[name]
    for x, expected in runs:
        model = official.loaded(fixture, spec_of_bit(fixture, x, pool_border=border))
        assert model.count_params() == model.spec.num_params == fixture.config["num_params"]
        found = official.run(model, x)
        np.testing.assert_allclose(found, expected, rtol=0, atol=TOLERANCE)
    if keras.backend.backend() != "tensorflow":  # once is enough to show what is wrong
        return
    # The other border is another network.
    model = official.loaded(fixture, spec_of_bit(fixture, x, pool_border=other))
    assert 1e-3 < np.abs(official.run(model, x) - expected).max() < 1e-2


@pytest.mark.tf_only  # about the fixtures, not about a backend
@pytest.mark.parametrize(
    ("changes", "least"),
    [
        ({"padding": "same", "pool_border": "-inf"}, 0.1),
        ({"weight_standardization": None}, 0.05),
        ({"weight_epsilon": 1e-5}, 1e-4),
        ({"norm_epsilon": 1e-3}, 1.5e-5),
    ],
    ids=lambda value: "-".join(map(str, value)) if isinstance(value, dict) else "",
)
def test_a_wrong_rule_is_seen(official, changes, least):
    fixture = official.read("bit_1_1_w05")
    x, expected = fixture.runs()[0]
    model = official.loaded(fixture, spec_of_bit(fixture, x, **changes))
    assert np.abs(official.run(model, x) - expected).max() > least


def test_the_v1_network_of_big_vision(official):
    fixture = official.read("bv_resnetv1_gn_1_1_w05")
    for i, (x, expected) in enumerate(fixture.runs()):
        body = ResNetBody(tuple(fixture.config["depth"]), fixture.config["width"])
        spec = ResNetSpec(body, image_size=x.shape[1:3], num_classes=10)
        model = official.loaded(fixture, spec)
        found, features = official.run(
            model, x, [model.endpoints["logits"], model.endpoints["pre_logits"]]
        )
        np.testing.assert_allclose(found, expected, rtol=0, atol=TOLERANCE)
        if i == 0:
            expected = fixture.arrays["inter/pre_logits"]
            np.testing.assert_allclose(features, expected, rtol=0, atol=TOLERANCE)
            assert np.abs(expected).max() > 0.5


def test_lone_files_tell_their_architecture(official):
    fixture = official.read("bit_1_1_w05")
    x, _ = fixture.runs()[0]
    found = spec_of(read_weights(fixture.stored), image_size=(32, 32))
    assert found == spec_of_bit(fixture, x)
    fixture = official.read("bv_resnetv1_gn_1_1_w05")
    found = spec_of(read_weights(fixture.stored), image_size=(32, 32))
    assert found == ResNetSpec(ResNetBody((1, 1), 0.5), image_size=32, num_classes=10)


@pytest.mark.parametrize("name", ["vit_tiny_token", "hybrid_1_1_w05", "bit_1_1_w05", "mixer_tiny"])
@pytest.mark.case("L09")
def test_a_file_gives_its_own_head_none_or_a_new_one(official, tmp_path, name):
    fixture = official.read(name)
    np.savez(tmp_path / "file.npz", **fixture.stored)
    own, none, new = (
        keras_vit.load(tmp_path / "file.npz", image_size=32, num_classes=classes)
        for classes in (None, 0, 6)
    )
    size = own.spec.feature_size
    assert [m.output_shape for m in (own, none, new)] == [(None, 10), (None, size), (None, 6)]
    assert own.has_usable_head and not none.has_usable_head and not new.has_usable_head
    weights = {v.path: array(v) for v in own.weights}
    for other, more in ((none, set()), (new, {"head/kernel", "head/bias"})):
        found = {v.path: array(v) for v in other.weights}
        assert set(found) == (set(weights) - {"head/kernel", "head/bias"}) | more
        for path in set(found) - {"head/kernel", "head/bias"}:
            np.testing.assert_array_equal(found[path], weights[path], err_msg=path)
    assert not array(new.get_layer("head").kernel).any()


def test_files_of_bit_do_not_fit_the_v1_network(official):
    fixture = official.read("bit_1_1_w05")
    model = official.built(ResNetSpec(ResNetBody((1, 1), 0.5), image_size=32, num_classes=10))
    with pytest.raises(ValueError, match=r"\+ resnet/group_norm/gamma"):
        load_weights(model, fixture.stored)


def test_the_published_bits_have_their_authors_rules():
    bits = {n: v.spec.body for n, v in VARIANTS.items() if n.startswith("BiT-R")}
    assert len(bits) == 9
    for body in bits.values():
        rules = {field: getattr(body, field) for field in BIT_NUMERICS}
        assert rules == {
            "preactivation": True,
            "weight_standardization": "var",
            "weight_epsilon": 1e-10,
            "norm_epsilon": 1e-5,
            "padding": "fixed",
            "pool_border": "zero",
        }
    assert dataclasses.replace(bits["BiT-R50x1"], width_factor=3) == bits["BiT-R50x3"]
