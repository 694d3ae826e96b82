"""From 8-bit images to model input, as a layer that travels into exports, and as NumPy for pipelines.

Bilinear resizing without antialias, the rule of the Google checkpoints, repeats TensorFlow's
arithmetic operation by operation, because where fractions are dropped afterwards one rounding more or
less is a whole grey level. The other methods are two matrix products, one per axis, built from the
same few lines for every backend and for sizes known only at run time.
"""

import dataclasses
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_vit.card import Preprocessing
from keras_vit.layers.common import PACKAGE


def resize_matrix(old, new, method: str, antialias: bool, xp: Any = np):
    """The (new, old) float32 matrix that resamples one axis, half-pixel centres.

    Args:
        old: pixels now; may be a scalar tensor when `xp` is `keras.ops`.
        new: pixels wanted.
        method: `bilinear`, `bicubic` (a = -0.5) or `area`.
        antialias: widen the kernel by old/new when shrinking.
        xp: `numpy` or `keras.ops`.

    Source: tf.image.resize (oracle `preprocess.npz`).
    """

    scale = _real(old, xp) / _real(new, xp)
    out = xp.expand_dims(xp.arange(new, dtype="float32"), 1)  # (new, 1)
    cell = xp.expand_dims(xp.arange(old, dtype="float32"), 0)  # (1, old)
    if method == "area":
        overlap = xp.minimum((out + 1.0) * scale, cell + 1.0) - xp.maximum(out * scale, cell)
        weights = xp.maximum(overlap, np.float32(0.0))
    else:
        width = xp.maximum(scale, np.float32(1.0)) if antialias else np.float32(1.0)
        centre = (out + 0.5) * scale - 0.5
        weights = _kernel(xp.abs(centre - cell) / width, method, xp)
    return weights / xp.sum(weights, axis=1, keepdims=True)


def _kernel(x, method: str, xp: Any):
    if method == "bilinear":
        return xp.maximum(1.0 - x, np.float32(0.0))
    near = (1.5 * x - 2.5) * x * x + 1.0
    far = ((-0.5 * x + 2.5) * x - 4.0) * x + 2.0
    return xp.where(x <= 1.0, near, xp.where(x < 2.0, far, np.float32(0.0)))


def _real(value, xp: Any):
    return np.float32(value) if isinstance(value, (int, float)) else xp.cast(value, "float32")


def _bilinear(x, target, xp: Any):
    """Interpolates between the four neighbours, edges repeated; float32.

    Source: TensorFlow's kernel resize_bilinear_op: along x first, then along y.
    """
    height, width = (x.shape[-3], x.shape[-2]) if xp is np else _sizes(x)
    above, below, down = _neighbours(height, target[0], xp)
    left, right, across = _neighbours(width, target[1], xp)
    across, down = across[:, None], down[:, None, None]

    def corner(rows, cols):
        taken = xp.take(xp.take(x, rows, axis=-3), cols, axis=-2)
        return taken.astype(np.float32) if xp is np else xp.cast(taken, "float32")

    top = corner(above, left)
    top = top + (corner(above, right) - top) * across
    bottom = corner(below, left)
    bottom = bottom + (corner(below, right) - bottom) * across
    return top + (bottom - top) * down


def _neighbours(old, new, xp: Any):
    """(new,) indices before and after each half-pixel centre, and the weight of the second."""
    scale = _real(old, xp) / _real(new, xp)
    centre = (xp.arange(new, dtype="float32") + np.float32(0.5)) * scale - np.float32(0.5)
    floor = xp.floor(centre)

    def index(value):
        value = value.astype(np.int32) if xp is np else xp.cast(value, "int32")
        return xp.minimum(xp.maximum(value, 0), old - 1)

    return index(floor), index(xp.ceil(centre)), centre - floor


def _area(x: np.ndarray, target) -> np.ndarray:
    """Means of the cells under each pixel, in the order of TensorFlow's kernel resize_area_op."""
    x = x.astype(np.float32)
    (rows, row_weights), (cols, col_weights) = map(_cells, x.shape[-3:-1], target)
    across: Any = 0.0
    for k in range(cols.shape[1]):
        across = across + np.take(x, cols[:, k], axis=-2) * col_weights[:, k, None]
    mean: Any = 0.0
    for k in range(rows.shape[1]):
        mean = mean + np.take(across, rows[:, k], axis=-3) * row_weights[:, k, None, None]
    scales = [
        np.float32(old) / np.float32(new) for old, new in zip(x.shape[-3:-1], target, strict=True)
    ]
    return mean * np.float32(1.0 / (scales[0] * scales[1]))


def _cells(old: int, new: int) -> tuple[np.ndarray, np.ndarray]:
    """(new, k) cells that each pixel covers and how much of them, padded with weight 0."""
    scale = np.float32(old) / np.float32(new)
    start = (np.arange(new, dtype=np.float32) * scale)[:, None]
    end = (np.arange(1, new + 1, dtype=np.float32) * scale)[:, None]
    first, last = np.floor(start), np.ceil(end)
    cell = first + np.arange(int((last - first).max()), dtype=np.float32)
    inside = np.where(cell + 1 > end, end - cell, np.float32(1.0))
    cut = np.where(cell + 1 > end, scale, cell + 1 - start)
    weight = np.where(cell < last, np.where(cell < start, cut, inside), np.float32(0.0))
    return np.clip(cell, 0, old - 1).astype(int), weight


