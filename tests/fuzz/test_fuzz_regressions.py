"""Files that a reader once tripped over, by fuzzing: `TARGET-what-was-wrong` in regressions/."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent


def test_every_file_that_was_found_is_read_or_refused():
    if importlib.util.find_spec("atheris") is None:
        pytest.skip("atheris has no wheel for this machine or Python")
    files = sorted((HERE / "regressions").iterdir())
    assert files
    for target in sorted({file.name.split("-")[0] for file in files}):
        mine = [str(file) for file in files if file.name.split("-")[0] == target]
        done = subprocess.run(
            [sys.executable, str(HERE / "harness.py"), target, "--replay", *mine],
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert not done.returncode, done.stdout + done.stderr
        assert done.stdout.count(": fine") == len(mine)
