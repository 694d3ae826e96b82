"""Reconstructions as a figure: images, what the network saw of them, and what it predicted."""

import dataclasses
from pathlib import Path
from typing import Any

import keras
import numpy as np

from keras_vit.analysis import figures
from keras_vit.card import Preprocessing
from keras_vit.pretext.corrupt import FIXED_ROWS, fixed_draws
from keras_vit.pretext.model import MaskedPatchModel
from keras_vit.pretext.objective import CELLS
from keras_vit.pretext.targets import class_colours
from keras_vit.train import rundir
from keras_vit.train.evaluate import batches_of

FILE = "reconstructions.png"
IMAGES = 8
GREY = 128  # of masked patches
TITLES = {
    "mean_colour": "mean colour of a patch",
    "downsized": "4×4 colours of a patch",
    "pixels": "pixels of a patch",
}


@dataclasses.dataclass(frozen=True)
class Reconstructions:
    """Pictures (B, H, W, C) uint8 of the same images, of the patches that fill them.

    Attributes:
        original: the images.
        corrupted: masked patches are grey, replaced ones show the patch whose embedding they got.
        wanted: corrupted patches show what is to be predicted.
        predicted: corrupted patches show what the network predicts.
    """

    original: np.ndarray
    corrupted: np.ndarray
    wanted: np.ndarray
    predicted: np.ndarray


def reconstruct(model: MaskedPatchModel, x: np.ndarray) -> Reconstructions:
    """What a network makes of images, with the corruption of evaluation.

    Args:
        model: any `MaskedPatchModel`.
        x: (B, H, W, C) float32, preprocessed.
    """
    grid, size, channels = model.spec.grid, model.patch_size, model.spec.in_channels
    how, counts = model.preprocessing, model.corruption.counts
    patches = grid[0] * grid[1]
    predictions, corrupted = (keras.ops.convert_to_numpy(y) for y in model(x, training=False))
    hidden = corrupted[:, :, None, None, None] > 0
    pixels = _bytes(np.asarray(x, np.float32), how)
    pixels = pixels[:, : grid[0] * size[0], : grid[1] * size[1]]
    original = _patches(pixels, grid, size)

    ranks, steps = (draw[np.arange(len(x)) % FIXED_ROWS] for draw in fixed_draws(patches))
    other = (np.arange(patches) + steps) % patches
    replaced = (ranks >= counts.masked) & (ranks < counts.masked + counts.replaced)
    seen = np.where(
        replaced[..., None, None, None], original[np.arange(len(x))[:, None], other], original
    )
    seen = np.where(ranks[..., None, None, None] < counts.masked, np.float32(GREY), seen)

    found = predictions
    if model.pretext.target != "pixels":
        found = predictions.argmax(axis=-1)
    targets = keras.ops.convert_to_numpy(model.targets(x))
    drawn = [_drawn(model, values, size, channels) for values in (targets, found)]
    wanted, predicted = (np.where(hidden, picture, original) for picture in drawn)
    return Reconstructions(*(_image(p, grid) for p in (original, seen, wanted, predicted)))


def reconstruction_figure(found: Reconstructions, target: str) -> Any:
    """A matplotlib figure, a row of pictures for each image.

    Raises:
        ImportError: matplotlib is missing.
    """
    parts = dataclasses.asdict(found)
    return figures.pictures_figure(
        {name.replace("original", "image"): pictures for name, pictures in parts.items()},
        f"Masked patch prediction: {TITLES[target]}; masked patches are grey",
    )


def write(model: MaskedPatchModel, source: Any, path: Path) -> str | None:
    """Draws the first images of a source into a PNG; its name, or None without matplotlib."""
    try:
        figures.check_installed()
    except ImportError:
        return None
    spec, how = model.spec, model.preprocessing
    batches = batches_of(source, spec.image_size, spec.in_channels, how, IMAGES)
    x, _ = next(batches)
    figure = reconstruction_figure(reconstruct(model, x), model.pretext.target)
    rundir.write_bytes(path, figures.png(figure))
    return path.name


def _drawn(model: MaskedPatchModel, values: np.ndarray, size, channels: int) -> np.ndarray:
    """Classes (B, N, cells) or pixels (B, N, values) as patches (B, N, height, width, C) in 0..255."""
    target, how = model.pretext.target, model.preprocessing
    if target == "pixels":
        pixels = values.reshape(*values.shape[:2], *size, channels)
        return _bytes(pixels, how)
    cells = CELLS[target]
    colours = class_colours(values, channels, model.pretext.bits_per_channel)
    colours = colours.reshape(*values.shape[:2], cells, cells, channels)
    rows, cols = (np.arange(side) * cells // side for side in size)
    return colours[:, :, rows][:, :, :, cols]


def _bytes(x: np.ndarray, how: Preprocessing) -> np.ndarray:
    """Preprocessed values (..., C) as 0..255, not rounded."""
    return x * np.asarray(how.std, np.float32) + np.asarray(how.mean, np.float32)


def _patches(pixels: np.ndarray, grid, size) -> np.ndarray:
    """(B, H, W, C) -> (B, N, height, width, C)."""
    batch, channels = len(pixels), pixels.shape[-1]
    cut = pixels.reshape(batch, grid[0], size[0], grid[1], size[1], channels)
    return cut.transpose(0, 1, 3, 2, 4, 5).reshape(batch, -1, *size, channels)


def _image(patches: np.ndarray, grid) -> np.ndarray:
    """(B, N, height, width, C) in 0..255 -> (B, H, W, C) uint8."""
    batch, _, height, width, channels = patches.shape
    cut = patches.reshape(batch, *grid, height, width, channels).transpose(0, 1, 3, 2, 4, 5)
    whole = cut.reshape(batch, grid[0] * height, grid[1] * width, channels)
    return np.clip(np.rint(whole), 0, 255).astype(np.uint8)
