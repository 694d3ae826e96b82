"""The residual unit of a ResNet, with norms after the convolutions or before them."""

from typing import Any

import keras
from keras import ops

from keras_vit.layers.common import PACKAGE
from keras_vit.layers.conv import StdConv2D
from keras_vit.layers.norm import GroupNorm
from keras_vit.layers.remat import Block


@keras.saving.register_keras_serializable(package=PACKAGE)
class BottleneckUnit(Block):
    """1x1, 3x3 and 1x1 convolution around a shortcut: (B, h, w, C) -> (B, h/s, w/s, 4 mid).

    The shortcut is projected where the shape changes. The stride is that of the 3x3 convolution.

    Args:
        mid: channels of the first two convolutions.
        strides: 1 or 2.
        preactivation: False: convolution, norm, ReLU, and a ReLU after the sum (V1). True: norm and
            ReLU before each convolution, none after the sum; the projection takes the activated
            input, the identity the raw one (V2, BiT).
        conv: options of every `StdConv2D`: padding, standardization, epsilon.
        norm: options of every `GroupNorm`: groups, epsilon.

    Source: V1: vision_transformer models_resnet.py `ResidualUnit`; V2: big_transfer
        bit_jax/models.py.
    """

    def __init__(
        self,
        mid: int,
        strides: int = 1,
        *,
        preactivation: bool,
        conv: dict[str, Any],
        norm: dict[str, Any],
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.mid = mid
        self.strides = strides
        self.preactivation = preactivation
        self.conv_options = dict(conv)
        self.norm_options = dict(norm)
        policy = {"dtype": self.dtype_policy}
        conv, norm = {**conv, **policy}, {**norm, **policy}
        self.conv1 = StdConv2D(mid, 1, name="conv1", **conv)
        self.conv2 = StdConv2D(mid, 3, strides, name="conv2", **conv)
        self.conv3 = StdConv2D(4 * mid, 1, name="conv3", **conv)
        self.gn1 = GroupNorm(**norm, name="gn1")
        self.gn2 = GroupNorm(**norm, name="gn2")
        self.gn3 = GroupNorm(**norm, name="gn3")
        self.conv_proj: Any = None  # made by build() where the shape changes
        self.gn_proj: Any = None

    def build(self, input_shape):
        policy = {"dtype": self.dtype_policy}
        if input_shape[-1] != 4 * self.mid or self.strides != 1:
            self.conv_proj = StdConv2D(
                4 * self.mid, 1, self.strides, name="conv_proj", **self.conv_options, **policy
            )
            self.conv_proj.build(input_shape)
            if not self.preactivation:
                self.gn_proj = GroupNorm(**self.norm_options, name="gn_proj", **policy)
                self.gn_proj.build((None, None, None, 4 * self.mid))
        inside, outside = (None, None, None, self.mid), (None, None, None, 4 * self.mid)
        self.conv1.build(input_shape)
        self.conv2.build(inside)
        self.conv3.build(inside)
        self.gn1.build(input_shape if self.preactivation else inside)
        self.gn2.build(inside)
        self.gn3.build(inside if self.preactivation else outside)

    def call(self, x, training=None):  # Keras tells only a layer that asks, and Block must know
        return self._before(x) if self.preactivation else self._after(x)

    def _before(self, x):
        activated = ops.relu(self.gn1(x))
        shortcut = x if self.conv_proj is None else self.conv_proj(activated)
        x = self.conv1(activated)
        x = self.conv2(ops.relu(self.gn2(x)))
        x = self.conv3(ops.relu(self.gn3(x)))
        return shortcut + x

    def _after(self, x):
        shortcut = x if self.conv_proj is None else self.gn_proj(self.conv_proj(x))
        x = ops.relu(self.gn1(self.conv1(x)))
        x = ops.relu(self.gn2(self.conv2(x)))
        x = self.gn3(self.conv3(x))
        return ops.relu(shortcut + x)

    def compute_output_shape(self, input_shape):
        height, width = (s if s is None else -(-s // self.strides) for s in input_shape[1:3])
        return (input_shape[0], height, width, 4 * self.mid)

    def get_config(self):
        config = {
            "mid": self.mid,
            "strides": self.strides,
            "preactivation": self.preactivation,
            "conv": self.conv_options,
            "norm": self.norm_options,
        }
        return {**super().get_config(), **config}
