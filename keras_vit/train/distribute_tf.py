"""Devices through TensorFlow's strategies: one process with several, several processes, or a TPU."""

import contextlib
import os
from typing import Any

from keras_vit.train import hardware, workers
from keras_vit.train.placement import Placement, of_kind, warn_of_unused_tpu

TPU_STEPS = 32  # steps that TensorFlow leaves to the TPU at once


def open_tensorflow(kind: str, count: int | None) -> Placement:
    import tensorflow as tf

    cluster = workers.cluster_from_environment()
    if kind == "multi-worker" or (kind == "auto" and cluster and cluster.count > 1):
        return _tensorflow_workers(cluster)
    if kind == "tpu" or (kind == "auto" and hardware.tpu_signs()):
        resolver = resolve_tpu()
        if resolver is not None:
            return _tensorflow_tpu(resolver)
        if kind == "tpu":
            of_kind("tpu", [], count)
    gpus = [] if kind == "cpu" else tf.config.list_logical_devices("GPU")
    if kind == "auto":
        kind = "gpu" if gpus else "cpu"
        if hardware.tpu_signs():
            warn_of_unused_tpu(kind)
    if kind == "cpu":
        _divide_cpu(count)
    found = gpus if kind == "gpu" else tf.config.list_logical_devices("CPU")
    names = [device.name for device in of_kind(kind, found, count)]
    if len(names) > 1:
        # On CPUs not by collectives, of which a process keeps the first group for good.
        sums = tf.distribute.ReductionToOneDevice() if kind == "cpu" else None
        strategy = tf.distribute.MirroredStrategy(names, sums)
    elif len(found) > 1 or (kind == "cpu" and tf.config.list_physical_devices("GPU")):
        strategy = tf.distribute.OneDeviceStrategy(names[0])
    else:
        strategy = None
    return Placement(kind, len(names), strategy=strategy)


def _divide_cpu(count: int | None) -> None:
    """Makes one CPU into several devices, unless TensorFlow has already started."""
    import tensorflow as tf

    if count is None or count == 1:
        return
    parts = [tf.config.LogicalDeviceConfiguration()] * count
    with contextlib.suppress(RuntimeError):
        tf.config.set_logical_device_configuration(tf.config.list_physical_devices("CPU")[0], parts)


def resolve_tpu() -> Any:
    """TensorFlow's resolver of the TPU that answers, None when none does.

    Tried in turn: the TPU of this machine, the one that TPU_NAME names, what else the environment
    says.
    """
    import tensorflow as tf

    name = os.environ.get("TPU_NAME")
    for address in ["local", *([name] if name and name != "local" else []), None]:
        try:
            resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu=address)
            tf.config.experimental_connect_to_cluster(resolver)
            tf.tpu.experimental.initialize_tpu_system(resolver)
            return resolver
        except (ValueError, RuntimeError, ImportError, OSError, tf.errors.OpError):
            continue
    return None


def _tensorflow_tpu(resolver: Any) -> Placement:
    import tensorflow as tf

    strategy = tf.distribute.TPUStrategy(resolver)
    if getattr(strategy.extended, "num_hosts", 1) > 1:
        raise ValueError(
            "this TPU has several hosts, which TensorFlow would feed from one: set KERAS_BACKEND=jax "
            "and start the same command with --devices multi-worker on all of them."
        )
    replicas = strategy.num_replicas_in_sync
    return Placement("tpu", replicas, steps_per_execution=TPU_STEPS, strategy=strategy)


def _tensorflow_workers(cluster: workers.Cluster | None) -> Placement:
    import tensorflow as tf

    if cluster is None:
        raise ValueError(
            f"several workers need an environment that names them: set {workers.ADDRESSES}, "
            f"{workers.COUNT} and {workers.INDEX}, or TF_CONFIG, in each."
        )
    os.environ.setdefault("TF_CONFIG", cluster.tf_config)
    try:
        strategy = tf.distribute.MultiWorkerMirroredStrategy()
    except RuntimeError as error:
        raise ValueError(
            f"TensorFlow has computed something before the devices were opened ({error}): call "
            f"open_devices first."
        ) from error
    workers.greet(cluster.index, cluster.count)
    return Placement(
        "gpu" if tf.config.list_physical_devices("GPU") else "cpu",
        strategy.num_replicas_in_sync,
        (cluster.index, cluster.count),
        (cluster.index, cluster.count),
        strategy=strategy,
    )
