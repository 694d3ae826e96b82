"""Key tables: their small language, and every key of the real checkpoints through them."""

import dataclasses
import gzip
import io
import json
import math
import re
from pathlib import Path

import numpy as np
import pytest

from keras_vit.spec import HybridSpec, ViTSpec
from keras_vit.zoo.formats import google_npz, huggingface, timm
from keras_vit.zoo.formats.configs import Config
from keras_vit.zoo.formats.entry import Entry
from keras_vit.zoo.formats.keys import FORMS, arrays_of, file_shape, key_of, translate
from keras_vit.zoo.infer import spec_of
from keras_vit.zoo.variants import VARIANTS

INVENTORY = Path(__file__).parent / "oracles" / "inventory"
SPEC = ViTSpec(8, 16, 2, 1, 4, image_size=8, num_classes=3)


def inventory(name: str) -> dict:
    return json.loads(gzip.decompress((INVENTORY / f"{name}.json.gz").read_bytes()))


GOOGLE, PEERS = inventory("google"), inventory("peers")
NOTHING = Config(Path("nothing"), {})


def entries(shapes: dict[str, list[int]]) -> dict[str, Entry]:
    """Arrays of shapes that take no memory."""

    def read():
        raise AssertionError("a shape is enough")

    return {key: Entry(tuple(shape), np.dtype("f4"), read) for key, shape in shapes.items()}


def arrays(**values) -> dict[str, Entry]:
    return {
        key: Entry(value.shape, value.dtype, lambda value=value: value)
        for key, value in values.items()
    }


# --- the language -------------------------------------------------------------------------------

TABLE = (
    ("stage{i}.unit{j:02}.{leaf}", "block{i+1}_unit{j}/conv/{leaf}"),
    ("layer{_i}/vars/0", "block_{i}/kernel"),
    ("fused.weight", "attention/{query|key|value}/kernel", "transposed"),
    ("old.spelling", "attention/out/bias"),
    ("new.spelling", "attention/out/bias"),
)


@pytest.mark.parametrize(
    ("key", "variable"),
    [
        ("stage0.unit02.kernel", "block1_unit2/conv/kernel"),
        ("stage11.unit10.bias", "block12_unit10/conv/bias"),
        ("layer/vars/0", "block_0/kernel"),
        ("layer_1/vars/0", "block_1/kernel"),
        ("layer_12/vars/0", "block_12/kernel"),
    ],
)
def test_numbers_and_words_go_both_ways(key, variable):
    weights = translate(TABLE, arrays(**{key: np.zeros(1)}), "x")
    assert weights.keys == {variable: key}
    assert key_of(TABLE, variable) == key


def test_unknown_keys_stand_under_themselves_and_the_first_spelling_is_written():
    weights = translate(TABLE, arrays(**{"new.spelling": np.ones(2), "layer1": np.ones(1)}), "x")
    assert weights.keys == {"attention/out/bias": "new.spelling", "layer1": "layer1"}
    assert key_of(TABLE, "attention/out/bias") == "old.spelling"
    assert key_of(TABLE, "nowhere") is None
    both = arrays(**{"new.spelling": np.ones(2), "old.spelling": np.ones(2)})
    with pytest.raises(ValueError, match=r"has both 'new.spelling' and 'old.spelling' for"):
        translate(TABLE, both, "x")


def test_a_fused_array_is_taken_apart_and_put_together():
    fused = np.arange(24.0).reshape(6, 4)
    weights = translate(TABLE, arrays(**{"fused.weight": fused}), "x")
    parts = {path: entry.read() for path, entry in weights.entries.items()}
    np.testing.assert_array_equal(parts["attention/key/kernel"], fused[2:4].T)
    np.testing.assert_array_equal(arrays_of(TABLE, parts, SPEC, "x")["fused.weight"], fused)
    assert file_shape(TABLE, "attention/value/kernel", (4, 2), SPEC) == (6, 4)
    del parts["attention/key/kernel"]
    with pytest.raises(ValueError, match=r"x has no place for \['fused.weight'\]"):
        arrays_of(TABLE, parts, SPEC, "x")
    with pytest.raises(ValueError, match="none of a transposed array in 3 equal parts"):
        translate(TABLE, arrays(**{"fused.weight": fused[:5]}), "x")


@pytest.mark.parametrize("form", FORMS)
def test_every_form_is_undone_by_its_other_half(form):
    read, write = FORMS[form]
    shapes = {
        "oihw": (5, 3, 2, 4), "per_head": (3, 2, 5), "from_heads": (2, 5, 3), "channels": (1, 1, 1, 7),
        "pointwise": (1, 1, 3, 4), "oihw_pointwise": (4, 3, 1, 1),
    }  # fmt: skip
    values = np.random.default_rng(0).normal(size=shapes.get(form, (3, 4)))
    np.testing.assert_array_equal(write(read(values), SPEC), values)


# --- the real checkpoints -----------------------------------------------------------------------


def google(row: dict):
    shapes = {key: np.broadcast_to(np.float32(0), shape) for key, shape in row["keys"].items()}
    return google_npz.read(shapes)


