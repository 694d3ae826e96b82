"""One update of a training run, the same on one device, several, and both backends.

A batch is computed in equal parts, the gradients of the parts and of all replicas are averaged, then
clipped by their global norm, then the optimizer updates once. Keras's own accumulation fails under
TensorFlow's strategies, advances averaged weights on every part, and its clipping comes before the
replicas are averaged, so that the norm depends on how many there are.
"""

from typing import Any

import keras
import numpy as np
from keras import ops


class Stepping(keras.Model):
    """`train_step` and `test_step` of the models of this package.

    Evaluation weighs examples by the third part of a batch, so that a last batch padded with weight 0
    counts nothing, whatever the batch size and the number of devices.
    """

    _clip_norm: float | None = None
    _accumulation_steps: int = 1

    def train_step(self, *arguments):
        if keras.backend.backend() == "jax":
            return _jax_train_step(self, *arguments)
        return _tensorflow_train_step(self, *arguments)

    def test_step(self, *arguments):
        if keras.backend.backend() == "jax":
            return _jax_test_step(self, *arguments)
        return _tensorflow_test_step(self, *arguments)

    def predict_step(self, *arguments):
        *state, data = arguments
        return super().predict_step(*state, _with_model_input(self, data))

    def _maybe_symbolic_build(self, iterator=None, data_batch=None):
        # Under TensorFlow's strategies Keras 3.15 takes a batch here to build the model with: by an
        # operation that several workers lack, and from an iterator that has ended when fit evaluates
        # for the second time. This model is built, and metrics are built when a step is traced; only
        # the optimizer is left. The one private hook of this file: tests/test_distribute.py pins it.
        if self._distribute_strategy is not None and self.optimizer is not None:
            with self._distribute_strategy.scope():
                self.optimizer.build(self.trainable_variables)

    def _check_optimizer(self) -> None:
        """Refuses what this step does itself, in a compiled optimizer."""
        optimizer = getattr(self.optimizer, "inner_optimizer", self.optimizer)
        for name, instead in (
            ("global_clipnorm", "clip_norm"),
            ("gradient_accumulation_steps", "accumulation_steps"),
        ):
            if getattr(optimizer, name, None) and (self._clip_norm or self._accumulation_steps > 1):
                raise ValueError(
                    f"the optimizer has {name}, and compile() was given clip_norm or "
                    f"accumulation_steps: give {instead} to compile() and none to the optimizer."
                )


def clip_by_global_norm(gradients: list[Any], clip_norm: float | None, scale: Any = 1.0):
    """Gradients whose global norm is at most `clip_norm`; None for no bound.

    Args:
        gradients: tensors, None among them allowed.
        clip_norm: bound on the norm.
        scale: factor by which the gradients are too large (the loss scale of float16).

    Source: optax.clip_by_global_norm: gradients within the bound are left as they are.
    """
    if clip_norm is None:
        return gradients
    squares = [
        ops.sum(ops.square(ops.cast(g, "float32") / scale)) for g in gradients if g is not None
    ]
    norm = ops.sqrt(sum(squares[1:], squares[0]))
    factor = clip_norm / ops.maximum(norm, clip_norm)
    return [g if g is None else g * ops.cast(factor, g.dtype) for g in gradients]


def model_input(model: Any, x: Any):
    """What the model takes: uint8 pixels (B, H, W, C) are normalised by its card, on the device.

    A batch of bytes is a quarter as much to send to an accelerator as one of floats.
    """
    if keras.backend.standardize_dtype(x.dtype) != "uint8":
        return x
    how = model.preprocessing
    mean, std = (np.asarray(value, np.float32) for value in (how.mean, how.std))
    return (ops.cast(x, "float32") - mean) / std


def _with_model_input(model: Any, data: Any) -> tuple[Any, ...]:
    """(x, y, sample_weight) of a batch, x as the model takes it."""
    x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
    return model_input(model, x), y, sample_weight


