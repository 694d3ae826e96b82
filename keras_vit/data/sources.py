"""Where labelled images come from: arrays, folders, tensorflow-datasets, and the built-in set.

A `Source` is random access to decoded images, so that shuffling, splitting and resuming are exact.
"""

import dataclasses
import gzip
import os
import zipfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from keras_vit.data.images import problem_of, read_image

if TYPE_CHECKING:
    from keras_vit.data.streams import Stream

TFDS_MEMORY_LIMIT = 4 * 2**30  # bytes of images, decoded or encoded, as they are kept


@dataclasses.dataclass(frozen=True)
class Source:
    """Labelled images with random access.

    Attributes:
        name: for reports.
        images: decoded arrays (h, w, C) or whatever `read_image` reads, one per example.
        labels: (n,) class indices, or (n, classes) of 0 and 1 for multi-label targets.
        class_names: names in order of the indices.
        broken: messages about files that could not be read; grows while reading.
    """

    name: str
    images: Sequence[Any] | np.ndarray
    labels: np.ndarray
    class_names: tuple[str, ...]
    broken: list[str] = dataclasses.field(default_factory=list)

    def __post_init__(self):
        if len(self.images) != len(self.labels):
            raise ValueError(
                f"{self.name} has {len(self.images)} images and {len(self.labels)} labels: they must "
                f"be as many."
            )
        if not len(self.images):
            raise ValueError(f"{self.name} holds no images.")
        if self.labels.ndim not in (1, 2):
            raise ValueError(f"labels must be (n,) or (n, classes), got shape {self.labels.shape}.")
        if not self.class_names:
            raise ValueError(f"{self.name} has zero classes.")
        if self.labels.ndim == 1:
            low, high = self.labels.min(), self.labels.max()
            if (
                not np.issubdtype(self.labels.dtype, np.integer)
                or low < 0
                or high >= len(self.class_names)
            ):
                raise ValueError(
                    f"labels of {self.name} must be whole numbers from 0 to "
                    f"{len(self.class_names) - 1}, got {low} to {high} of {self.labels.dtype}."
                )
        elif self.labels.shape[1] != len(self.class_names):
            raise ValueError(
                f"{self.name} has {len(self.class_names)} class names, but labels for "
                f"{self.labels.shape[1]} classes."
            )

    def __len__(self) -> int:
        return len(self.images)

    @property
    def num_classes(self) -> int:
        """Number of classes."""
        return len(self.class_names)

    @property
    def multi_label(self) -> bool:
        """Whether an example can have several classes."""
        return self.labels.ndim == 2

    def image(self, index: int, channels: int) -> np.ndarray | None:
        """uint8 (h, w, channels), or None, noted in `broken`, when the file cannot be decoded."""
        try:
            return read_image(self.images[index], channels)
        except ValueError as error:
            if isinstance(self.images[index], np.ndarray):
                raise
            if str(error) not in self.broken:
                self.broken.append(str(error))
            return None

    def take(self, indices: Sequence[int] | np.ndarray, name: str | None = None) -> "Source":
        """The examples at `indices`, in that order."""
        images = self.images
        picked = images[indices] if isinstance(images, np.ndarray) else [images[i] for i in indices]
        return dataclasses.replace(
            self, name=name or self.name, images=picked, labels=self.labels[indices]
        )

    def classes(self, keep: Sequence[int]) -> "Source":
        """Only the examples of some classes, renumbered in the order of `keep`.

        With multi-label targets every example stays and only the labels are picked.

        Raises:
            ValueError: a class does not exist or is named twice.
        """
        keep = list(keep)
        if len(set(keep)) < len(keep) or not all(0 <= i < self.num_classes for i in keep):
            raise ValueError(
                f"classes must be different numbers from 0 to {self.num_classes - 1}, got {keep}."
            )
        names = tuple(self.class_names[i] for i in keep)
        name = f"{self.name}[{len(keep)} classes]"
        if self.multi_label:
            return dataclasses.replace(
                self, name=name, labels=self.labels[:, keep], class_names=names
            )
        part = self.take(np.flatnonzero(np.isin(self.labels, keep)), name)
        renumber = np.zeros(self.num_classes, np.int32)
        renumber[keep] = np.arange(len(keep))
        return dataclasses.replace(part, labels=renumber[part.labels], class_names=names)

    def split(self, fraction: float, seed: int = 0) -> tuple["Source", "Source"]:
        """Two disjoint parts, the second with `fraction` of every class.

        At least one example of each class goes to the second part, and one stays in the first; a
        class with a single example stays. With multi-label targets an example belongs to its rarest
        label.
        """
        if not 0.0 < fraction < 1.0:
            raise ValueError(f"the share to split off must be between 0 and 1, got {fraction}.")
        rng = np.random.default_rng(seed)
        classes = _rarest_label(self.labels) if self.multi_label else self.labels
        mask = np.zeros(len(self), bool)
        for label in np.unique(classes):
            members = rng.permutation(np.flatnonzero(classes == label))
            count = min(max(1, round(fraction * len(members))), len(members) - 1)
            mask[members[:count]] = True
        if not mask.any():
            raise ValueError(
                f"{self.name} is too small to keep {fraction:.0%} of it for validation."
            )
        return self.take(np.flatnonzero(~mask)), self.take(np.flatnonzero(mask))


