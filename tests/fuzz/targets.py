"""What is fuzzed: for each kind of file its reader, small real files to begin with, and a mutator.

A mutator knows the format: it edits one thing and repairs what would hide the edit behind an early
refusal (a length, a checksum), so that the fuzzer gets past the front door.
"""

import dataclasses
import io
import json
import random
import re
import struct
import warnings
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

import h5py
import ml_dtypes
import numpy as np
from PIL import Image
from safetensors.numpy import save

from keras_vit.data import images
from keras_vit.zoo import cards
from keras_vit.zoo.formats.detect import what_is
from keras_vit.zoo.formats.hdf5_file import open_hdf5
from keras_vit.zoo.formats.npz import open_npz
from keras_vit.zoo.formats.safetensors_file import open_safetensors

ARRAYS = {
    "Transformer/encoderblock_0/LayerNorm_0/scale": np.ones(3, np.float32),
    "cls": np.arange(4, dtype=np.float16).reshape(1, 1, 4),
    "head/kernel": np.zeros((4, 5), np.float32),
}
NUMBERS = (0, 1, 2, 7, 127, 128, 255, 256, 2**15, 2**16 - 1, 2**16, 2**31 - 1, 2**31, 2**32 - 1)
NUMBERS += (2**32, 2**40, 2**62, 2**63 - 1, 2**63, 2**64 - 1)
MAX_PIXELS = 10**6  # in place of 179 million, so that memory shows what is not bounded by it

Mutator = Callable[[bytes, random.Random, Callable[[bytes], bytes]], bytes]


@dataclasses.dataclass(frozen=True)
class Target:
    """One kind of file.

    Attributes:
        read: opens a file and reads all of it.
        seeds: gives small valid files.
        mutate: (file, random numbers, general mutator) -> another file.
        name: of the file that is written, in a folder of its own.
    """

    read: Callable[[Path], None]
    seeds: Callable[[], list[bytes]]
    mutate: Mutator
    name: str


def read_all(opener: Callable) -> Callable[[Path], None]:
    """Reads every entry and checks that it is what the entry said."""

    def read(path: Path) -> None:
        for key, entry in opener(path).items():
            value = entry.read()
            if value.shape != entry.shape or not isinstance(key, str):
                raise RuntimeError(f"{key!r} of {entry.shape} was read as {value.shape}")
            if value.dtype.itemsize < entry.dtype.itemsize or not value.dtype.isnative:
                raise RuntimeError(f"{key!r} of {entry.dtype} was read as {value.dtype}")

    return read


def read_npz(path: Path) -> None:
    what_of(path)
    lazy = ()
    try:
        lazy = open_npz(path, verify=False)
    finally:
        # Whatever is refused without checksums is refused with them, by the same sentence.
        if not lazy:
            open_npz(path)
    read_all(lambda p: lazy)(path)
    read_all(open_npz)(path)


def read_hdf5(path: Path) -> None:
    what_of(path)
    read_all(open_hdf5)(path)


def read_safetensors(path: Path) -> None:
    what_of(path)
    read_all(open_safetensors)(path)


def what_of(path: Path) -> None:
    """The container, which may be refused: the reader is called all the same."""
    try:
        what_is(path)
    except ValueError as error:
        if type(error) is not ValueError or "\n" in str(error):
            raise


def read_cards(path: Path) -> None:
    for card in cards.read_table(cards._text(path), str(path)):
        cards.card_spec(card)


def read_images(path: Path) -> None:
    images.MAX_PIXELS = MAX_PIXELS
    problem = images.problem_of(path)
    if problem is not None and ("\n" in problem or str(path) not in problem):
        raise RuntimeError(f"a problem that is no sentence: {problem!r}")
    for channels in (3, 1):
        array = images.read_image(path, channels)
        if array.dtype != np.uint8 or array.ndim != 3 or array.shape[-1] != channels:
            raise RuntimeError(f"an image became {array.dtype} {array.shape}")


