"""Convolution with standardised weights, and the two ways to pad it."""

import keras
from keras import ops

from keras_vit.layers.common import PACKAGE, at_least_float32


@keras.saving.register_keras_serializable(package=PACKAGE)
class StdConv2D(keras.layers.Layer):
    """Convolution without bias whose kernel is standardised over (h, w, in) before use.

    Args:
        filters: output channels.
        kernel_size: pixels, square.
        strides: pixels.
        padding: `same` as TensorFlow pads, or `fixed` by half the kernel on every side.
        standardization: `std` (w - mean) / (std + epsilon), `var` (w - mean) / sqrt(var + epsilon),
            or None.
        epsilon: see `standardization`.

    Source: `std` with 1e-5: vision_transformer models_resnet.py `weight_standardize`; `var` with
        1e-10: big_transfer bit_jax/models.py. Population variance, no gain.
    """

    def __init__(
        self,
        filters: int,
        kernel_size: int,
        strides: int = 1,
        *,
        padding: str = "same",
        standardization: str | None = "std",
        epsilon: float = 1e-5,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.filters = filters
        self.kernel_size = kernel_size
        self.strides = strides
        self.padding = padding
        self.standardization = standardization
        self.epsilon = epsilon

    def build(self, input_shape):
        self.kernel = self.add_weight(
            name="kernel",
            shape=(self.kernel_size, self.kernel_size, input_shape[-1], self.filters),
            initializer="lecun_normal",
            autocast=False,  # standardised in full precision
        )

    def call(self, x):
        kernel = ops.cast(self.standardized_kernel(), self.compute_dtype)
        if self.padding == "fixed":
            x, padding = pad_fixed(x, self.kernel_size), "valid"
        else:
            padding = "same"
        return ops.conv(x, kernel, strides=self.strides, padding=padding)

    def standardized_kernel(self):
        """The kernel (k, k, in, out) as it is used, at least float32."""
        kernel = at_least_float32(ops.convert_to_tensor(self.kernel))
        if self.standardization is None:
            return kernel
        kernel = kernel - ops.mean(kernel, axis=(0, 1, 2), keepdims=True)
        variance = ops.mean(kernel * kernel, axis=(0, 1, 2), keepdims=True)
        if self.standardization == "std":
            return kernel / (ops.sqrt(variance) + self.epsilon)
        return kernel * ops.rsqrt(variance + self.epsilon)

    def compute_output_shape(self, input_shape):
        height, width = (s if s is None else -(-s // self.strides) for s in input_shape[1:3])
        return (input_shape[0], height, width, self.filters)

    def get_config(self):
        config = {
            "filters": self.filters,
            "kernel_size": self.kernel_size,
            "strides": self.strides,
            "padding": self.padding,
            "standardization": self.standardization,
            "epsilon": self.epsilon,
        }
        return {**super().get_config(), **config}


@keras.saving.register_keras_serializable(package=PACKAGE)
class RootPool(keras.layers.Layer):
    """The 3x3 max-pool of stride 2 after the root: (B, h, w, C) -> (B, h/2, w/2, C), rounded up.

    Args:
        padding: `same` as TensorFlow pads, or `fixed` by one pixel on every side.
        border: what lies beyond it, `-inf` (nothing) or `zero`, which wins over negative values.

    Source: `same`: vision_transformer models_vit.py; `fixed` with `zero`: big_transfer
        bit_jax/models.py; `fixed` with `-inf`: big_vision models/bit_paper.py.
    """

    def __init__(self, padding: str = "same", border: str = "-inf", **kwargs):
        super().__init__(**kwargs)
        self.padding = padding
        self.border = border

    def call(self, x):
        if self.padding == "same":
            return ops.max_pool(x, 3, 2, padding="same")
        lowest = 0.0 if self.border == "zero" else _lowest(x.dtype)
        return ops.max_pool(pad_fixed(x, 3, lowest), 3, 2, padding="valid")

    def compute_output_shape(self, input_shape):
        height, width = (s if s is None else -(-s // 2) for s in input_shape[1:3])
        return (input_shape[0], height, width, input_shape[-1])

    def get_config(self):
        return {**super().get_config(), "padding": self.padding, "border": self.border}


def pad_fixed(x, kernel_size: int, value: float = 0.0):
    """Adds half a kernel on every side of (B, h, w, C), whatever the size and the stride."""
    low, high = (kernel_size - 1) // 2, kernel_size // 2
    if not low and not high:
        return x
    return ops.pad(x, [[0, 0], [low, high], [low, high], [0, 0]], constant_values=value)


def _lowest(dtype) -> float:
    """A number below all that a layer gives: finite, because LiteRT has no infinite padding."""
    return -6e4 if keras.backend.standardize_dtype(dtype) == "float16" else -3e38
