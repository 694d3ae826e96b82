"""The figures of the inspection: labels, units, and the arrays behind what is drawn."""

import builtins
import importlib.util
import io
import sys

import numpy as np
import pytest
from PIL import Image

pytest.importorskip("matplotlib", reason="figures need matplotlib, the extra plots")

from keras_vit.analysis import figures, measures
from keras_vit.analysis.pictures import overlay
from keras_vit.analysis.weights import Filters, filter_pictures

GRID, PIXELS, SIZE = (3, 5), (8, 4), (24, 20)  # patches, pixels per patch, image
RNG = np.random.default_rng(0)
PICTURES = RNG.integers(0, 256, (2, *SIZE, 3), np.uint8)
NAMES = ("cat.jpg", "$\\frac{1}$ <b>\n")  # neither mathematics nor a second line


def shown(axes):
    """The arrays of the pictures in some axes."""
    return [np.asarray(picture.get_array()) for picture in axes.images]


def drawn(figure):
    """The figure as an image, which must not be blank."""
    image = np.asarray(Image.open(io.BytesIO(figures.png(figure))).convert("L"))
    assert (image[:, 0] == 255).all() and (image < 128).mean() > 0.005, "blank"
    return image


def test_filters_are_drawn_in_order_with_their_share_of_the_variance():
    components = RNG.normal(size=(9, 6, 4, 3))
    filters = Filters(components, np.linspace(0.3, 0.01, 9), "embedding")
    figure = figures.filters_figure(filters)
    axes = [a for a in figure.axes if a.images]
    assert len(axes) == 9 and [a.get_title() for a in axes][:2] == ["1: 30.0%", "2: 26.4%"]
    for i, a in enumerate(axes):
        np.testing.assert_allclose(shown(a)[0], filter_pictures(components)[i])
        assert a.images[0].get_clim() == (0.0, 1.0)
    assert "6×4 pixels" in figure.get_suptitle() and "mid-grey is 0" in figure.get_supxlabel()
    drawn(figure)
    grey = figures.filters_figure(Filters(components[:2, ..., :1], np.ones(2), "conv_root"))
    assert shown(grey.axes[0])[0].shape == (6, 4) and "first convolution" in grey.get_suptitle()


def test_position_tiles_lie_where_their_patches_do():
    table = RNG.normal(size=(15, 7))
    similarity = measures.cosine_similarity(table).reshape(*GRID, *GRID)
    figure = figures.positions_figure(similarity)
    axes, bar = figure.axes
    (mosaic,) = shown(axes)
    assert mosaic.shape == (3 * 4 - 1, 5 * 6 - 1)
    for i, j in ((0, 0), (2, 3)):
        tile = mosaic[i * 4 : i * 4 + 3, j * 6 : j * 6 + 5]
        np.testing.assert_array_equal(tile, similarity[i, j])
    assert np.ma.is_masked(mosaic[3]) or np.isnan(mosaic[3]).all()
    assert axes.images[0].get_clim() == (-1.0, 1.0)
    assert bar.get_ylabel() == "cosine similarity" and list(bar.get_yticks())[::4] == [-1, 1]
    assert axes.get_xlabel() == "input patch column" and axes.get_ylabel() == "input patch row"
    assert [t.get_text() for t in axes.get_xticklabels()] == ["1", "2", "3", "4", "5"]
    assert list(axes.get_yticks()) == [1.0, 5.0, 9.0]  # the middle of each tile
    drawn(figure)


def test_large_grids_have_a_tile_for_some_of_their_patches():
    similarity = np.zeros((2, 37, 2, 37))
    similarity[1, 4] = 1.0
    figure = figures.positions_figure(similarity)
    axes = figure.axes[0]
    (mosaic,) = shown(axes)
    assert mosaic.shape == (2, 12 * 38 - 1) and "every third patch" in figure.get_suptitle()
    assert [t.get_text() for t in axes.get_xticklabels()][:2] == ["2", "8"]
    assert (mosaic[:, 38:75] == 1.0).all() and mosaic[:, :37].max() == 0.0  # patch 5 of row 2


def test_distances_have_a_dot_per_head_and_the_unit_on_the_axis():
    distance = RNG.uniform(1, 9, (4, 3))
    figure = figures.distance_figure(distance, GRID, PIXELS, 128)
    (axes,) = figure.axes
    assert axes.get_ylabel() == "mean attention distance (pixels)"
    assert axes.get_xlabel().startswith("layer")
    dots = axes.collections[0].get_offsets()
    np.testing.assert_allclose(dots[:, 0], np.repeat(np.arange(4), 3))
    np.testing.assert_allclose(dots[:, 1], distance.ravel())
    lines = {line.get_label(): line.get_ydata() for line in axes.lines}
    np.testing.assert_allclose(lines["mean of the heads"], distance.mean(1))
    uniform = measures.uniform_distance(GRID, PIXELS)
    (dashed,) = [ys for name, ys in lines.items() if f"{uniform:.1f} pixels" in name]
    assert dashed[0] == uniform
    assert axes.get_ylim()[0] == 0.0 and axes.get_ylim()[1] > max(uniform, distance.max())
    assert "128 images of 24×20 pixels" in figure.get_suptitle()
    drawn(figure)


