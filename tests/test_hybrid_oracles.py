"""Hybrids against outputs of the official code, at every stage and for every parity of the image."""

import dataclasses
import json
from pathlib import Path

import keras
import numpy as np
import pytest

from keras_vit.layers import StdConv2D
from keras_vit.model import _is_concrete
from keras_vit.spec import HybridSpec, ResNetBody, ViTSpec
from keras_vit.zoo.formats import read_weights
from keras_vit.zoo.infer import spec_of
from keras_vit.zoo.variants import VARIANTS
from keras_vit.zoo.weights import load_weights

ORACLES = Path(__file__).parent / "oracles"
HYBRIDS = ("hybrid_stem_only", "hybrid_1_1_w05", "hybrid_1_1_1_w1", "hybrid_1_2_2_w1_odd")
FIXTURES = (*HYBRIDS, "resnet_no_transformer")
# Two float32 implementations differ by about 2e-6 here; a wrong padding moves a logit by 1, the third
# standardisation by 2e-4. Epsilons move less than that: tests/test_units.py tells them apart.
TOLERANCE = 1e-5
SENSITIVITY = json.loads((ORACLES / "sensitivity.json").read_text())["rows"]


def array(x):
    return keras.ops.convert_to_numpy(x)


def spec_from(config, image_size, **changes):
    model = config["model"]
    transformer = model["transformer"] or {"mlp_dim": 1, "num_heads": 1, "num_layers": 0}
    return HybridSpec(
        hidden_size=model["hidden_size"],
        mlp_dim=transformer["mlp_dim"],
        num_heads=transformer["num_heads"],
        num_layers=transformer["num_layers"],
        patch_size=tuple(model["patches"]["size"]),
        image_size=tuple(image_size),
        num_classes=config["num_classes"],
        pool=model["classifier"],
        posemb="learn" if model["transformer"] else "none",
        resnet=ResNetBody(
            tuple(model["resnet"]["num_layers"]), model["resnet"]["width_factor"], **changes
        ),
    )


def inside(model, name):
    """The tensor of an intermediate of a fixture, and how many of its channels are stored."""
    stage = name.removesuffix("_first4ch")
    channels = 4 if name != stage else None
    if stage in ("conv_root", "gn_root"):  # before ReLU and pool, which `root` is behind
        return model.get_layer(stage).output, channels
    return model.endpoints[{"encoder_norm": "encoded"}.get(stage, stage)], channels


@pytest.mark.parametrize("name", FIXTURES)
def test_official_outputs_at_every_stage(official, name):
    fixture = official.read(name)
    x = fixture.arrays["input"]
    model = official.loaded(fixture, spec_from(fixture.config, x.shape[1:3]))
    count = fixture.config["num_params"]
    assert model.count_params() == model.spec.num_params == count

    names = [k.removeprefix("inter/") for k in fixture.arrays if k.startswith("inter/")]
    stages = len(model.spec.resnet.block_units)
    assert len(names) == (8 if model.spec.num_layers else 4) + stages
    tensors, channels = zip(*(inside(model, n) for n in names), strict=True)
    *found, output = official.run(model, x, [*tensors, model.outputs[0]])
    for key, value, kept in zip(names, found, channels, strict=True):
        expected = fixture.arrays[f"inter/{key}"]
        # Convolved pixels reach 16, so their rounding does too.
        tolerance = TOLERANCE * max(1.0, np.abs(expected).max())
        np.testing.assert_allclose(value[..., :kept], expected, rtol=0, atol=tolerance, err_msg=key)
    np.testing.assert_allclose(output, fixture.arrays["output"], rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        ("hybrid_stem_only", (32, 31)),
        ("hybrid_1_1_w05", (32, 29, 30, 31)),
        ("hybrid_1_2_2_w1_odd", (61,)),
    ],
)
@pytest.mark.case("L24")
def test_images_of_every_parity_are_padded_as_in_the_original(official, name, sizes):
    fixture = official.read(name)
    runs = fixture.runs()
    assert tuple(x.shape[1] for x, _ in runs) == sizes
    for x, expected in runs:
        model = official.loaded(fixture, spec_from(fixture.config, x.shape[1:3]))
        assert model.spec.grid == (4, 4)
        np.testing.assert_allclose(official.run(model, x), expected, rtol=0, atol=TOLERANCE)
        if keras.backend.backend() != "tensorflow":  # once is enough to show what is wrong
            continue
        # Somewhere on the way down each of them has an even map, where symmetric pads are others.
        spec = spec_from(fixture.config, x.shape[1:3], padding="fixed")
        wrong = official.run(official.loaded(fixture, spec), x)
        assert np.abs(wrong - expected).max() > 0.05


def vit_token(official):
    fixture = official.read("vit_tiny_token")
    config = fixture.config["model"]
    block = config["transformer"]
    spec = ViTSpec(
        config["hidden_size"], block["mlp_dim"], block["num_heads"], block["num_layers"],
        tuple(config["patches"]["size"]), image_size=32, num_classes=10,
    )  # fmt: skip
    return fixture, spec


def _sample_deviation(self):
    kernel = keras.ops.convert_to_tensor(self.kernel)
    kernel = kernel - keras.ops.mean(kernel, axis=(0, 1, 2), keepdims=True)
    count = float(np.prod(kernel.shape[:3]))
    deviation = keras.ops.std(kernel, axis=(0, 1, 2), keepdims=True)
    return kernel / (deviation * np.sqrt(count / (count - 1)) + self.epsilon)


