"""Downloads and this machine: other processes, full and read-only disks, Ctrl-C, the commands."""

import contextlib
import errno
import hashlib
import io
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from keras_vit.card import Card
from keras_vit.cli import run
from keras_vit.zoo import addressed, cards
from keras_vit.zoo.fetch import CACHE_VARIABLE, cache_folder, fetch, find
from keras_vit.zoo.fetching import download, lock, partial, process_lock
from keras_vit.zoo.fetching.addresses import fetch_url
from keras_vit.zoo.fetching.process_lock import one_process

_buffer = io.BytesIO()
np.savez(_buffer, a=np.random.default_rng(0).normal(size=60_000))
DATA = _buffer.getvalue()
GOOGLE = "https://storage.googleapis.com"
AUGREG = "i21k-301ep-lr_0.001-aug_medium1-wd_0.1-do_0.0-sd_0.0"  # no table has it
SHA = hashlib.sha256(DATA).hexdigest()


def card_of(*sources: str, **fields) -> Card:
    return Card("ViT-Ti/16", "test", file="bucket/w.npz", sources=sources, **fields)


def start(code: str, *arguments: str) -> subprocess.Popen:
    """Another process that fetches into the same cache."""
    return subprocess.Popen(
        [sys.executable, "-P", "-c", code, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def until(condition, seconds: float = 120.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.01)


FETCH = """
import sys
from keras_vit.zoo.fetching import partial
from keras_vit.zoo.fetching.addresses import fetch_url
partial.NOTE_EVERY = 50_000
print(fetch_url(sys.argv[1], progress=True).stat().st_size)
"""


def test_two_processes_fetch_a_file_once(server):
    gate = threading.Event()
    url = server.put("/w.npz", DATA, gate=gate)
    both = [start(FETCH, url)]
    until(lambda: server.requests)
    both.append(start(FETCH, url))
    line = both[1].stderr.readline()
    assert line == "w.npz: another process is fetching it; waiting for that one\n"
    gate.set()
    answers = [process.communicate(timeout=60) for process in both]
    assert [process.returncode for process in both] == [0, 0], answers
    assert [out.strip() for out, _ in answers] == [str(len(DATA))] * 2
    assert len(server.requests) == 1


def test_what_a_killed_process_left_is_gone_on_with_and_its_lock_is_free(server, tmp_path):
    url = server.put("/w.npz", DATA, {"stall": None}, stall=300_000)
    process = start(FETCH, url)
    folder = tmp_path / "cache"
    until(
        lambda: any(
            json.loads(p.read_text())["bytes"] > 150_000 for p in folder.rglob("*.part.json")
        )
    )
    process.kill()
    process.communicate(timeout=120)
    assert list(folder.rglob(".*.lock")), "the lock's file is still there, and held by nobody"
    assert fetch_url(url).read_bytes() == DATA
    begun = int(server.requests[1].headers["Range"].removeprefix("bytes=").rstrip("-"))
    assert 150_000 < begun <= 300_000
    assert sorted(p.name for p in folder.rglob("*") if p.is_file()) == [
        "w.npz",
        "w.npz.fetched.json",
    ]


def test_the_lock_of_a_target_is_held_by_one_and_left_by_none(tmp_path):
    code = (
        "import sys, pathlib\nfrom keras_vit.zoo.fetching.process_lock import one_process\n"
        "with one_process(pathlib.Path(sys.argv[1]), lambda: print('waiting', flush=True)):\n"
        "    print('mine', flush=True)\n"
    )
    target = tmp_path / "w.npz"
    with one_process(target):
        other = start(code, str(target))
        assert other.stdout.readline() == "waiting\n"
        assert other.poll() is None
    assert other.communicate(timeout=120)[0] == "mine\n"
    assert list(tmp_path.iterdir()) == []


def test_a_lock_that_was_waited_for_keeps_the_next_one_out(tmp_path):
    """The waiting one gets the lock of a file that its holder has removed meanwhile."""
    target, inside, leave = tmp_path / "w.npz", queue.SimpleQueue(), threading.Event()

    def second():
        with one_process(target, lambda: inside.put("waits")):
            inside.put("second")
            leave.wait(20)

    def third():
        with one_process(target, lambda: inside.put("waits")):
            inside.put("third")

    threads = [threading.Thread(target=second), threading.Thread(target=third)]
    with one_process(target):
        threads[0].start()
        assert inside.get(timeout=120) == "waits"
    assert inside.get(timeout=120) == "second"
    threads[1].start()
    assert inside.get(timeout=120) == "waits"
    leave.set()
    assert inside.get(timeout=120) == "third"
    for thread in threads:
        thread.join(20)
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 256 KiB, less than the file, and a function that makes it read-only."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(folder)]
    try:
        done = subprocess.run(mount, capture_output=True, text=True)
    except OSError as error:
        pytest.skip(f"no file system can be mounted here: {error}")
    if done.returncode:
        pytest.skip(f"no file system can be mounted here: {done.stderr.strip()}")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_a_disk_that_cannot_hold_the_file_is_told_before_the_body(server, small_disk):
    url = server.put("/w.npz", DATA, stall=0)
    with pytest.raises(OSError, match=r"^/.* has 0\.3 MB free and 0\.5 MB are needed: free some"):
        fetch_url(url, cache_dir=small_disk)
    assert [p for p in small_disk.rglob("*") if p.is_file()] == []


def test_a_disk_that_fills_up_is_told_and_left_as_it_was(server, small_disk):
    sources = (server.put("/w.npz", DATA, length="none"), server.put("/other/w.npz", DATA))
    with pytest.raises(
        OSError, match=r"is full \(No space left on device\); the partial file was removed"
    ):
        fetch(card_of(*sources), cache_dir=small_disk)
    assert [p for p in small_disk.rglob("*") if p.is_file()] == []
    assert len(server.requests) == 1, "another source does not make room"


def test_a_read_only_cache_is_told_and_what_it_holds_is_used(server, small_disk, tmp_path):
    small = Path(small_disk, "bucket/small.npz")
    card = Card("ViT-Ti/16", "test", file="bucket/small.npz", sources=(server.url("/x.npz"),))
    small.parent.mkdir()
    small.write_bytes(b"PK\x03\x04")
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    assert find(card, small_disk) == fetch(card, small_disk) == small
    url = server.put("/w.npz", DATA)
    with pytest.raises(
        OSError, match=r"cannot write to .* \(Read-only file system\): name a folder"
    ):
        fetch_url(url, cache_dir=small_disk)
    assert server.requests == []


def test_a_cache_below_a_file_is_told(server, tmp_path):
    (tmp_path / "file").write_text("")
    url = server.put("/w.npz", DATA)
    with pytest.raises(OSError, match=r"cannot write to .* \(Not a directory\): name a folder"):
        fetch_url(url, cache_dir=tmp_path / "file" / "cache")


def test_a_write_that_fails_in_the_middle_leaves_nothing(server, tmp_path, monkeypatch):
    """As on a full disk, also where none can be mounted."""

    def full(self, file, data):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(partial.Partial, "write", full)
    with pytest.raises(OSError, match="is full"):
        fetch_url(server.put("/w.npz", DATA))
    assert [p for p in (tmp_path / "cache").rglob("*") if p.is_file()] == []


def test_ctrl_c_keeps_what_is_here(server):
    url = server.put("/w.npz", DATA, drip=0)

    def stop(name, done, total):
        if done > 1000:
            raise KeyboardInterrupt

    with pytest.raises(
        download.Stopped, match=r"MB are kept in .*w\.npz\.part; run the same again"
    ):
        fetch_url(url, progress=stop)
    assert fetch_url(url).read_bytes() == DATA
    assert int(server.requests[1].headers["Range"].removeprefix("bytes=").rstrip("-")) > 1000


def test_ctrl_c_in_the_command_is_one_line(server, tmp_path):
    url = server.put("/w.npz", DATA, stall=200_000)
    # What runs in the background of a script ignores Ctrl-C, and so would its children.
    code = (
        "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler); "
        "from keras_vit.cli import main; main(sys.argv[1:])"
    )
    process = start(code, "fetch", url)
    until(lambda: server.sent == 200_000)
    until(lambda: any(p.stat().st_size == 200_000 for p in (tmp_path / "cache").rglob("*.part")))
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 130 and out == ""
    assert err.splitlines()[-1].startswith("keras-vit: interrupted: 0.2 of 0.5 MB are kept in ")
    assert "Traceback" not in err


@pytest.fixture
def own_card(server, tmp_path, monkeypatch):
    """A card of the user's whose file is on the server."""
    folder = tmp_path / "cards"
    folder.mkdir()
    url = server.put("/w.npz", DATA)
    (folder / "own.toml").write_text(
        '[[card]]\nvariant = "ViT-Ti/16"\ntag = "own"\nfile = "bucket/w.npz"\n'
        f'sources = ["{url}"]\nsize = {len(DATA)}\n'
    )
    monkeypatch.setenv(cards.CARDS_VARIABLE, str(folder))
    cards._merged.cache_clear()
    yield "ViT-Ti/16@own"
    cards._merged.cache_clear()


def answer(capsys, *arguments: str):
    """The JSON of a command that must succeed."""
    capsys.readouterr()
    assert run([*arguments, "--json"]) == 0, capsys.readouterr().err
    return json.loads(capsys.readouterr().out)


def test_a_dry_run_lists_and_asks_nobody(server, own_card, tmp_path, capsys):
    names = (own_card, "hf://org/repo", f"hf://org/repo@{'a' * 40}", "gs://bucket/a.npz")
    rows = answer(capsys, "fetch", *names, "--dry-run")
    cache = tmp_path / "cache"
    assert rows[0] == {
        "name": own_card,
        "source": server.url("/w.npz"),
        "size": len(DATA),
        "size_predicted": False,
        "target": str(cache / "bucket/w.npz"),
        "here": None,
    }
    assert [row["target"] for row in rows[1:]] == [
        str(cache / "hub/org/repo/(commit of main)"),
        str(cache / "hub/org/repo" / ("a" * 40)),
        str(cache / "gs/bucket/a.npz"),
    ]
    assert server.requests == [] and not cache.exists()
    fetched = answer(capsys, "fetch", own_card)
    assert fetched == [
        {
            "name": own_card,
            "path": str(cache / "bucket/w.npz"),
            "bytes": len(DATA),
            "was_here": False,
        }
    ]
    assert answer(capsys, "fetch", own_card, "--dry-run")[0]["here"] == str(cache / "bucket/w.npz")
    assert run(["fetch", own_card, "--dry-run"]) == 0
    assert f"  here  {cache}/bucket/w.npz" in capsys.readouterr().out
    assert len(server.requests) == 1


def test_the_address_of_a_known_checkpoint_is_fetched_where_loading_looks(server, own_card, capsys):
    """Loading reads such an address as the card's name, so a fetch for offline use must, too."""
    (row,) = answer(capsys, "fetch", server.url("/w.npz"))
    assert row["name"] == own_card and row["path"].endswith("cache/bucket/w.npz")
    assert addressed.fetched(addressed.named(server.url("/w.npz")), None, True) == own_card
    assert answer(capsys, "fetch", server.url("/w.npz"), "--offline")[0]["was_here"]
    assert len(server.requests) == 1


@pytest.mark.parametrize(
    ("address", "name"),
    [
        ("gs://vit_models/imagenet21k/R50+ViT-B_16.npz", "R50+ViT-B/16@orig_in21k"),
        (f"{GOOGLE}/vit_models/imagenet21k/R50%2BViT-B_16.npz", "R50+ViT-B/16@orig_in21k"),
        (f"{GOOGLE}/vit_models/augreg/B_16-{AUGREG}.npz", f"ViT-B/16@{AUGREG}"),
        (f"https://example.org/B_16-{AUGREG}.npz", None),
        ("hf://org/repo", None),
    ],
)
def test_addresses_of_known_checkpoints_mean_these(address, name):
    assert addressed.named(address) == (name or address)


def test_fetch_offline_uses_only_what_is_here(server, own_card, capsys, tmp_path):
    assert run(["fetch", own_card, "--offline"]) == 2
    assert "are not on this machine" in capsys.readouterr().err
    answer(capsys, "fetch", own_card, "--cache-dir", str(tmp_path / "other"))
    assert answer(capsys, "fetch", own_card, "--offline", "--cache-dir", str(tmp_path / "other"))
    assert len(server.requests) == 1


def test_a_failed_fetch_is_one_line_and_bad_input(server, capsys):
    assert run(["fetch", server.url("/nothing.npz")]) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err.count("\n") == 1
    assert captured.err.endswith("/nothing.npz does not have it (404).\n")


def test_embedded_models_need_no_network(server, capsys):
    (row,) = answer(capsys, "fetch", "ViT-Mini/4", "--dry-run")
    assert row["source"] is None and Path(row["here"]).is_file()
    answer(capsys, "fetch", "ViT-Mini/4")
    assert server.requests == []


def test_a_lock_file_is_written_and_kept_to(server, own_card, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert run(["lock"]) == 2
    assert "nothing was fetched into" in capsys.readouterr().err
    path = Path(answer(capsys, "fetch", own_card)[0]["path"])
    written = answer(capsys, "lock")
    assert json.loads(Path("keras-vit.lock").read_text()) == {
        "version": 1,
        "files": {
            "bucket/w.npz": {"sha256": SHA, "size": len(DATA), "source": server.url("/w.npz")}
        },
        "commits": {},
    }
    assert written["output"] == "keras-vit.lock"
    assert run(["lock"]) == 2 and "--force" in capsys.readouterr().err
    card = cards.all_cards()[own_card]
    assert find(card) == path
    # Another file, as it might lie in a colleague's cache without any record.
    other = DATA[:-30] + bytes(8) + DATA[-22:]
    path.write_bytes(other)
    lock.record_path(path).unlink()
    with pytest.raises(ValueError, match=r"keras-vit\.lock lists " + SHA):
        find(card)
    monkeypatch.setenv(lock.LOCK_VARIABLE, "")
    assert find(card) == path
    monkeypatch.setenv(lock.LOCK_VARIABLE, str(tmp_path / "keras-vit.lock"))
    monkeypatch.chdir("/")
    server.put("/w.npz", other)
    path.unlink()
    with pytest.raises(FileNotFoundError, match=r"keras-vit\.lock lists"):
        fetch(card)
    assert not path.exists()


def test_a_lock_of_some_names_lists_these(server, own_card, tmp_path, capsys):
    url = server.put("/v.npz", DATA)
    answer(capsys, "fetch", own_card, url)
    some = answer(capsys, "lock", own_card, "-o", str(tmp_path / "some.lock"))
    assert list(some["files"]) == ["bucket/w.npz"]
    by_address = answer(capsys, "lock", url, "-o", str(tmp_path / "url.lock"))
    assert [key.split("/")[0] for key in by_address["files"]] == ["web"]
    both = answer(capsys, "lock", "-o", str(tmp_path / "all.lock"))
    assert set(both["files"]) == {*some["files"], *by_address["files"]}
    for missing in ("https://host/x.npz", "ViT-B/16"):
        assert run(["lock", missing, "-o", str(tmp_path / "no.lock")]) == 2
    assert not (tmp_path / "no.lock").exists()


@pytest.mark.parametrize(
    "text", ["", "[]", '{"version": 2}', '{"version": 1, "files": [], "commits": {}}']
)
def test_a_broken_lock_file_is_told(server, tmp_path, monkeypatch, text):
    (tmp_path / "my.lock").write_text(text)
    monkeypatch.setenv(lock.LOCK_VARIABLE, str(tmp_path / "my.lock"))
    with pytest.raises(ValueError, match=r"my\.lock is no lock file .*write it anew"):
        fetch_url(server.put("/w.npz", DATA))
    monkeypatch.setenv(lock.LOCK_VARIABLE, str(tmp_path / "gone.lock"))
    with pytest.raises(FileNotFoundError, match=r"gone\.lock, which does not exist"):
        fetch_url(server.put("/w.npz", DATA))
    assert not list((tmp_path / "cache").rglob("w.npz"))


def test_the_cache_lies_below_keras_home(server, monkeypatch, tmp_path):
    monkeypatch.delenv(CACHE_VARIABLE)
    monkeypatch.setenv("KERAS_HOME", str(tmp_path / "keras"))
    assert cache_folder() == tmp_path / "keras/keras_vit"
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "own"))
    assert cache_folder() == tmp_path / "own"


def test_progress_is_lines_where_there_is_no_terminal(server, capsys):
    url = server.put("/w.npz", DATA)
    fetch_url(url)
    assert capsys.readouterr().err == ""
    fetch_url(server.put("/v.npz", DATA), progress=True)
    assert capsys.readouterr().err == "v.npz: fetching, 0.5 MB\n"


def test_progress_is_a_bar_with_size_and_rate_in_a_terminal(server):
    """On a pseudo-terminal, as a person sees it."""
    primary, secondary = os.openpty()
    code = (
        "import sys; from keras_vit.zoo.fetching.addresses import fetch_url; fetch_url(sys.argv[1])"
    )
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "120"}
    process = subprocess.Popen(
        [sys.executable, "-P", "-c", code, server.put("/w.npz", DATA, delay=0.3)],
        stderr=secondary,
        env=environment,
    )
    os.close(secondary)
    shown = b""
    with contextlib.suppress(OSError):  # the terminal goes with the process
        while piece := os.read(primary, 65536):
            shown += piece
    os.close(primary)
    assert process.wait(timeout=120) == 0
    assert b"w.npz" in shown and b"kB" in shown and b"B/s" in shown


def test_a_command_that_loads_says_what_an_interrupted_download_keeps(
    tmp_path, monkeypatch, capsys
):
    def interrupted(*args, **kwargs):
        raise download.Stopped("5.0 of 9.0 MB are kept in w.npz.part; run the same again to go on")

    monkeypatch.setattr("keras_vit.zoo.addressed.fetched", interrupted)
    assert run(["convert", "https://example.org/w.npz", str(tmp_path / "out.npz")]) == 130
    assert "5.0 of 9.0 MB are kept in w.npz.part" in capsys.readouterr().err


def test_a_file_system_without_locks_is_used_without(tmp_path, monkeypatch):
    def no_locks(descriptor, operation):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(process_lock.fcntl, "flock", no_locks)
    with process_lock.one_process(tmp_path / "file"):
        pass
    monkeypatch.setattr(process_lock, "NO_LOCKS", ())
    with pytest.raises(OSError, match="No locks"), process_lock.one_process(tmp_path / "file"):
        pass
