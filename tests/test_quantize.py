"""The modes of LiteRT files: what each stores and computes in, by layer name, and what survives."""

import importlib

import numpy as np
import pytest

from keras_vit import export
from keras_vit.export import calibrate, graph, modes, quantize
from keras_vit.export.paths import blocks, operation_table, select
from keras_vit.export.sensitivity import outputs_of
from keras_vit.export.size import check_size, estimated_size
from keras_vit.export.verify import model_inputs, synthetic_images
from keras_vit.spec import HybridSpec, MixerSpec, ResNetBody, ResNetSpec, ViTSpec
from keras_vit.zoo.variants import BIT_NUMERICS

pytestmark = pytest.mark.tf_only

VIT = ViTSpec(
    hidden_size=32, mlp_dim=64, num_heads=2, num_layers=2, patch_size=4, image_size=(16, 12),
    in_channels=3, num_classes=7,
)  # fmt: skip
SPECS = {
    "vit": VIT,
    "hybrid": HybridSpec(
        32, 64, 2, 1, 1, resnet=ResNetBody((1,), 0.5), image_size=(32, 32), num_classes=7
    ),
    "bit": ResNetSpec(ResNetBody((1, 1), 0.5, **BIT_NUMERICS), image_size=(32, 32), num_classes=7),
    "mixer": MixerSpec(32, 16, 64, 1, (8, 8), image_size=(24, 24), num_classes=7),
}
MODES = ("dynamic_int8", "int4_weights", "int8", "int16x8")
# A ResNet has no dense layers but its head.
PAIRS = [(f, m) for f in SPECS for m in MODES if (f, m) != ("bit", "int4_weights")]
# Root mean square of the error over the spread of the logits, about twice the largest of four families:
# 0.025, 0.23, 0.048, 0.023. Random kernels have no room for 4 bits; trained ones lose 0.05.
LIMITS = {"dynamic_int8": 0.05, "int4_weights": 0.4, "int8": 0.1, "int16x8": 0.05}


def converted(model):
    convert = importlib.import_module("keras_vit.export.litert").convert
    stored, _ = graph.stored_model(model)
    return convert(graph.named_outputs(stored), "logits", 1, 10_000)


def relative(found, expected):
    return float(np.sqrt(((found - expected) ** 2).mean()) / expected.std())


class Case:
    """One family: its float32 file, its images, and its files in other modes, made once."""

    def __init__(self, model):
        self.model = model
        shape = (*model.spec.image_size, model.spec.in_channels)
        self.images = model_inputs(model, synthetic_images(shape, 32, seed=2))[0]
        self.file = converted(model)
        self.table = operation_table(self.file)
        self.ranges = calibrate.activation_ranges(self.file, self.images)
        self.expected = outputs_of(self.file, self.images)
        self._made = {}

    def made(self, mode, *float_layers):
        key = (mode, float_layers)
        if key not in self._made:
            keep = quantize.chosen_operations(self.file, mode, float_layers, strict=False)
            self._made[key] = quantize.quantized(self.file, mode, ranges=self.ranges, in_float=keep)
        return self._made[key]


@pytest.fixture(scope="module")
def cases(random_model):
    made = {}

    def case(family):
        if family not in made:
            made[family] = Case(random_model(SPECS[family]))
        return made[family]

    return case


def stored_types(content, layer):
    """Types of the kernels of a layer's operations, by name."""
    from ai_edge_litert.tools import flatbuffer_utils

    file, net = quantize._read(content)
    found = set()
    for op in operation_table(content):
        if op.layer == layer and op.kind in ("FULLY_CONNECTED", "CONV_2D"):
            kernel = net.tensors[net.operators[op.index].inputs[1]]
            assert file.buffers[kernel.buffer].data is not None
            found.add(flatbuffer_utils.type_to_name(kernel.type))
    assert found, layer
    return found


