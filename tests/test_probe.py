"""Logistic regression equals scikit-learn's, in any blocks, with a penalty chosen on held-out rows."""

import tracemalloc

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from keras_vit.transfer import lbfgs
from keras_vit.transfer import probe as module
from keras_vit.transfer.features import FeatureSet
from keras_vit.transfer.probe import fit, held_out_rows, probe, results

CLASSES, DIM = 5, 12


def cloud(count, seed, shards=1, spread=2.0):
    """Overlapping clouds whose columns have quite different means and scales."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, CLASSES, count).astype(np.int32)
    centres = np.random.default_rng(9).normal(size=(CLASSES, DIM))
    scales, means = 10.0 ** np.linspace(-2, 2, DIM), np.linspace(-50, 50, DIM)
    x = means + scales * (centres[labels] + spread * rng.normal(size=(count, DIM)))
    parts = tuple(np.array_split(x.astype(np.float32), shards))
    return FeatureSet(f"cloud{seed}", parts, labels, tuple("abcde"))


@pytest.mark.parametrize("wide", [0, 4096], ids=["plain", "preconditioned"])
@pytest.mark.parametrize("l2", [1.0, 1e-2, 1e-4])
def test_weights_equal_scikit_learn(monkeypatch, l2, wide):
    monkeypatch.setattr(module, "WIDE", wide)
    train, test = cloud(400, 0, shards=7), cloud(200, 1)
    x = train.take(np.arange(400)).astype(np.float64)
    mean, std = x.mean(axis=0), x.std(axis=0) + 1e-5
    peer = LogisticRegression(C=1.0 / (l2 * 400), tol=1e-10, max_iter=2000)
    peer.fit((x - mean) / std, train.labels)
    found = fit(train.blocks, CLASSES, l2, tolerance=1e-6)
    kernel, bias = found.whitened[:-1], found.whitened[-1]
    # A gradient of 1e-6 leaves this much where the curvature is as small as the penalty.
    np.testing.assert_allclose(kernel, peer.coef_.T, atol=min(1e-5 + 2e-6 / l2, 2e-3))
    np.testing.assert_allclose(bias - bias.mean(), peer.intercept_, atol=5e-3)
    whitened = (test.take(np.arange(200)) - mean) / std
    predicted = found.classifier.scores(test.take(np.arange(200))).argmax(axis=1)
    margins = np.sort(peer.decision_function(whitened), axis=1)
    clear = margins[:, -1] - margins[:, -2] > 0.02
    np.testing.assert_array_equal(predicted[clear], peer.predict(whitened)[clear])
    assert clear.sum() > 180 and found.steps < 100


def test_the_penalty_is_the_best_on_held_out_rows():
    train, test = cloud(120, 0), cloud(300, 1)
    steps = []
    found = probe(train, test, progress=lambda done, total: steps.append((done, total)))
    best = max(found.held_out.values())
    assert found.l2 == max(l2 for l2, value in found.held_out.items() if value == best)
    assert len(found.held_out) == 7 and steps[-1] == (8, 8)
    (alone,) = {probe(train, test, penalties=[found.l2]).accuracy}
    assert abs(found.accuracy - alone) <= 2 / 300  # it starts elsewhere and ends at the same place
    assert 0.3 < found.accuracy < 1.0
    (row,) = results(found, train, test)
    assert row.settings["l2"] == found.l2 and row.value == found.accuracy


def test_held_out_rows_are_a_tenth_of_every_class():
    labels = np.repeat(np.arange(4), [40, 3, 1, 0])
    mask = held_out_rows(labels, 5, 0)
    assert np.bincount(labels[mask], minlength=5).tolist() == [4, 1, 0, 0, 0]
    assert (mask == held_out_rows(labels, 5, 0)).all()
    assert (mask != held_out_rows(labels, 5, 1)).any()
    with pytest.raises(ValueError, match="give one penalty"):
        held_out_rows(np.arange(5), 5, 0)


def test_rows_are_read_in_blocks():
    train = cloud(50_000, 0)
    tracemalloc.start()
    try:
        fit(lambda: train.blocks(1000), CLASSES, 1e-2, steps=2)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 1e6  # the rows are 2.4 MB


def test_a_minimum_is_found_in_a_narrow_valley():
    scales = 10.0 ** np.arange(5)

    def objective(x):
        return float(0.5 * (scales * (x - 1.0) ** 2).sum()), scales * (x - 1.0)

    found, steps = lbfgs.minimum(objective, np.zeros(5), tolerance=1e-6, steps=500)
    np.testing.assert_allclose(found, 1.0, atol=1e-5)
    assert 5 < steps < 100
    assert lbfgs.minimum(objective, found, tolerance=1e-3, steps=500)[1] == 0
    # With the inverse Hessian one step is enough, but for the first one's length.
    known = {"tolerance": 1e-6, "steps": 500, "precondition": lambda gradient: gradient / scales}
    assert lbfgs.minimum(objective, np.zeros(5), **known)[1] <= 3
    # One that rises wherever one goes: it ends.
    stuck = lbfgs.minimum(
        lambda x: (float(np.abs(x).sum()), -np.ones(2)), np.zeros(2), tolerance=0.1, steps=9
    )
    assert stuck[1] == 0


def test_numbers_out_of_range_are_refused():
    with pytest.raises(ValueError, match="positive"):
        probe(cloud(30, 0), cloud(5, 1), penalties=[0.0])
    with pytest.raises(ValueError, match="positive"):
        probe(cloud(30, 0), cloud(5, 1), steps=0)
