"""Images and names from anyone: bounded, refused in one sentence, and shown as text in reports."""

import io
import struct
import sys
import zlib

import numpy as np
import pytest
from PIL import Image

from keras_vit.cli.common import show, table
from keras_vit.data import images
from keras_vit.data.images import problem_of, read_image
from keras_vit.train.report import markdown

NOISE = np.random.default_rng(0).integers(0, 256, (40, 30, 3), np.uint8)
HOSTILE = "<script>alert(1)</script>"


def encode(kind, image=None, **options):
    buffer = io.BytesIO()
    (image or Image.fromarray(NOISE)).save(buffer, kind, **options)
    return buffer.getvalue()


def png(width, height, *chunks, data=b""):
    """A PNG that claims a size, with what anyone may put into it."""
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    found = b"\x89PNG\r\n\x1a\n"
    for kind, body in ((b"IHDR", header), *chunks, (b"IDAT", data), (b"IEND", b"")):
        crc = zlib.crc32(kind + body)
        found += struct.pack(">I", len(body)) + kind + body + struct.pack(">I", crc)
    return found


def refused(data, tmp_path):
    """Both readers refuse it, in one line that names the file; gives read_image's message."""
    path = tmp_path / "x.img"
    path.write_bytes(data)
    with pytest.raises(ValueError) as caught:
        read_image(path)
    said = problem_of(path)
    for message in (str(caught.value), said):
        assert message and "x.img" in message and "\n" not in message
    return str(caught.value)


@pytest.mark.parametrize("size", [(20_000, 20_000), (13_500, 13_500), (2**31 - 1, 1), (1, 2**30)])
def test_bombs_are_refused_by_their_header(tmp_path, size):
    import tracemalloc

    data = png(*size, data=zlib.compress(bytes(10**6)))
    tracemalloc.start()
    assert "more than 178956970" in refused(data, tmp_path) or "not an image" in refused(
        data, tmp_path
    )
    assert tracemalloc.get_traced_memory()[1] < 2**23
    tracemalloc.stop()


def test_the_cap_is_ours_and_not_only_pillows(tmp_path, monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", None)  # as many programs set it
    assert "has 20000x20000 pixels, more than 178956970" in refused(png(20_000, 20_000), tmp_path)
    monkeypatch.setattr(images, "MAX_PIXELS", 40 * 30 - 1)
    for kind in ("PNG", "JPEG", "GIF", "BMP", "WEBP", "TIFF", "PPM"):
        assert "has 30x40 pixels, more than 1199" in refused(encode(kind), tmp_path)


def test_text_that_unpacks_to_gigabytes_is_refused(tmp_path):
    packed = zlib.compress(bytes(2**26))
    chunk = (b"zTXt", b"Comment\x00\x00" + packed)
    refused(png(4, 4, *[chunk] * 3, data=zlib.compress(bytes(4 * 13))), tmp_path)


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "GIF", "BMP", "WEBP", "TIFF", "PPM"])
def test_truncated_files_are_refused(tmp_path, kind):
    data = encode(kind)
    for size in (0, 1, 10, len(data) // 2, len(data) - 200):
        refused(data[:size], tmp_path)


@pytest.mark.parametrize(
    "data",
    [
        b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n",  # would start Ghostscript
        b"<svg xmlns='http://www.w3.org/2000/svg'/>",
        b"%PDF-1.7\n",
        b"\x00\x00\x00\x1cftypavif" + bytes(40),
        b"PK\x03\x04" + bytes(40),
        b"\x80\x04.",
        encode("ICNS", Image.new("RGB", (32, 32))),
        encode("PCX"),
        encode("TGA"),
    ],
)
def test_other_formats_are_refused(tmp_path, data):
    assert "is not an image that can be read" in refused(data, tmp_path)


def test_floats_that_are_no_numbers_become_black_or_white(tmp_path):
    values = np.array([[np.nan, np.inf, -np.inf, 1e30, -3.0, 200.4]], np.float32)
    image = Image.fromarray(values)
    image.save(tmp_path / "f.tiff")
    found = read_image(tmp_path / "f.tiff", 1)[0, :, 0]
    np.testing.assert_array_equal(found, [0, 255, 0, 255, 0, 200])


def test_every_16_bit_value_is_rounded_as_in_double_precision():
    values = np.arange(2**16, dtype=np.uint16).reshape(256, 256)
    found = read_image(encode("PNG", Image.fromarray(values)), 1)[..., 0]
    np.testing.assert_array_equal(found, np.round(values / 257.0).astype(np.uint8))


def report_of(**changes):
    """The least that `markdown` shows, with hostile text wherever a file or a label puts text."""
    score = dict(name=HOSTILE, examples=1, precision=1.0, recall=1.0, f1=1.0)
    evaluation = dict(
        interval=(0.1, 0.9),
        accuracy=0.5,
        examples=2,
        confusion=[[1, 0], [0, 1]],
        top5=None,
        mean_average_precision=None,
        per_class=[score, {**score, "name": f"[x](javascript:alert(1))\n{HOSTILE}"}],
        broken=[f"{HOSTILE}\n{HOSTILE}.png is a broken image."],
    )
    data = dict(name=HOSTILE, examples=2)
    return {
        "model": f"ViT\n\n{HOSTILE}",
        "train": data,
        "validation": data,
        "evaluated_on": "validation",
        "evaluation": {**evaluation, **changes},
        "epochs": 1,
        "best_epoch": 1,
        "seconds": 1.0,
        "history": [{"loss": 1.0}],
        "command": f"keras-vit finetune '{HOSTILE}\n{HOSTILE}\n\n{HOSTILE}'",
        "recipe": {"name": HOSTILE},
        "versions": {"keras": HOSTILE},
        "from_scratch": False,
        "freeze": True,
    }


@pytest.mark.parametrize(
    "changes",
    [
        {},
        dict(confusion=None, mean_average_precision=0.5),
        dict(
            per_class=[
                dict(name=f"{HOSTILE}{i}", examples=1, precision=1.0, recall=1.0, f1=1.0)
                for i in range(40)
            ],
            confusion=(np.ones((40, 40), int)).tolist(),
        ),
    ],
    ids=["small", "labels", "many"],
)
def test_names_in_a_report_do_nothing(changes):
    if changes.get("mean_average_precision"):
        score = dict(name=HOSTILE, examples=1, precision=1.0, recall=1.0, f1=1.0)
        changes = {**changes, "per_class": [{**score, "average_precision": 1.0}]}
    lines = markdown(report_of(**changes)).splitlines()
    shown = [line for line in lines if "script" in line]
    assert len(shown) > 5
    for line in shown:
        # Escaped, or in an indented block, which Markdown shows as it is.
        assert "<" not in line or line.startswith("    ")
        assert "](" not in line
    code = [i for i, line in enumerate(lines) if line.startswith("    ")]
    assert lines[code[0] - 1] == ""  # without the empty line it would be no block
    assert sum("<script>" in lines[i] for i in code) == 3


def test_names_in_the_terminal_do_nothing(capsys):
    name = "[red]bold[/red]\x1b]0;title\x07\x1b[2J"
    show(sys.stdout, table(("class", "images"), [(name, 3)]))
    written = capsys.readouterr().out
    assert "[red]bold[/red]" in written and "\x1b" not in written and "\x07" not in written
