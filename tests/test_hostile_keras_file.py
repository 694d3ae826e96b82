"""`.keras` files are data: what they name is not imported, what they claim is checked before it is built."""

import json
import zipfile

import h5py
import numpy as np
import pytest
from keras import ops

from keras_vit.model import VisionModel
from keras_vit.spec import ViTSpec
from keras_vit.zoo.formats.keras_file import load_keras_file

SPEC = ViTSpec(
    hidden_size=8, mlp_dim=11, num_heads=2, num_layers=1, patch_size=4, image_size=8, num_classes=3
)


@pytest.fixture(scope="module")
def parts(tmp_path_factory):
    """Name -> bytes of the members of a good file."""
    path = tmp_path_factory.mktemp("good") / "m.keras"
    VisionModel(SPEC).save(path)
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


@pytest.fixture
def path(tmp_path):
    return tmp_path / "m.keras"


def arrays_of(group):
    found = []
    for item in group.values():
        found += arrays_of(item) if isinstance(item, h5py.Group) else [item[()]]
    return found


def write(path, parts, method=zipfile.ZIP_STORED):
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, data in parts.items():
            archive.writestr(name, data)


def configured(parts, **changes):
    """The members with other values in the model's own config."""
    config = json.loads(parts["config.json"])
    config["config"] |= changes
    return {**parts, "config.json": json.dumps(config)}


def refused(path, match):
    with pytest.raises(ValueError, match=match) as caught:
        load_keras_file(path)
    assert "\n" not in str(caught.value)


def test_a_good_file_loads_also_when_it_was_packed_again(parts, path):
    for method in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        write(path, parts, method)
        model = load_keras_file(path)
        assert model.spec == SPEC
        # Keras numbers weights by class and attribute; the head is the one with 3 outputs.
        kernel = ops.convert_to_numpy(model.get_layer("encoderblock_0").mlp.dense1.kernel)
        with zipfile.ZipFile(path) as archive, h5py.File(archive.open("model.weights.h5")) as file:
            found = arrays_of(file)
        assert any(np.array_equal(kernel, value) for value in found)


@pytest.mark.parametrize(
    "change, match",
    [
        (dict(hidden_size=10**5), "describes a network of .* weights and holds"),
        (dict(num_layers=10**5), "describes a network of .* weights and holds"),
        (dict(num_layers=10**12), "number 1000000000000 is absurd"),
        (dict(mlp_dim=1e300), "is absurd"),
        (dict(image_size=[2**17, 2**17], posemb="sincos2d"), "image_size .* is absurd"),
        (dict(image_size=[8] * 1000), "fewer than 100 values"),
        (dict(family="unheard"), "unknown model family"),
        (dict(unheard=1), "unknown fields"),
        (dict(num_heads="2"), "num_heads must be a positive integer"),
    ],
)
def test_networks_that_are_none_are_refused_before_they_are_built(
    parts, path, change, match, monkeypatch
):
    spec = json.loads(parts["config.json"])["config"]["spec"]
    write(path, configured(parts, spec={**spec, **change}))
    monkeypatch.setattr(VisionModel, "__init__", None)  # any attempt would be a TypeError
    refused(path, match)


@pytest.mark.parametrize(
    "changes, match",
    [
        # What Keras would turn into an object of a class that the file names.
        (dict(dtype={"module": "os", "class_name": "system", "config": {}}), "dtype is no str"),
        (dict(name={"class_name": "__lambda__"}), "name is no str"),
        (dict(name="a/b"), "name"),
        (dict(frozen="head"), "frozen is no list"),
        (dict(frozen=[{}]), "frozen is no list of names"),
        (dict(trainable=1), "trainable is no bool"),
        (dict(spec=None), "damaged one"),
        (dict(spec=[1]), "damaged one"),
        (dict(card=[1]), "damaged one"),
        (dict(dtype="float31"), "float31"),
    ],
)
def test_configs_of_the_wrong_kind_are_refused(parts, path, changes, match):
    write(path, configured(parts, **changes))
    refused(path, match)


def test_broken_parts_are_refused(parts, path, tmp_path):
    for name in ("config.json", "model.weights.h5"):
        write(path, {k: v for k, v in parts.items() if k != name})
        refused(path, f"damaged one .no {name}")
    for text in ("{", "[]", '{"a":' * 50_000, '{"registered_name": NaN}'):
        write(path, {**parts, "config.json": text})
        refused(path, "config.json is broken")
    write(path, {**parts, "config.json": '{"class_name": "Sequential"}'})
    refused(path, "holds a 'Sequential', not a keras_vit model")
    write(path, {**parts, "config.json": '{"registered_name": "keras_vit>VisionModel"}'})
    refused(path, "damaged one")
    write(path, {**parts, "model.weights.h5": b"nothing"})
    refused(path, r"m\.keras: model\.weights\.h5 is no HDF5 file")
    write(path, {**parts, "../evil": b""})
    refused(path, "leaves its folder")
    write(path, parts)
    whole = path.read_bytes()
    at = whole.index(parts["model.weights.h5"]) + len(parts["model.weights.h5"]) // 2
    path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
    refused(path, r"is damaged at 'model\.weights\.h5' .checksum")


def test_weights_of_another_network_are_refused(parts, path, tmp_path):
    other = tmp_path / "other.weights.h5"
    with h5py.File(other, "w") as file:
        file["layers/other/vars/0"] = np.zeros(10_000, np.float32)
    write(path, {**parts, "model.weights.h5": other.read_bytes()})
    refused(path, "has other weights than its network")


def test_links_in_the_weights_are_refused(parts, path, tmp_path):
    weights = tmp_path / "w.h5"
    for link in (h5py.ExternalLink("/etc/hostname", "/"), h5py.SoftLink("/layers")):
        weights.write_bytes(parts["model.weights.h5"])
        with h5py.File(weights, "r+") as file:
            file["stolen"] = link
        write(path, {**parts, "model.weights.h5": weights.read_bytes()})
        refused(path, r"m\.keras: model\.weights\.h5 has a link at 'stolen'")
