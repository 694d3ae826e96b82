"""Fine-tuning as the paper measures it: a sweep judged on held-out training images, then the test.

`paper` is Table 4 of arXiv 2010.11929; `hyperrule` is BiT's, which searches nothing. A run keeps what
it has measured in its folder and goes on from there.
"""

import dataclasses
import functools
import json
import statistics
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import keras
import numpy as np

from keras_vit.data.images import read_image
from keras_vit.data.sources import Source, open_feed_source
from keras_vit.results.store import Result, now
from keras_vit.spec import ResNetSpec
from keras_vit.train import overrides, recipes, rundir
from keras_vit.train.evaluate import align
from keras_vit.train.placement import Placement
from keras_vit.train.recipe import Recipe
from keras_vit.train.recipes import bit, smoke
from keras_vit.train.run import versions
from keras_vit.train.task import MODEL_FILES, Task, run_task, variant_of
from keras_vit.transfer import datasets
from keras_vit.zoo.variants import VARIANTS

PROTOCOLS = ("paper", "hyperrule")
# For data that the paper does not name, the row of Table 4 by its number of training images, at the
# bounds of the HyperRule.
ROWS_BY_SIZE = tuple(
    zip((bound for bound, *_ in bit.HYPERRULE), ("pets", "cifar10", "imagenet"), strict=True)
)
LOOKED_AT = 32  # images whose size stands for that of a data set
SMOKE_RATES = 2
Callbacks = Callable[[str, int], tuple[keras.callbacks.Callback, ...]]


@dataclasses.dataclass(frozen=True)
class Images:
    """The images of a transfer by role, opened when they are needed.

    Attributes:
        name: for reports.
        row: of Table 4; None to choose it by the number of training images.
        open: role (`train`, `sweep`, `dev`, `test`) -> `Source` or `Stream`.
    """

    name: str
    row: str | None
    open: Callable[[str], Any]


def images(
    data: str, *, test: str | None = None, data_dir: str | None = None, seed: int = 0
) -> Images:
    """The images of a data set by name, see `transfer.datasets.open_split`.

    Args:
        data: of the paper (`pets`, `tfds:cifar10`), or any that `open_source` takes.
        test: test images, where `data` has none of its own or others are wanted.
        data_dir: where tensorflow-datasets keeps its files.
        seed: of the choice of held-out images.
    """
    known = datasets.find(data)

    # Every rate of a sweep asks for the same, and opening a folder decodes all of it.
    @functools.lru_cache(3)
    def opened(role: str) -> Any:
        if role == "test" and test:
            return open_feed_source(test, data_dir=data_dir)
        return datasets.open_split(data, role, data_dir=data_dir, seed=seed)

    return Images(known.title if known else data, known.name if known else None, opened)


def made_up(model: str) -> Images:
    """Random images of the tiny network that stands for a model in a smoke run."""
    spec = smoke.tiny(VARIANTS[variant_of(model)].spec)
    counts = {"train": 32, "sweep": 24, "dev": 8, "test": 16}
    return Images("made-up images", "pets", lambda role: smoke.images(spec, counts[role]))


def candidates(
    model: str,
    train: Any,
    *,
    protocol: str = "paper",
    row: str | None = None,
    rates: Iterable[float] | None = None,
    high_resolution: bool = False,
) -> dict[str, Recipe]:
    """The recipes that a protocol tries, by name: the rates of Table 4, or the HyperRule alone.

    For a ResNet the paper tries the HyperRule as well, and keeps what is better.

    Args:
        model: a variant, a checkpoint or a file.
        train: all training images.
        protocol: one of `PROTOCOLS`.
        row: of Table 4, None to choose it by the number of training images.
        rates: other peak rates than the row's.
        high_resolution: 512 or 518 px and averaged weights, as Table 2 has for ImageNet.

    Raises:
        ValueError: no such protocol, or it is not for this model.

    Source: arXiv 2010.11929, Table 4 and appendix B.1.1.
    """
    if protocol not in PROTOCOLS:
        raise ValueError(f"protocol must be one of {list(PROTOCOLS)}, got {protocol!r}.")
    variant = variant_of(model)
    found: dict[str, Recipe] = {}
    if protocol == "paper":
        row = row or next(row for bound, row in ROWS_BY_SIZE if len(train) < bound)
        options = {"high_resolution": True} if high_resolution else {}
        if high_resolution and row != "imagenet":
            raise ValueError("a high resolution with averaged weights is for ImageNet (Table 2).")
        recipe = recipes.resolve(f"paper/finetune-{row}", variant, **options)
        for rate in rates or datasets.TABLE_4[row].rates:
            schedule = dataclasses.replace(recipe.schedule, base_lr=float(rate))
            found[f"lr_{rate:g}"] = dataclasses.replace(recipe, schedule=schedule)
    if protocol == "hyperrule" or (isinstance(VARIANTS[variant].spec, ResNetSpec) and not rates):
        found["hyperrule"] = recipes.resolve(
            "bit/hyperrule", variant, examples=len(train), image_size=image_size_of(train)
        )
    return found


