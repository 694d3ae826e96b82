"""Rematerialised blocks: the same outputs, gradients and random numbers, and less memory for them."""

import dataclasses

import keras
import numpy as np
import pytest

from keras_vit.layers.remat import Block, set_remat
from keras_vit.model import VisionModel
from keras_vit.spec import HybridSpec, MixerSpec, ResNetBody, ViTSpec
from keras_vit.train.optimizers import SGD

TOKENS = {"hidden_size": 8, "mlp_dim": 12, "num_heads": 2, "num_layers": 2}
SPECS = {
    "vit": ViTSpec(
        patch_size=4, image_size=8, num_classes=3, dropout=0.3, stochastic_depth=0.3, **TOKENS
    ),
    "hybrid": HybridSpec(
        patch_size=1,
        image_size=16,
        num_classes=3,
        resnet=ResNetBody(block_units=(1,), width_factor=0.5),
        **TOKENS,
    ),
    "mixer": MixerSpec(8, 6, 12, 2, 4, image_size=8, num_classes=3, stochastic_depth=0.3),
}


def trained(spec, random_model, remat, **options):
    """Weights after two steps of SGD whose dropouts start from the same seeds."""
    keras.utils.set_random_seed(3)
    model = random_model(spec)
    set_remat(model, remat)
    model.compile(SGD(0.9, learning_rate=0.1), "mse", **options)
    rng = np.random.default_rng(0)
    x = rng.uniform(-1, 1, (8, *spec.image_size, 3)).astype("float32")
    y = rng.normal(size=(8, 3)).astype("float32")
    for _ in range(2):
        model.train_on_batch(x, y)
    return model, [keras.ops.convert_to_numpy(v) for v in model.variables]


PARTS = {"accumulation_steps": 2, "jit_compile": True}


@pytest.mark.parametrize(
    ("family", "options"),
    [
        *((family, {}) for family in SPECS),
        ("vit", PARTS),
        # The compiler takes long for these.
        *(pytest.param(family, PARTS, marks=pytest.mark.full) for family in ("hybrid", "mixer")),
    ],
)
def test_training_is_the_same(family, options, random_model):
    plain = trained(SPECS[family], random_model, False, **options)
    model, again = trained(SPECS[family], random_model, True, **options)
    blocks = [layer for layer in model.layers if isinstance(layer, Block)]
    assert blocks and all(block.remat for block in blocks)
    assert len(plain[1]) == len(again)
    for variable, one, other in zip(model.variables, plain[1], again, strict=True):
        # A few roundings of float32, of values below 10: XLA merges other operations.
        np.testing.assert_allclose(other, one, atol=1e-5, err_msg=variable.path)
    seeds = [v for v in model.non_trainable_variables if "seed" in v.path]
    assert all(int(keras.ops.convert_to_numpy(v)[1]) > 0 for v in seeds)


@pytest.mark.parametrize("family", SPECS)
def test_every_block_is_computed_twice(family, random_model, monkeypatch):
    count, remat = [], keras.remat
    monkeypatch.setattr(keras, "remat", lambda f: count.append(f) or remat(f))
    model, _ = trained(SPECS[family], random_model, True, run_eagerly=True)
    blocks = [layer for layer in model.layers if isinstance(layer, Block)]
    assert len(count) == 2 * len(blocks)  # steps
    assert len(blocks) == {"vit": 2, "hybrid": 3, "mixer": 2}[family]


def test_inference_and_attention_are_untouched(random_model):
    spec = dataclasses.replace(SPECS["vit"], dropout=0.0, stochastic_depth=0.0)
    model = random_model(spec)
    x = np.random.default_rng(0).uniform(-1, 1, (2, 8, 8, 3)).astype("float32")
    before = keras.ops.convert_to_numpy(model(x, training=False))
    set_remat(model, True)
    np.testing.assert_array_equal(keras.ops.convert_to_numpy(model(x, training=False)), before)
    assert model.features("attention_0")(x).shape == (2, 2, 5, 5)
    assert isinstance(model, VisionModel)
    set_remat(model, False)
    assert not any(layer.remat for layer in model.layers if isinstance(layer, Block))
