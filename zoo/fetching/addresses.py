"""Weights by address rather than by card: one file, or what a hub repository needs to be loaded."""

import os
import warnings
from pathlib import Path

from keras_vit.zoo.fetch import cache_folder, wants_offline
from keras_vit.zoo.fetching import hub, lock
from keras_vit.zoo.fetching.bring import bring, bring_pinned, with_hub
from keras_vit.zoo.fetching.download import Expected
from keras_vit.zoo.fetching.reporting import Progress
from keras_vit.zoo.fetching.sources import Hub, Local, Source, cache_key, check_container, parse
from keras_vit.zoo.fetching.web import SourceFailed

CAP = 8 * 2**30  # bytes: twice the largest published checkpoint
JSON_CAP = 64 * 2**20
DONE = ".complete"  # written when every file of a repository is here

# What a KerasHub preset is made of, besides config.json and metadata.json.
PRESET = "model.weights.h5"
PRESET_EXTRAS = ("task.json", "task.weights.h5", "preprocessor.json", "image_converter.json")
WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"


def fetch_url(
    url: str,
    *,
    cache_dir: str | os.PathLike | None = None,
    offline: bool | None = None,
    cap: int = CAP,
    progress: Progress = None,
) -> Path:
    """The file at an `https://`, `gs://` or `hf://ORG/REPO/FILE` address, fetched once.

    Args:
        url: address of a checkpoint.
        cache_dir: None for the usual one, see `fetch.cache_folder`.
        offline: use only what is here; None for what HF_HUB_OFFLINE says.
        cap: the most bytes it may have.
        progress: see `reporting.reporter`.

    Raises:
        ValueError: no such address, a container that is not read, or another file than was seen
            first or is locked.
        FileNotFoundError: it is not here, and `offline`.
        OSError: it cannot be fetched; the message says why.
    """
    source = parse(url)
    if isinstance(source, Local):
        raise ValueError(f"{url!r} is no address: write https://HOST/FILE.")
    check_container(source)
    folder = cache_folder(cache_dir)
    there = _file_here(source, folder)
    # What a floating revision stands for is looked up anew where there is a network.
    if there and (not isinstance(source, Hub) or source.pinned or wants_offline(offline)):
        return lock.check_seen(*there, recorded=_is_below(there[0], folder))
    if wants_offline(offline):
        raise FileNotFoundError(
            f"{source} is not in {folder}, and this is offline: fetch it where there is a network "
            f"with keras-vit fetch, and copy that folder."
        )
    try:
        return bring(source, folder, Expected(cap), progress=progress)
    except SourceFailed as error:
        raise OSError(f"{source} {error}.") from None


def fetch_repo(
    address: str,
    *,
    cache_dir: str | os.PathLike | None = None,
    offline: bool | None = None,
    cap: int = CAP,
    progress: Progress = None,
) -> Path:
    """A folder with the model of `hf://ORG/REPO[@REVISION]`, or one file of it when one is named.

    The folder holds `config.json` with `model.safetensors` (or its index and parts), or a KerasHub
    preset. Nothing else is fetched. A floating revision is looked up each time; when the hub cannot
    be reached, the commit that is here is used, with a warning.

    Args:
        address: of the repository or file.
        cache_dir: None for the usual one, see `fetch.cache_folder`.
        offline: use only what is here; None for what HF_HUB_OFFLINE says.
        cap: the most bytes that all of it may have.
        progress: see `reporting.reporter`.

    Raises:
        ValueError: no such address, or a repository of another kind.
        FileNotFoundError: it is not here, and `offline`.
        OSError: it cannot be fetched; the message says why.
    """
    source = parse(address)
    if not isinstance(source, Hub):
        raise ValueError(f"{address!r} is no hub address: write hf://ORG/REPO[@REVISION].")
    if source.file is not None:
        return fetch_url(address, cache_dir=cache_dir, offline=offline, cap=cap, progress=progress)
    folder = cache_folder(cache_dir)
    here = _repository_here(source, folder)
    if here and (source.pinned or wants_offline(offline)):
        return here
    if wants_offline(offline):
        raise FileNotFoundError(
            f"{source} is not in {folder}, nor in the hub's cache, and this is offline: fetch it "
            f"where there is a network with keras-vit fetch, and copy that folder."
        )
    try:
        commit = hub.resolve(source.at(source.revision or "main", "config.json")).source.revision
        pinned = source.at(commit or "")
        found = _repository_here(pinned, folder)
        found = found or _Repository(pinned, folder, cap, progress).bring()
        hub.remember(source, commit or "", folder)
        return found
    except SourceFailed as error:
        if here and error.status not in (401, 403, 404):
            warnings.warn(
                f"{source} cannot be looked up ({error}): the commit that is here, {here.name}, is "
                f"used.",
                stacklevel=2,
            )
            return here
        raise OSError(f"{source}: {error}.") from None


