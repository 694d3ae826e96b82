"""L-BFGS in NumPy: minimises a smooth convex function whose gradient costs a pass over the data."""

import collections
from collections.abc import Callable

import numpy as np

MEMORY = 20  # pairs of steps and gradient changes kept
ARMIJO = 1e-4  # share of the decrease that the slope promises
HALVINGS = 20

Objective = Callable[[np.ndarray], tuple[float, np.ndarray]]
Precondition = Callable[[np.ndarray], np.ndarray]


def minimum(
    objective: Objective,
    x: np.ndarray,
    *,
    tolerance: float,
    steps: int,
    precondition: Precondition | None = None,
) -> tuple[np.ndarray, int]:
    """(where no entry of the gradient exceeds the tolerance, steps taken).

    It also ends after so many steps, and when rounding leaves no step that makes the value smaller.

    Args:
        objective: x -> (value, gradient), both float64.
        x: where to start, any shape.
        tolerance: on the largest entry of the gradient, by size.
        steps: at most.
        precondition: gradient -> roughly the inverse Hessian times it, a symmetric positive map; its
            scale does not matter.

    Source: Nocedal and Wright, Numerical Optimization, algorithms 7.4 and 3.1.
    """
    value, gradient = objective(x)
    pairs: collections.deque[tuple[np.ndarray, np.ndarray]] = collections.deque(maxlen=MEMORY)
    for taken in range(steps):
        if np.abs(gradient).max() <= tolerance:
            return x, taken
        direction = -_inverse_hessian_times(gradient, pairs, precondition or np.copy)
        slope = float(np.vdot(direction, gradient))
        size = 1.0 if pairs else 1.0 / max(1.0, float(np.linalg.norm(direction)))
        for _ in range(HALVINGS):
            new = x + size * direction
            new_value, new_gradient = objective(new)
            if new_value <= value + ARMIJO * size * slope:
                break
            size /= 2
        else:
            return x, taken
        moved, changed = new - x, new_gradient - gradient
        curvature = float(np.vdot(moved, changed))
        if curvature > 1e-10 * float(np.vdot(changed, changed)):
            pairs.append((moved, changed))
        x, value, gradient = new, new_value, new_gradient
    return x, steps


def _inverse_hessian_times(gradient, pairs, precondition: Precondition) -> np.ndarray:
    result, kept = gradient.copy(), []
    for moved, changed in reversed(pairs):
        scale = 1.0 / float(np.vdot(moved, changed))
        along = scale * float(np.vdot(moved, result))
        kept.append((scale, along))
        result -= along * changed
    result = precondition(result)
    if pairs:
        moved, changed = pairs[-1]
        result *= float(np.vdot(moved, changed)) / float(np.vdot(changed, precondition(changed)))
    for (moved, changed), (scale, along) in zip(pairs, reversed(kept), strict=True):
        result += (along - scale * float(np.vdot(changed, result))) * moved
    return result
