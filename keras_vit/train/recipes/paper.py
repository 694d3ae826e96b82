"""Pre-training as in the Vision Transformer paper (arXiv 2010.11929): every row of its Table 3."""

import dataclasses

from keras_vit.pretext.objective import Pretext
from keras_vit.spec import ViTSpec
from keras_vit.train.recipe import Loss, Recipe, Schedule
from keras_vit.train.recipes.common import (
    ADAM,
    IMAGENET,
    IMAGENET21K,
    INCEPTION,
    JFT,
    PRETRAINING,
    SIGMOID_21K,
    one_of,
    paper_network,
    row_of,
)
from keras_vit.zoo.variants import VARIANTS

_BASE = ((7,), 8e-4)

# Table 3, JFT-300M. Model: epochs, peak rate. The paper does not say whether its ResNets are
# pre-activation (BiT's) or not (those of the authors' later code), so both go by their rows.
JFT_ROWS = {
    "ViT-B/16": _BASE,
    "ViT-B/32": _BASE,
    "ViT-L/32": ((7,), 6e-4),
    "ViT-L/16": ((7, 14), 4e-4),
    "ViT-H/14": ((14,), 3e-4),
    **{f"{kind}-R50x{k}": ((7,), 1e-3) for kind in ("BiT", "ResNet-GN") for k in (1, 2)},
    **{f"{kind}-R101x1": ((7,), 8e-4) for kind in ("BiT", "ResNet-GN")},
    **{f"{kind}-R152x{k}": ((7,), 6e-4) for kind in ("BiT", "ResNet-GN") for k in (1, 2)},
    "R50+ViT-B/16": _BASE,
    "R50+ViT-B/32": _BASE,
    "R50+ViT-L/32": ((7,), 2e-4),
    "R50+ViT-L/16": ((7, 14), 4e-4),
}
# Table 3, ImageNet-21k. Model: epochs.
IMAGENET21K_ROWS = {
    "ViT-B/16": (90,),
    "ViT-B/32": (90,),
    "ViT-L/16": (30, 90),
    "ViT-L/32": (30, 90),
}
# Table 3, ImageNet, where the row is called ViT-*.
IMAGENET_ROWS = ("ViT-B/16", "ViT-B/32", "ViT-L/16", "ViT-L/32", "ViT-H/14")
# Appendix B.1.2 names ViT-B/16 alone, and its settings fit every plain ViT.
MASKED_PATCH_MODELS = ("ViT-B/16",)
MASKED_PATCH_NETWORKS = tuple(name for name, row in VARIANTS.items() if type(row.spec) is ViTSpec)

WARMUP = 10_000  # steps


def jft(model: str = "ViT-L/16", *, epochs: int | None = None) -> Recipe:
    """Pre-training on JFT-300M.

    Paper: arXiv 2010.11929, Table 3; loss and its bias: vision_transformer issues 2 and 34.
    Command: keras-vit train paper/jft --model ViT-L/16 --data folder:jft --out runs/jft
    Expected: ImageNet top-1 after fine-tuning at 384 px: ViT-B/32 80.73, B/16 84.15, L/32 84.37,
        L/16 86.30 (7 epochs) and 87.12 (14), H/14 88.08; R50x1 77.54, R152x2 84.97; R50+ViT-B/16
        85.58, R50+ViT-L/16 86.60 (7) and 87.12 (14).
    Source: arXiv 2010.11929, Table 6.
    Deviations: none known. Where the paper is silent: weight decay on kernels only (big_vision),
        images cropped and flipped as in fine-tuning (issue 2). JFT-300M is not public.

    Args:
        model: a row of the table.
        epochs: 7 or 14 where the table has both; None for the longer run.
    """
    name = "paper/jft"
    variant = row_of(name, model, JFT_ROWS)
    choices, rate = JFT_ROWS[variant]
    return Recipe(
        name=name,
        epochs=_epochs(name, variant, epochs, choices),
        schedule=Schedule(base_lr=rate, decay="linear", warmup_steps=WARMUP, end_lr=1e-5),
        optimizer=dataclasses.replace(ADAM, weight_decay=0.1),
        loss=SIGMOID_21K,
        augment=INCEPTION,
        changes=paper_network(variant, dropout=0.0),
        **PRETRAINING,
        **JFT,
    )


