"""The compiler of TPUs in a process of its own: Keras on JAX, JAX on the CPU, whatever this one runs on.

    python -m keras_vit.studies.process < request.json

The request says what is wanted, a `plan` or `speed`. The child answers in lines of JSON: what it is
compiling, what was found, then the plan or that it is done.
"""

import contextlib
import dataclasses
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from keras_vit.spec import Spec, spec_from_dict
from keras_vit.studies.figures import Figures
from keras_vit.studies.topology import parse
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
    answer = _ask({"want": "plan", **request}, lambda heard: _progress(heard, progress), "plan")
    return Plan(**{k: _tuples(v) for k, v in answer["plan"].items()})


def tpu_speed(
    spec: Spec,
    topology: str,
    batches: Sequence[int],
    *,
    dtype: str,
    doubling: bool = False,
    known: Mapping[int, Figures] | None = None,
    progress: Callable[[str], None] = lambda what: None,
    compiled: Callable[[int, Figures], None] = lambda batch, figures: None,
) -> None:
    """Compiles inference for one core of a TPU, a program for each batch, until there are enough.

    Args:
        spec: the network, with its image size.
        topology: `v3-8`.
        batches, doubling, known: see `keras_vit.studies.speed.next_batch`.
        dtype: Keras dtype policy.
        progress: called with what is being compiled.
        compiled: called with the batch and the compiler's figures of every program.

    Raises:
        ImportError: JAX or libtpu is missing.
        RuntimeError: the compiler failed; the message is its last line.
    """
    check_installed()

    def heard(answer: dict[str, Any]) -> None:
        _progress(answer, progress)
        if "figures" in answer:
            compiled(answer["batch"], Figures(**answer["figures"]))

    request = {
        "want": "speed",
        "spec": spec.to_dict(),
        "topology": topology,
        "batches": list(batches),
        "dtype": dtype,
        "doubling": doubling,
        "known": [(batch, dataclasses.asdict(figures)) for batch, figures in (known or {}).items()],
    }
    _ask(request, heard, "done")


def _progress(answer: dict[str, Any], progress: Callable[[str], None]) -> None:
    if "compiling" in answer:
        progress(answer["compiling"])


def _ask(
    request: dict[str, Any], heard: Callable[[dict[str, Any]], None], last: str
) -> dict[str, Any]:
    """The child's last answer, which has the key `last`."""
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
                answer = _talk(child, json.dumps(request), heard)
            except BaseException:
                child.kill()
                raise
        if last in answer:
            return answer
        errors.seek(0)
        lines = errors.read().strip().splitlines() or [f"it ended with code {child.returncode}"]
        raise RuntimeError(f"planning failed: {lines[-1]}")


def _talk(child: Any, request: str, heard: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    with contextlib.suppress(BrokenPipeError):
        child.stdin.write(request)
        child.stdin.close()
    answer: dict[str, Any] = {}
    for line in child.stdout:
        try:
            answer = json.loads(line)
        except json.JSONDecodeError:
            continue
        heard(answer)
    return answer


def _tuples(value: Any) -> Any:
    return tuple(_tuples(v) for v in value) if isinstance(value, list) else value


def main() -> None:
    """Reads a request from stdin, compiles, and answers on stdout."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # nothing that a library prints gets among the answers

    def tell(**answer: Any) -> None:
        print(json.dumps(answer), file=answers, flush=True)

    request = json.load(sys.stdin)
    {"plan": _plan, "speed": _speed}[request.pop("want")](tell, **request)


def _plan(tell: Callable[..., None], **request: Any) -> None:
    from keras_vit.studies import lowering
    from keras_vit.studies.figures import compiled

    task = work(**request)
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


def _speed(
    tell: Callable[..., None],
    *,
    spec: dict[str, Any],
    topology: str,
    batches: list[int],
    dtype: str,
    doubling: bool,
    known: list[tuple[int, dict[str, Any]]],
) -> None:
    from keras_vit.studies import lowering
    from keras_vit.studies.figures import compiled
    from keras_vit.studies.speed import next_batch

    where = parse(topology)
    device = lowering.topology_devices(where)[0]
    model = lowering.abstract_network(spec_from_dict(spec), dtype)
    tried = {batch: Figures(**figures) for batch, figures in known}
    while (batch := next_batch(batches, tried, doubling)) is not None:
        tell(compiling=f"{batch} images at once for a core of {where.name}")
        tried[batch] = compiled(lowering.lower_forward(model, device, batch), where)
        tell(batch=batch, figures=dataclasses.asdict(tried[batch]))
    tell(done=True)


if __name__ == "__main__":
    main()
