"""SavedModel folders: every signature, in a process that knows only TensorFlow."""

import io
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from keras_vit import export
from keras_vit.card import Card, Preprocessing
from keras_vit.export import benchmark
from keras_vit.export.graph import float32_model, named_outputs
from keras_vit.export.verify import model_inputs, synthetic_images
from keras_vit.spec import ViTSpec

pytestmark = pytest.mark.tf_only

SPEC = ViTSpec(
    hidden_size=24,
    mlp_dim=40,
    num_heads=3,
    num_layers=2,
    patch_size=7,
    image_size=(28, 21),
    in_channels=3,
    num_classes=5,
    representation_size=16,
)
# Rules that differ from the default in everything, so that a forgotten one shows.
CARD = Card(
    variant="ViT-Test/7",
    tag="random",
    num_classes=5,
    class_names=("ant", "bee", "cat", "dog", "eel"),
    preprocessing=Preprocessing(
        resize="shorter_side",
        method="bicubic",
        antialias=True,
        resize_to=32,
        truncate=True,
        mean=(120.0, 110.0, 100.0),
        std=(60.0, 55.0, 50.0),
    ),
)
FRESH = """
import sys
import numpy as np
import tensorflow as tf
loaded = tf.saved_model.load(sys.argv[1])
given = dict(np.load(sys.argv[2]))
given["files"] = [bytes(given[f"file_{i}"]) for i in range(32)]
found = {}
for name, signature in loaded.signatures.items():
    for batch in (1, 3, 32):
        images = given[{"serve_uint8": "pixels", "serve_jpeg": "files"}.get(name, "floats")][:batch]
        for output, values in signature(images=tf.constant(images)).items():
            found[f"{name}/{output}/{batch}"] = values.numpy()
assert not [name for name in sys.modules if name.startswith("keras_vit")]
np.savez(sys.argv[3], **found)
"""


@pytest.fixture(scope="module")
def model(random_model):
    return random_model(SPEC, card=CARD)


@pytest.fixture(scope="module")
def exported(model, tmp_path_factory):
    path = tmp_path_factory.mktemp("saved") / "model"
    return path, model.export(path, labels=np.arange(16) % 5)  # of the synthetic images


@pytest.fixture(scope="module")
def pixels():
    return synthetic_images((40, 35, 3), 32, seed=2)


@pytest.fixture(scope="module")
def photos():
    """32 JPEG files, each of another size, some grey."""
    files = []
    for i in range(32):
        file = io.BytesIO()
        pixels = synthetic_images((30 + 5 * i, 90 - 2 * i, 3), 1, seed=i)[0]
        image = Image.fromarray(pixels).convert("L" if i % 5 == 4 else "RGB")
        image.save(file, "JPEG", quality=90)
        files.append(file.getvalue())
    return files


