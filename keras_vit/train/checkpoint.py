"""Checkpoints of a run: written aside and renamed, the last few and the best kept, readable anywhere.

A checkpoint is a folder of arrays, the same whatever backend, strategy or mesh wrote it. Of an array
that is spread over several hosts, each writes the parts it holds.
"""

import contextlib
import dataclasses
import json
import os
import re
import shutil
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import keras
import ml_dtypes
import numpy as np

STEP = re.compile(r"step_(\d{9})")
ABOUT = "about"  # the array that holds the JSON of what was saved with the others
BFLOAT16 = ":bfloat16"  # suffix of arrays that npz would not know: their bits are stored as uint16
PATIENCE_SECONDS = 600.0  # that the first host waits for the files of the others
POLL_SECONDS = 0.05


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

    They are written in the background. Hosts find each other's files in the folder, so that no host
    waits for another between two steps of the training.

    Args:
        folder: made here; it must not vanish afterwards. What an earlier process left unfinished
            there is removed.
        keep: how many of the last ones stay.
        host: (index, count) of this process among those that share the folder.
        barrier: waits until every process has come to the same place.

    Raises:
        OSError: the folder cannot be made.
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
        folder.mkdir(parents=True, exist_ok=True)
        if host[0] == 0:
            self._clean_up()
        barrier("checkpoints opened")

    def save(
        self, step: int, variables: Sequence[Any], about: dict[str, Any], best: int | None = None
    ) -> None:
        """Saves variables as the checkpoint of a step, and drops others than the last and the best.

        What could not be written is raised by the next call, or by `wait`.

        Args:
            step: updates done.
            variables: Keras variables or arrays.
            about: plain values to keep with them.
            best: the step whose checkpoint stays besides the last ones.

        Raises:
            OSError: the one before could not be written; earlier ones are untouched.
        """
        self.wait()
        # Copies first: the arrays of the next step reuse this one's memory.
        arrays = dict(_pieces(variables, first=self.host[0] == 0))
        if self.host[0] == 0:
            about = {**about, "step": step, "arrays": len(variables), "hosts": self.host[1]}
            arrays[ABOUT] = np.frombuffer(json.dumps(about).encode(), np.uint8)

        def work() -> None:
            try:
                self._write(self._path(step), arrays)
                self._forget({best, *self.steps()[-self.keep :]})
            except Exception as error:  # raised where the training can hear it
                self._failure = error

        self._writer = threading.Thread(target=work, name="checkpoint")
        self._writer.start()

    def wait(self) -> None:
        """Returns when this process has written everything.

        Raises:
            OSError: something could not be written.
        """
        if self._writer is not None:
            self._writer.join()
            self._writer = None
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise OSError(
                f"a checkpoint could not be written to {self.folder} ({_reason(failure)}): earlier "
                f"ones are untouched; make room or give another folder, and run again to go on."
            )

    def finish(self) -> None:
        """Returns when every process has written everything.

        Raises:
            OSError: this one could not.
        """
        self.wait()
        self.barrier("checkpoints written")

    def steps(self) -> list[int]:
        """Steps that have a checkpoint, in order."""
        if not self.folder.is_dir():
            return []
        found = [STEP.fullmatch(path.name) for path in self.folder.iterdir()]
        return sorted(int(match[1]) for match in found if match)

    def latest(self) -> Checkpoint | None:
        """The last checkpoint that can be read, None when there never was one.

        A damaged one is warned of and set aside, and the one before is taken.

        Raises:
            ValueError: none of them can be read.
        """
        steps, damaged = self.steps(), []
        for step in reversed(steps):
            try:
                found = self.load(step)
            except ValueError as error:
                damaged.append((step, error))
                continue
            for _, error in damaged:
                warnings.warn(f"{error} The run goes on from the one of step {step}.", stacklevel=2)
            self._set_aside([step for step, _ in damaged])
            return found
        if damaged:
            raise ValueError(
                f"{damaged[0][1]} There is no earlier one: delete {self.folder} to start anew."
            )
        return None

    def load(self, step: int) -> Checkpoint:
        """The checkpoint of a step.

        Raises:
            ValueError: it is damaged or missing.
        """
        return read(self._path(step))

    def _path(self, step: int) -> Path:
        return self.folder / f"step_{step:09d}"

    def _write(self, final: Path, arrays: dict[str, np.ndarray]) -> None:
        """Writes this host's file; the first host then waits for the others, and renames."""
        index, count = self.host
        part, old = _beside(final, "part"), _beside(final, "old")
        part.mkdir(exist_ok=True)
        names = [f"arrays-{i:05d}-of-{count:05d}.npz" for i in range(count)]
        try:
            with (part / f".{names[index]}").open("wb") as file:
                np.savez(file, **arrays)  # pyright: ignore[reportArgumentType]
                file.flush()
                os.fsync(file.fileno())
            os.rename(part / f".{names[index]}", part / names[index])
            if index > 0:
                return
            until = time.monotonic() + PATIENCE_SECONDS
            while missing := [name for name in names if not (part / name).is_file()]:
                if time.monotonic() > until:
                    raise TimeoutError(f"{missing[0]} of another host did not come")
                time.sleep(POLL_SECONDS)
            _sync(part)
            if final.exists():  # of the same step, before it was validated
                os.rename(final, old)
            os.rename(part, final)
            _sync(self.folder)
            shutil.rmtree(old, ignore_errors=True)
        except Exception:
            shutil.rmtree(part, ignore_errors=True)  # it may be what fills the disk
            if old.exists() and not final.exists():
                os.rename(old, final)
            raise

    def _clean_up(self) -> None:
        """Makes good what a kill left: a checkpoint that was being replaced is put back."""
        for step in (path.name[1:-4] for path in self.folder.glob(".step_*.old")):
            if not (self.folder / step).exists():
                os.rename(self.folder / f".{step}.old", self.folder / step)
        for left in self.folder.glob(".step_*"):
            shutil.rmtree(left, ignore_errors=True)

    def _forget(self, kept: set[int | None]) -> None:
        if self.host[0] == 0:
            for step in set(self.steps()) - kept:
                shutil.rmtree(self._path(step), ignore_errors=True)

    def _set_aside(self, steps: list[int]) -> None:
        """Renames damaged checkpoints, so that they do not count among the last ones."""
        self.barrier("checkpoints read")
        if self.host[0] == 0:
            for step in steps:
                with contextlib.suppress(OSError):
                    os.rename(self._path(step), self.folder / f"damaged_{self._path(step).name}")


