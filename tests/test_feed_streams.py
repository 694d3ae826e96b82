"""tensorflow-datasets as a feed: in memory, and streamed from files."""

import numpy as np
import pytest

from keras_vit.card import Preprocessing
from keras_vit.data.augment import Augment
from keras_vit.data.pipeline import Pipeline
from keras_vit.data.sources import Source, open_feed_source
from keras_vit.data.streams import Part, Stream, parts_between

pytestmark = [
    pytest.mark.tf_only,
    pytest.mark.filterwarnings("ignore::DeprecationWarning:tensorflow_datasets"),
]

COUNT, FILES = 23, 3
RAW = Preprocessing(mean=(0.0,), std=(1.0,))
NAMES = ("ant", "bee", "cow")


@pytest.fixture(autouse=True, params=[None, 0], ids=["unseeded", "seeded"])
def global_seed(request, monkeypatch):
    """`fit` sets the global seed, which some of TensorFlow's functions then treat otherwise."""
    import tensorflow as tf

    tf.random.set_seed(request.param)
    yield
    tf.random.set_seed(None)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> str:
    """A set named `tiny` in three files: each image holds its number, its label is that modulo 3."""
    import tensorflow as tf
    import tensorflow_datasets as tfds

    path = tmp_path_factory.mktemp("tfds")
    numbers = np.arange(COUNT)
    images = np.broadcast_to(numbers.astype(np.uint8)[:, None, None, None], (COUNT, 6, 8, 3)).copy()
    tfds.dataset_builders.store_as_tfds_dataset(
        name="tiny",
        version="1.0.0",
        data_dir=path,
        features=tfds.features.FeaturesDict(
            {
                "image": tfds.features.Image(shape=(None, None, 3)),
                "label": tfds.features.ClassLabel(names=list(NAMES)),
            }
        ),
        split_datasets={
            "train": tf.data.Dataset.from_tensor_slices({"image": images, "label": numbers % 3})
        },
        download_config=tfds.download.DownloadConfig(num_shards=FILES),
    )
    return str(path)


@pytest.fixture
def stream(folder, monkeypatch) -> Stream:
    monkeypatch.setattr("keras_vit.data.streams.TFDS_MEMORY_LIMIT", 0)
    opened = open_feed_source("tfds:tiny", data_dir=folder)
    assert isinstance(opened, Stream)
    return opened


def drawn(feed: Pipeline, start: int = 0, stop: int | None = None) -> list[tuple[np.ndarray, ...]]:
    return [tuple(np.asarray(part) for part in b) for b in feed.keras_data(start, stop)]


def feed_of(source, **options) -> Pipeline:
    options = {"batch_size": 4, "seed": 3, "shuffle_buffer": 8} | options
    return Pipeline(source, (6, 8), 3, RAW, **options)


def numbers_of(batches) -> np.ndarray:
    """The numbers of the examples, after their labels have been checked."""
    numbers = np.concatenate([batch[0][:, 0, 0, 0] for batch in batches]).astype(int)
    targets = np.concatenate([batch[1] for batch in batches])
    np.testing.assert_array_equal(targets, np.eye(3)[numbers % 3])
    return numbers


def assert_same(left, right):
    assert len(left) == len(right)
    for one, other in zip(left, right, strict=True):
        for a, b in zip(one, other, strict=True):
            np.testing.assert_array_equal(a, b)


def stored_order(stream: Stream) -> np.ndarray:
    return numbers_of(drawn(feed_of(stream, batch_size=COUNT)))


# Opening


def test_a_set_that_fits_comes_into_memory_encoded(folder):
    source = open_feed_source("tfds:tiny", data_dir=folder)
    assert isinstance(source, Source) and len(source) == COUNT
    assert source.class_names == NAMES and source.name == "tfds:tiny:train"
    assert all(isinstance(image, bytes) for image in source.images)
    numbers = numbers_of(drawn(feed_of(source, batch_size=7)))
    np.testing.assert_array_equal(numbers % 3, source.labels)
    assert sorted(numbers) == list(range(COUNT))
    found = drawn(feed_of(source, training=True), 0, 10)
    assert len(set(numbers_of(found[:5]))) == 20
    assert_same(drawn(feed_of(source, training=True), 3, 7), found[3:7])


def test_parts_of_a_split_are_splits(folder, monkeypatch):
    kept = open_feed_source("tfds:tiny:train[50%:]", data_dir=folder)
    monkeypatch.setattr("keras_vit.data.streams.TFDS_MEMORY_LIMIT", 0)
    whole = open_feed_source("tfds:tiny:train", data_dir=folder)
    second = open_feed_source("tfds:tiny:train[50%:]", data_dir=folder)
    assert isinstance(kept, Source) and isinstance(second, Stream)
    assert len(kept) == len(second) and 11 <= len(second) <= 12
    numbers = stored_order(second)
    np.testing.assert_array_equal(numbers, stored_order(whole)[-len(second) :])
    np.testing.assert_array_equal(numbers % 3, kept.labels)


@pytest.mark.parametrize("name", ["tfds:tiny:test", "tfds:no_such_set"])
def test_a_set_that_is_not_there_is_refused_in_one_sentence(folder, name):
    with pytest.raises(ValueError, match="on this machine") as caught:
        open_feed_source(name, data_dir=folder)
    assert "\n" not in str(caught.value) and "prepare the data" in str(caught.value)