def _rarest_label(labels: np.ndarray) -> np.ndarray:
    """(n,) for (n, classes): the least frequent label of each example, -1 where it has none."""
    counts = np.where(labels > 0, labels.astype(bool).sum(axis=0), len(labels) + 1)
    return np.where((labels > 0).any(axis=1), counts.argmin(axis=1), -1)


def open_source(name: str, *, data_dir: str | None = None) -> Source:
    """Opens a source by its name.

    Args:
        name: `folder:PATH` (a folder per class), `fashion_mnist[:train|:test|:subset]`,
            `tfds:NAME[:SPLIT]`, the path of an `.npz` with arrays `images` and `labels`, or
            `images:PATH` (any folder of images, without labels).
        data_dir: where tensorflow-datasets keeps its files.

    Raises:
        ValueError: nothing of that name, or it is empty; the message says what was expected.
    """
    kind, _, rest = name.partition(":")
    if kind == "folder":
        return folder(rest)
    if kind == "images":
        return unlabelled(rest)
    if kind == "tfds":
        return tfds(rest, data_dir=data_dir)
    if kind == "fashion_mnist":
        return fashion_mnist(rest or "train")
    if name.endswith(".npz") and Path(name).is_file():
        return _npz(name)
    if Path(name).is_dir():
        return folder(name)
    raise ValueError(
        f"unknown data {name!r}: use folder:PATH, fashion_mnist, tfds:NAME[:SPLIT] or a .npz with "
        f"arrays images and labels."
    )


def open_feed_source(name: str, *, data_dir: str | None = None) -> "Source | Stream":
    """What `Pipeline` reads, by the names of `open_source`.

    A tensorflow-datasets set keeps its images encoded: in memory where they fit, as a `Stream` of its
    files otherwise. Everything else is what `open_source` gives.

    Raises:
        ValueError: as `open_source`.
    """
    kind, _, rest = name.partition(":")
    if kind != "tfds":
        return open_source(name, data_dir=data_dir)
    from keras_vit.data.streams import open_tfds

    return open_tfds(rest, data_dir=data_dir)


def _npz(name: str) -> Source:
    try:
        # An open file, because np.load leaves one open when it fails.
        with Path(name).open("rb") as opened, np.load(opened, allow_pickle=False) as file:
            found = {key: file[key] for key in file.files}
    except (ValueError, OSError, EOFError, zipfile.BadZipFile) as error:
        raise ValueError(f"{name} is no .npz of plain arrays that can be read ({error}).") from None
    if not {"images", "labels"} <= set(found):
        raise ValueError(f"{name} needs the arrays `images` and `labels`, has {sorted(found)}.")
    names = tuple(map(str, found["class_names"])) if "class_names" in found else None
    return arrays(found["images"], found["labels"], names, name=name)


