"""The losses against the original code, in the tails, in half precision, and through saving."""

from pathlib import Path

import keras
import numpy as np
import pytest
from keras import ops

from keras_vit import VisionModel, ViTSpec
from keras_vit.train.losses import (
    SigmoidCrossEntropy,
    SoftmaxCrossEntropy,
    init_head_bias,
    make_loss,
    sigmoid_cross_entropy,
    softmax_cross_entropy,
)
from keras_vit.train.recipe import Loss

ORACLE = np.load(Path(__file__).parent / "oracles" / "losses_mixup.npz")
LOSSES = {"softmax": SoftmaxCrossEntropy, "sigmoid": SigmoidCrossEntropy}
TINY = ViTSpec(8, 12, 2, 1, (4, 4), image_size=(8, 8), num_classes=5)


def reference(kind: str, targets, logits, smoothing: float) -> np.ndarray:
    """(B,) float64, written from the definitions."""
    y, x = np.asarray(targets, np.float64), np.asarray(logits, np.float64)
    if kind == "sigmoid":
        y = np.where(y == 1, 1 - smoothing, np.where(y == 0, smoothing, y))
        return (y * np.logaddexp(0, -x) + (1 - y) * np.logaddexp(0, x)).sum(-1)
    y = (1 - smoothing) * y + smoothing / y.shape[-1]
    return (y * (np.logaddexp.reduce(x, -1, keepdims=True) - x)).sum(-1)


def gradient(function, x: np.ndarray) -> np.ndarray:
    """Of the sum of function(x), on either backend."""
    if keras.backend.backend() == "jax":
        import jax

        return np.asarray(jax.grad(lambda v: ops.sum(function(v)))(x))
    import tensorflow as tf

    variable = tf.constant(x)
    with tf.GradientTape() as tape:
        tape.watch(variable)
        total = ops.sum(function(variable))
    return tape.gradient(total, variable).numpy()


@pytest.mark.parametrize("targets", ["onehot", "soft"])
@pytest.mark.parametrize("kind", ["softmax", "sigmoid"])
def test_losses_are_those_of_the_original_code(kind, targets):
    loss = make_loss(Loss(kind=kind))(ORACLE[targets], ORACLE["logits"])
    np.testing.assert_allclose(float(loss), ORACLE[f"{kind}_xent/{targets}"], rtol=1e-6)
    if kind == "sigmoid":
        rows = sigmoid_cross_entropy(ORACLE[targets], ORACLE["logits"])
        expected = ORACLE[f"sigmoid_xent_per_example/{targets}"]
        np.testing.assert_allclose(ops.convert_to_numpy(rows), expected, rtol=1e-6)


@pytest.mark.parametrize("smoothing", [0.0, 1e-4, 0.1])
@pytest.mark.parametrize("kind", ["softmax", "sigmoid"])
def test_label_smoothing_is_as_recipes_say(kind, smoothing):
    rng = np.random.default_rng(0)
    logits = rng.normal(0, 3, (7, 11)).astype(np.float32)
    targets = np.eye(11, dtype=np.float32)[rng.integers(0, 11, 7)]
    if kind == "sigmoid":
        targets[:, 2] = 1.0  # several labels per example
    loss = make_loss(Loss(kind=kind, label_smoothing=smoothing))
    found = ops.convert_to_numpy(loss.call(targets, logits))
    assert found.shape == (7,)
    # Sums of eleven float32 terms of order 1 to 10.
    np.testing.assert_allclose(found, reference(kind, targets, logits, smoothing), rtol=2e-6)
    np.testing.assert_allclose(float(loss(targets, logits)), found.mean(), rtol=1e-6)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("kind", ["softmax", "sigmoid"])
def test_far_logits_stay_exact(kind, dtype):
    logits = np.array([[1e4, -1e4, 20.0], [-1e4, 1e4, -20.0], [20.0, -20.0, 0.0]], np.float32)
    targets = np.eye(3, dtype=np.float32)
    given = ops.cast(logits, dtype)
    rounded = ops.convert_to_numpy(ops.cast(given, "float32"))
    function = sigmoid_cross_entropy if kind == "sigmoid" else softmax_cross_entropy
    rows = function(ops.cast(targets, dtype), given)
    assert keras.backend.standardize_dtype(rows.dtype) == "float32"
    # Half precision rounds the logits, not the loss; the last row holds terms of 2e-9 that a
    # difference of large numbers would lose, but they do not dominate the sum.
    expected = reference(kind, targets, rounded, 0.0)
    np.testing.assert_allclose(ops.convert_to_numpy(rows), expected, rtol=1e-6)
    slope = gradient(lambda x: function(targets, x), logits)
    assert np.isfinite(slope).all()


