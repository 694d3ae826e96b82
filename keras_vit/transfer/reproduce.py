"""Whether a checkpoint does what is reported of it: measured beside reported, with the interval."""

import dataclasses
import re
import time
from collections.abc import Callable
from decimal import Decimal
from typing import Any

from keras_vit.card import Card, Metric, Preprocessing
from keras_vit.data.sources import Source
from keras_vit.data.streams import Stream
from keras_vit.results.names import DATA_SETS, data_name
from keras_vit.results.store import Result
from keras_vit.train.evaluate import (
    ClassScores,
    Evaluation,
    Predict,
    align,
    batches_of,
    evaluate,
    predictions,
    wilson,
)
from keras_vit.transfer.real import RealScores, split_labels

MEASURES = {"top1": "accuracy", "top5": "top5"}  # of a card's metrics -> of an evaluation
EXAMPLES = {"ImageNet": 50_000}  # where a report does not say how many images it is of


@dataclasses.dataclass(frozen=True)
class Check:
    """One reported number beside the measured one.

    Attributes:
        metric: `top1` or `top5`.
        reported: percent, as the card has it.
        source: where it is reported.
        measured: in [0, 1].
        interval: of 95 %, for this many independent images.
        inside: whether the interval, widened by half a unit of the last digit that was reported,
            contains the reported number.
    """

    metric: str
    reported: float
    source: str
    measured: float
    interval: tuple[float, float]
    inside: bool


@dataclasses.dataclass(frozen=True)
class Reproduction:
    """What came out.

    Attributes:
        model: full name of the checkpoint.
        dataset: that the reports are of.
        evaluation: what was measured.
        checks: one for each reported number, in the order of the card.
        real: with ReaL's labels, None without.
        notes: what differs from the report.
    """

    model: str
    dataset: str
    evaluation: Evaluation
    checks: tuple[Check, ...]
    real: RealScores | None
    notes: tuple[str, ...]

    @property
    def passed(self) -> bool:
        """Whether, of every metric, some reported number is inside: sources differ among themselves."""
        inside = {check.metric for check in self.checks if check.inside}
        return inside == {check.metric for check in self.checks}

    def results(self, **about: Any) -> list[Result]:
        """Rows for a store.

        Args:
            about: further fields of every `Result`: `command`, `when`, `versions`.
        """
        base = {"study": "reproduce", "model": self.model, "data": self.dataset, **about}
        base["settings"] = {"images": self.evaluation.data}
        rows = []
        for name, field in MEASURES.items():
            value = getattr(self.evaluation, field)
            if value is not None:
                n = self.evaluation.examples
                rows.append(
                    Result(
                        metric=field,
                        value=value,
                        examples=n,
                        interval=_interval(self.evaluation, name),
                        **base,
                    )
                )
        if self.real is not None:
            about_real = {"examples": self.real.examples, "interval": self.real.interval}
            rows.append(Result(metric="real", value=self.real.accuracy, **about_real, **base))
        return rows

    def to_dict(self) -> dict[str, Any]:
        """Plain values only, for JSON; without the scores of every class."""
        measured = self.evaluation
        real = self.real
        return {
            "model": self.model,
            "dataset": self.dataset,
            "images": measured.data,
            "examples": measured.examples,
            "broken": len(measured.broken),
            "passed": self.passed,
            "checks": [
                {**dataclasses.asdict(check), "interval": list(check.interval)}
                for check in self.checks
            ],
            "real": real
            and {
                "examples": real.examples,
                "accuracy": real.accuracy,
                "interval": list(real.interval),
            },
            "notes": list(self.notes),
            "seconds": measured.seconds,
        }


def reproduce(
    card: Card,
    predict: Predict,
    source: Source | Stream,
    *,
    class_names: tuple[str, ...],
    image_size: tuple[int, int],
    channels: int,
    preprocessing: Preprocessing,
    real: bool = False,
    batch_size: int = 64,
    progress: Callable[[int, int], None] | None = None,
) -> Reproduction:
    """Measures a checkpoint as its card says and compares with what the card reports.

    Args:
        card: with the reported metrics.
        predict: preprocessed float32 images (B, H, W, C) -> probabilities (B, classes).
        source: images and labels; a part of the classes where the report is of a part.
        class_names: of the outputs of `predict`, in order.
        image_size, channels, preprocessing: what it takes.
        real: whether the source has ReaL's labels too (`keras_vit.transfer.real.open_real`).
        batch_size: images at a time; it changes nothing but speed.
        progress: called with (images done, images in all).

    Raises:
        ValueError: the card reports nothing that can be measured so on this data, or the classes do
            not match.
    """
    dataset, metrics, notes = reported_on(card, source.name)
    source = _fitted(source, class_names, dataset)
    found = {
        "image_size": image_size,
        "channels": channels,
        "preprocessing": preprocessing,
        "batch_size": batch_size,
        "progress": progress,
    }
    scores = None
    if real:
        scores = RealScores()
        evaluation = _evaluated_twice(predict, source, scores, **found)
    elif source.multi_label:
        raise ValueError(
            f"{source.name} has several labels per image, but reports are of single ones."
        )
    else:
        evaluation = evaluate(predict, source, **found)
    notes += _differences(evaluation, metrics, dataset, scores)
    checks = tuple(_check(metric, evaluation) for metric in metrics)
    return Reproduction(card.name, data_name(dataset), evaluation, checks, scores, tuple(notes))


