"""timm's state dicts: the official weights bit for bit, timm's logits, and its keys when written."""

import dataclasses
import json
import shutil
from pathlib import Path

import keras
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import keras_vit
from keras_vit.card import Preprocessing
from keras_vit.model import VisionModel
from keras_vit.spec import HybridSpec, MixerSpec, ResNetBody, ResNetSpec, ViTSpec
from keras_vit.zoo.formats import google_npz, read_weights, timm, values_of
from keras_vit.zoo.formats.configs import Config
from keras_vit.zoo.formats.entry import Entry
from keras_vit.zoo.formats.safetensors_file import write_safetensors
from keras_vit.zoo.infer import spec_of
from keras_vit.zoo.variants import BIT_NUMERICS
from keras_vit.zoo.weights import load_weights, model_of

TIMM = Path(__file__).parent / "oracles" / "timm"
# Float32 on both sides, about 2e-6 apart on logits near 2. The other GELU moves these logits by 2e-4
# to 6e-4, the official standardisation instead of timm's by 2e-5 to 7e-5 in the deeper hybrids.
ATOL = 2e-5
# timm with Google's GELU against Google: its standardisation is another one, and stays so.
ATOL_STANDARDIZED = 1e-4

VIT = {"hidden_size": 32, "mlp_dim": 64, "num_heads": 2, "num_layers": 2, "num_classes": 10}
TOKEN = ViTSpec(**VIT, patch_size=8, image_size=32)


def hybrid(patch: int, size: int, units: tuple[int, ...], width: float) -> HybridSpec:
    fields = {**VIT, "num_layers": 1, "patch_size": patch, "image_size": size}
    return HybridSpec(**fields, resnet=ResNetBody(units, width))


def bit(units: tuple[int, ...], width: float) -> ResNetSpec:
    return ResNetSpec(ResNetBody(units, width, **BIT_NUMERICS), image_size=32, num_classes=10)


# The official network of each fixture that is stored, in timm's names and in Google's.
STORED = {
    "vit_tiny_token": TOKEN,
    "vit_tiny_gap": dataclasses.replace(TOKEN, pool="gap"),
    "bv_vit_map": dataclasses.replace(TOKEN, pool="map"),
    "hybrid_stem_only": hybrid(2, 32, (), 0.5),
    "hybrid_1_1_w05": hybrid(1, 32, (1, 1), 0.5),
    "bit_1_1_w05": bit((1, 1), 0.5),
    "mixer_tiny": MixerSpec(32, 24, 64, 2, 8, image_size=32, num_classes=10),
    "vit_tiny_token_rep_legacy_layout": dataclasses.replace(TOKEN, representation_size=24),
}
# Those that are made from names and a seed.
RECIPES = {
    "hybrid_1_1_1_w1": hybrid(1, 64, (1, 1, 1), 1),
    "hybrid_1_2_2_w1_odd": hybrid(1, 61, (1, 2, 2), 1),
    "bit_1_1_1_1_w1": bit((1, 1, 1, 1), 1),
}


def array(x) -> np.ndarray:
    return keras.ops.convert_to_numpy(x)


def io(name: str) -> dict[str, np.ndarray]:
    with np.load(TIMM / f"{name}_io.npz") as file:
        return dict(file)


def runs(arrays: dict[str, np.ndarray], output: str):
    """(input, output) of every input of a fixture."""
    for end in ("", "_1", "_2", "_3"):
        if f"input{end}" in arrays:
            yield arrays[f"input{end}"], arrays[f"{output}{end}"]


def model_at(weights, spec, x) -> VisionModel:
    return model_of(weights, dataclasses.replace(spec, image_size=x.shape[1:3]))


@pytest.mark.parametrize("name", STORED)
def test_weights_are_the_official_ones_bit_for_bit(name, official):
    weights = read_weights(TIMM / f"{name}.safetensors")
    google = google_npz.read(official.read(name.removesuffix("_legacy_layout")).stored)
    assert weights.entries.keys() == google.entries.keys() and weights.ignored == ()
    for path, entry in weights.entries.items():
        expected = google.entries[path]
        assert tuple(entry.shape) == tuple(expected.shape), path
        np.testing.assert_array_equal(entry.read(), expected.read(), err_msg=path)


