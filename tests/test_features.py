"""Features are those of the model, survive a kill, and are never mixed up with others."""

import json

import keras
import numpy as np
import pytest
from PIL import Image

import keras_vit
from keras_vit.card import Preprocessing
from keras_vit.data.sources import Source, arrays, open_source
from keras_vit.data.streams import Stream
from keras_vit.layers.preprocessor import preprocess
from keras_vit.spec import ResNetBody, ResNetSpec
from keras_vit.transfer.features import Extractor, extract, extractor_of, open_features

SPEC = keras_vit.ViTSpec(
    image_size=(8, 12),
    patch_size=(4, 4),
    hidden_size=10,
    mlp_dim=14,
    num_heads=2,
    num_layers=2,
    in_channels=3,
    num_classes=5,
)
NAMES = ("ant", "bee", "cow")
RAW = Preprocessing(resize="none", mean=(0.0,), std=(1.0,))


def coded(count: int) -> Source:
    """Images of (2, 2, 1) whose pixels are their number, of class number modulo 3."""
    numbers = np.arange(count)
    images = np.broadcast_to(numbers.astype(np.uint8)[:, None, None, None], (count, 2, 2, 1))
    return arrays(images.copy(), numbers % 3, NAMES, "coded")


def counting(weights="0" * 16, stop_after=None):
    """An extractor that gives (number, number squared), and the numbers it was asked for."""
    seen = []

    def predict(images):
        if stop_after is not None and len(seen) >= stop_after:
            raise KeyboardInterrupt
        numbers = images[:, 0, 0, 0]
        seen.extend(numbers.astype(int).tolist())
        return np.stack([numbers, numbers**2], axis=1)

    return Extractor("counter", "number", None, predict, 2, (2, 2), 1, RAW, weights), seen


def check(found, numbers):
    """That a set holds exactly these images, in order."""
    numbers = np.asarray(numbers)
    blocks = list(found.blocks(3))
    assert max(len(x) for x, _ in blocks) <= 3
    x, y = (np.concatenate(part) for part in zip(*blocks, strict=True))
    assert x.dtype == np.float32
    np.testing.assert_array_equal(x, np.stack([numbers, numbers**2], 1))
    np.testing.assert_array_equal(y, numbers % 3)
    np.testing.assert_array_equal(found.labels, y)
    assert len(found) == len(numbers) and found.class_names == NAMES


@pytest.mark.parametrize(
    ("endpoint", "pool"),
    [
        ("pre_logits", None),
        ("logits", None),
        ("encoded", "class"),
        ("encoded", "mean"),
        ("encoderblock_0", "both"),
    ],
)
def test_features_are_the_endpoints_of_the_model(random_model, tmp_path, endpoint, pool):
    model = random_model(SPEC)
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (11, 9, 13, 3), np.uint8)
    source = arrays(images, np.arange(11) % 3, NAMES)
    found = extract(extractor_of(model, endpoint, pool=pool), source, tmp_path / "f", batch_size=4)
    inputs = preprocess(images, (8, 12), model.preprocessing)
    expected = keras.ops.convert_to_numpy(model.features(endpoint)(inputs))
    if pool:
        parts = {"class": expected[:, 0], "mean": expected[:, 1:].mean(axis=1)}
        parts["both"] = np.concatenate([*parts.values()], axis=1)
        expected = parts[pool]
    # Sums in another order: one batch of eleven here, batches of four there.
    np.testing.assert_allclose(found.take(np.arange(11)), expected, atol=2e-6)
    assert found.dim == expected.shape[1] and isinstance(found.shards[0], np.memmap)


