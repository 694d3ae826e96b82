"""Frozen features: computed once from every image of a source, kept on disk in shards, read back mapped.

A folder of features holds `features_00000.npy` (rows, D) of float32, `labels_00000.npy` (rows,) of
int32, more of both, and `manifest.json`, which says what made them. A shard counts when the manifest
names it, so a killed run goes on with the next one.
"""

import dataclasses
import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_vit.card import Preprocessing
from keras_vit.data.batches import Batches
from keras_vit.data.pipeline import Pipeline
from keras_vit.data.sources import Source
from keras_vit.data.streams import Stream
from keras_vit.model import VisionModel
from keras_vit.train import rundir
from keras_vit.train.finetune import fingerprint

MANIFEST = "manifest.json"
SHARD_BYTES = 64 * 2**20  # of features in one file, and what is in memory while it is made
BLOCK_ROWS = 4096  # 32 MB of 1024 features in float64
POOLS = ("class", "mean", "both")
Progress = Callable[[int, int], None]


@dataclasses.dataclass(frozen=True)
class Extractor:
    """What turns images into features, whatever runs it.

    Attributes:
        name: of the model, for reports.
        endpoint: where the features are taken.
        pool: how tokens become one vector, `class`, `mean`, `both`; None where there is one already.
        predict: preprocessed float32 images (B, H, W, C) -> float32 features (B, D).
        dim: D.
        image_size, channels, preprocessing: what it takes.
        weights: hexadecimal hash of everything that decides the numbers inside `predict`.
    """

    name: str
    endpoint: str
    pool: str | None
    predict: Callable[[np.ndarray], np.ndarray]
    dim: int
    image_size: tuple[int, int]
    channels: int
    preprocessing: Preprocessing
    weights: str

    def about(self) -> dict[str, Any]:
        """Plain values that a report shows and that tell these features from others."""
        return {
            "endpoint": self.endpoint,
            "pool": self.pool,
            "dim": self.dim,
            "resolution": list(self.image_size),
            "channels": self.channels,
            "preprocessing": json.loads(json.dumps(dataclasses.asdict(self.preprocessing))),
            "weights": self.weights,
        }

    @property
    def identity(self) -> str:
        """Hash of weights, endpoint and preprocessing; the name does not matter."""
        return digest([json.dumps(self.about(), sort_keys=True).encode()])


def digest(parts: Iterable[Any]) -> str:
    """16 hexadecimal digits of the SHA-256 of bytes, one part after the other."""
    value = hashlib.sha256()
    for part in parts:
        value.update(part)
    return value.hexdigest()[:16]


def extractor_of(
    model: VisionModel,
    endpoint: str = "pre_logits",
    *,
    pool: str | None = None,
    name: str | None = None,
    preprocessing: Preprocessing | None = None,
) -> Extractor:
    """The features of a model at one of its endpoints.

    Args:
        model: whose weights must not change while the extractor is used.
        endpoint: one of `model.endpoints` that gives a vector, tokens (B, N, D) or a map (B, h, w, D).
        pool: for tokens `class` (the first one), `mean` (of the patches), `both` (one after the other);
            for a map `mean`; None for a vector.
        name: for reports; None for the checkpoint's.
        preprocessing: None for the checkpoint's. The few-shot numbers of the papers are of images
            stretched to 256 pixels, of which the central 224 are used.

    Raises:
        KeyError: no such endpoint.
        ValueError: `pool` does not suit the endpoint.
    """
    features = ops.cast(_pooled(model, endpoint, pool), "float32")
    network = keras.Model(model.inputs[0], features, name=f"{model.name}_features")
    # Graph mode on a CPU, as in VisionModel.compile; it is compiled for one shape of batch.
    plain = keras.backend.backend() == "tensorflow" and not keras.distribution.list_devices("gpu")
    network.compile(jit_compile=False if plain else "auto")
    return Extractor(
        name=name or (model.card.name if model.card else model.name),
        endpoint=endpoint,
        pool=pool,
        predict=network.predict_on_batch,
        dim=int(features.shape[-1]),
        image_size=model.spec.image_size,
        channels=model.spec.in_channels,
        preprocessing=preprocessing or model.preprocessing,
        weights=digest(_content(model, network)),
    )


