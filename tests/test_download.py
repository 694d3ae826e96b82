"""Whatever a server does, a file is either the right one or not there."""

import dataclasses
import hashlib
import io
import json
import shutil
import socket
import ssl
import struct
import subprocess
import time
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
import pytest

from keras_vit.card import Card
from keras_vit.zoo.fetch import cap_of, fetch, find
from keras_vit.zoo.fetching import download, lock, web
from keras_vit.zoo.fetching.addresses import fetch_url

FILE = "bucket/folder/w.npz"


def npz(seed: int, count: int = 20_000) -> bytes:
    """An npz of numbers that do not compress; 8 bytes each."""
    buffer = io.BytesIO()
    np.savez(buffer, a=np.random.default_rng(seed).normal(size=count))
    return buffer.getvalue()


DATA, OTHER = npz(0), npz(1)  # of the same size
SHA, OTHER_SHA = (hashlib.sha256(d).hexdigest() for d in (DATA, OTHER))
HALF = len(DATA) // 2


def card_of(*sources: str, **fields) -> Card:
    fields = {"file": FILE, "size": len(DATA), "sha256": SHA, **fields}
    return Card("ViT-Ti/16", "test", sources=sources, **fields)


def left(tmp_path: Path) -> list[str]:
    """Names of all files in the cache."""
    return sorted(p.name for p in (tmp_path / "cache").rglob("*") if p.is_file())


def fails(url: str, **options) -> str:
    """The message of a download that must fail."""
    with pytest.raises(OSError) as caught:
        fetch_url(url, progress=False, **options)
    message = str(caught.value)
    assert "\n" not in message and message.endswith(".")
    return message


def test_a_file_comes_once_under_its_published_path(server, tmp_path):
    card = card_of(server.put("/w.npz", DATA))
    path = fetch(card)
    assert path == tmp_path / "cache" / FILE and path.read_bytes() == DATA
    assert fetch(card) == find(card) == path
    assert len(server.requests) == 1
    assert left(tmp_path) == ["w.npz", "w.npz.fetched.json"]
    record = json.loads((path.parent / "w.npz.fetched.json").read_text())
    assert (record["sha256"], record["size"]) == (SHA, len(DATA))


def test_progress_counts_up_to_the_size(server):
    told = []
    fetch(card_of(server.put("/w.npz", DATA)), progress=lambda *about: told.append(about))
    assert told[-1] == ("w.npz", len(DATA), len(DATA))
    assert [t[1] for t in told] == sorted({t[1] for t in told})


def test_a_broken_connection_goes_on_where_it_broke(server, tmp_path):
    url = server.put("/w.npz", DATA, {"cut": None}, cut=HALF)
    assert fetch_url(url).read_bytes() == DATA
    first, second = server.requests
    assert "Range" not in first.headers
    assert second.headers["Range"] == f"bytes={HALF}-" and second.headers["If-Range"] == '"v1"'
    assert server.sent == len(DATA)
    assert left(tmp_path) == ["w.npz", "w.npz.fetched.json"]


def test_without_a_version_a_broken_download_begins_again(server):
    url = server.put("/w.npz", DATA, {"cut": None}, cut=HALF, etag=None)
    assert fetch_url(url).read_bytes() == DATA
    assert all("Range" not in r.headers for r in server.requests)


def test_a_known_hash_stands_for_the_version(server):
    card = card_of(server.put("/w.npz", DATA, {"cut": None}, cut=HALF, etag=None))
    assert fetch(card).read_bytes() == DATA
    assert server.requests[1].headers["Range"] == f"bytes={HALF}-"


def test_a_connection_that_always_breaks_is_given_up(server, tmp_path):
    url = server.put("/w.npz", DATA, cut=HALF, ranges=False, etag=None)
    assert f"broke off with {len(DATA) - HALF:,} bytes missing" in fails(url)
    assert len(server.requests) == download.ATTEMPTS
    assert left(tmp_path) == []


def test_a_later_call_goes_on_with_what_a_failed_one_left(server, tmp_path):
    url = server.put("/w.npz", DATA, {"status": 500}, cut=HALF)
    assert "failed (500)" in fails(url)
    assert left(tmp_path) == ["w.npz.part", "w.npz.part.json"]
    server.put("/w.npz", DATA)
    assert fetch_url(url).read_bytes() == DATA
    assert server.requests[-1].headers["Range"] == f"bytes={HALF}-"
    assert left(tmp_path) == ["w.npz", "w.npz.fetched.json"]


