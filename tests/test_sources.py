"""Sources of images: folders, arrays, npz files, tensorflow-datasets; what they read and refuse."""

import io

import numpy as np
import pytest
from PIL import Image

from keras_vit.data.images import read_image
from keras_vit.data.sources import arrays, open_source


def save(path, image, **options):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(image).save(path, **options)


@pytest.fixture
def pictures(tmp_path):
    """Two classes, three sizes, two kinds of file, one text file and one truncated image."""
    rng = np.random.default_rng(0)
    for i, (name, size) in enumerate([("cat/a.png", (20, 30)), ("cat/b.jpg", (31, 17))]):
        save(tmp_path / name, rng.integers(0, 256, (*size, 3), np.uint8))
        save(tmp_path / f"dog/{i}.png", rng.integers(0, 256, (*size[::-1], 3), np.uint8))
    (tmp_path / "dog" / "notes.png").write_text("no image")
    whole = io.BytesIO()
    Image.fromarray(rng.integers(0, 256, (40, 40, 3), np.uint8)).save(whole, "PNG")
    (tmp_path / "cat" / "half.png").write_bytes(whole.getvalue()[:1500])
    return tmp_path


def test_a_folder_has_a_class_per_folder_and_counts_what_is_broken(pictures):
    source = open_source(f"folder:{pictures}")
    assert source.class_names == ("cat", "dog")
    assert source.labels.tolist() == [0, 0, 1, 1]
    assert [source.image(i, 3).shape for i in range(4)] == [
        (20, 30, 3),
        (31, 17, 3),
        (30, 20, 3),
        (17, 31, 3),
    ]
    assert len(source.broken) == 2
    assert all(name in " ".join(source.broken) for name in ("half.png", "notes.png"))


def test_a_folder_can_be_read_as_grey(pictures):
    assert open_source(str(pictures)).image(0, 1).shape == (20, 30, 1)


@pytest.mark.parametrize(
    ("folders", "message"),
    [
        ([], "holds 0 class folders, but at least 2"),
        (["cat"], "holds 1 class folders, but at least 2"),
        (["cat", "dog"], "class folder .*cat holds no readable images"),
    ],
)
def test_folders_without_two_classes_of_images_are_refused(tmp_path, folders, message):
    for name in folders:
        (tmp_path / name).mkdir()
    with pytest.raises(ValueError, match=message):
        open_source(f"folder:{tmp_path}")


def test_a_folder_that_is_not_there_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"nowhere is no folder"):
        open_source(f"folder:{tmp_path / 'nowhere'}")


def test_unknown_data_says_what_there_is():
    with pytest.raises(ValueError, match=r"unknown data 'cifar'.*folder:PATH.*tfds:NAME"):
        open_source("cifar")


def test_arrays_of_an_npz(tmp_path):
    images = np.random.default_rng(0).integers(0, 256, (3, 6, 5), np.uint8)
    np.savez(tmp_path / "set.npz", images=images, labels=[0, 2, 1], class_names=["a", "b", "c"])
    source = open_source(str(tmp_path / "set.npz"))
    assert source.class_names == ("a", "b", "c")
    np.testing.assert_array_equal(source.image(1, 1)[..., 0], images[1])


def test_an_npz_with_a_pickle_is_refused(tmp_path):
    np.savez(tmp_path / "set.npz", images=np.array([{}], object), labels=[0])
    with pytest.raises(ValueError, match=r"set\.npz is no \.npz of plain arrays"):
        open_source(str(tmp_path / "set.npz"))


def test_an_npz_with_other_arrays_is_refused(tmp_path):
    np.savez(tmp_path / "set.npz", x=np.zeros(3))
    with pytest.raises(ValueError, match=r"needs the arrays `images` and `labels`, has \['x'\]"):
        open_source(str(tmp_path / "set.npz"))


IMAGES = np.zeros((4, 5, 5, 3), np.uint8)


