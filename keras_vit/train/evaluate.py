"""Measuring a classifier on labelled images, whatever runs it: a Keras model or an exported file."""

import dataclasses
import math
import time
import warnings
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from keras_vit.card import Preprocessing
from keras_vit.data.batches import Batches
from keras_vit.data.pipeline import Pipeline
from keras_vit.data.sources import Source
from keras_vit.data.streams import Stream

if TYPE_CHECKING:
    from keras_vit.model import VisionModel

Data = TypeVar("Data", bound=Source | Stream)
Predict = Callable[[np.ndarray], np.ndarray]
NORMAL_95 = 1.959963984540054  # two-sided 95 % quantile of the normal distribution
THRESHOLD = 0.5  # a label of a multi-label target counts as predicted from here on
CONFUSION_LIMIT = 5000  # classes; a matrix of more would take more memory than the model


@dataclasses.dataclass(frozen=True)
class ClassScore:
    """How one class was recognised; None where nothing was there to measure it on.

    Attributes:
        name: of the class.
        examples: images that have it.
        precision: share of the images predicted to have it that do.
        recall: share of the images that have it that were predicted to.
        f1: harmonic mean of both.
        average_precision: area under the precision-recall curve, in steps (multi-label only).
    """

    name: str
    examples: int
    precision: float | None
    recall: float | None
    f1: float | None
    average_precision: float | None = None


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """What was measured.

    Attributes:
        data: name of the source.
        examples: images that were evaluated, each once.
        broken: messages about images that could not be read.
        accuracy: share of images whose first prediction is right; with multi-label targets, whose
            whole set of labels is.
        interval: 95 % interval of it, for this many independent images (Wilson).
        top5: share of images with the right class among the first five; None below five classes.
        mean_average_precision: over the classes that occur (multi-label only).
        confusion: counts, [true class][predicted class]; None for multi-label targets, and for
            more than 5,000 classes.
        per_class: one score per class, in order.
        seconds: of reading and predicting.
    """

    data: str
    examples: int
    broken: tuple[str, ...]
    accuracy: float
    interval: tuple[float, float]
    top5: float | None
    mean_average_precision: float | None
    confusion: tuple[tuple[int, ...], ...] | None
    per_class: tuple[ClassScore, ...]
    seconds: float

    @property
    def class_names(self) -> tuple[str, ...]:
        """Names in order."""
        return tuple(score.name for score in self.per_class)

    def to_dict(self) -> dict[str, Any]:
        """Plain values only, for JSON."""
        values = dataclasses.asdict(self)
        for field in ("broken", "interval", "per_class"):
            values[field] = list(values[field])
        if self.confusion is not None:
            values["confusion"] = [list(row) for row in self.confusion]
        return values


def evaluate_model(model: "VisionModel", source: Source | Stream, *, batch_size: int) -> Evaluation:
    """`evaluate` of a model on images that it preprocesses as its card says."""
    return evaluate(
        model.probabilities,
        source,
        image_size=model.spec.image_size,
        channels=model.spec.in_channels,
        preprocessing=model.preprocessing,
        batch_size=batch_size,
    )


def evaluate(
    predict: Predict,
    source: Source | Stream,
    *,
    image_size: tuple[int, int],
    channels: int,
    preprocessing: Preprocessing,
    batch_size: int = 64,
    progress: Callable[[int, int], None] | None = None,
) -> Evaluation:
    """Runs a classifier on every image of a source once and scores it.

    Of single-label data only counts are kept, so the memory does not grow with the images.

    Args:
        predict: preprocessed float32 images (B, H, W, C) -> probabilities (B, classes).
        source: images and labels, in the order of the classifier's classes (see `align`).
        image_size, channels, preprocessing: what the classifier takes.
        batch_size: images per call of `predict`; it changes nothing but speed.
        progress: called with (images done, images in all).

    Raises:
        ValueError: no image can be read, or the number of classes differs.
    """
    started = time.monotonic()
    scores = SetScores() if source.multi_label else ClassScores(source.num_classes)
    feed = batches_of(source, image_size, channels, preprocessing, batch_size, progress)
    for probabilities, targets in predictions(predict, feed, source):
        scores.add(probabilities, targets)
    return scores.evaluation(source, time.monotonic() - started)