def test_a_damaged_partial_file_is_not_gone_on_with(server, tmp_path):
    url = server.put("/w.npz", DATA, {"status": 500}, cut=HALF)
    fails(url)
    (part,) = (tmp_path / "cache").rglob("*.part")
    part.write_bytes(b"\0" * HALF)
    server.put("/w.npz", DATA)
    assert fetch_url(url).read_bytes() == DATA
    assert len(server.requests) == 3 and "Range" not in server.requests[2].headers


def test_a_partial_file_is_not_gone_on_with_from_another_source(server):
    """Whose version may go by the same name."""
    first = server.put("/a/w.npz", DATA, {"status": 500}, cut=HALF)
    card = card_of(first, server.put("/b/w.npz", OTHER), sha256=None)
    assert fetch(card).read_bytes() == OTHER
    assert "Range" not in server.requests[-1].headers


def test_silence_ends_and_the_rest_is_asked_for(server, monkeypatch):
    monkeypatch.setattr(web, "STALL_SECONDS", 0.5)
    url = server.put("/w.npz", DATA, {"stall": None}, stall=HALF)
    began = time.monotonic()
    assert fetch_url(url).read_bytes() == DATA
    assert time.monotonic() - began < 60
    assert server.requests[1].headers["Range"] == f"bytes={HALF}-"


def test_a_server_that_stays_silent_is_given_up(server, tmp_path, monkeypatch):
    monkeypatch.setattr(web, "STALL_SECONDS", 0.3)
    monkeypatch.setattr(download, "ATTEMPTS", 2)
    url = server.put("/w.npz", DATA, stall=0)
    assert "does not answer in time" in fails(url)
    assert len(server.requests) == 2 and left(tmp_path) == []


def test_a_trickle_is_a_stall(server, monkeypatch):
    monkeypatch.setattr(web, "STALL_SECONDS", 0.5)
    monkeypatch.setattr(download, "ATTEMPTS", 1)
    url = server.put("/w.npz", DATA, drip=0.05)
    began = time.monotonic()
    assert "sent only" in fails(url)
    assert time.monotonic() - began < 60


def test_a_server_that_hangs_up_or_talks_nonsense_is_told(server, monkeypatch):
    monkeypatch.setattr(download, "ATTEMPTS", 1)
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    assert "cannot be reached" in fails(f"http://127.0.0.1:{port}/w.npz")
    for nonsense in ("-5", "1e9", "9" * 40):
        assert "is no size" in fails(server.put("/w.npz", DATA, length=nonsense))


def test_too_long_a_length_is_a_broken_connection(server, tmp_path):
    url = server.put("/w.npz", DATA, length=len(DATA) + 1000, ranges=False)
    assert "broke off with 1,000 bytes missing" in fails(url)
    assert [n for n in left(tmp_path) if not n.startswith("w.npz.part")] == []


def safetensors(size: int) -> bytes:
    header = json.dumps({"a": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}).encode()
    return struct.pack("<Q", len(header)) + header + bytes(size)


def hdf5(size: int) -> bytes:
    """A superblock of version 0 that says how long the file is, and nothing after it."""
    head = b"\x89HDF\r\n\x1a\n" + bytes([0, 0, 0, 0, 0, 8, 8, 0]) + bytes(8)
    return (head + struct.pack("<QQQ", 0, 2**64 - 1, size)).ljust(size, b"\0")


@pytest.mark.parametrize(
    ("name", "body"),
    [
        ("w.npz", DATA),
        ("w.safetensors", safetensors(5000)),
        ("w.weights.h5", hdf5(5000)),
        ("w.keras", DATA),
    ],
)
def test_too_short_a_length_is_seen_in_the_container(server, tmp_path, name, body):
    assert "is not whole" in fails(server.put(f"/{name}", body, length=len(body) - 7))
    assert left(tmp_path) == []
    assert fetch_url(server.put(f"/{name}", body)).read_bytes() == body


