"""Data sets that are read from front to back: TFRecord files of tensorflow-datasets, on gs:// too.

Nothing of a stream is in memory but a buffer to shuffle in. In training the order of the files, the
reading of several at a time and the buffer mix the examples; all of it follows from the seed.
"""

import dataclasses
import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from keras_vit.data.calls import numpy_call
from keras_vit.data.sources import TFDS_MEMORY_LIMIT, Source, tfds_problem

FILES_AT_A_TIME = 16
RECORDS_AT_A_TIME = 16  # from one file before the next


@dataclasses.dataclass(frozen=True)
class Stream:
    """Labelled, encoded images without random access.

    Attributes:
        name: for reports.
        size: number of examples.
        class_names: names in order of the indices.
        read: `(first, last, seed)` -> tf.data set of the records `first` to `last - 1`: in stored order
            when `seed` is None, otherwise in a rough order of its own that follows from the two
            integers `seed`, a tensor.
        parse: a record -> (bytes of an image file, class index), as scalar tensors.
        multi_label: whether an example can have several classes: labels are then (classes,) of 0 and 1.
        broken: messages about images that could not be read; grows while reading.
    """

    name: str
    size: int
    class_names: tuple[str, ...]
    read: Callable[[int, int, Any], Any]
    parse: Callable[[Any], tuple[Any, Any]]
    multi_label: bool = False
    broken: list[str] = dataclasses.field(default_factory=list)

    def __len__(self) -> int:
        return self.size

    @property
    def num_classes(self) -> int:
        """Number of classes."""
        return len(self.class_names)

    def renumbered(self, places: np.ndarray, class_names: tuple[str, ...]) -> "Stream":
        """The same images with other numbers for their classes.

        Args:
            places: (classes,) the new number of each class.
            class_names: names in the new order, of which there may be more.
        """
        import tensorflow as tf

        if self.multi_label:
            raise ValueError(f"{self.name} has several labels per image, which keep their numbers.")
        table = np.asarray(places, np.int64)

        def parse(record):
            image, label = self.parse(record)
            return image, tf.gather(tf.constant(table), label)

        return dataclasses.replace(self, parse=parse, class_names=class_names)


@dataclasses.dataclass(frozen=True)
class Reading:
    """How images and classes are read from a set that has no plain `label`.

    Attributes:
        class_names: names in order of the indices; empty for those of the feature `label`.
        features: those that `label` needs, as tfds's `PartialDecoding` takes them.
        label: `features` of one example, as arrays -> class index, or (classes,) integers.
        multi_label: whether it gives (classes,).
        pixel_scale: stored pixel values are multiplied by it.
    """

    class_names: tuple[str, ...] = ()
    features: dict[str, Any] = dataclasses.field(default_factory=lambda: {"label": True})
    label: Callable[[Any], Any] = operator.itemgetter("label")
    multi_label: bool = False
    pixel_scale: int = 1


@dataclasses.dataclass(frozen=True)
class Part:
    """Some records of one file: `take` of them after the first `skip`."""

    path: str
    skip: int
    take: int


def parts_between(parts: Sequence[Part], first: int, last: int) -> list[Part]:
    """What holds the records `first` to `last - 1` of all those in `parts`."""
    found, begin = [], 0
    for part in parts:
        low, high = max(first - begin, 0), min(last - begin, part.take)
        if low < high:
            found.append(Part(part.path, part.skip + low, high - low))
        begin += part.take
    return found


def read_records(parts: Sequence[Part], first: int, last: int, seed: Any) -> Any:
    """`Stream.read` of TFRecord files."""
    import tensorflow as tf

    chosen = parts_between(parts, first, last)
    columns = [
        tf.constant([part.path for part in chosen]),
        *(tf.constant([getattr(p, f) for p in chosen], tf.int64) for f in ("skip", "take")),
    ]

    def one(path: Any, skip: Any, take: Any) -> Any:
        return tf.data.TFRecordDataset(path).skip(skip).take(take)

    if seed is None:
        stored: Any = tf.data.Dataset.from_tensor_slices(tuple(columns))
        return stored.flat_map(one)
    order = tf.argsort(tf.random.stateless_uniform((len(chosen),), seed, alg="philox"))
    columns = [tf.gather(column, order) for column in columns]
    return tf.data.Dataset.from_tensor_slices(tuple(columns)).interleave(
        one,
        cycle_length=FILES_AT_A_TIME,
        block_length=RECORDS_AT_A_TIME,
        num_parallel_calls=FILES_AT_A_TIME,
        deterministic=True,
    )


