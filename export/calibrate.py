"""The range of every activation, for quantisation with fixed scales.

ai-edge-quantizer's own calibration is a moving average over the images, so its ranges are smaller
than the data and outliers are clipped: on a ViT of four blocks the largest logit error was 1.35, with
true ranges 0.36. Here every image counts in full.
"""

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

MINIMUM = 16  # images; fewer see too little of what a network does
BINS = 4096  # of the histograms behind percentiles
# Resizing with a cubic filter and rounding leave the exact range by a little.
SLACK = 0.05

Progress = Callable[[int, int], None]


class Ranges(dict[str, tuple[float, float]]):
    """Tensor name -> (low, high).

    Attributes:
        peaks: name of the result of a dense layer -> (C,) largest magnitude of every channel.
    """

    def __init__(self, ranges: Any = (), peaks: dict[str, np.ndarray] | None = None):
        super().__init__(ranges)
        self.peaks = peaks or {}


def parse_method(method: str) -> float | None:
    """The percentile of `percentile:P`, or None for `minmax`.

    Raises:
        ValueError: it is neither, or P is not above 50 and below 100.
    """
    if method == "minmax":
        return None
    name, _, number = str(method).partition(":")
    try:
        percentile = float(number)
    except ValueError:
        percentile = 0.0
    if name != "percentile" or not 50 < percentile < 100:
        raise ValueError(
            f"calibration must be 'minmax', or 'percentile:P' with P between 50 and 100 (for example "
            f"'percentile:99.9'), got {method!r}."
        )
    return percentile


def check_images(images: Any, shape: tuple[int, ...], limits: tuple[float, float]) -> np.ndarray:
    """The images a network is calibrated on, as float32, or an error that says what is wrong.

    Args:
        images: preprocessed floats (B, H, W, C).
        shape: (H, W, C) that the network takes.
        limits: what black and white become under the model's preprocessing.

    Raises:
        ValueError: type, shape, count or range are not those of preprocessed images.
    """
    images = np.asarray(images)
    if not np.issubdtype(images.dtype, np.floating) or images.shape[1:] != shape:
        raise ValueError(
            f"calibration images must be preprocessed floats of shape (batch, "
            f"{', '.join(map(str, shape))}), got {images.dtype} of shape {images.shape}."
        )
    if len(images) < MINIMUM:
        raise ValueError(
            f"calibration needs at least {MINIMUM} images, got {len(images)}: give more; a hundred "
            f"of the kind the model will see are enough."
        )
    if not np.isfinite(images).all():
        bad = int(np.flatnonzero(~np.isfinite(images).all(axis=(1, 2, 3)))[0])
        raise ValueError(f"calibration image {bad} holds values that are not finite: leave it out.")
    low, high = float(images.min()), float(images.max())
    slack = SLACK * (limits[1] - limits[0])
    wanted = f"the preprocessing gives {limits[0]:.3g} to {limits[1]:.3g}"
    if low < limits[0] - slack or high > limits[1] + slack:
        raise ValueError(
            f"calibration images hold values from {low:.3g} to {high:.3g}, and {wanted}: pass uint8 "
            f"images, which are preprocessed here, or preprocess them as the model does."
        )
    if high - low < 0.1 * (limits[1] - limits[0]):
        raise ValueError(
            f"calibration images hold only values from {low:.3g} to {high:.3g}, and {wanted}: they "
            f"are blank, or were scaled twice."
        )
    return images.astype(np.float32)


def input_limits(model: Any) -> tuple[float, float]:
    """What black and white become under a model's preprocessing, over all channels."""
    from keras_vit.layers.preprocessor import preprocess

    spec = model.spec
    ends = np.zeros((2, *spec.image_size, spec.in_channels), np.uint8)
    ends[1] = 255
    made = np.asarray(preprocess(ends, spec.image_size, model.preprocessing, np))
    return float(made.min()), float(made.max())


