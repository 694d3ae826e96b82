"""What training does to images, as data, and the plain ones in NumPy on uint8 batches (B, h, w, C)."""

import dataclasses

import numpy as np

CROPS = ("none", "inception", "random")


@dataclasses.dataclass(frozen=True)
class Augment:
    """What training does to images.

    Attributes:
        crop: `none` (resize to the model's size), `inception` (a box of random area and aspect), or
            `random` (resize to `resize`, then a random box of the model's size).
        crop_area: shares of the image's area that the Inception box may have.
        resize: pixels of the square that `random` crops from; None for 8/7 of the model's size.
        flip: mirror half of the images.
        shift: move images by up to a fourteenth of their size (small data sets).
        randaugment: (operations per image, magnitude), None for none.
        erase: share of the images in which a rectangle is filled with noise.
        mixup: parameter of the Beta distribution, 0 for none.
        cutmix: parameter of the Beta distribution, 0 for none; with mixup, one of both per batch.
    """

    crop: str = "none"
    crop_area: tuple[float, float] = (0.05, 1.0)
    resize: int | None = None
    flip: bool = False
    shift: bool = False
    randaugment: tuple[int, float] | None = None
    erase: float = 0.0
    mixup: float = 0.0
    cutmix: float = 0.0

    def __post_init__(self):
        if self.crop not in CROPS:
            raise ValueError(f"crop must be one of {list(CROPS)}, got {self.crop!r}.")
        for field in ("mixup", "cutmix"):
            if not 0.0 <= getattr(self, field) < float("inf"):
                raise ValueError(f"{field} must be zero or more, got {getattr(self, field)}.")
        object.__setattr__(self, "crop_area", tuple(self.crop_area))
        if self.randaugment is not None:
            object.__setattr__(self, "randaugment", tuple(self.randaugment))
        low, high = self.crop_area
        if not 0.0 < low <= high <= 1.0:
            raise ValueError(
                f"crop_area must be two rising shares in (0, 1], got {self.crop_area}."
            )
        if not 0.0 <= self.erase <= 1.0:
            raise ValueError(f"erase must be in [0, 1], got {self.erase}.")

    @property
    def plain(self) -> bool:
        """Whether the functions below are all it takes."""
        return self.crop == "none" and self.randaugment is None and not self.cutmix


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


def erase(images: np.ndarray, rng: np.random.Generator, share: float) -> np.ndarray:
    """Fills, in a share of the images, a rectangle of 2 to 20 % of the area with random values.

    Source: random erasing, arXiv 1708.04896.
    """
    images = images.copy()
    batch, height, width, channels = images.shape
    for i in np.flatnonzero(rng.random(batch) < share):
        area = rng.uniform(0.02, 0.2) * height * width
        ratio = np.exp(rng.uniform(np.log(0.5), np.log(2.0)))
        h = min(height, max(1, round(np.sqrt(area * ratio))))
        w = min(width, max(1, round(np.sqrt(area / ratio))))
        y, x = rng.integers(0, height - h + 1), rng.integers(0, width - w + 1)
        images[i, y : y + h, x : x + w] = rng.integers(0, 256, (h, w, channels), np.uint8)
    return images


def apply(augment: Augment, images: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Flip, shift and erase, as far as `augment` asks for them, in this order."""
    if augment.flip:
        images = flip(images, rng)
    if augment.shift:
        images = shift(images, rng)
    if augment.erase:
        images = erase(images, rng, augment.erase)
    return images


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
