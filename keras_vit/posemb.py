"""Position-embedding tables: resizing between grids and the fixed 2-D sine-cosine table.

Plain NumPy, run once when a checkpoint is loaded. Nothing inside the network resizes anything, so
the graph stays static and compiles for TPU and LiteRT.
"""

import math
from collections.abc import Sequence

import numpy as np


def resize(
    table: np.ndarray, old_grid, new_grid, *, num_prefix: int, method: str = "align_corners"
) -> np.ndarray:
    """Resizes a learned table bilinearly with aligned corners.

    Grids are compared, not lengths: (2, 8) to (4, 4) is a real resize although both have 16 cells.
    The original code uses `scipy.ndimage.zoom(order=1)`, which is this same interpolation except
    that for some grid pairs (28 -> 48, for example) its coordinate rounds past the edge and the
    last row and column come out as zeros; that slip is not reproduced.

    Args:
        table: (1, num_prefix + h*w, D), row-major cells.
        old_grid: (h, w) of `table`.
        new_grid: (h, w) wanted.
        num_prefix: entries kept as they are before the grid's (class token: 1).
        method: one of `METHODS`.

    Returns:
        (1, num_prefix + h'*w', D), same dtype.

    Raises:
        ValueError: the table does not have num_prefix + h*w entries.

    Source: vision_transformer checkpoint.py `interpolate_posembed`; oracle `posemb_resize.npz`.
    """
    old_grid, new_grid = tuple(old_grid), tuple(new_grid)
    if table.shape[1] != num_prefix + old_grid[0] * old_grid[1]:
        raise ValueError(
            f"the position table has {table.shape[1]} entries, but a grid of {old_grid[0]}x"
            f"{old_grid[1]} with {num_prefix} prefix entries needs {num_prefix + math.prod(old_grid)}."
        )
    if old_grid == new_grid:
        return table
    prefix, cells = table[:, :num_prefix], table[0, num_prefix:]
    cells = cells.reshape(*old_grid, -1).astype(np.float64)  # (h, w, D)
    rows = _align_corners_weights(old_grid[0], new_grid[0])
    cols = _align_corners_weights(old_grid[1], new_grid[1])
    cells = np.einsum("ab,cd,bdk->ack", rows, cols, cells, optimize=True)  # (h', w', D)
    cells = cells.reshape(1, -1, cells.shape[-1]).astype(table.dtype)
    return np.concatenate([prefix, cells], axis=1)


METHODS = ("align_corners",)


def _align_corners_weights(old: int, new: int) -> np.ndarray:
    """(new, old) matrix of linear interpolation that maps the first and last cell onto each other."""
    position = np.linspace(0.0, old - 1.0, new)
    low = np.minimum(position.astype(int), max(old - 2, 0))
    fraction = position - low
    weights = np.zeros((new, old))
    weights[np.arange(new), low] += 1.0 - fraction
    weights[np.arange(new), np.minimum(low + 1, old - 1)] += fraction
    return weights


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
