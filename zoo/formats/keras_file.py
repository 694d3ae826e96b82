"""Reading `.keras` files of this package as data: our config plus arrays, nothing a file names is imported."""

import os
import tempfile
from pathlib import Path
from typing import Any

from keras_vit.model import VisionModel
from keras_vit.spec import Spec, spec_from_dict
from keras_vit.zoo.formats import hdf5_file
from keras_vit.zoo.formats.archive import chunks, content, members
from keras_vit.zoo.formats.entry import existing, quoted
from keras_vit.zoo.formats.safetensors_file import parse_json

MAX_CONFIG = 64 * 2**20  # bytes; 21,843 class names take one million
MAX_NUMBER = 2**17  # in a spec; the largest in use is 21,843
MAX_POSITIONS = 2**28  # tokens x width: a computed position table of 1 GB, ViT-L/16 at 8192 pixels
CONFIG_ERRORS = (ValueError, KeyError, TypeError, AttributeError)
NO_KERAS_FILE = "is no .keras file, or a damaged one"


def load_keras_file(path: str | os.PathLike, dtype: Any = None) -> VisionModel:
    """Rebuilds a saved `VisionModel` with its weights, without optimizer state.

    `keras.saving.load_model` after `import keras_vit` gives the optimizer back as well.

    Args:
        path: a `.keras` file written by this package's models.
        dtype: Keras dtype policy, None for the saved one.

    Raises:
        FileNotFoundError: no such file.
        ValueError: not a `.keras` file, not one of our models, or weights that point outside the
            file, or that are fewer than the network it describes has.
    """
    path = existing(path)
    parts = {member.name: member for member in members(path, "a .keras file")}
    for name, limit in (("config.json", MAX_CONFIG), ("model.weights.h5", path.stat().st_size)):
        if name not in parts or parts[name].size > max(limit, MAX_CONFIG):
            raise ValueError(f"{path} {NO_KERAS_FILE} (no {name} of a sensible size).")
    config = parse_json(content(parts["config.json"]), f"{path}: config.json")
    if config.get("registered_name") != "keras_vit>VisionModel":
        raise ValueError(
            f"{path} holds a {quoted(str(config.get('class_name')))}, not a keras_vit model: load "
            f"it with keras.saving.load_model."
        )
    own: Any = config.get("config")
    try:
        spec = checked_spec(own)
    except CONFIG_ERRORS as error:
        raise ValueError(f"{path} {NO_KERAS_FILE} ({_one_line(error)}).") from None
    with tempfile.TemporaryDirectory() as folder:
        weights = Path(folder) / "model.weights.h5"
        with weights.open("wb") as target, path.open("rb") as source:
            for chunk in chunks(source, parts["model.weights.h5"]):
                target.write(chunk)
        arrays = hdf5_file.refuse(weights, name=f"{path}: model.weights.h5")
        stored = sum(plain.nbytes // plain.dtype.itemsize for plain in arrays.values())
        # Before the network is built, which takes the memory that its config asks for.
        if stored < spec.num_params:
            raise ValueError(
                f"{path} describes a network of {spec.num_params} weights and holds {stored}: "
                f"refused."
            )
        try:
            model = VisionModel.from_config({**own, **({"dtype": dtype} if dtype else {})})
        except CONFIG_ERRORS as error:
            raise ValueError(f"{path} {NO_KERAS_FILE} ({_one_line(error)}).") from None
        try:
            model.load_weights(weights)
        except Exception as error:
            # Keras answers weights of another network with several kinds of long errors.
            raise ValueError(
                f"{path} has other weights than its network ({_one_line(error)})."
            ) from None
    return model


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:200].rstrip(".")


def checked_spec(config: Any) -> Spec:
    """The network of an untrusted config, once its numbers are those of networks that exist.

    Raises:
        ValueError, TypeError, KeyError, AttributeError: it is no config of a model.
    """
    for field, kind in (("name", str), ("dtype", str), ("frozen", list), ("trainable", bool)):
        if field in config and not isinstance(config[field], kind):
            raise TypeError(f"{field} is no {kind.__name__}")
    if not all(isinstance(layer, str) for layer in config.get("frozen", [])):
        raise TypeError("frozen is no list of names")
    _check_numbers(config["spec"])
    spec = spec_from_dict(config["spec"])
    if spec.grid[0] * spec.grid[1] * spec.feature_size > MAX_POSITIONS:
        raise ValueError(f"image_size {spec.image_size} is absurd for this network.")
    return spec


def _check_numbers(value: Any) -> None:
    """No number that only serves to take all memory or time, no list without end."""
    if isinstance(value, dict | list):
        if len(value) > 100:
            raise ValueError("a network is described by fewer than 100 values.")
        for item in value.values() if isinstance(value, dict) else value:
            _check_numbers(item)
    elif isinstance(value, int | float) and not abs(value) <= MAX_NUMBER:
        raise ValueError(f"a network with the number {value!r} is absurd.")
