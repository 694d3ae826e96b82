"""What is to be predicted of patches, from the images as the model gets them, and how wrong it was."""

import keras
import numpy as np
from keras import ops

from keras_vit.card import Preprocessing
from keras_vit.layers.common import at_least_float32
from keras_vit.pretext.objective import CELLS, Pretext

# Colours are sums of whole numbers, in sixteenths of a grey level: the rounding of the normalisation
# would otherwise put colours at the edge of a class into the one below, by device.
UNITS = 16


def targets_of(pretext: Pretext, x, grid, patch_size, how: Preprocessing):
    """What is to be predicted of each patch.

    Args:
        pretext: which target.
        x: (B, H, W, C) float, preprocessed.
        grid: patches (down, across); pixels beyond them are left out, as the model does.
        patch_size: pixels of a patch.
        how: how `x` was normalised.

    Returns:
        Classes (B, N, cells) int32, or for `pixels` (B, N, values) float32 in the units of `x`.
    """
    if pretext.target == "pixels":
        patches = ops.transpose(patches_of(x, grid, patch_size), (0, 1, 3, 2, 4, 5))
        values = patch_size[0] * patch_size[1] * x.shape[-1]
        return ops.reshape(at_least_float32(patches), (-1, grid[0] * grid[1], values))
    return colour_classes(x, grid, patch_size, how, CELLS[pretext.target], pretext.bits_per_channel)


def patches_of(x, grid, patch_size):
    """(B, H, W, C) -> (B, h, patch height, w, patch width, C)."""
    (h, w), (height, width) = grid, patch_size
    x = x[:, : h * height, : w * width]
    return ops.reshape(x, (-1, h, height, w, width, x.shape[-1]))


def colour_classes(x, grid, patch_size, how: Preprocessing, cells: int, bits: int):
    """Mean colours of cells as classes: (B, H, W, C) -> (B, N, cells * cells) int32.

    Args:
        x: float, preprocessed; what lies outside 0..255 counts as the nearest of both.
        grid, patch_size, how: see `targets_of`.
        cells: of a patch, down and across; their edges may lie within pixels.
        bits: per channel. 3: means of 0 up to, but without, 32 are level 0, of 224 to 255 level 7.
            The class is the levels as the digits of a number, the first channel's first.
    """
    pixels = ops.cast(x, "float32") * np.asarray(how.std, np.float32)
    pixels = ops.clip(pixels + np.asarray(how.mean, np.float32), 0.0, 255.0)
    sums = ops.cast(ops.round(pixels * UNITS), "int32")
    sums = patches_of(sums, grid, patch_size)  # (B, h, ph, w, pw, C)
    down, across = (overlaps(side, cells) for side in patch_size)
    rows = [ops.sum(sums * k[:, None, None, None], axis=2) for k in down]  # each (B, h, w, pw, C)
    cols = [[ops.sum(row * k[:, None], axis=3) for k in across] for row in rows]
    means = ops.stack([cell for row in cols for cell in row], axis=3)  # (B, h, w, cells^2, C)
    # Weights of a cell add up to the pixels of a patch, whatever the number of cells.
    levels = means // (UNITS * patch_size[0] * patch_size[1] * 2 ** (8 - bits))
    channels = x.shape[-1]
    digits = np.array([2 ** (bits * (channels - 1 - c)) for c in range(channels)], np.int32)
    classes = ops.sum(levels * digits, axis=-1)
    return ops.reshape(classes, (-1, grid[0] * grid[1], cells * cells))


def overlaps(length: int, cells: int) -> np.ndarray:
    """int32 (cells, length): how much of each pixel lies in each cell, in parts of a `cells`-th."""
    edges, pixels = np.arange(cells)[:, None] * length, np.arange(length) * cells
    inside = np.minimum(edges + length, pixels + cells) - np.maximum(edges, pixels)
    return np.maximum(inside, 0).astype(np.int32)


def class_colours(classes: np.ndarray, channels: int, bits: int) -> np.ndarray:
    """The middle of each class: whole numbers (...) -> colours (..., channels) in 0..255, float32."""
    shifts = bits * np.arange(channels - 1, -1, -1)
    levels = (classes[..., None] >> shifts) & (2**bits - 1)
    return ((levels + 0.5) * 2 ** (8 - bits)).astype(np.float32)


def patch_losses(pretext: Pretext, targets, predictions):
    """Loss of each patch, (B, N): mean cross-entropy of its cells, or mean square over its values.

    Args:
        pretext: which target.
        targets: from `targets_of`.
        predictions: (B, N, cells, classes) logits, or (B, N, values); half precision is computed in
            float32.
    """
    predictions = at_least_float32(predictions)
    if pretext.target == "pixels":
        return ops.mean(ops.square(predictions - ops.cast(targets, predictions.dtype)), axis=-1)
    ours = ops.one_hot(targets, predictions.shape[-1], dtype=predictions.dtype)
    entropy = ops.logsumexp(predictions, axis=-1) - ops.sum(ours * predictions, axis=-1)
    return ops.mean(entropy, axis=-1)


def mean_over_corrupted(values, corrupted):
    """(B, N) of patches -> (B,) their mean over the corrupted ones of each image."""
    return ops.sum(values * corrupted, axis=1) / ops.sum(corrupted, axis=1)


class MeanOverBatch(keras.losses.Loss):
    """Losses of images, (B,), to their weighted sum by the batch size, as Keras's losses count it.

    Under a strategy that is a replica's share of the loss.
    """

    def call(self, y_true, y_pred):
        return y_pred
