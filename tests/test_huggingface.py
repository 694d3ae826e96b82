"""Hugging Face's folders: every generation of names, its own logits, and its config when written."""

import dataclasses
import json
import re
import shutil
from pathlib import Path

import keras
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import keras_vit
from keras_vit.card import Card, Preprocessing
from keras_vit.model import VisionModel
from keras_vit.spec import HybridSpec, MixerSpec, ResNetBody, ResNetSpec, ViTSpec
from keras_vit.zoo.formats import google_npz, huggingface, read_weights, writing
from keras_vit.zoo.infer import spec_of
from keras_vit.zoo.variants import BIT_NUMERICS
from keras_vit.zoo.weights import load_weights, model_of

HF = Path(__file__).parent / "oracles" / "hf"
# Float32 on both sides, about 2e-6 apart. Of these logits the other GELU moves 2e-4 to 6e-4; epsilon
# 1e-12 instead of 1e-6 moves them by 9e-6 at most, which the tests of epsilons look at by itself.
ATOL = 2e-5
TOKEN = ViTSpec(32, 64, 2, 2, 8, image_size=32, num_classes=10)
SMALL = {
    "hidden_size": 16,
    "mlp_dim": 32,
    "num_heads": 2,
    "num_layers": 2,
    "patch_size": 8,
    "image_size": 32,
}

# folder, output of the model, endpoint here; the spec that the folder must tell, beyond PLAIN.
MODELS = (
    ("vit_classifier", "logits_erf_eps1e-12", "logits", {"norm_epsilon": 1e-12}),
    (
        "vit_model_pooler",
        "pooler_output_erf_eps1e-12",
        "pre_logits",
        {"norm_epsilon": 1e-12, "representation_size": 24, "num_classes": 0},
    ),
    ("dinov2", "pooler_output", "pre_logits", {"layer_scale": 1.0, "num_classes": 0}),
    (
        "dinov2_swiglu",
        "last_hidden_state",
        "encoded",
        {"layer_scale": 1.0, "num_classes": 0, "ffn": "swiglu", "mlp_dim": 48},
    ),
    (
        "vit_mae",
        "last_hidden_state",
        "encoded",
        {"norm_epsilon": 1e-12, "num_classes": 0},
    ),
    (
        "deit_two_heads",
        "logits",
        "logits",
        {**SMALL, "norm_epsilon": 1e-12, "num_classes": 5, "distilled": True},
    ),
    (
        "deit_one_head",
        "logits",
        "logits",
        {**SMALL, "norm_epsilon": 1e-12, "num_classes": 5, "num_registers": 1},
    ),
    (
        "dinov2_registers",
        "last_hidden_state",
        "encoded",
        {**SMALL, "layer_scale": 1.0, "num_classes": 0, "num_registers": 3},
    ),
)
PLAIN = dataclasses.replace(TOKEN, activation="gelu")


def array(x) -> np.ndarray:
    return keras.ops.convert_to_numpy(x)


def io(name: str) -> dict[str, np.ndarray]:
    with np.load(HF / f"{name}_io.npz") as file:
        return dict(file)


def endpoint(model: VisionModel, name: str, x) -> np.ndarray:
    return array(model(x) if name == "logits" else model.features(name)(x))


@pytest.mark.case("K07")
@pytest.mark.parametrize(("name", "output", "place", "changes"), MODELS, ids=lambda v: str(v)[:20])
def test_a_folder_computes_what_hugging_face_computes(name, output, place, changes):
    model, arrays = keras_vit.load(HF / name), io(name)
    assert model.spec == dataclasses.replace(PLAIN, **changes)
    np.testing.assert_allclose(
        endpoint(model, place, arrays["input"]), arrays[output], rtol=0, atol=ATOL
    )


