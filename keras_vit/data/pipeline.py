"""A feed on tf.data: files are decoded by TensorFlow, a JPEG only as far as the crop reaches.

For the ImageNet recipes and for data sets that do not fit in memory. What a batch holds depends on
(seed, step) alone, whatever the threads do, so that a run can begin anywhere.
"""

import os
import zlib
from typing import Any

import keras
import numpy as np

from keras_vit.card import Preprocessing
from keras_vit.data.augment import Augment
from keras_vit.data.calls import held_calls, numpy_call
from keras_vit.data.careful import careful_batch
from keras_vit.data.images import read_image
from keras_vit.data.mixing import mix
from keras_vit.data.rows import Share, as_written, kind_of, picked, streamed
from keras_vit.data.rules import (
    EvaluationRule,
    TrainingRule,
    resized_for_random_crop,
    stream_of,
)
from keras_vit.data.sources import Source
from keras_vit.data.streams import Stream

SHUFFLE_BUFFER = 10_000  # encoded images of a stream: 1.1 GB of ImageNet
BATCHES_AT_A_TIME = 2  # being made; as many more may wait to be


class Pipeline:
    """Batches (images, targets[, weights]) of a source, made by tf.data.

    Images are float32 (B, H, W, C), or uint8, targets float32 (B, classes). Training leaves out a last
    batch that is not full, unless it is the only one; evaluation gives every example exactly once.
    Between crop and normalisation images are uint8. An image that cannot be read is noted in
    `source.broken`; in training the next readable one of its batch takes its place, in evaluation it is
    left out, or has weight 0 with `pad`. Of a JPEG that ends early, what is there can be cropped.

    With several hosts, their batches of a step, put together, are the batch of a single host, if the
    source has random access. A `Stream` is shared out among the hosts by examples, each of which
    shuffles and mixes its own part; every example comes once per epoch there too, but not in the
    batch where a single host would have it. Continuing in mid-epoch reads over what was used.

    Args:
        source: from `keras_vit.data.sources.open_feed_source`, or any `Source` or `Stream`.
        image_size: (H, W) of the model.
        channels: channels of the model.
        preprocessing: the card's rule; training uses only its mean and std.
        batch_size: examples per batch, over all hosts.
        training: shuffle and augment.
        augment: what training does to images.
        class_weights: (classes,) factors of the loss: training batches then have weights, the mean
            over each example's classes.
        seed: of everything random, zero or more.
        shard: (index, count) of this host among all: it gets that part of every batch.
        uint8: give images that are still to be normalised, a quarter of the bytes, in training.
        pad: in evaluation, fill up the last batch with examples of weight 0, so that all have one shape.
        shuffle_buffer: encoded images that a stream in training keeps in memory to shuffle.
        threads: None for one per core.

    Raises:
        ValueError: options that do not go together; the message says which.
    """

    def __init__(
        self,
        source: Source | Stream,
        image_size: tuple[int, int],
        channels: int,
        preprocessing: Preprocessing,
        *,
        batch_size: int = 64,
        training: bool = False,
        augment: Augment | None = None,
        class_weights: np.ndarray | None = None,
        seed: int = 0,
        shard: tuple[int, int] = (0, 1),
        uint8: bool = False,
        pad: bool = False,
        shuffle_buffer: int = SHUFFLE_BUFFER,
        threads: int | None = None,
    ):
        augment = (augment or Augment()) if training else Augment()
        image_size = (image_size[0], image_size[1])
        self.source, self.batch_size, self.channels = source, batch_size, channels
        self.training, self.augment, self.class_weights = training, augment, class_weights
        self.seed, self.shard, self.uint8, self.pad = seed, shard, uint8, pad
        self.shuffle_buffer = shuffle_buffer
        self.threads = threads or len(os.sched_getaffinity(0))
        self._mixes = bool(augment.mixup or augment.cutmix)
        # A training set smaller than a batch is one batch, if the hosts can share it.
        batch = min(batch_size, len(source)) if training else batch_size
        # Mixing takes the example before this host's first as well.
        before = int(self._mixes and shard[1] > 1 and not isinstance(source, Stream))
        self._share = Share(batch, *shard, before)
        self._kind = kind_of(source, channels)
        self.rule: TrainingRule | EvaluationRule
        if training:
            self.rule = TrainingRule(image_size, channels, preprocessing, augment, uint8, seed)
        else:
            self.rule = EvaluationRule(image_size, channels, preprocessing)
        self._check()

    def _check(self) -> None:
        (index, count), augment = self.shard, self.augment
        means = len(self.rule.preprocessing.mean)
        if not 0 <= index < count:
            raise ValueError(
                f"shard must be (index, count) with 0 <= index < count, got {self.shard}."
            )
        if self.batch_size < 1 or self._share.batch % count:
            raise ValueError(
                f"{self._share.batch} examples cannot be shared out among {count} hosts: give a batch_size "
                f"that is a multiple of it, and not more than the {len(self.source)} examples of "
                f"{self.source.name}."
            )
        if self.shuffle_buffer < 1 or self.threads < 1:
            raise ValueError(
                f"shuffle_buffer and threads must be at least 1, got {self.shuffle_buffer} and "
                f"{self.threads}."
            )
        if means not in (1, self.channels):
            raise ValueError(
                f"the preprocessing is for {means} channels, but the images have {self.channels}."
            )
        if self.uint8 and (self._mixes or not self.training):
            raise ValueError(
                "uint8 images cannot be mixed before they are normalised, nor evaluated as the card "
                "says: use uint8=True in training without mixup and cutmix."
            )
        if self.pad and self.training:
            raise ValueError(
                "pad=True is for evaluation: training leaves out a batch that is not full."
            )
        if count > 1 and not self.training and not self.pad:
            raise ValueError(
                "evaluation on several hosts needs pad=True, so that all have equal batches."
            )
        if augment.randaugment and self.channels not in (1, 3):
            raise ValueError(
                f"RandAugment takes 1 or 3 channels, but the model takes {self.channels}."
            )
        if augment.crop == "random":
            resized_for_random_crop(augment, self.rule.image_size)

    @property
    def steps_per_epoch(self) -> int:
        """Batches of an epoch, on every host alike."""
        share, examples = self._share, len(self.source)
        if self.training:
            return examples // share.batch
        if isinstance(self.source, Stream):
            # No host has more than the last one.
            first, end = Share(share.batch, share.count - 1, share.count).part(examples)
            return -(-(end - first) // share.local)
        return -(-examples // share.batch)

    def identity(self) -> dict[str, Any]:
        """Plain values that tell these batches from others."""
        found = {"feed": "tf.data", "name": self.source.name, "examples": len(self.source)}
        if isinstance(self.source, Stream):
            found |= {"shuffle_buffer": self.shuffle_buffer, "hosts": self.shard[1]}
        else:
            found["labels"] = zlib.crc32(np.ascontiguousarray(self.source.labels).tobytes())
        return found

    def keras_data(self, start: int = 0, stop: int | None = None) -> Any:
        """A tf.data set of the batches of the steps from `start` up to `stop`, over all epochs."""
        tf = _tensorflow()
        stop = self.steps_per_epoch if stop is None else stop
        if not 0 <= start <= stop:
            raise ValueError(f"steps go from 0 up, got {start} to {stop}.")

        def batch_of(payload, about):
            parts = payload, self._dice(about["step"])
            made = careful_batch(
                parts, self._share.rows, self._image, self._again, self.training, self.threads
            )
            return tf.data.Dataset.zip((made, tf.data.Dataset.from_tensors(about)))

        with held_calls() as held:
            batches = self._rows(start, stop).interleave(
                as_written(batch_of),
                cycle_length=BATCHES_AT_A_TIME,
                block_length=1,
                num_parallel_calls=BATCHES_AT_A_TIME,
                deterministic=True,
            )
            batches = batches.map(as_written(self._finished))
        batches.held = held  # as long as this data set, or one that is made of it
        batches = batches.apply(tf.data.experimental.assert_cardinality(stop - start))
        return batches.prefetch(1).with_options(_options(self.threads))

    def _rows(self, start: int, stop: int):
        steps, per_epoch = (start, stop), self.steps_per_epoch
        if not isinstance(self.source, Stream):
            seed = self.seed if self.training else None
            return picked(self.source, self._kind, self._share, steps, per_epoch, seed)
        seeds = stream_of(self.seed, "files"), stream_of(self.seed, "buffer")
        return streamed(
            self.source,
            self._share,
            steps,
            per_epoch,
            seeds if self.training else None,
            self.shuffle_buffer,
            self.threads,
        )

    def _dice(self, step) -> dict[str, Any]:
        if isinstance(self.rule, EvaluationRule):
            return {}
        tf = _tensorflow()
        rolled = self.rule.dice(step, self._share.batch)
        return {name: tf.gather(values, self._share.slots) for name, values in rolled.items()}

    def _image(self, payload, dice):
        """One row to one image, in the graph; an error where it cannot be read."""
        tf = _tensorflow()
        if self._kind == "pixels":
            return self.rule.of_image(payload, dice)
        if self._kind == "python":
            image = numpy_call(self._pixels, [payload], tf.uint8)
            return self.rule.of_image(tf.ensure_shape(image, (None, None, self.channels)), dice)
        if self._kind == "paths":
            return self.rule.of_bytes(tf.io.read_file(payload), dice)
        if self.training or not isinstance(self.source, Stream):
            return self.rule.of_bytes(payload, dice)
        return tf.cond(  # what fills up a last batch is empty
            tf.equal(payload, ""),
            lambda: tf.zeros((*self.rule.image_size, self.channels)),
            lambda: self.rule.of_bytes(payload, dice),
        )

    def _pixels(self, index) -> np.ndarray:
        image = self.source.image(int(index), self.channels)  # pyright: ignore
        if image is None:
            raise ValueError(self.source.broken[-1])
        return image

    def _again(self, payload, dice):
        """One row to one image with Pillow, or None, noted, when that cannot read it either."""
        tf = _tensorflow()
        if self._kind == "pixels":
            return self.rule.of_image(payload, dice)
        if self._kind == "python":
            image = self.source.image(int(payload), self.channels)  # pyright: ignore
        else:
            image = self._reread(payload.numpy())
        return None if image is None else self.rule.of_image(tf.constant(image), dice)

    def _reread(self, payload: bytes) -> np.ndarray | None:
        paths = self._kind == "paths"
        try:
            return read_image(os.fsdecode(payload) if paths else payload, self.channels)
        except ValueError as error:
            message = str(error) if paths else f"{self.source.name}: an image of {error}"
            if message not in self.source.broken:
                self.source.broken.append(message)
            return None

    def _finished(self, made, about):
        """Targets, mixing, weights."""
        tf = _tensorflow()
        (images, origin), labels, real = made, about["labels"], about["real"]
        labels = tf.gather(labels, tf.maximum(origin, 0))
        if self.source.multi_label:
            targets = tf.cast(labels, tf.float32)
        else:
            targets = tf.one_hot(labels, self.source.num_classes)
        if self.training:
            return self._trained(images, targets, about["step"])
        real = real & (origin >= 0)
        if not self.pad:
            return tf.boolean_mask(images, real), tf.boolean_mask(targets, real)
        weights = tf.cast(real, tf.float32)
        return images, targets, weights

    def _trained(self, images, targets, step):
        tf = _tensorflow()
        if self._mixes:
            batch = images, targets
            if self._share.before:
                batch, partners = tuple(x[1:] for x in batch), tuple(x[:-1] for x in batch)
            else:
                partners = tuple(tf.roll(x, 1, axis=0) for x in batch)
            seed = tf.stack([tf.constant(stream_of(self.seed, "mix"), tf.int64), step])
            images, targets = mix(self.augment, batch, partners, seed)
        if self.class_weights is None:
            return images, targets
        factors = tf.linalg.matvec(targets, tf.constant(self.class_weights, tf.float32))
        return images, targets, factors / tf.maximum(tf.reduce_sum(targets, axis=1), 1e-9)


def _options(threads: int):
    tf = _tensorflow()
    options = tf.data.Options()
    options.deterministic = True
    options.autotune.enabled = False  # what is in memory at a time is counted here
    options.threading.private_threadpool_size = threads
    options.threading.max_intra_op_parallelism = 1
    # The examples are shared out among the hosts already.
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    return options


def _tensorflow():
    import tensorflow as tf

    if keras.backend.backend() != "tensorflow":
        # Its tensors never leave the host; the memory of a GPU belongs to the other backend.
        try:
            tf.config.set_visible_devices([], "GPU")
        except RuntimeError:  # it was used before
            pass
    return tf
