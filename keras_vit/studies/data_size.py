"""How much data a network needs: Figures 3 and 4 of the paper."""

import dataclasses
from collections.abc import Iterable

from keras_vit.spec import ResNetSpec
from keras_vit.studies import mini
from keras_vit.studies.study import Axis, Candidate, Cell, Study, one
from keras_vit.train.recipe import Recipe
from keras_vit.train.recipes import paper
from keras_vit.train.recipes.common import JFT
from keras_vit.zoo.variants import VARIANTS

IMAGES = Axis("training images", log=True)
PAPER_3 = "arXiv 2010.11929, section 4.3 and Figure 3"
PAPER_4 = "arXiv 2010.11929, section 4.3 and Figure 4"
SUBSETS = (9_000_000, 30_000_000, 90_000_000, None)  # of JFT-300M
DATA_SETS = (1_281_167, 14_197_122, None)  # images of ImageNet, ImageNet-21k and JFT-300M
MINI_SUBSETS = (1_710, 5_700, 17_100, None)  # the same shares of 57,000
# Half of ViT-B's hidden sizes: the paper's ViT-b. Heads as wide as there.
HALF_BASE = {"hidden_size": 384, "mlp_dim": 1536, "num_heads": 6}
DECAYS, DROPOUT, SMOOTHING = (0.05, 0.3), 0.1, 0.1


def few_shot() -> Study:
    """Figure 4: one setting at every size, no regularisation beside it, the best epoch kept.

    Peak rates and weight decay are those of Table 3, for as many steps as the rows of JFT-300M take
    at every size; the paper says no more than that settings are the same everywhere.
    """
    networks = {
        "ViT-L/16": ("ViT-L/16", {}),
        "ViT-L/32": ("ViT-L/32", {}),
        "ViT-B/32": ("ViT-B/32", {}),
        "ViT-b/32": ("ViT-B/32", HALF_BASE),
        "ResNet50x1 (BiT)": ("BiT-R50x1", {}),
        "ResNet152x2 (BiT)": ("BiT-R152x2", {}),
    }
    cells = []
    for curve, (variant, changes) in networks.items():
        recipe = in_steps(paper.jft(variant, epochs=7))
        for images in SUBSETS:
            at = images or JFT["examples"]
            cells.append(Cell(curve, at, variant, one(recipe, **changes), images))
    return Study(
        "data-size/few-shot",
        "Few-shot accuracy against the size of the training set",
        PAPER_4,
        IMAGES,
        tuple(cells),
        seeds=(0,),
        held_out=0.001,
        best_epoch=True,
        **JFT,
    )


def few_shot_mini() -> Study:
    """Figure 4 on 3, 10, 30 and 100 % of Fashion-MNIST."""
    cells = []
    for curve in mini.NETWORKS:
        variant, candidates = mini.network(curve)
        cells += [Cell(curve, n or 57_000, variant, candidates, n) for n in MINI_SUBSETS]
    return Study(
        "data-size/few-shot",
        "Accuracy against the size of the training set, one setting everywhere",
        PAPER_4,
        IMAGES,
        tuple(cells),
        seeds=mini.SEEDS,
        held_out=mini.HELD_OUT,
        best_epoch=True,
        examples=mini.EXAMPLES,
        classes=mini.CLASSES,
    )


def regularised() -> Study:
    """Figure 3: weight decay, dropout and label smoothing chosen for each size on held-out images.

    The paper pre-trains on three data sets; here they are subsets of the one that is given, of the
    size of each. Which values it tried is not said.
    """
    cells = []
    for variant in ("ViT-B/32", "ViT-B/16", "ViT-L/32", "ViT-L/16", "ViT-H/14"):
        recipe = in_steps(paper.jft(variant))
        for images in DATA_SETS:
            at, tried = images or JFT["examples"], candidates(variant, recipe)
            cells.append(Cell(variant, at, variant, tried, images))
    return Study(
        "data-size/regularised",
        "Accuracy against the size of the training set, regularised for each size",
        PAPER_3,
        IMAGES,
        tuple(cells),
        seeds=(0,),
        held_out=0.001,
        **JFT,
    )


def regularised_mini() -> Study:
    """Figure 3 on 3, 10, 30 and 100 % of Fashion-MNIST."""
    cells = []
    for curve in mini.NETWORKS:
        variant, (base,) = mini.network(curve)
        tried = candidates(variant, base.recipe)
        cells += [Cell(curve, n or 57_000, variant, tried, n) for n in MINI_SUBSETS]
    return Study(
        "data-size/regularised",
        "Accuracy against the size of the training set, regularised for each size",
        PAPER_3,
        IMAGES,
        tuple(cells),
        seeds=mini.SEEDS[:2],
        held_out=mini.HELD_OUT,
        examples=mini.EXAMPLES,
        classes=mini.CLASSES,
    )


def candidates(variant: str, recipe: Recipe) -> tuple[Candidate, ...]:
    """The recipe as it is, then with one regularisation more at a time, then with all of them.

    A ResNet has no dropout.
    """
    rates = (0.0,) if isinstance(VARIANTS[variant].spec, ResNetSpec) else (0.0, DROPOUT)
    low, high = DECAYS
    tried: Iterable[tuple[float, float, float]] = dict.fromkeys(
        [
            (low, 0.0, 0.0),
            (high, 0.0, 0.0),
            (low, rates[-1], 0.0),
            (low, 0.0, SMOOTHING),
            (high, rates[-1], SMOOTHING),
        ]
    )
    return tuple(_candidate(recipe, *values) for values in tried)


def _candidate(recipe: Recipe, decay: float, dropout: float, smoothing: float) -> Candidate:
    changes = {**dict(recipe.changes), "dropout": dropout}
    return Candidate(
        f"weight decay {decay:g}, dropout {dropout:g}, label smoothing {smoothing:g}",
        dataclasses.replace(
            recipe,
            optimizer=dataclasses.replace(recipe.optimizer, weight_decay=decay),
            loss=dataclasses.replace(recipe.loss, label_smoothing=smoothing),
            changes=tuple(changes.items()),
        ),
    )


def in_steps(recipe: Recipe) -> Recipe:
    """The same length in updates, so that it is the same on a part of the images."""
    per_epoch = (recipe.examples or 0) // recipe.batch_size
    return dataclasses.replace(recipe, epochs=None, steps=recipe.total_steps(per_epoch))
