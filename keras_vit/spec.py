"""Architecture as data: everything that is needed to build a network, and nothing else.

Letters used for shapes in this package: B batch, N tokens, D `hidden_size`, h x w the patch grid.
Fields that differ between published ports (activation, epsilons, weight standardisation, padding,
where the class token meets the position embedding) are data here, never constants in code.
"""

import dataclasses
import math
import numbers
from typing import Any

POOLS = ("token", "gap", "map", "none", "token_unpooled", "first")
POSEMBS = ("learn", "sincos2d", "none", "2d", "relative")
POSEMBS_AT = ("stem", "layers", "layers_shared")
ATTENTIONS = ("full", "axial")
ACTIVATIONS = ("gelu_tanh", "gelu")
FFNS = ("mlp", "swiglu")
CLASSIFIER_ACTIVATIONS = (None, "softmax", "sigmoid")
WEIGHT_STANDARDIZATIONS = (None, "std", "var")
PADDINGS = ("same", "fixed")
POOL_BORDERS = ("-inf", "zero")


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


def _is_number(value: Any) -> bool:
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def _above_zero(spec: Any, *fields: str) -> None:
    for field in fields:
        value = getattr(spec, field)
        if not _is_number(value) or not value > 0.0:
            raise ValueError(f"{field} must be positive, got {value!r}.")


def _flags(spec: Any, *fields: str) -> None:
    for field in fields:
        if not isinstance(getattr(spec, field), bool):
            raise ValueError(f"{field} must be True or False, got {getattr(spec, field)!r}.")


def _choice(value: Any, what: str, choices: tuple) -> None:
    if value not in choices:
        raise ValueError(f"{what} must be one of {list(choices)}, got {value!r}.")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ImageSpec:
    """What every network has: the size of its images and the shape of its head.

    Attributes:
        image_size: pixels of the input, int or (height, width).
        in_channels: channels of the input.
        num_classes: outputs of the head; 0 builds no head.
        classifier_activation: None for logits, `softmax` or `sigmoid` for probabilities.
        head_bias_init: initial value of the head's bias (-10 in ImageNet-21k pre-training).

    Raises:
        ValueError: a field is out of range; the message names it and the legal values.
    """

    image_size: tuple[int, int] = (224, 224)
    in_channels: int = 3
    num_classes: int = 1000
    classifier_activation: str | None = None
    head_bias_init: float = 0.0

    def __post_init__(self):
        self._set("image_size", pair(self.image_size, "image_size"))
        self._positive("in_channels")
        self._count("num_classes", "(0 builds no head)")
        _choice(self.classifier_activation, "classifier_activation", CLASSIFIER_ACTIVATIONS)
        if not _is_number(self.head_bias_init):
            raise ValueError(f"head_bias_init must be a number, got {self.head_bias_init!r}.")

    def _set(self, field: str, value: Any) -> None:
        object.__setattr__(self, field, value)

    def _positive(self, *fields: str) -> None:
        for field in fields:
            value = getattr(self, field)
            if not _is_whole(value) or value <= 0:
                raise ValueError(f"{field} must be a positive integer, got {value!r}.")
            self._set(field, int(value))

    def _count(self, field: str, meaning: str) -> None:
        value = getattr(self, field)
        if not _is_whole(value) or value < 0:
            raise ValueError(f"{field} must be a whole number >= 0 {meaning}, got {value!r}.")
        self._set(field, int(value))

    def _rate(self, *fields: str) -> None:
        for field in fields:
            value = getattr(self, field)
            if value is not None and not (_is_number(value) and 0.0 <= value < 1.0):
                raise ValueError(f"{field} must be in [0, 1), got {value!r}.")

    # What the loaders ask of any network; families with tokens, positions or another first layer
    # say otherwise.
    family = "image"
    input_layer = "embedding"  # the layer that sees the pixels
    num_prefix_tokens = 0

    @property
    def grid(self) -> tuple[int, int]:
        """Cells (down, across) of the feature map or patch grid."""
        raise NotImplementedError

    @property
    def feature_size(self) -> int:
        """Width of `pre_logits`, the input of the head."""
        raise NotImplementedError

    @property
    def num_params(self) -> int:
        """Exact number of parameters of the network, by formula."""
        raise NotImplementedError

    @property
    def _head_params(self) -> int:
        return self.feature_size * self.num_classes + self.num_classes

    def to_dict(self) -> dict[str, Any]:
        """Plain values only, so that it can be written as JSON; `family` tells the kind of spec."""
        return {"family": self.family, **_plain(dataclasses.asdict(self))}


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _plain(v) for k, v in value.items()}
    return [_plain(v) for v in value] if isinstance(value, (tuple, list)) else value


