"""Weights in every published layout: which file is which, read into the model's terms and back."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from keras_vit.spec import Spec, ViTSpec
from keras_vit.zoo.formats import google_npz, huggingface, keras_hub, keras_weights, timm
from keras_vit.zoo.formats.configs import read_config
from keras_vit.zoo.formats.detect import what_is
from keras_vit.zoo.formats.hdf5_file import open_hdf5
from keras_vit.zoo.formats.huggingface_config import config_of
from keras_vit.zoo.formats.keys import Weights
from keras_vit.zoo.formats.npz import write_npz
from keras_vit.zoo.formats.preprocessors import to_huggingface
from keras_vit.zoo.formats.safetensors_file import INDEX_SUFFIX, open_safetensors, write_safetensors
from keras_vit.zoo.formats.writing import new_folder, write_hdf5, write_json, write_shards

if TYPE_CHECKING:
    from keras_vit.model import VisionModel

# Layout: the suffix of its file; none for a folder.
FORMATS = {
    "google_npz": ".npz",
    "timm": ".safetensors",
    "huggingface": "",
    "keras_hub": "",
    "keras_weights": ".weights.h5",
}
IN_FOLDER = "keras_vit.json"


def read_weights(
    source: str | os.PathLike | Mapping[str, np.ndarray],
    *,
    verify: bool = False,
    spec: Spec | None = None,
) -> Weights:
    """The weights of a file or folder of any known format.

    Args:
        source: path of a file, of an index of shards or of a folder; or a mapping from official
            keys to arrays.
        verify: check the checksum of every array now, where the format has any, and not only when
            it is read.
        spec: the network, where it is known: layers of Keras's files go by their place in it.

    Raises:
        FileNotFoundError: no such file.
        ValueError: the file is of no known format, damaged, or refused.
    """
    if isinstance(source, Mapping):
        return google_npz.read(source)
    path = Path(source)
    kind = what_is(path)
    if kind == "npz":
        return google_npz.read(path, verify=verify)
    if kind == "keras":
        raise ValueError(f"{path} is a whole model and no file of weights: load it by its path.")
    if kind == "keras_hub_preset":
        return keras_hub.read(path)
    return _read_hdf5(path, spec) if kind == "hdf5" else _read_safetensors(path)


def _read_hdf5(path: Path, spec: Spec | None) -> Weights:
    entries = open_hdf5(path)
    if keras_weights.is_keras_weights(entries):
        return keras_weights.read(entries, str(path), spec)
    if (
        path.name in (keras_hub.BACKBONE, keras_hub.TASK)
        and (path.parent / "config.json").is_file()
    ):
        return keras_hub.read(path.parent)
    raise ValueError(
        f"{path} holds no network of this package: expected what save_weights of one of its models "
        f"writes, or the folder of a KerasHub preset; it has {sorted(entries)[:3]}..."
    )


def _read_safetensors(path: Path) -> Weights:
    entries = open_safetensors(path)
    folder = path if path.is_dir() else path.parent
    config = read_config(folder / "config.json")
    if timm.is_timm(entries):
        return timm.read(entries, str(path), config)
    if huggingface.is_huggingface(entries):
        processor = read_config(folder / "preprocessor_config.json")
        return huggingface.read(entries, str(path), config, processor)
    raise ValueError(
        f"{path} holds no network of timm or Hugging Face that is known here: it has "
        f"{sorted(entries)[:5]}..."
    )


def write_weights(
    model: "VisionModel",
    path: str | os.PathLike,
    *,
    format: str = "google_npz",
    dtype: str = "float32",
    about: Mapping[str, Any] | None = None,
) -> None:
    """Writes a model's weights in a published layout; written aside and renamed.

    Args:
        model: any model of this package.
        path: target, a folder for `huggingface` and `keras_hub`.
        format: one of FORMATS.
        dtype: `float32` as published, or `float16` to halve the file.
        about: what is written as JSON beside a file, or inside a folder; see `sidecar`.

    Raises:
        ValueError: the layout has no place for something, which the message names.
        FileExistsError: in place of the folder there is something else.
    """
    path, spec = Path(path), model.spec
    if format != "keras_weights":
        _refuse_unpublished(spec, format)
    if format == "keras_weights":
        _write_keras_weights(model, path, dtype)
    elif format == "google_npz":
        write_npz(path, _cast(google_npz.to_arrays(values_of(model), spec), dtype))
    elif format == "timm":
        arrays = _cast(timm.to_arrays(values_of(model), spec), dtype)
        write_safetensors(path, arrays, {"format": "pt"})
    elif format == "huggingface":
        arrays = _cast(huggingface.to_arrays(values_of(model), spec), dtype)
        with new_folder(path) as folder:
            write_shards(folder, arrays)
            write_json(folder / "config.json", {**_config(model), "dtype": dtype})
            how = to_huggingface(model.preprocessing, spec.image_size)
            write_json(folder / "preprocessor_config.json", how)
            if about:
                write_json(sidecar(folder), about)
    else:
        _write_preset(model, path, dtype, about)
    if about and not path.is_dir():
        write_json(sidecar(path), about)


def _refuse_unpublished(spec: Spec, format: str) -> None:
    """Raises ValueError for what no published network has: its readers would take it for another."""
    if isinstance(spec, ViTSpec) and (spec.posemb_at, spec.attention) != ("stem", "full"):
        raise ValueError(
            f"{format} has no network with posemb_at={spec.posemb_at!r} and attention="
            f"{spec.attention!r}: save it with model.save('x.keras') or format='keras_weights'."
        )


def _config(model: "VisionModel") -> dict[str, Any]:
    names = model.class_names if model.card and model.card.class_names else None
    return config_of(model.spec, names)


def _write_preset(model: "VisionModel", path: Path, dtype: str, about: Any) -> None:
    backbone, head = keras_hub.to_arrays(values_of(model), model.spec)
    spec: Any = model.spec
    with new_folder(path) as folder:
        write_hdf5(folder / keras_hub.BACKBONE, _cast(backbone, dtype))
        if head:
            write_hdf5(folder / keras_hub.TASK, _cast(head, dtype))
        for name, values in keras_hub.configs_of(spec, model.preprocessing).items():
            write_json(folder / name, values)
        if about:
            write_json(sidecar(folder), about)


def _write_keras_weights(model: "VisionModel", path: Path, dtype: str) -> None:
    if dtype != "float32":
        raise ValueError(f"a .weights.h5 holds the model's own type, not {dtype}: leave dtype out.")
    part = path.with_name(f".{path.name}.{os.getpid()}.part.weights.h5")
    try:
        model.save_weights(part)
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


def _cast(arrays: dict[str, np.ndarray], dtype: str) -> dict[str, np.ndarray]:
    return {key: value.astype(dtype, copy=False) for key, value in arrays.items()}


def values_of(model: "VisionModel") -> dict[str, np.ndarray]:
    """Path -> value of every weight of a model."""
    from keras import ops

    return {v.path: ops.convert_to_numpy(v) for v in model.weights}


def sidecar(path: str | os.PathLike) -> Path:
    """The JSON that keeps what weights cannot: spec, class names, preprocessing.

    Beside a file and named like it, or inside of a folder.
    """
    path = Path(path)
    if path.is_dir():
        return path / IN_FOLDER
    if path.name.endswith(INDEX_SUFFIX):
        return path.with_name(IN_FOLDER)
    return path.with_suffix(".json")
