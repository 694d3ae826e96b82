"""Reading `.keras` files of this package as data: our config plus arrays, nothing a file names is imported."""

import json
import os
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import h5py

from keras_vit.model import VisionModel

MAX_CONFIG_BYTES = 64 * 2**20  # 21,843 class names take one


def load_keras_file(path: str | os.PathLike, dtype: Any = None) -> VisionModel:
    """Rebuilds a saved `VisionModel` with its weights, without optimizer state.

    `keras.saving.load_model` after `import keras_vit` gives the optimizer back as well.

    Args:
        path: a `.keras` file written by this package's models.
        dtype: Keras dtype policy, None for the saved one.

    Raises:
        ValueError: not a `.keras` file, not one of our models, or weights that point outside the
            file.
    """
    path = Path(path)
    try:
        with zipfile.ZipFile(path) as archive:
            sizes = {info.filename: info.file_size for info in archive.infolist()}
            if sizes.get("config.json", MAX_CONFIG_BYTES + 1) > MAX_CONFIG_BYTES:
                raise ValueError(f"{path} has no config of a sensible size: it is no .keras file.")
            config = json.loads(archive.read("config.json"))
            if config.get("registered_name") != "keras_vit>VisionModel":
                raise ValueError(
                    f"{path} holds a {config.get('class_name')!r}, not a keras_vit model: load it "
                    f"with keras.saving.load_model."
                )
            model = VisionModel.from_config(
                {**config["config"], **({"dtype": dtype} if dtype else {})}
            )
            limit = 4 * 4 * model.count_params() + 2**26  # optimizer slots stand beside weights
            if sizes.get("model.weights.h5", limit + 1) > limit:
                raise ValueError(f"{path} holds more than the weights of its own model: refused.")
            with tempfile.TemporaryDirectory() as folder:
                weights = archive.extract("model.weights.h5", folder)
                _refuse_links(weights, path)
                model.load_weights(weights)
    except (zipfile.BadZipFile, KeyError, json.JSONDecodeError) as error:
        raise ValueError(f"{path} is no .keras file, or a damaged one ({error}).") from None
    return model


def _refuse_links(weights: str, path: Path) -> None:
    """HDF5 can point into other files and load filter plugins; weights need neither."""

    def visit(group: h5py.Group) -> None:
        for name in group:
            link = group.get(name, getlink=True)
            if not isinstance(link, h5py.HardLink):
                raise ValueError(
                    f"{path} has a link at {group.name}/{name} in its weights: refused."
                )
            item = group[name]
            if isinstance(item, h5py.Group):
                visit(item)
            elif item.is_virtual or item.external:
                raise ValueError(f"{path} has data outside of it at {item.name}: refused.")

    with h5py.File(weights, "r") as file:
        visit(file)
