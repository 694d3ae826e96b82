"""npz files: what NumPy writes is read as NumPy reads it, and what lies is refused in one sentence."""

import io
import os
import struct
import tracemalloc
import warnings
import zipfile
import zlib

import numpy as np
import pytest

from keras_vit.zoo.formats import archive
from keras_vit.zoo.formats.npz import open_npz

RNG = np.random.default_rng(0)
ARRAYS = {
    "Transformer/encoderblock_0/kernel": RNG.normal(size=(5, 7)).astype(np.float32),
    "fortran": np.asfortranarray(RNG.normal(size=(3, 4, 2))),
    "big": np.arange(6, dtype=">f4").reshape(2, 3),
    "half": RNG.normal(size=9).astype(np.float16),
    "count": np.array(7, np.int16),
    "mask": np.array([[True], [False]]),
    "text": np.array('{"model": "vit"}'),
    "empty": np.zeros((0, 3), np.float32),
}


def npy(array, header=None):
    buffer = io.BytesIO()
    np.lib.format.write_array(buffer, np.asarray(array), version=(1, 0))
    data = buffer.getvalue()
    if header is None:
        return data
    size = int.from_bytes(data[8:10], "little")
    return data[:8] + len(header).to_bytes(2, "little") + header + data[10 + size :]


def archive_of(path, members, **options):
    """A zip of (name, bytes), names twice if asked for."""
    with warnings.catch_warnings(), zipfile.ZipFile(path, "w", **options) as file:
        warnings.simplefilter("ignore")  # of names that stand twice
        for name, data in members:
            file.writestr(name, data)
    return path


def refused(path, match, **options):
    with pytest.raises(ValueError, match=match) as caught:
        for entry in open_npz(path, **options).values():
            entry.read()
    assert "\n" not in str(caught.value) and str(path) in str(caught.value)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "w.npz"


@pytest.mark.parametrize("verify", [True, False])
@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_what_numpy_writes_is_read_as_numpy_reads_it(path, save, verify):
    save(path, **ARRAYS)
    entries = open_npz(path, verify=verify)
    assert list(entries) == list(ARRAYS)
    for key, expected in ARRAYS.items():
        value = entries[key].read()
        assert entries[key].shape == expected.shape and entries[key].dtype == expected.dtype
        assert value.dtype == (np.float32 if key == "half" else expected.dtype.newbyteorder("="))
        np.testing.assert_array_equal(value, expected)


def test_zip64_prefix_and_later_versions_of_headers(path):
    with zipfile.ZipFile(path, "w") as file:
        for key, array in ARRAYS.items():
            with file.open(f"{key}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, array, version=(3, 0))
    # Something in front, as self-extracting archives have: every offset is shifted.
    path.write_bytes(b"#!/bin/sh\n" * 50 + path.read_bytes())
    for key, entry in open_npz(path).items():
        np.testing.assert_array_equal(entry.read(), ARRAYS[key])


@pytest.mark.parametrize(
    "header",
    [
        b"{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }          \n",
        b"{'shape': (2,3), 'fortran_order': False, 'descr': '<f4'}",
        b"{'descr':'=f4','fortran_order':False,'shape':(2, 3,)}\n",
    ],
)
def test_headers_of_other_writers(path, header):
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    archive_of(path, [("a.npy", npy(array, header))])
    np.testing.assert_array_equal(open_npz(path)["a"].read(), array)


@pytest.mark.parametrize(
    "header, match",
    [
        (
            b"{'descr': '|O', 'fortran_order': False, 'shape': (2, 3)}",
            "pickled objects, which can run",
        ),
        (
            b"{'descr': 'O', 'fortran_order': False, 'shape': (2, 3)}",
            "pickled objects, which can run",
        ),
        (b"{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (6,)}", "no plain array"),
        (b"{'descr': '<f4', 'fortran_order': False, 'shape': (2, 4)}", "its size disagrees with"),
        (b"{'descr': '<f8', 'fortran_order': False, 'shape': (2, 3)}", "its size disagrees with"),
        (b"{'descr': '<f4', 'fortran_order': False, 'shape': (-2, -3)}", "no plain array"),
        (b"{'descr': '<f4', 'fortran_order': False, 'shape': (0, %d)}" % 10**18, "absurd shape"),
        (
            b"{'descr': '<f4', 'fortran_order': False, 'shape': (%s)}" % (b"1," * 40),
            "impossible shape",
        ),
        (b"{'descr': '<f3', 'fortran_order': False, 'shape': (2, 3)}", "unknown type '<f3'"),
        (b"{'descr': '<U0', 'fortran_order': False, 'shape': (2, 3)}", "unknown type '<U0'"),
        (b"{'descr': '<M8', 'fortran_order': False, 'shape': (3,)}", "unknown type '<M8'"),
        (b"{'descr': 'f4,f4', 'fortran_order': False, 'shape': (3,)}", "unknown type"),
        (b"{'descr': '<f4', 'fortran_order': 0, 'shape': (2, 3)}", "no plain array"),
        (b"{'descr': '<f4', 'shape': (2, 3)}", "no plain array"),
        (b"{'descr': '<f4', 'descr': '<f4', 'shape': (2, 3)}", "no plain array"),
        (b"{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), 'x': (1,)}", "no plain array"),
        (b"__import__('os').abort()", "no plain array"),
        (b"{'descr': " + b"(" * 5000, "no plain array"),
        (b"{'descr':" + b" " * 9000, "no plain array"),
        (b"{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3)}" + b" " * 10_000, "too long"),
    ],
)
def test_headers_that_lie_are_refused(path, header, match):
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    archive_of(path, [("good.npy", npy(array)), ("bad.npy", npy(array, header))])
    refused(path, f"'bad' .*{match}")


def test_members_that_are_no_arrays(path):
    archive_of(path, [("a.npy", b"\x93NUMPX\x01\x00" + bytes(20))])
    refused(path, "'a' is no array")
    archive_of(path, [("a.npy", b"\x93NUMPY\x09\x00" + bytes(20))])
    refused(path, "unknown version")
    archive_of(path, [("a.npy", b"")])
    refused(path, "'a' is no array")
    archive_of(path, [("archive/data.pkl", b"\x80\x02.")])
    refused(path, "is a zip archive without arrays")


def test_a_pickle_is_not_run(path, tmp_path):
    class Bomb:
        def __reduce__(self):
            return (os.mkdir, (str(tmp_path / "ran"),))

    np.savez(path, allow_pickle=True, w=np.array([Bomb()], dtype=object))
    refused(path, "pickled objects")
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    "name", ["../a.npy", "x/../../a.npy", "/a.npy", "..\\a.npy", "C:/a.npy", "C:\\a.npy"]
)
def test_names_that_are_paths_are_refused(path, name):
    archive_of(path, [("good.npy", npy(1.0)), (name, npy(1.0))])
    refused(path, "has a member .*: refused")


