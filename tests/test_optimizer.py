"""The recipe's optimizer: the updates of the original code, what decays, averages, rates by layer."""

import dataclasses
from pathlib import Path

import keras
import numpy as np
import pytest
from keras import ops

from keras_vit import VisionModel, ViTSpec
from keras_vit.spec import MixerSpec
from keras_vit.stepping import clip_by_global_norm
from keras_vit.train.optimizers import layer_rates, make_optimizer
from keras_vit.train.recipe import Optimizer, Recipe, Schedule

ORACLE = np.load(Path(__file__).parent / "oracles" / "optimizers.npz")
CONSTANT = Schedule(0.5, "constant", warmup_steps=0)

# Has every kind of parameter: class token, position table, norms, biases, kernels, pre_logits.
TINY = ViTSpec(
    hidden_size=12,
    mlp_dim=20,
    num_heads=3,
    num_layers=2,
    patch_size=(4, 4),
    image_size=(8, 12),
    num_classes=5,
    representation_size=7,
)
MAP = dataclasses.replace(TINY, pool="map")  # attention pooling has its probe


def randomised(spec: ViTSpec) -> VisionModel:
    model = VisionModel(spec)
    rng = np.random.default_rng(0)
    for variable in model.variables:
        variable.assign(rng.normal(0, 0.3, variable.shape).astype(np.float32))
    return model


def values(variables) -> dict[str, np.ndarray]:
    return {v.path: np.array(ops.convert_to_numpy(v)) for v in variables}


def stepped(recipe: Recipe, model: keras.Model, gradients, total: int = 10):
    """The optimizer after updates with these gradients, each clipped as a training step clips."""
    optimizer, variables = make_optimizer(recipe, model, total), model.trainable_variables
    for each in gradients:
        each = clip_by_global_norm(
            list(map(ops.convert_to_tensor, each)), recipe.optimizer.clip_norm
        )
        optimizer.apply(each, variables)
    return optimizer


# In the original, 0.05 of a kernel goes at the peak rate 0.1, and less as the rate falls.
DECAY = {"weight_decay": 0.05, "decay_times_lr": False}
RUNS = {
    "vit_sgd_float32": Optimizer("sgd"),
    "vit_sgd_bfloat16": Optimizer("sgd", moment_dtype="bfloat16"),
    "bv_momentum_hp_nowd": Optimizer("sgd", moment_dtype="bfloat16"),
    "bv_momentum_hp_wd": Optimizer("sgd", moment_dtype="bfloat16", **DECAY),
    "bv_adam_f32_wd": Optimizer("adamw", **DECAY),
    "bv_adam_bf16_wd": Optimizer("adamw", moment_dtype="bfloat16", **DECAY),
}


@pytest.mark.parametrize("name", RUNS)
def test_updates_are_those_of_the_original_code(name):
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(5)])
    kernel, bias = model.trainable_variables
    kernel.assign(ORACLE["init/a"])
    bias.assign(ORACLE["init/b"])
    recipe = Recipe(optimizer=RUNS[name], schedule=Schedule(0.1, "cosine", warmup_steps=2))
    optimizer = make_optimizer(recipe, model, total_steps=6)
    moved = np.zeros((4, 5))
    for step in range(6):
        gradients = [ops.convert_to_tensor(ORACLE[f"grad{step}/{key}"]) for key in "ab"]
        before = ops.convert_to_numpy(kernel)
        optimizer.apply(clip_by_global_norm(gradients, 1.0), [kernel, bias])
        moved = np.maximum(moved, np.abs(ops.convert_to_numpy(kernel) - before))
        keys = ("a", "b") if name.startswith("vit") else ("kernel", "bias")
        for variable, key in zip((kernel, bias), keys, strict=True):
            # Weights of order 1 in float32, six updates.
            np.testing.assert_allclose(
                ops.convert_to_numpy(variable),
                ORACLE[f"{name}/step{step}/{key}"],
                rtol=0,
                atol=1e-6,
            )
    assert moved.min() > 1e-3
    dtypes = {v.dtype for v in optimizer.variables if v.path.endswith("momentum")}
    assert dtypes == {recipe.optimizer.moment_dtype}
    assert all(v.dtype == "float32" for v in optimizer.variables if v.path.endswith("velocity"))


def test_every_run_of_the_oracle_is_tested():
    names = {key.split("/")[0] for key in ORACLE.files if "/step" in key}
    assert names == set(RUNS)


