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


def changed(recipe=RECIPE, **fields):
    """A recipe with other values, those of its parts by the names of their fields."""
    for name in ("schedule", "optimizer", "loss", "augment"):
        part = getattr(recipe, name)
        own = {k: fields.pop(k) for k in list(fields) if k in part.__dataclass_fields__}
        recipe = dataclasses.replace(recipe, **{name: dataclasses.replace(part, **own)})
    return dataclasses.replace(recipe, **fields)


class Stop(keras.callbacks.Callback):
    """Ctrl-C after a batch of an epoch."""

    def __init__(self, epoch, batch):
        super().__init__()
        self.epoch, self.batch, self.now = epoch, batch, 0

    def on_epoch_begin(self, epoch, logs=None):
        self.now = epoch

    def on_train_batch_end(self, batch, logs=None):
        if (self.now, batch) == (self.epoch, self.batch):
            raise KeyboardInterrupt


class Seen(Batches):
    """Notes the step of everything that training asks for."""

    noted: list = []  # noqa: RUF012

    def __getitem__(self, index):
        if self.training:
            self.noted.append(self.start + index)
        return super().__getitem__(index)


@pytest.mark.case("T04")
def test_it_learns_and_keeps_the_best_epoch(tmp_path):
    trained = model()
    result = run.fit(
        trained,
        blobs(60),
        changed(epochs=12, base_lr=2e-2),
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


@pytest.mark.parametrize("stop", [(2, 0), (2, 1)], ids=["new epoch", "mid-epoch"])
def test_an_interrupted_run_resumes_to_the_same_numbers(tmp_path, stop):
    recipe = changed(epochs=3.7, average=0.8)
    arguments = {"validation": blobs(12, 1), "verbose": 0, "checkpoint_steps": 2}
    whole = model()
    expected = run.fit(whole, blobs(), recipe, out=tmp_path / "a", **arguments)

    with pytest.raises(KeyboardInterrupt):
        run.fit(model(), blobs(), recipe, out=tmp_path / "b", callbacks=(Stop(*stop),), **arguments)
    resumed = model(seed=99)  # whatever it starts from
    found = run.fit(resumed, blobs(), recipe, out=tmp_path / "b", **arguments)

    assert (found.resumed_from, found.steps) == (8 if stop[1] else 6, 11)
    assert expected.resumed_from == 0 and len(expected.history) == 4
    assert found.best_epoch == expected.best_epoch
    for a, b in zip(found.history, expected.history, strict=True):
        # Threads of one machine may sum in another order; seen: equal to the last bit.
        assert a == pytest.approx(b, abs=1e-6)
    for a, b in zip(weights(resumed), weights(whole), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-6)
    finished = model()
    again = run.fit(finished, blobs(), recipe, out=tmp_path / "b", **arguments)
    assert again.resumed_from == 11 and again.history == found.history
    for a, b in zip(weights(finished), weights(resumed), strict=True):
        np.testing.assert_array_equal(a, b)


def test_each_step_has_its_own_batch_also_after_resuming(tmp_path, monkeypatch):
    monkeypatch.setattr(run, "Batches", Seen)
    monkeypatch.setattr(Seen, "noted", [])
    recipe = changed(epochs=None, steps=8)
    arguments = {"out": tmp_path, "verbose": 0, "checkpoint_steps": 1}
    with pytest.raises(KeyboardInterrupt):
        run.fit(model(), blobs(), recipe, callbacks=(Stop(1, 0),), **arguments)
    Seen.noted.clear()
    assert run.fit(model(), blobs(), recipe, **arguments).resumed_from == 4
    # Keras peeks at batches before it starts; what it trains on follows each time.
    assert [step for step, after in zip(Seen.noted, Seen.noted[1:], strict=False) if after <= step]
    assert [*dict.fromkeys(Seen.noted)] == [4, 5, 6, 7]


@pytest.mark.parametrize(
    ("start", "total", "expected"),
    [
        (0, 12, [(0, 12, 3)]),
        (0, 10, [(0, 8, 2), (8, 10, 1)]),
        (0, 3, [(0, 3, 1)]),
        (1, 3, [(1, 3, 1)]),
        (4, 12, [(4, 12, 2)]),
        (5, 12, [(5, 8, 1), (8, 12, 1)]),
        (5, 14, [(5, 8, 1), (8, 12, 1), (12, 14, 1)]),
        (12, 12, []),
        (10, 10, []),
    ],
)
def test_sittings_finish_a_run_of_epochs_of_four_steps(start, total, expected):
    assert run.sittings(start, total, 4) == expected


def test_what_lies_beside_the_checkpoints(tmp_path):
    run.fit(model(), blobs(), changed(epochs=1), out=tmp_path, verbose=0)
    about = json.loads((tmp_path / "recipe.json").read_text())
    assert about["recipe"]["schedule"]["base_lr"] == RECIPE.schedule.base_lr
    assert about["data"]["examples"] == 30
    assert about["spec"]["hidden_size"] == 12
    assert about["versions"]["keras"] == keras.__version__
    assert {p.name for p in tmp_path.iterdir()} == {"recipe.json", "metrics.jsonl", "checkpoints"}
    (line,) = map(json.loads, (tmp_path / "metrics.jsonl").read_text().splitlines())
    assert (line["step"], line["epoch"]) == (3, 1.0) and line["loss"] > 0 and line["seconds"] > 0
    assert line["lr"] == pytest.approx(5e-3 * 0.5 * (1 + np.cos(np.pi * 2 / 3)), rel=1e-5)


def test_the_state_of_another_run_is_refused(tmp_path):
    one = changed(epochs=1)
    run.fit(model(), blobs(), one, out=tmp_path, verbose=0)
    for arguments, words in (
        ((model(), blobs(), changed(one, base_lr=1.0)), "another recipe"),
        ((model(), blobs(33), one), "another data"),
        ((model(hidden_size=24), blobs(), one), "another spec"),
    ):
        before = weights(arguments[0])
        with pytest.raises(ValueError, match=f"{words}.*new folder"):
            run.fit(*arguments, out=tmp_path, verbose=0)
        for a, b in zip(weights(arguments[0]), before, strict=True):
            np.testing.assert_array_equal(a, b)


def test_an_unusable_folder(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="cannot be made a folder for the run"):
        run.fit(model(), blobs(), RECIPE, out=tmp_path / "file", verbose=0)


def test_early_stopping(tmp_path):
    patient = changed(epochs=30, early_stopping=2, base_lr=0.0)
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
    recipe = Recipe(
        epochs=30, batch_size=16, schedule=Schedule(2e-2), loss=Loss(class_weights="balanced")
    )
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
    weighted = changed(class_weights="balanced", mixup=0.0)
    _, y, factor = run.feed_for(model(), source, weighted, training=True)[0]
    np.testing.assert_allclose(factor, factors[y.argmax(1)], rtol=1e-6)
    assert len(run.feed_for(model(), source, weighted, training=False)[0]) == 2
    # With no image to tell classes apart, balanced training predicts them alike often.
    means = []
    for kind in (None, "balanced"):
        recipe = Recipe(
            epochs=12, batch_size=20, schedule=Schedule(1e-1), loss=Loss(class_weights=kind)
        )
        trained = model(dropout=0.0, stochastic_depth=0.0)
        run.fit(trained, source, recipe, verbose=0)
        means.append(trained.probabilities(np.full((1, 8, 8, 1), -1, np.float32))[0])
    np.testing.assert_allclose(means[0], [0.6, 0.3, 0.1], atol=0.06)
    np.testing.assert_allclose(means[1], [1 / 3] * 3, atol=0.06)


def test_scores_of_averaged_weights_do_not_change_what_is_trained():
    """Weights and averages change places for a validation, and back."""
    recipe, losses = changed(epochs=3, average=0.8), []
    for validation in (None, blobs(9, 1)):
        done = run.fit(model(), blobs(), recipe, validation=validation, verbose=0)
        losses.append([epoch["loss"] for epoch in done.history])
    np.testing.assert_allclose(*losses, rtol=1e-6)


class Averaging(keras.callbacks.Callback):
    """The averages of the weights, as NumPy makes them, at the end of each epoch."""

    def __init__(self):
        super().__init__()
        self.now, self.ends = None, []

    def on_train_batch_end(self, batch, logs=None):
        values = [np.array(w, np.float64) for w in weights(self.model)]
        before = self.now or values
        self.now = [0.8 * a + 0.2 * b for a, b in zip(before, values, strict=True)]

    def on_epoch_end(self, epoch, logs=None):
        self.ends.append(self.now)


@pytest.mark.parametrize("kept", [True, False], ids=["in a folder", "in memory"])
def test_the_averages_of_the_best_epoch_are_validated_and_kept(tmp_path, kept):
    trained, averaging = model(dropout=0.0, stochastic_depth=0.0), Averaging()
    validation, recipe = blobs(31, 1), changed(epochs=3, average=0.8, base_lr=3e-2)
    result = run.fit(
        trained,
        blobs(),
        recipe,
        validation=validation,
        out=tmp_path if kept else None,
        verbose=0,
        callbacks=(averaging,),
    )
    expected = averaging.ends[result.best_epoch - 1]
    for a, b in zip(weights(trained), expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-5)
    batches = run.feed_for(trained, validation, recipe, training=False)
    score = trained.evaluate(batches, verbose=0, return_dict=True)
    assert score["loss"] == pytest.approx(
        result.history[result.best_epoch - 1]["val_loss"], rel=1e-5
    )


def test_half_precision_with_its_loss_scale_resumes_too(tmp_path):
    def make():
        keras.utils.set_random_seed(1)
        return VisionModel(SPEC, dtype="mixed_float16")

    recipe = changed(epochs=2, name="sgd", average=0.9)
    arguments = {"checkpoint_steps": 1, "verbose": 0}
    whole = make()
    run.fit(whole, blobs(), recipe, **arguments)
    with pytest.raises(KeyboardInterrupt):
        run.fit(make(), blobs(), recipe, out=tmp_path, callbacks=(Stop(1, 1),), **arguments)
    resumed = make()
    assert run.fit(resumed, blobs(), recipe, out=tmp_path, **arguments).resumed_from == 5
    assert float(resumed.optimizer.dynamic_scale) == float(whole.optimizer.dynamic_scale)
    for a, b in zip(weights(resumed), weights(whole), strict=True):
        # Threads may sum in another order, which half precision turns into its own rounding.
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-3)


