"""Masked patch prediction: counts, corruption, targets and loss against hand-computed numbers."""

import dataclasses
import json

import keras
import numpy as np
import pytest
from keras import ops
from PIL import Image

import keras_vit
from keras_vit.card import Preprocessing
from keras_vit.data.sources import arrays, open_source
from keras_vit.model import VisionModel
from keras_vit.pretext import figure, study
from keras_vit.pretext.corrupt import CorruptPatches, fixed_draws, steps_to_another
from keras_vit.pretext.model import MaskedPatchModel
from keras_vit.pretext.objective import Counts, Pretext
from keras_vit.pretext.targets import class_colours, colour_classes, targets_of
from keras_vit.results.store import Result
from keras_vit.spec import ViTSpec
from keras_vit.train import recipes, run
from keras_vit.train import task as tasks
from keras_vit.train.distribute import Placement
from keras_vit.train.finetune import finetune
from keras_vit.train.recipe import Recipe, Schedule

COLOUR = Pretext("mean_colour")
SPEC = ViTSpec(
    image_size=16, patch_size=4, hidden_size=8, mlp_dim=12, num_heads=2, num_layers=1, num_classes=3
)
BYTES = Preprocessing()
IMAGENET = Preprocessing(mean=(123.675, 116.28, 103.53), std=(58.395, 57.12, 57.375))


def masked(pretext=COLOUR, seed=1, dtype=None, **fields) -> MaskedPatchModel:
    keras.utils.set_random_seed(seed)
    return MaskedPatchModel(dataclasses.replace(SPEC, **fields), pretext, dtype=dtype)


def noise(count=3, side=16, channels=3, seed=0) -> np.ndarray:
    """Preprocessed images of random bytes."""
    pixels = np.random.default_rng(seed).integers(0, 256, (count, side, side, channels))
    return ((pixels - 127.5) / 127.5).astype(np.float32)


def numpy(x) -> np.ndarray:
    return ops.convert_to_numpy(x)


# How many patches.


@pytest.mark.parametrize(
    ("patches", "share", "masked", "replaced", "kept"),
    [
        (196, 0.5, 78, 10, 10),  # 98: 78.4, 9.8
        (49, 0.5, 20, 3, 2),  # 24.5 -> 25: 20, 2.5
        (256, 0.5, 102, 13, 13),  # 128: 102.4, 12.8
        (64, 0.5, 26, 3, 3),  # 32: 25.6, 3.2
        (4, 0.5, 2, 0, 0),  # 2: 1.6, 0.2
        (196, 0.15, 23, 3, 3),  # 29.4 -> 29: 23.2, 2.9
        (49, 0.15, 6, 1, 0),  # 7.35 -> 7: 5.6, 0.7
        (10, 0.15, 2, 0, 0),  # 1.5 -> 2: 1.6, 0.2; 0.15 in binary is less
        (2, 0.15, 1, 0, 0),  # 0.3 -> 0, but at least 1
        (5, 1.0, 4, 1, 0),  # 5: 4, 0.5
    ],
)
def test_counts_are_those_of_the_rule(patches, share, masked, replaced, kept):
    found = dataclasses.replace(COLOUR, share=share).counts(patches)
    assert found == Counts(masked, replaced, kept)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"target": "color"}, "target must be one of .*mean_colour.*'color'"),
        ({"share": 0.0}, r"share must be in \(0, 1\]"),
        ({"share": 1.5}, r"share must be in \(0, 1\]"),
        ({"mask": 0.8, "replace": 0.3}, "the sum is at most 1"),
        ({"bits_per_channel": 0}, "bits_per_channel must be 1 to 8"),
    ],
)
def test_wrong_settings_are_told(fields, message):
    with pytest.raises(ValueError, match=message):
        Pretext(**fields)


