"""An exported file of any tool against the model it was made from, on real images."""

import dataclasses
from collections.abc import Iterable
from typing import Any

import numpy as np

from keras_vit.card import Preprocessing
from keras_vit.export import flatbuffer, runtimes
from keras_vit.export.artifact import Artifact, as_probabilities
from keras_vit.export.metadata import pixels_rule
from keras_vit.export.verify import anchored, log, logit_errors


@dataclasses.dataclass(frozen=True)
class Verification:
    """What was found.

    Attributes:
        file, format: the artifact.
        images: how many were run.
        output: what the file gives, `probabilities` or `logits`.
        agreement: share of images with the same top-1 class as the model.
        accuracy, model_accuracy: share of images with the right class; None without labels.
        largest_error, mean_error: of `output`.
        largest_logit_error, mean_logit_error: of logits up to a constant for each image, where the
            probabilities of both have digits.
        operations: how often each occurs (.tflite).
        runtimes: operation -> `version` and `runtime`, the first that runs it, None where unknown.
        runtime: the one that all of them need.
        gpu: operations that GPU delegates do not take, with the reason (.tflite).
        partitions, undelegated: of XNNPACK, as in a report.
        unknown: sentences about what the file does not say of itself.
    """

    file: str
    format: str
    images: int
    output: str
    agreement: float
    accuracy: float | None
    model_accuracy: float | None
    largest_error: float
    mean_error: float
    largest_logit_error: float
    mean_logit_error: float
    operations: dict[str, int]
    runtimes: dict[str, Any]
    runtime: str | None
    gpu: dict[str, str]
    partitions: int | None
    undelegated: dict[str, int]
    unknown: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return dataclasses.asdict(self)


def what_it_takes(artifact: Artifact, model: Any) -> tuple[Preprocessing, tuple[str, ...]]:
    """(the rule from an 8-bit image to the input of a file, sentences about what had to be assumed).

    Raises:
        ValueError: the file takes no images as the model does.
    """
    shape, channels = artifact.input_shape, model.spec.in_channels
    if len(shape) != 4 or shape[3] != channels:
        first = ", channels first" if len(shape) == 4 and shape[1] == channels else ""
        raise ValueError(
            f"{artifact.path} takes {list(shape)}{first}; the model takes images with {channels} "
            f"channels last: convert the file again with channels last."
        )
    how, unknown = model.preprocessing, []
    size = tuple(a or b for a, b in zip(shape[1:3], model.spec.image_size, strict=True))
    if size != tuple(model.spec.image_size):
        unknown.append(
            f"the file takes images of {size[0]}x{size[1]}, the model of "
            f"{model.spec.image_size[0]}x{model.spec.image_size[1]}: each sees its own size."
        )
    if artifact.report is not None:
        card = artifact.report.source["card"] or {}
        how = Preprocessing(**card.get("preprocessing", {}))
    elif artifact.metadata is None:
        unknown.append(
            "it says nothing of its preprocessing (no report, no metadata): the model's is used."
        )
    elif artifact.metadata.output is None:
        found = artifact.metadata.preprocessing
        how = dataclasses.replace(how, mean=found.mean, std=found.std)
        unknown.append("it does not say how images are resized: as the model does is used.")
    else:
        how = artifact.metadata.preprocessing
    if artifact.input_type == "uint8":
        how = pixels_rule(how)
    return how, tuple(unknown)


def verify_file(
    artifact: Artifact,
    model: Any,
    batches: Iterable[tuple[np.ndarray, np.ndarray, np.ndarray | None]],
    unknown: tuple[str, ...] = (),
) -> Verification:
    """Runs a file and the model on the same images.

    Args:
        artifact: from `open_artifact`.
        model: a VisionModel with a head.
        batches: (input of the model, input of the file, class indices or None).
        unknown: sentences found before.

    Raises:
        ValueError: there are no images, or the file has other classes.
    """
    here, there, labels = [], [], []
    for x, given, classes in batches:
        if len(x):
            there.append(model.probabilities(x))
            here.append(_scores(artifact, given, there[-1].shape))
            labels.append(classes)
    if not here:
        raise ValueError("no image could be read: nothing was verified.")
    found, expected = np.concatenate(here).astype(np.float64), np.concatenate(there)
    names = artifact.report.class_names if artifact.report else ()
    names = names or (artifact.metadata.class_names if artifact.metadata else ())
    unknown = (*unknown, *_about_names(tuple(names), tuple(model.class_names)))
    sigmoid = model.spec.classifier_activation == "sigmoid"
    output = "probabilities" if _are_probabilities(found, sigmoid) else "logits"
    probabilities = found if output == "probabilities" else as_probabilities(found, sigmoid)
    error = logit_errors("probabilities", probabilities, expected, sigmoid)
    if output == "logits" and not sigmoid:
        # Those of the model are known up to a constant for each image, as its logarithms are.
        error = anchored(found - log(expected), expected)
    known = artifact.format == "litert"
    truth = None if any(part is None for part in labels) else np.concatenate(labels)
    right = [
        None if truth is None else float((p.argmax(-1) == truth).mean()) for p in (found, expected)
    ]
    operations = flatbuffer.operations(artifact.path)[0] if known else {}
    partitions, undelegated = flatbuffer.delegation(artifact.path) if known else (None, {})
    needed = runtimes.required_runtimes(artifact.path) if known else {}
    differences = np.abs(probabilities - expected)
    return Verification(
        file=str(artifact.path),
        format=artifact.format,
        images=len(found),
        output=output,
        agreement=float((found.argmax(-1) == expected.argmax(-1)).mean()),
        accuracy=right[0],
        model_accuracy=right[1],
        largest_error=float(differences.max()),
        mean_error=float(differences.mean()),
        largest_logit_error=float(np.nanmax(np.abs(error))),
        mean_logit_error=float(np.nanmean(np.abs(error))),
        operations=operations,
        runtimes=needed,
        runtime=runtimes.newest(needed),
        gpu=runtimes.gpu_problems(artifact.path) if known else {},
        partitions=partitions,
        undelegated=undelegated,
        unknown=unknown,
    )


def _scores(artifact: Artifact, images: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    outputs = artifact.run(artifact.checked(images))
    fit = {name: y for name, y in outputs.items() if y.shape == shape}
    for name in ("logits", "probabilities"):
        if name in fit:
            return fit[name]
    if len(fit) != 1:
        shapes = {name: y.shape[1:] for name, y in outputs.items()}
        raise ValueError(
            f"{artifact.path} gives {shapes}, and the model {shape[1]} classes: verify it against the "
            f"model it was made from, exported with a head."
        )
    return next(iter(fit.values()))


def _about_names(names: tuple[str, ...], expected: tuple[str, ...]) -> tuple[str, ...]:
    if not names:
        return ("it names no classes: they are compared by their places.",)
    if names != expected:
        return ("its class names differ from the model's: they are compared by their places.",)
    return ()


def _are_probabilities(found: np.ndarray, sigmoid: bool) -> bool:
    inside = found.min() >= 0.0 and found.max() <= 1.0
    # int8 outputs are multiples of 1/256.
    return bool(inside and (sigmoid or np.abs(found.sum(-1) - 1.0).max() < 0.1))