@pytest.mark.parametrize("announced", ["none", None])
def test_an_endless_body_stops_at_the_cap(server, tmp_path, announced):
    url = server.put("/w.npz", DATA, endless=True, length=announced)
    assert "sends more than the 1,000,000 bytes" in fails(url, cap=1_000_000)
    time.sleep(0.1)
    # What the sockets hold is lost on top of the cap.
    assert server.sent < 1_000_000 + 20 * 2**20
    assert left(tmp_path) == []


def test_an_endless_body_stops_at_the_size_of_the_card(server, tmp_path):
    card = card_of(server.put("/w.npz", DATA, endless=True))
    with pytest.raises(FileNotFoundError, match=f"sends more than the {len(DATA):,} bytes"):
        fetch(card)
    assert left(tmp_path) == []


def test_an_announced_size_is_judged_before_the_body(server, tmp_path):
    url = server.put("/w.npz", DATA, length=10**12, stall=0)
    assert "offers 1,000,000,000,000 bytes, more than the 8,589,934,592 allowed" in fails(url)
    card = card_of(server.put("/w.npz", DATA[:-1]))
    with pytest.raises(FileNotFoundError, match=f"offers {len(DATA) - 1:,} bytes instead of"):
        fetch(card)
    assert left(tmp_path) == []


def test_the_cap_of_another_container_comes_from_the_card(server, tmp_path):
    card = card_of(server.put("/m.safetensors", safetensors(100), length=31 * 2**20))
    # 5.7 M parameters: 4 bytes each and a tenth, and 16 MiB.
    assert cap_of(card) == pytest.approx(42e6, rel=0.01)
    fetched = dataclasses.replace(card, sources=(server.put("/m.safetensors", safetensors(100)),))
    path = fetch(fetched)
    assert path.parts[-4:-2] == ("web", "127.0.0.1") and find(fetched) == path
    path.unlink()
    huge = card_of(server.put("/m.safetensors", safetensors(100), length=cap_of(card) + 1))
    with pytest.raises(FileNotFoundError, match="more than the"):
        fetch(huge)


STATUSES = {
    401: "wants an account (401)",
    403: "refuses to give it (403)",
    404: "does not have it (404)",
    410: "has it no longer (410)",
    418: "did not answer with the file (418)",
    429: "is busy and asks to come back later (429)",
    500: "failed (500)",
    503: "is busy and asks to come back later (503)",
}


@pytest.mark.parametrize("status", STATUSES)
def test_a_refusal_is_told_and_the_next_source_is_asked(server, status):
    bad = server.put("/bad/w.npz", b"sorry", status=status, headers={"Retry-After": "3600"})
    good = server.put("/good/w.npz", DATA)
    began = time.monotonic()
    assert fetch(card_of(bad, good)).read_bytes() == DATA
    assert time.monotonic() - began < 60 and len(server.requests) == 2
    assert STATUSES[status] in fails(bad)


def test_a_busy_server_is_waited_for_within_bounds(server, monkeypatch):
    waits = []
    monkeypatch.setattr(download.time, "sleep", waits.append)
    url = server.put("/w.npz", DATA, {"status": 200}, status=429, headers={"Retry-After": "7"})
    assert fetch_url(url).read_bytes() == DATA
    assert waits == [7.0]
    waits.clear()
    url = server.put("/always/w.npz", b"", status=503, headers={"Retry-After": "25"})
    assert "busy" in fails(url)
    assert sum(waits) <= download.PATIENCE_SECONDS and len(waits) == 2
    waits.clear()
    url = server.put("/zero/w.npz", b"", status=429, headers={"Retry-After": "0"})
    assert "busy" in fails(url) and waits == [5.0] * 12


