"""Every family as a Keras model: trained, saved, reloaded, taken apart, used on images."""

import dataclasses
import json
import os
import pickle
import subprocess
import sys
from pathlib import Path

import keras
import numpy as np
import pytest
from keras import ops

from keras_vit.card import Card
from keras_vit.layers import StdConv2D
from keras_vit.model import VisionModel
from keras_vit.spec import HybridSpec, MixerSpec, ResNetBody, ResNetSpec, ViTSpec, spec_from_dict
from keras_vit.zoo.variants import BIT_NUMERICS

GOLDEN = Path(__file__).parent / "golden"
# Sizes off the grid of 32 where a family takes them: 45 -> 23 -> 12 -> 6, 38 -> 19 -> 10 -> 5.
SPECS = {
    "hybrid": HybridSpec(
        12, 20, 3, 1, (4, 5), resnet=ResNetBody((1,), 0.5), image_size=(45, 38), num_classes=5
    ),
    "bit": ResNetSpec(
        ResNetBody((1, 1), 0.5, **BIT_NUMERICS), image_size=(45, 38), num_classes=5
    ),
    "mixer": MixerSpec(
        12, 9, 20, 2, (9, 19), image_size=(45, 38), num_classes=5, stochastic_depth=0.1
    ),
    # What DeiT and DINOv2 add to a ViT.
    "relative": ViTSpec(
        12, 20, 3, 1, (9, 19), image_size=(45, 38), num_classes=5, activation="gelu",
        layer_scale=0.5, ffn="swiglu", num_registers=2, distilled=True,
    ),
}  # fmt: skip
MAPS = {
    "hybrid": {"root": (12, 10, 32), "block1": (12, 10, 128), "embedding": (3, 2, 12),
               "encoded": (3, 2, 12)},
    "bit": {"root": (12, 10, 32), "block1": (12, 10, 128), "block2": (6, 5, 256),
            "encoded": (6, 5, 256)},
    "mixer": {"embedding": (5, 2, 12), "mixerblock_1": (5, 2, 12), "encoded": (5, 2, 12)},
    "relative": {"embedding": (5, 2, 12), "encoderblock_0": (5, 2, 12), "encoded": (5, 2, 12)},
}  # fmt: skip
# A layer with weights inside the network, frozen in the tests.
FROZEN = {
    "hybrid": "block1_unit1",
    "bit": "block2_unit1",
    "mixer": "mixerblock_0",
    "relative": "registers",
}
CARD = Card("Test", "random", num_classes=5, class_names=("a", "b", "c", "d", "e"))
X = np.random.default_rng(3).uniform(-1, 1, (4, 45, 38, 3)).astype(np.float32)
Y = keras.utils.to_categorical([0, 3, 4, 1], 5)

pytestmark = pytest.mark.parametrize("family", SPECS)


def array(x):
    return ops.convert_to_numpy(ops.cast(x, "float32"))


@pytest.fixture(scope="module")
def models(official):
    """family -> a model with random weights that no test changes."""
    return {name: official.random(spec, card=CARD) for name, spec in SPECS.items()}


@pytest.fixture(scope="module")
def trained(official, tmp_path_factory):
    """family -> (model, folder): trained in bfloat16 with a frozen layer, and saved."""
    made = {}

    def train(family):
        if family not in made:
            folder = tmp_path_factory.mktemp(family)
            model = official.random(SPECS[family], card=CARD, dtype="mixed_bfloat16")
            model.get_layer(FROZEN[family]).trainable = False
            frozen = [array(v) for v in model.get_layer(FROZEN[family]).weights]
            model.compile(
                keras.optimizers.Adam(3e-3), keras.losses.CategoricalCrossentropy(from_logits=True)
            )
            losses = model.fit(X, Y, epochs=4, verbose=0).history["loss"]
            for before, after in zip(frozen, model.get_layer(FROZEN[family]).weights, strict=True):
                np.testing.assert_array_equal(before, array(after))
            model.save(folder / "m.keras")
            made[family] = (model, folder, losses)
        return made[family]

    return train


def test_summary_counts_and_layers_are_kerass_or_ours(models, family, capsys):
    model = models[family]
    model.summary()
    assert FROZEN[family] in capsys.readouterr().out
    assert model.count_params() == model.spec.num_params
    assert model.output_shape == (None, 5)
    for layer in model._flatten_layers():
        assert not isinstance(layer, keras.layers.Lambda)
        assert type(layer).__module__.split(".")[0] in ("keras", "keras_vit")


