"""The 19 tasks of VTAB-1k as data: which images, in which order, with which classes."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from keras_vit.data.sources import Source
from keras_vit.train.recipes.paper_finetune import NO_CROP, NO_FLIP, VTAB_TASKS
from keras_vit.transfer.vtab import labels

if TYPE_CHECKING:
    from keras_vit.data.streams import Stream

GROUPS = ("natural", "specialized", "structured")
SPLITS = ("train800", "val200", "train800val200", "test")
TRAIN, VALIDATION = 800, 200  # images of VTAB-1k


@dataclasses.dataclass(frozen=True)
class Splits:
    """Where validation and test images lie in the splits of a data set.

    Training images are the first of `train`. A share of 80 means: from the image on that comes after
    the first 80 % of the split.

    Attributes:
        validation: split that the validation images come from, and the share that is before them.
        test: split of the test images, and the share that is before them.
    """

    validation: tuple[str, int] = ("validation", 0)
    test: tuple[str, int] = ("test", 0)


@dataclasses.dataclass(frozen=True)
class Task:
    """A row of the benchmark.

    Attributes:
        name: as `paper/finetune-vtab` takes it.
        title: as Table 9 prints it.
        group: of `GROUPS`.
        data: name of the set in tensorflow-datasets.
        classes: how many.
        splits: see `Splits`.
        label: recipe for the class, None for the feature `label`.
        features: those that the recipe needs, as tfds's `PartialDecoding` takes them.
        pixel_scale: what stored pixels are multiplied by.
    """

    name: str
    title: str
    group: str
    data: str
    classes: int
    splits: Splits = Splits()
    label: Callable[[labels.Example], int] | None = None
    features: Any = None
    pixel_scale: int = 1

    @property
    def flips(self) -> bool:
        """Whether training images may be flipped."""
        return self.name not in NO_FLIP

    @property
    def crops(self) -> bool:
        """Whether training images may be cropped."""
        return self.name not in NO_CROP


# Shares of `train`, where that is cut.
_NINE_TENTHS = Splits(("train", 90))
_FOUR_FIFTHS = Splits(("train", 80))
_CLEVR = Splits(("train", 90), ("validation", 0))  # its test images have no labels
_DSPRITES = Splits(("train", 80), ("train", 90))
_SATELLITE = Splits(("train", 60), ("train", 80))
_SMALLNORB = Splits(("test", 0), ("test", 50))

# Source: arXiv 1910.04867, Table 2; google-research/task_adaptation, scripts/run_all_tasks.sh and data/*.py.
# The public revisions of its dmlab.py and dtd.py are older than the splits of 800 and 200 images: these
# two follow the others that have a validation split of their own.
TASKS = {
    task.name: task
    for task in (
        Task("caltech101", "Caltech101", "natural", "caltech101", 102, _NINE_TENTHS),
        Task("cifar100", "CIFAR-100", "natural", "cifar100", 100, _NINE_TENTHS),
        Task("dtd", "DTD", "natural", "dtd", 47),
        Task("flowers102", "Flowers102", "natural", "oxford_flowers102", 102),
        Task("pets", "Pets", "natural", "oxford_iiit_pet", 37, _FOUR_FIFTHS),
        Task("sun397", "Sun397", "natural", "sun397/tfds", 397),
        Task("svhn", "SVHN", "natural", "svhn_cropped", 10, _NINE_TENTHS),
        Task("camelyon", "Camelyon", "specialized", "patch_camelyon", 2),
        Task("eurosat", "EuroSAT", "specialized", "eurosat/rgb", 10, _SATELLITE),
        Task("resisc45", "Resisc45", "specialized", "resisc45", 45, _SATELLITE),
        Task("retinopathy", "Retinopathy", "specialized",
             "diabetic_retinopathy_detection/btgraham-300", 5),
        Task("clevr-count", "Clevr-Count", "structured", "clevr", 8, _CLEVR,
             labels.clevr_count, {"objects": {"size": True}}),
        Task("clevr-distance", "Clevr-Dist", "structured", "clevr", 6, _CLEVR,
             labels.clevr_distance, {"objects": {"pixel_coords": True}}),
        Task("dmlab", "DMLab", "structured", "dmlab", 6),
        Task("dsprites-location", "dSpr-Loc", "structured", "dsprites", 16, _DSPRITES,
             labels.dsprites_location, {"label_x_position": True}, pixel_scale=255),
        Task("dsprites-orientation", "dSpr-Ori", "structured", "dsprites", 16, _DSPRITES,
             labels.dsprites_orientation, {"label_orientation": True}, pixel_scale=255),
        Task("kitti-distance", "KITTI-Dist", "structured", "kitti", 4, Splits(),
             labels.kitti_distance, {"objects": {"type": True, "location": True}}),
        Task("smallnorb-azimuth", "sNORB-Azim", "structured", "smallnorb", 18, _SMALLNORB,
             labels.smallnorb_azimuth, {"label_azimuth": True}),
        Task("smallnorb-elevation", "sNORB-Elev", "structured", "smallnorb", 9, _SMALLNORB,
             labels.smallnorb_elevation, {"label_elevation": True}),
    )
}  # fmt: skip


def find(name: str) -> Task:
    """The task of a name.

    Raises:
        ValueError: there is none; the message lists them.
    """
    if name not in TASKS:
        raise ValueError(f"no VTAB task {name!r}: there are {', '.join(VTAB_TASKS)}.")
    return TASKS[name]


def split_text(splits: Splits, split: str, counts: Mapping[str, int]) -> str:
    """The slices of tensorflow-datasets that make a split of VTAB-1k.

    The 1,000 images are the first 800 of `train` in stored order and the first 200 of the validation
    part; no class is balanced.

    Args:
        splits: of the task.
        split: of `SPLITS`.
        counts: examples in each stored split.

    Raises:
        ValueError: no such split, or the stored set has too few images.
    """
    if split not in SPLITS:
        raise ValueError(f"no split {split!r}: there are {', '.join(SPLITS)}.")
    if missing := {"train", splits.validation[0], splits.test[0]} - set(counts):
        raise ValueError(
            f"the stored data has no split {' and '.join(sorted(missing))}, only "
            f"{', '.join(sorted(counts))}: prepare the whole set."
        )
    name, share = splits.validation
    begin = counts[name] * share // 100
    if split == "test":
        test, before = splits.test
        if test != name or not share:
            start = counts[test] * before // 100
        else:  # the parts are rounded one by one
            start = begin + counts[test] * (before - share) // 100
        return f"{test}[{start}:]" if start else test
    train, validation = f"train[:{TRAIN}]", f"{name}[{begin}:{begin + VALIDATION}]"
    needed = {name: begin + VALIDATION}
    needed["train"] = max(needed.get("train", 0), TRAIN)
    if few := [f"{s} has {counts[s]}, not {n}" for s, n in needed.items() if counts[s] < n]:
        raise ValueError(f"the stored data is too small: {', '.join(few)} images.")
    return {"train800": train, "val200": validation}.get(split, f"{train}+{validation}")


def check_task(name: str, *, data_dir: str | None = None) -> None:
    """Checks that the data of a task is prepared and large enough, without reading it.

    Raises:
        ValueError: no such task, or it is not.
    """
    from keras_vit.data.streams import split_sizes

    task = find(name)
    sizes = split_sizes(task.data, data_dir=data_dir)
    for split in SPLITS:
        split_text(task.splits, split, sizes)


def open_task(name: str, split: str, *, data_dir: str | None = None) -> "Source | Stream":
    """Images and classes of a task, from files that tensorflow-datasets has prepared.

    Up to 4 GiB of encoded images come into memory as a `Source`, more stay a `Stream`.

    Args:
        name: of `TASKS`.
        split: `train800`, `val200`, `train800val200` or `test`.
        data_dir: where tensorflow-datasets keeps its files.

    Raises:
        ValueError: no such task or split, or the data is not prepared.
    """
    from keras_vit.data.streams import Reading, open_tfds, split_sizes

    task = find(name)
    text = split_text(task.splits, split, split_sizes(task.data, data_dir=data_dir))
    reading = None
    if task.label is not None:
        names = labels.CLASS_NAMES[name]
        reading = Reading(names, task.features, task.label, pixel_scale=task.pixel_scale)
    opened = open_tfds(f"{task.data}:{text}", data_dir=data_dir, reading=reading)
    if opened.num_classes != task.classes:
        raise ValueError(
            f"{opened.name} has {opened.num_classes} classes, but VTAB's {name} has {task.classes}: "
            f"it is another data set."
        )
    return dataclasses.replace(opened, name=f"vtab/{name}:{split}")
