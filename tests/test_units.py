"""Single layers of the convolutional families against the official units.

Whole networks hide an epsilon: their kernels and maps have a variance of about one. Here they are
scaled down until every rule gives another number.
"""

from pathlib import Path

import keras
import numpy as np
import pytest
from keras import ops

from keras_vit.layers import BottleneckUnit, GroupNorm, MixerBlock, RootPool, StdConv2D
from keras_vit.posemb import sincos2d

with np.load(Path(__file__).parent / "oracles" / "units.npz") as _file:
    UNITS = {key: _file[key] for key in _file.files}
FAMILIES = ("hybrid", "bit")
STANDARDIZATION = {
    "hybrid": {"standardization": "std", "epsilon": 1e-5},
    "bit": {"standardization": "var", "epsilon": 1e-10},
}
PADDING = {"hybrid": "same", "bit": "fixed"}
NORM = {"hybrid": ("hybrid_eps1e-6", 1e-6), "bit": ("bit_eps1e-5", 1e-5)}
WEIGHT_SCALES = ("1", "0.01", "0.0001", "1e-06")
# Sums of 72 to 98 products of float32 numbers of up to 3 in another order.
CONV_TOLERANCE = 1e-5


def array(x):
    return ops.convert_to_numpy(x)


def conv(kernel, strides=1, **options):
    layer = StdConv2D(kernel.shape[3], kernel.shape[0], strides, **options)
    layer.build((None, None, None, kernel.shape[2]))
    layer.kernel.assign(kernel)
    return layer


def furthest(found, expected):
    return np.abs(array(found) - expected).max()


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("scale", WEIGHT_SCALES)
@pytest.mark.case("L22")
def test_kernels_of_every_scale_are_standardised_as_in_the_original(scale, family):
    kernel = UNITS[f"stdconv/scale{scale}/kernel"]
    layer = conv(kernel, **STANDARDIZATION[family])
    expected = UNITS[f"stdconv/scale{scale}/standardized_{family}"]
    # Two roundings of float32 on values of up to 3.3.
    np.testing.assert_allclose(array(layer.standardized_kernel()), expected, rtol=0, atol=1.5e-6)
    for strides in (1, 2):
        layer = conv(kernel, strides, padding=PADDING[family], **STANDARDIZATION[family])
        np.testing.assert_allclose(
            array(layer(UNITS["stdconv/input"])),
            UNITS[f"stdconv/scale{scale}/{family}_out_stride{strides}"],
            rtol=0,
            atol=CONV_TOLERANCE,
        )


# (family whose numbers are expected, a rule that is not its own, how far off it is at scale 1e-4).
WRONG_RULES = [
    ("hybrid", {"standardization": "var", "epsilon": 1e-10}, 0.2),
    ("hybrid", {"standardization": "var", "epsilon": 1e-5}, 2.0),
    ("hybrid", {"standardization": "std", "epsilon": 1e-6}, 0.2),
    ("bit", {"standardization": "std", "epsilon": 1e-5}, 0.2),
    ("bit", {"standardization": "var", "epsilon": 1e-5}, 2.0),
    ("bit", {"standardization": "var", "epsilon": 1e-8}, 0.5),  # timm's and Hugging Face's
]


@pytest.mark.parametrize(("family", "rule", "least"), WRONG_RULES)
@pytest.mark.case("L22")
def test_another_rule_is_seen_at_small_scale(family, rule, least):
    kernel = UNITS["stdconv/scale0.0001/kernel"]
    expected = UNITS[f"stdconv/scale0.0001/standardized_{family}"]
    assert furthest(conv(kernel, **rule).standardized_kernel(), expected) > least


def test_the_sample_deviation_is_not_meant():
    kernel = UNITS["stdconv/scale1/kernel"].astype(np.float64)
    centred = kernel - kernel.mean(axis=(0, 1, 2))
    sample = centred / (kernel.std(axis=(0, 1, 2), ddof=1) + 1e-5)
    found = array(conv(kernel, **STANDARDIZATION["hybrid"]).standardized_kernel())
    assert np.abs(sample - found).max() > 1e-2
    population = centred / (kernel.std(axis=(0, 1, 2)) + 1e-5)
    np.testing.assert_allclose(found, population, rtol=0, atol=1.5e-6)


