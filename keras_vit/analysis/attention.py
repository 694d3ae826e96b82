"""What a model does with images: attention distance, rollout, maps of heads, features.

The token stream is carried from block to block, and each layer's attention is reduced before the next
one is computed, a few images at a time. So the memory needed is that of one layer's attention of a
few images (67 MB for ViT-L with 1024 patches, one image), however many layers and images there are.

Letters: B images, L layers, H heads, N tokens, h x w the patch grid.
"""

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_vit.analysis import measures
from keras_vit.analysis.backbone import QUERIES, find_backbone, pixels_per_token, transformer_spec
from keras_vit.model import VisionModel
from keras_vit.spec import ViTSpec

ATTENTION_BYTES = (
    2**26
)  # of one layer's attention that are in memory at a time, if one image is less
MOST_IMAGES = 16  # at a time
PARTS = ("distance", "rollout", "maps", "features")

Cell = tuple[int, int]


@dataclasses.dataclass(frozen=True)
class Seen:
    """What `look` found; None for what was not asked for.

    Attributes:
        distance: (B, L, H) float64, mean attention distance in pixels of the model's input.
        rollout: (B, h, w) float64, how much the output attends to each patch through all layers.
        maps: (B, layers chosen, heads chosen, h, w) float32, attention weights.
        features: (B, h, w, D) float32, patch tokens after the last norm.
        output: whose attention `rollout` shows, what the model's output is made from: `class token`,
            `first patch`, or `mean over patches` (models without class token).
        query: whose attention `maps` shows: the same, or `patch (row, column)` if one was chosen.
    """

    distance: np.ndarray | None
    rollout: np.ndarray | None
    maps: np.ndarray | None
    features: np.ndarray | None
    output: str
    query: str


def look(
    model: keras.Model,
    images: Any,
    *,
    parts: Sequence[str] = PARTS,
    layers: Sequence[int] = (-1,),
    heads: Sequence[int] | None = None,
    query: Cell | None = None,
    renormalise: bool = False,
    progress: Callable[[int], None] | None = None,
) -> Seen:
    """One pass of images through a model, of which each layer's attention is reduced at once.

    Args:
        model: a ViT or hybrid of this package, or a model that contains one.
        images: preprocessed, an array (B, H, W, C) or an iterable of (H, W, C); read as needed.
        parts: some of `PARTS`.
        layers: whose attention maps; negative numbers count from the last.
        heads: which heads, None for all.
        query: (row, column) of the patch whose attention the maps show; None for the token that the
            output is made from (class token; the mean over patches where there is none).
        renormalise: for the distance, see `measures.mean_distance`.
        progress: called with the number of images done.

    Raises:
        TypeError: no attention there, see `find_backbone`.
        ValueError: no images, or of another shape; no such part, layer, head or patch.
    """
    backbone = find_backbone(model)
    spec = transformer_spec(backbone)
    if unknown := sorted(set(parts) - set(PARTS)):
        raise ValueError(f"unknown parts {unknown}: choose from {list(PARTS)}.")
    layers = _numbers(layers, spec.num_layers, "layer")
    heads = _numbers(range(spec.num_heads) if heads is None else heads, spec.num_heads, "head")
    if query is not None and not all(0 <= q < n for q, n in zip(query, spec.grid, strict=True)):
        raise ValueError(f"there is no patch {tuple(query)}: the grid is {spec.grid}.")
    grid, pixels = spec.grid, pixels_per_token(spec)
    distances = measures.pixel_distances(grid, pixels)
    found: dict[str, list[np.ndarray]] = {part: [] for part in parts}
    for batch in _batches(images, spec):
        joint: Any = None
        far, chosen = [], {}
        for index, attention in layer_attention(backbone, batch):
            if index == spec.num_layers:
                if "features" in found:
                    tokens = attention[:, spec.num_prefix_tokens :]
                    found["features"].append(tokens.reshape(len(batch), *grid, -1))
                break
            if "distance" in found:
                far.append(measures.mean_distance(attention, distances, renormalise=renormalise))
            if "rollout" in found:
                joint = measures.roll(joint, attention)
            if "maps" in found and index in layers:
                chosen[index] = query_map(spec, attention[:, heads], query)
        if "distance" in found:
            found["distance"].append(np.stack(far, axis=1))
        if "rollout" in found:
            found["rollout"].append(query_map(spec, joint))
        if "maps" in found:
            found["maps"].append(np.stack([chosen[i] for i in layers], axis=1))
        if progress is not None:
            progress(len(batch))
    gathered = {part: np.concatenate(arrays) for part, arrays in found.items()}
    output = QUERIES[spec.pool]
    whose = output if query is None else f"patch ({query[0]}, {query[1]})"
    return Seen(**{part: gathered.get(part) for part in PARTS}, output=output, query=whose)


