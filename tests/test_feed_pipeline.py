"""The tf.data feed: which examples a step holds, on every host, and the numbers of evaluation."""

import gc
import io
import json
import weakref

import numpy as np
import pytest
from PIL import Image

from keras_vit.card import Preprocessing
from keras_vit.data.augment import Augment
from keras_vit.data.batches import Batches
from keras_vit.data.images import read_image
from keras_vit.data.pipeline import Pipeline
from keras_vit.data.sources import Source, arrays
from keras_vit.layers.preprocessor import preprocess

pytestmark = pytest.mark.tf_only

RAW = Preprocessing(mean=(0.0,), std=(1.0,))
ALL = Augment(
    crop="inception", flip=True, shift=True, randaugment=(1, 10), erase=0.5, mixup=0.2, cutmix=0.5
)
MIXED = Augment(crop="inception", flip=True, shift=True, erase=0.5, mixup=0.2, cutmix=0.5)
# Both sides interpolate in float32, in another order: some units in the last place of 255, over the
# smallest std below.
FLOAT32 = 2e-6
NAMES = ("a", "b", "c")


def numbered(count: int) -> Source:
    """Images whose pixels say their place, labelled by it."""
    images = np.arange(count, dtype=np.uint8)[:, None, None, None]
    return arrays(np.broadcast_to(images, (count, 4, 6, 1)).copy(), np.arange(count) % 3, NAMES)


def noisy(count: int, channels: int = 3) -> Source:
    images = np.random.default_rng(0).integers(0, 256, (count, 24, 32, channels), np.uint8)
    return arrays(images, np.arange(count) % 3, NAMES)


def file_of(image: np.ndarray, kind: str = "PNG") -> bytes:
    opened = io.BytesIO()
    Image.fromarray(image).save(opened, kind)
    return opened.getvalue()


def some_files(count: int, kind: str = "PNG") -> Source:
    """Encoded images of several sizes."""
    rng = np.random.default_rng(1)
    sizes = [(24, 32), (33, 20), (41, 41), (21, 20)]
    images = [rng.integers(0, 256, (*sizes[i % 4], 3), np.uint8) for i in range(count)]
    return Source("files", [file_of(i, kind) for i in images], np.arange(count) % 3, NAMES)


def drawn(feed: Pipeline, start: int = 0, stop: int | None = None) -> list[tuple[np.ndarray, ...]]:
    return [tuple(np.asarray(part) for part in b) for b in feed.keras_data(start, stop)]


def training(source: Source, augment: Augment | None = None, **options) -> Pipeline:
    options = {"batch_size": 4, "seed": 3} | options
    channels = source.images.shape[-1] if isinstance(source.images, np.ndarray) else 3
    return Pipeline(
        source, (12, 16), channels, Preprocessing(), training=True, augment=augment, **options
    )


def evaluation(source: Source, rule: Preprocessing = RAW, **options) -> Pipeline:
    channels = source.images.shape[-1] if isinstance(source.images, np.ndarray) else 3
    return Pipeline(source, options.pop("size", (4, 6)), channels, rule, **options)


def assert_same(left, right):
    assert len(left) == len(right)
    for one, other in zip(left, right, strict=True):
        for a, b in zip(one, other, strict=True):
            np.testing.assert_array_equal(a, b)


# Training


def test_a_batch_depends_on_the_seed_and_the_step_alone():
    source = noisy(23)  # five steps an epoch
    whole = drawn(training(source, ALL, threads=2), 0, 20)
    assert len(whole) == 20
    assert whole[0][0].shape == (4, 12, 16, 3) and whole[0][0].dtype == np.float32
    assert whole[0][1].shape == (4, 3) and whole[0][1].dtype == np.float32
    # From the first step of an epoch into the next one.
    assert_same(drawn(training(source, ALL, threads=1), 5, 12), whole[5:12])
    # No two steps are alike, nor do other epochs repeat what this one had.
    assert len({images.tobytes() for images, _ in whole}) == 20


def test_another_seed_gives_other_images_in_another_order():
    plain = drawn(training(numbered(23)), 0, 5)
    assert not np.array_equal(plain[0][0], drawn(training(numbered(23), seed=4), 0, 1)[0][0])
    one = arrays(np.repeat(noisy(1).images, 4, axis=0), np.zeros(4, int), NAMES)
    flips = Augment(crop="inception", flip=True)
    first, second = (drawn(training(one, flips, seed=s), 0, 1)[0][0] for s in (3, 4))
    assert not np.array_equal(first, second)


