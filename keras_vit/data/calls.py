"""Calling Python from the graphs of tf.data, without its being kept for good.

TensorFlow holds what `numpy_function` and `py_function` call until the process ends, and with it the
images of a source and every graph that it mentions: 2 MB for each data set that is made, one an epoch.
"""

import contextlib
import contextvars
import weakref
from collections.abc import Callable, Iterator
from typing import Any

_holder: contextvars.ContextVar["Held | None"] = contextvars.ContextVar("held", default=None)


class Held:
    """What the graphs of one data set call: alive as long as the data set that holds this."""

    def __init__(self):
        self.functions: list[Callable[..., Any]] = []


@contextlib.contextmanager
def held_calls() -> Iterator[Held]:
    """Collects what is called by the graphs that are traced inside."""
    held = Held()
    token = _holder.set(held)
    try:
        yield held
    finally:
        _holder.reset(token)


def numpy_call(function: Callable[..., Any], inputs: list[Any], dtype: Any) -> Any:
    """`tf.numpy_function` of a function that always gives the same for the same."""
    import tensorflow as tf

    return tf.numpy_function(_lent(function), inputs, dtype, stateful=False)


def eager_call(function: Callable[..., Any], inputs: list[Any], dtypes: Any) -> Any:
    """`tf.py_function`."""
    import tensorflow as tf

    return tf.py_function(_lent(function), inputs, dtypes)


def _lent(function: Callable[..., Any]) -> Callable[..., Any]:
    held = _holder.get()
    if held is None:  # traced while the data set runs
        return function
    place = len(held.functions)
    held.functions.append(function)
    owner = weakref.ref(held)
    # The data set that runs this holds its owner.
    return lambda *inputs: owner().functions[place](*inputs)  # pyright: ignore
