"""The same model in every container: bit for bit there and back, found by path, refused by name."""

import dataclasses
import json
import math
import os
import pickle
import shutil
from pathlib import Path

import h5py
import keras
import numpy as np
import pytest
from safetensors.numpy import save_file

import keras_vit
from keras_vit.card import Card, Preprocessing
from keras_vit.model import VisionModel
from keras_vit.spec import HybridSpec, MixerSpec, ResNetBody, ResNetSpec, ViTSpec
from keras_vit.zoo.formats import (
    FORMATS,
    google_npz,
    huggingface,
    read_weights,
    sidecar,
    timm,
    values_of,
    writing,
)
from keras_vit.zoo.formats.keys import file_shape, key_of
from keras_vit.zoo.infer import spec_of
from keras_vit.zoo.variants import BIT_NUMERICS, VARIANTS
from keras_vit.zoo.weights import load_weights

ORACLES = Path(__file__).parent / "oracles"
VIT = {
    "hidden_size": 16,
    "mlp_dim": 32,
    "num_heads": 2,
    "num_layers": 2,
    "patch_size": 8,
    "image_size": 32,
    "num_classes": 5,
}
BODY = {"width_factor": 1 / 8, "norm_groups": 8}
HYBRID = {**VIT, "patch_size": 1}
DINO = {**VIT, "num_classes": 0, "layer_scale": 0.1, "activation": "gelu"}
FIRST = ResNetBody((1, 2), **BODY)
ALL, NO_HF = tuple(FORMATS), ("google_npz", "timm", "keras_hub", "keras_weights")
OWN = ("google_npz", "timm", "keras_weights")

# A network of each kind, and the formats that can hold it.
NETWORKS = {
    "token": (ViTSpec(**VIT), ALL),
    "patches as wide as high": (
        ViTSpec(**{**VIT, "patch_size": (8, 4), "image_size": (32, 24)}),
        ALL,
    ),
    "pre_logits": (ViTSpec(**VIT, representation_size=12), NO_HF),
    "pre_logits without head": (
        ViTSpec(**{**VIT, "num_classes": 0}, representation_size=12),
        ("google_npz", "timm", "huggingface", "keras_weights"),
    ),
    "headless": (ViTSpec(**{**VIT, "num_classes": 0}), ALL),
    "gap": (ViTSpec(**VIT, pool="gap"), NO_HF),
    "map": (ViTSpec(**VIT, pool="map"), OWN),
    "unpooled": (ViTSpec(**VIT, pool="token_unpooled"), OWN),
    "positions before the token": (ViTSpec(**VIT, posemb_includes_cls=False), ALL),
    "sincos": (ViTSpec(**VIT, pool="gap", posemb="sincos2d"), OWN),
    "dropout": (ViTSpec(**VIT, dropout=0.1, attention_dropout=0.1, stochastic_depth=0.1), ALL),
    "distilled": (ViTSpec(**VIT, distilled=True), ("timm", "huggingface", "keras_weights")),
    "dinov2": (ViTSpec(**DINO), ("timm", "huggingface", "keras_weights")),
    "registers": (
        ViTSpec(**DINO, num_registers=3, posemb_includes_cls=False),
        ("timm", "huggingface", "keras_weights"),
    ),
    "swiglu": (ViTSpec(**DINO, ffn="swiglu"), ("timm", "huggingface", "keras_weights")),
    "hybrid": (HybridSpec(**HYBRID, resnet=FIRST), OWN),
    "stem": (HybridSpec(**{**VIT, "patch_size": 2}, resnet=ResNetBody((), **BODY)), OWN),
    "no transformer": (
        HybridSpec(
            **{**HYBRID, "num_layers": 0, "mlp_dim": 1, "num_heads": 1},
            resnet=FIRST,
            pool="gap",
            posemb="none",
        ),
        ("google_npz", "keras_weights"),
    ),
    "bit": (
        ResNetSpec(ResNetBody((1, 2), **BODY, **BIT_NUMERICS), image_size=32, num_classes=5),
        ("google_npz", "timm", "huggingface", "keras_weights"),
    ),
    "resnet v1": (
        ResNetSpec(ResNetBody((2, 1), **BODY), image_size=32, num_classes=5),
        ("google_npz", "timm", "huggingface", "keras_weights"),
    ),
    "mixer": (MixerSpec(16, 12, 32, 2, 8, image_size=32, num_classes=5), OWN),
}
PAIRS = [(name, format) for name, (_, formats) in NETWORKS.items() for format in formats]
REFUSED = [
    (name, f) for name, (_, formats) in NETWORKS.items() for f in FORMATS if f not in formats
]