@pytest.mark.parametrize(("family", "value"), [("hybrid", 0.5), ("bit", 0.70710678)])
@pytest.mark.case("L22")
def test_a_kernel_of_1e_5_tells_the_two_formulas_apart(family, value):
    # deviation 1e-5: 1e-5 / (1e-5 + 1e-5), and 1e-5 / sqrt(1e-10 + 1e-10).
    kernel = np.tile([1e-5, -1e-5], 9).astype(np.float32).reshape(3, 3, 2, 1)
    found = array(conv(kernel, **STANDARDIZATION[family]).standardized_kernel())
    np.testing.assert_allclose(found, np.sign(kernel) * value, rtol=1e-5)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.case("L22")
def test_a_constant_kernel_becomes_zeros(family):
    layer = conv(np.full((1, 1, 8, 16), 0.25, np.float32), **STANDARDIZATION[family])
    np.testing.assert_array_equal(
        array(layer.standardized_kernel()), UNITS[f"stdconv/constant/{family}"]
    )
    # The mean of numbers that float32 rounds is off by a last bit, which is 3e-8 against 1e-5.
    layer.kernel.assign(np.full((1, 1, 8, 16), 0.3, np.float32))
    assert np.abs(array(layer.standardized_kernel())).max() < 1e-2


@pytest.mark.parametrize("dtype", ["mixed_bfloat16", "mixed_float16"])
def test_kernels_are_standardised_in_full_precision_whatever_the_policy(dtype):
    kernel = UNITS["stdconv/scale0.0001/kernel"]
    layer = conv(kernel, **STANDARDIZATION["bit"], dtype=dtype)
    expected = UNITS["stdconv/scale0.0001/standardized_bit"]
    np.testing.assert_allclose(array(layer.standardized_kernel()), expected, rtol=0, atol=1.5e-6)
    found = layer(ops.cast(UNITS["stdconv/input"], layer.compute_dtype))
    assert keras.backend.standardize_dtype(found.dtype) == layer.compute_dtype


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("scale", ["1", "0.01", "0.001", "0.0001"])
@pytest.mark.case("L25")
def test_group_norm_of_every_scale(scale, family):
    name, epsilon = NORM[family]
    x, expected = UNITS[f"groupnorm/scale{scale}/input"], UNITS[f"groupnorm/scale{scale}/{name}"]
    # Float32 in two orders.
    assert furthest(norm(epsilon)(x), expected) < 5e-6
    # At scale 1 the next epsilon is 2e-5 away, at smaller scales at least 0.2.
    other = 1e-6 if epsilon == 1e-5 else 1e-5
    assert furthest(norm(other)(x), expected) > (1.5e-5 if scale == "1" else 0.2)
    assert furthest(norm(1e-3)(x), expected) > (2e-3 if scale == "1" else 0.09)


def norm(epsilon, groups=32):
    layer = GroupNorm(groups, epsilon)
    layer.build((None, None, None, 64))
    layer.scale.assign(UNITS["groupnorm/scale"])
    layer.bias.assign(UNITS["groupnorm/bias"])
    return layer


@pytest.mark.parametrize("epsilon", [1e-5, 1e-6])
@pytest.mark.case("L25")
def test_groups_split_the_channel_axis(epsilon):
    x = np.arange(256, dtype=np.float32).reshape(1, 2, 2, 64)
    grouped = x.astype(np.float64).reshape(1, 4, 32, 2)
    mean = grouped.mean(axis=(1, 3), keepdims=True)
    variance = grouped.var(axis=(1, 3), keepdims=True)
    expected = ((grouped - mean) / np.sqrt(variance + epsilon)).reshape(x.shape)
    layer = GroupNorm(32, epsilon)
    np.testing.assert_allclose(array(layer(x)), expected, rtol=0, atol=1e-5)
    # Small differences, so that the third epsilon shows.
    found, other = array(layer(x * 1e-3)), array(GroupNorm(32, 1e-3)(x * 1e-3))
    assert np.abs(found - other).max() > 0.1
    # Groups of every second channel, as a reshape in the wrong order makes them, are another norm.
    shuffled = x.reshape(1, 2, 2, 2, 32).transpose(0, 1, 2, 4, 3).reshape(x.shape)
    assert np.abs(array(layer(shuffled)) - expected).max() > 0.1