@pytest.mark.parametrize(
    ("name", "google"),
    [("vit_classifier", "vit_tiny_token"), ("vit_model_pooler", "vit_tiny_token_rep")],
)
def test_weights_are_the_official_ones_bit_for_bit(name, google, official):
    fixture = official.read(google)
    weights, expected = read_weights(HF / name), google_npz.read(fixture.stored).entries
    heads = {"head/kernel", "head/bias"}
    assert expected.keys() - weights.entries.keys() == (heads if "pooler" in name else set())
    for path, entry in weights.entries.items():
        np.testing.assert_array_equal(entry.read(), expected[path].read(), err_msg=path)
    # With the numerics of their origin they compute what the official code does.
    changes = {"representation_size": 24, "num_classes": 0} if "pooler" in name else {}
    model = keras_vit.load(dataclasses.replace(TOKEN, **changes), weights=HF / name)
    place = "pre_logits" if "pooler" in name else "logits"
    found = endpoint(model, place, fixture.arrays["input"])
    reference = io(name).get("pooler_output_tanh_eps1e-06", fixture.arrays["output"])
    np.testing.assert_allclose(found, reference, rtol=0, atol=ATOL)


def test_the_epsilon_of_the_config_is_used():
    """1e-12 and 1e-6 are 9e-6 apart here, above what float32 arithmetic differs by."""
    arrays = io("vit_classifier")
    model = keras_vit.load(HF / "vit_classifier")
    tight = np.abs(array(model(arrays["input"])) - arrays["logits_erf_eps1e-12"]).max()
    model = model_of(
        read_weights(HF / "vit_classifier"), dataclasses.replace(model.spec, norm_epsilon=1e-6)
    )
    loose = np.abs(array(model(arrays["input"])) - arrays["logits_erf_eps1e-12"]).max()
    assert tight < 3e-6 < loose


@pytest.mark.parametrize("size", [(48, 48), (56, 40)])
@pytest.mark.filterwarnings("ignore:.*accuracy drops:UserWarning")
def test_other_resolutions_are_hugging_faces(size):
    arrays = io("vit_classifier")
    i = 0 if size == (48, 48) else 1
    model = keras_vit.load(HF / "vit_classifier", image_size=size)
    found = array(model(arrays[f"input_interp_{i}"]))
    np.testing.assert_allclose(found, arrays[f"logits_interp_{i}"], rtol=0, atol=ATOL)
    # Named, they are Google's weights, whose rule is another.
    other = keras_vit.load(HF / "vit_classifier", image_size=size, posemb_resize="align_corners")
    assert np.abs(array(other(arrays[f"input_interp_{i}"])) - found).max() > 10 * ATOL


@pytest.mark.filterwarnings("ignore:.*accuracy drops:UserWarning")
def test_both_tokens_of_deit_keep_their_positions_at_other_resolutions():
    arrays = io("deit_two_heads")
    model = keras_vit.load(HF / "deit_two_heads", image_size=(48, 40))
    found = array(model(arrays["input_1"]))
    np.testing.assert_allclose(found, arrays["logits_1"], rtol=0, atol=ATOL)


@pytest.mark.parametrize("name", ["bit_groups8", "bit_v1"])
def test_bit_of_both_kinds_at_several_sizes(name):
    arrays = io(name)
    for end in ("", "_1"):
        x = arrays[f"input{end}"]
        model = keras_vit.load(HF / name, image_size=x.shape[1:3])
        np.testing.assert_allclose(
            array(model(x)), arrays[f"logits{end}"], rtol=0, atol=ATOL, err_msg=end
        )
        if f"last_hidden_state{end}" in arrays:
            found = endpoint(model, "encoded", x)
            np.testing.assert_allclose(found, arrays[f"last_hidden_state{end}"], atol=ATOL)
    body = model.spec.body
    assert (body.norm_groups, body.width_factor, body.root_channels) == (8, 1 / 8, 16)
    assert body.preactivation == (name == "bit_groups8")


def test_bit_with_the_official_weights(official, tmp_path):
    """Written here, since timm's file of these weights is stored already: keys, config and logits."""
    fixture = official.read("bit_1_1_w05")
    body = ResNetBody((1, 1), 0.5, **BIT_NUMERICS)
    model = VisionModel(ResNetSpec(body, image_size=32, num_classes=10))
    load_weights(model, fixture.stored)
    keras_vit.save_weights_as(model, tmp_path / "bit", format="huggingface")
    keys = json.loads((HF / "bit" / "keys.json").read_text())
    state = load_file(tmp_path / "bit" / "model.safetensors")
    assert {key: list(value.shape) for key, value in state.items()} == keys
    assert_config(tmp_path / "bit", HF / "bit")
    (tmp_path / "bit" / "keras_vit.json").unlink()  # as if Hugging Face had written it
    arrays = io("bit")
    for end in ("", "_1", "_2", "_3"):
        x = arrays[f"input{end}"]
        again = keras_vit.load(tmp_path / "bit", image_size=x.shape[1:3])
        assert again.spec.body == dataclasses.replace(body, weight_epsilon=1e-8)
        np.testing.assert_allclose(array(again(x)), arrays[f"logits{end}"], rtol=0, atol=ATOL)


