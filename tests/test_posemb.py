"""Position tables and patch kernels: resizing against the original code, and the fixed sine table."""

import json
from pathlib import Path

import numpy as np
import pytest

from keras_vit.card import POSEMB_RESIZES
from keras_vit.posemb import METHODS, infer_grid, resize, resize_patches, sincos2d

ORACLES = Path(__file__).parent / "oracles"
with np.load(ORACLES / "posemb_resize.npz") as _file:
    RESIZE = {key: _file[key] for key in _file.files}
CASES = json.loads(str(RESIZE["config"]))["cases"]
with np.load(ORACLES / "posembed_resample.npz") as _file:
    RESAMPLE = {key: _file[key] for key in _file.files}
RESAMPLE_CASES = json.loads(str(RESAMPLE["config"]))["cases"]
with np.load(ORACLES / "flexi_resize.npz") as _file:
    FLEXI = {key: _file[key] for key in _file.files}
FLEXI_KERNELS = sorted(key.removesuffix("/kernel") for key in FLEXI if key.endswith("/kernel"))
FLEXI_POSITIONS = sorted(key for key in FLEXI if key.startswith("flexi_posemb_7x7_to_"))
# Patches that grow along one axis and shrink along the other: see resize_patches.
DEGENERATE = "8x8_to_6x10"

# method: what the functions of timm and PyTorch call it.
THEIR_NAMES = {
    "align_corners": "bilinear_align_corners",
    "half_pixel": "bilinear_half_pixel",
    "bicubic": "bicubic_no_antialias",
    "bicubic_antialias": "bicubic_antialias",
    "linear_antialias": "bilinear_antialias",
}


def size_in(tag: str) -> tuple[int, ...]:
    """The size at the end of `16x16_to_8x8`."""
    return tuple(int(n) for n in tag.rsplit("_", 1)[1].split("x"))


@pytest.mark.case("R06")
@pytest.mark.parametrize("case", CASES, ids=lambda c: c["tag"])
def test_resize_equals_the_official_code(case):
    table, expected = RESIZE[f"{case['tag']}/input"], RESIZE[f"{case['tag']}/output"]
    old, new = (case["old_grid"],) * 2, (case["new_grid"],) * 2
    found = resize(table, old, new, num_prefix=int(case["has_cls"]))
    assert found.dtype == np.float32
    # Their float32 and our float64 arithmetic differ by 1.2e-7 at most.
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6)


def test_all_cases_of_the_oracles_are_used():
    assert len(CASES) == 16
    assert len(RESAMPLE_CASES) == 9
    assert len(FLEXI_KERNELS) == 7 and DEGENERATE in FLEXI_KERNELS
    assert len(FLEXI_POSITIONS) == 4


def test_every_method_has_an_oracle_and_a_place_in_cards():
    assert tuple(METHODS) == tuple(THEIR_NAMES) == POSEMB_RESIZES


@pytest.mark.case("R06")
@pytest.mark.parametrize("index", range(9))
@pytest.mark.parametrize("method", METHODS)
def test_every_method_equals_pytorch(method, index):
    case, table = RESAMPLE_CASES[index], RESAMPLE[f"case{index}/input"]
    prefix = case["num_prefix_tokens"]
    found = resize(table, case["old"], case["new"], num_prefix=prefix, method=method)
    # Their float32 and our float64 arithmetic differ by 3.3e-7 at most; two methods by 0.01 and up.
    expected = RESAMPLE[f"case{index}/{THEIR_NAMES[method]}"]
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6)
    np.testing.assert_array_equal(found[:, :prefix], table[:, :prefix])


def test_the_methods_are_told_apart_by_the_oracle():
    shrinking = next(i for i, case in enumerate(RESAMPLE_CASES) if case["new"] == [3, 5])
    outputs = [RESAMPLE[f"case{shrinking}/{name}"] for name in THEIR_NAMES.values()]
    for i, one in enumerate(outputs):
        for other in outputs[:i]:
            assert np.abs(one - other).max() > 0.01


@pytest.mark.parametrize("name", FLEXI_POSITIONS)
def test_positions_of_flexivit_equal_the_original_code(name):
    table = FLEXI["flexi_posemb_input_7x7"]
    found = resize(table, (7, 7), size_in(name), num_prefix=0, method="linear_antialias")
    np.testing.assert_allclose(found, FLEXI[name], rtol=0, atol=1e-6)  # 2e-7 apart in float32


@pytest.mark.parametrize("name", [name for name in FLEXI_KERNELS if name != DEGENERATE])
def test_patch_kernels_equal_the_original_code(name):
    found = resize_patches(FLEXI[f"{name}/kernel"], size_in(name))
    assert found.dtype == np.float32
    # The original builds its resize matrix in float32 and then inverts it: 7e-7 apart at most
    # (16 to 14), on values up to 0.3.
    np.testing.assert_allclose(found, FLEXI[f"{name}/output"], rtol=0, atol=2e-6)


def bilinear(old: int, new: int) -> np.ndarray:
    """(new, old) matrix of a half-pixel bilinear resize, cell by cell."""
    matrix = np.zeros((new, old))
    for i in range(new):
        at = min(max((i + 0.5) * old / new - 0.5, 0.0), old - 1.0)
        low = int(at)
        matrix[i, low] += 1.0 - (at - low)
        matrix[i, min(low + 1, old - 1)] += at - low
    return matrix


def test_a_patch_that_grows_and_shrinks_gets_the_exact_pseudo_inverse():
    kernel = FLEXI[f"{DEGENERATE}/kernel"]
    whole = np.kron(bilinear(8, 6), bilinear(8, 10))  # (60, 64), of rank 48
    expected = np.linalg.pinv(whole.T, rcond=1e-10) @ kernel.reshape(64, -1).astype(np.float64)
    found = resize_patches(kernel, (6, 10))
    np.testing.assert_allclose(found, expected.reshape(6, 10, 3, 4), rtol=0, atol=1e-6)
    assert np.abs(FLEXI[f"{DEGENERATE}/output"]).max() > 1e7  # what the original gives here


def test_grown_patches_embed_as_before():
    rng = np.random.default_rng(5)
    kernel, patch = rng.normal(size=(4, 4, 3, 7)), rng.normal(size=(4, 4, 3))
    grown = np.einsum("ab,cd,bde->ace", bilinear(4, 9), bilinear(4, 6), patch)
    found = np.tensordot(grown, resize_patches(kernel, (9, 6)), axes=3)
    np.testing.assert_allclose(found, np.tensordot(patch, kernel, axes=3), atol=1e-12)
    np.testing.assert_array_equal(resize_patches(kernel, (4, 4)), kernel)


def test_an_unknown_method_is_told_with_the_known_ones():
    with pytest.raises(ValueError, match=r"unknown rule 'nearest'.*align_corners.*bicubic"):
        resize(np.zeros((1, 4, 2), np.float32), (2, 2), (3, 3), num_prefix=0, method="nearest")


@pytest.mark.parametrize("method", METHODS)
def test_constant_tables_stay_constant_under_every_method(method):
    table = np.full((1, 1 + 35, 2), 3.0, np.float32)
    for new in ((3, 9), (1, 1), (37, 2)):
        found = resize(table, (7, 5), new, num_prefix=1, method=method)
        np.testing.assert_allclose(found, np.full((1, 1 + new[0] * new[1], 2), 3.0), rtol=1e-6)


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
