"""One update on one device, against what plain Keras and NumPy make of the same batch."""

import keras
import numpy as np
import pytest
from keras import ops

from keras_vit import VisionModel, ViTSpec
from keras_vit.stepping import parts_of
from keras_vit.train.optimizers import SGD, AdamW

SPEC = ViTSpec(
    hidden_size=12,
    mlp_dim=20,
    num_heads=3,
    num_layers=1,
    patch_size=4,
    image_size=8,
    in_channels=1,
    num_classes=3,
    pool="gap",
)
RATE, CLIP = 0.5, 0.05
RNG = np.random.default_rng(0)
BYTES = RNG.integers(0, 256, (24, 8, 8, 1), np.uint8)
X = (BYTES / 127.5 - 1.0).astype(np.float32)
Y = np.eye(3, dtype=np.float32)[np.arange(24) % 3]
WEIGHTS = RNG.uniform(0.5, 2.0, 24).astype(np.float32)


def model(dtype=None) -> VisionModel:
    made, rng = VisionModel(SPEC, dtype=dtype), np.random.default_rng(1)
    for variable in made.weights:
        variable.assign(rng.normal(0, 0.3, variable.shape).astype(np.float32))
    return made


def compiled(made: keras.Model, optimizer=None, **options) -> keras.Model:
    made.compile(
        optimizer or keras.optimizers.SGD(RATE),
        keras.losses.CategoricalCrossentropy(from_logits=True),
        weighted_metrics=[keras.metrics.CategoricalAccuracy("accuracy")],
        **options,
    )
    return made


def train(made: keras.Model, weights=WEIGHTS, epochs: int = 1) -> dict[str, list[float]]:
    """Three updates with batches of 8 in each epoch."""
    done = made.fit(
        X, Y, sample_weight=weights, batch_size=8, epochs=epochs, shuffle=False, verbose=0
    )
    return done.history


def values(variables) -> list[np.ndarray]:
    return [np.array(ops.convert_to_numpy(v), np.float32) for v in variables]


