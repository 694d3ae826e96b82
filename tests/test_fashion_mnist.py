"""The Fashion-MNIST images that ship with the package, and the full set where it is installed."""

import gzip
from importlib import resources

import numpy as np
import pytest

from keras_vit.data.sources import (
    FASHION_MNIST_CLASSES,
    fashion_mnist,
    fashion_mnist_folders,
    open_source,
)

PER_CLASS = {"train": 300, "test": 100}


def full_set(split):
    try:
        return fashion_mnist(split)
    except ValueError:
        pytest.skip("the full Fashion-MNIST (Debian: dataset-fashion-mnist) is not installed")


@pytest.mark.parametrize(("part", "count"), [("train", 3000), ("test", 1000)])
def test_subset_is_balanced_and_28_by_28(part, count):
    source = open_source(f"fashion_mnist:subset_{part}")
    assert source.images.shape == (count, 28, 28, 1)
    assert source.images.dtype == np.uint8
    assert source.class_names == FASHION_MNIST_CLASSES
    assert np.bincount(source.labels).tolist() == [PER_CLASS[part]] * 10


def test_subset_is_both_parts_in_order():
    both = fashion_mnist("subset")
    train, test = fashion_mnist("subset_train"), fashion_mnist("subset_test")
    np.testing.assert_array_equal(both.images, np.concatenate([train.images, test.images]))
    np.testing.assert_array_equal(both.labels, np.concatenate([train.labels, test.labels]))


def test_no_image_is_in_both_parts():
    seen = {image.tobytes() for image in fashion_mnist("subset_train").images}
    assert not any(image.tobytes() in seen for image in fashion_mnist("subset_test").images)


def test_subset_is_small_and_carries_its_licence():
    folder = resources.files("keras_vit.data").joinpath("fashion_mnist")
    assert len(folder.joinpath("subset.npz").read_bytes()) <= 2_000_000
    assert "Copyright (c) 2017 Zalando SE" in folder.joinpath("LICENSE").read_text("utf-8")


@pytest.mark.parametrize("part", ["train", "test"])
def test_subset_is_the_first_images_of_each_class_shuffled(part):
    full, subset = full_set(part), fashion_mnist(f"subset_{part}")
    first = [np.flatnonzero(full.labels == c)[: PER_CLASS[part]] for c in range(10)]
    order = np.random.default_rng(0).permutation(np.sort(np.concatenate(first)))
    np.testing.assert_array_equal(subset.images, full.images[order])
    np.testing.assert_array_equal(subset.labels, full.labels[order])


@pytest.mark.parametrize(("part", "count"), [("train", 60000), ("test", 10000)])
def test_full_set_has_its_published_size(part, count):
    source = full_set(part)
    assert source.images.shape == (count, 28, 28, 1)
    assert np.bincount(source.labels).tolist() == [count // 10] * 10


def test_full_set_is_found_in_the_keras_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("KERAS_HOME", str(tmp_path))
    folder = tmp_path / "datasets" / "fashion-mnist"
    folder.mkdir(parents=True)
    assert folder in fashion_mnist_folders()
    monkeypatch.setattr("keras_vit.data.sources.fashion_mnist_folders", lambda: [folder])
    with pytest.raises(ValueError, match="dataset-fashion-mnist"):
        fashion_mnist("test")
    images = np.arange(2 * 28 * 28, dtype=np.uint8)
    write_idx(folder / "t10k-images-idx3-ubyte.gz", 16, images)
    write_idx(folder / "t10k-labels-idx1-ubyte.gz", 8, np.array([3, 9], np.uint8))
    source = fashion_mnist("test")
    np.testing.assert_array_equal(source.images.reshape(-1), images)
    assert source.labels.tolist() == [3, 9]


def test_unknown_split_names_the_known_ones():
    with pytest.raises(ValueError, match=r"'valid'.*train, test or subset"):
        open_source("fashion_mnist:valid")


def write_idx(path, header, values):
    path.write_bytes(gzip.compress(bytes(header) + values.tobytes()))
