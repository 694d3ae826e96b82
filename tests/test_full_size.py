"""Full-size networks against the official code, with parameters that a recipe makes from their names.

The smallest belong to every run; the others need gigabytes and minutes (`make test-full`).
"""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

from keras_vit.zoo.variants import VARIANTS
from keras_vit.zoo.weights import load_weights

with np.load(Path(__file__).parent / "oracles" / "full_size_recipe.npz") as _file:
    ORACLE = {key: _file[key] for key in _file.files}
CASES = json.loads(str(ORACLE["config"]))["cases"]
# Name in the oracle -> variant and what differs from it.
NETWORKS = {
    "Ti_16": ("ViT-Ti/16", {}),
    "S_16": ("ViT-S/16", {}),
    "B_32": ("ViT-B/32", {}),
    "B_32_rep": ("ViT-B/32", {"representation_size": 768}),
    "B_16": ("ViT-B/16", {}),
    "B_16_gap": ("ViT-B/16", {"pool": "gap"}),
    "L_16": ("ViT-L/16", {}),
    "R_Ti_16": ("R+ViT-Ti/16", {}),
    "R50_L_32": ("R50+ViT-L/32", {}),
    "Mixer_B_16": ("Mixer-B/16", {}),
    "BiT_R50x1_128": ("BiT-R50x1", {}),
    "BiT_R50x1_224": ("BiT-R50x1", {}),
}
SMALL = ("Ti_16", "S_16", "R_Ti_16")
# Float32 of 12 to 24 blocks, or 50 convolutions, in another order of summation, on logits of up to 3.6.
TOLERANCE = 1e-4


def test_every_network_of_the_oracle_is_here():
    assert set(CASES) == set(NETWORKS)


@pytest.mark.case("L20")
@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=[] if n in SMALL else pytest.mark.full) for n in NETWORKS],
)
def test_logits_of_the_official_code(official, name):
    variant, fields = NETWORKS[name]
    case = CASES[name]
    spec = dataclasses.replace(
        VARIANTS[variant].spec,
        image_size=case["resolution"],
        num_classes=case["num_classes"],
        **fields,
    )
    model = official.built(spec)
    assert model.count_params() == spec.num_params == case["num_params"]
    params = official.recipe_params(model, case["param_seed"])
    # Says whether names and shapes are the official ones before the network is blamed.
    total = sum(float(value.sum(dtype=np.float64)) for value in params.values())
    assert total == pytest.approx(case["sum_of_all_params_f64"], rel=1e-9)
    load_weights(model, params)
    del params

    generator = np.random.RandomState(10_000 + case["input_seed"])
    size = (1, case["resolution"], case["resolution"], 3)
    x = (generator.randint(-128, 128, size=size) / 128).astype(np.float32)
    found = official.run(model, x)
    assert np.abs(ORACLE[name]).max() == pytest.approx(case["max_abs_logit"])
    np.testing.assert_allclose(found, ORACLE[name], rtol=0, atol=TOLERANCE)
