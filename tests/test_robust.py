"""Runs that are killed, preempted, starved of disk space or diverge: what they leave, how they go on."""

import csv
import dataclasses
import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.train import run
from keras_vit.train.checkpoint import Checkpoints
from keras_vit.train.preemption import Preempted

SITTINGS = Path(__file__).with_name("sittings.py")
RECORD = "KERAS_VIT_KILL_RECORD"  # file that the heavy test adds what it saw to

spec = importlib.util.spec_from_file_location("sittings", SITTINGS)
sittings = importlib.util.module_from_spec(spec)
spec.loader.exec_module(sittings)

# Runs that are killed again and again, each time where the sitting has come to: at hooks of Keras, in
# calls that write the checkpoints of a run of 12 steps (one every 2 steps and after epochs of 5, each
# with one savez, three fsync and two rename), and by the clock. The point's number counts from the
# beginning of a sitting.
CHAINS = {
    "steps": (("step", 1), ("step", 3), ("step begin", 2), ("step", 2), ("epoch", 1)),
    "half a file": (("savez", 1), ("savez", 2), ("savez", 1), ("savez", 2), ("savez", 1)),
    "flushing": (("fsync", 1), ("fsync", 2), ("fsync", 3), ("fsync", 5), ("fsync", 4)),
    "naming": (("rename", 1), ("rename", 2), ("renamed", 2), ("renamed", 1), ("rename", 4)),
    "others": (("replace", 1), ("append_text", 1), ("validation", 2), ("rmtree", 2), ("rmtree", 1)),
    "the clock": (("seconds", 0.0), ("seconds", 0.02), ("seconds", 0.1), ("seconds", 0.4)),
    "SIGTERM": (("step", 1), ("validation", 2), ("savez", 1), ("epoch", 1), ("fsync", 2)),
}