def assert_config(folder: Path, reference: Path) -> None:
    """What transformers reads of our config is what stands in its own."""
    ours, theirs = (json.loads((path / "config.json").read_text()) for path in (folder, reference))
    for key, value in ours.items():
        if key in theirs and key != "use_mask_token":  # of masked training
            assert value == theirs[key], key
    # What it needs to build the network; the rest is of other uses, or the same by default.
    needed = {
        "architectures", "model_type", "hidden_size", "num_hidden_layers", "num_attention_heads",
        "intermediate_size", "hidden_act", "layer_norm_eps", "image_size", "patch_size", "depths",
        "hidden_sizes", "embedding_size", "num_groups", "layer_type", "global_padding",
        "embedding_dynamic_padding", "pooler_output_size", "mlp_ratio", "use_swiglu_ffn",
        "num_register_tokens", "layerscale_value", "id2label", "label2id",
    }  # fmt: skip
    default = {"pooler_output_size"} if "id2label" in theirs else set()
    assert needed & theirs.keys() - default <= ours.keys()


@pytest.mark.parametrize("name", [row[0] for row in MODELS if row[0] not in ("deit_one_head",)])
def test_written_folders_are_those_of_save_pretrained(name, tmp_path):
    model = keras_vit.load(HF / name)
    keras_vit.save_weights_as(model, tmp_path / name, format="huggingface")
    expected = load_file(HF / name / "model.safetensors")
    found = load_file(tmp_path / name / "model.safetensors")
    if "registers" not in name:  # used in masked training only, so it may be missing
        expected.pop("embeddings.mask_token", None)
    assert found.keys() == expected.keys()
    for key, value in expected.items():
        if not key.endswith("mask_token"):
            np.testing.assert_array_equal(found[key], value, err_msg=key)
    reference = HF / name
    if name == "vit_mae":  # the encoder is a plain ViT
        assert json.loads((tmp_path / name / "config.json").read_text())["model_type"] == "vit"
        return
    assert_config(tmp_path / name, reference)


# --- names and shards ------------------------------------------------------------------------


def in_memory(name: str, kind: str) -> dict[str, np.ndarray]:
    """The tensors of a fixture under the names that transformers 5 has in memory."""
    names = json.loads((HF / "names_in_memory.json").read_text())[kind]
    if not any(key.startswith(kind) for key in load_file(HF / name / "model.safetensors")):
        names = {k.removeprefix(f"{kind}."): v.removeprefix(f"{kind}.") for k, v in names.items()}
    found = {}
    for key, value in load_file(HF / name / "model.safetensors").items():
        number = re.search(r"\.(\d+)\.", key)
        new = names.get(re.sub(r"\.\d+\.", ".{}.", key), key)
        if "weights_in" in key:  # split in memory
            for part, half in zip(("gate_proj", "up_proj"), np.split(value, 2), strict=True):
                found[key.replace("weights_in", part)] = half
            continue
        new = new.replace("weights_out", "down_proj")
        found[new.format(number[1]) if number else new] = value
    return found


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("vit_classifier", "vit"),
        ("vit_model_pooler", "vit"),
        ("dinov2", "dinov2"),
        ("dinov2_swiglu", "dinov2"),
        ("deit_two_heads", "deit"),
    ],
)
def test_names_on_disk_and_in_memory_give_identical_weights(name, kind, tmp_path):
    state = in_memory(name, kind)
    assert any(".q_proj." in key for key in state) and not any("query" in key for key in state)
    save_file(state, tmp_path / "model.safetensors")
    shutil.copy(HF / name / "config.json", tmp_path)
    assert_same_weights(read_weights(tmp_path), read_weights(HF / name))


def assert_same_weights(found, expected) -> None:
    assert found.entries.keys() == expected.entries.keys()
    for path, entry in expected.entries.items():
        np.testing.assert_array_equal(found.entries[path].read(), entry.read(), err_msg=path)


