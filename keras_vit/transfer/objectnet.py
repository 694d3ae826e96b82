"""ObjectNet: photographs of 113 kinds of things that ImageNet knows too, in unusual places and poses.

A model keeps all 1,000 outputs of ImageNet. A prediction is right when it is one of the ImageNet classes
that ObjectNet's own mapping gives for the object.

Source: arXiv 2010.11929, appendix D.9; arXiv 1912.11370, Table 6 and section 4.3: shorter side 512, central
crop of 480 pixels. The images have a red border of one pixel, which compression smears over two
(github.com/modestyachts/imagenet-testbed, issue 13): two are cut off, as is usual.
"""

import dataclasses
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from keras_vit.card import Preprocessing
from keras_vit.data.batches import Batches
from keras_vit.data.labels import label_names
from keras_vit.data.sources import Source
from keras_vit.train.evaluate import wilson

OUTPUTS = 1000  # of an ImageNet classifier
BORDER = 2  # pixels
RESIZE, CROP = 512, 480  # shorter side, and the central square of it
FOLDERS = "folder_to_objectnet_label.json"
NAMES = "objectnet_to_imagenet_1k.json"


def imagenet_classes(text: str, names: tuple[str, ...]) -> tuple[int, ...]:
    """The class indices of ImageNet names in a text, `analog clock; digital clock`.

    Args:
        text: names joined by `; `, each with all its synonyms or its first word alone.
        names: of the 1,000 classes, synonyms joined by `, `.

    Raises:
        ValueError: a name is none of them, or several classes have it.
    """
    found = []
    for name in text.split("; "):
        indices = [i for i, known in enumerate(names) if known == name] or [
            i for i, known in enumerate(names) if known.split(", ")[0] == name
        ]
        if len(indices) != 1:
            raise ValueError(
                f"{name!r} is the name of {len(indices)} classes of ImageNet, but ObjectNet's mapping "
                f"must name one: fetch its mappings again."
            )
        found += indices
    return tuple(found)


def read_mapping(folder: Path | str) -> dict[str, tuple[int, ...]]:
    """Name of each image folder of ObjectNet that ImageNet has classes for -> their indices.

    Args:
        folder: that holds `folder_to_objectnet_label.json` and `objectnet_to_imagenet_1k.json`, or
            ObjectNet's own with `mappings` in it.

    Raises:
        ValueError: the files are not there, or do not fit each other.
    """
    folder = Path(folder)
    if (folder / "mappings").is_dir():
        folder = folder / "mappings"
    labels, classes = _table(folder / FOLDERS), _table(folder / NAMES)
    names = label_names("imagenet2012") or ()
    folders = {label: name for name, label in labels.items()}
    if missing := sorted(set(classes) - set(folders)):
        raise ValueError(f"{folder / FOLDERS} has no folder for {', '.join(missing[:5])}.")
    return {folders[label]: imagenet_classes(text, names) for label, text in classes.items()}


def _table(path: Path) -> dict[str, str]:
    try:
        found = json.loads(path.read_text("utf-8"))
        good = isinstance(found, dict) and all(isinstance(v, str) for v in found.values())
    except FileNotFoundError:
        raise ValueError(
            f"{path} is not there: it comes with ObjectNet, in its folder `mappings`."
        ) from None
    except (ValueError, RecursionError):
        good = False
    if not good:
        raise ValueError(f"{path} is no JSON table from names to names, as ObjectNet's is.")
    return found


def without_border(image: np.ndarray) -> np.ndarray:
    """(h, w, C) -> (h - 4, w - 4, C): the image within the red border.

    Raises:
        ValueError: nothing would be left.
    """
    height, width = image.shape[:2]
    if min(height, width) <= 2 * BORDER:
        raise ValueError(f"an image of {height}x{width} pixels is nothing but border.")
    return image[BORDER : height - BORDER, BORDER : width - BORDER]


@dataclasses.dataclass(frozen=True)
class Bordered(Source):
    """A source whose images are read without their border."""

    def image(self, index: int, channels: int) -> np.ndarray | None:
        image = super().image(index, channels)
        return None if image is None else without_border(image)