def sit(tmp_path: Path, runs: list[list[dict]]) -> list[dict]:
    """What came of runs whose sittings end at these points, each sitting a process of its own."""
    plan = [{"folder": str(tmp_path / f"run{i}"), "sittings": each} for i, each in enumerate(runs)]
    (tmp_path / "plan.json").write_text(json.dumps(plan))
    cache = {
        "JAX_COMPILATION_CACHE_DIR": str(tmp_path / "compiled"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "0",
    }
    done = subprocess.run(
        [sys.executable, str(SITTINGS), str(tmp_path / "plan.json")],
        capture_output=True,
        text=True,
        env={**os.environ, **cache},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


def differences(found: dict, expected: dict) -> list[str]:
    """What is not the same to the last bit."""
    keys = ("weights", "state", "history", "metrics")
    return [key for key in keys if found.get(key) != expected[key]]


def point(at: str, n: float, **more) -> dict:
    return (
        {"at": "rename", "n": n, "after": True} if at == "renamed" else {"at": at, "n": n, **more}
    )


def test_a_killed_and_preempted_run_ends_as_one_that_was_left_alone(tmp_path):
    points = [
        point("savez", 2),  # in the middle of a file
        point("validation", 2, signal="SIGTERM"),  # twice
        point("rename", 3),  # when the old one has given up its name to the validated one
    ]
    expected, found = sit(tmp_path, [[{}], [*points, {}]])
    ends = found["ends"]
    assert [end["exit"] for end in ends] == [-signal.SIGKILL, 0, -signal.SIGKILL, 0]
    assert ends[0]["checkpoints"] == [2] and ends[1]["checkpoints"][-1] == 5
    assert found["resumed_from"] == 5 and expected["resumed_from"] == 0
    assert differences(found, expected) == []
    assert len(expected["history"]) == 3 and expected["metrics"][-1]["step"] == 12


@pytest.mark.full
def test_runs_that_are_killed_again_and_again_end_as_one_that_was_left_alone(tmp_path):
    runs = []
    for name, points in CHAINS.items():
        more = {"signal": "SIGTERM"} if name == "SIGTERM" else {}
        runs.append([*(point(at, n, **more) for at, n in points), {}])
    expected, *found = sit(tmp_path, [[{}], *runs])
    rows = [
        {"killed at": name, "different": differences(each, expected), "sittings": each["ends"]}
        for name, each in zip(CHAINS, found, strict=True)
    ]
    if path := os.environ.get(RECORD):
        record = json.loads(Path(path).read_text()) if Path(path).is_file() else {}
        record[keras.backend.backend()] = {
            "command": f"{RECORD}=docs/checks/kill.json pytest --full tests/test_robust.py",
            "versions": run.versions(),
            "sha256 of the weights": expected["weights"],
            "runs": rows,
        }
        Path(path).write_text(_compact(record) + "\n")
    assert {row["killed at"]: row["different"] for row in rows} == {name: [] for name in CHAINS}
    for row in rows:
        *killed, last = [end["exit"] for end in row["sittings"]]
        assert last == 0
        if row["killed at"] == "SIGTERM":
            assert set(killed) == {0}
        elif row["killed at"] != "the clock":  # a busy machine's may be late
            assert set(killed) == {-signal.SIGKILL}
    ends = [end for row in rows for end in row["sittings"]]
    assert sum(end["exit"] == -signal.SIGKILL for end in ends) >= 25
    assert len({tuple(end["checkpoints"]) for end in ends}) >= 8


def _compact(record: dict) -> str:
    """JSON with a line for each sitting."""
    lines = json.dumps(record, indent=1)
    return re.sub(r"\{\s+([^{}]*?)\s+\}", lambda m: "{" + " ".join(m[1].split()) + "}", lines)


def fit(out: Path | None, *callbacks, recipe=sittings.RECIPE, model=None, **options):
    """The run of sittings.py in this process: 12 steps in epochs of 5."""
    keras.utils.set_random_seed(0)
    model = model or keras_vit.VisionModel(sittings.SPEC)
    options = {"validation": sittings.images(20, 1), "checkpoint_steps": 2, **options}
    train = sittings.images(44, 0)
    return run.fit(model, train, recipe, out=out, verbose=0, callbacks=callbacks, **options)


class At(keras.callbacks.Callback):
    """Does something to the model after the n-th step."""

    def __init__(self, step: int, act):
        super().__init__()
        self.step, self.act, self.seen = step, act, 0

    def on_train_batch_end(self, batch, logs=None):
        self.seen += 1
        if self.seen == self.step:
            self.act(self.model)


def test_a_nan_loss_stops_with_step_rate_and_the_last_good_checkpoint(tmp_path):
    def poison(model):
        model.get_layer("head").bias.assign([np.nan, 0.0, 0.0])

    with pytest.raises(FloatingPointError) as caught:
        fit(tmp_path, At(6, poison), validation=None)
    # One step of warm-up, then a cosine: the seventh step is 5/11 of the way down.
    rate = 5e-3 * 0.5 * (1 + np.cos(np.pi * 5 / 11))
    assert str(caught.value) == (
        f"the loss became nan at step 7 of 12, in epoch 2, at a learning rate of {rate:.3g}: lower "
        f"schedule.base_lr, now 0.005. The last good checkpoint is that of step 6 in {tmp_path}."
    )
    model = keras_vit.VisionModel(sittings.SPEC)
    assert fit(tmp_path, model=model, validation=None).resumed_from == 6
    assert all(np.isfinite(keras.ops.convert_to_numpy(w)).all() for w in model.weights)


def test_nan_weights_are_not_saved_though_the_loss_is_a_step_behind(tmp_path):
    def poison(model):
        moment = next(v for v in model.optimizer.variables if "head_bias_momentum" in v.path)
        moment.assign([np.nan, 0.0, 0.0])

    words = r"the weight head/bias became NaN or infinite at step 4 .* step 2 in"
    with pytest.raises(FloatingPointError, match=words):
        fit(tmp_path, At(3, poison), validation=None)
    assert Checkpoints(tmp_path / "checkpoints").steps() == [2]


@pytest.fixture
def small_disk(tmp_path):
    """A folder that holds two checkpoints, but not what else it takes to write a third."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=200k", "tmpfs", str(folder)]
    try:
        done = subprocess.run(mount, capture_output=True, text=True)
    except OSError as error:
        pytest.skip(f"no file system can be mounted here: {error}")
    if done.returncode:
        pytest.skip(f"no file system can be mounted here: {done.stderr.strip()}")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_a_run_on_a_full_disk_stops_and_goes_on_when_there_is_room(small_disk):
    def fill(model):
        with (small_disk / "other").open("wb") as file, pytest.raises(OSError):
            file.write(bytes(10**6))
            file.flush()

    with pytest.raises(
        OSError, match=r"^(a checkpoint could not|cannot) .*No space left.*make room"
    ):
        fit(small_disk, At(4, fill))
    kept = Checkpoints(small_disk / "checkpoints").steps()
    assert kept and kept[-1] in (2, 4)
    (small_disk / "other").unlink()
    found = fit(small_disk)
    assert found.resumed_from == kept[-1] and len(found.history) == 3
    lines = [json.loads(line) for line in (small_disk / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [5, 10, 12]


def test_a_folder_that_vanishes_is_told_and_not_made_anew(tmp_path):
    out = tmp_path / "run"
    with pytest.raises(OSError, match=rf"{out}.* \(No such file or directory\)"):
        fit(out, At(4, lambda model: out.rename(tmp_path / "elsewhere")))
    assert not (out / "checkpoints").exists()


def test_without_a_folder_sigterm_ends_a_run_too():
    before = signal.getsignal(signal.SIGTERM)
    try:
        with pytest.raises(Preempted, match="after step 3 of 12; nothing is kept") as left:
            fit(None, At(2, lambda model: os.kill(os.getpid(), signal.SIGTERM)))
    finally:
        signal.signal(signal.SIGTERM, before)
    assert left.value.code == 0


class Calls(keras.callbacks.Callback):
    """Counts how often a training begins and ends."""

    def __init__(self):
        super().__init__()
        self.seen, self.epochs, self.steps = [], [], []

    def on_train_begin(self, logs=None):
        self.seen.append("begin")

    def on_train_end(self, logs=None):
        self.seen.append("end")

    def on_epoch_begin(self, epoch, logs=None):
        self.epochs.append((epoch, self.params["epochs"]))
        self.steps.append(self.params["steps"])


def test_callbacks_of_keras_see_one_training(tmp_path):
    calls = Calls()
    chosen = keras.callbacks.ModelCheckpoint(
        str(tmp_path / "best.keras"), monitor="val_loss", save_best_only=True
    )
    log = keras.callbacks.CSVLogger(tmp_path / "log.csv")
    plain = dataclasses.replace(sittings.RECIPE.optimizer, average=None)
    recipe = dataclasses.replace(sittings.RECIPE, optimizer=plain)
    found = fit(tmp_path / "run", log, chosen, calls, recipe=recipe)
    # Two calls of Keras's fit: two epochs of 5 steps, then half of one.
    assert calls.seen == ["begin", "end"]
    assert calls.epochs == [(0, 3), (1, 3), (2, 3)] and calls.steps == [5, 5, 2]
    rows = list(csv.DictReader((tmp_path / "log.csv").read_text().splitlines()))
    assert [float(row["val_loss"]) for row in rows] == [e["val_loss"] for e in found.history]
    best = keras_vit.load(tmp_path / "best.keras")
    best.compile(loss=keras.losses.CategoricalCrossentropy(from_logits=True))
    images = run.feed_for(best, sittings.images(20, 1), recipe, training=False)
    score = best.evaluate(images, verbose=0)
    assert score == pytest.approx(min(e["val_loss"] for e in found.history), rel=1e-5)


@pytest.mark.tf_only  # on JAX it wants a profiler of its own
def test_tensorboard_gets_what_it_wants(tmp_path):
    pytest.importorskip("tensorboard")
    board = keras.callbacks.TensorBoard(tmp_path / "board", histogram_freq=1, update_freq=1)
    fit(tmp_path / "run", board)
    found = scalars(tmp_path / "board")
    assert {"epoch_loss", "batch_loss", "evaluation_loss_vs_iterations"} <= set(found)
    assert found.count("epoch_loss") == 6 and found.count("batch_loss") == 12  # of 3 epochs, 2 sets


def scalars(folder: Path) -> list[str]:
    """The names in TensorBoard's files, which are read without TensorBoard."""
    import tensorflow as tf
    from tensorflow.core.util import event_pb2

    names = []
    for file in folder.rglob("events.*"):
        for record in tf.data.TFRecordDataset(str(file)):
            event = event_pb2.Event.FromString(record.numpy())
            names += [value.tag for value in event.summary.value]
    return names


def test_keras_stops_early_over_several_sittings():
    stopper = keras.callbacks.EarlyStopping("val_loss", patience=1, baseline=-1.0)
    found = fit(None, stopper)
    # Keras stops after the second epoch, and the half of one that is left is not begun.
    assert len(found.history) == 2 and found.steps == 12
