"""The studies by name, each at the paper's size and for Fashion-MNIST."""

import dataclasses
from collections.abc import Callable

from keras_vit.studies import ablations, data_size, scaling
from keras_vit.studies.study import Candidate, Cell, Study

SCALES = ("mini", "paper")
SMOKE_IMAGES = (400, 50)  # to train and to test on
STUDIES: dict[str, tuple[Callable[[], Study], Callable[[], Study]]] = {
    "data-size/regularised": (data_size.regularised_mini, data_size.regularised),
    "data-size/few-shot": (data_size.few_shot_mini, data_size.few_shot),
    "scaling/compute": (scaling.compute_mini, scaling.compute),
    "scaling/shape": (scaling.shape_mini, scaling.shape),
    "ablation/positions": (ablations.positions_mini, ablations.positions),
    "ablation/pooling": (ablations.pooling_mini, ablations.pooling),
    "ablation/optimizers": (ablations.optimizers_mini, ablations.optimizers),
    "ablation/axial": (ablations.axial_mini, ablations.axial),
}


def find(name: str, scale: str = "mini") -> Study:
    """A study by its name.

    Args:
        name: `data-size/few-shot`.
        scale: `mini` (Fashion-MNIST, about two hours on two cores) or `paper`.

    Raises:
        ValueError: there is no such study or scale; the message names those there are.
    """
    if name not in STUDIES:
        raise ValueError(f"no study {name!r}: there are {', '.join(STUDIES)}.")
    if scale not in SCALES:
        raise ValueError(f"scale must be one of {list(SCALES)}, got {scale!r}.")
    return STUDIES[name][SCALES.index(scale)]()


def smoke(study: Study) -> Study:
    """The first two cells with one seed, a few steps each on a few images."""
    cells = tuple(_shortened(cell, 24 * (i + 1)) for i, cell in enumerate(study.cells[:2]))
    seeds, examples = study.seeds[:1], SMOKE_IMAGES[0]
    return dataclasses.replace(study, cells=cells, seeds=seeds, examples=examples)


def _shortened(cell: Cell, images: int) -> Cell:
    candidates = tuple(
        Candidate(c.label, dataclasses.replace(c.recipe, epochs=None, steps=2, batch_size=8))
        for c in cell.candidates[:2]
    )
    return dataclasses.replace(
        cell, candidates=candidates, images=None if cell.images is None else images
    )
