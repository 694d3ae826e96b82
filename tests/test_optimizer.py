"""The recipe's optimizer: its learning rate, what it decays, small batches instead of a large one."""

import dataclasses
from pathlib import Path

import keras
import numpy as np
import pytest
from keras import ops

from keras_vit import VisionModel, ViTSpec
from keras_vit.train.recipe import Recipe
from keras_vit.train.run import make_optimizer
from keras_vit.train.schedules import WarmupDecay

SCHEDULES = np.load(Path(__file__).parent / "oracles" / "schedules.npz")

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


@pytest.mark.case("T12")
@pytest.mark.parametrize("spec", [TINY, MAP], ids=["token", "map"])
@pytest.mark.parametrize("kind", ["adamw", "sgd"])
def test_weight_decay_shrinks_kernels_alone(kind, spec):
    model = randomised(spec)
    before = {v.path: ops.convert_to_numpy(v) for v in model.trainable_variables}
    recipe = Recipe(
        optimizer=kind, weight_decay=0.1, base_lr=0.5, warmup_fraction=0.0, decay="constant"
    )
    optimizer = make_optimizer(recipe, model, total_steps=10)
    variables = model.trainable_variables
    optimizer.apply([ops.zeros(v.shape) for v in variables], variables)
    for variable in variables:
        # Decoupled decay: weights lose learning rate times decay of themselves, 0.05 here.
        kept = 0.95 if variable.path.split("/")[-1] == "kernel" else 1.0
        np.testing.assert_allclose(
            ops.convert_to_numpy(variable), kept * before[variable.path], rtol=1e-6
        )
    last = {path.split("/")[-1] for path in before}
    assert {"kernel", "bias", "scale", "table"} <= last
    assert ("probe" if spec.pool == "map" else "token") in last


@pytest.mark.case("T11")
def test_accumulated_small_batches_equal_one_large():
    rng = np.random.default_rng(1)
    x = rng.uniform(-1, 1, (8, 8, 12, 3)).astype(np.float32)
    y = np.eye(5, dtype=np.float32)[np.arange(8) % 5]
    found = []
    for batch_size, steps in ((8, None), (2, 4)):
        model = randomised(TINY)
        model.compile(
            optimizer=keras.optimizers.SGD(0.5, gradient_accumulation_steps=steps),
            loss=keras.losses.CategoricalCrossentropy(from_logits=True),
        )
        model.fit(x, y, batch_size=batch_size, shuffle=False, verbose=0)
        found.append([ops.convert_to_numpy(v) for v in model.trainable_variables])
    moved = max(
        np.abs(a - ops.convert_to_numpy(v)).max()
        for a, v in zip(found[0], randomised(TINY).trainable_variables, strict=True)
    )
    assert moved > 1e-2
    for large, small in zip(*found, strict=True):
        # The same sum in another order: float32 rounding of gradients of order 1.
        np.testing.assert_allclose(small, large, atol=1e-5)


@pytest.mark.parametrize("name", [n for n in SCHEDULES.files if n.startswith("vit_jax/")])
def test_learning_rates_are_those_of_the_original_code(name):
    decay, total, base, warmup = name.removeprefix("vit_jax/").split("_")
    schedule = WarmupDecay(float(base), int(total), int(warmup.removeprefix("w")), decay)
    steps = SCHEDULES["steps"]
    found = np.array([ops.convert_to_numpy(schedule(int(step))) for step in steps])
    # A cosine in float32 near its zero: 1e-7 of the peak.
    np.testing.assert_allclose(found, SCHEDULES[name], rtol=1e-5, atol=2e-7 * float(base))
    assert len(np.unique(found)) > 5


def test_a_schedule_is_rebuilt_from_its_config():
    schedule = WarmupDecay(0.1, 100, 10, "linear", 1e-4)
    again = WarmupDecay.from_config(schedule.get_config())
    assert float(again(37)) == float(schedule(37))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0.1, 100, 0, "step"), r"decay must be one of .*'step'"),
        ((0.1, 100, 100), r"warmup_steps must be less than the 100 steps of the run, got 100"),
    ],
)
def test_wrong_schedules_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        WarmupDecay(*arguments)
