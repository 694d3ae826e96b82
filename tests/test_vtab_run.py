"""Running VTAB-1k: what each task trains on, what is kept, what is printed."""

import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest

import keras_vit
from keras_vit.cli import vtab as command
from keras_vit.data.sources import Source
from keras_vit.results import store
from keras_vit.train.placement import Placement
from keras_vit.transfer.vtab import run, tasks
from keras_vit.transfer.vtab.run import repeated, run_vtab
from keras_vit.transfer.vtab.tasks import TASKS

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:tensorflow_datasets")

MODEL = "ViT-B/32@imagenet21k"

spec = importlib.util.spec_from_file_location("vtab_data", Path(__file__).with_name("vtab_data.py"))
vtab_data = importlib.util.module_from_spec(spec)
spec.loader.exec_module(vtab_data)


@pytest.fixture
def trained(monkeypatch) -> list:
    """The training runs that were asked for, which are not done."""
    asked = []

    def run_task(task, out, *, smoke, force, command, writes, callbacks, placement):
        assert not writes and not smoke
        asked.append(task)
        right = len(asked)
        report = {
            "command": command,
            "recipe": task.recipe.to_dict(),
            "steps": task.recipe.steps,
            "accuracy": right / 10,
            "evaluation": {"examples": 10, "interval": [0.0, 1.0]},
            "versions": {"keras": "3"},
        }
        out.mkdir(parents=True, exist_ok=True)
        (out / "report.json").write_text(json.dumps(report))
        return report

    monkeypatch.setattr(run.training, "run_task", run_task)
    monkeypatch.setattr(tasks, "TRAIN", 8)
    monkeypatch.setattr(tasks, "VALIDATION", 2)
    return asked


@pytest.fixture(scope="module")
def stored(tmp_path_factory) -> tuple[str, dict]:
    path = str(tmp_path_factory.mktemp("tfds"))
    return path, {name: vtab_data.write(name, path) for name in ("svhn_cropped", "dsprites")}


def asked_for(out, **options):
    return run_vtab(MODEL, out, placement=Placement(), **options)


@pytest.mark.tf_only
def test_the_1000_images_are_trained_on_and_the_test_images_measured(trained, stored, tmp_path):
    folder, sets = stored
    chosen = ("svhn", "dsprites-location")
    rows = asked_for(tmp_path / "runs", tasks=chosen, data_dir=folder, seed=3, command="keras-vit")
    svhn, dsprites = trained
    labels = [e["label"] for e in sets["svhn_cropped"]["train"]]
    wanted = [*labels[:8], *labels[27:29]] * run.REPEATS
    np.testing.assert_array_equal(svhn.train.labels, wanted)
    assert svhn.train.images[0] is svhn.train.images[10]
    test = [e["label"] for e in sets["svhn_cropped"]["test"]]
    np.testing.assert_array_equal(svhn.test.labels, test)
    assert svhn.validation is None and svhn.recipe.seed == 3
    assert (svhn.recipe.steps, svhn.recipe.batch_size, svhn.recipe.image_size) == (2500, 512, 384)
    assert svhn.recipe.augment.flip and svhn.recipe.augment.crop == "random"
    assert not dsprites.recipe.augment.flip and dsprites.recipe.augment.crop == "none"
    assert [(row.data, row.value) for row in rows] == [("VTAB SVHN", 0.1), ("VTAB dSpr-Loc", 0.2)]
    assert rows[0].settings == {
        **{"protocol": "train800val200", "seed": 3, "steps": 2500, "resolution": 384}
    }
    assert store.read(tmp_path / "runs" / run.RESULTS) == rows


@pytest.mark.tf_only
def test_settings_are_chosen_on_200_of_the_images(trained, stored, tmp_path):
    folder, sets = stored
    changes = ["schedule.base_lr=0.003"]
    asked_for(tmp_path, tasks=["svhn"], data_dir=folder, protocol="train800", changes=changes)
    labels = [e["label"] for e in sets["svhn_cropped"]["train"]]
    np.testing.assert_array_equal(trained[0].train.labels[:16], labels[:8] * 2)
    np.testing.assert_array_equal(trained[0].test.labels, labels[27:29])
    assert trained[0].recipe.schedule.base_lr == 0.003


@pytest.mark.tf_only
def test_finished_tasks_are_not_run_again_and_others_are_added(trained, stored, tmp_path):
    options = {"data_dir": stored[0]}
    first = asked_for(tmp_path, tasks=["svhn"], **options)
    rows = asked_for(tmp_path, tasks=["svhn", "dsprites-location"], **options)
    assert [task.recipe.augment.flip for task in trained] == [True, False]
    assert rows[0] == first[0] and len(rows) == 2
    assert asked_for(tmp_path, tasks=["svhn"], **options) == rows and len(trained) == 2
    (tmp_path / run.RESULTS).unlink()  # the reports are enough
    again = asked_for(tmp_path, tasks=["svhn"], **options)
    assert again[0].value == first[0].value and len(trained) == 2
    asked_for(tmp_path, tasks=["svhn"], force=True, **options)
    assert len(trained) == 3
    with pytest.raises(ValueError, match="unfinished run with another seed"):
        asked_for(tmp_path, tasks=["svhn"], seed=1, **options)


