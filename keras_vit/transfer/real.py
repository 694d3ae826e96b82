"""ImageNet ReaL: the validation images with all the labels that people gave them on a second look.

A prediction is right when it is one of an image's labels; images without any are left out.

Source: Beyer et al., Are we done with ImageNet? (arXiv 2006.07159), google-research/reassessed-imagenet.
"""

import json
import os
import re
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
    name = os.path.basename(os.fsdecode(file_name))
    found = _NUMBER.search(name)
    number = int(found[1]) if found else 0
    if not 1 <= number <= len(real):
        raise ValueError(
            f"{name} is no validation image of ImageNet (ILSVRC2012_val_00000001 to "
            f"ILSVRC2012_val_{len(real):08d}), so ReaL has no labels for it."
        )
    labels = np.zeros(CLASSES, np.int8)
    labels[list(real[number - 1])] = _REAL
    labels[label] += _ORIGINAL
    return labels


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
