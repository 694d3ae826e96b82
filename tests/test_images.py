"""Every kind of file users have becomes uint8 of the model's channels, or one sentence says why not."""

import io
import struct
import zlib

import numpy as np
import pytest
from PIL import Image

from keras_vit.data.images import MAX_PIXELS, problem_of, read_image

GRADIENT = np.stack([np.linspace(0, 255, 24).astype(np.uint8).reshape(4, 6)] * 3, -1)


def encode(image, kind="PNG", **options):
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def png_header(width, height):
    """A PNG that claims a size and holds nothing."""
    body = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunk = struct.pack(">I", 13) + body + struct.pack(">I", zlib.crc32(body))
    return b"\x89PNG\r\n\x1a\n" + chunk


def test_path_bytes_and_pil_image_are_one(tmp_path):
    image = Image.fromarray(GRADIENT)
    path = tmp_path / "i.png"
    path.write_bytes(encode(image))
    for source in (
        path,
        str(path),
        path.read_bytes(),
        bytearray(path.read_bytes()),
        image,
        GRADIENT,
    ):
        np.testing.assert_array_equal(read_image(source), GRADIENT)
    assert read_image(path, 1).shape == (4, 6, 1)


@pytest.mark.parametrize("orientation, turn", [(3, 2), (6, 3), (8, 1)])
def test_exif_rotation(orientation, turn):
    exif = Image.Exif()
    exif[0x0112] = orientation
    found = read_image(encode(Image.fromarray(GRADIENT), exif=exif))
    np.testing.assert_array_equal(found, np.rot90(GRADIENT, turn))


def test_cmyk():
    found = read_image(encode(Image.new("CMYK", (5, 4), (0, 255, 255, 0)), "JPEG", quality=95))
    assert found.shape == (4, 5, 3)
    assert found[..., 0].min() > 240 and found[..., 1:].max() < 15  # red


def test_palette_with_and_without_transparency():
    image = Image.new("P", (2, 1))
    image.putpalette([255, 0, 0, 0, 0, 255])
    image.putdata([0, 1])
    np.testing.assert_array_equal(read_image(encode(image)), [[[255, 0, 0], [0, 0, 255]]])
    np.testing.assert_array_equal(
        read_image(encode(image, transparency=0)), [[[255, 255, 255], [0, 0, 255]]]
    )


def test_alpha_is_composed_on_white():
    rgba = np.array([[[10, 20, 30, 255], [10, 20, 30, 0]]], np.uint8)
    expected = [[[10, 20, 30], [255, 255, 255]]]
    np.testing.assert_array_equal(read_image(encode(Image.fromarray(rgba))), expected)
    np.testing.assert_array_equal(read_image(rgba), expected)
    grey_alpha = np.array([[[40, 255], [40, 0]]], np.uint8)
    np.testing.assert_array_equal(read_image(grey_alpha, 1), [[[40], [255]]])


def test_grey_and_one_bit():
    grey = np.arange(24, dtype=np.uint8).reshape(4, 6)
    np.testing.assert_array_equal(
        read_image(encode(Image.fromarray(grey))), np.stack([grey] * 3, -1)
    )
    np.testing.assert_array_equal(read_image(grey, 1)[..., 0], grey)
    np.testing.assert_array_equal(read_image(grey[..., None], 3), np.stack([grey] * 3, -1))
    bits = Image.fromarray(np.eye(4, dtype=bool))
    np.testing.assert_array_equal(read_image(encode(bits), 1)[..., 0], np.eye(4) * 255)


@pytest.mark.parametrize("kind", ["PNG", "TIFF"])
def test_16_bit_greys_are_scaled_whatever_they_hold(kind):
    values = np.array([[0, 257 * 100, 65535]], np.uint16)
    found = read_image(encode(Image.fromarray(values), kind), 1)
    np.testing.assert_array_equal(found[..., 0], [[0, 100, 255]])
    # A dark one stays dark, although its values would fit into 8 bits.
    dark = np.array([[0, 200, 255]], np.uint16)
    assert read_image(encode(Image.fromarray(dark), kind), 1).max() == 1


def test_animated_gif_gives_its_first_frame_and_closes_the_file(tmp_path):
    frames = [Image.new("RGB", (3, 3), c) for c in ("red", "blue")]
    frames[0].save(tmp_path / "a.gif", save_all=True, append_images=frames[1:])
    np.testing.assert_array_equal(read_image(tmp_path / "a.gif")[0, 0], [255, 0, 0])


@pytest.mark.parametrize("kind", ["PNG", "JPEG"])
def test_truncated(kind, tmp_path):
    noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3), np.uint8)
    data = encode(Image.fromarray(noise), kind)
    path = tmp_path / "cut.img"
    path.write_bytes(data[: len(data) // 2])
    with pytest.raises(ValueError, match=r"cut\.img is a broken image"):
        read_image(path)
    assert "cut.img is a broken image" in str(problem_of(path))
    path.write_bytes(data)
    assert problem_of(path) is None


def test_text_and_empty_files(tmp_path):
    for content in (b"not an image", b"", b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n"):
        path = tmp_path / "notes.jpg"
        path.write_bytes(content)
        with pytest.raises(ValueError, match=r"notes\.jpg is not an image that can be read"):
            read_image(path)
        assert "not an image" in str(problem_of(path))
    with pytest.raises(ValueError, match="12 bytes is not an image"):
        read_image(b"not an image")


def test_a_decompression_bomb(tmp_path):
    side = int(MAX_PIXELS**0.5) + 1
    path = tmp_path / "bomb.png"
    path.write_bytes(png_header(side, side * 2))
    with pytest.raises(ValueError, match=r"bomb\.png"):
        read_image(path)
    assert "bomb.png" in str(problem_of(path))


def test_no_file_folder_and_other_objects(tmp_path):
    with pytest.raises(ValueError, match="is no file: give the path of an image"):
        read_image(tmp_path / "missing.png")
    with pytest.raises(ValueError, match="is no file"):
        read_image(tmp_path)
    with pytest.raises(ValueError, match="cannot read an image from int: give a path"):
        read_image(7)


def test_arrays_of_the_wrong_kind():
    with pytest.raises(ValueError, match=r"must hold uint8 values 0\.\.255, got float32"):
        read_image(np.zeros((4, 4, 3), np.float32))
    with pytest.raises(ValueError, match="must be \\(height, width\\[, channels\\]\\), got shape"):
        read_image(np.zeros((2, 4, 4, 3), np.uint8))
    with pytest.raises(ValueError, match="has 5 channels, but the model takes 3"):
        read_image(np.zeros((4, 4, 5), np.uint8))
    with pytest.raises(ValueError, match="has 3 channels, but the model takes 5"):
        read_image(np.zeros((4, 4, 3), np.uint8), 5)
    assert read_image(np.zeros((4, 4, 5), np.uint8), 5).shape == (4, 4, 5)
    with pytest.raises(ValueError, match="takes 5 channels and image files hold 1 or 3"):
        read_image(encode(Image.fromarray(GRADIENT)), 5)
