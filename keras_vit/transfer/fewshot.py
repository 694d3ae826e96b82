"""Few-shot linear evaluation in closed form: regression of frozen features onto classes.

Features are whitened with mean and standard deviation of the training rows, a constant feature stands
for the bias, targets are 1 for the class and -1 for the others; the weights of `(X'X + l2 I)^-1 X'Y`
come from an eigen-decomposition, of X'X or, for fewer rows than columns, of XX'.

Source: arXiv 2010.11929, section 4.1; big_vision, evaluators/fewshot_lsr.py and
configs/common_fewshot.py (oracle `fewshot_lsr.npz`).
"""

import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from keras_vit.results.store import Result
from keras_vit.train.evaluate import wilson
from keras_vit.transfer.features import FeatureSet, Progress, check_pair
from keras_vit.transfer.rows import about_features, row, settings_of

BIAS = 100.0  # the constant feature, so large that the bias is hardly regularised
STD_EPSILON = 1e-5
L2 = 2.0**10
SHOTS = (1, 5, 10, 25)
SEEDS = (0, 1, 2)


@dataclasses.dataclass(frozen=True)
class Equations:
    """The decomposed normal equations of one training set, to be solved for any penalty.

    Attributes:
        mean, std: (D,) of the training rows; `std` has its epsilon added.
        eigenvalues: (m,).
        left: (D + 1, m).
        right: (m, C). All float64; the weights are `left / (eigenvalues + l2) @ right`.
    """

    mean: np.ndarray
    std: np.ndarray
    eigenvalues: np.ndarray
    left: np.ndarray
    right: np.ndarray

    def weights(self, l2: float = L2) -> np.ndarray:
        """(D + 1, C) for whitened features; the last row belongs to the constant."""
        return (self.left / (self.eigenvalues + l2)) @ self.right

    def classifier(self, l2: float = L2) -> "Linear":
        """The solution for features as they are."""
        weights = self.weights(l2)
        kernel = weights[:-1] / self.std[:, None]
        return Linear(kernel, BIAS * weights[-1] - self.mean @ kernel)


@dataclasses.dataclass(frozen=True)
class Linear:
    """A linear classifier: kernel (D, C) and bias (C,), float64."""

    kernel: np.ndarray
    bias: np.ndarray

    def scores(self, x: np.ndarray) -> np.ndarray:
        """Features (n, D) -> (n, C), the largest being the class."""
        return np.asarray(x, np.float64) @ self.kernel + self.bias


def decompose(x: np.ndarray, labels: np.ndarray, num_classes: int) -> Equations:
    """The equations of rows (N, D) in memory: N x N for N < D + 1, otherwise D x D."""
    if len(x) >= x.shape[1] + 1:
        return decompose_blocks([(x, labels)], num_classes)
    x = x.astype(np.float64)
    mean, std = x.mean(axis=0), x.std(axis=0) + STD_EPSILON
    x -= mean
    x /= std
    targets = 2.0 * np.eye(num_classes)[labels] - 1.0
    eigenvalues, q = np.linalg.eigh(x @ x.T + BIAS**2)
    left = np.concatenate([x.T @ q, BIAS * q.sum(axis=0, keepdims=True)])
    return Equations(mean, std, eigenvalues, left, q.T @ targets)


def decompose_blocks(
    blocks: Iterable[tuple[np.ndarray, np.ndarray]], num_classes: int
) -> Equations:
    """The equations of any number of rows in one pass, in the memory of D x D and one block.

    Whitened columns have the mean 0, so the constant feature is orthogonal to them: the D x D matrix
    of the others is decomposed, and one equation for the constant stands beside it.

    Args:
        blocks: features (r, D) and labels (r,), see `FeatureSet.blocks`.
        num_classes: C.

    Raises:
        ValueError: there are no rows.
    """
    blocks = iter(blocks)
    first = next(blocks, None)
    if first is None:
        raise ValueError("there are no rows to learn from.")
    # Near the mean, so that taking the mean off the sums below loses no digits.
    shift = first[0].mean(axis=0, dtype=np.float64)
    size = len(shift)
    products, sums = np.zeros((size, size)), np.zeros((num_classes, size))
    counts = np.zeros(num_classes)
    for x, labels in itertools.chain([first], blocks):
        x = x - shift  # float64
        products += x.T @ x
        present, class_sums = _class_sums(x, labels)
        sums[present] += class_sums
        counts = counts + np.bincount(labels, minlength=num_classes)
    rows = np.sum(counts)
    mean = sums.sum(axis=0) / rows
    products -= rows * np.outer(mean, mean)
    std = np.sqrt(np.maximum(products.diagonal(), 0.0) / rows) + STD_EPSILON
    products /= std
    products /= std[:, None]
    eigenvalues, q = np.linalg.eigh(products)
    right = 2.0 * (q.T @ ((sums - np.outer(counts, mean)) / std).T)
    left = np.zeros((size + 1, size + 1))
    left[:size, :size], left[size, size] = q, 1.0
    constant = BIAS * (2.0 * counts - rows)
    return Equations(
        mean + shift,
        std,
        np.append(eigenvalues, rows * BIAS**2),
        left,
        np.concatenate([right, constant[None]]),
    )


