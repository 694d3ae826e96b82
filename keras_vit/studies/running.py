"""Runs a study: every training leaves a row, and a second call goes on where the first ended."""

import contextlib
import dataclasses
import functools
import hashlib
import json
import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np

from keras_vit.data.sources import Source
from keras_vit.data.streams import Stream
from keras_vit.model import VisionModel
from keras_vit.results import store
from keras_vit.results.store import Result
from keras_vit.studies.study import Candidate, Cell, Study
from keras_vit.train.evaluate import evaluate_model
from keras_vit.train.finetune import rebuilt
from keras_vit.train.recipe import Recipe
from keras_vit.train.run import fit, versions
from keras_vit.train.task import Task, epochs_of, network_of
from keras_vit.transfer.features import extract, extractor_of
from keras_vit.transfer.fewshot import fewshot

RESULTS = "results.jsonl"
SHOTS = 5  # a class, as in the paper's Figures 4, 8, 9 and 13
DRAWS = tuple(range(5))  # choices of these images, for the mean and its deviation
HELD_OUT_SEED, SUBSET_SEED = 7, 11

Draw = Callable[[int | None], Source | Stream]
Log = Callable[[str], None]
Callbacks = Callable[[int], tuple[keras.callbacks.Callback, ...]]


@dataclasses.dataclass(frozen=True)
class Data:
    """The images of a study.

    Attributes:
        train: that networks are trained on, or a subset of it.
        test: that all numbers are of.
        transfer: images of another set, (to learn from, to test on): a linear classifier on five of
            each class, on frozen features; None for no such number.
        slices: opens the images from one number to another of a set that is read in order, in which
            any part is as good as another; None to draw at random.
    """

    train: Source | Stream
    test: Source | Stream
    transfer: tuple[Source, Source] | None = None
    slices: Callable[[int, int], Source | Stream] | None = None

    def parted(self, held_out: float) -> tuple[Draw, Source | Stream | None]:
        """What gives a training set of so many images, and the images that are held out."""
        left = len(self.train) - round(len(self.train) * held_out)
        if self.slices is not None:
            slices = self.slices
            rest = slices(left, len(self.train)) if held_out else None
            return lambda count: slices(0, count or left), rest
        if not isinstance(self.train, Source):
            raise ValueError(
                f"{self.train.name} has no random access, so nothing can be drawn from it: give "
                f"tfds:NAME:SPLIT without a slice."
            )
        train, rest = self.train, None
        if held_out:
            train, rest = train.split(held_out, seed=HELD_OUT_SEED)
        return functools.partial(subset, train), rest


def run(
    study: Study,
    data: Data,
    out: Path,
    *,
    command: str | None = None,
    log: Log = print,
    callbacks: Callbacks = lambda epochs: (),
) -> list[Result]:
    """Trains what is not there yet and adds a row for each seed of each cell.

    Several processes may run different curves into one folder.

    Args:
        study: what to run.
        data: its images.
        out: folder of `results.jsonl`; an interrupted training keeps its checkpoints there.
        command: noted in the rows.
        log: told what comes next.
        callbacks: of each training, from its number of epochs.

    Returns:
        The rows of this study's cells, in their order.

    Raises:
        ValueError: the folder holds another study, or the images do not suit.
    """
    results = Path(out) / RESULTS
    check(study, data, results)
    draw, held_out = data.parted(study.held_out)
    for number, cell in enumerate(study.cells, 1):
        drawn = draw(cell.images)
        where = f"{study.name} {number}/{len(study.cells)}: {cell.curve}, {cell.at}"
        job = Job(study, cell, drawn, held_out, data, Path(out), results, command, log, callbacks)
        candidate = job.chosen(where)
        for seed in study.seeds:
            job.final(candidate, seed, f"{where}, seed {seed}")
        _add_deviation(results, study, cell)
    places = [(cell.curve, cell.at) for cell in study.cells]
    found = [row for row in store.read(results) if row.study == study.name]
    found = [row for row in found if place_of(row) in places]
    return sorted(found, key=lambda row: (places.index(place_of(row)), row.settings["seed"]))


def place_of(row: Result) -> tuple[str, float | str]:
    """Curve and place of a row."""
    return row.settings["curve"], row.settings["at"]


def check(study: Study, data: Data, results: Path) -> None:
    """Refuses what would fail after hours.

    Raises:
        ValueError: there are too few images, or the store holds other things.
    """
    store.check(results)
    there = len(data.train)
    left = there - round(there * study.held_out)
    wanted = max((cell.images or 0 for cell in study.cells), default=0)
    if wanted > left:
        raise ValueError(
            f"{study.name} needs {wanted:,} training images beside those held out, and "
            f"{data.train.name} leaves {left:,}: give more images, or another --scale."
        )
    if data.test.num_classes != data.train.num_classes:
        raise ValueError(
            f"{data.test.name} has {data.test.num_classes} classes and {data.train.name} "
            f"{data.train.num_classes}: give test images of the same classes."
        )


def subset(train: Source, count: int | None) -> Source:
    """The first `count` images of one random order, so that larger subsets hold the smaller ones."""
    if count is None or count == len(train):
        return train
    order = np.random.default_rng(SUBSET_SEED).permutation(len(train))[:count]
    return train.take(np.sort(order), f"{train.name}[{count:,} images]")