def test_maps_are_averaged_and_registers_are_no_patches(random_model):
    resnet = random_model(ResNetSpec(ResNetBody((1,), width_factor=0.5), image_size=(32, 32)))
    name = next(n for n, x in resnet.endpoints.items() if len(x.shape) == 4)
    x = np.random.default_rng(0).normal(size=(2, 32, 32, 3)).astype(np.float32)
    expected = keras.ops.convert_to_numpy(resnet.features(name)(x)).mean(axis=(1, 2))
    found = extractor_of(resnet, name, pool="mean").predict(x)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5 * np.abs(expected).max())


def test_pools_that_do_not_suit_are_refused(random_model):
    model = random_model(SPEC)
    with pytest.raises(ValueError, match="takes pool 'class' or 'mean' or 'both', got None"):
        extractor_of(model, "encoded")
    with pytest.raises(ValueError, match="takes pool None, got 'mean'"):
        extractor_of(model, pool="mean")
    with pytest.raises(ValueError, match="attention weights"):
        extractor_of(model, "attention_0", pool="mean")
    with pytest.raises(KeyError, match="unknown endpoint"):
        extractor_of(model, "nothing")


def test_the_identity_follows_weights_endpoint_and_preprocessing(random_model):
    same = [extractor_of(random_model(SPEC), name=name).identity for name in ("a", "b")]
    others = [
        extractor_of(random_model(SPEC, seed=1)).identity,
        extractor_of(random_model(SPEC), "encoded", pool="mean").identity,
        extractor_of(random_model(SPEC), "encoded", pool="class").identity,
        extractor_of(random_model(SPEC, card=keras_vit.Card("v", "t", preprocessing=RAW))).identity,
        extractor_of(random_model(SPEC), preprocessing=Preprocessing(resize_to=16)).identity,
    ]
    assert same[0] == same[1] and len({same[0], *others}) == 6


@pytest.mark.parametrize("batch_size", [1, 5, 64])
def test_every_image_comes_once_in_order_in_small_shards(tmp_path, batch_size):
    extractor, seen = counting()
    steps = []
    found = extract(
        extractor,
        coded(21),
        tmp_path / "f",
        batch_size=batch_size,
        shard_bytes=4 * 2 * 9,  # eight rows
        progress=lambda done, total: steps.append((done, total)),
    )
    check(found, range(21))
    assert [len(shard) for shard in found.shards] == [8, 8, 5]
    assert steps[0] == (0, 21) and steps[-1] == (21, 21) and steps == sorted(steps)
    np.testing.assert_array_equal(found.take(np.array([20, 0, 9])), [[20, 400], [0, 0], [9, 81]])
    # A second call computes nothing; a padded last batch shows the model no image twice.
    asked = len(seen)
    check(extract(extractor, coded(21), tmp_path / "f"), range(21))
    assert len(seen) == asked


def test_a_killed_extraction_goes_on_with_the_next_shard(tmp_path):
    folder, options = tmp_path / "f", {"batch_size": 4, "shard_bytes": 4 * 2 * 8}
    with pytest.raises(KeyboardInterrupt):
        extract(counting(stop_after=12)[0], coded(21), folder, **options)
    assert sorted(p.name for p in folder.iterdir()) == [
        "features_00000.npy",
        "labels_00000.npy",
        "manifest.json",
    ]
    with pytest.raises(ValueError, match="8 of 21 images: extract again to go on"):
        open_features(folder)
    # What a kill in mid-shard leaves: files that the manifest does not name.
    np.save(folder / "features_00001.npy", np.zeros((8, 2), np.float32))
    extractor, seen = counting()
    check(extract(extractor, coded(21), folder, batch_size=16), range(21))
    assert set(range(8, 21)) <= set(seen) and not set(range(1, 8)) & set(seen)


