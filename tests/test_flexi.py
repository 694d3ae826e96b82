"""FlexiViT: one file at any patch size; and other patch sizes for checkpoints not made for them."""

import dataclasses
import importlib.util
import json
import warnings
from pathlib import Path

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.zoo.variants import VARIANTS

ORACLES = Path(__file__).parent / "oracles"
SIZE = {"hidden_size": 32, "mlp_dim": 64, "num_heads": 2, "num_layers": 2}
CARD = """
[[card]]
variant = "FlexiViT-S"
tag = "tiny"
file = "{file}"
num_classes = 10
image_size = [240, 240]
spec = {{ hidden_size = 32, mlp_dim = 64, num_heads = 2, num_layers = 2 }}
posemb_resize = "linear_antialias"
patch_resize = "pseudo_inverse"
"""


def flexi_arrays(patch: int = 32, grid: int = 7) -> dict[str, np.ndarray]:
    """A file as the authors write it: the tiny big_vision model with FlexiViT's kernel and positions."""
    with np.load(ORACLES / "bv_vit_tok.npz") as file:
        arrays = {key: file[key] for key in file.files if key.startswith("params/")}
    rng = np.random.default_rng(7)
    kernel = 0.05 * rng.normal(size=(patch, patch, 3, 32))
    positions = rng.normal(size=(1, grid * grid, 32))
    assert arrays["params/embedding/kernel"].shape == (8, 8, 3, 32)
    assert arrays["params/pos_embedding"].shape == (1, 16, 32)
    arrays["params/embedding/kernel"] = kernel.astype(np.float32)
    arrays["params/pos_embedding"] = positions.astype(np.float32)
    return arrays


@pytest.fixture
def zoo(tmp_path, monkeypatch):
    """`zoo(arrays)` publishes a file as `FlexiViT-S@tiny`, at a tiny size, and gives its path."""

    def publish(arrays):
        np.savez(tmp_path / "flexi.npz", **arrays)
        (tmp_path / "cards.toml").write_text(CARD.format(file="flexi.npz"))
        return tmp_path / "flexi.npz"

    monkeypatch.setenv("KERAS_VIT_CARDS", str(tmp_path))
    return publish


@pytest.fixture
def tiny_variant(monkeypatch):
    """FlexiViT-S at the size of the file, for paths that no card describes."""
    variant = VARIANTS["FlexiViT-S"]
    spec = dataclasses.replace(variant.spec, **SIZE)
    monkeypatch.setitem(VARIANTS, "FlexiViT-S", dataclasses.replace(variant, spec=spec))


def linear(old: int, new: int) -> np.ndarray:
    """(new, old) triangles around the centres of new cells, as wide as the larger kind of cell."""
    centre, width = (np.arange(new) + 0.5) * old / new, max(old / new, 1.0)
    weights = np.maximum(1 - np.abs(centre[:, None] - np.arange(old) - 0.5) / width, 0)
    return weights / weights.sum(1, keepdims=True)


def without_antialias(old: int, new: int) -> np.ndarray:
    """The columns are what one bright pixel becomes when a row of `old` is resized to `new`."""
    at = np.clip((np.arange(new) + 0.5) * old / new - 0.5, 0, old - 1)
    return np.stack([np.interp(at, np.arange(old), bright) for bright in np.eye(old)], axis=1)


def expected_kernel(kernel: np.ndarray, patch: int) -> np.ndarray:
    """Least squares over patches: k' with B^T k' = k, the shortest where there are many."""
    side = without_antialias(len(kernel), patch)
    flat = kernel.astype(np.float64).reshape(len(kernel) ** 2, -1)
    found = np.linalg.lstsq(np.kron(side, side).T, flat, rcond=1e-10)[0]
    return found.reshape(patch, patch, *kernel.shape[2:])