@pytest.mark.case("L14")
@pytest.mark.parametrize("prefix", ["", "model.vit."])
def test_prefixes_make_no_difference(prefix, tmp_path):
    state = load_file(HF / "vit_classifier" / "model.safetensors")
    renamed = {
        key.replace("vit.", prefix, 1) if key.startswith("vit.") else key: value
        for key, value in state.items()
    }
    save_file(renamed, tmp_path / "model.safetensors")
    shutil.copy(HF / "vit_classifier" / "config.json", tmp_path)
    found = read_weights(tmp_path)
    assert_same_weights(found, read_weights(HF / "vit_classifier"))
    assert found.keys["embedding/kernel"].startswith(f"{prefix}embeddings.")
    with pytest.raises(ValueError, match=re.escape(f"! {prefix}embeddings.patch_embeddings")):
        load_weights(VisionModel(dataclasses.replace(TOKEN, patch_size=4, image_size=16)), found)


def test_shards_are_one_model_by_folder_index_or_parts(tmp_path):
    folder, whole = HF / "vit_classifier_sharded", read_weights(HF / "vit_classifier")
    assert_same_weights(read_weights(folder), whole)
    assert_same_weights(read_weights(folder / "model.safetensors.index.json"), whole)
    model = keras_vit.load(folder / "model.safetensors.index.json")
    assert model.spec.norm_epsilon == 1e-12  # from the config beside
    with pytest.raises(ValueError, match="holds no network of timm or Hugging Face"):
        keras_vit.load(folder / "model-00003-of-00003.safetensors")


def test_large_models_are_written_in_shards(tmp_path, monkeypatch):
    monkeypatch.setattr(writing, "SHARD_BYTES", 40_000)
    model = keras_vit.load(HF / "vit_classifier")
    keras_vit.save_weights_as(model, tmp_path / "sharded", format="huggingface")
    index = json.loads((tmp_path / "sharded/model.safetensors.index.json").read_text())
    theirs = json.loads((HF / "vit_classifier_sharded/model.safetensors.index.json").read_text())
    assert index["weight_map"].keys() == theirs["weight_map"].keys()
    assert index["metadata"]["total_size"] == theirs["metadata"]["total_size"]
    shards = sorted(set(index["weight_map"].values()))
    assert shards == sorted(set(theirs["weight_map"].values()))
    assert not (tmp_path / "sharded" / "model.safetensors").exists()
    for shard in shards:
        assert (tmp_path / "sharded" / shard).stat().st_size < 45_000
    assert_same_weights(read_weights(tmp_path / "sharded"), read_weights(HF / "vit_classifier"))


# --- what stands beside the weights ----------------------------------------------------------


def test_decoders_and_mask_tokens_are_left_out_and_reported():
    weights = read_weights(HF / "mae_whole")
    decoder = [key for key in weights.ignored if key.startswith("decoder.")]
    assert decoder and not any("decoder" in path for path in weights.entries)
    report = load_weights(VisionModel(spec_of(weights)), weights)
    assert set(report.unused) == set(weights.ignored)
    assert read_weights(HF / "dinov2").ignored == ("embeddings.mask_token",)


def test_class_names_survive_there_and_back(tmp_path):
    model = keras_vit.load(HF / "deit_two_heads")
    assert model.class_names == tuple(f"label {i}" for i in range(5))
    keras_vit.save_weights_as(model, tmp_path / "out", format="huggingface")
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["id2label"]["3"] == "label 3" and config["label2id"]["label 3"] == 3
    (tmp_path / "out" / "keras_vit.json").unlink()
    assert keras_vit.load(tmp_path / "out").class_names == model.class_names
    # Names that transformers made up are none.
    assert keras_vit.load(HF / "vit_classifier").card is None


def with_processor(tmp_path, name: str, **values) -> keras_vit.VisionModel:
    shutil.copytree(HF / name, tmp_path, dirs_exist_ok=True)
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(values))
    return keras_vit.load(tmp_path)