def _pooled(model: VisionModel, endpoint: str, pool: str | None) -> Any:
    """An endpoint as one vector per image, (B, D)."""
    x = model.endpoints[endpoint]
    if endpoint in model.endpoints.attention:
        raise ValueError(f"endpoint {endpoint!r} holds attention weights, which are no features.")
    rank, prefix = len(x.shape), model.spec.num_prefix_tokens
    has_cls = getattr(model.spec, "has_cls", False)
    legal = {2: (None,), 3: POOLS if has_cls else ("mean",), 4: ("mean",)}[rank]
    if pool not in legal:
        raise ValueError(
            f"endpoint {endpoint!r} of shape {tuple(x.shape)} takes pool "
            f"{' or '.join(map(repr, legal))}, got {pool!r}."
        )
    if rank == 2:
        return x
    if rank == 4:
        return ops.mean(x, axis=(1, 2))
    parts = {"class": lambda: x[:, 0], "mean": lambda: ops.mean(x[:, prefix:], axis=1)}
    return ops.concatenate([parts[p]() for p in parts if pool in (p, "both")], axis=-1)


def _content(model: VisionModel, network: keras.Model) -> Iterator[bytes]:
    """The spec, which decides numerics too, the dtype policy, and the weights that are used."""
    yield json.dumps([model.spec.to_dict(), model.policy.name], sort_keys=True).encode()
    for variable in network.weights:
        values = np.ascontiguousarray(ops.convert_to_numpy(variable))
        yield f"{variable.path} {values.dtype} {values.shape}".encode()
        yield values.tobytes()


@dataclasses.dataclass(frozen=True)
class FeatureSet:
    """Features and labels of the images of a source, in its order, without those not readable.

    Attributes:
        name: of the source.
        shards: float32 (rows, D) each, mapped from disk or in memory.
        labels: (n,) class indices of int32.
        class_names: names in order of the indices.
        about: what made the features, see `Extractor.about`, and `name`.
        broken: messages about images that could not be read.
    """

    name: str
    shards: tuple[np.ndarray, ...]
    labels: np.ndarray
    class_names: tuple[str, ...]
    about: dict[str, Any] = dataclasses.field(default_factory=dict)
    broken: tuple[str, ...] = ()

    def __post_init__(self):
        rows = sum(map(len, self.shards))
        if rows != len(self.labels) or not rows:
            raise ValueError(
                f"{self.name} has {rows} rows of features and {len(self.labels)} labels: they must "
                f"be as many, and at least one."
            )

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def dim(self) -> int:
        """D, features of an image."""
        return self.shards[0].shape[1]

    @property
    def num_classes(self) -> int:
        """Number of classes."""
        return len(self.class_names)

    def blocks(self, rows: int = BLOCK_ROWS) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """All features (r, D) and labels (r,) in order, at most `rows` at a time; do not write to them."""
        first = 0
        for shard in self.shards:
            for start in range(0, len(shard), rows):
                part = shard[start : start + rows]
                yield part, self.labels[first : first + len(part)]
                first += len(part)

    def take(self, indices: np.ndarray) -> np.ndarray:
        """float32 (k, D): the features at `indices`, in that order."""
        found = np.empty((len(indices), self.dim), np.float32)
        first = 0
        for shard in self.shards:
            here = np.flatnonzero((indices >= first) & (indices < first + len(shard)))
            found[here] = shard[indices[here] - first]
            first += len(shard)
        return found


def in_memory(features, labels, class_names: Iterable[str], name: str = "arrays") -> FeatureSet:
    """Features that are here already: (n, D), and labels (n,)."""
    x, y = np.asarray(features, np.float32), np.asarray(labels, np.int32)
    return FeatureSet(name, (x,), y, tuple(class_names))


