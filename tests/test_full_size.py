"""Full-size networks against the official code, with parameters that a recipe makes from their names.

The two smallest belong to every run; the others need gigabytes and minutes (`make test-full`).
"""

import dataclasses
import json
import zlib
from pathlib import Path

import keras
import numpy as np
import pytest

from keras_vit.model import VisionModel
from keras_vit.zoo.formats import values_of
from keras_vit.zoo.formats.google_npz import to_arrays
from keras_vit.zoo.weights import load_weights
from keras_vit.zoo.variants import VARIANTS

with np.load(Path(__file__).parent / "oracles" / "full_size_recipe.npz") as _file:
    ORACLE = {key: _file[key] for key in _file.files}
CASES = json.loads(str(ORACLE["config"]))["cases"]
# Name in the oracle -> variant and what differs from it.
PLAIN = {
    "Ti_16": ("ViT-Ti/16", {}),
    "S_16": ("ViT-S/16", {}),
    "B_32": ("ViT-B/32", {}),
    "B_32_rep": ("ViT-B/32", {"representation_size": 768}),
    "B_16": ("ViT-B/16", {}),
    "B_16_gap": ("ViT-B/16", {"pool": "gap"}),
    "L_16": ("ViT-L/16", {}),
}
SMALL = ("Ti_16", "S_16")
# Float32 of 12 to 24 blocks in another order of summation, on logits of up to 3.6.
TOLERANCE = 1e-4


def recipe_parameter(key: str, shape: tuple[int, ...], seed: int) -> np.ndarray:
    """float32 values that depend on a parameter's official name, shape and a seed alone."""
    generator = np.random.RandomState((zlib.crc32(key.encode()) + seed) % 2**32)
    n = generator.standard_normal(shape)
    last = key.split("/")[-1]
    if last == "kernel":
        is_projection = key.endswith(("query/kernel", "key/kernel", "value/kernel"))
        fan_in = shape[0] if is_projection and len(shape) == 3 else np.prod(shape[:-1])
        n /= np.sqrt(fan_in)
    elif last in ("scale", "gamma"):
        n = 1 + 0.1 * n
    elif last in ("bias", "beta"):
        n *= 0.1
    else:
        assert last in ("pos_embedding", "cls", "probe"), key
        n *= 0.2
    return n.astype(np.float32)


def test_every_plain_vit_of_the_oracle_is_here():
    others = {"R_Ti_16", "R50_L_32", "Mixer_B_16", "BiT_R50x1_128", "BiT_R50x1_224"}
    assert set(CASES) - others == set(PLAIN)


@pytest.mark.case("L20")
@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=[] if n in SMALL else pytest.mark.full) for n in PLAIN],
)
def test_logits_of_the_official_code(name):
    variant, fields = PLAIN[name]
    case = CASES[name]
    spec = dataclasses.replace(
        VARIANTS[variant].spec,
        image_size=case["resolution"],
        num_classes=case["num_classes"],
        **fields,
    )
    model = VisionModel(spec)
    assert model.count_params() == spec.num_params == case["num_params"]
    shapes = {key: value.shape for key, value in to_arrays(values_of(model), model.spec).items()}
    params = {k: recipe_parameter(k, shape, case["param_seed"]) for k, shape in shapes.items()}
    # Says whether names and shapes are the official ones before the network is blamed.
    total = sum(float(value.sum(dtype=np.float64)) for value in params.values())
    assert total == pytest.approx(case["sum_of_all_params_f64"], rel=1e-9)
    load_weights(model, params)
    del params

    generator = np.random.RandomState(10_000 + case["input_seed"])
    size = (1, case["resolution"], case["resolution"], 3)
    x = (generator.randint(-128, 128, size=size) / 128).astype(np.float32)
    found = keras.ops.convert_to_numpy(model(x))
    assert np.abs(ORACLE[name]).max() == pytest.approx(case["max_abs_logit"])
    np.testing.assert_allclose(found, ORACLE[name], rtol=0, atol=TOLERANCE)