def test_when_all_sources_fail_each_says_why(server, tmp_path):
    card = card_of(
        server.put("/a/w.npz", b"", status=403),
        server.put("/b/w.npz", b"<html>sign in</html>"),
        server.put("/c/w.npz", OTHER),
        "hf://org/repo/w.bin",
        server.url("/d/w.npz"),
    )
    with pytest.raises(FileNotFoundError) as caught:
        fetch(card)
    lines = str(caught.value).splitlines()
    for expected in (
        f"  {card.sources[0]}: refuses to give it (403)",
        f"  {card.sources[1]}: offers 20 bytes instead of {len(DATA):,}",
        f"  {card.sources[2]}: sends a file with the SHA-256 {OTHER_SHA} instead of {SHA}",
        f"  {card.sources[4]}: does not have it (404)",
        f"Put it at {tmp_path / 'cache' / FILE},",
        "  keras-vit fetch ViT-Ti/16@test",
    ):
        assert expected in lines
    assert "hf://org/repo/w.bin is a PyTorch pickle" in str(caught.value)
    assert left(tmp_path) == []


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"<!DOCTYPE html><html>" + bytes(500), "a web page, not an npz archive"),
        (b"\n <?xml version='1.0'?>" + bytes(500), "a web page, not an npz archive"),
        (b"version https://git-lfs.github.com/spec/v1\n", "a pointer of Git LFS"),
        (b"\x80\x04\x95" + bytes(500), "not an npz archive"),
        (safetensors(500), "not an npz archive"),
        (b"", "empty, not an npz archive"),
    ],
)
def test_other_content_is_seen_in_its_first_bytes(server, tmp_path, body, said):
    for length in (None, "none"):
        assert said in fails(server.put("/w.npz", body, length=length))
    assert left(tmp_path) == []


def test_a_wrong_start_ends_the_download_early(server):
    url = server.put("/w.npz", b"<html>", endless=True)
    assert "a web page" in fails(url)
    assert server.sent < 20 * 2**20


def test_the_wrong_file_of_one_source_does_not_stop_the_next(server, tmp_path):
    card = card_of(server.put("/a/w.npz", OTHER), server.put("/b/w.npz", DATA))
    assert fetch(card).read_bytes() == DATA
    assert left(tmp_path) == ["w.npz", "w.npz.fetched.json"]


def test_content_that_changes_between_parts_is_fetched_from_its_first_byte(server):
    url = server.put("/w.npz", DATA, {"body": OTHER, "etag": '"v2"', "cut": None}, cut=HALF)
    assert fetch_url(url).read_bytes() == OTHER


@pytest.mark.parametrize("etag", ['"v2"', '"v1"'])
def test_halves_of_two_versions_are_never_joined(server, tmp_path, etag):
    """A server that goes on in the middle of another version, saying so or even hiding it."""
    change = {"body": OTHER, "etag": etag, "cut": None, "forced_range": True}
    card = card_of(server.put("/w.npz", DATA, change, cut=HALF), sha256=OTHER_SHA)
    assert fetch(card).read_bytes() == OTHER
    assert len(server.requests) == 3 and "Range" not in server.requests[2].headers


def test_a_file_that_shrinks_between_parts_begins_again(server):
    small = npz(2, 100)
    change = {"body": small, "etag": '"v2"', "cut": None, "status": 416}
    url = server.put("/w.npz", DATA, change, {**change, "status": 200}, cut=HALF)
    assert fetch_url(url).read_bytes() == small


def test_content_that_never_stays_the_same_is_given_up(server, tmp_path):
    url = server.put("/w.npz", DATA, cut=HALF)
    server.pages["/w.npz"] = [
        dataclasses.replace(server.pages["/w.npz"][0], etag=f'"{i}"', forced_range=True)
        for i in range(9)
    ]
    assert "again and again" in fails(url)
    assert left(tmp_path) == []


def test_a_part_from_elsewhere_is_refused(server):
    url = server.put("/w.npz", DATA, {"status": 206, "cut": None}, cut=HALF)
    server.pages["/w.npz"][1].headers = {"Content-Range": f"bytes 10-{len(DATA) - 1}/{len(DATA)}"}
    assert f"sends bytes from 10 on instead of {HALF:,}" in fails(url)


def test_compressed_bodies_are_refused(server):
    url = server.put("/w.npz", DATA, headers={"Content-Encoding": "gzip"})
    assert "compressed" in fails(url)


