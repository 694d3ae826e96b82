"""Everything that can be seen inside a model, gathered and written to a folder."""

import dataclasses
import io
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np

from keras_vit.analysis import figures, measures
from keras_vit.analysis.attention import Cell, Seen, look
from keras_vit.analysis.backbone import find_backbone, pixels_per_token, transformer_spec
from keras_vit.analysis.pictures import as_pixels, prepare
from keras_vit.analysis.report import clean, page
from keras_vit.analysis.weights import Filters, embedding_filters, position_similarity
from keras_vit.model import VisionModel
from keras_vit.train import rundir

PARTS = ("filters", "positions", "distance", "rollout", "maps", "features")
OF_IMAGES = ("rollout", "maps", "features")
REPORT, ARRAYS, NUMBERS = "inspection.html", "inspection.npz", "inspection.json"


@dataclasses.dataclass(frozen=True)
class Inspection:
    """What `inspect` found; None for what was not asked for or is not there.

    Attributes:
        model: its name.
        names: of the images shown.
        pictures: (B, H, W, 3) uint8, these images as the model saw them.
        predictions: for each of them the best (label, probability); empty without a usable head.
        grid: (h, w), patches down and across.
        pixels: of the image from one patch to the next, (down, across).
        filters: see `embedding_filters`.
        positions: (h, w, h, w), see `position_similarity`.
        distance: (L, H) pixels, mean over `distance_images` images.
        distance_images: how many.
        seen: `rollout`, `maps`, `features` and `query` of the images shown.
        layers, heads: numbers of those in `seen.maps`.
        notes: part -> why it is not there.
    """

    model: str
    names: tuple[str, ...]
    pictures: np.ndarray
    predictions: tuple[tuple[str, float], ...]
    grid: tuple[int, int]
    pixels: tuple[int, int]
    filters: Filters | None
    positions: np.ndarray | None
    distance: np.ndarray | None
    distance_images: int
    seen: Seen
    layers: tuple[int, ...]
    heads: tuple[int, ...]
    notes: dict[str, str]

    def arrays(self) -> dict[str, np.ndarray]:
        """Every array by its name in `inspection.npz`."""
        seen, filters = self.seen, self.filters
        found = {
            "pictures": self.pictures,
            "filters": filters and filters.components,
            "filters_variance": filters and filters.variance,
            "positions": self.positions,
            "distance": self.distance,
            "rollout": seen.rollout,
            "maps": seen.maps,
            "features": seen.features,
        }
        return {name: array for name, array in found.items() if array is not None}

    def summary(self) -> dict[str, Any]:
        """The numbers in a few plain values."""
        found: dict[str, Any] = {
            "model": self.model,
            "images": list(self.names),
            "predictions": [{"label": label, "probability": p} for label, p in self.predictions],
            "grid": list(self.grid),
            "pixels_per_patch": list(self.pixels),
            "notes": self.notes,
        }
        if self.filters is not None:
            found["filters"] = {
                "layer": self.filters.layer,
                "components": len(self.filters.components),
                "variance": _plain(self.filters.variance),
            }
        if self.positions is not None:
            cells = self.positions.reshape(len(self.positions) * self.positions.shape[1], -1)
            others = cells[~np.eye(len(cells), dtype=bool)]
            found["positions"] = {
                "lowest": float(cells.min()),
                "mean_of_others": float(others.mean()) if others.size else None,
                "mean_of_neighbours": _neighbours(self.positions),
            }
        if self.distance is not None:
            found["distance"] = {
                "images": self.distance_images,
                "unit": "pixels",
                "uniform": measures.uniform_distance(self.grid, self.pixels),
                "mean": float(self.distance.mean()),
                "per_layer": _plain(self.distance.mean(axis=1)),
                "per_layer_and_head": _plain(self.distance),
            }
        if self.seen.rollout is not None:
            found["rollout"] = {"query": self.seen.output, "peaks": peaks(self.seen.rollout)}
        if self.seen.maps is not None:
            found["maps"] = {"layers": list(self.layers), "heads": list(self.heads)}
        return found

    def figures(self) -> dict[str, Any]:
        """The figure of each part, in order.

        Raises:
            ImportError: matplotlib is missing.
        """
        seen, pictures, pixels, names = self.seen, self.pictures, self.pixels, self.names
        found: dict[str, Any] = {}
        if self.filters is not None:
            found["filters"] = figures.filters_figure(self.filters)
        if self.positions is not None:
            found["positions"] = figures.positions_figure(self.positions)
        if self.distance is not None:
            found["distance"] = figures.distance_figure(
                self.distance, self.grid, pixels, self.distance_images
            )
        if seen.rollout is not None:
            found["rollout"] = figures.rollout_figure(
                pictures, seen.rollout, pixels, names, seen.output
            )
        if seen.maps is not None:
            found["maps"] = figures.maps_figure(
                pictures, seen.maps, pixels, names, self.layers, self.heads, seen.query
            )
        if seen.features is not None:
            colours = measures.feature_colours(seen.features)
            found["features"] = figures.features_figure(pictures, colours, pixels, names)
        return found