def activation_ranges(
    model: bytes, images: np.ndarray, method: str = "minmax", progress: Progress | None = None
) -> Ranges:
    """Smallest and largest value of every activation of a float32 .tflite file.

    Args:
        model: the file, with a fixed batch.
        images: (N, H, W, C) preprocessed float32; the last ones are repeated to fill a batch.
        method: `minmax`, or `percentile:P`: the range that holds P percent of the values, with half
            of the rest beyond each end.
        progress: called with (images done, images in all passes).

    Returns:
        The ranges, and the true peaks of channels with either method.
    """
    percentile = parse_method(method)
    passes = 1 if percentile is None else 2
    done = 0

    def report(count: int) -> None:
        nonlocal done
        done += count
        if progress:
            progress(done, passes * len(images))

    ranges, dense = Ranges(), _dense_results(model)
    for values, count in _activations(model, images):
        for name, value in values:
            low, high = ranges.get(name, (np.inf, -np.inf))
            ranges[name] = min(low, float(value.min())), max(high, float(value.max()))
            if name in dense:
                largest = np.abs(value).reshape(-1, value.shape[-1]).max(axis=0)
                ranges.peaks[name] = np.maximum(ranges.peaks.get(name, 0.0), largest)
        report(count)
    if percentile is None:
        return ranges
    counts = {name: np.zeros(BINS, np.int64) for name in ranges}
    for values, count in _activations(model, images):
        for name, value in values:
            counts[name] += np.histogram(value, BINS, ranges[name])[0]
        report(count)
    central = {name: _central(counts[name], *ranges[name], percentile) for name in ranges}
    return Ranges(central, ranges.peaks)


def _central(counts: np.ndarray, low: float, high: float, percentile: float) -> tuple[float, float]:
    """The ends of the bins between which a histogram holds `percentile` percent."""
    share = np.cumsum(counts) / counts.sum()
    outside = (100 - percentile) / 200
    edges = np.linspace(low, high, len(counts) + 1)
    first = int(np.searchsorted(share, outside, side="right"))
    last = int(np.searchsorted(share, 1 - outside, side="left"))
    return float(edges[first]), float(edges[min(last, len(counts) - 1) + 1])


def _activations(model: bytes, images: np.ndarray):
    """For each batch: ((tensor name, its float values), ...) and how many images it held."""
    from ai_edge_litert.interpreter import Interpreter

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*experimental_preserve_all_tensors")
        runtime: Any = Interpreter(model_content=model, experimental_preserve_all_tensors=True)
    runtime.allocate_tensors()
    (entry,) = runtime.get_input_details()
    batch = int(entry["shape"][0])
    constants = _constants(model)
    tensors = [
        (d["index"], d["name"])
        for d in runtime.get_tensor_details()
        if d["dtype"] == np.float32 and d["index"] not in constants and d["name"]
    ]
    for start in range(0, len(images), batch):
        piece = images[start : start + batch]
        missing = batch - len(piece)
        runtime.set_tensor(
            entry["index"], np.concatenate([piece, np.repeat(piece[-1:], missing, axis=0)])
        )
        runtime.invoke()
        values = []
        for index, name in tensors:
            try:
                values.append((name, runtime.get_tensor(index)))
            except ValueError:  # scratch memory of a kernel, which is not kept
                continue
        yield values, len(piece)


def _dense_results(model: bytes) -> set[str]:
    """Names of the results of dense layers."""
    from ai_edge_litert.tools import flatbuffer_utils

    content: Any = flatbuffer_utils.read_model_from_bytearray(bytearray(model))
    (graph,) = content.subgraphs
    return {
        graph.tensors[op.outputs[0]].name.decode()
        for op in graph.operators
        if flatbuffer_utils.opcode_to_name(content, op.opcodeIndex) == "FULLY_CONNECTED"
    }


def _constants(model: bytes) -> set[int]:
    from ai_edge_litert.tools import flatbuffer_utils

    content: Any = flatbuffer_utils.read_model_from_bytearray(bytearray(model))
    tensors = content.subgraphs[0].tensors
    return {i for i, t in enumerate(tensors) if content.buffers[t.buffer].data is not None}