def test_redirects_are_followed_with_the_first_address_as_name(server, tmp_path):
    target = server.put("/store/0a1b2c", DATA)
    url = server.put("/w.npz", b"", status=302, headers={"Location": target})
    relative = server.put("/r/w.npz", b"", status=307, headers={"Location": "../store/0a1b2c"})
    assert fetch_url(url).name == fetch_url(relative).name == "w.npz"


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("http://example.org/w.npz", "redirects to http://example.org, which anyone on the way"),
        ("file:///etc/passwd", "which is no web address"),
        ("ftp://example.org/w.npz", "which is no web address"),
        ("http://127.0.0.1.example.org/w.npz", "which anyone on the way"),
    ],
)
def test_redirects_off_https_are_not_followed(server, target, said, monkeypatch):
    def refuse(*args):
        raise AssertionError("a name was looked up")

    url = server.put("/w.npz", b"", status=301, headers={"Location": target})
    real = socket.getaddrinfo
    monkeypatch.setattr(
        socket,
        "getaddrinfo",
        lambda host, *a, **k: (real if host == "127.0.0.1" else refuse)(host, *a, **k),
    )
    assert said in fails(url)


def test_https_never_falls_to_http_not_even_on_this_machine(server):
    with pytest.raises(web.SourceFailed, match=r"redirects to http://127\.0\.0\.1"):
        web.check_scheme(urlsplit("http://127.0.0.1/x"), web.Access(), "https://example.org/x")
    web.check_scheme(urlsplit("https://127.0.0.1/x"), web.Access(), "https://example.org/x")
    assert "is http://example.org, which anyone" in fails("http://example.org/w.npz")


def test_a_circle_of_redirects_ends(server):
    url = server.put("/w.npz", b"", status=302, headers={"Location": "/w.npz"})
    assert "redirects more than 8 times" in fails(url)
    assert len(server.requests) == 9


def test_credentials_stay_with_their_host_and_out_of_sight(server, tmp_path):
    """The same server by its other name is another host."""
    server.put("/there/w.npz", DATA, {"status": 500}, cut=HALF)
    there = server.url("/there/w.npz", host="localhost")
    server.put("/same/w.npz", b"", status=302, headers={"Location": there})
    server.put("/w.npz", b"", status=302, headers={"Location": "/same/w.npz"})
    url = server.url("/w.npz").replace("http://", "http://me:s3cret@") + "?key=s3cret"
    server.pages["/w.npz?key=s3cret"] = server.pages["/w.npz"]
    message = fails(url)
    sent = {r.path: r.headers.get("Authorization") for r in server.requests}
    assert sent["/w.npz?key=s3cret"] == sent["/same/w.npz"] == "Basic bWU6czNjcmV0"
    assert sent["/there/w.npz"] is None
    assert "s3cret" not in message
    (note,) = (tmp_path / "cache").rglob("*.part.json")
    assert "s3cret" not in note.read_text()
    server.put("/there/w.npz", DATA)
    path = fetch_url(url)
    assert "s3cret" not in str(path) + lock.record_path(path).read_text()