@pytest.mark.parametrize("family", SPECS)
def test_every_kernel_has_the_path_of_its_layer(cases, family):
    case = cases(family)
    kernels = {op.layer for op in case.table if op.kind in ("FULLY_CONNECTED", "CONV_2D")}
    # Layers of the network with a kernel, by their documented names.
    expected = {v.path.rsplit("/", 1)[0] for v in case.model.weights if v.path.endswith("kernel")}
    assert {path.removeprefix(f"{case.model.name}/") for path in expected} == kernels
    layers = {op.layer for op in case.table if op.layer}
    scales = {v.path.rsplit("/", 1)[0] for v in case.model.weights if v.path.endswith("scale")}
    assert scales <= layers
    assert all(op.layer for op in case.table), [op for op in case.table if not op.layer]


def test_residual_additions_have_a_name(cases):
    counts = {
        family: sum(op.layer.endswith("/residual") for op in cases(family).table)
        for family in ("vit", "bit", "mixer")
    }
    assert counts == {"vit": 4, "bit": 2, "mixer": 2}


def test_patterns_choose_layers(cases):
    table = cases("vit").table
    assert {op.layer for op in select(table, ["head"])} == {"head"}
    norms = {op.layer for op in select(table, ["encoderblock_.*/norm.*"])}
    assert norms == {f"encoderblock_{i}/norm{j}" for i in (0, 1) for j in (1, 2)}
    inside = select(table, ["encoderblock_1"])
    assert inside and all(op.layer.startswith("encoderblock_1/") for op in inside)
    assert "encoderblock_1" in blocks(table) and blocks(table)[-1] == "head"
    assert select(table, []) == ()


@pytest.mark.parametrize(
    ("patterns", "message"),
    [
        (["encoderblok_1"], r"'encoderblok_1' matches no layer; near names are .*encoderblock_1"),
        (["head", "norm"], "'norm' matches no layer"),  # the whole name, or the name of a parent
        (["("], "is no regular expression"),
        ("head", "must be a list of patterns"),
    ],
)
def test_patterns_that_choose_nothing_are_errors(cases, patterns, message):
    with pytest.raises(ValueError, match=message):
        select(cases("vit").table, patterns)


def test_block_one_is_not_block_eleven():
    names = [f"m_1/encoderblock_{i}_1/norm1_1/Mean" for i in (1, 10, 11)]
    from keras_vit.export.paths import _layer

    assert [_layer("MEAN", [n]) for n in names] == [f"encoderblock_{i}/norm1" for i in (1, 10, 11)]


@pytest.mark.parametrize(("family", "mode"), PAIRS)
@pytest.mark.case("Q07")
def test_files_of_every_mode_run_and_stay_close(cases, family, mode):
    case = cases(family)
    found = outputs_of(case.made(mode), case.images)
    assert found.dtype == np.float32
    assert 0 < relative(found, case.expected) < LIMITS[mode]
    assert len(case.made(mode)) < len(case.file)


@pytest.mark.case("Q07")
def test_int16_is_much_closer_than_int8(cases):
    case = cases("vit")
    naive = quantize.quantized(case.file, "int8", ranges=case.ranges)
    error8 = relative(outputs_of(naive, case.images), case.expected)
    # What is left is the rounding of the kernels, which have 8 bits in both.
    assert relative(outputs_of(case.made("int16x8"), case.images), case.expected) < error8 / 3


@pytest.mark.case("Q04")
def test_float_layers_keep_their_layers_only(cases):
    case = cases("vit")
    plain, kept = case.made("int8"), case.made("int8", "head", "encoderblock_0/mlp")
    for layer in ("head", "encoderblock_0/mlp/dense1", "encoderblock_0/mlp/dense2"):
        assert stored_types(plain, layer) == {"INT8"}
        assert stored_types(kept, layer) == {"FLOAT32"}
    assert stored_types(kept, "encoderblock_1/mlp/dense1") == {"INT8"}
    assert stored_types(kept, "embedding") == {"FLOAT32"}
    more, before = (quantize.by_layer(quantize.left_in_float(file)) for file in (kept, plain))
    assert set(more) - set(before) == {"head", "encoderblock_0/mlp/dense1", "encoderblock_0/mlp"}
    # Its scales of channels are gone with its int8 kernel.
    layer = "encoderblock_0/mlp/dense2"
    assert (before[layer], more[layer]) == ({"MUL": 1}, {"FULLY_CONNECTED": 1})


