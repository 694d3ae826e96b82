"""The architectures: one row per variant, each citing where its numbers come from.

A variant is a network, not weights; those are in `keras_vit.zoo.cards`. The mean-pooled models of
the GSAM release (`-gap` in the official code) are no variants: their cards set `pool = "gap"`.
"""

import dataclasses
from typing import Any

from keras_vit.spec import HybridSpec, MixerSpec, ResNetBody, ResNetSpec, Spec, ViTSpec


@dataclasses.dataclass(frozen=True)
class Variant:
    """One architecture.

    Attributes:
        name: as in the paper, `ViT-L/16`.
        spec: 1000 classes at the size that its authors pre-trained at, 224 px unless the variant
            says otherwise; no dropout.
        dropout: rate in the authors' fine-tuning configuration of that name.
        source: table or file that defines it.
        note: anything a user must know.
    """

    name: str
    spec: Spec
    dropout: float
    source: str
    note: str = ""


# size: (hidden_size, mlp_dim, num_heads, num_layers), source.
SIZES = {
    "Ti": ((192, 768, 3, 12), "arXiv 2106.10270; vit_jax/configs/models.py"),
    "S": ((384, 1536, 6, 12), "arXiv 2106.10270; vit_jax/configs/models.py"),
    "b": ((384, 1536, 6, 12), "arXiv 2010.11929, Figure 4"),
    "B": ((768, 3072, 12, 12), "arXiv 2010.11929, Table 1"),
    "L": ((1024, 4096, 16, 24), "arXiv 2010.11929, Table 1"),
    "H": ((1280, 5120, 16, 32), "arXiv 2010.11929, Table 1"),
    "g": ((1408, 6144, 16, 40), "arXiv 2106.04560; big_vision models/vit.py:297"),
    "G": ((1664, 8192, 16, 48), "arXiv 2106.04560; big_vision models/vit.py:297"),
}

_TOKEN_NOTE = (
    "The original pools by attention (pool='map'); this row has a class token, as the others."
)

# size, patch, dropout (vision_transformer vit_jax/configs/models.py), note.
PLAIN = (
    ("Ti", 16, 0.0, ""),
    ("S", 32, 0.0, ""),
    ("S", 16, 0.0, ""),
    (
        "b",
        32,
        0.0,
        "ViT-B with every width halved; the paper does not say how many heads: 6 keeps 64 per head.",
    ),
    ("B", 32, 0.0, "The published configuration had dropout 0.1 before May 2021."),
    ("B", 16, 0.0, "The published configuration had dropout 0.1 before May 2021."),
    ("B", 8, 0.0, ""),
    ("L", 32, 0.0, "No dropout in the published configuration, although ViT-L/16 has 0.1."),
    ("L", 16, 0.1, ""),
    ("L", 14, 0.0, "A size of big_vision, not in the papers' tables; without released weights."),
    (
        "H",
        14,
        0.1,
        "At 384 px the official code drops the last 6 rows and columns: allow_crop=True.",
    ),
    ("g", 14, 0.0, _TOKEN_NOTE),
    ("G", 14, 0.0, _TOKEN_NOTE),
)

_STAGES_NOTE = "In the paper's Table 6, not in the official code; stages as for {}."

# name, units per stage, patch on the ResNet's map, size, dropout, source, note.
HYBRIDS = (
    (
        "R+ViT-Ti/16",
        (),
        8,
        "Ti",
        0.0,
        "arXiv 2106.10270; vit_jax/configs/models.py:257",
        "The root alone, then 8x8 patches of its map: 32 pixels of the image, whatever the name says.",
    ),
    (
        "R26+ViT-S/32",
        (2, 2, 2, 2),
        1,
        "S",
        0.0,
        "arXiv 2106.10270; vit_jax/configs/models.py:304",
        "",
    ),
    ("R26+ViT-B/32", (2, 2, 2, 2), 1, "B", 0.0, "vit_jax/configs/models.py:286", ""),
    (
        "R50+ViT-B/32",
        (3, 4, 6, 3),
        1,
        "B",
        0.1,
        "arXiv 2010.11929, Table 6",
        _STAGES_NOTE.format("R50+ViT-L/32"),
    ),
    (
        "R50+ViT-B/16",
        (3, 4, 9),
        1,
        "B",
        0.1,
        "arXiv 2010.11929, Table 6; vit_jax/configs/models.py:270",
        "The fourth stage's units stand in the third.",
    ),
    (
        "R50+ViT-L/32",
        (3, 4, 6, 3),
        1,
        "L",
        0.1,
        "arXiv 2010.11929, Table 6; vit_jax/configs/models.py:318",
        "",
    ),
    (
        "R50+ViT-L/16",
        (3, 4, 9),
        1,
        "L",
        0.1,
        "arXiv 2010.11929, Table 6",
        _STAGES_NOTE.format("R50+ViT-B/16"),
    ),
)

