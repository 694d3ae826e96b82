"""MediaPipe's ImageClassifier runs a model that was fine-tuned on seven folders, by its file alone."""

import ctypes
import dataclasses
import importlib.util
import json
import runpy
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

import keras_vit
from keras_vit import export
from keras_vit.data.sources import open_source
from keras_vit.export.metadata import read_metadata
from keras_vit.layers.preprocessor import preprocess
from keras_vit.train.finetune import finetune

# Exports need TensorFlow, and nothing else depends on the backend.
pytestmark = [pytest.mark.tf_only, pytest.mark.full]

clients = SimpleNamespace(**runpy.run_path(str(Path(__file__).with_name("clients.py"))))
SCRIPT = Path(__file__).with_name("mediapipe_classify.py")
# Folder -> photograph in scikit-image's package that its images are cut from.
FOLDERS = {
    "astronaut": "astronaut.png",
    "cup of coffee": "coffee.png",
    "deep field": "hubble_deep_field.jpg",
    "motorcycle": "motorcycle_left.png",
    "rocket": "rocket.jpg",
    "tabby cat": "chelsea.png",
    "tissue": "ihc.png",
}
SHOWN = ("astronaut", "rocket", "tabby cat")  # whole photographs; training sees parts of them
FILES = {
    "float": {},
    "pixels": {"input": "uint8"},
    "small": {"input": "uint8", "quantize": "dynamic_int8"},
}


@pytest.fixture(scope="module")
def originals():
    """Folder -> its photograph."""
    pytest.importorskip("skimage", reason="scikit-image is not installed: extra [dev]")
    data = Path(importlib.util.find_spec("skimage").origin).parent / "data"
    return {name: Image.open(data / file).convert("RGB") for name, file in FOLDERS.items()}


@pytest.fixture(scope="module")
def tuned(originals, tmp_path_factory):
    """The embedded model, fine-tuned on the seven folders as `keras-vit finetune` does it."""
    folder, rng = tmp_path_factory.mktemp("seven"), np.random.default_rng(0)
    for name, whole in reversed(originals.items()):  # the order on disk is not that of the names
        (folder / "photos" / name).mkdir(parents=True)
        for i in range(16):
            width, height = (int(side * rng.uniform(0.6, 1.0)) for side in whole.size)
            x, y = (
                rng.integers(0, whole.width - width + 1),
                rng.integers(0, whole.height - height + 1),
            )
            box = (x, y, x + width, y + height)
            whole.resize((48, 40), box=box).save(folder / "photos" / name / f"{i}.png")
    found = finetune(
        keras_vit.load("ViT-Mini/4@fashion_mnist", in_channels=3),
        open_source(f"folder:{folder / 'photos'}"),
        out=folder / "run",
        val_split=0,
        recipe=lambda recipe: dataclasses.replace(recipe, epochs=15),
    )
    assert found.evaluation.accuracy > 0.9
    return keras_vit.load(str(folder / "run" / "model.keras"))


@pytest.fixture(scope="module")
def place(tuned, originals, tmp_path_factory):
    """A folder with the exported files, the photographs, and those at the size of the model."""
    folder = tmp_path_factory.mktemp("mediapipe")
    for name, options in FILES.items():
        export.litert(tuned, folder / f"{name}.tflite", **options)
    for name in SHOWN:
        originals[name].save(folder / f"{name}.png")
        small = preprocess(np.asarray(originals[name])[None], (28, 28), pixels_rule(tuned), np)[0]
        Image.fromarray(np.rint(small).astype(np.uint8)).save(folder / f"{name} at 28.png")
    return folder


@pytest.fixture(scope="module")
def told(place):
    """(file, image) -> what MediaPipe says; files lie alone, without their reports."""
    if not importlib.util.find_spec("mediapipe"):
        pytest.skip("mediapipe is not installed: extra [mediapipe]")
    for library, package in (("libEGL.so.1", "libegl1"), ("libGLESv2.so.2", "libgles2")):
        try:
            ctypes.CDLL(library)
        except OSError:
            pytest.skip(f"mediapipe needs {library} (Debian: {package})")
    files = [place / f"{name}.tflite" for name in FILES]
    for file in files:
        file.with_name(f"{file.name}.json").unlink()
    images = [place / f"{name}{size}.png" for name in SHOWN for size in ("", " at 28")]
    done = subprocess.run(
        [sys.executable, SCRIPT, *files, *images], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout)
    return {
        (file.stem, image.stem): answer
        for file in files
        for image, answer in zip(images, found[str(file)], strict=True)
    }


def pixels_rule(model):
    return dataclasses.replace(model.preprocessing, mean=(0.0,), std=(1.0,))


def test_the_seven_folders_are_the_labels_in_their_order(place, told):
    for name in FILES:
        assert read_metadata(place / f"{name}.tflite").class_names == tuple(FOLDERS)
    for answer in told.values():
        assert answer["names"] == list(FOLDERS) and answer["indices"] == list(range(7))


@pytest.mark.parametrize("name", FILES)
def test_scores_are_those_of_python(tuned, place, told, name):
    for shown in SHOWN:
        image = np.asarray(Image.open(place / f"{shown} at 28.png"))[None]
        wanted = tuned.probabilities(
            preprocess(image, tuned.spec.image_size, tuned.preprocessing, np)
        )[0]
        found = np.asarray(told[name, f"{shown} at 28"]["scores"])
        # Two builds of the same kernels; those of dynamic int8 may differ as much as int8 does.
        np.testing.assert_allclose(found, wanted, atol=0.03 if name == "small" else 1e-5, rtol=0)
        assert list(FOLDERS)[int(found.argmax())] == shown


@pytest.mark.parametrize("name", FILES)
def test_whole_photographs_have_the_top_category_of_python(tuned, place, told, name):
    for shown in SHOWN:
        label, index, probability = tuned.predict_images([place / f"{shown}.png"])[0][0]
        found = told[name, shown]
        best = int(np.argmax(found["scores"]))
        assert (found["names"][best], best) == (label, index) == (shown, index)
        # MediaPipe resizes by a rule of its own, which moves pixels by a few grey levels.
        assert abs(found["scores"][best] - probability) < 0.05
