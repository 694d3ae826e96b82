"""Which block suffers from int8, and what is left in float32 for a budget."""

import importlib

import numpy as np
import pytest

from keras_vit.export import calibrate, graph, sensitivity
from keras_vit.export.paths import operation_table
from keras_vit.export.quantize import stream_operations
from keras_vit.export.verify import model_inputs, synthetic_images
from keras_vit.spec import ViTSpec

pytestmark = pytest.mark.tf_only

SPEC = ViTSpec(
    hidden_size=16, mlp_dim=24, num_heads=2, num_layers=3, patch_size=4, image_size=(12, 12),
    in_channels=3, num_classes=5, pool="gap",
)  # fmt: skip
BAD = "encoderblock_1"


@pytest.fixture(scope="module")
def planted(random_model):
    """(file, ranges, images, labels) of a model with one bad block: of the hidden units of its MLP
    one is 300 times as large as the others, and counts for a 300th."""
    model = random_model(SPEC)
    for variable in model.weights:
        values = np.array(variable)
        if variable.path.endswith(f"{BAD}/mlp/dense1/bias"):
            values[0] += 300.0
        if variable.path.endswith(f"{BAD}/mlp/dense2/kernel"):
            values[0] = 0.0
        variable.assign(values)
    images = model_inputs(model, synthetic_images((12, 12, 3), 48, seed=5))[0]
    convert = importlib.import_module("keras_vit.export.litert").convert
    file = convert(graph.named_outputs(model), "logits", 1, 10_000)
    labels = np.asarray(model(images)).argmax(1)
    return file, calibrate.activation_ranges(file, images), images, labels


@pytest.mark.case("Q05")
def test_the_planted_block_is_the_top_row(planted):
    file, ranges, images, _ = planted
    seen = []
    rows = sensitivity.rank_blocks(
        file, "int8", ranges, images, progress=lambda *numbers: seen.append(numbers)
    )
    assert rows[0].block == BAD
    assert rows[0].error > 3 * rows[1].error
    assert [row.error for row in rows] == sorted((row.error for row in rows), reverse=True)
    assert {row.block for row in rows} >= {"embedding", "encoderblock_0", "encoder_norm", "head"}
    assert seen[-1] == (len(rows), len(rows))


def test_blocks_stay_in_float_until_the_budget_is_kept(planted):
    file, ranges, images, labels = planted
    options = {"in_float": stream_operations(operation_table(file))}
    choice = sensitivity.choose_blocks(file, "int8", ranges, images, labels, 0.03, **options)
    assert choice.steps[0][1] > 0.03 >= choice.drop
    assert choice.blocks[0] == BAD and len(choice.blocks) == len(choice.steps) - 1
    # A budget that is kept anyway needs no ranking.
    easy = sensitivity.choose_blocks(file, "int8", ranges, images, labels, 0.9, **options)
    assert easy.blocks == easy.ranking == () and len(easy.steps) == 1


@pytest.mark.parametrize(
    ("labels", "budget", "message"),
    [
        (None, 0.01, "needs a label for each of 48 images.*got none"),
        (np.zeros(47, int), 0.01, r"got int64 of shape \(47,\)"),
        (np.zeros(48), 0.01, r"got float64 of shape \(48,\)"),
        (np.zeros(48, int), 1.0, "must be a share of images"),
        (np.zeros(48, int), -0.1, "must be a share of images"),
    ],
)
def test_budgets_without_sense(labels, budget, message):
    with pytest.raises(ValueError, match=message):
        sensitivity.check_labels(labels, 48, budget)


def test_outputs_of_any_number_of_images(planted):
    file, _, images, labels = planted
    np.testing.assert_array_equal(sensitivity.outputs_of(file, images[:7]).argmax(1), labels[:7])