# depth: units per stage (big_vision models/bit.py:131; bit_jax/models.py:154).
DEPTHS = {50: (3, 4, 6, 3), 101: (3, 4, 23, 3), 152: (3, 8, 36, 3), 200: (3, 24, 36, 3)}

_BIT = "arXiv 1912.11370, section 3; bit_jax/models.py:154"
_BASELINE = "arXiv 2010.11929, Table 6; stages of big_vision models/bit.py:131"

# depth, width factor, source.
RESNETS = (
    (50, 1, _BIT),
    (50, 2, _BASELINE),
    (50, 3, _BIT),
    (101, 1, _BIT),
    (101, 3, _BIT),
    (152, 1, _BASELINE),
    (152, 2, _BASELINE),
    (152, 4, _BIT),
    (200, 3, _BASELINE),
)

# What BiT's own code computes, and the V1 network of big_vision (the hybrids' numbers).
BIT_NUMERICS = {
    "preactivation": True,
    "weight_standardization": "var",
    "weight_epsilon": 1e-10,
    "norm_epsilon": 1e-5,
    "padding": "fixed",
    "pool_border": "zero",
}
_V1_NOTE = (
    "ResNet V1 with GroupNorm of big_vision, the hybrids' backbone under a mean-pooled head. Files of "
    "BiT do not fit it: they are BiT-R50x1 and so on."
)

# size, patch, (hidden_size, tokens_mlp_dim, channels_mlp_dim, num_layers), source.
_MIXER = "arXiv 2105.01601, Table 1"
MIXERS = (
    ("S", 32, (512, 256, 2048, 8), _MIXER),
    ("S", 16, (512, 256, 2048, 8), _MIXER),
    ("S", 8, (512, 256, 2048, 8), "big_vision models/mlp_mixer.py:93"),
    ("B", 32, (768, 384, 3072, 12), _MIXER),
    ("B", 16, (768, 384, 3072, 12), _MIXER),
    ("L", 16, (1024, 512, 4096, 24), _MIXER),
    ("H", 14, (1280, 640, 5120, 32), _MIXER),
)

_DEIT = {"activation": "gelu"}
_DINO = {"activation": "gelu"}
_DINOV2 = {"activation": "gelu", "image_size": (518, 518), "layer_scale": 1e-5}
# int(6144 x 2/3), rounded up to a multiple of 8, is the width of gate and value.
_DINOV2_G = {**_DINOV2, "hidden_size": 1536, "mlp_dim": 4096, "num_heads": 24, "ffn": "swiglu"}
_REG4 = {"num_registers": 4}
_FLEXI = {"image_size": (240, 240), "posemb_includes_cls": False}
_FLEXI_NOTE = (
    "For any patch size from 8 to 48; this row has 16. Stored with patches of 32 and 7x7 positions, "
    "which loading brings to the model's."
)
_DEIT_SOURCE = "arXiv 2012.12877, Table 1; deit models.py"
_DINO_SOURCE = "arXiv 2104.14294; dino vision_transformer.py"
_DINOV2_SOURCE = "arXiv 2304.07193; dinov2/models/vision_transformer.py"
_REG4_SOURCE = "arXiv 2309.16588; dinov2/hub/backbones.py"
_MAE_SOURCE = "arXiv 2111.06377; mae models_mae.py"
_FLEXI_SOURCE = "arXiv 2212.08013; big_vision models/proj/flexi/vit.py"
_MAE_NOTE = "The encoder; its positions are a sine table in the published file, learned here."

