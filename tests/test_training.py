"""The run: what it learns, that it resumes to the same numbers, and how it stops."""

import dataclasses
import json

import keras
import numpy as np
import pytest

from keras_vit.data.augment import Augment
from keras_vit.data.batches import Batches
from keras_vit.data.sources import arrays
from keras_vit.model import VisionModel
from keras_vit.spec import ViTSpec
from keras_vit.train import run
from keras_vit.train.recipe import Loss, Optimizer, Recipe, Schedule

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
    dropout=0.1,
    stochastic_depth=0.1,
)
RECIPE = Recipe(
    epochs=4,
    batch_size=8,
    schedule=Schedule(5e-3),
    optimizer=Optimizer(weight_decay=0.01),
    augment=Augment(flip=True, shift=True, mixup=0.1),
)


def blobs(count=30, seed=0):
    """Three classes that differ in which third of the image is bright."""
    rng = np.random.default_rng(seed)
    labels = np.arange(count) % 3
    images = rng.integers(0, 80, (count, 8, 8, 1), np.uint8)
    for image, label in zip(images, labels, strict=True):
        image[label * 3 : label * 3 + 2] += 150
    return arrays(images, labels, ["top", "middle", "bottom"], f"blobs{seed}")


def model(seed=1, **fields):
    keras.utils.set_random_seed(seed)
    return VisionModel(dataclasses.replace(SPEC, **fields))


def weights(trained):
    return [keras.ops.convert_to_numpy(w) for w in trained.weights]


class Stop(keras.callbacks.Callback):
    """Kills a run at the end of an epoch, or in the middle of the next."""

    def __init__(self, epoch, batch=None):
        super().__init__()
        self.epoch, self.batch, self.now = epoch, batch, 0

    def on_epoch_begin(self, epoch, logs=None):
        self.now = epoch

    def on_train_batch_end(self, batch, logs=None):
        if (self.now, batch) == (self.epoch, self.batch):
            raise KeyboardInterrupt


class Seen(Batches):
    """Notes (epoch, batch) of everything that training asks for."""

    noted: list = []  # noqa: RUF012

    def __getitem__(self, index):
        self.noted.append((self.epoch, index))
        return super().__getitem__(index)


@pytest.mark.case("T04")
def test_it_learns_and_keeps_the_best_epoch(tmp_path):
    trained = model()
    result = run.fit(
        trained,
        blobs(60),
        dataclasses.replace(RECIPE, epochs=12, base_lr=2e-2),
        validation=blobs(30, 1),
        out=tmp_path,
        verbose=0,
    )
    scores = [epoch["val_accuracy"] for epoch in result.history]
    assert len(scores) == 12 and result.resumed_from == 0 and result.seconds > 0
    assert max(scores) > 0.9
    assert scores[result.best_epoch - 1] == max(scores)
    assert result.best_epoch == int(np.argmax(scores)) + 1  # the first of equals
    batches = run.feed_for(trained, blobs(30, 1), RECIPE, training=False)
    found = np.concatenate([trained.probabilities(batches[i][0]) for i in range(len(batches))])
    accuracy = (found.argmax(1) == np.arange(30) % 3).mean()
    assert accuracy == pytest.approx(max(scores), abs=1e-6)


def test_a_killed_run_resumes_to_the_same_numbers(tmp_path):
    whole = model()
    expected = run.fit(
        whole, blobs(), RECIPE, validation=blobs(12, 1), out=tmp_path / "a", verbose=0
    )

    with pytest.raises(KeyboardInterrupt):
        run.fit(
            model(),
            blobs(),
            RECIPE,
            validation=blobs(12, 1),
            out=tmp_path / "b",
            verbose=0,
            callbacks=(Stop(2, 1),),
        )
    resumed = model(seed=99)  # whatever it starts from
    found = run.fit(
        resumed, blobs(), RECIPE, validation=blobs(12, 1), out=tmp_path / "b", verbose=0
    )

    assert found.resumed_from == 2 and expected.resumed_from == 0
    assert found.best_epoch == expected.best_epoch
    for a, b in zip(found.history, expected.history, strict=True):
        assert a.keys() == b.keys()
        for key in a:
            # Threads of one machine may sum in another order; seen: equal to the last bit.
            assert a[key] == pytest.approx(b[key], abs=1e-6)
    for a, b in zip(weights(resumed), weights(whole), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-6)
    finished = run.fit(
        model(), blobs(), RECIPE, validation=blobs(12, 1), out=tmp_path / "b", verbose=0
    )
    assert finished.resumed_from == 4 and finished.history == found.history


