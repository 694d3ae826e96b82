"""Every architecture of the table has the parameter count that the official code gives it."""

import dataclasses
import itertools
import json
from pathlib import Path

import pytest

from keras_vit.model import VisionModel
from keras_vit.spec import POOLS, ViTSpec
from keras_vit.train.recipes.fashion_mnist import mini_spec
from keras_vit.zoo.cards import all_cards, card_spec
from keras_vit.zoo.fetch import find
from keras_vit.zoo.formats import google_npz
from keras_vit.zoo.variants import VARIANTS

# Counts from running vit_jax's own models; `-gap-norep` rows are the mean-pooled ones of GSAM.
ROWS = {
    row["name"]: row
    for row in json.loads((Path(__file__).parent / "data/variants.json").read_text())
}


def spec_of(row: dict, **changes) -> ViTSpec:
    name = row["name"].removesuffix("-gap-norep").replace("_", "/")
    spec = dataclasses.replace(VARIANTS[name].spec, pool=row["classifier"])
    return dataclasses.replace(spec, **changes)


def test_every_plain_vit_of_the_facts_is_a_variant():
    names = {name.removesuffix("-gap-norep").replace("_", "/") for name in ROWS}
    assert names == set(VARIANTS) - {"ViT-b/32", "ViT-Mini/4"}


@pytest.mark.parametrize("name", ROWS)
def test_parameter_counts_are_the_official_ones(name):
    row = ROWS[name]
    width = row["hidden_size"]
    for classes, count in row["params_224"].items():
        assert spec_of(row, num_classes=int(classes)).num_params == count
    for classes, count in row["params_224_with_pre_logits"].items():
        spec = spec_of(row, num_classes=int(classes), representation_size=width)
        assert spec.num_params == count
    assert spec_of(row, num_classes=0).num_params == row["params_224_no_head"]
    crop = bool(384 % row["patch_size"])  # H/14, L/14, g/14, G/14
    for classes, count in row["params_384"].items():
        spec = spec_of(row, num_classes=int(classes), image_size=(384, 384), allow_crop=crop)
        assert spec.num_params == count


@pytest.mark.parametrize("name", ROWS)
def test_shapes_tokens_and_dropout_are_the_official_ones(name):
    row = ROWS[name]
    spec = spec_of(row)
    for field in ("hidden_size", "mlp_dim", "num_heads", "num_layers"):
        assert getattr(spec, field) == row[field]
    assert spec.num_tokens == row["tokens_224"]
    larger = spec_of(row, image_size=(384, 384), allow_crop=True)
    assert larger.num_tokens == row["tokens_384"]
    assert spec.dropout == 0.0
    if row["classifier"] == "token":
        assert VARIANTS[name.replace("_", "/")].dropout == row["dropout_rate"]


def test_vit_b_is_base_with_every_width_halved():
    base, half = VARIANTS["ViT-B/32"].spec, VARIANTS["ViT-b/32"].spec
    assert (half.hidden_size, half.mlp_dim) == (base.hidden_size // 2, base.mlp_dim // 2)
    assert half.num_layers == base.num_layers
    assert half.num_params == 22_878_952  # arXiv 2010.11929 gives none; by hand, as S/32


def test_every_variant_cites_a_source_and_is_named_by_its_key():
    for name, variant in VARIANTS.items():
        assert variant.name == name
        assert variant.source
        assert str(variant.spec.patch_size[0]) == name.rpartition("/")[2]


def test_the_recipe_trains_the_variant_of_the_table():
    assert mini_spec(10) == VARIANTS["ViT-Mini/4"].spec
    assert mini_spec(8).num_params == VARIANTS["ViT-Mini/4"].spec.num_params - 2 * (96 + 1)


@pytest.mark.parametrize("name", ["ViT-Ti/16", "ViT-S/32", "ViT-S/16", "ViT-Mini/4"])
def test_the_built_model_has_the_count_of_the_formula(name):
    spec = VARIANTS[name].spec
    assert VisionModel(spec).count_params() == spec.num_params


@pytest.mark.case("V04")
def test_base_16_has_the_published_count():
    assert VisionModel(VARIANTS["ViT-B/16"].spec).count_params() == 86_567_656


TINY = ViTSpec(
    hidden_size=20,
    mlp_dim=28,
    num_heads=5,
    num_layers=2,
    patch_size=(4, 3),
    image_size=(12, 15),
    num_classes=7,
)


@pytest.mark.parametrize("pool", POOLS)
def test_the_formula_agrees_with_the_model_for_every_option(pool):
    for posemb, width, (classes, channels) in itertools.product(
        ("learn", "sincos2d", "none"), (None, 11), ((0, 3), (7, 1))
    ):
        spec = dataclasses.replace(
            TINY,
            pool=pool,
            posemb=posemb,
            representation_size=width,
            num_classes=classes,
            in_channels=channels,
        )
        assert VisionModel(spec).count_params() == spec.num_params, spec


@pytest.mark.parametrize("pool", ["token", "token_unpooled"])
def test_the_formula_agrees_where_the_table_has_no_entry_for_the_class_token(pool):
    spec = dataclasses.replace(TINY, pool=pool, posemb_includes_cls=False)
    assert VisionModel(spec).count_params() == spec.num_params


@pytest.mark.parametrize("name", ["ViT-Ti/16@augreg_in21k_ft_in1k_384", "ViT-S/32@gsam_in1k"])
def test_a_file_of_the_cards_network_has_the_cards_size(name, tmp_path, monkeypatch):
    card = all_cards()[name]
    path = tmp_path / str(card.file)
    path.parent.mkdir(parents=True)
    google_npz.save_weights(VisionModel(card_spec(card)), path)
    assert path.stat().st_size == card.size  # predicted from the keys, met to the byte
    monkeypatch.setenv("KERAS_VIT_MIRROR", str(tmp_path))
    assert find(card) == path