IMAGENET = {"image_mean": [0.485, 0.456, 0.406], "image_std": [0.229, 0.224, 0.225]}
HALF = {"image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5]}
MEAN, STD = (123.675, 116.28, 103.53), (58.395, 57.12, 57.375)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (
            {"size": {"height": 32, "width": 32}, **HALF},
            Preprocessing(antialias=True, rounded=True),
        ),
        ({"size": 32, "resample": 2, **HALF}, Preprocessing(antialias=True, rounded=True)),
        (
            {
                "size": {"height": 40, "width": 40},
                "resample": 3,
                "do_center_crop": True,
                **IMAGENET,
            },
            Preprocessing("stretch", "bicubic", True, 40, False, MEAN, STD, True),
        ),
        (
            {"size": {"shortest_edge": 36}, "resample": 3, "crop_size": 32, **IMAGENET},
            Preprocessing("shorter_side", "bicubic", True, 36, False, MEAN, STD, True),
        ),
        (
            {"image_processor_type": "BitImageProcessor", "size": 36, **HALF},
            Preprocessing("shorter_side", "bilinear", True, 36, rounded=True),
        ),
        (
            {"do_resize": False, "do_normalize": False},
            Preprocessing("none", mean=(0.0,), std=(255.0,)),
        ),
        (
            {"do_resize": False, "do_rescale": False, **HALF},
            Preprocessing("none", mean=(0.5,), std=(0.5,)),
        ),
    ],
)
def test_preprocessing_is_that_of_the_processor(values, expected, tmp_path):
    assert with_processor(tmp_path, "vit_classifier", **values).preprocessing == expected


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"resample": 5}, "resample 5: known are"),
        ({"size": {"height": 32, "width": 40}}, "resizes to 32x40"),
        ({"rescale_factor": 0}, "rescale_factor 0: expected a positive number"),
        ({"image_mean": "half"}, "image_mean 'half', which is no list"),
        ({"image_std": [0.5, None, 0.5]}, "expected numbers"),
    ],
)
def test_preprocessing_that_cannot_be_expressed_is_refused(values, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        with_processor(tmp_path, "vit_classifier", **values)


def test_written_preprocessing_reads_back(tmp_path):
    for i, how in enumerate(
        (
            Preprocessing(antialias=True, rounded=True),
            Preprocessing("shorter_side", "bicubic", True, 36, False, MEAN, STD, True),
            Preprocessing("stretch", "bicubic", True, 40, False, MEAN, STD, True),
        )
    ):
        model = keras_vit.load(HF / "vit_classifier")
        model.card = Card("custom", "x", num_classes=10, preprocessing=how)
        keras_vit.save_weights_as(model, tmp_path / str(i), format="huggingface")
        (tmp_path / str(i) / "keras_vit.json").unlink()
        assert keras_vit.load(tmp_path / str(i)).preprocessing == how


def test_bit_takes_its_size_from_the_crop(tmp_path):
    model = with_processor(
        tmp_path, "bit_v1", size={"shortest_edge": 36}, crop_size={"height": 40, "width": 40}
    )
    assert model.spec.image_size == (40, 40)


# --- what is refused --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("vit_classifier", {"model_type": "beit"}, "is of a 'beit' model, which is none"),
        ("vit_classifier", {"hidden_act": "quick_gelu"}, "hidden_act 'quick_gelu': known are"),
        ("vit_classifier", {"num_attention_heads": 3}, "num_heads must divide hidden_size"),
        ("vit_classifier", {"layer_norm_eps": "small"}, "layer_norm_eps 'small', which is no"),
        (
            "vit_model_pooler",
            {"pooler_act": "gelu"},
            "pooler_act 'gelu', which no network here has",
        ),
        ("bit_groups8", {"global_padding": "SAME"}, "pads as no network here does"),
        ("bit_groups8", {"layer_type": "bottleneck"}, "pads as no network here does"),
        ("bit_v1", {"embedding_dynamic_padding": False}, "pads as no network here does"),
        ("bit_groups8", {"output_stride": 4}, "dilated"),
        ("bit_groups8", {"hidden_act": "gelu"}, "hidden_act 'gelu', which no network here has"),
        ("bit_groups8", {"num_groups": 0}, "norm_groups must divide"),
    ],
)
def test_other_networks_are_refused_in_one_sentence(name, changes, message, tmp_path):
    shutil.copytree(HF / name, tmp_path, dirs_exist_ok=True)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, **changes}))
    with pytest.raises(ValueError, match=message):
        keras_vit.load(tmp_path)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (dataclasses.replace(TOKEN, pool="gap"), "pool='gap'"),
        (dataclasses.replace(TOKEN, pool="map"), "pool='map'"),
        (dataclasses.replace(TOKEN, pool="gap", posemb="sincos2d"), "posemb='sincos2d'"),
        (dataclasses.replace(TOKEN, representation_size=8), "pre_logits below a head"),
        (dataclasses.replace(TOKEN, num_registers=2), "registers, layer_scale or swiglu"),
        (dataclasses.replace(TOKEN, layer_scale=1.0), "layer_scale below a head of one token"),
        (
            dataclasses.replace(TOKEN, layer_scale=1.0, num_classes=0, ffn="swiglu", mlp_dim=30),
            "mlp_dim=30",
        ),
        (HybridSpec(32, 64, 2, 1, 1, image_size=32), "hybrid model"),
        (MixerSpec(32, 24, 64, 2, 8, image_size=32), "mixer model"),
        (
            ResNetSpec(ResNetBody((1,), 0.5, **{**BIT_NUMERICS, "pool_border": "-inf"})),
            "'pool_border': '-inf'",
        ),
        (
            ResNetSpec(ResNetBody((1,), 0.5, weight_standardization=None)),
            "weight_standardization=None",
        ),
    ],
)
def test_what_hugging_face_cannot_hold_is_named(spec, message):
    with pytest.raises(ValueError, match=message):
        huggingface.to_arrays({}, spec)


