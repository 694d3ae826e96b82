"""Connections to hosts, directly or through the proxy that the environment names."""

import base64
import contextlib
import http.client
import ipaddress
import ssl
import urllib.request
from collections.abc import Iterator
from typing import Any
from urllib.parse import SplitResult, unquote, urlsplit

CONNECT_SECONDS = 20.0


class SourceFailed(Exception):
    """A source cannot give the file; the text says why, without the address, as part of a sentence."""

    def __init__(self, text: str, status: int | None = None):
        super().__init__(text)
        self.status = status


class Broken(SourceFailed):
    """The connection failed in the middle: the same source may go on from there."""


class TryLater(SourceFailed):
    """The server asks to come back after some seconds."""

    def __init__(self, text: str, seconds: float, status: int):
        super().__init__(text, status)
        self.seconds = seconds


def is_loopback(host: str) -> bool:
    """Whether a host is this machine, by name or address."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def basic(parts: SplitResult) -> str:
    """The credentials of an address as a header."""
    pair = f"{unquote(parts.username or '')}:{unquote(parts.password or '')}"
    return "Basic " + base64.b64encode(pair.encode()).decode()


def connection_to(
    parts: SplitResult, target: str, headers: dict[str, str]
) -> tuple[Any, str, dict]:
    """A connection to a host, or to the proxy that the environment names for it."""
    host = parts.hostname or ""
    netloc = parts.netloc.rpartition("@")[2]
    proxy = None
    if not is_loopback(host) and not urllib.request.proxy_bypass(host):
        proxy = urllib.request.getproxies().get(parts.scheme)
    context = ssl.create_default_context() if parts.scheme == "https" else None
    if proxy is None:
        if context is not None:
            made = http.client.HTTPSConnection(
                host, parts.port, timeout=CONNECT_SECONDS, context=context
            )
            return made, target, headers
        return (
            http.client.HTTPConnection(host, parts.port, timeout=CONNECT_SECONDS),
            target,
            headers,
        )
    about = urlsplit(proxy if "://" in proxy else f"http://{proxy}")
    if about.scheme != "http" or not about.hostname:
        raise SourceFailed(f"is behind the proxy {about.scheme}://, which is not supported")
    # A proxy is named by the user; what it is told about itself stays with it.
    own = {}
    if about.username is not None:
        own["Proxy-Authorization"] = basic(about)
    port = about.port or 80
    if context is not None:
        made = http.client.HTTPSConnection(
            about.hostname, port, timeout=CONNECT_SECONDS, context=context
        )
        made.set_tunnel(host, parts.port or 443, own)
        return made, target, headers
    made = http.client.HTTPConnection(about.hostname, port, timeout=CONNECT_SECONDS)
    return made, f"http://{netloc}{target}", {**headers, **own}


@contextlib.contextmanager
def translated(host: str, kind: type[SourceFailed] = Broken) -> Iterator[None]:
    """Turns what a connection can raise into the end of a sentence, of the given kind."""
    try:
        yield
    except ssl.SSLCertVerificationError as error:
        raise SourceFailed(
            f"has a certificate that is not trusted ({error.verify_message})"
        ) from None
    except TimeoutError:
        raise kind(f"{host} does not answer in time") from None
    except http.client.IncompleteRead:
        raise kind("broke off in the middle") from None
    except ConnectionResetError:
        raise kind(f"{host} closed the connection") from None
    except http.client.HTTPException as error:
        raise kind(f"{host} does not speak HTTP ({type(error).__name__})") from None
    except OSError as error:
        raise kind(f"{host} cannot be reached ({error.strerror or error})") from None
