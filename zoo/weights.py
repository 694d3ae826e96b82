"""Weights of a file into a model: all of them or none, and a model built around them."""

import contextlib
import dataclasses
import functools
import math
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import keras
import numpy as np

from keras_vit.card import Card
from keras_vit.data.tensors import borrowed
from keras_vit.model import VisionModel
from keras_vit.spec import Spec
from keras_vit.zoo import adapt
from keras_vit.zoo.formats import read_weights
from keras_vit.zoo.formats.keys import Weights, file_shape, key_of

READERS = 2  # threads that read arrays; more wait for the same memory
SMALL = 2**16  # elements of an array that is looked through for NaN
AHEAD = 8  # arrays that are read before they are asked for

Source = Weights | str | os.PathLike | Mapping[str, np.ndarray]


@dataclasses.dataclass(frozen=True)
class LoadReport:
    """What a load did.

    Attributes:
        loaded: model variables that took a value.
        unused: checkpoint keys left out on request, or of no network here (an autoencoder's decoder).
        resized: (old grid, new grid) of the position table, or None.
    """

    loaded: tuple[str, ...]
    unused: tuple[str, ...]
    resized: tuple[tuple[int, int], tuple[int, int]] | None = None


def load_weights(
    model: VisionModel,
    source: Source,
    *,
    skip: Sequence[str] = (),
    source_grid: tuple[int, int] | None = None,
    posemb_resize: str | None = "align_corners",
) -> LoadReport:
    """Assigns every weight of a checkpoint to a model, or changes nothing.

    Args:
        model: of the checkpoint's architecture; grid and head may differ as below.
        source: a checkpoint file of any known format, what `read_weights` made of it, or a mapping
            from official keys to arrays.
        skip: regular expressions on model variables (`head/.*`) that keep the model's own values;
            the file's are reported as unused.
        source_grid: (h, w) of the file's position table; by default the model's own when the
            number of entries agrees, else the square one.
        posemb_resize: rule of `keras_vit.posemb.resize`, or None to refuse another grid.

    Raises:
        ValueError: one message with every missing (-), extra (+) and mis-shaped (!) key.
    """
    weights = source
    if not isinstance(weights, Weights):
        weights = read_weights(weights, verify=True, spec=model.spec)
    paths = [v.path for v in model.weights]
    values, report = fitted(
        weights,
        model.spec,
        {v.path: tuple(v.shape) for v in model.weights},
        skip=skip,
        source_grid=source_grid,
        posemb_resize=posemb_resize,
    )
    for path, variable in zip(paths, model.weights, strict=True):
        if path in values and math.prod(variable.shape) <= SMALL:
            values[path]()  # raises before anything is changed
    for path, variable in zip(paths, model.weights, strict=True):
        if path in values:
            variable.assign(values[path]())
    return report


def model_of(
    weights: Weights,
    spec: Spec,
    *,
    card: Card | None = None,
    dtype: Any = None,
    frozen: Sequence[str] = (),
    skip: Sequence[str] = (),
    source_grid: tuple[int, int] | None = None,
    posemb_resize: str | None = "align_corners",
) -> VisionModel:
    """A model that is built around the weights of a file: nothing is initialised to be overwritten.

    Args:
        weights: of the file.
        spec: the wanted network.
        card, dtype, frozen: of the model.
        skip, source_grid, posemb_resize: see `load_weights`.

    Raises:
        ValueError: the weights do not fit, or the file is damaged.
    """
    with _deferred() as wait_for:
        model = VisionModel(spec, card=card, dtype=dtype, frozen=frozen)
        shapes = {v.path: tuple(v.shape) for v in model.weights}
        try:
            values, _ = fitted(
                weights,
                spec,
                shapes,
                skip=skip,
                source_grid=source_grid,
                posemb_resize=posemb_resize,
            )
        except ValueError:
            for variable in model.weights:  # no time for random numbers that nobody will see
                wait_for(variable, lambda shape=tuple(variable.shape): np.zeros(shape))
            raise
        ahead = _ReadAhead(values)
        for variable in model.weights:
            if variable.path in values:
                wait_for(variable, lambda path=variable.path: ahead.take(path))
    return model


class _ReadAhead:
    """Reads the next few arrays on other threads while one becomes a variable.

    Args:
        readers: path -> what reads it, in about the order in which they are taken.
    """

    def __init__(self, readers: Mapping[str, Callable[[], np.ndarray]]):
        self._waiting = dict(readers)
        self._pool = ThreadPoolExecutor(READERS, "read-weights")
        self._reading: dict[str, Future[np.ndarray]] = {}

    def take(self, path: str) -> np.ndarray:
        """The array of a path, once. Raises what its reader raises, and reads no further."""
        if path in self._waiting:
            self._start(path)
        for following in list(self._waiting)[: AHEAD - len(self._reading)]:
            self._start(following)
        try:
            return self._reading.pop(path).result()
        except BaseException:
            self._pool.shutdown(wait=False, cancel_futures=True)
            raise
        finally:
            if not self._waiting and not self._reading:
                self._pool.shutdown(wait=False)

    def _start(self, path: str) -> None:
        self._reading[path] = self._pool.submit(self._waiting.pop(path))


