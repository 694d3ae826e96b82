"""What a model's weights show without any image: its first filters and its positions."""

import dataclasses
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_vit.analysis import measures
from keras_vit.analysis.backbone import find_backbone, transformer_spec
from keras_vit.layers import StdConv2D
from keras_vit.model import VisionModel

FILTERS = 28  # as in the paper's Figure 7


@dataclasses.dataclass(frozen=True)
class Filters:
    """Principal components of the filters that see the pixels.

    Attributes:
        components: (n, h, w, C) float64 of length 1 each, the most important first; the entry of
            largest magnitude is positive.
        variance: (n,) share of the filters' variance.
        layer: whose filters: `embedding`, or `conv_root` of a hybrid.
    """

    components: np.ndarray
    variance: np.ndarray
    layer: str


def embedding_filters(model: keras.Model, count: int = FILTERS) -> Filters:
    """The principal components of the embedding filters, of which each hidden unit has one.

    The mean filter is subtracted. In a hybrid the embedding sees features of its ResNet instead of
    pixels, so the filters are those of the ResNet's first convolution, standardised as they are
    used. There are at most as many components as a filter has numbers.

    Raises:
        TypeError: no Vision Transformer there, see `find_backbone`.
        ValueError: `count` is below 1.

    Source: arXiv 2010.11929, Figure 7 (left): 28 of ViT-L/32.
    """
    if count < 1:
        raise ValueError(f"count must be at least 1, got {count}.")
    backbone = find_backbone(model)
    layer = backbone.get_layer(backbone.spec.input_layer)
    kernel = layer.standardized_kernel() if isinstance(layer, StdConv2D) else layer.kernel
    kernel = ops.convert_to_numpy(ops.cast(kernel, "float32"))  # (h, w, C, D)
    rows = kernel.reshape(-1, kernel.shape[-1]).T  # (D, h*w*C)
    components, variance = measures.principal_components(rows, count)
    return Filters(components.reshape(-1, *kernel.shape[:-1]), variance, layer.name)


def filter_pictures(components: np.ndarray) -> np.ndarray:
    """Components as pictures in [0, 1]: each divided by twice its largest magnitude, plus a half.

    So 0 is mid-grey, and what is brighter in one component than in another means nothing. Grey and
    RGB filters keep their channels, others show the mean of them.

    Args:
        components: (n, h, w, C).

    Returns:
        (n, h, w, 1 or 3).
    """
    if components.shape[-1] not in (1, 3):
        components = components.mean(axis=-1, keepdims=True)
    largest = np.abs(components).max(axis=(1, 2, 3), keepdims=True)
    return 0.5 + components / np.where(largest > 0, 2 * largest, 1.0)


def position_table(model: keras.Model) -> tuple[np.ndarray, int]:
    """What is added to the tokens: (n, D) float32, and how many rows stand before the h*w patches'.

    Learned or fixed, one table or two halves: whatever the layer adds to zeros.

    Raises:
        TypeError: no Vision Transformer there, see `find_backbone`.
        ValueError: the model adds no positions.
    """
    backbone = find_backbone(model)
    layer = _positions(backbone)
    spec = transformer_spec(backbone)
    # A layer that is used before every block has several inputs, and `input` is none of them.
    shape = (
        layer.input.shape[1:] if spec.posemb_at == "stem" else (spec.num_tokens, spec.hidden_size)
    )
    table = ops.convert_to_numpy(ops.cast(layer(np.zeros((1, *shape), np.float32)), "float32"))[0]
    height, width = backbone.spec.grid
    return table, len(table) - height * width


def _positions(backbone: VisionModel) -> Any:
    spec = transformer_spec(backbone)
    if not any(layer.name == "posembed_input" for layer in backbone.layers):
        raise ValueError(
            f"this model has no one position embedding of its tokens (posemb={spec.posemb!r}, "
            f"posemb_at={spec.posemb_at!r}), so there are no positions to compare."
        )
    return backbone.get_layer("posembed_input")


def position_similarity(model: keras.Model) -> np.ndarray:
    """Cosine similarity (h, w, h, w) float64 of each patch's position with every other's, -1 to 1.

    Tile [i, j] compares the position of the patch in row i and column j. Entries of tokens that are
    no patches are left out; `class_token_similarity` has the class token's.

    Raises:
        TypeError: no Vision Transformer there, see `find_backbone`.
        ValueError: the model adds no positions.

    Source: arXiv 2010.11929, Figures 7 (centre) and 10; an author's note in vision_transformer
    issue 138.
    """
    table, first = position_table(model)
    grid = find_backbone(model).spec.grid
    return measures.cosine_similarity(table[first:]).reshape(*grid, *grid)


def class_token_similarity(model: keras.Model) -> np.ndarray:
    """Cosine similarity (h, w) float64 of the class token's position with each patch's.

    Raises:
        TypeError: no Vision Transformer there, see `find_backbone`.
        ValueError: the model adds no positions, or none to a class token.
    """
    table, first = position_table(model)
    if not first:
        raise ValueError("this model adds positions to its patches only, not to a class token.")
    return measures.cosine_similarity(table)[0, first:].reshape(find_backbone(model).spec.grid)
