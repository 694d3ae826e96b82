"""From images to model input: the official numbers, in NumPy, as a layer, and with dynamic sizes."""

import dataclasses
import json
from pathlib import Path

import keras
import numpy as np
import pytest

from keras_vit.card import Preprocessing
from keras_vit.layers import Preprocessor
from keras_vit.layers.preprocessor import preprocess, resize_matrix

with np.load(Path(__file__).parent / "oracles" / "preprocess.npz") as _file:
    ORACLE = {key: _file[key] for key in _file.files}
CASES = sorted(key for key in ORACLE if "/to" in key)
RNG = np.random.default_rng(23)
IMAGE = RNG.integers(0, 256, (37, 53, 3), np.uint8)
WAYS = {
    "google": Preprocessing(),
    "big_vision": Preprocessing(truncate=True),
    "resmall_crop": Preprocessing("shorter_side", "area", resize_to=24, truncate=True),
    "timm_bicubic": Preprocessing(
        "shorter_side", "bicubic", True, 24, mean=(120.0, 110.0, 100.0), std=(60.0, 61.0, 62.0)
    ),
    "bilinear_antialias": Preprocessing(antialias=True),
    "enlarged_then_cropped": Preprocessing(resize_to=90),
    "crop_only": Preprocessing("none"),
}


def way(kind):
    """The fields that express each of the oracle's variants."""
    if kind == "vit_and_bit_eval":
        return Preprocessing()
    if kind in ("lit_pp_resize", "bv_resize"):
        return Preprocessing(truncate=True)
    if kind == "lit_pp_crop":
        return Preprocessing("shorter_side", truncate=True)
    size = int("".join(c for c in kind if c.isdigit()))
    if kind.startswith("bv_resize_small"):
        return Preprocessing("shorter_side", "area", resize_to=size, truncate=True)
    return Preprocessing(resize_to=size, truncate=True)


@pytest.mark.parametrize("key", CASES)
def test_numpy_equals_the_official_code_bit_for_bit(key):
    image, size, kind = key.split("/")
    found = preprocess(ORACLE[f"{image}/image_uint8"], (int(size[2:]),) * 2, way(kind))
    assert found.dtype == np.float32
    # Whole grey levels are 8e-3 apart; the last subtraction and division round by 6e-8.
    np.testing.assert_allclose(found, ORACLE[key], rtol=0, atol=1e-7)


def test_every_variant_of_the_oracle_is_used():
    assert len(CASES) == 30
    assert json.loads(str(ORACLE["config"]))["tensorflow"]


@pytest.mark.parametrize("name", WAYS)
def test_the_layer_equals_numpy(name):
    how, size = WAYS[name], (20, 20)
    expected = preprocess(IMAGE, size, how)
    layer = Preprocessor(size, how)
    single = keras.ops.convert_to_numpy(layer(IMAGE))
    batch = keras.ops.convert_to_numpy(layer(np.stack([IMAGE, IMAGE[::-1]])))
    assert batch.shape == (2, 20, 20, 3)
    np.testing.assert_array_equal(batch[0], single)
    agree(single, expected, how)


def agree(found, expected, how):
    """Within float32 rounding; where fractions are dropped, a rare pixel may fall to the next level."""
    difference = np.abs(found - expected)
    if how.truncate:
        level = 1.001 / min(how.std)
        assert difference.max() <= level
        assert (difference > 1e-5).mean() < 0.02
    else:
        # Sums of up to 53 products of 255 in two orders, divided by 60 or more.
        assert difference.max() < 2e-5


@pytest.mark.tf_only
@pytest.mark.parametrize("name", [*WAYS])
def test_sizes_known_only_at_run_time(name):
    import tensorflow as tf

    how, size = WAYS[name], (20, 20)
    layer = Preprocessor(size, how)
    signature = tf.TensorSpec((None, None, None, 3), tf.uint8)
    run = tf.function(layer, input_signature=[signature])
    for image in (IMAGE, IMAGE[:30, :44], np.ascontiguousarray(IMAGE.transpose(1, 0, 2))):
        agree(run(image[None]).numpy()[0], preprocess(image, size, how), how)
    assert run.get_concrete_function().output_shapes[1:] == (20, 20, 3)


@pytest.mark.tf_only
@pytest.mark.case("P03")
@pytest.mark.parametrize(
    "how, method, antialias",
    [
        (Preprocessing(), "bilinear", False),
        (Preprocessing(antialias=True), "bilinear", True),
        (Preprocessing(method="bicubic"), "bicubic", False),
        (Preprocessing(method="bicubic", antialias=True), "bicubic", True),
        (Preprocessing(method="area"), "area", False),
    ],
)
@pytest.mark.parametrize("source, target", [((500, 333), (384, 384)), ((30, 41), (64, 48))])
def test_resizing_equals_tensorflow(how, method, antialias, source, target):
    import tensorflow as tf

    image = np.random.default_rng(1).integers(0, 256, (*source, 3), np.uint8)
    expected = tf.image.resize(image, target, method, antialias=antialias).numpy()
    found = preprocess(image, target, how) * 127.5 + 127.5
    # TensorFlow's bicubic takes its weights from a table of 1024 steps.
    tolerance = 0.3 if method == "bicubic" and not antialias else 2e-3
    assert np.abs(found - expected).max() < tolerance


