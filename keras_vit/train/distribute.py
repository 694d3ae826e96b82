"""Where a run computes: one device, several, or several hosts, behind one argument.

TensorFlow's strategies and Keras's distributions on JAX look alike from here: a scope in which the
model is made, this host's share of every batch, and data in the form that `fit` takes.
"""

import contextlib
import dataclasses
import os
import sys
import warnings
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np

from keras_vit.train import hardware, workers

KINDS = ("auto", "cpu", "gpu", "tpu", "multi-worker")
TPU_STEPS = 32  # steps that TensorFlow leaves to the TPU at once
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


@dataclasses.dataclass(frozen=True)
class Placement:
    """The devices of a run.

    Attributes:
        kind: `cpu`, `gpu` or `tpu`.
        replicas: copies of the model, over which every batch is divided.
        shard: (index, count) of this host's part of every batch, for feeds.
        process: (index, count) of this process.
        steps_per_execution: for `model.compile`.
        strategy: TensorFlow's or Keras's object, None for the one default device.
    """

    kind: str = "cpu"
    replicas: int = 1
    shard: tuple[int, int] = (0, 1)
    process: tuple[int, int] = (0, 1)
    steps_per_execution: int = 1
    strategy: Any = None

    @property
    def is_chief(self) -> bool:
        """Whether this process writes what is written once."""
        return self.process[0] == 0

    @contextlib.contextmanager
    def scope(self) -> Iterator["Placement"]:
        """Where the model is made, compiled and trained.

        Raises:
            WorkerLost: another process of the run is gone; this one then exits at once.
        """
        with contextlib.ExitStack() as stack:
            if self.process[1] > 1:
                stack.enter_context(workers.ending_together())
            if self.strategy is not None:
                stack.enter_context(self.strategy.scope())
            yield self

    def per_replica(self, batch_size: int) -> int:
        """Examples of a batch of `batch_size` that one replica computes.

        Raises:
            ValueError: they cannot be divided equally.
        """
        if batch_size % self.replicas:
            below = batch_size // self.replicas * self.replicas
            near = [n for n in (below, below + self.replicas) if n]
            raise ValueError(
                f"a batch of {batch_size} cannot be divided over {self.replicas} replicas: give "
                f"{' or '.join(map(str, near))}."
            )
        return batch_size // self.replicas

    @property
    def full_batches(self) -> bool:
        """Whether every batch must be full; evaluation then pads the last with examples of weight 0."""
        return self.strategy is not None

    def steps_per_call(self, *lengths: int) -> int:
        """The most steps in one call of the device, up to `steps_per_execution`, that divide `lengths`.

        Keras does not stop in between: with others an epoch would run over its end.
        """
        return max(
            n for n in range(1, self.steps_per_execution + 1) if not any(x % n for x in lengths)
        )

    def keras_data(self, feed: Any, start: int, stop: int) -> Any:
        """What `model.fit` and `evaluate` take here for the steps start..stop-1 of a feed.

        Raises:
            ValueError: the batch cannot be divided, or the feed gives another host's part.
        """
        size = self.per_replica(feed.batch_size)
        if getattr(feed, "shard", (0, 1)) != self.shard:
            raise ValueError(
                f"the data were opened for part {feed.shard} of every batch, but this host computes "
                f"part {self.shard}: open them with shard=placement.shard."
            )
        data = feed.keras_data(start, stop)
        if self.strategy is None or keras.backend.backend() != "tensorflow":
            return data
        # Static shapes, which TPUs need, and no sharding by TensorFlow, which the feed has done.
        dataset = _as_dataset(data).rebatch(size, drop_remainder=True)
        return self.strategy.distribute_datasets_from_function(lambda context: dataset.prefetch(2))

    def any_host(self, flag: bool) -> bool:
        """Whether `flag` is true in any process; all of them must ask at the same place."""
        if self.process[1] == 1:
            return flag
        if keras.backend.backend() == "jax":
            from jax.experimental import multihost_utils

            return bool(np.any(multihost_utils.process_allgather(np.asarray(flag))))
        import tensorflow as tf

        told = self.strategy.experimental_distribute_values_from_function(
            lambda context: tf.constant(float(flag))
        )
        return bool(self.strategy.reduce(tf.distribute.ReduceOp.SUM, told, axis=None) > 0)

    def whole(self, variable: Any) -> np.ndarray:
        """The value of a variable, also where several hosts hold parts; all of them must ask."""
        if self.process[1] > 1 and keras.backend.backend() == "jax":
            from jax.experimental import multihost_utils

            return np.asarray(multihost_utils.process_allgather(variable.value, tiled=True))
        return keras.ops.convert_to_numpy(variable)

    def barrier(self, name: str = "barrier") -> None:
        """Waits until every process has come here."""
        if self.process[1] > 1 and keras.backend.backend() == "jax":
            from jax.experimental import multihost_utils

            multihost_utils.sync_global_devices(name)
        else:
            self.any_host(False)


