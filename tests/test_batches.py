"""Batches: which examples, in which order, how many at a time, and the same again after a restart."""

import numpy as np
import pytest

from keras_vit.card import Preprocessing
from keras_vit.data.augment import Augment, erase, flip, mixup, shift
from keras_vit.data.batches import Batches
from keras_vit.data.sources import Source, arrays

RAW = Preprocessing(mean=(0.0,), std=(1.0,))
PLAIN = Augment(flip=True, shift=True, erase=0.5)
FUNCTIONS = {"flip": flip, "shift": shift, "erase": lambda images, rng: erase(images, rng, 0.5)}


def numbered(count: int, classes: int = 3) -> Source:
    """Images whose pixels say their place."""
    images = np.arange(count, dtype=np.uint8)[:, None, None, None]
    return arrays(
        np.broadcast_to(images, (count, 4, 4, 1)).copy(),
        np.arange(count) % classes,
        [f"c{i}" for i in range(classes)],
    )


def places(batches: Batches) -> list[int]:
    return [int(v) for i in range(len(batches)) for v in batches[i][0][:, 0, 0, 0]]


def test_every_example_comes_once_in_order_with_its_target():
    batches = Batches(numbered(10), (4, 4), 1, RAW, batch_size=4)
    assert len(batches) == 3
    assert places(batches) == list(range(10))
    x, y = batches[2]
    assert x.shape == (2, 4, 4, 1) and x.dtype == np.float32
    np.testing.assert_array_equal(y, np.eye(3, dtype=np.float32)[[2, 0]])


def test_training_shuffles_and_each_epoch_differs():
    batches = Batches(numbered(42), (4, 4), 1, RAW, batch_size=7, training=True, seed=1)
    first, second = (places(batches.keras_data(6 * e, 6 * e + 6)) for e in range(2))
    assert sorted(first) == sorted(second) == list(range(42))
    assert first != second and first != list(range(42))
    assert places(batches.keras_data(0, 12)) == first + second


def test_a_resumed_run_sees_the_same_batches():
    def make(seed=1):
        return Batches(
            numbered(24),
            (4, 4),
            1,
            RAW,
            batch_size=5,
            training=True,
            augment=Augment(flip=True, shift=True, erase=0.5, mixup=0.4),
            seed=seed,
        )

    whole, resumed = make().keras_data(0, 12), make().keras_data(6, 12)
    assert make().steps_per_epoch == 4 and (len(whole), len(resumed)) == (12, 6)
    for index in reversed(range(6)):  # in any order, from the middle of an epoch
        for a, b in zip(whole[6 + index], resumed[index], strict=True):
            np.testing.assert_array_equal(a, b)
    assert not np.array_equal(make(seed=2)[0][0], make()[0][0])
    assert not np.array_equal(whole[0][0], whole[4][0])


def test_the_last_batch_of_training_is_left_out_unless_it_is_the_only_one():
    for count, training, expected in ((10, True, 2), (10, False, 3), (3, True, 1), (3, False, 1)):
        batches = Batches(numbered(count), (4, 4), 1, RAW, batch_size=4, training=training)
        assert batches.steps_per_epoch == len(batches) == expected
    assert len(batches[0][0]) == 3


def test_a_padded_evaluation_has_one_shape_and_counts_every_example_once():
    batches = Batches(numbered(10), (4, 4), 1, RAW, batch_size=4, pad=True)
    found = [batches[i] for i in range(len(batches))]
    assert {(x.shape, y.shape, w.shape) for x, y, w in found} == {((4, 4, 4, 1), (4, 3), (4,))}
    assert [w.tolist() for _, _, w in found] == [[1.0] * 4, [1.0] * 4, [1.0, 1.0, 0.0, 0.0]]
    np.testing.assert_array_equal(found[2][0][2:], 0.0)


@pytest.mark.parametrize("training", [False, True])
def test_hosts_share_out_every_batch(training):
    options = {"batch_size": 4, "training": training, "seed": 3}
    whole = Batches(numbered(14), (4, 4), 1, RAW, **options)
    parts = [Batches(numbered(14), (4, 4), 1, RAW, shard=(i, 2), **options) for i in range(2)]
    for index in range(len(whole)):
        both = [np.concatenate(pair) for pair in zip(*(p[index] for p in parts), strict=True)]
        for a, b in zip(both, whole[index], strict=True):
            np.testing.assert_array_equal(a, b)
    assert {part.steps_per_epoch for part in parts} == {whole.steps_per_epoch}
    with pytest.raises(ValueError, match="batch_size 4 cannot be shared out among 3 hosts"):
        Batches(numbered(14), (4, 4), 1, RAW, batch_size=4, shard=(0, 3))


