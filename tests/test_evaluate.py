"""Scores equal scikit-learn's, and every image counts once whatever the batch size."""

import dataclasses
import warnings
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from sklearn import metrics

from keras_vit.card import Preprocessing
from keras_vit.data.sources import arrays, open_source
from keras_vit.train.evaluate import align, average_precision, evaluate, wilson

SIZE = (7, 5)
PLAIN = Preprocessing(resize="none", mean=(0.0,), std=(1.0,))


def coded(count: int, classes: int, seed: int = 0):
    """Images whose first pixel is their index, and random labels."""
    images = np.zeros((count, *SIZE, 1), np.uint8)
    images[:, 0, 0, 0] = np.arange(count)
    labels = np.random.default_rng(seed).integers(0, classes, count)
    return arrays(images, labels, [f"c{i}" for i in range(classes)], "coded")


def lookup(scores: np.ndarray):
    """A classifier that gives row i of `scores` for the image with index i, and counts its calls."""
    seen = []

    def predict(images: np.ndarray) -> np.ndarray:
        indices = images[:, 0, 0, 0].astype(int)
        seen.extend(indices.tolist())
        return scores[indices]

    return predict, seen


def measure(source, predict, batch_size=64):
    return evaluate(
        predict, source, image_size=SIZE, channels=1, preprocessing=PLAIN, batch_size=batch_size
    )


@pytest.mark.parametrize("batch_size", [1, 3, 53, 64])
def test_scores_equal_scikit_learn_for_every_batch_size(batch_size):
    source = coded(53, 6)
    scores = np.random.default_rng(1).dirichlet(np.ones(6), 53)
    predict, seen = lookup(scores)
    found = measure(source, predict, batch_size)
    assert sorted(seen) == list(range(53))
    predicted = scores.argmax(1)
    assert found.examples == 53
    assert found.accuracy == pytest.approx(metrics.accuracy_score(source.labels, predicted))
    assert found.top5 == pytest.approx(metrics.top_k_accuracy_score(source.labels, scores, k=5))
    np.testing.assert_array_equal(
        found.confusion, metrics.confusion_matrix(source.labels, predicted)
    )
    expected = metrics.precision_recall_fscore_support(source.labels, predicted)
    for field, values in zip(("precision", "recall", "f1", "examples"), expected, strict=True):
        assert [getattr(s, field) for s in found.per_class] == pytest.approx(list(values))


def test_multi_label_scores_equal_scikit_learn():
    rng = np.random.default_rng(2)
    source = coded(40, 2)
    labels = (rng.random((40, 3)) < 0.4).astype(np.int32)
    source = dataclasses.replace(source, labels=labels, class_names=("a", "b", "c"))
    scores = np.round(rng.random((40, 3)), 1)  # rounded: ties must count as one step
    found = measure(source, lookup(scores)[0], 7)
    predicted = scores >= 0.5
    expected = [metrics.average_precision_score(labels[:, i], scores[:, i]) for i in range(3)]
    assert [s.average_precision for s in found.per_class] == pytest.approx(expected)
    assert found.mean_average_precision == pytest.approx(np.mean(expected))
    assert [s.f1 for s in found.per_class] == pytest.approx(
        list(metrics.f1_score(labels, predicted, average=None))
    )
    assert found.accuracy == pytest.approx(metrics.accuracy_score(labels, predicted))
    assert found.confusion is None and found.top5 is None


def test_average_precision_needs_a_positive():
    assert average_precision(np.array([0.2, 0.4]), np.array([False, False])) is None


def test_classes_that_never_occur_have_no_scores():
    source = dataclasses.replace(coded(4, 2), labels=np.zeros(4, np.int32))
    found = measure(source, lookup(np.tile([1.0, 0.0], (4, 1)))[0])
    assert found.per_class[1].precision is None and found.per_class[1].recall is None
    assert found.accuracy == 1.0 and found.top5 is None


@pytest.mark.parametrize(
    ("right", "total", "expected"),
    # Closed form of the interval at 0 and 1: z^2 / (n + z^2) with z^2 = 3.8415.
    [(0, 10, (0.0, 0.27753)), (10, 10, (0.72247, 1.0)), (8, 10, (0.49016, 0.94332))],
)
def test_wilson_interval(right, total, expected):
    assert wilson(right, total) == pytest.approx(expected, abs=1e-4)