def test_networks_and_colours_that_do_not_fit_are_told():
    with pytest.raises(ValueError, match="at least 2 patches"):
        masked(image_size=4)
    with pytest.raises(ValueError, match=r"16,777,216 colours.*at most 65,536"):
        masked(Pretext("mean_colour", bits_per_channel=8))
    with pytest.raises(ValueError, match="pool='map'"):
        masked(pool="map")
    with pytest.raises(ValueError, match="needs patches and an encoder"):
        MaskedPatchModel(
            keras_vit.MixerSpec(image_size=8, patch_size=4, hidden_size=8, num_layers=1,
                                tokens_mlp_dim=4, channels_mlp_dim=4),
            COLOUR,
        )  # fmt: skip


# Which patches, and what becomes of them.


def corrupted_by(layer, batch: int, patches: int, training: bool):
    """For each patch: masked, the number of the patch that it shows (-1 masked), whether it is predicted."""
    x = np.arange(batch * patches, dtype=np.float32).reshape(batch, patches, 1)
    x = np.repeat(x, 2, axis=-1)
    if not layer.built:
        layer.build(x.shape)
    layer.mask_token.assign(np.full((1, 1, 2), -1.0))
    y, flags = (numpy(a) for a in layer(ops.convert_to_tensor(x), training=training))
    assert (y[..., 0] == y[..., 1]).all()  # whole embeddings
    return y[..., 0].astype(int), flags


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("patches", [49, 12])
def test_every_image_has_the_exact_counts(patches, training):
    counts = COLOUR.counts(patches)
    layer = CorruptPatches(**dataclasses.asdict(counts), seed=3)
    shown, flags = corrupted_by(layer, 300, patches, training)
    own = np.arange(300 * patches).reshape(300, patches)
    is_masked, is_other = shown == -1, (shown != -1) & (shown != own)
    assert (is_masked.sum(axis=1) == counts.masked).all()
    assert (is_other.sum(axis=1) == counts.replaced).all()  # another: never itself
    assert (flags.sum(axis=1) == counts.corrupted).all() and set(flags.ravel()) == {0.0, 1.0}
    assert flags[is_masked | is_other].all()
    # Of the same image.
    assert (shown // patches == own // patches)[is_other].all()


def test_each_patch_is_as_likely_as_any_other_to_be_corrupted_and_to_stand_in():
    counts = Counts(2, 3, 1)
    shown, flags = corrupted_by(CorruptPatches(2, 3, 1, seed=5), 4000, 12, True)
    # 4000 images: standard deviations of these shares are below 0.008.
    np.testing.assert_allclose((shown == -1).mean(axis=0), counts.masked / 12, atol=0.035)
    np.testing.assert_allclose(flags.mean(axis=0), counts.corrupted / 12, atol=0.035)
    own = np.arange(4000 * 12).reshape(4000, 12)
    images, places = np.nonzero((shown != -1) & (shown != own))
    steps = (shown[images, places] - own[images, places]) % 12
    np.testing.assert_allclose(np.bincount(steps, minlength=12)[1:] / len(steps), 1 / 11, atol=0.02)


def test_the_order_changes_with_every_batch_and_comes_again_with_the_seed():
    layers = [CorruptPatches(4, 1, 1, seed=seed) for seed in (1, 1, 2)]
    runs = [[corrupted_by(layer, 8, 12, True)[0] for _ in range(2)] for layer in layers]
    assert (runs[0][0] != runs[0][1]).any() and (runs[0][0] != runs[2][0]).any()
    np.testing.assert_array_equal(runs[0], runs[1])


def test_evaluation_corrupts_alike_on_every_backend():
    ranks, steps = fixed_draws(12)
    assert ranks[0].tolist() == RANKS and steps[0].tolist() == STEPS
    shown, flags = corrupted_by(CorruptPatches(2, 1, 1), 300, 12, False)
    assert (np.flatnonzero(shown[0] == -1) == np.flatnonzero(ranks[0] < 2)).all()
    place = int(np.flatnonzero(ranks[0] == 2)[0])
    assert shown[0, place] == (place + steps[0, place]) % 12
    assert (flags[0] == (ranks[0] < 4)).all()
    np.testing.assert_array_equal(flags[256:], flags[:44])  # after 256 images, again


# Copied from one run: they may never change, or scores of validation would.
RANKS = [6, 7, 0, 8, 4, 10, 9, 1, 5, 2, 3, 11]
STEPS = [3, 3, 5, 2, 8, 10, 7, 1, 2, 5, 5, 9]


def test_a_uniform_number_next_to_one_is_still_another_patch():
    draws = np.array([[0.0, 1 - 2.0**-24, 0.5, 0.2501] + [0.0] * 192], np.float32)
    assert numpy(steps_to_another(ops.convert_to_tensor(draws)))[0, :4].tolist() == [1, 195, 98, 49]


# What is to be predicted.


def one_patch(colours: np.ndarray, how=BYTES) -> np.ndarray:
    """A preprocessed image (1, h, w, C) of bytes."""
    x = (colours.astype(np.float32) - np.float32(how.mean)) / np.float32(how.std)
    return x[None].astype(np.float32)


@pytest.mark.parametrize(
    ("colour", "bits", "expected"),
    [
        ((0,), 3, 0), ((31,), 3, 0), ((32,), 3, 1), ((127,), 3, 3), ((128,), 3, 4),
        ((223,), 3, 6), ((224,), 3, 7), ((255,), 3, 7),
        ((127,), 1, 0), ((128,), 1, 1), ((255,), 8, 255), ((64,), 2, 1), ((63,), 2, 0),
        ((0, 0, 0), 3, 0), ((255, 255, 255), 3, 511), ((255, 0, 0), 3, 7 * 64), ((0, 0, 32), 3, 1),
        ((32, 64, 96), 3, 1 * 64 + 2 * 8 + 3), ((255, 0, 128), 1, 5), ((16, 250), 4, 1 * 16 + 15),
    ],
)  # fmt: skip
@pytest.mark.parametrize("how", [BYTES, Preprocessing(mean=(101.3,), std=(68.5,))])
def test_colours_at_the_edges_of_their_classes(colour, bits, expected, how):
    x = one_patch(np.broadcast_to(colour, (14, 14, len(colour))), how)
    for cells in (1, 4):
        found = numpy(colour_classes(ops.convert_to_tensor(x), (1, 1), (14, 14), how, cells, bits))
        assert found.shape == (1, 1, cells**2) and (found == expected).all()


def test_a_mean_is_that_of_all_pixels_and_rounds_down_to_its_class():
    grey = np.full((4, 4, 1), 32)
    grey[0, 0] = 31  # 31.94
    x = ops.convert_to_tensor(one_patch(grey))
    assert numpy(colour_classes(x, (1, 1), (4, 4), BYTES, 1, 3)).item() == 0
    cells = numpy(colour_classes(x, (1, 1), (4, 4), BYTES, 4, 3))[0, 0]
    assert cells.tolist() == [0] + [1] * 15  # one pixel each


def test_what_lies_beyond_the_bytes_counts_as_the_nearest():
    x = np.array([[[[-1.5], [1.5]]]], np.float32)
    assert numpy(colour_classes(x, (1, 2), (1, 1), BYTES, 1, 3)).ravel().tolist() == [0, 7]


def reference_classes(pixels, grid, patch, cells, bits):
    """Bytes (B, H, W, C) -> (B, N, cells^2), in float64: every pixel becomes a square of cells^2."""
    found = []
    for image in pixels:
        for row in range(grid[0]):
            for col in range(grid[1]):
                part = image[row * patch[0] : (row + 1) * patch[0]]
                part = part[:, col * patch[1] : (col + 1) * patch[1]].astype(np.float64)
                part = part.repeat(cells, axis=0).repeat(cells, axis=1)
                part = part.reshape(cells, patch[0], cells, patch[1], -1).mean(axis=(1, 3))
                levels = np.floor(part / 2 ** (8 - bits)).astype(int)
                number = np.zeros(levels.shape[:2], int)
                for channel in range(levels.shape[-1]):
                    number = number * 2**bits + levels[..., channel]
                found.append(number.ravel())
    return np.array(found).reshape(len(pixels), grid[0] * grid[1], cells**2)


@pytest.mark.parametrize(
    ("grid", "patch", "channels", "bits"),
    [((2, 3), (4, 4), 3, 3), ((2, 1), (14, 14), 1, 3), ((3, 2), (2, 6), 3, 2), ((1, 2), (16, 16), 1, 5)],
)  # fmt: skip
@pytest.mark.parametrize("cells", [1, 4])
def test_colours_are_those_of_a_reference(grid, patch, channels, bits, cells):
    how = IMAGENET if channels == 3 else BYTES
    rng = np.random.default_rng(7)
    # One pixel beyond the grid, which is left out, and few levels, so that means lie on edges.
    shape = (2, grid[0] * patch[0] + 1, grid[1] * patch[1] + 1, channels)
    pixels = rng.choice([0, 32, 64, 128, 255, 7], shape)
    x = ((pixels.astype(np.float32) - np.float32(how.mean)) / np.float32(how.std)).astype(
        np.float32
    )
    found = numpy(colour_classes(ops.convert_to_tensor(x), grid, patch, how, cells, bits))
    np.testing.assert_array_equal(found, reference_classes(pixels, grid, patch, cells, bits))


def test_pixels_are_those_of_each_patch_in_order():
    x = noise(2, 8, 2)
    found = numpy(targets_of(Pretext("pixels"), ops.convert_to_tensor(x), (2, 2), (4, 4), BYTES))
    assert found.shape == (2, 4, 32)
    np.testing.assert_array_equal(found[1, 2], x[1, 4:8, 0:4].ravel())


def test_a_class_is_drawn_in_its_middle():
    classes = np.array([0, 511, 7 * 64 + 1])
    expected = [[16, 16, 16], [240, 240, 240], [240, 16, 48]]
    np.testing.assert_array_equal(class_colours(classes, 3, 3), expected)


# Loss and model.


@pytest.mark.parametrize("target", ["mean_colour", "downsized", "pixels"])
def test_the_loss_is_that_of_corrupted_patches_alone(target):
    model, x = masked(Pretext(target)), noise()
    predictions, flags = (numpy(y) for y in model(x, training=False))
    rng = np.random.default_rng(2)
    predictions = rng.normal(size=predictions.shape).astype(np.float32)
    targets = numpy(model.targets(x))
    assert flags.sum(axis=1).tolist() == [8, 8, 8]
    # By hand, in float64.
    p, expected = predictions.astype(np.float64), []
    for image in range(3):
        losses = []
        for patch in np.flatnonzero(flags[image]):
            if target == "pixels":
                losses.append(np.mean((p[image, patch] - targets[image, patch]) ** 2))
                continue
            for cell, row in enumerate(p[image, patch]):
                losses.append(np.log(np.exp(row).sum()) - row[targets[image, patch, cell]])
        expected.append(np.mean(losses))

    def loss(values, images=x, weights=None):
        return model.compute_loss(images, None, (values, flags), weights)

    assert float(loss(predictions)) == pytest.approx(np.mean(expected), rel=1e-5)
    weighted = loss(predictions, weights=np.array([1.0, 0.0, 1.0], np.float32))
    assert float(weighted) == pytest.approx((expected[0] + expected[2]) / 3, rel=1e-5)

    found = gradient(loss, predictions)
    moved = np.abs(found).reshape(*flags.shape, -1).max(axis=-1) > 0
    np.testing.assert_array_equal(moved, flags > 0)  # exactly 0 elsewhere

    pixels = np.repeat(np.repeat(flags.reshape(3, 4, 4), 4, axis=1), 4, axis=2)[..., None]
    for where, changes in ((pixels == 0, False), (pixels > 0, True)):
        other = np.where(where, -x, x).astype(np.float32)
        assert (float(loss(predictions, other)) != float(loss(predictions))) == changes


def gradient(function, x: np.ndarray) -> np.ndarray:
    if keras.backend.backend() == "jax":
        import jax

        return np.asarray(jax.grad(lambda v: function(v))(x))
    import tensorflow as tf

    given = tf.constant(x)
    with tf.GradientTape() as tape:
        tape.watch(given)
        loss = function(given)
    return numpy(tape.gradient(loss, given))


@pytest.mark.parametrize(
    ("target", "share", "side"), [("mean_colour", 0.5, 16), ("downsized", 0.15, 12)]
)
def test_share_and_grid_do_not_change_the_scale(target, share, side):
    model, x = masked(Pretext(target, share=share), image_size=side), noise(2, side)
    predictions, flags = model(x, training=False)
    loss = model.compute_loss(x, None, (0.0 * predictions, flags))
    assert float(loss) == pytest.approx(np.log(512), rel=1e-5)


def test_uncorrupted_the_encoder_is_the_classifiers():
    model, x = masked(Pretext("pixels", share=1.0, mask=0.0, replace=0.0)), noise()
    plain = VisionModel(SPEC)
    plain.set_weights([numpy(w) for w in plain.weights])
    values = {v.path: v for v in model.weights}
    for variable in plain.weights:
        if not variable.path.startswith("head"):
            variable.assign(values[variable.path])
    encoded = numpy(plain.features("encoded")(x))[:, 1:]  # without class token
    kernel, bias = (numpy(w).astype(np.float64) for w in model.prediction.weights)
    found = numpy(model(x, training=True)[0])
    np.testing.assert_allclose(found, encoded @ kernel + bias, atol=1e-5)


def test_masked_patches_still_have_their_positions():
    model = masked(Pretext("pixels", share=1.0, mask=1.0, replace=0.0))
    first, second = numpy(model(noise(2), training=False)[0])
    np.testing.assert_allclose(first, second, atol=1e-6)  # nothing of the images is left
    assert np.abs(first[0] - first[1]).max() > 1e-4


@pytest.mark.parametrize("target", ["mean_colour", "pixels"])
def test_accuracy_is_the_share_of_right_colour_classes(target):
    model, x = masked(Pretext(target)), noise(2)
    targets, flags = numpy(model.targets(x)), np.zeros((2, 16), np.float32)
    flags[:, :4] = 1.0
    right = np.eye(512, dtype=np.float32)[targets] if target == "mean_colour" else targets.copy()
    right[0, :3] = -right[0, :3] if target == "pixels" else np.roll(right[0, :3], 1, axis=-1)
    right[:, 4:] = 0.0  # what is not corrupted does not count
    expected = (0.25 + 1.0) / 2
    if target == "pixels":  # some means may stay in their class
        whole = reference_classes((x * 127.5 + 127.5).round(), (4, 4), (4, 4), 1, 3)
        turned = reference_classes((-x * 127.5 + 127.5).round(), (4, 4), (4, 4), 1, 3)
        expected = ((whole == turned)[0, :3].sum() + 5) / 8
    logs = model.compute_metrics(x, None, (ops.convert_to_tensor(right), flags))
    assert float(logs["accuracy"]) == pytest.approx(expected)


@pytest.mark.parametrize("target", ["mean_colour", "downsized", "pixels"])
def test_grey_images_and_half_precision_train(target):
    spec = {"in_channels": 1, "pool": "gap", "image_size": 8}
    model = masked(Pretext(target), dtype="mixed_bfloat16", **spec)
    outputs, _ = model(noise(2, 8, 1))
    assert outputs.shape == {
        "mean_colour": (2, 4, 1, 8), "downsized": (2, 4, 16, 8), "pixels": (2, 4, 16)
    }[target] and keras.backend.standardize_dtype(outputs.dtype) == "float32"  # fmt: skip
    assert numpy(model.targets(noise(2, 8, 1))).max() <= 7


RECIPE = Recipe(epochs=2, batch_size=4, schedule=Schedule(5e-3), pretext=COLOUR)


def shades(count=12, side=8):
    """Images of one colour each, and labels that mean nothing."""
    levels = np.arange(count) % 4
    images = np.broadcast_to((levels * 64 + 20)[:, None, None, None], (count, side, side, 3))
    return arrays(images.astype(np.uint8), np.zeros(count, int), ["none"], "shades")


class Interrupt(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        if batch == 1 and self.model.optimizer.iterations > 3:
            raise KeyboardInterrupt


def test_a_run_resumes_within_an_epoch_to_the_same_numbers(tmp_path):
    small = {"image_size": 8, "dropout": 0.1}
    arguments = {"verbose": 0, "checkpoint_steps": 1}
    whole = masked(**small)
    expected = run.fit(whole, shades(), RECIPE, out=tmp_path / "a", **arguments)
    with pytest.raises(KeyboardInterrupt):
        stopped = {**arguments, "callbacks": (Interrupt(),)}
        run.fit(masked(**small), shades(), RECIPE, out=tmp_path / "b", **stopped)
    resumed = masked(seed=9, **small)  # whatever it starts from
    found = run.fit(resumed, shades(), RECIPE, out=tmp_path / "b", **arguments)
    assert found.resumed_from == 5 and found.steps == 6
    for a, b in zip(whole.variables, resumed.variables, strict=True):
        np.testing.assert_array_equal(numpy(a), numpy(b), err_msg=a.path)
    assert set(expected.history[0]) == {"loss", "accuracy"}
    for before, after in zip(expected.history, found.history, strict=True):
        assert after == pytest.approx(before, rel=1e-6)


def test_model_and_recipe_must_be_for_the_same():
    with pytest.raises(ValueError, match="predicts mean_colour, but the model was not made for it"):
        run.compile_for(VisionModel(SPEC), RECIPE, 5)
    with pytest.raises(ValueError, match="the recipe predicts labels"):
        run.compile_for(masked(), Recipe(), 5)


@pytest.mark.full
def test_it_learns_to_see_what_is_hidden():
    model = masked(image_size=8)
    recipe = dataclasses.replace(RECIPE, epochs=60)
    result = run.fit(model, shades(), recipe, validation=shades(4), verbose=0)
    # Two of four patches are seen, and all have the same colour.
    assert result.history[-1]["val_accuracy"] > 0.9 > result.history[0]["val_accuracy"]


# Through the commands' own machinery.


class Trained(keras.callbacks.Callback):
    """Keeps the weights that training ends with."""

    def on_train_end(self, logs=None):
        self.values = {v.path: numpy(v).copy() for v in self.model.weights}


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A finished smoke run of the recipe: folder, report, trained weights."""
    out, trained = tmp_path_factory.mktemp("runs") / "smoke", Trained()
    task = tasks.resolve("paper/masked_patch", smoke=True, changes=["pretext.target=downsized"])
    task = dataclasses.replace(task, validation=task.train)
    options = {"placement": Placement(), "smoke": True, "callbacks": lambda epochs: (trained,)}
    return out, tasks.run_task(task, out, **options), trained.values


def test_a_run_leaves_the_encoder_and_its_report(finished):
    out, report, _ = finished
    names = {path.name for path in out.iterdir()}
    assert {"model.keras", "model.npz", "report.md", "report.json", "metrics.jsonl"} <= names
    assert not {"checkpoints", "run.json"} & names
    assert json.loads((out / "report.json").read_text()) == json.loads(json.dumps(report))
    assert report["recipe"]["pretext"]["target"] == "downsized" and report["steps"] == 4
    assert set(report["history"][0]) == {"loss", "accuracy", "val_loss", "val_accuracy"}
    best = max(report["history"], key=lambda epoch: epoch["val_accuracy"])
    found = report["pretext"]
    assert (found["loss"], found["accuracy"]) == (best["val_loss"], best["val_accuracy"])
    text = (out / "report.md").read_text()
    assert "Masked patch prediction of `downsized`" in text
    if report["pretext"]["figure"]:
        with Image.open(out / report["pretext"]["figure"]) as picture:
            assert picture.size[0] > 300
        assert report["pretext"]["figure"] in text


def test_the_encoder_goes_back_to_a_classifier(finished):
    out, _, trained = finished
    for name, dtype in (("model.keras", np.float32), ("model.npz", np.float16)):
        model = keras_vit.load(out / name, num_classes=10)
        assert model.spec.num_classes == 10 and not model.has_usable_head
        for variable in model.weights:
            if variable.path.startswith("head/"):
                assert not numpy(variable).any()
                continue
            expected = trained[variable.path].astype(dtype).astype(np.float32)
            np.testing.assert_array_equal(numpy(variable), expected, err_msg=variable.path)
        assert {v.path for v in model.weights} - set(trained) == {"head/kernel", "head/bias"}


def test_it_is_fine_tuned_by_its_file(finished, tmp_path):
    out, _, trained = finished
    rng = np.random.default_rng(0)
    images, labels = rng.integers(0, 256, (8, 8, 8, 3), np.uint8), np.arange(8) % 2
    source = arrays(images, labels, ["a", "b"])
    recipe = Recipe(epochs=1, batch_size=4)
    found = finetune(
        out / "model.keras", source, out=tmp_path / "ft", recipe=recipe, freeze=True, val_split=0
    )
    for variable in found.model.weights:
        if not variable.path.startswith("head/"):
            np.testing.assert_array_equal(numpy(variable), trained[variable.path])
    assert numpy(found.model.get_layer("head").kernel).any()
    assert found.model.class_names == ("a", "b")


def test_a_checkpoint_may_be_pretrained_further():
    task = tasks.resolve("paper/masked_patch", model="ViT-B/16", data="fashion_mnist:subset_test")
    recipe = dataclasses.replace(task.recipe, from_checkpoint=True, image_size=28)
    task = dataclasses.replace(task, model="ViT-Mini/4", recipe=recipe)
    model, own = tasks.network_of(task), keras_vit.load("ViT-Mini/4")
    assert isinstance(model, MaskedPatchModel) and model.spec.num_classes == 0
    values = {v.path: numpy(v) for v in model.weights}
    for variable in own.weights:
        if not variable.path.startswith("head/"):
            np.testing.assert_array_equal(numpy(variable), values[variable.path])


def test_the_recipe_is_that_of_the_paper():
    recipe = recipes.resolve("paper/masked_patch")
    assert (recipe.steps, recipe.batch_size, recipe.image_size) == (1_000_000, 4096, 224)
    assert recipe.schedule == Schedule(base_lr=2e-4, decay="cosine", warmup_steps=10_000)
    optimizer = recipe.optimizer
    assert (optimizer.name, optimizer.beta_1, optimizer.beta_2) == ("adamw", 0.9, 0.999)
    assert recipe.pretext == Pretext("mean_colour", share=0.5, mask=0.8, replace=0.1)
    assert recipes.resolve("paper/masked_patch", share=0.15).pretext.share == 0.15
    assert recipes.resolve("paper/masked_patch", target="pixels").pretext.target == "pixels"
    # 14 epochs of JFT-300M, about.
    assert recipe.steps * recipe.batch_size / recipe.examples == pytest.approx(13.5, abs=0.1)


def test_images_without_labels_are_a_source(tmp_path):
    (tmp_path / "deeper").mkdir()
    for name in ("a.png", "deeper/b.png"):
        Image.new("RGB", (9, 9), "red").save(tmp_path / name)
    (tmp_path / "c.txt").write_text("no image")
    source = open_source(f"images:{tmp_path}")
    assert len(source) == 2 and source.num_classes == 1 and len(source.broken) == 1
    for name in ("nothing", "deeper/b.png"):
        with pytest.raises(ValueError, match="is no folder"):
            open_source(f"images:{tmp_path / name}")


def test_pictures_show_what_was_hidden_and_what_was_said():
    model = masked(Pretext("mean_colour", share=0.75, mask=0.34, replace=0.34), image_size=8)
    assert model.corruption.counts == Counts(1, 1, 1)  # of four patches
    colours = np.array([10, 90, 170, 250], np.uint8)
    image = colours.reshape(1, 2, 2, 1).repeat(4, axis=1).repeat(4, axis=2).repeat(3, axis=3)
    found = figure.reconstruct(model, (image.astype(np.float32) - 127.5) / 127.5)
    np.testing.assert_array_equal(found.original, image)
    ranks, steps = (draw[0] for draw in fixed_draws(4))
    first = {name: part[0, ::4, ::4, 0].ravel() for name, part in dataclasses.asdict(found).items()}
    place = [int(np.flatnonzero(ranks == rank)[0]) for rank in range(4)]
    assert first["corrupted"][place[0]] == figure.GREY
    assert first["corrupted"][place[1]] == colours[(place[1] + steps[place[1]]) % 4]
    middle = colours // 32 * 32 + 16
    for rank, patch in enumerate(place):
        assert first["wanted"][patch] == (colours if rank == 3 else middle)[patch]
        if rank > 1:
            assert first["corrupted"][patch] == colours[patch]
    assert first["predicted"][place[3]] == colours[place[3]]
    assert set(first["predicted"][place[:3]]) <= set(range(16, 256, 32))


# The study.


def test_a_part_of_the_labels_is_the_same_share_of_each_class():
    images = np.arange(200, dtype=np.uint8)[:, None, None, None] * np.ones((1, 4, 4, 1), np.uint8)
    train = arrays(images, np.arange(200) % 4, list("abcd"))
    found = [study.labelled(train, 0.1, seed) for seed in (0, 0, 1)]
    for source in found:
        assert np.bincount(source.labels).tolist() == [5, 5, 5, 5]  # of 50 each
        numbers = source.images[:, 0, 0, 0]
        assert len(set(numbers)) == 20 and (numbers % 4 == source.labels).all()
    np.testing.assert_array_equal(found[0].images, found[1].images)
    assert (found[0].images != found[2].images).any()
    assert np.bincount(study.labelled(train, 0.001, 0).labels).tolist() == [1, 1, 1, 1]
    rest, held_out = (part.images[:, 0, 0, 0] for part in study.parted(train, 60))
    assert sorted([*rest, *held_out]) == list(range(200)) and len(held_out) == 60


def test_the_table_of_the_study_has_means_and_deviations():
    rows = [
        Result("masked_patch", "ViT-Mini/4", "test", metric, value, settings=dict(
            start=start, labels=0.1, rate=1e-3, seed=seed, steps=5))
        for metric, start, seed, value in (
            ("accuracy", "random weights", 0, 0.5), ("accuracy", "random weights", 1, 0.7),
            ("accuracy", "masked patches", 0, 0.8), ("held-out", "masked patches", 0, 0.1),
        )
    ]  # fmt: skip
    text = study.table(rows)
    assert "| random weights | 60.00 ± 14.14 |" in text and "| masked patches | 80.00 |" in text
    assert "10% of the labels" in text and "10.00" not in text


@pytest.mark.full
def test_the_study_goes_on_where_it_was(tmp_path):
    plan = study.Plan(
        pretrain=dataclasses.replace(study.PRETRAIN, epochs=None, steps=2, batch_size=8),
        steps=((0.5, 2), (1.0, 3)), rates=(1e-3, 2e-3), sweep=0.5, held_out=20, seeds=(0, 1),
    )  # fmt: skip
    images = np.random.default_rng(0).integers(0, 256, (80, 28, 28, 1), np.uint8)
    train, told = arrays(images, np.arange(80) % 2, ["a", "b"], "some"), []
    about = (plan, train, train, tmp_path, tmp_path / "rows.jsonl")
    first = study.run_study(*about, starts=study.STARTS[:1], log=told.append)
    assert len(first) == 2 + 4 and not (tmp_path / study.ENCODER).exists()
    rows = study.run_study(*about, log=told.append)
    assert len(rows) == 12 and rows[:6] == first
    said = len(told)
    assert study.run_study(*about, log=told.append) == rows and len(told) == said
