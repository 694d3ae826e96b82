"""What is kept of an image to tell whether another shows the same: a small copy, hashes, a digest.

The hashes find what may be the same, among millions; laying the small copies on top of each other tells
what is.
"""

import dataclasses
import functools
import hashlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from keras_vit.data.images import read_image
from keras_vit.data.sources import Source
from keras_vit.data.streams import Stream

HASH_SIZE = 12  # rows and columns of a hash
BITS = HASH_SIZE**2
SIDE = 4 * HASH_SIZE  # pixels that pHash works on
CROPS = (0.05, 0.10)  # shares of height and width that a view lacks
BLOCK = 1024  # images in memory at once
STEPS = 4  # of the alignment
COARSE = 2  # pixels of a small copy that are one in the alignment
SMALLEST = 0.8  # share of a side that the alignment may leave


@dataclasses.dataclass(frozen=True)
class Looks:
    """What is kept of some images.

    Attributes:
        places: (n,) in their set; what cannot be read is left out.
        small: uint8 (n, SIDE, SIDE, 3).
        hashes: bool (n, views, BITS): of the whole image first.
        sides: (n,) pixels of the shorter side.
        digests: (n,) bytes that tell whether all pixels are equal.
        read: images that were looked at, readable or not.
    """

    places: np.ndarray
    small: np.ndarray
    hashes: np.ndarray
    sides: np.ndarray
    digests: np.ndarray
    read: int

    @classmethod
    def joined(cls, parts: list["Looks"]) -> "Looks":
        """Those of several blocks."""

        def whole(name: str) -> np.ndarray:
            return np.concatenate([getattr(part, name) for part in parts])

        read = sum(part.read for part in parts)
        return cls(
            whole("places"), whole("small"), whole("hashes"), whole("sides"), whole("digests"), read
        )


def looks(source: Source | Stream) -> Iterator[Looks]:
    """The looks of all images of a source, a block at a time."""
    with ThreadPoolExecutor() as pool:
        for first in range(0, len(source), BLOCK):
            last = min(first + BLOCK, len(source))
            readers = images(source, first, last)
            made = [*pool.map(lambda read: _look(read()), readers)]
            good = [place for place, look in enumerate(made) if look is not None]
            seen = [look for look in made if look is not None]
            small = np.array([look[0] for look in seen], np.uint8).reshape(-1, SIDE, SIDE, 3)
            yield Looks(
                first + np.array(good, np.int64),
                small,
                hashes(small),
                np.array([look[1] for look in seen], np.int64),
                np.array([look[2] for look in seen], "S16"),
                last - first,
            )


def images(source: Source | Stream, first: int, last: int) -> Iterator[Callable[[], Any]]:
    """Readers of images in order: each gives uint8 (h, w, 3), or None where it cannot be read."""
    if isinstance(source, Source):
        for index in range(first, last):
            yield lambda index=index: source.image(index, 3)
        return
    for data, _ in source.read(first, last, None).map(source.parse).as_numpy_iterator():
        yield lambda data=data: _read(source, data)


def _read(source: Stream, data: bytes) -> np.ndarray | None:
    try:
        return read_image(data, 3)
    except ValueError as error:
        source.broken.append(str(error))
        return None


def _look(image: np.ndarray | None) -> tuple[np.ndarray, int, bytes] | None:
    """A small copy, the shorter side, and a digest of all pixels."""
    if image is None:
        return None
    from PIL import Image

    digest = hashlib.blake2b(image.tobytes() + repr(image.shape).encode(), digest_size=8)
    size, filter = (SIDE, SIDE), Image.Resampling.LANCZOS
    small = Image.fromarray(image).resize(size, filter, reducing_gap=3.0)
    return np.asarray(small), min(image.shape[:2]), digest.hexdigest().encode()


def hashes(small: np.ndarray) -> np.ndarray:
    """The hashes of all views of small images: bool (n, views, BITS).

    A bit says whether one of the 12 x 12 lowest frequencies of the grey image is above their median.
    That of the whole image is `imagehash.phash(image, hash_size=12)`, bit for bit; here many are
    computed at once, and cropping is one product with them.

    Args:
        small: uint8 (n, SIDE, SIDE, 3).
    """
    from PIL import Image

    grey = [np.asarray(Image.fromarray(image).convert("L")) for image in small]
    pixels = np.array(grey, np.float64).reshape(-1, SIDE, SIDE)
    found = []
    for y0, y1, x0, x1 in boxes():
        down, across = (
            _COSINES @ stretched(np.array([low]), np.array([high]), SIDE)[0]
            for low, high in ((y0, y1), (x0, x1))
        )
        low = down @ pixels @ across.T
        low = low.reshape(-1, BITS)
        # Of an image of one colour, rounding must not decide.
        slack = 1e-9 * np.abs(low).max(axis=1, keepdims=True)
        found.append(low > np.median(low, axis=1, keepdims=True) + slack)
    return np.stack(found, axis=1)


# Rows: the lowest frequencies of the cosine transform of SIDE numbers.
_COSINES = 2 * np.cos(np.pi / SIDE * np.outer(np.arange(HASH_SIZE), np.arange(SIDE) + 0.5))