@pytest.mark.tf_only
def test_all_missing_data_is_named_before_anything_is_trained(trained, stored, tmp_path):
    with pytest.raises(ValueError, match="data of 2 of 3 tasks is missing") as caught:
        asked_for(tmp_path / "runs", tasks=["svhn", "dtd", "pets"], data_dir=stored[0])
    assert "dtd: tfds:dtd" in str(caught.value) and "pets: tfds:oxford_iiit_pet" in str(
        caught.value
    )
    assert not trained and not (tmp_path / "runs").exists()


def test_wrong_arguments(tmp_path):
    with pytest.raises(
        ValueError, match=r"protocol must be one of \['train800val200', 'train800'\]"
    ):
        asked_for(tmp_path, protocol="full")
    with pytest.raises(ValueError, match="no VTAB task 'cifar10'"):
        asked_for(tmp_path, tasks=["cifar10"])


def test_repeated_images_are_not_copied():
    pixels = np.zeros((2, 4, 4, 3), np.uint8)
    source = repeated(Source("two", pixels, np.array([0, 1]), ("a", "b")), 3)
    assert source.labels.tolist() == [0, 1] * 3
    assert all(np.shares_memory(image, pixels) for image in source.images)


def test_names_of_tasks_and_groups():
    assert command.named(None) == tuple(TASKS)
    assert command.named("dmlab, specialized") == (
        *("camelyon", "eurosat", "resisc45", "retinopathy", "dmlab"),
    )
    with pytest.raises(ValueError, match="no VTAB task 'nature'"):
        command.named("nature")


def test_a_smoke_run_trains_measures_and_prints(tmp_path):
    chosen = "svhn,dsprites-location"  # with a random crop on tf.data, and without on NumPy
    answer = command.vtab(MODEL, tmp_path / "runs", tasks=chosen, smoke=True)
    rows = answer.data["results"]
    assert [row["data"] for row in rows] == ["VTAB SVHN", "VTAB dSpr-Loc"]
    assert all(row["settings"]["smoke"] and row["examples"] == 6 for row in rows)
    assert answer.data["means"]["overall"] is None
    printed = answer.view[0].splitlines()
    assert printed[0].endswith("ViT-B/32@imagenet21k, ImageNet-21k, measured here |")
    line = next(line for line in printed if line.startswith("| SVHN"))
    assert line == f"| SVHN | 88.9 | 87.4 | 80.9 | {100 * rows[0]['value']:.1f} |"
    assert not list((tmp_path / "runs").rglob("model.*"))
    report = json.loads((tmp_path / "runs" / "svhn" / "report.json").read_text())
    assert report["steps"] == 4 and report["train"]["examples"] == 8 * run.REPEATS


@pytest.mark.tf_only
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[] if name == "kitti-distance" else pytest.mark.full)
        for name in TASKS
    ],
)
def test_a_checkpoint_is_fine_tuned_on_stored_images(name, tmp_path, monkeypatch):
    monkeypatch.setattr(tasks, "TRAIN", 8)
    monkeypatch.setattr(tasks, "VALIDATION", 2)
    monkeypatch.setattr(run, "REPEATS", 2)
    monkeypatch.setattr(run.training, "variant_of", lambda model: "ViT-B/32")
    vtab_data.write(TASKS[name].data, str(tmp_path / "tfds"))
    shape = {"image_size": 8, "patch_size": 4, "hidden_size": 8, "num_layers": 1}
    tiny = keras_vit.ViTSpec(**shape, num_heads=2, mlp_dim=8, num_classes=4)
    keras_vit.build(tiny).save(tmp_path / "tiny.keras")
    changes = ["steps=5", "batch_size=4", "image_size=8", "schedule.warmup_steps=1"]
    (row,) = run_vtab(
        str(tmp_path / "tiny.keras"),
        tmp_path / "out",
        placement=Placement(),
        tasks=[name],
        data_dir=str(tmp_path / "tfds"),
        changes=changes,
    )
    report = json.loads((tmp_path / "out" / name / "report.json").read_text())
    assert len(report["evaluation"]["per_class"]) == TASKS[name].classes
    assert row.examples == len(tasks.open_task(name, "test", data_dir=str(tmp_path / "tfds")))
    assert (row.value, row.settings["steps"]) == (report["accuracy"], 5)
