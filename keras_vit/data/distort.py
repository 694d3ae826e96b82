"""What happens to single images after the crop, inside tf.data: uint8 (H, W, C) of known size.

Each function takes its random numbers, uniform in [0, 1), as an argument, and does nothing else at
random. The counterparts for batches in NumPy are in `augment`.
"""

from typing import Any

import numpy as np

from keras_vit.data.crops import random_crop


def flip(image, dice) -> Any:
    """Mirrors left to right when the number is below a half."""
    import tensorflow as tf

    return tf.cond(dice < 0.5, lambda: tf.reverse(image, [1]), lambda: image)


def shift(image, dice) -> Any:
    """Moves by up to a fourteenth of the size in both directions, filling with zeros.

    Args:
        dice: two numbers.
    """
    import tensorflow as tf

    height, width, _ = image.shape
    tall, wide = max(1, height // 14), max(1, width // 14)
    padded = tf.pad(image, [(tall, tall), (wide, wide), (0, 0)])
    return random_crop(padded, (height, width), dice)


def erase(image, dice, seed, share: float) -> Any:
    """Fills, in a share of the images, a rectangle of 2 to 20 % of the area with random values.

    Args:
        dice: five numbers: whether, area, aspect, vertical and horizontal place.
        seed: two integers, of the values filled in.

    Source: random erasing, arXiv 1708.04896.
    """
    import tensorflow as tf

    height, width, channels = image.shape
    whether, area, ratio, top, left = tf.unstack(dice)
    area = (0.02 + 0.18 * area) * (height * width)
    ratio = tf.exp((2.0 * ratio - 1.0) * np.float32(np.log(2.0)))

    def side(length, most):
        return tf.clip_by_value(tf.cast(tf.round(length), tf.int32), 1, most)

    h, w = side(tf.sqrt(area * ratio), height), side(tf.sqrt(area / ratio), width)
    box = [_place(top, height - h), _place(left, width - w), h, w]

    def erased():
        noise = tf.random.stateless_uniform(
            (height, width, channels), seed, 0, 256, tf.int32, alg="philox"
        )
        return tf.where(inside(box, (height, width)), tf.cast(noise, tf.uint8), image)

    return tf.cond(whether < share, erased, lambda: image)


def inside(box, size: tuple[int, int]) -> Any:
    """bool (H, W, 1): which pixels lie in the box (y, x, height, width)."""
    import tensorflow as tf

    y, x, h, w = box
    rows, cols = tf.range(size[0])[:, None, None], tf.range(size[1])[None, :, None]
    return (rows >= y) & (rows < y + h) & (cols >= x) & (cols < x + w)


def _place(dice, room):
    """An integer from 0 to `room`."""
    import tensorflow as tf

    return tf.cast(dice * tf.cast(room + 1, tf.float32), tf.int32)
