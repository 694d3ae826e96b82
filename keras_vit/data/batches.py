"""From a source to batches for `fit`, `evaluate` and `predict`, the same on every backend."""

import copy
import os
import zlib
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import keras
import numpy as np

from keras_vit.card import Preprocessing
from keras_vit.data.augment import Augment, apply, mixup
from keras_vit.data.sources import Source
from keras_vit.layers.preprocessor import preprocess


class Batches(keras.utils.PyDataset):
    """Preprocessed batches (images float32 (B, H, W, C), targets float32 (B, classes)).

    A feed on NumPy, for images in memory and folders of files. What a batch holds depends only on
    (seed, step), so a resumed run sees what an uninterrupted one would have seen. Every example comes
    exactly once per epoch, also in evaluation with a last batch that is not full. Files that cannot be
    decoded are left out of their batch, which in evaluation may so become empty.

    Args:
        source: the images.
        image_size: (H, W) of the model.
        channels: channels of the model.
        preprocessing: the card's rule.
        batch_size: examples per batch, over all hosts.
        training: shuffle and augment; a last batch that is not full is left out, unless it is the
            only one.
        augment: of which only the plain parts (`Augment.plain`) are known here.
        class_weights: (classes,) factors of the loss; batches then have a third part (B,), the
            mean weight of each example's classes.
        seed: of everything random.
        pad: in evaluation, fill up a last batch with examples of weight 0: batches then have a third
            part (B,), and all of them one shape.
        shard: (index, count) of this host among all: it gets that part of every batch.

    Raises:
        ValueError: the batch cannot be shared out, or the augmentation is not plain.
    """

    def __init__(
        self,
        source: Source,
        image_size: tuple[int, int],
        channels: int,
        preprocessing: Preprocessing,
        *,
        batch_size: int = 64,
        training: bool = False,
        augment: Augment | None = None,
        class_weights: np.ndarray | None = None,
        seed: int = 0,
        pad: bool = False,
        shard: tuple[int, int] = (0, 1),
    ):
        super().__init__(workers=1)
        augment = augment or Augment()
        if not augment.plain:
            raise ValueError(
                f"Batches knows flip, shift, erase and mixup, not {augment}: use Pipeline."
            )
        if batch_size % shard[1]:
            raise ValueError(
                f"batch_size {batch_size} cannot be shared out among {shard[1]} hosts: give a multiple."
            )
        self.source = source
        self.image_size = image_size
        self.channels = channels
        self.preprocessing = preprocessing
        self.batch_size = batch_size
        self.training = training
        self.augment = augment if training else Augment()
        self.class_weights = class_weights
        self.seed = seed
        self.pad = pad
        self.shard = shard
        whole, rest = divmod(len(source), batch_size)
        self.steps_per_epoch = max(1, whole + (rest > 0 and not training))
        self.start, self.stop = 0, self.steps_per_epoch
        self._pool = ThreadPoolExecutor(min(8, os.cpu_count() or 1))
        self._order: tuple[int, np.ndarray] = (-1, np.arange(len(source)))

    def keras_data(self, start: int, stop: int) -> "Batches":
        """The batches of the steps from `start` up to `stop`, counted over all epochs."""
        part = copy.copy(self)
        part.start, part.stop = start, stop
        return part

    def identity(self) -> dict[str, Any]:
        """Plain values that tell these batches from others."""
        labels = zlib.crc32(np.ascontiguousarray(self.source.labels).tobytes())
        return {"name": self.source.name, "examples": len(self.source), "labels": labels}

    def __len__(self) -> int:
        return self.stop - self.start

    def __getitem__(self, index: int) -> tuple[np.ndarray, ...]:
        epoch, index = divmod(self.start + index, self.steps_per_epoch)
        local = self.batch_size // self.shard[1]
        first = index * self.batch_size + self.shard[0] * local
        picked = self._epoch_order(epoch)[first : first + local]
        rng = np.random.default_rng((self.seed, epoch, index, *self.shard[:1]))
        found, kept = self._images(picked)
        images: Any = apply(self.augment, self._augmentable(found), rng)
        if not len(kept):
            x = np.zeros((0, *self.image_size, self.channels), np.float32)
        elif isinstance(images, np.ndarray):
            x = preprocess(images, self.image_size, self.preprocessing)
        else:
            x = np.stack([preprocess(i, self.image_size, self.preprocessing) for i in images])
        y = self.targets(kept)
        if self.augment.mixup:
            x, y = mixup(x, y, self.augment.mixup, rng)
        if self.pad:
            return _padded(x, y, local)
        if self.class_weights is None:
            return x, y
        return x, y, (y @ self.class_weights) / np.maximum(y.sum(axis=1), 1e-9)

    def _epoch_order(self, epoch: int) -> np.ndarray:
        """(n,) indices in the order of an epoch; the last one asked for is kept."""
        if self.training and self._order[0] != epoch:
            rng = np.random.default_rng((self.seed, epoch))
            self._order = epoch, rng.permutation(len(self.source))
        return self._order[1]

    def _augmentable(self, images):
        changes = self.augment.flip or self.augment.shift or self.augment.erase
        return _same_size(images, self.image_size) if changes else images

    def targets(self, indices: np.ndarray) -> np.ndarray:
        """float32 (n, classes): one-hot or multi-hot."""
        labels = self.source.labels[indices]
        if labels.ndim == 1:
            labels = np.eye(self.source.num_classes, dtype=np.float32)[labels]
        return labels.astype(np.float32)

    def _images(self, picked: np.ndarray):
        stored = self.source.images
        if (
            isinstance(stored, np.ndarray)
            and stored.ndim == 4
            and stored.shape[-1] == self.channels
        ):
            return stored[picked], picked
        decoded = list(self._pool.map(lambda i: self.source.image(int(i), self.channels), picked))
        good = [i for i, image in enumerate(decoded) if image is not None]
        if not good and self.training:
            raise ValueError(
                f"none of the {len(picked)} images of a batch of {self.source.name} can be read: "
                f"{self.source.broken[-1]}"
            )
        images: Any = [decoded[i] for i in good]
        if len({image.shape for image in images}) == 1:
            images = np.stack(images)
        return images, picked[good]


def _padded(x: np.ndarray, y: np.ndarray, size: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A batch filled up to `size` examples, and their weights: 1, and 0 for what was added."""
    missing = size - len(x)
    weights = np.repeat(np.array([1.0, 0.0], np.float32), [len(x), missing])
    x = np.concatenate([x, np.zeros((missing, *x.shape[1:]), x.dtype)])
    return x, np.concatenate([y, np.zeros((missing, *y.shape[1:]), y.dtype)]), weights


def _same_size(images, image_size) -> np.ndarray:
    """uint8 (B, H, W, C): images of several sizes are stretched to the model's size."""
    if isinstance(images, np.ndarray):
        return images
    unit = Preprocessing(mean=(0.0,), std=(1.0,), truncate=True)
    return np.stack([preprocess(i, image_size, unit).astype(np.uint8) for i in images])