def arrays(
    images, labels, class_names: Sequence[str] | None = None, name: str = "arrays"
) -> Source:
    """A source from uint8 images (n, h, w[, C]) and labels (n,) or (n, classes)."""
    images, labels = np.asarray(images), np.asarray(labels)
    if images.dtype != np.uint8:
        raise ValueError(f"images must be uint8 values 0..255, got {images.dtype}.")
    if images.ndim not in (3, 4):
        raise ValueError(f"images must be (n, h, w) or (n, h, w, C), got shape {images.shape}.")
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]  # Keras's own data sets give (n, 1)
    if labels.ndim == 1 and np.issubdtype(labels.dtype, np.integer):
        labels = labels.astype(np.int32)
    if class_names is None:
        count = labels.shape[1] if labels.ndim == 2 else int(labels.max(initial=-1)) + 1
        class_names = [f"class {i}" for i in range(count)]
    return Source(name, images, labels, tuple(class_names))


def folder(path: str | os.PathLike) -> Source:
    """Images in one folder per class; classes are the sorted folder names.

    Every file is decoded once, at reduced size where the format allows, so that what cannot be read
    is known before anything is split or trained: such files are left out and listed in `broken`.
    Hidden files are ignored.

    Raises:
        ValueError: no folder, fewer than two classes, or a class without a readable image.
    """
    root = Path(path)
    if not root.is_dir():
        raise ValueError(f"{root} is no folder: give one that holds a folder of images per class.")
    names = sorted(p.name for p in root.iterdir() if p.is_dir() and not p.name.startswith("."))
    if len(names) < 2:
        raise ValueError(
            f"{root} holds {len(names)} class folders, but at least 2 are needed: put the images of "
            f"each class into a folder of its own."
        )
    paths, labels, broken = [], [], []
    for label, class_name in enumerate(names):
        good, problems = _readable(root / class_name)
        broken += problems
        if not good:
            raise ValueError(f"the class folder {root / class_name} holds no readable images.")
        paths += good
        labels += [label] * len(good)
    return Source(f"folder:{root}", paths, np.array(labels, np.int32), tuple(names), broken)


def unlabelled(path: str | os.PathLike) -> Source:
    """All images in a folder and the folders below it, of one class that means nothing.

    What cannot be read is left out as by `folder`.

    Raises:
        ValueError: no folder, or no readable image.
    """
    root = Path(path)
    if not root.is_dir():
        raise ValueError(f"{root} is no folder: give one that holds images.")
    good, broken = _readable(root)
    if not good:
        raise ValueError(f"the folder {root} holds no readable images.")
    labels = np.zeros(len(good), np.int32)
    return Source(f"images:{root}", good, labels, ("unlabelled",), broken)


def _readable(root: Path) -> tuple[list[str], list[str]]:
    """Files below a folder that are images, in order, and messages about the others."""
    found = sorted(p for p in root.rglob("*") if p.is_file() and not p.name.startswith("."))
    with ThreadPoolExecutor() as pool:
        problems = list(pool.map(problem_of, found))
    good = [str(p) for p, problem in zip(found, problems, strict=True) if not problem]
    return good, [problem for problem in problems if problem]


