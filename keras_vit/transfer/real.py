"""ImageNet ReaL: the validation images with all the labels that people gave them on a second look.

A prediction is right when it is one of an image's labels; images without any are left out.

Source: Beyer et al., Are we done with ImageNet? (arXiv 2006.07159), google-research/reassessed-imagenet.
"""

import json
import os
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from keras_vit.data.sources import Source, open_source
from keras_vit.data.streams import Reading, Stream, open_tfds
from keras_vit.train.evaluate import ranking, wilson

CLASSES = 1000
_NUMBER = re.compile(r"ILSVRC2012_val_(\d{8})")
# Both kinds of labels travel in one array: 1 for each of ReaL's, 2 for the one of ImageNet.
_REAL, _ORIGINAL = 1, 2

Labels = tuple[tuple[int, ...], ...]


def read_real(path: str | os.PathLike) -> Labels:
    """The labels of each validation image, in the order of their numbers, from `real.json`.

    Raises:
        ValueError: the file is another one.
        OSError: it cannot be read.
    """
    try:
        found = json.loads(Path(path).read_text("utf-8"))
        labels = tuple(tuple(map(int, one)) for one in found)
        good = bool(labels) and all(0 <= c < CLASSES for one in labels for c in one)
    except (ValueError, TypeError, RecursionError):
        labels, good = (), False
    if not good:
        raise ValueError(
            f"{path} is not ReaL's real.json, a list of classes from 0 to {CLASSES - 1} for every "
            f"validation image: fetch it from google-research/reassessed-imagenet."
        )
    return labels


def open_real(name: str, real: Labels, *, data_dir: str | None = None) -> Source | Stream:
    """The validation images of ImageNet with both kinds of labels.

    Args:
        name: `tfds:imagenet2012:validation`, or a folder of files that have kept their names,
            `ILSVRC2012_val_00000001.JPEG`.
        real: see `read_real`.
        data_dir: where tensorflow-datasets keeps its files.

    Raises:
        ValueError: other images, whose numbers are not known.
    """
    kind, _, rest = name.partition(":")
    if kind == "tfds":
        reading = Reading(
            features={"label": True, "file_name": True},
            label=lambda example: coded(real, example["file_name"], int(example["label"])),
            multi_label=True,
        )
        return _checked(open_tfds(rest, data_dir=data_dir, reading=reading))
    source = _checked(open_source(name, data_dir=data_dir))
    if not isinstance(source.images, list):
        raise ValueError(f"{name} has no file names, by which ReaL's labels are found.")
    pairs = zip(source.images, source.labels, strict=True)
    labels = np.stack([coded(real, path, int(label)) for path, label in pairs])
    return Source(source.name, source.images, labels, source.class_names, source.broken)


def _checked(source):
    if source.num_classes != CLASSES:
        raise ValueError(
            f"ReaL's labels are for the {CLASSES} classes of ImageNet, but {source.name} has "
            f"{source.num_classes}."
        )
    return source


def coded(real: Labels, file_name: str | bytes | os.PathLike, label: int) -> np.ndarray:
    """int8 (1000,): the labels of one image as `split_labels` takes them apart.

    Raises:
        ValueError: the file name has no number, or there are no labels for it.
    """
    chosen = real[number_of(file_name, len(real)) - 1]
    labels = np.zeros(CLASSES, np.int8)
    labels[list(chosen)] = _REAL
    labels[label] += _ORIGINAL
    return labels


def number_of(file_name: str | bytes | os.PathLike, count: int) -> int:
    """The number of a validation image, from 1 to `count`, by the name of its file.

    Raises:
        ValueError: the file name has no such number.
    """
    name = os.path.basename(os.fsdecode(file_name))
    found = _NUMBER.search(name)
    number = int(found[1]) if found else 0
    if not 1 <= number <= count:
        raise ValueError(
            f"{name} is no validation image of ImageNet (ILSVRC2012_val_00000001 to "
            f"ILSVRC2012_val_{count:08d}), so ReaL has no labels for it."
        )
    return number


def split_labels(targets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Targets of `open_real` (B, 1000) -> one-hot targets of ImageNet, and ReaL's of 0 and 1."""
    targets = targets.astype(np.int8)
    return targets // _ORIGINAL, targets % _ORIGINAL


class RealScores:
    """How often the first prediction is one of an image's labels, batch by batch."""

    def __init__(self):
        self.examples = self.right = 0

    def add(self, probabilities: np.ndarray, targets: np.ndarray) -> None:
        """Counts a batch: probabilities and ReaL's targets (B, 1000)."""
        first = ranking(probabilities, 1)
        hit = np.take_along_axis(targets, first, axis=1)[:, 0] > 0
        self.examples += int((targets > 0).any(axis=1).sum())
        self.right += int(hit.sum())

    @property
    def accuracy(self) -> float:
        """Share of the images with labels."""
        return self.right / max(self.examples, 1)

    @property
    def interval(self) -> tuple[float, float]:
        """95 % interval of it."""
        return wilson(self.right, self.examples)


def score(
    predictions: np.ndarray, real: Labels, file_names: Sequence[str | os.PathLike] | None = None
) -> RealScores:
    """ReaL accuracy of predictions that are already there, of any model and from any program.

    Args:
        predictions: (n,) classes, or (n, 1000) scores, larger for more likely.
        real: see `read_real`.
        file_names: of the n images, in the order of `predictions`; None when these are all images
            in the order of their numbers.

    Raises:
        ValueError: not as many predictions as images, or no classes of ImageNet; an image that has no
            number, or the same one twice.
    """
    predictions = np.asarray(predictions)
    if predictions.ndim == 2 and predictions.shape[1] == CLASSES:
        predictions = ranking(predictions, 1)[:, 0]
    whole = predictions.ndim == 1 and np.issubdtype(predictions.dtype, np.integer)
    if not whole or np.any((predictions < 0) | (predictions >= CLASSES)):
        raise ValueError(
            f"predictions must be classes from 0 to {CLASSES - 1}, or scores of {CLASSES} classes for "
            f"each image, got shape {predictions.shape} of {predictions.dtype}."
        )
    count = len(real) if file_names is None else len(file_names)
    if len(predictions) != count:
        named = "ReaL has labels for" if file_names is None else "there are file names of"
        raise ValueError(
            f"there are {len(predictions)} predictions, but {named} {count} images: give one for each "
            f"image, in the order of their numbers or with their file names."
        )
    if file_names is None:
        numbers = list(range(1, count + 1))
    else:
        numbers = [number_of(name, len(real)) for name in file_names]
        if twice := [n for n, times in Counter(numbers).items() if times > 1]:
            raise ValueError(f"ILSVRC2012_val_{twice[0]:08d} is among the file names twice.")
    found = RealScores()
    for number, prediction in zip(numbers, predictions.tolist(), strict=True):
        labels = real[number - 1]
        found.examples += bool(labels)
        found.right += prediction in labels
    return found
