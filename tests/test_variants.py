"""Every architecture of the table has the parameter count that the official code gives it."""

import dataclasses
import itertools
import json
import math
from pathlib import Path

import pytest

from keras_vit.model import VisionModel
from keras_vit.spec import POOLS, HybridSpec, MixerSpec, ResNetBody, ResNetSpec, ViTSpec
from keras_vit.train.recipes.fashion_mnist import TASKS
from keras_vit.zoo.cards import all_cards, card_spec
from keras_vit.zoo.fetch import find
from keras_vit.zoo.formats import write_weights
from keras_vit.zoo.variants import VARIANTS

HERE = Path(__file__).parent

# Counts from running the official models (vit_jax, bit_jax, big_vision); `-gap-norep` rows are the
# mean-pooled ones of GSAM.
TABLE = json.loads((HERE / "data/variants.json").read_text())
BY_FAMILY = {
    family: {row["name"]: row for row in TABLE if row.get("family", "vit") == family}
    for family in ("vit", "hybrid", "bit", "mixer")
}
ROWS = {**BY_FAMILY["vit"], **BY_FAMILY["hybrid"]}
# Counts of the relatives, from Hugging Face's and timm's builds of them.
RELATIVES = json.loads((HERE / "oracles/relatives_params.json").read_text())


def variant_of(row: dict):
    return VARIANTS[row["name"].removesuffix("-gap-norep").replace("_", "/")]


def spec_of(row: dict, **changes) -> ViTSpec:
    return dataclasses.replace(variant_of(row).spec, pool=row["classifier"], **changes)


def test_every_model_of_the_facts_is_a_variant():
    facts = {variant_of(row).name for row in TABLE}
    facts |= {name.replace("BiT", "ResNet-GN") for name in BY_FAMILY["bit"]}
    own = {"ViT-b/32", "ViT-Mini/4", "R14+ViT-Mini/4", "BiT-Mini"}
    relatives = ("DeiT-", "DINO-", "DINOv2-", "MAE-", "FlexiViT-")
    assert facts == {v for v in VARIANTS if not v.startswith(relatives)} - own


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
    crop = bool(384 % row.get("patch_size", 1))  # H/14, L/14, g/14, G/14
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
        assert variant_of(row).dropout == row["dropout_rate"]


@pytest.mark.parametrize("name", BY_FAMILY["hybrid"])
def test_stems_of_hybrids_are_the_official_ones(name):
    row, spec = BY_FAMILY["hybrid"][name], variant_of(BY_FAMILY["hybrid"][name]).spec
    assert spec.resnet == ResNetBody(tuple(row["resnet"]["num_layers"]), 1)
    assert spec.patch_size == (row["patch_on_feature_grid"],) * 2
    # Hybrids of the official code: what tells them from BiT.
    assert spec.resnet.weight_standardization == "std" and not spec.resnet.preactivation


@pytest.mark.case("V04")
@pytest.mark.parametrize("name", BY_FAMILY["bit"])
def test_resnets_have_the_official_counts_and_widths(name):
    row, gn = BY_FAMILY["bit"][name], name.replace("BiT", "ResNet-GN")
    for variant, counts in (
        (name, row["resnet_v2_preact_big_transfer"] | {"0": row["resnet_v2_no_head"]}),
        (gn, row["resnet_v1_gn_big_vision_bit"]),
    ):
        spec = VARIANTS[variant].spec
        for classes, count in counts.items():
            assert dataclasses.replace(spec, num_classes=int(classes)).num_params == count
        assert spec.body.root_width == row["root_width"]
        assert [spec.body.stage_width(i) for i in range(4)] == row["stage_mid_widths"]
        assert spec.feature_size == row["final_features"]
        assert spec.body.norm_groups == row["group_norm_groups"]
        assert 3 * sum(spec.body.block_units) + 2 == row["depth_layers"]
    # Fully convolutional: the size of the image changes nothing.
    large = dataclasses.replace(VARIANTS[name].spec, image_size=(480, 480))
    assert large.num_params == VARIANTS[name].spec.num_params


