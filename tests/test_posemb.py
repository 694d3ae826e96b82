"""Position tables: resizing against the official code, and the fixed sine table."""

import json
from pathlib import Path

import numpy as np
import pytest

from keras_vit.posemb import infer_grid, resize, sincos2d

ORACLES = Path(__file__).parent / "oracles"
with np.load(ORACLES / "posemb_resize.npz") as _file:
    RESIZE = {key: _file[key] for key in _file.files}
CASES = json.loads(str(RESIZE["config"]))["cases"]


@pytest.mark.case("R06")
@pytest.mark.parametrize("case", CASES, ids=lambda c: c["tag"])
def test_resize_equals_the_official_code(case):
    table, expected = RESIZE[f"{case['tag']}/input"], RESIZE[f"{case['tag']}/output"]
    old, new = (case["old_grid"],) * 2, (case["new_grid"],) * 2
    found = resize(table, old, new, num_prefix=int(case["has_cls"]))
    assert found.dtype == np.float32
    # Their float32 and our float64 arithmetic differ by 1.2e-7 at most.
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6)


def test_all_cases_of_the_oracle_are_used():
    assert len(CASES) == 16


@pytest.mark.case("R06")
def test_a_ramp_keeps_its_ends():
    ramp = np.array([0.0, 1.0], np.float32).reshape(1, 2, 1)
    found = resize(ramp, (1, 2), (1, 4), num_prefix=0).ravel()
    np.testing.assert_allclose(found, [0, 1 / 3, 2 / 3, 1], atol=1e-7)
    assert resize(ramp, (2, 1), (5, 1), num_prefix=0).ravel()[-1] == 1.0


@pytest.mark.case("R02")
def test_grids_are_compared_not_lengths():
    rng = np.random.default_rng(3)
    table = rng.normal(size=(1, 1 + 16, 5)).astype(np.float32)
    found = resize(table, (2, 8), (4, 4), num_prefix=1)
    cells = table[0, 1:].reshape(2, 8, 5).astype(np.float64)
    expected = np.empty((4, 4, 5))
    for r in range(4):
        for c in range(4):
            y, x = r / 3, c * 7 / 3
            y0, x0 = min(int(y), 0), min(int(x), 6)
            fy, fx = y - y0, x - x0
            expected[r, c] = (
                cells[y0, x0] * (1 - fy) * (1 - fx)
                + cells[y0 + 1, x0] * fy * (1 - fx)
                + cells[y0, x0 + 1] * (1 - fy) * fx
                + cells[y0 + 1, x0 + 1] * fy * fx
            )
    np.testing.assert_allclose(found[0, 1:].reshape(4, 4, 5), expected, atol=1e-6)
    np.testing.assert_array_equal(found[:, :1], table[:, :1])
    assert np.abs(found - table).max() > 0.1


def test_the_same_grid_is_bit_identical():
    table = np.random.default_rng(4).normal(size=(1, 17, 3)).astype(np.float32)
    np.testing.assert_array_equal(resize(table, (4, 4), (4, 4), num_prefix=1), table)


def test_the_last_row_survives_where_the_original_rounds_it_away():
    # scipy's zoom gives zeros in the last row and column for this pair.
    table = np.ones((1, 28 * 28, 2), np.float32)
    np.testing.assert_allclose(resize(table, (28, 28), (48, 48), num_prefix=0), 1.0, atol=1e-6)


def test_to_and_from_a_single_cell():
    one = np.full((1, 1, 2), 3.0, np.float32)
    np.testing.assert_array_equal(
        resize(one, (1, 1), (3, 2), num_prefix=0), np.full((1, 6, 2), 3.0)
    )
    many = np.arange(12, dtype=np.float32).reshape(1, 6, 2)
    np.testing.assert_array_equal(resize(many, (3, 2), (1, 1), num_prefix=0), many[:, :1])


def test_a_table_of_another_length_is_refused():
    with pytest.raises(ValueError, match=r"has 17 entries.*5x5.*needs 26"):
        resize(np.zeros((1, 17, 2), np.float32), (5, 5), (6, 6), num_prefix=1)


@pytest.mark.case("R01")
def test_grid_of_a_table_of_unknown_origin():
    assert infer_grid(196) == ((14, 14), 0)
    assert infer_grid(197) == ((14, 14), 1)
    assert infer_grid(50) == ((7, 7), 1)
    assert infer_grid(49) == ((7, 7), 0)
    for wrong in (195, 0, 3):
        with pytest.raises(ValueError, match=f"{wrong} entries"):
            infer_grid(wrong)


def test_sine_tables_equal_big_vision():
    with np.load(ORACLES / "units.npz") as units:
        small = {"4x6x16": (4, 6), "7x7x32": (7, 7)}
        for tag, grid in small.items():
            found = sincos2d(grid, int(tag.split("x")[-1]))
            np.testing.assert_allclose(found, units[f"sincos2d/{tag}"], rtol=0, atol=1e-6)
        found = sincos2d((14, 14), 384)[:, ::13, ::7]
        np.testing.assert_allclose(found, units["sincos2d/14x14x384"], rtol=0, atol=2e-6)
