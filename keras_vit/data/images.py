"""Reading one image from whatever a user has."""

import contextlib
import io
import os
from pathlib import Path
from typing import Any

import numpy as np

ImageLike = Any  # path, bytes, PIL image, or array

MAX_PIXELS = 178_956_970  # Pillow's own bound against decompression bombs
# Raster formats only: Pillow would hand EPS files to an external program.
FORMATS = ("JPEG", "PNG", "GIF", "BMP", "WEBP", "TIFF", "PPM")


def read_image(source: ImageLike, channels: int = 3) -> np.ndarray:
    """Decodes one image to uint8 (h, w, channels).

    Args:
        source: path, bytes, PIL image, or an array (h, w), (h, w, 1), (h, w, 3), (h, w, 4). Arrays
            must hold 0..255 integers; files may be of any kind and mode Pillow reads. EXIF
            rotation is applied, alpha is composed on white, 16-bit greys are divided by 257.
        channels: 1 for grey, 3 for RGB; any other number takes arrays with exactly that many.

    Raises:
        ValueError: the source is no image, or has the wrong dtype or channels.
    """
    if isinstance(source, np.ndarray):
        return _from_array(source, channels)
    from PIL import Image

    if isinstance(source, Image.Image):
        return _decode(source, "the PIL image", channels)
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
    with contextlib.ExitStack() as stack:
        try:
            image = stack.enter_context(Image.open(opened, formats=FORMATS))
        except Exception:
            # Text chunks that unpack to gigabytes, tables that lie: not only OSError.
            raise ValueError(f"{name} is not an image that can be read.") from None
        return _decode(image, name, channels)


def problem_of(path: Path) -> str | None:
    """Why a file cannot be decoded, in one sentence, or None when it can."""
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(path, formats=FORMATS) as image:
            if image.width * image.height > MAX_PIXELS:
                return f"{path} has {image.width}x{image.height} pixels, more than {MAX_PIXELS}."
            image.draft("L", (1, 1))  # JPEG: an eighth of the size
            image.load()
    except (UnidentifiedImageError, Image.DecompressionBombError):
        return f"{path} is not an image that can be read."
    except Exception as error:
        return f"{path} is a broken image ({_one_line(error)})."
    return None


def _decode(image, name: str, channels: int) -> np.ndarray:
    from PIL import ImageOps

    if channels not in (1, 3):
        raise ValueError(
            f"this model takes {channels} channels and image files hold 1 or 3: pass arrays."
        )
    if image.width * image.height > MAX_PIXELS:
        raise ValueError(f"{name} has {image.width}x{image.height} pixels, more than {MAX_PIXELS}.")
    try:
        image = _to_mode(ImageOps.exif_transpose(image), "L" if channels == 1 else "RGB")
        array = np.asarray(image)
    except Exception as error:
        # A decoder fed with broken bytes may raise anything from OSError to struct.error.
        raise ValueError(f"{name} is a broken image ({_one_line(error)}).") from None
    return array[..., None] if channels == 1 else array


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())


def _to_mode(image, mode: str):
    from PIL import Image

    if image.mode.startswith("I") or image.mode == "F":
        # By mode, not by the values: a dark 16-bit image must stay dark. In place and in float32,
        # because the largest image that is allowed has 179 million pixels; no quotient by 257 lies
        # nearer to a half than 0.002, so that float32 rounds as float64 does.
        values = np.asarray(image).astype(np.float32)
        values /= 1 if image.mode == "F" else 257
        np.nan_to_num(values, copy=False)
        np.clip(np.rint(values, out=values), 0, 255, out=values)
        image = Image.fromarray(values.astype(np.uint8))
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
        raise ValueError(
            f"an image array must be (height, width[, channels]), got shape {array.shape}."
        )
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

        # Pillow names the mode itself: L, LA, RGB or RGBA by the number of channels.
        image = Image.fromarray(array[..., 0] if have == 1 else np.ascontiguousarray(array))
        array = np.asarray(_to_mode(image, "L" if channels == 1 else "RGB"))
        return array[..., None] if channels == 1 else array
    raise ValueError(f"the image has {have} channels, but the model takes {channels}.")