# What the files tell beyond the variant: pooling of the GSAM release and of big_vision's own models.
GSAM = {"pool": "gap", "representation_size": None}
BIG_VISION = {
    "bv_vit_B_16_gap": ("ViT-B/16", {"pool": "gap"}),
    "bv_vit_B_16_map": ("ViT-B/16", {"pool": "map"}),
    "bv_vit_B_16_map_scan": ("ViT-B/16", {"pool": "map"}),
    "bv_vit_B_16_tok": ("ViT-B/16", {"posemb_includes_cls": False}),
    "bv_vit_S_16_gap_sincos_rep": (
        "ViT-S/16",
        {"pool": "gap", "posemb": "sincos2d", "representation_size": 384},
    ),
}


@pytest.mark.parametrize("name", GOOGLE)
def test_every_key_of_a_google_file_is_a_variable_of_its_variant(name):
    row = GOOGLE[name]
    weights = google(row)
    found = spec_of(weights, image_size=(224, 224) if "posemb" not in str(weights.keys) else None)
    variant, changes = BIG_VISION.get(row["variant"], (row["variant"].replace("_", "/"), {}))
    if name.endswith("gsam") and variant.startswith("ViT"):
        changes = GSAM
    if "pre_logits/kernel" in row["keys"] and "representation_size" not in changes:
        changes = {"representation_size": VARIANTS[variant].spec.hidden_size}
    expected = dataclasses.replace(
        VARIANTS[variant].spec,
        num_classes=row["num_classes"] or 0,
        image_size=found.image_size,
        **changes,
    )
    assert found == expected
    assert_complete(weights, found, row["num_params"])
    if "scan" in name or "bv_" in name:  # big_vision's spellings are read only
        return
    written = google_npz.table_of(found)
    for path, entry in weights.entries.items():
        assert key_of(written, path) == weights.keys[path]
        shape = file_shape(written, path, entry.shape, found)
        assert list(shape) == row["keys"][weights.keys[path]], path


def assert_complete(weights, spec, count: int) -> None:
    """Every key is a variable's, and together they are as many numbers as the network has."""
    strangers = [path for path in weights.entries if weights.keys[path] == path and "/" not in path]
    assert strangers == []
    sizes = sum(math.prod(entry.shape) for entry in weights.entries.values())
    assert sizes == spec.num_params == count


EXACT = {"activation": "gelu"}
HF_VIT = {**EXACT, "norm_epsilon": 1e-12}
BODY = {"weight_standardization": "var", "weight_epsilon": 1e-8, "norm_epsilon": 1e-5}
# Names in the inventory, our variant, fields that differ.
ARCHITECTURES = {
    "timm__vit_tiny_patch16_224": ("ViT-Ti/16", EXACT),
    "timm__vit_base_patch16_224": ("ViT-B/16", EXACT),
    "timm__vit_large_patch16_384": ("ViT-L/16", {**EXACT, "image_size": (384, 384)}),
    "timm__vit_huge_patch14_224": ("ViT-H/14", {**EXACT, "num_classes": 0}),
    "timm__vit_base_r50_s16_384": ("R50+ViT-B/16", {**EXACT, "image_size": (384, 384)}),
    "timm__vit_large_r50_s32_384": ("R50+ViT-L/32", {**EXACT, "image_size": (384, 384)}),
    "timm__vit_tiny_r_s16_p8_224": ("R+ViT-Ti/16", EXACT),
    "timm__resnetv2_50x1_bit": ("BiT-R50x1", {}),
    "timm__resnetv2_152x4_bit": ("BiT-R152x4", {}),
    "timm__mixer_b16_224": ("Mixer-B/16", EXACT),
    "hf__vit_base_patch16_224": ("ViT-B/16", HF_VIT),
    "hf__vit_base_patch16_224_in21k_ViTModel": (
        "ViT-B/16",
        {**HF_VIT, "num_classes": 0, "representation_size": 768},
    ),
    "hf__vit_large_patch16_384": ("ViT-L/16", {**HF_VIT, "image_size": (384, 384)}),
    "hf__deit_base_distilled_patch16_224": ("DeiT-B/16-distilled", HF_VIT),
    "hf__dinov2_base": ("DINOv2-B/14", {"num_classes": 0, "layer_scale": 1.0}),
    "hf__vit_mae_base_ViTMAEModel": ("MAE-B/16", {**HF_VIT, "num_classes": 0}),
    "hf__bit_50": ("BiT-R50x1", {}),
}


def test_every_architecture_of_the_inventory_is_looked_at():
    assert ARCHITECTURES.keys() == PEERS.keys()


