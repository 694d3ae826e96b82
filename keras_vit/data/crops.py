"""Which part of an image a training step sees, on single images inside tf.data."""

from typing import Any

ASPECT = (0.75, 4.0 / 3.0)  # width over height of an Inception box


def inception_box(shape, seed, area: tuple[float, float] = (0.05, 1.0)) -> Any:
    """A box (y, x, height, width) of random area and aspect, the whole image where none fits.

    Args:
        shape: (height, width, channels) of the image, int32.
        seed: two integers; the box depends on nothing else.
        area: smallest and largest share of the image's area.

    Source: TensorFlow's sample_distorted_bounding_box, as in arXiv 1409.4842.
    """
    import tensorflow as tf

    begin, size, _ = tf.image.stateless_sample_distorted_bounding_box(
        shape,
        tf.zeros((0, 0, 4)),
        seed,
        min_object_covered=0.0,
        aspect_ratio_range=ASPECT,
        area_range=area,
        use_image_if_no_bounding_boxes=True,
    )
    return tf.concat([begin[:2], size[:2]], axis=0)


def random_crop(image, size: tuple[int, int], dice) -> Any:
    """A box of `size` anywhere in an image (h, w, C) of known size.

    Args:
        dice: two numbers in [0, 1).
    """
    import tensorflow as tf

    room = [have - want + 1 for have, want in zip(image.shape, size, strict=False)]
    y, x = tf.unstack(tf.cast(dice * tf.constant(room, tf.float32), tf.int32))
    return tf.ensure_shape(image[y : y + size[0], x : x + size[1]], (*size, image.shape[-1]))


def resize(image, size: tuple[int, int]) -> Any:
    """uint8 (h, w, C) -> uint8 of `size`: bilinear, half-pixel centres, no antialias, fractions dropped.

    Source: big_vision pp/ops_image.py, which casts back after resizing.
    """
    import tensorflow as tf

    batch = tf.expand_dims(image, 0)
    resized = tf.raw_ops.ResizeBilinear(images=batch, size=size, half_pixel_centers=True)
    return tf.cast(tf.squeeze(resized, 0), tf.uint8)
