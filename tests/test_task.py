"""Tasks: what names resolve to, and what a run of one leaves behind."""

import json

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.train import task as tasks
from keras_vit.train.distribute import Placement
from keras_vit.train.recipes import fashion_mnist


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A finished smoke run of the paper's training on ImageNet."""
    out = tmp_path_factory.mktemp("runs") / "smoke"
    task = tasks.resolve("paper/imagenet", smoke=True, changes=["seed=3", "optimizer.average=0.9"])
    return out, tasks.run_task(
        task, out, placement=Placement(), smoke=True, command="keras-vit train ..."
    )


def test_a_run_leaves_a_model_its_report_and_nothing_else(finished):
    out, report = finished
    names = {path.name for path in out.iterdir()}
    assert {"model.keras", "model.npz", "model.json", "report.json", "metrics.jsonl"} <= names
    assert not {"checkpoints", "run.json", "recipe.json"} & names
    assert json.loads((out / "report.json").read_text()) == json.loads(json.dumps(report))
    assert report["recipe"]["name"] == "paper/imagenet" and report["seed"] == 3
    assert report["recipe"]["optimizer"]["average"] == 0.9
    assert report["steps"] == 4 and report["resumed_from"] == 0
    assert report["versions"]["keras"] == keras.__version__


def test_the_files_hold_what_was_trained(finished):
    out, report = finished
    model = keras_vit.load(out / "model.keras")
    shipped = keras_vit.load(out / "model.npz")
    x = np.random.default_rng(0).uniform(-1, 1, (2, *model.input_shape[1:])).astype("float32")
    # The npz is in float16: eleven bits of weights of order 1, logits of order 10 (the head's bias).
    np.testing.assert_allclose(model(x), shipped(x), atol=2e-2)
    assert model.spec.num_params == report["parameters"]
    assert model.card.tag == "paper_imagenet"


def test_a_finished_run_is_not_replaced(finished):
    out, _ = finished
    task = tasks.resolve("paper/imagenet", smoke=True)
    with pytest.raises(FileExistsError, match=r"holds a finished run.*--force"):
        tasks.run_task(task, out, placement=Placement(), smoke=True)


def test_head_bias_and_changes_reach_the_network():
    task = tasks.resolve(
        "paper/imagenet21k", smoke=True, changes=["changes.dropout=0.25", "changes.pool=gap"]
    )
    model = tasks.network_of(task, smoke=True)
    assert model.spec.dropout == 0.25 and model.spec.pool == "gap"
    np.testing.assert_array_equal(
        keras.ops.convert_to_numpy(model.get_layer("head").bias), np.full(3, -10.0, np.float32)
    )


def test_published_trainings_have_their_own_data_and_model(monkeypatch):
    task = tasks.resolve("fashion_mnist/eight", data="subset", seed=5)
    assert task.model == "ViT-Mini/4" and task.recipe.seed == 5
    assert task.train.num_classes == 8 and len(task.test) == 800
    assert tasks.network_of(task).spec == fashion_mnist.TASKS["eight"].spec


def test_a_checkpoint_gets_a_new_head(tmp_path):
    source = "fashion_mnist:subset_test"
    task = tasks.resolve("paper/finetune-pets", model="ViT-B/16", data=source)
    assert task.recipe.from_checkpoint
    small = tasks.Task(task.name, "ViT-Mini/4", task.recipe, task.train)
    model = tasks.network_of(small)
    assert model.spec.num_classes == 10 and not model.has_usable_head
    assert model.spec.image_size == (384, 384)
    own = keras_vit.load("ViT-Mini/4")
    np.testing.assert_array_equal(
        keras.ops.convert_to_numpy(model.get_layer("embedding").kernel),
        keras.ops.convert_to_numpy(own.get_layer("embedding").kernel),
    )


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"name": "paper/imagnet", "smoke": True}, "did you mean paper/imagenet"),
        ({"name": "fashion_mnist/nine"}, r"no training task .*there are fashion_mnist/"),
        ({"name": "paper/imagenet"}, r"needs training images: give --data"),
        ({"name": "paper/imagenet", "data": "nowhere"}, "unknown data 'nowhere'"),
        ({"name": "fashion_mnist/eight", "model": "ViT-B/16"}, "leave out --model"),
        ({"name": "paper/imagenet", "changes": ["scedule.base_lr=1"]}, "schedule.base_lr"),
        ({"name": "fashion_mnist/eight", "data": "half"}, r"full.*subset.*'half'"),
    ],
)
def test_what_does_not_exist_is_named(arguments, words):
    with pytest.raises(ValueError, match=words):
        tasks.resolve(**arguments)
