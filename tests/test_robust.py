"""Runs that are killed, preempted, starved of disk space or diverge: what they leave, how they go on."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import keras
import pytest

from keras_vit.train import run

SITTINGS = Path(__file__).with_name("sittings.py")
RECORD = "KERAS_VIT_KILL_RECORD"  # file that test_many_points adds what it saw to

# Hooks of Keras, and calls that write the checkpoints of a run of 12 steps, one every 2 steps and
# after epochs of 5: seven in all, each with one savez, three fsync and two rename.
KILLS = [
    *({"at": "step", "n": n} for n in (1, 2, 4, 5, 7, 11, 12)),
    *({"at": "step begin", "n": n} for n in (1, 6)),
    *({"at": "validation", "n": n} for n in (1, 5, 9)),
    *({"at": "epoch", "n": n} for n in (1, 3)),
    *({"at": "savez", "n": n} for n in (1, 4, 7)),
    *({"at": "fsync", "n": n} for n in (1, 2, 3, 8, 21)),
    *({"at": "rename", "n": n} for n in (1, 2, 13)),
    *({"at": "rename", "n": n, "after": True} for n in (2, 14)),
    *({"at": "rmtree", "n": n} for n in (1, 3)),
    {"at": "replace", "n": 1},
    *({"at": "append_text", "n": n} for n in (1, 3)),
    *({"at": "seconds", "n": n} for n in (0.0, 0.02, 0.05, 0.1, 0.2, 0.4)),
]
SIGNALS = [
    {"at": at, "n": n, "signal": "SIGTERM"}
    for at, n in (("step", 3), ("step", 12), ("validation", 2), ("epoch", 2), ("savez", 2), ("fsync", 5))
]  # fmt: skip


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
    return json.loads(done.stdout)


def differences(found: dict, expected: dict) -> list[str]:
    """What is not the same to the last bit."""
    keys = ("weights", "state", "history", "metrics")
    return [key for key in keys if found.get(key) != expected[key]]


def test_a_killed_and_preempted_run_ends_as_one_that_was_left_alone(tmp_path):
    points = [
        {"at": "savez", "n": 2},  # in the middle of a file
        {"at": "validation", "n": 2, "signal": "SIGTERM"},  # twice
        {"at": "rename", "n": 3},  # when the old one has given up its name to the validated one
    ]
    expected, found = sit(tmp_path, [[{}], [*points, {}]])
    codes = [end["code"] for end in found["ends"]]
    assert codes == [-signal.SIGKILL, 0, -signal.SIGKILL, 0]
    assert found["ends"][0]["checkpoints"] == ["step_000000002"]
    assert found["ends"][1]["checkpoints"][-1] == "step_000000005"
    assert found["resumed_from"] == 5 and expected["resumed_from"] == 0
    assert differences(found, expected) == []
    assert len(expected["history"]) == 3 and expected["metrics"][-1]["step"] == 12


@pytest.mark.full
def test_many_points(tmp_path):
    points = [*KILLS, *SIGNALS]
    expected, *found = sit(tmp_path, [[{}], *([point, {}] for point in points)])
    rows = []
    for point, each in zip(points, found, strict=True):
        row = {
            **point,
            "exit": each["ends"][0]["code"],
            "checkpoints": each["ends"][0]["checkpoints"],
            "resumed_from": each.get("resumed_from"),
            "different": differences(each, expected),
        }
        rows.append(row)
    if path := os.environ.get(RECORD):
        record = json.loads(Path(path).read_text()) if Path(path).is_file() else {}
        record[keras.backend.backend()] = {
            "command": f"{RECORD}=docs/checks/kill.json pytest --full tests/test_robust.py",
            "versions": run.versions(),
            "weights": expected["weights"],
            "points": rows,
        }
        lines = json.dumps(record, indent=1)
        Path(path).write_text(lines + "\n")
    assert [row for row in rows if row["different"]] == []
    killed = [row for row in rows if row["exit"] == -signal.SIGKILL]
    # The clock of a busy machine may be late: only those after so many seconds may have finished.
    assert len(killed) >= len([p for p in KILLS if p["at"] != "seconds"]) >= 20
    assert [row["exit"] for row in rows if row.get("signal")] == [0] * len(SIGNALS)
    assert len({row["resumed_from"] for row in rows}) >= 6
