"""Key tables: one list of rows that renames and reshapes the arrays of a file, in both directions.

A row is `(key in the file, variable of the model)` or `(key, variable, form)`:

- `{i}` stands for a number and `{i+1}` for the same number counted from one more; `{i:02}` is written
  with two digits; `{_i}` is nothing for 0 and `_1`, `_2` afterwards, as Keras numbers its layers;
  `{leaf}` stands for a word (`kernel`, `bias`, `scale`);
- `a|b|c` between braces on the model's side: the array in the file holds these variables one after
  the other along its first axis, in equal parts (a fused query, key and value);
- the form says how an array in the file differs from the variable, see `FORMS`.

The first row that fits a key is used for reading and the first that fits a variable for writing, so a
second spelling of a key stands below the one that is written.
"""

import dataclasses
import functools
import re
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from keras_vit.spec import Spec
from keras_vit.zoo.formats.entry import Entry

Table = Sequence[tuple[str, ...]]


def _heads(array: np.ndarray, spec: Any) -> np.ndarray:
    return array.reshape(*array.shape[:-1], spec.num_heads, -1)


# form: (file -> variable, variable -> file given the spec). Dense kernels of PyTorch are (out, in)
# and its convolutions (out, in, h, w); the official code keeps attention per head.
FORMS: dict[str, tuple[Callable, Callable]] = {
    "same": (lambda a: a, lambda a, spec: a),
    "transposed": (lambda a: a.T, lambda a, spec: a.T),
    "oihw": (lambda a: a.transpose(2, 3, 1, 0), lambda a, spec: a.transpose(3, 2, 0, 1)),
    "per_head": (lambda a: a.reshape(*a.shape[:-2], -1), _heads),
    "from_heads": (
        lambda a: a.reshape(-1, a.shape[-1]),
        lambda a, spec: a.reshape(spec.num_heads, -1, a.shape[-1]),
    ),
    "channels": (lambda a: a.reshape(-1), lambda a, spec: a.reshape(1, 1, 1, -1)),
    "pointwise": (
        lambda a: a.reshape(a.shape[-2:]),
        lambda a, spec: a.reshape(1, 1, *a.shape),
    ),
    "oihw_pointwise": (
        lambda a: a.reshape(a.shape[:2]).T,
        lambda a, spec: a.T.reshape(*a.shape[::-1], 1, 1),
    ),
    "batched": (lambda a: a[None], lambda a, spec: a[0]),
}


@dataclasses.dataclass(frozen=True)
class Weights:
    """What a file holds, in the model's terms.

    Attributes:
        name: of the file, for messages.
        entries: model variable -> its array, in the variable's form; keys that no row knows stand
            under themselves.
        keys: model variable -> key in the file.
        shapes: model variable -> shape in the file.
        table: rows of the format, which tell a variable's key.
        facts: fields of the spec that the file tells beyond its shapes (heads, numerics).
        posemb_resize: the rule for other resolutions where no card says one.
        known: fields of a card that the container tells (class names, preprocessing).
        ignored: keys that belong to no network here, such as the decoder of an autoencoder.
    """

    name: str
    entries: dict[str, Entry]
    keys: dict[str, str]
    shapes: dict[str, tuple[int, ...]]
    table: Table = ()
    facts: dict[str, Any] = dataclasses.field(default_factory=dict)
    posemb_resize: str = "align_corners"
    known: dict[str, Any] = dataclasses.field(default_factory=dict)
    ignored: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class _Row:
    key: str
    variables: tuple[str, ...]
    form: str


def translate(
    table: Table, entries: Mapping[str, Entry], name: str, *, prefix: str = ""
) -> Weights:
    """The arrays of a file under the model's names.

    Args:
        table: the rows of the format.
        entries: key -> array.
        name: of the file, for messages.
        prefix: of every key, removed before the table is asked.

    Raises:
        ValueError: two keys stand for one variable, or an array has not the axes of its form.
    """
    found = Weights(name, {}, {}, {}, table)
    rows = _rows(tuple(table))
    for key, entry in entries.items():
        row, numbers = _first((row, _match(row.key, key[len(prefix) :])) for row in rows)
        variables = [_render(v, numbers) for v in row.variables] if row else [key]
        form = row.form if row else "same"
        for variable, part in zip(variables, _parts(entry, form, len(variables), key), strict=True):
            if variable in found.entries:
                raise ValueError(
                    f"{name} has both {found.keys[variable]!r} and {key!r} for {variable!r}."
                )
            found.entries[variable] = part
            found.keys[variable] = key
            found.shapes[variable] = tuple(entry.shape)
    return found


def key_of(table: Table, variable: str) -> str | None:
    """The key of a variable in a file of the format, None where the format has no place for it."""
    row, numbers = _writer(table, variable)
    return _render(row.key, numbers) if row else None


def file_shape(table: Table, variable: str, shape: Sequence[int], spec: Spec) -> tuple[int, ...]:
    """The shape that a variable has in a file of the format."""
    row, _ = _writer(table, variable)
    if row is None:
        return tuple(shape)
    array = FORMS[row.form][1](_no_memory(shape), spec)
    parts = len(row.variables)
    return (array.shape[0] * parts, *array.shape[1:]) if parts > 1 else array.shape


