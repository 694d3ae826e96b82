"""Which examples a step of training or evaluation holds, as tf.data sets of rows to make images of.

An element is `(payload, about)`: what is needed to get each image (a path, the bytes of a file, pixels,
or an index that Python reads), and a dict of `step` and, one per row, `real` (false for what fills up
a last batch), `labels`, and with random access `index`.
"""

import dataclasses
import functools
import os
from typing import Any

import numpy as np

from keras_vit.data.calls import numpy_call
from keras_vit.data.sources import Source
from keras_vit.data.streams import Stream


@dataclasses.dataclass(frozen=True)
class Share:
    """What one host makes of every batch.

    Attributes:
        batch: examples of all hosts.
        index: of this host.
        count: of hosts.
        before: 1 to make the example before this host's first too.
    """

    batch: int
    index: int
    count: int
    before: int = 0

    @property
    def local(self) -> int:
        """Examples of this host."""
        return self.batch // self.count

    @property
    def rows(self) -> int:
        """Images that this host makes."""
        return self.local + self.before

    @property
    def slots(self) -> np.ndarray:
        """(rows,) places in the batch of all hosts."""
        first = self.index * self.local - self.before
        return np.arange(first, first + self.rows) % self.batch

    def part(self, examples: int) -> tuple[int, int]:
        """(first, end) of the examples of a stream that this host reads: one more or less."""
        return examples * self.index // self.count, examples * (self.index + 1) // self.count


def kind_of(source: Source | Stream, channels: int) -> str:
    """How the images are held: `pixels`, `paths`, `bytes`, or what only `python` reads."""
    if isinstance(source, Stream):
        return "bytes"
    images = source.images
    if isinstance(images, np.ndarray):
        same = images.ndim == 4 and images.dtype == np.uint8 and images.shape[-1] == channels
        return "pixels" if same else "python"
    # Only of lists, because asking for an item of another sequence may cost anything.
    if isinstance(images, (list, tuple)) and channels in (1, 3):
        if all(isinstance(image, (str, os.PathLike)) for image in images):
            return "paths"
        if all(isinstance(image, bytes) for image in images):
            return "bytes"
    return "python"


def picked(
    source: Source,
    kind: str,
    share: Share,
    steps: tuple[int, int],
    per_epoch: int,
    seed: int | None,
) -> Any:
    """Rows of a source with random access.

    Args:
        kind: see `kind_of`.
        steps: (start, stop), counted over all epochs.
        per_epoch: steps of an epoch.
        seed: of the order, None for the stored one.
    """
    import tensorflow as tf

    count, labels, images = len(source), tf.constant(source.labels), source.images
    paths = tf.constant([os.fspath(path) for path in images] if kind == "paths" else [""])

    @functools.lru_cache(2)
    def order(epoch: int) -> np.ndarray:
        # As in Batches, so that both feeds see the examples in the same order.
        return np.random.default_rng((seed or 0, epoch)).permutation(count)

    def indices(step):
        epoch, step = divmod(int(step), per_epoch)
        places = np.minimum(step * share.batch + share.slots, count - 1)
        return places if seed is None else order(epoch)[places]

    def payload(index):
        if kind == "paths":
            return tf.gather(paths, index)
        if kind == "bytes":
            held = numpy_call(
                lambda index: np.array([images[i] for i in index], object), [index], tf.string
            )
            return tf.ensure_shape(held, (share.rows,))
        if kind == "pixels":
            held = numpy_call(lambda index: images[index], [index], tf.uint8)
            return tf.ensure_shape(held, (share.rows, *np.shape(images)[1:]))
        return index

    def rows_of(step):
        index = tf.ensure_shape(numpy_call(indices, [step], tf.int64), (share.rows,))
        about = {
            "step": step,
            "index": index,
            "real": (step % per_epoch) * share.batch + share.slots < count,
            "labels": tf.gather(labels, index),
        }
        return payload(index), about

    return tf.data.Dataset.range(*steps).map(as_written(rows_of))


def streamed(
    stream: Stream,
    share: Share,
    steps: tuple[int, int],
    per_epoch: int,
    seeds: tuple[int, int] | None,
    buffer: int,
    threads: int,
) -> Any:
    """Rows of a stream. What lies before the first step of its epoch is read over, not decoded.

    Args:
        steps: (start, stop), counted over all epochs.
        per_epoch: steps of an epoch.
        seeds: of the order of the files and of the buffer; None for the stored order, in which the
            last batch of an epoch is filled up with empty files.
        buffer: records to shuffle in.
        threads: to parse records with.
    """
    import tensorflow as tf

    first, end = share.part(len(stream))
    wanted = per_epoch * share.local
    label = tf.zeros((stream.num_classes,) if stream.multi_label else (), tf.int64)
    empty = tf.data.Dataset.from_tensors((b"", label, False))

    def epoch_of(epoch):
        if seeds is None:
            return stream.read(first, end, None)
        records = stream.read(first, end, tf.stack([tf.constant(seeds[0], tf.int64), epoch]))
        return _shuffled(records, buffer, seeds[1] + epoch).take(wanted)

    def parsed(records):
        examples = records.map(
            as_written(lambda record: (*stream.parse(record), True)), num_parallel_calls=threads
        )
        return examples if seeds else examples.concatenate(empty.repeat(wanted - (end - first)))

    def rows_of(step, example):
        image, label, real = example
        return image, {"step": step, "real": real, "labels": label}

    begin, skipped = divmod(steps[0], per_epoch)
    epochs = tf.data.Dataset.range(begin, -(-steps[1] // per_epoch))
    if seeds is None:
        examples = epochs.flat_map(as_written(lambda epoch: parsed(epoch_of(epoch))))
        examples = examples.skip(skipped * share.local)
    else:
        examples = parsed(epochs.flat_map(as_written(epoch_of)).skip(skipped * share.local))
    examples = examples.batch(share.local, drop_remainder=True)
    return tf.data.Dataset.zip((tf.data.Dataset.range(*steps), examples)).map(as_written(rows_of))


def _shuffled(records: Any, buffer: int, seed: Any) -> Any:
    """`Dataset.shuffle`, which does not take a tensor for a seed when there is a global seed as well."""
    import tensorflow as tf

    made = tf.raw_ops.ShuffleDataset(
        input_dataset=tf.data.experimental.to_variant(records),
        buffer_size=tf.constant(buffer, tf.int64),
        seed=seed,
        seed2=tf.constant(1, tf.int64),
        output_types=[tf.string],
        output_shapes=[()],
        reshuffle_each_iteration=False,
    )
    return tf.data.experimental.from_variant(made, records.element_spec)


def as_written(function: Any) -> Any:
    """A function that tf.data traces without rewriting its Python first, which takes seconds."""
    import tensorflow as tf

    return tf.autograph.experimental.do_not_convert(function)