def attention_distance(model: keras.Model, images: Any, *, renormalise: bool = False) -> np.ndarray:
    """Mean attention distance (L, H) in pixels over images; arguments and errors as `look`.

    Source: arXiv 2010.11929, Figures 7 (right) and 11, over 128 images there.
    """
    seen = look(model, images, parts=("distance",), renormalise=renormalise)
    return np.mean(np.asarray(seen.distance), axis=0)


def attention_rollout(model: keras.Model, images: Any) -> np.ndarray:
    """Attention rollout (B, h, w) float64 from the output to the patches; arguments as `look`.

    From the class token, whose own column and those of other tokens before the patches are left
    out; from the mean over patches in models without one.

    Source: arXiv 2010.11929, Figures 6 and 14, appendix D.8.
    """
    return np.asarray(look(model, images, parts=("rollout",)).rollout)


def attention_maps(
    model: keras.Model,
    images: Any,
    *,
    layers: Sequence[int] = (-1,),
    heads: Sequence[int] | None = None,
    query: Cell | None = None,
) -> np.ndarray:
    """Attention weights (B, layers, heads, h, w) float32 of chosen layers and heads; see `look`."""
    seen = look(model, images, parts=("maps",), layers=layers, heads=heads, query=query)
    return np.asarray(seen.maps)


def layer_attention(backbone: VisionModel, images: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
    """(i, attention (B, H, N, N) float32) of each layer in turn, then (num_layers, tokens (B, N, D))
    after the last norm; each is computed when it is asked for.

    Args:
        backbone: from `find_backbone`.
        images: preprocessed (B, H, W, C).
    """
    count = transformer_spec(backbone).num_layers
    blocks = [backbone.get_layer(f"encoderblock_{i}") for i in range(count)]
    inputs = [backbone.endpoints.block_input(block.name) for block in blocks]  # (B, N, D)
    x, before = images, backbone.inputs[0]
    for index, block in enumerate(blocks):
        if inputs[index] is not before:
            x = keras.Model(before, inputs[index])(x, training=False)
        before = backbone.endpoints[block.name]
        yield index, _float32(block(x, return_attention=True))
        x = block(x, training=False)
    yield len(blocks), _float32(backbone.get_layer("encoder_norm")(x))


def query_map(spec: ViTSpec, attention: np.ndarray, query: Cell | None = None) -> np.ndarray:
    """(..., N, N) -> (..., h, w): one query's row over the patches, see `look`."""
    first = spec.num_prefix_tokens
    kind = QUERIES[spec.pool]
    if query is not None:
        row = attention[..., first + query[0] * spec.grid[1] + query[1], first:]
    elif kind == "class token":
        row = attention[..., 0, first:]
    elif kind == "first patch":
        row = attention[..., first, first:]
    else:
        row = attention[..., first:, first:].mean(axis=-2)
    # A copy: a view would keep the whole (N, N) in memory.
    return row.reshape(*row.shape[:-1], *spec.grid).copy()


def _batches(images: Any, spec: ViTSpec) -> Iterator[np.ndarray]:
    attention_bytes = 4 * spec.num_heads * spec.num_tokens**2
    size = min(max(ATTENTION_BYTES // attention_bytes, 1), MOST_IMAGES)
    shape = (*spec.image_size, spec.in_channels)
    stream, seen = iter(images), 0
    while chunk := list(itertools.islice(stream, size)):
        for image in chunk:
            if np.shape(image) != shape:
                raise ValueError(
                    f"inspection takes preprocessed images of shape {shape}, got {np.shape(image)}: "
                    f"make them with keras_vit.analysis.prepare(model, images)."
                )
        seen += len(chunk)
        yield np.stack([np.asarray(image, np.float32) for image in chunk])
    if not seen:
        raise ValueError("there are no images to inspect: give at least one.")


def _numbers(chosen: Iterable[int], count: int, what: str) -> list[int]:
    found = []
    for number in chosen:
        if not -count <= number < count:
            raise ValueError(
                f"there is no {what} {number}: this model has {count}, 0 to {count - 1}."
            )
        found.append(number % count)
    if not found:
        raise ValueError(f"choose at least one {what}.")
    return found


def _float32(x) -> np.ndarray:
    return ops.convert_to_numpy(ops.cast(x, "float32"))
