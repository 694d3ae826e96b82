"""`load`, `build`, `save_weights_as`: what a user calls, on files in the real layout."""

import dataclasses
import json
import os
import subprocess
import sys
import textwrap
import warnings
from pathlib import Path

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.card import Card, Preprocessing
from keras_vit.spec import HybridSpec, MixerSpec, ResNetBody, ViTSpec
from keras_vit.zoo import loading
from keras_vit.zoo.formats import google_npz, read_weights, values_of, write_weights
from keras_vit.zoo.variants import VARIANTS
from keras_vit.zoo.weights import load_weights

ORACLES = Path(__file__).parent / "oracles"
TINY = ViTSpec(24, 40, 3, 2, 8, image_size=32, num_classes=10)


def random_model(spec, seed=0):
    """Every weight random, the head included, so that nothing is hidden behind zeros."""
    model = keras_vit.VisionModel(spec)
    rng = np.random.default_rng(seed)
    for v in model.weights:
        v.assign(0.1 * rng.standard_normal(tuple(v.shape)).astype(np.float32))
    return model


def weights(model):
    return {v.path: keras.ops.convert_to_numpy(v) for v in model.weights}


@pytest.fixture
def tiny_file(tmp_path):
    path = tmp_path / "tiny.npz"
    write_weights(random_model(TINY), path)
    return path


def test_a_lone_file_loads_by_its_path(tiny_file):
    model = keras_vit.load(str(tiny_file))
    assert model.spec == TINY
    for path, value in weights(random_model(TINY)).items():
        np.testing.assert_array_equal(weights(model)[path], value)


@pytest.mark.case("L09", "L15")
def test_num_classes_decides_about_the_head(tiny_file):
    own = weights(random_model(TINY))
    for num_classes, width in ((None, 10), (10, 10), (0, 24), (6, 6)):
        model = keras_vit.load(tiny_file, num_classes=num_classes)
        assert model.output_shape == (None, width)
        for path, value in weights(model).items():
            if not path.startswith("head/"):
                np.testing.assert_array_equal(value, own[path])
        if num_classes == 6:
            assert not np.any(weights(model)["head/kernel"])
    fresh = keras_vit.load(tiny_file, num_classes=10, new_head=True)
    assert not np.any(weights(fresh)["head/kernel"])


@pytest.mark.case("L15", "L27")
def test_features_are_the_class_token_after_the_last_norm(tiny_file):
    model = keras_vit.load(tiny_file, num_classes=0)
    x = np.random.default_rng(1).uniform(-1, 1, (2, 32, 32, 3)).astype(np.float32)
    encoded = keras.ops.convert_to_numpy(model.features("encoded")(x))
    np.testing.assert_array_equal(keras.ops.convert_to_numpy(model(x)), encoded[:, 0])


@pytest.mark.case("L03")
def test_pre_logits_stay_with_their_head_and_go_with_a_new_one(tmp_path):
    spec = dataclasses.replace(TINY, representation_size=24)
    write_weights(random_model(spec), tmp_path / "rep.npz")
    kept = keras_vit.load(tmp_path / "rep.npz")
    x = np.random.default_rng(1).uniform(-1, 1, (2, 32, 32, 3)).astype(np.float32)
    cls = keras.ops.convert_to_numpy(kept.features("encoded")(x))[:, 0].astype(np.float64)
    w = weights(kept)
    expected = np.tanh(cls @ w["pre_logits/kernel"] + w["pre_logits/bias"])
    found = keras.ops.convert_to_numpy(kept.features("pre_logits")(x))
    np.testing.assert_allclose(found, expected, atol=1e-5)  # float32 sums of 24 terms
    dropped = keras_vit.load(tmp_path / "rep.npz", num_classes=7)
    assert dropped.spec.representation_size is None and "pre_logits/kernel" not in weights(dropped)


@pytest.mark.case("L02")
def test_a_head_of_zeros_says_so_and_classifies_nothing(tmp_path):
    model = random_model(TINY)
    model.get_layer("head").kernel.assign(np.zeros((24, 10), np.float32))
    write_weights(model, tmp_path / "zero.npz")
    with pytest.warns(UserWarning, match="no usable head"):
        loaded = keras_vit.load(tmp_path / "zero.npz")
    assert loaded.has_usable_head is False
    with pytest.raises(ValueError, match="no usable head"):
        loaded.predict_images(np.zeros((32, 32, 3), np.uint8))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        keras_vit.load(tmp_path / "zero.npz", num_classes=4)
        keras_vit.load(tmp_path / "zero.npz", num_classes=0)


