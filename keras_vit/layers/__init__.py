"""One layer per thing that owns a weight or a rule; `keras.ops` only, so every backend runs them."""

from keras_vit.layers.attention import MultiHeadAttention
from keras_vit.layers.encoder import EncoderBlock, MlpBlock, StochasticDepth
from keras_vit.layers.norm import LayerNorm
from keras_vit.layers.pooling import MapHead
from keras_vit.layers.preprocessor import Preprocessor
from keras_vit.layers.tokens import ClassToken, FirstToken, PositionEmbedding

__all__ = [
    "ClassToken",
    "EncoderBlock",
    "FirstToken",
    "LayerNorm",
    "MapHead",
    "MlpBlock",
    "MultiHeadAttention",
    "PositionEmbedding",
    "Preprocessor",
    "StochasticDepth",
]
