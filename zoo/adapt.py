"""From the network a checkpoint was saved from to the one that is wanted, array by array.

Each function takes the weights of a file and gives them in the form that another resolution, patch
size or number of channels needs. Nothing is read before the model asks for it.
"""

import dataclasses
import re
from collections.abc import Callable

import numpy as np

from keras_vit import posemb
from keras_vit.spec import Spec, ViTSpec
from keras_vit.zoo.formats.keys import Weights

TABLE = "posembed_input/table"
TABLES = re.compile(r"posembed_(input|\d+)/table")
AXES = re.compile(r"posembed_(input|\d+)/(rows|columns)")
PREFIX_TOKENS = ("cls/token", "dist/token")  # in the order of their entries in the table


def with_positions(
    weights: Weights,
    spec: Spec,
    *,
    source_grid: tuple[int, int] | None = None,
    method: str = "align_corners",
) -> tuple[Weights, tuple[int, int] | None]:
    """The position table on the grid of a spec, with the prefix entries that the spec has.

    vision_transformer gives the class token an entry; big_vision adds the table before the token.
    Both directions are exact: an entry of zeros one way, cls + entry the other.

    Args:
        weights: of the file.
        spec: the wanted network.
        source_grid: (h, w) of the file's table; by default the spec's own when the number of
            entries agrees, else the square one.
        method: see `keras_vit.posemb.resize`.

    Returns:
        The weights, and the old grid where it was another.

    Raises:
        ValueError: the table is no grid, with or without prefix entries.
    """
    if isinstance(spec, ViTSpec) and spec.posemb == "2d":
        return _with_axes(weights, spec.grid, method)
    tables = [path for path in weights.entries if TABLES.fullmatch(path)]
    if not tables or not isinstance(spec, ViTSpec) or spec.posemb != "learn":
        return weights, None
    old_grid = None
    for path in tables:
        weights, old_grid = _with_table(weights, path, spec, source_grid, method)
    return weights, old_grid


def _with_table(
    weights: Weights,
    path: str,
    spec: ViTSpec,
    source_grid: tuple[int, int] | None,
    method: str,
) -> tuple[Weights, tuple[int, int] | None]:
    """`with_positions` for one table."""
    entry, source_grid = weights.entries[path], source_grid or stored_grid(weights, spec, path)
    if (
        source_grid is None or len(entry.shape) != 3
    ):  # told as a wrong shape when the weights are compared with a model
        return weights, None
    count, cells = entry.shape[1], spec.grid[0] * spec.grid[1]
    prefix = count - source_grid[0] * source_grid[1]
    if prefix not in (0, 1, 2):
        raise ValueError(
            f"the position table has {count} entries, which is no {source_grid[0]}x{source_grid[1]} "
            f"grid with or without a class token: it belongs to images of another size."
        )
    missing, extra = spec.posemb_prefix - prefix, prefix - spec.posemb_prefix

    def table() -> np.ndarray:
        values = posemb.resize(
            entry.read(), source_grid, spec.grid, num_prefix=prefix, method=method
        )
        if missing > 0:
            return np.concatenate([np.zeros_like(values[:, :missing]), values], axis=1)
        return values[:, extra:] if extra > 0 else values

    shape = (1, spec.posemb_prefix + cells, entry.shape[2])
    weights = _replaced(weights, path, shape, table)
    for i, name in enumerate(PREFIX_TOKENS[:extra] if spec.has_cls and extra > 0 else ()):
        if token := weights.entries.get(name):
            weights = _replaced(
                weights,
                name,
                token.shape,
                lambda t=token, i=i: t.read() + entry.read()[:, i : i + 1],
            )
    return weights, source_grid if source_grid != spec.grid else None