@pytest.mark.case("Q01")
def test_int8_leaves_the_stream_and_attention_of_transformers_in_float(cases):
    left = quantize.by_layer(quantize.left_in_float(cases("vit").made("int8")))
    written = {f"encoderblock_{i}/{end}" for i in (0, 1) for end in ("attention/out", "mlp/dense2")}
    assert {layer: left.pop(layer) for layer in written} == {layer: {"MUL": 1} for layer in written}
    attention = {f"encoderblock_{i}/attention" for i in (0, 1)}
    expected = {"BATCH_MATMUL": 2, "SOFTMAX": 1}
    assert {layer: left.pop(layer) for layer in attention} == {
        layer: expected for layer in attention
    }
    assert set(left) == {
        "cls", "embedding", "posembed_input", "patch_tokens", "encoder_norm",
        *(f"encoderblock_{i}/{part}" for i in (0, 1) for part in ("norm1", "norm2", "residual")),
    }  # fmt: skip
    assert quantize.left_in_float(cases("bit").made("int8")) == ()
    hybrid = quantize.by_layer(quantize.left_in_float(cases("hybrid").made("int8")))
    assert not [layer for layer in hybrid if layer.startswith(("block", "conv", "gn", "pool"))]


def test_scales_of_channels_change_no_integer(cases):
    case = cases("vit")
    keep = quantize.chosen_operations(case.file, "int8", (), strict=False)
    plain = quantize.quantized(
        case.file, "int8", ranges=calibrate.Ranges(case.ranges), in_float=keep
    )

    def integers(content):
        file, net = quantize._read(content)
        found = {}
        for tensor in net.tensors:
            data = file.buffers[tensor.buffer].data
            if tensor.type in (2, 9) and data is not None:  # INT32, INT8
                found[tensor.name] = bytes(data)
        return found

    assert integers(plain) == integers(case.made("int8")) != {}
    kinds = [op.kind for op in operation_table(case.made("int8"))]
    before = [op.kind for op in operation_table(plain)]
    assert len(kinds) == len(before) + 4 and kinds.count("MUL") == before.count("MUL") + 4
    errors = [
        relative(outputs_of(content, case.images), case.expected)
        for content in (plain, case.made("int8"))
    ]
    assert errors[1] < errors[0]


@pytest.mark.case("Q01")
def test_a_large_channel_costs_the_others_nothing(random_model):
    # A massive activation that a block writes: one channel of its MLP's result times 50.
    model = random_model(ViTSpec(**{**vars(VIT), "pool": "gap"}), seed=1)
    for variable in model.weights:
        values = np.array(variable)
        if variable.path.endswith("encoderblock_0/mlp/dense2/kernel"):
            values[:, 7] *= 50.0
        elif variable.path.endswith(("encoderblock_1/norm1/scale", "encoder_norm/scale")):
            values[7] /= 50.0
        variable.assign(values)
    case = Case(model)
    keep = quantize.chosen_operations(case.file, "int8", (), strict=False)
    plain = quantize.quantized(
        case.file, "int8", ranges=calibrate.Ranges(case.ranges), in_float=keep
    )
    naive = quantize.quantized(case.file, "int8", ranges=case.ranges)
    errors = [
        relative(outputs_of(content, case.images), case.expected)
        for content in (naive, plain, case.made("int8"))
    ]
    assert errors[0] > errors[1] > 1.5 * errors[2] and errors[2] < 0.1, errors


@pytest.mark.case("Q06")
@pytest.mark.case("Q11")
@pytest.mark.parametrize("family", SPECS)
def test_a_whole_file_has_integers_only(cases, family):
    from ai_edge_litert.interpreter import Interpreter

    case = cases(family)
    whole = quantize.quantized(case.file, "int8", ranges=case.ranges, whole=True)
    assert quantize.left_in_float(whole) == ()
    runtime = Interpreter(model_content=whole)
    (entry,), (result,) = runtime.get_input_details(), runtime.get_output_details()
    assert entry["dtype"] == result["dtype"] == np.int8
    scale, _ = entry["quantization"]
    assert scale == pytest.approx(2 / 255, rel=0.02)


def test_four_bits_are_half_of_eight(cases):
    case = cases("vit")
    assert stored_types(case.made("int4_weights"), "encoderblock_0/mlp/dense1") == {"INT4"}
    assert stored_types(case.made("int4_weights"), "head") == {"INT8"}
    assert stored_types(case.made("int4_weights"), "embedding") == {"INT8"}


