"""Near-duplicates: planted ones are found, distinct images are not, and what is kept can be read."""

import csv
import io
import json

import numpy as np
import pytest
from PIL import Image, ImageEnhance

from keras_vit import cli
from keras_vit.data import duplicates
from keras_vit.data.duplicates import Limits, Pair, feature_pairs, picture_pairs
from keras_vit.data.looks import BITS, SIDE, Looks, boxes, hashes, likeness, looks, viewed
from keras_vit.data.sources import Source, arrays, fashion_mnist, folder
from keras_vit.data.streams import Stream

COUNT = 16


def picture(seed: int, size: tuple[int, int] = (240, 200)) -> Image.Image:
    """A smooth picture with shapes and colours of its own."""
    rng = np.random.default_rng(seed)
    width, height = size
    y, x = np.mgrid[0:height, 0:width] / max(size)
    pixels = np.full((height, width, 3), rng.uniform(40, 200, 3))
    for _ in range(14):
        cy, cx, radius = rng.uniform(0, 1), rng.uniform(0, 1), rng.uniform(0.04, 0.25)
        inside = 1 / (1 + np.exp((np.hypot(y - cy, x - cx) - radius) * 60))
        pixels += inside[..., None] * (rng.uniform(0, 255, 3) - pixels)
    return Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8))


def saved(image: Image.Image, quality: int) -> Image.Image:
    data = io.BytesIO()
    image.save(data, "JPEG", quality=quality)
    return Image.open(data).convert("RGB")


def part(image: Image.Image, left=0.0, top=0.0, right=1.0, bottom=1.0) -> Image.Image:
    width, height = image.size
    box = (left * width, top * height, right * width, bottom * height)
    return image.crop(tuple(round(side) for side in box))


