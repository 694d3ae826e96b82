"""Few-shot regression equals big_vision's, on few and many rows, without matrices that are too large."""

import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from keras_vit.results import store
from keras_vit.transfer import fewshot
from keras_vit.transfer.features import in_memory

ORACLE = Path(__file__).parent / "oracles" / "fewshot_lsr.npz"
CASES = ("n_lt_d", "n_ge_d")
PENALTIES = ("0.015625", "1", "1024", "65536")


@pytest.fixture(scope="module")
def oracle():
    with np.load(ORACLE, allow_pickle=False) as file:
        return {name: file[name] for name in file.files}


def blobs(per_class, classes=3, dim=6, seed=0, spread=0.1):
    """Gaussian clouds whose centres are far apart."""
    rng = np.random.default_rng(seed)
    centres = 3.0 * np.random.default_rng(99).normal(size=(classes, dim))
    labels = np.repeat(np.arange(classes), per_class)
    x = centres[labels] + spread * rng.normal(size=(len(labels), dim))
    return in_memory(x, labels, [f"c{i}" for i in range(classes)], f"blobs{seed}")


@pytest.mark.parametrize("penalty", PENALTIES)
@pytest.mark.parametrize("case", CASES)
def test_weights_and_predictions_equal_big_vision(oracle, case, penalty):
    part = {
        name: oracle[f"{case}/{name}"] for name in ("x", "y", "x_test", "y_test", "mean", "std")
    }
    expected = {n: oracle[f"{case}/l2_{penalty}/{n}"] for n in ("w", "pred", "acc")}
    found = fewshot.decompose(part["x"], part["y"], expected["w"].shape[1])
    np.testing.assert_allclose(found.mean, part["mean"][0], atol=1e-6)
    np.testing.assert_allclose(found.std, part["std"][0], atol=1e-6)
    # The oracle is in float32: its small eigenvalues are wrong by the rounding of the largest.
    largest, smallest = found.eigenvalues.max(), found.eigenvalues.min()
    noise = largest * np.finfo(np.float32).eps / (smallest + float(penalty))
    scale = np.abs(expected["w"]).max()
    np.testing.assert_allclose(
        found.weights(float(penalty)), expected["w"], atol=(noise + 1e-6) * scale
    )
    assert noise < 0.01
    scores = found.classifier(float(penalty)).scores(part["x_test"])
    predicted, ordered = scores.argmax(axis=1), np.sort(scores, axis=1)
    # Where two scores lie closer than that noise, either may be the larger.
    clear = ordered[:, -1] - ordered[:, -2] > noise * np.abs(scores).max()
    assert clear.sum() >= 48
    np.testing.assert_array_equal(predicted[clear], expected["pred"][clear])
    accuracy = (predicted == part["y_test"]).mean()
    assert accuracy == pytest.approx(expected["acc"], abs=1e-6 + (~clear).mean())


def direct(x, labels, classes, l2):
    """The weights by the formula, (D + 1, C)."""
    x = x.astype(np.float64)
    x = np.pad((x - x.mean(0)) / (x.std(0) + 1e-5), ((0, 0), (0, 1)), constant_values=fewshot.BIAS)
    targets = np.where(labels[:, None] == np.arange(classes), 1.0, -1.0)
    return np.linalg.solve(x.T @ x + l2 * np.eye(x.shape[1]), x.T @ targets)


@pytest.mark.case("F03")
@pytest.mark.parametrize("rows", [40, 17, 16])
def test_few_and_many_rows_solve_the_same_equations(rows):
    rng = np.random.default_rng(3)
    for dim in (16, 40):
        x, labels = rng.normal(2.0, 3.0, (rows, dim)), rng.integers(0, 5, rows)
        found = fewshot.decompose(x, labels, 5)
        assert len(found.eigenvalues) == min(rows, dim + 1)
        whole = fewshot.decompose_blocks([(x[:7], labels[:7]), (x[7:], labels[7:])], 5)
        for equations in (found, whole):
            expected = direct(x, labels, 5, 2.0)
            np.testing.assert_allclose(equations.weights(2.0), expected, atol=1e-9)


def test_constant_features_and_a_large_offset_cost_no_digits():
    rng = np.random.default_rng(4)
    x = rng.normal(size=(60, 5)) + 1e6
    x[:, 2] = 7.25
    labels = rng.integers(0, 3, 60)
    found = fewshot.decompose_blocks([(x[:1], labels[:1]), (x[1:], labels[1:])], 3)
    np.testing.assert_allclose(found.std, x.std(axis=0) + 1e-5, rtol=1e-9)
    np.testing.assert_allclose(found.weights(1.0), direct(x, labels, 3, 1.0), atol=1e-8)