@pytest.mark.case("T12")
@pytest.mark.parametrize(
    ("kind", "spec", "times_lr"),
    [("adamw", TINY, True), ("adamw", MAP, False), ("sgd", TINY, False), ("sgd", MAP, True)],
    ids=["adamw", "adamw-map-big_vision", "sgd-big_vision", "sgd-map"],
)
def test_weight_decay_shrinks_kernels_alone(kind, spec, times_lr):
    model = randomised(spec)
    before = values(model.trainable_variables)
    decay = Optimizer(kind, weight_decay=0.1, decay_times_lr=times_lr, average=0.9)
    gradients = [np.zeros(v.shape, np.float32) for v in model.trainable_variables]
    stepped(Recipe(optimizer=decay, schedule=CONSTANT), model, [gradients])
    # Weights lose 0.1 of themselves, as the papers count it times the rate of 0.5.
    part = 0.05 if times_lr else 0.1
    for path, value in values(model.trainable_variables).items():
        kept = 1.0 - part if path.split("/")[-1] == "kernel" else 1.0
        np.testing.assert_allclose(value, kept * before[path], rtol=1e-6)
    last = {path.split("/")[-1] for path in before}
    assert {"kernel", "bias", "scale", "table"} <= last
    assert ("probe" if spec.pool == "map" else "token") in last


def test_averages_follow_the_weights_and_never_replace_them():
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(3)])
    kernel, bias = model.trainable_variables
    recipe = Recipe(optimizer=Optimizer("sgd", average=0.75), schedule=CONSTANT)
    rng = np.random.default_rng(0)
    optimizer = make_optimizer(recipe, model, 10)
    expected = None
    for _ in range(5):
        gradients = [rng.normal(size=v.shape).astype(np.float32) for v in (kernel, bias)]
        optimizer.apply(list(map(ops.convert_to_tensor, gradients)), [kernel, bias])
        now = ops.convert_to_numpy(kernel).astype(np.float64)
        expected = now if expected is None else 0.75 * expected + 0.25 * now
    average = next(v for v in optimizer.variables if "kernel" in v.path and "average" in v.path)
    np.testing.assert_allclose(ops.convert_to_numpy(average), expected, rtol=1e-5)
    before = values([kernel, bias])
    optimizer.finalize_variable_values([kernel, bias])  # what Keras calls when fit ends
    for path, value in values([kernel, bias]).items():
        np.testing.assert_array_equal(value, before[path])
    assert np.abs(before[kernel.path] - expected).max() > 1e-3


def test_rates_fall_with_the_distance_from_the_head():
    model = randomised(TINY)
    factors = layer_rates(model, 0.5)
    assert set(factors) == {v.path for v in model.trainable_variables}
    for path, factor in factors.items():
        layer = path.split("/")[0]
        expected = {"encoderblock_0": 0.25, "encoderblock_1": 0.5}.get(layer)
        after = layer in ("encoder_norm", "pre_logits", "head")
        assert factor == (expected or (1.0 if after else 0.125)), path
    before = values(model.trainable_variables)
    recipe = Recipe(
        optimizer=Optimizer("sgd", momentum=0.0, layer_decay=0.5, clip_norm=None), schedule=CONSTANT
    )
    stepped(recipe, model, [[np.ones(v.shape, np.float32) for v in model.trainable_variables]])
    for path, value in values(model.trainable_variables).items():
        np.testing.assert_allclose(before[path] - value, 0.5 * factors[path], rtol=1e-4)


def test_rates_by_layer_know_the_blocks_of_other_families():
    mixer = VisionModel(MixerSpec(24, 12, 40, 2, 4, image_size=24, in_channels=1, num_classes=7))
    assert set(layer_rates(mixer, 0.5).values()) == {0.125, 0.25, 0.5, 1.0}
    frozen = randomised(TINY)
    frozen.get_layer("encoderblock_0").trainable = False
    assert set(layer_rates(frozen, 0.5).values()) == {0.125, 0.5, 1.0}


def test_an_optimizer_is_rebuilt_from_its_config():
    for kind in ("adamw", "sgd"):
        options = Optimizer(kind, moment_dtype="bfloat16", average=0.9, layer_decay=0.5, **DECAY)
        made = make_optimizer(Recipe(optimizer=options), randomised(TINY), 10)
        config = keras.saving.serialize_keras_object(made)
        again = keras.saving.deserialize_keras_object(config)
        assert type(again) is type(made) and again.get_config() == made.get_config()
        assert again.use_ema and again.ema_momentum == 0.9 and again.rate_factors
