"""Reading one image from whatever a user has."""

import io
import os
from pathlib import Path
from typing import Any

import numpy as np

ImageLike = Any  # path, bytes, PIL image, or array

MAX_PIXELS = 178_956_970  # Pillow's own bound against decompression bombs


def read_image(source: ImageLike, channels: int = 3) -> np.ndarray:
    """Decodes one image to uint8 (h, w, channels).

    Args:
        source: path, bytes, PIL image, or an array (h, w), (h, w, 1), (h, w, 3), (h, w, 4). Arrays
            must hold 0..255 integers; files may be of any kind and mode Pillow reads. EXIF
            rotation is applied, alpha is composed on white, 16-bit greys are scaled to 8 bits.
        channels: 1 for grey, 3 for RGB; any other number takes arrays with exactly that many.

    Raises:
        ValueError: the source is no image, or has the wrong dtype or channels.
    """
    if isinstance(source, np.ndarray):
        return _from_array(source, channels)
    from PIL import Image, ImageOps, UnidentifiedImageError

    if isinstance(source, Image.Image):
        name, image = "the PIL image", source
    else:
        if isinstance(source, (bytes, bytearray)):
            name, opened = f"{len(source)} bytes", io.BytesIO(source)
        elif isinstance(source, (str, os.PathLike)):
            name, opened = str(source), Path(source)
            if not opened.is_file():
                raise ValueError(f"{name} is no file: give the path of an image.")
        else:
            raise ValueError(
                f"cannot read an image from {type(source).__name__}: give a path, bytes, a PIL image "
                f"or a uint8 array."
            )
        try:
            image = Image.open(opened)
        except (UnidentifiedImageError, OSError, Image.DecompressionBombError) as error:
            raise ValueError(f"{name} is not an image that can be read ({error}).") from None
    if channels not in (1, 3):
        raise ValueError(
            f"this model takes {channels} channels and image files hold 1 or 3: pass arrays."
        )
    if image.width * image.height > MAX_PIXELS:
        raise ValueError(f"{name} has {image.width}x{image.height} pixels, more than {MAX_PIXELS}.")
    try:
        image = _to_mode(ImageOps.exif_transpose(image), "L" if channels == 1 else "RGB")
    except (OSError, SyntaxError, ValueError) as error:
        raise ValueError(f"{name} is a broken image ({error}).") from None
    array = np.asarray(image)
    return array[..., None] if channels == 1 else array


def _to_mode(image, mode: str):
    from PIL import Image

    if image.mode.startswith("I;16") or image.mode in ("I", "F"):
        values = np.asarray(image).astype(np.float64)
        values = values / 257.0 if values.max(initial=0) > 255 else values
        image = Image.fromarray(np.clip(np.round(values), 0, 255).astype(np.uint8))
    has_alpha = image.mode in ("RGBA", "LA", "PA") or "transparency" in image.info
    if has_alpha:
        image = image.convert("RGBA")
        white = Image.new("RGBA", image.size, (255, 255, 255, 255))
        image = Image.alpha_composite(white, image)
    return image.convert(mode)


def _from_array(array: np.ndarray, channels: int) -> np.ndarray:
    if array.ndim == 2:
        array = array[..., None]
    if array.ndim != 3:
        raise ValueError(f"an image array must be (height, width[, channels]), got shape {array.shape}.")
    if array.dtype != np.uint8:
        raise ValueError(
            f"an image array must hold uint8 values 0..255, got {array.dtype}: floats that are "
            f"already preprocessed go to the model directly."
        )
    have = array.shape[-1]
    if have == channels:
        return array
    if channels in (1, 3) and have in (1, 2, 3, 4):
        from PIL import Image

        mode = {1: "L", 2: "LA", 3: "RGB", 4: "RGBA"}[have]
        image = Image.fromarray(array[..., 0] if have == 1 else array, mode=mode)
        array = np.asarray(_to_mode(image, "L" if channels == 1 else "RGB"))
        return array[..., None] if channels == 1 else array
    raise ValueError(f"the image has {have} channels, but the model takes {channels}.")
