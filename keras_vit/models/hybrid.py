"""The hybrid: a Vision Transformer on the feature map of a ResNet (arXiv 2010.11929, section 3.1)."""

import keras

from keras_vit.models.resnet import trunk
from keras_vit.models.vit import Endpoints, transformer
from keras_vit.spec import HybridSpec


def hybrid(spec: HybridSpec, dtype=None) -> tuple[keras.KerasTensor, Endpoints]:
    """Builds the network of a spec.

    Args:
        spec: the architecture.
        dtype: Keras dtype policy of every layer, None for the global one.

    Returns:
        The symbolic input (B, H, W, C) and the endpoints in order: `root` and `block{i}` of the
        ResNet, then those of `vit`.
    """
    images = keras.Input((*spec.image_size, spec.in_channels), name="images")
    endpoints: Endpoints = {}
    features = trunk(spec.resnet, images, endpoints, dtype)  # (B, h', w', C)
    transformer(spec, features, endpoints, dtype)
    return images, endpoints
