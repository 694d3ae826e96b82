"""HDF5 weights are read as h5py reads them, and everything but plain arrays is refused."""

import os

import h5py
import ml_dtypes
import numpy as np
import pytest

from keras_vit.zoo.formats import hdf5_file
from keras_vit.zoo.formats.hdf5_file import open_hdf5

RNG = np.random.default_rng(0)
MATRIX = RNG.normal(size=(41, 23)).astype(np.float32)


def refused(path, match):
    with pytest.raises(ValueError, match=match) as caught:
        open_hdf5(path)
    assert "\n" not in str(caught.value)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "m.weights.h5"


@pytest.mark.parametrize("options", [{}, {"libver": "latest"}, {"userblock_size": 1024}], ids=str)
def test_every_plain_array_is_read_as_h5py_reads_it(path, options):
    with h5py.File(path, "w", **options) as file:
        # As Keras writes: groups that keep their order, more links than fit into a group's header.
        for i in range(20):
            group = file.create_group(f"layers/dense_{i}/vars", track_order=True)
            group["0"], group["1"] = MATRIX + i, MATRIX[0].astype(np.float16)
        file["big"] = MATRIX.astype(">f8")
        file["whole"] = np.arange(5, dtype=np.uint32)
        file["mask"] = np.array([True, False])
        file["scalar"] = np.float32(3)
        file["empty"] = np.zeros((0, 4))
        for name, chosen in (
            ("gzip", dict(compression="gzip", shuffle=True, chunks=(7, 11))),
            ("gzip_alone", dict(compression="gzip", compression_opts=9)),
            ("shuffle", dict(shuffle=True, chunks=(41, 1))),
            ("pieces", dict(chunks=(10, 10), maxshape=(None, None))),
        ):
            file.create_dataset(f"packed/{name}", data=MATRIX, **chosen)
        small = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        small.set_layout(h5py.h5d.COMPACT)
        space = h5py.h5s.create_simple((23,))
        compact = h5py.h5d.create(file.id, b"compact", h5py.h5t.IEEE_F32LE, space, small)
        compact.write(h5py.h5s.ALL, h5py.h5s.ALL, MATRIX[0].copy())
    entries, seen = open_hdf5(path), []
    with h5py.File(path) as file:
        file.visititems(lambda name, item: seen.append(name) if hasattr(item, "shape") else None)
        assert sorted(seen) == sorted(entries) and len(seen) == 50
        for name, entry in entries.items():
            expected = file[name][()]
            assert entry.shape == expected.shape
            value = entry.read()
            assert value.shape == expected.shape and value.dtype.isnative
            assert value.dtype.itemsize == max(expected.dtype.itemsize, 4) or name in ("mask",)
            np.testing.assert_array_equal(value, expected)


def test_bfloat16_as_keras_stores_it(path):
    values = np.array([1.0, -2.5, 3.140625], np.float32)
    with h5py.File(path, "w") as file:
        file["v"] = values.astype(ml_dtypes.bfloat16)
    assert open_hdf5(path)["v"].dtype == np.dtype("V2")
    np.testing.assert_array_equal(open_hdf5(path)["v"].read(), values)


def test_reading_needs_no_hdf5_after_opening(path, monkeypatch):
    with h5py.File(path, "w") as file:
        file["a"] = MATRIX
        file.create_dataset("b", data=MATRIX, compression="gzip", chunks=(8, 8))
    entries = open_hdf5(path)
    monkeypatch.setattr(h5py, "File", None)
    for entry in entries.values():
        np.testing.assert_array_equal(entry.read(), MATRIX)


def test_links_are_refused(tmp_path, path):
    with h5py.File(tmp_path / "other.h5", "w") as file:
        file["secret"] = MATRIX
    for link in (h5py.ExternalLink("other.h5", "/secret"), h5py.SoftLink("/elsewhere")):
        with h5py.File(path, "w") as file:
            file["layers/dense/vars/0"] = MATRIX
            file["layers/dense/vars/1"] = link
        refused(path, "has a link at 'layers/dense/vars/1', which can point outside")


def test_data_outside_of_the_file_is_refused(tmp_path, path):
    (tmp_path / "raw").write_bytes(MATRIX.tobytes())
    with h5py.File(path, "w") as file:
        external = [(str(tmp_path / "raw"), 0, MATRIX.nbytes)]
        file.create_dataset("v", (41, 23), "f4", external=external)
    refused(path, "'v' has its data outside of the file")
    with h5py.File(tmp_path / "other.h5", "w") as file:
        file["v"] = MATRIX
    layout = h5py.VirtualLayout((41, 23), "f4")
    layout[...] = h5py.VirtualSource(tmp_path / "other.h5", "v", shape=(41, 23))
    with h5py.File(path, "w") as file:
        file.create_virtual_dataset("v", layout)
    refused(path, "'v' has its data outside of the file")


@pytest.mark.parametrize(
    "options, number",
    [
        (dict(compression="lzf"), h5py.h5z.FILTER_LZF),
        (dict(fletcher32=True), h5py.h5z.FILTER_FLETCHER32),
        (dict(scaleoffset=3), h5py.h5z.FILTER_SCALEOFFSET),
    ],
)
def test_filters_other_than_gzip_and_shuffle_are_refused(path, options, number):
    with h5py.File(path, "w") as file:
        file.create_dataset("v", data=MATRIX, **options)
    refused(path, f"'v' is packed by the HDF5 filter {number}; known are gzip and shuffle")