@functools.cache
def boxes() -> np.ndarray:
    """What each view shows: (views, 4) shares of the sides, from and to, down and across.

    All of the image, then for each of `CROPS` the middle and the four corners.
    """
    found = [(0.0, 1.0, 0.0, 1.0)]
    for share in CROPS:
        for down, across in ((0.5, 0.5), (0, 0), (0, 1), (1, 0), (1, 1)):
            y, x = down * share, across * share
            found.append((y, y + 1 - share, x, x + 1 - share))
    return np.array(found)


def stretched(start: np.ndarray, end: np.ndarray, side: int) -> np.ndarray:
    """(n, side, side): each stretches what lies between two borders over all, by linear interpolation.

    Args:
        start, end: (n,) shares of the side.
        side: pixels.
    """
    where = (np.arange(side) + 0.5) / side
    places = side * (start[:, None] + where * (end - start)[:, None]) - 0.5
    places = np.clip(places, 0, side - 1)
    return np.maximum(0.0, 1.0 - np.abs(places[:, :, None] - np.arange(side)))


def viewed(pixels: np.ndarray, box: np.ndarray) -> np.ndarray:
    """What lies in a box of each image, in the image's size.

    Args:
        pixels: float (n, side, side).
        box: (n, 4), see `boxes`.
    """
    side = pixels.shape[-1]
    down, across = stretched(box[:, 0], box[:, 1], side), stretched(box[:, 2], box[:, 3], side)
    return down @ pixels @ across.transpose(0, 2, 1)


def likeness(whole: np.ndarray, other: np.ndarray, box: np.ndarray) -> np.ndarray:
    """How alike two images are, where the second may show a part of the first: (n,) in [-1, 1].

    The part is found by least squares, from a first guess, together with brightness and contrast.
    Then it is the correlation over all pixels and channels. Of two images of one colour each it is 1
    where the colour is the same within 8 of 255, else 0.

    Args:
        whole, other: uint8 (n, SIDE, SIDE, 3).
        box: (n, 4) of the first image: the first guess.

    Source: the alignment is that of Lucas and Kanade (1981), for borders instead of a shift.
    """
    box = box.copy()
    first, second = (_coarse(images) for images in (whole, other))
    for _ in range(STEPS):
        box = _closer(first, second, box)
    parts = np.stack(
        [viewed(whole[..., c].astype(np.float64), box) for c in range(3)], axis=-1
    ).reshape(len(whole), -1)
    others = other.reshape(len(other), -1).astype(np.float64)
    flat = np.maximum(parts.std(axis=1), others.std(axis=1)) < 2.0
    same = np.abs(parts - others).max(axis=1, initial=0.0) <= 8.0
    parts, others = (x - x.mean(axis=1, keepdims=True) for x in (parts, others))
    norms = np.linalg.norm(parts, axis=1) * np.linalg.norm(others, axis=1)
    found = (parts * others).sum(axis=1) / np.maximum(norms, 1e-12)
    return np.where(flat, same, found)


def _coarse(images: np.ndarray) -> np.ndarray:
    """Grey images, smaller and smoother: (n, SIDE, SIDE, 3) -> (n, SIDE / COARSE, SIDE / COARSE)."""
    side = SIDE // COARSE
    cells = images.reshape(len(images), side, COARSE, side, COARSE, 3)
    return cells.mean(axis=(2, 4, 5))


def _closer(whole: np.ndarray, other: np.ndarray, box: np.ndarray) -> np.ndarray:
    """A step of the alignment: the borders at which the first image, taken as linear, fits best."""
    n, side = len(whole), whole.shape[-1]
    seen = viewed(whole, box)
    along = (np.arange(side) + 0.5) / side
    columns = []
    for axis, low in ((1, 0), (2, 2)):
        size = (box[:, low + 1] - box[:, low])[:, None, None]
        slope = np.gradient(seen, axis=axis) * side / size
        share = along[:, None] if axis == 1 else along[None, :]
        columns += [slope * (1 - share), slope * share]
    columns += [seen, np.ones_like(seen)]  # contrast and brightness
    matrix = np.stack(columns, axis=-1).reshape(n, side * side, 6)
    square = matrix.transpose(0, 2, 1) @ matrix
    square += 1e-6 * np.trace(square, axis1=1, axis2=2)[:, None, None] / 6 * np.eye(6)
    right = matrix.transpose(0, 2, 1) @ other.reshape(n, -1, 1)
    answer = np.linalg.solve(square + 1e-9 * np.eye(6), right)[..., 0]
    contrast = np.where(np.abs(answer[:, 4]) > 0.1, answer[:, 4], np.inf)[:, None]
    moved = box + np.clip(answer[:, :4] / contrast, -0.03, 0.03)
    low = np.clip(moved[:, 0::2], 0.0, 1.0 - SMALLEST)
    high = np.clip(moved[:, 1::2], low + SMALLEST, 1.0)
    return np.stack([low[:, 0], high[:, 0], low[:, 1], high[:, 1]], axis=1)