@pytest.fixture(scope="module")
def models(random_model):
    """name -> its network with random weights."""
    made: dict[str, VisionModel] = {}

    def get(name: str) -> VisionModel:
        if name not in made:
            made[name] = random_model(NETWORKS[name][0])
        return made[name]

    return get


def array(x) -> np.ndarray:
    return keras.ops.convert_to_numpy(x)


def assert_same(found: VisionModel, expected: VisionModel) -> None:
    values = values_of(expected)
    assert values_of(found).keys() == values.keys()
    for path, value in values_of(found).items():
        np.testing.assert_array_equal(value, values[path], err_msg=path)


@pytest.mark.case("S03")
@pytest.mark.parametrize(("name", "format"), PAIRS)
def test_there_and_back_bit_for_bit(name, format, models, tmp_path):
    model = models(name)
    path = keras_vit.save_weights_as(model, tmp_path / f"m{FORMATS[format]}", format=format)
    again = keras_vit.load(path)
    assert again.spec == model.spec
    assert_same(again, model)
    # Without the JSON the file is weights of a known network.
    sidecar(path).unlink()
    if name in ("token", "dinov2", "hybrid", "bit", "mixer"):
        again = keras_vit.load(model.spec, weights=path)
        assert again.spec == model.spec
    else:
        for variable in again.weights:
            variable.assign(keras.ops.zeros(variable.shape))
        load_weights(again, path)
    assert_same(again, model)


@pytest.mark.parametrize(("name", "format"), REFUSED)
def test_what_a_format_cannot_hold_is_named_and_nothing_is_written(name, format, models, tmp_path):
    with pytest.raises(ValueError, match=r"has no .*: choose (another format|google_npz)"):
        keras_vit.save_weights_as(models(name), tmp_path / f"m{FORMATS[format]}", format=format)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("format", ["google_npz", "timm", "huggingface", "keras_hub"])
def test_float16_halves_the_file_and_reads_back_rounded(format, models, tmp_path):
    model = models("token")
    for dtype in ("float32", "float16"):
        keras_vit.save_weights_as(
            model, tmp_path / f"{dtype}{FORMATS[format]}", format=format, dtype=dtype
        )
    sizes = [bytes_of(tmp_path / f"{dtype}{FORMATS[format]}") for dtype in ("float32", "float16")]
    assert sizes[1] < 0.9 * sizes[0]  # most of so small an HDF5 file is names
    again = keras_vit.load(tmp_path / f"float16{FORMATS[format]}")
    for path, value in values_of(again).items():
        rounded = values_of(model)[path].astype(np.float16).astype(np.float32)
        np.testing.assert_array_equal(value, rounded, err_msg=path)
    with pytest.raises(ValueError, match=r"holds the model's own type, not float16"):
        keras_vit.save_weights_as(
            model, tmp_path / "x.weights.h5", format="keras_weights", dtype="float16"
        )


def bytes_of(path: Path) -> int:
    files = [f for f in path.iterdir() if f.suffix != ".json"] if path.is_dir() else [path]
    return sum(file.stat().st_size for file in files)


@pytest.mark.parametrize("format", FORMATS)
def test_class_names_and_preprocessing_survive(format, models, tmp_path):
    model = models("token").with_spec(NETWORKS["token"][0])
    how = Preprocessing("shorter_side", "bicubic", True)
    names = ("a", "b", "ü", "d", "e")
    model.card = Card("custom", "t", num_classes=5, class_names=names, preprocessing=how)
    path = keras_vit.save_weights_as(model, tmp_path / f"m{FORMATS[format]}", format=format)
    again = keras_vit.load(path)
    assert again.class_names == names and again.preprocessing == how
    # And they stay when the file is weights of a network that is named.
    assert keras_vit.load(model.spec, weights=path).class_names == names


