"""Fine-tuning: what it learns, what it writes, how it goes on after a kill, what it refuses."""

import dataclasses
import json

import keras
import numpy as np
import pytest
from PIL import Image

import keras_vit
from keras_vit import HybridSpec, MixerSpec, ResNetSpec, VisionModel, ViTSpec
from keras_vit.data.sources import arrays, open_source
from keras_vit.spec import ResNetBody
from keras_vit.train import overrides
from keras_vit.train.evaluate import evaluate
from keras_vit.train.finetune import default_recipe, finetune
from keras_vit.train.report import escape
from keras_vit.zoo.variants import BIT_NUMERICS

TINY = ViTSpec(
    hidden_size=24,
    mlp_dim=40,
    num_heads=3,
    num_layers=1,
    patch_size=(4, 4),
    image_size=(12, 12),
    in_channels=1,
    num_classes=7,
    pool="gap",
)


def stripes(count: int, classes: int = 3, size: int = 12, seed: int = 0):
    """Noisy images whose class is the period of their stripes: separable, but not by brightness."""
    rng = np.random.default_rng(seed)
    labels = np.arange(count) % classes
    rows = np.arange(size)[:, None]
    waves = [np.where(rows % (2 * c + 2) < c + 1, 200.0, 60.0) for c in range(classes)]
    images = np.stack([waves[c] + rng.normal(0, 25, (size, size)) for c in labels])
    return arrays(
        np.clip(images, 0, 255).astype(np.uint8)[..., None],
        labels,
        [f"period {2 * c + 2}" for c in range(classes)],
        "stripes",
    )


def trunk(seed: int = 0) -> VisionModel:
    keras.utils.set_random_seed(seed)
    return VisionModel(TINY)


def short(*parts: str, **changes):
    """The default recipe with a few fields changed, those of its parts by `part.field=value`."""
    return lambda recipe: overrides.apply(dataclasses.replace(recipe, **changes), parts)


