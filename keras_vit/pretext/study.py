"""Does pre-training without labels help? The paper's comparison (section 4.6) on a small set.

A network is pre-trained once on all images without labels, then fine-tuned with a part of the labels,
beside the same network from random weights with the same images, recipe and number of steps. The rate
of each is chosen from the same list, on training images that neither of them trains on.
"""

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from keras_vit.data.augment import Augment
from keras_vit.data.sources import Source
from keras_vit.model import VisionModel
from keras_vit.pretext.objective import Pretext
from keras_vit.results import store
from keras_vit.results.store import Result
from keras_vit.results.tables import pivot
from keras_vit.spec import changed
from keras_vit.train.evaluate import evaluate_model
from keras_vit.train.finetune import rebuilt
from keras_vit.train.placement import Placement
from keras_vit.train.recipe import Loss, Optimizer, Recipe, Schedule
from keras_vit.train.run import fit, versions
from keras_vit.train.task import Task, run_task
from keras_vit.zoo import api
from keras_vit.zoo.variants import VARIANTS

STUDY = "masked_patch"
STARTS = ("random weights", "masked patches")
ENCODER = "pretrained"  # folder of the run

PRETRAIN = Recipe(
    name=STUDY,
    epochs=8,
    batch_size=128,
    schedule=Schedule(1e-3),
    optimizer=Optimizer(weight_decay=0.05),
    augment=Augment(flip=True),
    pretext=Pretext("mean_colour"),
)
# As the models of docs/runs.md were trained from random weights, but for their half precision.
FINETUNE = Recipe(
    name=STUDY,
    epochs=None,
    steps=400,
    batch_size=64,
    schedule=Schedule(2e-3),
    optimizer=Optimizer(weight_decay=0.05),
    loss=Loss(label_smoothing=0.05),
    augment=Augment(flip=True),
)


@dataclasses.dataclass(frozen=True)
class Plan:
    """What is run.

    Attributes:
        model: a variant.
        pretrain, finetune: recipes; the steps and the rate of the second are set below.
        steps: share of the labels -> steps of fine-tuning.
        rates: peak rates that each start chooses from.
        sweep: share of the labels with which it chooses.
        held_out: training images, with labels, to choose the rate by; never trained on with labels.
        seeds: of the labels, the order and the new weights.
    """

    model: str = "ViT-Mini/4"
    pretrain: Recipe = PRETRAIN
    finetune: Recipe = FINETUNE
    steps: tuple[tuple[float, int], ...] = ((0.01, 200), (0.1, 400), (1.0, 937))
    rates: tuple[float, ...] = (5e-4, 2e-3)
    sweep: float = 0.1
    held_out: int = 2000
    seeds: tuple[int, ...] = (0, 1, 2)


def run_study(
    plan: Plan,
    train: Source,
    test: Source,
    folder: Path,
    results: Path,
    *,
    starts: Sequence[str] = STARTS,
    command: str | None = None,
    log: Callable[[str], None] = print,
    callbacks: Callable[[int], tuple[Any, ...]] = lambda epochs: (),
) -> list[Result]:
    """Runs what is not there yet; a row for every finished run, so a second call goes on.

    Two processes may share the work, one for each start.

    Args:
        plan: what is run.
        train, test: images; only `test` is reported on.
        folder: of the pre-training, which goes on from its last checkpoint.
        results: `.jsonl` that rows are added to.
        starts: which of `STARTS` to fine-tune.
        command: noted in the rows.
        log: told what comes next.
        callbacks: of the pre-training, from its epochs.

    Returns:
        All rows of the store.

    Raises:
        ValueError: the store holds rows of another kind, or the folder another run.
    """
    store.check(results)
    finished = (folder / ENCODER / "report.json").is_file()
    if STARTS[1] in starts and not finished:
        log(f"pre-training {plan.model} on {len(train):,} images without labels")
        task = Task(STUDY, plan.model, plan.pretrain, train, test=test)
        out = folder / ENCODER
        run_task(task, out, placement=Placement(), command=command, callbacks=callbacks)
    rest, held_out = parted(train, plan.held_out)
    steps = dict(plan.steps)
    for start in starts:
        tried = []
        for rate in plan.rates:
            settings = {"start": start, "labels": plan.sweep, "rate": rate, "seed": plan.seeds[0]}
            about = (plan, rest, held_out, folder, results, "held-out", settings, command)
            tried.append((_measured(*about, steps=steps[plan.sweep], log=log), rate))
        best = max(tried)[1]
        for share, count in plan.steps:
            for seed in plan.seeds:
                settings = {"start": start, "labels": share, "rate": best, "seed": seed}
                about = (plan, train, test, folder, results, "accuracy", settings, command)
                _measured(*about, steps=count, log=log)
    return store.read(results)