def test_the_tails_of_the_sigmoid_are_not_lost():
    # A right answer far out: log1p(exp(-30)) each, which 30 - 30 in float32 would make 0.
    targets, logits = np.array([[1.0, 0.0]], np.float32), np.array([[30.0, -30.0]], np.float32)
    found = float(sigmoid_cross_entropy(targets, logits)[0])
    np.testing.assert_allclose(found, 2 * np.log1p(np.exp(-30.0)), rtol=1e-5)


@pytest.mark.parametrize("kind", ["softmax", "sigmoid"])
def test_gradients_at_a_new_head_are_right(kind):
    # All logits of a zero head are 0, where |x| and max(x, 0) have no derivative.
    targets = np.eye(5, dtype=np.float32)[[1, 4]]
    function = sigmoid_cross_entropy if kind == "sigmoid" else softmax_cross_entropy
    slope = gradient(lambda x: function(targets, x), np.zeros((2, 5), np.float32))
    probability = 0.5 if kind == "sigmoid" else 0.2
    np.testing.assert_allclose(slope, probability - targets, atol=1e-7)


@pytest.mark.parametrize("kind", ["softmax", "sigmoid"])
def test_a_compiled_model_keeps_its_loss(kind, tmp_path):
    model = VisionModel(TINY)
    model.get_layer("head").bias.assign([0.5, -1.0, 2.0, 0.0, 1.0])
    loss = LOSSES[kind](label_smoothing=0.125)
    model.compile("sgd", loss)
    x = np.random.default_rng(0).uniform(-1, 1, (4, 8, 8, 3)).astype(np.float32)
    y = np.eye(5, dtype=np.float32)[:4]
    model.save(tmp_path / "m.keras")
    again = keras.saving.load_model(tmp_path / "m.keras")
    assert isinstance(again.loss, LOSSES[kind]) and again.loss.label_smoothing == 0.125
    # The mean of four float32 numbers of order 1 to 10.
    expected = reference(kind, y, ops.convert_to_numpy(model(x)), 0.125).mean()
    np.testing.assert_allclose(again.evaluate(x, y, verbose=0), expected, rtol=1e-6)


def test_sample_weights_weigh_examples():
    logits, targets = ORACLE["logits"], ORACLE["onehot"]
    weights = np.array([0.0, 2.0, 0.0, 0.0], np.float32)
    rows = ops.convert_to_numpy(softmax_cross_entropy(targets, logits))
    found = float(SoftmaxCrossEntropy()(targets, logits, sample_weight=weights))
    np.testing.assert_allclose(found, 2.0 * rows[1] / 4, rtol=1e-6)


@pytest.mark.parametrize("loss", LOSSES.values())
@pytest.mark.parametrize("shape", [(4,), (4, 1), (4, 6)])
def test_targets_of_another_shape_are_refused(loss, shape):
    with pytest.raises(ValueError, match=r"targets must have the shape of the logits, \(4, 7\)"):
        loss()(np.ones(shape, np.float32), np.zeros((4, 7), np.float32))


def test_the_heads_bias_starts_where_a_recipe_says():
    for spec in (TINY, ViTSpec(8, 12, 2, 1, (4, 4), image_size=(8, 8), distilled=True)):
        model = VisionModel(spec)
        others = [v for v in model.variables if "head" not in v.path]
        before = [ops.convert_to_numpy(v) for v in others]
        init_head_bias(model, -6.9)
        for name in ("head", "head_dist")[: 1 + spec.distilled]:
            bias = ops.convert_to_numpy(model.get_layer(name).bias)
            np.testing.assert_array_equal(bias, np.full(spec.num_classes, -6.9, np.float32))
        for value, variable in zip(before, others, strict=True):
            np.testing.assert_array_equal(value, ops.convert_to_numpy(variable))
    with pytest.raises(ValueError, match=r"has no head whose bias could start at -10"):
        init_head_bias(VisionModel(ViTSpec(8, 12, 2, 1, 4, image_size=8, num_classes=0)), -10.0)