@dataclasses.dataclass(frozen=True)
class ViTSpec(ImageSpec):
    """A plain Vision Transformer (arXiv 2010.11929, section 3.1) and its relatives.

    DeiT, DINO, DINOv2, MAE and FlexiViT are settings of these fields.

    Attributes:
        hidden_size: D, the width of every token.
        mlp_dim: width of the hidden layer of each MLP block.
        num_heads: attention heads; must divide `hidden_size`.
        num_layers: encoder blocks; 0 for no encoder and no norm: the embedded patches are pooled
            (`pool="gap"`, `posemb="none"`), as the original code does with a ResNet alone.
        patch_size: pixels of one patch, int or (height, width).
        pool: `token` (class token), `gap` (mean over patches), `map` (attention pooling),
            `none` (per token, no class token), `token_unpooled` (per token, class token among
            them), `first` (first patch token; big_vision's pool "0").
        representation_size: width of the `pre_logits` layer, None for no such layer.
        representation_tanh: whether tanh follows `pre_logits` (it does in both official codes;
            some old big_vision files were trained without).
        posemb: `learn`, `sincos2d` (fixed), `none`, `2d` (learned, half of the channels by column and
            half by row), or `relative` (learned embeddings of distances along the sequence, inside
            each attention). The last two: appendix D.4.
        posemb_at: where `learn` or `2d` is added: `stem` (after the patches are embedded), `layers`
            (before every block, each its own) or `layers_shared` (before every block, the same).
        attention: `full`, or `axial`: each block becomes one along rows and one along columns of the
            patches, without a class token (appendix D.6).
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
        allow_crop: accept image sizes that are no multiple of the patch and drop the rest on the
            right and at the bottom, as the official VALID convolution does.
        distilled: a second token after the class token with a head of its own; the logits are the
            mean of both heads' (DeiT, arXiv 2012.12877).
        num_registers: tokens between class token and patches that take no part in the output and
            have no position (DINOv2 with registers, arXiv 2309.16588).
        layer_scale: initial value of the learned scale of each residual branch, None for no scale
            (arXiv 2103.17239; DINOv2).
        ffn: `mlp`, or `swiglu` (gated, arXiv 2002.05202; DINOv2-g), whose gate and value are
            `mlp_dim` wide each.
    """

    hidden_size: int
    mlp_dim: int
    num_heads: int
    num_layers: int
    patch_size: tuple[int, int]
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
    allow_crop: bool = False
    distilled: bool = False
    num_registers: int = 0
    layer_scale: float | None = None
    ffn: str = "mlp"
    posemb_at: str = "stem"
    attention: str = "full"

    family = "vit"

    def __post_init__(self):
        super().__post_init__()
        self._set("patch_size", pair(self.patch_size, "patch_size"))
        self._positive("hidden_size", "mlp_dim", "num_heads")
        self._count("num_layers", "(0 for no encoder)")
        self._count("num_registers", "(0 for no registers)")
        if self.representation_size is not None:
            self._positive("representation_size")
        if self.hidden_size % self.num_heads:
            raise ValueError(
                f"num_heads must divide hidden_size, got num_heads={self.num_heads} and "
                f"hidden_size={self.hidden_size}."
            )
        self._rate("dropout", "embedding_dropout", "attention_dropout", "stochastic_depth")
        _above_zero(self, "norm_epsilon")
        _flags(self, "representation_tanh", "posemb_includes_cls", "allow_crop", "distilled")
        if self.layer_scale is not None and not _is_number(self.layer_scale):
            raise ValueError(f"layer_scale must be a number or None, got {self.layer_scale!r}.")
        _choice(self.pool, "pool", POOLS)
        _choice(self.posemb, "posemb", POSEMBS)
        _choice(self.posemb_at, "posemb_at", POSEMBS_AT)
        _choice(self.attention, "attention", ATTENTIONS)
        _choice(self.activation, "activation", ACTIVATIONS)
        _choice(self.ffn, "ffn", FFNS)
        if self.posemb == "sincos2d" and (self.hidden_size % 4 or self.hidden_size < 8):
            raise ValueError(
                f"posemb='sincos2d' needs a hidden_size that is a multiple of 4 and at least 8, got "
                f"{self.hidden_size}."
            )
        if self.posemb == "2d" and self.hidden_size % 2:
            raise ValueError(f"posemb='2d' needs an even hidden_size, got {self.hidden_size}.")
        if self.posemb_at != "stem" and self.posemb not in ("learn", "2d"):
            raise ValueError(
                f"posemb_at={self.posemb_at!r} adds a learned table, posemb='learn' or '2d', got "
                f"posemb={self.posemb!r}."
            )
        if self.posemb_at != "stem" and (self.num_registers or self._cls_without_position):
            raise ValueError(
                f"posemb_at={self.posemb_at!r} gives every token a position: it needs "
                f"posemb_includes_cls=True and no registers."
            )
        if self.attention == "axial" and (self.has_cls or self.posemb == "relative"):
            raise ValueError(
                "attention='axial' needs a pool without a class token, such as 'gap', and a posemb "
                "other than 'relative'."
            )
        if self.num_layers == 0 and (self.pool, self.posemb) != ("gap", "none"):
            raise ValueError("num_layers=0 needs pool='gap' and posemb='none'.")
        if self.distilled and (self.pool != "token" or self.representation_size):
            raise ValueError("distilled=True needs pool='token' and no representation_size.")
        if self.num_registers and self.pool not in ("token", "token_unpooled"):
            raise ValueError("num_registers needs a class token: pool='token'.")
        check_image_size(self.embedded_size, self.patch_size, self.allow_crop)

    @property
    def embedded_size(self) -> tuple[int, int]:
        """(height, width) of what is cut into patches: the image, or a stem's feature map."""
        return self.image_size

    @property
    def has_cls(self) -> bool:
        """Whether a class token is prepended."""
        return self.pool in ("token", "token_unpooled")

    @property
    def _cls_without_position(self) -> bool:
        return self.has_cls and not self.posemb_includes_cls

    @property
    def grid(self) -> tuple[int, int]:
        """Patches (down, across)."""
        height, width = self.embedded_size
        return height // self.patch_size[0], width // self.patch_size[1]

    @property
    def num_prefix_tokens(self) -> int:
        """Tokens before those of the patches: class token, distillation token, registers."""
        return int(self.has_cls) + int(self.distilled) + self.num_registers

    @property
    def num_tokens(self) -> int:
        """Tokens inside the encoder, prefix tokens included."""
        return self.grid[0] * self.grid[1] + self.num_prefix_tokens

    @property
    def posemb_prefix(self) -> int:
        """Entries of the learned position table that stand before those of the patch grid."""
        return int(self.has_cls and self.posemb_includes_cls) * (1 + int(self.distilled))

    @property
    def feature_size(self) -> int:
        return self.representation_size or self.hidden_size

    @property
    def _embedding_params(self) -> int:
        height, width = self.patch_size
        return height * width * self.in_channels * self.hidden_size + self.hidden_size

    @property
    def _posemb_params(self) -> int:
        """Of one position table."""
        height, width = self.grid
        prefix, d = self.posemb_prefix, self.hidden_size
        if self.posemb == "2d":
            return prefix * d + (height + width) * d // 2
        return (height * width + prefix) * d if self.posemb == "learn" else 0

    @property
    def num_params(self) -> int:
        d, m = self.hidden_size, self.mlp_dim
        mlp = (d * m + m) + (m * d + d)
        ffn = mlp + (d * m + m if self.ffn == "swiglu" else 0)
        block = 2 * 2 * d + 4 * (d * d + d) + ffn + (2 * d if self.layer_scale is not None else 0)
        if self.posemb == "relative":
            block += (2 * self.num_tokens - 1) * d // self.num_heads
        if self.attention == "axial":
            block *= 2
        count = self._embedding_params + self.num_layers * block + (2 * d if self.num_layers else 0)
        count += self.num_prefix_tokens * d
        count += self._posemb_params * (self.num_layers if self.posemb_at == "layers" else 1)
        if self.pool == "map":
            count += d + 4 * (d * d + d) + 2 * d + mlp
        if self.representation_size:
            count += d * self.representation_size + self.representation_size
        return count + self._head_params * (1 + int(self.distilled))


