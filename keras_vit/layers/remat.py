"""Rematerialisation: a block forgets what it computed and computes it again in the backward pass.

Keras's own RematScope cannot do that with dropout inside: under JAX the step fails, and TensorFlow draws
other masks in the second computation than in the first. So the block becomes a function of its input and
of all its variables, seeds among them.
"""

from collections.abc import Callable, Sequence
from typing import Any

import keras
from keras import ops


class Block(keras.layers.Layer):
    """A layer that can be rematerialised: set `remat` to True. In inference that changes nothing.

    Its `call` takes `training`.
    """

    remat = False

    def __call__(self, x, *args, training=None, **kwargs):
        call = super().__call__
        if not (self.remat and training and self.built) or isinstance(x, keras.KerasTensor):
            return call(x, *args, training=training, **kwargs)
        return rematerialized(lambda x: call(x, *args, training=True, **kwargs), self.variables, x)


def set_remat(model: keras.Model, remat: bool) -> None:
    """Switches rematerialisation of every block of a model."""
    for layer in model.layers:
        if isinstance(layer, Block):
            layer.remat = remat


def rematerialized(function: Callable[[Any], Any], variables: Sequence[Any], x: Any) -> Any:
    """`function(x)`, of whose inner results none is kept for the gradient.

    Args:
        function: of one tensor; may read and assign `variables` and no others.
        variables: Keras variables.
        x: a tensor.
    """
    # Copies: TensorFlow would read a variable again in the backward pass, the next seed for one.
    values = [ops.copy(v) for v in variables]
    # Only what has a gradient is an argument: TensorFlow would warn of each seed.
    learned = [i for i, v in enumerate(variables) if v.trainable]
    changed: list[int] = []

    def run(x, *given):
        now = list(values)
        for i, value in zip(learned, given, strict=True):
            now[i] = value
        with keras.StatelessScope(state_mapping=list(zip(variables, now, strict=True))) as scope:
            y = function(x)
        found = [scope.get_current_value(v) for v in variables]
        changed[:] = [i for i, value in enumerate(now) if found[i] is not value]
        return (y, *(found[i] for i in changed))

    y, *found = keras.remat(run)(x, *(values[i] for i in learned))
    for i, value in zip(changed, found, strict=True):
        variables[i].assign(value)
    return y
