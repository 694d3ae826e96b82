"""Files written by earlier versions keep loading, with the same outputs, on both backends.

tests/golden/files/ holds a folder per version. Each release adds its own with
`python tests/test_golden_files.py`, run once from an installation of that release; existing folders
are never written again.
"""

import sys
from pathlib import Path

import keras
import numpy as np
import pytest
from keras import ops

import keras_vit

FILES = Path(__file__).parent / "golden" / "files"
VERSIONS = sorted(folder.name for folder in FILES.iterdir())
# The network in its files: every kind of layer of a plain ViT with a class token.
SPEC = {
    "hidden_size": 6,
    "mlp_dim": 10,
    "num_heads": 3,
    "num_layers": 2,
    "patch_size": (4, 2),
    "image_size": (8, 6),
    "in_channels": 1,
    "num_classes": 4,
    "representation_size": 5,
}
# Files and backends differ in the order of float32 sums only.
ATOL = 1e-5


def expected(version: str) -> tuple[np.ndarray, np.ndarray]:
    with np.load(FILES / version / "expected.npz") as file:
        return file["images"], file["logits"]


@pytest.mark.case("S05")
@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("read", [keras_vit.load, keras.saving.load_model])
def test_keras_files_load_as_they_are(version, read):
    images, logits = expected(version)
    model = read(str(FILES / version / "model.keras"))
    assert isinstance(model, keras_vit.VisionModel)
    assert model.spec.image_size == (8, 6)
    np.testing.assert_allclose(ops.convert_to_numpy(model(images)), logits, atol=ATOL)


@pytest.mark.case("S05")
@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", ["model.weights.h5", "model.npz"])
def test_weights_load_into_the_same_network(version, name):
    images, logits = expected(version)
    spec = keras_vit.ViTSpec(**SPEC)
    path = FILES / version / name
    if name.endswith(".h5"):
        model = keras_vit.VisionModel(spec)
        model.load_weights(path)
    else:
        model = keras_vit.load(spec, weights=str(path))
    np.testing.assert_allclose(ops.convert_to_numpy(model(images)), logits, atol=ATOL)


def write() -> None:
    """Writes the files of this version."""
    folder = FILES / keras_vit.__version__
    folder.mkdir(parents=True)
    model = keras_vit.VisionModel(keras_vit.ViTSpec(**SPEC))
    rng = np.random.default_rng(0)
    for variable in model.variables:
        variable.assign(rng.normal(0, 0.5, variable.shape).astype(np.float32))
    images = rng.uniform(-1, 1, (3, 8, 6, 1)).astype(np.float32)
    np.savez(folder / "expected.npz", images=images, logits=ops.convert_to_numpy(model(images)))
    model.save(folder / "model.keras")
    model.save_weights(folder / "model.weights.h5")
    keras_vit.save_weights_as(model, folder / "model.npz")


if __name__ == "__main__":
    sys.exit(write())
