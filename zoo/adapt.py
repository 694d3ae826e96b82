"""From the network a checkpoint was saved from to the one that is wanted, array by array.

Each function takes the weights of a file and gives them in the form that another resolution, patch
size or number of channels needs. Nothing is read before the model asks for it.
"""

import dataclasses
from collections.abc import Callable

import numpy as np

from keras_vit import posemb
from keras_vit.spec import Spec, ViTSpec
from keras_vit.zoo.formats.keys import Weights

TABLE, CLS = "posembed_input/table", "cls/token"


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
    if TABLE not in weights.entries or not isinstance(spec, ViTSpec) or spec.posemb != "learn":
        return weights, None
    entry = weights.entries[TABLE]
    if len(entry.shape) != 3:  # told as a wrong shape when the weights are compared with a model
        return weights, None
    prefixes = sorted(
        {0, *(n for n in (1, 1 + int("dist/token" in weights.entries)) if CLS in weights.entries)}
    )
    count, cells = entry.shape[1], spec.grid[0] * spec.grid[1]
    if source_grid is None:
        # An entry beyond the cells is a prefix token's, so only files with such tokens have it.
        own = count - cells in prefixes
        source_grid = spec.grid if own else posemb.infer_grid(count, prefixes=prefixes)[0]
    prefix = count - source_grid[0] * source_grid[1]
    if prefix not in (0, 1, 2):
        raise ValueError(
            f"the position table has {count} entries, which is no {source_grid[0]}x{source_grid[1]} "
            f"grid with or without a class token: give source_grid."
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
    weights = _replaced(weights, TABLE, shape, table)
    if extra > 0 and spec.has_cls and CLS in weights.entries:
        cls = weights.entries[CLS]
        weights = _replaced(weights, CLS, cls.shape, lambda: cls.read() + entry.read()[:, :1])
    return weights, source_grid if source_grid != spec.grid else None


def with_patches(weights: Weights, patch_size: tuple[int, int]) -> Weights:
    """The patch kernel (h, w, in, D) for another patch size, by the pseudo-inverse of the resize.

    Source: FlexiViT, arXiv 2212.08013, section 3.4.
    """
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


def _replaced(weights: Weights, path: str, shape, read: Callable[[], np.ndarray]) -> Weights:
    entry = dataclasses.replace(weights.entries[path], shape=tuple(shape), read=read)
    return dataclasses.replace(weights, entries={**weights.entries, path: entry})