@pytest.fixture(scope="module")
def fresh(model, exported, pixels, photos, tmp_path_factory):
    """What a process with TensorFlow alone gets from the folder."""
    folder = tmp_path_factory.mktemp("fresh")
    bytes_of = {f"file_{i}": np.frombuffer(file, np.uint8) for i, file in enumerate(photos)}
    np.savez(folder / "given.npz", pixels=pixels, floats=model_inputs(model, pixels)[0], **bytes_of)
    arguments = [str(exported[0]), str(folder / "given.npz"), str(folder / "found.npz")]
    done = subprocess.run([sys.executable, "-c", FRESH, *arguments], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return dict(np.load(folder / "found.npz"))


@pytest.mark.case("E01")
@pytest.mark.parametrize("batch", [1, 3, 32])
def test_default_signature_equals_keras_in_a_fresh_process(model, fresh, pixels, batch):
    x = model_inputs(model, pixels)[0][:batch]
    logits = np.asarray(model(x))
    for found, expected in (
        (fresh[f"serving_default/logits/{batch}"], logits),
        (fresh[f"serving_default/probabilities/{batch}"], model.probabilities(x)),
        (fresh[f"serve/output_0/{batch}"], logits),
        (fresh[f"features/features/{batch}"], np.asarray(model.features("pre_logits")(x))),
    ):
        np.testing.assert_allclose(found, expected, atol=1e-5, rtol=0)


@pytest.mark.case("E05")
@pytest.mark.parametrize("batch", [1, 3, 32])
def test_uint8_signature_preprocesses_as_offline(model, fresh, pixels, batch):
    # 40x35 pixels: neither the size of the model nor of its resize.
    expected = model.probabilities(model_inputs(model, pixels[:batch])[0])
    # 1e-4 as the case asks; bicubic sums in another order, then whole grey levels, differ less.
    np.testing.assert_allclose(
        fresh[f"serve_uint8/probabilities/{batch}"], expected, atol=1e-4, rtol=0
    )


@pytest.mark.case("E05")
@pytest.mark.parametrize("batch", [1, 3, 32])
def test_jpeg_signature_reads_files_of_any_size(model, fresh, photos, batch):
    found = fresh[f"serve_jpeg/probabilities/{batch}"]
    # Decoded by Pillow, whose pixels TensorFlow's exact transform gives.
    one_by_one = model.predict_images(photos[:batch], top=5)
    for row, predictions in zip(found, one_by_one, strict=True):
        expected = np.zeros(5)
        for _, index, probability in predictions:
            expected[index] = probability
        np.testing.assert_allclose(row, expected, atol=1e-4, rtol=0)


def test_jpeg_signature_refuses_what_is_no_image(exported):
    import tensorflow as tf

    signature = tf.saved_model.load(str(exported[0])).signatures["serve_jpeg"]
    with pytest.raises(tf.errors.InvalidArgumentError):
        signature(images=tf.constant([b"no image"]))


@pytest.mark.case("E01")
@pytest.mark.case("E02")
def test_signatures_have_names_types_and_any_batch(exported):
    _, report = exported
    floats, pixels = [[None, 28, 21, 3], "float32"], [[None, None, None, 3], "uint8"]
    classes = {name: [[None, 5], "float32"] for name in ("logits", "probabilities")}
    assert report.signatures == {
        "serving_default": {"inputs": {"images": floats}, "outputs": classes},
        "serve_uint8": {"inputs": {"images": pixels}, "outputs": classes},
        "features": {
            "inputs": {"images": floats},
            "outputs": {"features": [[None, 16], "float32"]},
        },
        "serve": {"inputs": {"images": floats}, "outputs": {"output_0": [[None, 5], "float32"]}},
        "serve_jpeg": {"inputs": {"images": [[None], "string"]}, "outputs": classes},
    }


@pytest.mark.case("E07")
def test_graph_has_no_einsum(exported):
    operations = exported[1].operations
    assert operations["BatchMatMulV2"] == 2 * SPEC.num_layers
    assert not [name for name in operations if "einsum" in name.lower()]


def test_report_lies_inside_and_covers_every_signature(exported):
    path, report = exported
    assert export.Report.read(path) == report
    assert set(report.comparisons) == set(report.signatures)
    assert all(c.largest_error <= c.bound[1] for c in report.comparisons.values())
    assert report.class_names == CARD.class_names
    assert report.source["card"]["tag"] == "random"
    assert report.size >= 4 * SPEC.num_params
    assert {p.name for p in path.parent.iterdir()} == {path.name}


def test_report_has_what_that_of_a_tflite_has(model, exported):
    _, report = exported
    # Measured in processes of their own, because threads are those of a process.
    assert (report.latency.threads, report.latency_2.threads) == (1, 2)
    for latency in (report.latency, report.latency_2):
        assert latency.runs >= 3 and 0 < latency.low_ms <= latency.median_ms <= latency.high_ms
    assert report.peak_memory is None or 4 * SPEC.num_params < report.peak_memory < 1e9
    assert len(report.source["weights_sha256"]) == 64 and report.versions["tensorflow"]
    classes = model.probabilities(model_inputs(model, None)[0]).argmax(-1)
    accuracy = float((classes == np.arange(16) % 5).mean())
    assert report.comparison.accuracy == report.comparison.model_accuracy == accuracy
    assert report.comparison.largest_logit_error < 1e-3  # logits reach 10
    # Other images than those the labels are of.
    assert report.comparisons["serve_uint8"].accuracy is None
    text = report.to_text()
    assert "1 thread(s)" in text and "with 2 threads" in text and f"accuracy {accuracy:.1%}" in text


def test_without_processes_of_its_own_the_latency_is_that_of_this_one(exported, monkeypatch):
    monkeypatch.setattr(benchmark, "_saved_model_costs", lambda path, images: [])
    found = benchmark.costs(exported[0], np.zeros((1, 28, 21, 3), np.float32))
    assert found["latency"].threads is None and found["latency"].runs >= 3
    assert found["latency_2"] is found["peak_memory"] is None


def test_open_artifact_runs_the_folder(model, exported, pixels):
    artifact = export.open_artifact(exported[0])
    x = model_inputs(model, pixels)[0]
    assert artifact.input_shape == (None, 28, 21, 3)
    np.testing.assert_allclose(artifact.predict(x), model.probabilities(x), atol=1e-5, rtol=0)
    with pytest.raises(ValueError, match=r"preprocessed float images.*got uint8"):
        artifact.predict(pixels)
    with pytest.raises(
        ValueError, match=r"\(batch, 28, 21, 3\), got float32 of shape \(32, 27, 21"
    ):
        artifact.predict(x[:, 1:])


def test_existing_folder_needs_force_and_is_replaced_whole(random_model, tmp_path):
    small = random_model(ViTSpec(**{**vars(SPEC), "num_layers": 1, "num_classes": 0}))
    path = tmp_path / "model"
    path.mkdir()
    for name in ("saved_model.pb", "stale"):
        (path / name).touch()
    with pytest.raises(FileExistsError, match="exists already: choose another name, or pass force"):
        export.saved_model(small, path)
    assert (path / "stale").exists()
    report = export.saved_model(small, path, force=True)
    assert report.signatures["serving_default"]["outputs"] == {"features": [[None, 16], "float32"]}
    assert not (path / "stale").exists() and (path / "saved_model.pb").stat().st_size
    assert [p.name for p in tmp_path.iterdir()] == ["model"]


def test_force_does_not_replace_what_is_no_export(model, tmp_path):
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "cat.jpg").touch()
    with pytest.raises(FileExistsError, match="no SavedModel folder that could be replaced"):
        export.saved_model(model, tmp_path / "photos", force=True)
    assert (tmp_path / "photos" / "cat.jpg").exists()


