"""The demo in miniature, on networks of the shipped models' size with random weights."""

import json

import numpy as np
import pytest

import keras_vit
from keras_vit import cli
from keras_vit.cli.demo import FULL, _summary
from keras_vit.data.batches import Batches
from keras_vit.data.sources import fashion_mnist
from keras_vit.export import open_artifact

pytestmark = pytest.mark.tf_only

FILES = {
    "Keras": "runs/pretrained_0/model.keras",
    "SavedModel float32": "saved_model",
    "LiteRT float32": "model_float32.tflite",
    "LiteRT float16": "model_float16.tflite",
    "LiteRT dynamic int8": "model_dynamic_int8.tflite",
}


@pytest.fixture(scope="module")
def ran(tmp_path_factory, embedded_stand_ins):
    """(folder, report) of one quick demo."""
    out = tmp_path_factory.mktemp("demo") / "out"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KERAS_VIT_CARDS", str(embedded_stand_ins))
        assert cli.run(["demo", "--quick", "--out", str(out)]) == 0
    return out, json.loads((out / "report.json").read_text())


def test_every_artifact_stays_and_is_the_one_that_was_measured(ran):
    out, report = ran
    rows = {row["name"]: row for row in report["artifacts"]}
    assert {name: row["file"] for name, row in rows.items()} == {
        name: str(out / file) for name, file in FILES.items()
    }
    model = keras_vit.load(out / FILES["Keras"])
    test = fashion_mnist("subset_test").take(range(report["plan"]["tested"]))
    images, targets = Batches(test, model.spec.image_size, 1, model.preprocessing)[0][:2]
    assert len(images) == report["plan"]["tested"]
    expected = model.probabilities(images)
    for name, file in list(FILES.items())[1:]:
        found = open_artifact(out / file).predict(images)
        assert rows[name]["accuracy"] == np.mean(found.argmax(1) == targets.argmax(1))
        # The same computation twice; only threads inside a kernel may sum differently.
        error = np.abs(found - expected).max()
        assert rows[name]["largest_error"] == pytest.approx(error, abs=1e-6), name
        assert rows[name]["bytes"] > 0 and rows[name]["milliseconds"] > 0
    assert rows["LiteRT float32"]["largest_error"] < 1e-5
    sizes = [rows[name]["bytes"] for name in list(FILES)[2:]]
    assert sizes[0] > 1.5 * sizes[1] > 1.5 * sizes[2]


def test_both_kinds_of_run_had_the_same_budget_and_resolution(ran):
    out, report = ran
    one, other = (
        json.loads((out / f"runs/{kind}_0/report.json").read_text())
        for kind in ("pretrained", "from_scratch")
    )
    assert one["recipe"] == other["recipe"]
    assert one["train"] == other["train"] and one["validation"] == other["validation"]
    assert one["spec"] == other["spec"] and one["image_size"] == [32, 32]
    assert not one["from_scratch"] and other["from_scratch"]
    assert [run["kind"] for run in report["runs"]] == ["pretrained", "from_scratch"]
    assert one["card"]["num_classes"] == 10 and "Sandal" in one["card"]["class_names"]


def test_it_refuses_an_earlier_demo(ran, capsys):
    out, report = ran
    capsys.readouterr()
    assert cli.run(["demo", "--quick", "--out", str(out)]) == 2
    assert "--force" in capsys.readouterr().err
    assert json.loads((out / "report.json").read_text()) == report


def test_the_summary_is_mean_and_sample_deviation_of_one_kind():
    runs = [
        {"kind": kind, "test": test, "test_never_seen": None}
        for kind, test in (("a", 0.5), ("a", 0.7), ("b", 0.1), ("a", 0.6))
    ]
    found = _summary(runs, "a")
    assert found["test"]["mean"] == pytest.approx(0.6)
    assert found["test"]["std"] == pytest.approx(0.1)
    assert found["test_never_seen"] == {"mean": None, "std": None}
    assert _summary(runs, "b")["test"]["std"] is None


def test_the_full_demo_is_what_it_says():
    assert FULL.seeds == 3 and FULL.image_size > 28 and FULL.tested == 1000
