"""Images in and out: what the model saw, as pixels, and attention laid over it."""

from collections.abc import Iterator, Sequence
from typing import Any

import keras
import numpy as np

from keras_vit.analysis.backbone import find_backbone
from keras_vit.data.images import read_image
from keras_vit.layers.preprocessor import preprocess

SHADE = 0.75  # how dark what gets no attention becomes: 1 is black


def prepare(model: keras.Model, images: Sequence[Any]) -> Iterator[np.ndarray]:
    """Model inputs (H, W, C) float32 one by one, from anything that `predict_images` takes.

    Args:
        model: a ViT or hybrid of this package, or a model that contains one.
        images: paths, bytes, PIL images or uint8 arrays.

    Raises:
        TypeError: no Vision Transformer there, see `find_backbone`.
        ValueError: something is no image.
    """
    backbone = find_backbone(model)
    spec, how = backbone.spec, backbone.preprocessing
    for image in images:
        yield preprocess(read_image(image, spec.in_channels), spec.image_size, how)


def as_pixels(model: keras.Model, inputs: np.ndarray) -> np.ndarray:
    """What the model saw, resized and cropped as it was: (B, H, W, C) inputs -> (B, H, W, 3) uint8.

    Grey images get three equal channels; of other numbers of channels the mean is shown.
    """
    how = find_backbone(model).preprocessing
    pixels = inputs * np.asarray(how.std, np.float32) + np.asarray(how.mean, np.float32)
    if pixels.shape[-1] != 3:
        pixels = np.repeat(pixels.mean(axis=-1, keepdims=True), 3, axis=-1)
    return np.clip(np.rint(pixels), 0, 255).astype(np.uint8)


def overlay(
    image: np.ndarray, mask: np.ndarray, pixels: tuple[int, int], *, shade: float = SHADE
) -> np.ndarray:
    """An image darkened where it gets little attention: uint8 (H, W, 3).

    Args:
        image: uint8 (H, W, 3), the model's input as pixels.
        mask: (h, w), not negative, for example of the rollout.
        pixels: of the image from one patch to the next, (down, across).
        shade: 0 leaves the image as it is, 1 makes what gets least attention black.

    Source: an author's note in vision_transformer issue 27; see `smooth_mask`.
    """
    weight = smooth_mask(mask, pixels, image.shape[:2])[..., None]
    return np.rint(image * (1.0 - shade * (1.0 - weight))).astype(np.uint8)


def smooth_mask(mask: np.ndarray, pixels: tuple[int, int], size: tuple[int, int]) -> np.ndarray:
    """A mask of patches at the size of the image, (H, W) float64 from 0 to 1; a flat mask gives 1.

    Divided by its largest value, scaled up by Lanczos' kernel, blurred by a Gaussian whose radius is
    the patch size, and stretched from 0 to 1. In 8 bits, which is what Pillow blurs.

    Args:
        mask: (h, w), not negative.
        pixels: of the image from one patch to the next, (down, across).
        size: (H, W) of the image. Where patches leave a border out (`allow_crop`), the border
            repeats; where they reach beyond it (hybrids round up), the rest is cut off.

    Source: an author's note in vision_transformer issue 27.
    """
    from PIL import Image, ImageFilter

    # A constant mask differs only by rounding, which min-max would blow up.
    if np.ptp(mask) <= 1e-6 * np.abs(mask).max(initial=0.0):
        return np.ones(size)
    small = Image.fromarray((255.0 * mask / mask.max()).astype(np.float32))
    covered = tuple(n * p for n, p in zip(mask.shape, pixels, strict=True))
    large = np.asarray(small.resize(covered[::-1], Image.Resampling.LANCZOS))
    border = [(0, max(want - have, 0)) for want, have in zip(size, covered, strict=True)]
    large = np.pad(large, border, mode="edge")[: size[0], : size[1]]
    picture = Image.fromarray(np.clip(np.rint(large), 0, 255).astype(np.uint8))
    radius = (pixels[1], pixels[0])  # Pillow's order
    blurred = np.asarray(picture.filter(ImageFilter.GaussianBlur(radius)), np.float64)
    span = np.ptp(blurred)
    return (blurred - blurred.min()) / span if span else np.ones(size)