def arrays_of(
    table: Table, variables: Mapping[str, np.ndarray], spec: Spec, what: str
) -> dict[str, np.ndarray]:
    """A model's variables under the keys and in the shapes of a format.

    Args:
        table: the rows of the format.
        variables: path -> value.
        spec: the network.
        what: the format, for the message.

    Raises:
        ValueError: the format has no place for a variable, which the message names.
    """
    parts: dict[str, dict[int, np.ndarray]] = {}
    counts: dict[str, int] = {}
    homeless = []
    for path, value in variables.items():
        row, numbers = _writer(table, path)
        if row is None:
            homeless.append(path)
            continue
        key = _render(row.key, numbers)
        index = next(i for i, v in enumerate(row.variables) if _match(v, path) is not None)
        parts.setdefault(key, {})[index] = FORMS[row.form][1](value, spec)
        counts[key] = len(row.variables)
    homeless += [key for key, found in parts.items() if len(found) != counts[key]]
    if homeless:
        raise ValueError(
            f"{what} has no place for {homeless[:3]}{' and others' if len(homeless) > 3 else ''}: "
            f"choose another format."
        )
    return {
        key: found[0] if len(found) == 1 else np.concatenate([found[i] for i in sorted(found)])
        for key, found in parts.items()
    }


def _parts(entry: Entry, form: str, count: int, key: str) -> Iterable[Entry]:
    """The entries that one array in the file is made of, in the variables' form."""
    convert = FORMS[form][0]
    try:
        dummy = _no_memory(entry.shape)
        if count == 1:
            shape = convert(dummy).shape
            return [dataclasses.replace(entry, shape=shape, read=lambda: convert(entry.read()))]
        if entry.shape[0] % count:
            raise ValueError
        length = entry.shape[0] // count
        shape = convert(dummy[:length]).shape
    except (ValueError, IndexError):
        raise ValueError(
            f"{key!r} has the shape {tuple(entry.shape)}, which is none of a {form} array"
            f"{f' in {count} equal parts' if count > 1 else ''}: the file is another network's."
        ) from None
    once = _Shared(entry.read, count)
    return [
        dataclasses.replace(
            entry, shape=shape, read=lambda i=i: convert(once()[i * length : (i + 1) * length])
        )
        for i in range(count)
    ]


class _Shared:
    """Reads an array once for all its parts, and lets go of it after the last."""

    def __init__(self, read: Callable[[], np.ndarray], uses: int):
        self._read, self._uses = read, uses
        self._left, self._array = uses, None
        self._lock = threading.Lock()  # parts are read on several threads

    def __call__(self) -> np.ndarray:
        with self._lock:
            array = self._read() if self._array is None else self._array
            self._left -= 1
            if self._left:
                self._array = array
            else:
                self._left, self._array = self._uses, None
            return array


def _no_memory(shape: Sequence[int]) -> np.ndarray:
    """An array of a shape that takes no memory, to ask NumPy what a conversion does to the shape."""
    return np.broadcast_to(np.float32(0), tuple(shape))


@functools.cache
def _rows(table: tuple[tuple[str, ...], ...]) -> tuple[_Row, ...]:
    rows = []
    for key, variable, *form in table:
        choices = re.search(r"\{([^{}]*\|[^{}]*)\}", variable)
        names = (
            [
                variable[: choices.start()] + choice + variable[choices.end() :]
                for choice in (choices[1].split("|") if choices else ())
            ]
            if choices
            else [variable]
        )
        rows.append(_Row(key, tuple(names), form[0] if form else "same"))
    return tuple(rows)


def _writer(table: Table, variable: str) -> tuple[_Row | None, dict[str, Any]]:
    return _first(
        (row, _match(name, variable)) for row in _rows(tuple(table)) for name in row.variables
    )


def _first(matches) -> tuple[_Row | None, dict[str, Any]]:
    return next(((row, found) for row, found in matches if found is not None), (None, {}))


_HOLE = re.compile(r"\{(_?)([a-z]\w*?)(?:\+(\d+))?(?::(\d+))?\}")


@functools.cache
def _pattern(template: str) -> tuple[re.Pattern, dict[str, int]]:
    """Regular expression of a template and what to subtract from each number in it."""
    text, offsets, end = "", {}, 0
    for hole in _HOLE.finditer(template):
        text += re.escape(template[end : hole.start()])
        counted, name, offset = hole[1], hole[2], hole[3]
        if len(name) > 1:
            text += rf"(?P<{name}>\w+)"
        else:
            number = rf"(?P<{name}>\d+)"
            text += f"(?:_{number})?" if counted else number
            offsets[name] = int(offset or 0)
        end = hole.end()
    return re.compile(text + re.escape(template[end:])), offsets


def _match(template: str, text: str) -> dict[str, Any] | None:
    pattern, offsets = _pattern(template)
    if (match := pattern.fullmatch(text)) is None:
        return None
    return {
        name: int(value or 0) - offsets[name] if name in offsets else value
        for name, value in match.groupdict().items()
    }


def _render(template: str, values: dict[str, Any]) -> str:
    def fill(hole: re.Match) -> str:
        value = values[hole[2]]
        if not isinstance(value, int):
            return value
        value += int(hole[3] or 0)
        if hole[1]:
            return f"_{value}" if value else ""
        return f"{value:0{hole[4] or '1'}d}"

    return _HOLE.sub(fill, template)