def test_rollout_shows_image_weights_and_overlay():
    rollout = RNG.uniform(0, 0.1, (2, *GRID))
    figure = figures.rollout_figure(PICTURES, rollout, PIXELS, NAMES, "class token")
    images = [a for a in figure.axes if a.images and a.get_label() != "<colorbar>"]
    assert len(images) == 6 and "class token" in figure.get_suptitle()
    for i in range(2):
        picture, weights, both = images[3 * i : 3 * i + 3]
        np.testing.assert_array_equal(shown(picture)[0], PICTURES[i])
        np.testing.assert_array_equal(shown(weights)[0], rollout[i])
        np.testing.assert_array_equal(shown(both)[0], overlay(PICTURES[i], rollout[i], PIXELS))
        assert weights.images[0].get_clim() == (0.0, rollout[i].max())
        # All three lie on the same pixels.
        assert {tuple(a.images[0].get_extent()) for a in (picture, weights, both)} == {
            (0, 20, 24, 0)
        }
    assert images[3].get_title() == "$\\frac{1}$ <b>?"
    bars = [a for a in figure.axes if a.get_label() == "<colorbar>"]
    figure.canvas.draw()
    assert all("%" in t.get_text() for a in bars for t in a.get_yticklabels())
    drawn(figure)


def test_maps_name_layer_and_head_and_their_largest_weight():
    maps = RNG.uniform(0, 0.5, (2, 2, 8, *GRID))
    heads = list(range(1, 9))
    figure = figures.maps_figure(PICTURES, maps, PIXELS, NAMES, (0, 11), heads, "mean over patches")
    assert sum(len(a.images) for a in figure.axes) == 2 * 2 * (1 + 8)
    assert "cat.jpg\nlayer 11" in [a.get_title() for a in figure.axes]
    thirds = [a for a in figure.axes if a.get_title().startswith("head 3\n")]
    for axes, (i, j) in zip(thirds, ((0, 0), (0, 1), (1, 0), (1, 1)), strict=True):
        np.testing.assert_array_equal(shown(axes)[0], maps[i, j, 2])
        assert axes.get_title() == f"head 3\n≤ {maps[i, j, 2].max():.2g}"
    assert "mean over patches" in figure.get_suptitle()
    drawn(figure)


def test_features_lie_below_their_images():
    colours = RNG.uniform(size=(2, *GRID, 3))
    figure = figures.features_figure(PICTURES, colours, PIXELS, NAMES)
    axes = [a for a in figure.axes if a.images]
    np.testing.assert_array_equal(shown(axes[1])[0], PICTURES[1])
    np.testing.assert_array_equal(shown(axes[3])[0], colours[1])
    assert "red, green, blue" in figure.get_suptitle()
    drawn(figure)
    five = figures.features_figure(
        np.repeat(PICTURES[:1], 5, 0), np.repeat(colours[:1], 5, 0), PIXELS, ["a"] * 5
    )
    assert sum(len(a.images) for a in five.axes) == 10


def test_names_in_any_script_are_drawn_without_a_warning():
    names = ("猫.jpg", "\u202e\x00" + "x" * 100)
    figure = figures.features_figure(PICTURES, RNG.uniform(size=(2, *GRID, 3)), PIXELS, names)
    drawn(figure)
    assert max(len(a.get_title()) for a in figure.axes) <= figures.NAME_LENGTH


def test_no_global_state_of_matplotlib_is_touched():
    assert (
        "matplotlib.pyplot" not in sys.modules or not sys.modules["matplotlib.pyplot"].get_fignums()
    )


def test_without_matplotlib_one_sentence_says_what_to_install(monkeypatch):
    original, found = builtins.__import__, importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda n, *a: None if n == "matplotlib" else found(n, *a)
    )

    def refuse(name, *arguments, **options):
        if name.startswith("matplotlib"):
            raise ModuleNotFoundError(name)
        return original(name, *arguments, **options)

    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(ImportError, match=r"pip install 'keras-vit-zoo\[plots\]'"):
        figures.distance_figure(np.ones((1, 1)), GRID, PIXELS, 1)