def test_records_of_parts_are_found():
    parts = [Part("a", 0, 5), Part("b", 2, 3), Part("c", 0, 4)]
    assert parts_between(parts, 0, 12) == parts
    assert parts_between(parts, 4, 9) == [Part("a", 4, 1), Part("b", 2, 3), Part("c", 0, 1)]
    assert parts_between(parts, 6, 7) == [Part("b", 3, 1)]
    assert parts_between(parts, 5, 5) == []


# Training


def test_every_example_of_a_stream_comes_once_per_epoch(stream):
    feed = feed_of(stream, training=True, batch_size=1)
    assert feed.steps_per_epoch == COUNT
    numbers = numbers_of(drawn(feed, 0, 2 * COUNT))
    first, second = numbers[:COUNT], numbers[COUNT:]
    assert sorted(first) == sorted(second) == list(range(COUNT))
    assert list(first) != list(second) and list(first) != list(stored_order(stream))
    other = numbers_of(drawn(feed_of(stream, training=True, batch_size=1, seed=4)))
    assert list(other) != list(first)


def test_a_stream_goes_on_in_mid_epoch_with_the_same_bits(stream):
    augment = Augment(crop="inception", flip=True, erase=0.5, mixup=0.2)
    options = {"training": True, "augment": augment}
    whole = drawn(feed_of(stream, threads=2, **options), 0, 20)
    assert len(whole) == 20 and feed_of(stream).steps_per_epoch == 6
    assert_same(drawn(feed_of(stream, threads=1, **options), 7, 13), whole[7:13])


def test_two_hosts_share_out_a_stream(stream):
    feeds = [feed_of(stream, training=True, batch_size=2, shard=(i, 2)) for i in (0, 1)]
    assert {feed.steps_per_epoch for feed in feeds} == {11}
    parts = [numbers_of(drawn(feed, 0, 22)) for feed in feeds]
    for epoch in (slice(0, 11), slice(11, 22)):
        seen = np.concatenate([part[epoch] for part in parts])
        assert len(set(seen)) == 22  # one of 23 is left over
    # A host has the same examples in every epoch, or one more of its part.
    assert len(set(parts[0])) <= 12 and not set(parts[0]) & set(parts[1])
    assert feeds[0].identity() == feeds[1].identity()
    assert feeds[0].identity() != feed_of(stream, training=True).identity()


# Evaluation


def test_evaluation_reads_a_stream_in_stored_order(stream):
    order = stored_order(stream)
    assert sorted(order) == list(range(COUNT))
    for batch_size in (1, 7, COUNT + 5):
        numbers = numbers_of(drawn(feed_of(stream, batch_size=batch_size)))
        np.testing.assert_array_equal(numbers, order)


def test_two_hosts_evaluate_a_stream_completely(stream):
    found = [drawn(feed_of(stream, pad=True, shard=(i, 2))) for i in (0, 1)]
    assert len(found[0]) == len(found[1]) == 6
    assert {b[0].shape for part in found for b in part} == {(2, 6, 8, 3)}
    numbers = []
    for part in found:
        weights = np.concatenate([w for _, _, w in part])
        values = np.concatenate([x[:, 0, 0, 0] for x, _, _ in part])
        targets = np.concatenate([y for _, y, _ in part])
        numbers += list(values[weights == 1].astype(int))
        np.testing.assert_array_equal(
            targets[weights == 1], np.eye(3)[values[weights == 1].astype(int) % 3]
        )
        assert set(weights) <= {0.0, 1.0} and not values[weights == 0].any()
    np.testing.assert_array_equal(numbers, stored_order(stream))


# Bounds


def counting(total: int, broken: int | None = None) -> tuple[Stream, list[int]]:
    """A stream of PNG files that notes what is read of it."""
    import tensorflow as tf

    data = tf.io.encode_png(np.full((6, 8, 3), 9, np.uint8)).numpy()
    pulled: list[int] = []

    def records(first, last):
        for number in range(first, last):
            pulled.append(number)
            yield number

    def read(first, last, seed):
        return tf.data.Dataset.from_generator(
            lambda: records(first, last), output_signature=tf.TensorSpec((), tf.int64)
        )

    def parse(record):
        image = tf.where(record == -1 if broken is None else record == broken, b"broken", data)
        return image, record % 3

    return Stream("counted", total, NAMES, read, parse), pulled


@pytest.mark.case("T03")
def test_a_stream_reads_no_more_than_its_buffer_and_a_few_batches_ahead():
    stream, pulled = counting(10_000)
    feed = feed_of(stream, training=True, batch_size=16, shuffle_buffer=200)
    data = feed.keras_data(0, feed.steps_per_epoch)
    assert pulled == []
    next(iter(data))
    # In hand, ahead, two being made, two that wait, the rows of two more.
    assert 200 <= len(pulled) <= 200 + 8 * 16 + 2 * feed.threads
    stream, pulled = counting(10_000)
    next(iter(feed_of(stream, batch_size=16).keras_data()))
    assert 16 <= len(pulled) <= 8 * 16 + 2 * feed.threads


def test_a_broken_image_of_a_stream_is_left_out_of_evaluation():
    stream, _ = counting(10, broken=5)
    found = drawn(feed_of(stream, pad=True))
    assert np.concatenate([w for *_, w in found]).tolist() == [1] * 5 + [0] + [1] * 4 + [0] * 2
    assert len(stream.broken) == 1 and stream.broken[0].startswith("counted: an image of ")
    stream, _ = counting(10, broken=5)
    found = drawn(feed_of(stream, training=True))
    assert [len(x) for x, _ in found] == [4, 4] and (found[1][0] == 9).all()