def test_every_example_comes_once_per_epoch_in_the_order_of_the_other_feed():
    options = {"batch_size": 7, "training": True, "seed": 5}
    feed = Pipeline(numbered(42), (4, 6), 1, RAW, **options)
    other = Batches(numbered(42), (4, 6), 1, RAW, **options)
    assert feed.steps_per_epoch == other.steps_per_epoch == 6
    found = drawn(feed, 0, 12)
    for epoch in (found[:6], found[6:]):
        seen = np.concatenate([images[:, 0, 0, 0] for images, _ in epoch])
        assert sorted(seen) == list(range(42))
    assert_same(found, [other.keras_data(0, 12)[i] for i in range(12)])


def test_a_last_batch_that_is_not_full_is_left_out_unless_it_is_the_only_one():
    assert [len(x) for x, _ in drawn(training(numbered(11)))] == [4, 4]
    assert [len(x) for x, _ in drawn(training(numbered(3)))] == [3]


@pytest.mark.parametrize("augment", [Augment(flip=True), MIXED], ids=["plain", "mixed"])
def test_the_parts_of_two_hosts_are_the_batch_of_one(augment):
    source = noisy(13)
    whole = drawn(training(source, augment), 1, 4)
    parts = [drawn(training(source, augment, shard=(i, 2)), 1, 4) for i in range(2)]
    assert {len(images) for part in parts for images, _ in part} == {2}
    joined = [
        tuple(np.concatenate(pair) for pair in zip(*both, strict=True))
        for both in zip(*parts, strict=True)
    ]
    assert_same(joined, whole)


def test_uint8_is_what_is_normalised_later():
    source, augment = noisy(8), Augment(crop="inception", flip=True)
    raw = drawn(training(source, augment, uint8=True))
    ready = drawn(training(source, augment))
    assert raw[0][0].dtype == np.uint8
    for (x, y), (normalised, targets) in zip(raw, ready, strict=True):
        np.testing.assert_allclose((x - 127.5) / 127.5, normalised, atol=FLOAT32)
        np.testing.assert_array_equal(y, targets)


def test_multi_label_targets_and_class_weights():
    labels = np.array([[1, 0, 1], [0, 1, 0], [0, 0, 0], [1, 1, 1]])
    source = arrays(np.zeros((4, 12, 16, 1), np.uint8), labels, NAMES)
    weights = np.array([1.0, 2.0, 6.0], np.float32)
    ((_, y, factors),) = drawn(training(source, class_weights=weights))
    np.testing.assert_array_equal(y[np.lexsort(y.T[::-1])], labels[np.lexsort(labels.T[::-1])])
    expected = {(1, 0, 1): 3.5, (0, 1, 0): 2.0, (0, 0, 0): 0.0, (1, 1, 1): 3.0}
    np.testing.assert_allclose(factors, [expected[tuple(map(int, row))] for row in y], rtol=1e-6)


def test_what_tells_data_apart():
    def identity(source):
        return json.dumps(evaluation(source).identity())

    assert identity(numbered(10)) == identity(numbered(10))
    assert identity(numbered(10)) != identity(numbered(11))
    relabelled = arrays(numbered(10).images, np.zeros(10, int), NAMES)
    assert identity(numbered(10)) != identity(relabelled)


class Counted:
    """Ten thousand images that are made when asked for, and counted."""

    def __init__(self):
        self.read = 0

    def __len__(self):
        return 10_000

    def __getitem__(self, index):
        self.read += 1
        return np.full((12, 16, 3), index % 256, np.uint8)


@pytest.mark.case("T03")
def test_few_images_are_read_before_the_first_batch_is_used():
    images = Counted()
    source = Source("counted", images, np.arange(10_000) % 3, NAMES)
    data = training(source, batch_size=16).keras_data(0, 600)
    assert images.read == 0
    next(iter(data))
    assert 16 <= images.read <= 6 * 16  # two being made, two that wait, one ahead, one in hand


# Evaluation

RULES = {
    "stretch": Preprocessing(),
    "per_channel": Preprocessing(mean=(120.0, 110.0, 100.0), std=(60.0, 55.0, 50.0)),
    "central": Preprocessing(resize="shorter_side", resize_to=20),
    "larger": Preprocessing(resize="stretch", resize_to=24),
    "pillow": Preprocessing(resize="shorter_side", method="bicubic", antialias=True, rounded=True),
}
# Rules that end in whole numbers: a value next to one may go either way, but hardly any does.
WHOLE = {
    "big_vision": Preprocessing("shorter_side", "area", resize_to=20, truncate=True),
    "truncated": Preprocessing(truncate=True),
    "rounded": Preprocessing(rounded=True),
}


