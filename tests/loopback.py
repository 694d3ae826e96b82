"""A web server on this machine that misbehaves as told, for the tests of downloads.

`server.put("/path", body, ...)` sets what a path answers.
Every request is kept in `server.requests`.
"""

import contextlib
import dataclasses
import re
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple


@dataclasses.dataclass
class Page:
    """What a path answers.

    Attributes:
        body: the file.
        status: other than 200 and 206 the body is sent as it is.
        headers: more of them.
        etag: None for no validator.
        length: what Content-Length says, None for the truth, "none" for no such header.
        cut: the connection is closed after so many bytes of this answer.
        stall: nothing more is sent after so many bytes, until the client goes.
        drip: seconds between two bytes.
        delay: seconds before the answer.
        gate: nothing is answered before this is set.
        endless: the body is sent again and again, without a length.
        ranges: whether parts are given.
        forced_range: parts are given whatever If-Range says.
    """

    body: bytes = b""
    status: int = 200
    headers: dict = dataclasses.field(default_factory=dict)
    etag: str | None = '"v1"'
    length: int | str | None = None
    cut: int | None = None
    stall: int | None = None
    drip: float = 0.0
    delay: float = 0.0
    gate: threading.Event | None = None
    endless: bool = False
    ranges: bool = True
    forced_range: bool = False


class Seen(NamedTuple):
    method: str
    path: str
    headers: dict


class Server:
    """The running server; `sent` counts the bytes of bodies."""

    def __init__(self):
        self.pages: dict[str, list[Page]] = {}
        self.requests: list[Seen] = []
        self.sent = 0
        self.closing = threading.Event()
        handler = type("Handler", (_Handler,), {"owner": self})
        self.http = _Quiet(("127.0.0.1", 0), handler)
        self.port = self.http.server_address[1]
        self.thread = threading.Thread(target=self.http.serve_forever, args=(0.02,), daemon=True)
        self.thread.start()

    def put(self, path: str, body: bytes = b"", *then: dict, **about) -> str:
        """Sets what a path answers, first and (as changes of the first answer) then; its address."""
        first = Page(body, **about)
        self.pages[path] = [first, *(dataclasses.replace(first, **changes) for changes in then)]
        return self.url(path)

    def url(self, path: str, host: str = "127.0.0.1") -> str:
        return f"http://{host}:{self.port}{path}"

    def gets(self, path: str | None = None) -> list[Seen]:
        return [r for r in self.requests if r.method == "GET" and path in (None, r.path)]

    def close(self) -> None:
        self.closing.set()
        self.http.shutdown()
        self.http.server_close()
        self.thread.join()

    def take(self, path: str) -> Page:
        pages = self.pages.get(path) or [Page(b"no such file", 404)]
        return pages.pop(0) if len(pages) > 1 else pages[0]


class _Quiet(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def handle_error(self, request, client_address):
        """Clients that hang up are what is tested."""


class _Handler(BaseHTTPRequestHandler):
    owner: Server
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        self.close_connection = True
        self.owner.requests.append(Seen(self.command, self.path, dict(self.headers)))
        page = self.owner.take(self.path)
        if page.delay:
            time.sleep(page.delay)
        if page.gate:
            page.gate.wait(60)
        start = self._start(page)
        body = page.body[start:]
        self.send_response(206 if start else page.status)
        for name, value in page.headers.items():
            self.send_header(name, value)
        if page.etag and "ETag" not in page.headers:
            self.send_header("ETag", page.etag)
        if start:
            whole = len(page.body)
            self.send_header("Content-Range", f"bytes {start}-{whole - 1}/{whole}")
        length = len(body) if page.length is None else page.length
        if length != "none" and not page.endless:
            self.send_header("Content-Length", str(length))
        self.send_header("Connection", "close")
        self.end_headers()
        if self.command != "HEAD":
            with contextlib.suppress(OSError):
                self._send(page, body)

    do_HEAD = do_GET

    def do_CONNECT(self):
        self.owner.requests.append(Seen(self.command, self.path, dict(self.headers)))
        self.send_response(403)
        self.end_headers()
        self.close_connection = True

    def _start(self, page: Page) -> int:
        """Where the answer begins."""
        wanted = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
        if not wanted or not page.ranges or page.status != 200:
            return 0
        if not page.forced_range and self.headers.get("If-Range", page.etag) != page.etag:
            return 0
        return int(wanted[1])

    def _send(self, page: Page, body: bytes) -> None:
        while page.endless and not self.owner.closing.is_set():
            self._write(body)
        if page.cut is not None:
            body = body[: page.cut]
        if page.drip:
            for i in range(len(body)):
                self._write(body[i : i + 1])
                if self.owner.closing.wait(page.drip):
                    return
        if page.stall is not None:
            self._write(body[: page.stall])
            self.owner.closing.wait(20)
            return
        self._write(body)

    def _write(self, data: bytes) -> None:
        self.wfile.write(data)
        self.wfile.flush()
        self.owner.sent += len(data)

    def log_message(self, format, *args):
        """Nothing on stderr."""