def _with_axes(
    weights: Weights, grid: tuple[int, int], method: str
) -> tuple[Weights, tuple[int, int] | None]:
    """`with_positions` for embeddings of rows (1, h, 1, D/2) and columns (1, 1, w, D/2)."""
    old = list(grid)
    for path in [path for path in weights.entries if AXES.fullmatch(path)]:
        entry, axis = weights.entries[path], 0 if path.endswith("rows") else 1
        if len(entry.shape) != 4:  # told as a wrong shape when compared with a model
            return weights, None
        count, wanted = entry.shape[1 + axis], grid[axis]
        old[axis] = count

        def resized(entry=entry, count=count, wanted=wanted, axis=axis) -> np.ndarray:
            line = entry.read().reshape(1, count, -1)
            line = posemb.resize(line, (count, 1), (wanted, 1), num_prefix=0, method=method)
            return np.expand_dims(line, 2 - axis)

        shape = (*entry.shape[: 1 + axis], wanted, *entry.shape[2 + axis :])
        weights = _replaced(weights, path, shape, resized)
    return weights, None if tuple(old) == tuple(grid) else (old[0], old[1])


def stored_grid(weights: Weights, spec: Spec, path: str = TABLE) -> tuple[int, int] | None:
    """(h, w) of a file's position table: that of a spec when the entries agree, else the square one."""
    entry = weights.entries.get(path)
    if entry is None or len(entry.shape) != 3:
        return None
    prefixes = _prefixes(weights)
    if entry.shape[1] - spec.grid[0] * spec.grid[1] in prefixes:
        return spec.grid
    return posemb.infer_grid(entry.shape[1], prefixes=prefixes)[0]


def with_patches(weights: Weights, patch_size: tuple[int, int]) -> Weights:
    """The patch kernel (h, w, in, D) for another patch size, see `posemb.resize_patches`."""
    kernel = weights.entries.get("embedding/kernel")
    if kernel is None or kernel.shape[:2] == tuple(patch_size):
        return weights
    return _replaced(
        weights,
        "embedding/kernel",
        (*patch_size, *kernel.shape[2:]),
        lambda: posemb.resize_patches(kernel.read(), patch_size),
    )


def with_channels(weights: Weights, input_layer: str, channels: int) -> Weights:
    """The first kernel (h, w, in, D) for images with another number of channels."""
    path = f"{input_layer}/kernel"
    kernel = weights.entries.get(path)
    if kernel is None or len(kernel.shape) != 4 or kernel.shape[2] == channels:
        return weights
    shape = (*kernel.shape[:2], channels, kernel.shape[3])
    return _replaced(weights, path, shape, lambda: adapt_channels(kernel.read(), channels))


def adapt_channels(kernel: np.ndarray, channels: int) -> np.ndarray:
    """(h, w, old, D) -> (h, w, channels, D): summed for fewer channels, tiled for more.

    For fewer channels, and when tiling a whole number of times, a grey image repeated over all
    channels gives the same features as before; otherwise the scale is old / channels.
    """
    old = kernel.shape[2]
    if channels < old:
        return np.repeat(kernel.sum(axis=2, keepdims=True) / channels, channels, axis=2)
    return np.take(kernel, np.arange(channels) % old, axis=2) * (old / channels)


def without(weights: Weights, paths: Callable[[str], bool]) -> tuple[Weights, tuple[str, ...]]:
    """The weights but those whose variable is meant, and the keys that were left out."""
    dropped = [path for path in weights.entries if paths(path)]
    kept = {path: e for path, e in weights.entries.items() if path not in dropped}
    return dataclasses.replace(weights, entries=kept), tuple(weights.keys[p] for p in dropped)


def _prefixes(weights: Weights) -> list[int]:
    """How many entries before those of the grid a file's table may have.

    Such an entry is a prefix token's, so only files with these tokens have it.
    """
    has = [path in weights.entries for path in PREFIX_TOKENS]
    return sorted({0, int(has[0]), sum(has) if has[0] else 0})


def _replaced(weights: Weights, path: str, shape, read: Callable[[], np.ndarray]) -> Weights:
    entry = dataclasses.replace(weights.entries[path], shape=tuple(shape), read=read)
    return dataclasses.replace(weights, entries={**weights.entries, path: entry})