@pytest.mark.case("R04", "R10")
def test_another_resolution_resizes_the_table_and_warns(tiny_file):
    with pytest.warns(UserWarning, match=r"4x4 patches .* 6x8: accuracy drops"):
        model = keras_vit.load(tiny_file, image_size=(48, 64))
    table = weights(model)["posembed_input/table"]
    assert table.shape == (1, 1 + 48, 24)
    own = weights(random_model(TINY))["posembed_input/table"]
    np.testing.assert_array_equal(table[:, :1], own[:, :1])
    corners = table[0, 1:].reshape(6, 8, 24)[[0, 0, -1, -1], [0, -1, 0, -1]]
    expected = own[0, 1:].reshape(4, 4, 24)[[0, 0, -1, -1], [0, -1, 0, -1]]
    np.testing.assert_allclose(corners, expected, atol=1e-7)  # aligned corners, one rounding


def test_another_number_of_channels_keeps_grey_images(tiny_file):
    grey = np.random.default_rng(1).uniform(-1, 1, (2, 32, 32, 1)).astype(np.float32)
    rgb = keras_vit.load(tiny_file)
    one = keras_vit.load(tiny_file, in_channels=1)
    six = keras_vit.load(tiny_file, in_channels=6)
    expected = keras.ops.convert_to_numpy(rgb(np.repeat(grey, 3, -1)))
    # The kernels are summed in another order: float32 rounding of 192 terms.
    np.testing.assert_allclose(keras.ops.convert_to_numpy(one(grey)), expected, atol=1e-4)
    found = keras.ops.convert_to_numpy(six(np.repeat(grey, 6, -1)))
    np.testing.assert_allclose(found, expected, atol=1e-4)


@pytest.mark.case("L13")
def test_a_file_and_random_weights_touch_no_network(tiny_file, monkeypatch):
    import socket

    def refuse(*args, **kwargs):
        raise AssertionError("the network was touched")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    assert keras_vit.load(tiny_file).spec == TINY
    assert keras_vit.load("ViT-Ti/16", weights=None, image_size=32).spec.image_size == (32, 32)


@pytest.mark.case("L10")
def test_weights_that_are_not_here_raise_and_never_give_a_random_model(monkeypatch, tmp_path):
    monkeypatch.delenv("KERAS_VIT_MIRROR", raising=False)
    with pytest.raises(FileNotFoundError, match="KERAS_VIT_MIRROR") as caught:
        keras_vit.load("ViT-B/16", cache_dir=tmp_path)
    assert "augreg/B_16" in str(caught.value) and str(tmp_path) in str(caught.value)
    with pytest.raises(ValueError, match="never released"):
        keras_vit.load("ViT-G/14")


@pytest.mark.case("L04")
def test_a_file_of_another_network_names_what_differs(tiny_file):
    with pytest.raises(ValueError, match=r"hidden_size 24 instead of 192"):
        keras_vit.load("ViT-Ti/16", weights=tiny_file)


def test_names_files_and_tags_do_not_mix(tiny_file):
    with pytest.raises(ValueError, match="leave weights= out"):
        keras_vit.load(tiny_file, weights="augreg_in21k")
    with pytest.raises(ValueError, match="names weights already"):
        keras_vit.load("ViT-B/16@augreg_in21k", weights=str(tiny_file))
    with pytest.raises(ValueError, match="give the path of a file"):
        keras_vit.load(TINY)
    with pytest.raises(ValueError, match="did you mean ViT-B/16"):
        keras_vit.load("ViT-B/17")
    with pytest.raises(FileNotFoundError, match="does not exist"):
        keras_vit.load("nowhere.npz")
    with pytest.raises(FileNotFoundError, match="and this is offline"):
        keras_vit.load("https://example.org/ViT-B_16.npz")
    with pytest.raises(ValueError, match="takes no tag"):
        keras_vit.build("ViT-B/16@augreg_in21k")


def test_an_address_is_fetched_and_loaded(server, tiny_file):
    url = server.put("/tiny.npz", tiny_file.read_bytes())
    expected = weights(keras_vit.load(TINY, weights=tiny_file))
    for model in (keras_vit.load(TINY, weights=url), keras_vit.load(TINY, weights=url)):
        np.testing.assert_equal(weights(model), expected)
    assert len(server.requests) == 1
    with pytest.raises(OSError, match=r"does not have it \(404\)"):
        keras_vit.load(server.url("/other.npz"))