def check_image_size(size: tuple[int, int], patch_size: tuple[int, int], allow_crop: bool) -> None:
    """Raises ValueError with the nearest legal sizes when the image is no multiple of the patch."""
    for axis, length, patch in zip(("height", "width"), size, patch_size, strict=True):
        if length < patch:
            raise ValueError(f"image {axis} {length} is smaller than one patch of {patch} pixels.")
        if length % patch and not allow_crop:
            below = length - length % patch
            raise ValueError(
                f"image {axis} {length} is no multiple of the patch size {patch}: use {below} or "
                f"{below + patch}, or allow_crop=True to drop the last {length % patch} pixels as "
                f"the official code does."
            )


@dataclasses.dataclass(frozen=True)
class ResNetBody:
    """A convolutional trunk: root, then stages of bottleneck units.

    Attributes:
        block_units: units per stage, (3, 4, 6, 3) for 50 layers; () for the root alone.
        width_factor: multiplies every width; the root has 64 channels at 1.
        preactivation: False: convolution, norm, ReLU (ResNet V1; hybrids). True: norm and ReLU come
            first, the root has neither, and a final norm follows (V2; BiT).
        weight_standardization: how convolution kernels are normalised over (h, w, in) before use:
            `std` (w - mean) / (std + epsilon), `var` (w - mean) / sqrt(var + epsilon), None.
        weight_epsilon: that epsilon.
        norm_epsilon: epsilon of every GroupNorm.
        norm_groups: groups of every GroupNorm.
        padding: `same` as TensorFlow pads (more at the end), `fixed` symmetrically by half the
            kernel whatever the size.
        pool_border: what the root's max-pool sees beyond the border, `-inf` (nothing) or `zero`.
        root_channels: channels after the root; None for 64 x `width_factor`.

    Raises:
        ValueError: a field is out of range; the message names it and the legal values.
    """

    block_units: tuple[int, ...]
    width_factor: float = 1
    preactivation: bool = False
    weight_standardization: str | None = "std"
    weight_epsilon: float = 1e-5
    norm_epsilon: float = 1e-6
    norm_groups: int = 32
    padding: str = "same"
    pool_border: str = "-inf"
    root_channels: int | None = None

    def __post_init__(self):
        object.__setattr__(self, "block_units", tuple(int(n) for n in self.block_units))
        # The bounds are far above any ResNet: a number from a file must not cost minutes to refuse.
        if len(self.block_units) > 8 or not all(0 < n <= 1000 for n in self.block_units):
            raise ValueError(
                f"block_units must be at most 8 stages of 1 to 1000 units, got {self.block_units}."
            )
        for width in (self.root_width, *(self.stage_width(0) for _ in self.block_units[:1])):
            if width <= 0 or self.norm_groups <= 0 or width % self.norm_groups:
                raise ValueError(
                    f"norm_groups must divide the root's {width} channels (64 x width_factor), got "
                    f"{self.norm_groups}."
                )
        _above_zero(self, "weight_epsilon", "norm_epsilon")
        _choice(self.weight_standardization, "weight_standardization", WEIGHT_STANDARDIZATIONS)
        _choice(self.padding, "padding", PADDINGS)
        _choice(self.pool_border, "pool_border", POOL_BORDERS)
        if self.pool_border == "zero" and self.padding != "fixed":
            raise ValueError("pool_border='zero' needs padding='fixed'.")

    @property
    def root_width(self) -> int:
        """Channels after the root."""
        return int(64 * self.width_factor) if self.root_channels is None else self.root_channels

    def stage_width(self, stage: int) -> int:
        """Channels inside the units of a stage, counted from 0; its output has four times as many."""
        return int(64 * self.width_factor) * 2**stage

    @property
    def num_features(self) -> int:
        """Channels of the last feature map."""
        if not self.block_units:
            return self.root_width
        return 4 * self.stage_width(len(self.block_units) - 1)

    def feature_map(self, image_size: tuple[int, int]) -> tuple[int, int]:
        """(h, w) of the last feature map: every halving rounds up, whatever the padding rule."""
        halvings = 2 + max(len(self.block_units) - 1, 0)
        height, width = image_size
        for _ in range(halvings):
            height, width = math.ceil(height / 2), math.ceil(width / 2)
        return height, width

    def num_params(self, in_channels: int) -> int:
        """Exact number of parameters, by formula."""
        count = 7 * 7 * in_channels * self.root_width
        if not self.preactivation:
            count += 2 * self.root_width
        channels = self.root_width
        for stage, units in enumerate(self.block_units):
            mid = self.stage_width(stage)
            for unit in range(units):
                count += channels * mid + 9 * mid * mid + 4 * mid * mid
                count += 2 * (channels + 2 * mid) if self.preactivation else 2 * (6 * mid)
                if unit == 0:  # the projection of the shortcut
                    count += 4 * mid * channels + (0 if self.preactivation else 8 * mid)
                channels = 4 * mid
        return count + (2 * channels if self.preactivation else 0)