def test_each_epoch_has_its_own_batches_also_after_resuming(tmp_path, monkeypatch):
    monkeypatch.setattr(run, "Batches", Seen)
    monkeypatch.setattr(Seen, "noted", [])
    with pytest.raises(KeyboardInterrupt):
        run.fit(model(), blobs(), RECIPE, out=tmp_path, verbose=0, callbacks=(Stop(1, 0),))
    Seen.noted.clear()
    run.fit(model(), blobs(), RECIPE, out=tmp_path, verbose=0)
    # Keras peeks at batches before it starts; what it trains on comes last, epochs 2 to 4.
    steps = [(epoch, index) for epoch in (2, 3, 4) for index in range(3)]
    assert Seen.noted[-len(steps) :] == steps


def test_what_lies_beside_the_state(tmp_path):
    run.fit(model(), blobs(), dataclasses.replace(RECIPE, epochs=1), out=tmp_path, verbose=0)
    about = json.loads((tmp_path / "recipe.json").read_text())
    assert about["recipe"]["base_lr"] == RECIPE.base_lr
    assert about["data"]["examples"] == 30
    assert about["spec"]["hidden_size"] == 12
    assert about["versions"]["keras"] == keras.__version__
    assert {p.name for p in tmp_path.iterdir()} == {"recipe.json", "state.npz"}


def test_the_state_of_another_run_is_refused(tmp_path):
    one = dataclasses.replace(RECIPE, epochs=1)
    run.fit(model(), blobs(), one, out=tmp_path, verbose=0)
    for changed, words in (
        ((model(), blobs(), dataclasses.replace(one, base_lr=1.0)), "another recipe"),
        ((model(), blobs(33), one), "another data"),
        ((model(hidden_size=24), blobs(), one), "another spec"),
    ):
        before = weights(changed[0])
        with pytest.raises(ValueError, match=f"{words}.*new folder"):
            run.fit(*changed, out=tmp_path, verbose=0)
        for a, b in zip(weights(changed[0]), before, strict=True):
            np.testing.assert_array_equal(a, b)


def test_a_damaged_state_and_an_unusable_folder(tmp_path):
    (tmp_path / "state.npz").write_bytes(b"PK\x03\x04 half of it")
    with pytest.raises(ValueError, match=r"state\.npz cannot be read.*delete it"):
        run.fit(model(), blobs(), RECIPE, out=tmp_path, verbose=0)
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="cannot be made a folder for the run"):
        run.fit(model(), blobs(), RECIPE, out=tmp_path / "file", verbose=0)


