"""Models that users ask for and that are not here: what they are, and what is near."""

import re

_RESNETS = ("BiT-R50x1", "BiT-R101x1", "BiT-R152x2")
_LARGE = ("ViT-B/16", "ViT-L/16", "ViT-H/14")

# Pattern on the lower-case name without `timm/`: what it is, variants near it.
OTHERS = (
    (r"deit[\s_\-]*(3|iii)(?!\d)", "DeiT III", ("DeiT-B/16", "ViT-B/16", "ViT-L/16")),
    (r"dinov3", "DINOv3", ("DINOv2-S/14-reg4", "DINOv2-B/14-reg4", "DINOv2-L/14-reg4")),
    (r"siglip|webli", "SigLIP", _LARGE),
    (r"(^|/)lit[\s_\-]", "LiT, an image and a text network", ("ViT-B/16", "ViT-L/16")),
    (r"clip", "CLIP", _LARGE),
    (r"beit", "BEiT", ("MAE-B/16", "MAE-L/16", "ViT-L/16")),
    (r"(^|/)eva(02)?[\s_\-]", "EVA", ("DINOv2-L/14", "DINOv2-g/14", "MAE-L/16")),
    (r"swin", "the Swin Transformer", ("ViT-B/16", "DeiT-B/16")),
    (r"convnext", "ConvNeXt", _RESNETS),
    (r"i-?jepa", "I-JEPA", ("MAE-H/14", "DINOv2-L/14")),
    (
        r"(^|/)resnet(v2)?[\s_\-]?(18|26|34|50|101|152)(?!x)(?!.*bit)|/resnet-",
        "a ResNet other than BiT's",
        _RESNETS,
    ),
)

# A hybrid that only Hugging Face names so; transformers 5 reads it no longer.
_HF_HYBRID = r"google/vit-hybrid"
_HF_HYBRID_ANSWER = (
    "{!r} is a copy of the hybrid R50+ViT-B/16 without a card here: keras_vit.load('R50+ViT-B/16') takes "
    "the authors' release from Google's file or timm's, and a downloaded copy is loaded by its path."
)
_JFT = r"jft|bit[\s_\-]l[\s_\-]"


def out_of_scope(text: str) -> str | None:
    """The sentence that answers a name of a model that is not here; None for any other name."""
    lower = text.lower()
    if re.search(_HF_HYBRID, lower):
        return _HF_HYBRID_ANSWER.format(text)
    if re.search(_JFT, lower):
        return (
            f"{text!r} names weights trained on JFT, which the authors never released: the largest "
            f"they released are pre-trained on ImageNet-21k, as those of {_listed(_LARGE)} and "
            f"BiT-R152x4."
        )
    for pattern, kind, near in OTHERS:
        if re.search(pattern, lower):
            return (
                f"{text!r} names {kind}, which is not in this package: near are {_listed(near)}, and "
                f"keras_vit.list_models() gives all."
            )
    return None


def _listed(names: tuple[str, ...]) -> str:
    return ", ".join(names)