def inspect(
    model: keras.Model,
    images: Any,
    *,
    names: Sequence[str] | None = None,
    parts: Sequence[str] = PARTS,
    layers: Sequence[int] = (-1,),
    heads: Sequence[int] | None = None,
    query: Cell | None = None,
    distance_images: Iterable[np.ndarray] | None = None,
    progress: Callable[[int], None] | None = None,
) -> Inspection:
    """Looks inside a model: its weights, and what it does with some images.

    Args:
        model: a ViT or hybrid of this package, or a model that contains one.
        images: those to show: a float array (B, H, W, C) of preprocessed ones, or whatever
            `predict_images` takes. They stay in memory.
        names: of the images, None for their paths or numbers.
        parts: some of `PARTS`.
        layers, heads, query: whose attention maps, see `look`.
        distance_images: preprocessed images (H, W, C) for the mean attention distance, read as
            needed; None for `images`.
        progress: called with the number of images done.

    Raises:
        TypeError: no attention there, see `find_backbone`.
        ValueError: no images, something is no image, no such part, layer or head.
    """
    backbone = find_backbone(model)
    spec = transformer_spec(backbone)
    if unknown := sorted(set(parts) - set(PARTS)):
        raise ValueError(f"unknown parts {unknown}: choose from {list(PARTS)}.")
    inputs, found_names = _inputs(backbone, images)
    names = tuple(clean(name) for name in (found_names if names is None else names))
    if len(names) != len(inputs):
        raise ValueError(f"there are {len(inputs)} images and {len(names)} names.")
    wanted, notes = tuple(part for part in OF_IMAGES if part in parts), {}
    seen = look(
        model, inputs, parts=wanted, layers=layers, heads=heads, query=query, progress=progress
    )  # fmt: skip
    filters = embedding_filters(model) if "filters" in parts else None
    positions = distance = None
    if "positions" in parts:
        try:
            positions = position_similarity(model)
        except ValueError as error:  # a model without positions is no mistake of the caller
            notes["positions"] = str(error)
    count = 0
    if "distance" in parts:
        source = inputs if distance_images is None else distance_images
        far = np.asarray(look(model, source, parts=("distance",), progress=progress).distance)
        count, distance = len(far), far.mean(axis=0)
    return Inspection(
        model=model.card.name if isinstance(model, VisionModel) and model.card else model.name,
        names=names,
        pictures=as_pixels(model, inputs),
        predictions=_predictions(model, inputs),
        grid=spec.grid,
        pixels=pixels_per_token(spec),
        filters=filters,
        positions=positions,
        distance=distance,
        distance_images=count,
        seen=seen,
        layers=tuple(i % spec.num_layers for i in layers),
        heads=tuple(
            i % spec.num_heads for i in (range(spec.num_heads) if heads is None else heads)
        ),
        notes=notes,
    )


