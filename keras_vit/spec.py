"""Architecture as data: everything that is needed to build a network, and nothing else.

Letters used for shapes in this package: B batch, N tokens, D `hidden_size`, h x w the patch grid.
"""

import dataclasses
import numbers
from typing import Any

POOLS = ("token", "gap", "map", "none", "token_unpooled", "first")
POSEMBS = ("learn", "sincos2d", "none")
ACTIVATIONS = ("gelu_tanh", "gelu")
CLASSIFIER_ACTIVATIONS = (None, "softmax", "sigmoid")


def pair(value: Any, what: str) -> tuple[int, int]:
    """Turns `16` or `(16, 8)` into a pair of positive integers (height, width)."""
    values = tuple(value) if isinstance(value, (tuple, list)) else (value, value)
    if len(values) != 2 or not all(_is_whole(v) and v > 0 for v in values):
        raise ValueError(
            f"{what} must be a positive integer or a pair (height, width) of them, got {value!r}."
        )
    return int(values[0]), int(values[1])


def _is_whole(value: Any) -> bool:
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)


def _positive(value: Any, what: str) -> int:
    if not _is_whole(value) or value <= 0:
        raise ValueError(f"{what} must be a positive integer, got {value!r}.")
    return int(value)


def _choice(value: Any, what: str, choices: tuple) -> None:
    if value not in choices:
        raise ValueError(f"{what} must be one of {list(choices)}, got {value!r}.")