def test_a_filter_that_would_load_a_plug_in_is_refused(path):
    with h5py.File(path, "w") as file:
        properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        properties.set_chunk((4,))
        # 32015 is Zstandard's number, optional so that HDF5 lets a file be made without it.
        properties.set_filter(32015, h5py.h5z.FLAG_OPTIONAL, (1,))
        space = h5py.h5s.create_simple((4,))
        h5py.h5d.create(file.id, b"v", h5py.h5t.IEEE_F32LE, space, properties)
    refused(path, "'v' is packed by the HDF5 filter 32015")


@pytest.mark.parametrize(
    "make, match",
    [
        (lambda f: f.create_dataset("v", data="text"), "holds objects instead of numbers"),
        (lambda f: f.create_dataset("v", (1,), h5py.ref_dtype), "holds objects instead"),
        (lambda f: f.create_dataset("v", (1,), h5py.vlen_dtype("f4")), "holds objects instead"),
        (lambda f: f.create_dataset("v", (1,), [("a", "f4")]), "holds records instead"),
        (lambda f: f.create_dataset("v", (1,), "c8"), "holds complex64 values instead"),
        (lambda f: f.create_dataset("v", (1,), "V7"), "holds void56 values instead"),
        (lambda f: f.create_dataset("v", data=h5py.Empty("f4")), "holds nothing"),
        (lambda f: f.create_dataset("v", (9,), "f4"), "shape that its size disagrees with"),
        (lambda f: f.create_dataset("v", (9,), "f4", chunks=(4,)), "lacks some of its pieces"),
        (lambda f: f.create_dataset("v", (2**40,) * 3, "f4"), "absurd shape"),
        (lambda f: f.create_dataset("v", (3, 2**62), "f4", chunks=(1, 1)), "absurd shape"),
        (
            lambda f: f.create_dataset(
                "v", data=np.zeros(9, "f4"), chunks=(2**24,), maxshape=(None,)
            ),
            "pieces larger than itself",
        ),
        (
            lambda f: f.create_dataset("a\nb", data=1),
            r"'a\\nb' has the name .* no name of a weight",
        ),
        (lambda f: f.__setitem__("type", np.dtype("f4")), "no array at 'type'"),
    ],
)
def test_what_is_no_plain_array_is_refused(path, make, match):
    with h5py.File(path, "w") as file:
        make(file)
    refused(path, match)


def test_numbers_of_an_unusual_layout_are_refused(path):
    with h5py.File(path, "w") as file:
        odd = h5py.h5t.IEEE_F32LE.copy()
        odd.set_ebias(100)
        h5py.h5d.create(file.id, b"v", odd, h5py.h5s.create_simple((4,)))
    refused(path, "'v' holds numbers of an unusual layout")


def test_groups_without_end_are_refused(path, monkeypatch):
    with h5py.File(path, "w") as file:
        file["a/b/v"] = MATRIX
        file["a/b/c"] = file["a"]  # a hard link makes a loop
    refused(path, "a group in two places, 'a/b/c'")
    with h5py.File(path, "w") as file:
        file["/".join("d" * 80)] = MATRIX
    refused(path, "nests groups without end")
    monkeypatch.setattr(hdf5_file, "MAX_ARRAYS", 5)
    with h5py.File(path, "w") as file:
        for i in range(6):
            file[f"v{i}"] = 1.0
    refused(path, "more than 5 arrays")


def test_one_block_of_bytes_is_not_many_arrays(path):
    with h5py.File(path, "w") as file:
        file["v"] = np.zeros(2**20, np.float32)
        for i in range(3):
            file[f"again{i}"] = file["v"]
    refused(path, "has arrays in the same place")


def test_a_bomb_is_refused_before_it_is_unpacked(path):
    with h5py.File(path, "w") as file:
        # 128 MiB of zeros in 130 KB.
        file.create_dataset(
            "v", data=np.zeros(2**25, np.float32), compression="gzip", chunks=(2**22,)
        )
    assert path.stat().st_size < 2**18
    refused(path, "claims to unpack to 134217728, which no weights do")


def test_a_piece_that_unpacks_to_more_than_it_should_is_refused(path):
    import tracemalloc
    import zlib

    with h5py.File(path, "w") as file:
        made = file.create_dataset("v", (1000,), "f4", chunks=(1000,), compression="gzip")
        made.id.write_direct_chunk((0,), zlib.compress(bytes(2**27)))
    entry = open_hdf5(path)["v"]
    tracemalloc.start()
    with pytest.raises(ValueError, match=r"is damaged at 'v' \(compression\)"):
        entry.read()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2**20  # of 128 MiB


@pytest.mark.parametrize("written", [b"no deflate stream", b"x\x9c\x03\x00\x00\x00\x00\x01"])
def test_pieces_that_are_damaged_are_refused(path, written):
    with h5py.File(path, "w") as file:
        made = file.create_dataset("v", (1000,), "f4", chunks=(1000,), compression="gzip")
        made.id.write_direct_chunk((0,), written)
    with pytest.raises(ValueError, match="is damaged at 'v'"):
        open_hdf5(path)["v"].read()


def test_files_that_are_no_hdf5_or_cut_are_refused(path):
    path.write_text("404 Not Found")
    refused(path, "is no HDF5 file")
    path.write_bytes(b"")
    refused(path, "is no HDF5 file")
    with h5py.File(path, "w") as file:
        file["v"] = MATRIX
    os.truncate(path, path.stat().st_size - 100)
    refused(path, "is truncated: fetch it again")
    with pytest.raises(FileNotFoundError, match="does not exist"):
        open_hdf5(path.with_name("missing.h5"))


def test_a_file_cut_after_it_was_opened_is_an_error_and_no_garbage(path):
    with h5py.File(path, "w") as file:
        file["v"] = MATRIX
    entry = open_hdf5(path)["v"]
    os.truncate(path, path.stat().st_size - 100)
    with pytest.raises(ValueError, match="was cut short at 'v'"):
        entry.read()
