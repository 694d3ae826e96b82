"""Rows of a key table for the layers of PyTorch: weights are turned round, and named `weight`."""

from keras_vit.zoo.formats.keys import Table


def dense(key: str, variable: str) -> Table:
    """A linear layer: (out, in) there, (in, out) here."""
    return (
        (f"{key}.weight", f"{variable}/kernel", "transposed"),
        (f"{key}.bias", f"{variable}/bias"),
    )


def conv(key: str, variable: str) -> Table:
    """A convolution: (out, in, h, w) there, (h, w, in, out) here."""
    return (
        (f"{key}.weight", f"{variable}/kernel", "oihw"),
        (f"{key}.bias", f"{variable}/bias"),
    )


def norm(key: str, variable: str) -> Table:
    """A norm with scale and bias."""
    return ((f"{key}.weight", f"{variable}/scale"), (f"{key}.bias", f"{variable}/bias"))
