"""Addresses of weights: what they mean, and where in the cache their files lie.

    hf://ORG/REPO[@REVISION][/FILE]   a file of a Hugging Face repository, or the repository
    https://HOST/PATH                 any server (http:// only on this machine, see `web.py`)
    gs://BUCKET/PATH                  Google Cloud Storage, with the user's credentials
    PATH, file://PATH                 a file of this machine

A revision that holds a slash is written with `%2F`. Parsing touches neither disk nor network.
"""

import dataclasses
import hashlib
import re
from pathlib import Path, PurePosixPath
from urllib.parse import quote, unquote, urlsplit, urlunsplit

NETWORK = ("hf://", "http://", "https://", "gs://")
# Containers that can be loaded from an address of their own.
SUFFIXES = (".npz", ".safetensors", ".h5", ".keras")
PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
GOOGLE_HOST = "storage.googleapis.com"

_COMMIT = re.compile(r"[0-9a-f]{40}")
_HUB_NAME = re.compile(r"[A-Za-z0-9_][\w.-]*", re.ASCII)
_REVISION = re.compile(r"\w[\w.+/-]*", re.ASCII)
_BUCKET = re.compile(r"[a-z0-9][a-z0-9._-]+")


@dataclasses.dataclass(frozen=True)
class Hub:
    """`hf://ORG/REPO[@REVISION][/FILE]`; without a file it is the whole repository."""

    repo: str
    revision: str | None = None
    file: str | None = None

    @property
    def pinned(self) -> bool:
        """Whether the revision is a commit, which always holds the same files."""
        return self.revision is not None and is_commit(self.revision)

    def at(self, revision: str, file: str | None = None) -> "Hub":
        """The same repository at another revision, and maybe another file of it."""
        return dataclasses.replace(self, revision=revision, file=file or self.file)

    def __str__(self) -> str:
        revision = f"@{quote(self.revision, safe='')}" if self.revision else ""
        return f"hf://{self.repo}{revision}" + (f"/{self.file}" if self.file else "")


@dataclasses.dataclass(frozen=True)
class Web:
    """`https://HOST/PATH`. As text it shows neither password nor query, which may hold secrets."""

    url: str

    @property
    def file(self) -> str:
        return PurePosixPath(unquote(urlsplit(self.url).path)).name

    def __str__(self) -> str:
        parts = urlsplit(self.url)
        host = parts.netloc.rpartition("@")[2]
        return urlunsplit((parts.scheme, host, parts.path, "...=" if parts.query else "", ""))


@dataclasses.dataclass(frozen=True)
class Bucket:
    """`gs://BUCKET/PATH`."""

    bucket: str
    file: str

    @property
    def anonymous(self) -> Web:
        """Where the same file is read without an account, if its owner allows that."""
        return Web(f"https://{GOOGLE_HOST}/{self.bucket}/{quote(self.file)}")

    def __str__(self) -> str:
        return f"gs://{self.bucket}/{self.file}"


@dataclasses.dataclass(frozen=True)
class Local:
    """A file of this machine."""

    path: Path

    @property
    def file(self) -> str:
        return self.path.name

    def __str__(self) -> str:
        return str(self.path)


Source = Hub | Web | Bucket | Local


def parse(address: str) -> Source:
    """What an address means.

    Raises:
        ValueError: it is no address; the message says how one is written.
    """
    scheme, separator, rest = address.partition("://")
    if not separator:
        return Local(Path(address).expanduser())
    if scheme == "hf":
        return _hub(address, rest)
    if scheme in ("https", "http"):
        return Web(_web(address))
    if scheme == "gs":
        bucket, _, path = rest.partition("/")
        if not _BUCKET.fullmatch(bucket) or not _is_relative(path):
            raise ValueError(f"{address!r} is no bucket address: write gs://BUCKET/PATH.")
        return Bucket(bucket, path)
    if scheme == "file":
        return Local(Path(unquote(rest)))
    raise ValueError(f"{address!r} must begin with hf://, https://, gs:// or be a path.")


def is_commit(revision: str) -> bool:
    """Whether a revision is a full commit, 40 hexadecimal digits."""
    return _COMMIT.fullmatch(revision) is not None


def cache_key(source: Source) -> str:
    """Path of a source's file below the cache; a hub source must be pinned.

    Raises:
        ValueError: the source is a whole repository or a floating revision.
    """
    if isinstance(source, Hub):
        if not source.pinned or source.file is None:
            raise ValueError(f"{source} names no single file at a commit.")
        return f"hub/{source.repo}/{source.revision}/{source.file}"
    if isinstance(source, Bucket):
        return f"gs/{source.bucket}/{source.file}"
    if isinstance(source, Web):
        host = re.sub(r"[^\w.-]", "_", urlsplit(source.url).hostname or "")
        # The same file name may be published at several addresses of one host.
        digest = hashlib.sha256(source.url.encode()).hexdigest()[:16]
        return f"web/{host}/{digest}/{source.file}"
    return str(source.path)


def check_container(source: Source) -> None:
    """Refuses an address whose file no format reads, before anything is fetched.

    Raises:
        ValueError: another suffix, with what is read instead.
    """
    name = source.file or ""
    suffix = PurePosixPath(name).suffix.lower()
    if suffix in PICKLES:
        raise ValueError(
            f"{source} is a PyTorch pickle, which can run code when it is opened and is not read: "
            f"look for a .safetensors or .npz file beside it."
        )
    if suffix not in SUFFIXES or not _is_name(name.rpartition("/")[2]):
        raise ValueError(f"{source} must name a file that ends in {', '.join(SUFFIXES)}.")


def _hub(address: str, rest: str) -> Hub:
    parts = rest.strip("/").split("/", 2)
    wrong = ValueError(f"{address!r} is no hub address: write hf://ORG/REPO[@REVISION][/FILE].")
    if len(parts) < 2:
        raise wrong
    name, at, revision = parts[1].partition("@")
    revision = unquote(revision)
    names = (parts[0], name)
    if not all(_HUB_NAME.fullmatch(n) and ".." not in n for n in names):
        raise wrong
    if at and (not _REVISION.fullmatch(revision) or ".." in revision):
        raise wrong
    file = parts[2] if len(parts) > 2 else None
    if file is not None and not _is_relative(file):
        raise wrong
    return Hub("/".join(names), revision or None, file)


def _web(address: str) -> str:
    """The address with everything quoted that must be."""
    try:
        parts = urlsplit(address)
        _ = parts.port
    except ValueError:
        parts = None
    if parts is None or not parts.hostname or re.search(r"[\s\x00-\x1f\\]", parts.netloc):
        raise ValueError(f"{address!r} is no web address: write https://HOST/PATH.")
    path = quote(parts.path or "/", safe="/%:@!$&'()*+,;=~-._")
    query = quote(parts.query, safe="/%:@!$&'()*+,;=~-._?")
    return urlunsplit((parts.scheme, parts.netloc, path, query, ""))


def _is_relative(path: str) -> bool:
    """Whether a path of an address stays below where it is joined to."""
    return all(_is_name(part) for part in path.split("/"))


def _is_name(name: str) -> bool:
    return bool(name) and name not in (".", "..") and not re.search(r"[\\/\x00-\x1f\x7f]", name)