# Settings of the plain ViT: name, sizes, patch, fields that differ, source, note. Those whose origin
# is in PyTorch have the exact GELU; all have LayerNorm epsilon 1e-6, whatever the configuration of a
# converted file says.
RELATIVES = (
    ("DeiT-{}/16", ("Ti", "S", "B"), 16, _DEIT, _DEIT_SOURCE, ""),
    (
        "DeiT-{}/16-distilled",
        ("Ti", "S", "B"),
        16,
        {**_DEIT, "distilled": True},
        _DEIT_SOURCE,
        "Two heads, of the class and of the distillation token; the logits are their mean.",
    ),
    ("DINO-{}/16", ("S", "B"), 16, _DINO, _DINO_SOURCE, ""),
    ("DINO-{}/8", ("S", "B"), 8, _DINO, _DINO_SOURCE, ""),
    ("DINOv2-{}/14", ("S", "B", "L"), 14, _DINOV2, _DINOV2_SOURCE, ""),
    ("DINOv2-{}/14", ("g",), 14, _DINOV2_G, _DINOV2_SOURCE, ""),
    ("DINOv2-{}/14-reg4", ("S", "B", "L"), 14, {**_DINOV2, **_REG4}, _REG4_SOURCE, ""),
    ("DINOv2-{}/14-reg4", ("g",), 14, {**_DINOV2_G, **_REG4}, _REG4_SOURCE, ""),
    ("MAE-{}/16", ("B", "L"), 16, {"activation": "gelu"}, _MAE_SOURCE, _MAE_NOTE),
    ("MAE-{}/14", ("H",), 14, {"activation": "gelu"}, _MAE_SOURCE, _MAE_NOTE),
    ("FlexiViT-{}", ("S", "B", "L"), 16, _FLEXI, _FLEXI_SOURCE, _FLEXI_NOTE),
)

# For 28x28 grey images: a network of each kind, whose forward passes cost the same within 5 %, so that
# a training of each with the same images is one with the same arithmetic (docs/runs.md).
_SMALL: dict[str, Any] = {"image_size": (28, 28), "in_channels": 1, "num_classes": 10}
_MINI_SOURCE = "this project, keras_vit/train/recipes/fashion_mnist.py"
_MINI_NOTE = "For 28x28 grey images; its weights ship with the package."

MINIS = (
    Variant(
        "ViT-Mini/4",
        ViTSpec(96, 192, 3, 4, (4, 4), pool="gap", **_SMALL),
        0.0,
        _MINI_SOURCE,
        _MINI_NOTE,
    ),
    Variant(
        "R14+ViT-Mini/4",
        HybridSpec(
            *(96, 192, 3, 3, (1, 1)),
            pool="gap",
            resnet=ResNetBody((4,), width_factor=0.5, norm_groups=8),
            **_SMALL,
        ),
        0.0,
        _MINI_SOURCE,
        f"{_MINI_NOTE} Four units of the ResNet stand for one block of ViT-Mini/4.",
    ),
    Variant(
        "BiT-Mini",
        ResNetSpec(ResNetBody((1, 2), norm_groups=16, **BIT_NUMERICS), **_SMALL),
        0.0,
        _MINI_SOURCE,
        f"{_MINI_NOTE} As BiT-R50x1 with two stages of one and two units and 16 groups.",
    ),
)


def _plain(size: str, patch: int, dropout: float, note: str) -> Variant:
    numbers, source = SIZES[size]
    return Variant(f"ViT-{size}/{patch}", ViTSpec(*numbers, (patch, patch)), dropout, source, note)


def _hybrid(name, block_units, patch, size, dropout, source, note) -> Variant:
    spec = HybridSpec(*SIZES[size][0], (patch, patch), resnet=ResNetBody(block_units))
    return Variant(name, spec, dropout, source, note)


def _bit(depth: int, width: int, source: str) -> Variant:
    body = ResNetBody(DEPTHS[depth], width, **BIT_NUMERICS)
    return Variant(f"BiT-R{depth}x{width}", ResNetSpec(body), 0.0, source)


def _v1(depth: int, width: int, _: str) -> Variant:
    spec = ResNetSpec(ResNetBody(DEPTHS[depth], width))
    return Variant(
        f"ResNet-GN-R{depth}x{width}", spec, 0.0, "big_vision models/bit.py:131", _V1_NOTE
    )


def _mixer(size: str, patch: int, numbers: tuple[int, int, int, int], source: str) -> Variant:
    return Variant(f"Mixer-{size}/{patch}", MixerSpec(*numbers, (patch, patch)), 0.0, source)


def _relative(name, size, patch, changes, source, note) -> Variant:
    spec = dataclasses.replace(ViTSpec(*SIZES[size][0], (patch, patch)), **changes)
    return Variant(name.format(size), spec, 0.0, source, note)


def _all() -> list[Variant]:
    found = [_plain(*row) for row in PLAIN]
    found += [_hybrid(*row) for row in HYBRIDS]
    found += [_bit(*row) for row in RESNETS] + [_v1(*row) for row in RESNETS]
    found += [_mixer(*row) for row in MIXERS]
    found += [_relative(row[0], size, *row[2:]) for row in RELATIVES for size in row[1]]
    return [*found, *MINIS]


VARIANTS: dict[str, Variant] = {variant.name: variant for variant in _all()}