@pytest.mark.parametrize("method", ["bilinear", "bicubic"])
# Sizes that every version of Pillow resizes along the width first, as we do; 13 begins with the
# height where that is less work.
@pytest.mark.parametrize("source, target", [((333, 500), (384, 384)), ((30, 41), (64, 48))])
def test_rounded_resizing_equals_pillow(method, source, target):
    """Bicubic overshoots at edges, and Pillow, which holds 8 bits, cuts that off."""
    from PIL import Image

    image = np.random.default_rng(1).integers(0, 2, (*source, 3), np.uint8) * 255
    filters = {"bilinear": Image.Resampling.BILINEAR, "bicubic": Image.Resampling.BICUBIC}
    expected = np.asarray(Image.fromarray(image).resize(target[::-1], filters[method]))
    unit = {"mean": (0.0,), "std": (1.0,)}
    how = Preprocessing(method=method, antialias=True, rounded=True, **unit)
    found = preprocess(image, target, how)
    error = np.abs(found - expected)
    # Pillow's weights are whole numbers of 22 bits, so a tie may fall to the other side: one step.
    assert error.max() <= 1.0 and error.mean() < 0.01
    assert found.min() >= 0 and found.max() <= 255
    loose = preprocess(image, target, dataclasses.replace(how, rounded=False))
    assert method == "bilinear" or np.abs(loose - expected).max() > 2.0


@pytest.mark.case("P03")
def test_nothing_is_cropped_unless_asked():
    image = np.zeros((500, 333, 1), np.uint8)
    image[:60] = 255  # outside the central square
    assert preprocess(image, (96, 96), Preprocessing())[:10].min() == 1
    assert preprocess(image, (96, 96), Preprocessing("shorter_side")).max() == -1


@pytest.mark.case("P01")
@pytest.mark.parametrize("size", [(1, 3), (4, 6)])
def test_0_127_5_and_255_become_minus_1_0_and_1(size):
    values = np.array([0, 127.5, 255], np.float32).reshape(1, 3, 1)
    found = preprocess(values, (1, 3), Preprocessing())
    np.testing.assert_array_equal(found.ravel(), [-1, 0, 1])
    flat = np.full((5, 7, 3), 255, np.uint8)
    np.testing.assert_array_equal(preprocess(flat, size, Preprocessing()), 1.0)


@pytest.mark.case("P01")
@pytest.mark.parametrize("name", WAYS)
def test_uint8_and_float_give_the_same(name):
    as_float = IMAGE.astype(np.float32)
    np.testing.assert_array_equal(
        preprocess(IMAGE, (20, 20), WAYS[name]), preprocess(as_float, (20, 20), WAYS[name])
    )
    layer = Preprocessor((20, 20), WAYS[name])
    np.testing.assert_array_equal(
        keras.ops.convert_to_numpy(layer(IMAGE)), keras.ops.convert_to_numpy(layer(as_float))
    )


def test_a_rectangular_input_is_covered_then_cropped():
    how = Preprocessing("shorter_side")
    assert preprocess(IMAGE, (40, 16), how).shape == (40, 16, 3)
    assert preprocess(IMAGE, (16, 40), how).shape == (16, 40, 3)
    assert Preprocessor((16, 40), how)(IMAGE).shape == (16, 40, 3)


def test_what_cannot_be_is_refused():
    with pytest.raises(ValueError, match=r"37x53.*too small for the central 40x40.*resize_to"):
        preprocess(IMAGE, (40, 40), Preprocessing("none"))
    with pytest.raises(ValueError, match="too small for the central 64x64"):
        preprocess(IMAGE, (64, 64), Preprocessing("shorter_side", resize_to=32))
    with pytest.raises(ValueError, match="for 3 channels, but the images have 1"):
        preprocess(IMAGE[..., :1], (8, 8), WAYS["timm_bicubic"])
    for fields, words in (
        ({"resize": "crop"}, "resize must be one of"),
        ({"method": "nearest"}, "method must be one of"),
        ({"mean": (1, 2, 3)}, "as many, got 3 and 1"),
        ({"std": (0,)}, "std must be positive"),
    ):
        with pytest.raises(ValueError, match=words):
            Preprocessing(**fields)


def test_resize_matrices_are_means():
    for method, antialias in (("bilinear", True), ("bicubic", True), ("area", False)):
        for old, new in ((50, 7), (7, 50), (1, 3), (3, 1)):
            matrix = resize_matrix(old, new, method, antialias)
            np.testing.assert_allclose(matrix.sum(axis=1), 1.0, atol=1e-5)


def test_the_layer_is_rebuilt_from_its_config(tmp_path):
    inputs = keras.Input((37, 53, 3), dtype="uint8")
    model = keras.Model(inputs, Preprocessor((20, 20), WAYS["timm_bicubic"])(inputs))
    assert model.output_shape == (None, 20, 20, 3)
    model.save(tmp_path / "p.keras")
    again = keras.saving.load_model(tmp_path / "p.keras")
    assert again.layers[-1].preprocessing == WAYS["timm_bicubic"]
    np.testing.assert_array_equal(
        keras.ops.convert_to_numpy(again(IMAGE[None])),
        keras.ops.convert_to_numpy(model(IMAGE[None])),
    )
