"""LiteRT files: what is in them, that they do what the Keras model does, and how they are refused."""

import importlib
import stat
import sys
import types

import numpy as np
import pytest

from keras_vit import export
from keras_vit.export import flatbuffer
from keras_vit.export.size import LIMIT, check_size, estimated_size
from keras_vit.export.verify import BOUNDS, model_inputs, synthetic_images
from keras_vit.spec import ViTSpec

pytestmark = pytest.mark.tf_only

BLOCKS = 2
SPEC = ViTSpec(
    hidden_size=96,
    mlp_dim=192,
    num_heads=3,
    num_layers=BLOCKS,
    patch_size=4,
    image_size=28,
    in_channels=1,
    num_classes=10,
)
SMALL = ViTSpec(
    hidden_size=24,
    mlp_dim=40,
    num_heads=3,
    num_layers=1,
    patch_size=(4, 7),
    image_size=(20, 28),
    in_channels=3,
    num_classes=7,
)
SHAPE_OPS = {"SHAPE", "PACK", "GATHER", "REDUCE_PROD", "STRIDED_SLICE"}
MODES = (None, "float16", "dynamic_int8")


@pytest.fixture(scope="module")
def model(random_model):
    return random_model(SPEC)


@pytest.fixture(scope="module")
def images(model):
    """40 images as the model takes them, 24 of them unseen by the export's own check."""
    return model_inputs(model, synthetic_images((28, 28, 1), 40, seed=1))[0]


@pytest.fixture(scope="module")
def files(model, tmp_path_factory):
    """mode -> (path, report) of the three modes at batch 1."""
    folder = tmp_path_factory.mktemp("litert")
    paths = {mode: folder / f"{mode}.tflite" for mode in MODES}
    return {m: (p, export.litert(model, p, quantize=m)) for m, p in paths.items()}


@pytest.fixture(scope="module")
def resizable(model, tmp_path_factory):
    path = tmp_path_factory.mktemp("resizable") / "any.tflite"
    return path, export.litert(model, path, batch=None)


@pytest.mark.case("X01")
def test_float32_equals_keras(model, files, images):
    found = export.open_artifact(files[None][0]).predict(images)
    np.testing.assert_allclose(found, model.probabilities(images), atol=1e-4, rtol=0)


@pytest.mark.case("Q10")
@pytest.mark.parametrize("mode", ["float16", "dynamic_int8"])
def test_smaller_modes_stay_close(model, files, images, mode):
    expected = model.probabilities(images)
    artifact = export.open_artifact(files[mode][0])
    found = artifact.predict(images)  # float in, float out, and no calibration images were needed
    relative = np.sqrt(((found - expected) ** 2).mean()) / expected.std()
    assert 0 < relative <= BOUNDS[mode][1]
    assert (found.argmax(1) == expected.argmax(1)).mean() >= 0.95
    assert found.dtype == np.float32


@pytest.mark.case("X02")
@pytest.mark.case("X03")
@pytest.mark.parametrize("mode", MODES)
def test_only_builtin_operations_each_as_often_as_the_network_has_it(files, mode):
    operations = files[mode][1].operations
    assert not [name for name in operations if name.startswith("Flex") or "EINSUM" in name.upper()]
    assert operations["GELU"] == BLOCKS
    assert operations["FULLY_CONNECTED"] == 6 * BLOCKS + 2  # the patches' and the head
    assert operations["BATCH_MATMUL"] == 2 * BLOCKS


@pytest.mark.case("X02")
def test_the_kind_of_gelu_survives(random_model, files, tmp_path):
    from ai_edge_litert import schema_py_generated as schema
    from ai_edge_litert.tools import flatbuffer_utils

    def approximate(path):
        graph = flatbuffer_utils.read_model(str(path)).subgraphs[0]
        kinds = [
            op.builtinOptions.approximate
            for op in graph.operators
            if isinstance(op.builtinOptions, schema.GeluOptionsT)
        ]
        assert kinds
        return set(kinds)

    exact = ViTSpec(**{**vars(SMALL), "activation": "gelu"})
    export.litert(random_model(exact), tmp_path / "exact.tflite")
    assert approximate(files[None][0]) == {True}
    assert approximate(tmp_path / "exact.tflite") == {False}


