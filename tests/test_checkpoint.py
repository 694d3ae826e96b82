"""Checkpoints: what is read back, which ones stay, and that no kill and no full disk costs an old one."""

import errno
import os
import shutil
import subprocess
import threading
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from keras_vit.train import checkpoint
from keras_vit.train.checkpoint import Checkpoints, read

ABOUT = {"history": [{"loss": 0.1 + 0.2}], "name": "é"}


def arrays(seed: int = 0) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [
        rng.normal(size=(3, 5)).astype(np.float32),
        rng.normal(size=(7,)).astype(ml_dtypes.bfloat16),
        np.array(seed, np.int64),
        rng.integers(0, 2**32, 2, np.uint32),
        np.zeros((0, 3), np.float16),
    ]


def same(found: list[np.ndarray], expected: list[np.ndarray]) -> bool:
    return [(a.dtype, a.shape, a.tobytes()) for a in found] == [
        (b.dtype, b.shape, b.tobytes()) for b in expected
    ]


def saved(folder: Path, *steps: int, best: int | None = None, **options) -> Checkpoints:
    kept = Checkpoints(folder, **options)
    for step in steps:
        kept.save(step, arrays(step), ABOUT, best)
    kept.wait()
    return kept


def test_what_is_read_back_is_what_was_saved(tmp_path):
    kept = Checkpoints(tmp_path / "run" / "checkpoints")
    assert kept.latest() is None and kept.steps() == []
    values = arrays(3)
    kept.save(3, values, ABOUT)
    values[0][:] = 9.0  # what is saved is what there was when `save` was called
    kept.wait()
    found = Checkpoints(tmp_path / "run" / "checkpoints").latest()
    assert same(found.arrays, arrays(3))
    assert found.about["step"] == 3 and {k: found.about[k] for k in ABOUT} == ABOUT


def test_the_last_ones_and_the_best_stay(tmp_path):
    assert saved(tmp_path / "a", 1, 2, 3, 4, 5).steps() == [4, 5]
    assert saved(tmp_path / "b", 1, 2, 3, 4, 5, best=2).steps() == [2, 4, 5]
    assert saved(tmp_path / "c", 1, 2, 3, keep=1, best=3).steps() == [3]
    assert same(saved(tmp_path / "c", keep=1).load(3).arrays, arrays(3))


def test_a_step_can_be_saved_again(tmp_path):
    kept = saved(tmp_path, 1, 2)
    kept.save(2, arrays(7), ABOUT)
    kept.wait()
    assert kept.steps() == [1, 2] and same(kept.latest().arrays, arrays(7))


class Killed(BaseException):
    """Nothing that the program handles: from here on it does nothing, as after a kill."""


CALLS = ((np, "savez"), (os, "fsync"), (os, "rename"), (shutil, "rmtree"))


def break_at(monkeypatch, number: int, error: BaseException, only_in: str = "checkpoint") -> list:
    """Makes the n-th call of what a checkpoint is written with do half its work and fail.

    Returns the names of the calls, as they come.
    """
    seen: list[str] = []

    def patched(place, name):
        real = getattr(place, name)

        def call(first, *others, **options):
            if threading.current_thread().name != only_in:
                return real(first, *others, **options)
            seen.append(name)
            if len(seen) == number:
                if name == "savez":
                    first.write(b"PK\x03\x04 half of it")
                    first.flush()
                for file in Path(first).glob("*.npz") if name == "rmtree" else ():
                    file.unlink()
                raise error
            if len(seen) > number and isinstance(error, Killed):
                raise error
            return real(first, *others, **options)

        monkeypatch.setattr(place, name, call)

    for place, name in CALLS:
        patched(place, name)
    return seen


def calls_of_a_save(folder: Path, step: int) -> int:
    kept = saved(folder, 1, 2)
    with pytest.MonkeyPatch.context() as patch:
        seen = break_at(patch, 99, Killed())
        kept.save(step, arrays(step), ABOUT)
        kept.wait()
    # The file, its folder and the folder of all are flushed; file and folder get their names, a
    # checkpoint in the way gives it up; that one and the oldest go.
    expected = ["fsync"] * 3 + ["rename"] * (3 if step == 2 else 2) + ["savez"]
    assert sorted(name for name in seen if name != "rmtree") == expected
    return len(seen)


