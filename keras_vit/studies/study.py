"""A study as data: which networks are trained on what, and how the numbers are drawn."""

import dataclasses
from collections.abc import Sequence
from typing import Any

from keras_vit.studies.cost import Cost, cost
from keras_vit.studies.trained import trained_spec
from keras_vit.train.recipe import Recipe


@dataclasses.dataclass(frozen=True)
class Axis:
    """How the places of a study's cells are drawn.

    Attributes:
        label: with the unit.
        log: logarithmic.
        names: the places of cells are names and are drawn one beside the other.
    """

    label: str
    log: bool = False
    names: bool = False


@dataclasses.dataclass(frozen=True)
class Candidate:
    """A recipe among those that a cell chooses from.

    Attributes:
        label: what it differs in, `weight decay 0.3`.
        recipe: whose `changes` are fields of the network.
    """

    label: str
    recipe: Recipe


@dataclasses.dataclass(frozen=True)
class Cell:
    """One point of a figure, or one cell of a table.

    Attributes:
        curve: the line or row that it belongs to.
        at: its place along the axis.
        model: a variant of the zoo.
        candidates: recipes; of several, the one that is best on held-out images is used.
        images: training images that are drawn, None for all.
    """

    curve: str
    at: float | str
    model: str
    candidates: tuple[Candidate, ...]
    images: int | None = None

    def __post_init__(self):
        labels = [candidate.label for candidate in self.candidates]
        if not labels or len(set(labels)) < len(labels):
            raise ValueError(
                f"a cell needs candidates with different labels, got {labels} for {self.curve}."
            )


@dataclasses.dataclass(frozen=True)
class Study:
    """A figure or table of the paper, to be planned, run and drawn.

    Attributes:
        name: `data-size/few-shot`.
        title: of the figure.
        source: what it repeats.
        axis: of the cells' places.
        cells: in the order in which they are run.
        seeds: of everything random; each is a run of its own.
        examples: training images that it is meant for.
        classes: of these.
        held_out: share of the training images, the same for all runs, that nothing is trained on:
            candidates and epochs are chosen by them. 0 for none.
        best_epoch: keep the weights of the epoch that is best on the held-out images.
        published: the paper's table of accuracies against compute that is drawn beside the numbers.
    """

    name: str
    title: str
    source: str
    axis: Axis
    cells: tuple[Cell, ...]
    seeds: tuple[int, ...]
    examples: int
    classes: int
    held_out: float = 0.0
    best_epoch: bool = False
    published: str | None = None

    def __post_init__(self):
        places = [(cell.curve, cell.at) for cell in self.cells]
        if doubled := [place for place in places if places.count(place) > 1]:
            raise ValueError(f"{self.name} has two cells at {doubled[0]}.")
        chooses = self.best_epoch or any(len(cell.candidates) > 1 for cell in self.cells)
        if chooses and not self.held_out:
            raise ValueError(f"{self.name} chooses by held-out images: held_out must not be 0.")

    def parts(self, curves: Sequence[str]) -> "Study":
        """The study with some of its curves only.

        Raises:
            ValueError: there is no such curve.
        """
        known = list(dict.fromkeys(cell.curve for cell in self.cells))
        if unknown := [curve for curve in curves if curve not in known]:
            raise ValueError(f"{self.name} has no curve {unknown[0]!r}: it has {known}.")
        cells = tuple(cell for cell in self.cells if cell.curve in curves)
        return dataclasses.replace(self, cells=cells)

    def cost_of(self, cell: Cell, candidate: Candidate | None = None) -> Cost:
        """What one training of a cell costs; see `keras_vit.studies.cost`."""
        recipe = (candidate or cell.candidates[0]).recipe
        recipe = dataclasses.replace(recipe, classes=self.classes)
        spec = trained_spec(cell.model, recipe)
        return cost(spec, images=images_shown(recipe, cell.images or self.available))

    def runs_of(self, cell: Cell) -> tuple[int, int]:
        """Trainings to choose a candidate, and trainings that are reported."""
        return len(cell.candidates) if len(cell.candidates) > 1 else 0, len(self.seeds)

    @property
    def available(self) -> int:
        """Training images that are not held out."""
        return round(self.examples * (1 - self.held_out))


def images_shown(recipe: Recipe, examples: int) -> float:
    """Images that a training shows to the network, repetitions among them."""
    if recipe.steps is not None:
        return float(recipe.steps * recipe.batch_size)
    return float(recipe.epochs or 0) * examples


def placed_by_compute(study: Study) -> Study:
    """The study with every cell at the operations of its training, in 1e18."""
    cells = [
        dataclasses.replace(cell, at=study.cost_of(cell).training_exaflops) for cell in study.cells
    ]
    return dataclasses.replace(study, cells=tuple(cells))


def one(recipe: Recipe, **changes: Any) -> tuple[Candidate, ...]:
    """The candidates of a cell that chooses nothing: a recipe, with fields of its network."""
    merged = {**dict(recipe.changes), **changes}
    return (Candidate("", dataclasses.replace(recipe, changes=tuple(merged.items()))),)