@pytest.mark.parametrize("name", PEERS)
def test_every_key_of_timm_and_hugging_face_is_a_variable_of_its_variant(name):
    variant, changes = ARCHITECTURES[name]
    library, state = timm if name.startswith("timm") else huggingface, entries(PEERS[name])
    weights = (
        timm.read(state, name, NOTHING)
        if library is timm
        else huggingface.read(state, name, NOTHING, NOTHING)
    )
    found = spec_of(weights)
    expected = dataclasses.replace(VARIANTS[variant].spec, **changes)
    if (body := getattr(expected, "resnet", getattr(expected, "body", None))) is not None:
        field = "resnet" if isinstance(expected, HybridSpec) else "body"
        expected = dataclasses.replace(expected, **{field: dataclasses.replace(body, **BODY)})
    assert found == expected
    assert all(key.endswith("mask_token") for key in weights.ignored)
    assert_complete(weights, found, found.num_params)
    # And back: the same keys and shapes.
    kind = huggingface.kind_of(expected) if library is huggingface else ""
    table = timm.table_of(found) if library is timm else huggingface.TABLES[kind]
    prefix = huggingface.PREFIX.get(kind, "") if found.num_classes else ""
    for path, entry in weights.entries.items():
        key = key_of(table, path)
        assert key is not None and weights.keys[path].removeprefix(prefix) == key
        shape = file_shape(table, path, entry.shape, found)
        assert list(shape) == PEERS[name][weights.keys[path]], path


@pytest.mark.parametrize("name", [name for name, row in GOOGLE.items() if row["bytes"]])
def test_a_written_file_would_have_the_predicted_size(name):
    """Sizes that equal the published ones to 0.01 MiB, by the arithmetic checked below."""
    predicted = GOOGLE[name]["bytes"]["zip64"]
    if predicted < 2**32 - 2**20:  # above, an archive needs further fields
        assert npz_size(GOOGLE[name]["keys"]) == predicted


def npz_size(shapes: dict[str, list[int]]) -> int:
    """Bytes of an uncompressed npz as NumPy writes it."""
    total = 22
    for key, shape in shapes.items():
        head = io.BytesIO()
        about = {"descr": "<f4", "fortran_order": False, "shape": tuple(shape)}
        np.lib.format.write_array_header_1_0(head, about)
        name = len(f"{key}.npy")
        total += 30 + 20 + name + len(head.getvalue()) + 4 * math.prod(shape) + 46 + name
    return total


def test_the_arithmetic_of_sizes_is_that_of_the_writer(tmp_path):
    from keras_vit.zoo.formats.npz import write_npz

    shapes = {"cls": [1, 1, 8], "Transformer/encoder_norm/scale": [8], "head/kernel": [8, 3]}
    write_npz(tmp_path / "x.npz", {k: np.zeros(s, np.float32) for k, s in shapes.items()})
    assert (tmp_path / "x.npz").stat().st_size == npz_size(shapes)


@pytest.mark.parametrize("name", ["timm__vit_tiny_r_s16_p8_224", "timm__mixer_b16_224",
                                  "timm__resnetv2_50x1_bit", "hf__dinov2_base", "hf__bit_50",
                                  "hf__deit_base_distilled_patch16_224"])  # fmt: skip
def test_any_shape_of_any_array_is_a_network_or_an_error_in_a_sentence(name):
    """What `spec_of` concludes from a file that lies is checked against the model later."""
    for key in PEERS[name]:
        if re.search(r"(stages|layers?|blocks)\.[1-9]", key):  # the first of each kind will do
            continue
        for shape in ([], [0], [7], [0, 3], [5, 2], [2, 0, 1], [1, 2, 3], [4, 0, 1, 1], [1] * 6):
            state = entries({**PEERS[name], key: shape})
            try:
                if name.startswith("timm"):
                    weights = timm.read(state, name, NOTHING)
                else:
                    weights = huggingface.read(state, name, NOTHING, NOTHING)
                assert spec_of(weights).num_params > 0
            except ValueError as error:
                assert len(str(error)) < 500
        without = entries({k: v for k, v in PEERS[name].items() if k != key})
        if not (timm.is_timm(without) or huggingface.is_huggingface(without)):
            continue
        try:
            library = timm if timm.is_timm(without) else huggingface
            configs = (NOTHING,) if library is timm else (NOTHING, NOTHING)
            assert spec_of(library.read(without, name, *configs)).num_params > 0
        except ValueError as error:
            assert len(str(error)) < 500


@pytest.mark.case("R01")
@pytest.mark.parametrize(
    ("count", "image_size", "grid", "prefix"),
    [
        (17, None, (4, 4), 1),
        (25, None, (5, 5), 0),  # 24 is no square
        (25, (32, 48), (4, 6), 1),  # but 4 x 6, and the class token's
        (50, (32, 64), (7, 7), 1),  # of other images: 4 x 8 is neither 50 nor 49
        (50, (40, 80), (7, 7), 1),  # 5 x 10 would leave the class token without
        (24, (32, 48), (4, 6), 0),
    ],
)
def test_a_grid_that_is_expected_goes_before_a_square(count, image_size, grid, prefix):
    state = {
        "patch_embed.proj.weight": [64, 3, 8, 8],
        "cls_token": [1, 1, 64],
        "pos_embed": [1, count, 64],
        "blocks.0.attn.qkv.weight": [192, 64],
        "blocks.0.mlp.fc1.weight": [128, 64],
    }
    spec = spec_of(timm.read(entries(state), "x", NOTHING), image_size=image_size)
    assert spec.grid == grid and spec.posemb_prefix == prefix
