"""What a .tflite file says of itself, read by this package and by MediaPipe, and pixels as its input."""

import dataclasses
import io
import runpy
import stat
import struct
import zipfile
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import keras_vit
from keras_vit import export
from keras_vit.card import Card, Preprocessing
from keras_vit.cli.classifier import open_classifier
from keras_vit.data.sources import fashion_mnist, open_source
from keras_vit.export.metadata import Metadata, read_metadata, with_metadata
from keras_vit.export.report import report_path
from keras_vit.export.verify import synthetic_images
from keras_vit.train.evaluate import evaluate

pytestmark = pytest.mark.tf_only

FLOWERS = ("daisy", "dandelion", "rose", "sunflower", "tulip", "wild orchid", "zinnia")
exports = SimpleNamespace(**runpy.run_path(str(Path(__file__).with_name("exports.py"))))
SPEC = dataclasses.replace(exports.SPEC, num_classes=7)
CARD = Card(variant="ViT-Test/8", tag="flowers", num_classes=7, class_names=FLOWERS, license="MIT")
PER_CHANNEL = Preprocessing(mean=(123.0, 116.0, 104.0), std=(58.0, 57.0, 50.0), method="bicubic")
FILES = {  # name -> (card's rule, options)
    "float": (Preprocessing(), {}),
    "pixels": (Preprocessing(), {"input": "uint8"}),
    "small": (Preprocessing(), {"input": "uint8", "quantize": "dynamic_int8"}),
    "channels": (PER_CHANNEL, {"input": "uint8", "output": "logits"}),
}


@pytest.fixture(scope="module")
def model(random_model):
    return random_model(SPEC)


@pytest.fixture(scope="module")
def files(model, tmp_path_factory):
    """name -> path of the exports above."""
    folder, paths = tmp_path_factory.mktemp("metadata"), {}
    for name, (rule, options) in FILES.items():
        model.card = dataclasses.replace(CARD, preprocessing=rule)
        paths[name] = folder / f"{name}.tflite"
        export.litert(model, paths[name], **options)
    return paths


@pytest.fixture(scope="module")
def pixels():
    return synthetic_images((32, 40, 3), 12, seed=3)


def expected(model, pixels, rule):
    """Probabilities by NumPy's normalisation."""
    floats = (pixels.astype(np.float64) - rule.mean) / rule.std
    return model.probabilities(floats.astype(np.float32))


@pytest.mark.case("E05")
@pytest.mark.parametrize("name", ["pixels", "channels"])
def test_pixels_go_in_and_nothing_else_is_needed(model, files, pixels, name):
    artifact = export.open_artifact(files[name])
    assert artifact.input_type == "uint8"
    # The converter sums in another order; probabilities are at most 1.
    wanted = expected(model, pixels, FILES[name][0])
    np.testing.assert_allclose(artifact.predict(pixels), wanted, atol=1e-5, rtol=0)
    almost = pixels + np.float32(0.3)  # rounded, as an evaluation's resized images are
    np.testing.assert_array_equal(
        artifact.predict(np.minimum(almost, 255)), artifact.predict(pixels)
    )
    with pytest.raises(ValueError, match=r"8-bit pixels and normalises them itself, got float32"):
        artifact.predict((pixels / 127.5 - 1).astype(np.float32))


def test_the_mean_stays_out_of_an_int8_kernel(files):
    # Folded into it, the error is three times as large: 0.14 instead of 0.04 on such a model.
    report = export.Report.read(files["small"])
    plain = export.Report.read(files["pixels"])
    assert report.signatures["serving_default"]["inputs"] == {"images": [[1, 32, 40, 3], "uint8"]}
    assert report.operations["SUB"] == plain.operations["SUB"] == 2 * 1 + 1 + 1
    assert report.operations["CAST"] == 1 and report.partitions <= 2


@pytest.mark.parametrize("name", FILES)
def test_a_file_alone_says_what_it_is(files, tmp_path, name):
    (tmp_path / "alone.tflite").write_bytes(files[name].read_bytes())
    rule, options = FILES[name]
    if options.get("input") == "uint8":
        rule = dataclasses.replace(rule, mean=(0.0,), std=(1.0,))
    assert read_metadata(tmp_path / "alone.tflite") == Metadata(
        name="ViT-Test/8@flowers",
        image_size=(32, 40),
        channels=3,
        input_type=options.get("input", "float32"),
        preprocessing=rule,
        output=options.get("output", "probabilities"),
        class_names=FLOWERS,
        model="ViT-Test/8@flowers",
        license="MIT",
    )
    with zipfile.ZipFile(tmp_path / "alone.tflite") as archive:
        assert archive.read("labels.txt").decode().splitlines() == list(FLOWERS)
        assert {i.compress_type for i in archive.infolist()} == {zipfile.ZIP_STORED}