def plant_outlier(model, channel=7):
    """A massive activation, as trained transformers have them: one channel of one token is 50 times
    the spread of the residual stream. Every other token computes what it did before."""
    stream = np.asarray(model.features("encoded")(_some_images(model)))
    table = next(v for v in model.weights if v.path.endswith("posembed_input/table"))
    values = np.array(table)
    values[0, 0, channel] = 50.0 * max(10.0, stream.std())
    table.assign(values)


def _some_images(model):
    shape = (*model.spec.image_size, model.spec.in_channels)
    return model_inputs(model, synthetic_images(shape, 16, seed=9))[0]


@pytest.mark.case("Q01")
def test_a_planted_outlier_breaks_naive_int8_and_not_ours(random_model):
    model = random_model(ViTSpec(**{**vars(VIT), "pool": "gap"}))
    plant_outlier(model)
    case = Case(model)
    classes = case.expected.argmax(1)
    naive = quantize.quantized(case.file, "int8", ranges=case.ranges)
    lost = outputs_of(naive, case.images)
    kept = outputs_of(case.made("int8"), case.images)
    assert relative(lost, case.expected) > 0.5
    assert relative(kept, case.expected) < 0.1
    assert (lost.argmax(1) == classes).mean() < 0.7 < 0.8 < (kept.argmax(1) == classes).mean()


@pytest.mark.full
@pytest.mark.case("Q01")
def test_a_planted_outlier_in_a_trained_model():
    import keras_vit
    from keras_vit.data.sources import fashion_mnist

    model = keras_vit.load("ViT-Mini/4@fashion_mnist")
    data = fashion_mnist("subset_test")
    images = model_inputs(model, np.asarray(data.images))[0]
    before = (model.predict(images, verbose=0).argmax(1) == data.labels).mean()
    plant_outlier(model)
    file = converted(model)
    ranges = calibrate.activation_ranges(file, images[:128])

    def accuracy(content):
        return (outputs_of(content, images).argmax(1) == data.labels).mean()

    planted = accuracy(file)
    assert planted > before - 0.02  # the function is nearly the same
    keep = quantize.chosen_operations(file, "int8", (), strict=False)
    assert accuracy(quantize.quantized(file, "int8", ranges=ranges)) < planted - 0.4
    ours = quantize.quantized(file, "int8", ranges=ranges, in_float=keep)
    assert accuracy(ours) > planted - 0.02


@pytest.mark.parametrize(("family", "mode"), PAIRS)
def test_sizes_are_computed_before_converting(cases, family, mode):
    case = cases(family)
    predicted = estimated_size(case.model.spec, mode)
    # Names and operators are a third of these small files and nothing of large ones.
    assert abs(predicted - len(case.made(mode))) < 0.01 * len(case.made(mode)) + 6_000


@pytest.mark.case("X06")
def test_too_large_a_model_is_told_which_modes_fit():
    huge = ViTSpec(hidden_size=2048, mlp_dim=8192, num_heads=16, num_layers=50, patch_size=16)
    assert 2**32 < 2 * huge.num_params < 2 * 2**32  # float16 does not fit either
    with pytest.raises(ValueError, match=r"as float16.*use quantize='int4_weights' \(1\.\d\d GB\)"):
        check_size(huge, "float16")
    check_size(huge, "int4_weights")
    # Kernels of dense layers: 4 bits each and 2 bytes for every 32.
    assert estimated_size(huge, "int4_weights") == pytest.approx(
        huge.num_params * (0.5 + 2 / 32), rel=0.02
    )
    with pytest.raises(ValueError, match="as int8"):
        check_size(huge, "int8")


@pytest.fixture(scope="module")
def strict_file(cases, tmp_path_factory):
    case = cases("vit")
    path = tmp_path_factory.mktemp("strict") / "strict.tflite"
    report = export.litert(case.model, path, quantize="int8", strict=True, images=case.images)
    return case, path, report