@dataclasses.dataclass(frozen=True)
class Job:
    """A cell with everything that its trainings need."""

    study: Study
    cell: Cell
    train: Source | Stream
    held_out: Source | Stream | None
    data: Data
    out: Path
    results: Path
    command: str | None
    log: Log
    callbacks: Callbacks

    def chosen(self, where: str) -> Candidate:
        """The candidate that is best on held-out images, after one training of each."""
        candidates, held_out = self.cell.candidates, self.held_out
        if len(candidates) == 1 or held_out is None:  # a study that chooses has some
            return candidates[0]
        scores = []
        for candidate in candidates:
            settings = self.settings(candidate, self.study.seeds[0])
            rows = self.known("held-out", held_out, settings)
            if not rows:
                self.log(f"{where}, trying {candidate.label}")
                model, folder = self.trained(candidate.recipe, self.study.seeds[0])
                rows = [self.measured(model, held_out, "held-out", settings)]
                self.keep(rows, folder)
            scores.append(rows[0].value)
        return candidates[int(np.argmax(scores))]  # the first of equals

    def final(self, candidate: Candidate, seed: int, where: str) -> None:
        """A training of a cell, measured on the test images and by few-shot learning."""
        settings = self.settings(candidate, seed)
        if self.known("accuracy", self.data.test, settings):
            return
        self.log(where)
        model, folder = self.trained(candidate.recipe, seed)
        rows = [self.measured(model, self.data.test, "accuracy", settings)]
        if self.data.transfer:
            rows.append(self.few_shot(model, *self.data.transfer, settings))
        self.log("  " + ", ".join(f"{row.metric} {row.value:.2%}" for row in rows))
        self.keep(rows, folder)

    def settings(self, candidate: Candidate, seed: int) -> dict[str, Any]:
        """What tells a training from the others of the study."""
        cell, cost = self.cell, self.study.cost_of(self.cell, candidate)
        return {
            "curve": cell.curve,
            "at": cell.at,
            "chosen": candidate.label or None,
            "recipe": digest(candidate.recipe),
            "train": self.train.name,
            "images": len(self.train),
            "parameters": cost.parameters,
            "exaflops": cost.training_exaflops,
            "seed": seed,
        }

    def known(self, metric: str, source: Source | Stream, settings: dict[str, Any]) -> list[Result]:
        """The row of an earlier run, if there is one."""
        made = self.row(metric, source.name, settings, 0.0)
        found = store.read(self.results) if self.results.exists() else []
        return [row for row in found if row.key == made.key]

    def trained(self, recipe: Recipe, seed: int) -> tuple[VisionModel, Path]:
        """A trained network in float32, and the folder of its checkpoints."""
        recipe = dataclasses.replace(recipe, seed=seed)
        keras.utils.clear_session()
        keras.utils.set_random_seed(seed)
        task = Task(self.study.name, self.cell.model, recipe, self.train)
        about = (self.study.name, self.cell.curve, self.cell.at, self.train.name, digest(recipe))
        folder = self.out / "unfinished" / digest(about)
        model = network_of(task)
        fit(
            model,
            self.train,
            recipe,
            validation=self.held_out if self.study.best_epoch else None,
            out=folder,
            verbose=0,
            callbacks=self.callbacks(epochs_of(task)),
        )
        return rebuilt(model, None, "float32"), folder

    def measured(
        self, model: VisionModel, source: Source | Stream, metric: str, settings: dict[str, Any]
    ) -> Result:
        """Accuracy on images."""
        found = evaluate_model(model, source, batch_size=500)
        row = self.row(metric, source.name, settings, found.accuracy)
        return dataclasses.replace(row, examples=found.examples, interval=found.interval)

    def few_shot(
        self, model: VisionModel, train: Source, test: Source, settings: dict[str, Any]
    ) -> Result:
        """Accuracy on `test` of a linear classifier that learns from five images a class of `train`."""
        with tempfile.TemporaryDirectory() as folder:
            extractor = extractor_of(model, name=self.cell.model)
            sets = [
                extract(extractor, source, Path(folder) / str(i))
                for i, source in enumerate((train, test))
            ]
            (found,) = fewshot(sets[0], sets[1], shots=(SHOTS,), seeds=DRAWS)
        row = self.row("few-shot", test.name, settings, found.mean)
        return dataclasses.replace(row, examples=found.tested)

    def row(self, metric: str, data: str, settings: dict[str, Any], value: float) -> Result:
        """A row of the store."""
        return Result(
            self.study.name,
            self.cell.model,
            data,
            metric,
            value,
            settings=settings,
            command=self.command,
            when=store.now(),
            versions=versions(),
        )

    def keep(self, rows: Sequence[Result], folder: Path) -> None:
        """Adds finished rows; their checkpoints are not needed any more."""
        store.add(self.results, rows)
        shutil.rmtree(folder, ignore_errors=True)
        with contextlib.suppress(OSError):  # others are still at work there
            folder.parent.rmdir()


def digest(what: Any) -> str:
    """Eight hexadecimal digits that tell a recipe or other plain data from others.

    Of a recipe the seed is left out, which rows name by itself.
    """
    values = {**what.to_dict(), "seed": None} if isinstance(what, Recipe) else what
    text = json.dumps(values, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def _add_deviation(results: Path, study: Study, cell: Cell) -> None:
    """Gives each row of a cell the sample standard deviation over its seeds."""
    rows = [
        row
        for row in store.read(results)
        if row.study == study.name
        and place_of(row) == (cell.curve, cell.at)
        and row.metric != "held-out"
    ]
    for metric in {row.metric for row in rows}:
        same = [row for row in rows if row.metric == metric]
        if len(same) > 1:
            std = float(np.std([row.value for row in same], ddof=1))
            changed = [dataclasses.replace(row, std=std) for row in same if row.std != std]
            store.add(results, changed)