def read(path: Path) -> Checkpoint:
    """Reads a checkpoint, however many hosts wrote it.

    Raises:
        ValueError: it is damaged or missing.
    """
    found: dict[str, np.ndarray] = {}
    try:
        files = sorted(path.glob("arrays-*.npz"))
        for file in files:
            with file.open("rb") as opened, np.load(opened, allow_pickle=False) as stored:
                found |= {key: stored[key] for key in stored.files}
        about = json.loads(found.pop(ABOUT).tobytes())
        if len(files) != about["hosts"]:
            raise ValueError(f"it has {len(files)} of {about['hosts']} files")
        arrays: list[Any] = [None] * about["arrays"]
        for key, array in found.items():
            _place(arrays, key, array)
        if any(array is None for array in arrays):
            raise ValueError("arrays are missing")
    except Exception as error:  # zipfile and NumPy know many for files that are not what they were
        raise ValueError(f"the checkpoint {path} cannot be read ({_reason(error)}).") from None
    return Checkpoint(path, about, arrays)


def _reason(error: Exception) -> str:
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return f"{type(error).__name__}: {text}" if isinstance(error, KeyError) else text


def _beside(path: Path, what: str) -> Path:
    """Where a checkpoint is while it is written (`part`) or until it is replaced (`old`)."""
    return path.with_name(f".{path.name}.{what}")


def _sync(folder: Path) -> None:
    """Brings the names in a folder onto the disk, so that a power cut leaves old or new."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


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
