"""Runs every test on both backends and keeps the record in docs/checks/test-full.log."""

import datetime
import importlib.metadata
import os
import platform
import subprocess
import sys
import time
from pathlib import Path

LOG = Path("docs/checks/test-full.log")
FUZZ_LOG = Path("docs/checks/fuzz.log")  # what the fuzzers of tests/fuzz tried and found
PACKAGES = ("keras", "tensorflow", "jax", "numpy", "ai-edge-litert", "ai-edge-quantizer")


def git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], capture_output=True, text=True)
    return done.stdout.strip() if done.returncode == 0 else "unknown"


def header() -> list[str]:
    changed = (
        ", with changes that are not committed"
        if git("status", "--porcelain", "--untracked-files=no")
        else ""
    )
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in PACKAGES)
    return [
        f"commit {git('rev-parse', 'HEAD')}{changed}",
        f"date {datetime.datetime.now(datetime.UTC):%Y-%m-%d %H:%M} UTC",
        f"machine {platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}",
        f"packages {versions}",
    ]


def run(backend: str, out) -> int:
    """Runs pytest on one backend, on the screen and into the log; its exit status."""
    command = ["-P", "-m", "pytest", "--full", "--durations=25", "--color=no"]
    command += ["-n", "2", "--dist", "loadfile"]
    started = time.monotonic()
    out.write(f"\n== backend {backend}: {' '.join(command[2:])}\n")
    process = subprocess.Popen(
        [sys.executable, *command],
        env={
            **os.environ,
            "KERAS_BACKEND": backend,
            "KERAS_VIT_FUZZ_LOG": str(FUZZ_LOG.with_suffix(".unfinished").resolve()),
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    for line in process.stdout or ():
        print(line, end="", flush=True)
        out.write(line)
    status = process.wait()
    out.write(f"== backend {backend}: exit {status} after {time.monotonic() - started:.0f} s\n")
    return status


def main() -> int:
    LOG.parent.mkdir(parents=True, exist_ok=True)
    unfinished = LOG.with_suffix(".unfinished")
    fuzzed = FUZZ_LOG.with_suffix(".unfinished")
    fuzzed.write_text("\n".join(header()) + "\n\n")
    with unfinished.open("w") as out:
        out.write("\n".join(header()) + "\n")
        failed = [backend for backend in ("tensorflow", "jax") if run(backend, out)]
        out.write(f"\n{'FAILED on ' + ', '.join(failed) if failed else 'all passed'}\n")
    os.replace(unfinished, LOG)
    os.replace(fuzzed, FUZZ_LOG)
    print(f"the record is in {LOG}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
