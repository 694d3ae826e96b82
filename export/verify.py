"""Every export is run and compared with the Keras model before it is declared good."""

import dataclasses
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from keras_vit.export.report import Comparison, Latency

# What an artifact may differ by, and the measure it is judged by. Measured on ViT-Ti/16 at 224 and
# on 28-pixel models of 1, 2 and 4 blocks, random weights and sharp heads: float32 1.4e-6 largest;
# float16 5e-4 to 1.8e-3 relative; dynamic int8 2.1e-2 to 3.2e-2 relative. A trained 28-pixel model on
# 1000 test images: 9e-7, 1.3e-4, 7e-3. A wrong graph (weights negated, a row of pixels lost) is off
# by 0.5 or more, so a margin of about five costs nothing.
BOUNDS = {
    "float32": ("largest_error", 1e-4),
    "float16": ("relative_error", 1e-2),
    "dynamic_int8": ("relative_error", 0.15),
    # Of four families with random weights, and of three trained ones: int8 0.026 to 0.048 and 0.020 to
    # 0.037, int16x8 0.009 to 0.023 and 0.005 to 0.010, int4_weights 0.08 to 0.23 and 0.02 to 0.05. Where
    # an outlier breaks a file, the error is above 1.
    "int8": ("relative_error", 0.25),
    "int16x8": ("relative_error", 0.1),
    "int4_weights": ("relative_error", 0.4),
}
AGREEMENT = 0.95
SMALLEST = 1e-6  # probabilities below it have no digits left to take logarithms of
SYNTHETIC_IMAGES = 16
CHUNK = 32


class ExportError(RuntimeError):
    """An export failed, or its result does not do what the model does; nothing was written."""


def synthetic_images(
    shape: tuple[int, ...], count: int = SYNTHETIC_IMAGES, seed: int = 0
) -> np.ndarray:
    """Seeded uint8 images (count, *shape) that use the whole range and have coarse and fine detail.

    Plain noise would give every patch the same statistics, and so nearly the same tokens.
    """
    rng = np.random.default_rng(seed)
    height, width, channels = shape
    images = np.zeros((count, *shape))
    for cells in (2, 4, 8, max(height, width)):
        patches = rng.normal(size=(count, cells, cells, channels))
        rows, columns = np.arange(height) * cells // height, np.arange(width) * cells // width
        images += patches[:, rows][:, :, columns]
    low = images.min(axis=(1, 2, 3), keepdims=True)
    high = images.max(axis=(1, 2, 3), keepdims=True)
    return np.round(255.0 * (images - low) / (high - low)).astype(np.uint8)


def model_inputs(model: Any, images: Any) -> tuple[np.ndarray, bool]:
    """(float32 input of the model, whether it is synthetic).

    Args:
        model: a VisionModel.
        images: None for synthetic ones, uint8 images (B, h, w, C) of any size, or a float batch
            that is preprocessed already.

    Raises:
        ValueError: the images do not fit the model.
    """
    from keras_vit.layers.preprocessor import preprocess

    expected = (*model.spec.image_size, model.spec.in_channels)
    synthetic = images is None
    if synthetic:
        images = synthetic_images(expected)
    images = np.asarray(images)
    if images.dtype == np.uint8 and images.ndim == 4 and images.shape[-1] == expected[-1]:
        images = preprocess(images, model.spec.image_size, model.preprocessing, np)
    if (
        images.shape[1:] != expected
        or not len(images)
        or not np.issubdtype(images.dtype, np.floating)
    ):
        raise ValueError(
            f"images to compare on must be uint8 of any size or preprocessed floats of shape (batch, "
            f"{', '.join(map(str, expected))}), got {images.dtype} of shape {images.shape}."
        )
    return images.astype(np.float32), synthetic


def run_in_chunks(
    run: Callable[[np.ndarray], dict[str, Any]], images: np.ndarray
) -> dict[str, np.ndarray]:
    """The outputs of `run` for many images, a few at a time so that memory stays small."""
    parts = [run(images[start : start + CHUNK]) for start in range(0, len(images), CHUNK)]
    return {name: np.concatenate([np.asarray(p[name]) for p in parts]) for name in parts[0]}