def test_names_that_would_garble_a_message_are_refused(path):
    for name in ("a\nb.npy", "\x1b[2Ja.npy", ".npy", "x" * 2000 + ".npy"):
        archive_of(path, [(name, npy(1.0))])
        refused(path, "which is no name of a weight")


def test_a_name_that_stands_twice_is_refused(path):
    archive_of(path, [("a.npy", npy(1.0)), ("a.npy", npy(2.0))])
    refused(path, r"has two members 'a\.npy'")


def test_encrypted_and_unusual_packing_is_refused(path):
    archive_of(path, [("a.npy", npy(1.0))])
    data = bytearray(path.read_bytes())
    data[data.index(b"PK\x01\x02") + 8] |= 1
    path.write_bytes(data)
    refused(path, "is encrypted at")
    for method in (zipfile.ZIP_LZMA, zipfile.ZIP_BZIP2):
        archive_of(path, [("a.npy", npy(np.zeros(99)))], compression=method)
        refused(path, "is packed in an unusual way")


def test_the_table_and_the_members_must_agree(path):
    array = npy(np.arange(6, dtype=np.float32))
    archive_of(path, [("a.npy", array), ("b.npy", array)])
    whole = path.read_bytes()
    table = whole.index(b"PK\x01\x02")

    def changed(at, value):
        path.write_bytes(whole[:at] + value + whole[at + len(value) :])

    changed(whole.index(b"a.npy"), b"c.npy")
    refused(path, "two headers that differ")
    changed(0, b"PK\x03\x05")
    refused(path, "no header in its place")
    changed(8, b"\x08")
    refused(path, "two headers that differ")
    changed(table + 24, struct.pack("<I", len(array) - 4))
    refused(path, "an impossible size")
    changed(table + 20, struct.pack("<II", 10**6, 10**6))
    refused(path, "reaches beyond the archive")
    second = whole.index(b"PK\x01\x02", table + 4)
    changed(second + 42, bytes(4))  # the second member is the first one again
    refused(path, "two headers that differ")
    path.write_bytes(whole.replace(b"b.npy", b"a.npx"))
    assert list(open_npz(path)) == ["a"]


