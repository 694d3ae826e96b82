"""Weights in every published layout: which file is which, read into the model's terms and back."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from keras_vit.zoo.formats import google_npz
from keras_vit.zoo.formats.keys import Weights
from keras_vit.zoo.formats.npz import write_npz

if TYPE_CHECKING:
    from keras_vit.model import VisionModel


def read_weights(
    source: str | os.PathLike | Mapping[str, np.ndarray], *, verify: bool = False
) -> Weights:
    """The weights of a file of any known format.

    Args:
        source: path of a file, or a mapping from official keys to arrays.
        verify: check the checksum of every array now, and not only when it is read.

    Raises:
        FileNotFoundError: no such file.
        ValueError: the file is of no known format, damaged, or refused.
    """
    return google_npz.read(source, verify=verify)


def write_weights(
    model: "VisionModel",
    path: str | os.PathLike,
    *,
    format: str = "google_npz",
    dtype: str = "float32",
) -> None:
    """Writes a model's weights in a published layout; written aside and renamed.

    Args:
        model: any model of this package.
        path: target.
        format: `google_npz`.
        dtype: `float32` as published, or `float16` to halve the file.

    Raises:
        ValueError: the layout has no place for a weight.
    """
    arrays = google_npz.to_arrays(values_of(model), model.spec)
    write_npz(path, {key: value.astype(dtype) for key, value in arrays.items()})


def values_of(model: "VisionModel") -> dict[str, np.ndarray]:
    """Path -> value of every weight of a model."""
    from keras import ops

    return {v.path: ops.convert_to_numpy(v) for v in model.weights}


def sidecar(path: str | os.PathLike) -> Path:
    """The JSON beside a file that keeps what weights cannot: spec, class names, preprocessing."""
    return Path(path).with_suffix(".json")