def parts_of(data: Any, count: int) -> Any:
    """Batches (B, ...) -> (count, B / count, ...), part i holding examples i, i + count, ...

    Strided, so that examples that lie on one device of a mesh stay there.

    Raises:
        ValueError: the batch cannot be divided into equal parts.
    """

    def split(x):
        if x is None:
            return None
        size = x.shape[0]
        if size is not None and size % count:
            raise ValueError(
                f"a batch of {size} examples on one device cannot be computed in "
                f"accumulation_steps={count} equal parts: give a multiple."
            )
        shape = (size // count if size is not None else -1, count, *x.shape[1:])
        return ops.moveaxis(ops.reshape(x, shape), 1, 0)

    return keras.tree.map_structure(split, data)


def _weight_of(sample_weight: Any, x: Any):
    """Sum of the weights of a batch: what its mean loss counts for."""
    if sample_weight is None:
        return ops.cast(ops.shape(x)[0], "float32")
    return ops.sum(ops.cast(sample_weight, "float32"))


# TensorFlow ---------------------------------------------------------------------------------------


def _tensorflow_train_step(model: Any, data: Any):
    import tensorflow as tf

    variables = model.trainable_variables
    context = tf.distribute.get_replica_context()
    replicas = context.num_replicas_in_sync
    count = model._accumulation_steps

    def gradients_of(part):
        x, y, sample_weight = _with_model_input(model, part)
        with tf.GradientTape() as tape:
            outputs = model(x, training=True)
            # Keras has divided the loss by the number of replicas.
            loss = replicas * model._compute_loss(x, y, outputs, sample_weight, training=True)
            scaled = model.optimizer.scale_loss(loss)
        model._loss_tracker.update_state(loss, sample_weight=tf.shape(x)[0])
        logs = model.compute_metrics(x, y, outputs, sample_weight=sample_weight)
        return tape.gradient(scaled, variables), logs

    if count == 1:
        gradients, logs = gradients_of(data)
    else:
        parts = parts_of(data, count)

        def body(i, sums):
            part = tf.nest.map_structure(lambda x: None if x is None else x[i], parts)
            found, _ = gradients_of(part)
            return i + 1, [s + tf.cast(g, s.dtype) for s, g in zip(sums, found, strict=True)]

        zeros = [tf.zeros(v.shape, "float32") for v in variables]
        _, sums = tf.while_loop(lambda i, _: i < count, body, (0, zeros), parallel_iterations=1)
        gradients = [s / count for s in sums]
        logs = model.get_metrics_result()
    if replicas > 1:
        gradients = context.all_reduce(tf.distribute.ReduceOp.MEAN, gradients)
    scale = model.optimizer.scale_loss(tf.constant(1.0))
    gradients = clip_by_global_norm(gradients, model._clip_norm, scale)
    # The optimizer sums over replicas, which by now hold the same gradients.
    model.optimizer.apply([g / replicas for g in gradients], variables)
    return _per_replica(logs)


def _tensorflow_test_step(model: Any, data: Any):
    import tensorflow as tf

    replicas = tf.distribute.get_replica_context().num_replicas_in_sync
    x, y, sample_weight = _with_model_input(model, data)
    outputs = model(x, training=False)
    loss = replicas * model._compute_loss(x, y, outputs, sample_weight, training=False)
    _track_mean(model, loss, sample_weight, x)
    return _per_replica(model.compute_metrics(x, y, outputs, sample_weight=sample_weight))


def _track_mean(model: Any, loss: Any, sample_weight: Any, x: Any) -> None:
    """Counts a loss, a sum over the batch divided by its size, as a mean over weights."""
    size = ops.cast(ops.shape(x)[0], "float32")
    weight = _weight_of(sample_weight, x)
    mean = loss * size / ops.maximum(weight, 1e-9)
    model._loss_tracker.update_state(mean, sample_weight=weight)


def _per_replica(logs: dict[str, Any]) -> dict[str, Any]:
    """Metrics with an axis: strategies of several workers reduce over axis 0, which scalars lack."""
    import tensorflow as tf

    if not isinstance(tf.distribute.get_strategy(), tf.distribute.MultiWorkerMirroredStrategy):
        return logs
    return {name: tf.reshape(value, (1,)) for name, value in logs.items()}


# JAX ----------------------------------------------------------------------------------------------


def _jax_train_step(model: Any, state: Any, data: Any):
    import jax

    trainable, non_trainable, optimizer, metrics = state
    count = model._accumulation_steps
    gradients_of = jax.value_and_grad(model.compute_loss_and_updates, has_aux=True)

    def part_step(non_trainable, metrics, part):
        x, y, sample_weight = _with_model_input(model, part)
        (_, aux), gradients = gradients_of(
            trainable,
            non_trainable,
            metrics,
            x,
            y,
            sample_weight,
            training=True,
            optimizer_variables=optimizer,
        )
        loss, outputs, non_trainable, metrics = aux
        logs, metrics = model._update_metrics_variables(metrics, loss, x, y, outputs, sample_weight)
        return gradients, non_trainable, metrics, logs

    if count == 1:
        gradients, non_trainable, metrics, logs = part_step(non_trainable, metrics, data)
    else:

        def body(carry, part):
            sums, non_trainable, metrics = carry
            found, non_trainable, metrics, logs = part_step(non_trainable, metrics, part)
            sums = [s + g.astype(s.dtype) for s, g in zip(sums, found, strict=True)]
            return (sums, non_trainable, metrics), logs

        zeros = [jax.numpy.zeros(v.shape, "float32") for v in trainable]
        carry = (zeros, non_trainable, metrics)
        (sums, non_trainable, metrics), logs = jax.lax.scan(body, carry, parts_of(data, count))
        gradients = [s / count for s in sums]
        logs = keras.tree.map_structure(lambda values: values[-1], logs)
    mapping = list(zip(model.optimizer.variables, optimizer, strict=True))
    with keras.StatelessScope(state_mapping=mapping):
        scale = model.optimizer.scale_loss(ops.ones(()))
    gradients = clip_by_global_norm(gradients, model._clip_norm, scale)
    trainable, optimizer = model.optimizer.stateless_apply(optimizer, gradients, trainable)
    return logs, (trainable, non_trainable, optimizer, metrics)


def _jax_test_step(model: Any, state: Any, data: Any):
    trainable, non_trainable, metrics = state
    x, y, sample_weight = _with_model_input(model, data)
    loss, (_, outputs, non_trainable, metrics) = model.compute_loss_and_updates(
        trainable, non_trainable, metrics, x, y, sample_weight, training=False
    )
    mapping = list(zip(model.metrics_variables, metrics, strict=True))
    with keras.StatelessScope(state_mapping=mapping) as scope:
        _track_mean(model, loss, sample_weight, x)
        logs = model.compute_metrics(x, y, outputs, sample_weight)
    found = [scope.get_current_value(v) for v in model.metrics_variables]
    metrics = [
        v.value if f is None else f for f, v in zip(found, model.metrics_variables, strict=True)
    ]
    return logs, (trainable, non_trainable, metrics)
