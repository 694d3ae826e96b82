"""What was fetched: a record beside each file, and a lock file that users commit.

Beside a fetched `NAME` lies `NAME.fetched.json`: source, size and SHA-256 as they were seen first.
Where no hash is published, this one must stay; deleting the record accepts another file.

A lock file (`keras-vit lock`) lists files of the cache with their hashes, and the commits that
branches of hub repositories stood for. It is the one that KERAS_VIT_LOCK names (empty for none),
else `keras-vit.lock` in the working directory. Files that it lists must have the hash it gives, and
its commits are used; what it does not list is loaded as without it.
"""

import contextlib
import dataclasses
import functools
import hashlib
import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from urllib.parse import unquote

LOCK_VARIABLE = "KERAS_VIT_LOCK"
LOCK_NAME = "keras-vit.lock"
VERSION = 1
RECORD_SUFFIX = ".fetched.json"


@dataclasses.dataclass(frozen=True)
class Record:
    """What was seen of one file.

    Attributes:
        source: address, without secrets.
        sha256, size: of the file.
        mtime_ns: of the file when the hash was computed; 0 when it was computed before.
    """

    source: str
    sha256: str
    size: int
    mtime_ns: int = 0


def record_path(path: Path) -> Path:
    """Where the record of a file lies."""
    return path.with_name(path.name + RECORD_SUFFIX)


def read_record(path: Path) -> Record | None:
    """The record of a file; None without one, or when it cannot be read."""
    try:
        values = json.loads(record_path(path).read_text("utf-8"))
        return Record(**{f.name: values[f.name] for f in dataclasses.fields(Record)})
    except (OSError, ValueError, LookupError, TypeError):
        return None


def write_record(path: Path, source: str, digest: str) -> None:
    """Records a file that is in its place; where nothing can be written, nothing is."""
    with contextlib.suppress(OSError):
        stat = path.stat()
        record = Record(source, digest, stat.st_size, stat.st_mtime_ns)
        write_json(record_path(path), dataclasses.asdict(record))


def write_json(path: Path, values: Any) -> None:
    """Writes a JSON file at once or not at all."""
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        part.write_text(json.dumps(values, indent=1, sort_keys=True) + "\n", "utf-8")
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


