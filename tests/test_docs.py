"""What the documents show is run, and their tables are checked."""

import re
from pathlib import Path

import keras
import numpy as np
import pytest

import keras_vit

# Tests run beside the repository's documents, from a checkout and from the unpacked sdist alike.
ROOT = Path(__file__).parent.parent


def code_blocks(path: Path, language: str = "python") -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", path.read_text("utf-8"), re.M | re.S)


def test_the_pytorch_constructor_maps_to_a_spec():
    page = ROOT / "docs" / "from_pytorch.md"
    (block,) = code_blocks(page)
    space = {}
    exec(block, space)
    spec, model = space["spec"], space["model"]
    there = {
        "image_size": 256, "patch_size": 32, "num_classes": 1000, "dim": 1024, "depth": 6,
        "heads": 16, "mlp_dim": 2048, "dropout": 0.1, "emb_dropout": 0.1,
    }  # fmt: skip
    rows = dict(re.findall(r"^\| `(\w+)` \| `(\w+)` \|", page.read_text("utf-8"), re.M))
    assert set(there) <= set(rows)
    for name, value in there.items():
        mine = getattr(spec, rows[name])
        assert mine == ((value, value) if name in ("image_size", "patch_size") else value), name
    # Per block: two norms, four projections with biases, the MLP.
    d, m = 1024, 2048
    block_params = 4 * d + 4 * (d * d + d) + 2 * d * m + m + d
    expected = 32 * 32 * 3 * d + d + d + 65 * d + 6 * block_params + 2 * d + d * 1000 + 1000
    assert model.count_params() == expected
    assert [v.rate for v in model.layers if isinstance(v, keras.layers.Dropout)] == [0.1]


def test_embedding_dropout_is_a_rate_of_its_own():
    spec = keras_vit.ViTSpec(
        8, 16, 2, 1, 4, image_size=8, num_classes=3, dropout=0.0, embedding_dropout=0.5
    )
    model = keras_vit.build(spec)
    x = np.ones((4, 8, 8, 3), np.float32)
    kept = keras.ops.convert_to_numpy(model.features("encoderblock_0")(x, training=False))
    for _ in range(2):
        dropped = keras.ops.convert_to_numpy(model.features("encoderblock_0")(x, training=True))
        assert np.abs(dropped - kept).max() > 1e-3
    with pytest.raises(ValueError, match="embedding_dropout"):
        keras_vit.ViTSpec(8, 16, 2, 1, 4, image_size=8, embedding_dropout=1.0)


@pytest.mark.tf_only  # one of the examples exports
def test_the_readme_examples_run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    text = (ROOT / "README.md").read_text("utf-8")
    examples = text[text.index("## Five examples") : text.index("## What KerasCV")]
    blocks = re.findall(r"^```python\n(.*?)^```", examples, re.M | re.S)
    assert len(blocks) == 5
    space = {}
    exec(blocks[0], space)
    with np.load(Path(keras_vit.__file__).parent / "data" / "fashion_mnist" / "subset.npz") as file:
        labels = file["test_labels"][:2]
    top = space["model"].predict_images(space["images"].images[:2], top=1)
    assert [row[0][1] for row in top] == labels.tolist(), "the first example classifies wrongly"
    exec(blocks[1], space)
    assert tuple(space["features"].shape) == (8, 96)
    assert tuple(space["tokens"].shape) == (8, 7, 7, 96)
    assert tuple(space["attention"].shape) == (8, 3, 49, 49)
    np.testing.assert_allclose(
        keras.ops.convert_to_numpy(space["attention"]).sum(-1), 1.0, atol=1e-5
    )  # rows of a float32 softmax
    for block in blocks[2:]:
        exec(block, space)
    assert (tmp_path / "sandal_or_bag.tflite").is_file()
    assert space["report"].comparisons["serving_default"].agreement >= 0.95
    assert space["again"].spec.image_size == (56, 56)
    assert (tmp_path / "mine.npz").is_file() and (tmp_path / "mine.json").is_file()


def test_the_readme_table_of_models_is_the_generated_one():
    from keras_vit.zoo.table import replace_block

    text = (ROOT / "README.md").read_text("utf-8")
    assert replace_block(text) == text, "run python -m keras_vit.zoo.table --replace README.md"