@pytest.mark.parametrize("name", STORED)
def test_with_the_numerics_of_their_origin_they_give_the_official_logits(name, official):
    spec, fixture = STORED[name], official.read(name.removesuffix("_legacy_layout"))
    model = keras_vit.load(spec, weights=TIMM / f"{name}.safetensors")
    assert model.spec == spec
    x, expected = fixture.arrays["input"], fixture.arrays["output"]
    np.testing.assert_allclose(array(model(x)), expected, rtol=0, atol=ATOL)


@pytest.mark.parametrize("name", STORED)
def test_a_lone_file_computes_what_timm_computes(name):
    weights = read_weights(TIMM / f"{name}.safetensors")
    spec = spec_of(weights, image_size=(32, 32), like=STORED[name])
    assert spec != STORED[name]  # the exact GELU, or another standardisation
    output = "logits" if spec.family == "resnet" else "logits_erf"
    for x, expected in runs(io(name), output):
        model = model_at(weights, spec, x)
        np.testing.assert_allclose(array(model(x)), expected, rtol=0, atol=ATOL)


@pytest.mark.parametrize("name", RECIPES)
def test_larger_models_from_the_recipe_through_timms_names(name, official, tmp_path):
    fixture, arrays = official.read(name), io(name)
    model = VisionModel(RECIPES[name])
    load_weights(model, fixture.params(model))
    state = timm.to_arrays(values_of(model), model.spec)
    sums = json.loads((TIMM / f"{name}_sums.json").read_text())
    assert {key: list(value.shape) for key, value in state.items()} == {
        key: row[0] for key, row in sums.items()
    }
    for key, (_, total, squares) in sums.items():
        value = state[key].astype(np.float64)
        # Sums of up to 5e5 float64 terms in another order.
        np.testing.assert_allclose(value.sum(), total, rtol=1e-9, atol=1e-8, err_msg=key)
        np.testing.assert_allclose((value**2).sum(), squares, rtol=1e-9, err_msg=key)
    write_safetensors(tmp_path / "m.safetensors", state)
    weights = read_weights(tmp_path / "m.safetensors")
    spec = spec_of(weights, image_size=model.spec.image_size, like=model.spec)
    for output in ("logits_erf", "logits_tanh", "logits"):
        if output not in arrays:
            continue
        x = fixture.arrays["input"]
        own = dataclasses.replace(spec, activation="gelu_tanh") if "tanh" in output else spec
        logits = array(model_at(weights, own, x)(x))
        np.testing.assert_allclose(logits, arrays[output], rtol=0, atol=ATOL)
        if output == "logits_tanh":
            google = fixture.arrays["output"]
            np.testing.assert_allclose(logits, google, rtol=0, atol=ATOL_STANDARDIZED)


@pytest.mark.parametrize("kind", ["f16", "bf16"])
def test_half_precision_files_are_cast_up_exactly(kind):
    weights = read_weights(TIMM / f"vit_tiny_token_{kind}.safetensors")
    assert all(entry.read().dtype == np.float32 for entry in weights.entries.values())
    arrays = io(f"vit_tiny_token_{kind}")
    model = model_of(weights, spec_of(weights, like=TOKEN))
    np.testing.assert_allclose(array(model(arrays["input"])), arrays["logits_erf"], atol=ATOL)


@pytest.mark.parametrize("name", STORED)
def test_written_files_have_timms_keys_shapes_and_bits(name, tmp_path):
    spec = STORED[name]
    model = keras_vit.load(spec, weights=TIMM / f"{name}.safetensors")
    keras_vit.save_weights_as(model, tmp_path / "m.safetensors", format="timm")
    expected, found = load_file(TIMM / f"{name}.safetensors"), load_file(tmp_path / "m.safetensors")
    assert found.keys() == expected.keys()
    for key, value in expected.items():
        assert found[key].shape == value.shape, key
        np.testing.assert_array_equal(found[key], value.astype(np.float32), err_msg=key)


