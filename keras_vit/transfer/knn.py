"""Nearest neighbours on frozen features: no training, and nothing to choose but two numbers.

The neighbours of an image are the `k` training images with the largest cosine similarity s; each votes
for its class with the weight exp(s / temperature).

Source: arXiv 1805.01978, section 3.4; arXiv 2104.14294 (DINO), whose usual setting is k = 20 with the
temperature 0.07.
"""

import dataclasses

import numpy as np

from keras_vit.results.store import Result
from keras_vit.transfer.features import FeatureSet, Progress, check_pair
from keras_vit.transfer.rows import row

NEIGHBOURS = 20
TEMPERATURE = 0.07
Pair = tuple[np.ndarray, np.ndarray]
QUERIES = 1024  # test images at a time: 16 MB of similarities with a block of training images


@dataclasses.dataclass(frozen=True)
class Neighbours:
    """What was measured.

    Attributes:
        k, temperature: as they were chosen.
        right: test images classified rightly.
        tested: test images.
        rows: training images.
    """

    k: int
    temperature: float
    right: int
    tested: int
    rows: int

    @property
    def accuracy(self) -> float:
        """In [0, 1]."""
        return self.right / self.tested


def knn(
    train: FeatureSet,
    test: FeatureSet,
    *,
    k: int = NEIGHBOURS,
    temperature: float = TEMPERATURE,
    progress: Progress | None = None,
) -> Neighbours:
    """Accuracy of the weighted vote of the nearest neighbours.

    Memory: `QUERIES` test images against one block of training images, whatever the sets' sizes.

    Args:
        train, test: features of one extractor.
        k: neighbours of an image.
        temperature: of the weights; the smaller, the more the nearest one counts.
        progress: called with (test images done, test images in all).

    Raises:
        ValueError: the sets do not fit each other, or `k` or `temperature` is out of range.
    """
    check_pair(train, test)
    if not 1 <= k <= len(train) or temperature <= 0:
        raise ValueError(
            f"k must be from 1 to the {len(train)} training images and temperature positive, got {k} "
            f"and {temperature}."
        )
    right = done = 0
    for x, labels in test.blocks(QUERIES):
        similarities, classes = nearest(train, x, k)
        weights = np.exp((similarities - similarities[:, :1]) / temperature)
        votes = np.zeros((len(x), train.num_classes))
        np.add.at(votes, (np.arange(len(x))[:, None], classes), weights)
        right += int((votes.argmax(axis=1) == labels).sum())
        done += len(x)
        if progress:
            progress(done, len(test))
    return Neighbours(k, temperature, right, len(test), len(train))


def nearest(train: FeatureSet, x: np.ndarray, k: int) -> Pair:
    """The cosine similarities (n, k) of the nearest training images, best first, and their classes."""
    queries = _unit(x)
    found: Pair = np.zeros((len(x), 0), np.float32), np.zeros((len(x), 0), np.int32)
    for block, labels in train.blocks():
        new = queries @ _unit(block).T, np.broadcast_to(labels, (len(x), len(labels)))
        if new[0].shape[1] > k:
            new = _picked(new, np.argpartition(-new[0], k - 1, axis=1)[:, :k])
        # Earlier images stand first and the sort is stable: of equals the first ones are taken.
        joined = (
            np.concatenate([found[0], new[0]], axis=1),
            np.concatenate([found[1], new[1]], axis=1),
        )
        found = _picked(joined, np.argsort(-joined[0], axis=1, kind="stable")[:, :k])
    return found


def _picked(pair: Pair, columns: np.ndarray) -> Pair:
    return np.take_along_axis(pair[0], columns, axis=1), np.take_along_axis(
        pair[1], columns, axis=1
    )


def _unit(x: np.ndarray) -> np.ndarray:
    """Rows of length 1; zeros stay zeros."""
    length = np.linalg.norm(x, axis=1, keepdims=True)
    return x / np.maximum(length, np.finfo(np.float32).tiny)


def results(found: Neighbours, train: FeatureSet, test: FeatureSet, **about) -> list[Result]:
    """The row for a store.

    Args:
        about: further fields of the `Result`: `command`, `when`, `versions`.
    """
    settings = {"method": "knn", "neighbours": found.k, "temperature": found.temperature}
    return [row("knn", train, test, found.right, found.tested, settings, **about)]
