"""The data sets that the Vision Transformer paper transfers to, and which images of them are for what.

Steps, rates, classes and numbers of training images are in `train.recipes.paper_finetune.TABLE_4`.
"""

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING

from keras_vit.data.sources import Source, open_feed_source, open_source
from keras_vit.train.recipes.paper_finetune import TABLE_4, Row

if TYPE_CHECKING:
    from keras_vit.data.streams import Stream

ROLES = ("train", "sweep", "dev", "test")
DEV_SHARE = 0.1  # of the training images of a data set that the paper does not name


@dataclasses.dataclass(frozen=True)
class Dataset:
    """Splits of a set, as slices of tensorflow-datasets.

    Attributes:
        name: key in `TABLE_4`, as in `paper/finetune-NAME`.
        title: as the paper's tables print it.
        data: name in tensorflow-datasets.
        train: all training images, for the final run.
        sweep: those that a sweep trains on.
        dev: those that a sweep is judged on.
        test: those that the result is measured on.
    """

    name: str
    title: str
    data: str
    train: str
    sweep: str
    dev: str
    test: str = "test"

    @property
    def table_4(self) -> Row:
        """What Table 4 says of it."""
        return TABLE_4[self.name]


# Source: arXiv 2010.11929, Table 4 and appendix B.1.1; the last images of the stored order are held
# out as in vision_transformer's configs/common.py and big_vision's configs/transfer.py.
# Flowers-102 has 1,020 images in `train` and as many in `validation`: the paper trains on both, since
# VTAB's code, by the same authors, takes a share of each for it (data/oxford_flowers102.py) and joins
# them for the final run; big_vision's later configuration trains on `train` alone.
DATASETS = {
    dataset.name: dataset
    for dataset in (
        Dataset("cifar10", "CIFAR-10", "cifar10", "train", "train[:98%]", "train[98%:]"),
        Dataset("cifar100", "CIFAR-100", "cifar100", "train", "train[:98%]", "train[98%:]"),
        Dataset("pets", "Pets", "oxford_iiit_pet", "train", "train[:90%]", "train[90%:]"),
        Dataset(
            "flowers",
            "Flowers-102",
            "oxford_flowers102",
            "train+validation",
            "train[:90%]+validation[:90%]",
            "train[90%:]+validation[90%:]",
        ),
        Dataset(
            "imagenet",
            "ImageNet",
            "imagenet2012",
            "train",
            "train[:99%]",
            "train[99%:]",
            "validation",
        ),
    )
}


def find(name: str) -> Dataset | None:
    """The data set of the paper with this name, title or name in tensorflow-datasets, or None."""
    plain = name.removeprefix("tfds:").lower()
    for dataset in DATASETS.values():
        if plain in (dataset.name, dataset.title.lower(), dataset.data):
            return dataset
    return None


def open_split(
    name: str, role: str, *, data_dir: str | None = None, seed: int = 0
) -> "Source | Stream":
    """The images of a data set for a role.

    A data set of the paper has the paper's splits. Any other has its own training images, of which a
    tenth is for the sweep to be judged on: the last of a set of tensorflow-datasets, some of every class
    of a folder or an .npz. A folder with folders `train` and `test` of class folders has both parts.

    Args:
        name: of `DATASETS` (`pets`, `Pets`, `tfds:oxford_iiit_pet`), or as `open_source` takes it.
        role: `train` all training images, `sweep` those less `dev`, `dev`, or `test`.
        data_dir: where tensorflow-datasets keeps its files.
        seed: of the choice of dev images from a folder or an .npz.

    Raises:
        ValueError: no such role, no such images, or none for testing.
    """
    if role not in ROLES:
        raise ValueError(f"no role {role!r} for images: there are {', '.join(ROLES)}.")
    dataset = find(name)
    if dataset is None and name.startswith("tfds:") and ":" not in name.removeprefix("tfds:"):
        dataset = _plain(name.removeprefix("tfds:"), data_dir)
    if dataset is not None:
        text = getattr(dataset, role)
        return open_feed_source(f"tfds:{dataset.data}:{text}", data_dir=data_dir)
    part = _folder_part(name, role)
    if role == "test" and part is None:
        raise ValueError(
            f"{name} does not say which of its images are for testing: name test images of their own."
        )
    source = open_source(part or name, data_dir=data_dir)
    if role in ("train", "test"):
        return source
    return source.split(DEV_SHARE, seed)[role == "dev"]


def _plain(data: str, data_dir: str | None) -> Dataset:
    """The splits of a set of tensorflow-datasets that the paper does not name."""
    from keras_vit.data.streams import split_sizes

    sizes = split_sizes(data, data_dir=data_dir)
    if "train" not in sizes or not {"test", "validation"} & set(sizes):
        raise ValueError(
            f"tfds:{data} has the splits {', '.join(sizes)}, but train and test or validation are "
            f"needed: name training and test images on their own."
        )
    first = round(100 * (1 - DEV_SHARE))
    test = "test" if "test" in sizes else "validation"
    return Dataset(data, data, data, "train", f"train[:{first}%]", f"train[{first}%:]", test)


def _folder_part(name: str, role: str) -> str | None:
    """The part of a folder that has training and test images in folders of their own."""
    root = Path(name.removeprefix("folder:"))
    parts = [root / part for part in ("train", "test")]
    if all(part.is_dir() for part in parts):
        return f"folder:{parts[role == 'test']}"
    return None