@pytest.mark.parametrize("name", FILES)
def test_evaluation_needs_no_report(model, files, tmp_path, name):
    from PIL import Image

    rng = np.random.default_rng(0)
    for label in FLOWERS:
        (tmp_path / "photos" / label).mkdir(parents=True)
        noise = rng.integers(0, 256, (6, 5, 3), np.uint8)
        Image.fromarray(noise).resize((70, 50)).save(tmp_path / "photos" / label / "a.png")
    (tmp_path / "alone.tflite").write_bytes(files[name].read_bytes())
    source = open_source(f"folder:{tmp_path / 'photos'}")
    with_report, without = (
        open_classifier(str(path)) for path in (files[name], tmp_path / "alone.tflite")
    )
    model.card = dataclasses.replace(CARD, preprocessing=FILES[name][0])

    def accuracy(predict, preprocessing):
        options = {"image_size": (32, 40), "channels": 3, "preprocessing": preprocessing}
        found = evaluate(predict, source, **options)
        return np.asarray(found.confusion)

    wanted = accuracy(model.probabilities, model.preprocessing)
    assert without.class_names == with_report.class_names == FLOWERS
    for classifier in (with_report, without):
        found = accuracy(classifier.predict, classifier.preprocessing)
        # int8 and rounded pixels may change one image that is near a border.
        assert np.abs(found - wanted).sum() <= 2


def test_what_a_file_computes_does_not_change(files, model, pixels):
    content = files["small"].read_bytes()
    again = with_metadata(content, Metadata("other", (32, 40), 3, class_names=("a", "b")))
    path = files["small"].with_name("again.tflite")
    path.write_bytes(again)
    found = read_metadata(path)
    assert (found.name, found.class_names) == ("other", ("a", "b"))
    runs = [export.open_artifact(p).predict(pixels) for p in (path, files["small"])]
    np.testing.assert_array_equal(*runs)


def test_constants_stay_aligned_for_kernels(files):
    from ai_edge_litert import schema_py_generated as schema

    for path in files.values():
        content = path.read_bytes()
        model = schema.Model.GetRootAs(content, 0)
        for i in range(model.BuffersLength()):
            buffer = model.Buffers(i)
            assert buffer.Offset() == 0  # nothing stands where the archive is
            if buffer.DataLength():
                assert buffer._tab.Vector(buffer._tab.Offset(4)) % 16 == 0


def test_labels_of_any_text_stay_one_to_a_line(files, tmp_path):
    names = ("two\nlines", "tab\there", "größe", "same", "same", "x" * 300, "7")
    path = tmp_path / "odd.tflite"
    path.write_bytes(
        with_metadata(files["float"].read_bytes(), Metadata("odd", (32, 40), 3, class_names=names))
    )
    assert read_metadata(path).class_names == ("two lines", "tab here", *names[2:])


def test_files_without_or_with_damaged_metadata(files, tmp_path, pixels):
    from ai_edge_litert.tools import flatbuffer_utils

    bare = tmp_path / "bare.tflite"
    parsed = flatbuffer_utils.read_model(str(files["float"]))
    parsed.metadata = []
    bare.write_bytes(bytes(flatbuffer_utils.convert_object_to_bytearray(parsed)))
    assert read_metadata(bare) is None and not report_path(bare).exists()
    with pytest.raises(ValueError, match="no report beside it and no labels inside"):
        open_classifier(str(bare))
    content = bytearray(files["float"].read_bytes())
    start = content.index(b"M001") - 4
    content[start : start + 4] = struct.pack("<I", 2**31)
    damaged = tmp_path / "damaged.tflite"
    damaged.write_bytes(content)
    with pytest.raises(ValueError, match=r"metadata of .*damaged\.tflite is damaged"):
        read_metadata(damaged)
    assert export.open_artifact(damaged).predict((pixels / 127.5 - 1).astype("f4")).shape == (12, 7)


def test_features_have_no_labels_and_grey_images_a_note(random_model, tmp_path):
    grey = random_model(dataclasses.replace(SPEC, in_channels=1))
    report = export.litert(grey, tmp_path / "grey.tflite", output="features")
    found = read_metadata(tmp_path / "grey.tflite")
    assert (found.class_names, found.output, found.channels) == ((), "features", 1)
    assert any("RGB images only" in note for note in report.notes)
    assert stat.S_IMODE((tmp_path / "grey.tflite").stat().st_mode) == 0o644
    assert zipfile.ZipFile(io.BytesIO((tmp_path / "grey.tflite").read_bytes())).testzip() is None


@pytest.mark.parametrize("quantize", [None, "dynamic_int8"])
def test_grey_pixels_lose_nothing_to_an_int8_kernel(tmp_path, quantize):
    """A mean and std for one channel, which the converter might fold into the first kernel."""
    model, images = keras_vit.load("ViT-Mini/4"), fashion_mnist("subset_test").images[:200]
    wanted = model.probabilities(np.asarray(model.preprocessor(images)))
    answers = {}
    for kind in ("float32", "uint8"):
        file = tmp_path / f"{kind}.tflite"
        export.litert(model, file, quantize=quantize, input=kind, images=images[:16])
        given = images if kind == "uint8" else np.asarray(model.preprocessor(images))
        answers[kind] = export.open_artifact(file).predict(given)
    if quantize is None:
        np.testing.assert_allclose(answers["uint8"], wanted, atol=1e-5, rtol=0)
    # Not worse than with floats, whose normalisation is outside the file.
    errors = {kind: float(np.abs(found - wanted).mean()) for kind, found in answers.items()}
    assert errors["uint8"] < 1.2 * errors["float32"] + 1e-6
