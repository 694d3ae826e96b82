"""The fuzzers as tests: each in a process of its own, twice, from a fixed and from a random seed."""

import importlib.util
import os
import random
import re
import subprocess
import sys
from pathlib import Path

import pytest

HARNESS = Path(__file__).with_name("harness.py")
# Seconds of one target, of which there are five: a minute in `make test`, an hour in `make
# test-full`.
SECONDS = {"short": 6, "long": 720}
LOG_VARIABLE = "KERAS_VIT_FUZZ_LOG"  # a file to which results are appended


@pytest.fixture
def fuzz(tmp_path):
    """`fuzz(target, "short")` runs one fuzzer and fails with the file that its reader trips over."""
    if importlib.util.find_spec("atheris") is None:
        pytest.skip("atheris has no wheel for this machine or Python")

    def run(target: str, length: str) -> None:
        seconds = SECONDS[length]
        for seed in (1, random.SystemRandom().randrange(2, 2**31)):
            command = [sys.executable, str(HARNESS), target, "--found", str(tmp_path)]
            command += ["--seconds", str(seconds // 2), "--seed", str(seed)]
            done = subprocess.run(
                # Through a shell that forks: a process inherits its parent's peak memory as its own,
                # which the fuzzer would take for the reader's.
                ["sh", "-c", '"$@"; exit $?', "sh", *command],
                env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                timeout=seconds + 120,
            )
            output = done.stdout.decode("utf-8", "replace")
            found = sorted(tmp_path.glob(f"{target}-*"))
            line = summary(target, seed, seconds // 2, output, found)
            print(line)
            if log := os.environ.get(LOG_VARIABLE):
                with open(log, "a") as file:
                    file.write(f"{line}\n")
            for path in found:
                print(f"{path.name}: {path.read_bytes().hex()}")
            assert not done.returncode and not found, f"{line}\n{output[-6000:]}"
            # A tenth of what a busy machine manages: a harness that tries nothing finds nothing.
            assert runs_of(output) > 5 * seconds, line

    return run


def runs_of(output: str) -> int:
    match = re.search(r"number_of_executed_units: (\d+)", output)
    return int(match[1]) if match else 0


def summary(target: str, seed: int, seconds: int, output: str, found: list[Path]) -> str:
    numbers = {
        label: match[1] if (match := re.search(rf"stat::{name}:\s+(\d+)", output)) else "?"
        for label, name in (
            ("files tried", "number_of_executed_units"),
            ("kept for new coverage", "new_units_added"),
            ("slowest file, seconds", "slowest_unit_time_sec"),
            ("peak memory, MiB", "peak_rss_mb"),
        )
    }
    outcome = f"FAILED by {', '.join(p.name for p in found)}" if found else "nothing found"
    facts = ", ".join(f"{label}: {number}" for label, number in numbers.items())
    return f"{target}, seed {seed}, {seconds} s: {outcome}; {facts}"