# -- npz -----------------------------------------------------------------------------------------


def seeds_npz() -> list[bytes]:
    found = []
    for write in (np.savez, np.savez_compressed):
        for arrays in (
            ARRAYS,
            {"f": np.asfortranarray(np.arange(6.0).reshape(2, 3)), "i": np.int64(3)},
            {"b": np.ones(2, ml_dtypes.bfloat16), "s": np.array("text"), "e": np.zeros((0, 2))},
        ):
            write(buffer := io.BytesIO(), **arrays)
            found.append(buffer.getvalue())
    return found


def mutate_npz(data: bytes, rng: random.Random, general: Callable[[bytes], bytes]) -> bytes:
    if rng.random() < 0.3:  # one field of one record of the table
        places = [
            m.start() for m in re.finditer(rb"PK(\x01\x02|\x03\x04|\x05\x06|\x06[\x06\x07])", data)
        ]
        return number_at(data, rng.choice(places) + rng.randrange(4, 46), rng)
    with warnings.catch_warnings(), zipfile.ZipFile(io.BytesIO(data)) as archive:
        warnings.simplefilter("ignore")
        members = [[info.filename, archive.read(info)] for info in archive.infolist()]
        chosen = rng.choice(members)
        edit = rng.randrange(4)
        if edit == 0:
            chosen[0] = general(chosen[0].encode()).decode("latin-1")
        elif edit == 1:
            chosen[1] = general(chosen[1])
        elif edit == 2:
            members.append(chosen)
        else:  # the text of an array's header, at its length
            size = int.from_bytes(chosen[1][8:10], "little")
            text = (
                general(chosen[1][10 : 10 + size])
                if rng.random() < 0.5
                else number_in(chosen[1][10 : 10 + size], rng)
            )
            chosen[1] = (
                chosen[1][:8]
                + struct.pack("<H", len(text) & 0xFFFF)
                + text
                + chosen[1][10 + size :]
            )
        method = rng.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED))
        with zipfile.ZipFile(buffer := io.BytesIO(), "w", method) as written:
            for name, content in members:
                written.writestr(name, content)
    return buffer.getvalue()


# -- safetensors ---------------------------------------------------------------------------------

SHARDS = {"a.safetensors": {"a": np.ones(2, np.float32)}, "b.safetensors": {"b": np.zeros(3)}}


def seeds_safetensors() -> list[bytes]:
    arrays = {k: v for k, v in ARRAYS.items()}
    arrays |= {"m": np.array([True]), "e": np.zeros((0, 2)), "h": np.ones(2, ml_dtypes.bfloat16)}
    index = {"weight_map": {"a": "a.safetensors", "b": "b.safetensors"}}
    return [save(ARRAYS, {"format": "pt"}), save(arrays), json.dumps(index).encode()]


def mutate_safetensors(data: bytes, rng: random.Random, general: Callable[[bytes], bytes]) -> bytes:
    if data[:1] == b"{":
        return mutated_json(data, rng, general)
    size = int.from_bytes(data[:8], "little")
    header = mutated_json(data[8 : 8 + size], rng, general)
    return struct.pack("<Q", len(header)) + header + data[8 + size :]


def mutated_json(text: bytes, rng: random.Random, general: Callable[[bytes], bytes]) -> bytes:
    edit = rng.randrange(3)
    if edit == 0:
        return general(text)
    if edit == 1:
        return number_in(text, rng)
    value = json.loads(text)
    parent, key = rng.choice(list(places_of(value)))
    parent[key] = "place"
    new = rng.choice(VALUES)
    return json.dumps(value).encode().replace(b'"place"', new, 1)


VALUES = (b"null", b"true", b"-1", b"0.5", b"1e999", b'""', b'"F16"', b'"../x"', b'"a\\n"')
VALUES += (
    b"[]",
    b"{}",
    b"[1]",
    b"[" * 3000,
    b'{"a":' * 3000,
    b"9" * 5000,
    b"[" + b"1," * 50 + b"1]",
)


