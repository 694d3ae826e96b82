"""From 8-bit images to model input, as a layer that travels into exports, and as NumPy for pipelines.

Resizing is two matrix products, one per axis. The matrices are built from the same few lines for
every method, backend and for sizes known only at run time.
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

    def real(value):
        return np.float32(value) if isinstance(value, (int, float)) else xp.cast(value, "float32")

    scale = real(old) / real(new)
    out = xp.expand_dims(xp.arange(new, dtype="float32"), 1)  # (new, 1)
    cell = xp.expand_dims(xp.arange(old, dtype="float32"), 0)  # (1, old)
    if method == "area":
        overlap = xp.minimum((out + 1.0) * scale, cell + 1.0) - xp.maximum(out * scale, cell)
        weights = xp.maximum(overlap, np.float32(0.0))
    else:
        width = xp.maximum(scale, np.float32(1.0)) if antialias else np.float32(1.0)
        centre = (out + 0.5) * scale - 0.5
        if method == "bilinear" and not antialias:
            # Outside the image the edge pixel counts fully, as with clamped coordinates.
            centre = xp.maximum(xp.minimum(centre, real(old) - 1.0), np.float32(0.0))
        weights = _kernel(xp.abs(centre - cell) / width, method, xp)
    return weights / xp.sum(weights, axis=1, keepdims=True)


def _kernel(x, method: str, xp: Any):
    if method == "bilinear":
        return xp.maximum(1.0 - x, np.float32(0.0))
    near = (1.5 * x - 2.5) * x * x + 1.0
    far = ((-0.5 * x + 2.5) * x - 4.0) * x + 2.0
    return xp.where(x <= 1.0, near, xp.where(x < 2.0, far, np.float32(0.0)))


def preprocess(images, image_size, how: Preprocessing, xp: Any = np):
    """(B, h, w, C) or (h, w, C) in 0..255 -> float32 of `image_size`, normalised.

    Args:
        images: uint8 or float, any size; sizes may be dynamic when `xp` is `keras.ops`.
        image_size: (H, W) of the result.
        how: the checkpoint's rule.
        xp: `numpy` or `keras.ops`.
    """
    x = images.astype(np.float32) if xp is np else xp.cast(images, "float32")
    height, width = (x.shape[-3], x.shape[-2]) if xp is np else _sizes(x)
    target = _resize_target((height, width), image_size, how, xp)
    if not _same((height, width), target):
        rows = resize_matrix(height, target[0], how.method, how.antialias, xp)
        cols = resize_matrix(width, target[1], how.method, how.antialias, xp)
        x = xp.matmul(cols, x)  # contracts w: (..., h, W, C)
        flat = xp.reshape(x, (*_leading(x, xp), height, target[1] * x.shape[-1]))
        x = xp.reshape(xp.matmul(rows, flat), (*_leading(x, xp), *target, x.shape[-1]))
        if how.truncate:
            # The thousandth absorbs the rounding of the products: without it a flat area of 200
            # can come out as 199.
            x = xp.floor(xp.clip(x + 1e-3, 0.0, 255.0))
    if not _same(target, image_size):
        top, left = (target[0] - image_size[0]) // 2, (target[1] - image_size[1]) // 2
        x = x[..., top : top + image_size[0], left : left + image_size[1], :]
        x = xp.reshape(x, (*_leading(x, xp), *image_size, x.shape[-1]))
    return (x - np.asarray(how.mean, np.float32)) / np.asarray(how.std, np.float32)


def _resize_target(size, image_size, how: Preprocessing, xp):
    """(height, width) after resizing and before the central crop."""
    if how.resize == "none":
        return size
    if how.resize == "stretch":
        return (how.resize_to, how.resize_to) if how.resize_to else tuple(image_size)
    short = how.resize_to or min(image_size)
    if xp is np or all(isinstance(s, int) for s in size):
        # Rounded half to even, as Python and TensorFlow do. Source: big_vision pp/ops_image.py.
        ratio = short / min(size)
        return tuple(int(np.round(s * ratio)) for s in size)
    ratio = short / ops.cast(ops.minimum(size[0], size[1]), "float32")
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
