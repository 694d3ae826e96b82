"""safetensors are read as the library reads them, lazily and from any number of files."""

import json
import os

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from keras_vit.zoo.formats import safetensors_file
from keras_vit.zoo.formats.safetensors_file import open_safetensors, write_safetensors

RNG = np.random.default_rng(0)
ARRAYS = {
    "blocks.0.weight": RNG.normal(size=(5, 7)).astype(np.float32),
    "blocks.0.bias": RNG.normal(size=3).astype(np.float16),
    "double": RNG.normal(size=(2, 3)),
    "count": np.array(11, np.int64),
    "mask": np.array([True, False, True]),
    "empty": np.zeros((0, 4), np.float32),
}


def sharded(folder, arrays, files=("model-00001-of-00002.safetensors", "b.safetensors")):
    """The arrays in two files with an index; returns name -> file."""
    keys, owners = sorted(arrays), {}
    for file, part in zip(files, (keys[::2], keys[1::2]), strict=True):
        save_file({k: arrays[k] for k in part}, folder / file)
        owners |= {k: file for k in part}
    index = {"metadata": {"total_size": 1}, "weight_map": owners}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return owners


def test_a_file_of_the_library_is_read_as_the_library_reads_it(tmp_path):
    path = tmp_path / "m.safetensors"
    save_file(ARRAYS, path, {"format": "pt"})
    entries, expected = open_safetensors(path), load_file(path)
    assert set(entries) == set(expected)
    for key, entry in entries.items():
        assert entry.shape == expected[key].shape and entry.dtype == expected[key].dtype
        value = entry.read()
        half = entry.dtype == np.float16
        assert value.dtype == (np.float32 if half else entry.dtype)  # only halves are cast
        np.testing.assert_array_equal(value, expected[key])


def test_halves_are_cast_up_exactly(tmp_path):
    path = tmp_path / "m.safetensors"
    every = np.arange(2**16, dtype=np.uint16)  # every bit pattern there is
    save_file({"b": every.view(ml_dtypes.bfloat16), "h": every.view(np.float16)}, path)
    entries = open_safetensors(path)
    # bfloat16 is the upper half of float32.
    np.testing.assert_array_equal(
        entries["b"].read(), (every.astype(np.uint32) << 16).view(np.float32)
    )
    np.testing.assert_array_equal(entries["h"].read(), every.view(np.float16).astype(np.float32))


def test_the_library_reads_what_is_written(tmp_path):
    path = tmp_path / "m.safetensors"
    arrays = {
        **ARRAYS,
        "fortran": np.asfortranarray(ARRAYS["double"]),
        "turned": ARRAYS["double"].T,
        "big": np.arange(3, dtype=">f4"),
        "scalar": np.array(2.5, np.float32),
    }
    write_safetensors(path, arrays, {"format": "pt"})
    found = load_file(path)
    assert set(found) == set(arrays)
    for key, value in arrays.items():
        assert found[key].shape == value.shape
        np.testing.assert_array_equal(found[key], value)
    entries = open_safetensors(path)
    for key, value in arrays.items():
        np.testing.assert_array_equal(entries[key].read(), value)
    assert os.listdir(tmp_path) == ["m.safetensors"]


def test_what_cannot_be_written_leaves_nothing_behind(tmp_path, monkeypatch):
    with pytest.raises(ValueError, match="no type for 'c' of complex128"):
        write_safetensors(tmp_path / "m.safetensors", {"c": np.zeros(2, complex)})
    with pytest.raises(OSError):
        write_safetensors(tmp_path / "missing" / "m.safetensors", ARRAYS)
    path = tmp_path / "m.safetensors"
    write_safetensors(path, ARRAYS)
    before = path.read_bytes()

    def fail(*args):
        raise OSError("No space left on device")

    monkeypatch.setattr("safetensors.numpy.save_file", fail)
    with pytest.raises(OSError, match="space"):
        write_safetensors(path, {"other": np.zeros(3)})
    assert os.listdir(tmp_path) == ["m.safetensors"] and path.read_bytes() == before


