"""From a source to batches for `fit`, `evaluate` and `predict`, the same on every backend."""

import os
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import keras
import numpy as np

from keras_vit.card import Preprocessing
from keras_vit.data.augment import AUGMENTATIONS, mixup
from keras_vit.data.sources import Source
from keras_vit.layers.preprocessor import preprocess


class Batches(keras.utils.PyDataset):
    """Preprocessed batches (images float32 (B, H, W, C), targets float32 (B, classes)).

    Order, augmentation and mixup of a batch depend only on (seed, epoch, batch index), so a resumed
    run sees what an uninterrupted one would have seen. Every example comes exactly once per epoch,
    also in evaluation with a last batch that is not full. Files that cannot be decoded are left out
    of their batch, which in evaluation may so become empty.

    Args:
        source: the images.
        image_size: (H, W) of the model.
        channels: channels of the model.
        preprocessing: the card's rule.
        batch_size: examples per batch.
        training: shuffle and augment.
        augment: names out of `AUGMENTATIONS`, applied in order to uint8 images of one size.
        mixup_alpha: 0 for none.
        class_weights: (classes,) factors of the loss; batches then have a third part (B,), the
            mean weight of each example's classes.
        seed: of everything random.
        drop_last: leave out a last batch that is not full (keeps one compiled shape).
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
        augment: tuple[str, ...] = (),
        mixup_alpha: float = 0.0,
        class_weights: np.ndarray | None = None,
        seed: int = 0,
        drop_last: bool = False,
    ):
        super().__init__(workers=1)
        if unknown := sorted(set(augment) - set(AUGMENTATIONS)):
            raise ValueError(f"unknown augmentations {unknown}: there are {sorted(AUGMENTATIONS)}.")
        self.source = source
        self.image_size = image_size
        self.channels = channels
        self.preprocessing = preprocessing
        self.batch_size = batch_size
        self.training = training
        self.augment = augment
        self.mixup_alpha = mixup_alpha
        self.class_weights = class_weights
        self.seed = seed
        self.drop_last = drop_last and len(source) >= batch_size
        self.epoch = 0
        self._pool = ThreadPoolExecutor(min(8, os.cpu_count() or 1))
        self._order = np.arange(len(source))
        self.set_epoch(0)

    def set_epoch(self, epoch: int) -> None:
        """Makes the next batches those of `epoch`."""
        self.epoch = epoch
        if self.training:
            self._order = np.random.default_rng((self.seed, epoch)).permutation(len(self.source))

    def __len__(self) -> int:
        whole, rest = divmod(len(self.source), self.batch_size)
        return whole + (rest > 0 and not self.drop_last)

    def __getitem__(self, index: int) -> tuple[np.ndarray, ...]:
        picked = self._order[index * self.batch_size : (index + 1) * self.batch_size]
        rng = np.random.default_rng((self.seed, self.epoch, index))
        images, kept = self._images(picked)
        if self.training and self.augment:
            images = _same_size(images, self.image_size)
            for name in self.augment:
                images = AUGMENTATIONS[name](images, rng)
        if not len(kept):
            x = np.zeros((0, *self.image_size, self.channels), np.float32)
        elif isinstance(images, np.ndarray):
            x = preprocess(images, self.image_size, self.preprocessing)
        else:
            x = np.stack([preprocess(i, self.image_size, self.preprocessing) for i in images])
        y = self.targets(kept)
        if self.training and self.mixup_alpha:
            x, y = mixup(x, y, self.mixup_alpha, rng)
        if self.class_weights is None:
            return x, y
        return x, y, (y @ self.class_weights) / np.maximum(y.sum(axis=1), 1e-9)

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

    def on_epoch_end(self) -> None:
        if self.training:
            self.set_epoch(self.epoch + 1)


def _same_size(images, image_size) -> np.ndarray:
    """uint8 (B, H, W, C): images of several sizes are stretched to the model's size."""
    if isinstance(images, np.ndarray):
        return images
    unit = Preprocessing(mean=(0.0,), std=(1.0,), truncate=True)
    return np.stack([preprocess(i, image_size, unit).astype(np.uint8) for i in images])
