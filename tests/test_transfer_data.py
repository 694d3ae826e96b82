"""The transfer data sets of the paper: splits, roles, folders and arrays."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from keras_vit.train.recipes import paper_finetune
from keras_vit.transfer.datasets import DATASETS, ROLES, find, open_split

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:tensorflow_datasets")

spec = importlib.util.spec_from_file_location("vtab_data", Path(__file__).with_name("vtab_data.py"))
vtab_data = importlib.util.module_from_spec(spec)
spec.loader.exec_module(vtab_data)


def test_data_sets_are_the_rows_of_table_4():
    assert [*sorted(DATASETS), "vtab"] == sorted(paper_finetune.TABLE_4)
    assert {n: (d.table_4.steps, d.table_4.classes) for n, d in DATASETS.items()} == {
        "cifar10": (10_000, 10),
        "cifar100": (10_000, 100),
        "pets": (500, 37),
        "flowers": (500, 102),
        "imagenet": (20_000, 1000),
    }
    for dataset in DATASETS.values():
        share = int(dataset.table_4.dev_split.split()[0])  # "2 % of train"
        assert f"[{100 - share}%:]" in dataset.dev and f"[:{100 - share}%]" in dataset.sweep


@pytest.mark.parametrize(
    ("given", "name"),
    [("pets", "pets"), ("tfds:oxford_iiit_pet", "pets"), ("CIFAR-10", "cifar10")],
)
def test_names(given, name):
    assert find(given) is DATASETS[name]
    assert find("tfds:beans") is None and find("folder:pets") is None


@pytest.fixture(scope="module")
def stored(tmp_path_factory) -> tuple[str, dict]:
    path = str(tmp_path_factory.mktemp("tfds"))
    names = [*(d.data for d in DATASETS.values()), "svhn_cropped", "resisc45"]
    return path, {name: vtab_data.write(name, path) for name in names}


# By role: parts of the stored splits of 30, 7 and 6 images; of 30 images 98 % are 29 and 90 % are 27.
WHOLE = [("train", 0, 30)]
PARTS = {
    "cifar10": (WHOLE, [("train", 0, 29)], [("train", 29, 30)], [("test", 0, 6)]),
    "cifar100": (WHOLE, [("train", 0, 29)], [("train", 29, 30)], [("test", 0, 6)]),
    "pets": (WHOLE, [("train", 0, 27)], [("train", 27, 30)], [("test", 0, 6)]),
    "flowers": (
        [*WHOLE, ("validation", 0, 7)],
        [("train", 0, 27), ("validation", 0, 6)],
        [("train", 27, 30), ("validation", 6, 7)],
        [("test", 0, 6)],
    ),
    "imagenet": (WHOLE, [("train", 0, 30)], None, [("validation", 0, 7)]),  # 1 % of 30 is nothing
}


@pytest.mark.tf_only
@pytest.mark.parametrize("name", DATASETS)
def test_roles_are_the_slices_of_the_paper(name, stored):
    folder, sets = stored
    examples = sets[DATASETS[name].data]
    for role, parts in zip(ROLES, PARTS[name], strict=True):
        if parts is None:
            continue
        source = open_split(name, role, data_dir=folder)
        labels = [e["label"] for split, first, last in parts for e in examples[split][first:last]]
        np.testing.assert_array_equal(source.labels, labels, err_msg=role)
        assert source.num_classes == DATASETS[name].table_4.classes


@pytest.mark.tf_only
def test_another_set_keeps_its_last_tenth_for_the_sweep(stored):
    folder, sets = stored
    train = [e["label"] for e in sets["svhn_cropped"]["train"]]
    test = [e["label"] for e in sets["svhn_cropped"]["test"]]
    for role, values in zip(ROLES, (train, train[:27], train[27:], test), strict=True):
        source = open_split("tfds:svhn_cropped", role, data_dir=folder)
        np.testing.assert_array_equal(source.labels, values)
    with pytest.raises(ValueError, match=r"tfds:resisc45 has the splits train, but train and test"):
        open_split("tfds:resisc45", "test", data_dir=folder)


def save(folder: Path, count: int) -> None:
    for shade, name in enumerate(("ant", "bee")):
        (folder / name).mkdir(parents=True)
        for i in range(count):
            pixels = np.full((4, 4, 3), 100 * shade + i, np.uint8)
            Image.fromarray(pixels).save(folder / name / f"{i:02}.png")


def test_folders_and_arrays_give_some_of_every_class_to_dev(tmp_path):
    save(tmp_path / "all", 20)
    rng = np.random.default_rng(0)
    images, labels = rng.integers(0, 256, (40, 4, 4, 3), np.uint8), np.arange(40) % 2
    np.savez(tmp_path / "all.npz", images=images, labels=labels)
    for name in (f"folder:{tmp_path / 'all'}", str(tmp_path / "all.npz")):
        train, sweep, dev = (open_split(name, role) for role in ROLES[:3])
        assert (len(train), len(sweep), len(dev)) == (40, 36, 4)
        assert np.bincount(dev.labels).tolist() == [2, 2]
        shown = {s.image(i, 3).tobytes() for s in (sweep, dev) for i in range(len(s))}
        assert len(shown) == 40  # disjoint
        with pytest.raises(ValueError, match="name test images of their own"):
            open_split(name, "test")


def test_a_folder_may_hold_train_and_test(tmp_path):
    save(tmp_path / "train", 10)
    save(tmp_path / "test", 3)
    name = f"folder:{tmp_path}"
    assert [len(open_split(name, role)) for role in ROLES] == [20, 18, 2, 6]
    assert open_split(name, "test").class_names == ("ant", "bee")


def test_errors(tmp_path):
    with pytest.raises(
        ValueError, match="no role 'val' for images: there are train, sweep, dev, test"
    ):
        open_split("pets", "val")
    with pytest.raises(ValueError, match="unknown data 'petz'"):
        open_split("petz", "train")