def test_shards_index_and_folder_are_one_model(tmp_path):
    sharded(tmp_path, ARRAYS)
    for path in (tmp_path, tmp_path / "model.safetensors.index.json"):
        entries = open_safetensors(path)
        assert set(entries) == set(ARRAYS)
        for key, value in ARRAYS.items():
            np.testing.assert_array_equal(entries[key].read(), value)


def test_a_folder_with_one_file_is_that_file(tmp_path):
    save_file(ARRAYS, tmp_path / "weights.safetensors")
    assert set(open_safetensors(tmp_path)) == set(ARRAYS)
    save_file({"other": np.zeros(1)}, tmp_path / "more.safetensors")
    with pytest.raises(ValueError, match=r"several models .*'more\.safetensors'.*give the path"):
        open_safetensors(tmp_path)
    save_file({"preferred": np.zeros(1)}, tmp_path / "model.safetensors")
    assert set(open_safetensors(tmp_path)) == {"preferred"}


def test_shards_of_a_download_cache_may_be_symbolic_links(tmp_path):
    for folder in ("blobs", "snapshot"):
        (tmp_path / folder).mkdir()
    for i, file in enumerate(sorted(set(sharded(tmp_path / "snapshot", ARRAYS).values()))):
        os.replace(tmp_path / "snapshot" / file, tmp_path / "blobs" / str(i))
        (tmp_path / "snapshot" / file).symlink_to(f"../blobs/{i}")
    assert set(open_safetensors(tmp_path / "snapshot")) == set(ARRAYS)


def test_reading_allocates_one_array_and_no_more(tmp_path):
    import tracemalloc

    path = tmp_path / "m.safetensors"
    save_file({"a": np.ones((4, 2**20), np.float32), "b": np.ones(3, np.float32)}, path)
    tracemalloc.start()
    entries = open_safetensors(path)
    assert tracemalloc.get_traced_memory()[1] < 2**20  # the header alone
    tracemalloc.reset_peak()
    value = entries["a"].read()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert value.nbytes <= peak < 1.1 * value.nbytes


def header_of(path):
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    return json.loads(data[8 : 8 + length]), data[8 + length :]


def rewrite(path, header, data, length=None):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes((length or len(text)).to_bytes(8, "little") + text + data)


def refused(path, match):
    with pytest.raises(ValueError, match=match) as caught:
        open_safetensors(path)
    assert "\n" not in str(caught.value)


@pytest.fixture
def plain(tmp_path):
    path = tmp_path / "m.safetensors"
    save_file({"a": np.arange(4, dtype=np.float32), "b": np.arange(2, dtype=np.int64)}, path)
    return path


@pytest.mark.parametrize(
    "change, match",
    [
        (dict(dtype="F31"), "'b' has dtype 'F31', which is none of"),
        (dict(dtype=["F32"]), "has dtype"),
        (dict(shape=[3]), "has a shape that its size disagrees with"),
        (dict(shape=[-2]), "no whole numbers"),
        (dict(shape=[2.0]), "no whole numbers"),
        (dict(shape=[True, 2]), "no whole numbers"),
        (dict(shape="2"), "no whole numbers"),
        (dict(shape=[2**63, 2**63, 0]), "absurd shape"),
        (dict(shape=[1] * 40), "impossible shape"),
        (dict(data_offsets=[16, 16]), "disagrees"),
        (dict(data_offsets=[8, 24]), "'b' overlaps another"),
        (dict(data_offsets=[20, 36]), "'b' leaves a gap"),
        (dict(data_offsets=[16, 32, 32]), "no begin and end"),
        (dict(data_offsets=None), "no whole numbers"),
        (dict(more=1), "no dtype, shape and data_offsets"),
    ],
)
def test_a_lying_header_is_refused(plain, change, match):
    header, data = header_of(plain)
    b = next(k for k, v in header.items() if v["data_offsets"][0])
    header[b] = {**header[b], **change}
    # Whatever the library laid out first, the second tensor is the one that lies.
    header = {{b: "b"}.get(k, "a"): v for k, v in header.items()}
    rewrite(plain, header, data)
    refused(plain, match)


