"""Nearest neighbours equal scikit-learn's, whatever the blocks."""

import tracemalloc

import numpy as np
import pytest
from sklearn.neighbors import KNeighborsClassifier

from keras_vit.transfer import knn as module
from keras_vit.transfer.features import FeatureSet, in_memory
from keras_vit.transfer.knn import knn, nearest, results

NAMES = "abcd"


def cloud(count, seed, shards=1):
    """Overlapping clouds in several shards."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 4, count).astype(np.int32)
    centres = np.random.default_rng(9).normal(size=(4, 7))
    x = (centres[labels] + rng.normal(size=(count, 7))).astype(np.float32)
    return FeatureSet(f"cloud{seed}", tuple(np.array_split(x, shards)), labels, tuple(NAMES))


@pytest.mark.parametrize("k", [1, 5, 20])
@pytest.mark.parametrize("temperature", [0.07, 1.0])
def test_accuracy_equals_scikit_learn(monkeypatch, k, temperature):
    monkeypatch.setattr(module, "QUERIES", 17)
    train, test = cloud(150, 0, shards=7), cloud(90, 1, shards=2)
    peer = KNeighborsClassifier(
        k, metric="cosine", weights=lambda distance: np.exp((1.0 - distance) / temperature)
    )
    peer.fit(train.take(np.arange(150)), train.labels)
    found = knn(train, test, k=k, temperature=temperature)
    assert found.accuracy == peer.score(test.take(np.arange(90)), test.labels)
    assert 0.4 < found.accuracy < 1.0 and found.tested == 90 and found.rows == 150


def test_neighbours_are_those_of_all_similarities():
    train, x = cloud(150, 0, shards=7), cloud(20, 1).take(np.arange(20))
    whole = train.take(np.arange(150)).astype(np.float64)
    whole /= np.linalg.norm(whole, axis=1, keepdims=True)
    expected = (x / np.linalg.norm(x, axis=1, keepdims=True)) @ whole.T
    order = np.argsort(-expected, axis=1)[:, :6]
    similarities, classes = nearest(train, x, 6)
    np.testing.assert_allclose(similarities, np.take_along_axis(expected, order, 1), atol=1e-6)
    np.testing.assert_array_equal(classes, train.labels[order])


def test_a_cold_vote_neither_overflows_nor_ties():
    train = in_memory([[1, 0], [0.9, 0.1], [0.9, 0.1], [0, 0]], [0, 1, 1, 1], "ab")
    test = in_memory([[1, 0]], [0], "ab")
    # The nearest one alone at a tiny temperature, two against one at a large one.
    assert knn(train, test, k=3, temperature=1e-5).accuracy == 1.0
    assert knn(train, test, k=3, temperature=10.0).accuracy == 0.0


def test_memory_is_that_of_a_block():
    train, test = cloud(20_000, 0), cloud(2000, 1)
    tracemalloc.start()
    try:
        steps = []
        found = knn(train, test, progress=lambda done, total: steps.append((done, total)))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    # All similarities would be 160 MB.
    assert peak < 100e6 and found.tested == 2000 and steps[-1] == (2000, 2000)


def test_the_result_says_how_it_was_measured():
    train, test = cloud(30, 0), cloud(20, 1)
    found = knn(train, test, k=3)
    (row,) = results(found, train, test)
    assert row.settings["neighbours"] == 3 and row.settings["temperature"] == 0.07
    assert row.value == found.accuracy and row.interval[0] < row.value <= row.interval[1]


@pytest.mark.parametrize("options", [{"k": 0}, {"k": 31}, {"temperature": 0.0}])
def test_numbers_out_of_range_are_refused(options):
    with pytest.raises(ValueError, match="k must be from 1 to the 30"):
        knn(cloud(30, 0), cloud(5, 1), **options)