@pytest.mark.case("T04")
def test_the_default_recipe_learns_a_small_set_in_100_steps(tmp_path):
    train = stripes(200)
    recipe = default_recipe(TINY, 200)
    steps = len(train) // recipe.batch_size
    recipe = dataclasses.replace(recipe, epochs=100 // steps)
    found = finetune(trunk(), train, out=tmp_path / "run", val_split=0, recipe=recipe)
    assert found.report["evaluated_on"] == "training"
    assert found.evaluation.accuracy > 0.9


@pytest.mark.parametrize(("size", "most"), [(96, 1e-3), (768, 5e-5), (1408, 2e-5)])
def test_larger_models_get_lower_rates(size, most):
    spec = dataclasses.replace(TINY, hidden_size=size, num_heads=1)
    recipe = default_recipe(spec, 10_000)
    assert recipe.schedule.base_lr == most
    assert recipe.optimizer.clip_norm == 1.0 and recipe.schedule.warmup_fraction > 0
    assert default_recipe(spec, 10_000, from_scratch=True).schedule.base_lr >= 3e-4


FAMILIES = {
    "bit": ResNetSpec(
        ResNetBody((1,), 0.5, **BIT_NUMERICS), image_size=24, in_channels=1, num_classes=7
    ),
    "hybrid": HybridSpec(
        24, 40, 3, 1, 1, resnet=ResNetBody((1,), 0.5), image_size=24, in_channels=1, num_classes=7
    ),
    "mixer": MixerSpec(24, 12, 40, 1, 4, image_size=24, in_channels=1, num_classes=7),
}


@pytest.mark.tf_only  # tests/test_families.py trains them on JAX
@pytest.mark.parametrize("family", FAMILIES)
def test_a_checkpoint_of_every_family_is_fine_tuned_by_the_command(
    official, tmp_path, capsys, family
):
    from keras_vit.cli import run

    model = official.random(FAMILIES[family])
    keras_vit.save_weights_as(model, tmp_path / "trunk.npz")
    source = stripes(90, size=24)
    np.savez(tmp_path / "images.npz", images=source.images, labels=source.labels)
    out = tmp_path / "out"
    arguments = ["finetune", str(tmp_path / "trunk.npz"), "--data", str(tmp_path / "images.npz")]
    assert run([*arguments, "--out", str(out), "--epochs", "4", "--image-size", "24"]) == 0
    report = json.loads((out / "report.json").read_text())
    losses = [epoch["loss"] for epoch in report["history"]]
    assert losses[-1] < losses[0]
    assert report["recipe"]["optimizer"]["name"] == ("sgd" if family == "bit" else "adamw")
    again = keras_vit.load(out / "model.npz")
    assert again.spec == dataclasses.replace(FAMILIES[family], num_classes=3)
    assert "accuracy" in capsys.readouterr().out


def test_trained_resnets_get_the_rate_of_bit():
    # arXiv 1912.11370, section 3.3: SGD at 0.003, no weight decay.
    recipe = default_recipe(FAMILIES["bit"], 10_000)
    assert (recipe.optimizer.name, recipe.optimizer.weight_decay) == ("sgd", 0.0)
    assert recipe.schedule.base_lr == 3e-3
    for options in ({"from_scratch": True}, {"freeze": True}):
        recipe = default_recipe(FAMILIES["bit"], 10_000, **options)
        assert recipe.optimizer.name == "adamw" and recipe.schedule.base_lr >= 3e-4
    for family in ("hybrid", "mixer"):
        assert default_recipe(FAMILIES[family], 10_000).schedule.base_lr == 1e-3


@pytest.mark.tf_only
def test_a_resnet_learns_from_scratch(tmp_path):
    found = finetune(
        VisionModel(FAMILIES["bit"]), stripes(60, size=24), out=tmp_path / "run", from_scratch=True,
        recipe=short(epochs=6),
    )  # fmt: skip
    losses = [epoch["loss"] for epoch in found.result.history]
    assert losses[-1] < losses[0]


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    """A folder per class, names that Markdown and HTML would interpret, and two broken files."""
    root = tmp_path_factory.mktemp("pictures")
    source = stripes(24)
    for name, label in (("<b>a|b</b>", 0), ("c_d_", 1), ("e", 2)):
        folder = root / name.replace("/", "⁄")
        folder.mkdir()
        for i in np.flatnonzero(source.labels == label):
            Image.fromarray(source.images[i, ..., 0]).save(folder / f"{i}.png")
    (root / "e" / "no`image`.png").write_text("text")
    good = next(p for p in (root / "e").iterdir() if p.suffix == ".png" and p.stem.isdigit())
    (root / "e" / "half.png").write_bytes(good.read_bytes()[:60])
    return root


@pytest.fixture(scope="module")
def run(tmp_path_factory, pictures):
    """A run from a file, at a higher resolution than the file's, on the folder of pictures."""
    folder = tmp_path_factory.mktemp("runs")
    keras_vit.save_weights_as(trunk(), folder / "trunk.npz")
    found = finetune(
        folder / "trunk.npz",
        open_source(f"folder:{pictures}"),
        out=folder / "out",
        val_split=0.25,
        image_size=(16, 20),
        recipe=short(
            "loss.class_weights=balanced",
            "augment.flip=true",
            "augment.shift=true",
            epochs=2,
            batch_size=6,
        ),
        command="keras-vit finetune",
    )
    return folder, found


def test_a_run_writes_a_model_that_loads_with_its_classes(run):
    folder, found = run
    names = ("<b>a|b<⁄b>", "c_d_", "e")
    x = np.random.default_rng(0).uniform(-1, 1, (2, 16, 20, 1)).astype(np.float32)
    expected = found.model.probabilities(x)
    for path in (folder / "out" / "model.keras", folder / "out" / "model.npz"):
        model = keras_vit.load(path)
        assert model.class_names == names
        assert model.has_usable_head and model.spec.image_size == (16, 20)
        np.testing.assert_allclose(model.probabilities(x), expected, atol=1e-6)
    assert sorted(p.name for p in (folder / "out").iterdir()) == [
        "metrics.jsonl",
        "model.json",
        "model.keras",
        "model.npz",
        "report.json",
        "report.md",
    ]


def test_the_report_says_what_was_measured_and_how(run, pictures):
    folder, found = run
    report = json.loads((folder / "out" / "report.json").read_text())
    assert report == json.loads(json.dumps(found.report))
    measured = report["evaluation"]
    assert np.sum(measured["confusion"]) == measured["examples"] == 6
    assert report["train"]["examples"] == 18 and report["validation"]["examples"] == 6
    assert len(measured["broken"]) == 2
    assert report["recipe"]["loss"]["class_weights"] == "balanced" and len(report["history"]) == 2
    assert report["seed"] == 0 and report["versions"]["keras"] == keras.__version__
    assert report["card"]["class_names"] == list(found.model.class_names)
    # The number is that of the model that was written, on the very validation images.
    train, validation = open_source(f"folder:{pictures}").split(0.25, 0)
    again = evaluate(
        keras_vit.load(folder / "out" / "model.keras").probabilities,
        validation,
        image_size=(16, 20),
        channels=1,
        preprocessing=found.model.preprocessing,
    )
    assert again.accuracy == measured["accuracy"] and len(train) == 18


def test_names_are_escaped_in_the_markdown(run):
    folder, _ = run
    text = (folder / "out" / "report.md").read_text()
    assert "<b>" not in text
    assert "&lt;b&gt;a\\|b&lt;⁄b&gt;" in text and "c\\_d\\_" in text
    assert "no\\`image\\`.png" in text and "## 2 images could not be read" in text
    assert "Confusion matrix" in text and "keras-vit finetune" in text
    assert escape("a\nb") == "a b"


def test_a_finished_run_is_not_overwritten(run):
    folder, _ = run
    before = (folder / "out" / "report.json").read_bytes()
    with pytest.raises(FileExistsError, match="holds a finished run"):
        finetune(trunk(), stripes(20), out=folder / "out")
    assert (folder / "out" / "report.json").read_bytes() == before


class _Stop(keras.callbacks.Callback):
    """Ctrl-C in the middle of the second epoch."""

    def on_train_batch_end(self, batch, logs=None):
        if self.model.optimizer.iterations >= 6:
            raise KeyboardInterrupt


def test_an_interrupted_run_goes_on_to_the_same_numbers(tmp_path):
    arguments = {
        "train": stripes(24),
        "recipe": short(epochs=3, batch_size=5),
        "val_split": 0.2,
    }
    whole = finetune(trunk(), out=tmp_path / "whole", **arguments)
    with pytest.raises(KeyboardInterrupt):
        finetune(trunk(), out=tmp_path / "cut", callbacks=(_Stop(),), **arguments)
    assert not (tmp_path / "cut" / "report.json").exists()
    with pytest.raises(ValueError, match="unfinished run with another weights"):
        finetune(trunk(seed=1), out=tmp_path / "cut", **arguments)
    again = finetune(trunk(), out=tmp_path / "cut", **arguments)
    best = max(epoch["val_accuracy"] for epoch in whole.result.history)
    assert whole.evaluation.accuracy == pytest.approx(best)  # of the weights that were kept
    # Of 3 steps an epoch; Ctrl-C came in the second.
    assert again.result.resumed_from == 3 and again.report["resumed_from"] == 3
    for one, other in zip(whole.result.history, again.result.history, strict=True):
        # The same operations in the same order; only threads inside a kernel may sum differently.
        assert one == pytest.approx(other, rel=1e-5)
    for one, other in zip(whole.model.weights, again.model.weights, strict=True):
        np.testing.assert_allclose(
            keras.ops.convert_to_numpy(one), keras.ops.convert_to_numpy(other), atol=1e-6
        )


def test_multi_label_targets_end_in_sigmoids_and_average_precision(tmp_path):
    source = stripes(60)
    sets = np.eye(3, dtype=np.int32)[source.labels]
    sets[:, 2] |= sets[:, 0]  # what has the first label also has the third
    np.savez(tmp_path / "sets.npz", images=source.images, labels=sets)
    found = finetune(
        trunk(),
        open_source(str(tmp_path / "sets.npz")),
        out=tmp_path / "run",
        validation=dataclasses.replace(
            stripes(30, seed=5), labels=sets[:30], class_names=("class 0", "class 1", "class 2")
        ),
        recipe=short(
            "schedule.base_lr=3e-3", "loss.class_weights=balanced", epochs=12, batch_size=12
        ),
    )
    assert found.evaluation.confusion is None
    assert found.evaluation.mean_average_precision > 0.8  # by chance about 0.55
    model = keras_vit.load(tmp_path / "run" / "model.keras")
    assert model.spec.classifier_activation == "sigmoid"
    x = np.random.default_rng(0).uniform(-1, 1, (2, 12, 12, 1)).astype(np.float32)
    logits = keras.ops.convert_to_numpy(model.features("logits")(x))
    np.testing.assert_allclose(model.probabilities(x), 1 / (1 + np.exp(-logits)), atol=1e-6)
    text = (tmp_path / "run" / "report.md").read_text()
    assert "Mean average precision" in text and "Confusion" not in text


def test_freezing_trains_the_head_only_and_survives_the_file(tmp_path):
    model = trunk()
    found = finetune(
        model, stripes(24), out=tmp_path / "run", freeze=True, recipe=short(epochs=1, batch_size=6)
    )
    before = {v.path: keras.ops.convert_to_numpy(v) for v in model.weights}
    for variable in found.model.weights:
        same = variable.path in before and np.array_equal(
            before[variable.path], keras.ops.convert_to_numpy(variable)
        )
        assert same != variable.path.startswith("head/"), variable.path
    again = keras_vit.load(tmp_path / "run" / "model.keras")
    assert [v.path for v in again.trainable_variables] == ["head/kernel", "head/bias"]


def test_refusals_are_one_sentence_and_leave_nothing(tmp_path):
    train = stripes(20)
    one = dataclasses.replace(train, labels=np.zeros(20, np.int32))
    (tmp_path / "file").write_text("x")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").write_text("x")
    other = dataclasses.replace(train, class_names=("x", "y", "z"))
    cases = [
        (ValueError, "images of 1 class", {"train": one}),
        (ValueError, "must be the same", {"validation": other}),
        (ValueError, "give its name or file", {"image_size": 16}),
        (ValueError, "no model goes by the name", {"model": "ViTT-Q/99"}),
        (FileNotFoundError, "does not exist", {"model": "nothing.npz"}),
        (FileExistsError, "is a file", {"out": tmp_path / "file"}),
        (FileExistsError, "is not empty", {"out": tmp_path / "full"}),
        (OSError, "cannot write to", {"out": "/proc/nowhere/run"}),
    ]
    for error, text, changes in cases:
        arguments = {"model": trunk(), "train": train, "out": tmp_path / "new", **changes}
        with pytest.raises(error, match=text):
            finetune(**arguments)
        assert not (tmp_path / "new").exists(), changes
    assert (tmp_path / "full" / "mine.txt").exists()