def open_objectnet(
    folder: Path | str, mapping: Mapping[str, tuple[int, ...]]
) -> tuple[Source, np.ndarray]:
    """The images of the classes that ImageNet has, and what counts as right for each class.

    Args:
        folder: ObjectNet's, with a folder `images` of class folders, or that folder itself.
        mapping: from `read_mapping`.

    Returns:
        The source, its classes in the order of their folders' names, and booleans (classes, 1000).

    Raises:
        ValueError: an image folder is missing or empty.
    """
    root = Path(folder)
    root = root / "images" if (root / "images").is_dir() else root
    names = sorted(mapping)
    if missing := [name for name in names if not (root / name).is_dir()]:
        raise ValueError(
            f"{root} has no folder for {len(missing)} of {len(names)} classes of ObjectNet "
            f"({', '.join(missing[:5])}): give the folder that holds its images."
        )
    paths, labels = [], []
    for label, name in enumerate(names):
        files = sorted(p for p in (root / name).iterdir() if not p.name.startswith("."))
        paths += [str(p) for p in files]
        labels += [label] * len(files)
    right = np.zeros((len(names), OUTPUTS), bool)
    for label, name in enumerate(names):
        right[label, list(mapping[name])] = True
    source = Bordered(f"objectnet:{root}", paths, np.array(labels, np.int32), tuple(names))
    return source, right


def preprocessing_for(preprocessing: Preprocessing, image_size: tuple[int, int]) -> Preprocessing:
    """A model's preprocessing with the crop of the protocol: 480 of 512, in proportion to its input."""
    side = round(min(image_size) * RESIZE / CROP)
    return dataclasses.replace(preprocessing, resize="shorter_side", resize_to=side)


def hits(scores: np.ndarray, right: np.ndarray, top: int = 1) -> np.ndarray:
    """Whether one of the first predictions is right.

    Args:
        scores: (B, 1000) larger for more likely; equal ones in the order of the classes.
        right: (B, 1000) booleans, true for every class that is.
        top: how many predictions count.

    Returns:
        (B,) booleans.

    Raises:
        ValueError: the scores are not those of an ImageNet classifier.
    """
    if scores.ndim != 2 or scores.shape[1] != OUTPUTS:
        raise ValueError(
            f"ObjectNet is measured among all {OUTPUTS} classes of ImageNet, but the scores have the "
            f"shape {scores.shape}."
        )
    first = np.argsort(-scores, axis=1, kind="stable")[:, :top]
    return np.asarray(np.take_along_axis(right, first, axis=1).any(axis=1))


@dataclasses.dataclass(frozen=True)
class Score:
    """What was measured.

    Attributes:
        examples: images, each once.
        broken: messages about images that could not be read.
        top1, top5: shares in [0, 1].
        interval: 95 % interval of `top1`, for this many independent images.
    """

    examples: int
    broken: tuple[str, ...]
    top1: float
    top5: float
    interval: tuple[float, float]


def measure(
    predict: Callable[[np.ndarray], Any],
    source: Source,
    right: np.ndarray,
    *,
    image_size: tuple[int, int],
    channels: int,
    preprocessing: Preprocessing,
    batch_size: int = 64,
    progress: Callable[[int, int], None] | None = None,
) -> Score:
    """Top-1 and top-5 of an ImageNet classifier.

    Args:
        predict: preprocessed float32 images (B, H, W, C) -> probabilities (B, 1000), ImageNet's order.
        source, right: from `open_objectnet`.
        image_size, channels, preprocessing: what the classifier takes.
        batch_size: images per call; it changes nothing but speed.
        progress: called with (images done, images in all).

    Raises:
        ValueError: another classifier, or no image can be read.
    """
    how = preprocessing_for(preprocessing, image_size)
    batches = Batches(source, image_size, channels, how, batch_size=batch_size)
    found: dict[int, list[np.ndarray]] = {1: [], 5: []}
    for index in range(len(batches)):
        images, targets = batches[index][:2]
        if len(images):
            scores = np.asarray(predict(images), np.float64)
            for top, kept in found.items():
                kept.append(hits(scores, right[targets.argmax(axis=1)], top))
        if progress:
            progress(min((index + 1) * batch_size, len(source)), len(source))
    if not found[1]:
        raise ValueError(f"none of the {len(source)} images of {source.name} can be read.")
    top1, top5 = (np.concatenate(kept) for kept in found.values())
    return Score(
        examples=len(top1),
        broken=tuple(source.broken),
        top1=float(top1.mean()),
        top5=float(top5.mean()),
        interval=wilson(int(top1.sum()), len(top1)),
    )
