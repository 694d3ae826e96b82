"""Changes to a recipe as text, `schedule.warmup_steps=500`, read by the types of its fields.

`none` stands for None, `true` and `false` for flags, and commas separate the values of a tuple:
`augment.randaugment=2,10`, `schedule.stairs=0.3,0.6,0.9`, `frozen=encoderblock_0.*,embedding`; an empty
text is an empty tuple. `changes.dropout=0.1` sets a field of the network's spec. Setting `steps` clears
`epochs`, and the other way round.
"""

import dataclasses
import difflib
import inspect
import math
import types
import typing
from collections.abc import Callable, Iterable
from typing import Any

from keras_vit.spec import FAMILIES
from keras_vit.train.recipe import Recipe

CHANGES = "changes"
LENGTHS = {"steps": "epochs", "epochs": "steps"}  # a recipe is as long as one of them says


def apply(recipe: Recipe, texts: Iterable[str]) -> Recipe:
    """The recipe with other values for some of its fields; later texts win.

    Args:
        recipe: any.
        texts: `field=value` or `part.field=value`.

    Raises:
        ValueError: no such field (the message gives the nearest), a value of another type, or one
            that the recipe refuses.
    """
    known = fields_of(recipe)
    parts: dict[str, dict[str, Any]] = {}
    for text in texts:
        key, value = _split(text)
        if key not in known:
            raise ValueError(f"no field {key!r} in a recipe{_nearest(key, known)}")
        part, _, field = key.rpartition(".")
        parts.setdefault(part, {})[field] = parse(value, known[key], key)
    top = parts.pop("", {})
    given = set(top) & set(LENGTHS)
    for name in given:
        if top[name] is not None and LENGTHS[name] not in given:
            top[LENGTHS[name]] = None
    if CHANGES in parts:
        top[CHANGES] = tuple({**dict(recipe.changes), **parts.pop(CHANGES)}.items())
    for part, values in parts.items():
        top[part] = dataclasses.replace(getattr(recipe, part), **values)
    return dataclasses.replace(recipe, **top)


def options(function: Callable[..., Any], texts: Iterable[str]) -> dict[str, Any]:
    """Keyword arguments of a recipe's function from texts such as `epochs=30`, by its annotations.

    Raises:
        ValueError: no such argument, or a value of another type.
    """
    hints = typing.get_type_hints(function)
    known = {key: hints[key] for key in inspect.signature(function).parameters if key != "model"}
    found = {}
    for text in texts:
        key, value = _split(text)
        if key not in known:
            raise ValueError(f"no option {key!r} of this recipe{_nearest(key, known)}")
        found[key] = parse(value, known[key], key)
    return found


def fields_of(recipe: Recipe) -> dict[str, Any]:
    """Every key that `apply` takes, with the type of its value."""
    found: dict[str, Any] = {}
    for name, hint in typing.get_type_hints(type(recipe)).items():
        if dataclasses.is_dataclass(hint):
            inner = typing.get_type_hints(hint)
            found.update({f"{name}.{field}": kind for field, kind in inner.items()})
        elif name != CHANGES:
            found[name] = hint
    for spec in FAMILIES.values():
        for field, kind in typing.get_type_hints(spec).items():
            if not dataclasses.is_dataclass(kind):  # the body of a ResNet is no single value
                found[f"{CHANGES}.{field}"] = kind
    return found


def parse(text: str, kind: Any, key: str) -> Any:
    """A text as a value of a type: numbers, flags, texts, tuples of them, or None where allowed.

    Raises:
        ValueError: it is none; the message says what was expected.
    """
    try:
        return _parse(text.strip(), kind)
    except ValueError:
        raise ValueError(f"{key} takes {_wanted(kind)}, got {text!r}.") from None


def _split(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise ValueError(f"a change is written field=value, got {text!r}.")
    return key.strip(), value


def _nearest(key: str, known: Iterable[str]) -> str:
    known = list(known)
    last = {name.rsplit(".", 1)[-1]: name for name in reversed(known)}
    near = difflib.get_close_matches(key, known, 3, 0.6)
    # A field without its part: warmup_steps for schedule.warmup_steps.
    near += [last[name] for name in difflib.get_close_matches(key, last, 3, 0.8)]
    near = list(dict.fromkeys(near))[:3]
    return f": did you mean {' or '.join(near)}?" if near else f": there are {', '.join(known)}."


def _parse(text: str, kind: Any) -> Any:
    if _is_union(kind):
        choices = typing.get_args(kind)
        if type(None) in choices and text.lower() == "none":
            return None
        return _parse(text, next(choice for choice in choices if choice is not type(None)))
    if typing.get_origin(kind) is tuple:
        return _parse_tuple(text, typing.get_args(kind))
    if kind is bool:
        return ("false", "true").index(text.lower()) == 1
    if kind is str:
        return text
    value = float(text)
    if not math.isfinite(value) or (kind is int and value != int(value)):
        raise ValueError
    return kind(value)


def _parse_tuple(text: str, kinds: tuple[Any, ...]) -> tuple[Any, ...]:
    items = [item.strip() for item in text.split(",")] if text else []
    if kinds[-1] is Ellipsis:
        return tuple(_parse(item, kinds[0]) for item in items)
    return tuple(_parse(item, kind) for item, kind in zip(items, kinds, strict=True))


def _is_union(kind: Any) -> bool:
    return typing.get_origin(kind) in (typing.Union, types.UnionType)


def _wanted(kind: Any) -> str:
    if _is_union(kind):
        wanted = [_wanted(choice) for choice in typing.get_args(kind)]
        return " or ".join(wanted)
    if typing.get_origin(kind) is tuple:
        inner = typing.get_args(kind)
        if inner[-1] is Ellipsis:
            return f"a list of values separated by commas, each {_wanted(inner[0])}"
        return f"{len(inner)} values separated by commas ({', '.join(map(_wanted, inner))})"
    names = {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}
    return {**names, type(None): "none"}.get(kind, f"a {kind}")