def open_devices(devices: str = "auto", *, model_parallel: int = 1) -> Placement:
    """The placement of a run; to be called before anything else is computed.

    Args:
        devices: `auto` takes the several hosts that the environment names, or else a TPU, or else
            GPUs, or else the CPU; `cpu`, `gpu` and `tpu` all devices of the kind, `gpu:2` two of
            them (`cpu:4` makes four out of one, for trials); `multi-worker` what each host has.
        model_parallel: devices over which one copy of the model is spread (JAX only).

    Several hosts are named by KERAS_DISTRIBUTION_JOB_ADDRESSES (host:port,...), _NUM_PROCESSES and
    _PROCESS_ID, by TF_CONFIG (TensorFlow), or by what JAX knows of TPU pods, Slurm and MPI.

    Raises:
        ValueError: no such devices here; the message says what to do.
    """
    kind, _, number = devices.partition(":")
    if kind not in KINDS or (number and (kind not in KINDS[1:4] or not number.isdigit())):
        raise ValueError(
            f"devices must be one of {list(KINDS)}, or such as 'gpu:2', got {devices!r}."
        )
    if number == "0" or model_parallel < 1:
        raise ValueError(
            f"a run needs at least one device, got {devices!r} and model_parallel={model_parallel}."
        )
    count = int(number) if number else None
    backend = keras.backend.backend()
    if backend == "jax":
        return _open_jax(kind, count, model_parallel)
    if backend != "tensorflow":
        raise ValueError(
            f"training runs on TensorFlow and JAX: set KERAS_BACKEND, now {backend!r}."
        )
    if model_parallel > 1:
        raise ValueError(
            "model_parallel needs JAX: set KERAS_BACKEND=jax, or leave it at 1 with TensorFlow."
        )
    return _open_tensorflow(kind, count)


def _of_kind(kind: str, found: list[Any], count: int | None) -> list[Any]:
    """The first `count` of the devices found, or all.

    Raises:
        ValueError: there are fewer.
    """
    if not found or len(found) < (count or 1):
        had = f"{len(found)} of {count} {kind} devices" if found else f"no {kind.upper()}"
        advice = "keras-vit doctor tells what is installed"
        if kind == "tpu":
            advice = "; ".join(hardware.why_no_tpu(keras.backend.backend()))
        raise ValueError(f"{had} found: {advice}.")
    return found[:count]


def _warn_of_unused_tpu(kind: str) -> None:
    reason, remedy = hardware.why_no_tpu(keras.backend.backend())
    warnings.warn(
        f"this machine seems to have a TPU, but the run goes to the {kind.upper()}: {reason}; "
        f"{remedy}.",
        stacklevel=4,
    )


# TensorFlow ---------------------------------------------------------------------------------------


def _open_tensorflow(kind: str, count: int | None) -> Placement:
    import tensorflow as tf

    cluster = workers.cluster_from_environment()
    if kind == "multi-worker" or (kind == "auto" and cluster and cluster.count > 1):
        return _tensorflow_workers(cluster)
    if kind == "tpu" or (kind == "auto" and hardware.tpu_signs()):
        resolver = resolve_tpu()
        if resolver is not None:
            return _tensorflow_tpu(resolver)
        if kind == "tpu":
            _of_kind("tpu", [], count)
    gpus = [] if kind == "cpu" else tf.config.list_logical_devices("GPU")
    if kind == "auto":
        kind = "gpu" if gpus else "cpu"
        if hardware.tpu_signs():
            _warn_of_unused_tpu(kind)
    if kind == "cpu":
        _divide_cpu(count)
    found = gpus if kind == "gpu" else tf.config.list_logical_devices("CPU")
    names = [device.name for device in _of_kind(kind, found, count)]
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
    _greet(cluster.index, cluster.count)
    return Placement(
        "gpu" if tf.config.list_physical_devices("GPU") else "cpu",
        strategy.num_replicas_in_sync,
        (cluster.index, cluster.count),
        (cluster.index, cluster.count),
        strategy=strategy,
    )


def _as_dataset(data: Any) -> Any:
    """A `tf.data.Dataset` of the batches of a Keras data set, their shapes static."""
    import tensorflow as tf

    if isinstance(data, tf.data.Dataset):
        return data
    first = keras.tree.map_structure(np.asarray, tuple(data[0]))
    signature = keras.tree.map_structure(lambda a: tf.TensorSpec(a.shape, a.dtype), first)
    return tf.data.Dataset.from_generator(
        lambda: (tuple(data[i]) for i in range(len(data))), output_signature=signature
    )


# JAX ----------------------------------------------------------------------------------------------


def _open_jax(kind: str, count: int | None, model_parallel: int) -> Placement:
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
    found = _of_kind(kind, found, count)
    platform = found[0].platform
    if kind == "auto" and platform != "tpu" and hardware.tpu_signs():
        _warn_of_unused_tpu(platform)
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
    _greet(jax.process_index(), jax.process_count())


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


def _greet(index: int, count: int) -> None:
    # Now, because JAX ends a process that has lost the first one with a message of its own.
    print(
        f"worker {index} of {count} has joined; when one ends, all end: {workers.ADVICE}.",
        file=sys.stderr,
        flush=True,
    )
