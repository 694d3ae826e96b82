"""KerasHub's presets: read as data, equal to the official weights, and loaded by KerasHub when written."""

import dataclasses
import json
import shutil
from pathlib import Path

import h5py
import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.card import Card, Preprocessing
from keras_vit.model import VisionModel
from keras_vit.spec import ResNetBody, ResNetSpec, ViTSpec
from keras_vit.zoo.formats import google_npz, keras_hub, read_weights
from keras_vit.zoo.infer import spec_of
from keras_vit.zoo.weights import load_weights, model_of

HUB = Path(__file__).parent / "oracles" / "keras_hub"
# Float32 on both sides, about 1e-6 apart; the other GELU moves these logits by 5e-4.
ATOL = 2e-5
TOKEN = ViTSpec(32, 64, 2, 2, 8, image_size=32, num_classes=10)


def array(x) -> np.ndarray:
    return keras.ops.convert_to_numpy(x)


def io(name: str) -> dict[str, np.ndarray]:
    with np.load(HUB / f"{name}_io.npz") as file:
        return dict(file)


def test_weights_are_the_official_ones_bit_for_bit(official):
    weights = read_weights(HUB / "vit_classifier")
    expected = google_npz.read(official.read("vit_tiny_token").stored).entries
    assert weights.entries.keys() == expected.keys()
    assert weights.ignored == ("optimizer/vars/0", "optimizer/vars/1")
    for path, entry in weights.entries.items():
        np.testing.assert_array_equal(entry.read(), expected[path].read(), err_msg=path)
    trunk = read_weights(HUB / "vit_backbone_no_cls").entries
    expected = google_npz.read(official.read("vit_tiny_gap").stored).entries
    assert trunk.keys() == expected.keys() - {"head/kernel", "head/bias"}
    for path, entry in trunk.items():
        np.testing.assert_array_equal(entry.read(), expected[path].read(), err_msg=path)


def test_a_preset_computes_what_kerashub_computes():
    model, arrays = keras_vit.load(HUB / "vit_classifier"), io("vit_classifier")
    assert model.spec == dataclasses.replace(TOKEN, activation="gelu")
    x = arrays["input"]
    np.testing.assert_allclose(array(model(x)), arrays["logits"], rtol=0, atol=ATOL)
    features = array(model.features("encoded")(x))
    np.testing.assert_allclose(features, arrays["features"], rtol=0, atol=ATOL)
    tanh = model_of(read_weights(HUB / "vit_classifier"), TOKEN)
    np.testing.assert_allclose(array(tanh(x)), arrays["logits_tanh"], rtol=0, atol=ATOL)


def test_with_the_numerics_of_their_origin_they_give_the_official_logits(official):
    fixture = official.read("vit_tiny_token")
    model = keras_vit.load(TOKEN, weights=HUB / "vit_classifier")
    found, expected = array(model(fixture.arrays["input"])), fixture.arrays["output"]
    np.testing.assert_allclose(found, expected, rtol=0, atol=ATOL)


def test_a_backbone_without_class_token_is_a_mean_pooled_trunk():
    model, arrays = keras_vit.load(HUB / "vit_backbone_no_cls"), io("vit_backbone_no_cls")
    assert (model.spec.pool, model.spec.num_classes) == ("gap", 0)
    found = array(model.features("encoded")(arrays["input"]))
    np.testing.assert_allclose(found, arrays["features"], rtol=0, atol=ATOL)


def test_raw_images_go_through_the_presets_preprocessing():
    model, arrays = keras_vit.load(HUB / "vit_classifier"), io("vit_classifier")
    assert model.preprocessing == Preprocessing("shorter_side")
    ready = array(model.preprocessor(arrays["raw_uint8"]))
    # One rounding of x / 127.5 - 1 apart.
    np.testing.assert_allclose(ready, arrays["preprocessed"], rtol=0, atol=1e-6)
    logits = array(model(ready))
    np.testing.assert_allclose(logits, arrays["logits_from_raw"], rtol=0, atol=ATOL)


