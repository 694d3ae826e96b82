"""Corruption of patch embeddings: exact counts in every image, in static shapes."""

import keras
import numpy as np
from keras import ops

from keras_vit.layers.common import PACKAGE
from keras_vit.pretext.objective import Counts

FIXED_ROWS = 256  # images after which the corruption of evaluation repeats itself
FIXED_SEED = 2010_11929


@keras.saving.register_keras_serializable(package=PACKAGE)
class CorruptPatches(keras.layers.Layer):
    """Corrupts patch embeddings: (B, N, D) -> (B, N, D), and (B, N) float32, 1 where it did.

    A random order of the patches of each image decides: the first are masked, the next replaced, the
    next kept but predicted. In training it is drawn from a `SeedGenerator`, whose state is one of the
    model's variables, as that of dropout is. In evaluation the image at a place in its batch is
    always corrupted alike, on every backend.

    Args:
        masked, replaced, kept: patches per image, see `Counts`.
        seed: of the order; None for one drawn from Keras's global seed.

    A replaced patch gets the embedding of any other patch of its image with the same probability,
    itself never.
    """

    def __init__(self, masked: int, replaced: int, kept: int, seed: int | None = None, **kwargs):
        super().__init__(**kwargs)
        self.counts = Counts(masked, replaced, kept)
        self.seed = seed
        self.seed_generator = keras.random.SeedGenerator(seed)

    def build(self, input_shape):
        patches, size = input_shape[1:]
        if self.counts.corrupted > patches or patches < 2:
            raise ValueError(f"{self.counts} cannot be taken out of {patches} patches.")
        self.mask_token = self.add_weight(
            name="mask_token",
            shape=(1, 1, size),
            initializer=keras.initializers.RandomNormal(stddev=0.02),
        )
        self._fixed = fixed_draws(patches)

    def call(self, x, training=False):
        ranks, steps = self._random(x) if training else self._repeated(x)
        masked, replaced = self.counts.masked, self.counts.replaced
        is_masked = ops.expand_dims(ranks < masked, -1)
        y = ops.where(is_masked, ops.cast(self.mask_token, x.dtype), x)
        if replaced:
            patches = x.shape[1]
            other = (ops.arange(patches, dtype="int32") + steps) % patches
            others = ops.take_along_axis(x, ops.expand_dims(other, -1), axis=1)
            is_replaced = (ranks >= masked) & (ranks < masked + replaced)
            y = ops.where(ops.expand_dims(is_replaced, -1), others, y)
        return y, ops.cast(ranks < self.counts.corrupted, "float32")

    def _random(self, x):
        """(B, N) places in a random order, and steps to another patch."""
        shape = (2, ops.shape(x)[0], x.shape[1])
        draws = keras.random.uniform(shape, dtype="float32", seed=self.seed_generator)
        order = ops.argsort(draws[0], axis=1)
        return ops.cast(ops.argsort(order, axis=1), "int32"), steps_to_another(draws[1])

    def _repeated(self, x):
        row = ops.arange(ops.shape(x)[0], dtype="int32") % FIXED_ROWS
        ranks, steps = self._fixed
        return ops.take(ranks, row, axis=0), ops.take(steps, row, axis=0)

    def compute_output_shape(self, input_shape):
        return tuple(input_shape), tuple(input_shape[:2])

    def get_config(self):
        counts = self.counts
        return {
            **super().get_config(),
            "masked": counts.masked,
            "replaced": counts.replaced,
            "kept": counts.kept,
            "seed": self.seed,
        }


def steps_to_another(draws):
    """Uniform numbers (B, N) in [0, 1) -> whole numbers from 1 to N - 1, of equal probability."""
    others = draws.shape[1] - 1
    # The largest float32 below 1 times a count rounds up to it.
    return 1 + ops.minimum(ops.cast(ops.floor(draws * others), "int32"), others - 1)


def fixed_draws(patches: int) -> tuple[np.ndarray, np.ndarray]:
    """int32 (FIXED_ROWS, N) twice: places in an order, and steps to another patch."""
    rng = np.random.default_rng((FIXED_SEED, patches))
    ranks = rng.permuted(np.tile(np.arange(patches, dtype=np.int32), (FIXED_ROWS, 1)), axis=1)
    return ranks, rng.integers(1, patches, (FIXED_ROWS, patches), np.int32)