# --- Keras's own files ---------------------------------------------------------------------------


def test_files_of_trained_models_hold_more_than_weights(tmp_path):
    spec = ViTSpec(**VIT, dropout=0.1)
    model = VisionModel(spec)
    model.compile("adam", "mse", metrics=["mae"])
    model.optimizer.build(model.trainable_variables)
    model.save(tmp_path / "m.keras")
    shutil.unpack_archive(tmp_path / "m.keras", tmp_path / "in", "zip")
    path = tmp_path / "in" / "model.weights.h5"
    weights = read_weights(path, spec=spec)
    assert any("optimizer" in key for key in weights.ignored)
    again = VisionModel(spec)
    report = load_weights(again, path)
    assert_same(again, model)
    assert set(report.unused) == set(weights.ignored)


def test_a_mistake_in_a_keras_file_names_its_keys(models, tmp_path):
    path = keras_vit.save_weights_as(
        models("hybrid"), tmp_path / "m.weights.h5", format="keras_weights"
    )
    with h5py.File(path, "a") as file:
        del file["layers/bottleneck_unit_2/gn1/vars/1"]
    with pytest.raises(ValueError) as caught:
        keras_vit.load(path)
    assert "- layers/block2_unit2/gn1/vars/1" in str(caught.value)
    report_of = read_weights(path, spec=models("hybrid").spec)
    key = "layers/bottleneck_unit_2/gn1/vars/0"
    assert report_of.keys["block2_unit2/gn1/scale"] == key


def test_a_lone_keras_file_tells_its_network(models, tmp_path):
    """All but the number of heads, for which this width is too small."""
    for name in ("token", "pre_logits", "distilled", "hybrid", "bit", "resnet v1", "mixer"):
        spec = NETWORKS[name][0]
        path = tmp_path / f"{name}.weights.h5"
        models(name).save_weights(path)
        found = spec_of(read_weights(path), image_size=(32, 32), like=spec)
        assert found == spec


# --- paths ---------------------------------------------------------------------------------------


def test_every_kind_of_path_is_a_path(models, tmp_path, monkeypatch):
    model = models("token")
    monkeypatch.chdir(tmp_path)
    for format, suffix in FORMATS.items():
        path = keras_vit.save_weights_as(model, tmp_path / f"{format}{suffix}", format=format)
        for way in (path, str(path), path.name):
            assert_same(keras_vit.load(way), model)
    renamed = (tmp_path / "timm.safetensors").rename(tmp_path / "pytorch_model.bin")
    assert_same(keras_vit.load(model.spec, weights=str(renamed)), model)


@pytest.mark.parametrize("name", ["gone.safetensors", "gone.weights.h5", "a/b/gone.npz"])
def test_a_path_of_nothing_says_so(name, tmp_path):
    with pytest.raises(FileNotFoundError, match="does not exist"):
        keras_vit.load(str(tmp_path / name))
    with pytest.raises(FileNotFoundError, match="does not exist"):
        keras_vit.load("ViT-B/16", weights=str(tmp_path / name))


