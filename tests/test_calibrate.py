"""Ranges of activations, and what is no calibration image."""

import importlib

import numpy as np
import pytest

from keras_vit.export import calibrate, graph
from keras_vit.export.verify import model_inputs, synthetic_images
from keras_vit.spec import ViTSpec

pytestmark = pytest.mark.tf_only

SPEC = ViTSpec(
    hidden_size=8, mlp_dim=16, num_heads=2, num_layers=1, patch_size=4, image_size=(8, 12),
    in_channels=3, num_classes=5,
)  # fmt: skip
LIMITS = (-1.0, 1.0)


@pytest.fixture(scope="module")
def model(random_model):
    return random_model(SPEC)


@pytest.fixture(scope="module")
def images(model):
    """20 preprocessed images, the last with the widest values."""
    given = model_inputs(model, synthetic_images((8, 12, 3), 20, seed=3))[0] * 0.5
    given[-1] *= 2.0
    return given


def litert_bytes(model, batch=1):
    convert = importlib.import_module("keras_vit.export.litert").convert
    return convert(graph.named_outputs(model), "logits", batch, 10_000)


@pytest.fixture(scope="module")
def file(model):
    return litert_bytes(model)


def test_every_image_counts_in_full(model, file, images):
    ranges = calibrate.activation_ranges(file, images)
    values = np.asarray(model.features("encoderblock_0")(images))
    found = next(r for name, r in ranges.items() if name.endswith("encoderblock_0_1/add_1"))
    np.testing.assert_allclose(found, (values.min(), values.max()), atol=1e-5)
    # A moving average would see a twentieth of the last image.
    found = next(r for name, r in ranges.items() if "serving_default_images" in name)
    assert found == (images.min(), images.max()) == (images[-1].min(), images[-1].max())


def test_constants_have_no_range(file, images):
    # ai-edge-quantizer takes a kernel's range for one scale of the whole kernel.
    names = calibrate.activation_ranges(file, images[:1])
    assert not [name for name in names if name.endswith("ReadVariableOp") and ";" not in name]
    assert not [name for name in names if name.startswith("arith.constant")]


@pytest.mark.parametrize("percentile", [80.0, 99.0])
def test_percentiles_cut_both_ends(file, images, percentile):
    full = calibrate.activation_ranges(file, images)
    cut = calibrate.activation_ranges(file, images, f"percentile:{percentile}")
    assert full.keys() == cut.keys()
    name = next(n for n in full if "serving_default_images" in n)
    tail = (100 - percentile) / 2
    expected = np.percentile(images, (tail, 100 - tail))
    width = (full[name][1] - full[name][0]) / calibrate.BINS
    np.testing.assert_allclose(cut[name], expected, atol=2 * width)
    for key, (low, high) in cut.items():
        assert full[key][0] <= low <= high <= full[key][1] or np.isclose(low, high)


def test_a_batch_is_filled_up(model, file, images):
    three = litert_bytes(model, batch=3)
    one = calibrate.activation_ranges(file, images)
    many = calibrate.activation_ranges(three, images)
    names = set(one) & set(many)
    assert len(names) > 10
    for name in names:
        np.testing.assert_allclose(one[name], many[name], atol=1e-5)


def test_progress_counts_the_images_of_all_passes(file, images):
    seen = []
    calibrate.activation_ranges(
        file, images, "percentile:99", progress=lambda *numbers: seen.append(numbers)
    )
    assert seen[0] == (1, 40) and seen[-1] == (40, 40) and len(seen) == 40


@pytest.mark.parametrize(
    ("method", "expected"), [("minmax", None), ("percentile:99.9", 99.9), ("percentile:60", 60.0)]
)
def test_methods(method, expected):
    assert calibrate.parse_method(method) == expected


@pytest.mark.parametrize(
    "method",
    ["", "max", "percentile", "percentile:", "percentile:100", "percentile:50", "p:99", None],
)
def test_unknown_methods_are_refused(method):
    with pytest.raises(ValueError, match="calibration must be 'minmax', or 'percentile:P'"):
        calibrate.parse_method(method)


@pytest.mark.case("Q11")
def test_input_limits_are_those_of_the_preprocessing(model):
    assert calibrate.input_limits(model) == LIMITS


def _good(count=20):
    return np.random.default_rng(0).uniform(-1, 1, (count, 8, 12, 3)).astype(np.float32)


@pytest.mark.case("Q11")
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda x: (x * 127 + 127).astype(np.uint8), "must be preprocessed floats"),
        (
            lambda x: x[:, :7],
            r"of shape \(batch, 8, 12, 3\), got float32 of shape \(20, 7, 12, 3\)",
        ),
        (lambda x: x[:15], "at least 16 images, got 15"),
        (lambda x: np.where(np.arange(20)[:, None, None, None] == 7, np.nan, x), "image 7 holds"),
        (lambda x: x * 127.5 + 127.5, "and the preprocessing gives -1 to 1: pass uint8"),
        (lambda x: x * 0 + 0.3, "they are blank, or were scaled twice"),
        (lambda x: x / 127.5 - 1, "they are blank, or were scaled twice"),
    ],
)
def test_what_is_no_calibration_image(change, message):
    with pytest.raises(ValueError, match=message):
        calibrate.check_images(change(_good()), (8, 12, 3), LIMITS)


def test_good_images_pass_as_float32():
    found = calibrate.check_images(_good().astype(np.float64) * 1.04, (8, 12, 3), LIMITS)
    assert found.dtype == np.float32 and len(found) == 20
