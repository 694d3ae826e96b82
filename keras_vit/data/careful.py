"""Batches of images of which some cannot be read.

tf.data stops at an error. So a batch is made as if there were none, and only one that fails is made
again, image by image, around those that neither TensorFlow nor Pillow can read.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from keras_vit.data.calls import eager_call
from keras_vit.data.rows import as_written


def careful_batch(
    parts: tuple[Any, ...],
    rows: int,
    image: Callable[..., Any],
    again: Callable[..., Any],
    replace: bool,
    threads: int,
) -> Any:
    """A tf.data set of one element (images, origin): what row each image is from, -1 for none.

    Args:
        parts: a tuple of tensors, or dicts of them, with `rows` rows.
        rows: how many images.
        image: from one row of `parts` to an image, graph code; an error where it cannot be read.
        again: from one row, as eager tensors, to the image after that has failed, or None.
        replace: put the next image that can be read, from the front again after the last, in the
            place of one that cannot, which is left black otherwise.
        threads: how many rows at a time.

    Raises:
        ValueError: `replace`, and there is nothing to put there.
    """
    import tensorflow as tf

    fast = (
        tf.data.Dataset.from_tensor_slices(parts)
        .map(as_written(image), num_parallel_calls=threads, deterministic=True)
        .batch(rows, drop_remainder=True)
        .ignore_errors()  # and no batch comes
    )
    spec: Any = fast.element_spec
    one = tf.function(image, autograph=False)
    row_spec = tf.nest.map_structure(lambda x: tf.TensorSpec(x.shape[1:], x.dtype), parts)

    def slow(*flat):
        once = one.get_concrete_function(*row_spec)  # before the threads, or each would trace it

        def attempt(i):
            row = tf.nest.pack_sequence_as(parts, [values[i] for values in flat])
            try:
                return once(*row)
            except tf.errors.OpError:
                return again(*row)

        with ThreadPoolExecutor(threads) as pool:
            made = list(pool.map(attempt, range(rows)))
        good = [i for i, x in enumerate(made) if x is not None]
        if replace and not good:
            raise ValueError(f"none of the {rows} images of a batch can be read.")
        if replace:
            origin = [next((g for g in good if g >= i), good[0]) for i in range(rows)]
        else:
            origin = [i if i in good else -1 for i in range(rows)]
        black = tf.zeros(spec.shape[1:], spec.dtype)
        return tf.stack([black if i < 0 else made[i] for i in origin]), tf.constant(origin)

    def made_again(*parts):
        images, origin = eager_call(slow, tf.nest.flatten(parts), [spec.dtype, tf.int32])
        return tf.ensure_shape(images, spec.shape), tf.ensure_shape(origin, (rows,))

    return (
        fast.map(as_written(lambda images: (images, tf.range(rows))))
        .concatenate(tf.data.Dataset.from_tensors(parts).map(as_written(made_again)))
        .take(1)
    )
