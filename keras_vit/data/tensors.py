"""NumPy arrays as tensors of the backend."""

import keras
import numpy as np


def borrowed(array: np.ndarray):
    """A tensor on the memory of an array that nobody else uses, or the array where that cannot be.

    TensorFlow copies whatever it converts, which costs as much as reading it from a warm disk. It
    takes over memory without a copy that begins at a multiple of 64 bytes, on the CPU, outside of
    strategies that mirror it. JAX borrows such memory by itself. NumPy does not lend bfloat16.
    """
    if keras.backend.backend() != "tensorflow":
        return array
    import tensorflow as tf

    fits = array.flags.c_contiguous and array.flags.writeable and array.ctypes.data % 64 == 0
    fits = fits and array.dtype.kind in "fiu"
    if not fits or tf.distribute.has_strategy() or tf.config.get_visible_devices("GPU"):
        return array
    return tf.experimental.dlpack.from_dlpack(array.__dlpack__())
