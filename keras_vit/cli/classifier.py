"""One thing that classifies, whatever it was opened from: a name, a checkpoint, an exported file."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from keras_vit.card import Card, Preprocessing
from keras_vit.cli.common import is_exported

Model = Annotated[
    str,
    typer.Argument(
        help="A name (ViT-B/16), a checkpoint, a .tflite file or a SavedModel folder.",
        show_default=False,
    ),
]
ImageSize = Annotated[
    str | None,
    typer.Option("--image-size", help="Pixels, 384 or HEIGHTxWIDTH; the checkpoint's by default."),
]


@dataclasses.dataclass(frozen=True)
class Classifier:
    """What `predict` and `evaluate` need of a model.

    Attributes:
        name: as it was asked for.
        kind: `keras`, `litert` or `tf_saved_model`.
        predict: preprocessed float32 images (B, H, W, C) -> probabilities (B, classes).
        image_size, channels, preprocessing: what it takes.
        class_names: of its outputs, in order.
        sigmoid: whether an image can have several classes.
        card: of the checkpoint, None where nothing is known of it.
    """

    name: str
    kind: str
    predict: Callable[[np.ndarray], np.ndarray]
    image_size: tuple[int, int]
    channels: int
    preprocessing: Preprocessing
    class_names: tuple[str, ...]
    sigmoid: bool
    card: Card | None = None


def open_classifier(name: str, image_size: tuple[int, int] | None = None) -> Classifier:
    """Opens a model or an exported file.

    Raises:
        ValueError: it has no classes to predict, or an exported file says nothing of itself.
        FileNotFoundError: it is not on this machine.
    """
    path = Path(name)
    if is_exported(path):
        if image_size:
            raise ValueError(f"{name} is an exported file: its image size is fixed.")
        return _exported(name)
    from keras_vit.zoo.api import load

    model = load(name, image_size=image_size)
    if not model.has_usable_head:
        raise ValueError(
            f"{name} has no usable head (it is missing or all zeros): fine-tune it first, or name a "
            f"checkpoint with classes."
        )
    return Classifier(
        name=name,
        kind="keras",
        predict=model.probabilities,
        image_size=model.spec.image_size,
        channels=model.spec.in_channels,
        preprocessing=model.preprocessing,
        class_names=model.class_names,
        sigmoid=model.spec.classifier_activation == "sigmoid",
        card=model.card,
    )


def _exported(name: str) -> Classifier:
    from keras_vit.export import open_artifact
    from keras_vit.export.metadata import pixels_rule

    artifact = open_artifact(name)
    if artifact.report is None:
        return _described(name, artifact)
    source: dict[str, Any] = artifact.report.source
    spec, card = source["spec"], source["card"] or {}
    preprocessing = Preprocessing(**card.get("preprocessing", {}))
    if artifact.input_type == "uint8":
        preprocessing = pixels_rule(preprocessing)
    return Classifier(
        name=name,
        kind=artifact.format,
        predict=artifact.predict,
        image_size=tuple(spec["image_size"]),
        channels=spec["in_channels"],
        preprocessing=preprocessing,
        class_names=tuple(artifact.report.class_names),
        sigmoid=spec["classifier_activation"] == "sigmoid",
        card=Card.from_dict(card) if card else None,
    )


def _described(name: str, artifact: Any) -> Classifier:
    """An exported file without a report, by the metadata inside it."""
    found = artifact.metadata
    if found is None or not found.class_names:
        raise ValueError(
            f"{name} has no report beside it and no labels inside, so its classes and preprocessing "
            f"are unknown: export it with keras-vit export, which writes both."
        )
    return Classifier(
        name=name,
        kind=artifact.format,
        predict=artifact.predict,
        image_size=found.image_size,
        channels=found.channels,
        preprocessing=found.preprocessing,
        class_names=found.class_names,
        sigmoid=found.sigmoid,
    )
