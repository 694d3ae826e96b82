"""The paper's Figures 6, 7, 10, 11 and 14, and more, as matplotlib figures.

Each function takes arrays and returns a `matplotlib.figure.Figure`, to be saved or changed. They use
the object interface only: no window, no global state, nothing that a notebook's own figures notice.
matplotlib is the extra `plots` and is imported when the first figure is drawn.
"""

import importlib.util
import io
import math
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np

from keras_vit.analysis import measures
from keras_vit.analysis.pictures import overlay
from keras_vit.analysis.weights import Filters, filter_pictures

FILTER_COLUMNS = 7  # as in the paper
MOST_TILES = 14  # of a position figure, down and across, as in the paper's Figure 10
MAP_COLUMNS = 6  # heads beside each other
CELL = 1.7  # inches of a picture
DPI = 100
NAME_LENGTH = 28  # characters of a name in a figure; the report has it whole


def check_installed() -> None:
    """Refuses where matplotlib is missing.

    Raises:
        ImportError: with the command that installs it.
    """
    if importlib.util.find_spec("matplotlib") is None:
        raise ImportError(
            "figures need matplotlib: pip install 'keras-vit-zoo[plots]'. The arrays work without it."
        )


def filters_figure(filters: Filters) -> Any:
    """Principal components of the first filters, the most important first (Figure 7, left)."""
    pictures = filter_pictures(filters.components)
    height, width = pictures.shape[1:3]
    rows = math.ceil(len(pictures) / FILTER_COLUMNS)
    columns = min(FILTER_COLUMNS, len(pictures))
    figure = new_figure(max(columns * 0.95, 4.8), rows * 1.08 + 0.75)
    for i, axes in enumerate(_grid(figure, rows, columns, len(pictures))):
        picture = pictures[i, ..., 0] if pictures.shape[-1] == 1 else pictures[i]
        axes.imshow(picture, cmap="gray", vmin=0.0, vmax=1.0, interpolation="nearest")
        axes.set_title(f"{i + 1}: {filters.variance[i]:.1%}", fontsize=8, pad=3)
    where = "embedding filters" if filters.layer == "embedding" else "first convolution's filters"
    _title(figure, f"Principal components of the {where}, {height}×{width} pixels each")
    figure.supxlabel("number: share of the variance; mid-grey is 0", fontsize=9)
    return figure


