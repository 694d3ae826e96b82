"""The ablations of the appendices: positions, class token, optimizer of ResNets, axial attention."""

import dataclasses

from keras_vit.studies import mini
from keras_vit.studies.scaling import mini_body
from keras_vit.studies.study import Axis, Candidate, Cell, Study, one, placed_by_compute
from keras_vit.train.recipe import Optimizer, Recipe
from keras_vit.train.recipes import bit, paper
from keras_vit.train.recipes.common import JFT

TABLE_7 = "arXiv 2010.11929, appendix D.1, Table 7"
TABLE_8 = "arXiv 2010.11929, appendix D.4, Table 8"
FIGURE_9 = "arXiv 2010.11929, appendix D.3, Figure 9"
FIGURE_13 = "arXiv 2010.11929, appendix D.6, Figure 13"
PLACES = {"stem": "at the stem", "layers": "every layer", "layers_shared": "every layer, shared"}
DEEPER = {"body": mini_body((2, 4), 1)}
POSITIONS = (
    ("none", "none", ("stem",)),
    ("1-D", "learn", tuple(PLACES)),
    ("2-D", "2d", tuple(PLACES)),
    ("relative", "relative", ("stem",)),
)


def positions() -> Study:
    """Table 8: kinds of position embedding of a ViT-B/16, and where they are added."""
    return _positions("ViT-B/16", paper.jft("ViT-B/16"), (0,), **JFT)


def positions_mini() -> Study:
    """Table 8 with a network for Fashion-MNIST, which has a class token as the paper's has."""
    recipe = one(mini.RECIPE, pool="token")[0].recipe
    return _positions("ViT-Mini/4", recipe, mini.SEEDS, mini.EXAMPLES, mini.CLASSES)


def _positions(
    variant: str, recipe: Recipe, seeds: tuple[int, ...], examples: int, classes: int
) -> Study:
    cells = [
        Cell(curve, PLACES[place], variant, one(recipe, posemb=kind, posemb_at=place))
        for curve, kind, places in POSITIONS
        for place in places
    ]
    return Study(
        "ablation/positions",
        "Position embeddings",
        TABLE_8,
        Axis("added", names=True),
        tuple(cells),
        seeds,
        examples,
        classes,
    )


def pooling() -> Study:
    """Figure 9: a class token and the mean over patches, each at its rate."""
    recipe = paper.jft("ViT-B/16")
    return _pooling("ViT-B/16", recipe, (3e-4, 8e-4), (0,), **JFT)


def pooling_mini() -> Study:
    """Figure 9 with a network for Fashion-MNIST, over rates an octave apart."""
    rates = (5e-4, 1e-3, 2e-3, 4e-3)
    return _pooling("ViT-Mini/4", mini.RECIPE, rates, mini.SEEDS, mini.EXAMPLES, mini.CLASSES)


def _pooling(
    variant: str,
    recipe: Recipe,
    rates: tuple[float, ...],
    seeds: tuple[int, ...],
    examples: int,
    classes: int,
) -> Study:
    cells = [
        Cell(curve, rate, variant, one(with_rate(recipe, rate), pool=pool))
        for curve, pool in (("class token", "token"), ("mean over patches", "gap"))
        for rate in rates
    ]
    return Study(
        "ablation/pooling",
        "Class token and mean over patches",
        FIGURE_9,
        Axis("peak learning rate", log=True),
        tuple(cells),
        seeds,
        examples,
        classes,
    )


def optimizers() -> Study:
    """Table 7: ResNets pre-trained with Adam by Table 3, and with SGD by BiT's settings."""
    cells = []
    for variant in ("BiT-R50x1", "BiT-R152x2"):
        adam = paper.jft(variant, epochs=7)
        sgd = bit.imagenet21k(variant)
        sgd = dataclasses.replace(adam, schedule=sgd.schedule, optimizer=sgd.optimizer)
        cells += [
            Cell("Adam", variant, variant, one(adam)),
            Cell("SGD", variant, variant, one(sgd)),
        ]
    return _optimizers(tuple(cells), (0,), 0.0, **JFT)


def optimizers_mini() -> Study:
    """Table 7 with networks for Fashion-MNIST; both choose their rate on held-out images."""
    sgd = dataclasses.replace(mini.RECIPE, optimizer=Optimizer("sgd", weight_decay=1e-4))
    cells = []
    for curve, recipe, rates in (
        ("Adam", mini.RECIPE, (1e-3, 3e-3, 1e-2)),
        ("SGD", sgd, (0.01, 0.03, 0.1)),
    ):
        for at, changes in (("BiT-Mini", {}), ("BiT-Mini, twice as deep", DEEPER)):
            tried = tuple(
                Candidate(f"rate {rate:g}", one(with_rate(recipe, rate), **changes)[0].recipe)
                for rate in rates
            )
            cells.append(Cell(curve, at, "BiT-Mini", tried))
    numbers = (mini.SEEDS, mini.HELD_OUT, mini.EXAMPLES, mini.CLASSES)
    return _optimizers(tuple(cells), *numbers)


def _optimizers(
    cells: tuple[Cell, ...], seeds: tuple[int, ...], held_out: float, examples: int, classes: int
) -> Study:
    return Study(
        "ablation/optimizers",
        "ResNets trained with Adam and with SGD",
        TABLE_7,
        Axis("network", names=True),
        cells,
        seeds,
        examples,
        classes,
        held_out=held_out,
    )


def axial() -> Study:
    """Figure 13: attention along rows and columns in place of full attention, at two patch sizes.

    Pooled by the mean: the paper does not say what an axial network does with a class token. Its
    AxialResNet is not here.
    """
    cells = []
    for curve, attention in (("ViT", "full"), ("Axial-ViT", "axial")):
        for variant in ("ViT-B/32", "ViT-B/16"):
            changes = {"pool": "gap", "attention": attention}
            cells.append(Cell(curve, variant, variant, one(paper.jft(variant), **changes)))
    return _axial(tuple(cells), (0,), **JFT)


def axial_mini() -> Study:
    """Figure 13 with networks for Fashion-MNIST, at three patch sizes."""
    cells = []
    for curve, attention in (("ViT", "full"), ("Axial-ViT", "axial")):
        for patch in (14, 7, 4):
            changes = {"patch_size": (patch, patch), "attention": attention}
            cells.append(Cell(curve, str(patch), "ViT-Mini/4", one(mini.RECIPE, **changes)))
    return _axial(tuple(cells), mini.SEEDS, mini.EXAMPLES, mini.CLASSES)


def _axial(cells: tuple[Cell, ...], seeds: tuple[int, ...], examples: int, classes: int) -> Study:
    study = Study(
        "ablation/axial",
        "Axial attention against compute",
        FIGURE_13,
        Axis("compute of the training, exaFLOPs", log=True),
        cells,
        seeds,
        examples,
        classes,
    )
    return placed_by_compute(study)


def with_rate(recipe: Recipe, rate: float) -> Recipe:
    """The recipe with another peak rate."""
    return dataclasses.replace(recipe, schedule=dataclasses.replace(recipe.schedule, base_lr=rate))
