"""The models inside the package do what their cards say, with no network."""

import socket
from pathlib import Path

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.data.sources import fashion_mnist
from keras_vit.train.recipes.fashion_mnist import TASKS

NAMES = {"ten": "ViT-Mini/4@fashion_mnist", "eight": "ViT-Mini/4@fashion_mnist_8"}


@pytest.fixture(autouse=True)
def no_network(monkeypatch, tmp_path):
    def refuse(*args, **kwargs):
        raise AssertionError("the network was touched")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setenv("KERAS_VIT_CACHE", str(tmp_path))
    monkeypatch.delenv("KERAS_VIT_MIRROR", raising=False)


def accuracy(model, source) -> float:
    x = model.preprocessor(source.images)
    found = [
        keras.ops.convert_to_numpy(model(x[i : i + 500], training=False)).argmax(-1)
        for i in range(0, len(source), 500)
    ]
    return float((np.concatenate(found) == source.labels).mean())


def reported(card) -> float:
    (metric,) = card.metrics
    assert metric.source.startswith("this project: keras-vit train fashion_mnist/")
    return metric.value / 100


@pytest.mark.parametrize("task", NAMES)
def test_accuracy_on_the_shipped_images_is_the_reported_one(task):
    model = keras_vit.load(NAMES[task])
    source = TASKS[task].data("subset_test")
    expected = reported(model.card)
    # The shipped images are a tenth of the test set: four standard deviations of the binomial.
    margin = 4 * np.sqrt(expected * (1 - expected) / len(source))
    assert abs(accuracy(model, source) - expected) < margin
    # Without sandals and bags, two of the easiest, what remains is harder.
    assert expected >= (0.90 if task == "ten" else 0.87)


@pytest.mark.parametrize("task", NAMES)
def test_accuracy_on_the_whole_test_set_is_the_reported_one(task):
    try:
        source = TASKS[task].data("test")
    except ValueError as error:
        pytest.skip(str(error))
    model = keras_vit.load(NAMES[task])
    # Two images of slack: logits that tie within float32 rounding on another CPU.
    assert abs(accuracy(model, source) - reported(model.card)) <= 2 / len(source) + 5e-5


@pytest.mark.parametrize("task", NAMES)
def test_files_are_small_halves_in_the_official_layout(task):
    model = keras_vit.load(NAMES[task])
    path = Path(keras_vit.zoo.__path__[0]) / model.card.file
    assert path.stat().st_size == model.card.size <= 2**20
    with np.load(path) as file:
        assert {file[name].dtype for name in file.files} == {np.dtype(np.float16)}
        assert "Transformer/encoderblock_3/MlpBlock_3/Dense_1/kernel" in file.files
    assert model.spec == TASKS[task].spec


def test_the_eight_class_model_never_heard_of_the_two_others():
    model = keras_vit.load(NAMES["eight"])
    assert not {"Sandal", "Bag"} & set(model.class_names)
    assert set(model.class_names) < set(fashion_mnist("subset").class_names)