@pytest.mark.case("X04")
@pytest.mark.case("E02")
@pytest.mark.parametrize("mode", MODES)
def test_batch_one_is_delegated_whole(files, mode):
    path, report = files[mode]
    assert report.signatures["serving_default"]["inputs"] == {"images": [[1, 28, 28, 1], "float32"]}
    # Two slices take the class token out, before the last attention and beside it; nothing else may
    # touch shapes.
    assert {n: c for n, c in report.operations.items() if n in SHAPE_OPS} == {"STRIDED_SLICE": 2}
    assert report.partitions == 1 and report.undelegated == {}
    assert export.open_artifact(path).input_shape == (1, 28, 28, 1)


@pytest.mark.case("X04")
@pytest.mark.case("E02")
def test_batch_none_can_be_resized(model, resizable, images):
    path, report = resizable
    artifact = export.open_artifact(path)
    assert artifact.input_shape == (None, 28, 28, 1)
    for batch in (1, 4):
        found = artifact.predict(images[:batch])
        np.testing.assert_allclose(found, model.probabilities(images[:batch]), atol=1e-5, rtol=0)
    assert report.operations["SHAPE"] > 0 and report.partitions > 2
    assert any("resized" in note for note in report.notes)


def test_weights_are_stored_in_the_type_of_the_mode(files):
    kernels = sum(np.prod(v) for v in _kernel_shapes())
    assert set(files[None][1].weights) <= {"FLOAT32", "INT32"}
    assert files["float16"][1].weights["FLOAT16"] == 2 * kernels
    assert files["dynamic_int8"][1].weights["INT8"] == kernels
    assert files["dynamic_int8"][1].weights["FLOAT32"] < kernels


def _kernel_shapes():
    d, m = SPEC.hidden_size, SPEC.mlp_dim
    block = [(d, d)] * 4 + [(d, m), (m, d)]
    return [(4, 4, 1, d), *(block * BLOCKS), (d, SPEC.num_classes)]


@pytest.mark.parametrize("mode", MODES)
def test_estimated_size_is_within_two_percent(files, mode):
    path, report = files[mode]
    assert report.size == path.stat().st_size
    assert estimated_size(SPEC, mode or "float32") == pytest.approx(report.size, rel=0.02)


@pytest.mark.case("X06")
def test_too_large_a_model_is_refused_before_any_graph_is_built(tmp_path):
    huge = ViTSpec(  # 603 million parameters
        hidden_size=1280, mlp_dim=5120, num_heads=16, num_layers=30, patch_size=14, num_classes=8000
    )
    stand_in = types.SimpleNamespace(spec=huge)  # has no graph, so building on it would fail
    with pytest.raises(ValueError, match=r"2\.4\d GB as float32.*float16.*dynamic_int8"):
        export.litert(stand_in, tmp_path / "huge.tflite")
    assert 2 * huge.num_params < estimated_size(huge, "float16") < LIMIT
    check_size(huge, "float16")
    check_size(huge, "dynamic_int8")
    giant = ViTSpec(hidden_size=8192, mlp_dim=32768, num_heads=64, num_layers=48, patch_size=14)
    with pytest.raises(ValueError, match="export a SavedModel instead"):
        check_size(giant, "dynamic_int8")


@pytest.mark.case("X06")
@pytest.mark.parametrize("mode", ["float16", "dynamic_int8"])
def test_smaller_modes_pass_through_a_float32_file_over_the_limit(
    random_model, tmp_path, monkeypatch, mode
):
    # What a model of 2.5 GB does, with a limit of 1 kB: its weights stand after the flatbuffer.
    module = importlib.import_module("keras_vit.export.litert")
    convert, flags = module.convert, []
    monkeypatch.setattr(module, "LARGE", 1000)
    monkeypatch.setattr(
        module, "convert", lambda *a: flags.append(_weights_after(c := convert(*a))) or c
    )
    model = random_model(SMALL)
    report = export.litert(model, tmp_path / "large.tflite", quantize=mode)
    assert flags == [True]
    assert report.weights["FLOAT16" if mode == "float16" else "INT8"] > 0
    assert report.comparison.relative_error <= BOUNDS[mode][1]


def _weights_after(content):
    from ai_edge_litert import schema_py_generated as schema

    model = schema.Model.GetRootAs(content, 0)
    return any(model.Buffers(i).Offset() > 1 for i in range(model.BuffersLength()))


