"""Checkpoints of a run: written aside and renamed, the last few and the best kept, readable anywhere.

A checkpoint is a folder of arrays and a JSON about them, the same whatever backend, strategy or mesh
wrote it. Of an array that is spread over several hosts, each writes the parts it holds.
"""

import dataclasses
import json
import os
import re
import shutil
import threading
import zipfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import keras
import ml_dtypes
import numpy as np

STEP = re.compile(r"step_(\d{9})")
BEST = "best"
ABOUT = "about.json"
BFLOAT16 = ":bfloat16"  # suffix of arrays that npz would not know: their bits are stored as uint16


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """What was read back.

    Attributes:
        path: its folder.
        about: plain values that were saved with the arrays.
        arrays: in the order they were given.
    """

    path: Path
    about: dict[str, Any]
    arrays: list[np.ndarray]


class Checkpoints:
    """The checkpoints in a folder.

    Args:
        folder: made when something is saved.
        keep: how many of the last ones stay, besides the best.
        host: (index, count) of this process among those that share the folder.
        barrier: waits until every process has come to the same place.
    """

    def __init__(
        self,
        folder: Path,
        *,
        keep: int = 2,
        host: tuple[int, int] = (0, 1),
        barrier: Callable[[str], None] = lambda name: None,
    ):
        self.folder, self.keep, self.host, self.barrier = folder, keep, host, barrier
        self._writer: threading.Thread | None = None
        self._failure: Exception | None = None

    def save(self, step: int, variables: Sequence[Any], about: dict[str, Any]) -> None:
        """Saves variables as the checkpoint of a step; older ones than the last `keep` go.

        With one process the writing goes on in the background; what it could not do is raised by the
        next call or by `wait`.

        Raises:
            OSError: the disk is full or the folder is gone; earlier checkpoints are untouched.
        """
        self._put(f"step_{step:09d}", variables, {**about, "step": step}, self._forget_old)

    def save_best(self, variables: Sequence[Any], about: dict[str, Any]) -> None:
        """Saves variables as the best so far, in place of the one before."""
        self._put(BEST, variables, about, lambda: None)

    def wait(self) -> None:
        """Returns when everything is written.

        Raises:
            OSError: something could not be.
        """
        if self._writer is not None:
            self._writer.join()
            self._writer = None
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise OSError(
                f"a checkpoint could not be written to {self.folder} ({failure}): earlier ones are "
                f"untouched; make room or give another folder, and run again to go on."
            )

    def steps(self) -> list[int]:
        """Steps that have a checkpoint, in order."""
        if not self.folder.is_dir():
            return []
        found = [STEP.fullmatch(path.name) for path in self.folder.iterdir()]
        return sorted(int(match[1]) for match in found if match)

    def latest(self) -> Checkpoint | None:
        """The last checkpoint, None when there is none."""
        steps = self.steps()
        return read(self.folder / f"step_{steps[-1]:09d}") if steps else None

    def best(self) -> Checkpoint | None:
        """The best one, None when there is none."""
        best = self.folder / BEST
        return read(best) if best.is_dir() or _aside(best).is_dir() else None

    def _put(
        self,
        name: str,
        variables: Sequence[Any],
        about: dict[str, Any],
        then: Callable[[], None],
    ) -> None:
        self.wait()
        # Copies first: the arrays of the next step reuse this one's memory.
        arrays = dict(_pieces(variables, first=self.host[0] == 0))

        def write() -> None:
            try:
                self._write(
                    name, arrays, {**about, "arrays": len(variables), "hosts": self.host[1]}
                )
                then()
            except OSError as error:
                self._failure = error

        if self.host[1] > 1:
            write()
            self.wait()
        else:
            self._writer = threading.Thread(target=write, name="checkpoint")
            self._writer.start()

    def _write(self, name: str, arrays: dict[str, np.ndarray], about: dict[str, Any]) -> None:
        index, count = self.host
        part = self.folder / f".{name}.part"
        if index == 0:
            shutil.rmtree(part, ignore_errors=True)
            part.mkdir(parents=True)
        self.barrier(f"{name} begun")
        with (part / f"arrays-{index:05d}-of-{count:05d}.npz").open("wb") as file:
            np.savez(file, **arrays)  # pyright: ignore[reportArgumentType]
            _flush(file)
        self.barrier(f"{name} written")
        if index == 0:
            with (part / ABOUT).open("w", encoding="utf-8") as file:
                json.dump(about, file)
                _flush(file)
            self._replace(part, self.folder / name)
        self.barrier(f"{name} done")

    def _replace(self, part: Path, final: Path) -> None:
        # A folder cannot be renamed onto one that holds something: the old one steps aside, and
        # `read` takes it when a kill comes in between.
        aside = _aside(final)
        shutil.rmtree(aside, ignore_errors=True)
        if final.exists():
            os.rename(final, aside)
        os.rename(part, final)
        shutil.rmtree(aside, ignore_errors=True)

    def _forget_old(self) -> None:
        if self.host[0] == 0:
            for step in self.steps()[: -self.keep]:
                shutil.rmtree(self.folder / f"step_{step:09d}", ignore_errors=True)


