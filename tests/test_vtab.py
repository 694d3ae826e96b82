"""VTAB-1k: labels, splits and loaders of the 19 tasks, and the means over them."""

import importlib.util
import math
import re
from pathlib import Path

import numpy as np
import pytest

from keras_vit.data.sources import Source
from keras_vit.data.streams import Stream
from keras_vit.results.names import VTAB_GROUPS
from keras_vit.results.published import published
from keras_vit.train.recipes import paper_finetune
from keras_vit.transfer.vtab import labels, tasks
from keras_vit.transfer.vtab.means import means
from keras_vit.transfer.vtab.tasks import TASKS, Splits, open_task, split_text
from keras_vit.zoo import vtab as bit_models

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:tensorflow_datasets")

spec = importlib.util.spec_from_file_location("vtab_data", Path(__file__).with_name("vtab_data.py"))
vtab_data = importlib.util.module_from_spec(spec)
spec.loader.exec_module(vtab_data)


# Labels ------------------------------------------------------------------------------------------


def clevr(*depths: float) -> dict:
    coordinates = np.array([(200.0, 100.0, d) for d in depths], np.float32).reshape(-1, 3)
    return {"objects": {"size": np.zeros(len(depths), int), "pixel_coords": coordinates}}


def kitti(*objects: tuple[int, float]) -> dict:
    """Objects as (type, metres): 0 car, 1 van, 2 truck, 3 pedestrian."""
    places = np.array([(-3.0, 1.5, z) for _, z in objects], np.float32).reshape(-1, 3)
    return {"objects": {"type": np.array([t for t, _ in objects], int), "location": places}}


@pytest.mark.parametrize(("count", "label"), [(3, 0), (4, 1), (10, 7)])
def test_clevr_counts_from_three_objects(count, label):
    assert labels.clevr_count(clevr(*[9.0] * count)) == label


@pytest.mark.parametrize(
    ("depths", "label"),
    [
        ([11.0, 7.99, 12.0], 0),
        ([8.0, 9.0, 9.0], 0),  # a bound belongs to the nearer class
        ([8.01], 1),
        ([8.5], 1),
        ([8.75, 20.0], 2),
        ([9.5], 3),
        ([9.75], 4),
        ([10.0], 4),
        ([10.01, 99.0], 5),
        ([101.0], 6),  # no class
        ([], -1),
    ],
)
def test_clevr_distance_is_that_of_the_closest_object(depths, label):
    assert labels.clevr_distance(clevr(*depths)) == label


@pytest.mark.parametrize(("column", "label"), [(0, 0), (1, 0), (2, 1), (17, 8), (30, 15), (31, 15)])
def test_dsprites_columns_share_a_class_by_two(column, label):
    assert labels.dsprites_location({"label_x_position": column}) == label


def test_dsprites_orientations_are_divided_by_two_and_a_half():
    found = [labels.dsprites_orientation({"label_orientation": i}) for i in range(40)]
    assert found == [math.floor(i / 2.5) for i in range(40)]
    assert found[:8] == [0, 0, 0, 1, 1, 2, 2, 2] and found[-1] == 15


@pytest.mark.parametrize(
    ("objects", "label"),
    [
        ([(0, 5.0), (3, 2.0)], 0),
        ([(3, 2.0), (1, 8.0)], 0),
        ([(2, 8.1), (0, 30.0)], 1),
        ([(0, 20.0)], 1),
        ([(0, 20.5), (5, 1.0)], 2),
        ([(3, 2.0), (4, 3.0)], 3),  # no vehicle
        ([], 3),
        ([(0, -1.5)], 0),
    ],
)
def test_kitti_distance_is_that_of_the_closest_car_van_or_truck(objects, label):
    assert labels.kitti_distance(kitti(*objects)) == label


def test_smallnorb_labels_are_stored_ones():
    example = {"label_azimuth": np.int64(17), "label_elevation": np.int64(8), "label_category": 3}
    assert labels.smallnorb_azimuth(example) == 17
    assert labels.smallnorb_elevation(example) == 8


