"""RandAugment with the operations and levels of the papers, on single images inside tf.data.

An image is uint8 (H, W, C) with 1 or 3 channels. Each layer picks one of sixteen operations, all
equally likely, and always applies it; `magnitude` sets how strong it is, and 10 was meant to be the
maximum. What lies above overshoots as the formulas say: at 15 `solarize` changes nothing, at 20
`posterize` keeps all bits. At 0 the image does not stay as it is either.

arXiv 1909.13719; the levels are those of AugReg (arXiv 2106.10270).
Source: big_vision pp/archive/autoaugment.py for the levels; Pillow's ImageOps and ImageEnhance for
what most operations do.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

from keras_vit.data.distort import inside

FILL = 128  # grey of what comes in from outside


@dataclasses.dataclass(frozen=True)
class Levels:
    """A magnitude in the units of the operations.

    Attributes:
        degrees: of rotations, either way.
        shear: pixels per pixel, either way.
        pixels: of translations, either way.
        half_size: of the square that is cut out.
        bits: that `posterize` keeps.
        threshold: from which on `solarize` inverts.
        addition: of `solarize_add`, to what is darker than 128.
        factor: of the enhancements: 0 gives the degenerate image, 1 the image.
    """

    degrees: float
    shear: float
    pixels: float
    half_size: int
    bits: int
    threshold: int
    addition: int
    factor: float


def levels(magnitude: float) -> Levels:
    """What a magnitude means to each operation."""
    share = magnitude / 10.0
    return Levels(
        degrees=30.0 * share,
        shear=0.3 * share,
        pixels=100.0 * share,
        half_size=int(40 * share),
        bits=int(4 * share),
        threshold=int(256 * share),
        addition=int(110 * share),
        factor=1.8 * share + 0.1,
    )


def blend(degenerate, image, factor: float) -> Any:
    """degenerate + factor * (image - degenerate) as uint8, fractions dropped, cut to 0..255."""
    import tensorflow as tf

    low, high = tf.cast(degenerate, tf.float32), tf.cast(image, tf.float32)
    return tf.cast(tf.clip_by_value(low + factor * (high - low), 0.0, 255.0), tf.uint8)


def autocontrast(image) -> Any:
    """Stretches each channel to 0..255; a flat one stays."""
    import tensorflow as tf

    x = tf.cast(image, tf.float32)
    low, high = (f(x, axis=(0, 1), keepdims=True) for f in (tf.reduce_min, tf.reduce_max))
    scale = 255.0 / tf.maximum(high - low, 1.0)
    stretched = tf.cast(tf.clip_by_value(x * scale - low * scale, 0.0, 255.0), tf.uint8)
    return tf.where(high > low, stretched, image)


def equalize(image) -> Any:
    """Gives each channel a flat histogram, as Pillow does."""
    import tensorflow as tf

    height, width, channels = image.shape
    values = tf.cast(tf.reshape(image, (-1, channels)), tf.int32)
    # One histogram for all channels: the values of channel c begin at 256 * c.
    shifted = values + 256 * tf.range(channels)
    bins = 256 * channels
    counts = tf.math.bincount(tf.reshape(shifted, [-1]), minlength=bins, maxlength=bins)
    counts = tf.reshape(counts, (channels, 256))
    last = tf.gather(counts, tf.reduce_max(values, axis=0), batch_dims=1)[:, None]
    step = (height * width - last) // 255
    below = tf.cumsum(counts, axis=1, exclusive=True)
    table = tf.minimum((below + step // 2) // tf.maximum(step, 1), 255)
    table = tf.cast(tf.where(step > 0, table, tf.range(256)), tf.uint8)
    return tf.reshape(tf.gather(tf.reshape(table, [-1]), shifted), image.shape)


def invert(image) -> Any:
    """255 minus the image."""
    return 255 - image


def posterize(image, bits: int) -> Any:
    """Keeps the highest `bits` bits, at least one."""
    # TensorFlow shifts a byte by seven places at most, so magnitude 0 keeps one bit.
    dropped = min(max(8 - bits, 0), 7)
    return image & np.uint8(256 - (1 << dropped))


def solarize(image, threshold: int) -> Any:
    """Inverts what is at least as bright as the threshold."""
    import tensorflow as tf

    return tf.where(tf.cast(image, tf.int32) < threshold, image, 255 - image)


def solarize_add(image, addition: int) -> Any:
    """Adds to what is darker than 128, at most up to 255."""
    import tensorflow as tf

    brighter = tf.cast(tf.minimum(tf.cast(image, tf.int32) + addition, 255), tf.uint8)
    return tf.where(image < 128, brighter, image)


def color(image, factor: float) -> Any:
    """Blends with the grey image."""
    return blend(_grey(image), image, factor)


def contrast(image, factor: float) -> Any:
    """Blends with a flat image of a 256th of the number of pixels, at most 255.

    That is no mean grey, but it is what the published models were trained with.
    """
    height, width, _ = image.shape
    return blend(np.float32(int(min(height * width / 256, 255))), image, factor)


def brightness(image, factor: float) -> Any:
    """Blends with black."""
    return blend(np.float32(0.0), image, factor)


def sharpness(image, factor: float) -> Any:
    """Blends with a smoothed image; the border stays."""
    import tensorflow as tf

    channels = image.shape[-1]
    kernel = np.ones((3, 3, channels, 1), np.float32)
    kernel[1, 1] = 5.0
    x = tf.cast(image, tf.float32)[None]
    # Whole numbers until the division, so that a flat area keeps its value.
    smooth = tf.floor(tf.nn.depthwise_conv2d(x, kernel, (1, 1, 1, 1), "VALID")[0] / 13.0)
    inner = blend(smooth, image[1:-1, 1:-1], factor)
    middle = tf.concat([image[1:-1, :1], inner, image[1:-1, -1:]], axis=1)
    return tf.concat([image[:1], middle, image[-1:]], axis=0)


def rotate(image, degrees) -> Any:
    """Turns about the centre; the nearest pixel is taken."""
    import tensorflow as tf

    angle = degrees * np.float32(np.pi / 180.0)
    cos, sin = tf.cos(angle), tf.sin(angle)
    y, x = (image.shape[0] - 1) / 2.0, (image.shape[1] - 1) / 2.0
    return _moved(image, (cos, -sin, x - cos * x + sin * y, sin, cos, y - sin * x - cos * y))


def shear_x(image, shear) -> Any:
    """Moves each row by `shear` times its number."""
    return _moved(image, (1.0, shear, 0.0, 0.0, 1.0, 0.0))


def shear_y(image, shear) -> Any:
    """Moves each column by `shear` times its number."""
    return _moved(image, (1.0, 0.0, 0.0, shear, 1.0, 0.0))


def translate_x(image, pixels) -> Any:
    """Moves to the left."""
    return _moved(image, (1.0, 0.0, pixels, 0.0, 1.0, 0.0))


def translate_y(image, pixels) -> Any:
    """Moves upwards."""
    return _moved(image, (1.0, 0.0, 0.0, 0.0, 1.0, pixels))


def cutout(image, half_size: int, place) -> Any:
    """Fills a square with grey, as far as it lies in the image.

    Args:
        half_size: pixels from its centre to its sides.
        place: vertical and horizontal place of the centre, two numbers in [0, 1).
    """
    import tensorflow as tf

    size = tuple(image.shape[:2])
    y, x = tf.unstack(tf.cast(place * tf.constant(size, tf.float32), tf.int32))
    box = (y - half_size, x - half_size, 2 * half_size, 2 * half_size)
    return tf.where(inside(box, size), np.uint8(FILL), image)


# (image, levels, sign, place) -> image; the order is part of what a seed means.
OPERATIONS: dict[str, Callable] = {
    "autocontrast": lambda image, level, sign, place: autocontrast(image),
    "equalize": lambda image, level, sign, place: equalize(image),
    "invert": lambda image, level, sign, place: invert(image),
    "rotate": lambda image, level, sign, place: rotate(image, sign * level.degrees),
    "posterize": lambda image, level, sign, place: posterize(image, level.bits),
    "solarize": lambda image, level, sign, place: solarize(image, level.threshold),
    "color": lambda image, level, sign, place: color(image, level.factor),
    "contrast": lambda image, level, sign, place: contrast(image, level.factor),
    "brightness": lambda image, level, sign, place: brightness(image, level.factor),
    "sharpness": lambda image, level, sign, place: sharpness(image, level.factor),
    "shear_x": lambda image, level, sign, place: shear_x(image, sign * level.shear),
    "shear_y": lambda image, level, sign, place: shear_y(image, sign * level.shear),
    "translate_x": lambda image, level, sign, place: translate_x(image, sign * level.pixels),
    "translate_y": lambda image, level, sign, place: translate_y(image, sign * level.pixels),
    "cutout": lambda image, level, sign, place: cutout(image, level.half_size, place),
    "solarize_add": lambda image, level, sign, place: solarize_add(image, level.addition),
}


def rand_augment(image, magnitude: float, dice) -> Any:
    """One layer after the other, as many as `dice` has rows.

    Args:
        image: uint8 (H, W, 1) or (H, W, 3), H and W known.
        magnitude: the same for all operations.
        dice: (layers, 4) numbers in [0, 1): which operation, which sign, and where to cut out.
    """
    import tensorflow as tf

    level = levels(magnitude)
    for layer in tf.unstack(dice):
        number = tf.cast(layer[0] * len(OPERATIONS), tf.int32)
        sign = tf.where(layer[1] < 0.5, -1.0, 1.0)
        branches = [
            lambda image=image, sign=sign, place=layer[2:], op=op: op(image, level, sign, place)
            for op in OPERATIONS.values()
        ]
        image = tf.ensure_shape(tf.switch_case(number, branches), image.shape)
    return image


def _moved(image, coefficients) -> Any:
    """Each pixel (x, y) shows the one nearest to (a x + b y + c, d x + e y + f)."""
    import tensorflow as tf

    transform = tf.stack([tf.cast(c, tf.float32) for c in (*coefficients, 0.0, 0.0)])
    return tf.raw_ops.ImageProjectiveTransformV3(
        images=image[None],
        transforms=transform[None],
        output_shape=image.shape[:2],
        fill_value=float(FILL),
        interpolation="NEAREST",
        fill_mode="CONSTANT",
    )[0]


def _grey(image):
    import tensorflow as tf

    return image if image.shape[-1] == 1 else tf.image.rgb_to_grayscale(image)
