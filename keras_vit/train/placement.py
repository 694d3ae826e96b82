"""The devices of a run, as the rest of the package sees them: a scope, shares of batches, data for `fit`."""

import contextlib
import dataclasses
import warnings
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np

from keras_vit.train import hardware, workers


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

    def from_chief(self, value: float) -> float:
        """The first process's number, in all of them, to float32; all of them must ask."""
        if self.process[1] == 1:
            return value
        if keras.backend.backend() == "jax":
            from jax.experimental import multihost_utils

            return float(multihost_utils.broadcast_one_to_all(np.float32(value)))
        import tensorflow as tf

        told = self.strategy.experimental_distribute_values_from_function(
            lambda context: tf.constant(0.0 if context.replica_id_in_sync_group else float(value))
        )
        return float(self.strategy.reduce(tf.distribute.ReduceOp.SUM, told, axis=None))

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


def of_kind(kind: str, found: list[Any], count: int | None) -> list[Any]:
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


def warn_of_unused_tpu(kind: str) -> None:
    reason, remedy = hardware.why_no_tpu(keras.backend.backend())
    warnings.warn(
        f"this machine seems to have a TPU, but the run goes to the {kind.upper()}: {reason}; "
        f"{remedy}.",
        stacklevel=4,
    )