def changed(tmp_path, file: str, where: str, **changes) -> Path:
    """A copy of a preset with other values in one of its JSON files."""
    folder = tmp_path / "preset"
    shutil.copytree(HUB / "vit_classifier", folder, dirs_exist_ok=True)
    values = json.loads((folder / file).read_text())
    (values["config"] if where == "config" else values).update(changes)
    (folder / file).write_text(json.dumps(values))
    return folder


def test_everything_the_configs_tell_is_used(tmp_path):
    folder = changed(
        tmp_path, "config.json", "config", num_heads=4, layer_norm_epsilon=1e-3, dropout_rate=0.25
    )
    found = spec_of(read_weights(folder))
    assert (found.num_heads, found.norm_epsilon) == (4, 1e-3)
    assert (found.dropout, found.embedding_dropout) == (0.25, 0.0)
    for written in ("softmax", {"class_name": "function", "config": "softmax"}):
        folder = changed(tmp_path, "task.json", "config", activation=written)
        assert spec_of(read_weights(folder)).classifier_activation == "softmax"
    folder = changed(
        tmp_path, "image_converter.json", "config", scale=[0.5, 0.25, 2.0], offset=[1.0, 0.0, -1.0],
        crop_to_aspect_ratio=False, antialias=True, interpolation="bicubic",
    )  # fmt: skip
    expected = Preprocessing(
        "stretch", "bicubic", True, None, False, (-2.0, 0.0, 0.5), (2.0, 4.0, 0.5)
    )
    assert keras_vit.load(folder).preprocessing == expected
    (folder / "image_converter.json").unlink()  # older presets have it in the preprocessor alone
    assert keras_vit.load(folder).preprocessing == Preprocessing("shorter_side")
    (folder / "preprocessor.json").unlink()
    assert keras_vit.load(folder).card is None