def batches_of(
    source: Source | Stream,
    image_size: tuple[int, int],
    channels: int,
    preprocessing: Preprocessing,
    batch_size: int = 64,
    progress: Callable[[int, int], None] | None = None,
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Every readable image of a source once, in order: images (B, H, W, C), targets (B, classes).

    Batches are never empty; images that cannot be read are noted in `source.broken`.

    Raises:
        ValueError: no image can be read.
    """
    found, how = 0, (image_size, channels, preprocessing)
    if isinstance(source, Stream):
        pipeline = Pipeline(source, *how, batch_size=batch_size)
        feed = pipeline.keras_data().as_numpy_iterator()
    else:
        batches = Batches(source, *how, batch_size=batch_size)
        feed = (batches[index][:2] for index in range(len(batches)))
    for index, (images, targets) in enumerate(feed):
        if len(images):
            found += len(images)
            yield images, targets
        if progress:
            progress(min((index + 1) * batch_size, len(source)), len(source))
    if not found:
        raise ValueError(f"none of the {len(source)} images of {source.name} can be read.")


def predictions(
    predict: Predict, feed: Iterator[tuple[np.ndarray, np.ndarray]], source: Source | Stream
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """What a classifier says to each batch: float64 probabilities and targets (B, classes).

    Raises:
        ValueError: the number of classes differs.
    """
    for images, targets in feed:
        probabilities = np.asarray(predict(images), np.float64)
        if probabilities.shape != targets.shape:
            raise ValueError(
                f"the model gives {probabilities.shape[-1]} classes, but {source.name} has "
                f"{source.num_classes}: fine-tune the model for them, or pick classes of the data."
            )
        yield probabilities, targets


class ClassScores:
    """Counts of single-label predictions, batch by batch."""

    def __init__(self, num_classes: int):
        self.examples = self.right = self.right5 = 0
        self.both = np.zeros(num_classes, int)
        self.predicted = np.zeros(num_classes, int)
        self.truth = np.zeros(num_classes, int)
        small = num_classes <= CONFUSION_LIMIT
        self.confusion = np.zeros((num_classes, num_classes), int) if small else None

    def add(self, probabilities: np.ndarray, targets: np.ndarray) -> None:
        """Counts a batch: probabilities and one-hot targets (B, classes)."""
        truth, first = targets.argmax(axis=1), ranking(probabilities)
        hit = first[:, 0] == truth
        self.examples += len(truth)
        self.right += int(hit.sum())
        self.right5 += int((first == truth[:, None]).any(axis=1).sum())
        for counts, classes in (
            (self.both, truth[hit]),
            (self.predicted, first[:, 0]),
            (self.truth, truth),
        ):
            np.add.at(counts, classes, 1)
        if self.confusion is not None:
            np.add.at(self.confusion, (truth, first[:, 0]), 1)

    def evaluation(self, source: Source | Stream, seconds: float) -> Evaluation:
        """What the counts come to."""
        names, n = source.class_names, self.examples
        counts = self.confusion
        return Evaluation(
            data=source.name,
            examples=n,
            broken=tuple(source.broken),
            accuracy=self.right / n,
            interval=wilson(self.right, n),
            top5=self.right5 / n if len(names) >= 5 else None,
            mean_average_precision=None,
            confusion=None if counts is None else tuple(tuple(map(int, row)) for row in counts),
            per_class=tuple(
                _class_score(name, self.both[i], self.predicted[i], self.truth[i])
                for i, name in enumerate(names)
            ),
            seconds=seconds,
        )


class SetScores:
    """Multi-label predictions, all of which are kept, because precision is averaged over a ranking."""

    def __init__(self):
        self.probabilities: list[np.ndarray] = []
        self.targets: list[np.ndarray] = []

    def add(self, probabilities: np.ndarray, targets: np.ndarray) -> None:
        """Keeps a batch: probabilities and targets of 0 and 1 (B, classes)."""
        self.probabilities.append(probabilities)
        self.targets.append(targets)

    def evaluation(self, source: Source | Stream, seconds: float) -> Evaluation:
        """Scores what was kept."""
        probabilities = np.concatenate(self.probabilities)
        predicted, truth = probabilities >= THRESHOLD, np.concatenate(self.targets) > 0
        per_class = []
        for i, name in enumerate(source.class_names):
            both = (predicted[:, i] & truth[:, i]).sum()
            score = _class_score(name, both, predicted[:, i].sum(), truth[:, i].sum())
            precision = average_precision(probabilities[:, i], truth[:, i])
            per_class.append(dataclasses.replace(score, average_precision=precision))
        precisions = [s.average_precision for s in per_class if s.average_precision is not None]
        right = (predicted == truth).all(axis=1)
        return Evaluation(
            data=source.name,
            examples=len(right),
            broken=tuple(source.broken),
            accuracy=float(right.mean()),
            interval=wilson(int(right.sum()), len(right)),
            top5=None,
            mean_average_precision=float(np.mean(precisions)) if precisions else None,
            confusion=None,
            per_class=tuple(per_class),
            seconds=seconds,
        )


def ranking(probabilities: np.ndarray, first: int = 5) -> np.ndarray:
    """(B, first) classes by falling probability; of equal ones the lower number comes first."""
    return np.argsort(-probabilities, axis=1, kind="stable")[:, :first]


def wilson(right: int, total: int) -> tuple[float, float]:
    """95 % interval of a share: `right` of `total` independent trials.

    Source: E. B. Wilson, JASA 22 (1927) 209.
    """
    share, z2 = right / total, NORMAL_95**2
    centre = (share + z2 / (2 * total)) / (1 + z2 / total)
    half = (
        NORMAL_95 * math.sqrt(share * (1 - share) / total + z2 / (4 * total**2)) / (1 + z2 / total)
    )
    return max(0.0, centre - half), min(1.0, centre + half)


def align(source: Data, class_names: tuple[str, ...]) -> Data:
    """The source with its labels renumbered to the classes of a model.

    Classes are matched by name; the data may have fewer than the model. When not one name is in
    common and there are as many classes, they are taken to be in the same order, with a warning.

    Raises:
        ValueError: the data has classes that the model does not know.
    """
    if source.class_names == tuple(class_names):
        return source
    index = {name: i for i, name in enumerate(class_names)}
    unknown = [name for name in source.class_names if name not in index]
    if len(unknown) == source.num_classes == len(class_names):
        if not _placeholders(source.class_names) and not _placeholders(class_names):
            warnings.warn(
                f"{source.name} and the model have no class names in common "
                f"({source.class_names[0]!r}, {class_names[0]!r}): taken to be in the same order.",
                stacklevel=2,
            )
        return dataclasses.replace(source, class_names=tuple(class_names))
    if unknown or len(index) != len(class_names):
        raise ValueError(
            f"{source.name} has classes that the model does not know, {_some(unknown)}: it knows "
            f"{_some(class_names)}. Fine-tune it for them, or pick classes of the data."
        )
    places = np.array([index[name] for name in source.class_names])
    if isinstance(source, Stream):
        stream: Any = source.renumbered(places, tuple(class_names))
        return stream
    if source.multi_label:
        labels = np.zeros((len(source), len(class_names)), source.labels.dtype)
        labels[:, places] = source.labels
    else:
        labels = places[source.labels].astype(np.int32)
    return dataclasses.replace(source, labels=labels, class_names=tuple(class_names))


def average_precision(scores: np.ndarray, positive: np.ndarray) -> float | None:
    """Sum over the ranking of precision times the growth of recall; equal scores count as one step.

    Args:
        scores: (n,) larger for more likely.
        positive: (n,) booleans.

    Returns:
        In [0, 1], or None without a positive example.
    """
    if not positive.any():
        return None
    order = np.argsort(-scores, kind="stable")
    last = np.flatnonzero(np.append(np.diff(scores[order]) != 0, True))  # last of each tie
    hits = np.cumsum(positive[order])[last]
    return float(np.sum(np.diff(hits, prepend=0) * hits / (last + 1)) / positive.sum())


def _class_score(name: str, both: int, predicted: int, examples: int) -> ClassScore:
    return ClassScore(
        name=name,
        examples=int(examples),
        precision=float(both / predicted) if predicted else None,
        recall=float(both / examples) if examples else None,
        f1=float(2 * both / (predicted + examples)) if predicted + examples else None,
    )


def _placeholders(names: tuple[str, ...]) -> bool:
    return all(name == f"class {i}" for i, name in enumerate(names))


def _some(names) -> str:
    shown = ", ".join(map(repr, names[:5]))
    return shown + (f" and {len(names) - 5} more" if len(names) > 5 else "")