def test_a_tag_comes_before_a_folder_of_its_name(models, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = keras_vit.save_weights_as(models("token"), "imagenet21k", format="huggingface")
    monkeypatch.setenv("KERAS_VIT_CACHE", str(tmp_path / "empty"))
    with pytest.raises(FileNotFoundError, match=r"ViT-B_16\.npz"):
        keras_vit.load("ViT-B/16", weights="imagenet21k", offline=True)
    with pytest.raises(ValueError, match="is another network"):
        keras_vit.load("ViT-B/16", weights=f"./{folder}")


def test_a_named_model_has_the_numerics_of_its_origin_whatever_the_container(tmp_path):
    """A file of Hugging Face says GELU, bicubic and 1e-12; the authors' ViT has none of them."""
    from keras_vit.zoo import loading

    checkpoint = loading._with_file(
        ORACLES / "hf" / "vit_classifier", ViTSpec(**{**VIT, "hidden_size": 32, "mlp_dim": 64})
    )
    assert checkpoint.spec.activation == "gelu_tanh" and checkpoint.spec.norm_epsilon == 1e-6
    assert checkpoint.weights is not None and checkpoint.weights.posemb_resize == "bicubic"
    named = loading._with_file(
        ORACLES / "hf" / "vit_classifier",
        ViTSpec(**{**VIT, "hidden_size": 32, "mlp_dim": 64}),
        "ViT-B/16",
    )
    assert named.weights is not None and named.weights.posemb_resize == "align_corners"


# --- replacing and refusing ----------------------------------------------------------------------


@pytest.mark.parametrize("format", ["huggingface", "keras_hub"])
def test_folders_are_replaced_only_when_asked_and_only_if_they_hold_weights(
    format, models, tmp_path
):
    path = keras_vit.save_weights_as(models("token"), tmp_path / "m", format=format)
    with pytest.raises(FileExistsError, match="force=True"):
        keras_vit.save_weights_as(models("token"), path, format=format)
    other = NETWORKS["positions before the token"][0]
    keras_vit.save_weights_as(models("positions before the token"), path, format=format, force=True)
    assert keras_vit.load(path).spec == other
    (path / "notes.txt").write_text("mine")
    with pytest.raises(FileExistsError, match=r"holds notes\.txt and is not replaced"):
        keras_vit.save_weights_as(models("token"), path, format=format, force=True)
    assert (path / "notes.txt").read_text() == "mine" and keras_vit.load(path).spec == other
    file = tmp_path / "file"
    file.write_text("")
    with pytest.raises(FileExistsError, match="is a file: give the path of a folder"):
        keras_vit.save_weights_as(models("token"), file, format=format, force=True)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["file", "m"]


@pytest.mark.parametrize("format", FORMATS)
def test_a_failed_write_leaves_nothing_behind(format, models, tmp_path, monkeypatch):
    def fail(*args, **kwargs):
        raise OSError("No space left on device")

    for owner, function in (
        ("numpy", "savez"),
        ("safetensors.numpy", "save_file"),
        ("h5py", "File"),
        ("keras.Model", "save_weights"),
    ):
        monkeypatch.setattr(f"{owner}.{function}", fail)
    with pytest.raises(OSError, match="space"):
        keras_vit.save_weights_as(models("token"), tmp_path / f"m{FORMATS[format]}", format=format)
    assert list(tmp_path.iterdir()) == []


def test_suffixes_and_formats_are_checked_first(models, tmp_path):
    with pytest.raises(ValueError, match=r"timm is written to a file \.safetensors"):
        keras_vit.save_weights_as(models("token"), tmp_path / "m.npz", format="timm")
    with pytest.raises(ValueError, match="format must be one of"):
        keras_vit.save_weights_as(models("token"), tmp_path / "m.npz", format="onnx")
    with pytest.raises(OSError, match="no folder that can be written to"):
        keras_vit.save_weights_as(models("token"), tmp_path / "a" / "m", format="huggingface")


def test_pickles_are_refused_in_a_sentence(tmp_path):
    path = tmp_path / "pytorch_model.bin"
    path.write_bytes(pickle.dumps({"cls_token": 1}, protocol=2))
    for way in (path, tmp_path):
        with pytest.raises(ValueError, match=r"pickle, which can run code .* safetensors"):
            keras_vit.load(way)


def test_other_networks_in_the_same_containers_are_refused(tmp_path):
    save_file({"layer.weight": np.zeros((2, 2), "f4")}, tmp_path / "m.safetensors")
    with pytest.raises(ValueError, match="no network of timm or Hugging Face"):
        keras_vit.load(tmp_path / "m.safetensors")
    keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)]).save_weights(
        tmp_path / "m.weights.h5"
    )
    with pytest.raises(ValueError, match="holds no network of this package"):
        keras_vit.load(tmp_path / "m.weights.h5")
    VisionModel(NETWORKS["token"][0]).save(tmp_path / "m.keras")
    with pytest.raises(ValueError, match="is a whole model and no file of weights"):
        read_weights(tmp_path / "m.keras")


