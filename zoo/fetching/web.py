"""Requests over HTTPS that trust the server with nothing: redirects, lengths and waits are checked.

- HTTPS never falls to HTTP. Plain HTTP is for this machine, and for a host that the user named
  in KERAS_VIT_MIRROR with `http://`.
- Credentials (of the address itself, or a token) go to the host they are for and to no other.
- Connecting, silence and a trickle have time limits; HTTP(S)_PROXY and NO_PROXY are respected.
"""

import contextlib
import dataclasses
import http.client
import time
from collections.abc import Callable, Iterator, Mapping
from email.message import Message
from email.utils import parsedate_to_datetime
from urllib.parse import SplitResult, urljoin, urlsplit

from keras_vit.zoo.fetching.connection import (
    Broken,
    SourceFailed,
    TryLater,
    basic,
    connection_to,
    is_loopback,
    translated,
)
from keras_vit.zoo.fetching.sources import Web, parse

STALL_SECONDS = 30.0
MIN_BYTES_PER_STALL = 4096  # a server that sends less than this in STALL_SECONDS has stalled
MAX_REDIRECTS = 8
RETRY_AFTER_DEFAULT = 5.0  # seconds, where a busy server names none
AGENT = "keras-vit"


class Restart(Exception):
    """What is here no longer fits what the server has: begin again at the first byte."""


@dataclasses.dataclass(frozen=True)
class Stream:
    """A file on its way.

    Attributes:
        start: position of the first byte that `read` gives.
        total: bytes of the whole file as the server says, None when it does not.
        validator: an ETag or a date by which the server knows this version of the file again.
        read: the next bytes, at most that many; b"" at the end.
    """

    start: int
    total: int | None
    validator: str | None
    read: Callable[[int], bytes]


@dataclasses.dataclass(frozen=True)
class Access:
    """What a request may use.

    Attributes:
        token: sent as a bearer token to the host of the first address only.
        plain_host: host that may be asked over http:// besides this machine.
    """

    token: str | None = None
    plain_host: str | None = None


@dataclasses.dataclass
class Reply:
    """A response, after the redirects that were followed."""

    status: int
    headers: Message
    response: http.client.HTTPResponse


@contextlib.contextmanager
def open_file(source: Web, offset: int, validator: str | None, access: Access) -> Iterator[Stream]:
    """A file from an offset on.

    Args:
        source: its address.
        offset: bytes that are here already.
        validator: of the version they belong to; None to trust that it has not changed.
        access: credentials and plain hosts.

    Raises:
        SourceFailed, Broken, TryLater: the server does not give the file.
        Restart: it has another version, or no such offset.
    """
    headers = {"Range": f"bytes={offset}-"} if offset else {}
    if offset and validator:
        headers["If-Range"] = validator
    with request("GET", source, access, headers) as reply:
        if reply.status == 416:
            raise Restart
        check_status(reply)
        if reply.headers.get("Content-Encoding", "identity").lower() not in ("identity", ""):
            raise SourceFailed("sends the file compressed, although that was not asked for")
        length = _number(reply.headers.get("Content-Length"), "Content-Length")
        start, total = 0, length
        if reply.status == 206:
            start, total = _content_range(reply.headers.get("Content-Range", ""))
            if start != offset:
                raise SourceFailed(f"sends bytes from {start:,} on instead of {offset:,}")
        read = _reader(reply.response, length)
        yield Stream(start, total, _validator(reply.headers), read)


@contextlib.contextmanager
def request(
    method: str,
    source: Web,
    access: Access = Access(),
    headers: Mapping[str, str] | None = None,
    follow: Callable[[str, str], bool] = lambda here, there: True,
) -> Iterator[Reply]:
    """One request, with its redirects followed as the rules above allow.

    Args:
        method: `GET` or `HEAD`.
        source: the address.
        access: credentials and plain hosts.
        headers: more of them.
        follow: (address, next address) -> whether to go there; otherwise the redirect is the reply.

    Raises:
        SourceFailed: no connection, or a redirect that is not followed.
    """
    url = source.url
    credentials = _credentials(urlsplit(url), access)
    home = origin(url)
    for _ in range(MAX_REDIRECTS + 1):
        parts = urlsplit(url)
        check_scheme(parts, access)
        sent = {
            "User-Agent": AGENT,
            "Accept": "*/*",
            "Accept-Encoding": "identity",
            "Connection": "close",
            **(headers or {}),
        }
        if credentials and origin(url) == home:
            sent["Authorization"] = credentials
        with _sent(method, parts, sent) as response:
            target = response.headers.get("Location")
            if response.status not in (301, 302, 303, 307, 308) or not target:
                yield Reply(response.status, response.headers, response)
                return
            there = _redirect(url, target)
            check_scheme(urlsplit(there), access, came_from=url)
            if not follow(url, there):
                yield Reply(response.status, response.headers, response)
                return
        url = there
    raise SourceFailed(f"redirects more than {MAX_REDIRECTS} times")