@pytest.mark.parametrize(
    ("file", "where", "changes", "message"),
    [
        ("config.json", "", {"class_name": "ResNetBackbone"}, "of its presets only those of ViTB"),
        ("config.json", "", {"class_name": None}, "has no class_name"),
        ("config.json", "config", {"num_heads": "two"}, "num_heads 'two', which is no int"),
        ("config.json", "config", {"num_heads": None}, "has no num_heads"),
        ("config.json", "config", {"image_shape": [32]}, "image_size must be a positive integer"),
        ("task.json", "config", {"pooling": "gap"}, "pools by 'gap' with a class token"),
        ("task.json", "config", {"activation": "gelu"}, "activation 'gelu': known are"),
        ("image_converter.json", "config", {"scale": 0}, "none to use"),
        ("image_converter.json", "config", {"pad_to_aspect_ratio": True}, "pad_to_aspect_ratio"),
    ],
)
def test_what_no_network_here_has_is_refused(file, where, changes, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        keras_vit.load(changed(tmp_path, file, where, **changes))


def test_no_class_that_a_preset_names_is_imported(tmp_path):
    trap = {"module": "os", "class_name": "ViTBackbone", "registered_name": "os>system"}
    folder = changed(tmp_path, "config.json", "", **trap)
    assert keras_vit.load(folder).spec.num_layers == 2


def test_a_file_of_a_preset_stands_for_its_folder(tmp_path):
    model = keras_vit.load(HUB / "vit_classifier" / "model.weights.h5")
    assert model.spec.num_classes == 10
    shutil.copy(HUB / "vit_classifier" / "model.weights.h5", tmp_path / "model.weights.h5")
    with pytest.raises(ValueError, match="or the folder of a KerasHub preset"):
        keras_vit.load(tmp_path / "model.weights.h5")


# --- writing -------------------------------------------------------------------------------------


def sets(path: Path) -> dict[str, tuple[int, ...]]:
    found = {}
    with h5py.File(path) as file:
        file.visititems(
            lambda key, item: found.update({key: item.shape} if hasattr(item, "shape") else {})
        )
    return {key: shape for key, shape in found.items() if not key.startswith("optimizer")}


@pytest.mark.parametrize("name", ["vit_classifier", "vit_backbone_no_cls"])
def test_written_presets_have_kerashubs_names_shapes_and_values(name, tmp_path):
    model = keras_vit.load(HUB / name)
    keras_vit.save_weights_as(model, tmp_path / name, format="keras_hub")
    for path in (HUB / name).glob("*.h5"):
        assert sets(tmp_path / name / path.name) == sets(path)
    for file in (
        "config.json",
        "metadata.json",
        "task.json",
        "image_converter.json",
        "preprocessor.json",
    ):
        if (HUB / name / file).is_file():
            ours = json.loads((tmp_path / name / file).read_text())
            assert_within(ours, json.loads((HUB / name / file).read_text()))
    (tmp_path / name / "keras_vit.json").unlink()
    again = keras_vit.load(tmp_path / name)
    assert again.spec == model.spec and again.preprocessing == model.preprocessing
    for path, entry in read_weights(HUB / name).entries.items():
        found = read_weights(tmp_path / name).entries[path]
        np.testing.assert_array_equal(found.read(), entry.read(), err_msg=path)


def assert_within(ours, theirs) -> None:
    """Everything that we say is what KerasHub says."""
    if isinstance(ours, dict):
        for key, value in ours.items():
            assert_within(value, theirs[key])
    else:
        assert ours == pytest.approx(theirs) if isinstance(ours, float) else ours == theirs


@pytest.mark.tf_only
@pytest.mark.full
@pytest.mark.filterwarnings("ignore:Skipping variable loading for optimizer:UserWarning")
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"representation_size": 12},
        {"pool": "gap"},
        {"image_size": (32, 24), "patch_size": (8, 4)},
        {"posemb_includes_cls": False},
    ],
    ids=str,
)
def test_kerashub_loads_what_is_written(changes, tmp_path, random_model):
    library = pytest.importorskip("keras_hub")
    model = random_model(dataclasses.replace(TOKEN, activation="gelu", **changes))
    how = Preprocessing("shorter_side", antialias=True)
    model.card = Card("custom", "x", num_classes=10, preprocessing=how)
    keras_vit.save_weights_as(model, tmp_path / "preset", format="keras_hub")
    theirs = library.models.ImageClassifier.from_preset(str(tmp_path / "preset"))
    x = np.random.default_rng(0).uniform(-1, 1, (2, *model.spec.image_size, 3)).astype("f4")
    np.testing.assert_allclose(array(theirs(x)), array(model(x)), rtol=0, atol=ATOL)
    assert theirs.preprocessor.image_converter.image_size == model.spec.image_size


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (dataclasses.replace(TOKEN, num_registers=2), "registers"),
        (dataclasses.replace(TOKEN, distilled=True), "distillation token"),
        (dataclasses.replace(TOKEN, layer_scale=1.0), "layer_scale"),
        (dataclasses.replace(TOKEN, ffn="swiglu"), "swiglu"),
        (dataclasses.replace(TOKEN, pool="map"), "pool='map'"),
        (dataclasses.replace(TOKEN, pool="gap", posemb="sincos2d"), "posemb='sincos2d'"),
        (dataclasses.replace(TOKEN, representation_size=8, num_classes=0), "without a head"),
        (dataclasses.replace(TOKEN, image_size=37, allow_crop=True), "no multiple of the patch"),
        (ResNetSpec(ResNetBody((1,))), "resnet network"),
    ],
)
def test_what_kerashub_cannot_hold_is_named(spec, message):
    with pytest.raises(ValueError, match=message):
        keras_hub.to_arrays({}, spec)


def test_a_mistake_in_a_file_names_kerashubs_keys(tmp_path):
    folder = changed(tmp_path, "config.json", "config")
    with h5py.File(folder / "model.weights.h5", "a") as file:
        del file["layers/vi_t_encoder/encoder_layers/vi_t_encoder_block_1/mha/key_dense/vars/1"]
    with pytest.raises(ValueError) as caught:
        load_weights(VisionModel(TOKEN), folder)
    assert "- layers/vi_t_encoder/encoder_layers/vi_t_encoder_block_1/mha/key_dense/vars/1" in str(
        caught.value
    )
