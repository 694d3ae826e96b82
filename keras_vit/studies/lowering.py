"""The training step of `fit` on JAX, and inference, lowered and compiled for TPUs that are not there.

Everything is abstract: no weight is ever allocated. Needs KERAS_BACKEND=jax, JAX_PLATFORMS=cpu and
libtpu (`keras_vit.studies.process` starts such a process).
"""

import contextlib
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


def abstract_model(spec: Spec, recipe: Recipe, total_steps: int, dtype: str) -> VisionModel:
    """The network compiled with the recipe's optimizer and loss; its variables have no values."""
    with _without_values():
        model = VisionModel(spec, dtype=dtype)
    compile_for(model, recipe, total_steps)
    with _without_values():
        model.optimizer.build(model.trainable_variables)
    return model


def abstract_network(spec: Spec, dtype: str) -> VisionModel:
    """The network alone, for inference; its variables have no values."""
    with _without_values():
        return VisionModel(spec, dtype=dtype)


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


def lower_forward(model: VisionModel, device: Any, batch_size: int) -> Any:
    """Lowers inference on one device: from float images, which lie there, to logits."""
    import jax
    from jax.sharding import SingleDeviceSharding

    here = SingleDeviceSharding(device)

    def forward(trainable, non_trainable, images):
        return model.stateless_call(trainable, non_trainable, images, training=False)[0]

    trainable, other = (
        [jax.ShapeDtypeStruct(tuple(v.shape), v.dtype, sharding=here) for v in part]
        for part in (model.trainable_variables, model.non_trainable_variables)
    )
    shape = (batch_size, *model.spec.image_size, model.spec.in_channels)
    images = jax.ShapeDtypeStruct(shape, model.inputs[0].dtype, sharding=here)
    return jax.jit(forward).lower(trainable, other, images)


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