def test_a_broken_description_beside_the_weights_is_not_guessed_around(models, tmp_path):
    path = keras_vit.save_weights_as(models("token"), tmp_path / "m", format="huggingface")
    about = json.loads((path / "keras_vit.json").read_text())
    for broken in ("{", "[]", json.dumps({**about, "spec": {"family": "cnn"}})):
        (path / "keras_vit.json").write_text(broken)
        with pytest.raises(ValueError, match="does not describe m"):
            keras_vit.load(path)


@pytest.mark.case("L09")
@pytest.mark.parametrize(
    ("name", "format"),
    [
        ("token", "huggingface"),
        ("token", "keras_weights"),
        ("hybrid", "timm"),
        ("bit", "timm"),
        ("bit", "huggingface"),
    ],
)
def test_heads_are_kept_replaced_or_left_out(name, format, models, tmp_path):
    path = keras_vit.save_weights_as(models(name), tmp_path / f"m{FORMATS[format]}", format=format)
    trunk = {p: v for p, v in values_of(models(name)).items() if not p.startswith("head")}
    for classes, width in ((None, 5), (0, models(name).spec.feature_size), (7, 7)):
        model = keras_vit.load(path, num_classes=classes)
        assert model.output_shape[-1] == width
        found = values_of(model)
        for key, value in trunk.items():
            np.testing.assert_array_equal(found[key], value, err_msg=key)
    assert not np.any(array(model.get_layer("head").kernel))


# --- whole networks, without their numbers ------------------------------------------------------


# The smallest of each kind; the others have the same variables, more often.
KINDS = (
    "ViT-Ti/16",
    "R+ViT-Ti/16",
    "R50+ViT-B/16",
    "BiT-R50x1",
    "ResNet-GN-R50x1",
    "Mixer-S/32",
    "DeiT-Ti/16-distilled",
    "DINOv2-S/14",
    "DINOv2-g/14-reg4",
    "FlexiViT-S",
)


@pytest.mark.full
@pytest.mark.parametrize("name", KINDS)
def test_every_variable_of_every_kind_of_variant_has_a_key_of_its_own(name):
    spec = VARIANTS[name].spec
    tables = [timm.table_of(spec)]
    if not (getattr(spec, "distilled", False) or getattr(spec, "layer_scale", None)):
        tables.append(google_npz.table_of(spec))
    if spec.family in ("vit", "resnet") and getattr(spec, "pool", "token") == "token":
        kind = huggingface.kind_of(dataclasses.replace(spec, num_classes=0))
        tables.append(huggingface.TABLES[kind])
    with keras.StatelessScope():  # shapes, no memory
        shapes = {v.path: tuple(v.shape) for v in VisionModel(spec).weights}
    for table in tables:
        keys: dict[str, int] = {}
        for path, shape in shapes.items():
            key = key_of(table, path)
            assert key is not None, path
            whole = math.prod(file_shape(table, path, shape, spec))
            keys[key] = keys.get(key, 0) + 1
            # One array, or an equal part of a fused one.
            assert whole % math.prod(shape) == 0 and whole // math.prod(shape) <= 3, path
        fused = [key for key, count in keys.items() if count > 1]
        assert all(
            key.rsplit(".", 1)[0].endswith(("qkv", "fc1", "kv", "weights_in")) for key in fused
        )


def test_a_folder_that_cannot_be_replaced_stays(tmp_path, monkeypatch):
    target, replace = tmp_path / "model", os.replace
    with writing.new_folder(target) as part:
        (part / "config.json").write_text("old")

    def refuses(source, goal):
        if Path(source).name.endswith(".part"):
            raise OSError("no")
        replace(source, goal)

    monkeypatch.setattr(os, "replace", refuses)
    with pytest.raises(OSError, match="no"), writing.new_folder(target) as part:
        (part / "config.json").write_text("new")
    assert (target / "config.json").read_text() == "old"
    assert os.listdir(tmp_path) == ["model"]
