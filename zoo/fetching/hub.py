"""Files of Hugging Face repositories: at a commit, from its cache where they are, else fetched.

`huggingface_hub` says where its cache is, which files lie there, and the user's token. Its own
download is not used: it compares neither a hash nor a size before the end, starts anew each time,
and follows a redirect to plain HTTP. A repository is asked for each file's commit, size and hash
first; then the engine of `download.py` fetches it at that commit.
"""

import contextlib
import json
import os
import warnings
from pathlib import Path
from urllib.parse import quote

import huggingface_hub
from huggingface_hub import constants

from keras_vit.zoo.fetching import lock, web
from keras_vit.zoo.fetching.sources import Hub, Web, cache_key, is_commit
from keras_vit.zoo.fetching.web import Access, SourceFailed

METADATA_SECONDS = 10.0

_warned: set[str] = set()


class Resolved:
    """A file at a commit, and what the hub says of it."""

    def __init__(self, source: Hub, size: int | None, sha256: str | None):
        self.source, self.size, self.sha256 = source, size, sha256

    @property
    def url(self) -> Web:
        return address(self.source)


def access() -> Access:
    """The user's token, for the hub only."""
    return Access(token=huggingface_hub.get_token())


def address(source: Hub) -> Web:
    """Where the hub (HF_ENDPOINT) gives a file."""
    revision = quote(source.revision or "main", safe="")
    return Web(f"{constants.ENDPOINT}/{source.repo}/resolve/{revision}/{quote(source.file or '')}")


def cached(source: Hub, folder: Path) -> tuple[Path, str] | None:
    """(file, its key) in our cache or the hub's, without network; None when it is in neither.

    A floating revision means the commit of the lock file, else the one it stood for last.
    """
    if source.file is None:
        return None
    commit = known_commit(source, folder)
    if commit:
        key = cache_key(source.at(commit))
        if (folder / key).is_file():
            return folder / key, key
    revision = commit or source.revision or "main"
    found = huggingface_hub.try_to_load_from_cache(source.repo, source.file, revision=revision)
    if isinstance(found, str):
        path = Path(found)
        commit = path.parents[source.file.count("/")].name  # snapshots/COMMIT/FILE
        if is_commit(commit):
            return path, cache_key(source.at(commit))
    return None


def known_commit(source: Hub, folder: Path) -> str | None:
    """The commit of a source as far as this machine knows it."""
    if source.pinned:
        return source.revision
    revision = source.revision or "main"
    if commit := lock.locked_commit(source.repo, revision):
        return commit
    with contextlib.suppress(OSError):
        commit = _ref(source, folder).read_text("utf-8").strip()
        return commit if is_commit(commit) else None
    return None


def resolve(source: Hub) -> Resolved:
    """Asks the hub for the commit, size and hash of a file.

    A floating revision is warned about, once for each repository; where the lock file gives its
    commit, that one is asked for.

    Raises:
        SourceFailed: the hub does not have it or cannot be reached.
    """
    floating = not source.pinned
    locked = lock.locked_commit(source.repo, source.revision or "main") if floating else None
    asked = source.at(locked) if locked else source
    home = web.origin(constants.ENDPOINT)
    # Off the hub lies the content; what is asked here stands in the hub's own headers.
    with web.request(
        "HEAD", address(asked), access(), follow=lambda here, there: web.origin(there) == home
    ) as reply:
        if reply.status not in (301, 302, 303, 307, 308):
            _check(reply, source)
        headers = reply.headers
    commit = headers.get("X-Repo-Commit") or ""
    if not is_commit(commit):
        raise SourceFailed(f"does not say its commit: {constants.ENDPOINT} is no hub")
    if asked.pinned and commit != asked.revision:
        raise SourceFailed(f"answers for the commit {commit} instead of {asked.revision}")
    if floating and not locked:
        _warn(source, commit)
    text = headers.get("X-Linked-Size") or (
        headers.get("Content-Length") if reply.status == 200 else None
    )
    etag = (headers.get("X-Linked-Etag") or headers.get("ETag") or "").removeprefix("W/").strip('"')
    is_hash = len(etag) == 64 and not set(etag) - set("0123456789abcdef")
    size = int(text) if text and text.isascii() and text.isdigit() else None
    return Resolved(source.at(commit), size, etag if is_hash else None)


def remember(source: Hub, commit: str, folder: Path) -> None:
    """Writes down what a floating revision stood for, once its file is here, for use offline."""
    if source.pinned:
        return
    with contextlib.suppress(OSError):
        ref = _ref(source, folder)
        ref.parent.mkdir(parents=True, exist_ok=True)
        part = ref.with_name(f".{ref.name}.{os.getpid()}.part")
        part.write_text(commit, "utf-8")
        os.replace(part, ref)


def shard_names(index: Path) -> list[str]:
    """File names of the parts of a sharded checkpoint.

    Args:
        index: `model.safetensors.index.json`.

    Raises:
        ValueError: it is no index, or names something that is no plain file name.
    """
    try:
        names = sorted(
            {str(name) for name in json.loads(index.read_text("utf-8"))["weight_map"].values()}
        )
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"{index} is no index of a sharded checkpoint ({error}).") from None
    for name in names:
        plain = name and not set(name) & set("/\\\0:") and not name.startswith(".")
        if not plain or not name.endswith(".safetensors"):
            raise ValueError(f"{index} names the part {name!r}, which is no safetensors file name.")
    if not 0 < len(names) <= 1000:
        raise ValueError(f"{index} names {len(names)} parts.")
    return names


def _check(reply: web.Reply, source: Hub) -> None:
    """Raises what the hub means: it says 401 for repositories that do not exist, too."""
    code = reply.headers.get("X-Error-Code", "")
    token = "HF_TOKEN names an account" if not huggingface_hub.get_token() else "your account"
    texts = {
        "RepoNotFound": f"has no repository {source.repo}, unless it is private and {token} that may read it",
        "GatedRepo": f"wants its terms accepted on its page, and {token} that did",
        "RevisionNotFound": f"has no revision {source.revision or 'main'} of {source.repo}",
        "EntryNotFound": f"has no file {source.file} in {source.repo}",
    }
    if code in texts:
        raise SourceFailed(f"the hub {texts[code]} ({reply.status})", reply.status)
    web.check_status(reply)


def _warn(source: Hub, commit: str) -> None:
    revision = source.revision or "main"
    if source.repo not in _warned:
        _warned.add(source.repo)
        warnings.warn(
            f"hf://{source.repo} at {revision} is commit {commit} today and may be another "
            f"tomorrow: name hf://{source.repo}@{commit}, or keep it with keras-vit lock.",
            stacklevel=2,
        )


def _ref(source: Hub, folder: Path) -> Path:
    return folder / "hub" / source.repo / "refs" / quote(source.revision or "main", safe="")