@dataclasses.dataclass(frozen=True)
class ResNetSpec(ImageSpec):
    """A ResNet with GroupNorm: BiT (arXiv 1912.11370), or the V1 network of big_vision.

    Attributes:
        body: the convolutional trunk.
    """

    body: ResNetBody

    family = "resnet"
    input_layer = "conv_root"

    def __post_init__(self):
        super().__post_init__()
        self._set("body", _body(self.body))
        if not self.body.block_units:
            raise ValueError("a ResNet needs at least one stage in body.block_units.")

    @property
    def grid(self) -> tuple[int, int]:
        return self.body.feature_map(self.image_size)

    @property
    def feature_size(self) -> int:
        return self.body.num_features

    @property
    def num_params(self) -> int:
        return self.body.num_params(self.in_channels) + self._head_params


@dataclasses.dataclass(frozen=True)
class HybridSpec(ViTSpec):
    """A Transformer on the feature map of a ResNet (arXiv 2010.11929, section 3.1, "Hybrid").

    Any image size is legal whose feature map the patches fill: halvings round up.

    Attributes:
        resnet: the convolutional stem.
    """

    resnet: ResNetBody = ResNetBody((3, 4, 6, 3))

    family = "hybrid"
    input_layer = "conv_root"

    def __post_init__(self):
        self._set("resnet", _body(self.resnet))
        super().__post_init__()

    @property
    def embedded_size(self) -> tuple[int, int]:
        return self.resnet.feature_map(self.image_size)

    @property
    def _embedding_params(self) -> int:
        height, width = self.patch_size
        features = self.resnet.num_features
        stem = self.resnet.num_params(self.in_channels)
        return stem + height * width * features * self.hidden_size + self.hidden_size