def test_class_names_say_what_the_classes_are():
    names = labels.CLASS_NAMES
    assert names["clevr-count"][0] == "3 objects" and names["clevr-count"][-1] == "10 objects"
    assert names["clevr-distance"] == (
        *("below 8 units", "8 to 8.5 units", "8.5 to 9 units"),
        *("9 to 9.5 units", "9.5 to 10 units", "above 10 units"),
    )
    assert names["kitti-distance"] == ("below 8 m", "8 to 20 m", "above 20 m", "no vehicle")
    assert names["dsprites-orientation"][:2] == (
        "orientation 0 to 2 of 40",
        "orientation 3 to 4 of 40",
    )
    assert {name: len(found) for name, found in names.items()} == {
        t.name: t.classes for t in TASKS.values() if t.label
    }


# The table ---------------------------------------------------------------------------------------


def test_tasks_are_those_of_the_recipe_in_three_groups():
    assert tuple(TASKS) == paper_finetune.VTAB_TASKS
    groups = [task.group for task in TASKS.values()]
    assert groups == ["natural"] * 7 + ["specialized"] * 4 + ["structured"] * 8
    for group, titles in VTAB_GROUPS.items():
        assert titles == tuple(t.title for t in TASKS.values() if f"VTAB {t.group}" == group)


def test_classes_are_as_many_as_the_published_models_have():
    other = {
        "flowers102": "oxford_flowers102",
        "pets": "oxford_iiit_pet",
        "camelyon": "patch_camelyon",
    }
    other |= {"retinopathy": "diabetic_retinopathy", "dsprites-location": "dsprites-xpos"}
    for task in TASKS.values():
        assert bit_models.TASKS[other.get(task.name, task.name)][0] == task.classes


def test_augmentation_is_that_of_the_recipe():
    for task in TASKS.values():
        augment = paper_finetune.vtab(task=task.name).augment
        assert (augment.flip, augment.crop != "none") == (task.flips, task.crops)
    assert [t.name for t in TASKS.values() if not t.flips and not t.crops] == ["dsprites-location"]


# Numbers of images as tensorflow-datasets has them, and the slices that follow: validation and test.
REAL = {
    "caltech101": ({"train": 3059, "test": 6084}, "train[2753:2953]", "test"),
    "cifar100": ({"train": 50_000, "test": 10_000}, "train[45000:45200]", "test"),
    "pets": ({"train": 3680, "test": 3669}, "train[2944:3144]", "test"),
    "svhn": ({"train": 73_257, "test": 26_032, "extra": 531_131}, "train[65931:66131]", "test"),
    "dtd": ({"train": 1880, "validation": 1880, "test": 1880}, "validation[0:200]", "test"),
    "flowers102": ({"train": 1020, "validation": 1020, "test": 6149}, "validation[0:200]", "test"),
    "eurosat": ({"train": 27_000}, "train[16200:16400]", "train[21600:]"),
    "resisc45": ({"train": 31_500}, "train[18900:19100]", "train[25200:]"),
    "clevr-count": (
        {"train": 70_000, "validation": 15_000, "test": 15_000},
        "train[63000:63200]",
        "validation",
    ),
    "dsprites-location": ({"train": 737_280}, "train[589824:590024]", "train[663552:]"),
    "smallnorb-azimuth": ({"train": 24_300, "test": 24_300}, "test[0:200]", "test[12150:]"),
}


@pytest.mark.parametrize("name", REAL)
def test_splits_of_the_real_sets(name):
    counts, validation, test = REAL[name]
    splits = TASKS[name].splits
    assert split_text(splits, "train800", counts) == "train[:800]"
    assert split_text(splits, "val200", counts) == validation
    assert split_text(splits, "train800val200", counts) == f"train[:800]+{validation}"
    assert split_text(splits, "test", counts) == test


def test_parts_of_a_split_are_rounded_one_by_one():
    # 60 % of 999 is 599, 20 % is 199: the test part begins at 798, not at 799.
    assert split_text(Splits(("train", 60), ("train", 80)), "test", {"train": 999}) == "train[798:]"