EDITS = {
    "the same": lambda i: i,
    "JPEG 30": lambda i: saved(i, 30),
    "JPEG 60": lambda i: saved(i, 60),
    "JPEG 90": lambda i: saved(i, 90),
    "half": lambda i: i.resize((i.width // 2, i.height // 2)),
    "double": lambda i: i.resize((i.width * 2, i.height * 2)),
    "square": lambda i: i.resize((224, 224)),
    "brighter": lambda i: ImageEnhance.Brightness(i).enhance(1.15),
    "darker": lambda i: ImageEnhance.Brightness(i).enhance(0.7),
    "2 % less": lambda i: part(i, left=0.02, top=0.02),
    "5 % less": lambda i: part(i, left=0.025, top=0.025, right=0.975, bottom=0.975),
    "10 % less": lambda i: part(i, right=0.9, bottom=0.9),
    "uneven, JPEG 50": lambda i: saved(part(i, 0.03, 0.05, 0.96, 0.98), 50),
}


@pytest.fixture(scope="module")
def originals():
    return [picture(seed) for seed in range(COUNT)]


def source(images, name="made"):
    pixels = [np.asarray(image) for image in images]
    return Source(name, pixels, np.zeros(len(images), np.int32), ("a", "b"))


@pytest.mark.parametrize("name", EDITS)
def test_planted_duplicates_are_found_and_no_others(name, originals):
    some = originals[:8]
    edited, rest = source([EDITS[name](image) for image in some]), source(originals)
    # Either set may hold the edited ones.
    ways = [(edited, rest), (rest, edited)]
    pairs = picture_pairs(*ways[list(EDITS).index(name) % 2])
    assert [(pair.train, pair.test) for pair in pairs] == [(i, i) for i in range(8)]
    assert all(pair.exact == (name == "the same") for pair in pairs)
    assert all(pair.likeness is not None and pair.likeness >= 0.95 for pair in pairs)
    if name == "the same":
        assert all(pair.distance == 0 and pair.likeness == 1.0 for pair in pairs)


@pytest.mark.parametrize("name", ["5 % less", "uneven, JPEG 50"])
def test_crops_are_found_in_both_directions(name, originals):
    edited, rest = source([EDITS[name](image) for image in originals[:6]]), source(originals[:8])
    for train, test in ((edited, rest), (rest, edited)):
        pairs = picture_pairs(train, test)
        assert [(pair.train, pair.test) for pair in pairs] == [(i, i) for i in range(6)]


def test_alike_clothes_are_not_called_duplicates():
    train, test = fashion_mnist("subset_train"), fashion_mnist("subset_test")
    pairs = picture_pairs(train.take(np.arange(800)), test)
    assert len(pairs) <= 3  # of 800,000


def test_an_image_of_a_few_pixels_is_found_again():
    test = fashion_mnist("subset_test").take(np.arange(40))
    moved = np.array([np.asarray(Image.fromarray(i[..., 0]).resize((56, 56))) for i in test.images])
    again = arrays(np.stack([moved] * 3, -1), test.labels)
    assert {(p.train, p.test) for p in picture_pairs(again, test)} >= {(i, i) for i in range(36)}


def test_a_hash_is_that_of_imagehash(originals):
    imagehash = pytest.importorskip("imagehash")
    small = np.stack([np.asarray(image.resize((SIDE, SIDE))) for image in originals])
    expected = [imagehash.phash(Image.fromarray(image), 12).hash.ravel() for image in small]
    np.testing.assert_array_equal(hashes(small)[:, 0], expected)


def test_distances_are_counted_bits(originals):
    rng = np.random.default_rng(0)
    bits = rng.integers(0, 2, (2, 30, 1, BITS)).astype(bool)
    bits[1, 7] = bits[0, 3]
    bits[1, 7, 0, :5] ^= True
    parts = [
        Looks(
            np.arange(30),
            np.zeros((30, 1)),
            np.repeat(b, len(boxes()), 1),
            *[np.arange(30)] * 2,
            30,
        )
        for b in bits
    ]
    found = duplicates._closest_views(*parts, most_bits=60)
    expected = (bits[0, :, 0][:, None] != bits[1, :, 0][None]).sum(-1)
    assert {(r["train"], r["test"]): r["bits"] for r in found} == {
        (i, j): expected[i, j] for i, j in zip(*np.nonzero(expected <= 60), strict=True)
    }
    assert expected[3, 7] == 5


def test_alignment_finds_borders_that_no_view_has(originals):
    whole = np.stack([np.asarray(image.resize((SIDE, SIDE))) for image in originals[:6]])
    box = np.tile([[0.04, 0.97, 0.01, 0.93]], (6, 1))
    other = np.stack([viewed(whole[..., c].astype(float), box) for c in range(3)], axis=-1)
    first = np.tile(boxes()[:1], (6, 1))
    assert likeness(whole, other.round().astype(np.uint8), first).min() > 0.995
    assert likeness(whole, np.roll(whole, 1, axis=0), first).max() < 0.9


def test_images_of_one_colour_are_alike_when_the_colour_is():
    flat = np.full((3, SIDE, SIDE, 3), 100, np.uint8)
    other = flat + np.array([0, 5, 40], np.uint8)[:, None, None, None]
    assert likeness(flat, other, np.tile(boxes()[:1], (3, 1))).tolist() == [1.0, 1.0, 0.0]


def test_blocks_change_nothing(originals, monkeypatch):
    edited, rest = source([saved(image, 60) for image in originals]), source(originals)
    expected = picture_pairs(edited, rest)
    monkeypatch.setattr("keras_vit.data.looks.BLOCK", 5)
    monkeypatch.setattr(duplicates, "PRODUCTS", 40)
    monkeypatch.setattr(duplicates, "AT_ONCE", 3)
    steps = []
    assert picture_pairs(edited, rest, progress=lambda *done: steps.append(done)) == expected
    assert steps[-1] == (2 * COUNT, 2 * COUNT) and len(steps) == 8


def test_pictures_that_cannot_be_read_are_left_out(tmp_path, originals):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        for i, image in enumerate(originals[:3]):
            image.save(tmp_path / name / f"{i}.png")
    train = folder(tmp_path)
    (tmp_path / "a" / "1.png").write_bytes(b"no image any more")
    pairs = picture_pairs(train, source(originals[:3]))
    assert [(p.train, p.test) for p in pairs] == [(0, 0), (2, 2), (3, 0), (4, 1), (5, 2)]
    assert len(train.broken) == 1
    assert sum(block.read for block in looks(train)) == 6


def test_streams_are_read_from_front_to_back(originals):
    tf = pytest.importorskip("tensorflow")
    files = [b"no image"]
    for image in originals[:5]:
        data = io.BytesIO()
        image.save(data, "PNG")
        files.append(data.getvalue())
    stream = Stream(
        "stream",
        len(files),
        ("a",),
        lambda first, last, seed: tf.data.Dataset.from_tensor_slices(files[first:last]),
        lambda record: (record, tf.constant(0)),
    )
    pairs = picture_pairs(stream, source(originals[:7]))
    assert [(p.train, p.test, p.exact) for p in pairs] == [(i + 1, i, True) for i in range(5)]
    assert len(stream.broken) == 1


def test_features_are_compared_by_their_angle():
    rng = np.random.default_rng(0)
    test = rng.normal(size=(50, 16))
    train = rng.normal(size=(200, 16))
    train[120], train[7] = 3.0 * test[11], test[4] + 0.05 * rng.normal(size=16)
    unit = [x / np.linalg.norm(x, axis=1, keepdims=True) for x in (train, test)]
    expected = np.argwhere(unit[0] @ unit[1].T >= 0.95).tolist()
    found = feature_pairs(np.array_split(train, 7), np.array_split(test, 3), least_cosine=0.95)
    assert [[pair.train, pair.test] for pair in found] == expected
    assert Pair(120, 11, 0.0) in found


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Limits(144, 0.9), "0 to 143"),
        (lambda: Limits(3, 1.5), "in \\[0, 1\\]"),
        (lambda: feature_pairs([], [np.ones((1, 2))], least_cosine=0.0), "in \\(0, 1\\]"),
    ],
)
def test_limits_are_checked(make, said):
    with pytest.raises(ValueError, match=said):
        make()