def test_bit_and_the_v1_network_differ_in_every_rule():
    bit, v1 = VARIANTS["BiT-R50x1"].spec.body, VARIANTS["ResNet-GN-R50x1"].spec.body
    same = {"block_units", "width_factor", "norm_groups", "root_channels"}
    fields = {field.name for field in dataclasses.fields(bit)} - same
    assert all(getattr(bit, field) != getattr(v1, field) for field in fields)
    assert v1 == VARIANTS["R50+ViT-L/32"].spec.resnet
    # bit_jax/models.py:33-36 and 64; models_resnet.py:23-39 and flax's GroupNorm.
    assert (bit.weight_epsilon, bit.norm_epsilon) == (1e-10, 1e-5)
    assert (v1.weight_epsilon, v1.norm_epsilon) == (1e-5, 1e-6)


@pytest.mark.case("V04")
@pytest.mark.parametrize("name", BY_FAMILY["mixer"])
def test_mixers_have_the_official_counts(name):
    row, spec = BY_FAMILY["mixer"][name], variant_of(BY_FAMILY["mixer"][name]).spec
    for classes, count in row["params_224"].items():
        assert dataclasses.replace(spec, num_classes=int(classes)).num_params == count
    for field in ("tokens_mlp_dim", "channels_mlp_dim"):
        assert getattr(spec, field) == row[field]
    assert (spec.hidden_size, spec.num_layers) == (row["hidden_dim"], row["num_blocks"])


@pytest.mark.parametrize("row", RELATIVES["exact"], ids=lambda row: row["name"])
def test_relatives_have_the_exact_count_of_their_keys(row):
    spec = dataclasses.replace(VARIANTS[row["name"]].spec, num_classes=row["num_classes"])
    assert spec.num_params == row["params"]


@pytest.mark.parametrize("row", RELATIVES["millions"], ids=lambda row: f"{row[1]}")
def test_relatives_have_the_published_count(row):
    name, _, classes, size, millions = row
    spec = dataclasses.replace(VARIANTS[name].spec, num_classes=classes, image_size=(size, size))
    # timm adds the class token's position to the token itself where there are registers.
    folded = spec.hidden_size if spec.num_registers else 0
    assert round((spec.num_params - folded) / 1e6, 2) == millions


def test_relatives_are_settings_of_the_plain_network():
    plain = VARIANTS["ViT-B/16"].spec
    exact = dataclasses.replace(plain, activation="gelu")
    assert VARIANTS["DeiT-B/16"].spec == VARIANTS["DINO-B/16"].spec == exact
    assert VARIANTS["MAE-B/16"].spec == exact
    flexi = VARIANTS["FlexiViT-B"].spec
    assert flexi == dataclasses.replace(plain, image_size=(240, 240), posemb_includes_cls=False)
    small = VARIANTS["DINOv2-S/14"].spec
    assert (small.image_size, small.grid, small.layer_scale) == ((518, 518), (37, 37), 1e-5)
    giant = VARIANTS["DINOv2-g/14-reg4"].spec
    assert (giant.ffn, giant.mlp_dim, giant.hidden_size) == ("swiglu", 4096, 1536)
    assert giant.num_prefix_tokens == 5 and giant.posemb_prefix == 1
    # One position for the class token, one for the distillation token.
    assert VARIANTS["DeiT-S/16-distilled"].spec.posemb_prefix == 2


