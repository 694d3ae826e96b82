"""What is computed of attention weights, filters and position tables: plain NumPy, no model.

Letters: H heads, N tokens, P tokens before those of the patches (class token, distillation token,
registers), h x w the patch grid, row-major. Attention is (..., H, N, N): rows are queries, sum 1.
"""

from collections.abc import Iterable

import numpy as np


def pixel_distances(grid: tuple[int, int], pixels: tuple[float, float]) -> np.ndarray:
    """(h*w, h*w) float64 Euclidean distances in pixels between the centres of patches.

    Args:
        grid: (h, w), patches down and across.
        pixels: of the image from one patch to the next, (down, across).
    """
    rows, cols = np.mgrid[: grid[0], : grid[1]].reshape(2, -1)
    down, across = (np.subtract.outer(a, a) * p for a, p in zip((rows, cols), pixels, strict=True))
    return np.hypot(down, across)


def mean_distance(
    attention: np.ndarray, distances: np.ndarray, *, renormalise: bool = False
) -> np.ndarray:
    """Mean attention distance (..., H) in pixels: how far a query looks, on average over queries.

    Each query's distances are weighted by its attention. Tokens before the patches are left out as
    queries and as keys, and what a query gives them counts as distance 0, as the authors did it.

    Args:
        attention: (..., H, N, N); the last h*w tokens are the patches.
        distances: (h*w, h*w) from `pixel_distances`.
        renormalise: divide each query's weights by what it gives to patches.

    Source: arXiv 2010.11929, appendix D.7; an author's note in vision_transformer issue 162.
    """
    attention = between_patches(attention, len(distances))
    weighted = np.einsum("...qk,qk->...q", attention, distances)  # float64 by `distances`
    if renormalise:
        weighted = weighted / attention.sum(axis=-1, dtype=np.float64)
    return weighted.mean(axis=-1)


def uniform_distance(grid: tuple[int, int], pixels: tuple[float, float]) -> float:
    """The mean distance in pixels of a head that looks at every patch alike."""
    return float(pixel_distances(grid, pixels).mean())


def between_patches(attention: np.ndarray, patches: int) -> np.ndarray:
    """(..., N, N) -> (..., h*w, h*w): the rows and columns of the patches, which come last."""
    return attention[..., -patches:, -patches:]


def rollout(layers: Iterable[np.ndarray]) -> np.ndarray:
    """Attention followed through all layers: (..., N, N) float64, rows sum to 1.

    In each layer heads are averaged, the identity is added for the residual connection and rows are
    renormalised; the layers are multiplied, the last one leftmost.

    Args:
        layers: (..., H, N, N) of each layer, the first one first; an iterator keeps one in memory.

    Raises:
        ValueError: there are no layers.

    Source: arXiv 2005.00928; arXiv 2010.11929, appendix D.8, and an author's note in
    vision_transformer issue 18 (the paper's text omits the identity).
    """
    joint = None
    for attention in layers:
        joint = roll(joint, attention)
    if joint is None:
        raise ValueError("attention rollout needs at least one layer.")
    return joint


def roll(joint: np.ndarray | None, attention: np.ndarray) -> np.ndarray:
    """One step of `rollout`: (..., N, N) so far, None before the first layer; (..., H, N, N) of the
    next layer."""
    step = attention.mean(axis=-3, dtype=np.float64)
    step = step + np.eye(step.shape[-1])
    step /= step.sum(axis=-1, keepdims=True)
    return step if joint is None else step @ joint


def cosine_similarity(table: np.ndarray) -> np.ndarray:
    """(n, n) float64 in [-1, 1] between the rows of (n, D); 0 for rows that are all zeros."""
    table = table.astype(np.float64)
    norms = np.linalg.norm(table, axis=1, keepdims=True)
    unit = np.divide(table, norms, out=np.zeros_like(table), where=norms > 0)
    return np.clip(unit @ unit.T, -1.0, 1.0)


def principal_components(rows: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """The directions along which the rows of (n, F) vary most.

    The mean row is subtracted first. A direction has no sign of its own: here its entry of largest
    magnitude is positive.

    Args:
        rows: (n, F).
        count: directions wanted; there are at most min(n, F).

    Returns:
        ((count, F) float64 of length 1, most important first; (count,) share of the variance).
    """
    centred = rows.astype(np.float64) - rows.mean(axis=0, dtype=np.float64)
    _, lengths, directions = np.linalg.svd(centred, full_matrices=False)
    variances = lengths**2
    directions = directions[:count]
    largest = np.abs(directions).argmax(axis=1)
    signs = np.where(directions[np.arange(len(directions)), largest] < 0, -1.0, 1.0)
    total = variances.sum()
    return directions * signs[:, None], variances[:count] / (total if total > 0 else 1.0)


def feature_colours(tokens: np.ndarray) -> np.ndarray:
    """Tokens as colours in [0, 1]: the first three principal components over all images together.

    Each component is stretched to its own range between the 1st and 99th percentile, so that a few
    outliers do not make everything else grey. Fewer than three components leave a channel at 0.5.

    Args:
        tokens: (B, h, w, D).

    Returns:
        (B, h, w, 3) float64: red is the first component, green the second, blue the third.

    Source: the pictures of arXiv 2304.07193 (DINOv2).
    """
    rows = tokens.reshape(-1, tokens.shape[-1]).astype(np.float64)
    directions, _ = principal_components(rows, 3)
    scores = (rows - rows.mean(axis=0)) @ directions.T  # (B*h*w, 3)
    low, high = np.percentile(scores, (1, 99), axis=0)
    span = high - low
    flat = span <= 1e-12 * np.abs(scores).max(initial=1.0)
    colours = np.where(flat, 0.5, np.clip((scores - low) / np.where(flat, 1.0, span), 0.0, 1.0))
    missing = 3 - colours.shape[1]
    colours = np.pad(colours, ((0, 0), (0, missing)), constant_values=0.5)
    return colours.reshape(*tokens.shape[:3], 3)
