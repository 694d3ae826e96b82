"""Accuracy against compute, Figure 5, and against the shape of a Vision Transformer, Figure 8."""

import dataclasses
from typing import Any

from keras_vit.spec import ResNetBody
from keras_vit.studies import mini
from keras_vit.studies.study import Axis, Cell, Study, one, placed_by_compute
from keras_vit.train.recipe import Recipe
from keras_vit.train.recipes import paper
from keras_vit.train.recipes.common import JFT
from keras_vit.zoo.variants import BIT_NUMERICS

COMPUTE = Axis("compute of the training, exaFLOPs", log=True)
RELATIVE = Axis("compute, relative to the smallest", log=True)
FIGURE_5 = "arXiv 2010.11929, section 4.4, Figure 5 and Table 6"
FIGURE_8 = "arXiv 2010.11929, appendix D.2, Figure 8"

# Table 6: (variant, epochs). R200x3 has no settings in the paper.
RUNS = {
    "ViT": (
        *(("ViT-B/32", 7), ("ViT-B/16", 7), ("ViT-L/32", 7)),
        *(("ViT-L/16", 7), ("ViT-L/16", 14), ("ViT-H/14", 14)),
    ),
    "ResNet (BiT)": (
        *(("BiT-R50x1", 7), ("BiT-R50x2", 7), ("BiT-R101x1", 7), ("BiT-R152x1", 7)),
        *(("BiT-R152x2", 7), ("BiT-R152x2", 14)),
    ),
    "Hybrid": (
        *(("R50+ViT-B/32", 7), ("R50+ViT-B/16", 7), ("R50+ViT-L/32", 7)),
        *(("R50+ViT-L/16", 7), ("R50+ViT-L/16", 14)),
    ),
}


def compute() -> Study:
    """Figure 5: the trainings of Table 6."""
    cells = []
    for curve, runs in RUNS.items():
        for variant, epochs in runs:
            recipe = dataclasses.replace(paper.jft(variant), epochs=epochs)
            cells.append(Cell(curve, f"{variant}, {epochs} epochs", variant, one(recipe)))
    study = Study(
        "scaling/compute",
        "Accuracy against the compute of pre-training",
        FIGURE_5,
        COMPUTE,
        tuple(cells),
        seeds=(0,),
        published="6",
        **JFT,
    )
    return placed_by_compute(study)


def compute_mini() -> Study:
    """Figure 5 with networks for Fashion-MNIST, from a third to three times those of docs/runs.md."""
    vit = {"hidden_size": 96, "mlp_dim": 192, "num_heads": 3}
    small, large = _wide(vit, 0.5), _wide(vit, 1.5)
    networks = {
        "ViT": (
            ("ViT-Mini/4", {"patch_size": (7, 7), **small}),
            ("ViT-Mini/4", {"patch_size": (7, 7)}),
            ("ViT-Mini/4", {}),
            ("ViT-Mini/4", {"num_layers": 8}),
            ("ViT-Mini/4", {"num_layers": 6, **large}),
        ),
        "ResNet (BiT)": (
            ("BiT-Mini", {"body": mini_body((1, 1), 0.5)}),
            ("BiT-Mini", {"body": mini_body((1, 2), 0.5)}),
            ("BiT-Mini", {}),
            ("BiT-Mini", {"body": mini_body((2, 4), 1)}),
        ),
        "Hybrid": (
            ("R14+ViT-Mini/4", {"num_layers": 1, **small}),
            ("R14+ViT-Mini/4", {}),
            ("R14+ViT-Mini/4", {"num_layers": 6}),
            ("R14+ViT-Mini/4", {"num_layers": 6, **large}),
        ),
    }
    cells = [
        Cell(curve, str(number), variant, one(mini.RECIPE, **changes))
        for curve, found in networks.items()
        for number, (variant, changes) in enumerate(found)
    ]
    study = Study(
        "scaling/compute",
        "Accuracy against the compute of training",
        FIGURE_5,
        COMPUTE,
        tuple(cells),
        seeds=mini.SEEDS,
        published="6",
        examples=mini.EXAMPLES,
        classes=mini.CLASSES,
    )
    return placed_by_compute(study)


