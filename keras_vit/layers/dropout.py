"""Dropout that TPU compilers can digest."""

import keras
from keras import ops

from keras_vit.layers.common import PACKAGE


@keras.saving.register_keras_serializable(package=PACKAGE)
class Dropout(keras.layers.Dropout):
    """Keras's dropout, number for number; on JAX the mask is made apart from what it is applied to.

    XLA for TPUs otherwise merges the random number generator, a hundred integer operations, into
    every matrix product around it, which takes minutes to compile (six times the time of the network
    without dropout, `benchmarks/README.md`) and makes the step slower.
    """

    def call(self, inputs, training=False):
        plain = keras.backend.backend() != "jax" or self.noise_shape
        if not training or not self.rate or plain:
            return super().call(inputs, training=training)
        import jax

        keep = 1.0 - self.rate
        draw = keras.random.uniform(inputs.shape, dtype="float32", seed=self.seed_generator)
        kept = jax.lax.optimization_barrier(draw < keep)
        return ops.where(kept, inputs / keep, ops.zeros_like(inputs))
