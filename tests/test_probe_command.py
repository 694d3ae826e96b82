"""`keras-vit probe` on the embedded model and on what was exported from it."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

import keras_vit
from keras_vit import cli
from keras_vit.cli.probe import open_extractor, shots_option
from keras_vit.data.sources import open_source
from keras_vit.results import store

MODEL = "ViT-Mini/4@fashion_mnist_8"  # learnt eight of the ten classes


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Few images of every class, as npz."""
    folder = tmp_path_factory.mktemp("images")
    for part, each in (("train", 30), ("test", 20)):
        source = open_source(f"fashion_mnist:subset_{part}")
        rows = np.concatenate([np.flatnonzero(source.labels == c)[:each] for c in range(10)])
        np.savez(
            folder / f"{part}.npz",
            images=source.images[rows],
            labels=source.labels[rows],
            class_names=source.class_names,
        )
    return folder


def call(capsys, *arguments) -> tuple[int, str, str]:
    capsys.readouterr()
    code = cli.run(["probe", *map(str, arguments)])
    out, err = capsys.readouterr()
    return code, out, err


def probe(capsys, files, *arguments, model=MODEL) -> dict:
    data = ("--data", files / "train.npz", "--test", files / "test.npz")
    code, out, err = call(capsys, model, *data, *arguments, "--json")
    assert code == 0, err
    return json.loads(out)


@pytest.mark.case("F01", "F04")
def test_few_shots_of_an_embedded_model(capsys, files, tmp_path):
    options = ("--features", tmp_path / "f", "--results", tmp_path / "r.jsonl", "--shots", "1,5,40")
    found = probe(capsys, files, *options)
    about = found["features"]
    assert about["resolution"] == [28, 28] and about["endpoint"] == "pre_logits"
    assert about["preprocessing"]["resize"] == "stretch" and len(about["weights"]) == 16
    rows = [row for row in found["results"] if "seeds" in row["settings"]]
    assert [row["settings"]["shots"] for row in rows] == [1, 5, 40]
    assert all(row["settings"]["seeds"] == [0, 1, 2] for row in rows)
    # Far above one in ten with a single image of each, and better with more.
    assert 0.5 < rows[0]["value"] < rows[1]["value"] < 0.95
    assert len(store.read(tmp_path / "r.jsonl")) == 12
    data = ("--data", files / "train.npz", "--test", files / "test.npz")
    code, out, _ = call(capsys, MODEL, *data, *options)
    assert code == 0 and len(store.read(tmp_path / "r.jsonl")) == 12
    for text in (
        f"{MODEL}, weights {about['weights']}",
        "pre_logits, 96 of each image at 28x28 pixels (stretch to 28x28)",
        "seed 2",
        "classes with fewer than 40 images: T-shirt/top (30)",
        f"{100 * rows[0]['value']:.2f}",
    ):
        assert text in out
    code, _, err = call(capsys, "ViT-Mini/4", *data, *options)
    assert code == 2 and "with another weights" in err


@pytest.mark.parametrize("method", ["knn", "linear"])
def test_other_methods_and_endpoints(capsys, files, method):
    options = ("--method", method, "--endpoint", "encoderblock_1", "--pool", "mean")
    options += ("--resize-to", 30) if method == "knn" else ()
    found = probe(capsys, files, *options)
    (row,) = found["results"]
    resized = found["features"]["preprocessing"]["resize_to"]
    assert resized == row["settings"]["resize_to"] == (30 if method == "knn" else None)
    assert row["study"] == {"knn": "knn", "linear": "probe"}[method]
    assert row["settings"]["endpoint"] == "encoderblock_1" and row["settings"]["pool"] == "mean"
    assert 0.5 < row["value"] < 0.95


def test_a_fifth_is_split_off_without_test_images(capsys, files):
    code, out, err = call(capsys, MODEL, "--data", files / "train.npz", "--method", "knn", "--json")
    found = json.loads(out)
    assert code == 0, err
    assert (found["train"]["images"], found["test"]["images"]) == (240, 60)
    assert found["train"]["data"].endswith("[80%]")


def test_bad_input_is_one_line(capsys, files):
    data = ("--data", files / "train.npz")
    for options, message in (
        (("--shots", "1,x"), "--shots takes numbers and all"),
        (("--endpoint", "block3"), "unknown endpoint 'block3'"),
        (("--endpoint", "encoded"), "takes pool"),
        (("--resize-to", "20"), "at least the 28 pixels"),
        (("--results", "r.csv"), "must end in .jsonl"),
    ):
        code, out, err = call(capsys, MODEL, *data, *options)
        assert (code, out) == (2, "") and message in err and err.count("\n") == 1
    assert shots_option("5, 1,all,5") == [5, 1, None]


@pytest.mark.full
def test_the_example_of_the_documents_runs(tmp_path, monkeypatch, capsys):
    text = (Path(__file__).parent.parent / "docs" / "transfer.md").read_text("utf-8")
    section = text.split("## Frozen features")[1].split("\n## ")[0]
    (block,) = re.findall(r"^```python\n(.*?)^```", section, re.M | re.S)
    monkeypatch.chdir(tmp_path)
    exec(block, {})
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [line[0] for line in lines] == ["1", "5"] and all(float(x[1]) > 0.5 for x in lines)
    assert (tmp_path / "features" / "test" / "manifest.json").is_file()


@pytest.mark.full
@pytest.mark.tf_only
def test_exported_files_give_the_features_of_the_model(capsys, files, tmp_path):
    model = keras_vit.load(MODEL)
    keras_vit.export.saved_model(model, tmp_path / "saved")
    keras_vit.export.litert(model, tmp_path / "m.tflite", output="features")
    own = open_extractor(MODEL)
    images = np.random.default_rng(0).uniform(-1, 1, (3, 28, 28, 1)).astype(np.float32)
    for name in ("saved", "m.tflite"):
        other = open_extractor(str(tmp_path / name))
        assert (other.endpoint, other.dim) == ("features", own.dim)
        assert other.image_size == own.image_size and other.preprocessing == own.preprocessing
        np.testing.assert_allclose(other.predict(images), own.predict(images), atol=2e-5)
    found = [
        probe(capsys, files, "--shots", "5", model=name)["results"][0]["value"]
        for name in (MODEL, tmp_path / "saved", tmp_path / "m.tflite")
    ]
    assert found[0] == pytest.approx(found[1], abs=0.006) == pytest.approx(found[2], abs=0.006)
    code, _, err = call(
        capsys, tmp_path / "saved", "--data", files / "train.npz", "--endpoint", "encoded"
    )
    assert code == 2 and "is an exported file" in err
    for report in tmp_path.glob("m*.json"):
        report.unlink()
    code, _, err = call(capsys, tmp_path / "m.tflite", "--data", files / "train.npz")
    assert code == 2 and "no report beside it" in err
