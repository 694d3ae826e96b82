"""What a file is, by its content; what is refused says why and what to do."""

import io
import json
import pickle
import zipfile

import h5py
import numpy as np
import pytest
from safetensors.numpy import save_file

from keras_vit.zoo.formats.detect import what_is
from keras_vit.zoo.formats.npz import open_npz


def zipped(*names):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as file:
        for name in names:
            file.writestr(name, b"content")
    return buffer.getvalue()


def refused(path, match):
    with pytest.raises(ValueError, match=match) as caught:
        what_is(path)
    assert "\n" not in str(caught.value) and str(path) in str(caught.value)


@pytest.mark.case("L11")
@pytest.mark.parametrize("suffix", [".npz", ".bin", ".pt", ".h5", ""])
def test_content_decides_whatever_the_name(tmp_path, suffix):
    path = tmp_path / f"model{suffix}"
    with path.open("wb") as file:
        np.savez(file, w=np.ones(3))
    assert what_is(path) == "npz"
    np.testing.assert_array_equal(open_npz(path)["w"].read(), np.ones(3))
    path.unlink()
    save_file({"w": np.ones(3)}, path)
    assert what_is(path) == "safetensors"
    with h5py.File(path, "w", userblock_size=512) as file:
        file["w"] = np.ones(3)
    assert what_is(path) == "hdf5"
    path.write_bytes(zipped("metadata.json", "config.json", "model.weights.h5"))
    assert what_is(path) == "keras"
    path.write_text('\n {"weight_map": {"w": "a.safetensors"}}')
    assert what_is(path) == "safetensors_index"
    path.write_text("epoch 1: loss 0.5, and so on for many lines")
    refused(path, r"is not an npz, safetensors, HDF5 \(\.weights\.h5\) or \.keras file")


def test_folders(tmp_path):
    save_file({"w": np.ones(3)}, tmp_path / "model.safetensors")
    assert what_is(tmp_path) == "safetensors"
    (tmp_path / "config.json").write_text("{}")
    assert what_is(tmp_path) == "hf_folder"
    (tmp_path / "model.safetensors").rename(tmp_path / "model.weights.h5")
    assert what_is(tmp_path) == "keras_hub_preset"
    (tmp_path / "model.weights.h5").rename(tmp_path / "model.safetensors.index.json")
    refused(tmp_path, "holds no model")
    (tmp_path / "pytorch_model.bin").touch()
    with pytest.raises(ValueError, match=r"pytorch_model\.bin is a PyTorch or Python pickle"):
        what_is(tmp_path)
    (tmp_path / "saved_model.pb").touch()
    refused(tmp_path, "is a TensorFlow SavedModel")
    with pytest.raises(FileNotFoundError, match="does not exist"):
        what_is(tmp_path / "missing")


# What the first bytes of the files of torch.save are: a zip with a pickle in it since 1.6, and a
# pickle of a magic number before.
TORCH_MAGIC = 0x1950A86A20F9469CFC6C


@pytest.mark.parametrize(
    "content",
    [
        zipped("archive/data.pkl", "archive/data/0", "archive/version"),
        zipped("model/data.pkl", "model/byteorder"),
        *(pickle.dumps({"state_dict": [1.0]}, protocol) for protocol in range(6)),
        *(pickle.dumps(TORCH_MAGIC, protocol) for protocol in range(2, 6)),
        pickle.dumps([1, 2], 0),
        pickle.dumps(np.zeros(3), 0),
        b"cposix\nsystem\n(S'true'\ntR.",
    ],
)
def test_pickles_are_refused_with_the_way_out(tmp_path, content):
    path = tmp_path / "pytorch_model.bin"
    path.write_bytes(content)
    refused(path, r"pickle, which can run code when it is read: refused\. .*save_file")
    path = tmp_path / "pytorch_model.bin.index.json"
    path.write_text(json.dumps({"weight_map": {"w": "pytorch_model-00001-of-00002.bin"}}))
    refused(path, "lists files each of which is a PyTorch or Python pickle")


@pytest.mark.parametrize(
    "content, match",
    [
        (b"", "is empty: fetch it again"),
        (b"PK", "has a broken table of members"),
        (b"abc", "has only 3 bytes"),
        (b"cat\ndog\nfish, a list of names\n", "is not an npz, safetensors"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "pointer of git-lfs"),
        (b"<!DOCTYPE html><html>", "is a web page"),
        (b"\n  <html lang=en>", "is a web page"),
        (b"<?xml version='1.0'?><Error><Code>AccessDenied", "is a web page"),
        (b"\xef\xbb\xbf<!doctype html>", "is a web page"),
        (b'{"error": "Repository not found"}', "is a JSON file and not an npz"),
        (b'{"error": ', "is broken: no JSON"),
        (b'{"weight_map": [1]}', "is a JSON file"),
        (b"\x93NUMPY\x01\x00v\x00{'descr'", "is one .npy array"),
        (b"\x1c\x00\x00\x00TFL3" + bytes(20), "is a TensorFlow Lite file"),
        (b"\x08\x01\x12\xae\x05" + bytes(20), "is a TensorFlow SavedModel"),
        (b"\x08\x08\x12\x07pytorch\x1a\x052.1.0" + bytes(20), "is an ONNX file"),
        (b"\x08\x07:\xff\x01" + bytes(20), "is an ONNX file"),
        (b"\x1f\x8b\x08" + bytes(20), "is compressed: unpack it first"),
        (bytes(257) + b"ustar" + bytes(300), "is a tar archive"),
        (zipped("saved_model.pb", "variables/variables.index"), "is a TensorFlow SavedModel"),
        (zipped("word/document.xml"), r"zip archive but not an npz .* 'word/document\.xml'"),
        (zipped(), "zip archive but not an npz or .keras file .it is empty"),
        (b"PK\x03\x04" + bytes(40), "is truncated: fetch it again"),
        ((10**6).to_bytes(8, "little") + b'{"a": {"dtype"', "is truncated: fetch it again"),
        (bytes(64), "is not an npz, safetensors"),
    ],
)
def test_what_is_no_checkpoint_is_told_what_it_is(tmp_path, content, match):
    path = tmp_path / "model.npz"
    path.write_bytes(content)
    refused(path, match)
