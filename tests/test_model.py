"""VisionModel as a Keras model: saving, precision, freezing, nesting, endpoints, warnings."""

import dataclasses
import json
import os
import pickle
import subprocess
import sys
import warnings
from pathlib import Path

import keras
import numpy as np
import pytest
from keras import ops

from keras_vit.card import Card, Preprocessing
from keras_vit.model import VisionModel, _is_concrete
from keras_vit.spec import ViTSpec

GOLDEN = Path(__file__).parent / "golden" / "vit_layers.json"
TINY = ViTSpec(
    hidden_size=12,
    mlp_dim=20,
    num_heads=3,
    num_layers=2,
    patch_size=8,
    image_size=(24, 16),
    num_classes=5,
)
SHALLOW = dataclasses.replace(TINY, num_layers=1)  # where a step of training is compiled
CARD = Card("ViT-Tiny/8", "test", num_classes=5, class_names=("a", "b", "c", "d", "e"))
RNG = np.random.default_rng(11)
X = RNG.uniform(-1, 1, (4, 24, 16, 3)).astype(np.float32)
Y = keras.utils.to_categorical([0, 3, 4, 1], 5)


def array(x):
    return ops.convert_to_numpy(x)


def random_model(spec=TINY, **options):
    model = VisionModel(spec, **options)
    rng = np.random.default_rng(5)
    for variable in model.weights:
        variable.assign(rng.normal(0, 0.2, variable.shape))
    return model


def compiled(model):
    model.compile("adam", keras.losses.CategoricalCrossentropy(from_logits=True))
    return model


def fresh_process(code, backend=None, **variables):
    """Runs code in a new interpreter and returns what it prints as JSON on its last line."""
    env = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2", **variables}
    if backend:
        env["KERAS_BACKEND"] = backend
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.strip().splitlines()[-1])