@pytest.mark.parametrize("name", ["dinov2_registers_swiglu", "deit_distilled"])
def test_a_hub_folder_tells_heads_classes_and_preprocessing(name):
    model, arrays = keras_vit.load(TIMM / name), io(name)
    assert model.spec.num_heads == 2
    np.testing.assert_allclose(array(model(arrays["input"])), arrays["output"], atol=ATOL)
    how = Preprocessing(
        "shorter_side",
        "bicubic",
        True,
        36,
        False,
        (123.675, 116.28, 103.53),
        (58.395, 57.12, 57.375),
        True,
    )
    assert model.preprocessing == how
    if name == "deit_distilled":
        assert model.spec.distilled and model.class_names[1] == "label 1"
    else:
        assert model.spec.num_registers == 3 and model.spec.ffn == "swiglu"
        # Its position table covers the patches only.
        assert not model.spec.posemb_includes_cls and model.spec.layer_scale


def test_the_gate_of_swiglu_comes_first():
    weights = read_weights(TIMM / "dinov2_registers_swiglu")
    state = load_file(TIMM / "dinov2_registers_swiglu" / "model.safetensors")
    gate, up = np.split(state["blocks.0.mlp.fc1.weight"], 2)
    for part, expected in (("gate", gate), ("up", up)):
        np.testing.assert_array_equal(
            weights.entries[f"encoderblock_0/mlp/{part}/kernel"].read(), expected.T
        )
    renamed = {
        key.replace("mlp.fc1", "mlp.w12").replace("mlp.fc2", "mlp.w3"): value
        for key, value in state.items()
    }
    # The authors' own names, with the token of masked training.
    renamed |= {"register_tokens": renamed.pop("reg_token"), "mask_token": np.zeros((1, 16), "f4")}
    assert timm.is_timm(weights_of(renamed))
    again = timm.read(weights_of(renamed), "x", Config(Path("x"), {}))
    assert again.ignored == ("mask_token",) and again.entries.keys() == weights.entries.keys()


def weights_of(state):
    return {key: Entry(v.shape, v.dtype, lambda v=v: v) for key, v in state.items()}


def test_positions_of_registers_fold_into_the_class_token(tmp_path):
    """timm's models with registers have no position for the class token, ours may."""
    spec = ViTSpec(16, 32, 2, 1, 8, image_size=16, num_classes=0, num_registers=2, layer_scale=1.0)
    keras.utils.set_random_seed(0)
    model = VisionModel(spec)
    model.get_layer("cls").token.assign(np.ones((1, 1, 16)))
    keras_vit.save_weights_as(model, tmp_path / "m.safetensors", format="timm")
    state = load_file(tmp_path / "m.safetensors")
    assert state["pos_embed"].shape == (1, 4, 16) and state["reg_token"].shape == (1, 2, 16)
    x = np.random.default_rng(0).uniform(-1, 1, (1, 16, 16, 3)).astype("f4")
    again = keras_vit.load(tmp_path / "m.safetensors")
    np.testing.assert_array_equal(array(again(x)), array(model(x)))


def lone(tmp_path, size: int):
    shapes = {
        "patch_embed.proj.weight": (size, 3, 4, 4),
        "patch_embed.proj.bias": (size,),
        "cls_token": (1, 1, size),
        "pos_embed": (1, 5, size),
        "blocks.0.attn.qkv.weight": (3 * size, size),
        "blocks.0.mlp.fc1.weight": (4 * size, size),
    }
    path = tmp_path / f"{size}.safetensors"
    save_file({key: np.zeros(shape, "f2") for key, shape in shapes.items()}, path)
    return read_weights(path)


def test_heads_of_a_lone_file_are_64_wide_where_nothing_else_is_known(tmp_path):
    assert spec_of(lone(tmp_path, 128)).num_heads == 2
    with pytest.raises(ValueError, match="number of heads: load it with weights="):
        spec_of(lone(tmp_path, 48))
    assert spec_of(lone(tmp_path, 48), like=ViTSpec(48, 96, 3, 1, 4, image_size=8)).num_heads == 3