def test_what_tells_data_apart():
    def identity(source):
        return Batches(source, (4, 4), 1, RAW).identity()

    assert identity(numbered(10)) == identity(numbered(10))
    assert identity(numbered(10)) != identity(numbered(11))
    assert identity(numbered(10)) != identity(numbered(10, classes=4))


class Counted:
    """Ten thousand images that are made when asked for, and counted."""

    def __init__(self):
        self.read = 0

    def __len__(self):
        return 10_000

    def __getitem__(self, index):
        self.read += 1
        return np.full((6, 6, 3), index % 256, np.uint8)


@pytest.mark.case("T03")
def test_nothing_is_read_before_it_is_needed():
    images = Counted()
    source = Source("counted", images, np.arange(10_000) % 2, ("a", "b"))
    batches = Batches(
        source, (4, 4), 3, RAW, batch_size=16, training=True, augment=Augment(flip=True)
    )
    assert images.read == 0
    batches[0]
    assert images.read == 16


def test_images_of_many_sizes_become_one_batch():
    rng = np.random.default_rng(0)
    images = [rng.integers(0, 256, (h, w, 3), np.uint8) for h, w in [(5, 9), (12, 4), (8, 8)]]
    source = Source("mixed", images, np.array([0, 1, 0]), ("a", "b"))
    for augment in (Augment(), PLAIN):
        batches = Batches(source, (8, 6), 3, RAW, training=True, augment=augment)
        assert batches[0][0].shape == (3, 8, 6, 3)


def test_multi_label_targets_and_class_weights():
    labels = np.array([[1, 0, 1], [0, 1, 0]])
    source = arrays(np.zeros((2, 4, 4, 1), np.uint8), labels, ["a", "b", "c"])
    weights = np.array([1.0, 2.0, 3.0], np.float32)
    _, y, factor = Batches(source, (4, 4), 1, RAW, class_weights=weights)[0]
    np.testing.assert_array_equal(y, labels)
    assert factor.tolist() == [2.0, 2.0]  # the mean of 1 and 3, and 2


def test_what_is_not_plain_is_refused_by_name():
    with pytest.raises(ValueError, match=r"knows flip, shift, erase and mixup, .*use Pipeline"):
        Batches(numbered(3), (4, 4), 1, RAW, augment=Augment(crop="inception"))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_augmentations_keep_shape_and_type_and_leave_their_input(name):
    images = np.random.default_rng(0).integers(0, 256, (16, 28, 21, 3), np.uint8)
    before = images.copy()
    found = FUNCTIONS[name](images, np.random.default_rng(1))
    assert found.shape == images.shape and found.dtype == np.uint8
    np.testing.assert_array_equal(images, before)
    assert (found != images).any()
    np.testing.assert_array_equal(found, FUNCTIONS[name](images, np.random.default_rng(1)))


def test_flip_mirrors_about_half_and_leaves_the_rest():
    images = np.random.default_rng(0).integers(0, 256, (400, 2, 5, 1), np.uint8)
    found = flip(images, np.random.default_rng(1))
    kept = (found == images).all(axis=(1, 2, 3))
    mirrored = (found == images[:, :, ::-1]).all(axis=(1, 2, 3))
    assert (kept | mirrored).all()
    assert 150 < mirrored.sum() < 250  # five standard deviations of a fair coin


def test_shift_moves_by_at_most_a_fourteenth_and_fills_with_zeros():
    images = np.full((200, 28, 28, 1), 9, np.uint8)
    found = shift(images, np.random.default_rng(0))[..., 0]
    assert set(np.unique(found)) == {0, 9}
    assert (found[:, 2:-2, 2:-2] == 9).all()
    lost = (found == 0).any(axis=2).sum(axis=1)
    assert lost.max() >= 2


def test_mixup_blends_neighbours_images_and_targets_alike():
    images = np.arange(4, dtype=np.float32)[:, None]
    targets = np.eye(4, dtype=np.float32)
    x, y = mixup(images, targets, 0.5, np.random.default_rng(0))
    weight = y[1, 1]
    assert 0.5 <= weight < 1.0  # the larger of b and 1 - b stays with the example
    np.testing.assert_allclose(x[1, 0], weight * 1 + (1 - weight) * 0, rtol=1e-6)
    np.testing.assert_allclose(x[0, 0], (1 - weight) * 3, rtol=1e-6)
    np.testing.assert_allclose(y.sum(axis=1), 1.0, rtol=1e-6)
    assert x.dtype == y.dtype == np.float32
