"""The networks of the paper's appendices D.4 and D.6, against float64 NumPy on both backends."""

import dataclasses
import itertools
from pathlib import Path

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit import VisionModel, ViTSpec
from keras_vit.layers import MultiHeadAttention
from keras_vit.spec import HybridSpec, ResNetBody

ORACLES = Path(__file__).parent / "oracles"
TINY = ViTSpec(
    image_size=(12, 8),
    patch_size=4,
    hidden_size=8,
    mlp_dim=16,
    num_heads=2,
    num_layers=2,
    num_classes=3,
)
BODY = ResNetBody((1,), width_factor=0.5)
SPECS = {
    "2d": dataclasses.replace(TINY, posemb="2d"),
    "2d, every layer": dataclasses.replace(TINY, posemb="2d", posemb_at="layers"),
    "2d, shared": dataclasses.replace(TINY, posemb="2d", posemb_at="layers_shared"),
    "2d, patches only": dataclasses.replace(TINY, posemb="2d", posemb_includes_cls=False),
    "2d, distilled": dataclasses.replace(TINY, posemb="2d", distilled=True),
    "1d, every layer": dataclasses.replace(TINY, posemb_at="layers"),
    "1d, shared": dataclasses.replace(TINY, posemb_at="layers_shared"),
    "relative": dataclasses.replace(TINY, posemb="relative"),
    "relative, no class token": dataclasses.replace(TINY, posemb="relative", pool="gap"),
    "none": dataclasses.replace(TINY, posemb="none"),
    "axial": dataclasses.replace(TINY, attention="axial", pool="gap"),
    "axial, 2d, map": dataclasses.replace(
        TINY, attention="axial", pool="map", posemb="2d", posemb_at="layers"
    ),
}


@pytest.fixture(scope="module")
def models():
    """A model of each spec, every weight random, so that each position matters."""
    made = {}
    for name, spec in SPECS.items():
        made[name] = model = VisionModel(spec)
        rng = np.random.default_rng(len(made))
        for weight in model.weights:
            weight.assign(rng.normal(size=weight.shape) * 0.3)
    return made


def pictures(spec, seed=0):
    rng = np.random.default_rng(seed)
    return rng.uniform(-1, 1, (2, *spec.image_size, spec.in_channels)).astype(np.float32)


def array(x):
    return keras.ops.convert_to_numpy(x)


@pytest.mark.parametrize("name", SPECS)
def test_every_endpoint_equals_the_float64_reference(name, models, reference):
    model, spec = models[name], SPECS[name]
    params = {v.path: np.asarray(array(v), np.float64) for v in model.weights}
    found = reference.vit(spec, params, pictures(spec))
    public = [e for e in model.endpoints if e in found]
    assert {"encoderblock_1", "encoded", "logits"} <= set(public)
    assert ("attention_1" in public) == (spec.attention == "full")
    for endpoint in public:
        got = array(model.features(endpoint)(pictures(spec)))
        # Float32 rounding of numbers up to 10, through two blocks.
        np.testing.assert_allclose(got, found[endpoint], rtol=0, atol=2e-5, err_msg=endpoint)


@pytest.mark.parametrize("name", SPECS)
def test_parameters_are_counted_by_formula(name, models):
    assert models[name].count_params() == SPECS[name].num_params


def test_a_hybrid_takes_the_same_fields():
    spec = HybridSpec(
        image_size=(32, 32), patch_size=1, hidden_size=8, mlp_dim=16, num_heads=2, num_layers=1,
        resnet=BODY, num_classes=2, posemb="2d", posemb_at="layers",
    )  # fmt: skip
    assert VisionModel(spec).count_params() == spec.num_params


@pytest.mark.parametrize("name", SPECS)
def test_files_bring_the_same_network_back(name, models, tmp_path):
    model, spec = models[name], SPECS[name]
    expected = array(model(pictures(spec)))
    model.save(tmp_path / "m.keras")
    model.save_weights(tmp_path / "m.weights.h5")
    for again in (
        keras_vit.load(tmp_path / "m.keras"),
        keras_vit.load(spec, weights=tmp_path / "m.weights.h5"),
    ):
        assert again.spec == spec
        np.testing.assert_array_equal(array(again(pictures(spec))), expected)


@pytest.mark.parametrize("name", ["2d, every layer", "1d, every layer", "1d, shared", "relative"])
def test_published_layouts_refuse_what_they_would_mistake(name, models, tmp_path):
    for form, file in (("google_npz", "m.npz"), ("timm", "m.safetensors")):
        with pytest.raises(ValueError, match=r"posemb_at=|no place for .*offsets"):
            keras_vit.save_weights_as(models[name], tmp_path / file, format=form)
    assert not list(tmp_path.iterdir())


