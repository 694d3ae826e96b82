"""The models inside the package do what their cards say, and come from the runs in docs/runs."""

import json
import socket
import statistics
from pathlib import Path

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.data.sources import fashion_mnist
from keras_vit.spec import HybridSpec, ResNetSpec
from keras_vit.train.recipes.fashion_mnist import TASKS
from keras_vit.zoo.cards import all_cards

# Model: the run it is a file of.
RUN_OF = {
    "ViT-Mini/4@fashion_mnist": "ten_0",
    "ViT-Mini/4@fashion_mnist_8": "eight_0",
    "R14+ViT-Mini/4@fashion_mnist": "hybrid_0",
    "BiT-Mini@fashion_mnist": "bit_0",
}
DOCS = Path(__file__).parent.parent / "docs"
RUNS = {path.stem: json.loads(path.read_text("utf-8")) for path in (DOCS / "runs").glob("*.json")}
COMPARED = ("vit", "hybrid", "bit")
# A key that the official layout has for each family.
KEYS = {
    "vit": "Transformer/encoderblock_3/MlpBlock_3/Dense_1/kernel",
    "hybrid": "Transformer/encoderblock_2/MlpBlock_3/Dense_1/kernel",
    "resnet": "resnet/block2/unit02/c/standardized_conv2d/kernel",
}


@pytest.fixture(autouse=True)
def no_network(monkeypatch, tmp_path):
    def refuse(*args, **kwargs):
        raise AssertionError("the network was touched")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setenv("KERAS_VIT_CACHE", str(tmp_path))
    monkeypatch.delenv("KERAS_VIT_MIRROR", raising=False)


def task_of(name: str):
    return TASKS[RUN_OF[name].rpartition("_")[0]]


def accuracy(model, source) -> float:
    x = model.preprocessor(source.images)
    found = [
        keras.ops.convert_to_numpy(model(x[i : i + 500], training=False)).argmax(-1)
        for i in range(0, len(source), 500)
    ]
    return float((np.concatenate(found) == source.labels).mean())


@pytest.mark.parametrize("name", RUN_OF)
def test_accuracy_on_the_shipped_images_is_the_reported_one(name):
    model = keras_vit.load(name)
    source = task_of(name).data("subset_test")
    expected = model.card.metrics[0].value / 100
    # The shipped images are a tenth of the test set: four standard deviations of the binomial.
    margin = 4 * np.sqrt(expected * (1 - expected) / len(source))
    assert abs(accuracy(model, source) - expected) < margin


@pytest.mark.full
@pytest.mark.parametrize("name", RUN_OF)
def test_accuracy_on_the_whole_test_set_is_the_reported_one(name):
    try:
        source = task_of(name).data("test")
    except ValueError as error:
        pytest.skip(str(error))
    model = keras_vit.load(name)
    # Two images of slack: logits that tie within float32 rounding on another CPU.
    expected = model.card.metrics[0].value / 100
    assert abs(accuracy(model, source) - expected) <= 2 / len(source) + 5e-5


@pytest.mark.parametrize("name", RUN_OF)
def test_the_card_says_what_the_run_measured(name):
    card, run = all_cards()[name], RUNS[RUN_OF[name]]
    (metric,) = card.metrics
    assert metric.value == round(100 * run["accuracy"], 2)
    assert metric.source.startswith(f"this project: keras-vit train {run['task']} --seed ")
    assert f"seed {run['seed']}," in card.pretraining
    assert f"{run['train']['examples']:,} training images" in card.pretraining
    assert f"{round(run['recipe']['epochs'])} epochs" in card.pretraining
    assert f"{round(run['cpu_seconds'] / 60)} minutes" in card.pretraining
    assert card.size == run["file_bytes"]
    assert list(card.class_names or ()) == [s["name"] for s in run["evaluation"]["per_class"]]


@pytest.mark.parametrize("name", RUN_OF)
def test_files_are_small_halves_in_the_official_layout(name):
    model = keras_vit.load(name)
    path = Path(keras_vit.zoo.__path__[0]) / model.card.file
    assert path.stat().st_size == model.card.size <= 2 * 2**20
    with np.load(path) as file:
        assert {file[key].dtype for key in file.files} == {np.dtype(np.float16)}
        assert KEYS[model.spec.family] in file.files
    assert model.spec == task_of(name).spec


def test_the_eight_class_model_never_heard_of_the_two_others():
    model = keras_vit.load("ViT-Mini/4@fashion_mnist_8")
    assert not {"Sandal", "Bag"} & set(model.class_names)
    assert set(model.class_names) < set(fashion_mnist("subset").class_names)


def test_the_kinds_are_compared_with_the_same_recipe_and_images():
    first = RUNS["vit_0"]
    specs = [TASKS[task].spec for task in COMPARED]
    assert [type(spec) for spec in specs[1:]] == [HybridSpec, ResNetSpec]
    for task in COMPARED:
        for seed in range(3):
            run = RUNS[f"{task}_{seed}"]
            assert run["seed"] == run["recipe"]["seed"] == seed
            assert run["train"] == first["train"] and run["test"] == first["test"]
            assert run["recipe"] == first["recipe"] | {"seed": seed}
            assert run["parameters"] == TASKS[task].spec.num_params


def test_the_runs_are_those_of_the_recipes_and_networks():
    def agree(then, now) -> bool:
        """Equal, but for fields that recipes have got since."""
        if isinstance(then, dict):
            return all(key in now and agree(then[key], now[key]) for key in then)
        return then == now

    for name, run in RUNS.items():
        task = TASKS[run["task"].partition("/")[2]]
        now = json.loads(json.dumps(task.recipe.to_dict()))
        assert agree(run["recipe"] | {"seed": task.recipe.seed}, now), name
        assert agree(run["spec"], task.spec.to_dict()), name


def test_the_page_of_runs_shows_what_was_measured():
    page = (DOCS / "runs.md").read_text("utf-8")
    for task in COMPARED:
        runs = [RUNS[f"{task}_{seed}"] for seed in range(3)]
        scores = [100 * run["accuracy"] for run in runs]
        mean, spread = statistics.mean(scores), statistics.stdev(scores)
        seconds = statistics.mean(run["cpu_seconds"] for run in runs)
        row = f"| {mean:.2f} ± {spread:.2f} | {', '.join(f'{s:.2f}' for s in scores)} | {seconds:.0f} |"
        assert f"| `{TASKS[task].model}` |" in page and row in page
    for name, run in RUNS.items():
        if name.rpartition("_")[0] not in COMPARED:
            assert f"| `{name}` |" in page and f"| {100 * run['accuracy']:.2f} |" in page
    resumed = [name for name, run in RUNS.items() if run["resumed_from"]]
    assert resumed and all(f"`{name}`" in page for name in resumed)