def imagenet21k(model: str = "ViT-B/16", *, epochs: int | None = None) -> Recipe:
    """Pre-training on ImageNet-21k.

    Paper: arXiv 2010.11929, Table 3; loss and its bias: vision_transformer issues 2 and 34.
    Command: keras-vit train paper/imagenet21k --model ViT-L/16 --with epochs=30
        --data folder:imagenet21k --out runs/i21k
    Expected: ImageNet top-1 after fine-tuning at 384 px: ViT-B/16 83.97, B/32 81.28, L/16 85.15,
        L/32 80.99.
    Source: arXiv 2010.11929, Table 5.
    Deviations: none known. Where the paper is silent: weight decay on kernels only (big_vision).
        ViT-H/14 has results but no row: release/imagenet21k has its settings.

    Args:
        model: a row of the table.
        epochs: 30 or 90 for ViT-L; None for 90.
    """
    name = "paper/imagenet21k"
    variant = row_of(name, model, IMAGENET21K_ROWS)
    return Recipe(
        name=name,
        epochs=_epochs(name, variant, epochs, IMAGENET21K_ROWS[variant]),
        schedule=Schedule(base_lr=1e-3, decay="linear", warmup_steps=WARMUP, end_lr=1e-5),
        optimizer=dataclasses.replace(ADAM, weight_decay=0.03),
        loss=SIGMOID_21K,
        augment=INCEPTION,
        changes=paper_network(variant, dropout=0.1),
        **PRETRAINING,
        **IMAGENET21K,
    )


def imagenet(model: str = "ViT-B/16") -> Recipe:
    """Training on ImageNet from scratch, 300 epochs.

    Paper: arXiv 2010.11929, Table 3; loss, smoothing and bias: the same authors' configuration
        scenic imagenet_vit_config.py.
    Command: keras-vit train paper/imagenet --model ViT-B/16 --data folder:imagenet --out runs/i1k
    Expected: top-1 at 224 px: ViT-B/16 74.79, B/32 69.19, L/16 72.59, L/32 66.90; after fine-tuning
        at 384 px 77.91, 73.38, 76.53, 71.16.
    Source: vision_transformer issue 62; arXiv 2010.11929, Table 5.
    Deviations: none known. Where the paper is silent: the sigmoid loss with targets 1e-4 and
        1 - 1e-4, weight decay on kernels only. The row is called ViT-*, and no result for ViT-H/14
        is given.
    """
    name = "paper/imagenet"
    variant = row_of(name, model, IMAGENET_ROWS)
    return Recipe(
        name=name,
        epochs=300,
        schedule=Schedule(base_lr=3e-3, decay="cosine", warmup_steps=WARMUP),
        optimizer=dataclasses.replace(ADAM, weight_decay=0.3, clip_norm=1.0),
        loss=Loss(kind="sigmoid", label_smoothing=1e-4, head_bias=-10.0),
        augment=INCEPTION,
        changes=paper_network(variant, dropout=0.1),
        **PRETRAINING,
        **IMAGENET,
    )


def masked_patch(
    model: str = "ViT-B/16", *, target: str = "mean_colour", share: float = 0.5
) -> Recipe:
    """Pre-training without labels, by masked patch prediction.

    Paper: arXiv 2010.11929, section 4.6 and appendix B.1.2.
    Command: keras-vit train paper/masked_patch --model ViT-B/16 --data folder:jft
        --out runs/masked_patch
    Expected: ImageNet top-1 after fine-tuning: ViT-B/16 79.9, 2 points more than from scratch and 4
        fewer than after supervised pre-training. Most of it is there after 100,000 steps. Of the
        targets, pixels are a little worse, and so is share=0.15.
    Source: arXiv 2010.11929, section 4.6 and appendix B.1.2.
    Deviations: none known. Where the paper is silent: weight decay 0.1 and no dropout (its rows of
        JFT-300M), no clipping, images cropped and flipped (vision_transformer issue 103), how counts
        are rounded, another patch is one of the same image, embeddings are corrupted before positions
        are added (docs/pretext.md). JFT-300M is not public.

    Args:
        model: any plain ViT.
        target: what is predicted of a patch: mean_colour, downsized or pixels.
        share: of the patches that are corrupted, 0.5 or 0.15.
    """
    name = "paper/masked_patch"
    row_of(name, model, MASKED_PATCH_NETWORKS)
    one_of(name, "target", target, ("mean_colour", "downsized", "pixels"))
    one_of(name, "share", share, (0.5, 0.15), "; another is set with --set pretext.share=")
    return Recipe(
        name=name,
        epochs=None,
        steps=1_000_000,
        schedule=Schedule(base_lr=2e-4, decay="cosine", warmup_steps=WARMUP),
        optimizer=dataclasses.replace(ADAM, weight_decay=0.1),
        augment=INCEPTION,
        pretext=Pretext(target=target, share=share),
        changes=(("dropout", 0.0), ("representation_size", None)),
        **PRETRAINING,
        **JFT,
    )


def _epochs(name: str, variant: str, wanted: int | None, choices: tuple[int, ...]) -> int:
    if wanted is None:
        return max(choices)
    other = "; another length is set with --set epochs="
    return one_of(f"{name} for {variant}", "epochs", wanted, choices, other)
