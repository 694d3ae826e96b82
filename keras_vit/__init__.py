"""Vision Transformers of the paper in Keras 3: models, public checkpoints, training, export.

Importing this package imports neither Keras nor TensorFlow; what needs them is loaded on first use.
"""

import importlib
import sys
import types
from typing import TYPE_CHECKING

import wrapt

if TYPE_CHECKING:
    from keras_vit.card import Card, Metric, Preprocessing
    from keras_vit.model import VisionModel
    from keras_vit.spec import HybridSpec, MixerSpec, ResNetBody, ResNetSpec, ViTSpec
    from keras_vit.zoo.api import build, card, list_models, load, save_weights_as

__version__ = "0.1.0"

_HOMES = {
    "Card": "keras_vit.card",
    "HybridSpec": "keras_vit.spec",
    "Metric": "keras_vit.card",
    "MixerSpec": "keras_vit.spec",
    "Preprocessing": "keras_vit.card",
    "ResNetBody": "keras_vit.spec",
    "ResNetSpec": "keras_vit.spec",
    "ViTSpec": "keras_vit.spec",
    "VisionModel": "keras_vit.model",
    "build": "keras_vit.zoo.api",
    "card": "keras_vit.zoo.api",
    "list_models": "keras_vit.zoo.api",
    "load": "keras_vit.zoo.api",
    "save_weights_as": "keras_vit.zoo.api",
}

__all__ = [
    "Card",
    "HybridSpec",
    "Metric",
    "MixerSpec",
    "Preprocessing",
    "ResNetBody",
    "ResNetSpec",
    "ViTSpec",
    "VisionModel",
    "build",
    "card",
    "list_models",
    "load",
    "save_weights_as",
]


def __getattr__(name: str):
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    if name in ("export", "zoo"):
        return importlib.import_module(f"keras_vit.{name}")
    raise AttributeError(f"module 'keras_vit' has no attribute {name!r}")


def __dir__():
    return sorted([*__all__, "export", "zoo"])


class _Facade(types.ModuleType):
    """Keeps `keras_vit.card` the function.

    After loading the submodule keras_vit/card.py, Python would put it under that very name.
    """

    @property
    def card(self):
        return importlib.import_module("keras_vit.zoo.api").card

    @card.setter
    def card(self, module):
        pass


sys.modules[__name__].__class__ = _Facade


_PACKAGES = ("keras_vit.layers", "keras_vit.models")


def _register(done: types.ModuleType | None = None) -> None:
    """Makes `keras.saving.load_model` know our classes without custom_objects.

    A program may import `keras_vit.layers` before Keras, which then arrives while that package is
    half imported: the classes are registered when it is done.
    """
    for name in _PACKAGES:
        module = sys.modules.get(name)
        state = getattr(module, "__spec__", None)
        if module is not done and getattr(state, "_initializing", False):
            return
    importlib.import_module("keras_vit.model")


# A .keras file must reload after `import keras_vit` in either import order, yet importing this
# package must stay cheap: the classes are registered when Keras arrives.
if "keras" in sys.modules and hasattr(sys.modules["keras"], "Model"):
    _register()
else:
    for _name in ("keras", *_PACKAGES):
        wrapt.register_post_import_hook(_register, _name)