def places_of(value):
    """(container, key) of everything inside a JSON value."""
    if isinstance(value, (dict, list)):
        for key in value if isinstance(value, dict) else range(len(value)):
            yield value, key
            yield from places_of(value[key])


# -- HDF5 ----------------------------------------------------------------------------------------


def seeds_hdf5() -> list[bytes]:
    found = []
    for options in ({}, {"libver": "latest"}, {"userblock_size": 512}):
        with h5py.File(buffer := io.BytesIO(), "w", **options) as file:
            for i in range(2):
                group = file.create_group(f"layers/dense_{i}/vars", track_order=True)
                group["0"], group["1"] = np.ones((2, 3), np.float32), np.ones(3, np.float16)
            file["optimizer/vars/0"] = np.int64(3)
        found.append(buffer.getvalue())
    for options in ({}, dict(compression="gzip", shuffle=True)):
        with h5py.File(buffer := io.BytesIO(), "w") as file:
            file.create_dataset("v", data=np.arange(60.0).reshape(6, 10), chunks=(4, 4), **options)
            file["b"] = np.ones(2, ml_dtypes.bfloat16)
        found.append(buffer.getvalue())
    # And what KerasHub wrote, where it is small.
    real = sorted((Path(__file__).parents[1] / "oracles" / "keras_hub").rglob("*.h5"))
    return [*found, *(p.read_bytes() for p in real if p.stat().st_size < 2**15)]


def mutate_hdf5(data: bytes, rng: random.Random, general: Callable[[bytes], bytes]) -> bytes:
    for _ in range(rng.choice((1, 1, 2, 4))):
        data = number_at(data, rng.randrange(len(data)), rng, rng.choice((1, 2, 4, 8)))
    return data


# -- cards ---------------------------------------------------------------------------------------


def seeds_cards() -> list[bytes]:
    """Tables of three shipped rows each."""
    found = []
    for path in sorted(Path(cards.__file__).parent.glob("*.toml")):
        head, *rows = re.split(r"(?m)^(?=\[\[card\]\])", path.read_text("utf-8"))
        found.append((head + "".join(rows[:3])).encode())
        found.append("".join([head, *rows[-2:]]).encode())
    return found


def mutate_cards(data: bytes, rng: random.Random, general: Callable[[bytes], bytes]) -> bytes:
    lines = data.splitlines(keepends=True)
    i = rng.randrange(len(lines))
    edit = rng.randrange(5)
    if edit == 0:
        lines[i] = number_in(lines[i], rng)
    elif edit == 1:
        lines[i] = general(lines[i].rstrip()) + b"\n"
    elif edit == 2:
        lines.insert(rng.randrange(len(lines)), lines[i])
    elif edit == 3:
        del lines[i]
    else:
        key = lines[i].split(b"=")[0]
        value = rng.choice(TOML_VALUES)
        lines[i] = key + b"= " + value + b"\n"
    return b"".join(lines)


TOML_VALUES = (b"1", b"-1", b"true", b'""', b'"../x"', b'"a\\nb"', b"[]", b"{}", b"[[[1]]]", b"nan")
TOML_VALUES += (b"1979-05-27", b"[1, 1]", b"1e400", b"9" * 5000, b"[" * 3000, b"{a = " * 3000)
TOML_VALUES += (b"{resnet = {block_units = [1000000000000]}}", b"{resnet = {width_factor = 1e300}}")
TOML_VALUES += (
    b"{num_layers = 1000000000000}",
    b'{posemb = "sincos2d"}',
    b"[1000000000, 1000000000]",
)


# -- images --------------------------------------------------------------------------------------