def test_nan_stops_with_the_step_and_the_last_good_state(tmp_path):
    class Poison(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            if batch == 1 and self.model.optimizer.iterations == 4:
                self.model.get_layer("head").bias.assign([np.nan] * 3)

    with pytest.raises(
        FloatingPointError, match=r"epoch 2 at step 2: lower base_lr \(0.005\)"
    ) as e:
        run.fit(model(), blobs(), RECIPE, out=tmp_path, verbose=0, callbacks=(Poison(),))
    assert f"epoch 1 in {tmp_path / 'state.npz'}" in str(e.value)
    again = model()
    assert run.fit(again, blobs(), RECIPE, out=tmp_path, verbose=0).resumed_from == 1
    assert np.isfinite(np.concatenate([w.ravel() for w in weights(again)])).all()


def test_early_stopping(tmp_path):
    patient = dataclasses.replace(RECIPE, epochs=30, early_stopping=2, base_lr=0.0)
    result = run.fit(model(), blobs(), patient, validation=blobs(12, 1), out=tmp_path, verbose=0)
    assert len(result.history) == 3 and result.best_epoch == 1
    again = run.fit(model(), blobs(), patient, validation=blobs(12, 1), out=tmp_path, verbose=0)
    assert len(again.history) == 3


def test_multi_label_targets():
    rng = np.random.default_rng(3)
    labels = rng.integers(0, 2, (64, 3))
    images = np.full((64, 8, 8, 1), 20, np.uint8)
    for image, row in zip(images, labels, strict=True):
        for label in np.flatnonzero(row):
            image[label * 3 : label * 3 + 2] = 230
    source = arrays(images, labels, ["top", "middle", "bottom"])
    recipe = Recipe(epochs=30, batch_size=16, base_lr=2e-2, class_weights="balanced")
    trained = model(dropout=0.0, stochastic_depth=0.0)
    result = run.fit(trained, source, recipe, verbose=0)
    assert result.history[-1]["accuracy"] > 0.9  # of single labels, not of sets
    batches = run.feed_for(trained, source, recipe, training=False)
    logits = np.concatenate(
        [trained.predict(batches[i][0], verbose=0) for i in range(len(batches))]
    )
    assert ((logits > 0) == labels).mean() == pytest.approx(
        trained.evaluate(batches, verbose=0, return_dict=True)["accuracy"], abs=1e-6
    )


def test_class_weights_balance_rare_classes():
    labels = np.repeat([0, 1, 2], [60, 30, 10])
    source = arrays(np.zeros((100, 8, 8, 1), np.uint8), labels, "abc")
    factors = run.balanced_weights(source)
    np.testing.assert_allclose(factors, [100 / 180, 100 / 90, 100 / 30], rtol=1e-6)
    assert factors[labels].mean() == pytest.approx(1.0)
    weighted = dataclasses.replace(RECIPE, class_weights="balanced", mixup_alpha=0.0)
    _, y, factor = run.feed_for(model(), source, weighted, training=True)[0]
    np.testing.assert_allclose(factor, factors[y.argmax(1)], rtol=1e-6)
    assert len(run.feed_for(model(), source, weighted, training=False)[0]) == 2
    # With no image to tell classes apart, balanced training predicts them alike often.
    means = []
    for kind in (None, "balanced"):
        recipe = Recipe(epochs=12, batch_size=20, base_lr=1e-1, class_weights=kind)
        trained = model(dropout=0.0, stochastic_depth=0.0)
        run.fit(trained, source, recipe, verbose=0)
        means.append(trained.probabilities(np.full((1, 8, 8, 1), -1, np.float32))[0])
    np.testing.assert_allclose(means[0], [0.6, 0.3, 0.1], atol=0.06)
    np.testing.assert_allclose(means[1], [1 / 3] * 3, atol=0.06)


def test_half_precision_with_its_loss_scale_resumes_too(tmp_path):
    def make():
        keras.utils.set_random_seed(1)
        return VisionModel(SPEC, dtype="mixed_float16")

    recipe = dataclasses.replace(RECIPE, epochs=2, optimizer="sgd")
    whole = make()
    run.fit(whole, blobs(), recipe, verbose=0)
    with pytest.raises(KeyboardInterrupt):
        run.fit(make(), blobs(), recipe, out=tmp_path, verbose=0, callbacks=(Stop(1, 1),))
    resumed = make()
    assert run.fit(resumed, blobs(), recipe, out=tmp_path, verbose=0).resumed_from == 1
    for a, b in zip(weights(resumed), weights(whole), strict=True):
        # Threads may sum in another order, which half precision turns into its own rounding.
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-3)


def test_a_head_of_another_size_is_refused():
    with pytest.raises(
        ValueError, match=r"has 3 classes, but the head of the model has 5.*num_classes=3"
    ):
        run.fit(model(num_classes=5), blobs(), RECIPE)


@pytest.mark.parametrize(
    "fields, words",
    [
        ({"optimizer": "lion"}, "optimizer must be one of"),
        ({"decay": "step"}, "decay must be one of"),
        ({"class_weights": "auto"}, "class_weights must be None or 'balanced'"),
        ({"epochs": 0}, "epochs must be at least 1, got 0"),
        ({"batch_size": 0}, "batch_size must be at least 1"),
        ({"augment": ("spin",)}, r"unknown augmentations \['spin'\]"),
        ({"warmup_fraction": 1.0}, r"warmup_fraction must be in \[0, 1\)"),
        ({"label_smoothing": -0.1}, r"label_smoothing must be in \[0, 1\)"),
        ({"base_lr": float("nan")}, "base_lr must be zero or more"),
        ({"clip_norm": 0.0}, "clip_norm must be positive or None"),
        ({"early_stopping": 0}, "early_stopping must be at least 1"),
    ],
)
def test_recipes_are_checked(fields, words):
    with pytest.raises(ValueError, match=words):
        Recipe(**fields)
