"""Files of Google Cloud Storage, with the user's own credentials (extra `gs`)."""

import contextlib
import importlib
import importlib.util
from collections.abc import Iterator
from typing import Any
from urllib.parse import unquote, urlsplit

from keras_vit.zoo.fetching.sources import GOOGLE_HOST, Bucket, Web
from keras_vit.zoo.fetching.web import Access, Broken, Restart, SourceFailed, Stream, open_file

HOW = (
    "for a bucket that needs an account: pip install 'keras-vit-zoo[gs]', then "
    "gcloud auth application-default login"
)


def of_web(source: Web) -> Bucket | None:
    """The bucket behind an address of the storage's public host, None for other hosts."""
    parts = urlsplit(source.url)
    bucket, _, file = unquote(parts.path).lstrip("/").partition("/")
    if parts.hostname != GOOGLE_HOST or parts.query or not file:
        return None
    return Bucket(bucket, file)


def has_client() -> bool:
    """Whether the extra is installed."""
    return importlib.util.find_spec("gcsfs") is not None


@contextlib.contextmanager
def open_public(source: Web, offset: int, validator: str | None) -> Iterator[Stream]:
    """A file of the storage without an account, and where that is refused with the user's.

    Raises:
        SourceFailed, Broken, TryLater: the storage does not give the file.
        Restart: it has another version than the validator's.
    """
    behind = of_web(source)
    with contextlib.ExitStack() as stack:
        try:
            stream = stack.enter_context(open_file(source, offset, validator, Access()))
        except SourceFailed as error:
            if error.status not in (401, 403) or behind is None:
                raise
            if not has_client():
                raise SourceFailed(f"{error}; {HOW}", error.status) from None
            stream = stack.enter_context(_open_own(behind, offset, validator))
        yield stream


@contextlib.contextmanager
def open_bucket(source: Bucket, offset: int, validator: str | None) -> Iterator[Stream]:
    """A file with the user's credentials; without the extra, as the public sees it.

    Raises:
        SourceFailed, Broken, TryLater: the storage does not give the file.
        Restart: it has another version than the validator's.
    """
    opened = (
        _open_own(source, offset, validator)
        if has_client()
        else open_public(source.anonymous, offset, validator)
    )
    with opened as stream:
        yield stream


@contextlib.contextmanager
def _open_own(source: Bucket, offset: int, validator: str | None) -> Iterator[Stream]:
    with _translated():
        system = _file_system()
        # The listing that the client keeps may be older than the file.
        system.invalidate_cache()
        about = system.info(f"{source.bucket}/{source.file}")
        size = int(about["size"])
        version = str(about.get("generation") or about.get("etag") or about.get("md5Hash") or "")
    if offset and (version != validator or offset > size):
        raise Restart
    with _translated():
        file = system.open(f"{source.bucket}/{source.file}", "rb", cache_type="readahead")
    try:
        with _translated():
            file.seek(offset)

        def read(count: int) -> bytes:
            with _translated():
                return file.read(count)

        yield Stream(offset, size, version or None, read)
    finally:
        file.close()


def _file_system() -> Any:
    """gcsfs's file system; the credentials are whatever Google's libraries find for this user."""
    return importlib.import_module("gcsfs").GCSFileSystem()


@contextlib.contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except FileNotFoundError:
        raise SourceFailed("does not have it", 404) from None
    except PermissionError:
        raise SourceFailed(f"refuses to give it to your account; {HOW}", 403) from None
    except SourceFailed:
        raise
    except OSError as error:
        raise Broken(f"failed ({error.strerror or _short(error)})") from None
    except Exception as error:
        # google-auth and gcsfs raise classes of their own, which are not importable without them.
        raise SourceFailed(f"failed ({type(error).__name__}: {_short(error)})") from None


def _short(error: BaseException) -> str:
    return " ".join(str(error).split())[:200]
