"""The arrays of the inspection, against an independent float64 reference and the fixtures."""

import dataclasses
import json
import tracemalloc
from pathlib import Path

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit import analysis
from keras_vit.analysis import attention as look_module
from keras_vit.analysis import measures
from keras_vit.analysis.pictures import smooth_mask
from keras_vit.analysis.weights import filter_pictures
from keras_vit.spec import ViTSpec
from keras_vit.zoo.weights import load_weights

ORACLES = Path(__file__).parent / "oracles"
# Two float32 computations of tiny networks differ by about 2e-6 in attention weights; distances are
# sums of these times up to 60 pixels.
WEIGHTS, PIXELS = 1e-5, 1e-3

TINY = ViTSpec(
    image_size=(12, 20), patch_size=(4, 4), hidden_size=8, mlp_dim=12, num_heads=2, num_layers=3,
    num_classes=3,
)  # fmt: skip
SPECS = {
    "token": TINY,
    "gap": dataclasses.replace(TINY, pool="gap", posemb="sincos2d"),
    "map": dataclasses.replace(TINY, pool="map"),
    "first": dataclasses.replace(TINY, pool="first"),
    "no class position": dataclasses.replace(TINY, posemb_includes_cls=False),
    "distilled": dataclasses.replace(TINY, distilled=True),
    "registers": dataclasses.replace(TINY, num_registers=3, posemb_includes_cls=True),
    "scaled, gated": dataclasses.replace(TINY, layer_scale=0.5, ffn="swiglu"),
    "patch 4x2": dataclasses.replace(TINY, patch_size=(4, 2)),
}


@pytest.fixture(scope="module")
def random_model(official):
    """`random_model(spec, **options)`: as the shared one, without compiling initialisers on JAX."""

    def build(spec, **options):
        model, rng = official.built(spec, **options), np.random.default_rng(0)
        for variable in model.weights:
            values = rng.normal(size=variable.shape)
            if variable.path.endswith("kernel"):
                values /= np.sqrt(np.prod(variable.shape[:-1]))
            elif variable.path.endswith("scale"):
                values = 1.0 + 0.1 * values
            variable.assign(values)
        return model

    return build


@pytest.fixture(scope="module")
def stored():
    """(arrays of attention_analysis.npz, its configuration)."""
    with np.load(ORACLES / "attention_analysis.npz", allow_pickle=False) as file:
        arrays = {key: file[key] for key in file.files if key != "config"}
        return arrays, json.loads(str(file["config"]))


def pictures(spec, count=2, seed=0):
    rng = np.random.default_rng(seed)
    return rng.uniform(-1, 1, (count, *spec.image_size, spec.in_channels)).astype(np.float32)


def expected(reference, model, images):
    """Attention (L, B, H, N, N) and tokens after the last norm, in float64."""
    params = {v.path: np.asarray(v.value, np.float64) for v in model.weights}
    found = reference.vit(model.spec, params, images)
    layers = range(model.spec.num_layers)
    return np.stack([found[f"attention_{i}"] for i in layers]), found["encoded"]


