"""JSON files beside weights, read as untrusted data: what is asked for has the kind it should have."""

import os
from pathlib import Path
from typing import Any

from keras_vit.zoo.formats.entry import quoted
from keras_vit.zoo.formats.safetensors_file import MAX_HEADER, parse_json

_MISSING = object()


class Config:
    """One JSON file.

    Args:
        path: the file.
        values: what stands in it, or a table inside of it.
    """

    def __init__(self, path: Path, values: dict[str, Any]):
        self.path, self.values = path, values

    def __bool__(self) -> bool:
        return bool(self.values)

    def __contains__(self, key: str) -> bool:
        return self.values.get(key) is not None

    def take(self, key: str, kind: type | tuple[type, ...], default: Any = _MISSING) -> Any:
        """The value of a key; null counts as missing.

        Raises:
            ValueError: it is missing and has no default, or is of another kind.
        """
        value = self.values.get(key)
        if value is None:
            if default is _MISSING:
                raise ValueError(f"{self.path} has no {key}.")
            return default
        kinds = kind if isinstance(kind, tuple) else (kind,)
        if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
            wanted = " or ".join(k.__name__ for k in kinds)
            raise ValueError(f"{self.path} has {key} {quoted(str(value))}, which is no {wanted}.")
        return value

    def table(self, key: str) -> "Config":
        """A table inside; empty where there is none."""
        return Config(self.path, self.take(key, dict, {}))

    def numbers(self, key: str, default: Any = _MISSING) -> Any:
        """A list of numbers as floats.

        Raises:
            ValueError: it holds something else.
        """
        values = self.take(key, list, default)
        if values is default:
            return default
        if not all(isinstance(v, int | float) and not isinstance(v, bool) for v in values):
            raise ValueError(f"{self.path} has {key} {quoted(str(values))}: expected numbers.")
        return [float(v) for v in values]

    def refuse(self, key: str, allowed: tuple, default: Any) -> None:
        """Raises ValueError for a value that no network here has."""
        value = self.values.get(key, default)
        if value not in allowed:
            raise ValueError(
                f"{self.path} has {key} {quoted(str(value))}, which no network here has: known is "
                f"{' or '.join(map(str, allowed))}."
            )


def read_config(path: str | os.PathLike) -> Config:
    """A JSON file; empty where there is none.

    Raises:
        ValueError: it is no JSON object, or larger than any configuration.
    """
    path = Path(path)
    if not path.is_file():
        return Config(path, {})
    if path.stat().st_size > MAX_HEADER:
        raise ValueError(f"{path} is larger than any configuration: refused.")
    return Config(path, parse_json(path.read_bytes(), str(path)))