def test_heads_of_known_sizes_are_theirs(tmp_path):
    weights = read_weights(TIMM / "vit_tiny_token.safetensors")
    kernel = weights.entries["encoderblock_0/mlp/dense1/kernel"]
    wide = {
        "embedding/kernel": (14, 14, 3, 1280),
        "encoderblock_0/attention/query/kernel": (1280, 1280),
        "encoderblock_0/mlp/dense1/kernel": (1280, 5120),
        "posembed_input/table": (1, 257, 1280),
        "cls/token": (1, 1, 1280),
    }
    entries = {path: dataclasses.replace(kernel, shape=shape) for path, shape in wide.items()}
    entries |= {f"encoderblock_{i}/norm1/scale": kernel for i in range(32)}
    spec = spec_of(dataclasses.replace(weights, entries=entries, facts={}))
    assert (spec.num_heads, spec.num_layers) == (16, 32)  # ViT-H, 80 to a head


def test_networks_that_differ_in_more_than_names_are_refused(tmp_path):
    state = load_file(TIMM / "vit_tiny_token.safetensors")
    normed = {key.replace("norm.", "fc_norm.") if key.startswith("norm.") else key: value
              for key, value in state.items()}  # fmt: skip
    save_file(normed, tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match="normalises after pooling"):
        read_weights(tmp_path / "model.safetensors")

    save_file(state, tmp_path / "model.safetensors")
    config = tmp_path / "config.json"
    for text, message in (
        ('{"global_pool": "avg"}', "global_pool 'avg', which no network here has"),
        ('{"model_args": {"act_layer": "silu"}}', "act_layer 'silu': known are"),
        ('{"model_args": {"num_heads": "2"}}', "num_heads '2', which is no int"),
        ('{"model_args": []}', "model_args '.*', which is no dict"),
        ("[1]", "no JSON object"),
    ):
        config.write_text(text)
        with pytest.raises(ValueError, match=message):
            read_weights(tmp_path / "model.safetensors")
    bare = ViTSpec(8, 16, 2, 0, 8, image_size=16, num_classes=0, pool="gap", posemb="none")
    with pytest.raises(ValueError, match="no ViT without encoder"):
        timm.to_arrays({}, bare)


def test_a_mistake_in_a_file_names_timms_keys(tmp_path):
    state = load_file(TIMM / "vit_tiny_token.safetensors")
    state["head.weight"], state["stranger"] = state["head.weight"][:, :8], np.zeros(3, "f4")
    del state["blocks.1.attn.qkv.bias"]
    save_file(state, tmp_path / "m.safetensors")
    with pytest.raises(ValueError) as caught:
        load_weights(VisionModel(TOKEN), tmp_path / "m.safetensors")
    text = str(caught.value)
    assert "! head.weight has shape (10, 8) in the file, (10, 32) in the model" in text
    assert "- blocks.1.attn.qkv.bias" in text and "+ stranger" in text


@pytest.mark.parametrize("activation", ["gelu", "gelu_tanh"])
def test_the_wrong_gelu_is_seen(activation):
    """What the tolerances of this file rest on."""
    weights, arrays = read_weights(TIMM / "vit_tiny_token.safetensors"), io("vit_tiny_token")
    model = model_of(weights, dataclasses.replace(TOKEN, activation=activation))
    other = arrays["logits_tanh" if activation == "gelu" else "logits_erf"]
    assert np.abs(array(model(arrays["input"])) - other).max() > 10 * ATOL


def test_a_configuration_without_a_size_tells_no_preprocessing(tmp_path):
    shutil.copytree(TIMM / "deit_distilled", tmp_path, dirs_exist_ok=True)
    config = json.loads((tmp_path / "config.json").read_text())
    config["pretrained_cfg"]["input_size"] = []
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert "preprocessing" not in read_weights(tmp_path).known
