"""One layer per thing that owns a weight or a rule; `keras.ops` only, so every backend runs them."""

from keras_vit.layers.attention import MultiHeadAttention
from keras_vit.layers.axial import AxialBlock
from keras_vit.layers.bottleneck import BottleneckUnit
from keras_vit.layers.conv import RootPool, StdConv2D
from keras_vit.layers.dropout import Dropout
from keras_vit.layers.encoder import EncoderBlock, LayerScale, MlpBlock, StochasticDepth, SwiGLU
from keras_vit.layers.mixer import MixerBlock
from keras_vit.layers.norm import GroupNorm, LayerNorm
from keras_vit.layers.pooling import MapHead
from keras_vit.layers.positions import AxisPositionEmbedding, PositionEmbedding
from keras_vit.layers.preprocessor import Preprocessor
from keras_vit.layers.tokens import ClassToken, RegisterTokens, TakeToken

__all__ = [
    "AxialBlock",
    "AxisPositionEmbedding",
    "BottleneckUnit",
    "ClassToken",
    "Dropout",
    "EncoderBlock",
    "GroupNorm",
    "LayerNorm",
    "LayerScale",
    "MapHead",
    "MixerBlock",
    "MlpBlock",
    "MultiHeadAttention",
    "PositionEmbedding",
    "Preprocessor",
    "RegisterTokens",
    "RootPool",
    "StdConv2D",
    "StochasticDepth",
    "SwiGLU",
    "TakeToken",
]