@pytest.mark.case("F03")
def test_separate_clouds_are_told_apart_with_five_shots():
    (found,) = fewshot.fewshot(blobs(30), blobs(50, seed=1), shots=[5])
    assert found.accuracies == (1.0, 1.0, 1.0) and found.std == 0.0 and found.rows == 15


@pytest.mark.case("F08")
def test_shots_are_per_class_seeded_and_nested():
    labels = np.random.default_rng(0).permutation(np.repeat(np.arange(10), 20))
    found = fewshot.sample(labels, 10, 5, 0)
    assert len(set(found.tolist())) == 50
    np.testing.assert_array_equal(np.bincount(labels[found]), np.full(10, 5))
    np.testing.assert_array_equal(found, fewshot.sample(labels, 10, 5, 0))
    assert set(found) != set(fewshot.sample(labels, 10, 5, 1))
    assert set(found) < set(fewshot.sample(labels, 10, 10, 0))
    # The first of each class's permutation, class after class from one generator.
    rng = np.random.default_rng(0)
    expected = [rng.permutation(np.where(labels == c)[0])[:5] for c in range(10)]
    np.testing.assert_array_equal(found, np.concatenate(expected))


@pytest.mark.case("F08")
def test_classes_with_too_few_examples_are_reported():
    train = in_memory(np.random.default_rng(0).normal(size=(9, 4)), [0] * 6 + [1] * 3, "abc")
    found = fewshot.fewshot(train, train, shots=[2, 5, None])
    assert [one.too_few for one in found] == [{"c": 0}, {"b": 3, "c": 0}, {"c": 0}]
    assert [one.rows for one in found] == [4, 8, 9]
    assert found[2].shots is None and len(found[2].right) == 1 and found[2].std is None


@pytest.mark.case("F06")
def test_wide_features_and_few_rows_make_no_square_matrix():
    x, labels = np.ones((50, 8192), np.float32), np.arange(50) % 5
    x += np.random.default_rng(0).normal(size=x.shape)
    tracemalloc.start()
    try:
        fewshot.decompose(x, labels, 5).classifier()
        (found,) = fewshot.fewshot(*[in_memory(x, labels, "abcde")] * 2, shots=[None])
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 100e6 and found.rows == 50


def test_all_rows_stream_in_the_memory_of_a_block():
    rows, dim = 20_000, 64
    x = np.random.default_rng(0).normal(size=(rows, dim)).astype(np.float32)  # 5 MB
    train = in_memory(x, np.arange(rows) % 4, "abcd")
    tracemalloc.start()
    try:
        found = fewshot.decompose_blocks(train.blocks(1000), 4)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 3e6
    np.testing.assert_allclose(found.weights(), direct(x, train.labels, 4, fewshot.L2), atol=1e-9)


@pytest.mark.case("F01", "F04")
def test_results_say_resolution_layer_weights_and_seeds(tmp_path):
    about = {"name": "m", "endpoint": "pre_logits", "pool": None, "resolution": [8, 8]}
    about["weights"] = "0123456789abcdef"
    train, test = blobs(10, spread=4.0), blobs(40, seed=1, spread=4.0)
    for part in (train, test):
        part.about.update(about)
    found = fewshot.fewshot(train, test, shots=[1, 5])
    rows = fewshot.results(found, train, test, command="keras-vit probe m")
    assert len(store.add(tmp_path / "results.jsonl", rows)) == 8
    means = [row for row in store.read(tmp_path / "results.jsonl") if "seeds" in row.settings]
    assert [row.settings["shots"] for row in means] == [1, 5]
    for row, one in zip(means, found, strict=True):
        assert row.settings["resolution"] == [8, 8] and row.settings["endpoint"] == "pre_logits"
        assert row.settings["weights"] == about["weights"] and row.settings["seeds"] == [0, 1, 2]
        single = [r for r in rows if r.settings["shots"] == one.shots and "seed" in r.settings]
        assert [r.settings["seed"] for r in single] == [0, 1, 2]
        assert row.value == pytest.approx(np.mean([r.value for r in single]))
        assert row.std == pytest.approx(np.std([r.value for r in single], ddof=1)) and row.std > 0


def test_what_does_not_fit_is_one_sentence():
    train, test = blobs(5), blobs(5, seed=1)
    with pytest.raises(ValueError, match="they must be the same"):
        fewshot.fewshot(train, blobs(5, classes=4))
    with pytest.raises(ValueError, match="positive"):
        fewshot.fewshot(train, test, shots=[0])
    test.about["weights"] = "another"
    with pytest.raises(ValueError, match="different extractors"):
        fewshot.fewshot(train, test)
    with pytest.raises(ValueError, match="one class only"):
        fewshot.fewshot(*[in_memory(np.zeros((3, 2)), [1, 1, 1], "ab")] * 2)
