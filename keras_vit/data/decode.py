"""Image files as tensors inside tf.data: JPEG by TensorFlow, everything else by Pillow.

A JPEG whose pixels TensorFlow and `read_image` agree on is decoded without Python, and only as much
of it as a crop needs. What has to be turned (EXIF), converted (CMYK) or unpacked (PNG and others)
goes through `read_image`. Both give the same bytes.
"""

import math
from collections.abc import Callable
from typing import Any

from keras_vit.data.calls import numpy_call
from keras_vit.data.images import MAX_PIXELS, read_image

# Of a JPEG that needs no look at how many pixels that makes: longer ones are left to `read_image`.
LONGEST = math.isqrt(MAX_PIXELS)
JPEG_START = b"\xff\xd8\xff"
# The usual header of a JPEG is shorter than this, and it ends with a start of scan: length, number
# of components, two bytes for each, and the range of coefficients. (TensorFlow's expressions see
# UTF-8, where no byte above 127 can be named, so the two bytes of the marker are left out.)
HEADER_BYTES = 4096
START_OF_SCAN = rb"(?s)\C*(\x00\x08\x01\C{2}|\x00\x0c\x03\C{6})\x00[\x00\x3f]\C*"
# The tag 0x0112 with one value of 2 to 8, in either byte order, or the same as XMP writes it. What
# only looks like it takes the slow way and comes out right.
ORIENTATION = (
    rb"(?s)\C*(\x12\x01[\x01-\x0d]\x00\x01\x00\x00\x00[\x02-\x08]"
    rb"|\x01\x12\x00[\x01-\x0d]\x00\x00\x00\x01\x00{0,3}[\x02-\x08]"
    rb"|tiff:Orientation(=\"|>)[2-8])\C*"
)


def decode(contents, channels: int, crop: Callable[[Any], Any] | None = None) -> Any:
    """uint8 (h, w, channels) of the bytes of a file, as `read_image` gives it, or a crop of that.

    Args:
        contents: scalar string, the bytes of a file.
        channels: 1 or 3.
        crop: from the shape (height, width, channels) of an image, int32, to the box (y, x, height,
            width) that is wanted. Of a JPEG, nothing else is decoded.
    """
    import tensorflow as tf

    def jpeg():
        shape = tf.io.extract_jpeg_shape(contents)
        return tf.cond(_is_plain(contents, shape), lambda: plain(shape), other)

    def plain(shape):
        if crop is None:
            return decode_jpeg(contents, channels)
        return decode_box(contents, channels, crop(shape), shape[1])

    def other():
        image = decode_other(contents, channels)
        return cropped(image, crop(tf.shape(image))) if crop else image

    starts = tf.strings.substr(contents, 0, len(JPEG_START))
    return tf.cond(tf.equal(starts, JPEG_START), jpeg, other)


def cropped(image, box) -> Any:
    """The part of an image (h, w, C) in the box (y, x, height, width)."""
    import tensorflow as tf

    y, x, height, width = tf.unstack(box)
    return image[y : y + height, x : x + width]


def _is_plain(contents, shape):
    """Scalar bool: a grey or three-channel JPEG in which nothing has to be turned."""
    import tensorflow as tf

    head = tf.strings.substr(contents, 0, HEADER_BYTES)
    whole = tf.strings.regex_full_match(head, START_OF_SCAN)
    turned = tf.strings.regex_full_match(tf.where(whole, head, contents), ORIENTATION)
    return tf.reduce_all(shape <= (LONGEST, LONGEST, 3)) & ~turned


# Always in colour, because the luma of the file is not the grey that `read_image` computes. The exact
# inverse cosine transform costs no more than the fast one and gives Pillow's pixels.
JPEG = {"channels": 3, "dct_method": "INTEGER_ACCURATE"}


def decode_jpeg(contents, channels: int) -> Any:
    """uint8 (h, w, channels) of a plain JPEG."""
    import tensorflow as tf

    image = tf.io.decode_jpeg(contents, **JPEG)
    return image if channels == 3 else _grey(image)


def decode_box(contents, channels: int, box, image_width) -> Any:
    """uint8 (height, width, channels) of the box (y, x, height, width) in a plain JPEG.

    One more column on each side is decoded: where a file holds colours at half resolution, a column
    takes half of its colour from its neighbour, and without that it would be up to 23 grey levels off.
    """
    import tensorflow as tf

    y, x, height, width = tf.unstack(box)
    before, after = tf.minimum(x, 1), tf.minimum(image_width - x - width, 1)
    wider = tf.stack([y, x - before, height, before + width + after])
    image = tf.io.decode_and_crop_jpeg(contents, wider, **JPEG)[:, before : before + width]
    return image if channels == 3 else _grey(image)


def decode_other(contents, channels: int) -> Any:
    """uint8 (h, w, channels) of any file that `read_image` reads."""
    import tensorflow as tf

    image = numpy_call(lambda data: read_image(data, channels), [contents], tf.uint8)
    return tf.ensure_shape(image, (None, None, channels))


def _grey(image):
    """Pillow's grey: weights in 65536ths, halves up."""
    import tensorflow as tf

    weighed = tf.cast(image, tf.int32) * tf.constant([19595, 38470, 7471])
    total = tf.reduce_sum(weighed, axis=-1, keepdims=True) + 0x8000
    return tf.cast(total // 65536, tf.uint8)