def _class_sums(x: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(classes that occur, the sum of the rows of each)."""
    order = np.argsort(labels, kind="stable")
    present, starts = np.unique(labels[order], return_index=True)
    ends = [*starts[1:], len(order)]
    sums = [x[order[a:b]].sum(axis=0) for a, b in zip(starts, ends, strict=True)]
    return present, np.array(sums)


def sample(labels: np.ndarray, num_classes: int, shots: int, seed: int) -> np.ndarray:
    """Indices of `shots` examples of every class, fewer where a class has fewer; class by class.

    More shots with the same seed hold those of fewer shots.
    """
    rng = np.random.default_rng(seed)
    permuted = [rng.permutation(np.flatnonzero(labels == c)) for c in range(num_classes)]
    return np.concatenate([indices[:shots] for indices in permuted])


@dataclasses.dataclass(frozen=True)
class FewShot:
    """What was measured with one number of examples per class.

    Attributes:
        shots: examples per class; None for all there are.
        seeds: of the choice of examples, in order; none for all examples.
        right: test images classified rightly, for every seed.
        tested: test images.
        rows: training images, for every seed the same.
        l2: the penalty.
        too_few: classes with fewer training images than `shots`: name -> images.
    """

    shots: int | None
    seeds: tuple[int, ...]
    right: tuple[int, ...]
    tested: int
    rows: int
    l2: float
    too_few: dict[str, int]

    @property
    def accuracies(self) -> tuple[float, ...]:
        """In [0, 1], for every seed."""
        return tuple(right / self.tested for right in self.right)

    @property
    def mean(self) -> float:
        """Mean accuracy over the seeds."""
        return float(np.mean(self.accuracies))

    @property
    def std(self) -> float | None:
        """Sample standard deviation over the seeds, None for one."""
        return float(np.std(self.accuracies, ddof=1)) if len(self.right) > 1 else None


def fewshot(
    train: FeatureSet,
    test: FeatureSet,
    *,
    shots: Sequence[int | None] = SHOTS,
    seeds: Sequence[int] = SEEDS,
    l2: float = L2,
    progress: Progress | None = None,
) -> list[FewShot]:
    """Accuracy on `test` after learning from a few examples per class of `train`.

    Args:
        train, test: features of one extractor.
        shots: examples per class, not in all; None for every example of `train`.
        seeds: of the choice of examples.
        l2: penalty, on whitened features, of the summed squared error.
        progress: called with (regressions done and test images scored, of how many).

    Raises:
        ValueError: the sets do not fit each other, or the numbers are not positive.
    """
    check_pair(train, test)
    if not shots or any(k is not None and k < 1 for k in shots) or not seeds or l2 <= 0:
        raise ValueError(
            f"shots, seeds and l2 must be given and positive, got {shots}, {seeds}, {l2}."
        )
    jobs = [(k, seed) for k in shots for seed in (seeds if k is not None else (None,))]
    total = len(jobs) + len(test)
    classifiers = []
    for number, (k, seed) in enumerate(jobs, 1):
        if k is None and len(train) > train.dim:
            equations = decompose_blocks(train.blocks(), train.num_classes)
        else:
            picked = np.arange(len(train))
            if k is not None and seed is not None:
                picked = sample(train.labels, train.num_classes, k, seed)
            equations = decompose(train.take(picked), train.labels[picked], train.num_classes)
        classifiers.append(equations.classifier(l2))
        if progress:
            progress(number, total)
    right = dict.fromkeys(range(len(jobs)), 0)
    done = len(jobs)
    for x, labels in test.blocks():
        x = x.astype(np.float64)
        for number, classifier in enumerate(classifiers):
            right[number] += int((classifier.scores(x).argmax(axis=1) == labels).sum())
        done += len(labels)
        if progress:
            progress(done, total)
    return list(_gathered(train, len(test), jobs, right, l2))


def _gathered(train, tested, jobs, right, l2) -> Iterator[FewShot]:
    counts = np.bincount(train.labels, minlength=train.num_classes)
    for shots in dict.fromkeys(k for k, _ in jobs):
        numbers = [i for i, (k, _) in enumerate(jobs) if k == shots]
        wanted = 1 if shots is None else shots
        few = [i for i in range(train.num_classes) if counts[i] < wanted]
        yield FewShot(
            shots=shots,
            seeds=tuple(jobs[i][1] for i in numbers if shots is not None),
            right=tuple(right[i] for i in numbers),
            tested=tested,
            rows=int((counts if shots is None else np.minimum(counts, shots)).sum()),
            l2=l2,
            too_few={train.class_names[i]: int(counts[i]) for i in few},
        )


def results(found: Sequence[FewShot], train: FeatureSet, test: FeatureSet, **about) -> list[Result]:
    """Rows for a store: for every number of shots the mean over the seeds, then each seed.

    Args:
        about: further fields of every `Result`: `command`, `when`, `versions`.
    """
    rows = []
    for one in found:
        settings = {"method": "fewshot", "shots": one.shots, "l2": one.l2}
        rows.append(
            Result(
                **about_features("fewshot", train, test),
                value=one.mean,
                std=one.std,
                examples=one.tested,
                interval=wilson(one.right[0], one.tested) if len(one.right) == 1 else None,
                settings={**settings_of(train), **settings, "seeds": list(one.seeds)},
                **about,
            )
        )
        rows += [
            row("fewshot", train, test, right, one.tested, {**settings, "seed": seed}, **about)
            for seed, right in zip(one.seeds, one.right, strict=False)
        ]
    return rows