@dataclasses.dataclass(frozen=True)
class ViTSpec:
    """A plain Vision Transformer (arXiv 2010.11929, section 3.1).

    Fields that differ between published ports (activation, epsilon, where the class token meets
    the position embedding, `pre_logits` and its tanh) are data here, never constants in code.

    Attributes:
        hidden_size: D, the width of every token.
        mlp_dim: width of the hidden layer of each MLP block.
        num_heads: attention heads; must divide `hidden_size`.
        num_layers: encoder blocks.
        patch_size: pixels of one patch, int or (height, width).
        image_size: pixels of the input, int or (height, width).
        in_channels: channels of the input.
        num_classes: outputs of the head; 0 builds no head.
        pool: `token` (class token), `gap` (mean over patches), `map` (attention pooling),
            `none` (per token, no class token), `token_unpooled` (per token, class token among
            them), `first` (first patch token; big_vision's pool "0").
        representation_size: width of the `pre_logits` layer, None for no such layer.
        representation_tanh: whether tanh follows `pre_logits` (it does in both official codes;
            some old big_vision files were trained without).
        posemb: `learn`, `sincos2d` (fixed), or `none`.
        posemb_includes_cls: True: the table has an entry for the class token and is added after
            the token is prepended (vision_transformer). False: the table covers patches only and
            is added before (big_vision).
        activation: `gelu_tanh` (the JAX checkpoints) or `gelu` (exact; the PyTorch ones).
        norm_epsilon: epsilon of every LayerNorm.
        dropout: rate after the position embedding, after attention, and twice in the MLP.
        embedding_dropout: another rate after the position embedding; None for `dropout`, as in the
            original.
        attention_dropout: rate on the attention weights.
        stochastic_depth: rate of the last block; rates rise linearly from 0 with depth.
        classifier_activation: None for logits, `softmax` or `sigmoid` for probabilities.
        head_bias_init: initial value of the head's bias (-10 in ImageNet-21k pre-training).
        allow_crop: accept image sizes that are no multiple of the patch and drop the rest on the
            right and at the bottom, as the official VALID convolution does.

    Raises:
        ValueError: a field is out of range; the message names it and the legal values.
    """

    hidden_size: int
    mlp_dim: int
    num_heads: int
    num_layers: int
    patch_size: tuple[int, int]
    image_size: tuple[int, int] = (224, 224)
    in_channels: int = 3
    num_classes: int = 1000
    pool: str = "token"
    representation_size: int | None = None
    representation_tanh: bool = True
    posemb: str = "learn"
    posemb_includes_cls: bool = True
    activation: str = "gelu_tanh"
    norm_epsilon: float = 1e-6
    dropout: float = 0.0
    embedding_dropout: float | None = None
    attention_dropout: float = 0.0
    stochastic_depth: float = 0.0
    classifier_activation: str | None = None
    head_bias_init: float = 0.0
    allow_crop: bool = False

    def __post_init__(self):
        object.__setattr__(self, "patch_size", pair(self.patch_size, "patch_size"))
        object.__setattr__(self, "image_size", pair(self.image_size, "image_size"))
        for field in ("hidden_size", "mlp_dim", "num_heads", "num_layers", "in_channels"):
            object.__setattr__(self, field, _positive(getattr(self, field), field))
        if not _is_whole(self.num_classes) or self.num_classes < 0:
            raise ValueError(
                f"num_classes must be a whole number >= 0 (0 builds no head), got {self.num_classes!r}."
            )
        object.__setattr__(self, "num_classes", int(self.num_classes))
        if self.representation_size is not None:
            size = _positive(self.representation_size, "representation_size")
            object.__setattr__(self, "representation_size", size)
        if self.hidden_size % self.num_heads:
            raise ValueError(
                f"num_heads must divide hidden_size, got num_heads={self.num_heads} and "
                f"hidden_size={self.hidden_size}."
            )
        for field in ("dropout", "embedding_dropout", "attention_dropout", "stochastic_depth"):
            if not 0.0 <= (getattr(self, field) or 0.0) < 1.0:
                raise ValueError(f"{field} must be in [0, 1), got {getattr(self, field)!r}.")
        if not self.norm_epsilon > 0.0:
            raise ValueError(f"norm_epsilon must be positive, got {self.norm_epsilon!r}.")
        _choice(self.pool, "pool", POOLS)
        _choice(self.posemb, "posemb", POSEMBS)
        _choice(self.activation, "activation", ACTIVATIONS)
        _choice(self.classifier_activation, "classifier_activation", CLASSIFIER_ACTIVATIONS)
        if self.posemb == "sincos2d" and (self.hidden_size % 4 or self.hidden_size < 8):
            raise ValueError(
                f"posemb='sincos2d' needs a hidden_size that is a multiple of 4 and at least 8, got "
                f"{self.hidden_size}."
            )
        check_image_size(self.image_size, self.patch_size, self.allow_crop)

    @property
    def has_cls(self) -> bool:
        """Whether a class token is prepended."""
        return self.pool in ("token", "token_unpooled")

    @property
    def grid(self) -> tuple[int, int]:
        """Patches (down, across)."""
        return (self.image_size[0] // self.patch_size[0], self.image_size[1] // self.patch_size[1])

    @property
    def num_tokens(self) -> int:
        """Tokens inside the encoder, class token included."""
        return self.grid[0] * self.grid[1] + self.has_cls

    @property
    def posemb_prefix(self) -> int:
        """Entries of the learned position table that stand before those of the patch grid."""
        return int(self.has_cls and self.posemb_includes_cls)

    @property
    def feature_size(self) -> int:
        """Width of `pre_logits`, the input of the head."""
        return self.representation_size or self.hidden_size

    @property
    def num_params(self) -> int:
        """Exact number of parameters of the network, by formula."""
        d, m, (ph, pw) = self.hidden_size, self.mlp_dim, self.patch_size
        block = 2 * 2 * d + 4 * (d * d + d) + (d * m + m) + (m * d + d)
        count = ph * pw * self.in_channels * d + d + self.num_layers * block + 2 * d
        if self.has_cls:
            count += d
        if self.posemb == "learn":
            count += (self.grid[0] * self.grid[1] + self.posemb_prefix) * d
        if self.pool == "map":
            count += d + 4 * (d * d + d) + 2 * d + (d * m + m) + (m * d + d)
        if self.representation_size:
            count += d * self.representation_size + self.representation_size
        return count + (self.feature_size * self.num_classes + self.num_classes)

    def to_dict(self) -> dict[str, Any]:
        """Plain values only, so that it can be written as JSON; `family` tells the kind of spec."""
        values = dataclasses.asdict(self)
        values["patch_size"], values["image_size"] = list(self.patch_size), list(self.image_size)
        return {"family": "vit", **values}


def check_image_size(
    image_size: tuple[int, int], patch_size: tuple[int, int], allow_crop: bool
) -> None:
    """Raises ValueError with the nearest legal sizes when the image is no multiple of the patch."""
    for axis, size, patch in zip(("height", "width"), image_size, patch_size, strict=True):
        if size < patch:
            raise ValueError(f"image {axis} {size} is smaller than one patch of {patch} pixels.")
        if size % patch and not allow_crop:
            below = size - size % patch
            raise ValueError(
                f"image {axis} {size} is no multiple of the patch size {patch}: use {below} or "
                f"{below + patch}, or allow_crop=True to drop the last {size % patch} pixels as "
                f"the official code does."
            )


FAMILIES = {"vit": ViTSpec}
Spec = ViTSpec


def spec_from_dict(values: dict[str, Any]) -> Spec:
    """Rebuilds a spec from `to_dict()`; unknown fields or families raise ValueError."""
    values = dict(values)
    family = values.pop("family", None)
    if family not in FAMILIES:
        raise ValueError(f"unknown model family {family!r}: this version knows {sorted(FAMILIES)}.")
    known = {field.name for field in dataclasses.fields(FAMILIES[family])}
    if extra := sorted(set(values) - known):
        raise ValueError(f"unknown fields {extra} in a {family} spec: written by a newer version?")
    return FAMILIES[family](**values)