def read(path: Path) -> Checkpoint:
    """Reads a checkpoint, however many hosts wrote it.

    Raises:
        ValueError: it is damaged; the message says what to do.
    """
    if not path.is_dir() and _aside(path).is_dir():
        path = _aside(path)
    try:
        about = json.loads((path / ABOUT).read_text("utf-8"))
        arrays: list[Any] = [None] * about["arrays"]
        files = sorted(path.glob("arrays-*.npz"))
        if len(files) != about["hosts"]:
            raise ValueError(f"it has {len(files)} of {about['hosts']} files of arrays")
        for file in files:
            with file.open("rb") as opened, np.load(opened, allow_pickle=False) as found:
                for key in found.files:
                    _place(arrays, key, found[key])
        missing = [i for i, array in enumerate(arrays) if array is None]
        if missing:
            raise ValueError(f"array {missing[0]} is missing")
    except (ValueError, OSError, EOFError, KeyError, IndexError, zipfile.BadZipFile) as error:
        raise ValueError(
            f"the checkpoint {path} cannot be read ({error}): delete it to go on from an earlier one."
        ) from None
    return Checkpoint(path, about, arrays)


def _aside(path: Path) -> Path:
    """Where a checkpoint stands while another takes its place."""
    return path.with_name(f".{path.name}.old")


def _pieces(variables: Sequence[Any], first: bool) -> Iterator[tuple[str, np.ndarray]]:
    """(key, array) of everything this process must write.

    The key of a part says where it lies: `7@0:128,0:64/256,64` is that corner of array 7 of shape
    (256, 64).
    """
    for i, variable in enumerate(variables):
        value = getattr(variable, "value", variable)
        if getattr(value, "is_fully_addressable", True) or value.is_fully_replicated:
            if first:
                yield _storable(str(i), _copy(variable))
            continue
        shape = ",".join(map(str, value.shape))
        for shard in value.addressable_shards:
            if shard.replica_id == 0:
                spans = [s.indices(n)[:2] for s, n in zip(shard.index, value.shape, strict=True)]
                where = ",".join(f"{a}:{b}" for a, b in spans)
                yield _storable(f"{i}@{where}/{shape}", np.array(shard.data))


def _copy(variable: Any) -> np.ndarray:
    value = getattr(variable, "value", variable)
    if not getattr(value, "is_fully_addressable", True):  # replicated: this host has all of it
        return np.array(value.addressable_data(0))
    return np.array(keras.ops.convert_to_numpy(variable))


def _storable(key: str, array: np.ndarray) -> tuple[str, np.ndarray]:
    if array.dtype == ml_dtypes.bfloat16:
        return key + BFLOAT16, array.view(np.uint16)
    return key, array


def _place(arrays: list[Any], key: str, array: np.ndarray) -> None:
    """Puts an array, or a part of one, where its key says."""
    if key.endswith(BFLOAT16):
        key, array = key.removesuffix(BFLOAT16), array.view(ml_dtypes.bfloat16)
    index, _, where = key.partition("@")
    i = int(index)
    if not where:
        arrays[i] = array
        return
    spans, _, shape = where.partition("/")
    if arrays[i] is None:
        arrays[i] = np.zeros([int(n) for n in shape.split(",")], array.dtype)
    corner = tuple(slice(*map(int, span.split(":"))) for span in spans.split(","))
    arrays[i][corner] = array


def _flush(file: Any) -> None:
    """Onto the disk, so that the rename that follows never shows a file without its content."""
    file.flush()
    os.fsync(file.fileno())
