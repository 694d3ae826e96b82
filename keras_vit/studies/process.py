"""Plans in a process of their own: Keras on JAX, JAX on the CPU, whatever this one runs on.

    python -m keras_vit.studies.process < request.json

The child answers in lines of JSON: what it is compiling, then the plan.
"""

import contextlib
import dataclasses
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from typing import Any

from keras_vit.studies.tpu_plan import Plan, plan, work

ENVIRONMENT = {
    "KERAS_BACKEND": "jax",
    "JAX_PLATFORMS": "cpu",
    # The compiler is used by several processes at once, and must not look for a real TPU.
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    "TPU_SKIP_MDS_QUERY": "1",
    "TF_CPP_MIN_LOG_LEVEL": "2",
}
NEEDS = ("jax", "libtpu")


def check_installed() -> None:
    """Refuses where the compiler is missing.

    Raises:
        ImportError: with the command that installs it.
    """
    missing = [name for name in NEEDS if importlib.util.find_spec(name) is None]
    if missing:
        raise ImportError(
            f"planning for TPUs needs {' and '.join(missing)}, the compiler: "
            f"pip install 'keras-vit-zoo[tpu-plan]'."
        )


def tpu_plan(
    model: str,
    topology: str,
    *,
    recipe: str,
    batch_size: int | None = None,
    image_size: int | tuple[int, int] | None = None,
    options: tuple[str, ...] = (),
    changes: tuple[str, ...] = (),
    progress: Callable[[str], None] = lambda what: None,
) -> Plan:
    """What a training run on a TPU would take; two or three programs are compiled, minutes each.

    Args:
        model, topology, recipe, batch_size, image_size, options, changes: see `work`.
        progress: called with what is being compiled.

    Raises:
        ImportError: JAX or libtpu is missing.
        ValueError: something of that does not exist, or does not go together.
        RuntimeError: the compiler failed; the message is its last line.
    """
    check_installed()
    request = {
        "model": model,
        "topology": topology,
        "recipe": recipe,
        "batch_size": batch_size,
        "image_size": image_size,
        "options": list(options),
        "changes": list(changes),
    }
    work(**request)  # whatever is wrong with it is told at once
    with tempfile.TemporaryFile("w+") as errors:
        with subprocess.Popen(
            [sys.executable, "-m", "keras_vit.studies.process"],
            env={**os.environ, **ENVIRONMENT},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        ) as child:
            try:
                answer = _talk(child, json.dumps(request), progress)
            except BaseException:
                child.kill()
                raise
        if "plan" in answer:
            return Plan(**{k: _tuples(v) for k, v in answer["plan"].items()})
        errors.seek(0)
        lines = errors.read().strip().splitlines() or [f"it ended with code {child.returncode}"]
        raise RuntimeError(f"planning failed: {lines[-1]}")


def _talk(child: Any, request: str, progress: Callable[[str], None]) -> dict[str, Any]:
    with contextlib.suppress(BrokenPipeError):
        child.stdin.write(request)
        child.stdin.close()
    answer: dict[str, Any] = {}
    for line in child.stdout:
        with contextlib.suppress(json.JSONDecodeError):
            answer = json.loads(line)
            if "compiling" in answer:
                progress(answer["compiling"])
    return answer


def _tuples(value: Any) -> Any:
    return tuple(_tuples(v) for v in value) if isinstance(value, list) else value


def main() -> None:
    """Reads a request from stdin, compiles, and answers on stdout."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # nothing that a library prints gets among the answers

    def tell(**answer: Any) -> None:
        print(json.dumps(answer), file=answers, flush=True)

    from keras_vit.studies import lowering
    from keras_vit.studies.figures import Figures, compiled

    task = work(**json.load(sys.stdin))
    devices = lowering.topology_devices(task.where)
    model = lowering.abstract_model(task.spec, task.recipe, task.steps, task.dtype)

    def measure(micro: int, parts: int) -> Figures:
        each = f"{micro} images at once, {parts} times" if parts > 1 else f"{micro} images at once"
        tell(compiling=f"the step of {task.model} for {task.where.name}: {each}")
        model._accumulation_steps = parts
        lowered = lowering.lower_step(model, devices, task.recipe.batch_size)
        return compiled(lowered, task.where)

    def update() -> Figures:
        tell(compiling=f"the update of {task.model}")
        return compiled(lowering.lower_update(model, devices[0]), task.where)

    tell(plan=dataclasses.asdict(plan(task, measure, update)))


if __name__ == "__main__":
    main()