def tfds(name: str, *, data_dir: str | None = None) -> Source:
    """A tensorflow-datasets set with `image` and `label`, read into memory: `NAME[:SPLIT]`."""
    try:
        import tensorflow_datasets
    except ImportError:
        raise ValueError(
            'tfds: data needs tensorflow-datasets: pip install "keras-vit-zoo[tfds]".'
        ) from None
    name, _, split = name.partition(":")
    try:
        dataset, info = tensorflow_datasets.load(
            name, split=split or "train", data_dir=data_dir, with_info=True, download=False
        )
    except Exception as error:
        raise tfds_problem(name, split or "train", error) from None
    if not {"image", "label"} <= set(info.features):
        raise ValueError(
            f"tfds:{name} has the features {sorted(info.features)}, but `image` and `label` are needed."
        )
    images, labels, size = [], [], 0
    for example in tensorflow_datasets.as_numpy(dataset):
        images.append(example["image"])
        labels.append(example["label"])
        size += example["image"].nbytes
        if size > TFDS_MEMORY_LIMIT:
            raise ValueError(
                f"tfds:{name} decodes to more than {TFDS_MEMORY_LIMIT >> 30} GiB: name a smaller "
                f"split, for example tfds:{name}:train[:10%]."
            )
    names = tuple(info.features["label"].names)
    return Source(f"tfds:{name}:{split or 'train'}", images, np.array(labels, np.int32), names)


def tfds_problem(name: str, split: str, error: Exception) -> ValueError:
    """What to raise when tensorflow-datasets does not find a set."""
    # Its errors list every data set there is, or are bare assertions.
    reason = str(error).partition("\n")[0] or type(error).__name__
    return ValueError(
        f"tfds:{name} has no split {split!r} on this machine ({reason}): check the name, and prepare "
        f"the data with tensorflow_datasets.load({name!r})."
    )


FASHION_MNIST_CLASSES = (
    "T-shirt/top",
    "Trouser",
    "Pullover",
    "Dress",
    "Coat",
    "Sandal",
    "Shirt",
    "Sneaker",
    "Bag",
    "Ankle boot",
)
_FASHION_MNIST_FILES = {
    "train": ("train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte.gz"),
    "test": ("t10k-images-idx3-ubyte.gz", "t10k-labels-idx1-ubyte.gz"),
}


def fashion_mnist(split: str = "train") -> Source:
    """Fashion-MNIST: 28x28 grey images of ten kinds of clothing (MIT licence, Zalando).

    Args:
        split: `train` (60,000) or `test` (10,000) where the full set is on this machine (Debian's
            package dataset-fashion-mnist, or Keras's cache), `subset` for the 4,000 images that
            ship with this package: 3,000 of the training set, 1,000 of the test set.
            `subset_train` and `subset_test` name its two parts.
    """
    if split in ("subset", "subset_train", "subset_test"):
        with np.load(Path(__file__).parent / "fashion_mnist" / "subset.npz") as file:
            parts = ["train", "test"] if split == "subset" else [split.removeprefix("subset_")]
            images = np.concatenate([file[f"{p}_images"] for p in parts])
            labels = np.concatenate([file[f"{p}_labels"] for p in parts])
    elif split in _FASHION_MNIST_FILES:
        found = next((d for d in fashion_mnist_folders() if _has(d, split)), None)
        if found is None:
            raise ValueError(
                "the full Fashion-MNIST is not on this machine: install Debian's package "
                "dataset-fashion-mnist, or put its four .gz files into "
                f"{fashion_mnist_folders()[-1]}; fashion_mnist:subset needs neither."
            )
        image_file, label_file = (found / name for name in _FASHION_MNIST_FILES[split])
        images = _read_idx(image_file, 16).reshape(-1, 28, 28)
        labels = _read_idx(label_file, 8)
    else:
        raise ValueError(f"unknown split {split!r} of fashion_mnist: use train, test or subset.")
    return arrays(images[..., None], labels, FASHION_MNIST_CLASSES, f"fashion_mnist:{split}")


def fashion_mnist_folders() -> list[Path]:
    """Where the full set is looked for, in order."""
    keras_home = Path(os.environ.get("KERAS_HOME", Path.home() / ".keras"))
    return [Path("/usr/share/datasets/fashion-mnist"), keras_home / "datasets" / "fashion-mnist"]


def _has(directory: Path, split: str) -> bool:
    return all((directory / name).is_file() for name in _FASHION_MNIST_FILES[split])


def _read_idx(path: Path, offset: int) -> np.ndarray:
    return np.frombuffer(gzip.decompress(path.read_bytes()), np.uint8, offset=offset)
