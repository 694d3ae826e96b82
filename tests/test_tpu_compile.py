"""Training steps of every family compile for TPU v3: everything in them is static and TPU-legal.

The compiler of the package libtpu needs no TPU. It runs in processes of its own (tests/tpu_steps.py),
whatever backend these tests run on.
"""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from keras_vit.studies.process import ENVIRONMENT

STEPS = Path(__file__).with_name("tpu_steps.py")
FAMILIES = ("vit", "hybrid", "resnet", "mixer")

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("libtpu") is None or importlib.util.find_spec("jax") is None,
    reason="libtpu is not installed (it has wheels for Linux on x86-64 only)",
)


def answers(*arguments: str, backend: str = "jax") -> list[dict]:
    """What the script says, a dictionary for each line."""
    done = subprocess.run(
        [sys.executable, STEPS, *arguments],
        env={**os.environ, **ENVIRONMENT, "KERAS_BACKEND": backend},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.fixture(scope="module")
def compiled():
    """The steps of all families over the eight cores of a v3-8, compiled in one process."""
    wanted = [*(f"jax:{family}" for family in FAMILIES), "refused"]
    return dict(zip((*FAMILIES, "refused"), answers(*wanted), strict=True))


@pytest.mark.parametrize("family", FAMILIES)
def test_the_step_of_fit_compiles_for_a_tpu(compiled, family):
    found = compiled[family]
    assert not found["dynamic"]
    assert found["figures"]["fits"]
    assert found["figures"]["memory"] > found["figures"]["arguments"] > 0
    assert found["figures"]["seconds"] > 0
    # The state, the images and the targets: nothing that the step uses is baked into it.
    assert found["arguments"] == found["variables"] + 2


@pytest.mark.parametrize("family", FAMILIES)
def test_the_batch_is_divided_over_the_cores_and_gradients_are_averaged(compiled, family):
    found = compiled[family]
    assert found["partitions"] == 8
    assert found["per_core"] == ["4"]  # of 32 images
    assert found["all_reduces"] >= 1
    assert found["bfloat16_products"] > 10


@pytest.mark.parametrize("family", FAMILIES)
def test_nothing_is_allocated_for_a_plan(compiled, family):
    # Scalars: the schedule, counters. The smallest of these networks has 2,000 parameters.
    assert compiled[family]["allocated"] < 100


def test_the_step_under_tpu_strategy_compiles_for_a_tpu():
    pytest.importorskip("tensorflow")
    (found,) = answers("tensorflow:vit", backend="tensorflow")
    assert not found["dynamic"]
    assert set(found["foreign"]) <= {"mhlo.copy"}
    assert found["code"] > 0
    assert found["bfloat16_products"] > 10
    assert found["arguments_in_bytes"] >= found["variables_in_bytes"]


def test_the_compiler_refuses_what_a_tpu_cannot_do(compiled):
    assert "tpu" in compiled["refused"]["error"].lower()


@pytest.mark.full
@pytest.mark.parametrize("family", ["hybrid", "resnet", "mixer"])
def test_the_other_families_compile_under_tpu_strategy(family):
    pytest.importorskip("tensorflow")
    (found,) = answers(f"tensorflow:{family}", backend="tensorflow")
    assert set(found["foreign"]) <= {"mhlo.copy"}
    assert not found["dynamic"]
