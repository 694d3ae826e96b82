"""ObjectNet: its mappings, its border, and what counts as right."""

import json

import numpy as np
import pytest
from PIL import Image

from keras_vit.card import Preprocessing
from keras_vit.data.labels import label_names
from keras_vit.train.evaluate import wilson
from keras_vit.transfer import objectnet

CLOCKS, CRANE, LAMP = (409, 530), (134, 517), 846
FOLDERS = {"alarm_clock": "Alarm clock", "desk_lamp": "Desk lamp", "air_freshener": "Air freshener"}
NAMES = {"Alarm clock": "analog clock; digital clock", "Desk lamp": "table lamp"}


def write(folder, folders=FOLDERS, names=NAMES):
    (folder / "mappings").mkdir(parents=True, exist_ok=True)
    (folder / "mappings" / objectnet.FOLDERS).write_text(json.dumps(folders))
    (folder / "mappings" / objectnet.NAMES).write_text(json.dumps(names))


def test_mapping_of_folders_to_classes(tmp_path):
    write(tmp_path)
    wanted = {"alarm_clock": CLOCKS, "desk_lamp": (LAMP,)}
    assert objectnet.read_mapping(tmp_path) == wanted
    assert objectnet.read_mapping(tmp_path / "mappings") == wanted


def test_names_with_all_synonyms_or_the_first():
    names = label_names("imagenet2012")
    bikes = (
        "mountain bike, all-terrain bike, off-roader; bicycle-built-for-two, tandem bicycle, tandem"
    )
    assert objectnet.imagenet_classes(bikes, names) == (671, 444)
    assert objectnet.imagenet_classes("mountain bike", names) == (671,)
    assert objectnet.imagenet_classes("maillot", names) == (638,)
    with pytest.raises(ValueError, match="'crane' is the name of 2 classes"):
        objectnet.imagenet_classes("crane", names)
    with pytest.raises(ValueError, match="'alarm' is the name of 0 classes"):
        objectnet.imagenet_classes("analog clock; alarm", names)


def test_mapping_errors(tmp_path):
    with pytest.raises(ValueError, match="is not there: it comes with ObjectNet"):
        objectnet.read_mapping(tmp_path)
    write(tmp_path, names={"Bench": "park bench"})
    with pytest.raises(ValueError, match="has no folder for Bench"):
        objectnet.read_mapping(tmp_path)
    write(tmp_path, names=["park bench"])
    with pytest.raises(ValueError, match="no JSON table from names to names"):
        objectnet.read_mapping(tmp_path)


def test_the_border_is_two_pixels():
    image = np.arange(7 * 9).reshape(7, 9, 1)
    np.testing.assert_array_equal(objectnet.without_border(image), image[2:5, 2:7])
    with pytest.raises(ValueError, match="4x9 pixels is nothing but border"):
        objectnet.without_border(np.zeros((4, 9, 3)))


def test_a_hit_is_any_of_the_classes_among_all_outputs():
    right = np.zeros((4, 1000), bool)
    right[:, list(CLOCKS)] = True
    scores = np.zeros((4, 1000))
    scores[0, 530] = 1  # one of the two
    scores[1, [3, 7, 9, 11, 409]] = 5, 4, 3, 2, 1  # the fifth
    scores[2, [3, 7, 9, 11, 13, 409]] = 6, 5, 4, 3, 2, 1  # the sixth
    # In the last all are equal: the first classes win, and none of them is a clock.
    assert objectnet.hits(scores, right).tolist() == [True, False, False, False]
    assert objectnet.hits(scores, right, 5).tolist() == [True, True, False, False]
    with pytest.raises(ValueError, match="among all 1000 classes"):
        objectnet.hits(np.zeros((4, 113)), right)


def test_the_crop_is_480_of_512():
    how = objectnet.preprocessing_for(Preprocessing(), (480, 480))
    assert (how.resize, how.resize_to) == ("shorter_side", 512)
    assert objectnet.preprocessing_for(Preprocessing(), (384, 384)).resize_to == 410


def test_measuring(tmp_path):
    write(tmp_path)
    shades = {"alarm_clock": (10, 20, 30), "desk_lamp": (40, 50), "air_freshener": (60,)}
    for name, values in shades.items():
        (tmp_path / "images" / name).mkdir(parents=True)
        for value in values:
            pixels = np.full((24, 30, 3), 255, np.uint8)
            pixels[2:-2, 2:-2] = value
            Image.fromarray(pixels).save(tmp_path / "images" / name / f"{value}.png")
    (tmp_path / "images" / "desk_lamp" / "99.png").write_bytes(b"no image")
    source, right = objectnet.open_objectnet(tmp_path, objectnet.read_mapping(tmp_path))
    assert source.class_names == ("alarm_clock", "desk_lamp") and len(source) == 6
    assert np.flatnonzero(right[0]).tolist() == list(CLOCKS)
    answers = {10: 409, 20: LAMP, 30: 530, 40: LAMP, 50: 0}

    def predict(images):
        assert images.shape[1:] == (16, 16, 3)
        scores = np.zeros((len(images), 1000))
        for row, image in enumerate(images):
            assert image.min() == image.max()  # nothing is left of the border
            scores[row, answers[int(image[0, 0, 0])]] = 2
            scores[row, LAMP] += 1  # second, if not first
        return scores

    raw = Preprocessing(mean=(0.0,), std=(1.0,))
    done = []
    found = objectnet.measure(
        predict,
        source,
        right,
        image_size=(16, 16),
        channels=3,
        preprocessing=raw,
        batch_size=4,
        progress=lambda *counts: done.append(counts),
    )
    assert (found.examples, found.top1, found.top5) == (5, 3 / 5, 4 / 5)
    assert found.interval == wilson(3, 5) and done == [(4, 6), (6, 6)]
    assert len(found.broken) == 1 and "99.png" in found.broken[0]


def test_a_missing_image_folder(tmp_path):
    with pytest.raises(
        ValueError, match=r"no folder for 2 of 2 classes of ObjectNet \(alarm_clock"
    ):
        objectnet.open_objectnet(tmp_path, {"alarm_clock": CLOCKS, "desk_lamp": (LAMP,)})
