"""Position tables and patch kernels for other grids, and the fixed 2-D sine-cosine table.

Plain NumPy, run once when a checkpoint is loaded. Nothing inside the network resizes anything, so
the graph stays static and compiles for TPU and LiteRT.

Every rule is linear and acts on rows and columns alike, so it is a matrix (new, old) for each axis.
Ports of one checkpoint use different rules, and the wrong one moves a table of standard deviation 0.2
by 0.05 to 0.16 (4x4 to 6x6, measured), so the rule belongs to the checkpoint:

| method | coordinates | who uses it |
| --- | --- | --- |
| `align_corners` | first and last cells meet | Google's checkpoints |
| `half_pixel` | linear, cells have an extent | timm's reader of Google's npz files |
| `bicubic` | cubic, a = -0.75, the border cell repeated | Hugging Face: ViT, DeiT, DINO, DINOv2, MAE |
| `bicubic_antialias` | cubic, a = -0.5, wider when shrinking, borders renormalised | timm's own files; \
DINOv2 with registers |
| `linear_antialias` | linear, wider when shrinking, borders renormalised | FlexiViT |
"""

import math
from collections.abc import Callable, Sequence

import numpy as np

Kernel = Callable[[np.ndarray], np.ndarray]


def resize(
    table: np.ndarray, old_grid, new_grid, *, num_prefix: int, method: str = "align_corners"
) -> np.ndarray:
    """Resizes a learned table to another grid; neither grid needs to be square.

    Grids are compared, not lengths: (2, 8) to (4, 4) is a real resize although both have 16 cells.
    The original code uses `scipy.ndimage.zoom(order=1)`, which is `align_corners` except that for
    some grid pairs (28 -> 48, for example) its coordinate rounds past the edge and the last row and
    column come out as zeros; that slip is not reproduced. Nor is the 0.1 that the original DINO and
    DINOv2 code without registers adds to the number of cells before it divides (the cells then lie
    a little off their places): Hugging Face, where these weights are fetched from, gives the size.

    Args:
        table: (1, num_prefix + h*w, D), row-major cells.
        old_grid: (h, w) of `table`.
        new_grid: (h, w) wanted.
        num_prefix: entries kept as they are before the grid's (class token: 1).
        method: one of `METHODS`.

    Returns:
        (1, num_prefix + h'*w', D), same dtype.

    Raises:
        ValueError: the table does not have num_prefix + h*w entries, or there is no such method.

    Source: vision_transformer checkpoint.py `interpolate_posembed`; oracles `posemb_resize.npz`,
    `posembed_resample.npz` (timm and Hugging Face), `flexi_resize.npz`.
    """
    old_grid, new_grid = tuple(old_grid), tuple(new_grid)
    if method not in METHODS:
        raise ValueError(
            f"unknown rule {method!r} for resizing positions: use one of {list(METHODS)}."
        )
    if table.shape[1] != num_prefix + old_grid[0] * old_grid[1]:
        raise ValueError(
            f"the position table has {table.shape[1]} entries, but a grid of {old_grid[0]}x"
            f"{old_grid[1]} with {num_prefix} prefix entries needs {num_prefix + math.prod(old_grid)}."
        )
    if old_grid == new_grid:
        return table
    prefix, cells = table[:, :num_prefix], table[0, num_prefix:]
    cells = cells.reshape(*old_grid, -1)  # (h, w, D)
    rows, cols = (METHODS[method](*pair) for pair in zip(old_grid, new_grid, strict=True))
    cells = _apply(rows, cols, cells).reshape(1, -1, table.shape[-1])
    return np.concatenate([prefix, cells], axis=1)


def resize_patches(kernel: np.ndarray, patch_size) -> np.ndarray:
    """The patch kernel for another patch size, after which resized patches embed as before.

    With B the bilinear resize of a patch x, the kernel k' that comes closest to <B x, k'> = <x, k>
    for every x is pinv(B^T) k; when patches grow it holds exactly. B acts on rows and columns
    alike, so its pseudo-inverse does too. The original takes it of the whole float32 matrix, which
    for a patch that grows along one axis and shrinks along the other has singular values of 1e-8
    instead of 0 and gives kernels of 1e8; that is not reproduced.

    Args:
        kernel: (h, w, in, D).
        patch_size: (h', w').

    Returns:
        (h', w', in, D), same dtype.

    Source: FlexiViT, arXiv 2212.08013, section 3.4; oracle `flexi_resize.npz`.
    """
    old, new = kernel.shape[:2], tuple(patch_size)
    if old == new:
        return kernel
    rows, cols = (np.linalg.pinv(_half_pixel(*pair).T) for pair in zip(old, new, strict=True))
    return _apply(rows, cols, kernel)


