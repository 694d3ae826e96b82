"""A spec says no to what cannot be built, in one sentence that names the way out."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

from keras_vit.spec import ViTSpec, spec_from_dict

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
        ({"posemb": "2d"}, "posemb must be one of .*'sincos2d'"),
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
