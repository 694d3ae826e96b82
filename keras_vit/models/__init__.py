"""Spec -> network: one readable module per family."""

from collections.abc import Callable

from keras_vit.models.hybrid import hybrid
from keras_vit.models.mixer import mixer
from keras_vit.models.resnet import resnet
from keras_vit.models.vit import vit

BUILDERS: dict[str, Callable] = {"vit": vit, "hybrid": hybrid, "resnet": resnet, "mixer": mixer}