def sha256(path: Path) -> str:
    """Hash of a file, read in pieces."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def digest_of(path: Path) -> str:
    """Hash of a file: the recorded one while size and time are as recorded, else computed."""
    record, stat = read_record(path), path.stat()
    if record and (record.size, record.mtime_ns) == (stat.st_size, stat.st_mtime_ns):
        return record.sha256
    return sha256(path)


def check_seen(path: Path, key: str, *, recorded: bool = True) -> Path:
    """The path, if the file is the one that was seen first and that the lock file lists.

    Args:
        path: the file.
        key: its path below the cache, as a lock file lists it.
        recorded: whether a record beside it counts.

    Raises:
        ValueError: another hash; the message names both.
    """
    record = read_record(path) if recorded else None
    locked = locked_digest(key)
    if record is None and locked is None:
        return path
    problem = _mismatch(digest_of(path) if recorded else sha256(path), record, locked)
    if problem:
        raise ValueError(f"{path} {problem}")
    return path


def refused(path: Path, key: str, digest: str) -> str | None:
    """Why a file with this hash must not come to this path, or None."""
    return _mismatch(digest, read_record(path), locked_digest(key), path)


def _mismatch(
    digest: str, record: Record | None, locked: str | None, path: Path | None = None
) -> str | None:
    if locked is not None and digest != locked:
        return (
            f"has the SHA-256 {digest}, but {lock_path()} lists {locked}: fetch the file it was "
            f"locked with, or write the lock file anew with keras-vit lock."
        )
    if record is not None and digest != record.sha256:
        where = f" ({record_path(path)})" if path else ""
        return (
            f"has the SHA-256 {digest}, but {record.sha256} was seen at its first download from "
            f"{record.source}{where}: it was changed. Fetch it again, or delete its "
            f"{RECORD_SUFFIX} to accept this one."
        )
    return None


def lock_path() -> Path | None:
    """The lock file in force, None without one.

    Raises:
        FileNotFoundError: KERAS_VIT_LOCK names one that does not exist.
    """
    named = os.environ.get(LOCK_VARIABLE)
    if named is None:
        here = Path(LOCK_NAME)
        return here.absolute() if here.is_file() else None
    if not named:
        return None
    path = Path(named).expanduser()
    if not path.is_file():
        raise FileNotFoundError(
            f"{LOCK_VARIABLE} names {named}, which does not exist: write it with keras-vit lock "
            f"--output {named}, or unset the variable."
        )
    return path


def check_lock_file() -> None:
    """Refuses a lock file in force that cannot be read, before anything is fetched.

    Raises:
        ValueError, FileNotFoundError: naming it.
    """
    _in_force()


def locked_digest(key: str) -> str | None:
    """The hash that the lock file in force lists for a path below the cache."""
    return _in_force().files.get(key)


def locked_commit(repo: str, revision: str) -> str | None:
    """The commit that the lock file in force gives for a floating revision."""
    return _in_force().commits.get(f"{repo}@{revision}")


@dataclasses.dataclass(frozen=True)
class Locked:
    """Content of a lock file: hashes by path below the cache, commits by `org/repo@revision`."""

    files: dict[str, str] = dataclasses.field(default_factory=dict)
    commits: dict[str, str] = dataclasses.field(default_factory=dict)


def _in_force() -> Locked:
    path = lock_path()
    if path is None:
        return Locked()
    stat = path.stat()
    return _read_lock(path, stat.st_mtime_ns, stat.st_size)


@functools.lru_cache(maxsize=4)
def _read_lock(path: Path, mtime_ns: int, size: int) -> Locked:
    """A lock file, read anew when its time or size changed."""
    try:
        values = json.loads(path.read_text("utf-8"))
        if values["version"] != VERSION:
            raise ValueError(f"version {values['version']!r} instead of {VERSION}")
        files = {str(key): str(entry["sha256"]) for key, entry in values["files"].items()}
        commits = {str(k): str(v) for k, v in values["commits"].items()}
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise ValueError(
            f"{path} is no lock file ({error}): write it anew with keras-vit lock."
        ) from None
    return Locked(files, commits)


@dataclasses.dataclass(frozen=True)
class Entry:
    """One file for a lock file.

    Attributes:
        key: its path below the cache.
        path: where it lies.
        source: address it came from, empty when not known.
        floating: `org/repo@revision` that was asked for, where that is no commit.
    """

    key: str
    path: Path
    source: str = ""
    floating: str | None = None


def entry(key: str, path: Path, source: str, floating: str | None) -> Entry:
    """A file for a lock file; where it was fetched from is what its record says."""
    record = read_record(path)
    return Entry(key, path, record.source if record else source, floating)


def entries_of(folder: Path) -> list[Entry]:
    """Every fetched file of a cache."""
    named = {}  # hub/org/repo/commit -> org/repo@revision
    for ref in folder.glob("hub/*/*/refs/*"):
        owner, repo = ref.parts[-4:-2]
        commit = ref.read_text("utf-8").strip()
        named[f"hub/{owner}/{repo}/{commit}"] = f"{owner}/{repo}@{unquote(ref.name)}"
    found = []
    for beside in sorted(folder.rglob("*" + RECORD_SUFFIX)):
        path = beside.with_name(beside.name.removesuffix(RECORD_SUFFIX))
        record = read_record(path)
        if record is None or not path.is_file():
            continue
        key = path.relative_to(folder).as_posix()
        found.append(Entry(key, path, record.source, named.get("/".join(key.split("/")[:4]))))
    return found


def lock_values(entries: Iterable[Entry]) -> dict[str, Any]:
    """The content of a lock file that lists these files as they are now."""
    files, commits = {}, {}
    for entry in entries:
        files[entry.key] = {
            "sha256": digest_of(entry.path),
            "size": entry.path.stat().st_size,
            "source": entry.source,
        }
        if entry.floating:
            commits[entry.floating] = entry.key.split("/")[3]
    return {"version": VERSION, "files": files, "commits": commits}