def test_group_norm_of_large_half_precision_values_is_finite():
    # The square of 300 leaves float16; the layer works in float32.
    x = ops.cast(np.tile([300.0, -300.0], (1, 2, 2, 32)), "float16")
    layer = GroupNorm(32, dtype="mixed_float16")
    found = layer(x)
    assert keras.backend.standardize_dtype(found.dtype) == "float16"
    np.testing.assert_allclose(array(found), array(x) / 300.0, atol=1e-3)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("size", [28, 29, 30, 31, 33])
@pytest.mark.case("L24")
def test_root_convolution_and_pool_of_every_parity(size, family):
    x, kernel = UNITS[f"root/{size}/input"], UNITS[f"root/{size}/kernel"]
    root = conv(kernel, 2, padding=PADDING[family], **STANDARDIZATION[family])
    found = root(x)
    np.testing.assert_allclose(
        array(found), UNITS[f"root/{size}/{family}_conv"], rtol=0, atol=CONV_TOLERANCE
    )
    pool = RootPool(PADDING[family], "zero" if family == "bit" else "-inf")
    name = "bit_root_block" if family == "bit" else "hybrid_conv_pool"
    np.testing.assert_allclose(
        array(pool(found)), UNITS[f"root/{size}/{name}"], rtol=0, atol=CONV_TOLERANCE
    )
    assert root.compute_output_shape(x.shape) == tuple(found.shape)
    assert pool.compute_output_shape(found.shape) == tuple(pool(found).shape)


