"""Near-duplicates between two sets of images, so that no test image, however saved, is trained on.

Two ways, the same search: vectors of one set against those of the other, a block at a time.

- By picture: perceptual hashes of 144 bits (pHash) of each image and of ten slightly cropped views of it. What is within a few bits is laid on top of each other and compared pixel by
  pixel, so that things that merely look alike are told apart.
- By features of a network: the cosine of the angle between them.
"""

import dataclasses
from collections.abc import Callable, Iterable, Iterator

import numpy as np

from keras_vit.data.looks import BITS, Looks, boxes, likeness, looks
from keras_vit.data.sources import Source
from keras_vit.data.streams import Stream

LEAST_COSINE = 0.95
AT_ONCE = 512  # pairs that are laid on top of each other
PRODUCTS = 2**24  # numbers of a block of products: 64 MB
MOST_PAIRS = 5_000_000  # within the threshold, before they are looked at
Progress = Callable[[int, int], None]


@dataclasses.dataclass(frozen=True)
class Limits:
    """Which pairs count as near-duplicates, measured in docs/dedup.md.

    Attributes:
        bits: that may differ of the 144 of the hashes, 0 to 143.
        likeness: least correlation of the pixels, in [0, 1]; 0 to go by the hashes alone.
        crops: whether the hashes of cropped views are compared too.

    Raises:
        ValueError: out of range.
    """

    bits: int
    likeness: float
    crops: bool = True

    def __post_init__(self):
        if not 0 <= self.bits < BITS:
            raise ValueError(f"the bits that may differ must be 0 to {BITS - 1}, got {self.bits}.")
        if not 0.0 <= self.likeness <= 1.0:
            raise ValueError(f"the least likeness must be in [0, 1], got {self.likeness}.")


PICTURES = Limits(28, 0.95)
# In a few pixels many things look alike, and a view lacks one or two of them.
TINY = Limits(12, 0.99, crops=False)
TINY_SIDE = 64  # pixels of the shorter side


def limits_for(*sides: np.ndarray) -> Limits:
    """Limits for images of such shorter sides, one array for each set."""
    return TINY if min(np.median(some) for some in sides if len(some)) < TINY_SIDE else PICTURES


@dataclasses.dataclass(frozen=True)
class Pair:
    """An image of the training set and one of the test set that show the same.

    Attributes:
        train, test: places in their sets, from 0.
        distance: bits of the hashes that differ, or 1 - cosine of the features.
        likeness: correlation of the pixels in [-1, 1], None for features.
        exact: whether all pixels are equal; None for features.
    """

    train: int
    test: int
    distance: float
    likeness: float | None = None
    exact: bool | None = None


def picture_pairs(
    train: Source | Stream,
    test: Source | Stream,
    *,
    limits: Limits | None = None,
    progress: Progress | None = None,
) -> list[Pair]:
    """Near-duplicates by perceptual hash and pixels, by place in the training set.

    Args:
        train, test: of any size; of each image of `test` 9 kB are held in memory.
        limits: None for `PICTURES`, or `TINY` where the images of either set are tiny.
        progress: called with (images read, images in all).

    Raises:
        ValueError: none of the test images can be read, or far too many pairs are within the limits.
    """
    total, done = len(train) + len(test), 0

    def told(block: "Looks") -> "Looks":
        nonlocal done
        done += block.read
        if progress:
            progress(done, total)
        return block

    known = Looks.joined([told(block) for block in looks(test)])
    if not len(known.places):
        raise ValueError(f"none of the {len(test)} images of {test.name} can be read.")
    found: list[Pair] = []
    for block in looks(train):
        chosen = limits or limits_for(block.sides, known.sides)
        for row, column, bits, like in _same(block, known, chosen):
            exact = bool(block.digests[row] == known.digests[column])
            places = int(block.places[row]), int(known.places[column])
            found.append(Pair(*places, bits, 1.0 if exact else round(like, 4), exact))
        _check_number(len(found))
        told(block)
    return sorted(found, key=lambda pair: (pair.train, pair.distance, pair.test))