def test_vit_b_is_base_with_every_width_halved():
    base, half = VARIANTS["ViT-B/32"].spec, VARIANTS["ViT-b/32"].spec
    assert (half.hidden_size, half.mlp_dim) == (base.hidden_size // 2, base.mlp_dim // 2)
    assert half.num_layers == base.num_layers
    assert half.num_params == 22_878_952  # arXiv 2010.11929 gives none; by hand, as S/32


def test_every_variant_cites_a_source_and_is_named_by_its_key():
    for name, variant in VARIANTS.items():
        assert variant.name == name
        assert variant.source
        spec = variant.spec
        if name.startswith("FlexiViT"):
            assert spec.patch_size == (16, 16)
        elif isinstance(spec, HybridSpec):
            stride = spec.image_size[0] // spec.grid[0]
            assert str(stride) == name.rpartition("/")[2] or name == "R+ViT-Ti/16"
        elif isinstance(spec, ResNetSpec) and name != "BiT-Mini":
            depth = 3 * sum(spec.body.block_units) + 2
            assert name.endswith(f"-R{depth}x{spec.body.width_factor}")
        elif isinstance(spec, (ViTSpec, MixerSpec)):
            patch = name.rpartition("/")[2].partition("-")[0]
            assert str(spec.patch_size[0]) == patch


MINIS = ("ViT-Mini/4", "R14+ViT-Mini/4", "BiT-Mini")


def multiply_adds(spec) -> int:
    """Of a forward pass of one image: matrix products and convolutions, by formula."""
    if isinstance(spec, ResNetSpec):
        return _trunk_multiply_adds(spec.body, spec) + spec.feature_size * spec.num_classes
    n, d, features = spec.num_tokens, spec.hidden_size, spec.in_channels
    count = d * spec.num_classes
    if isinstance(spec, HybridSpec):
        count += _trunk_multiply_adds(spec.resnet, spec)
        features = spec.resnet.num_features
    count += n * features * math.prod(spec.patch_size) * d
    return count + spec.num_layers * n * (4 * d * d + 2 * d * spec.mlp_dim + 2 * n * d)


def _trunk_multiply_adds(body: ResNetBody, spec) -> int:
    side = -(-spec.image_size[0] // 2)
    count, channels = side**2 * 49 * spec.in_channels * body.root_width, body.root_width
    side = -(-side // 2)
    for stage, units in enumerate(body.block_units):
        mid = body.stage_width(stage)
        for unit in range(units):
            before, side = side, -(-side // 2) if stage and not unit else side
            count += before**2 * channels * mid + side**2 * (9 * mid * mid + 4 * mid * mid)
            count += 0 if unit else side**2 * channels * 4 * mid
            channels = 4 * mid
    return count


def test_the_minis_cost_the_same():
    """The counts are checked by XLA's own in docs/runs.md."""
    vit, *others = (multiply_adds(VARIANTS[name].spec) for name in MINIS)
    assert vit == 16_370_880
    assert all(abs(count / vit - 1) < 0.05 for count in others)
    assert all(VARIANTS[name].spec.num_params < 1e6 for name in MINIS)


def test_the_recipe_trains_the_variant_of_the_table():
    assert TASKS["ten"].spec == VARIANTS["ViT-Mini/4"].spec
    assert TASKS["eight"].spec.num_params == VARIANTS["ViT-Mini/4"].spec.num_params - 2 * (96 + 1)


@pytest.mark.parametrize("name", ["ViT-Ti/16", "ViT-S/32", "ViT-S/16", *MINIS])
def test_the_built_model_has_the_count_of_the_formula(name):
    spec = VARIANTS[name].spec
    assert VisionModel(spec).count_params() == spec.num_params


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("R+ViT-Ti/16", {"num_layers": 1}),
        ("R26+ViT-S/32", {"num_layers": 1, "resnet": ResNetBody((1, 1, 1, 1))}),
        ("Mixer-S/32", {"num_layers": 1}),
        ("DeiT-Ti/16-distilled", {"num_layers": 1}),
        ("DINOv2-S/14-reg4", {"num_layers": 1}),
        ("DINOv2-g/14-reg4", {"num_layers": 1, "hidden_size": 48, "image_size": (28, 28)}),
        ("FlexiViT-S", {"num_layers": 1}),
    ],
)
def test_one_block_of_each_kind_has_the_count_of_the_formula(name, changes):
    spec = dataclasses.replace(VARIANTS[name].spec, **changes)
    assert VisionModel(spec).count_params() == spec.num_params


@pytest.mark.parametrize("name", ["BiT-R50x1", "ResNet-GN-R50x1"])
def test_one_unit_of_each_stage_has_the_count_of_the_formula(name):
    body = dataclasses.replace(VARIANTS[name].spec.body, block_units=(1, 1, 1, 1))
    spec = dataclasses.replace(VARIANTS[name].spec, body=body)
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
    write_weights(VisionModel(card_spec(card)), path)
    assert path.stat().st_size == card.size  # predicted from the keys, met to the byte
    monkeypatch.setenv("KERAS_VIT_MIRROR", str(tmp_path))
    assert find(card) == path