@pytest.mark.parametrize("name", ["hf/vit_classifier_sharded", "keras_hub/vit_classifier"])
def test_a_repository_of_the_hub_is_fetched_and_loaded(server, name, tmp_path):
    commit, folder = "a" * 40, ORACLES / name
    for file in folder.iterdir():
        server.put(
            f"/org/repo/resolve/{commit}/{file.name}",
            file.read_bytes(),
            headers={"X-Repo-Commit": commit},
        )
    fetched = keras_vit.load(f"hf://org/repo@{commit}")
    np.testing.assert_equal(weights(fetched), weights(keras_vit.load(folder)))
    count = len(server.requests)
    keras_vit.load(f"hf://org/repo@{commit}", offline=True)
    assert len(server.requests) == count


def test_an_address_of_a_card_is_that_card(tmp_path, monkeypatch):
    monkeypatch.setenv("KERAS_VIT_CACHE", str(tmp_path))
    card = keras_vit.card("ViT-B/16@orig_in21k")
    addresses = [*card.sources, *(s.rpartition("/")[0] for s in card.sources if s[:2] == "hf")]
    assert len(addresses) > 1
    for address in addresses:
        with pytest.raises(FileNotFoundError, match=f"the weights of {card.name} are not"):
            keras_vit.load(address)
        with pytest.raises(FileNotFoundError, match=f"the weights of {card.name} are not"):
            keras_vit.load("ViT-B/16", weights=address)


def test_a_spec_takes_a_file_or_random_weights(tiny_file):
    assert keras_vit.load(TINY, weights=None).card is None
    model = keras_vit.load(TINY, weights=tiny_file)
    np.testing.assert_array_equal(
        weights(model)["head/kernel"], weights(random_model(TINY))["head/kernel"]
    )


def test_build_gives_the_variant_with_random_weights():
    model = keras_vit.build(
        "ViT-Ti/16", num_classes=5, image_size=(32, 48), in_channels=1, dropout=0.1
    )
    assert model.spec == dataclasses.replace(
        VARIANTS["ViT-Ti/16"].spec, num_classes=5, image_size=(32, 48), in_channels=1, dropout=0.1
    )
    assert np.std(weights(model)["encoderblock_3/mlp/dense1/kernel"]) > 0


def test_labels_and_preprocessing_travel_beside_an_npz(tmp_path):
    model = random_model(dataclasses.replace(TINY, num_classes=2, pool="gap"))
    model.card = keras_vit.Card(
        "mine", "v1", num_classes=2, class_names=("cat", "dög"),
        preprocessing=keras_vit.Preprocessing(mean=(1.0, 2.0, 3.0), std=(4.0, 5.0, 6.0)),
    )  # fmt: skip
    path = keras_vit.save_weights_as(model, tmp_path / "mine.npz")
    back = keras_vit.load(path)
    assert back.class_names == ("cat", "dög") and back.spec == model.spec
    assert back.preprocessing == model.preprocessing
    with pytest.raises(FileExistsError, match="force=True"):
        keras_vit.save_weights_as(model, path)
    keras_vit.save_weights_as(model, path, force=True)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["mine.json", "mine.npz"]
    (tmp_path / "mine.json").write_text("{")
    with pytest.raises(ValueError, match="does not describe"):
        keras_vit.load(path)


def test_save_refuses_what_it_cannot_write(tmp_path):
    model = random_model(TINY)
    with pytest.raises(ValueError, match="google_npz"):
        keras_vit.save_weights_as(model, tmp_path / "x.pt", format="torch")
    with pytest.raises(OSError, match="no folder that can be written"):
        keras_vit.save_weights_as(model, tmp_path / "missing" / "x.npz")


