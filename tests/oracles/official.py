"""The fixtures that the official code wrote: arrays, configuration, and parameters.

Parameters are stored, or made by a recipe from their names, shapes and a seed.
"""

import dataclasses
import json
import zlib
from pathlib import Path
from typing import Any

import numpy as np

FOLDER = Path(__file__).parent


@dataclasses.dataclass(frozen=True)
class Fixture:
    """One fixture file: its arrays without the parameters, and its configuration."""

    arrays: dict[str, np.ndarray]
    config: dict[str, Any]
    stored: dict[str, np.ndarray]

    def params(self, model) -> dict[str, np.ndarray]:
        """Official key -> array: the stored ones, or those of the recipe for a model's keys."""
        if self.config["params_stored"]:
            return self.stored
        return recipe_params(model, self.config["param_seed"])

    def runs(self, output: str = "output") -> list[tuple[np.ndarray, np.ndarray]]:
        """(input, output) of every input of the fixture."""
        found = [(self.arrays["input"], self.arrays[output])]
        while f"input_{len(found)}" in self.arrays:
            number = len(found)
            found.append((self.arrays[f"input_{number}"], self.arrays[f"{output}_{number}"]))
        return found


def read(name: str) -> Fixture:
    with np.load(FOLDER / f"{name}.npz", allow_pickle=False) as file:
        arrays = {key: file[key] for key in file.files}
    config = json.loads(str(arrays.pop("config")))
    stored = {k.removeprefix("params/"): v for k, v in arrays.items() if k.startswith("params/")}
    arrays = {k: v for k, v in arrays.items() if not k.startswith("params/")}
    return Fixture(arrays, config, stored)


def built(spec, **options):
    """A model whose weights are zeros: compiling random initialisers is most of the time on JAX."""
    import keras

    from keras_vit.model import VisionModel

    with keras.StatelessScope():  # Keras gives what is made in it its first value at the end
        model = VisionModel(spec, **options)
        for variable in model.weights:
            variable._initializer = lambda shape, dtype=None: np.zeros(shape, dtype)
    return model


def random(spec, seed=0, **options):
    """A model with random weights, none of them at its usual first value."""
    model, rng = built(spec, **options), np.random.default_rng(seed)
    for variable in model.weights:
        values = rng.normal(size=variable.shape)
        if variable.path.endswith("kernel"):
            values /= np.sqrt(np.prod(variable.shape[:-1]))
        else:
            values = 0.1 * values + variable.path.endswith("scale")
        variable.assign(values)
    return model


def loaded(fixture: Fixture, spec):
    """The model of a spec with the parameters of a fixture."""
    from keras_vit.zoo.weights import load_weights

    model = built(spec)
    load_weights(model, fixture.params(model))
    return model


def run(model, x, tensors=None):
    """The model's output, or the values of several tensors of its graph, as arrays.

    Compiled as one on JAX, where every operation alone would be compiled too.
    """
    import keras

    network = model if tensors is None else keras.Model(model.inputs[0], list(tensors))
    if keras.backend.backend() == "jax":
        found = network.predict(x, verbose=0)
    else:
        found = network(x)
    if tensors is None:
        return keras.ops.convert_to_numpy(found)
    return [keras.ops.convert_to_numpy(value) for value in found]


def recipe_params(model, seed: int) -> dict[str, np.ndarray]:
    """The recipe's values for every weight of a model, under its official key."""
    from keras_vit.zoo.formats import values_of
    from keras_vit.zoo.formats.google_npz import to_arrays

    shapes = {key: value.shape for key, value in to_arrays(values_of(model), model.spec).items()}
    return {key: recipe_parameter(key, shape, seed) for key, shape in shapes.items()}


def recipe_parameter(key: str, shape: tuple[int, ...], seed: int) -> np.ndarray:
    """float32 values that depend on a parameter's official name, shape and a seed alone."""
    generator = np.random.RandomState((zlib.crc32(key.encode()) + seed) % 2**32)
    n = generator.standard_normal(shape)
    last = key.split("/")[-1]
    if last == "kernel":
        is_projection = key.endswith(("query/kernel", "key/kernel", "value/kernel"))
        fan_in = shape[0] if is_projection and len(shape) == 3 else np.prod(shape[:-1])
        n /= np.sqrt(fan_in)
    elif last in ("scale", "gamma"):
        n = 1 + 0.1 * n
    elif last in ("bias", "beta"):
        n *= 0.1
    elif last in ("pos_embedding", "cls", "probe"):
        n *= 0.2
    else:
        raise ValueError(f"the recipe has no rule for {key}")
    return n.astype(np.float32)
