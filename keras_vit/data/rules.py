"""From one image, as bytes or pixels, to one entry of a batch, inside tf.data."""

import dataclasses
import zlib
from typing import Any

import numpy as np

from keras_vit.card import Preprocessing
from keras_vit.data import crops, decode, distort
from keras_vit.data.augment import Augment
from keras_vit.data.calls import numpy_call
from keras_vit.data.randaugment import rand_augment
from keras_vit.layers.preprocessor import preprocess


def stream_of(seed: int, purpose: str) -> int:
    """A number for one use of random numbers, independent of those for other uses."""
    mixed = np.random.SeedSequence((seed, zlib.crc32(purpose.encode())))
    return int(mixed.generate_state(1, np.uint64)[0] >> np.uint64(1))


@dataclasses.dataclass(frozen=True)
class TrainingRule:
    """Crop, distort, normalise.

    Between these the image is uint8. What happens depends on the example's row of random numbers
    (`dice`) and its number in the run, nothing else.

    Attributes:
        image_size: (H, W) of the result.
        channels: of the result.
        preprocessing: of which only `mean` and `std` are used.
        augment: what to do; mixing is not done here.
        uint8: leave out the normalisation.
        seed: of everything random.
    """

    image_size: tuple[int, int]
    channels: int
    preprocessing: Preprocessing
    augment: Augment
    uint8: bool
    seed: int

    def dice(self, step, batch_size: int) -> dict[str, Any]:
        """Random numbers of all examples of a batch: (B, ...) each."""
        import tensorflow as tf

        augment, shapes = self.augment, {}
        if augment.crop == "random":
            shapes["crop"] = (2,)
        if augment.flip:
            shapes["flip"] = ()
        if augment.shift:
            shapes["shift"] = (2,)
        if augment.randaugment:
            shapes["randaugment"] = (augment.randaugment[0], 4)
        if augment.erase:
            shapes["erase"] = (5,)
        rolled = {
            name: tf.random.stateless_uniform(
                (batch_size, *shape),
                tf.stack([tf.constant(stream_of(self.seed, name), tf.int64), step]),
                alg="philox",
            )
            for name, shape in shapes.items()
        }
        number = step * batch_size + tf.range(batch_size, dtype=tf.int64)
        for name, wanted in (("box", augment.crop == "inception"), ("noise", augment.erase)):
            if wanted:
                stream = tf.fill(number.shape, tf.constant(stream_of(self.seed, name), tf.int64))
                rolled[name] = tf.stack([stream, number], axis=1)
        return rolled

    def of_bytes(self, contents, row: dict[str, Any]) -> Any:
        """(H, W, C) of the bytes of a file."""
        crop = self._box(row) if self.augment.crop == "inception" else None
        return self._after_crop(decode.decode(contents, self.channels, crop), row)

    def of_image(self, image, row: dict[str, Any]) -> Any:
        """(H, W, C) of a decoded image, uint8 (h, w, C)."""
        import tensorflow as tf

        if self.augment.crop == "inception":
            image = decode.cropped(image, self._box(row)(tf.shape(image)))
        return self._after_crop(image, row)

    def _box(self, row):
        return lambda shape: crops.inception_box(shape, row["box"], self.augment.crop_area)

    def _after_crop(self, image, row):
        import tensorflow as tf

        augment = self.augment
        if augment.crop == "random":
            image = crops.resize(image, resized_for_random_crop(augment, self.image_size))
            image = crops.random_crop(image, self.image_size, row["crop"])
        else:
            image = crops.resize(image, self.image_size)
        if augment.flip:
            image = distort.flip(image, row["flip"])
        if augment.shift:
            image = distort.shift(image, row["shift"])
        if augment.randaugment:
            image = rand_augment(image, augment.randaugment[1], row["randaugment"])
        if augment.erase:
            image = distort.erase(image, row["erase"], row["noise"], augment.erase)
        image = tf.ensure_shape(image, (*self.image_size, self.channels))
        return image if self.uint8 else _normalised(tf.cast(image, tf.float32), self.preprocessing)


def resized_for_random_crop(augment: Augment, image_size: tuple[int, int]) -> tuple[int, int]:
    """(height, width) that the `random` crop is taken from.

    Raises:
        ValueError: smaller than the model's size.
    """
    if augment.resize is None:
        height, width = (round(side * 8 / 7) for side in image_size)
        return height, width
    if augment.resize < max(image_size):
        raise ValueError(
            f"the random crop of {image_size[0]}x{image_size[1]} needs resize of at least "
            f"{max(image_size)}, got {augment.resize}."
        )
    return augment.resize, augment.resize


@dataclasses.dataclass(frozen=True)
class EvaluationRule:
    """Exactly the numbers of `keras_vit.layers.preprocessor.preprocess`.

    Attributes:
        image_size: (H, W) of the result.
        channels: of the result.
        preprocessing: the card's rule.
    """

    image_size: tuple[int, int]
    channels: int
    preprocessing: Preprocessing

    def of_bytes(self, contents, row: dict[str, Any]) -> Any:
        """float32 (H, W, C) of the bytes of a file."""
        return self.of_image(decode.decode(contents, self.channels), row)

    def of_image(self, image, row: dict[str, Any]) -> Any:
        """float32 (H, W, C) of a decoded image, uint8 (h, w, C)."""
        import tensorflow as tf

        shape = (*self.image_size, self.channels)
        if self._kernel():
            return tf.ensure_shape(self._by_kernel(image), shape)
        how, size = self.preprocessing, self.image_size
        made = numpy_call(lambda image: preprocess(image, size, how), [image], tf.float32)
        return tf.ensure_shape(made, shape)

    def _kernel(self) -> bool:
        """Whether TensorFlow has a kernel that does the same, and no image can be too small."""
        how, size = self.preprocessing, self.image_size
        same = how.method == "area" or (how.method == "bilinear" and not how.antialias)
        least = max(size) if how.resize == "stretch" else min(size)
        return same and how.resize != "none" and (how.resize_to or least) >= least

    def _by_kernel(self, image):
        import tensorflow as tf

        how, size = self.preprocessing, tf.constant(self.image_size)
        if how.resize == "stretch":
            target = size if how.resize_to is None else tf.constant((how.resize_to,) * 2)
        else:
            now = tf.cast(tf.shape(image)[:2], tf.float64)
            sides = (how.resize_to or min(self.image_size)) * np.array(self.image_size)
            ratio = tf.reduce_max(sides / np.float64(min(self.image_size)) / now)
            target = tf.cast(tf.round(now * ratio), tf.int32)
        kernel = {"images": image[None], "size": target}
        if how.method == "area":
            x = tf.raw_ops.ResizeArea(**kernel)[0]
        else:
            x = tf.raw_ops.ResizeBilinear(**kernel, half_pixel_centers=True)[0]
        if how.truncate or how.rounded:
            x = tf.floor(tf.clip_by_value(x, 0.0, 255.0) + (0.0 if how.truncate else 0.5))
        top, left = tf.unstack((target - size) // 2)
        x = x[top : top + self.image_size[0], left : left + self.image_size[1]]
        return _normalised(x, how)


def _normalised(x, how: Preprocessing):
    return (x - np.array(how.mean, np.float32)) / np.array(how.std, np.float32)