def write(found: Inspection, folder: Path | str, *, command: str | None = None) -> dict[str, str]:
    """Writes `inspection.html`, one PNG per part, `inspection.npz` and `inspection.json`.

    Each file is written aside and renamed, the report last. PNGs of parts that an earlier
    inspection had and this one has not are removed.

    Args:
        found: from `inspect`.
        folder: made if it does not exist.
        command: the command line, for the report.

    Returns:
        The paths: `report`, `arrays`, `numbers`, and one for each part.

    Raises:
        ImportError: matplotlib is missing.
        OSError: the folder cannot be written.
    """
    folder = Path(folder)
    drawn = {part: figures.png(figure) for part, figure in found.figures().items()}
    folder.mkdir(parents=True, exist_ok=True)
    for part in PARTS:
        if part in drawn:
            rundir.write_bytes(folder / f"{part}.png", drawn[part])
        else:
            (folder / f"{part}.png").unlink(missing_ok=True)
    stream = io.BytesIO()
    arrays: dict[str, Any] = found.arrays()
    np.savez_compressed(stream, **arrays)
    rundir.write_bytes(folder / ARRAYS, stream.getvalue())
    summary = found.summary()
    rundir.write_json(folder / NUMBERS, summary)
    rundir.write_text(folder / REPORT, page(summary, found.arrays(), drawn, command))
    names = {"report": REPORT, "arrays": ARRAYS, "numbers": NUMBERS}
    names |= {part: f"{part}.png" for part in drawn}
    return {what: str(folder / name) for what, name in names.items()}


def peaks(rollout: np.ndarray) -> list[dict[str, Any]]:
    """Of each image, the patch that is attended to most and how many times the mean it gets."""
    found = []
    for weights in rollout:
        row, column = np.unravel_index(weights.argmax(), weights.shape)
        found.append({
            "row": int(row),
            "column": int(column),
            "times_the_mean": float(weights.max() / weights.mean()) if weights.any() else 1.0,
        })  # fmt: skip
    return found


def _inputs(backbone: VisionModel, images: Any) -> tuple[np.ndarray, list[str]]:
    """Preprocessed (B, H, W, C), and a name for each."""
    if isinstance(images, np.ndarray) and images.ndim == 4 and images.dtype != np.uint8:
        return images.astype(np.float32), [f"image {i + 1}" for i in range(len(images))]
    images = list(images) if isinstance(images, (list, tuple, np.ndarray)) else [images]
    if not images:
        raise ValueError("there are no images to inspect: give at least one.")
    named = [
        Path(image).name if isinstance(image, (str, Path)) else f"image {i + 1}"
        for i, image in enumerate(images)
    ]
    return np.stack(list(prepare(backbone, images))), named


def _predictions(model: keras.Model, inputs: np.ndarray) -> tuple[tuple[str, float], ...]:
    """The best label and its probability, where the model itself is a classifier of ours."""
    if not isinstance(model, VisionModel) or not model.has_usable_head:
        return ()
    if len(model.output_shape) != 2:
        return ()
    found = []
    for start in range(0, len(inputs), 8):
        for row in model.probabilities(inputs[start : start + 8]):
            found.append((model.class_names[row.argmax()], float(row.max())))
    return tuple(found)


def _neighbours(positions: np.ndarray) -> float | None:
    """Mean similarity of patches that touch along an edge; None for a single patch."""
    height, width = positions.shape[:2]
    rows, cols = np.mgrid[:height, :width]
    below = positions[rows[:-1], cols[:-1], rows[1:], cols[1:]]
    beside = positions[rows[:, :-1], cols[:, :-1], rows[:, 1:], cols[:, 1:]]
    touching = np.concatenate([below.ravel(), beside.ravel()])
    return float(touching.mean()) if touching.size else None


def _plain(array: np.ndarray) -> Any:
    return np.round(array.astype(np.float64), 6).tolist()