@dataclasses.dataclass(frozen=True)
class MixerSpec(ImageSpec):
    """An MLP-Mixer (arXiv 2105.01601).

    Attributes:
        hidden_size: D, the width of every token.
        tokens_mlp_dim: hidden width of the MLP that mixes tokens.
        channels_mlp_dim: hidden width of the MLP that mixes channels.
        num_layers: blocks.
        patch_size: pixels of one patch, int or (height, width).
        activation: `gelu_tanh` (the JAX checkpoints) or `gelu`.
        norm_epsilon: epsilon of every LayerNorm.
        stochastic_depth: rate of the last block; rates rise linearly from 0 with depth.
    """

    hidden_size: int
    tokens_mlp_dim: int
    channels_mlp_dim: int
    num_layers: int
    patch_size: tuple[int, int]
    activation: str = "gelu_tanh"
    norm_epsilon: float = 1e-6
    stochastic_depth: float = 0.0

    family = "mixer"

    def __post_init__(self):
        super().__post_init__()
        self._set("patch_size", pair(self.patch_size, "patch_size"))
        self._positive("hidden_size", "tokens_mlp_dim", "channels_mlp_dim", "num_layers")
        self._rate("stochastic_depth")
        _above_zero(self, "norm_epsilon")
        _choice(self.activation, "activation", ACTIVATIONS)
        check_image_size(self.image_size, self.patch_size, allow_crop=False)

    @property
    def grid(self) -> tuple[int, int]:
        """Patches (down, across)."""
        return (self.image_size[0] // self.patch_size[0], self.image_size[1] // self.patch_size[1])

    @property
    def feature_size(self) -> int:
        return self.hidden_size

    @property
    def num_params(self) -> int:
        d, (height, width) = self.hidden_size, self.patch_size
        tokens = self.grid[0] * self.grid[1]
        count = height * width * self.in_channels * d + d + 2 * d
        for size, mlp in ((tokens, self.tokens_mlp_dim), (d, self.channels_mlp_dim)):
            count += self.num_layers * (2 * d + size * mlp + mlp + mlp * size + size)
        return count + self._head_params


def _body(value: Any) -> ResNetBody:
    return ResNetBody(**value) if isinstance(value, dict) else value


FAMILIES: dict[str, type] = {
    spec.family: spec for spec in (ViTSpec, HybridSpec, ResNetSpec, MixerSpec)
}
Spec = ViTSpec | HybridSpec | ResNetSpec | MixerSpec


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


def without_standardization(spec: Spec) -> Spec:
    """The spec of the same network with kernels that are used as they are."""
    if isinstance(spec, HybridSpec):
        resnet = dataclasses.replace(spec.resnet, weight_standardization=None)
        return dataclasses.replace(spec, resnet=resnet)
    if isinstance(spec, ResNetSpec):
        body = dataclasses.replace(spec.body, weight_standardization=None)
        return dataclasses.replace(spec, body=body)
    return spec


def changed(spec: Spec, changes: dict[str, Any], name: str = "this model") -> Spec:
    """The spec with other values for some fields.

    Args:
        spec: any family's.
        changes: field -> value; a value of None, or one that switches nothing on (0, False), is
            ignored where the family has no such field.
        name: of the model, for the message.

    Raises:
        ValueError: the family has no such field, or the value is out of range.
    """
    known = {field.name for field in dataclasses.fields(spec)}
    if extra := sorted(field for field, value in changes.items() if value and field not in known):
        raise ValueError(
            f"{name} has no {', '.join(extra)}: a {spec.family} model takes {sorted(known)}."
        )
    return dataclasses.replace(
        spec, **{field: value for field, value in changes.items() if field in known}
    )