def assert_close(found, expected, atol: float) -> None:
    for a, b in zip(values(found), values(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=atol)


@pytest.fixture(scope="module")
def plain():
    """The same network as an ordinary Keras model, trained by Keras's own step, which on one device
    clips as it should."""
    made = model()
    ordinary = keras.Model(made.inputs, made.outputs)
    history = train(compiled(ordinary, keras.optimizers.SGD(RATE, global_clipnorm=CLIP)))
    moved = max(
        np.abs(a - b).max()
        for a, b in zip(values(made.weights), values(model().weights), strict=True)
    )
    assert moved > 3e-3
    return ordinary, history


@pytest.mark.case("T11")
@pytest.mark.parametrize("parts", [1, 4])
def test_a_step_is_that_of_keras_in_one_part_or_in_four(plain, parts):
    ordinary, history = plain
    ours = compiled(model(), clip_norm=CLIP, accumulation_steps=parts)
    found = train(ours)
    # The same sums in another order: float32 rounding of gradients of order 1.
    assert_close(ours.weights, ordinary.weights, 2e-6)
    for name in ("loss", "accuracy"):
        assert found[name] == pytest.approx(history[name], rel=1e-5)
    assert int(ours.optimizer.iterations) == 3


def test_without_clipping_the_step_is_longer(plain):
    ours = compiled(model())
    train(ours)
    assert (
        max(
            np.abs(a - b).max()
            for a, b in zip(values(ours.weights), values(plain[0].weights), strict=True)
        )
        > 0.05
    )


def test_averages_advance_once_per_update():
    found = []
    for parts in (1, 4):
        ours = compiled(model(), SGD(learning_rate=RATE, average=0.5), accumulation_steps=parts)
        train(ours)
        found.append([v for v in ours.optimizer.variables if "average" in v.path])
    assert len(found[0]) == len(model().trainable_variables)
    assert_close(found[1], found[0], 5e-6)


def test_clipping_bounds_the_norm_of_what_is_applied():
    ours = compiled(model(), clip_norm=1e-3)
    before = values(ours.weights)
    ours.fit(X[:8], Y[:8], verbose=0)
    norm = np.sqrt(
        sum(np.sum((a - b) ** 2) for a, b in zip(values(ours.weights), before, strict=True))
    )
    # A difference of weights of order 1 in float32, of 1,000 numbers.
    assert norm == pytest.approx(RATE * 1e-3, rel=1e-2)


@pytest.mark.parametrize("batch_size", [5, 24])
def test_evaluation_counts_every_example_by_its_weight(batch_size):
    ours = compiled(model())
    logits = ours.predict(X, verbose=0).astype(np.float64)
    losses = np.log(np.exp(logits).sum(1)) - logits[np.arange(24), np.arange(24) % 3]
    hits = logits.argmax(1) == np.arange(24) % 3
    padding = np.repeat([1.0, 0.0], [19, 5])  # as what fills up a last batch
    for images, weights in ((X, np.ones(24)), (X, WEIGHTS), (BYTES, padding)):
        found = ours.evaluate(
            images, Y, sample_weight=weights.astype(np.float32), batch_size=batch_size,
            verbose=0, return_dict=True,
        )  # fmt: skip
        assert found["loss"] == pytest.approx(np.average(losses, weights=weights), rel=1e-5)
        assert found["accuracy"] == pytest.approx(np.average(hits, weights=weights), rel=1e-5)


def test_bytes_are_trained_on_as_their_normalised_values():
    first, second = compiled(model()), compiled(model())
    first.fit(X[:8], Y[:8], verbose=0)
    second.fit(BYTES[:8], Y[:8], verbose=0)
    assert_close(first.weights, second.weights, 1e-5)


def test_float16_scales_the_loss_and_clips_what_is_unscaled():
    ours = compiled(model("mixed_float16"), clip_norm=CLIP, accumulation_steps=2)
    assert isinstance(ours.optimizer, keras.optimizers.LossScaleOptimizer)
    full = compiled(model(), clip_norm=CLIP)
    before = values(ours.weights)
    for each in (ours, full):
        each.fit(X[:8], Y[:8], verbose=0)
    steps = [
        np.concatenate([(a - b).ravel() for a, b in zip(values(m.weights), before, strict=True)])
        for m in (ours, full)
    ]
    # Half precision keeps three digits of a gradient.
    assert np.linalg.norm(steps[0] - steps[1]) < 2e-2 * np.linalg.norm(steps[1])
    assert float(ours.optimizer.dynamic_scale) == 2.0**15


def test_an_overflow_in_float16_skips_the_update_and_halves_the_scale():
    optimizer = SGD(learning_rate=RATE, average=0.5)
    ours = compiled(model("mixed_float16"), optimizer, clip_norm=CLIP)
    ours.optimizer.build(ours.trainable_variables)
    ours.optimizer.dynamic_scale.assign(2.0**30)
    before = values([*ours.weights, *optimizer.variables])
    ours.fit(X[:8], Y[:8], verbose=0)
    for a, b in zip(values([*ours.weights, *optimizer.variables]), before, strict=True):
        np.testing.assert_array_equal(a, b)
    assert float(ours.optimizer.dynamic_scale) == 2.0**29


@pytest.mark.parametrize("dtype", ["float32", "mixed_float16"])
def test_a_saved_model_goes_on_as_it_was_compiled(tmp_path, dtype):
    optimizer = AdamW(learning_rate=1e-2, decay=0.1, moment_dtype="bfloat16", average=0.9)
    ours = compiled(model(dtype), optimizer, clip_norm=CLIP, accumulation_steps=2)
    train(ours)
    ours.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    assert (again._clip_norm, again._accumulation_steps) == (CLIP, 2)
    assert type(again.optimizer) is type(ours.optimizer)
    for a, b in zip(again.optimizer.variables, ours.optimizer.variables, strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(*values([a, b]))
    for each in (ours, again):
        train(each)
    # The same operations in the same order; only threads inside a kernel may sum differently.
    assert_close(again.weights, ours.weights, 1e-6 if dtype == "float32" else 1e-3)


def test_what_the_step_does_itself_is_refused_in_an_optimizer():
    for option, instead in (
        ({"global_clipnorm": 1.0}, "clip_norm"),
        ({"gradient_accumulation_steps": 2}, "accumulation_steps"),
    ):
        with pytest.raises(
            ValueError, match=f"has {next(iter(option))}.*give {instead} to compile"
        ):
            compiled(model(), keras.optimizers.SGD(RATE, **option), clip_norm=1.0)


def test_parts_of_a_batch_are_strided_and_equal():
    found, nothing = parts_of((ops.arange(8), None), 4)
    np.testing.assert_array_equal(ops.convert_to_numpy(found), [[0, 4], [1, 5], [2, 6], [3, 7]])
    assert nothing is None
    with pytest.raises(
        ValueError, match=r"a batch of 6 examples .* accumulation_steps=4 equal part"
    ):
        parts_of((ops.arange(6),), 4)


def test_parts_of_a_batch_without_weights_given_by_hand():
    # Keras then gives the step a None in place of the weights.
    model = VisionModel(SPEC)
    model.compile("sgd", "mse", accumulation_steps=2)
    x = np.zeros((4, *model.input_shape[1:]), np.float32)
    assert np.isfinite(model.train_on_batch(x, np.zeros((4, SPEC.num_classes), np.float32)))