def table(results: Sequence[Result]) -> str:
    """Accuracy on test images by start and share of the labels, mean and standard deviation."""
    rows = [r for r in results if r.study == STUDY and r.metric == "accuracy"]
    named = [
        dataclasses.replace(
            r,
            settings={
                "start": r.settings["start"],
                "seed": r.settings["seed"],
                "labels": f"{r.settings['labels']:.0%} of the labels",
            },
        )
        for r in rows
    ]
    return pivot(named, ("settings.start",), column="settings.labels").markdown()


def labelled(train: Source, share: float, seed: int) -> Source:
    """The same share of each class, at least one image, drawn by the seed."""
    if share == 1.0:
        return train
    rng, picked = np.random.default_rng((seed, 42)), []
    for label in range(train.num_classes):
        of_class = np.flatnonzero(train.labels == label)
        count = max(1, round(share * len(of_class)))
        picked.append(rng.choice(of_class, count, replace=False))
    return train.take(np.sort(np.concatenate(picked)), f"{train.name}[{share:.0%}]")


def parted(train: Source, count: int) -> tuple[Source, Source]:
    """All but `count` images, and those, drawn once for all seeds."""
    order = np.random.default_rng(7).permutation(len(train))
    held_out, rest = np.sort(order[:count]), np.sort(order[count:])
    return train.take(rest, f"{train.name}-rest"), train.take(held_out, f"{train.name}-held-out")


def network(plan: Plan, start: str, classes: int, folder: Path) -> VisionModel:
    """The classifier to fine-tune, with a new head of zeros."""
    if start == STARTS[0]:
        changes = {"num_classes": classes}
        return VisionModel(changed(VARIANTS[plan.model].spec, changes, plan.model))
    return api.load(folder / ENCODER / "model.keras", num_classes=classes)


def _measured(
    plan: Plan,
    train: Source,
    test: Source,
    folder: Path,
    results: Path,
    metric: str,
    settings: dict[str, Any],
    command: str | None,
    *,
    steps: int,
    log: Callable[[str], None],
) -> float:
    """The accuracy of one fine-tuning, from the store when it is there."""
    settings = {**settings, "steps": steps}
    made = Result(STUDY, plan.model, test.name, metric, value=0.0, settings=settings)
    for row in store.read(results) if results.exists() else []:
        if row.key == made.key:
            return row.value
    log(f"fine-tuning: {', '.join(f'{k} {v}' for k, v in settings.items())}")
    import keras

    keras.utils.set_random_seed(settings["seed"])
    model = network(plan, settings["start"], train.num_classes, folder)
    recipe = dataclasses.replace(
        plan.finetune,
        steps=steps,
        schedule=dataclasses.replace(plan.finetune.schedule, base_lr=settings["rate"]),
        seed=settings["seed"],
    )
    source = labelled(train, settings["labels"], settings["seed"])
    found = fit(model, source, recipe, verbose=0)
    final = rebuilt(model, None, "float32")
    measured = evaluate_model(final, test, batch_size=500)
    row = dataclasses.replace(
        made,
        value=measured.accuracy,
        examples=measured.examples,
        interval=measured.interval,
        command=command,
        when=store.now(),
        versions=versions(),
    )
    store.add(results, [row])
    log(f"  {measured.accuracy:.2%} of {len(test):,} images, {found.seconds:.0f} s")
    return measured.accuracy