def test_a_head_of_another_size_is_refused():
    with pytest.raises(
        ValueError, match=r"has 3 classes, but the head of the model has 5.*num_classes=3"
    ):
        run.fit(model(num_classes=5), blobs(), RECIPE)


@pytest.mark.parametrize(
    ("part", "fields", "words"),
    [
        (Optimizer, {"name": "lion"}, "name must be one of"),
        (Optimizer, {"clip_norm": 0.0}, "clip_norm must be positive or None"),
        (Optimizer, {"average": 1.0}, r"average must be in \(0, 1\) or None"),
        (Schedule, {"decay": "step"}, "decay must be one of"),
        (Schedule, {"warmup_fraction": 1.0}, r"warmup_fraction must be in \[0, 1\)"),
        (Schedule, {"base_lr": float("nan")}, "base_lr must be zero or more"),
        (Loss, {"class_weights": "auto"}, "class_weights must be None or 'balanced'"),
        (Loss, {"label_smoothing": -0.1}, r"label_smoothing must be in \[0, 1\)"),
        (Augment, {"crop": "spin"}, "crop must be one of"),
        (Recipe, {"epochs": 0}, "epochs must be more than 0, got 0"),
        (Recipe, {"steps": 3}, "give one of them and None for the other"),
        (Recipe, {"batch_size": 0}, "batch_size must be at least 1"),
        (Recipe, {"early_stopping": 0}, "early_stopping must be at least 1"),
    ],
)
def test_recipes_are_checked(part, fields, words):
    with pytest.raises(ValueError, match=words):
        part(**fields)