def test_broken_images_are_listed_and_never_stop_it(tmp_path):
    for name, colour in (("cat", 10), ("dog", 200)):
        (tmp_path / name).mkdir()
        for i in range(3):
            Image.new("L", SIZE[::-1], colour).save(tmp_path / name / f"{i}.png")
    source = open_source(f"folder:{tmp_path}")
    for path in source.images[3:5]:  # broken after the folder was read
        Path(path).write_bytes(Path(path).read_bytes()[:40])

    def predict(images):
        dark = images.mean((1, 2, 3)) < 100
        return np.stack([dark, ~dark], axis=1).astype(float)

    for batch_size in (1, 2, 64):
        found = measure(source, predict, batch_size)
        assert (found.examples, len(found.broken), found.accuracy) == (4, 2, 1.0)
    assert "1.png" in " ".join(found.broken)


def test_no_readable_image_is_one_sentence(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        Image.new("L", (5, 7)).save(tmp_path / name / "x.png")
    source = open_source(f"folder:{tmp_path}")
    for path in source.images:
        Path(path).write_bytes(b"")
    with pytest.raises(ValueError, match="none of the 2 images"):
        measure(source, lambda images: images)


def test_wrong_number_of_classes_is_one_sentence():
    with pytest.raises(ValueError, match="the model gives 3 classes, but coded has 2"):
        measure(coded(4, 2), lookup(np.ones((4, 3)))[0])


def test_labels_are_matched_by_name():
    source = arrays(np.zeros((3, *SIZE, 1), np.uint8), np.array([0, 1, 1]), ["dog", "cat"])
    found = align(source, ("bird", "cat", "dog"))
    assert found.labels.tolist() == [2, 1, 1]
    assert found.class_names == ("bird", "cat", "dog")
    several = dataclasses.replace(source, labels=np.array([[1, 0], [1, 1], [0, 0]]))
    assert align(several, ("bird", "cat", "dog")).labels.tolist() == [
        [0, 0, 1],
        [0, 1, 1],
        [0, 0, 0],
    ]


def test_unknown_classes_are_refused_and_other_names_in_number_warn():
    source = arrays(np.zeros((3, *SIZE, 1), np.uint8), np.array([0, 1, 1]), ["dog", "cat"])
    with pytest.raises(ValueError, match=r"does not know, 'dog': it knows 'bird', 'cat'"):
        align(source, ("bird", "cat"))
    with pytest.warns(UserWarning, match="no class names in common"):
        assert align(source, ("n01", "n02")).labels.tolist() == [0, 1, 1]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert align(source, ("class 0", "class 1")).class_names == ("class 0", "class 1")


def test_splits_are_stratified_and_keep_every_class_in_training():
    labels = np.array([0] * 40 + [1] * 10 + [2])
    source = arrays(np.zeros((51, *SIZE, 1), np.uint8), labels)
    first, second = source.split(0.1, seed=3)
    assert np.bincount(first.labels).tolist() == [36, 9, 1]
    assert np.bincount(second.labels).tolist() == [4, 1]
    sets = np.zeros((50, 2), np.int32)
    sets[:, 0] = 1
    sets[:5, 1] = 1  # the rare label is stratified too
    first, second = arrays(source.images[:50], sets).split(0.2)
    assert second.labels.sum(axis=0).tolist() == [10, 1]
    with pytest.raises(ValueError, match="between 0 and 1"):
        source.split(1.0)


def test_classes_are_picked_and_renumbered():
    source = coded(53, 6)
    part = source.classes([5, 2])
    assert part.class_names == ("c5", "c2")
    assert (part.labels == 0).sum() == (source.labels == 5).sum()
    several = dataclasses.replace(source, labels=np.eye(6, dtype=np.int32)[source.labels])
    assert several.classes([5, 2]).labels.sum(axis=0).tolist() == np.bincount(part.labels).tolist()
    with pytest.raises(ValueError, match="from 0 to 5"):
        source.classes([6])
