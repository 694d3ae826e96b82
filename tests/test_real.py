"""ImageNet ReaL: the user's labels, in the order of the files, for predictions and for images."""

import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from keras_vit.train.evaluate import wilson
from keras_vit.transfer import real

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:tensorflow_datasets")

spec = importlib.util.spec_from_file_location("vtab_data", Path(__file__).with_name("vtab_data.py"))
vtab_data = importlib.util.module_from_spec(spec)
spec.loader.exec_module(vtab_data)

LABELS = ((3,), (5, 7), (), (999, 0), (8,))
NAMES = [f"ILSVRC2012_val_{i:08d}.JPEG" for i in range(1, 6)]


def test_the_file_is_a_list_of_lists(tmp_path):
    path = tmp_path / "real.json"
    path.write_text(json.dumps(LABELS))
    assert real.read_real(path) == LABELS
    for wrong in ('{"a": 1}', "[[3], [1000]]", "[[-1]]", "[3]", "[]", "no json"):
        path.write_text(wrong)
        with pytest.raises(ValueError, match=r"is not ReaL's real\.json, a list of classes from 0"):
            real.read_real(path)


def test_right_is_any_label_and_images_without_labels_do_not_count():
    found = real.score(np.array([3, 7, 1, 1, 8]), LABELS)
    assert (found.right, found.examples, found.accuracy) == (3, 4, 0.75)
    assert found.interval == wilson(3, 4)


def test_scores_count_by_their_first_class():
    scores = np.zeros((5, 1000), np.float32)
    scores[[0, 1, 3], [3, 5, 999]] = 1
    scores[4, [8, 9]] = 1  # equal: the lower number is first
    assert real.score(scores, LABELS).right == 4
    scores[4, 7] = 1
    assert real.score(scores, LABELS).right == 3


def test_file_names_may_come_in_any_order_and_be_some():
    order = [4, 0, 3]
    predictions = np.array([8, 3, 3])
    found = real.score(predictions, LABELS, [f"val/{NAMES[i]}" for i in order])
    assert (found.right, found.examples) == (2, 3)
    # In the order of the numbers the same predictions are right elsewhere.
    assert real.score(predictions, LABELS[:3]).right == 0


@pytest.mark.parametrize(
    ("predictions", "names", "message"),
    [
        (np.zeros(4, int), None, "4 predictions, but ReaL has labels for 5 images"),
        (np.zeros(5, int), NAMES[:4], "5 predictions, but there are file names of 4 images"),
        (np.zeros(2, int), [NAMES[1], NAMES[1]], "ILSVRC2012_val_00000002 is among the file names"),
        (np.zeros(1, int), ["n01440764_18.JPEG"], "n01440764_18.JPEG is no validation image"),
        (np.zeros(1, int), ["ILSVRC2012_val_00000006.JPEG"], "to ILSVRC2012_val_00000005"),
        (np.zeros((5, 10)), None, r"got shape \(5, 10\) of float64"),
        (np.zeros(5), None, r"got shape \(5,\) of float64"),
        (np.full(5, 1000), None, "classes from 0 to 999"),
    ],
)
def test_errors(predictions, names, message):
    with pytest.raises(ValueError, match=message):
        real.score(predictions, LABELS, names)


def test_images_of_a_folder_find_their_labels_by_their_names(tmp_path):
    # Folders as of ImageNet, so that sorted paths are not sorted numbers.
    for number, label in ((1, 700), (2, 5), (4, 0)):
        folder = tmp_path / f"n{label:08d}"
        folder.mkdir()
        Image.new("RGB", (4, 4)).save(folder / f"ILSVRC2012_val_{number:08d}.png")
    for label in set(range(1000)) - {0, 5, 700}:
        (tmp_path / f"n{label:08d}").mkdir()
        Image.new("RGB", (4, 4)).save(tmp_path / f"n{label:08d}" / f"ILSVRC2012_val_{3:08d}.png")
    source = real.open_real(f"folder:{tmp_path}", LABELS)
    original, targets = real.split_labels(source.labels)
    np.testing.assert_array_equal(original.argmax(axis=1), np.arange(1000))
    assert (original.sum(axis=1) == 1).all()
    assert [np.flatnonzero(targets[i]).tolist() for i in (0, 5, 700, 1)] == [
        [0, 999],
        [5, 7],
        [3],
        [],
    ]
    scores = np.eye(1000)
    found = real.RealScores()
    found.add(scores, targets)
    assert (found.right, found.examples) == (2, 3)  # 700 is not among ReaL's labels of its image


@pytest.mark.tf_only
def test_images_of_tensorflow_datasets_find_their_labels_by_their_names(tmp_path, monkeypatch):
    examples = vtab_data.write("imagenet2012", str(tmp_path))["validation"]
    numbers = [int(e["file_name"].removesuffix(".JPEG")[-8:]) for e in examples]
    labels = tuple((i, i + 1) if i % 2 else () for i in range(10))
    source = real.open_real("tfds:imagenet2012:validation", labels, data_dir=str(tmp_path))
    original, targets = real.split_labels(source.labels)
    np.testing.assert_array_equal(original.argmax(axis=1), [e["label"] for e in examples])
    for row, number in zip(targets, numbers, strict=True):
        assert tuple(np.flatnonzero(row)) == labels[number - 1]
