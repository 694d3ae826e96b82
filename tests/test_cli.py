"""Every command: its answer for machines, its one-line errors, its exit codes, what it leaves."""

import dataclasses
import importlib.metadata
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import keras
import numpy as np
import pytest
from PIL import Image

import keras_vit
from keras_vit import VisionModel, ViTSpec, cli
from keras_vit.cli import reference
from keras_vit.cli.app import COMMANDS
from keras_vit.cli.common import Answer, command
from keras_vit.train.recipe import Recipe, Schedule
from keras_vit.train.recipes import fashion_mnist
from keras_vit.zoo.variants import VARIANTS

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


@pytest.fixture(autouse=True)
def _embedded(monkeypatch, embedded_stand_ins):
    monkeypatch.setenv("KERAS_VIT_CARDS", str(embedded_stand_ins))
    monkeypatch.delenv("KERAS_VIT_DEBUG", raising=False)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A checkpoint `trunk.npz`, and two folders of images named after Fashion-MNIST's classes."""
    root = tmp_path_factory.mktemp("files")
    keras.utils.set_random_seed(0)
    keras_vit.save_weights_as(VisionModel(TINY), root / "trunk.npz")
    rng = np.random.default_rng(0)
    for name, level in (("Bag", 40), ("Sandal", 200)):
        (root / "images" / name).mkdir(parents=True)
        for i in range(12):
            pixels = np.clip(rng.normal(level, 20, (14, 11)), 0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(root / "images" / name / f"{i}.png")
    return root


def call(capsys, *arguments) -> tuple[int, str, str]:
    """(exit code, stdout, stderr) of a command."""
    capsys.readouterr()
    code = cli.run([str(a) for a in arguments])
    found = capsys.readouterr()
    return code, found.out, found.err


def answer(capsys, *arguments):
    """The JSON that a command prints; it must be all of stdout."""
    code, out, err = call(capsys, *arguments, "--json")
    assert code == 0, err
    return json.loads(out)


@pytest.fixture(scope="module")
def tuned(files):
    """A folder that `finetune` has written."""
    out = files / "tuned"
    code = cli.run(
        [
            *("finetune", str(files / "trunk.npz"), "--data", f"folder:{files / 'images'}"),
            *("--epochs", "8", "--batch-size", "6", "--lr", "0.003", "--augment", "flip,shift"),
            *("--class-weights", "balanced", "--val-split", "0.25", "--image-size", "16x12"),
            *("--seed", "3", "--out", str(out)),
        ]
    )
    assert code == 0
    return out


def test_help_has_an_example_and_starts_no_framework(capsys):
    code = (
        "import sys; from keras_vit.cli import run\n"
        "for words in (['--help'], ['list'], ['info', 'ViT-L/16'], ['finetune', '--help']):\n"
        "    assert run(words) == 0, words\n"
        "heavy = {'keras', 'tensorflow', 'jax', 'torch'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "keras-vit finetune ViT-B/16" in done.stdout
    for name in COMMANDS:
        code, out, _ = call(capsys, name, "--help")
        assert code == 0 and "Example: keras-vit" in out, name


def test_the_installed_program_and_the_module_run():
    for program in (
        [Path(sys.executable).with_name("keras-vit")],
        [sys.executable, "-m", "keras_vit"],
    ):
        done = subprocess.run([*program, "--version"], capture_output=True, text=True, timeout=120)
        assert done.stdout == f"keras-vit {keras_vit.__version__}\n", done.stderr


def test_the_reference_is_up_to_date():
    page = Path(__file__).parent.parent / "docs" / "cli.md"
    assert page.read_text("utf-8") == reference.document(), "run python -m keras_vit.cli.reference"


def test_what_libraries_print_does_not_get_into_the_answer(capfd):
    def noisy(number: int = 1) -> Answer:
        print("printed by a library")
        os.write(2, b"written by native code")
        return Answer({"number": number}, ("the answer",))

    assert command(noisy)(as_json=True) == 0
    found = capfd.readouterr()
    assert json.loads(found.out) == {"number": 1}
    assert "printed by a library" in found.err and "native" not in found.err
    command(noisy)(as_json=False)
    assert capfd.readouterr().out == "the answer\n"


def test_list(capsys):
    found = answer(capsys, "list", "ViT-B/*")
    assert [entry["name"] for entry in found] == ["ViT-B/32", "ViT-B/16", "ViT-B/8"]
    assert found[1]["parameters"] == 86567656
    names = [entry["name"] for entry in answer(capsys, "list", "--pretrained")]
    assert "ViT-Mini/4@fashion_mnist" in names
    code, out, _ = call(capsys, "list")
    assert code == 0 and "ViT-H/14" in out


def test_info(capsys, files):
    found = answer(capsys, "info", "ViT-L/16")
    assert found["card"]["variant"] == "ViT-L/16" and found["spec"]["num_layers"] == 24
    assert answer(capsys, "info", files / "trunk.npz")["spec"]["hidden_size"] == 24
    assert "no weights were ever released" in call(capsys, "info", "ViT-G/14")[1]


def test_predict(capsys, files):
    image = files / "images" / "Bag" / "0.png"
    (files / "text.png").write_text("no image")
    (entry,) = answer(capsys, "predict", "ViT-Mini/4", image, "--top", "3")
    assert len(entry["predictions"]) == 3
    expected = keras_vit.load("ViT-Mini/4").predict_images([str(image)], top=3)[0]
    for got, (label, index, probability) in zip(entry["predictions"], expected, strict=True):
        assert (got["label"], got["index"]) == (label, index)
        assert got["probability"] == pytest.approx(probability, abs=1e-6)
    code, out, err = call(capsys, "predict", "ViT-Mini/4", image, files / "text.png", "--json")
    good, bad = json.loads(out)
    assert code == 2 and good["predictions"] and bad["error"] and not bad["predictions"]
    assert "text.png is not an image" in err


def test_finetune_writes_a_report_that_evaluate_confirms(capsys, files, tuned):
    report = json.loads((tuned / "report.json").read_text())
    made = report["recipe"]
    assert [k for k, v in made["augment"].items() if v is True] == ["flip", "shift"]
    assert made["schedule"]["base_lr"] == 0.003 and made["loss"]["class_weights"] == "balanced"
    assert report["spec"]["image_size"] == [16, 12] and report["seed"] == 3
    assert len(report["evaluation"]["confusion"]) == 2
    data = f"folder:{files / 'images'}"
    found = answer(capsys, "evaluate", tuned / "model.keras", "--data", data)
    assert found["examples"] == 24 and found["accuracy"] > 0.9  # dark against bright
    low, high = found["interval"]
    assert low < found["accuracy"] <= high
    code, out, _ = call(
        capsys, "evaluate", tuned / "model.keras", "--data", data, "--batch-size", 5
    )
    assert code == 0 and f"accuracy {found['accuracy']:.2%}" in out and "Sandal" in out


def test_classes_are_picked_by_name_or_number_and_matched_by_name(capsys, tuned):
    data = ("--data", "fashion_mnist:subset_test")
    code, _, err = call(capsys, "evaluate", tuned / "model.keras", *data)
    assert code == 2 and "classes that the model does not know" in err
    found = answer(capsys, "evaluate", tuned / "model.keras", *data, "--classes", "Sandal,8")
    assert found["examples"] == 200
    # The model's order is that of its folders, Bag first.
    assert [score["name"] for score in found["per_class"]] == ["Bag", "Sandal"]


def test_convert_there_and_back(capsys, tuned, tmp_path):
    assert answer(capsys, "convert", tuned / "model.keras", tmp_path / "a.npz")["bytes"] > 0
    answer(capsys, "convert", tmp_path / "a.npz", tmp_path / "b.keras")
    small = answer(
        capsys, "convert", tuned / "model.keras", tmp_path / "c.npz", "--dtype", "float16"
    )
    assert small["bytes"] < 0.7 * (tmp_path / "a.npz").stat().st_size
    before, after = keras_vit.load(tuned / "model.keras"), keras_vit.load(tmp_path / "b.keras")
    assert after.class_names == before.class_names == ("Bag", "Sandal")
    x = np.random.default_rng(0).uniform(-1, 1, (2, 16, 12, 1)).astype(np.float32)
    np.testing.assert_array_equal(before.probabilities(x), after.probabilities(x))


def test_every_container_is_written_and_opened(capsys, files, tuned, tmp_path):
    """The suffix decides, or --format; a folder of weights is no exported model."""
    made = {
        "a.safetensors": "timm",
        "b.weights.h5": "keras_weights",
        "c": "keras_hub",
        "d.npz": "google_npz",
    }
    before, model = None, tuned / "model.keras"
    for name, layout in made.items():
        options = ("--format", layout) if layout == "keras_hub" else ()
        found = answer(capsys, "convert", model, tmp_path / name, *options)
        assert found["format"] == layout and found["bytes"] > 0
        model = tmp_path / name  # each from the one before
        assert answer(capsys, "info", model)["spec"] == found["spec"]
        images = answer(capsys, "predict", model, files / "images" / "Bag" / "0.png")
        before = before or images[0]["predictions"]
        assert images[0]["predictions"] == before
    code, _, err = call(capsys, "convert", model, tmp_path / "c", "--format", "keras_hub")
    assert code == 2 and "--force" in err
    assert answer(
        capsys, "convert", model, tmp_path / "c", "--format", "keras_hub", "--dtype", "float16", "--force"
    )["bytes"]  # fmt: skip
    code, _, err = call(capsys, "convert", model, tmp_path / "e")
    assert code == 2 and "Hugging Face's layout has no network with pool='gap'" in err
    code, _, err = call(capsys, "convert", model, tmp_path / "f.keras", "--dtype", "float16")
    assert code == 2 and "keeps float32 weights" in err


def test_export_and_what_runs_the_exported_file(capsys, files, tuned, tmp_path):
    # On JAX this starts a process of its own with TensorFlow.
    out, data = tmp_path / "model.tflite", ("--data", f"folder:{files / 'images'}")
    found = answer(
        capsys, "export", tuned / "model.keras", "-o", out, "--quantize", "dynamic_int8", *data
    )
    assert (
        found["mode"] == "dynamic_int8" and found["comparisons"]["serving_default"]["images"] == 24
    )
    keras_says = answer(capsys, "evaluate", tuned / "model.keras", *data)
    file_says = answer(capsys, "evaluate", out, *data)
    assert file_says["kind"] == "litert"
    # At most one of 24 images may tip over by quantisation.
    assert abs(file_says["accuracy"] - keras_says["accuracy"]) < 1.5 / 24
    image = files / "images" / "Sandal" / "0.png"
    (entry,) = answer(capsys, "predict", out, image, "--top", "1")
    assert entry["predictions"][0]["label"] in ("Bag", "Sandal")
    assert answer(capsys, "info", out)["mode"] == "dynamic_int8"
    before = out.read_bytes()
    code, _, err = call(capsys, "export", tuned / "model.keras", "-o", out)
    assert code == 2 and "--force" in err and out.read_bytes() == before


BAD = {
    "unknown command": (["bogus"], "bogus"),
    "unknown option": (["list", "--bogus"], "bogus"),
    "unknown choice": (["export", "{trunk}", "-o", "{new}.tflite", "--quantize", "int3"], "int3"),
    "missing option": (["evaluate", "{trunk}"], "--data"),
    "unknown name": (["info", "ViT-L/17"], "did you mean"),
    "no match": (["list", "X*"], "no model matches"),
    "missing weights": (["predict", "ViT-H/14", "{image}"], "not on this machine"),
    "missing file": (["predict", "gone.npz", "{image}"], "does not exist"),
    "not a checkpoint": (["predict", "{text}", "{image}"], "not an npz, safetensors"),
    "no artifact": (["predict", "{images}", "{image}"], "neither a SavedModel folder"),
    "no head": (["predict", "{bare}", "{image}"], "no usable head"),
    "unknown data": (["evaluate", "ViT-Mini/4", "--data", "nothing"], "use folder:PATH"),
    "no folder": (["evaluate", "ViT-Mini/4", "--data", "folder:gone"], "is no folder"),
    "one class": (["evaluate", "ViT-Mini/4", "--data", "folder:{single}"], "class folders"),
    "no such class": (
        ["evaluate", "ViT-Mini/4", "--data", "fashion_mnist:subset_test", "--classes", "Hat"],
        "no class 'Hat'",
    ),
    "bad size": (
        [
            "finetune",
            "{trunk}",
            "--data",
            "folder:{images}",
            "--out",
            "{new}",
            "--image-size",
            "4x",
        ],
        "HEIGHTxWIDTH",
    ),
    "no multiple of the patch": (
        [
            "finetune",
            "{trunk}",
            "--data",
            "folder:{images}",
            "--out",
            "{new}",
            "--image-size",
            "15",
        ],
        "no multiple of the patch size 4: use 12 or 16",
    ),
    "unknown augmentation": (
        ["finetune", "{trunk}", "--data", "folder:{images}", "--out", "{new}", "--augment", "spin"],
        "unknown augmentations",
    ),
    "unwritable folder": (
        ["finetune", "{trunk}", "--data", "folder:{images}", "--out", "/proc/nowhere/x"],
        "cannot write to",
    ),
    "unwritable file": (["convert", "{trunk}", "/nowhere/x.npz"], "cannot write to /nowhere"),
    "wrong suffix": (
        ["convert", "{trunk}", "{new}.h5"],
        "must end in .npz, .safetensors, .weights.h5, .keras or in nothing",
    ),
    "existing file": (["convert", "{trunk}", "{trunk}"], "--force"),
    "existing run": (["train", "fashion_mnist/ten", "--out", "{images}"], "is not empty"),
    "unknown task": (
        ["train", "cifar", "--out", "{new}"],
        "no recipe 'cifar': there are paper/jft",
    ),
    "unknown published training": (
        ["train", "fashion_mnist/nine", "--out", "{new}"],
        "no training task 'fashion_mnist/nine': there are fashion_mnist/",
    ),
    "options of another format": (
        ["export", "{trunk}", "-o", "{new}", "--quantize", "float16"],
        "no .tflite file, so it knows no --quantize",
    ),
    "existing demo": (["demo", "--out", "{images}"], "is not empty"),
}


@pytest.fixture(scope="module")
def places(files):
    """What the placeholders of BAD stand for."""
    (files / "text.npz").write_text("no checkpoint")
    (files / "single" / "Bag").mkdir(parents=True)
    (files / "single" / "Bag" / "0.png").write_bytes(
        (files / "images" / "Bag" / "0.png").read_bytes()
    )
    keras.utils.set_random_seed(0)
    bare = VisionModel(ViTSpec(**{**vars(TINY), "num_classes": 0}))
    keras_vit.save_weights_as(bare, files / "bare.npz")
    return {
        "trunk": files / "trunk.npz",
        "text": files / "text.npz",
        "bare": files / "bare.npz",
        "images": files / "images",
        "single": files / "single",
        "image": files / "images" / "Bag" / "0.png",
        "new": files / "new",
    }


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_line_exit_code_2_and_leaves_nothing(capsys, places, case):
    words, text = BAD[case]
    before = sorted(places["trunk"].parent.rglob("*"))
    code, out, err = call(capsys, *(word.format(**places) for word in words))
    errors = [line for line in err.splitlines() if line.startswith("error: ")]
    assert (code, out, len(errors)) == (2, "", 1), err
    assert text in errors[0]
    assert "Traceback" not in err
    assert sorted(places["trunk"].parent.rglob("*")) == before


def test_a_traceback_comes_only_when_asked_for(monkeypatch):
    monkeypatch.setenv("KERAS_VIT_DEBUG", "1")
    with pytest.raises(ValueError, match="ViT-L/17"):
        cli.run(["info", "ViT-L/17"])


def test_an_ended_command_says_what_is_kept_and_the_same_command_goes_on(
    capsys, files, tmp_path, monkeypatch
):
    from keras_vit.cli.progress import EpochLines

    arguments = (
        *("finetune", files / "trunk.npz", "--data", f"folder:{files / 'images'}"),
        *("--epochs", 2, "--batch-size", 6, "--val-split", 0.25, "--out", tmp_path / "run"),
    )
    before = signal.getsignal(signal.SIGTERM)

    def interrupt(self, epoch, logs=None):
        raise KeyboardInterrupt

    def terminate(self, epoch, logs=None):
        if epoch == 1:
            os.kill(os.getpid(), signal.SIGTERM)

    with monkeypatch.context() as patch:
        patch.setattr(EpochLines, "on_epoch_begin", interrupt)
        code, out, err = call(capsys, *arguments)
    assert (code, out) == (130, "") and signal.getsignal(signal.SIGTERM) == before
    assert f"nothing is kept yet in {tmp_path / 'run'}" in err.splitlines()[-1]
    with monkeypatch.context() as patch:
        patch.setattr(EpochLines, "on_epoch_begin", terminate)
        code, out, err = call(capsys, *arguments)
    try:
        # A second signal does not end the process otherwise while it shuts down.
        assert signal.getsignal(signal.SIGTERM) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGTERM, before)
    assert code == 0 and "stopped by SIGTERM after step 4 of 6" in out
    assert "run the same command again" in out
    assert answer(capsys, *arguments)["resumed_from"] == 4


def test_sigterm_before_and_after_the_training_ends_a_command_too(capsys, tmp_path, monkeypatch):
    from keras_vit.train import task as tasks

    before = signal.getsignal(signal.SIGTERM)

    def terminate(*_, **__):
        os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(tasks, "run_task", terminate)
    try:
        code, out, _ = call(capsys, "train", "paper/imagenet", "--smoke", "--out", tmp_path / "run")
    finally:
        signal.signal(signal.SIGTERM, before)
    assert code == 0 and "stopped by SIGTERM: nothing is kept yet" in out


def test_a_diverging_run_is_a_failed_check(capsys, files, tmp_path):
    code, out, err = call(
        capsys,
        *("finetune", files / "trunk.npz", "--data", f"folder:{files / 'images'}"),
        *("--epochs", 3, "--optimizer", "sgd", "--lr", 1e30, "--out", tmp_path / "run"),
    )
    assert (code, out) == (1, "")
    assert "lower" in err.splitlines()[-1] and not (tmp_path / "run" / "report.json").exists()


@pytest.fixture
def small_task(monkeypatch):
    """`fashion_mnist/ten` as a few steps of the smallest network."""
    spec = ViTSpec(**{**vars(TINY), "num_classes": 10, "image_size": (28, 28), "patch_size": 7})
    recipe = Recipe(epochs=1.5, batch_size=500, schedule=Schedule(3e-3))
    task = dataclasses.replace(fashion_mnist.TASKS["ten"], recipe=recipe)
    variant = dataclasses.replace(VARIANTS[task.model], spec=spec)
    monkeypatch.setitem(fashion_mnist.TASKS, "ten", task)
    monkeypatch.setitem(VARIANTS, task.model, variant)


def test_train_measures_the_file_it_writes(capsys, tmp_path, small_task):
    out = tmp_path / "run"
    found = answer(capsys, "train", "fashion_mnist/ten", "--out", out, "--data", "subset")
    report = json.loads((out / "report.json").read_text())
    assert report == {k: v for k, v in found.items() if k != "out"}
    assert report["epochs"] == 2 and report["seed"] == 0 and report["seconds"] > 0
    assert sorted(p.name for p in out.iterdir()) == [
        *("curves.svg", "metrics.jsonl", "model.json", "model.keras", "model.npz"),
        *("report.json", "report.md"),
    ]
    with np.load(out / "model.npz") as file:
        assert {file[key].dtype for key in file.files} == {np.dtype(np.float16)}
    again = answer(capsys, "evaluate", out / "model.npz", "--data", "fashion_mnist:subset_test")
    assert again["accuracy"] == report["accuracy"] and again["examples"] == 1000
    text = (out / "report.md").read_text()
    assert f"**{report['accuracy']:.2%}**" in text and "](curves.svg)" in text
    assert "schedule.base_lr | 0.003" in text and "Sandal" in text
    assert (out / "curves.svg").read_text().startswith("<svg ")


def test_doctor_passes_here_and_sees_what_is_wrong(capsys, monkeypatch, tmp_path):
    # Other distributions on this machine are not this test's business.
    monkeypatch.setattr(importlib.metadata, "packages_distributions", dict)
    monkeypatch.delenv("TF_USE_LEGACY_KERAS", raising=False)
    monkeypatch.setenv("KERAS_VIT_CACHE", str(tmp_path))
    found = answer(capsys, "doctor")
    assert found["ok"]
    states = {check["what"]: check for check in found["checks"]}
    assert states["backend"]["found"] == keras.backend.backend()
    monkeypatch.setattr(
        importlib.metadata,
        "packages_distributions",
        lambda: {"tensorflow": ["tensorflow", "tensorflow-tpu", "tensorflow"]},
    )
    monkeypatch.setenv("TF_USE_LEGACY_KERAS", "1")
    monkeypatch.setenv("KERAS_VIT_MIRROR", str(tmp_path / "gone"))
    monkeypatch.setenv("KERAS_VIT_CACHE", os.devnull + "/cache")
    code, out, _ = call(capsys, "doctor", "--json")
    wrong = {c["what"]: c for c in json.loads(out)["checks"] if c["state"] == "wrong"}
    assert code == 1
    assert {"folder tensorflow", "TF_USE_LEGACY_KERAS", "KERAS_VIT_MIRROR", "cache"} <= set(wrong)
    assert "tensorflow, tensorflow-tpu" in wrong["folder tensorflow"]["found"]
    assert all(check["remedy"] for check in wrong.values())