def test_split_errors():
    with pytest.raises(ValueError, match="no split 'train': there are train800, val200"):
        split_text(Splits(), "train", {"train": 1000})
    with pytest.raises(ValueError, match="has no split test and validation, only train"):
        split_text(Splits(), "test", {"train": 1000})
    with pytest.raises(ValueError, match="validation has 150, not 200 images"):
        split_text(Splits(), "val200", {"train": 1000, "validation": 150, "test": 9})
    with pytest.raises(ValueError, match="train has 1000, not 1100 images"):
        split_text(Splits(("train", 90)), "train800", {"train": 1000, "test": 9})


# Loaders -----------------------------------------------------------------------------------------

# Indices into the stored splits of `vtab_data` (30, 7 and 6 images) with 8 and 2 images for 800 and 200.
ROWS = {
    ("train", 90): ([("train", 27), ("train", 28)], [("test", i) for i in range(6)]),
    ("train", 80): ([("train", 24), ("train", 25)], [("test", i) for i in range(6)]),
    ("train", 60): ([("train", 18), ("train", 19)], [("train", i) for i in range(24, 30)]),
    ("validation", 0): ([("validation", 0), ("validation", 1)], [("test", i) for i in range(6)]),
    ("test", 0): ([("test", 0), ("test", 1)], [("test", i) for i in range(3, 6)]),
}
OTHER_TEST = {
    "clevr": [("validation", i) for i in range(7)],
    "dsprites": [("train", i) for i in range(27, 30)],
}
NAMES_OF_LABELS = {
    "dsprites-location": lambda e: e["label_x_position"] // 2,
    "dsprites-orientation": lambda e: int(e["label_orientation"] / 2.5),
    "smallnorb-azimuth": lambda e: e["label_azimuth"],
    "smallnorb-elevation": lambda e: e["label_elevation"],
    "clevr-count": lambda e: len(e["objects"]) - 3,
    "clevr-distance": lambda e: sum(
        min(o["pixel_coords"][2] for o in e["objects"]) > t for t in (8, 8.5, 9, 9.5, 10)
    ),
    "kitti-distance": lambda e: sum(
        min([o["location"][2] for o in e["objects"] if o["type"] < 3] + [1000.0]) > t
        for t in (8, 20, 999)
    ),
}


@pytest.fixture(scope="module")
def stored(tmp_path_factory) -> tuple[str, dict]:
    """Folder of all sets, and their examples."""
    path = str(tmp_path_factory.mktemp("tfds"))
    return path, {name: vtab_data.write(name, path) for name in {t.data for t in TASKS.values()}}


@pytest.fixture
def few(monkeypatch):
    monkeypatch.setattr(tasks, "TRAIN", 8)
    monkeypatch.setattr(tasks, "VALIDATION", 2)


def expected(task, split: str, examples: dict) -> list[dict]:
    validation, test = ROWS[task.splits.validation]
    train = [("train", i) for i in range(8)]
    rows = {
        "train800": train,
        "val200": validation,
        "train800val200": train + validation,
        "test": OTHER_TEST.get(task.data, test),
    }[split]
    return [examples[part][i] for part, i in rows]


@pytest.mark.tf_only
@pytest.mark.parametrize("name", TASKS)
def test_images_and_classes_in_stored_order(name, stored, few):
    folder, sets = stored
    task = TASKS[name]
    label = NAMES_OF_LABELS.get(name, lambda e: e["label"])
    for split in tasks.SPLITS:
        source = open_task(name, split, data_dir=folder)
        wanted = expected(task, split, sets[task.data])
        assert isinstance(source, Source) and source.name == f"vtab/{name}:{split}"
        assert source.num_classes == task.classes
        np.testing.assert_array_equal(source.labels, [label(e) for e in wanted])
        if name in ("pets", "dmlab"):  # stored as JPEG
            continue
        for i, example in enumerate(wanted):
            image = np.broadcast_to(example["image"], (*example["image"].shape[:2], 3))
            np.testing.assert_array_equal(source.image(i, 3), image * task.pixel_scale)


@pytest.mark.tf_only
@pytest.mark.parametrize("name", ["sun397", "kitti-distance", "dsprites-orientation"])
def test_what_does_not_fit_memory_is_streamed(name, stored, few, monkeypatch):
    whole = open_task(name, "test", data_dir=stored[0])
    monkeypatch.setattr("keras_vit.data.streams.TFDS_MEMORY_LIMIT", 0)
    stream = open_task(name, "test", data_dir=stored[0])
    assert isinstance(stream, Stream) and len(stream) == len(whole)
    read = list(stream.read(0, len(stream), None).map(stream.parse).as_numpy_iterator())
    np.testing.assert_array_equal([label for _, label in read], whole.labels)
    assert [image for image, _ in read] == whole.images


