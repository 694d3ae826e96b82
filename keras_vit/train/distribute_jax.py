"""Devices through Keras's distributions on JAX: data and model parallel, on one host or several."""

import contextlib
from typing import Any

import keras
import numpy as np

from keras_vit.train import hardware, workers
from keras_vit.train.placement import Placement, of_kind, warn_of_unused_tpu

# Dimensions of variables that lie spread over the devices of a model-parallel mesh, by the end of the
# path: the products inside a block then need one sum each. Source: arXiv 1909.08053, section 3.
SPREAD = {
    "attention/query/kernel": 1,
    "attention/query/bias": 0,
    "attention/key/kernel": 1,
    "attention/key/bias": 0,
    "attention/value/kernel": 1,
    "attention/value/bias": 0,
    "attention/out/kernel": 0,
    "dense1/kernel": 1,
    "dense1/bias": 0,
    "dense2/kernel": 0,
    "head/kernel": 1,
    "head/bias": 0,
}


def open_jax(kind: str, count: int | None, model_parallel: int) -> Placement:
    import jax

    cluster = workers.cluster_from_environment()
    if kind == "multi-worker" or (kind == "auto" and cluster and cluster.count > 1):
        _join_jax(cluster)
    if kind == "cpu" and count:
        with contextlib.suppress(RuntimeError):  # JAX has already started
            jax.config.update("jax_num_cpu_devices", count)
    try:
        found = jax.devices(None if kind in ("auto", "multi-worker") else kind)
    except RuntimeError:
        found = []
    found = of_kind(kind, found, count)
    platform = found[0].platform
    if kind == "auto" and platform != "tpu" and hardware.tpu_signs():
        warn_of_unused_tpu(platform)
    _hide_from_tensorflow(platform)
    if len(found) % model_parallel:
        raise ValueError(
            f"model_parallel={model_parallel} does not divide the {len(found)} devices found."
        )
    strategy = None
    if len(found) > 1 or platform != jax.default_backend() or len(jax.devices()) > 1:
        strategy = _jax_distribution(found, model_parallel)
    process = (jax.process_index(), jax.process_count())
    replicas = len(found) // model_parallel
    shard = (strategy.data_shard_id, min(replicas, process[1])) if strategy else (0, 1)
    return Placement(platform, replicas, shard, process, strategy=strategy)


def _join_jax(cluster: workers.Cluster | None) -> None:
    import jax
    from jax.experimental import multihost_utils

    options: dict[str, Any] = {"heartbeat_timeout_seconds": workers.HEARTBEAT_SECONDS}
    if cluster is not None:
        options["coordinator_address"] = cluster.addresses[0]
        options["num_processes"], options["process_id"] = cluster.count, cluster.index
    try:
        # What keras.distribution.initialize does, which has no option for the heartbeats.
        jax.distributed.initialize(**options)
    except ValueError as error:
        raise ValueError(
            f"JAX knows no cluster here ({error}): set {workers.ADDRESSES}, {workers.COUNT} and "
            f"{workers.INDEX} in each process."
        ) from None
    except RuntimeError as error:
        raise ValueError(f"the workers did not come together: {error}") from error
    # One seed for all, or else they start from different weights; drawn from NumPy, so that a seed
    # that was set holds.
    seed = multihost_utils.broadcast_one_to_all(np.uint32(np.random.randint(2**31)))
    keras.utils.set_random_seed(int(seed))
    workers.exit_at_once_when_failed()
    workers.greet(jax.process_index(), jax.process_count())


def _jax_distribution(found: list[Any], model_parallel: int) -> Any:
    from jax.experimental import mesh_utils

    shape = (len(found) // model_parallel, model_parallel)
    names = np.vectorize(lambda device: f"{device.platform}:{device.id}", otypes=[object])(
        mesh_utils.create_device_mesh(shape, found)
    )
    if model_parallel == 1:
        mesh = keras.distribution.DeviceMesh(shape[:1], ["batch"], names[:, 0])
        return keras.distribution.DataParallel(mesh, auto_shard_dataset=False)
    mesh = keras.distribution.DeviceMesh(shape, ["batch", "model"], names)
    return _Spread(
        layout_map=keras.distribution.LayoutMap(mesh),
        batch_dim_name="batch",
        auto_shard_dataset=False,
    )


class _Spread(keras.distribution.ModelParallel):
    """Spreads the variables that `SPREAD` names, where their sizes can be divided."""

    def get_variable_layout(self, variable):
        axes: list[str | None] = [None] * len(variable.shape)
        dimension = next((d for end, d in SPREAD.items() if variable.path.endswith(end)), None)
        if dimension is not None and variable.shape[dimension] % self.device_mesh.shape[1] == 0:
            axes[dimension] = "model"
        return keras.distribution.TensorLayout(axes, self.device_mesh)


def _hide_from_tensorflow(platform: str) -> None:
    """Keeps TensorFlow, which only reads data here, from taking the memory of JAX's devices."""
    if platform == "cpu" or not hardware.tensorflow_wheels():
        return
    import tensorflow as tf

    for kind in ("GPU", "TPU"):
        with contextlib.suppress(RuntimeError, ValueError):
            tf.config.set_visible_devices([], kind)