def seeds_images() -> list[bytes]:
    noise = np.random.default_rng(0).integers(0, 256, (9, 7, 4), np.uint8)
    image = Image.fromarray(noise)
    grey, exif = image.convert("L"), Image.Exif()
    exif[0x0112] = 6
    made = [
        (image.convert("RGB"), "JPEG", dict(exif=exif)),
        (image.convert("CMYK"), "JPEG", {}),
        (image.convert("RGB"), "JPEG", dict(progressive=True)),
        (image, "PNG", dict(exif=exif)),
        (image.convert("P"), "PNG", dict(transparency=0)),
        (Image.fromarray(noise[..., 0].astype(np.uint16) * 257), "PNG", {}),
        (image.convert("P"), "GIF", {}),
        (image.convert("RGB"), "BMP", {}),
        (grey.convert("1"), "BMP", {}),
        (image, "WEBP", {}),
        (image, "WEBP", dict(lossless=True)),
        (image.convert("RGB"), "TIFF", dict(compression="tiff_lzw")),
        (image.convert("F"), "TIFF", {}),
        (grey, "TIFF", dict(compression="tiff_adobe_deflate")),
        (grey.convert("1"), "TIFF", dict(compression="group4")),
        (image.convert("RGB"), "PPM", {}),
        (grey, "PPM", {}),
    ]
    found = []
    for picture, kind, options in made:
        picture.save(buffer := io.BytesIO(), kind, **options)
        found.append(buffer.getvalue())
    return [*found, b"P3\n2 1\n255\n1 2 3 4 5 6\n", b"Pf\n2 1\n-1.0\n" + bytes(8)]


def mutate_images(data: bytes, rng: random.Random, general: Callable[[bytes], bytes]) -> bytes:
    if data[:8] == b"\x89PNG\r\n\x1a\n" and rng.random() < 0.7:
        chunks, at = [], 8
        while at + 8 <= len(data):
            size = int.from_bytes(data[at : at + 4], "big")
            chunks.append([data[at + 4 : at + 8], data[at + 8 : at + 8 + size]])
            at += 12 + size
        chosen = rng.choice(chunks)
        chosen[1] = (
            general(chosen[1])
            if rng.random() < 0.5
            else number_at(chosen[1], rng.randrange(len(chosen[1]) + 1), rng)
        )
        body = b"".join(
            struct.pack(">I", len(b)) + k + b + struct.pack(">I", zlib.crc32(k + b))
            for k, b in chunks
        )
        return data[:8] + body
    if data[:1] == b"P":
        return number_in(data[:30], rng) + data[30:]
    return number_at(data, rng.randrange(len(data)), rng, rng.choice((1, 2, 4)))


# -- numbers -------------------------------------------------------------------------------------


def number_at(data: bytes, at: int, rng: random.Random, size: int = 0) -> bytes:
    """The file with a binary number of 1 to 8 bytes set to one at some border."""
    size = size or rng.choice((1, 2, 4, 8))
    value = rng.choice((*NUMBERS, len(data), rng.randrange(len(data) + 1), rng.getrandbits(64)))
    order = rng.choice(("little", "big"))
    new = (value & (2 ** (8 * size) - 1)).to_bytes(size, order)
    return data[:at] + new + data[at + size :]


def number_in(text: bytes, rng: random.Random) -> bytes:
    """The text with one decimal number set to one at some border."""
    places = list(re.finditer(rb"\d+", text))
    if not places:
        return text
    place = rng.choice(places)
    value = rng.choice((*NUMBERS, -1, 10**30, int(place[0]) + 1, max(int(place[0]) - 1, 0)))
    return text[: place.start()] + str(value).encode() + text[place.end() :]


TARGETS = {
    "npz": Target(read_npz, seeds_npz, mutate_npz, "w.npz"),
    "safetensors": Target(
        read_safetensors, seeds_safetensors, mutate_safetensors, "model.safetensors"
    ),
    "hdf5": Target(read_hdf5, seeds_hdf5, mutate_hdf5, "model.weights.h5"),
    "cards": Target(read_cards, seeds_cards, mutate_cards, "cards.toml"),
    "images": Target(read_images, seeds_images, mutate_images, "image"),
}
