"""What several layers share."""

import keras
from keras import ops

PACKAGE = "keras_vit"


def at_least_float32(x):
    """Casts half-precision tensors up to float32; leaves float32 and float64 alone."""
    dtype = keras.backend.standardize_dtype(x.dtype)
    return ops.cast(x, "float32") if dtype in ("bfloat16", "float16") else x


def gelu(x, activation: str):
    """GELU by its spec name: `gelu_tanh` is the approximation of the JAX code, `gelu` is exact."""
    return ops.gelu(x, approximate=activation == "gelu_tanh")