def test_the_same_arrays_at_the_stem_are_another_network(models, tmp_path):
    models["1d, shared"].save(tmp_path / "m.keras")
    with pytest.raises(ValueError, match="posemb_at layers_shared instead of stem"):
        keras_vit.load(TINY, weights=tmp_path / "m.keras")


@pytest.mark.parametrize("name", ["2d", "2d, every layer", "1d, every layer", "1d, shared"])
def test_positions_are_resized_with_the_image(name, models, tmp_path):
    """Embeddings on a straight line stay on it, whichever table they stand in."""
    model = models[name]
    rows, cols = np.linspace(0, 1, 3), np.linspace(-1, 1, 2)
    for weight in model.weights:
        if weight.path.endswith("/rows"):
            weight.assign(np.broadcast_to(rows[:, None], (3, 4)).reshape(1, 3, 1, 4))
        elif weight.path.endswith("/columns"):
            weight.assign(np.broadcast_to(cols[:, None], (2, 4)).reshape(1, 1, 2, 4))
        elif weight.path.endswith("/table"):
            line = (rows[:, None] + cols).reshape(6, 1)
            table = np.concatenate([np.full((1, 1), 7.0), line])
            weight.assign(np.broadcast_to(table, (7, 8))[None])
    model.save(tmp_path / "m.keras")
    with pytest.warns(UserWarning, match="trained with 3x2 patches"):
        larger = keras_vit.load(tmp_path / "m.keras", image_size=(20, 12))
    rows, cols = np.linspace(0, 1, 5), np.linspace(-1, 1, 3)
    for weight in larger.weights:
        value = array(weight)
        if weight.path.endswith("/rows"):
            np.testing.assert_allclose(value[0, :, 0, 0], rows, atol=1e-6)
        elif weight.path.endswith("/columns"):
            np.testing.assert_allclose(value[0, 0, :, 0], cols, atol=1e-6)
        elif weight.path.endswith("/table"):
            assert value[0, 0, 0] == 7.0
            line = (rows[:, None] + cols).reshape(-1)
            np.testing.assert_allclose(value[0, 1:, 0], line, atol=1e-6)
    larger(pictures(larger.spec))


def test_distances_have_no_other_resolution(models, tmp_path):
    models["relative"].save(tmp_path / "m.keras")
    with pytest.raises(ValueError, match=r"encoderblock_0/attention/offsets has shape \(13, 4\)"):
        keras_vit.load(tmp_path / "m.keras", image_size=(16, 16))


def test_relative_scores_depend_on_distance_alone():
    """With queries that are all alike, rows of scores are the same, one place further each."""
    layer = MultiHeadAttention(1, relative=True)
    x = np.ones((1, 5, 4), np.float32)
    layer(x)
    layer.offsets.assign(np.random.default_rng(0).normal(size=(9, 4)))
    layer.query.bias.assign(np.ones(4))
    scores = np.log(array(layer.attention_weights(x))[0, 0])
    for n, m in itertools.product(range(4), range(4)):
        same = scores[n] - scores[n, 0], scores[n + 1] - scores[n + 1, 1]
        np.testing.assert_allclose(same[0][m] - same[1][m + 1], 0, atol=1e-5)
    assert np.ptp(scores[0]) > 0.1


def test_training_reaches_every_position(models):
    for name in ("2d, every layer", "1d, shared", "relative"):
        model = models[name]
        model.compile(keras.optimizers.SGD(0.1), "mse")
        before = {w.path: array(w) for w in model.trainable_weights}
        model.fit(pictures(SPECS[name]), np.eye(3)[:2].astype(np.float32), epochs=1, verbose=0)
        still = [
            w.path for w in model.trainable_weights if np.array_equal(before[w.path], array(w))
        ]
        assert not [path for path in still if "posembed" in path or "offsets" in path], name


def test_inspection_says_what_an_axial_network_lacks(models):
    from keras_vit.analysis import attention_distance

    with pytest.raises(TypeError, match="along rows and along columns"):
        attention_distance(models["axial"], pictures(SPECS["axial"]))
    assert not models["axial"].endpoints.attention


@pytest.mark.parametrize("name", ["2d, every layer", "1d, shared", "relative"])
def test_inspection_sees_the_attention_of_each_layer(name, models, reference):
    from keras_vit.analysis.attention import layer_attention

    model, spec = models[name], SPECS[name]
    params = {v.path: np.asarray(array(v), np.float64) for v in model.weights}
    found = reference.vit(spec, params, pictures(spec))
    *layers, (_, tokens) = layer_attention(model, pictures(spec))
    for index, weights in layers:
        np.testing.assert_allclose(weights, found[f"attention_{index}"], atol=1e-5)
    np.testing.assert_allclose(tokens, found["encoded"], atol=2e-5)
