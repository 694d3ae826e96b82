"""Which public releases are here, by group, and which are not and why: data for the documents."""

import re
from typing import NamedTuple

from keras_vit.card import Card


class Group(NamedTuple):
    """Checkpoints of one release.

    Attributes:
        title: what it is.
        where: where the authors publish it.
        pattern: regular expression that the whole name of its cards matches, and no other's.
        count: number of cards, which a test holds.
    """

    title: str
    where: str
    pattern: str
    count: int


class Left(NamedTuple):
    """A public release without cards.

    Attributes:
        title: what it is.
        where: where it is published.
        count: number of files.
        why: why it has no cards.
    """

    title: str
    where: str
    count: int
    why: str


GROUPS = (
    Group(
        "ViT, the paper's release (arXiv 2010.11929)",
        "vit_models/imagenet21k, imagenet21k+imagenet2012",
        r"ViT-.*@orig_(?!.*_timm)\w+",
        13,
    ),
    Group(
        "hybrids, the paper's release",
        "vit_models/imagenet21k, imagenet21k+imagenet2012",
        r"R\d+\+ViT-.*@orig_(?!.*_timm)\w+",
        4,
    ),
    Group(
        "trunks of both without pre_logits and head",
        "huggingface.co/timm",
        r".*ViT-.*@orig_\w+_timm",
        6,
    ),
    Group(
        "AugReg (arXiv 2106.10270): recommended by the authors or picked by timm, ViT",
        "vit_models/augreg",
        r"ViT-.*@augreg_.*",
        35,
    ),
    Group("AugReg, hybrids", "vit_models/augreg", r"R\d*\+ViT-.*@augreg_.*", 14),
    Group("AugReg, fine-tuned again by timm", "huggingface.co/timm", r".*@augreg2_.*", 2),
    Group("ViT with SAM (arXiv 2106.01548)", "vit_models/sam", r"ViT-.*@sam_.*", 5),
    Group("ViT with GSAM (arXiv 2203.08065)", "vit_models/gsam", r"ViT-.*@gsam_.*", 4),
    Group("plain ViT baselines (arXiv 2205.01580)", "big_vision/vit_s16_i1k_*", r".*@plain_.*", 3),
    Group(
        "MLP-Mixer (arXiv 2105.01601)",
        "mixer_models/imagenet1k, imagenet21k",
        r"Mixer-.*@orig_.*",
        4,
    ),
    Group("MLP-Mixer with SAM", "mixer_models/sam", r"Mixer-.*@sam_.*", 2),
    Group("MLP-Mixer with GSAM", "mixer_models/gsam", r"Mixer-.*@gsam_.*", 5),
    Group(
        "MLP-Mixer on ImageNet-21k-P (arXiv 2104.10972)",
        "huggingface.co/timm",
        r"Mixer-.*@miil_.*",
        2,
    ),
    Group("BiT-S and BiT-M (arXiv 1912.11370)", "bit_models", r"BiT-.*@bit_.*", 19),
    Group(
        "BiT, patient distillation (arXiv 2106.05237)",
        "bit_models/distill",
        r"BiT-.*@(distill|teacher)_.*",
        8,
    ),
    Group(
        "BiT on VTAB-1k: 5 networks, 19 tasks, 3 runs", "bit_models/vtab", r"BiT-.*@vtab_.*", 285
    ),
    Group("FlexiViT (arXiv 2212.08013)", "big_vision/flexivit", r"FlexiViT-.*@flexi_.*", 15),
    Group("baselines of FlexiViT", "big_vision/flexivit", r"FlexiViT-.*@fixed\d+_.*", 2),
    Group("DeiT (arXiv 2012.12877)", "huggingface.co/timm", r"DeiT-.*", 8),
    Group("DINO (arXiv 2104.14294)", "huggingface.co/timm", r"DINO-.*", 4),
    Group(
        "DINOv2, without and with registers (arXiv 2304.07193, 2309.16588)",
        "huggingface.co/timm",
        r"DINOv2-.*",
        8,
    ),
    Group("MAE, the encoders (arXiv 2111.06377)", "huggingface.co/timm", r"MAE-.*", 3),
    Group("trained by this project", "in the package", r".*Mini.*@fashion_mnist.*", 4),
)

LEFT = (
    Left(
        "AugReg, the other files",
        "vit_models/augreg",
        52_219,
        "no rows: loaded by their file names, and found with `keras-vit list augreg:B/16`",
    ),
    Left("BiT in the TF2 format (.h5)", "bit_models", 10, "the same weights as the npz files"),
    Left("DeiT III", "big_vision/zoo/deit3, huggingface.co/timm", 28, "another family"),
    Left("DINOv3", "huggingface.co/timm", 17, "another family: rotary positions"),
    Left("SigLIP and SigLIP 2", "big_vision/siglip, siglip2", 26, "image and text in one file"),
    Left(
        "LiT",
        "vit_models/lit",
        6,
        "image and text in one file; the image tower is a locked ViT of AugReg",
    ),
)


def group_of(card: Card) -> Group:
    """The group of a shipped card.

    Raises:
        ValueError: no group has it, or several have.
    """
    found = [group for group in GROUPS if re.fullmatch(group.pattern, card.name)]
    if len(found) != 1:
        raise ValueError(f"{card.name} belongs to {len(found)} groups instead of one.")
    return found[0]


def groups_table(cards: list[Card]) -> str:
    """Markdown tables: the groups with their number of cards, and what is left out."""
    counts = dict.fromkeys(GROUPS, 0)
    for card in cards:
        counts[group_of(card)] += 1
    lines = ["| release | published at | cards |", "| --- | --- | --: |"]
    lines += [f"| {g.title} | {g.where} | {count} |" for g, count in counts.items()]
    lines += [f"| **all** | | **{len(cards)}** |", "", "Public, and without a card:", ""]
    lines += ["| release | published at | files | why |", "| --- | --- | --: | --- |"]
    lines += [f"| {left.title} | {left.where} | {left.count:,} | {left.why} |" for left in LEFT]
    return "\n".join(lines) + "\n"