# Saving


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A model with everything a file must keep, trained one step, and the folder it is saved in."""
    folder = tmp_path_factory.mktemp("trained")
    model = compiled(random_model(card=CARD, dtype="mixed_bfloat16"))
    model.get_layer("embedding").trainable = False
    model.get_layer("encoderblock_0").trainable = False
    model.fit(X, Y, verbose=0)
    model.save(folder / "m.keras")
    np.save(folder / "x.npy", X)
    return model, folder


@pytest.mark.case("S01")
@pytest.mark.case("S02")
@pytest.mark.parametrize("imports", ["import keras, keras_vit", "import keras_vit, keras"])
def test_a_trained_model_reloads_in_a_fresh_process(trained, imports):
    model, folder = trained
    found = fresh_process(
        f"{imports}\nimport json, numpy as np\n"
        f"m = keras.saving.load_model({str(folder / 'm.keras')!r})\n"
        f"y = keras.ops.convert_to_numpy(m(np.load({str(folder / 'x.npy')!r})))\n"
        "print(json.dumps(dict(y=y.tolist(), kind=type(m).__name__, policy=m.policy.name,"
        " trainable=[v.path for v in m.trainable_variables], names=m.class_names,"
        " optimizer=[float(keras.ops.sum(keras.ops.abs(keras.ops.cast(v, 'float32'))))"
        " for v in m.optimizer.variables])))"
    )
    np.testing.assert_allclose(found["y"], array(model(X)), rtol=0, atol=1e-6)
    assert found["kind"] == "VisionModel"
    assert found["policy"] == "mixed_bfloat16"
    assert found["trainable"] == [v.path for v in model.trainable_variables]
    assert "embedding/kernel" not in found["trainable"]
    assert found["names"] == list(CARD.class_names)
    sums = [float(ops.sum(ops.abs(ops.cast(v, "float32")))) for v in model.optimizer.variables]
    assert sum(sums) > 1.0
    np.testing.assert_allclose(found["optimizer"], sums, rtol=1e-5)


@pytest.mark.tf_only
def test_a_file_written_under_tensorflow_loads_and_trains_under_jax(tmp_path):
    model = compiled(random_model(SHALLOW, card=CARD))
    model.fit(X, Y, verbose=0)
    model.save(tmp_path / "m.keras")
    np.savez(tmp_path / "xy.npz", x=X, y=Y)
    found = fresh_process(
        "import keras, keras_vit, json, numpy as np\n"
        f"m = keras.saving.load_model({str(tmp_path / 'm.keras')!r})\n"
        f"d = np.load({str(tmp_path / 'xy.npz')!r})\n"
        "y = np.asarray(m(d['x'])).tolist()\n"
        "m.fit(d['x'], d['y'], verbose=0)\n"
        "print(json.dumps(dict(y=y, jit=bool(m.jit_compile), backend=keras.backend.backend(),"
        " steps=int(m.optimizer.iterations))))",
        backend="jax",
    )
    # Another backend orders its sums differently: 1e-6 on logits of about 1.
    np.testing.assert_allclose(found["y"], array(model(X)), rtol=0, atol=5e-6)
    assert found["backend"] == "jax"
    assert found["jit"]  # not the False that compile() chose for TensorFlow on a CPU
    assert found["steps"] == 2


@pytest.mark.case("S03")
@pytest.mark.parametrize("pool", ["token", "map", "gap"])
@pytest.mark.parametrize("suffix", [".keras", ".weights.h5"])
def test_no_weight_is_lost_in_a_file(tmp_path, pool, suffix):
    spec = dataclasses.replace(TINY, pool=pool, representation_size=7, dropout=0.1)
    model, path = random_model(spec), tmp_path / f"m{suffix}"
    if suffix == ".keras":
        model.save(path)
        again = keras.saving.load_model(path)
    else:
        model.save_weights(path)
        again = VisionModel(spec)
        again.load_weights(path)
    assert [v.path for v in again.weights] == [v.path for v in model.weights]
    for new, old in zip(again.weights, model.weights, strict=True):
        np.testing.assert_array_equal(array(new), array(old))


@pytest.mark.case("S07")
@pytest.mark.parametrize("dtype", [None, "mixed_bfloat16", keras.DTypePolicy("mixed_float16")])
def test_the_config_is_plain_and_enough(dtype):
    model = random_model(
        card=dataclasses.replace(CARD, preprocessing=Preprocessing(mean=(1, 2, 3), std=(4, 5, 6))),
        dtype=dtype,
    )
    model.get_layer("encoderblock_1").mlp.trainable = False
    config = json.loads(json.dumps(model.get_config()))
    again = type(model).from_config(config)
    assert again.spec == model.spec
    assert again.card == model.card
    assert again.get_config() == model.get_config()
    assert [v.path for v in again.trainable_variables] == [
        v.path for v in model.trainable_variables
    ]
    assert len(again.non_trainable_weights) == 4


def test_a_model_frozen_as_a_whole_stays_so():
    model = VisionModel(TINY)
    model.trainable = False
    model.get_layer("head").trainable = True
    again = VisionModel.from_config(model.get_config())
    assert not again.trainable_variables and not model.trainable_variables
    again.trainable = model.trainable = True
    assert len(again.trainable_variables) == len(model.trainable_variables)


@pytest.mark.case("S02")
def test_no_lambda_and_only_our_or_kerass_layers():
    for layer in VisionModel(dataclasses.replace(TINY, pool="map", dropout=0.1))._flatten_layers():
        assert not isinstance(layer, keras.layers.Lambda)
        assert type(layer).__module__.split(".")[0] in ("keras", "keras_vit")


def test_pickling_and_copying():
    model = random_model(card=CARD)
    again = pickle.loads(pickle.dumps(model))
    assert isinstance(again, VisionModel) and again.card == CARD
    np.testing.assert_allclose(array(again(X)), array(model(X)), atol=1e-6)


def test_quantize_is_refused():
    with pytest.raises(ValueError, match=r"keras_vit\.export"):
        VisionModel(TINY).quantize("int8")


def golden():
    spec = dataclasses.replace(
        TINY, pool="map", representation_size=7, dropout=0.1, attention_dropout=0.1,
        stochastic_depth=0.1, classifier_activation="softmax",
    )  # fmt: skip
    return {"map": spec, "token": TINY, "gap": dataclasses.replace(TINY, pool="gap")}


def h5_keys(path):
    import h5py

    keys = []
    with h5py.File(path) as file:
        file.visititems(
            lambda name, item: keys.append(name) if isinstance(item, h5py.Dataset) else None
        )
    return sorted(keys)


@pytest.mark.parametrize("name", ["map", "token", "gap"])
def test_layer_and_file_names_are_the_documented_ones(name, tmp_path):
    """These names are API (quantisation, freezing) and a file format (weights.h5)."""
    model = VisionModel(golden()[name])
    model.save_weights(tmp_path / "m.weights.h5")
    found = {
        "layers": [layer.name for layer in model.layers],
        "weights": [v.path for v in model.weights],
        "endpoints": list(model.endpoints),
        "weights.h5": h5_keys(tmp_path / "m.weights.h5"),
    }
    assert found == json.loads(GOLDEN.read_text())[name]


# Precision and compilation


@pytest.mark.case("T08")
@pytest.mark.parametrize("dtype", ["mixed_float16", "mixed_bfloat16"])
def test_mixed_precision_trains(dtype):
    pool = "map" if dtype == "mixed_float16" else "token"
    spec = dataclasses.replace(SHALLOW, pool=pool, dropout=0.1, stochastic_depth=0.1)
    exact, model = random_model(spec), compiled(random_model(spec, dtype=dtype))
    assert all(v.dtype == "float32" for v in model.weights)
    outputs = model(X)
    assert keras.backend.standardize_dtype(outputs.dtype) == "float32"
    # bfloat16 has 8 bits: a few parts in a hundred after two blocks.
    np.testing.assert_allclose(array(outputs), array(exact(X)), atol=5e-2)
    history = model.fit(X, Y, verbose=0).history
    assert np.isfinite(history["loss"]).all()
    assert keras.backend.standardize_dtype(model.endpoints["attention_0"].dtype) == dtype[6:]


@pytest.mark.case("U04")
@pytest.mark.case("R04")
def test_forward_and_gradient_compile_and_another_size_is_refused():
    model = random_model(dataclasses.replace(SHALLOW, pool="map", dropout=0.1))
    model.compile("sgd", keras.losses.CategoricalCrossentropy(from_logits=True), jit_compile=True)
    before = array(model.weights[0])
    assert np.isfinite(model.fit(X, Y, verbose=0).history["loss"]).all()
    assert np.abs(array(model.weights[0]) - before).max() > 0
    np.testing.assert_allclose(model.predict(X, verbose=0), array(model(X)), atol=1e-5)
    for wrong in (X[:, :16], X[..., :1], X[0]):
        with pytest.raises(ValueError, match=r"takes images of shape \(batch, 24, 16, 3\), got"):
            model(wrong)
    with pytest.raises(ValueError, match="takes images of shape"):
        model.predict(X[:, :16], verbose=0)


@pytest.mark.case("U05")
@pytest.mark.case("R12")
@pytest.mark.tf_only
def test_the_graph_is_static_and_resizes_nothing():
    import tensorflow as tf

    model = VisionModel(dataclasses.replace(TINY, pool="map"))
    graph = (
        tf.function(lambda x: model(x, training=False))
        .get_concrete_function(tf.TensorSpec((1, 24, 16, 3)))
        .graph
    )
    kinds = {op.type for op in graph.get_operations()}
    assert "Conv2D" in kinds
    banned = {"ExtractImagePatches", "Einsum", "Shape", "Where"}
    assert not {k for k in kinds if k in banned or "Resize" in k}


@pytest.mark.case("R12")
def test_building_computes_nothing(monkeypatch):
    seen, convolve = [], keras.layers.Conv2D.call

    def call(self, x):
        seen.append(x)
        return convolve(self, x)

    monkeypatch.setattr(keras.layers.Conv2D, "call", call)
    model = VisionModel(TINY)
    assert model.output_shape == (None, 5)
    assert not any(_is_concrete(x) for x in seen)
    model(X)
    assert _is_concrete(seen[-1])


@pytest.mark.case("T07")
@pytest.mark.parametrize("pool", ["token", "map", "none"])
def test_every_weight_gets_a_gradient(pool):
    model = random_model(dataclasses.replace(SHALLOW, pool=pool, representation_size=7))
    before = {v.path: array(v).copy() for v in model.weights}
    model.compile(keras.optimizers.SGD(1.0), "mse")
    target = np.ones(model(X).shape, np.float32)
    model.fit(X, target, verbose=0, epochs=1)
    # A key bias shifts every score of a query alike: softmax leaves it without gradient.
    still = [p for p, v in before.items() if np.abs(array(_by_path(model, p)) - v).max() == 0]
    assert [p for p in still if not p.endswith("key/bias")] == []
    assert len(model.trainable_variables) == len(model.weights)


def _by_path(model, path):
    return next(v for v in model.weights if v.path == path)


@pytest.mark.case("T06")
def test_stochastic_depth_rates_rise_linearly_and_inference_is_untouched():
    spec = dataclasses.replace(TINY, num_layers=5, stochastic_depth=0.2)
    model = random_model(spec)
    blocks = [model.get_layer(f"encoderblock_{i}") for i in range(5)]
    rates = [b.stochastic_depth.rate if b.stochastic_depth else 0.0 for b in blocks]
    np.testing.assert_allclose(rates, [0, 0.05, 0.1, 0.15, 0.2])
    plain = random_model(dataclasses.replace(spec, stochastic_depth=0.0))
    np.testing.assert_array_equal(array(model(X)), array(plain(X)))
    assert np.abs(array(model(np.repeat(X, 8, 0), training=True))[:, 0].std()) > 0


@pytest.mark.case("L21")
def test_every_norm_has_the_original_epsilon():
    layers = VisionModel(dataclasses.replace(TINY, pool="map"))._flatten_layers()
    found = [layer.epsilon for layer in layers if hasattr(layer, "epsilon")]
    assert found == [1e-6] * 6


# Use inside other Keras code


@pytest.mark.case("E04")
def test_inside_a_sequential_it_trains_saves_and_reloads(tmp_path):
    trunk = random_model(dataclasses.replace(SHALLOW, num_classes=0))
    model = keras.Sequential([trunk, keras.layers.Dense(3)])
    model.compile("adam", "mse")
    before = array(trunk.weights[0]).copy()
    model.fit(X, np.ones((4, 3), np.float32), verbose=0)
    assert np.abs(array(trunk.weights[0]) - before).max() > 0
    model.save(tmp_path / "m.keras")
    again = keras.saving.load_model(tmp_path / "m.keras")
    assert isinstance(again.layers[0], VisionModel)
    np.testing.assert_allclose(array(again(X)), array(model(X)), atol=1e-6)


def test_fit_predict_and_evaluate_with_raw_arrays_and_one_image():
    model = compiled(random_model(SHALLOW))
    model.fit(X, Y, batch_size=3, verbose=0)
    assert model.predict(X[:1], verbose=0).shape == (1, 5)
    assert np.isfinite(model.evaluate(X, Y, verbose=0))


def test_a_sub_model_of_a_functional_model():
    inputs = keras.Input((24, 16, 3))
    model = keras.Model(inputs, keras.layers.Dense(2)(random_model().features("encoded")(inputs)))
    assert model(X).shape == (4, 7, 2)


# Endpoints


@pytest.mark.case("L27")
def test_tokens_vectors_maps_and_blocks():
    model = random_model()
    tokens = array(model.features("encoded")(X))
    assert tokens.shape == (4, 7, 12)
    np.testing.assert_allclose(array(model.features()(X)), tokens[:, 0], atol=1e-6)
    assert array(model.features("encoderblock_1")(X)).shape == (4, 7, 12)
    patches = array(model.features("encoded", as_map=True)(X))
    np.testing.assert_allclose(patches, tokens[:, 1:].reshape(4, 3, 2, 12), atol=1e-6)
    assert model.features("embedding", as_map=True)(X).shape == (4, 3, 2, 12)
    with pytest.raises(ValueError, match="holds no patch tokens"):
        model.features("pre_logits", as_map=True)
    with pytest.raises(ValueError, match="holds no patch tokens"):
        model.features("attention_0", as_map=True)


@pytest.mark.case("R07")
def test_attention_of_a_rectangular_image():
    weights = array(random_model().features("attention_1")(X))
    assert weights.shape == (4, 3, 7, 7)
    np.testing.assert_allclose(weights.sum(-1), 1.0, atol=1e-5)
    assert weights[:, :, 0, 1:].reshape(4, 3, 3, 2).shape[2:] == (3, 2)


@pytest.mark.parametrize("dtype", [None, "mixed_bfloat16"])
def test_every_endpoint_gives_a_saveable_model_even_when_frozen(tmp_path, dtype):
    model = random_model(dataclasses.replace(TINY, dropout=0.2), dtype=dtype)
    model.trainable = False
    expected = array(model(X))
    for name in list(model.endpoints):
        assert np.isfinite(array(ops.cast(model.features(name)(X), "float32"))).all(), name
    # Asking for attention changes nothing of the model itself.
    np.testing.assert_array_equal(array(model(X)), expected)
    model.save(tmp_path / "m.keras")
    np.testing.assert_array_equal(array(keras.saving.load_model(tmp_path / "m.keras")(X)), expected)
    model.features("attention_0").save(tmp_path / "a.keras")
    again = keras.saving.load_model(tmp_path / "a.keras")
    np.testing.assert_array_equal(array(again(X)), array(model.features("attention_0")(X)))


def test_an_unknown_endpoint_names_those_there_are():
    with pytest.raises(KeyError, match="encoderblock_1"):
        VisionModel(TINY).features("blocks")
    assert not [n for n in VisionModel(TINY).endpoints if n.startswith("into_")]
    assert len(VisionModel(TINY).endpoints) == len(list(VisionModel(TINY).endpoints)) == 9


# Heads, labels, warnings


def test_replace_head_keeps_the_trunk_and_what_is_frozen():
    model = random_model(dataclasses.replace(TINY, representation_size=7), card=CARD)
    model.get_layer("encoderblock_0").trainable = False
    new = model.replace_head(3, ("x", "y", "z"))
    assert new.output_shape == (None, 3)
    assert new.class_names == ("x", "y", "z")
    assert new.spec.representation_size is None
    assert not new.has_usable_head and not array(new(X)).any()
    np.testing.assert_array_equal(
        array(new.features("encoded")(X)), array(model.features("encoded")(X))
    )
    frozen = {v.path for v in new.non_trainable_weights}
    assert frozen == {v.path for v in model.non_trainable_weights} != set()
    assert model.replace_head(0).output_shape == (None, 12)


def test_predict_images_gives_labels_best_first():
    model = random_model(card=CARD)
    images = [RNG.integers(0, 256, (s, 30, 3), np.uint8) for s in (20, 40, 33)]
    found = model.predict_images(images, top=3, batch_size=2)
    assert [len(f) for f in found] == [3, 3, 3]
    for image, row in zip(images, found, strict=True):
        probabilities = model.probabilities(array(model.preprocessor(image[None])))[0]
        np.testing.assert_allclose(
            [p for _, _, p in row], np.sort(probabilities)[::-1][:3], atol=1e-5
        )
        assert [label for label, _, _ in row] == [CARD.class_names[i] for _, i, _ in row]
    assert model.predict_images(images[0], top=9)[0][0][1] == found[0][0][1]
    twice, once = model.predict_images(np.stack([images[0]] * 2)), model.predict_images(images[0])
    assert [i for _, i, _ in twice[1]] == [i for _, i, _ in once[0]]
    assert model.predict_images([]) == []


def test_a_model_without_a_usable_head_predicts_nothing():
    for model in (VisionModel(TINY), random_model(dataclasses.replace(TINY, num_classes=0))):
        assert not model.has_usable_head
        with pytest.raises(ValueError, match=r"no usable head.*fine-tune"):
            model.predict_images(np.zeros((24, 16, 3), np.uint8))
    with pytest.raises(ValueError, match="one prediction per token"):
        random_model(dataclasses.replace(TINY, pool="none")).predict_images(
            np.zeros((24, 16, 3), np.uint8)
        )


def test_class_names_without_a_card_or_of_another_length():
    assert VisionModel(TINY).class_names == tuple(f"class {i}" for i in range(5))
    other = dataclasses.replace(CARD, class_names=("only",))
    assert VisionModel(TINY, card=other).class_names[4] == "class 4"


@pytest.mark.parametrize("activation", [None, "softmax", "sigmoid"])
def test_probabilities_whatever_the_head_gives(activation):
    model = random_model(dataclasses.replace(TINY, classifier_activation=activation))
    found, logits = model.probabilities(X), array(model.features("logits")(X))
    expected = 1 / (1 + np.exp(-logits)) if activation == "sigmoid" else array(ops.softmax(logits))
    np.testing.assert_allclose(found, expected, atol=1e-6)


@pytest.mark.case("P02")
@pytest.mark.parametrize("how", ["call", "predict", "fit"])
def test_images_that_were_never_preprocessed_warn_once(how):
    model, raw = (
        compiled(random_model(SHALLOW)),
        RNG.uniform(0, 255, (4, 24, 16, 3)).astype(np.float32),
    )
    run = {
        "call": lambda: model(raw),
        "predict": lambda: model.predict(raw, verbose=0),
        "fit": lambda: model.fit(raw, Y, verbose=0),
    }[how]
    with pytest.warns(UserWarning, match=r"reaches 25\d, but this model expects .*preprocessor"):
        run()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run()
        random_model(SHALLOW)(X)


@pytest.mark.case("P02")
def test_preprocessor_then_model_is_one_thing():
    model = random_model()
    raw = RNG.integers(0, 256, (2, 31, 45, 3), np.uint8)
    inputs = keras.Input((31, 45, 3), dtype="uint8")
    whole = keras.Model(inputs, model(model.preprocessor(inputs)))
    np.testing.assert_allclose(array(whole(raw)), array(model(model.preprocessor(raw))), atol=1e-5)