def test_a_single_head_of_deit_is_a_register_and_exact(tmp_path):
    """The same arithmetic as two heads' network, whose second head is not asked."""
    weights = read_weights(HF / "deit_two_heads")
    two = model_of(weights, spec_of(weights))
    state = load_file(HF / "deit_two_heads" / "model.safetensors")
    one = {k.replace("cls_classifier", "classifier"): v for k, v in state.items()
           if not k.startswith("distillation_classifier")}  # fmt: skip
    save_file(one, tmp_path / "model.safetensors")
    shutil.copy(HF / "deit_two_heads" / "config.json", tmp_path)
    model, arrays = keras_vit.load(tmp_path), io("deit_two_heads")
    assert model.spec.num_registers == 1 and not model.spec.distilled
    found = endpoint(model, "encoded", arrays["input"])
    np.testing.assert_array_equal(found, endpoint(two, "encoded", arrays["input"]))
    np.testing.assert_allclose(array(model(arrays["input"])), arrays["cls_logits"], atol=ATOL)


def test_the_backbone_of_a_hybrid_is_read(tmp_path):
    """google/vit-hybrid-*: BiT's names inside of the patch embedding."""
    spec = HybridSpec(**{**SMALL, "num_layers": 1, "patch_size": 1}, num_classes=5,
                      resnet=ResNetBody((1, 1), 0.125, norm_groups=8))  # fmt: skip
    model = VisionModel(spec)
    entries = {v.path: array(v) for v in model.weights}
    table = huggingface.TABLES["vit"]
    state = huggingface.arrays_of(table, entries, spec, "x")
    assert (
        "embeddings.patch_embeddings.backbone.bit.encoder.stages.1.layers.0.conv2.weight" in state
    )
    save_file({f"vit.{key}": np.ascontiguousarray(value) for key, value in state.items()
               if not key.startswith("classifier")}, tmp_path / "model.safetensors")  # fmt: skip
    found = read_weights(tmp_path / "model.safetensors")
    assert found.entries.keys() == entries.keys() - {"head/kernel", "head/bias"}
    body = spec_of(found, like=spec).resnet
    assert (body.weight_standardization, body.weight_epsilon, body.padding) == ("var", 1e-8, "same")


@pytest.mark.parametrize("image_size", [(32, 40), (40, 40)])
def test_a_resnet_of_any_image_size_is_read_back(random_model, tmp_path, image_size):
    """Its config.json tells no size, but the preprocessing beside it does."""
    body = ResNetBody((1, 1), 0.5, norm_groups=8, **BIT_NUMERICS)
    model = random_model(ResNetSpec(body, image_size=image_size, num_classes=3))
    folder = keras_vit.save_weights_as(model, tmp_path / "bit", format="huggingface")
    assert keras_vit.load(folder).spec == model.spec
    (folder / "keras_vit.json").unlink()
    again = keras_vit.load(folder)
    assert again.spec.image_size == image_size
    assert again.preprocessing.resize == "stretch" and again.preprocessing.resize_to is None