def _apply(rows: np.ndarray, cols: np.ndarray, array: np.ndarray) -> np.ndarray:
    """(h', h), (w', w), (h, w, ...) -> (h', w', ...), in float64 and back in the array's dtype."""
    wide = array.astype(np.float64)
    return np.einsum("ab,cd,bd...->ac...", rows, cols, wide, optimize=True).astype(array.dtype)


def _align_corners(old: int, new: int) -> np.ndarray:
    """Linear interpolation that maps the first and last cell onto each other."""
    return _interpolate(np.linspace(0.0, old - 1.0, new), old, _linear, 1)


def _half_pixel(old: int, new: int) -> np.ndarray:
    """Linear interpolation between the centres of cells."""
    return _interpolate(_centres(old, new), old, _linear, 1)


def _bicubic(old: int, new: int) -> np.ndarray:
    """Cubic interpolation with PyTorch's coefficient."""
    return _interpolate(_centres(old, new), old, lambda x: _cubic(x, -0.75), 2)


def _bicubic_antialias(old: int, new: int) -> np.ndarray:
    """Cubic means over at least a cell, with the coefficient that PyTorch has here alone."""
    return _average(old, new, lambda x: _cubic(x, -0.5))


def _linear_antialias(old: int, new: int) -> np.ndarray:
    """Linear means over at least a cell: "linear" of `jax.image.resize`."""
    return _average(old, new, _linear)


METHODS: dict[str, Callable[[int, int], np.ndarray]] = {
    "align_corners": _align_corners,
    "half_pixel": _half_pixel,
    "bicubic": _bicubic,
    "bicubic_antialias": _bicubic_antialias,
    "linear_antialias": _linear_antialias,
}


def _centres(old: int, new: int) -> np.ndarray:
    """Where the centres of new cells lie, counted in old cells."""
    return (np.arange(new) + 0.5) * (old / new) - 0.5


def _interpolate(position: np.ndarray, old: int, kernel: Kernel, reach: int) -> np.ndarray:
    """(new, old) weights of the 2 * reach cells around each position; the border cell is repeated."""
    new, first = np.arange(len(position)), np.floor(position).astype(int)
    weights = np.zeros((len(position), old))
    for cell in range(1 - reach, 1 + reach):
        at = np.clip(first + cell, 0, old - 1)
        np.add.at(weights, (new, at), kernel(np.abs(position - (first + cell))))
    return weights


def _average(old: int, new: int, kernel: Kernel) -> np.ndarray:
    """(new, old) weights of all cells under a kernel that is stretched when cells are lost."""
    distance = np.abs(_centres(old, new)[:, None] - np.arange(old))
    weights = kernel(distance / max(old / new, 1.0))
    return weights / weights.sum(axis=1, keepdims=True)


def _linear(x: np.ndarray) -> np.ndarray:
    return np.maximum(1.0 - x, 0.0)


def _cubic(x: np.ndarray, a: float) -> np.ndarray:
    """Keys's kernel of distances x >= 0 (doi 10.1109/TASSP.1981.1163711)."""
    near = ((a + 2) * x - (a + 3)) * x * x + 1
    far = a * (((x - 5) * x + 8) * x - 4)
    return np.where(x < 1, near, np.where(x < 2, far, 0.0))


def infer_grid(
    num_entries: int, *, prefixes: Sequence[int] = (0, 1)
) -> tuple[tuple[int, int], int]:
    """The square grid and the number of prefix entries of a table of unknown origin.

    Args:
        num_entries: of the table.
        prefixes: the numbers of prefix entries that it may have.

    Returns:
        ((g, g), num_prefix): 196 -> ((14, 14), 0), 197 -> ((14, 14), 1).

    Raises:
        ValueError: no number of prefix entries leaves a perfect square.
    """
    for num_prefix in prefixes:
        side = math.isqrt(max(num_entries - num_prefix, 0))
        if side and side * side == num_entries - num_prefix:
            return (side, side), num_prefix
    raise ValueError(
        f"a position table of {num_entries} entries is neither a square grid nor one with a class "
        f"token: give its grid."
    )


def sincos2d(grid, hidden_size: int, temperature: float = 10_000.0) -> np.ndarray:
    """Fixed 2-D table of order [sin x, cos x, sin y, cos y], x the column, row-major.

    Returns:
        (1, h*w, hidden_size) float32.

    Source: big_vision models/vit.py `posemb_sincos_2d` (note the denominator D/4 - 1).
    """
    height, width = grid
    y, x = np.mgrid[:height, :width]
    omega = np.arange(hidden_size // 4) / (hidden_size // 4 - 1)
    omega = 1.0 / temperature**omega  # (D/4,)
    y, x = y.reshape(-1, 1) * omega, x.reshape(-1, 1) * omega  # (h*w, D/4)
    table = np.concatenate([np.sin(x), np.cos(x), np.sin(y), np.cos(y)], axis=1)
    return table[None].astype(np.float32)
