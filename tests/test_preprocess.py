"""Preprocessing equals the original code's, as NumPy and as the layer that travels into exports."""

import dataclasses

import keras
import numpy as np
import pytest
from keras import ops

from keras_vit.card import Preprocessing
from keras_vit.layers.preprocessor import Preprocessor, preprocess

ORACLE = np.load(__file__.replace("test_preprocess.py", "oracles/preprocess.npz"))
STRETCH = Preprocessing(truncate=True)
# The names the oracle gives to the original code's rules.
RULES = {
    "vit_and_bit_eval": Preprocessing(),
    "lit_pp_resize": STRETCH,
    "lit_pp_crop": Preprocessing(resize="shorter_side", truncate=True),
    "bv_resize": STRETCH,
    "bv_resize36_central_crop": dataclasses.replace(STRETCH, resize_to=36),
    "bv_resize54_central_crop": dataclasses.replace(STRETCH, resize_to=54),
    "bv_resize_small36_central_crop": Preprocessing("shorter_side", "area", False, 36, True),
    "bv_resize_small54_central_crop": Preprocessing("shorter_side", "area", False, 54, True),
}
CASES = [key for key in ORACLE.files if "/to" in key]


def by_numpy(image, size, how):
    return preprocess(image, size, how)


def by_layer(image, size, how):
    return ops.convert_to_numpy(Preprocessor(size, how)(image[None]))[0]


@pytest.mark.case("P03")
@pytest.mark.parametrize("run", [by_numpy, by_layer])
@pytest.mark.parametrize("case", CASES)
def test_equals_the_original_code(case, run):
    name, to, rule = case.split("/")
    size, how = (int(to[2:]),) * 2, RULES[rule]
    image, expected = ORACLE[f"{name}/image_uint8"], ORACLE[case]
    found = run(image, size, how)
    assert found.shape == expected.shape and found.dtype == np.float32
    if not how.truncate:
        # float32 rounding of sums of two products of values up to 255, after division by 127.5
        np.testing.assert_allclose(found, expected, atol=1e-6)
        return
    # The original drops fractions of float32 sums, so where a value is a whole number up to their
    # rounding, its level or the one below may come out; everywhere else the levels are equal.
    exact = 127.5 * run(image, size, dataclasses.replace(how, truncate=False)) + 127.5
    level = np.round(127.5 * expected + 127.5)
    assert np.all(level >= np.floor(exact - 1e-3)) and np.all(level <= np.floor(exact + 1e-3))
    sure = np.abs(exact - np.round(exact)) > 2e-3
    assert sure.mean() > 0.2
    np.testing.assert_allclose(found[sure], expected[sure], atol=1e-6)


def test_every_rule_of_the_oracle_is_covered():
    assert {case.split("/")[2] for case in CASES} == set(RULES)


@pytest.mark.case("P01")
@pytest.mark.parametrize("run", [by_numpy, by_layer])
def test_0_and_255_become_minus_one_and_one(run):
    levels = np.array([0, 127.5, 255], np.float32).reshape(1, 3, 1)
    assert run(levels, (1, 3), Preprocessing()).ravel().tolist() == [-1.0, 0.0, 1.0]


@pytest.mark.case("P01")
@pytest.mark.parametrize("run", [by_numpy, by_layer])
def test_uint8_and_float_images_give_the_same(run):
    image = np.random.default_rng(0).integers(0, 256, (7, 5, 3), np.uint8)
    np.testing.assert_array_equal(
        run(image, (4, 6), Preprocessing()), run(image.astype(np.float32), (4, 6), Preprocessing())
    )


@pytest.mark.case("P03")
@pytest.mark.tf_only
@pytest.mark.parametrize(
    ("method", "antialias", "size"),
    [
        ("bilinear", False, (384, 384)),
        ("bilinear", True, (384, 384)),
        ("bilinear", True, (97, 61)),
        ("bicubic", True, (97, 61)),
        ("bicubic", True, (601, 700)),
        ("area", False, (97, 61)),
    ],
)
def test_resizing_is_that_of_tensorflow(method, antialias, size):
    import tensorflow as tf

    image = np.random.default_rng(0).integers(0, 256, (333, 500, 3), np.uint8)
    expected = tf.image.resize(image, size, method, antialias=antialias).numpy()
    how = Preprocessing(method=method, antialias=antialias, mean=(0.0,), std=(1.0,))
    # Sums of up to hundreds of products of values up to 255 in another order.
    np.testing.assert_allclose(preprocess(image, size, how), expected, atol=2e-3)


@pytest.mark.case("P03")
def test_nothing_is_cropped_unless_asked():
    image = np.zeros((40, 60, 1), np.uint8)
    image[:, :6] = 255  # a stripe at the left edge
    stretched = preprocess(image, (20, 20), Preprocessing())
    cropped = preprocess(image, (20, 20), Preprocessing(resize="shorter_side"))
    assert stretched[:, 0].min() > 0.9
    assert cropped.max() == -1.0


def test_mean_and_std_are_per_channel():
    how = Preprocessing(mean=(10, 20, 30), std=(1, 2, 4))
    found = preprocess(np.full((2, 2, 3), 50, np.uint8), (2, 2), how)
    assert found[0, 0].tolist() == [40.0, 15.0, 5.0]


@pytest.mark.parametrize("size", [(5, 9), (31, 12)])
def test_the_layer_takes_sizes_known_only_at_run_time(size):
    inputs = keras.Input((None, None, 3), dtype="uint8")
    model = keras.Model(inputs, Preprocessor((8, 10), Preprocessing())(inputs))
    assert model.output_shape == (None, 8, 10, 3)
    images = np.random.default_rng(0).integers(0, 256, (2, *size, 3), np.uint8)
    expected = preprocess(images, (8, 10), Preprocessing())
    np.testing.assert_allclose(ops.convert_to_numpy(model(images)), expected, atol=1e-6)


def test_the_layer_is_rebuilt_from_its_config():
    layer = Preprocessor((8, 10), RULES["bv_resize_small36_central_crop"])
    again = Preprocessor.from_config(layer.get_config())
    assert again.preprocessing == layer.preprocessing
    assert again.image_size == (8, 10) and not again.weights


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"resize": "squash"}, r"resize must be one of .*'squash'"),
        ({"method": "lanczos"}, r"method must be one of .*'lanczos'"),
        ({"std": (0.0,)}, r"std must be positive"),
        ({"mean": (1.0, 2.0)}, r"mean and std must be as many, got 2 and 1"),
    ],
)
def test_wrong_rules_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        Preprocessing(**options)