def positions_figure(similarity: np.ndarray) -> Any:
    """Similarity of position embeddings, one tile per patch (Figures 7, centre, and 10).

    Args:
        similarity: (h, w, h, w) from `position_similarity`. Of grids with more than `MOST_TILES`
            patches down or across, every second, third, ... patch has a tile.
    """
    height, width = similarity.shape[:2]
    step = math.ceil(max(height, width) / MOST_TILES)
    # Steps that leave half a step at both ends.
    rows, cols = (np.arange(step // 2, n, step) for n in (height, width))
    # One cell between tiles, which stays blank.
    mosaic = np.full((len(rows) * (height + 1) - 1, len(cols) * (width + 1) - 1), np.nan)
    for i, row in enumerate(rows):
        for j, col in enumerate(cols):
            top, left = i * (height + 1), j * (width + 1)
            mosaic[top : top + height, left : left + width] = similarity[row, col]
    # Three dots or more for each cell, so that the lines between tiles look alike.
    wide = min(max(mosaic.shape[1] * 3 / DPI, 5.4), 9.0)
    tall = wide * min(max(mosaic.shape[0] / mosaic.shape[1], 0.3), 2.0)
    figure = new_figure(wide + 1.5, tall + 0.6)
    axes = figure.add_subplot()
    drawn = axes.imshow(mosaic, vmin=-1.0, vmax=1.0, cmap="viridis", interpolation="nearest")
    every = math.ceil(max(len(rows), len(cols)) / 8)  # labels that fit
    for axis, kept, size in ((axes.xaxis, cols, width), (axes.yaxis, rows, height)):
        centres = np.arange(len(kept)) * (size + 1) + (size - 1) / 2
        axis.set_ticks(centres[::every], [str(k + 1) for k in kept[::every]])
    axes.set_xlabel("input patch column")
    axes.set_ylabel("input patch row")
    axes.tick_params(length=0)
    for spine in axes.spines.values():
        spine.set_visible(False)
    bar = figure.colorbar(drawn, ax=axes, ticks=[-1, -0.5, 0, 0.5, 1], shrink=0.9)
    bar.set_label("cosine similarity")
    some = "" if step == 1 else f", every {_ordinal(step)} patch"
    _title(figure, f"Position embedding similarity, {height}×{width} patches{some}")
    return figure


def distance_figure(
    distance: np.ndarray, grid: tuple[int, int], pixels: tuple[int, int], images: int
) -> Any:
    """Mean attention distance of every head by layer (Figures 7, right, and 11).

    Args:
        distance: (L, H) in pixels.
        grid: (h, w), patches down and across.
        pixels: of the image from one patch to the next, (down, across).
        images: how many the mean is over.
    """
    layers, heads = distance.shape
    figure = new_figure(6.4, 4.2)
    axes = figure.add_subplot()
    uniform = measures.uniform_distance(grid, pixels)
    depth = np.repeat(np.arange(layers), heads)
    axes.axhline(uniform, color="#777777", linestyle="--", linewidth=1.2,
                 label=f"looking everywhere alike: {uniform:.1f} pixels")  # fmt: skip
    axes.plot(np.arange(layers), distance.mean(axis=1), color="#d95f02", linewidth=1.5,
              label="mean of the heads")  # fmt: skip
    axes.scatter(depth, distance.ravel(), s=26, color="#1f5fa8", alpha=0.75, linewidths=0,
                 zorder=3, label="one head")  # fmt: skip
    axes.set_xlabel("layer, from the input (0) to the output")
    axes.set_ylabel("mean attention distance (pixels)")
    axes.set_ylim(0.0, 1.2 * max(uniform, float(distance.max())))
    axes.set_xlim(-0.5, layers - 0.5)
    axes.set_xticks(np.arange(0, layers, max(1, math.ceil(layers / 12))))
    axes.grid(alpha=0.25)
    axes.legend(loc="upper left", ncols=3, fontsize=8, frameon=False)
    size = f"{grid[0] * pixels[0]}×{grid[1] * pixels[1]} pixels"
    _title(figure, f"How far each head looks, mean over {_images(images)} of {size}")
    return figure


def rollout_figure(
    pictures: np.ndarray,
    rollout: np.ndarray,
    pixels: tuple[int, int],
    names: Sequence[str],
    query: str,
) -> Any:
    """Attention rollout of images: the input, the weights of the patches, the overlay (Figure 6).

    Args:
        pictures: (B, H, W, 3) uint8, what the model saw.
        rollout: (B, h, w).
        pixels: of the image from one patch to the next, (down, across).
        names: of the images.
        query: whose attention it is, see `Seen`.
    """
    height, width = pictures.shape[1:3]
    figure = new_figure(3 * _wide(height, width) + 1.3, len(pictures) * (CELL + 0.25) + 0.4)
    cells = _grid(figure, len(pictures), 3, 3 * len(pictures))
    for i, picture in enumerate(pictures):
        image, patches, both = cells[3 * i : 3 * i + 3]
        _show(image, picture)
        image.set_title(_short(names[i]), fontsize=9, parse_math=False)
        drawn = _map(patches, rollout[i], pixels, (height, width))
        bar = figure.colorbar(drawn, ax=patches, shrink=0.8, pad=0.02)
        bar.ax.tick_params(labelsize=7)
        bar.ax.yaxis.set_major_formatter(lambda value, _: f"{100 * value:.2g} %")
        _show(both, overlay(picture, rollout[i], pixels))
        if i == 0:
            patches.set_title("share of each patch", fontsize=9)
            both.set_title("overlay", fontsize=9)
    _title(figure, f"Attention rollout ({query}): what the output attends to")
    return figure


def maps_figure(
    pictures: np.ndarray,
    maps: np.ndarray,
    pixels: tuple[int, int],
    names: Sequence[str],
    layers: Sequence[int],
    heads: Sequence[int],
    query: str,
) -> Any:
    """Attention of chosen heads, each map scaled to its own largest weight.

    Args:
        pictures: (B, H, W, 3) uint8, what the model saw.
        maps: (B, layers, heads, h, w).
        pixels: of the image from one patch to the next, (down, across).
        names: of the images.
        layers, heads: numbers of those in `maps`.
        query: whose attention it is, see `Seen`.
    """
    height, width = pictures.shape[1:3]
    columns = min(len(heads), MAP_COLUMNS)
    lines = math.ceil(len(heads) / columns)  # of one image and layer
    rows = len(pictures) * len(layers) * lines
    figure = new_figure(
        max((columns + 1) * (_wide(height, width) * 0.75 + 0.1), 4.8),
        rows * (CELL * 0.75 + 0.42) + 0.4,
    )
    cells = np.array(_grid(figure, rows, columns + 1, rows * (columns + 1)))
    cells = cells.reshape(len(pictures), len(layers), lines, columns + 1)
    for i, picture in enumerate(pictures):
        for j, layer in enumerate(layers):
            for axes in cells[i, j, 1:, 0]:
                axes.set_axis_off()
            _show(cells[i, j, 0, 0], picture)
            label = f"{_short(names[i], 16)}\nlayer {layer}"
            cells[i, j, 0, 0].set_title(label, fontsize=8, parse_math=False)
            places = cells[i, j, :, 1:].ravel()
            for axes in places[len(heads) :]:
                axes.set_axis_off()
            for axes, head, weights in zip(places, heads, maps[i, j], strict=False):
                _map(axes, weights, pixels, (height, width))
                axes.set_title(f"head {head}\n≤ {weights.max():.2g}", fontsize=8)
    _title(figure, f"Attention of single heads ({query}); ≤: largest weight, yellow")
    return figure


def features_figure(
    pictures: np.ndarray, colours: np.ndarray, pixels: tuple[int, int], names: Sequence[str]
) -> Any:
    """Patch features as colours beside the images.

    Args:
        pictures: (B, H, W, 3) uint8, what the model saw.
        colours: (B, h, w, 3) from `feature_colours`.
        pixels: of the image from one patch to the next, (down, across).
        names: of the images.
    """
    height, width = pictures.shape[1:3]
    columns = min(len(pictures), 4)
    blocks = math.ceil(len(pictures) / columns)
    figure = new_figure(
        max(columns * (_wide(height, width) + 0.1), 5.2), blocks * (2 * CELL + 0.25) + 0.35
    )
    cells = np.array(_grid(figure, 2 * blocks, columns, 2 * blocks * columns))
    for i, (above, below) in enumerate(
        cells.reshape(blocks, 2, columns).transpose(0, 2, 1).reshape(-1, 2)
    ):
        if i >= len(pictures):
            above.set_axis_off()
            below.set_axis_off()
            continue
        _show(above, pictures[i])
        above.set_title(_short(names[i]), fontsize=9, parse_math=False)
        below.imshow(
            colours[i], extent=_extent(colours.shape[1:3], pixels), interpolation="nearest"
        )
        _frame(below, (height, width))
    _title(figure, "Patch features: principal components 1, 2, 3 as red, green, blue")
    return figure


def pictures_figure(columns: dict[str, np.ndarray], title: str) -> Any:
    """Pictures of the same images beside each other, a row for each image.

    Args:
        columns: by title, (B, H, W, 1 or 3) uint8.
        title: of the figure.
    """
    count, height, width = next(iter(columns.values())).shape[:3]
    figure = new_figure(
        max(len(columns) * (_wide(height, width) * 0.75 + 0.1), 4.8), count * CELL * 0.75 + 0.6
    )
    for i, axes in enumerate(_grid(figure, count, len(columns), count * len(columns))):
        row, column = divmod(i, len(columns))
        name, pictures = list(columns.items())[column]
        _show(axes, np.broadcast_to(pictures[row], (height, width, 3)))
        if row == 0:
            axes.set_title(name, fontsize=9)
    _title(figure, title)
    return figure


def png(figure: Any) -> bytes:
    """A figure as a PNG."""
    stream = io.BytesIO()
    with warnings.catch_warnings():
        # A name in a script that the font lacks shows as boxes.
        warnings.filterwarnings("ignore", "Glyph .* missing from", UserWarning)
        figure.savefig(stream, format="png", facecolor="white", metadata={"Software": None})
    return stream.getvalue()


def new_figure(width: float, height: float) -> Any:
    """An empty figure of so many inches, which no window shows.

    Raises:
        ImportError: matplotlib is missing.
    """
    check_installed()
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), dpi=DPI)
    figure.set_layout_engine("constrained", h_pad=0.03, w_pad=0.03, hspace=0.0, wspace=0.0)
    FigureCanvasAgg(figure)
    return figure