def test_members_that_share_bytes_are_refused(path):
    inner = io.BytesIO()
    archive_of(inner, [("b.npy", npy(1.0))])
    local = inner.getvalue()[: inner.getvalue().index(b"PK\x01\x02")]
    # An array whose values are a whole member; the table lists that member a second time.
    archive_of(path, [("a.npy", npy(np.frombuffer(local, np.uint8))), ("b.npy", npy(1.0))])
    whole = path.read_bytes()
    record = whole.index(b"PK\x01\x02", whole.index(b"PK\x01\x02") + 4)
    place = struct.pack("<I", whole.index(local))
    path.write_bytes(whole[: record + 42] + place + whole[record + 46 :])
    refused(path, "members that overlap")


@pytest.mark.parametrize("verify", [True, False])
@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_every_damaged_byte_of_values_is_noticed(path, save, verify):
    save(path, a=RNG.normal(size=64).astype(np.float32))
    whole = path.read_bytes()
    start = 30 + sum(struct.unpack_from("<HH", whole, 26))  # after the name and what follows it
    for at in range(start, whole.index(b"PK\x01\x02"), 7):
        flipped = bytearray(whole)
        flipped[at] ^= 0x10
        path.write_bytes(flipped)
        refused(path, "damaged|broken", verify=verify)


def test_without_verifying_damage_is_noticed_when_the_array_is_read(path):
    np.savez(path, good=np.ones(9), bad=np.full(9, 2.0))
    data = path.read_bytes()
    path.write_bytes(data.replace(np.full(9, 2.0).tobytes(), np.full(9, 2.5).tobytes()))
    with pytest.raises(ValueError, match=r"is damaged at 'bad\.npy' \(checksum\): fetch it again"):
        open_npz(path)
    entries = open_npz(path, verify=False)
    np.testing.assert_array_equal(entries["good"].read(), np.ones(9))
    with pytest.raises(ValueError, match=r"is damaged at 'bad\.npy' \(checksum\): fetch it again"):
        entries["bad"].read()


def test_every_truncation_is_refused(path):
    np.savez(path, a=np.arange(10.0), b=np.ones(3))
    whole = path.read_bytes()
    for size in range(0, len(whole), 13):
        path.write_bytes(whole[:size])
        refused(path, "truncated|not an npz file|broken table")


def test_a_file_cut_after_it_was_opened_is_an_error_and_no_garbage(path):
    np.savez(path, a=np.arange(1000.0))
    entry = open_npz(path)["a"]
    os.truncate(path, 5000)
    with pytest.raises(ValueError, match="was cut short at 'a'"):
        entry.read()
    np.savez_compressed(path, a=RNG.normal(size=1000))
    entry = open_npz(path)["a"]
    os.truncate(path, 5000)
    with pytest.raises(ValueError, match=r"damaged at 'a\.npy' \(it ends early\)"):
        entry.read()


def test_bombs_are_refused_without_unpacking_them(path):
    header = npy(np.zeros(2**27, np.uint8))[:128]  # 128 MiB of zeros, in 130 KB
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        with file.open("a.npy", "w") as member:
            member.write(header)
            for _ in range(128):
                member.write(bytes(2**20))
    assert path.stat().st_size < 2**18
    tracemalloc.start()
    refused(path, "claims to unpack to 134217856, which no weights do")
    # A table that says less than what is inside: reading stops where the table says.
    whole = bytearray(path.read_bytes())
    record = whole.index(b"PK\x01\x02")
    small = npy(np.zeros(6, np.float32))
    whole[record + 24 : record + 28] = struct.pack("<I", len(small))
    path.write_bytes(whole)
    refused(path, "shape that its size disagrees with|longer than it says")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2**22


def test_a_table_of_absurd_size_is_refused(path, monkeypatch):
    archive_of(path, [(f"{i}.npy", npy(1.0)) for i in range(20)])
    monkeypatch.setattr(archive, "MAX_ARRAYS", 19)
    refused(path, "has 20 members, more than 19")
    monkeypatch.setattr(archive, "MAX_TABLE", 1000)
    refused(path, "broken table of members .its table of members is too large")


def test_reading_allocates_one_array_and_no_more(path):
    for save in (np.savez, np.savez_compressed):
        save(path, a=RNG.normal(size=2**20).astype(np.float32), b=np.ones(3))
        tracemalloc.start()
        entries = open_npz(path)
        assert tracemalloc.get_traced_memory()[1] < 2**21  # headers and one buffer
        tracemalloc.reset_peak()
        value = entries["a"].read()
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert value.nbytes <= peak < 1.3 * value.nbytes


def test_the_checksum_covers_header_and_values(path):
    array = npy(np.arange(3.0))
    archive_of(path, [("a.npy", array)])
    whole = path.read_bytes()
    wrong = struct.pack("<I", zlib.crc32(array) ^ 1)
    path.write_bytes(whole.replace(struct.pack("<I", zlib.crc32(array)), wrong))
    refused(path, "checksum")
    refused(path, "checksum", verify=False)