@pytest.mark.tf_only
def test_loader_errors(stored, tmp_path, monkeypatch):
    with pytest.raises(ValueError, match="no VTAB task 'flowers': there are caltech101, cifar100"):
        open_task("flowers", "test", data_dir=stored[0])
    with pytest.raises(ValueError, match=r"never prepared.*tensorflow_datasets\.load"):
        open_task("dtd", "test", data_dir=str(tmp_path))
    with pytest.raises(ValueError, match=r"too small: .*train has 30, not 800 images"):
        open_task("dtd", "train800", data_dir=stored[0])
    monkeypatch.setitem(TASKS, "dtd", tasks.Task("dtd", "DTD", "natural", "dtd", 48))
    with pytest.raises(ValueError, match="has 47 classes, but VTAB's dtd has 48"):
        open_task("dtd", "test", data_dir=stored[0])


# Means -------------------------------------------------------------------------------------------


def table_9(model: str, pretraining: str) -> dict[str, float]:
    """Printed percentages by the name of the task."""
    rows = [
        r for r in published("9") if (r.model, r.settings["pretraining"]) == (model, pretraining)
    ]
    by_title = {r.data.removeprefix("VTAB "): 100 * r.value for r in rows}
    return {task.name: by_title[task.title] for task in TASKS.values()}


@pytest.mark.parametrize(
    ("model", "pretraining", "groups", "overall"),
    [
        ("ViT-H/14", "JFT-300M", (86.69, 87.00, 65.03), 77.6),
        ("ViT-L/16", "JFT-300M", (85.56, 86.72, 62.96), 76.3),
        ("ViT-L/16", "ImageNet-21k", (83.27, 84.65, 57.50), 72.7),
    ],
)
def test_means_of_table_9_are_the_printed_ones(model, pretraining, groups, overall):
    found = means(table_9(model, pretraining))
    # Two decimals of group means, and Table 9's own one decimal of the mean.
    assert [round(value, 1) for value in found.groups.values()] == [round(v, 1) for v in groups]
    np.testing.assert_allclose(list(found.groups.values()), groups, atol=0.0051)
    assert round(found.overall, 1) == overall


def test_means_wait_for_every_task():
    some = {t.name: 0.5 for t in TASKS.values() if t.group == "specialized"}
    found = means(some)
    assert found.groups == {"natural": None, "specialized": 0.5, "structured": None}
    assert found.overall is None
    with pytest.raises(ValueError, match="no VTAB task 'imagenet'"):
        means({"imagenet": 1.0})


# The document ------------------------------------------------------------------------------------


def test_the_document_says_what_the_table_says():
    page = (Path(__file__).parent.parent / "docs" / "transfer.md").read_text("utf-8")
    part = page[page.index("## VTAB-1k") : page.index("## ReaL")]
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in part.splitlines()]
    rows = {row[0].strip("`"): row[1:] for row in rows if len(row) == 7}
    for task in TASKS.values():
        data, classes, label, validation, test, off = rows[task.name]
        assert data == f"`{task.data}`" and int(classes) == task.classes
        assert bool(label) == bool(task.label)
        part, share = task.splits.validation
        assert f"`{part}`" in validation
        assert ("%" in validation) == bool(share)
        assert f"`{task.splits.test[0]}`" in test
        wanted = [what for what, on in (("crop", task.crops), ("flip", task.flips)) if not on]
        assert off == ", ".join(wanted)


def test_the_code_of_the_document_runs(capsys):
    page = (Path(__file__).parent.parent / "docs" / "transfer.md").read_text("utf-8")
    page = page[page.index("## VTAB-1k") :]
    for block in re.findall(r"^```python\n(.*?)^```", page, re.M | re.S):
        exec(block, {})
    assert capsys.readouterr().out.splitlines()[1:] == ["1", "0.5", "0.5"]