@pytest.mark.parametrize("name", [*RULES, *WHOLE])
def test_evaluation_gives_the_numbers_of_the_card(name):
    source, rule, size = some_files(4), (RULES | WHOLE)[name], (16, 20)
    ((x, y),) = drawn(evaluation(source, rule, size=size, batch_size=4))
    want = np.stack([preprocess(read_image(i, 3), size, rule) for i in source.images])
    np.testing.assert_array_equal(y, np.eye(3)[source.labels])
    if name in WHOLE:
        assert np.mean(np.abs(x - want) > FLOAT32) < 0.002
        np.testing.assert_allclose(x, want, atol=1.001 / 127.5)
    else:
        np.testing.assert_allclose(x, want, atol=FLOAT32)
    other = Batches(source, size, 3, rule, batch_size=4)[0]
    np.testing.assert_array_equal(other[0], want)


@pytest.mark.parametrize(
    ("batch_size", "pad"),
    [(1, False), (3, False), (7, False), (10, False), (15, False), (3, True), (15, True)],
)
def test_evaluation_gives_every_example_once_in_order(batch_size, pad):
    feed = evaluation(numbered(10), batch_size=batch_size, pad=pad)
    found = drawn(feed)
    assert len(found) == feed.steps_per_epoch == -(-10 // batch_size)
    x, y, *weights = (np.concatenate(part) for part in zip(*found, strict=True))
    if pad:
        assert {len(b[0]) for b in found} == {batch_size}
        np.testing.assert_array_equal(weights[0], np.arange(len(x)) < 10)
        x, y = x[:10], y[:10]
    assert len(x) == 10
    np.testing.assert_array_equal(x[:, 0, 0, 0], np.arange(10))
    np.testing.assert_array_equal(y, np.eye(3)[np.arange(10) % 3])


def test_two_hosts_evaluate_what_one_does():
    whole = drawn(evaluation(numbered(10), batch_size=4, pad=True))
    parts = [drawn(evaluation(numbered(10), batch_size=4, pad=True, shard=(i, 2))) for i in (0, 1)]
    assert [len(part) for part in parts] == [3, 3]
    joined = [
        tuple(np.concatenate(pair) for pair in zip(*both, strict=True))
        for both in zip(*parts, strict=True)
    ]
    assert_same(joined, whole)


def test_arrays_of_other_channels_and_greys_are_read_by_python():
    grey, wide = noisy(3, 1), noisy(3, 5)
    feed = Pipeline(grey, (24, 32), 3, RAW, batch_size=3)
    np.testing.assert_array_equal(drawn(feed)[0][0], np.repeat(grey.images, 3, axis=-1))
    feed = Pipeline(wide, (24, 32), 5, RAW, batch_size=3)
    np.testing.assert_array_equal(drawn(feed)[0][0], wide.images)


# Files that cannot be read


def with_broken(*places: int, count: int = 8) -> Source:
    images = [np.full((4, 6, 3), 10 * i, np.uint8) for i in range(count)]
    files = [file_of(i, "PNG") for i in images]
    for place in places:
        files[place] = (file_of(images[0], "JPEG")[:30], b"no image")[place % 2]
    return Source("files", files, np.arange(count) % 3, NAMES)


def test_in_training_a_readable_image_takes_the_place_of_a_broken_one():
    source = with_broken(1, 4)
    found = drawn(training(source, Augment(flip=True)), 0, 4)
    values = np.concatenate([x[:, 0, 0, 0] for x, _ in found])
    numbers = np.rint((values * 127.5 + 127.5) / 10).astype(int)
    assert set(numbers) == {0, 2, 3, 5, 6, 7} and len(numbers) == 16
    np.testing.assert_array_equal(np.concatenate([y for _, y in found]), np.eye(3)[numbers % 3])
    assert len(source.broken) == 2
    assert all(message.startswith("files: an image of ") for message in source.broken)


def test_evaluation_leaves_a_broken_image_out():
    source = with_broken(1, 4)
    found = drawn(evaluation(source, batch_size=3))
    assert [len(x) for x, _ in found] == [2, 2, 2]
    np.testing.assert_array_equal(
        np.concatenate([x[:, 0, 0, 0] for x, _ in found]), [0, 20, 30, 50, 60, 70]
    )
    assert len(source.broken) == 2
    padded = drawn(evaluation(with_broken(1, 4), batch_size=3, pad=True))
    assert np.concatenate([w for *_, w in padded]).tolist() == [1, 0, 1, 1, 0, 1, 1, 1, 0]


def test_broken_paths_are_named(tmp_path):
    paths = []
    for i in range(4):
        paths.append(tmp_path / f"{i}.png")
        paths[i].write_bytes(b"" if i == 2 else file_of(np.full((4, 6, 3), i, np.uint8)))
    source = Source("paths", paths, np.arange(4) % 3, NAMES)
    ((x, _),) = drawn(evaluation(source, batch_size=4))
    np.testing.assert_array_equal(x[:, 0, 0, 0], [0, 1, 3])
    assert len(source.broken) == 1 and str(paths[2]) in source.broken[0]


def test_a_batch_without_any_readable_image_ends_training_with_a_sentence():
    source = with_broken(*range(8))
    with pytest.raises(Exception, match="none of the 4 images of a batch can be read"):
        drawn(training(source))
    found = drawn(evaluation(with_broken(*range(4), count=4), batch_size=2))
    assert [len(x) for x, _ in found] == [0, 0]


# Options that do not go together

REFUSED = {
    "host 2 of 2": ({"shard": (2, 2)}, r"shard must be \(index, count\)"),
    "batch": ({"training": True, "batch_size": 9, "shard": (0, 2)}, "9 examples cannot be shared"),
    "small set": ({"training": True, "batch_size": 12, "shard": (0, 4)}, "10 examples cannot be"),
    "no batch": ({"batch_size": 0}, "0 examples cannot be shared out"),
    "uint8 mixup": (
        {"training": True, "uint8": True, "augment": Augment(mixup=0.2)},
        "uint8 images cannot be mixed",
    ),
    "uint8 cutmix": (
        {"training": True, "uint8": True, "augment": Augment(cutmix=0.2)},
        "uint8 images cannot be mixed",
    ),
    "uint8 evaluation": ({"uint8": True}, "uint8 images cannot be mixed"),
    "pad in training": ({"training": True, "pad": True}, "pad=True is for evaluation"),
    "hosts without pad": ({"shard": (0, 2)}, "several hosts needs pad=True"),
    "buffer": ({"shuffle_buffer": 0}, "must be at least 1, got 0 and"),
    "threads": ({"threads": -2}, "must be at least 1, got 10000 and -2"),
    "random crop": (
        {"training": True, "augment": Augment(crop="random", resize=5)},
        "4x6 needs resize of at least 6, got 5",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_options_that_do_not_go_together_are_refused_in_one_sentence(name):
    options, message = REFUSED[name]
    with pytest.raises(ValueError, match=message) as caught:
        Pipeline(numbered(10), (4, 6), 1, RAW, **options)
    text = str(caught.value)
    assert "\n" not in text and text.endswith(".") and len(text) < 250


def test_channels_that_do_not_fit_are_refused():
    three = Preprocessing(mean=(1.0, 2.0, 3.0), std=(1.0, 1.0, 1.0))
    with pytest.raises(ValueError, match="preprocessing is for 3 channels, but the images have 1"):
        Pipeline(numbered(10), (4, 6), 1, three)
    augment = Augment(randaugment=(2, 10))
    with pytest.raises(ValueError, match="RandAugment takes 1 or 3 channels, but the model takes"):
        Pipeline(noisy(4, 5), (4, 6), 5, RAW, training=True, augment=augment)


@pytest.mark.parametrize("steps", [(-1, 2), (3, 2)])
def test_steps_that_do_not_rise_are_refused(steps):
    with pytest.raises(ValueError, match="steps go from 0 up, got"):
        evaluation(numbered(10)).keras_data(*steps)


def function_graphs() -> int:
    gc.collect()
    return sum(type(thing).__name__ == "FuncGraph" for thing in gc.get_objects())


@pytest.mark.parametrize("images", ["arrays", "bytes", "greys"])
def test_data_sets_that_were_used_are_forgotten(images):
    """TensorFlow keeps what graphs call: with it went every graph of every epoch, and the images."""
    source = {
        "arrays": lambda: noisy(8),
        "bytes": lambda: some_files(8),
        "greys": lambda: noisy(8, channels=1),  # read by Python
    }[images]()
    feed = training(source)
    drawn(feed, 0, 1)
    after_one = function_graphs()
    for step in range(1, 4):
        drawn(feed, step, step + 1)
    assert function_graphs() == after_one

    watched = weakref.ref(feed)
    del feed, source
    gc.collect()
    assert watched() is None


def test_a_data_set_that_is_made_of_another_outlives_its_feed():
    feed = training(some_files(8))
    expected = drawn(feed, 0, 2)
    left = feed.keras_data(0, 2).rebatch(feed.batch_size // 2).prefetch(1)
    batches = iter(left)
    del feed, left
    gc.collect()
    found = [np.asarray(batch[0]) for batch in batches]
    np.testing.assert_array_equal(np.concatenate(found), np.concatenate([x[0] for x in expected]))
