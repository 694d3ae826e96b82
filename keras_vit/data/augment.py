"""Batch augmentations in NumPy on uint8 images (B, h, w, C), each a plain function of a generator."""

from collections.abc import Callable

import numpy as np

Augmentation = Callable[[np.ndarray, np.random.Generator], np.ndarray]


def flip(images: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Mirrors half of the images left to right."""
    mirrored = rng.random(len(images)) < 0.5
    return np.where(mirrored[:, None, None, None], images[:, :, ::-1], images)


def shift(images: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Moves each image by up to a fourteenth of its size in both directions, filling with zeros."""
    batch, height, width, _ = images.shape
    reach = max(1, height // 14), max(1, width // 14)
    padded = np.pad(images, ((0, 0), (reach[0],) * 2, (reach[1],) * 2, (0, 0)))
    top = rng.integers(0, 2 * reach[0] + 1, batch)
    left = rng.integers(0, 2 * reach[1] + 1, batch)
    rows = top[:, None] + np.arange(height)
    cols = left[:, None] + np.arange(width)
    return padded[np.arange(batch)[:, None, None], rows[:, :, None], cols[:, None, :]]


def erase(images: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Fills, in half of the images, a rectangle of 2 to 20 % of the area with random values.

    Source: random erasing, arXiv 1708.04896.
    """
    images = images.copy()
    batch, height, width, channels = images.shape
    for i in np.flatnonzero(rng.random(batch) < 0.5):
        area = rng.uniform(0.02, 0.2) * height * width
        ratio = np.exp(rng.uniform(np.log(0.5), np.log(2.0)))
        h = min(height, max(1, round(np.sqrt(area * ratio))))
        w = min(width, max(1, round(np.sqrt(area / ratio))))
        y, x = rng.integers(0, height - h + 1), rng.integers(0, width - w + 1)
        images[i, y : y + h, x : x + w] = rng.integers(0, 256, (h, w, channels), np.uint8)
    return images


AUGMENTATIONS: dict[str, Augmentation] = {"flip": flip, "shift": shift, "erase": erase}


def mixup(images: np.ndarray, targets: np.ndarray, alpha: float, rng: np.random.Generator):
    """Blends every example with its neighbour, images and targets alike, one weight per batch.

    Source: big_vision utils.py: weight max(b, 1 - b) with b from Beta(alpha, alpha), partner the
    batch rolled by one.
    """
    b = rng.beta(alpha, alpha)
    weight = np.float32(max(b, 1.0 - b))
    images = weight * images + (1.0 - weight) * np.roll(images, 1, axis=0)
    targets = weight * targets + (1.0 - weight) * np.roll(targets, 1, axis=0)
    return images.astype(np.float32), targets.astype(np.float32)