def preprocess(images, image_size, how: Preprocessing, xp: Any = np):
    """(B, h, w, C) or (h, w, C) in 0..255 -> float32 of `image_size`, normalised.

    Args:
        images: uint8 or float, any size; sizes may be dynamic when `xp` is `keras.ops`.
        image_size: (H, W) of the result.
        how: the checkpoint's rule.
        xp: `numpy` or `keras.ops`.

    Raises:
        ValueError: the rule has other channels, or leaves an image too small for the crop.
    """
    x, slack = images, 0.0
    if len(how.mean) not in (1, x.shape[-1]):
        raise ValueError(
            f"the preprocessing is for {len(how.mean)} channels, but the images have {x.shape[-1]}."
        )
    height, width = (x.shape[-3], x.shape[-2]) if xp is np else _sizes(x)
    target = _resize_target((height, width), image_size, how, xp)
    if any(isinstance(t, int) and t < s for t, s in zip(target, image_size, strict=True)):
        raise ValueError(
            f"an image of {height}x{width}, after {how.resize!r} resizing {target[0]}x{target[1]}, is "
            f"too small for the central {image_size[0]}x{image_size[1]}: raise resize_to of the "
            f"preprocessing."
        )
    if not _same((height, width), target):
        if how.method == "bilinear" and not how.antialias:
            x = _bilinear(x, target, xp)
        elif how.method == "area" and xp is np:
            x = _area(x, target)
        else:
            x = _by_matrices(x, (height, width), target, how, xp)
            # Absorbs the rounding of the products: a flat area of 200 could come out as 199.
            slack = 1e-3
        if how.truncate:
            x = xp.floor(xp.clip(x + np.float32(slack), 0.0, 255.0))
        elif how.rounded:
            x = _to_bytes(x, xp)
    x = x.astype(np.float32) if xp is np else xp.cast(x, "float32")
    if not _same(target, image_size):
        top, left = (target[0] - image_size[0]) // 2, (target[1] - image_size[1]) // 2
        x = x[..., top : top + image_size[0], left : left + image_size[1], :]
        x = xp.reshape(x, (*_leading(x, xp), *image_size, x.shape[-1]))
    return (x - np.asarray(how.mean, np.float32)) / np.asarray(how.std, np.float32)


def _by_matrices(x, size, target, how: Preprocessing, xp: Any):
    x = x.astype(np.float32) if xp is np else xp.cast(x, "float32")
    rows = resize_matrix(size[0], target[0], how.method, how.antialias, xp)
    cols = resize_matrix(size[1], target[1], how.method, how.antialias, xp)
    x = xp.matmul(cols, x)  # contracts w: (..., h, W, C)
    if how.rounded:
        x = _to_bytes(x, xp)  # Pillow keeps 8 bits between the two
    flat = xp.reshape(x, (*_leading(x, xp), size[0], target[1] * x.shape[-1]))
    return xp.reshape(xp.matmul(rows, flat), (*_leading(x, xp), *target, x.shape[-1]))


def _to_bytes(x, xp: Any):
    """Whole numbers in 0..255, halves up."""
    return xp.floor(xp.clip(x, 0.0, 255.0) + np.float32(0.5))


def _resize_target(size, image_size, how: Preprocessing, xp):
    """(height, width) after resizing and before the central crop."""
    if how.resize == "none":
        return size
    if how.resize == "stretch":
        return (how.resize_to, how.resize_to) if how.resize_to else tuple(image_size)
    # For a square input the shorter side becomes `short`; for another one, the image just covers it.
    short = how.resize_to or min(image_size)
    sides = [short * s / min(image_size) for s in image_size]
    if xp is np or all(isinstance(s, int) for s in size):
        # Rounded half to even, as Python and TensorFlow do. Source: big_vision pp/ops_image.py.
        ratio = max(side / s for side, s in zip(sides, size, strict=True))
        return tuple(int(np.round(s * ratio)) for s in size)
    ratios = [side / ops.cast(s, "float32") for side, s in zip(sides, size, strict=True)]
    ratio = ops.maximum(*ratios)
    return tuple(ops.cast(ops.round(ops.cast(s, "float32") * ratio), "int32") for s in size)


def _sizes(x):
    dynamic = ops.shape(x)
    return dynamic[-3], dynamic[-2]


def _leading(x, xp):
    return tuple(x.shape[:-3]) if xp is np else tuple(ops.shape(x))[:-3]


def _same(a, b) -> bool:
    return all(isinstance(v, int) for v in (*a, *b)) and tuple(a) == tuple(b)


@keras.saving.register_keras_serializable(package=PACKAGE)
class Preprocessor(keras.layers.Layer):
    """uint8 images (B, h, w, C) of any size -> float32 model input (B, H, W, C).

    Args:
        image_size: (H, W) of the model.
        preprocessing: the rule, a `Preprocessing` or its fields as a dict.
    """

    def __init__(self, image_size, preprocessing: Preprocessing | dict | None = None, **kwargs):
        kwargs.setdefault("dtype", "float32")
        super().__init__(**kwargs)
        if isinstance(preprocessing, dict):
            preprocessing = Preprocessing(**preprocessing)
        self.image_size = tuple(image_size)
        self.preprocessing = preprocessing or Preprocessing()
        self.built = True

    def call(self, images):
        return preprocess(images, self.image_size, self.preprocessing, ops)

    def compute_output_shape(self, input_shape):
        return (*input_shape[:-3], *self.image_size, input_shape[-1])

    def get_config(self):
        config = {
            "image_size": list(self.image_size),
            "preprocessing": dataclasses.asdict(self.preprocessing),
        }
        return {**super().get_config(), **config}