@pytest.mark.case("Q02")
@pytest.mark.case("Q14")
def test_a_strict_export_states_its_input_and_runs_on_floats(strict_file):
    case, path, report = strict_file
    entry = report.quantization["input"]
    assert entry["dtype"] == "int8" and entry["scale"] == pytest.approx(2 / 255, rel=0.02)
    assert report.signatures["serving_default"]["inputs"] == {"images": [[1, 16, 12, 3], "int8"]}
    assert report.quantization["float"] == {} and report.quantization["calibration_images"] == 32
    assert any(f"round(x / {entry['scale']:.8g})" in note for note in report.notes)
    assert export.Report.read(path) == report
    found = export.open_artifact(path).predict(case.images)
    assert found.dtype == np.float32
    expected = case.model.probabilities(case.images)
    assert (found.argmax(1) == expected.argmax(1)).mean() >= 0.9
    np.testing.assert_allclose(found.sum(1), 1.0, atol=0.05)  # steps of 1 / 256
    assert report.comparison.agreement >= 0.9


@pytest.mark.case("Q06")
def test_strict_fails_where_something_stays_in_float(cases, tmp_path, monkeypatch):
    # As if there were no int8 form of SOFTMAX.
    case, real = cases("vit"), quantize.quantized
    softmax = [op for op in case.table if op.kind == "SOFTMAX"]
    monkeypatch.setattr(modes, "quantized", lambda *a, **k: real(*a, **{**k, "in_float": softmax}))
    with pytest.raises(
        export.ExportError, match=r"2 operations remain in float32 \(SOFTMAX in enc"
    ):
        export.litert(
            case.model, tmp_path / "a.tflite", quantize="int8", strict=True, images=case.images
        )
    assert not list(tmp_path.iterdir())


def test_the_report_says_what_stayed_in_float(cases, tmp_path):
    case = cases("vit")
    labels = case.expected.argmax(1)
    report = export.litert(
        case.model,
        tmp_path / "a.tflite",
        quantize="int8",
        images=case.images,
        labels=labels,
        float_layers=["head"],
        calibration="percentile:99.99",
        max_drop=0.5,
        input="uint8",
    )
    told = report.quantization
    assert told["float"]["head"] == {"FULLY_CONNECTED": 1}
    assert told["float"]["encoderblock_1/residual"] == {"ADD": 2}
    assert told["float_layers"] == ["head"] and told["calibration"] == "percentile:99.99"
    assert len(told["sensitivity"]["blocks"]) == 0 and told["sensitivity"]["drop"] < 0.5
    assert any("for NPUs" in note for note in report.notes)
    assert any("operations compute in float32" in note for note in report.notes)
    assert not [name for name in report.operations if name.startswith("Flex")]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"quantize": "int8"}, "int8 is calibrated on images"),
        ({"quantize": "int16x8", "batch": None, "images": 0}, "int16x8 has a fixed batch"),
        ({"quantize": "int8", "images": 0, "calibration": "mean"}, "must be 'minmax'"),
        ({"quantize": "dynamic_int8", "strict": True}, "strict is an option of int8 and int16x8"),
        ({"quantize": "float16", "float_layers": ["head"]}, "means nothing for float16"),
        ({"max_drop": 0.1}, "max_drop is an option of int8"),
        ({"quantize": "int8", "images": 0, "max_drop": 0.1}, "needs a label for each of 32 images"),
        (
            {"quantize": "int8", "images": 0, "strict": True, "float_layers": ["head"]},
            "strict leaves nothing in float32",
        ),
        ({"quantize": "int8", "images": 0, "strict": True, "input": "uint8"}, "cannot take uint8"),
        ({"quantize": "dynamic_int8", "float_layers": ["hed"]}, "near names are head"),
    ],
)
def test_options_that_cannot_be_are_refused(cases, tmp_path, options, message):
    case = cases("vit")
    if "images" in options:
        options = {**options, "images": case.images}
    with pytest.raises(ValueError, match=message):
        export.litert(case.model, tmp_path / "a.tflite", **options)
    assert not list(tmp_path.iterdir())


def test_a_resnet_has_nothing_to_store_in_four_bits(cases, tmp_path):
    with pytest.raises(ValueError, match="a ResNet has convolutions: use"):
        export.litert(cases("bit").model, tmp_path / "a.tflite", quantize="int4_weights")