def test_headers_that_are_no_sane_json_are_refused(plain, monkeypatch):
    header, data = header_of(plain)
    text = json.dumps(header).encode()
    rewrite(plain, text[:-1] + b',"a":' + json.dumps(header["a"]).encode() + b"}", data)
    refused(plain, "a key stands there twice")
    rewrite(plain, b'{"a":' * 100_000, data)
    refused(plain, "header is broken: no JSON .nested too deeply")
    rewrite(plain, b'{"a": NaN}', data)
    refused(plain, "NaN is no number of JSON")
    rewrite(plain, b'{"a": "\xff"}', data)
    refused(plain, "header is broken")
    rewrite(plain, b'{"a": ' + b"9" * 5000 + b"}", data)
    refused(plain, "header is broken")
    rewrite(plain, {**header, "__metadata__": {"x": 1}}, data)
    refused(plain, "metadata that is no text")
    rewrite(plain, {**header, "a\n\x1b[31m": header["a"]}, data)
    refused(plain, r"'a\\n\\x1b\[31m' has the name .* no name of a weight")
    rewrite(plain, header, data[:-1])
    refused(plain, "is truncated")
    rewrite(plain, header, data + b"x")
    refused(plain, "has bytes of no tensor")
    rewrite(plain, header, data, length=2**63)
    refused(plain, "is truncated")
    plain.write_bytes(b"\x09" + bytes(7) + b"{")
    refused(plain, "is truncated")
    plain.write_bytes(b"")
    refused(plain, "is no safetensors file")
    monkeypatch.setattr(safetensors_file, "MAX_HEADER", 10)
    rewrite(plain, header, data)
    refused(plain, "which no model needs")


def test_a_file_cut_after_it_was_opened_is_an_error_and_no_garbage(plain):
    entries = open_safetensors(plain)
    os.truncate(plain, plain.stat().st_size - 20)
    with pytest.raises(ValueError, match="was cut short"):
        for entry in entries.values():
            entry.read()


@pytest.mark.parametrize(
    "shard",
    [
        "../outside.safetensors",
        "/etc/passwd",
        "sub/b.safetensors",
        "..\\b.safetensors",
        ".safetensors",
        "..safetensors",
        "b.bin",
        "b.safetensors\n",
        7,
        None,
        {},
    ],
)
def test_a_shard_is_a_file_beside_the_index(tmp_path, shard):
    owners = sharded(tmp_path, ARRAYS)
    save_file(ARRAYS, tmp_path.parent / "outside.safetensors")
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {**owners, "count": shard}}))
    refused(index, "a shard must be a .safetensors file beside the index")


def test_shards_and_index_that_disagree_are_refused(tmp_path):
    owners = sharded(tmp_path, ARRAYS)
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {**owners, "nowhere": "b.safetensors"}}))
    refused(index, "lists 1 tensors that its shards lack, such as 'nowhere'")
    index.write_text(json.dumps({"weight_map": {k: v for k, v in owners.items() if k != "mask"}}))
    refused(index, "holds 'mask', which the index has in no file")
    save_file(ARRAYS, tmp_path / "b.safetensors")  # every tensor, half of them a second time
    index.write_text(json.dumps({"weight_map": owners}))
    refused(index, "which the index has in model-00001-of-00002.safetensors")
    (tmp_path / "b.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match=r"b\.safetensors does not exist"):
        open_safetensors(index)
    for text in ("{}", '{"weight_map": []}', '{"weight_map": {}}'):
        index.write_text(text)
        refused(index, "is no index of shards")
    for text in ("{", '{"weight_map": ' + '{"a":' * 100_000):
        index.write_text(text)
        refused(index, "is broken: no JSON")
