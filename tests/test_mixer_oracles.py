"""MLP-Mixer against outputs of the official code."""

import dataclasses

import numpy as np
import pytest

from keras_vit.spec import MixerSpec
from keras_vit.zoo.formats import read_weights
from keras_vit.zoo.infer import spec_of

# Two float32 implementations differ by about 3e-7; LayerNorm epsilon 1e-5 moves a logit by 7e-6.
TOLERANCE = 3e-6
SPEC = MixerSpec(
    hidden_size=32,
    tokens_mlp_dim=24,
    channels_mlp_dim=64,
    num_layers=2,
    patch_size=8,
    image_size=32,
    num_classes=10,
)
# Intermediate of the fixture -> endpoint.
INSIDE = {
    "stem": "embedding",
    "MixerBlock_0": "mixerblock_0",
    "MixerBlock_1": "mixerblock_1",
    "pre_head_layer_norm": "encoded",
}


def test_official_outputs_at_every_stage(official):
    fixture = official.read("mixer_tiny")
    model = official.loaded(fixture, SPEC)
    assert model.count_params() == model.spec.num_params
    tensors = [model.endpoints[name] for name in (*INSIDE.values(), "logits")]
    *found, output = official.run(model, fixture.arrays["input"], tensors)
    for key, value in zip(INSIDE, found, strict=True):
        expected = fixture.arrays[f"inter/{key}"]
        np.testing.assert_allclose(value, expected, rtol=0, atol=TOLERANCE, err_msg=key)
    np.testing.assert_allclose(output, fixture.arrays["output"], rtol=0, atol=TOLERANCE)


@pytest.mark.tf_only  # about the fixtures, not about a backend
@pytest.mark.parametrize(
    ("changes", "least"),
    [
        ({"activation": "gelu"}, 1e-4),
        ({"norm_epsilon": 1e-5}, 5e-6),
        ({"norm_epsilon": 1e-3}, 5e-4),
    ],
)
def test_a_wrong_rule_is_seen(official, changes, least):
    fixture = official.read("mixer_tiny")
    model = official.loaded(fixture, dataclasses.replace(SPEC, **changes))
    found = official.run(model, fixture.arrays["input"])
    assert np.abs(found - fixture.arrays["output"]).max() > least


def test_tokens_are_mixed_across_and_channels_within(official):
    # A change of one patch reaches every other through the token MLP, and only through it.
    fixture = official.read("mixer_tiny")
    model, x = official.loaded(fixture, SPEC), fixture.arrays["input"][:1].copy()
    features = model.features("mixerblock_0")
    before = official.run(features, x)
    x[:, :8, :8] += 0.5
    changed = np.abs(official.run(features, x) - before).max(axis=-1)[0]
    assert (changed > 1e-4).all()
    block = model.get_layer("mixerblock_0")
    for variable in block.token_mixing.weights:
        variable.assign(np.zeros(variable.shape))
    alone = official.run(features, x)
    x[:, :8, :8] -= 0.5
    changed = np.abs(official.run(features, x) - alone).max(axis=-1)[0]
    assert changed[0] > 1e-2 and (changed[1:] == 0).all()


def test_a_lone_file_tells_its_architecture(official):
    assert spec_of(read_weights(official.read("mixer_tiny").stored)) == SPEC