def feature_pairs(
    train: Iterable[np.ndarray], test: Iterable[np.ndarray], *, least_cosine: float = LEAST_COSINE
) -> list[Pair]:
    """Near-duplicates by features, by place in the training set.

    Args:
        train, test: blocks of rows (n, D) in order; those of `test` are held in memory.
        least_cosine: least cosine of two rows, in (0, 1].

    Raises:
        ValueError: the threshold is out of range, or far too many pairs are within it.
    """
    check_cosine(least_cosine)
    known = np.concatenate([_unit(block) for block in test])
    found, first = [], 0
    for block in train:
        for rows, columns, cosines in close(_unit(block), known, least_cosine - 1e-6):
            distances = np.maximum(1.0 - cosines, 0.0).round(6)
            found += [
                Pair(first + row, column, distance)
                for row, column, distance in zip(
                    rows.tolist(), columns.tolist(), distances.tolist(), strict=True
                )
            ]
        _check_number(len(found))
        first += len(block)
    return sorted(found, key=lambda pair: (pair.train, pair.distance, pair.test))


def check_cosine(least: float) -> None:
    """Raises ValueError for a threshold that no cosine can be asked to reach."""
    if not 0.0 < least <= 1.0:
        raise ValueError(f"the least cosine must be in (0, 1], got {least}.")


def close(
    a: np.ndarray, b: np.ndarray, least: float
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """(rows of a, rows of b, their products), (k,) each, of all whose product is at least so much.

    Args:
        a, b: float32 (n, D) and (m, D).
        least: see above.

    Raises:
        ValueError: far too many are.
    """
    count = 0
    for start in range(0, len(b), step := max(1, PRODUCTS // max(len(a), 1))):
        products = a @ b[start : start + step].T
        rows, columns = np.nonzero(products >= least)
        count += len(rows)
        _check_number(count)
        yield rows, columns + start, products[rows, columns]


def _check_number(count: int) -> None:
    if count > MOST_PAIRS:
        raise ValueError(
            f"more than {MOST_PAIRS:,} pairs are within the threshold: take a stricter one."
        )


def _unit(rows: np.ndarray) -> np.ndarray:
    rows = np.asarray(rows, np.float32)
    return rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)


def _same(train: Looks, test: Looks, limits: Limits) -> Iterator[tuple[int, int, int, float]]:
    """(row of train, row of test, bits that differ, likeness) of what shows the same."""
    found = _closest_views(train, test, limits.bits, limits.crops)
    for start in range(0, len(found), AT_ONCE):
        some = found[start : start + AT_ONCE]
        a, b = train.small[some["train"]], test.small[some["test"]]
        # Either may lack a little of the other.
        whole, guess, of_train = boxes()[:1], boxes()[some["view"]], some["of_train"][:, None]
        like = np.maximum(
            likeness(a, b, np.where(of_train, guess, whole)),
            likeness(b, a, np.where(of_train, whole, guess)),
        )
        good = like >= limits.likeness
        for row, value in zip(some[good], like[good], strict=True):
            yield int(row["train"]), int(row["test"]), int(row["bits"]), float(value)


_CANDIDATE = [("train", "i8"), ("test", "i8"), ("bits", "i8"), ("view", "i8"), ("of_train", "?")]


def _closest_views(train: Looks, test: Looks, most_bits: int, crops: bool = True) -> np.ndarray:
    """Pairs of rows with the fewest bits that differ, the view that has them, and whether it is train's.

    One of two images may be a crop of the other: views of each meet the other's whole.
    """
    signs = [np.where(part.hashes, np.float32(1), np.float32(-1)) for part in (train, test)]
    # The product of two rows of signs is all bits less twice those that differ.
    least, parts = BITS - 2 * most_bits, []
    for view in range(len(boxes()) if crops else 1):
        for of_train in (True, False) if view else (True,):
            a, b = signs[0][:, view if of_train else 0], signs[1][:, 0 if of_train else view]
            for rows, columns, products in close(a, b, least):
                part = np.zeros(len(rows), _CANDIDATE)
                part["train"], part["test"] = rows, columns
                part["bits"] = np.rint((BITS - products) / 2)
                part["view"], part["of_train"] = view, of_train
                parts.append(part)
    found = np.concatenate(parts)
    found = found[np.lexsort((found["view"], found["bits"], found["test"], found["train"]))]
    _, first = np.unique(found[["train", "test"]], return_index=True)
    return found[np.sort(first)]
