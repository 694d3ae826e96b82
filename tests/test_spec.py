"""A spec says no to what cannot be built, in one sentence that names the way out."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

from keras_vit.spec import (
    HybridSpec,
    MixerSpec,
    ResNetBody,
    ResNetSpec,
    ViTSpec,
    changed,
    spec_from_dict,
)

TINY = dict(hidden_size=16, mlp_dim=32, num_heads=2, num_layers=2, patch_size=16)
TABLE = json.loads((Path(__file__).parent / "oracles" / "plain_vit_params.json").read_text())


def spec(**fields):
    return ViTSpec(**{**TINY, **fields})


@pytest.mark.case("R09")
@pytest.mark.parametrize("size, below, above", [(222, 208, 224), (121, 112, 128), (33, 32, 48)])
def test_an_image_that_is_no_multiple_of_the_patch_is_refused_with_the_nearest_sizes(
    size, below, above
):
    with pytest.raises(ValueError, match="allow_crop") as error:
        spec(image_size=size)
    for number in (size, 16, below, above):
        assert str(number) in str(error.value)


def test_the_axis_at_fault_is_named():
    with pytest.raises(ValueError, match="image width 230"):
        spec(image_size=(224, 230))
    with pytest.raises(ValueError, match="image height 220"):
        spec(image_size=(220, 230))


def test_allow_crop_floors_as_the_official_code_does():
    cropped = spec(image_size=(384, 230), patch_size=14, allow_crop=True)
    assert cropped.grid == (27, 16)
    with pytest.raises(ValueError, match="smaller than one patch"):
        spec(image_size=8, allow_crop=True)


@pytest.mark.case("R07")
def test_rectangular_images_and_patches():
    assert spec(image_size=(256, 128)).num_tokens == 129
    assert spec(image_size=(256, 128)).grid == (16, 8)
    assert spec(image_size=(620, 32), patch_size=(20, 4)).grid == (31, 8)


@pytest.mark.case("R10")
@pytest.mark.parametrize("patch, size, tokens", [(16, 512, 1025), (14, 518, 1370), (32, 384, 145)])
def test_tokens_at_other_resolutions(patch, size, tokens):
    assert spec(patch_size=patch, image_size=size).num_tokens == tokens


@pytest.mark.parametrize(
    "fields, words",
    [
        ({"hidden_size": 0}, "hidden_size must be a positive integer, got 0"),
        ({"hidden_size": (16, 16)}, "hidden_size must be a positive integer"),
        ({"num_layers": 2.0}, "num_layers must be a whole number >= 0"),
        ({"mlp_dim": True}, "mlp_dim must be a positive integer, got True"),
        ({"in_channels": -3}, "in_channels must be a positive integer"),
        ({"num_heads": 3}, "num_heads must divide hidden_size.*num_heads=3.*hidden_size=16"),
        ({"patch_size": (16, 16, 1)}, "patch_size must be a positive integer or a pair"),
        ({"image_size": "224"}, "image_size must be a positive integer or a pair"),
        ({"num_classes": -1}, "num_classes must be a whole number >= 0"),
        ({"num_classes": True}, "num_classes must be a whole number >= 0"),
        ({"representation_size": 0}, "representation_size must be a positive integer"),
        ({"dropout": 1.0}, r"dropout must be in \[0, 1\)"),
        ({"attention_dropout": -0.1}, r"attention_dropout must be in \[0, 1\)"),
        ({"stochastic_depth": 1.5}, r"stochastic_depth must be in \[0, 1\)"),
        ({"norm_epsilon": 0.0}, "norm_epsilon must be positive"),
        ({"pool": "max"}, "pool must be one of .*'gap'"),
        ({"posemb": "3d"}, "posemb must be one of .*'sincos2d'"),
        ({"posemb": "2d", "hidden_size": 15, "num_heads": 3}, "even hidden_size, got 15"),
        ({"posemb": "relative", "posemb_at": "layers"}, "adds a learned table"),
        ({"posemb_at": "block"}, "posemb_at must be one of .*'layers_shared'"),
        ({"posemb_at": "layers", "num_registers": 2}, "needs .* no registers"),
        ({"posemb_at": "layers_shared", "posemb_includes_cls": False}, "posemb_includes_cls=True"),
        ({"attention": "axial"}, "needs a pool without a class token"),
        ({"attention": "axial", "pool": "gap", "posemb": "relative"}, "other than 'relative'"),
        ({"attention": "row"}, "attention must be one of .*'axial'"),
        ({"activation": "relu"}, "activation must be one of .*'gelu_tanh'"),
        ({"classifier_activation": "tanh"}, "classifier_activation must be one of"),
        ({"posemb": "sincos2d", "hidden_size": 18}, "multiple of 4"),
        # The table divides by hidden_size / 4 - 1.
        ({"posemb": "sincos2d", "hidden_size": 4}, "at least 8"),
    ],
)
def test_every_field_is_checked(fields, words):
    with pytest.raises(ValueError, match=words):
        spec(**fields)


def test_numpy_integers_are_integers():
    made = spec(hidden_size=np.int64(32), image_size=(np.int32(32), 64), num_classes=np.int64(3))
    assert made == spec(hidden_size=32, image_size=(32, 64), num_classes=3)
    json.dumps(made.to_dict())


def test_round_trip_through_json():
    made = spec(pool="map", image_size=(32, 48), representation_size=7, stochastic_depth=0.1)
    assert spec_from_dict(json.loads(json.dumps(made.to_dict()))) == made
    assert hash(made) == hash(dataclasses.replace(made))


def test_a_newer_spec_is_refused_by_name():
    with pytest.raises(ValueError, match="unknown fields \\['rotary'\\]"):
        spec_from_dict({**spec().to_dict(), "rotary": True})
    with pytest.raises(ValueError, match="unknown model family 'swin'"):
        spec_from_dict({**spec().to_dict(), "family": "swin"})
    with pytest.raises(ValueError, match="unknown model family None"):
        spec_from_dict({})


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row["name"])
@pytest.mark.case("V04")
def test_parameter_counts_of_the_papers(row):
    fields = ("hidden_size", "mlp_dim", "num_heads", "num_layers", "patch_size")
    made = ViTSpec(**{k: row[k] for k in fields}, pool=row["classifier"], allow_crop=True)
    for size in (224, 384):
        for classes, count in row.get(f"params_{size}", {}).items():
            resized = dataclasses.replace(made, image_size=size, num_classes=int(classes))
            assert resized.num_params == count
    for classes, count in row["params_224_with_pre_logits"].items():
        with_rep = dataclasses.replace(
            made, num_classes=int(classes), representation_size=made.hidden_size
        )
        assert with_rep.num_params == count
    assert dataclasses.replace(made, num_classes=0).num_params == row["params_224_no_head"]


# ---------------------------------------------------------------- the other families

STEM = ResNetBody((1, 2), width_factor=0.5)
HYBRID = HybridSpec(16, 32, 2, 1, 1, resnet=STEM, image_size=(61, 32))
RESNET = ResNetSpec(STEM, image_size=(33, 64), num_classes=7)
MIXER = MixerSpec(16, 8, 32, 2, 4, image_size=(12, 8))


@pytest.mark.parametrize("made", [HYBRID, RESNET, MIXER, spec()], ids=lambda made: made.family)
def test_every_family_makes_the_round_trip_through_json(made):
    again = spec_from_dict(json.loads(json.dumps(made.to_dict())))
    assert again == made and type(again) is type(made)
    assert hash(again) == hash(made)


@pytest.mark.case("R12")
def test_maps_of_a_resnet_round_up_at_every_halving():
    # 61 -> 31 -> 16 -> 8; a floor would give 7.
    assert ResNetBody((3, 4)).feature_map((61, 64)) == (8, 8)
    assert HYBRID.grid == (8, 4)
    assert ResNetBody((3, 4, 6, 3)).feature_map((224, 384)) == (7, 12)
    assert ResNetBody((3, 4, 9)).feature_map((224, 384)) == (14, 24)
    assert ResNetBody(()).feature_map((224, 225)) == (56, 57)


def test_a_hybrid_refuses_an_image_whose_map_its_patches_do_not_fill():
    HybridSpec(16, 32, 2, 1, 8, resnet=ResNetBody(()), image_size=224)  # 56 = 7 x 8
    with pytest.raises(ValueError, match="60 is no multiple of the patch size 8"):
        HybridSpec(16, 32, 2, 1, 8, resnet=ResNetBody(()), image_size=240)


def test_a_mixer_refuses_an_image_that_is_no_multiple_of_the_patch():
    with pytest.raises(ValueError, match="image height 14 is no multiple of the patch size 4"):
        dataclasses.replace(MIXER, image_size=(14, 8))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: ResNetBody((3, 0)), r"block_units must be .* 1 to 1000 units, got \(3, 0\)"),
        (lambda: ResNetBody((10**12,)), r"block_units must be .* got \(1000000000000,\)"),
        (lambda: ResNetBody((1,) * 9), r"block_units must be at most 8 stages"),
        (lambda: ResNetBody((1,), 0.4), "norm_groups must divide the root's 25 channels"),
        (lambda: ResNetBody((1,), norm_groups=48), "norm_groups must divide .* got 48"),
        (lambda: ResNetBody((1,), weight_epsilon=0.0), "weight_epsilon must be positive"),
        (lambda: ResNetBody((1,), weight_standardization="sum"), "weight_standardization must be"),
        (lambda: ResNetBody((1,), padding="valid"), "padding must be one of .*'fixed'"),
        (lambda: ResNetBody((1,), pool_border="zero"), "pool_border='zero' needs padding='fixed'"),
        (lambda: ResNetSpec(ResNetBody(())), "at least one stage"),
        (lambda: MixerSpec(16, 0, 32, 2, 4), "tokens_mlp_dim must be a positive integer"),
        (lambda: MixerSpec(16, 8, 32, 2, 4, activation="relu"), "activation must be one of"),
        (lambda: spec(distilled=True, pool="gap"), "distilled=True needs pool='token'"),
        (lambda: spec(distilled=True, representation_size=8), "no representation_size"),
        (lambda: spec(num_registers=4, pool="gap"), "num_registers needs a class token"),
        (lambda: spec(num_registers=-1), "num_registers must be a whole number >= 0"),
        (lambda: spec(ffn="glu"), "ffn must be one of .*'swiglu'"),
    ],
)
def test_every_field_of_the_other_families_is_checked(make, words):
    with pytest.raises(ValueError, match=words):
        make()


def test_prefix_tokens_and_their_positions():
    made = spec(num_registers=4, image_size=32)
    assert (made.num_prefix_tokens, made.posemb_prefix, made.num_tokens) == (5, 1, 9)
    made = spec(distilled=True, image_size=32)
    assert (made.num_prefix_tokens, made.posemb_prefix, made.num_tokens) == (2, 2, 6)
    made = spec(posemb_includes_cls=False, image_size=32)
    assert (made.num_prefix_tokens, made.posemb_prefix) == (1, 0)


def test_a_change_that_a_family_has_no_field_for_is_refused_unless_it_asks_for_nothing():
    same = changed(RESNET, {"num_classes": 3, "dropout": 0.0, "allow_crop": False}, "BiT")
    assert same == dataclasses.replace(RESNET, num_classes=3)
    with pytest.raises(ValueError, match=r"BiT-R50x1 has no dropout: a resnet model takes .*body"):
        changed(RESNET, {"dropout": 0.1}, "BiT-R50x1")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("dropout", "a"),
        ("dropout", True),
        ("attention_dropout", [0.1]),
        ("norm_epsilon", "1e-6"),
        ("norm_epsilon", None),
        ("head_bias_init", "x"),
        ("layer_scale", "1e-5"),
        ("allow_crop", "no"),
        ("representation_tanh", 1),
        ("posemb_includes_cls", None),
    ],
)
def test_values_of_another_kind_are_named(field, value):
    """They come from JSON files, too."""
    with pytest.raises(ValueError, match=rf"^{field} must be .*, got "):
        ViTSpec(24, 40, 3, 2, 8, image_size=32, **{field: value})
