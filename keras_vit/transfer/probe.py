"""Linear probe: multinomial logistic regression on frozen features, read in blocks.

Features are whitened with mean and standard deviation of the training rows. The penalty is the one of
a grid that is best on a held-out tenth of every class; then all rows are used.

Source: arXiv 2103.00020 (CLIP), appendix A.3: L-BFGS, penalty from a sweep on held-out images.
"""

import dataclasses
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from keras_vit.results.store import Result
from keras_vit.transfer import lbfgs
from keras_vit.transfer.features import FeatureSet, Progress, check_pair
from keras_vit.transfer.fewshot import STD_EPSILON, Linear, decompose_blocks
from keras_vit.transfer.rows import row

PENALTIES = tuple(10.0**e for e in (0, -1, -2, -3, -4, -5, -6))
HELD_OUT = 0.1
STEPS = 200  # of L-BFGS, at most
TOLERANCE = 1e-4  # of the gradient of the mean loss
WIDE = 4096  # features; a covariance of more costs more than the steps it saves

Blocks = Callable[[], Iterator[tuple[np.ndarray, np.ndarray]]]


@dataclasses.dataclass(frozen=True)
class Probe:
    """What was measured.

    Attributes:
        right: test images classified rightly.
        tested: test images.
        rows: training images.
        l2: the penalty that was used, on half the squared kernel, beside the mean loss.
        held_out: accuracy on the held-out rows for every penalty of the grid; empty without a choice.
        seed: of the held-out rows.
        steps: of the last fit.
        classifier: for features as they are.
    """

    right: int
    tested: int
    rows: int
    l2: float
    held_out: dict[float, float]
    seed: int
    steps: int
    classifier: Linear

    @property
    def accuracy(self) -> float:
        """In [0, 1]."""
        return self.right / self.tested


def probe(
    train: FeatureSet,
    test: FeatureSet,
    *,
    penalties: Sequence[float] = PENALTIES,
    steps: int = STEPS,
    seed: int = 0,
    progress: Progress | None = None,
) -> Probe:
    """Accuracy on `test` of a logistic regression learnt on `train`.

    Args:
        train, test: features of one extractor.
        penalties: the grid; a single one is taken without a choice.
        steps: most steps of a fit.
        seed: of the choice of held-out rows.
        progress: called with (fits done, fits in all).

    Raises:
        ValueError: the sets do not fit each other, a number is not positive, or there are too few
            rows to hold some out.
    """
    check_pair(train, test)
    if not penalties or min(penalties) <= 0 or steps < 1:
        raise ValueError(
            f"penalties and steps must be given and positive, got {penalties}, {steps}."
        )
    fits = len(penalties) + 1 if len(penalties) > 1 else 1
    held_out, l2, start, done = {}, penalties[0], None, 0
    if len(penalties) > 1:
        mask = held_out_rows(train.labels, train.num_classes, seed)
        kept, tried = _masked(train, ~mask), _masked(train, mask)
        starts, about = {}, whitening(kept, train.num_classes)
        # From strong to weak, each from the one before: neighbours need few steps.
        for candidate in sorted(penalties, reverse=True):
            found = fit(kept, train.num_classes, candidate, about=about, steps=steps, start=start)
            start = starts[candidate] = found.whitened
            held_out[candidate] = _right(found.classifier, tried()) / int(mask.sum())
            done += 1
            if progress:
                progress(done, fits)
        l2 = max(held_out, key=lambda candidate: held_out[candidate])  # the strongest of equals
        start = starts[l2]
    found = fit(train.blocks, train.num_classes, l2, steps=steps, start=start)
    right = _right(found.classifier, test.blocks())
    if progress:
        progress(fits, fits)
    return Probe(right, len(test), len(train), l2, held_out, seed, found.steps, found.classifier)


@dataclasses.dataclass(frozen=True)
class Whitening:
    """What is known of some rows before anything is fitted to them.

    Attributes:
        rows: how many.
        mean, std: (D,), `std` with its epsilon.
        eigenvalues, vectors: of the covariance of the whitened features; None for wide features.
    """

    rows: int
    mean: np.ndarray
    std: np.ndarray
    eigenvalues: np.ndarray | None = None
    vectors: np.ndarray | None = None

    def precondition(self, l2: float, num_classes: int) -> lbfgs.Precondition | None:
        """Times the inverse Hessian at weights of zero, where all classes are equally likely."""
        if self.eigenvalues is None or self.vectors is None:
            return None
        vectors, share = self.vectors, 1.0 / num_classes
        inverse = 1.0 / (share * np.maximum(self.eigenvalues, 0.0) + l2)[:, None]

        def times(gradient: np.ndarray) -> np.ndarray:
            kernel = vectors @ (inverse * (vectors.T @ gradient[:-1]))
            return np.concatenate([kernel, gradient[-1:] / share])

        return times