def check_pair(train: FeatureSet, test: FeatureSet) -> None:
    """Refuses two sets that cannot be train and test of one classifier.

    Raises:
        ValueError: other classes, another extractor, or a single class.
    """
    if train.class_names != test.class_names:
        raise ValueError(
            f"{test.name} has the classes {list(test.class_names)[:5]}, but {train.name} has "
            f"{list(train.class_names)[:5]}: they must be the same."
        )
    about = [{k: v for k, v in s.about.items() if k != "name"} for s in (train, test)]
    if about[0] != about[1] or train.dim != test.dim:
        raise ValueError(
            f"the features of {train.name} and {test.name} come from different extractors: extract "
            f"both with the same model, endpoint and image size."
        )
    if len(np.unique(train.labels)) < 2:
        raise ValueError(f"{train.name} has images of one class only, but at least 2 are needed.")


def extract(
    extractor: Extractor,
    source: Source | Stream,
    folder: str | os.PathLike,
    *,
    batch_size: int = 64,
    shard_bytes: int = SHARD_BYTES,
    progress: Progress | None = None,
) -> FeatureSet:
    """The features of all images of a source, from the folder as far as they are there already.

    Args:
        extractor: see `extractor_of`.
        source: of one class per image, from `keras_vit.data.sources.open_feed_source`.
        folder: made when it is not there; it may hold features of this extractor and data only.
        batch_size: images per call of `predict`, rounded down to a power of two.
        shard_bytes: most bytes of one file, when the folder is new.
        progress: called with (images done, images in all).

    Raises:
        ValueError: the folder holds other features or other things, an image can have several
            classes, or none can be read.
        OSError: it cannot be written.
    """
    if source.multi_label:
        raise ValueError(f"{source.name} has several labels per image, but one class is needed.")
    folder = Path(folder)
    manifest = _begin(extractor, source, folder, shard_bytes)
    rows, shards, total = manifest["rows_per_shard"], manifest["shards"], len(source)
    # Powers of two, so that batches of any size fill whole shards when a run goes on.
    batch = min(_power_of_two(batch_size), rows, 1 << (total - 1).bit_length())
    feed = (Pipeline if isinstance(source, Stream) else Batches)(
        source,  # pyright: ignore[reportArgumentType]
        extractor.image_size,
        extractor.channels,
        extractor.preprocessing,
        batch_size=batch,
        pad=True,
    )
    if progress:
        progress(min(len(shards) * rows, total), total)
    while (first := len(shards) * rows) < total:
        last = min(first + rows, total)
        x, y, filled = np.empty((rows, extractor.dim), np.float32), np.empty(rows, np.int32), 0
        for step, made in enumerate(_batches(feed, first // batch, -(-last // batch)), 1):
            images, targets, weights = (np.asarray(part) for part in made)
            real = np.flatnonzero(weights)
            if len(real):
                found = np.asarray(extractor.predict(images), np.float32)
                _check_shape(extractor, found, len(images))
                x[filled : filled + len(real)] = found[real]
                y[filled : filled + len(real)] = targets[real].argmax(axis=1)
                filled += len(real)
            if progress:
                progress(min(first + step * batch, total), total)
        for kind, values in (("features", x), ("labels", y)):
            _save(folder / _file(kind, len(shards)), values[:filled])
        shards.append(filled)
        manifest["broken"] = list(dict.fromkeys([*manifest["broken"], *source.broken]))
        rundir.write_json(folder / MANIFEST, manifest)
    if not sum(shards):
        raise ValueError(f"none of the {total} images of {source.name} can be read.")
    return open_features(folder)


def open_features(folder: str | os.PathLike) -> FeatureSet:
    """The features that `extract` finished in a folder, mapped from disk.

    Raises:
        ValueError: they are not complete, or none are there.
    """
    folder = Path(folder)
    manifest = _manifest(folder)
    if manifest is None:
        raise ValueError(f"{folder} holds no features: it has no {MANIFEST}.")
    counts, examples = manifest["shards"], manifest["data"]["examples"]
    done = len(counts) * manifest["rows_per_shard"]
    if done < examples:
        raise ValueError(
            f"{folder} holds the features of {done} of {examples} images: extract again to go on."
        )
    numbers = [i for i, count in enumerate(counts) if count]
    return FeatureSet(
        name=manifest["data"]["name"],
        shards=tuple(np.load(folder / _file("features", i), mmap_mode="r") for i in numbers),
        labels=np.concatenate([np.load(folder / _file("labels", i)) for i in numbers]),
        class_names=tuple(manifest["class_names"]),
        about={"name": manifest["name"], **manifest["extractor"]},
        broken=tuple(manifest["broken"]),
    )


def _begin(extractor: Extractor, source: Source | Stream, folder: Path, shard_bytes: int) -> Any:
    """The manifest to go on with; a new one where the folder is empty.

    A folder made for other features is refused, and so is one that holds anything else.
    """
    about = {
        "extractor": extractor.about(),
        "data": json.loads(json.dumps(fingerprint(source))),
        "class_names": list(source.class_names),
    }
    manifest = _manifest(folder)
    if manifest is not None:
        pairs = [(about[part], manifest[part]) for part in ("extractor", "data")]
        differ = [key for new, old in pairs for key in new if old.get(key) != new[key]]
        if manifest["class_names"] != about["class_names"]:
            differ.append("class_names")
        if differ:
            raise ValueError(
                f"{folder} holds features of {manifest['name']} on {manifest['data']['name']} with "
                f"another {', '.join(differ)}: give another folder, or remove that one."
            )
        return manifest
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ValueError(
            f"{folder} holds something else than features: give an empty or a new folder."
        )
    folder.mkdir(parents=True, exist_ok=True)
    rows = _power_of_two(max(1, shard_bytes // (4 * extractor.dim)))
    manifest = {"name": extractor.name, "identity": extractor.identity, **about}
    manifest |= {"rows_per_shard": rows, "shards": [], "broken": []}
    rundir.write_json(folder / MANIFEST, manifest)
    return manifest


def _manifest(folder: Path) -> dict[str, Any] | None:
    try:
        return json.loads((folder / MANIFEST).read_text("utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except ValueError as error:
        raise ValueError(f"{folder / MANIFEST} is not JSON ({error}): remove the folder.") from None


def _batches(feed: Batches | Pipeline, start: int, stop: int) -> Iterator[tuple[Any, ...]]:
    """The batches of some steps; of images read by Python the next one is made meanwhile."""
    data = feed.keras_data(start, stop)
    if not isinstance(data, keras.utils.PyDataset):
        yield from data.as_numpy_iterator()
        return
    with ThreadPoolExecutor(1) as reader:
        ahead = reader.submit(data.__getitem__, 0)
        for index in range(len(data)):
            made = ahead.result()
            if index + 1 < len(data):
                ahead = reader.submit(data.__getitem__, index + 1)
            yield made


def _check_shape(extractor: Extractor, found: np.ndarray, count: int) -> None:
    if found.shape != (count, extractor.dim):
        raise ValueError(
            f"{extractor.name} gave features of shape {found.shape} for {count} images, expected "
            f"({count}, {extractor.dim}): one vector per image."
        )
    if not np.isfinite(found).all():
        raise ValueError(f"{extractor.name} gave features that are not finite: check its weights.")


def _file(kind: str, number: int) -> str:
    return f"{kind}_{number:05d}.npy"


def _save(path: Path, values: np.ndarray) -> None:
    """Writes an array aside and renames it."""
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with part.open("wb") as file:
            np.save(file, values)
        os.replace(part, path)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise OSError(
            f"cannot write {path} ({error.strerror or error}): the shards before it are kept; make "
            f"room, and run again to go on."
        ) from None


def _power_of_two(n: int) -> int:
    """The largest power of two up to n."""
    return 1 << (n.bit_length() - 1)