def test_half_precision_training_learns_and_keeps_float32_weights(trained, family):
    model, _, losses = trained(family)
    assert losses[-1] < 0.9 * losses[0]
    assert all(v.dtype == "float32" for v in model.weights)
    assert keras.backend.standardize_dtype(model.output.dtype) == "float32"
    assert model.endpoints["pre_logits"].dtype == "bfloat16"


FRESH = """
import json, sys
import keras, keras_vit
import numpy as np
x, found = np.load(sys.argv[1]), {}
for path in sys.argv[2:]:
    m = keras.saving.load_model(path)
    found[path] = dict(
        y=m.predict(x, verbose=0).tolist(), kind=type(m).__name__, policy=m.policy.name,
        trainable=[v.path for v in m.trainable_variables], names=m.class_names,
        spec=m.spec.to_dict(), steps=int(m.optimizer.iterations),
    )
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def reloaded(trained, tmp_path_factory):
    """What a fresh process finds in the files of all families, by path."""
    x = tmp_path_factory.mktemp("x") / "x.npy"
    np.save(x, X)
    paths = [str(trained(name)[1] / "m.keras") for name in SPECS]
    done = subprocess.run(
        [sys.executable, "-c", FRESH, str(x), *paths],
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.strip().splitlines()[-1])


def test_a_trained_model_reloads_in_a_fresh_process(reloaded, trained, family):
    model, folder, _ = trained(family)
    found = reloaded[str(folder / "m.keras")]
    np.testing.assert_allclose(found["y"], model.predict(X, verbose=0), rtol=0, atol=1e-5)
    assert found["kind"] == "VisionModel" and found["policy"] == "mixed_bfloat16"
    assert spec_from_dict(found["spec"]) == model.spec
    assert found["trainable"] == [v.path for v in model.trainable_variables]
    assert not [p for p in found["trainable"] if p.startswith(f"{FROZEN[family]}/")]
    assert found["names"] == list(CARD.class_names) and found["steps"] == 4


def test_half_precision_gives_about_the_same(official, models, family):
    exact = models[family]
    expected = official.run(exact, X)
    for dtype in ("mixed_bfloat16", "mixed_float16"):
        half = official.random(SPECS[family], dtype=dtype)
        # bfloat16 has 8 bits: some parts in a hundred of logits of about 1, after up to 11 layers.
        found = official.run(half, X)
        assert 0 < np.abs(found - expected).max() < (0.1 if "bfloat" in dtype else 0.02)


def test_weights_files_keep_every_weight(official, models, family, tmp_path):
    model = models[family]
    model.save_weights(tmp_path / "m.weights.h5")
    again = official.built(model.spec)
    again.load_weights(tmp_path / "m.weights.h5")
    assert [v.path for v in again.weights] == [v.path for v in model.weights]
    for new, old in zip(again.weights, model.weights, strict=True):
        np.testing.assert_array_equal(array(new), array(old))


def test_the_config_is_plain_and_enough(models, family):
    model = models[family]
    config = json.loads(json.dumps(model.get_config()))
    assert spec_from_dict(config["spec"]) == model.spec
    assert config["frozen"] == [] and config["card"]["class_names"] == list(CARD.class_names)


@pytest.mark.tf_only  # slow to build twice on JAX, and the same code
def test_pickling_and_rebuilding(official, models, family):
    model = models[family]
    again = pickle.loads(pickle.dumps(model))
    assert isinstance(again, VisionModel) and again.card == CARD and again.spec == model.spec
    np.testing.assert_allclose(official.run(again, X), official.run(model, X), atol=1e-6)
    assert type(model).from_config(model.get_config()).get_config() == model.get_config()
    headless = dataclasses.replace(SPECS[family], num_classes=0)
    assert headless.num_params == model.replace_head(0).count_params()


def test_every_endpoint_can_be_had(official, models, family):
    model = models[family]
    names = list(model.endpoints)
    values = official.run(model, X, [model.endpoints[n] for n in names])
    for name, value in zip(names, values, strict=True):
        assert np.isfinite(array(value)).all() and np.abs(array(value)).max() > 1e-3, name
        assert value.shape[1:] == tuple(model.endpoints[name].shape[1:]), name
    found = dict(zip(names, values, strict=True))
    features = official.run(model.features(), X)
    np.testing.assert_allclose(features, found["pre_logits"], atol=1e-6)
    assert features.shape == (4, model.spec.feature_size)


def test_feature_maps_have_the_shape_of_the_image(official, models, family):
    model = models[family]
    for endpoint, shape in MAPS[family].items():
        assert model.features(endpoint, as_map=True).output_shape == (None, *shape), endpoint
    name = list(MAPS[family])[-1]
    flat, maps = (
        official.run(model.features(name, as_map=m), X).reshape(4, -1, MAPS[family][name][-1])
        for m in (False, True)
    )
    np.testing.assert_array_equal(maps, flat[:, model.spec.num_prefix_tokens :])
    with pytest.raises(ValueError, match="holds no patch tokens"):
        model.features("pre_logits", as_map=True)


def test_a_new_head_keeps_the_trunk_and_what_is_frozen(official, models, family):
    model = official.random(SPECS[family], card=CARD)
    model.get_layer(FROZEN[family]).trainable = False
    new = model.replace_head(3, ("x", "y", "z"))
    assert new.output_shape == (None, 3) and new.class_names == ("x", "y", "z")
    assert not new.has_usable_head and model.has_usable_head
    assert not official.run(new, X).any()
    np.testing.assert_array_equal(
        official.run(new.features(), X), official.run(models[family].features(), X)
    )
    frozen = {v.path for v in new.non_trainable_weights}
    assert frozen and all(path.startswith(f"{FROZEN[family]}/") for path in frozen)


@pytest.mark.tf_only  # the same code for every family; tests/test_model.py runs it on JAX
def test_images_are_classified(models, family):
    model = models[family]
    rng = np.random.default_rng(0)
    images = [rng.integers(0, 256, (size, 30, 3), np.uint8) for size in (20, 60)]
    found = model.predict_images(images, top=2)
    for image, row in zip(images, found, strict=True):
        p = model.probabilities(array(model.preprocessor(image[None])))[0]
        np.testing.assert_allclose([q for _, _, q in row], np.sort(p)[::-1][:2], atol=1e-5)
        assert [label for label, _, _ in row] == [CARD.class_names[i] for _, i, _ in row]


def test_another_size_is_refused_in_one_sentence(models, family):
    with pytest.raises(ValueError, match=r"takes images of shape \(batch, 45, 38, 3\), got"):
        models[family](X[:, :44])


def test_every_weight_gets_a_gradient(official, models, family):
    model = official.random(SPECS[family])
    before = {v.path: array(v) for v in model.weights}
    model.compile(keras.optimizers.SGD(1.0), "mse")
    model.fit(X, np.ones((4, 5), np.float32), verbose=0)
    still = [v.path for v in model.weights if not np.abs(array(v) - before[v.path]).max() > 0]
    # A key bias shifts every score of a query alike: softmax leaves it without gradient.
    assert [p for p in still if not p.endswith("key/bias")] == []
    assert len(model.trainable_variables) == len(model.weights)


@pytest.mark.tf_only
def test_the_graph_is_static_and_resizes_nothing(models, family):
    import tensorflow as tf

    model = models[family]
    graph = (
        tf.function(lambda x: model(x, training=False))
        .get_concrete_function(tf.TensorSpec((1, 45, 38, 3)))
        .graph
    )
    kinds = {op.type for op in graph.get_operations()}
    assert "Conv2D" in kinds
    banned = {"ExtractImagePatches", "Einsum", "Shape", "Where"}
    assert not {k for k in kinds if k in banned or "Resize" in k}
    ranks = [t.shape.rank for op in graph.get_operations() for t in op.outputs]
    assert max(rank for rank in ranks if rank is not None) <= 4


def test_layer_and_file_names_are_the_documented_ones(models, family, tmp_path):
    """These names are API (quantisation, freezing) and a file format (weights.h5)."""
    import h5py

    model, keys = models[family], []
    model.save_weights(tmp_path / "m.weights.h5")
    with h5py.File(tmp_path / "m.weights.h5") as file:
        file.visititems(lambda n, item: keys.append(n) if isinstance(item, h5py.Dataset) else None)
    found = {
        "layers": [layer.name for layer in model.layers],
        "weights": [v.path for v in model.weights],
        "endpoints": list(model.endpoints),
        "weights.h5": sorted(keys),
    }
    assert found == json.loads((GOLDEN / f"{family}_layers.json").read_text())


def test_the_standardised_copy_gives_the_same(official, models, family):
    model = models[family]
    convolutions = [x for x in model._flatten_layers() if isinstance(x, StdConv2D)]
    assert model.standardizes_kernels == bool(convolutions)
    if not convolutions:
        return
    copy = model.standardized()
    assert not copy.standardizes_kernels and copy.card == CARD
    np.testing.assert_allclose(official.run(copy, X), official.run(model, X), rtol=0, atol=1e-5)
