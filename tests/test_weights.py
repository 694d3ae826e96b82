"""A model that is built around the weights of a file: types, and what failures leave behind."""

import dataclasses

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.spec import ViTSpec
from keras_vit.zoo.formats import google_npz, read_weights, values_of
from keras_vit.zoo.weights import model_of

TINY = ViTSpec(24, 40, 3, 2, 8, image_size=32, num_classes=10)


def official(seed=0):
    """Official keys and random float32 arrays of TINY."""
    rng = np.random.default_rng(seed)
    shapes = {path: value.shape for path, value in values_of(keras_vit.VisionModel(TINY)).items()}
    arrays = {p: rng.standard_normal(shape).astype(np.float32) for p, shape in shapes.items()}
    return google_npz.to_arrays(arrays, TINY), arrays


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "mixed_bfloat16", "float32"])
def test_variables_take_the_type_of_the_policy_and_the_values_of_the_file(dtype):
    arrays, values = official()
    model = model_of(read_weights(arrays), TINY, dtype=dtype)
    for variable in model.weights:
        stored = keras.DTypePolicy(dtype).variable_dtype
        assert keras.backend.standardize_dtype(variable.dtype) == stored
        found = keras.ops.convert_to_numpy(keras.ops.cast(variable.value, "float32"))
        # Half a unit in the last of the 8 digits of bfloat16, or of the 11 of float16.
        tolerance = {"bfloat16": 2**-8, "float16": 2**-11}.get(stored, 0.0)
        np.testing.assert_allclose(found, values[variable.path], rtol=tolerance, atol=1e-7)


@pytest.mark.parametrize("error", [ValueError("cut short"), KeyboardInterrupt(), TypeError("odd")])
def test_a_reader_that_fails_leaves_keras_able_to_build_models(error):
    arrays, values = official()
    weights = read_weights(arrays)

    def fail():
        raise error

    broken = dataclasses.replace(weights.entries["encoder_norm/scale"], read=fail)
    entries = {**weights.entries, "encoder_norm/scale": broken}
    with pytest.raises(type(error)):
        model_of(dataclasses.replace(weights, entries=entries), TINY)
    model = model_of(weights, TINY)
    np.testing.assert_array_equal(values_of(model)["head/kernel"], values["head/kernel"])