def check_status(reply: Reply) -> None:
    """Raises what a status other than 200 and 206 means, in words."""
    status = reply.status
    if status in (200, 206):
        return
    if status in (429, 503):
        seconds = _retry_after(reply.headers.get("Retry-After"))
        raise TryLater(f"is busy and asks to come back later ({status})", seconds, status)
    texts = {
        401: "wants an account (401)",
        403: "refuses to give it (403)",
        404: "does not have it (404)",
        407: "is behind a proxy that wants a password (407)",
        410: "has it no longer (410)",
    }
    about = "failed" if status >= 500 else "did not answer with the file"
    raise SourceFailed(texts.get(status, f"{about} ({status})"), status)


def origin(url: str) -> tuple[str, str, int]:
    """Scheme, host and port: what credentials belong to."""
    parts = urlsplit(url)
    port = parts.port or {"http": 80, "https": 443}.get(parts.scheme, 0)
    return parts.scheme, (parts.hostname or "").lower(), port


def check_scheme(parts: SplitResult, access: Access, came_from: str | None = None) -> None:
    """Refuses everything but HTTPS, and HTTP where it is allowed.

    Raises:
        SourceFailed: naming where it would have gone.
    """
    host = parts.hostname or ""
    if parts.scheme == "https" and host:
        return
    verb = "redirects to" if came_from else "is"
    if parts.scheme != "http" or not host:
        raise SourceFailed(f"{verb} {parts.scheme or 'no'}://, which is not followed")
    downgrade = came_from is not None and urlsplit(came_from).scheme == "https"
    if downgrade or not (is_loopback(host) or host == access.plain_host):
        raise SourceFailed(f"{verb} http://{host}, which anyone on the way could change; use https")


def _redirect(url: str, target: str) -> str:
    try:
        source = parse(urljoin(url, target))
    except ValueError:
        source = None
    if not isinstance(source, Web):
        raise SourceFailed(f"redirects to {target[:80]!r}, which is no web address")
    return source.url


def _credentials(parts: SplitResult, access: Access) -> str | None:
    if parts.username is not None:
        return basic(parts)
    return f"Bearer {access.token}" if access.token else None


@contextlib.contextmanager
def _sent(
    method: str, parts: SplitResult, headers: dict[str, str]
) -> Iterator[http.client.HTTPResponse]:
    """The response to one request over a connection of its own."""
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    connection, target, headers = connection_to(parts, target, headers)
    try:
        with translated(parts.hostname or "", SourceFailed):
            connection.connect()
            connection.sock.settimeout(STALL_SECONDS)
            connection.request(method, target, headers=headers)
            response = connection.getresponse()
        with response:
            yield response
    finally:
        connection.close()


def _reader(response: http.client.HTTPResponse, length: int | None) -> Callable[[int], bytes]:
    """Reads what arrives, at most `length` bytes, and gives up on silence and on a trickle."""
    left, since, arrived = length, time.monotonic(), 0

    def read(size: int) -> bytes:
        nonlocal left, since, arrived
        if left == 0:
            return b""
        with translated("the server"):
            data = response.read1(size if left is None else min(size, left))
        if left is not None:
            if not data:
                raise Broken(f"broke off with {left:,} bytes missing")
            left -= len(data)
        arrived += len(data)
        now = time.monotonic()
        if now - since > STALL_SECONDS:
            if arrived < MIN_BYTES_PER_STALL:
                raise Broken(f"sent only {arrived:,} bytes in {now - since:.0f} seconds")
            since, arrived = now, 0
        return data

    return read


def _content_range(text: str) -> tuple[int, int | None]:
    unit, _, rest = text.partition(" ")
    span, _, whole = rest.partition("/")
    start, dash, _ = span.partition("-")
    if unit.lower() != "bytes" or not dash or not start.strip().isdigit():
        raise SourceFailed(f"sends a part without saying which ({text[:40]!r})")
    return int(start), None if whole.strip() == "*" else _number(whole, "Content-Range")


def _number(text: str | None, header: str) -> int | None:
    if text is None:
        return None
    if not text.strip().isascii() or not text.strip().isdigit() or len(text) > 20:
        raise SourceFailed(f"sends the header {header}: {text[:40]!r}, which is no size")
    return int(text)


def _validator(headers: Message) -> str | None:
    etag = headers.get("ETag")
    # A weak one (W/) promises equal meaning, not equal bytes.
    if etag and etag.startswith('"'):
        return etag
    return headers.get("Last-Modified")


def _retry_after(text: str | None) -> float:
    if not text:
        return RETRY_AFTER_DEFAULT
    if text.strip().isdigit():
        return float(text)
    try:
        return max(0.0, parsedate_to_datetime(text).timestamp() - time.time())
    except (ValueError, TypeError, OverflowError):
        return RETRY_AFTER_DEFAULT