def test_too_many_pairs_are_refused(monkeypatch):
    monkeypatch.setattr(duplicates, "MOST_PAIRS", 10)
    with pytest.raises(ValueError, match="more than 10 pairs"):
        feature_pairs([np.ones((4, 2))], [np.ones((4, 2))])


@pytest.fixture
def folders(tmp_path, originals):
    """Eight training images, of which two are copies of test images."""
    for i, image in enumerate(originals[:8]):
        target = tmp_path / "train" / "ab"[i % 2]
        target.mkdir(parents=True, exist_ok=True)
        image.save(target / f"{i}.png")
    for name in "ab":
        (tmp_path / "test" / name).mkdir(parents=True)
        picture(100 + ord(name)).save(tmp_path / "test" / name / "own.png")
    saved(originals[3], 50).save(tmp_path / "test" / "b" / "three.jpg", quality=50)
    part(originals[4], left=0.05).save(tmp_path / "test" / "b" / "four.png")
    return tmp_path


def test_the_command_lists_and_keeps(folders, capsys):
    train, test = f"folder:{folders}/train", f"folder:{folders}/test"
    kept, table = folders / "kept", folders / "pairs.csv"
    code = cli.run(["dedup", train, test, "-o", str(table), "--write-kept", str(kept), "--json"])
    assert code == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["train_duplicates"], found["test_duplicates"], found["exact"]) == (2, 2, 0)
    assert found["other_class"] == 1 and found["kept"] == 6
    with table.open() as file:
        rows = list(csv.DictReader(file))
    assert [(row["train"], row["test"]) for row in rows] == [
        (f"{folders}/train/a/4.png", f"{folders}/test/b/four.png"),
        (f"{folders}/train/b/3.png", f"{folders}/test/b/three.jpg"),
    ]
    left = folder(kept)
    assert left.class_names == ("a", "b") and len(left) == 6
    assert len(folder(folders / "train")) == 8  # nothing of it is touched
    assert picture_pairs(left, folder(folders / "test")) == []
    assert cli.run(["dedup", train, test, "--write-kept", str(kept)]) == 2
    assert "exists: give another name" in capsys.readouterr().err


def test_arrays_are_kept_as_arrays(tmp_path, capsys):
    data = fashion_mnist("subset_test").take(np.arange(60))
    for name, places in (("train", np.arange(50)), ("test", np.arange(45, 60))):
        np.savez(
            tmp_path / f"{name}.npz",
            images=data.images[places],
            labels=data.labels[places],
            class_names=np.array(data.class_names),
        )
    names = [str(tmp_path / f"{name}.npz") for name in ("train", "test")]
    kept = tmp_path / "kept.npz"
    assert cli.run(["dedup", *names, "--write-kept", str(kept)]) == 0
    out = capsys.readouterr().out
    assert out.startswith("5 of 50 training images (10.000%)")
    assert "5 pairs, 5 of them with equal pixels, 0 with another class" in out
    with np.load(kept) as file:
        np.testing.assert_array_equal(file["images"], data.images[:45])
        assert file["class_names"].tolist() == list(data.class_names)


def test_the_command_compares_features_of_a_model(tmp_path, capsys):
    pytest.importorskip("keras")
    data = fashion_mnist("subset_test").take(np.arange(24))
    for name, places in (("train", np.arange(16)), ("test", np.arange(14, 24))):
        np.savez(tmp_path / f"{name}.npz", images=data.images[places], labels=data.labels[places])
    names = [str(tmp_path / f"{name}.npz") for name in ("train", "test")]
    options = ["--model", "ViT-Mini/4", "--cosine", "0.99999", "--features", str(tmp_path / "f")]
    assert cli.run(["dedup", *names, *options, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert {(row["train_index"], row["test_index"]) for row in found["pairs"]} == {(14, 0), (15, 1)}
    assert found["method"] == "features" and (tmp_path / "f" / "train" / "manifest.json").is_file()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--cosine", "0.9"], "give --model"),
        (["--model", "ViT-Mini/4", "--bits", "3"], "leave out --model"),
        (["--bits", "200"], "must be 0 to 143"),
        (["--model", "ViT-Mini/4", "--cosine", "2"], "in (0, 1]"),
        (["-o", "pairs.txt"], ".csv or .json"),
        (["--write-kept", "kept"], "are written as an .npz"),
    ],
)
def test_bad_input_is_told_in_a_sentence(arguments, said, capsys):
    names = ["fashion_mnist:subset_train", "fashion_mnist:subset_test"]
    assert cli.run(["dedup", *names, *arguments]) == 2
    err = capsys.readouterr().err
    assert said in err and len(err.splitlines()) == 1
