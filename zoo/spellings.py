"""The ways to write a variant's name: the paper's, shorter ones, and timm's architecture names."""

import re
from urllib.parse import unquote

from keras_vit.zoo.variants import VARIANTS

# timm, Hugging Face and KerasHub write sizes as words.
WORDS = {
    "tiny": "Ti",
    "small": "S",
    "base": "B",
    "large": "L",
    "huge": "H",
    "giant": "g",
    "gigantic": "G",
}

# Variant: other spellings of it. Case and what separates words make no difference.
OTHERS = (
    (r"ViT-(\w+/\d+)", (r"\1",)),
    (r"(R\d*)\+ViT-(.+)", (r"\1+\2", r"\1x1+ViT-\2", r"\1x1+\2")),
    (r"BiT-(R.+)", (r"\1",)),
    (r"Mixer-(.+)", (r"MLP-Mixer-\1",)),
    (r"(DINO|DINOv2|MAE)-(.+)", (r"\1-ViT-\2",)),
    (r"(DINOv2-)(\w)/14", (r"\1\2",)),
    (r"(DINOv2-)(\w)(/14)-reg4", (r"\1\2\3-reg", r"\1ViT-\2\3-reg", r"\1with-registers-\2")),
    (r"(MAE-\w)/.+", (r"\1", r"ViT-\1")),
    (r"(FlexiViT-\w)", (r"\1/16",)),
)

_SIZE = rf"(?P<size>{'|'.join(WORDS)})"
# timm's architecture: the variant.
TIMM = (
    (rf"vit_{_SIZE}_patch(?P<patch>\d+)_(?P<pixels>\d+)", "ViT-{size}/{patch}"),
    (rf"vit_{_SIZE}_patch(?P<patch>\d+)_dinov2", "DINOv2-{size}/{patch}"),
    (rf"vit_{_SIZE}_patch(?P<patch>\d+)_reg4_dinov2", "DINOv2-{size}/{patch}-reg4"),
    (
        rf"vit_{_SIZE}_r(?P<depth>\d*)_s(?P<patch>\d+)(_p8)?_(?P<pixels>\d+)",
        "R{depth}+ViT-{size}/{patch}",
    ),
    (r"resnetv2_(?P<depth>\d+x\d+)_bit", "BiT-R{depth}"),
    (r"mixer_(?P<size>[sblh])(?P<patch>\d+)_(?P<pixels>\d+)", "Mixer-{size}/{patch}"),
    (rf"deit_{_SIZE}_patch(?P<patch>\d+)_(?P<pixels>\d+)", "DeiT-{size}/{patch}"),
    (
        rf"deit_{_SIZE}_distilled_patch(?P<patch>\d+)_(?P<pixels>\d+)",
        "DeiT-{size}/{patch}-distilled",
    ),
    (rf"flexivit_{_SIZE}", "FlexiViT-{size}"),
)


_SEPARATORS = re.compile(r"[\s_\-/+]+")


def fold(name: str) -> str:
    """Lower case, without what separates words."""
    name = unquote(name) if "%" in name else name
    return _SEPARATORS.sub("", name.lower())


def without_suffix(text: str) -> str:
    """The name without the suffix of a checkpoint file."""
    return re.sub(r"\.(npz|safetensors|h5)$", "", text.strip(), flags=re.IGNORECASE)


def variant_of(text: str) -> str | None:
    """The variant of a name in the paper's style, `ViT-L/16`, `vit_l_16`, `L/16`, `ViT-L_16.npz`."""
    text = re.sub(r"patch[\s_\-]*(?=\d)", "", without_suffix(text), flags=re.IGNORECASE)
    for variant in VARIANTS:  # case matters first: ViT-b and ViT-g are not ViT-B and ViT-G
        if _joined(text) == _joined(variant):
            return variant
    same = SPELLINGS.get(fold(text), [])
    if len(same) > 1:
        # In a name that is lower case throughout, b is the common B and not the paper's half-size
        # b; otherwise the case of the letter decides between g and G.
        letter = re.sub(r"[\W\d_]", "", text)[-1]
        letter = "B" if letter == "b" else letter
        same = [variant for variant in same if f"-{letter}/" in variant]
    return next(iter(same), None)


def timm_variant(arch: str) -> tuple[str, str | None] | None:
    """Variant and pixels of a name of timm's, `vit_base_patch16_224`; None for what is no variant."""
    for pattern, name in TIMM:
        if match := re.fullmatch(pattern, arch):
            parts = match.groupdict()
            if size := parts.get("size"):
                parts["size"] = WORDS.get(size, size.upper())
            variant = name.format(**parts)
            return (variant, parts.get("pixels")) if variant in VARIANTS else None
    return None


def _joined(text: str) -> str:
    return re.sub(r"[\s_\-/]+", "-", text)


def _spellings() -> dict[str, list[str]]:
    """Folded spelling: the variants that it may mean."""
    found: dict[str, list[str]] = {}
    for variant in VARIANTS:
        names = {variant}
        for pattern, others in OTHERS:
            if match := re.fullmatch(pattern, variant):
                names |= {match.expand(other) for other in others}
        for word, size in WORDS.items():
            names |= {re.sub(rf"-{size}(?=/|$)", f"-{word}", name) for name in names}
        for key in {fold(name) for name in names}:
            found.setdefault(key, []).append(variant)
    return found


SPELLINGS = _spellings()