def shape() -> Study:
    """Figure 8: depth, width, patch and MLP of a ViT alone, and all of them together.

    The base is the paper's; which values it took beside it can be read from no text, so compute goes
    up to about ten times here as its axis does.
    """
    base = {"num_layers": 8, "hidden_size": 1024, "mlp_dim": 2048, "num_heads": 16}
    sweeps = {
        "depth": [{"num_layers": n} for n in (2, 4, 8, 16, 32, 64)],
        "width": [_wide(base, k) for k in (0.5, 1, 2, 3)],
        "width of the MLP": [{"mlp_dim": m} for m in (1024, 2048, 4096, 8192, 16_384)],
        "patch size": [{"patch_size": (p, p)} for p in (32, 16, 14)],
        "all": [{}, *({**_wide(base, k), "num_layers": round(8 * k)} for k in (0.5, 1.5, 2))],
    }
    recipe = one(paper.jft("ViT-L/32"), **base, patch_size=(32, 32))[0].recipe
    return _shape("ViT-L/32", recipe, sweeps, (0,), JFT["examples"], JFT["classes"])


def shape_mini() -> Study:
    """Figure 8 with networks for Fashion-MNIST."""
    base = {"num_layers": 4, "hidden_size": 96, "mlp_dim": 192, "num_heads": 3}
    sweeps = {
        "depth": [{"num_layers": n} for n in (1, 2, 4, 8, 16)],
        "width": [_wide(base, k) for k in (1 / 3, 1, 2, 3)],
        "width of the MLP": [{"mlp_dim": m} for m in (48, 192, 768, 1536)],
        "patch size": [{"patch_size": (p, p)} for p in (14, 7, 4)],
        "all": [
            {},
            {**_wide(base, 2 / 3), "num_layers": 3},
            {**_wide(base, 5 / 3), "num_layers": 7},
        ],
    }
    recipe = one(mini.RECIPE, **base, patch_size=(7, 7))[0].recipe
    return _shape("ViT-Mini/4", recipe, sweeps, mini.SEEDS[:2], mini.EXAMPLES, mini.CLASSES)


def _shape(
    variant: str,
    recipe: Recipe,
    sweeps: dict[str, list[dict[str, Any]]],
    seeds: tuple[int, ...],
    examples: int,
    classes: int,
) -> Study:
    cells = [
        Cell(curve, str(number), variant, one(recipe, **changes))
        for curve, found in sweeps.items()
        for number, changes in enumerate(found)
    ]
    about = ("scaling/shape", "Shapes of a Vision Transformer", FIGURE_8, RELATIVE)
    study = placed_by_compute(
        Study(*about, tuple(cells), seeds=seeds, examples=examples, classes=classes)
    )
    least = min(float(cell.at) for cell in study.cells)
    cells = [dataclasses.replace(cell, at=float(cell.at) / least) for cell in study.cells]
    return dataclasses.replace(study, cells=tuple(cells))


def _wide(base: dict[str, int], factor: float) -> dict[str, int]:
    """Another hidden size, with an MLP in proportion and heads as wide as before."""
    heads = max(1, round(base["num_heads"] * factor))
    per_head = base["hidden_size"] // base["num_heads"]
    return {
        "hidden_size": heads * per_head,
        "mlp_dim": heads * per_head * base["mlp_dim"] // base["hidden_size"],
        "num_heads": heads,
    }


def mini_body(block_units: tuple[int, ...], width: float) -> ResNetBody:
    """A trunk like that of BiT-Mini with other units and width."""
    return ResNetBody(block_units, width, norm_groups=8 if width < 1 else 16, **BIT_NUMERICS)