def test_half_precision_model_becomes_float32_with_the_same_weights(random_model):
    model = random_model(SPEC, dtype="mixed_float16")
    copy, note = float32_model(model)
    assert copy.get_config()["dtype"] == "float32" and "mixed_float16" in note
    for one, other in zip(model.weights, copy.weights, strict=True):
        assert one.path == other.path
        np.testing.assert_array_equal(one.numpy(), other.numpy())
    assert float32_model(copy) == (copy, None)


def test_probabilities_follow_the_classifier_activation(random_model):
    spec = ViTSpec(**{**vars(SPEC), "classifier_activation": "sigmoid"})
    model = random_model(spec)
    x = model_inputs(model, None)[0]
    outputs = named_outputs(model)(x)
    np.testing.assert_allclose(outputs["probabilities"], np.asarray(model(x)), atol=1e-6)
    expected = 1 / (1 + np.exp(-np.asarray(outputs["logits"])))
    np.testing.assert_allclose(outputs["probabilities"], expected, atol=1e-6)


def test_other_formats_are_left_to_keras(model, monkeypatch):
    import keras

    called = {}
    monkeypatch.setattr(keras.Model, "export", lambda self, path, **options: called.update(options))
    model.export("model", format="openvino", verbose=False)
    assert called == {"format": "openvino", "verbose": False}


def test_importing_the_exporters_loads_no_framework():
    code = (
        "import sys, keras_vit.export; "
        "print([n for n in ('keras', 'tensorflow', 'ai_edge_litert') if n in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
    assert Path(export.__file__).is_file()
