"""The learning rates of a run against those of the original code."""

from pathlib import Path

import numpy as np
import pytest
from keras import ops

from keras_vit.train import recipes
from keras_vit.train.recipe import Schedule
from keras_vit.train.schedules import WarmupDecay, from_recipe

ORACLE = np.load(Path(__file__).parent / "oracles" / "schedules.npz")
STEPS = ORACLE["steps"]
VIT_JAX = [name for name in ORACLE.files if name.startswith("vit_jax/")]
BIT = [name for name in ORACLE.files if name.startswith("bit/")]
# What the original was called with; peak 1, 10,000 steps, warm-up of 500.
BIG_VISION = {
    "cosine_w": {"decay": "cosine"},
    "linear_end": {"decay": "linear", "end_lr": 1e-5},
    "rsqrt": {"decay": "rsqrt", "timescale": 1000, "cooldown_steps": 1000},
    "stair": {"decay": "stairs", "stairs": (0.3, 0.6, 0.9)},
}


def rates(schedule, steps=STEPS) -> np.ndarray:
    return ops.convert_to_numpy(schedule(np.asarray(steps, np.int32)))


def test_an_optimizer_asks_for_one_step_at_a_time():
    schedule = from_recipe(Schedule(base_lr=0.5, warmup_steps=100, decay="constant"), 1000)
    for step in (7, np.int64(7), ops.convert_to_tensor(7, "int32")):
        rate = schedule(step)
        assert rate.shape == () and float(rate) == pytest.approx(0.035, rel=1e-6)


@pytest.mark.parametrize("name", VIT_JAX)
def test_rates_are_those_of_the_original_code(name):
    decay, total, base, warmup = name.removeprefix("vit_jax/").split("_")
    found = rates(WarmupDecay(float(base), int(total), int(warmup.removeprefix("w")), decay))
    # A cosine in float32 near its zero: 1e-7 of the peak.
    np.testing.assert_allclose(found, ORACLE[name], rtol=1e-5, atol=2e-7 * float(base))
    assert len(np.unique(found)) > 5


@pytest.mark.parametrize("name", BIG_VISION)
def test_rates_are_those_of_big_vision(name):
    schedule = Schedule(base_lr=1.0, warmup_steps=500, **BIG_VISION[name])
    found = rates(from_recipe(schedule, 10_000))
    # Beyond the end of the run the original's cool-down goes below 0; ours stays there.
    expected = np.maximum(ORACLE[f"big_vision/{name}"], 0.0)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=2e-7)
    assert len(np.unique(found)) > 5


def test_every_rate_of_the_oracle_is_tested():
    tested = {*VIT_JAX, *BIT, *(f"big_vision/{name}" for name in BIG_VISION), "config", "steps"}
    assert tested == set(ORACLE.files)


@pytest.mark.parametrize("name", BIT)
def test_the_hyperrule_is_that_of_bit(name):
    examples = int(name.removeprefix("bit/"))
    recipe = recipes.resolve("bit/hyperrule", examples=examples, image_size=(224, 224))
    found = rates(from_recipe(recipe.schedule, recipe.steps))
    over = np.isnan(ORACLE[name])
    np.testing.assert_array_equal(STEPS >= recipe.steps, over)
    # Up to four roundings of float32 (6e-8 each) against the float64 of the original.
    np.testing.assert_allclose(found[~over], ORACLE[name][~over], rtol=3e-7)
    assert found[0] == 0.0


def test_stairs_drop_one_step_after_their_boundary():
    # bit_hyperrule.py divides at every support strictly below the step; the oracle holds none of them.
    schedule = from_recipe(
        Schedule(base_lr=0.003, warmup_steps=500, decay="stairs", stairs=(0.3, 0.6, 0.9)), 10_000
    )
    for boundary, before in ((3000, 3e-3), (6000, 3e-4), (9000, 3e-5)):
        found = rates(schedule, (boundary, boundary + 1))
        np.testing.assert_allclose(found, (before, before / 10), rtol=3e-7)


@pytest.mark.parametrize("total", [30, 997, 1_000_003])
def test_stairs_stand_at_whole_steps_of_any_run(total):
    schedule = from_recipe(
        Schedule(base_lr=1.0, warmup_steps=0, decay="stairs", stairs=(1 / 3, 2 / 3, 8 / 9)), total
    )
    assert schedule.config["stairs"] == [
        round(total / 3),
        round(total * 2 / 3),
        round(total * 8 / 9),
    ]


def test_the_share_of_warm_up_is_of_the_run():
    schedule = from_recipe(Schedule(base_lr=0.5, warmup_fraction=0.25, decay="constant"), 100)
    np.testing.assert_allclose(rates(schedule, (0, 10, 25, 99)), (0.0, 0.2, 0.5, 0.5), rtol=1e-6)


def test_a_cool_down_ends_any_decay():
    schedule = from_recipe(
        Schedule(base_lr=1.0, warmup_steps=0, decay="constant", cooldown_steps=10), 50
    )
    found = rates(schedule, (39, 40, 45, 49, 50, 60))
    np.testing.assert_allclose(found, (1.0, 1.0, 0.5, 0.1, 0.0, 0.0), atol=1e-6)


@pytest.mark.parametrize("name", [*BIG_VISION, "constant"])
def test_a_schedule_is_rebuilt_from_its_config(name):
    fields = BIG_VISION.get(name, {"decay": "constant"})
    schedule = from_recipe(Schedule(base_lr=0.1, warmup_steps=10, **fields), 3000)
    again = WarmupDecay.from_config(schedule.get_config())
    steps = (0, 5, 37, 1500, 2500, 2999)
    np.testing.assert_array_equal(rates(again, steps), rates(schedule, steps))


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


@pytest.mark.parametrize(
    "fields",
    [
        {"decay": "stairs"},
        {"stairs": (0.5,)},
        {"decay": "stairs", "stairs": (0.6, 0.3)},
        {"timescale": 0},
        {"cooldown_steps": -1},
    ],
)
def test_wrong_fields_of_a_schedule_are_refused(fields):
    with pytest.raises(ValueError, match=r"stairs|timescale"):
        Schedule(**fields)