@contextlib.contextmanager
def _deferred() -> Iterator[Callable[[Any, Callable[[], np.ndarray]], None]]:
    """A scope whose variables get their first value when it ends, from a file where one is given.

    Keras initialises what was created in a stateless scope when the scope ends. A failure there,
    Ctrl-C among them, would leave its list of variables half done, with which no model can be built
    any more. So a reader that fails gives zeros, as do all after it, and the error is raised when
    Keras is through.
    """
    failures: list[BaseException] = []

    def wait_for(variable: Any, read: Callable[[], np.ndarray]) -> None:
        def first_value(shape, dtype=None):
            if not failures:
                try:
                    return borrowed(read().astype(dtype, copy=False))
                except BaseException as error:
                    failures.append(error)
            return np.zeros(shape, dtype)

        variable._initializer = first_value

    with keras.StatelessScope():
        yield wait_for
    if failures:
        raise failures[0]


def fitted(
    weights: Weights,
    spec: Spec,
    variables: Mapping[str, tuple[int, ...]],
    *,
    skip: Sequence[str],
    source_grid: tuple[int, int] | None,
    posemb_resize: str | None,
) -> tuple[dict[str, Callable[[], np.ndarray]], LoadReport]:
    """What reads the value of each variable, once it is certain that everything fits.

    Args:
        weights: of the file.
        spec: the model's.
        variables: path -> shape of the model's weights.
        skip, source_grid, posemb_resize: see `load_weights`.

    Raises:
        ValueError: one message with every missing (-), extra (+) and mis-shaped (!) key.
    """
    skipped = re.compile("|".join(f"(?:{pattern})" for pattern in skip) or r"(?!)")
    variables = {p: s for p, s in variables.items() if not skipped.fullmatch(p)}
    weights, unused = adapt.without(weights, lambda path: skipped.fullmatch(path) is not None)
    weights, old_grid = adapt.with_positions(
        weights, spec, source_grid=source_grid, method=posemb_resize or "align_corners"
    )
    problems = _compare(weights, spec, variables)
    if old_grid and not problems and posemb_resize is None:
        problems = [f"! {adapt.TABLE} has grid {old_grid}, the model {spec.grid}"]
    if problems:
        raise ValueError(
            f"{weights.name} does not fit this model (- missing in the file, + only in the file, "
            f"! other shape):\n  " + "\n  ".join(problems) + _hint(problems)
        )

    def read(path: str) -> np.ndarray:
        value = weights.entries[path].read().reshape(variables[path])
        # Training that broke leaves no weight whole, so the small ones tell, and cost nothing.
        if value.size <= SMALL and not np.isfinite(value).all():
            raise ValueError(
                f"{weights.name} has NaN or infinity in {weights.keys[path]!r}: its training broke, "
                f"use an earlier checkpoint."
            )
        return value

    readers = {path: functools.partial(read, path) for path in variables}
    resized = (old_grid, spec.grid) if old_grid else None
    return readers, LoadReport(tuple(variables), (*unused, *weights.ignored), resized)


def _compare(weights: Weights, spec: Spec, variables: Mapping[str, tuple[int, ...]]) -> list[str]:
    found = weights.entries
    problems = [f"- {key_of(weights.table, p) or p}" for p in variables if p not in found]
    problems += [f"+ {weights.keys[p]}" for p in found if p not in variables]
    for path, shape in variables.items():
        if path in found and tuple(found[path].shape) != shape:
            problems.append(
                f"! {weights.keys[path]} has shape {weights.shapes[path]} in the file, "
                f"{file_shape(weights.table, path, shape, spec)} in the model"
            )
        elif path in found and not _is_float(found[path].dtype):
            problems.append(f"! {weights.keys[path]} holds {found[path].dtype} and no weights")
    heads, own = weights.facts.get("num_heads"), getattr(spec, "num_heads", None)
    if not problems and None not in (heads, own) and heads != own:
        problems.append(f"! num_heads is {heads} in the file, {own} in the model")
    return problems


def _is_float(dtype: Any) -> bool:
    """Whether numbers of this type are weights as they are; quantised ones lack their scale."""
    return str(dtype) == "bfloat16" or np.dtype(dtype).kind == "f" or np.dtype(dtype) == "V2"


def _hint(problems: list[str]) -> str:
    text = "\n".join(problems)
    hints = []
    if re.search(r"! \S*(head|classifier|fc)\b", text):
        hints.append("num_classes= of the file keeps its head, another number makes a new one")
    if re.search("pos_embed|position_embedding", text):
        hints.append("image_size= decides the grid of the position table")
    if re.search("! .*(token_mixing|mlp_tokens)", text):
        hints.append("a Mixer works at the image_size that it was trained at and at no other")
    if re.search("pre_logits|pooler", text):
        hints.append("representation_size of the spec decides about pre_logits")
    return "\nHint: " + "; ".join(hints) + "." if hints else ""