@pytest.mark.parametrize("step", [3, 2], ids=["a new step", "the same step"])
def test_a_kill_at_any_call_leaves_the_old_one_or_the_new(tmp_path, monkeypatch, step):
    monkeypatch.setattr(threading, "excepthook", lambda _: None)
    seen = []
    for number in range(1, calls_of_a_save(tmp_path / "count", step) + 1):
        folder = tmp_path / str(number)
        kept = saved(folder, 1, 2)
        with pytest.MonkeyPatch.context() as patch:
            break_at(patch, number, Killed())
            kept.save(step, arrays(9), ABOUT)
            kept._writer.join()
        again = Checkpoints(folder)  # the next process
        found = again.latest()
        new = same(found.arrays, arrays(9))
        assert found.about["step"] == (step if new else 2)
        assert new or same(found.arrays, arrays(2))
        seen.append(new)
        assert not list(folder.glob(".*"))
        again.save(step + 1, arrays(step + 1), ABOUT)
        again.wait()
        assert again.steps()[-1] == step + 1
    assert seen == sorted(seen) and set(seen) == {False, True}


@pytest.mark.parametrize("step", [3, 2], ids=["a new step", "the same step"])
def test_no_failing_call_costs_an_old_checkpoint(tmp_path, step):
    # But for the last two, which remove: what cannot be removed stays.
    for number in range(1, calls_of_a_save(tmp_path / "count", step) - 1):
        folder = tmp_path / str(number)
        kept = saved(folder, 1, 2)
        with pytest.MonkeyPatch.context() as patch:
            break_at(patch, number, OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))
            kept.save(step, arrays(9), ABOUT)
            kept._writer.join()
        with pytest.raises(OSError, match=r"could not be written to .*No space left.*make room"):
            kept.wait()
        kept.wait()  # it is said once
        assert not list(folder.glob(".*.part"))  # what may fill the disk is gone
        assert kept.steps()[:2] == [1, 2] and same(kept.load(1).arrays, arrays(1))
        latest = kept.latest().arrays
        assert same(latest, arrays(2)) or same(latest, arrays(9))
        kept.save(4, arrays(4), ABOUT)
        kept.wait()
        assert same(kept.latest().arrays, arrays(4))


def test_the_next_save_tells_that_the_one_before_failed(tmp_path):
    kept = saved(tmp_path / "a", 1)
    shutil.rmtree(tmp_path / "a")
    kept.save(2, arrays(2), ABOUT)
    with pytest.raises(OSError, match=r"could not be written to .*No such file or directory"):
        kept.save(3, arrays(3), ABOUT)
    assert not (tmp_path / "a").exists()


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 64 KB that is really full soon."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(folder)]
    try:
        done = subprocess.run(mount, capture_output=True, text=True)
    except OSError as error:
        pytest.skip(f"no file system can be mounted here: {error}")
    if done.returncode:
        pytest.skip(f"no file system can be mounted here: {done.stderr.strip()}")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_a_disk_that_is_really_full_or_read_only(small_disk):
    kept = saved(small_disk, 1)
    for _ in range(2):
        kept.save(2, [np.ones(100_000, np.float32)], ABOUT)
        with pytest.raises(OSError, match=r"No space left on device.*make room"):
            kept.wait()
        assert kept.steps() == [1] and same(kept.latest().arrays, arrays(1))
    kept.save(3, arrays(3), ABOUT)  # smaller: the room is there again
    kept.wait()
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    kept.save(4, arrays(4), ABOUT)
    with pytest.raises(OSError, match="Read-only file system"):
        kept.wait()
    assert same(kept.latest().arrays, arrays(3))


