"""The transfer protocols: what they try, how they choose, and that they go on after an interruption."""

import json

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.card import Card, Preprocessing
from keras_vit.data.sources import arrays, fashion_mnist
from keras_vit.model import VisionModel
from keras_vit.results import store
from keras_vit.train import task as tasks
from keras_vit.train.evaluate import evaluate
from keras_vit.train.placement import Placement
from keras_vit.transfer import protocol

SHORT = (
    *("steps=30", "batch_size=16", "image_size=28", "schedule.warmup_steps=2"),
    "augment.crop=none",  # the feed of the crop takes seconds to trace
)


def coloured(count: int, side: int = 40):
    rng = np.random.default_rng(0)
    return arrays(rng.integers(0, 256, (count, side, side, 3), np.uint8), np.arange(count) % 3)


def test_the_paper_tries_the_rates_of_its_table():
    found = protocol.candidates("ViT-B/16@imagenet21k", coloured(12), row="pets")
    assert [r.schedule.base_lr for r in found.values()] == [0.001, 0.003, 0.01, 0.03]
    for recipe in found.values():
        assert (recipe.steps, recipe.batch_size, recipe.image_size) == (500, 512, 384)
        assert recipe.optimizer.name == "sgd" and recipe.optimizer.clip_norm == 1.0
    imagenet = protocol.candidates("ViT-L/16", coloured(12), row="imagenet", high_resolution=True)
    assert [r.schedule.base_lr for r in imagenet.values()] == [0.003, 0.01, 0.03, 0.06]
    assert {(r.image_size, r.optimizer.average) for r in imagenet.values()} == {(512, 0.9999)}


def test_a_resnet_tries_the_hyperrule_as_well():
    small = protocol.candidates("BiT-R50x1", coloured(12, side=32), row="cifar10")
    assert list(small) == ["lr_0.001", "lr_0.003", "lr_0.01", "lr_0.03", "hyperrule"]
    assert (small["hyperrule"].image_size, small["hyperrule"].augment.resize) == (128, 160)
    large = protocol.candidates("BiT-R50x1", coloured(12, side=100), protocol="hyperrule")
    assert list(large) == ["hyperrule"] and large["hyperrule"].image_size == 480
    assert list(protocol.candidates("BiT-R50x1", coloured(9), rates=[0.1])) == ["lr_0.1"]


@pytest.mark.parametrize(
    ("count", "steps"), [(19_999, 500), (20_000, 10_000), (499_999, 10_000), (500_000, 20_000)]
)
def test_other_data_has_the_row_of_its_size(count, steps):
    class Many:
        def __len__(self):
            return count

    found = protocol.candidates("ViT-B/16", Many())
    assert {recipe.steps for recipe in found.values()} == {steps}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"protocol": "papers"}, "protocol must be one of"),
        ({"protocol": "hyperrule"}, "bit/hyperrule has no row for 'ViT-B/16'"),
        ({"high_resolution": True, "row": "pets"}, "is for ImageNet"),
    ],
)
def test_what_does_not_go_together_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        protocol.candidates("ViT-B/16", coloured(6), **options)


def test_images_stand_for_the_size_of_their_data_set():
    pixels = [np.zeros((h, w, 3), np.uint8) for h, w in ((30, 50), (40, 60), (50, 90))]
    source = keras_vit.data.sources.Source("x", pixels, np.zeros(3, np.int32), ("a",))
    assert protocol.image_size_of(source) == (40, 60)


@pytest.fixture(scope="module")
def clothes():
    """300 images to train on, 100 to test on."""
    train = fashion_mnist("subset_train").take(np.arange(0, 3000, 10))
    test = fashion_mnist("subset_test").take(np.arange(0, 1000, 10))
    parts = dict(zip(("sweep", "dev"), train.split(0.1), strict=True))
    return protocol.Images("clothes", "pets", {"train": train, "test": test, **parts}.__getitem__)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """A network of one block for these images, as a file."""
    spec = keras_vit.ViTSpec(
        image_size=(28, 28), patch_size=(7, 7), in_channels=1, hidden_size=32, mlp_dim=64,
        num_heads=2, num_layers=1, num_classes=10, pool="gap",
    )  # fmt: skip
    keras.utils.set_random_seed(0)
    rule = Preprocessing(mean=(127.5,), std=(127.5,))
    model = VisionModel(
        spec, card=Card("ViT-Mini/4", "one", image_size=(28, 28), preprocessing=rule)
    )
    model.save(path := tmp_path_factory.mktemp("checkpoint") / "one.keras")
    return str(path)


class Stop(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        raise KeyboardInterrupt


def test_a_transfer_sweeps_goes_on_and_tests(clothes, checkpoint, tmp_path):
    out, begun = tmp_path / "out", []
    options = {"placement": Placement(), "rates": [0.03, 30.0], "changes": SHORT, "seeds": (0, 1)}

    def stopping(name, epochs):
        begun.append(name)
        return (Stop(),) if name == "final_0" else ()

    with pytest.raises(KeyboardInterrupt):
        protocol.run_transfer(checkpoint, clothes, out, callbacks=stopping, **options)
    assert begun == ["sweep_lr_0.03", "sweep_lr_30", "final_0"]

    with pytest.raises(ValueError, match="another candidates"):
        protocol.run_transfer(checkpoint, clothes, out, **{**options, "rates": [0.01, 0.02]})

    begun.clear()
    report = protocol.run_transfer(
        checkpoint, clothes, out, callbacks=lambda n, e: begun.append(n) or (), **options
    )
    assert begun == ["final_0", "final_1"]  # what was finished is not run again
    # Updates of norm 30 leave nothing that a network could have learned.
    assert report["chosen"] == "lr_0.03" and report["sweep"]["lr_30"] < report["sweep"]["lr_0.03"]
    assert len(set(report["accuracies"])) == 2 and min(report["accuracies"]) > 0.2
    assert report["accuracy"] == pytest.approx(np.mean(report["accuracies"]))
    assert report["std"] == pytest.approx(np.std(report["accuracies"]))

    model = keras_vit.load(out / "final_0" / "model.keras")
    assert model.class_names == clothes.open("train").class_names
    again = evaluate(
        model.probabilities,
        clothes.open("test"),
        image_size=(28, 28),
        channels=1,
        preprocessing=model.preprocessing,
    )
    assert again.accuracy == report["accuracies"][0] and again.examples == 100

    row = protocol.result_of(json.loads((out / "report.json").read_text()))
    assert (row.study, row.data, row.value) == ("transfer", "clothes", report["accuracy"])
    assert (row.interval, row.std) == (None, report["std"]) and row.settings["chosen"] == "lr_0.03"
    assert store.add(tmp_path / "results.jsonl", [row]) == [row]
    alone = protocol.result_of({**report, "seeds": [0], "std": None})
    assert alone.interval == again.interval
    with pytest.raises(FileExistsError, match="finished run"):
        protocol.run_transfer(checkpoint, clothes, out, **options)


def test_a_file_stands_for_its_network(tmp_path, clothes):
    file = tmp_path / "mine.npz"
    keras_vit.save_weights_as(keras_vit.load("ViT-Mini/4"), file)
    assert tasks.variant_of(str(file)) == "ViT-Mini/4"
    (recipe,) = protocol.candidates(str(file), clothes.open("train"), rates=[0.01]).values()
    task = tasks.Task("x", str(file), recipe, clothes.open("train"))
    assert tasks.network_of(task).spec.num_classes == 10