def compare(
    output: str,
    reference: np.ndarray,
    found: np.ndarray,
    mode: str,
    *,
    synthetic: bool,
    what: str,
    labels: np.ndarray | None = None,
    sigmoid: bool = False,
    allow: bool = False,
) -> Comparison:
    """Compares outputs and returns the numbers, or raises when they are beyond the mode's bound.

    Args:
        output: `probabilities`, `logits` or `features`.
        reference, found: what the Keras model and the artifact give, (B, ...).
        mode: a key of `BOUNDS`.
        synthetic: whether the images are made up. Top-1 is then reported and not judged: classes
            of such images can be ties, which says nothing about the export.
        what: names the artifact and signature in the error.
        labels: class indices (B,), for the accuracy; None where they are unknown.
        sigmoid: whether an image can have several classes.
        allow: return numbers beyond a bound as well, with `failed` saying so.

    Raises:
        ExportError: an error is beyond its bound, or top-1 agreement on given images is below 0.95,
            and it is not allowed; an output is not finite, or of another shape.
    """
    if reference.shape != found.shape:
        raise ExportError(f"{what} gives shape {found.shape}, the Keras model {reference.shape}.")
    difference = np.abs(found.astype(np.float64) - reference)
    spread = max(float(reference.std()), 1e-6)  # an all-zero head gives a constant
    agreement, logits, right = None, None, [None, None]
    if output != "features":
        agreement = float((found.argmax(-1) == reference.argmax(-1)).mean())
        if np.isfinite(difference).all():
            logits = np.abs(logit_errors(output, found, reference, sigmoid))
            logits = None if np.isnan(logits).all() else logits
        if labels is not None:
            right = [float((y.argmax(-1) == labels).mean()) for y in (found, reference)]
    measure, bound = BOUNDS[mode]
    if measure == "largest_error":
        # Probabilities are at most 1; float32 rounding of larger numbers grows with them.
        bound *= max(1.0, float(np.abs(reference).max()))
    result = Comparison(
        output=output,
        images=len(reference),
        synthetic=synthetic,
        largest_error=float(difference.max()),
        mean_error=float(difference.mean()),
        relative_error=float(np.sqrt((difference**2).mean())) / spread,
        agreement=agreement,
        bound=(measure, bound),
        accuracy=right[0],
        model_accuracy=right[1],
        largest_logit_error=None if logits is None else float(np.nanmax(logits)),
        mean_logit_error=None if logits is None else float(np.nanmean(logits)),
    )
    value, failed = getattr(result, measure), None
    if not value <= bound:  # also catches NaN
        failed = (
            f"{what} differs from the Keras model: {measure.replace('_', ' ')} of {output} is "
            f"{value:.2g}, expected at most {bound:.2g} for {mode}"
        )
    elif agreement is not None and not synthetic and agreement < AGREEMENT:
        failed = (
            f"{what} gives the same top-1 class as the Keras model for only {agreement:.1%} of "
            f"{len(reference)} images, expected {AGREEMENT:.0%}: use a mode closer to float32 than "
            f"{mode}, or compare on more images"
        )
    if failed and not (allow and np.isfinite(difference).all()):
        raise ExportError(f"{failed}; nothing was written.")
    return dataclasses.replace(result, failed=f"{failed}." if failed else None)


def class_indices(labels: Any, count: int) -> np.ndarray | None:
    """The labels of the images to compare on as an array (count,), or None.

    Raises:
        ValueError: they are not one class index for each image.
    """
    if labels is None:
        return None
    if np.shape(labels) != (count,):
        raise ValueError(
            f"labels must be one class index for each of {count} images, got shape "
            f"{np.shape(labels)}."
        )
    return np.asarray(labels)


def logit_errors(
    output: str, found: np.ndarray, expected: np.ndarray, sigmoid: bool = False
) -> np.ndarray:
    """Differences of logits (B, classes), of `found` from `expected`.

    Args:
        output: what both are, `logits` or `probabilities`. Probabilities give logits up to a constant
            for each image, which the best class of `expected` fixes; NaN where either has no digits.
        found, expected: (B, classes).
        sigmoid: whether an image can have several classes, whose logits have no such constant.
    """
    found, expected = np.asarray(found, np.float64), np.asarray(expected, np.float64)
    if output == "logits":
        return found - expected
    if sigmoid:
        return (log(found) - log(1.0 - found)) - (log(expected) - log(1.0 - expected))
    return anchored(log(found) - log(expected), expected)


def log(probabilities: np.ndarray) -> np.ndarray:
    """Logarithms, NaN where a probability has no digits."""
    return np.log(np.where(probabilities < SMALLEST, np.nan, probabilities))


def anchored(difference: np.ndarray, expected: np.ndarray) -> np.ndarray:
    """Differences (B, classes) less that of the best expected class of each image."""
    best = expected.argmax(-1)[:, None]
    return difference - np.take_along_axis(difference, best, axis=-1)


def agreement_note(comparison: Comparison) -> str | None:
    """A sentence when too few synthetic images keep their class, which alone fails no export."""
    if comparison.agreement is None or comparison.agreement >= AGREEMENT:
        return None
    return (
        f"only {comparison.agreement:.1%} of the synthetic images keep their top-1 class, which may "
        f"be ties between classes: export again with images= of your own to have it judged."
    )


def measure_latency(
    run: Callable[[], Any], threads: int | None, runs: int = 30, seconds: float = 1.5
) -> Latency:
    """Times a call: up to 3 warm-up runs, then up to `runs`, each for about `seconds`.

    At least one warm-up and three timed runs are made, however slow the model is.
    """
    times = []
    end = time.perf_counter() + seconds
    for _ in range(3):
        run()
        if time.perf_counter() > end:
            break
    end = time.perf_counter() + seconds
    while len(times) < 3 or (len(times) < runs and time.perf_counter() < end):
        start = time.perf_counter()
        run()
        times.append(1e3 * (time.perf_counter() - start))
    low, median, high = np.percentile(times, (10, 50, 90))
    return Latency(float(median), float(low), float(high), len(times), threads)
