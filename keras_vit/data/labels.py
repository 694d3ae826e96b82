"""Class names: lists that ship with the package, and lists a card carries."""

import functools
from importlib import resources

LISTS = {"imagenet2012": "imagenet2012.txt", "imagenet21k": "imagenet21k.txt"}


def label_names(names: tuple[str, ...] | str | None) -> tuple[str, ...] | None:
    """Resolves what a card holds: a tuple as it is, the name of a shipped list, or None.

    Raises:
        ValueError: no list of that name ships with the package.
    """
    if names is None or not isinstance(names, str):
        return tuple(names) if names is not None else None
    return _shipped(names)


@functools.lru_cache
def _shipped(name: str) -> tuple[str, ...]:
    if name not in LISTS:
        raise ValueError(f"no list of class names {name!r}: shipped are {sorted(LISTS)}.")
    text = resources.files("keras_vit.data").joinpath("class_names", LISTS[name]).read_text("utf-8")
    return tuple(text.splitlines())
