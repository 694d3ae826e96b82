"""Exports of hybrids, BiT, Mixer and ViT relatives: what is in the files, and what they give."""

import numpy as np
import pytest

from keras_vit import export
from keras_vit.export.graph import stored_model
from keras_vit.export.size import estimated_size
from keras_vit.export.verify import BOUNDS, model_inputs, synthetic_images
from keras_vit.layers import StdConv2D
from keras_vit.spec import HybridSpec, MixerSpec, ResNetBody, ResNetSpec, ViTSpec
from keras_vit.zoo.variants import BIT_NUMERICS

pytestmark = pytest.mark.tf_only

BIT = ResNetSpec(ResNetBody((1, 1), 0.5, **BIT_NUMERICS), image_size=(45, 32), num_classes=7)
SPECS = {
    "hybrid": HybridSpec(
        24, 40, 3, 1, 1, resnet=ResNetBody((1, 1), 0.5), image_size=(45, 32), num_classes=7
    ),
    "bit": BIT,
    "mixer": MixerSpec(24, 16, 40, 2, (8, 7), image_size=(24, 28), num_classes=7),
    # Everything that DeiT and DINOv2 add to a ViT.
    "vit": ViTSpec(
        24, 16, 3, 1, 7, image_size=(28, 21), num_classes=7, activation="gelu",
        layer_scale=1e-5, ffn="swiglu", num_registers=3, distilled=True,
    ),
}  # fmt: skip
MODES = (None, "float16", "dynamic_int8")
SHAPE_OPS = {"SHAPE", "PACK", "GATHER", "REDUCE_PROD"}
# Group and layer norms of each.
NORMS = {"hybrid": 9 + 3, "bit": 7, "mixer": 5, "vit": 3}


@pytest.fixture(scope="module", params=SPECS)
def family(request):
    return request.param


@pytest.fixture(scope="module")
def model(family, random_model):
    return random_model(SPECS[family])


@pytest.fixture(scope="module")
def images(model):
    shape = (*model.spec.image_size, 3)
    return model_inputs(model, synthetic_images(shape, 24, seed=1))[0]


@pytest.fixture(scope="module")
def files(family, model, tmp_path_factory):
    """mode -> (path, report)."""
    folder = tmp_path_factory.mktemp(family)
    paths = {mode: folder / f"{mode}.tflite" for mode in MODES}
    if not model.standardizes_kernels:  # float16 files are tested with plain ViTs
        del paths["float16"]
    return {m: (p, export.litert(model, p, quantize=m)) for m, p in paths.items()}


@pytest.mark.case("X08")
def test_files_do_what_the_network_does(model, files, images):
    expected = model.probabilities(images)
    for mode, (path, _) in files.items():
        found = export.open_artifact(path).predict(images)
        if mode is None:
            np.testing.assert_allclose(found, expected, atol=1e-5, rtol=0)
            continue
        relative = np.sqrt(((found - expected) ** 2).mean()) / expected.std()
        assert 0 < relative <= BOUNDS[mode][1], mode


@pytest.mark.case("X08")
def test_nothing_is_computed_that_could_be_stored(family, model, files):
    counts = files[None][1].operations
    # Two means for each norm; one over the pixels where a network averages them before its head.
    assert counts["MEAN"] == 2 * NORMS[family] + (family in ("bit", "mixer"))
    assert counts["RSQRT"] == NORMS[family]
    assert counts.get("SQRT", 0) == counts.get("DIV", 0) == 0
    convolutions = [x for x in model._flatten_layers() if isinstance(x, StdConv2D)]
    # Patches of one place are a convolution, all others a matrix product.
    assert counts.get("CONV_2D", 0) == len(convolutions) + (family == "hybrid")
    assert _with_stored_kernel(files[None][0], "CONV_2D") == counts.get("CONV_2D", 0)


def test_phones_can_run_every_mode(family, files):
    for path, report in files.values():
        assert not [n for n in report.operations if n.startswith("Flex") or n in SHAPE_OPS]
        assert report.partitions == 1 and report.undelegated == {}
        assert _largest_rank(path) <= 4


def test_sizes_are_predicted(model, files):
    for mode, (_, report) in files.items():
        predicted = estimated_size(model.spec, mode or "float32")
        # Names, operators and metadata are 30 to 40 kB of these small files.
        assert abs(predicted - report.size) < 0.01 * report.size + 8_500, mode


def test_a_saved_model_holds_the_standardised_kernels(family, model, tmp_path):
    report = model.export(tmp_path / "saved")
    assert all(c.largest_error <= c.bound[1] for c in report.comparisons.values())
    fixed = any("standardised" in note for note in report.notes)
    assert fixed == (family in ("hybrid", "bit")) == model.standardizes_kernels
    # The norms' alone: kernels are constants.
    assert report.operations["Rsqrt"] == NORMS[family]
    assert "Sqrt" not in report.operations


def test_the_stored_copy_standardises_nothing_and_gives_the_same(random_model):
    model = random_model(BIT)
    x = model_inputs(model, None)[0][:2]
    copy, note = stored_model(model)
    assert note and not copy.standardizes_kernels
    assert copy.spec.body.weight_standardization is None
    np.testing.assert_allclose(np.asarray(copy(x)), np.asarray(model(x)), rtol=0, atol=1e-5)
    assert stored_model(copy) == (copy, None)
    for one, other in zip(model.weights, copy.weights, strict=True):
        assert one.path == other.path
        changed = np.abs(one.numpy() - other.numpy()).max() > 0
        assert changed == ("conv" in one.path), one.path


@pytest.mark.parametrize("mode", MODES)
def test_the_other_border_of_the_pool_converts(random_model, tmp_path, mode):
    # A number that is nearly -inf is stored beside the weights, and must not reach int8 or float16.
    body = ResNetBody((1,), 0.5, **{**BIT_NUMERICS, "pool_border": "-inf"})
    model = random_model(ResNetSpec(body, image_size=(32, 32), num_classes=7))
    report = export.litert(model, tmp_path / "bit.tflite", quantize=mode)
    assert report.operations["PADV2"] == 1 and report.partitions == 2
    assert report.comparison.relative_error <= BOUNDS["float16"][1] * (5 if mode else 1)


def test_a_half_precision_hybrid_is_exported_from_float32(random_model, tmp_path):
    model = random_model(SPECS["hybrid"], dtype="mixed_bfloat16")
    report = export.litert(model, tmp_path / "half.tflite")
    assert any("float32 copy of the mixed_bfloat16" in note for note in report.notes)
    assert any("standardised" in note for note in report.notes)
    assert report.source["spec"]["resnet"]["weight_standardization"] == "std"


def _flatbuffer(path):
    from ai_edge_litert.tools import flatbuffer_utils

    return flatbuffer_utils.read_model(str(path))


def _largest_rank(path):
    graphs = _flatbuffer(path).subgraphs
    return max(len(t.shape) for g in graphs for t in g.tensors if t.shape is not None)


def _with_stored_kernel(path, name):
    """How many operations of a kind have a kernel that is stored in the file."""
    from ai_edge_litert.tools import flatbuffer_utils

    content = _flatbuffer(path)
    (graph,) = content.subgraphs
    kernels = [
        graph.tensors[op.inputs[1]]
        for op in graph.operators
        if flatbuffer_utils.opcode_to_name(content, op.opcodeIndex) == name
    ]
    return sum(content.buffers[k.buffer].data is not None for k in kernels)
