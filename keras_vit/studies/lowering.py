"""The training step of `fit` on JAX, lowered and compiled for TPUs that are not there.

Everything is abstract: no weight is ever allocated. Needs KERAS_BACKEND=jax, JAX_PLATFORMS=cpu and
libtpu (`keras_vit.studies.process` starts such a process).
"""

import contextlib
import dataclasses
import re
import time
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
from keras.src.backend.common import global_state

from keras_vit.model import VisionModel
from keras_vit.spec import Spec
from keras_vit.studies.topology import Slice
from keras_vit.train.recipe import Recipe
from keras_vit.train.run import compile_for

BATCH = "batch"  # the axis of the mesh
_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


@dataclasses.dataclass(frozen=True)
class Figures:
    """What the compiler says of a program, per device.

    Attributes:
        memory: bytes at its peak: arguments, results that are no arguments, temporaries, code.
        fits: whether that fits into the memory of a device.
        seconds: of one run as the compiler estimates it, a loop's body counted once; None where the
            figure makes no sense.
        flops: operations, a loop's body counted once.
        arguments, temporaries, code: parts of `memory`, 0 for a program that does not fit.
        compile_seconds: what lowering and compiling took.
    """

    memory: int
    fits: bool
    seconds: float | None = None
    flops: float = 0.0
    arguments: int = 0
    temporaries: int = 0
    code: int = 0
    compile_seconds: float = 0.0


def abstract_model(spec: Spec, recipe: Recipe, total_steps: int, dtype: str) -> VisionModel:
    """The network compiled with the recipe's optimizer and loss; its variables have no values."""
    with _without_values():
        model = VisionModel(spec, dtype=dtype)
    compile_for(model, recipe, total_steps)
    with _without_values():
        model.optimizer.build(model.trainable_variables)
    return model


@contextlib.contextmanager
def _without_values() -> Iterator[None]:
    """A scope whose variables never get a value."""
    with keras.StatelessScope(initialize_variables=False):
        yield
    # Keras would initialise them at the end of its next scope.
    global_state.set_global_attribute("uninitialized_variables", [])


def topology_devices(where: Slice) -> list[Any]:
    """The devices of a slice as the compiler sees them."""
    from jax.experimental import topologies

    return list(topologies.get_topology_desc(where.layout, platform="tpu").devices)


def lower_step(model: VisionModel, devices: list[Any], batch_size: int) -> Any:
    """Lowers what `fit` compiles on JAX: state replicated, examples divided over the devices.

    Args:
        model: of `abstract_model`, or any compiled one.
        devices: that share the batch.
        batch_size: examples per update over all devices.
    """
    import jax
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    mesh = Mesh(np.array(devices), (BATCH,))
    whole, divided = NamedSharding(mesh, PartitionSpec()), NamedSharding(mesh, PartitionSpec(BATCH))

    def array(shape, dtype, sharding):
        return jax.ShapeDtypeStruct(tuple(shape), dtype, sharding=sharding)

    variables = (
        model.trainable_variables,
        model.non_trainable_variables,
        model.optimizer.variables,
        model.metrics_variables,
    )
    state = tuple([array(v.shape, v.dtype, whole) for v in part] for part in variables)
    images = (batch_size, *model.spec.image_size, model.spec.in_channels)
    data = (
        array(images, "float32", divided),
        array((batch_size, model.spec.num_classes), "float32", divided),
    )
    shardings = jax.tree.map(lambda _: whole, state)
    step = jax.jit(model.train_step, donate_argnums=0, out_shardings=(None, shardings))
    return step.lower(state, data)


def lower_update(model: VisionModel, device: Any) -> Any:
    """Lowers what a step does once however many parts its batch is computed in."""
    import jax
    from jax.sharding import SingleDeviceSharding

    from keras_vit.stepping import clip_by_global_norm

    here = SingleDeviceSharding(device)

    def update(optimizer, gradients, trainable):
        gradients = clip_by_global_norm(gradients, model._clip_norm)
        return model.optimizer.stateless_apply(optimizer, gradients, trainable)

    trainable, optimizer = (
        [jax.ShapeDtypeStruct(tuple(v.shape), v.dtype, sharding=here) for v in part]
        for part in (model.trainable_variables, model.optimizer.variables)
    )
    return jax.jit(update, donate_argnums=(0, 1, 2)).lower(optimizer, trainable, trainable)


def compiled(lowered: Any, where: Slice) -> Figures:
    """Compiles a lowered program and reads the compiler's figures."""
    start = time.perf_counter()
    try:
        program = lowered.compile()
    except Exception as error:
        needed = memory_needed(str(error), where.generation.hbm)
        if needed is None:
            raise
        return Figures(needed, False, compile_seconds=time.perf_counter() - start)
    return figures_of(program, where, time.perf_counter() - start)


def figures_of(program: Any, where: Slice, compile_seconds: float = 0.0) -> Figures:
    """The compiler's figures of a compiled program."""
    memory, cost = program.memory_analysis(), program.cost_analysis()
    fresh = memory.output_size_in_bytes - memory.alias_size_in_bytes
    parts = {
        "arguments": memory.argument_size_in_bytes,
        "temporaries": memory.temp_size_in_bytes,
        "code": memory.generated_code_size_in_bytes,
    }
    flops = float(cost.get("flops", 0.0))
    return Figures(
        memory=fresh + sum(parts.values()),
        fits=True,
        seconds=sane_seconds(cost.get("optimal_seconds"), flops, where.generation.flops),
        flops=flops,
        compile_seconds=compile_seconds,
        **parts,
    )


def sane_seconds(seconds: float | None, flops: float, peak: float) -> float | None:
    """The compiler's estimate, or None where it is impossible: it lacks the cost of some operations.

    It counts -1 s for an operation that it has no cost for.
    """
    return float(seconds) if seconds is not None and seconds >= flops / peak > 0.0 else None


def memory_needed(message: str, hbm: int) -> int | None:
    """Bytes that a program needs of `hbm`, from the compiler's refusal; None for another message."""
    for pattern in (
        r"\(([\d.]+)([KMGT]?)\) exceeds available HBM \(([\d.]+)([KMGT]?)\)",
        r"[Uu]sed ([\d.]+)([KMGT]?) of ([\d.]+)([KMGT]?) hbm",
    ):
        if match := re.search(pattern, message):
            wanted, there = (float(match[i]) * _UNITS[match[i + 1]] for i in (1, 3))
            return int(hbm + wanted - there)
    return None