def whitening(blocks: Blocks, num_classes: int) -> Whitening:
    """Statistics of all rows, in one pass; in two for features wider than `WIDE`."""
    dim = next(blocks())[0].shape[1]
    if dim <= WIDE:
        found = decompose_blocks(blocks(), num_classes)
        rows = sum(len(labels) for _, labels in blocks())
        return Whitening(
            rows, found.mean, found.std, found.eigenvalues[:-1] / rows, found.left[:-1, :-1]
        )
    sums, squares, rows = np.zeros(dim), np.zeros(dim), 0
    for x, _ in blocks():
        sums, rows = sums + x.sum(axis=0, dtype=np.float64), rows + len(x)
    mean = sums / rows
    for x, _ in blocks():
        squares += ((x - mean) ** 2).sum(axis=0)
    return Whitening(rows, mean, np.sqrt(squares / rows) + STD_EPSILON)


@dataclasses.dataclass(frozen=True)
class Fit:
    """A logistic regression: `whitened` (D + 1, C), bias last, and the same for features as they are."""

    whitened: np.ndarray
    classifier: Linear
    steps: int


def fit(
    blocks: Blocks,
    num_classes: int,
    l2: float,
    *,
    about: Whitening | None = None,
    steps: int = STEPS,
    tolerance: float = TOLERANCE,
    start: np.ndarray | None = None,
) -> Fit:
    """Minimises the mean cross-entropy plus `l2 / 2` times the squared kernel, the bias being free.

    Every step reads all blocks once or a few times. Matrix products are in float32, sums in float64.

    Args:
        blocks: called for every pass: features (r, D) and labels (r,).
        num_classes: C.
        l2: scikit-learn's `C` is 1 / (l2 * rows), on whitened features.
        about: `whitening` of the same blocks, where it is known.
        steps: most steps.
        tolerance: of the largest entry of the gradient.
        start: (D + 1, C) to begin with, None for zeros.
    """
    about = about or whitening(blocks, num_classes)
    mean, scale = about.mean.astype(np.float32), (1.0 / about.std).astype(np.float32)

    def objective(weights: np.ndarray) -> tuple[float, np.ndarray]:
        kernel, bias = weights[:-1].astype(np.float32), weights[-1]
        loss, gradient = 0.0, np.zeros_like(weights)
        for x, labels in blocks():
            x = (x - mean) * scale
            part, errors = _cross_entropy((x @ kernel) + bias, labels)
            loss += part
            gradient[:-1] += x.T @ errors.astype(np.float32)
            gradient[-1] += errors.sum(axis=0)
        gradient /= about.rows
        gradient[:-1] += l2 * weights[:-1]
        penalty = 0.5 * l2 * float(np.vdot(weights[:-1], weights[:-1]))
        return loss / about.rows + penalty, gradient

    weights, taken = lbfgs.minimum(
        objective,
        np.zeros((len(mean) + 1, num_classes)) if start is None else start,
        tolerance=tolerance,
        steps=steps,
        precondition=about.precondition(l2, num_classes),
    )
    kernel = weights[:-1] / about.std[:, None]
    return Fit(weights, Linear(kernel, weights[-1] - about.mean @ kernel), taken)


def _cross_entropy(logits: np.ndarray, labels: np.ndarray) -> tuple[float, np.ndarray]:
    """(sum of the losses, its gradient (r, C) by the logits) of logits (r, C), which it overwrites."""
    at = np.arange(len(labels)), labels
    logits -= logits.max(axis=1, keepdims=True)
    own = logits[at]
    powers = np.exp(logits, out=logits)
    totals = powers.sum(axis=1)
    loss = float(np.log(totals).sum() - own.sum())
    powers /= totals[:, None]
    powers[at] -= 1.0
    return loss, powers


def held_out_rows(labels: np.ndarray, num_classes: int, seed: int) -> np.ndarray:
    """(n,) booleans: a tenth of every class, at least one of those with two or more.

    Raises:
        ValueError: no class has two rows.
    """
    rng, mask = np.random.default_rng(seed), np.zeros(len(labels), bool)
    for label in range(num_classes):
        members = rng.permutation(np.flatnonzero(labels == label))
        count = max(1, round(HELD_OUT * len(members))) if len(members) > 1 else 0
        mask[members[:count]] = True
    if not mask.any():
        raise ValueError(
            "no class has two training images, so none can be held out to choose the penalty: give "
            "one penalty."
        )
    return mask


def _masked(features: FeatureSet, mask: np.ndarray) -> Blocks:
    """Passes over the rows of a mask."""

    def blocks() -> Iterator[tuple[np.ndarray, np.ndarray]]:
        first = 0
        for x, labels in features.blocks():
            part = mask[first : first + len(labels)]
            first += len(labels)
            if part.any():
                yield x[part], labels[part]

    return blocks


def _right(classifier: Linear, blocks) -> int:
    return sum(int((classifier.scores(x).argmax(axis=1) == y).sum()) for x, y in blocks)


def results(found: Probe, train: FeatureSet, test: FeatureSet, **about) -> list[Result]:
    """The row for a store.

    Args:
        about: further fields of the `Result`: `command`, `when`, `versions`.
    """
    settings = {"method": "linear", "l2": found.l2, "seed": found.seed}
    return [row("probe", train, test, found.right, found.tested, settings, **about)]