# Each wrong choice that the fixtures' authors measured, as a change of the spec or of the network.
WRONG = {
    "vit_tiny_token": {
        "none (noise floor)": {},
        "exact erf GELU instead of tanh": {"activation": "gelu"},
        "LayerNorm eps 1e-5": {"norm_epsilon": 1e-5},
        "LayerNorm eps 1e-3 (Keras default)": {"norm_epsilon": 1e-3},
    },
    "hybrid_1_1_w05": {
        "none (noise floor)": {},
        "GroupNorm eps 1e-5": {"norm_epsilon": 1e-5},
        "GroupNorm eps 1e-3 (Keras default)": {"norm_epsilon": 1e-3},
        "weight std: sqrt(var+1e-10) (BiT form)": {
            "weight_standardization": "var",
            "weight_epsilon": 1e-10,
        },
        "weight std: sqrt(var+1e-5)": {"weight_standardization": "var", "weight_epsilon": 1e-5},
        "weight std: unbiased std": "sample deviation",
        "max-pool pads (1,1) -inf instead of SAME": "symmetric pool",
    },
}


@pytest.mark.tf_only  # about the fixtures, not about a backend
@pytest.mark.parametrize(
    ("name", "choice"), [(n, c) for n, rows in SENSITIVITY.items() for c in rows]
)
def test_every_wrong_choice_moves_the_logits_as_recorded(official, monkeypatch, name, choice):
    change = WRONG[name][choice]
    fields = change if isinstance(change, dict) else {}
    if name == "vit_tiny_token":
        fixture, spec = vit_token(official)
        model = official.loaded(fixture, dataclasses.replace(spec, **fields))
    else:
        fixture = official.read(name)
        model = official.loaded(fixture, spec_from(fixture.config, (32, 32), **fields))
    if change == "sample deviation":
        monkeypatch.setattr(StdConv2D, "standardized_kernel", _sample_deviation)
    if change == "symmetric pool":
        model.get_layer("pool_root").padding = "fixed"
    found = official.run(model, fixture.arrays["input"])
    moved = np.abs(found - fixture.arrays["output"]).max()
    recorded = SENSITIVITY[name][choice]["max_abs_delta"]
    # 2e-6 is what two float32 implementations differ by.
    assert moved == pytest.approx(recorded, rel=0.02, abs=2e-6)
    # The tolerance of this file catches all but three; tests/test_units.py sees those.
    hidden = ("none (noise floor)", "GroupNorm eps 1e-5", "weight std: unbiased std")
    assert (moved > TOLERANCE) == (choice not in hidden)


@pytest.mark.parametrize("shape", ["(1, 1, 1, C)", "(C,)"])
@pytest.mark.case("L06")
def test_group_norm_of_either_shape_in_the_file(official, tmp_path, shape):
    fixture = official.read("hybrid_1_1_w05")
    assert fixture.stored["gn_root/scale"].shape == (1, 1, 1, 32)
    arrays = dict(fixture.stored)
    if shape == "(C,)":
        norms = [k for k in arrays if "/gn" in f"/{k}"]
        assert len(norms) == 2 * 9
        arrays.update({k: arrays[k].reshape(-1) for k in norms})
    np.savez(tmp_path / "hybrid.npz", **arrays)
    model = official.built(spec_from(fixture.config, (32, 32)))
    load_weights(model, tmp_path / "hybrid.npz")
    expected = fixture.stored["gn_root/scale"].reshape(-1)
    np.testing.assert_array_equal(array(model.get_layer("gn_root").scale), expected)
    found = official.run(model, fixture.arrays["input"])
    np.testing.assert_allclose(found, fixture.arrays["output"], rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("name", ["hybrid_stem_only", "hybrid_1_1_w05", "resnet_no_transformer"])
def test_a_lone_file_tells_its_architecture(official, name):
    fixture = official.read(name)
    assert spec_of(read_weights(fixture.stored), image_size=(32, 32)) == spec_from(
        fixture.config, (32, 32)
    )


# variant, image size, tokens with the class token.
@pytest.mark.parametrize(
    ("variant", "size", "tokens"),
    [
        ("R50+ViT-L/32", 224, 50),
        ("R50+ViT-L/32", 384, 145),
        ("R50+ViT-B/16", 224, 197),
        ("R50+ViT-B/16", 384, 577),
        ("R+ViT-Ti/16", 224, 50),
        ("R26+ViT-S/32", 384, 145),
    ],
)
@pytest.mark.case("L05")
@pytest.mark.case("R12")
def test_tokens_of_the_published_hybrids_follow_from_strides(monkeypatch, variant, size, tokens):
    def refuse(*_, **__):
        raise AssertionError("a network was run to learn its grid")

    monkeypatch.setattr(StdConv2D, "call", refuse)
    spec = dataclasses.replace(VARIANTS[variant].spec, image_size=size)
    assert spec.num_tokens == tokens
    side = int((tokens - 1) ** 0.5)
    assert spec.grid == (side, side)


@pytest.mark.tf_only
@pytest.mark.case("R12")
def test_building_a_hybrid_convolves_nothing(official, monkeypatch):
    seen, convolve = [], StdConv2D.call

    def call(self, x):
        seen.append(x)
        return convolve(self, x)

    monkeypatch.setattr(StdConv2D, "call", call)
    model = official.built(spec_from(official.read("hybrid_1_1_w05").config, (29, 35)))
    assert model.spec.grid == (4, 5) and model.output_shape == (None, 10)
    assert not any(_is_concrete(x) for x in seen)
    model(np.zeros((1, 29, 35, 3), np.float32))
    assert sum(map(_is_concrete, seen)) == 9