def open_tfds(
    name: str, *, data_dir: str | None = None, reading: Reading | None = None
) -> Source | Stream:
    """A tensorflow-datasets set `NAME[:SPLIT]` with `image` and `label`, as its files hold it.

    Up to `TFDS_MEMORY_LIMIT` of encoded images come into memory, with random access; more of them
    stay where they are.

    Args:
        name: such as `imagenet2012:train`; slices like `train[:90%]` are split names too.
        data_dir: where tensorflow-datasets keeps its files, also `gs://bucket/folder`.
        reading: where the classes come from when there is no `label`.

    Raises:
        ValueError: not there, no labelled images, or files that cannot be streamed.
    """
    tensorflow_datasets = _tensorflow_datasets()
    name, _, split = name.partition(":")
    split = split or "train"
    try:
        info = tensorflow_datasets.builder(name, data_dir=data_dir).info
        chosen = info.splits[split]
        parts = [Part(str(f.filename), f.skip, f.take) for f in chosen.file_instructions]
    except Exception as error:
        raise tfds_problem(name, split, error) from None
    class_names = _class_names(name, info.features, reading)
    if info.file_format.name != "TFRECORD":
        raise ValueError(
            f"tfds:{name} is stored as {info.file_format.value}, but only tfrecord files can be "
            f'streamed: prepare it with tensorflow_datasets.load({name!r}, builder_kwargs={{"file_format": '
            f'"tfrecord"}}).'
        )

    stream = Stream(
        f"tfds:{name}:{split}",
        chosen.num_examples,
        class_names,
        lambda first, last, seed: read_records(parts, first, last, seed),
        _parser(info.features, reading, len(class_names)),
        bool(reading and reading.multi_label),
    )
    return in_memory(stream) if _bytes(info, stream.size) <= TFDS_MEMORY_LIMIT else stream


def split_sizes(name: str, *, data_dir: str | None = None) -> dict[str, int]:
    """Number of examples in each split of a tensorflow-datasets set that is prepared here.

    Raises:
        ValueError: it is not.
    """
    tensorflow_datasets = _tensorflow_datasets()
    try:
        splits = tensorflow_datasets.builder(name, data_dir=data_dir).info.splits
    except Exception as error:
        raise tfds_problem(name, "train", error) from None
    if not splits:
        raise tfds_problem(name, "train", ValueError("it was never prepared"))
    return {split: splits[split].num_examples for split in splits}


def _tensorflow_datasets() -> Any:
    try:
        import tensorflow_datasets
    except ImportError:
        raise ValueError(
            'tfds: data needs tensorflow-datasets: pip install "keras-vit-zoo[tfds]".'
        ) from None
    return tensorflow_datasets


def _parser(
    features: Any, reading: Reading | None, num_classes: int
) -> Callable[[Any], tuple[Any, Any]]:
    """`Stream.parse` of a set with these features."""
    import tensorflow as tf
    import tensorflow_datasets

    wanted = {"image": True, **(reading.features if reading else {"label": True})}
    features = tensorflow_datasets.decode.PartialDecoding(wanted).extract_features(features)
    skipped = {"image": tensorflow_datasets.decode.SkipDecoding()}

    def parse(record):
        example = dict(features.deserialize_example(record, decoders=skipped))
        image = example.pop("image")
        if reading is None:
            return image, example["label"]
        if reading.pixel_scale != 1:
            pixels = tf.io.decode_image(image, expand_animations=False)
            image = tf.io.encode_png(pixels * tf.cast(reading.pixel_scale, pixels.dtype))

        def label(*values, recipe=reading.label):
            return np.asarray(recipe(tf.nest.pack_sequence_as(example, values)), np.int64)

        found = numpy_call(label, tf.nest.flatten(example), tf.int64)
        return image, tf.ensure_shape(found, (num_classes,) if reading.multi_label else ())

    return parse


def in_memory(stream: Stream) -> Source:
    """All encoded images of a stream as a source with random access."""
    examples = stream.read(0, stream.size, None).map(stream.parse).as_numpy_iterator()
    images, labels = zip(*examples, strict=True)
    return Source(stream.name, list(images), np.array(labels, np.int32), stream.class_names)


def _class_names(name: str, features: Any, reading: Reading | None) -> tuple[str, ...]:
    needed = ["image", *(reading.features if reading else ["label"])]
    if not set(needed) <= set(features):
        listed = " and ".join(f"`{feature}`" for feature in needed)
        raise ValueError(
            f"tfds:{name} has the features {sorted(features)}, but {listed} are needed."
        )
    named = bool(reading and reading.class_names)
    if not hasattr(features["image"], "encoding_format") or not (
        named or hasattr(features["label"], "names")
    ):
        found = [str(features[feature]) for feature in needed]
        raise ValueError(
            f"tfds:{name} has {' and '.join(found)}, but one image and one class for each example "
            f"are needed."
        )
    return reading.class_names if reading and named else tuple(features["label"].names)


def _bytes(info: Any, examples: int) -> float:
    """Size of so many examples, infinite where it is not known."""
    # A part of a split does not know its size, and asking for that of a thousand files on gs:// takes
    # a minute: the mean over the whole set is near enough.
    splits = list(info.splits.values())
    known = all(split.num_bytes for split in splits)
    total, count = (sum(getattr(s, f) for s in splits) for f in ("num_bytes", "num_examples"))
    return examples * total / max(count, 1) if known else float("inf")