def slow_distance(attention, spec, pixels, first):
    """The definition, one pair of patches after the other."""
    (h, w), total = spec.grid, 0.0
    for q in range(h * w):
        for k in range(h * w):
            down = (q // w - k // w) * pixels[0]
            across = (q % w - k % w) * pixels[1]
            total += attention[first + q, first + k] * (down**2 + across**2) ** 0.5
    return total / (h * w)


def slow_rollout(layers):
    """The definition for the layers (H, N, N) of one image."""
    joint = np.eye(layers.shape[-1])
    for attention in layers:
        mixed = attention.sum(0) / len(attention) + np.eye(len(joint))
        joint = (mixed / mixed.sum(1)[:, None]) @ joint
    return joint


def query_row(matrix, spec, first):
    if spec.has_cls:
        return matrix[0, first:]
    return matrix[first, first:] if spec.pool == "first" else matrix[first:, first:].mean(0)


@pytest.mark.parametrize("name", SPECS)
def test_what_is_seen_equals_the_float64_reference(name, reference, random_model):
    spec = SPECS[name]
    model, images = random_model(spec), pictures(spec)
    attention, tokens = expected(reference, model, images)
    first = spec.num_prefix_tokens
    seen = analysis.look(model, images, layers=(0, -1), heads=(1,))
    for b in range(len(images)):
        rolled = query_row(slow_rollout(attention[:, b]), spec, first).reshape(spec.grid)
        np.testing.assert_allclose(seen.rollout[b], rolled, atol=WEIGHTS)
        for place, i in enumerate((0, 2)):
            row = query_row(attention[i, b, 1], spec, first).reshape(spec.grid)
            np.testing.assert_allclose(seen.maps[b, place, 0], row, atol=WEIGHTS)
        for i in range(3):
            for h in range(2):
                far = slow_distance(attention[i, b, h], spec, spec.patch_size, first)
                assert seen.distance[b, i, h] == pytest.approx(far, abs=PIXELS)
    cells = tokens[:, first:].reshape(len(images), *spec.grid, -1)
    np.testing.assert_allclose(seen.features, cells, atol=1e-4)  # values up to 5 after the norm


def test_the_stored_distances_and_rollout_are_met(stored):
    arrays, config = stored
    pixels = (config["image"] // config["grid"],) * 2
    distances = measures.pixel_distances((config["grid"],) * 2, pixels)
    np.testing.assert_allclose(distances, arrays["distance_map_pixels"], atol=1e-12)
    attention = arrays["attention"]  # (layer, image, head, N, N)
    # The stored means are of float32 attention summed in float64.
    far = measures.mean_distance(attention, distances)
    np.testing.assert_allclose(far, arrays["mean_distance"], rtol=1e-6)
    near = measures.mean_distance(attention, distances, renormalise=True)
    np.testing.assert_allclose(near, arrays["mean_distance_renormalised"], rtol=1e-6)
    assert np.abs(far - near).max() > 0.5  # the two rules are told apart
    joint = measures.rollout(attention)
    np.testing.assert_allclose(joint, arrays["rollout"], rtol=1e-6)
    mask = joint[:, 0, 1:].reshape(arrays["rollout_mask"].shape)
    np.testing.assert_allclose(mask, arrays["rollout_mask"], rtol=1e-6)


def test_the_official_fixture_gives_the_stored_numbers(stored, official):
    arrays, _ = stored
    fixture = official.read("vit_tiny_token")
    sizes = fixture.config["model"]
    transformer = sizes["transformer"]
    spec = ViTSpec(
        hidden_size=sizes["hidden_size"],
        mlp_dim=transformer["mlp_dim"],
        num_heads=transformer["num_heads"],
        num_layers=transformer["num_layers"],
        patch_size=tuple(sizes["patches"]["size"]),
        image_size=fixture.arrays["input"].shape[1:3],
        num_classes=fixture.config["num_classes"],
    )
    model = official.built(spec)
    load_weights(model, fixture.params(model))
    images = fixture.arrays["input"]
    seen = analysis.look(model, images)
    np.testing.assert_allclose(
        seen.distance.transpose(1, 0, 2), arrays["mean_distance"], atol=PIXELS
    )
    np.testing.assert_allclose(seen.rollout, arrays["rollout_mask"], atol=WEIGHTS)
    mean = analysis.attention_distance(model, iter(images))
    np.testing.assert_allclose(mean, arrays["mean_distance"].mean(1), atol=PIXELS)
    near = analysis.attention_distance(model, images, renormalise=True)
    np.testing.assert_allclose(near, arrays["mean_distance_renormalised"].mean(1), atol=PIXELS)


@pytest.mark.parametrize(
    ("grid", "patch", "pixels"),
    [((14, 14), 16, 116.49), ((7, 7), 32, 115.50), ((16, 16), 14, 116.57), ((8, 8), 4, 16.55)],
)
def test_uniform_attention_looks_this_far_and_identity_nowhere(grid, patch, pixels):
    assert measures.uniform_distance(grid, (patch, patch)) == pytest.approx(pixels, abs=0.005)
    count = grid[0] * grid[1]
    distances = measures.pixel_distances(grid, (patch, patch))
    uniform = np.full((1, count, count), 1.0 / count, np.float32)
    assert measures.mean_distance(uniform, distances)[0] == pytest.approx(pixels, abs=0.005)
    assert measures.mean_distance(np.eye(count)[None], distances)[0] == 0.0


@pytest.mark.case("W01")
def test_rollout_of_uniform_attention_is_flat_and_of_identity_stays_at_home():
    n, heads = 11, 3
    uniform = np.full((heads, n, n), 1.0 / n)
    joint = measures.rollout([uniform] * 4)
    off = joint[~np.eye(n, dtype=bool)]
    np.testing.assert_allclose(off, off[0], rtol=1e-12)  # every other token alike
    # Half stays with the token itself in each layer, the other half is spread evenly.
    assert joint[0, 0] == pytest.approx(0.5**4 + (1 - 0.5**4) / n)
    home = measures.rollout([np.broadcast_to(np.eye(n), (heads, n, n))] * 4)
    np.testing.assert_array_equal(home, np.eye(n))
    rng = np.random.default_rng(0)
    layers = rng.dirichlet(np.ones(n), (5, heads, n))
    joint = measures.rollout(iter(layers))
    np.testing.assert_allclose(joint.sum(axis=-1), 1.0, rtol=1e-12)
    np.testing.assert_allclose(joint, slow_rollout_of_heads(layers), rtol=1e-12)
    with pytest.raises(ValueError, match="at least one layer"):
        measures.rollout([])


def slow_rollout_of_heads(layers):
    # As the paper of Abnar and Zuidema writes it, 0.5 W + 0.5 I, from the last layer down.
    joint = np.eye(layers.shape[-1])
    for attention in layers[::-1]:
        joint = joint @ (0.5 * attention.mean(0) + 0.5 * np.eye(len(joint)))
    return joint


def test_a_hybrid_counts_pixels_by_the_stride_of_its_resnet(random_model):
    body = keras_vit.ResNetBody((1, 1, 1), width_factor=0.5, norm_groups=8)
    spec = keras_vit.HybridSpec(
        image_size=(32, 60), patch_size=1, hidden_size=8, mlp_dim=12, num_heads=2, num_layers=2,
        num_classes=3, resnet=body,
    )  # fmt: skip
    assert spec.grid == (2, 4) and analysis.pixels_per_token(spec) == (16, 16)
    model, images = random_model(spec), pictures(spec)
    seen = analysis.look(model, images)
    attention = keras.ops.convert_to_numpy(model.features("attention_1")(images))
    far = slow_distance(attention[1, 0].astype(np.float64), spec, (16, 16), 1)
    assert seen.distance[1, 1, 0] == pytest.approx(far, abs=PIXELS)
    filters = analysis.embedding_filters(model)
    assert filters.layer == "conv_root" and filters.components.shape == (28, 7, 7, 3)
    stem_only = dataclasses.replace(
        spec, resnet=dataclasses.replace(body, block_units=()), patch_size=(2, 3)
    )
    assert analysis.pixels_per_token(stem_only) == (8, 12)


def test_one_layer_of_few_images_is_in_memory_at_a_time(random_model, monkeypatch):
    spec = dataclasses.replace(TINY, num_layers=4)
    model, images = random_model(spec), pictures(spec, count=5)
    whole = analysis.look(model, images, layers=(1, 2))
    bytes_per_image = 4 * spec.num_heads * spec.num_tokens**2
    monkeypatch.setattr(look_module, "ATTENTION_BYTES", 2 * bytes_per_image)
    taken, done, shapes = [], [], []

    def stream():
        for image in images:
            taken.append(len(done))
            yield image

    original = look_module.layer_attention

    def watched(backbone, batch):
        for index, array in original(backbone, batch):
            if index < spec.num_layers:
                shapes.append(array.shape)
            yield index, array

    monkeypatch.setattr(look_module, "layer_attention", watched)
    parts = analysis.look(model, stream(), layers=(1, 2), progress=done.append)
    assert taken == [0, 0, 1, 1, 2], "images were read ahead"
    assert done == [2, 2, 1]
    assert {shape[0] for shape in shapes} == {2, 1} and len(shapes) == 3 * 4
    for name in ("distance", "rollout", "maps", "features"):
        # Other batch sizes may sum in another order.
        np.testing.assert_allclose(
            getattr(parts, name), getattr(whole, name), atol=PIXELS, err_msg=name
        )


def test_memory_with_1024_patches_does_not_grow_with_the_images(random_model, monkeypatch):
    spec = dataclasses.replace(
        TINY, image_size=(128, 128), hidden_size=4, mlp_dim=4, num_heads=2, num_layers=2
    )
    model = random_model(spec)
    one = 4 * spec.num_heads * spec.num_tokens**2
    monkeypatch.setattr(look_module, "ATTENTION_BYTES", one)
    peaks = []
    for count in (1, 4):
        images = pictures(spec, count)
        tracemalloc.start()  # sees NumPy's arrays
        analysis.look(model, images)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert max(peaks) < 8 * one, "more than a few arrays of one layer and one image"
    assert peaks[1] < 1.2 * peaks[0]


def test_a_patch_can_be_the_query_and_parts_can_be_left_out(reference, random_model):
    model, images = random_model(TINY), pictures(TINY)
    attention, _ = expected(reference, model, images)
    seen = analysis.look(model, images, parts=("maps",), query=(2, 3))
    assert seen.distance is seen.rollout is seen.features is None
    assert seen.query == "patch (2, 3)" and seen.maps.shape == (2, 1, 2, 3, 5)
    row = attention[2, 1, 0, 1 + 2 * 5 + 3, 1:].reshape(3, 5)
    np.testing.assert_allclose(seen.maps[1, 0, 0], row, atol=WEIGHTS)
    whose = {name: analysis.look(random_model(spec), pictures(spec), parts=("rollout",)).query
             for name, spec in SPECS.items() if name in ("token", "gap", "first")}  # fmt: skip
    assert whose == {"token": "class token", "gap": "mean over patches", "first": "first patch"}


def test_bad_requests_are_one_sentence(random_model):
    model, images = random_model(TINY), pictures(TINY)
    for arguments, message in (
        ({"layers": (3,)}, "no layer 3: this model has 3, 0 to 2"),
        ({"heads": (-3,)}, "no head -3"),
        ({"heads": ()}, "at least one head"),
        ({"query": (3, 0)}, r"no patch \(3, 0\)"),
        ({"parts": ("colour",)}, "unknown parts"),
    ):
        with pytest.raises(ValueError, match=message):
            analysis.look(model, images, **arguments)
    with pytest.raises(ValueError, match="no images"):
        analysis.look(model, images[:0])
    with pytest.raises(ValueError, match=r"shape \(12, 20, 3\), got \(20, 12, 3\)"):
        analysis.look(model, images.transpose(0, 2, 1, 3))
    with pytest.raises(ValueError, match="count"):
        analysis.embedding_filters(model, 0)


class Around(keras.Model):
    """A subclassed model that holds another one."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def call(self, x):
        return self.inner(x)


@pytest.mark.case("W03")
def test_the_backbone_is_found_inside_other_models(random_model):
    vit = random_model(dataclasses.replace(TINY, num_classes=0))
    images = pictures(TINY)
    alone = analysis.attention_rollout(vit, images)
    sequential = keras.Sequential([vit, keras.layers.Dense(2)])
    inputs = keras.Input((12, 20, 3))
    inner = keras.Sequential([keras.Input((12, 20, 3)), keras.layers.Rescaling(1.0), vit])
    functional = keras.Model(inputs, keras.layers.Dense(2)(inner(inputs)))
    for model in (sequential, functional, Around(vit)):
        assert analysis.find_backbone(model) is vit
        np.testing.assert_array_equal(analysis.attention_rollout(model, images), alone)
        assert analysis.position_similarity(model).shape == (3, 5, 3, 5)
        assert len(analysis.embedding_filters(model).components) == 8
    twice = keras.Model(
        inputs, keras.layers.Add()([vit(inputs), random_model(vit.spec, name="b")(inputs)])
    )
    with pytest.raises(TypeError, match="2 of them"):
        analysis.find_backbone(twice)
    plain = keras.Sequential([keras.Input((12, 20, 3)), keras.layers.Flatten()], name="plain")
    with pytest.raises(TypeError, match="'plain' holds none"):
        analysis.find_backbone(plain)


@pytest.mark.case("W03")
def test_families_without_attention_are_refused_with_the_reason(official):
    body = keras_vit.ResNetBody((1,), width_factor=0.5, norm_groups=8)
    bit = official.built(keras_vit.ResNetSpec(image_size=16, body=body, num_classes=3), name="bit")
    mixer = official.built(keras_vit.MixerSpec(
        image_size=8, hidden_size=8, tokens_mlp_dim=4, channels_mlp_dim=4, num_layers=1,
        patch_size=4, num_classes=3,
    ))  # fmt: skip
    bare = official.built(dataclasses.replace(TINY, num_layers=0, pool="gap", posemb="none"))
    for model, reason in ((bit, "ResNet"), (mixer, "MLP-Mixer"), (bare, "no encoder blocks")):
        with pytest.raises(TypeError, match=reason):
            analysis.find_backbone(model)
        with pytest.raises(TypeError, match=reason):
            analysis.look(keras.Sequential([model]), np.zeros((1, *model.spec.image_size, 3)))


def test_filters_are_the_principal_components_of_the_kernel(random_model):
    model = random_model(dataclasses.replace(TINY, hidden_size=40, num_heads=2))
    filters = analysis.embedding_filters(model)
    assert filters.components.shape == (28, 4, 4, 3) and filters.layer == "embedding"
    kernel = np.asarray(model.get_layer("embedding").kernel.value, np.float64).reshape(48, 40)
    # Another way to the same: eigenvectors of the covariance.
    values, vectors = np.linalg.eigh(np.cov(kernel, bias=True))
    values, vectors = values[::-1], vectors.T[::-1][:28]
    rows = filters.components.reshape(28, 48)
    np.testing.assert_allclose(np.abs((rows * vectors).sum(1)), 1.0, atol=1e-6)
    np.testing.assert_allclose(filters.variance, values[:28] / values.sum(), atol=1e-6)
    assert (rows.max(axis=1) == np.abs(rows).max(axis=1)).all()  # the largest entry is positive
    shown = filter_pictures(filters.components)
    assert shown.shape == (28, 4, 4, 3) and shown.max() == 1.0 and shown.min() >= 0.0
    np.testing.assert_allclose(shown - 0.5, 0.5 * rows.reshape(shown.shape)
                               / np.abs(rows).max(1)[:, None, None, None], atol=1e-12)  # fmt: skip
    assert filter_pictures(np.ones((2, 4, 4, 5))).shape == (2, 4, 4, 1)


@pytest.mark.parametrize("name", ["token", "gap", "no class position", "distilled", "registers"])
def test_position_similarity_is_the_cosine_of_what_is_added(name, reference, random_model):
    spec = SPECS[name]
    model = random_model(spec)
    if spec.posemb == "sincos2d":
        table = reference.sincos(*spec.grid, spec.hidden_size)[0]
    else:
        table = np.asarray(model.get_layer("posembed_input").table.value, np.float64)[0]
    cells = table[-15:]
    found = analysis.position_similarity(model)
    assert found.shape == (3, 5, 3, 5)
    for q, k in ((0, 0), (7, 3), (14, 1)):
        cosine = cells[q] @ cells[k] / np.sqrt((cells[q] ** 2).sum() * (cells[k] ** 2).sum())
        assert found[q // 5, q % 5, k // 5, k % 5] == pytest.approx(cosine, abs=1e-6)
    np.testing.assert_allclose(found, found.transpose(2, 3, 0, 1), atol=1e-12)
    if len(table) > 15:
        cosine = table[0] @ cells[8] / np.linalg.norm(table[0]) / np.linalg.norm(cells[8])
        assert analysis.class_token_similarity(model)[1, 3] == pytest.approx(cosine, abs=1e-6)
    else:
        with pytest.raises(ValueError, match="patches only"):
            analysis.class_token_similarity(model)


def test_a_model_without_positions_says_so(random_model):
    model = random_model(dataclasses.replace(TINY, posemb="none"))
    with pytest.raises(ValueError, match="has no one position embedding"):
        analysis.position_similarity(model)
    assert measures.cosine_similarity(np.zeros((2, 3))).tolist() == [[0, 0], [0, 0]]


def test_feature_colours_follow_the_components():
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(30, 7))
    # Columns without correlation, so that they are the components, in the order of their scale.
    rows, _ = np.linalg.qr(rows - rows.mean(0))
    rows *= np.array([1.0, 9.0, 0.1, 5.0, 0.1, 0.1, 0.1])
    colours = analysis.feature_colours(rows.reshape(2, 3, 5, 7).astype(np.float32))
    assert colours.shape == (2, 3, 5, 3) and colours.min() == 0.0 and colours.max() == 1.0
    for channel, column in enumerate((1, 3, 0)):
        shown = colours[..., channel].ravel()
        inside = (shown > 0.0) & (shown < 1.0)
        correlation = np.corrcoef(rows[inside, column], shown[inside])[0, 1]
        assert abs(correlation) > 0.9999, channel
    flat = analysis.feature_colours(np.ones((1, 2, 2, 4), np.float32))
    assert (flat == 0.5).all()
    assert analysis.feature_colours(rng.normal(size=(1, 1, 2, 1))).shape == (1, 1, 2, 3)


def test_the_overlay_is_bright_where_the_mask_is(random_model):
    mask = np.zeros((3, 5))
    mask[2, 4] = 0.3
    weight = smooth_mask(mask, (4, 4), (12, 20))
    assert weight.shape == (12, 20) and weight.min() == 0.0 and weight.max() == 1.0
    assert np.unravel_index(weight.argmax(), weight.shape)[0] >= 8 and weight[0, 0] == 0.0
    np.testing.assert_array_equal(smooth_mask(7.0 * mask, (4, 4), (12, 20)), weight)
    image = np.full((12, 20, 3), 200, np.uint8)
    black = analysis.overlay(image, mask, (4, 4), shade=1.0)
    np.testing.assert_array_equal(black, np.rint(200 * weight[..., None].repeat(3, -1)))
    assert (analysis.overlay(image, mask, (4, 4), shade=0.0) == 200).all()
    assert (analysis.overlay(image, np.full((3, 5), 0.07), (4, 4)) == 200).all(), "flat: all alike"
    # A border that no patch covers repeats; cells that reach beyond the image are cut off.
    assert smooth_mask(mask, (4, 4), (14, 21)).shape == (14, 21)
    assert smooth_mask(mask, (8, 8), (20, 37)).shape == (20, 37)


def test_pixels_and_inputs_are_each_others_inverse(random_model):
    model = random_model(dataclasses.replace(TINY, in_channels=1))
    rng = np.random.default_rng(0)
    image = rng.integers(0, 256, (12, 20), np.uint8)
    (x,) = analysis.prepare(model, [image])
    assert x.shape == (12, 20, 1) and x.dtype == np.float32
    np.testing.assert_array_equal(analysis.as_pixels(model, x[None])[0, ..., 2], image)


def test_half_precision_models_are_inspected_in_float32(random_model):
    whole = random_model(TINY)
    half = random_model(TINY, dtype="mixed_bfloat16")
    images = pictures(TINY)
    expected, found = analysis.look(whole, images), analysis.look(half, images)
    assert found.maps.dtype == np.float32
    # bfloat16 keeps 8 bits: attention weights move by about one part in 100.
    np.testing.assert_allclose(found.rollout, expected.rollout, atol=0.02)