def damage(file: Path, how: str) -> None:
    content = file.read_bytes()
    if how == "missing":
        file.unlink()
    elif how == "not a file":
        file.unlink()
        file.mkdir()
    else:
        file.write_bytes({"empty": b"", "cut": content[: len(content) // 2]}[how])


@pytest.mark.parametrize("how", ["empty", "cut", "missing", "not a file"])
def test_a_damaged_checkpoint_is_passed_over_with_a_warning(tmp_path, how):
    kept = saved(tmp_path, 1, 2, keep=3)
    last = tmp_path / "step_000000002"
    damage(next(last.iterdir()), how)
    with pytest.warns(UserWarning, match=f"{last} cannot be read .*goes on from .* step 1") as told:
        found = kept.latest()
    assert len(told) == 1 and same(found.arrays, arrays(1))
    # It neither counts among the last ones nor is it lost to whoever wants to look at it.
    assert kept.steps() == [1] and (tmp_path / "damaged_step_000000002").exists()
    kept.save(2, arrays(2), ABOUT)
    kept.wait()
    assert same(kept.latest().arrays, arrays(2))


def test_when_all_are_damaged_one_sentence_says_what_to_do(tmp_path):
    kept = saved(tmp_path, 1, 2)
    for folder in tmp_path.iterdir():
        damage(next(folder.iterdir()), "cut")
    with pytest.raises(
        ValueError, match=r"step_000000002 cannot be read .* no earlier one: delete"
    ):
        kept.latest()
    assert kept.steps() == [1, 2]


def test_no_changed_byte_changes_what_is_read(tmp_path):
    saved(tmp_path, 1)
    file = next((tmp_path / "step_000000001").iterdir())
    content, refused = bytearray(file.read_bytes()), 0
    for place in range(0, len(content), 5):
        content[place] ^= 0x55
        file.write_bytes(content)
        try:
            found = read(file.parent)
            assert same(found.arrays, arrays(1)) and found.about["name"] == "é"  # of no meaning
        except ValueError:
            refused += 1
        content[place] ^= 0x55
    assert refused > len(content) // 5 // 3


class Spread:
    """Stands for a variable of JAX that lies on several hosts, of which this is one."""

    def __init__(self, whole: np.ndarray, host: int, replica: int = 0):
        half = slice(host * 2, host * 2 + 2), slice(None)
        self.value = self
        self.is_fully_addressable = self.is_fully_replicated = False
        self.shape = whole.shape
        self.index, self.data, self.replica_id = half, whole[half], replica
        self.addressable_shards = [self]


def test_each_host_writes_its_parts(tmp_path):
    whole = np.arange(12, dtype=np.float32).reshape(4, 3)
    names: list[str] = []
    first = Checkpoints(tmp_path, host=(0, 2), barrier=names.append)
    second = Checkpoints(tmp_path, host=(1, 2), barrier=names.append)
    first.save(5, [Spread(whole, 0), np.ones(2)], ABOUT)
    first._writer.join(0.2)
    assert first._writer.is_alive() and first.steps() == []  # it waits for the other
    second.save(5, [Spread(whole, 1), np.zeros(2)], ABOUT)  # what all have, the first writes
    for host in (second, first):
        host.finish()
    assert names == ["checkpoints opened"] * 2 + ["checkpoints written"] * 2
    for host in (first, second):
        assert same(host.latest().arrays, [whole, np.ones(2)])
    assert len(list((tmp_path / "step_000000005").iterdir())) == 2
    next((tmp_path / "step_000000005").glob("*-00001-of-*")).unlink()
    with pytest.raises(ValueError, match="1 of 2 files"):
        read(tmp_path / "step_000000005")


def test_a_host_that_does_not_write_is_not_waited_for_for_ever(tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoint, "PATIENCE_SECONDS", 0.2)
    kept = Checkpoints(tmp_path, host=(0, 2))
    kept.save(5, arrays(), ABOUT)
    with pytest.raises(OSError, match=r"arrays-00001-of-00002\.npz of another host did not come"):
        kept.wait()
    assert kept.steps() == [] and not list(tmp_path.iterdir())