@pytest.mark.parametrize(
    ("images", "labels", "names", "message"),
    [
        (IMAGES, [0, 1], None, "4 images and 2 labels"),
        (IMAGES[:0], [], ["a"], "holds no images"),
        (IMAGES / 255, [0, 1, 2, 3], None, "must be uint8 values 0..255, got float64"),
        (IMAGES, [0, 1, 2, 3], ["a", "b"], "whole numbers from 0 to 1, got 0 to 3"),
        (IMAGES, [0, 1, -1, 0], ["a", "b"], "whole numbers from 0 to 1, got -1 to 1"),
        (IMAGES, np.zeros((4, 3)), ["a", "b"], "2 class names, but labels for 3 classes"),
        (IMAGES, [0, 0, 0, 0], [], "zero classes"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(images, labels, names, message):
    with pytest.raises(ValueError, match=message):
        arrays(images, labels, names)


def numbered(labels, **options):
    """Images whose pixels say their place."""
    images = np.arange(len(labels), dtype=np.uint8)[:, None, None, None]
    return arrays(np.broadcast_to(images, (len(labels), 2, 2, 1)).copy(), labels, **options)


def test_classes_are_picked_and_renumbered_in_the_order_given():
    source = numbered([0, 1, 2, 1, 0]).classes([2, 1])
    assert source.labels.tolist() == [1, 0, 1]
    assert source.images[:, 0, 0, 0].tolist() == [1, 2, 3]
    assert source.class_names == ("class 2", "class 1")


@pytest.mark.parametrize("keep", [[0, 0], [3], [-1]])
def test_classes_that_do_not_exist_are_refused(keep):
    with pytest.raises(ValueError, match="different numbers from 0 to 2"):
        numbered([0, 1, 2]).classes(keep)


def test_a_split_is_disjoint_whole_and_stratified():
    labels = np.repeat([0, 1, 2], [10, 20, 2])
    first, second = numbered(labels).split(0.25, seed=3)
    places = [s.images[:, 0, 0, 0].tolist() for s in (first, second)]
    assert sorted(places[0] + places[1]) == list(range(32))
    assert np.bincount(second.labels).tolist() == [2, 5, 1]
    again = numbered(labels).split(0.25, seed=3)[1]
    other = numbered(labels).split(0.25, seed=4)[1]
    assert again.images[:, 0, 0, 0].tolist() == places[1]
    assert other.images[:, 0, 0, 0].tolist() != places[1]


def test_a_set_too_small_to_split_says_so():
    with pytest.raises(ValueError, match="too small to keep 50% of it for validation"):
        numbered([0, 1]).split(0.5)


@pytest.mark.tf_only
def test_tensorflow_datasets_are_read_into_memory():
    import tensorflow_datasets as tfds

    with tfds.testing.mock_data(num_examples=6):
        source = open_source("tfds:cifar10:test")
    assert len(source) == 6
    assert source.num_classes == 10 and source.labels.max() < 10
    assert source.image(0, 3).shape == (32, 32, 3)


def encoded(image: Image.Image, kind: str, **options) -> bytes:
    out = io.BytesIO()
    image.save(out, kind, **options)
    return out.getvalue()


def test_rotation_in_exif_is_applied():
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned by a quarter, clockwise
    image = np.zeros((10, 20, 3), np.uint8)
    image[:5] = 200
    found = read_image(encoded(Image.fromarray(image), "PNG", exif=exif))
    assert found.shape == (20, 10, 3)
    assert found[:, 5:].min() == 200 and found[:, :5].max() == 0


def test_transparency_is_laid_on_white():
    image = np.zeros((2, 2, 4), np.uint8)
    image[0, 0] = (10, 20, 30, 255)
    found = read_image(encoded(Image.fromarray(image), "PNG"))
    assert found[0, 0].tolist() == [10, 20, 30]
    assert found[1, 1].tolist() == [255, 255, 255]


@pytest.mark.parametrize("mode", ["L", "1", "P", "CMYK", "RGBA", "LA"])
@pytest.mark.parametrize("channels", [1, 3])
def test_every_mode_becomes_grey_or_rgb(mode, channels):
    white = Image.new("RGB", (6, 4), (255, 255, 255)).convert(mode)
    kind = "TIFF" if mode == "CMYK" else "PNG"
    found = read_image(encoded(white, kind), channels)
    assert found.shape == (4, 6, channels)
    assert found.min() == 255


def test_sixteen_bits_are_scaled_by_mode_not_by_value():
    image = Image.fromarray(np.full((3, 3), 514, np.uint16))
    assert read_image(encoded(image, "PNG"), 1).max() == 2  # 514 / 257


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (b"not an image", r"12 bytes is not an image"),
        ("missing.png", r"missing\.png is no file"),
        (7, r"cannot read an image from int"),
        (np.zeros((4, 4, 3)), r"must hold uint8 values 0\.\.255, got float64"),
        (np.zeros((2, 4, 4, 3), np.uint8), r"must be \(height, width\[, channels\]\)"),
        (np.zeros((4, 4, 7), np.uint8), r"has 7 channels, but the model takes 3"),
    ],
)
def test_what_is_no_image_is_named(source, message):
    with pytest.raises(ValueError, match=message):
        read_image(source)