@pytest.mark.parametrize("size", [224, 225])
@pytest.mark.case("L24")
def test_the_first_output_of_an_impulse_is_where_the_padding_puts_it(size):
    # The kernel value under pixel (0, 0), of 0..48 in rows of 7: SAME puts 2 of 5 padded rows above an
    # even image and 3 of 6 above an odd one, so it is (2, 2) or (3, 3); `fixed` always puts 3.
    x = np.zeros((1, size, size, 1), np.float32)
    x[0, 0, 0, 0] = 1.0
    kernel = np.arange(49, dtype=np.float32).reshape(7, 7, 1, 1)
    same = array(conv(kernel, 2, padding="same", standardization=None)(x))
    fixed = array(conv(kernel, 2, padding="fixed", standardization=None)(x))
    assert fixed[0, 0, 0, 0] == 3 * 7 + 3
    assert same[0, 0, 0, 0] == (2 * 7 + 2 if size == 224 else 3 * 7 + 3)
    assert same.shape == fixed.shape == (1, -(-size // 2), -(-size // 2), 1)


@pytest.mark.case("L23")
def test_zeros_beyond_the_border_win_over_negative_values():
    x = np.full((1, 3, 3, 1), -1.0, np.float32)
    zero, nothing = array(RootPool("fixed", "zero")(x)), array(RootPool("fixed", "-inf")(x))
    np.testing.assert_array_equal(zero[0, ..., 0], [[0, 0], [0, 0]])
    np.testing.assert_array_equal(nothing[0, ..., 0], [[-1, -1], [-1, -1]])
    # Of four pixels the last window lies inside: pad then pool, not a padded pool.
    x = np.full((1, 4, 4, 1), -1.0, np.float32)
    np.testing.assert_array_equal(array(RootPool("fixed", "zero")(x))[0, ..., 0], [[0, 0], [0, -1]])
    np.testing.assert_array_equal(array(RootPool("same")(x))[0, ..., 0], [[-1, -1], [-1, -1]])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_the_lowest_border_loses_to_every_value_of_a_type(dtype):
    # It is finite, because LiteRT pads with no infinity; the value must survive the cast.
    lowest = {"float32": -2.9e38, "bfloat16": -2.9e38, "float16": -5.9e4}[dtype]
    x = ops.cast(np.full((1, 3, 3, 1), lowest, np.float32), dtype)
    pooled = RootPool("fixed", "-inf", dtype=dtype)(x)
    np.testing.assert_array_equal(
        array(ops.cast(pooled, "float32")), array(ops.cast(x, "float32"))[:, :2, :2]
    )


@pytest.mark.parametrize("grid", ["14x14x384", "7x7x32", "4x6x16"])
def test_sine_cosine_tables(grid):
    height, width, size = map(int, grid.split("x"))
    table = np.asarray(sincos2d((height, width), size))
    expected = UNITS[f"sincos2d/{grid}"]
    if expected.shape[1] != height * width:  # every 13th position and 7th value of large ones
        table = table[:, ::13, ::7]
    # Float32 angles of up to 14 radians there, float64 here.
    np.testing.assert_allclose(table, expected, rtol=0, atol=5e-6)


OPTIONS = {"conv": {"padding": "same", **STANDARDIZATION["hybrid"]}, "norm": {"groups": 4}}


@pytest.mark.tf_only  # configurations know no backend
@pytest.mark.parametrize(
    "layer",
    [
        StdConv2D(8, 3, 2, padding="fixed", standardization="var", epsilon=1e-10),
        StdConv2D(8, 1, standardization=None),
        RootPool("fixed", "zero"),
        GroupNorm(4, 1e-5),
        BottleneckUnit(4, 2, preactivation=False, **OPTIONS),
        BottleneckUnit(4, 1, preactivation=True, **OPTIONS),
        BottleneckUnit(2, 1, preactivation=True, conv=OPTIONS["conv"], norm={"groups": 2}),
    ],
    ids=lambda layer: layer.name,
)
def test_every_layer_is_rebuilt_from_its_config(layer):
    x = np.random.default_rng(0).normal(size=(2, 7, 6, 8)).astype(np.float32)
    _check_rebuilt(layer, x)


@pytest.mark.tf_only  # configurations know no backend
def test_a_mixer_block_is_rebuilt_from_its_config():
    block = MixerBlock(5, 7, stochastic_depth=0.5, activation="gelu", norm_epsilon=1e-5)
    _check_rebuilt(block, np.random.default_rng(0).normal(size=(2, 6, 8)).astype(np.float32))


def _check_rebuilt(layer, x):
    expected = array(layer(x))
    again = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(layer))
    assert type(again) is type(layer) and again.get_config() == layer.get_config()
    again(x)
    for new, old in zip(again.weights, layer.weights, strict=True):
        assert new.path.split("/")[1:] == old.path.split("/")[1:]
        new.assign(old)
    np.testing.assert_array_equal(array(again(x)), expected)
    symbolic = layer.compute_output_spec(keras.KerasTensor((None, *x.shape[1:])))
    assert tuple(symbolic.shape[1:]) == expected.shape[1:]


def test_a_norm_names_groups_that_do_not_divide_its_channels():
    with pytest.raises(ValueError, match="32 groups cannot divide 40 channels"):
        GroupNorm(32)(np.zeros((1, 2, 2, 40), np.float32))


def test_units_are_plain_residuals_when_their_branch_is_zero():
    # V1 with a zero last norm passes relu(x) on, V2 with a zero last kernel x itself.
    x = np.random.default_rng(0).normal(size=(2, 5, 5, 8)).astype(np.float32)
    options = {"conv": OPTIONS["conv"], "norm": {"groups": 2}}
    after = BottleneckUnit(2, preactivation=False, **options)
    after.build(x.shape)
    after.gn3.scale.assign(np.zeros(8))
    np.testing.assert_array_equal(array(after(x)), np.maximum(x, 0))
    before = BottleneckUnit(2, preactivation=True, **options)
    before.build(x.shape)
    before.conv3.kernel.assign(np.zeros((1, 1, 2, 8)))
    np.testing.assert_array_equal(array(before(x)), x)
    assert before.conv_proj is None and after.conv_proj is None