def expected_table(table: np.ndarray, grid: int) -> np.ndarray:
    side = int(table.shape[1] ** 0.5)
    cells, matrix = table[0].reshape(side, side, -1).astype(np.float64), linear(side, grid)
    cells = np.stack([matrix @ row for row in cells])  # columns of every row
    cells = np.stack([matrix @ cells[:, i] for i in range(grid)], axis=1)
    return cells.reshape(1, grid * grid, -1)


def weights(model):
    return {v.path: keras.ops.convert_to_numpy(v) for v in model.weights}


def check(model, arrays, patch):
    """Kernel, positions and outputs of a model against independent formulas."""
    grid = 240 // patch
    assert model.spec.patch_size == (patch, patch) and model.spec.grid == (grid, grid)
    found = weights(model)
    kernel = expected_kernel(arrays["params/embedding/kernel"], patch)
    # Float64 arithmetic of both, rounded to float32 once.
    np.testing.assert_allclose(found["embedding/kernel"], kernel, rtol=0, atol=1e-6)
    table = expected_table(arrays["params/pos_embedding"], grid)
    np.testing.assert_allclose(found["posembed_input/table"], table, rtol=0, atol=1e-6)
    for path, key in (("cls/token", "cls"), ("head/kernel", "head/kernel")):
        np.testing.assert_array_equal(found[path], arrays[f"params/{key}"])

    spec = importlib.util.spec_from_file_location("numpy_vit", ORACLES / "numpy_vit.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    x = np.random.default_rng(2).uniform(-1, 1, (1, 240, 240, 3)).astype(np.float32)
    params = {path: value.astype(np.float64) for path, value in found.items()}
    params |= {"embedding/kernel": kernel, "posembed_input/table": table}
    expected = module.vit(model.spec, params, x)["logits"]
    # A 240-pixel image through two float32 blocks; the rule of Google's ViTs for the positions moves
    # these logits by 1e-2.
    np.testing.assert_allclose(keras.ops.convert_to_numpy(model(x)), expected, rtol=0, atol=2e-4)


@pytest.mark.parametrize("patch", [16, 30, 8])
def test_one_file_at_any_patch_size(zoo, patch):
    arrays = flexi_arrays()
    zoo(arrays)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # nothing about accuracy: the weights are made for it
        model = keras_vit.load("FlexiViT-S@tiny", patch_size=None if patch == 16 else patch)
    check(model, arrays, patch)
    assert model.card.patch_resize == "pseudo_inverse"


def test_a_file_that_is_resized_already_is_taken_as_it_is(zoo):
    """As timm publishes them: patches of 16 and 15x15 positions."""
    arrays = flexi_arrays(16, 15)
    zoo(arrays)
    model = keras_vit.load("FlexiViT-S@tiny")
    found = weights(model)
    np.testing.assert_array_equal(found["embedding/kernel"], arrays["params/embedding/kernel"])
    np.testing.assert_array_equal(found["posembed_input/table"], arrays["params/pos_embedding"])
    check(keras_vit.load("FlexiViT-S@tiny", patch_size=24), arrays, 24)


def test_a_grid_of_one_cell_less_than_the_file_has_is_no_class_token(zoo):
    arrays = flexi_arrays()
    zoo(arrays)
    with pytest.warns(UserWarning, match="15x15 patches and is now used with 6x8"):
        model = keras_vit.load("FlexiViT-S@tiny", image_size=(288, 384), patch_size=48)
    cells = arrays["params/pos_embedding"][0].reshape(7, 7, 32).astype(np.float64)
    expected = np.einsum("ab,cd,bde->ace", linear(7, 6), linear(7, 8), cells)
    found = weights(model)["posembed_input/table"]
    np.testing.assert_allclose(found, expected.reshape(1, 48, 32), rtol=0, atol=1e-6)


def test_the_path_of_a_file_for_the_named_variant(zoo, tiny_variant):
    arrays = flexi_arrays()
    path = zoo(arrays)
    check(keras_vit.load("FlexiViT-S", weights=path), arrays, 16)
    check(keras_vit.load("FlexiViT-S", weights=path, patch_size=40), arrays, 40)


def test_a_lone_file_is_what_it_holds(zoo):
    model = keras_vit.load(zoo(flexi_arrays()))
    assert (model.spec.patch_size, model.spec.image_size) == ((32, 32), (224, 224))


def test_a_saved_model_is_as_flexible(zoo, tmp_path):
    arrays = flexi_arrays()
    zoo(arrays)
    keras_vit.save_weights_as(keras_vit.load("FlexiViT-S@tiny"), tmp_path / "mine.npz")
    about = json.loads((tmp_path / "mine.json").read_text())
    assert about["card"]["patch_resize"] == "pseudo_inverse"
    own = weights(keras_vit.load(tmp_path / "mine.npz"))
    again = keras_vit.load(tmp_path / "mine.npz", patch_size=24)
    arrays["params/embedding/kernel"] = own["embedding/kernel"]
    arrays["params/pos_embedding"] = own["posembed_input/table"]
    check(again, arrays, 24)


# A plain ViT, whose weights are made for one patch size.


@pytest.fixture
def plain_file(tmp_path, random_model):
    spec = keras_vit.ViTSpec(24, 40, 3, 2, 8, image_size=32, num_classes=10)
    model = random_model(spec)
    keras_vit.save_weights_as(model, tmp_path / "plain.npz")
    (tmp_path / "plain.json").unlink()
    return tmp_path / "plain.npz", weights(model)


def test_another_patch_size_of_a_plain_vit_warns(plain_file):
    path, own = plain_file
    with pytest.warns(
        UserWarning, match=r"patches of 8x8 pixels and is now used with 4x4: accuracy"
    ):
        model = keras_vit.load(path, patch_size=4)
    kernel = expected_kernel(own["embedding/kernel"], 4)
    np.testing.assert_allclose(weights(model)["embedding/kernel"], kernel, rtol=0, atol=1e-6)
    assert model.spec.grid == (8, 8)
    with pytest.warns(UserWarning, match="patches of 8x8"):  # although the grid is the same
        same = keras_vit.load(path, patch_size=16, image_size=64)
    np.testing.assert_array_equal(
        weights(same)["posembed_input/table"], own["posembed_input/table"]
    )


def test_twice_the_patch_on_twice_the_image_gives_the_same_tokens(plain_file):
    """What the pseudo-inverse is for: enlarged images, cut into as many patches, embed as before."""
    path, _ = plain_file
    with pytest.warns(UserWarning, match="patches of 8x8"):
        large = keras_vit.load(path, patch_size=16, image_size=64)
    small, x = keras_vit.load(path), np.random.default_rng(3).uniform(-1, 1, (2, 32, 32, 3))
    patches = x.reshape(2, 4, 8, 4, 8, 3)
    side = without_antialias(8, 16)
    enlarged = np.einsum("ab,cd,nibjde->niajce", side, side, patches).reshape(2, 64, 64, 3)
    found, expected = (
        keras.ops.convert_to_numpy(model.features("embedding")(images.astype(np.float32)))
        for model, images in ((large, enlarged), (small, x))
    )
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)  # float32 sums of 768 products


def test_a_kernel_of_another_patch_size_is_not_resized_unasked(plain_file, monkeypatch):
    path, _ = plain_file
    variant = VARIANTS["ViT-S/16"]
    spec = keras_vit.ViTSpec(24, 40, 3, 2, 16, image_size=64, num_classes=10)
    monkeypatch.setitem(VARIANTS, "ViT-S/16", dataclasses.replace(variant, spec=spec))
    with pytest.raises(
        ValueError, match=r"another network.*patch_size \(8, 8\) instead of \(16, 16\)"
    ):
        keras_vit.load("ViT-S/16", weights=path)
