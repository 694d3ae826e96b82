"""Where images come from: folders, arrays, files, tensorflow-datasets; and what each refuses."""

import warnings

import numpy as np
import pytest
from PIL import Image

from keras_vit.data.sources import Source, arrays, folder, open_source

RNG = np.random.default_rng(31)


def picture(path, size=(9, 7), **options):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(RNG.integers(0, 256, (*size, 3), np.uint8)).save(path, **options)
    return path


@pytest.fixture
def pets(tmp_path):
    for i in range(6):
        picture(tmp_path / "pets" / "cat" / f"{i}.png", (8 + i, 10))
        picture(tmp_path / "pets" / "dog" / f"{i}.jpg", (10, 8 + i))
    return tmp_path / "pets"


def test_a_folder_per_class(pets):
    source = open_source(f"folder:{pets}")
    assert source.class_names == ("cat", "dog")
    assert len(source) == 12 and source.num_classes == 2 and not source.multi_label
    np.testing.assert_array_equal(source.labels, [0] * 6 + [1] * 6)
    assert source.image(2, 3).shape == (10, 10, 3)
    assert source.image(11, 1).shape == (10, 13, 1)
    assert open_source(str(pets)).class_names == source.class_names


def test_broken_and_foreign_files_are_counted_before_anything_runs(pets):
    (pets / "cat" / "notes.txt").write_text("hello")
    (pets / "cat" / ".DS_Store").write_bytes(b"\x00")
    (pets / "dog" / "empty.jpg").write_bytes(b"")
    whole = picture(pets / "dog" / "cut.jpg", (200, 200)).read_bytes()
    (pets / "dog" / "cut.jpg").write_bytes(whole[: len(whole) // 2])
    whole = picture(pets / "cat" / "cut.png", (90, 90)).read_bytes()
    (pets / "cat" / "cut.png").write_bytes(whole[: len(whole) // 2])
    source = folder(pets)
    assert len(source) == 12
    assert sorted(m.split(" is ")[0].split("/")[-1] for m in source.broken) == [
        "cut.jpg",
        "cut.png",
        "empty.jpg",
        "notes.txt",
    ]


def test_a_file_that_breaks_later_is_noted_once(pets):
    source = folder(pets)
    (pets / "cat" / "3.png").write_bytes(b"gone")
    assert source.image(3, 3) is None and source.image(3, 3) is None
    assert len(source.broken) == 1 and "3.png" in source.broken[0]


def test_folders_that_are_no_data_set(tmp_path):
    with pytest.raises(ValueError, match="nowhere is no folder: give one that holds a folder"):
        open_source(f"folder:{tmp_path / 'nowhere'}")
    with pytest.raises(ValueError, match="holds 0 class folders, but at least 2 are needed"):
        folder(tmp_path)
    picture(tmp_path / "only" / "a.png")
    with pytest.raises(ValueError, match="holds 1 class folders, but at least 2"):
        folder(tmp_path)
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match=r"class folder .*empty holds no readable images"):
        folder(tmp_path)


def test_arrays_and_npz(tmp_path):
    images, labels = RNG.integers(0, 256, (6, 5, 4), np.uint8), np.array([0, 1, 2, 0, 1, 2])
    source = arrays(images, labels, ["a", "b", "c"])
    assert source.image(1, 1).shape == (5, 4, 1)
    assert arrays(images, labels[:, None]).labels.shape == (6,)
    np.savez(tmp_path / "d.npz", images=images, labels=labels, class_names=["a", "b", "c"])
    again = open_source(str(tmp_path / "d.npz"))
    assert again.class_names == ("a", "b", "c")
    np.testing.assert_array_equal(again.images, images)
    multi = arrays(images, np.eye(3)[labels])
    assert multi.multi_label and multi.class_names == ("class 0", "class 1", "class 2")


def test_arrays_that_do_not_fit():
    images, labels = np.zeros((3, 4, 4, 1), np.uint8), np.array([0, 1, 1])
    for bad, words in [
        ((images.astype(np.float32), labels), "must be uint8 values"),
        ((images[0, 0], labels), r"must be \(n, h, w\) or \(n, h, w, C\)"),
        ((images[:2], labels), "has 2 images and 3 labels"),
        ((images[:0], labels[:0]), "holds no images"),
        ((images, labels, []), "zero classes"),
        ((images, labels - 1), "whole numbers from 0 to 0, got -1 to 0"),
        ((images, labels + 1, ["a", "b"]), "whole numbers from 0 to 1, got 1 to 2"),
        ((images, labels + 0.5, ["a", "b"]), "whole numbers.*float64"),
        ((images, np.zeros((3, 4)), ["a", "b"]), "2 class names, but labels for 4 classes"),
        ((images, np.zeros((3, 2, 2)), ["a", "b"]), "labels must be"),
    ]:
        with pytest.raises(ValueError, match=words):
            arrays(*bad)


def test_files_that_are_no_data(tmp_path):
    path = tmp_path / "d.npz"
    path.write_bytes(b"PK\x03\x04 half of it")
    with pytest.raises(ValueError, match=r"d\.npz is no \.npz of plain arrays"):
        open_source(str(path))
    path.write_text("text")
    with pytest.raises(ValueError, match=r"d\.npz is no \.npz of plain arrays"):
        open_source(str(path))
    np.savez(path, images=np.array([{}], dtype=object), labels=[0])
    with pytest.raises(ValueError, match=r"d\.npz is no \.npz of plain arrays"):
        open_source(str(path))
    np.savez(path, x=[1])
    with pytest.raises(ValueError, match="needs the arrays `images` and `labels`, has \\['x'\\]"):
        open_source(str(path))
    with pytest.raises(ValueError, match="unknown data 'cifar10': use folder:PATH"):
        open_source("cifar10")


def test_split_is_stratified_disjoint_and_reproducible():
    labels = np.repeat([0, 1, 2], [40, 10, 1])
    images = np.arange(51, dtype=np.uint8).reshape(51, 1, 1, 1)
    source = arrays(images, labels, ["a", "b", "rare"])
    train, held = source.split(0.2, seed=4)
    numbers = [set(part.images.ravel().tolist()) for part in (train, held)]
    assert not numbers[0] & numbers[1] and len(numbers[0] | numbers[1]) == 51
    np.testing.assert_array_equal(np.bincount(held.labels, minlength=3), [8, 2, 0])
    np.testing.assert_array_equal(held.images, source.split(0.2, seed=4)[1].images)
    assert not np.array_equal(held.images, source.split(0.2, seed=5)[1].images)
    assert train.class_names == held.class_names == source.class_names
    with pytest.raises(ValueError, match="too small"):
        source.take([0, 50]).split(0.5)
    with pytest.raises(ValueError, match="between 0 and 1"):
        source.split(1.0)


def test_taking_classes_renumbers_them():
    source = arrays(np.zeros((6, 2, 2), np.uint8), np.array([0, 1, 2, 0, 1, 2]), "abc")
    part = source.classes((2, 0))
    assert part.class_names == ("c", "a")
    np.testing.assert_array_equal(part.labels, [1, 0, 1, 0])
    with pytest.raises(ValueError, match="different numbers from 0 to 2"):
        source.classes((1, 3))


def test_lists_of_images_of_several_sizes():
    images = [RNG.integers(0, 256, (s, 5, 3), np.uint8) for s in (4, 6)]
    source = Source("list", images, np.array([0, 1]), ("a", "b"))
    assert source.take([1]).image(0, 3).shape == (6, 5, 3)
    # Arrays are the caller's own: a wrong one is an error, no broken file.
    with pytest.raises(ValueError, match="channels"):
        source.image(0, 4)


@pytest.mark.tf_only
def test_tensorflow_datasets():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of its imports: nothing of ours is under test there
        import tensorflow_datasets as tfds

        with tfds.testing.mock_data(num_examples=7):
            source = open_source("tfds:cifar10:test")
            sliced = open_source("tfds:tf_flowers:train[:50%]")
    assert source.name == "tfds:cifar10:test" and len(source) == 7
    assert source.num_classes == 10  # the mock has no names
    assert source.image(0, 3).shape == (32, 32, 3)
    assert sliced.num_classes == 5
    assert len({image.shape for image in sliced.images}) > 1


@pytest.mark.tf_only
def test_tensorflow_datasets_that_are_not_there(tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in ("nothing_of_that_name", "cifar10", "cifar10:trian"):
            with pytest.raises(
                ValueError, match=r"no split '.*' on this machine.*prepare"
            ) as error:
                open_source(f"tfds:{name}", data_dir=str(tmp_path))
            assert "\n" not in str(error.value) and len(str(error.value)) < 400
            assert f"tfds:{name.partition(':')[0]} " in str(error.value)