def _grid(figure: Any, rows: int, columns: int, used: int) -> list[Any]:
    """Axes without ticks, row by row; those that are not used are blank."""
    cells = list(figure.subplots(rows, columns, squeeze=False).ravel())
    for i, axes in enumerate(cells):
        axes.set_xticks([])
        axes.set_yticks([])
        if i >= used:
            axes.set_axis_off()
    return cells[:used]


def _title(figure: Any, text: str) -> None:
    figure.suptitle(text, fontsize=10)


def _show(axes: Any, picture: np.ndarray) -> None:
    height, width = picture.shape[:2]
    axes.imshow(picture, extent=(0, width, height, 0), interpolation="nearest")


def _map(axes: Any, weights: np.ndarray, pixels: tuple[int, int], size: tuple[int, int]) -> Any:
    """Weights per patch, at the place of the patches in the image; from 0 to the largest."""
    largest = float(weights.max())
    drawn = axes.imshow(
        weights,
        extent=_extent(weights.shape, pixels),
        vmin=0.0,
        vmax=largest if largest > 0 else 1.0,
        cmap="viridis",
        interpolation="nearest",
    )
    _frame(axes, size)
    return drawn


def _extent(grid: Sequence[int], pixels: tuple[int, int]) -> tuple[float, float, float, float]:
    return (0, grid[1] * pixels[1], grid[0] * pixels[0], 0)


def _frame(axes: Any, size: tuple[int, int]) -> None:
    axes.set_xlim(0, size[1])
    axes.set_ylim(size[0], 0)


def _wide(height: int, width: int) -> float:
    """Inches across of a picture that is `CELL` inches high."""
    return CELL * min(max(width / height, 0.6), 2.5)


def _short(name: str, length: int = NAME_LENGTH) -> str:
    name = "".join(c if c.isprintable() else "?" for c in name)
    return name if len(name) <= length else f"{name[: length - 1]}…"


def _ordinal(number: int) -> str:
    return {2: "second", 3: "third"}.get(number, f"{number}th")


def _images(count: int) -> str:
    return "1 image" if count == 1 else f"{count} images"