def test_a_keras_file_loads_as_data_and_takes_the_same_arguments(tmp_path):
    model = random_model(TINY)
    model.save(tmp_path / "m.keras")
    same = keras_vit.load(tmp_path / "m.keras")
    x = np.random.default_rng(1).uniform(-1, 1, (2, 32, 32, 3)).astype(np.float32)
    np.testing.assert_array_equal(
        keras.ops.convert_to_numpy(same(x)), keras.ops.convert_to_numpy(model(x))
    )
    other = keras_vit.load(tmp_path / "m.keras", num_classes=3, image_size=48)
    assert other.output_shape == (None, 3) and other.spec.image_size == (48, 48)
    np.testing.assert_array_equal(
        weights(other)["encoderblock_1/attention/out/kernel"],
        weights(model)["encoderblock_1/attention/out/kernel"],
    )
    half = keras_vit.load(tmp_path / "m.keras", dtype="mixed_bfloat16")
    assert half.policy.name == "mixed_bfloat16"


def test_keras_files_that_are_none_of_ours_are_refused(tmp_path):
    keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)]).save(tmp_path / "s.keras")
    with pytest.raises(ValueError, match="not a keras_vit model"):
        keras_vit.load(tmp_path / "s.keras")
    (tmp_path / "t.keras").write_bytes(b"nothing")
    with pytest.raises(ValueError, match=r"truncated or not an npz.* or \.keras file"):
        keras_vit.load(tmp_path / "t.keras")


def test_keras_files_whose_weights_point_elsewhere_are_refused(tmp_path):
    import zipfile

    import h5py

    random_model(TINY).save(tmp_path / "m.keras")
    with zipfile.ZipFile(tmp_path / "m.keras") as archive:
        archive.extractall(tmp_path / "open")
    with h5py.File(tmp_path / "open" / "model.weights.h5", "r+") as file:
        file["stolen"] = h5py.ExternalLink("/etc/hostname", "/")
    with zipfile.ZipFile(tmp_path / "evil.keras", "w") as archive:
        for name in ("config.json", "metadata.json", "model.weights.h5"):
            archive.write(tmp_path / "open" / name, name)
    with pytest.raises(ValueError, match="link"):
        keras_vit.load(tmp_path / "evil.keras")


def test_list_models_and_card_need_no_keras():
    code = """
        import sys
        import keras_vit
        assert "ViT-L/16" in keras_vit.list_models()
        assert "ViT-L/16" in keras_vit.list_models("ViT-L*", family="vit")
        assert keras_vit.list_models("ViT-L*", family="mixer") == []
        assert "ViT-L/16@augreg_in21k" in keras_vit.list_models(pretrained=True)
        assert keras_vit.list_models(pretrained=False) and "ViT-L/16" not in keras_vit.list_models(pretrained=False)
        assert keras_vit.card("ViT-L/16").name == "ViT-L/16@augreg_in21k_ft_in1k_384"
        assert "keras" not in sys.modules and "tensorflow" not in sys.modules, "imported Keras"
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=True, timeout=120)


HEADLINE = r"""
import json, os, re
import keras, numpy as np
import keras_vit.zoo.loading
if keras.backend.backend() == "tensorflow":
    keras.ops.zeros(1)
after_imports = int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

import keras_vit
model = keras_vit.load("ViT-L/16")

# Not ru_maxrss, which a process inherits from the one that started it.
peak = 1024 * int(re.search(r"VmHWM:\s+(\d+)", open("/proc/self/status").read())[1])
print(json.dumps({
    "peak": peak - after_imports,
    "name": model.card.name,
    "params": model.count_params(),
    "kernel": float(keras.ops.convert_to_numpy(model.get_layer("encoderblock_23").mlp.dense2.kernel)[7, 5]),
    "top": model.predict_images(np.zeros((300, 200, 3), np.uint8), top=2),
}))
"""


@pytest.mark.tf_only  # the bound is stated for TensorFlow; JAX copies every array once more
@pytest.mark.timeout(300)
def test_the_headline_of_the_readme(tmp_path):
    """`keras_vit.load("ViT-L/16")` on a 1.2 GB file in that card's layout, within 1.3 times its size."""
    card = keras_vit.card("ViT-L/16")
    spec = dataclasses.replace(
        VARIANTS["ViT-L/16"].spec, image_size=card.image_size, num_classes=card.num_classes
    )
    path = tmp_path / card.file
    path.parent.mkdir(parents=True)
    kernel = write_seeded(path, spec)
    environment = {**os.environ, "KERAS_VIT_MIRROR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", HEADLINE],
        env=environment,
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout.splitlines()[-1])
    size = path.stat().st_size
    path.unlink()
    assert found["name"] == "ViT-L/16@augreg_in21k_ft_in1k_384"
    assert found["params"] == 304_715_752
    assert found["kernel"] == kernel
    label, index, probability = found["top"][0][0]
    assert 0 <= index < 1000 and 0 < probability <= 1 and not label.startswith("class ")
    assert found["peak"] <= 1.3 * size, f"{found['peak'] / size:.2f} times the file"