def test_other_features_in_the_folder_are_refused(tmp_path):
    folder = tmp_path / "f"
    extract(counting()[0], coded(9), folder)
    with pytest.raises(ValueError, match="with another weights: give another folder"):
        extract(counting("1" * 16)[0], coded(9), folder)
    with pytest.raises(ValueError, match="with another examples, labels_crc32, images_crc32"):
        extract(counting()[0], coded(10), folder)
    check(extract(counting()[0], coded(9), folder), range(9))
    (tmp_path / "g").mkdir()
    (tmp_path / "g" / "thesis.txt").write_text("mine")
    with pytest.raises(ValueError, match="something else than features"):
        extract(counting()[0], coded(9), tmp_path / "g")
    with pytest.raises(ValueError, match="no features"):
        open_features(tmp_path / "g")
    (folder / "manifest.json").write_text("{")
    with pytest.raises(ValueError, match="is not JSON"):
        open_features(folder)


def test_broken_images_are_reported_and_not_counted(tmp_path):
    rng = np.random.default_rng(0)
    for label in ("ant", "bee"):
        (tmp_path / "images" / label).mkdir(parents=True)
        for i in range(5):
            pixels = np.full((2, 2), i, np.uint8)
            Image.fromarray(pixels).save(tmp_path / "images" / label / f"{i}.png")
    source = open_source(f"folder:{tmp_path / 'images'}")
    # They break after the source was opened: before, they would not be in it at all.
    for name in ("ant/1.png", "bee/0.png"):
        (tmp_path / "images" / name).write_bytes(rng.bytes(40))
    found = extract(counting()[0], source, tmp_path / "f", batch_size=2, shard_bytes=32)
    np.testing.assert_array_equal(found.take(np.arange(8))[:, 0], [0, 2, 3, 4, 1, 2, 3, 4])
    np.testing.assert_array_equal(found.labels, [0] * 4 + [1] * 4)
    assert len(found.broken) == 2 and "1.png" in found.broken[0]
    assert open_features(tmp_path / "f").broken == found.broken
    for path in (tmp_path / "images").rglob("*.png"):
        path.write_bytes(b"nothing")
    with pytest.raises(ValueError, match="none of the 10 images"):
        extract(counting()[0], source, tmp_path / "g")


def test_what_gives_no_vector_or_no_numbers_is_refused(tmp_path):
    for name, output, message in (
        ("tokens", np.zeros((4, 3, 2), np.float32), "one vector per image"),
        ("nan", np.full((4, 2), np.nan, np.float32), "not finite"),
    ):
        extractor = Extractor(name, "x", None, lambda _, y=output: y, 2, (2, 2), 1, RAW, "0")
        with pytest.raises(ValueError, match=message):
            extract(extractor, coded(4), tmp_path / name)
    labels = np.ones((4, 3), int)
    several = arrays(np.zeros((4, 2, 2, 1), np.uint8), labels, NAMES)
    with pytest.raises(ValueError, match="several labels"):
        extract(counting()[0], several, tmp_path / "several")


@pytest.mark.tf_only
def test_streams_are_read_once_and_go_on(tmp_path):
    import tensorflow as tf

    from keras_vit.data.images import read_image

    files = [tf.io.encode_png(np.full((2, 2, 1), i, np.uint8)).numpy() for i in range(13)]
    assert read_image(files[3], 1)[0, 0, 0] == 3
    files[5] = b"broken"

    def read(first, last, seed):
        assert seed is None
        return tf.data.Dataset.range(first, last)

    def parse(number):
        return tf.gather(tf.constant(files), number), number % 3

    def stream():
        return Stream("stream", 13, NAMES, read, parse)

    folder, options = tmp_path / "f", {"batch_size": 2, "shard_bytes": 32}
    with pytest.raises(KeyboardInterrupt):
        extract(counting(stop_after=8)[0], stream(), folder, **options)
    extractor, seen = counting()
    found = extract(extractor, stream(), folder, **options)
    check(found, [0, 1, 2, 3, 4, 6, 7, 8, 9, 10, 11, 12])
    assert len(found.broken) == 1 and not {1, 2, 3} & set(seen)
    assert json.loads((folder / "manifest.json").read_text())["shards"] == [4, 3, 4, 1]
