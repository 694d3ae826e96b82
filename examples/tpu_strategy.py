"""A Vision Transformer trained on a TPU VM through TensorFlow's TPUStrategy, in twenty lines.

    pip install tensorflow-tpu keras-vit-zoo
    KERAS_BACKEND=tensorflow python examples/tpu_strategy.py

One host; on a pod, use JAX (docs/tpu.md). Images go to the device as bytes, which the step normalises.
"""

import keras
import tensorflow as tf

import keras_vit
from keras_vit.data.sources import open_source
from keras_vit.train.distribute import open_devices

placement = open_devices("tpu")  # local, then TPU_NAME, then the environment
source = open_source("fashion_mnist:subset")
labels = keras.utils.to_categorical(source.labels, 10)
data = tf.data.Dataset.from_tensor_slices((source.images, labels)).shuffle(1000).repeat()
data = data.batch(64 * placement.replicas, drop_remainder=True).prefetch(tf.data.AUTOTUNE)
with placement.scope():
    model = keras_vit.build("ViT-Mini/4", num_classes=10, image_size=28, in_channels=1)
    model.compile(
        keras.optimizers.AdamW(1e-3),
        keras.losses.CategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
        clip_norm=1.0,
        steps_per_execution=placement.steps_per_call(8),
    )
    model.fit(data, steps_per_epoch=8, epochs=2, shuffle=False)
model.save("vit_on_tpu.keras")