def write_seeded(path: Path, spec: ViTSpec) -> float:
    """Writes the official layout of a spec, one array at a time; returns one value to look for."""
    import zipfile

    rng = np.random.default_rng(0)
    wanted = None
    with zipfile.ZipFile(path, "w") as archive:
        for key, shape in official_shapes(spec).items():
            array = rng.standard_normal(shape, np.float32) * np.float32(0.02)
            if key == "Transformer/encoderblock_23/MlpBlock_3/Dense_1/kernel":
                wanted = float(array[7, 5])
            with archive.open(f"{key}.npy", "w", force_zip64=True) as file:
                np.lib.format.write_array(file, array)
    return wanted


def official_shapes(spec: ViTSpec) -> dict[str, tuple[int, ...]]:
    """Key -> shape of a published file, written out here so that it is no copy of the code under test."""
    d, m, h = spec.hidden_size, spec.mlp_dim, spec.num_heads
    shapes = {
        "cls": (1, 1, d),
        "embedding/kernel": (*spec.patch_size, 3, d),
        "embedding/bias": (d,),
        "Transformer/posembed_input/pos_embedding": (1, spec.num_tokens, d),
        "Transformer/encoder_norm/scale": (d,),
        "Transformer/encoder_norm/bias": (d,),
        "head/kernel": (d, spec.num_classes),
        "head/bias": (spec.num_classes,),
    }
    for i in range(spec.num_layers):
        block = f"Transformer/encoderblock_{i}"
        for norm in ("LayerNorm_0", "LayerNorm_2"):
            shapes |= {f"{block}/{norm}/scale": (d,), f"{block}/{norm}/bias": (d,)}
        attention = f"{block}/MultiHeadDotProductAttention_1"
        for name in ("query", "key", "value"):
            shapes[f"{attention}/{name}/kernel"] = (d, h, d // h)
            shapes[f"{attention}/{name}/bias"] = (h, d // h)
        shapes |= {f"{attention}/out/kernel": (h, d // h, d), f"{attention}/out/bias": (d,)}
        for name, (n_in, n_out) in (("Dense_0", (d, m)), ("Dense_1", (m, d))):
            shapes[f"{block}/MlpBlock_3/{name}/kernel"] = (n_in, n_out)
            shapes[f"{block}/MlpBlock_3/{name}/bias"] = (n_out,)
    return shapes


def test_a_copy_without_the_head_of_zeros_loads_with_zeros(tmp_path, monkeypatch):
    """Hugging Face's copies of the ImageNet-21k releases leave the head of zeros out."""
    spec = dataclasses.replace(TINY, representation_size=24)
    model = random_model(spec)
    card = Card("ViT-B/16", "orig_in21k", num_classes=10, usable_head=False)
    arrays = google_npz.to_arrays(values_of(model), spec)
    without = {key: value for key, value in arrays.items() if not key.startswith("head/")}
    with pytest.warns(UserWarning, match="no usable head"):
        loaded = loading.make_model(
            loading.Checkpoint(spec, card, read_weights(without)),
            {},
            new_head=False,
            posemb_resize=None,
            dtype=None,
        )
    values = values_of(loaded)
    assert not values["head/kernel"].any()
    np.testing.assert_array_equal(values["pre_logits/kernel"], arrays["pre_logits/kernel"])
    usable = dataclasses.replace(card, usable_head=True)
    with pytest.raises(ValueError, match="- head/kernel"):
        loading.make_model(
            loading.Checkpoint(spec, usable, read_weights(without)),
            {},
            new_head=False,
            posemb_resize=None,
            dtype=None,
        )


def test_the_json_beside_a_file_cannot_ask_for_a_network_that_the_file_does_not_hold(tiny_file):
    beside = tiny_file.with_suffix(".json")
    about = {"spec": {**TINY.to_dict(), "mlp_dim": 2**14, "num_layers": 900}, "card": None}
    beside.write_text(json.dumps(about))
    with pytest.raises(ValueError, match=r"does not describe tiny\.npz .* parameters"):
        keras_vit.load(tiny_file)
    for text in ("[1]", '{"spec": null}', '{"spec": {"family": "vit", "num_layers": 1e99}}'):
        beside.write_text(text)
        with pytest.raises(ValueError, match=r"does not describe tiny\.npz"):
            keras_vit.load(tiny_file)


def test_a_loaded_model_trains_and_leaves_the_file_and_other_models_alone(tiny_file):
    """The weights may lie in memory that was read from the file: it must be the model's alone."""
    before = tiny_file.read_bytes()
    first, second = keras_vit.load(tiny_file), keras_vit.load(tiny_file)
    kept = weights(second)
    first.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    rng = np.random.default_rng(0)
    images = rng.uniform(-1, 1, (4, 32, 32, 3)).astype(np.float32)
    first.fit(images, np.array([0, 1, 2, 3]), epochs=2, verbose=0)
    assert any(np.any(value != kept[path]) for path, value in weights(first).items())
    for path, value in weights(second).items():
        np.testing.assert_array_equal(value, kept[path])
    assert tiny_file.read_bytes() == before


def test_a_file_of_this_package_keeps_its_numerics_under_a_name(tmp_path):
    """Its JSON tells them; a container that does not gets those of the name."""
    spec = dataclasses.replace(
        VARIANTS["ViT-Ti/16"].spec, num_layers=12, image_size=(32, 32), activation="gelu"
    )
    path = keras_vit.save_weights_as(random_model(spec), tmp_path / "mine.npz")
    assert keras_vit.load("ViT-Ti/16", weights=path).spec == spec
    path.with_suffix(".json").unlink()
    assert keras_vit.load("ViT-Ti/16", weights=path).spec.activation == "gelu_tanh"


def test_channels_are_adapted_only_when_asked_for(tiny_file):
    """A JSON that is wrong about the file must not make another model of it."""
    about = {"spec": {**TINY.to_dict(), "in_channels": 1}, "card": None}
    tiny_file.with_suffix(".json").write_text(json.dumps(about))
    with pytest.raises(ValueError, match=r"embedding/kernel has shape \(8, 8, 3, 24\)"):
        keras_vit.load(tiny_file)


@pytest.mark.parametrize("dtype", ["int8", "float64", "bfloat16", None])
def test_weights_are_never_written_as_numbers_that_cannot_hold_them(tmp_path, dtype):
    with pytest.raises(ValueError, match="dtype must be 'float32' or 'float16'"):
        keras_vit.save_weights_as(random_model(TINY), tmp_path / "a.npz", dtype=dtype)
    assert list(tmp_path.iterdir()) == []


def test_what_is_no_model_or_name_is_told_in_a_sentence(tmp_path):
    for value in (None, 3, b"ViT-B/16"):
        with pytest.raises(ValueError, match="load takes a name, a path, an address or a spec"):
            keras_vit.load(value)
    for value in (3, b"a.npz", False):
        with pytest.raises(ValueError, match="weights must be a tag, a path, an address or None"):
            keras_vit.load("ViT-B/16", weights=value)
    with pytest.raises(ValueError, match="family must be one of"):
        keras_vit.list_models(family="swin")
    part = random_model(TINY).features("encoded")
    with pytest.raises(ValueError, match="is no model of this package"):
        keras_vit.save_weights_as(part, tmp_path / "part.npz")


def test_a_file_of_another_family_is_told_by_that_alone(tiny_file):
    with pytest.raises(ValueError, match=r"it has family vit instead of resnet\.$"):
        keras_vit.load("BiT-R50x1", weights=tiny_file)


def test_a_mixer_says_that_it_has_one_image_size(tmp_path):
    model = random_model(MixerSpec(24, 12, 40, 2, 8, image_size=32, num_classes=10))
    path = keras_vit.save_weights_as(model, tmp_path / "mixer.npz")
    with pytest.raises(ValueError, match="Hint: a Mixer works at the image_size"):
        keras_vit.load(path, image_size=64)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "bool", "complex64", "U5"])
def test_arrays_of_other_than_floats_are_no_weights(tmp_path, dtype):
    """Quantised files hold integers whose scale stands elsewhere."""
    arrays = google_npz.to_arrays(values_of(random_model(TINY)), TINY)
    arrays["head/kernel"] = arrays["head/kernel"].astype(dtype)
    np.savez(tmp_path / "odd.npz", **arrays)
    with pytest.raises(ValueError, match=r"! head/kernel holds .* and no weights"):
        keras_vit.load(tmp_path / "odd.npz")


def test_what_was_frozen_stays_frozen_whatever_else_is_asked_for(tmp_path):
    model = random_model(TINY)
    for name in ("encoderblock_0", "head"):
        model.get_layer(name).trainable = False
    model.save(tmp_path / "frozen.keras")
    for options in ({}, {"dropout": 0.1}, {"dtype": "mixed_bfloat16"}, {"num_classes": 4}):
        loaded = keras_vit.load(tmp_path / "frozen.keras", **options)
        assert not loaded.get_layer("encoderblock_0").trainable
        assert loaded.get_layer("encoderblock_1").trainable
        assert loaded.get_layer("head").trainable == ("num_classes" in options)


def test_a_path_may_begin_at_the_home_of_the_user(tiny_file, monkeypatch):
    monkeypatch.setenv("HOME", str(tiny_file.parent))
    assert keras_vit.load("~/tiny.npz").spec == TINY


@pytest.mark.parametrize(
    ("resize", "resize_to", "image_size", "expected"),
    [
        ("shorter_side", 32, 16, 16),  # DINOv2: the whole of the shorter side, at any size
        ("shorter_side", 36, 64, 72),
        ("shorter_side", 36, (48, 64), 54),
        ("stretch", 36, 64, 72),
        ("shorter_side", None, 64, None),
    ],
)
def test_the_central_crop_keeps_its_share_of_the_image(
    tmp_path, resize, resize_to, image_size, expected
):
    model = random_model(TINY)
    how = Preprocessing(resize, resize_to=resize_to)
    model.card = Card("custom", "x", num_classes=10, image_size=(32, 32), preprocessing=how)
    path = keras_vit.save_weights_as(model, tmp_path / "x.npz")
    with pytest.warns(UserWarning, match="accuracy drops"):
        loaded = keras_vit.load(path, image_size=image_size)
    assert loaded.preprocessing.resize_to == expected
    assert len(loaded.predict_images(np.zeros((50, 70, 3), np.uint8))[0]) == 5
    assert keras_vit.load(path).preprocessing == how


@pytest.mark.parametrize(
    ("dtype", "body"),
    [("bfloat16", ResNetBody((1,), 0.5)), ("float16", None)],
    ids=["hybrid-bfloat16", "vit-float16"],
)
def test_pure_half_policies_run(dtype, body):
    fields = {**vars(TINY), "num_layers": 1, "patch_size": 4 if body else 8}
    spec = HybridSpec(**fields, resnet=body) if body else ViTSpec(**fields)
    outputs = keras_vit.VisionModel(spec, dtype=dtype)(np.zeros((1, 32, 32, 3), np.float32))
    assert np.isfinite(keras.ops.convert_to_numpy(keras.ops.cast(outputs, "float32"))).all()


def test_a_spec_decides_about_head_and_resolution_of_a_file(tiny_file):
    spec = dataclasses.replace(TINY, num_classes=3, image_size=(48, 32))
    model = keras_vit.load(spec, weights=tiny_file)
    assert model.spec == spec and model.output_shape == (None, 3)
    kept = keras_vit.load(TINY, weights=tiny_file)
    assert kept.has_usable_head


def test_weights_of_a_training_that_broke_are_told_and_change_nothing(tmp_path):
    model = random_model(TINY)
    arrays = google_npz.to_arrays(values_of(model), TINY)
    arrays["Transformer/encoder_norm/bias"][3] = np.nan
    np.savez(tmp_path / "broken.npz", **arrays)
    with pytest.raises(ValueError, match="NaN or infinity in 'Transformer/encoder_norm/bias'"):
        keras_vit.load(tmp_path / "broken.npz")
    other = random_model(TINY, seed=1)
    before = weights(other)
    with pytest.raises(ValueError, match="NaN or infinity"):
        load_weights(other, tmp_path / "broken.npz")
    for path, value in weights(other).items():
        np.testing.assert_array_equal(value, before[path])


def test_the_address_of_a_known_checkpoint_as_weights_is_its_tag(monkeypatch):
    card = keras_vit.card("ViT-B/16@sam_in1k")
    asked = []

    def stop(found, **_):
        asked.append(found.name)
        raise FileNotFoundError("not here")

    monkeypatch.setattr(loading, "fetch", stop)
    with pytest.raises(FileNotFoundError):
        keras_vit.load("ViT-B/16", weights=card.sources[-1])
    assert asked == [card.name]