@pytest.fixture
def tls(server, tmp_path):
    """The server behind HTTPS, with a certificate of its own making."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed, so no certificate can be made")
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    command = (
        "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 "
        f"-subj /CN=localhost -addext subjectAltName=DNS:localhost -keyout {key} -out {certificate}"
    )
    subprocess.run(command.split(), check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    server.http.socket = context.wrap_socket(server.http.socket, server_side=True)
    return certificate


def test_https_wants_a_trusted_certificate_and_stays_https(server, tls, monkeypatch):
    server.put("/w.npz", DATA)
    url = server.url("/w.npz", host="localhost").replace("http:", "https:")
    assert "has a certificate that is not trusted" in fails(url)
    assert server.requests == []
    monkeypatch.setenv("SSL_CERT_FILE", str(tls))
    assert fetch_url(url).read_bytes() == DATA
    server.put("/down/w.npz", b"", status=302, headers={"Location": server.url("/w.npz")})
    assert "redirects to http://127.0.0.1" in fails(url.replace("/w.npz", "/down/w.npz"))
    assert [r.path for r in server.requests] == ["/w.npz", "/down/w.npz"]


def test_proxies_of_the_environment_are_used(server, monkeypatch):
    proxy = server.url("").replace("http://", "http://user:word@")
    monkeypatch.setenv("https_proxy", proxy)
    monkeypatch.setenv("http_proxy", proxy)
    assert "403" in fails("https://files.example.org/w.npz")
    (tunnel,) = server.requests
    assert (tunnel.method, tunnel.path) == ("CONNECT", "files.example.org:443")
    server.pages[f"http://mirror.example.org/{FILE}"] = server.pages["/x"] = []
    server.put("/x", DATA)
    server.pages[f"http://mirror.example.org/{FILE}"] = server.pages["/x"]
    monkeypatch.setenv("KERAS_VIT_MIRROR", "http://mirror.example.org/")
    assert fetch(card_of("https://files.example.org/w.npz")).read_bytes() == DATA
    assert server.requests[-1].headers["Proxy-Authorization"] == "Basic dXNlcjp3b3Jk"
    monkeypatch.setenv("no_proxy", "example.org")
    monkeypatch.setattr(socket, "getaddrinfo", lambda *a, **k: (_ for _ in ()).throw(OSError("no")))
    assert "cannot be reached" in fails("https://files.example.org/other/w.npz")
    assert len(server.requests) == 2


def test_a_mirror_that_is_an_address_comes_first(server, monkeypatch):
    own = server.put("/own/w.npz", DATA)
    monkeypatch.setenv("KERAS_VIT_MIRROR", server.url("/mirror/"))
    server.put(f"/mirror/{FILE}", DATA)
    fetch(card_of(own)).unlink()
    server.pages.pop(f"/mirror/{FILE}")
    server.put("/mirror/folder/w.npz", DATA)
    fetch(card_of(own)).unlink()
    server.pages.pop("/mirror/folder/w.npz")
    fetch(card_of(own))
    paths = [r.path for r in server.requests]
    full, short = f"/mirror/{FILE}", "/mirror/folder/w.npz"
    assert paths == [full, full, short, full, short, "/own/w.npz"]


def test_the_first_hash_seen_must_stay(server, tmp_path):
    card = card_of(server.put("/w.npz", DATA, {"body": OTHER}), sha256=None)
    path = fetch(card)
    path.unlink()
    with pytest.raises(FileNotFoundError) as caught:
        fetch(card)
    assert f"has the SHA-256 {OTHER_SHA}, but {SHA} was seen at its first download" in str(
        caught.value
    )
    assert not path.exists()
    lock.record_path(path).unlink()
    assert fetch(card).read_bytes() == OTHER


def test_a_file_that_was_changed_here_is_refused_offline_and_else_fetched_again(server):
    card = card_of(server.put("/w.npz", DATA), sha256=None)
    path = fetch(card)
    path.write_bytes(OTHER)
    with pytest.raises(ValueError, match="was seen at its first download"):
        find(card)
    with pytest.raises(ValueError, match="was seen at its first download"):
        fetch(card, offline=True)
    assert path.read_bytes() == OTHER
    with pytest.warns(UserWarning, match="It is fetched again now"):
        assert fetch(card).read_bytes() == DATA


def test_offline_opens_no_connection(server, monkeypatch):
    card = card_of(server.put("/w.npz", DATA))
    with pytest.raises(FileNotFoundError, match="are not on this machine"):
        fetch(card, offline=True)
    with pytest.raises(FileNotFoundError, match="and this is offline"):
        fetch_url(card.sources[0], offline=True)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(FileNotFoundError, match="are not on this machine"):
        fetch(card)
    assert server.requests == []
    assert fetch(card, offline=False).is_file()


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("https:///w.npz", "is no web address"),
        ("https://host:port/w.npz", "is no web address"),
        ("https://host/w.pth", "is a PyTorch pickle"),
        ("https://host/w.tar.gz", "must name a file that ends in .npz"),
        ("https://host/", "must name a file"),
        ("https://host/a%5C..%5Cw.npz", "must name a file that ends in .npz"),
        ("https://host/w%00.npz", "must name a file that ends in .npz"),
        ("gs://bucket/a\\b.npz", "is no bucket address"),
        ("gs://Bucket/w.npz", "is no bucket address"),
        ("gs://bucket/../w.npz", "is no bucket address"),
        ("hf://org/repo/../../w.npz", "is no hub address"),
        ("hf://org/..", "is no hub address"),
        ("hf://org/repo@../x.npz", "is no hub address"),
        ("ftp://host/w.npz", "must begin with hf://"),
    ],
)
def test_addresses_are_judged_before_anything_is_asked(server, address, said):
    with pytest.raises(ValueError) as caught:
        fetch_url(address)
    assert said in str(caught.value)
    assert server.requests == []
