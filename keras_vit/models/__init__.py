"""Spec -> network: one readable module per family."""

from collections.abc import Callable

from keras_vit.models.vit import vit

BUILDERS: dict[str, Callable] = {"vit": vit}
