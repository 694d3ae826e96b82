"""Folders of weights and JSON, written aside and renamed: a reader never sees half of one."""

import contextlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from keras_vit.zoo.formats.safetensors_file import INDEX_SUFFIX, write_safetensors

SHARD_BYTES = 5_000_000_000  # as transformers splits since version 4.30
OWN = (".json", ".safetensors", ".weights.h5")  # what a folder of weights may consist of


@contextlib.contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """An empty folder to fill, which takes the place of `path` when all went well.

    Raises:
        FileExistsError: `path` is there and is no folder of weights, which is not replaced.
    """
    check_replaceable(path)
    part, old = (path.with_name(f".{path.name}.{os.getpid()}.{end}") for end in ("part", "old"))
    part.mkdir()
    try:
        yield part
        if path.exists():
            os.replace(path, old)
        try:
            os.replace(part, path)
        except OSError:
            if old.exists():
                os.replace(old, path)
            raise
        shutil.rmtree(old, ignore_errors=True)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def check_replaceable(path: Path) -> None:
    """Refuses a folder that holds more than weights, before any work is done.

    Raises:
        FileExistsError: with one of the other files.
    """
    if not path.is_dir():
        if path.exists():
            raise FileExistsError(f"{path} is a file: give the path of a folder.")
        return
    for item in path.iterdir():
        if not item.is_file() or not item.name.endswith(OWN):
            raise FileExistsError(
                f"{path} holds {item.name} and is not replaced: give another path."
            )


def write_json(path: Path, values: Mapping[str, Any]) -> None:
    """Writes JSON beside the target, then renames."""
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        part.write_text(json.dumps(values, indent=1, ensure_ascii=False), "utf-8")
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


def write_shards(folder: Path, arrays: dict[str, np.ndarray]) -> None:
    """`model.safetensors`, or several files of at most SHARD_BYTES and their index."""
    shards: list[dict[str, np.ndarray]] = [{}]
    room = SHARD_BYTES
    for key, array in arrays.items():
        if shards[-1] and array.nbytes > room:
            shards.append({})
            room = SHARD_BYTES
        shards[-1][key] = array
        room -= array.nbytes
    metadata = {"format": "pt"}
    if len(shards) == 1:
        write_safetensors(folder / "model.safetensors", arrays, metadata)
        return
    owners = {}
    for i, shard in enumerate(shards, 1):
        name = f"model-{i:05d}-of-{len(shards):05d}.safetensors"
        write_safetensors(folder / name, shard, metadata)
        owners |= dict.fromkeys(shard, name)
    total = sum(array.nbytes for array in arrays.values())
    index = {"metadata": {"total_size": total}, "weight_map": owners}
    write_json(folder / f"model{INDEX_SUFFIX}", index)


def write_hdf5(path: Path, arrays: dict[str, np.ndarray]) -> None:
    """Plain data sets by their paths."""
    with h5py.File(path, "w") as file:
        for key, array in arrays.items():
            file.create_dataset(key, data=array)