def test_attention_pooling_and_half_precision_models(random_model, tmp_path):
    # The pooling query becomes a constant, which as int8 no kernel multiplies with floats.
    spec = ViTSpec(**{**vars(SMALL), "pool": "map", "representation_size": 16})
    model = random_model(spec, dtype="mixed_bfloat16")
    report = export.litert(model, tmp_path / "map.tflite", quantize="dynamic_int8", output="logits")
    assert report.comparison.output == "logits"
    assert report.source["dtype"] == "mixed_bfloat16"
    assert any("float32 copy of the mixed_bfloat16 model" in note for note in report.notes)
    x = model_inputs(model, None)[0]
    found = export.open_artifact(tmp_path / "map.tflite").predict(x)
    np.testing.assert_allclose(found.sum(1), 1.0, atol=1e-6)
    # bfloat16 and int8 both round: only the class is compared.
    assert (found.argmax(1) == model.probabilities(x).argmax(1)).mean() >= 0.8


def test_fixed_batch_runs_any_number_of_images(random_model, tmp_path):
    model = random_model(ViTSpec(**{**vars(SMALL), "num_classes": 0}))
    report = export.litert(model, tmp_path / "three.tflite", batch=3, output="features")
    artifact = export.open_artifact(tmp_path / "three.tflite")
    assert artifact.input_shape == (3, 20, 28, 3)
    x = model_inputs(model, None)[0][:5]
    np.testing.assert_allclose(artifact.run(x)["features"], np.asarray(model(x)), atol=1e-5, rtol=0)
    assert report.comparison.agreement is None
    with pytest.raises(ValueError, match="no probabilities"):
        artifact.predict(x)
    with pytest.raises(ValueError, match="has no head"):
        export.litert(model, tmp_path / "head.tflite")


@pytest.mark.case("K05")
@pytest.mark.parametrize("hidden", ["ai_edge_litert.interpreter", "tensorflow"])
def test_either_runtime_is_enough(model, files, images, monkeypatch, hidden):
    monkeypatch.setitem(sys.modules, hidden, None)
    artifact = export.open_artifact(files[None][0])
    found = artifact.predict(images[:2])
    monkeypatch.undo()
    np.testing.assert_allclose(found, model.probabilities(images[:2]), atol=1e-5, rtol=0)


@pytest.mark.case("K05")
def test_no_runtime_says_what_to_install(files, monkeypatch):
    for name in ("ai_edge_litert.interpreter", "tensorflow"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(RuntimeError, match="pip install ai-edge-litert"):
        export.open_artifact(files[None][0])


@pytest.mark.case("V03")
def test_report_has_size_and_latency_of_float_and_quantised(files):
    path, report = files["dynamic_int8"]
    again = export.Report.read(path)
    assert again == report
    # The file of the float32 mode has metadata on top.
    assert report.baseline["size"] < files[None][1].size < report.baseline["size"] + 1000
    assert report.baseline["size"] > 2.5 * report.size
    for latency in (report.latency, export.Latency(**report.baseline["latency"])):
        assert 0 < latency.low_ms <= latency.median_ms <= latency.high_ms
        assert latency.threads == 1 and latency.runs >= 3
    assert "MB (float32: " in report.to_text() and " ms; float32: " not in files[None][1].to_text()
    assert any("XNNPACK" in note for note in report.notes)


def test_files_can_be_read_by_others(files):
    for path, _ in files.values():
        for file in (path, path.with_name(path.name + ".json")):
            assert stat.S_IMODE(file.stat().st_mode) == 0o644
    left = {p.name for p in files[None][0].parent.iterdir()}
    assert left == {f"{m}.tflite{end}" for m in MODES for end in ("", ".json")}


@pytest.mark.case("Q09")
def test_wrong_graph_is_an_error_and_leaves_nothing(random_model, tmp_path, monkeypatch):
    module = importlib.import_module("keras_vit.export.litert")
    convert = module.convert

    def other_weights(outputs, *args):
        for variable in outputs.weights:
            if "encoderblock_0/mlp" in variable.path:
                variable.assign(-variable)
        return convert(outputs, *args)

    monkeypatch.setattr(module, "convert", other_weights)
    with pytest.raises(
        export.ExportError, match=r"largest error of probabilities.*expected at most"
    ):
        export.litert(random_model(SMALL), tmp_path / "new" / "wrong.tflite")
    assert not list(tmp_path.iterdir())


def test_operations_left_to_plain_kernels_are_found(files, resizable):
    partitions, left = flatbuffer.delegation(resizable[0])
    assert partitions > 2
    assert left["SHAPE"] == resizable[1].operations["SHAPE"]
    assert "FULLY_CONNECTED" not in left and "GELU" not in left