def image_size_of(source: Any) -> tuple[int, int]:
    """Pixels (height, width) of a data set's images: the median of its first ones."""
    if isinstance(source, Source):
        step = max(1, len(source) // LOOKED_AT)
        looked_at = (source.image(i, 3) for i in range(0, len(source), step))
    else:
        first = source.read(0, min(LOOKED_AT, len(source)), None).map(source.parse)
        looked_at = (read_image(image, 3) for image, _ in first.as_numpy_iterator())
    sizes = [image.shape[:2] for image in looked_at if image is not None]
    if not sizes:
        raise ValueError(f"none of the first images of {source.name} can be read.")
    height, width = np.median(sizes, axis=0)
    return int(height), int(width)


def run_transfer(
    model: str,
    data: Images,
    out: Path,
    *,
    placement: Placement,
    protocol: str = "paper",
    rates: Iterable[float] | None = None,
    high_resolution: bool = False,
    changes: Iterable[str] = (),
    seeds: tuple[int, ...] = (0,),
    smoking: bool = False,
    force: bool = False,
    command: str | None = None,
    callbacks: Callbacks = lambda name, epochs: (),
) -> dict[str, Any]:
    """Sweeps, fine-tunes on all training images with the best setting, and tests.

    Every run has a folder of its own in `out`, and one that is finished is not run again: the same
    call goes on after an interruption. With one candidate there is no sweep.

    Args:
        model: a checkpoint or a file.
        data: its images.
        out: folder; `final_SEED/model.keras` is the fine-tuned model, `report.json` what was found.
        placement: the devices, opened before anything was computed.
        protocol, rates, high_resolution: see `candidates`.
        changes: `part.field=value` texts, other values for fields of every recipe.
        seeds: of the final runs, whose mean and standard deviation are reported; the sweep has the
            first.
        smoking: a few steps of a tiny network.
        force: replace what `out` holds.
        command: noted in the report.
        callbacks: from the name and the epochs of a run to further Keras callbacks.

    Raises:
        ValueError: data, model and protocol do not go together, or `out` holds another transfer.
        FileExistsError, OSError: `out` cannot be used.
    """
    if not seeds or len(set(seeds)) < len(seeds):
        raise ValueError(f"seeds must be different numbers, at least one, got {seeds}.")
    if placement.is_chief:
        rundir.check_out(out, force)
    train = data.open("train")
    tried = candidates(
        model,
        train,
        protocol=protocol,
        row=data.row,
        rates=rates,
        high_resolution=high_resolution,
    )
    tried = {name: overrides.apply(recipe, changes) for name, recipe in tried.items()}
    if smoking:
        tried = {name: smoke.smoke(r) for name, r in list(tried.items())[:SMOKE_RATES]}
    about = {
        "model": model,
        "data": data.name,
        "protocol": protocol,
        "candidates": {name: recipe.to_dict() for name, recipe in tried.items()},
    }
    if placement.is_chief:
        rundir.start(out, about, force)
    placement.barrier("begun")

    def measured(name: str, recipe: Recipe, role: str, test: str, seed: int, writes=()):
        folder, recipe = out / name, dataclasses.replace(recipe, seed=seed)
        written = folder / "report.json"
        if placement.any_host(placement.is_chief and written.is_file()):
            return json.loads(written.read_text("utf-8")) if placement.is_chief else {}
        images = data.open(role)
        task = Task(recipe.name, model, recipe, images, None, _like(data.open(test), images))
        return run_task(
            task,
            folder,
            placement=placement,
            smoke=smoking,
            command=command,
            callbacks=lambda epochs: callbacks(name, epochs),
            writes=writes,
        )

    sweep: dict[str, float] = {}
    if len(tried) > 1:
        for name, recipe in tried.items():
            report = measured(f"sweep_{name}", recipe, "sweep", "dev", seeds[0])
            sweep[name] = placement.from_chief(report.get("accuracy", 0.0))
    chosen = max(
        tried, key=lambda name: sweep.get(name, 0.0)
    )  # the first of equals: the lower rate
    finals = [
        measured(f"final_{seed}", tried[chosen], "train", "test", seed, MODEL_FILES[:1])
        for seed in seeds
    ]
    accuracies = [placement.from_chief(each.get("accuracy", 0.0)) for each in finals]
    report = {
        "command": command,
        **about,
        "sweep": sweep,
        "chosen": chosen,
        "seeds": list(seeds),
        "accuracies": accuracies,
        "accuracy": statistics.fmean(accuracies),
        "std": statistics.pstdev(accuracies) if len(seeds) > 1 else None,
        "evaluation": finals[0].get("evaluation"),
        "seconds": round(sum(each.get("seconds", 0.0) for each in finals), 1),
        "versions": versions(),
    }
    if placement.is_chief:
        rundir.write_json(out / "report.json", report)
        rundir.finish(out)
    placement.barrier("written")
    return report


def result_of(report: dict[str, Any]) -> Result:
    """The row of a finished transfer for a store of results."""
    recipe, measured = report["candidates"][report["chosen"]], report["evaluation"]
    one = len(report["seeds"]) == 1
    return Result(
        study="transfer",
        model=report["model"],
        data=report["data"],
        metric="accuracy",
        value=report["accuracy"],
        examples=measured["examples"],
        interval=tuple(measured["interval"]) if one else None,
        std=report["std"],
        settings={
            "protocol": report["protocol"],
            "chosen": report["chosen"],
            "steps": recipe["steps"],
            "resolution": recipe["image_size"],
            "seeds": report["seeds"],
        },
        command=report["command"],
        when=now(),
        versions=report["versions"],
    )


def _like(test: Any, train: Any) -> Any:
    return test if test.class_names == train.class_names else align(test, train.class_names)