def reported_on(card: Card, images: str) -> tuple[str, list[Metric], list[str]]:
    """What a card reports of the images with this name: their data set in its words, numbers, notes.

    Raises:
        ValueError: nothing that an evaluation of its own head measures.
    """
    metrics = [m for m in card.metrics if m.name in MEASURES]
    if not metrics:
        others = "; it has " + ", ".join(f"{m.name} on {m.dataset}" for m in card.metrics)
        raise ValueError(
            f"{card.name} has no reported top1 or top5 to compare with{others if card.metrics else ''}: "
            f"measure it with keras-vit evaluate."
        )
    known, notes = _base(images), []
    if known in DATA_SETS or known.startswith("tfds:"):
        mine = [m for m in metrics if _base(m.dataset) == known]
        if not mine:
            raise ValueError(
                f"{card.name} has reports on {', '.join(sorted({m.dataset for m in metrics}))}, none "
                f"on {known}: give those images."
            )
    else:
        mine = [m for m in metrics if m.dataset == metrics[0].dataset]
        if metrics[0].dataset != images:
            notes.append(f"{images} is taken to be {data_name(metrics[0].dataset)}.")
    dataset = mine[0].dataset
    return dataset, [m for m in mine if m.dataset == dataset], notes


def _base(dataset: str) -> str:
    """A data set without its split, and the one of which `Fashion-MNIST, eight classes` is a part."""
    name = data_name(dataset.partition(",")[0])
    return ":".join(name.split(":")[:2]) if name.startswith("tfds:") else name


def _fitted(source, class_names: tuple[str, ...], dataset: str):
    """The source in the model's classes, and in no others where the report is of a part of them."""
    fewer = "classes" in dataset and set(class_names) < set(source.class_names)
    if fewer and isinstance(source, Source):
        source = source.classes([source.class_names.index(name) for name in class_names])
    if source.multi_label:  # of ReaL, whose classes are in ImageNet's order
        return dataclasses.replace(source, class_names=class_names)
    return align(source, class_names)


def _evaluated_twice(predict, source, scores: RealScores, **how) -> Evaluation:
    started = time.monotonic()
    own = ClassScores(source.num_classes)
    for probabilities, targets in predictions(predict, batches_of(source, **how), source):
        original, real = split_labels(targets)
        own.add(probabilities, original)
        scores.add(probabilities, real)
    return own.evaluation(source, time.monotonic() - started)


def _differences(
    evaluation: Evaluation, metrics: list[Metric], dataset: str, real: RealScores | None
) -> list[str]:
    notes = []
    told = [re.search(r"([\d,]+) (?:\w+ )?images", m.source) for m in metrics]
    counts = {int(t[1].replace(",", "")) for t in told if t} or {EXAMPLES.get(data_name(dataset))}
    for count in sorted(filter(None, counts)):
        if count != evaluation.examples:
            notes.append(f"{evaluation.examples:,} images; the report is of {count:,}.")
    if evaluation.broken:
        notes.append(f"{len(evaluation.broken)} images could not be read: {evaluation.broken[0]}")
    if real is not None and not real.examples:
        raise ValueError("none of these images has a label in real.json.")
    return notes


def _check(metric: Metric, evaluation: Evaluation) -> Check:
    measured = getattr(evaluation, MEASURES[metric.name])
    if measured is None:
        raise ValueError(f"{metric.name} is reported, but the model has fewer than five classes.")
    low, high = interval = _interval(evaluation, metric.name)
    # Rounded so that 90.07 is not just above 0.9007.
    reach = rounding(metric.value)
    inside = round(low - reach, 12) <= metric.value / 100 <= round(high + reach, 12)
    return Check(metric.name, metric.value, metric.source, measured, interval, inside)


def _interval(evaluation: Evaluation, name: str) -> tuple[float, float]:
    share = getattr(evaluation, MEASURES[name])
    return wilson(round(share * evaluation.examples), evaluation.examples)


def rounding(percent: float) -> float:
    """Half a unit of the last digit of a percentage, as a share: 84.5 -> 0.0005."""
    exponent = Decimal(repr(percent)).as_tuple().exponent
    return 0.5 * 10.0 ** (int(exponent) - 2)
