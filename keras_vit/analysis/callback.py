"""An inspection every few epochs while a model trains."""

import os
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import keras

from keras_vit.analysis import figures
from keras_vit.analysis.backbone import find_backbone
from keras_vit.analysis.inspection import PARTS, inspect, write


class InspectionCallback(keras.callbacks.Callback):
    """Writes what `inspect` finds to `FOLDER/epoch_0001`, `epoch_0002`, ... while a model trains.

    For `model.fit` of any model that contains one ViT or hybrid of this package, and for the
    `callbacks` of this package's own training. Each folder holds the report, the figures and the
    arrays. A disk that is full does not end the training: it is told as a warning.

    Args:
        images: as for `inspect`; a few, they are looked at each time.
        folder: made if it does not exist.
        every: epochs between two inspections; the first is after `every` epochs.
        names: of the images.
        parts, layers, heads, query: as for `inspect`.

    Raises:
        ImportError: matplotlib is missing.
        ValueError: `every` is below 1.
    """

    def __init__(
        self,
        images: Any,
        folder: str | os.PathLike,
        *,
        every: int = 1,
        names: Sequence[str] | None = None,
        parts: Sequence[str] = PARTS,
        layers: Sequence[int] = (-1,),
        heads: Sequence[int] | None = None,
        query: tuple[int, int] | None = None,
    ):
        super().__init__()
        if every < 1:
            raise ValueError(f"every must be at least 1 epoch, got {every}.")
        figures.check_installed()
        self.images = images
        self.folder = Path(folder)
        self.every = every
        self.options = {
            "names": names,
            "parts": parts,
            "layers": layers,
            "heads": heads,
            "query": query,
        }

    def on_train_begin(self, logs=None):
        """Refuses a model without attention before the first step.

        Raises:
            TypeError: see `find_backbone`.
        """
        find_backbone(self.model)

    def on_epoch_end(self, epoch, logs=None):
        if (epoch + 1) % self.every:
            return
        found = inspect(self.model, self.images, **self.options)
        try:
            write(found, self.folder / f"epoch_{epoch + 1:04d}")
        except OSError as error:
            warnings.warn(f"this epoch has no inspection: {error}", stacklevel=2)
