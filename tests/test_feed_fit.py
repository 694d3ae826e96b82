"""`model.fit` takes the tf.data feed on either backend."""

import keras
import numpy as np

from keras_vit.card import Preprocessing
from keras_vit.data.augment import Augment
from keras_vit.data.pipeline import Pipeline
from keras_vit.data.sources import arrays


def test_a_model_learns_and_is_evaluated_from_the_feed():
    labels = np.arange(24) % 2
    images = np.where(labels, 200, 50).astype(np.uint8)[:, None, None, None]
    source = arrays(np.broadcast_to(images, (24, 6, 8, 1)).copy(), labels)
    rule, augment = Preprocessing(), Augment(crop="inception", flip=True)
    feed = Pipeline(source, (4, 4), 1, rule, batch_size=8, training=True, augment=augment)
    check = Pipeline(source, (4, 4), 1, rule, batch_size=16, pad=True)
    keras.utils.set_random_seed(0)
    model = keras.Sequential(
        [keras.Input((4, 4, 1)), keras.layers.Flatten(), keras.layers.Dense(2)]
    )
    model.compile("sgd", keras.losses.CategoricalCrossentropy(True), weighted_metrics=["accuracy"])
    model.fit(feed.keras_data(0, 12), epochs=4, steps_per_epoch=3, shuffle=False, verbose=0)
    assert model.optimizer.iterations == 12
    assert model.evaluate(check.keras_data(), verbose=0, return_dict=True)["accuracy"] == 1.0