def planned(address: str, cache_dir: str | os.PathLike | None = None) -> tuple[str, Path | None]:
    """(where it goes, the file or folder that is here already or None), without network."""
    source, folder = parse(address), cache_folder(cache_dir)
    if isinstance(source, Hub):
        commit = hub.known_commit(source, folder) or f"(commit of {source.revision or 'main'})"
        target = folder / "hub" / source.repo / commit / (source.file or "")
    else:
        target = folder / cache_key(source)
    if isinstance(source, Hub) and source.file is None:
        return str(target), _repository_here(source, folder)
    there = _file_here(source, folder)
    return str(target), there[0] if there else None


def entries(address: str, cache_dir: str | os.PathLike | None = None) -> list[lock.Entry]:
    """What a lock file lists for an address, of the files that are here.

    Raises:
        FileNotFoundError: none are.
    """
    source, folder = parse(address), cache_folder(cache_dir)
    floating, one, whole = None, source, False
    if isinstance(source, Hub):
        revision = source.revision or "main"
        floating = None if source.pinned else f"{source.repo}@{revision}"
        if source.file is None:
            whole, one = True, source.at(revision, "config.json")
    there = _file_here(one, folder)
    if there is None:
        raise FileNotFoundError(f"{address} is not here: keras-vit fetch {address} first.")
    path, key = there
    paths = _files_of(path.parent) if whole else [path]
    base = key.rpartition("/")[0]
    return [lock.entry(f"{base}/{p.name}", p, str(source), floating) for p in paths]


class _Repository:
    """One commit of a repository on its way into the cache."""

    def __init__(self, source: Hub, folder: Path, cap: int, progress: Progress):
        self.source, self.folder, self.progress = source, folder, progress
        self.left = cap

    def bring(self) -> Path:
        """Every file that is needed, and last the mark that they are all here."""
        config = self.file("config.json", JSON_CAP)
        if self.optional("metadata.json", JSON_CAP):
            self.file(PRESET)
            for name in PRESET_EXTRAS:
                self.optional(name)
        else:
            self.optional("preprocessor_config.json", JSON_CAP)
            if not self.optional(WEIGHTS):
                self.parts()
        (config.parent / DONE).touch()
        return config.parent

    def parts(self) -> None:
        """A checkpoint in several files."""
        index = self.optional(INDEX, JSON_CAP)
        if index is None:
            raise SourceFailed(
                f"it holds neither {WEIGHTS} nor {INDEX} nor a KerasHub preset (PyTorch pickles are "
                f"not read); name one of its files as hf://{self.source.repo}/FILE"
            )
        for name in hub.shard_names(index):
            self.file(name)

    def file(self, name: str, cap: int | None = None) -> Path:
        """One file, whose size is taken from what the repository may still have."""
        source = self.source.at(self.source.revision or "", name)
        expected = with_hub(Expected(min(cap or self.left, self.left)), hub.resolve(source))
        path = bring_pinned(source, self.folder, expected, progress=self.progress)
        self.left -= path.stat().st_size
        return path

    def optional(self, name: str, cap: int | None = None) -> Path | None:
        """One file, None when the repository has none of that name."""
        try:
            return self.file(name, cap)
        except SourceFailed as error:
            if error.status == 404:
                return None
            raise


def _repository_here(source: Hub, folder: Path) -> Path | None:
    """The folder of a repository that is whole on this machine: ours, else the hub's own cache."""
    there = hub.cached(source.at(source.revision or "main", "config.json"), folder)
    if there is None:
        return None
    found, base = there[0].parent, there[1].rpartition("/")[0]
    ours = _is_below(found, folder)
    if not ((found / DONE).is_file() if ours else _has_weights(found)):
        return None
    for path in _files_of(found):
        lock.check_seen(path, f"{base}/{path.name}", recorded=ours)
    return found


def _file_here(source: Source, folder: Path) -> tuple[Path, str] | None:
    """(path, key) of one file that is on this machine."""
    if isinstance(source, Hub):
        return hub.cached(source, folder)
    key = cache_key(source)
    return (folder / key, key) if (folder / key).is_file() else None


def _files_of(folder: Path) -> list[Path]:
    """The files of a repository's folder that loading may read."""
    return [
        path
        for path in sorted(folder.iterdir())
        if path.suffix in (".json", ".h5", ".safetensors")
        and not path.name.endswith((lock.RECORD_SUFFIX, ".part.json"))
    ]


def _has_weights(folder: Path) -> bool:
    if (folder / WEIGHTS).is_file():
        return True
    if (folder / "metadata.json").is_file():
        return (folder / PRESET).is_file()
    index = folder / INDEX
    return index.is_file() and all((folder / name).is_file() for name in hub.shard_names(index))


def _is_below(path: Path, folder: Path) -> bool:
    return path.is_relative_to(folder)
