"""Hugging Face repositories and Google's storage: pinned, checked, and nobody else gets the token."""

import hashlib
import json
import os
import socket
import struct
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

from keras_vit.card import Card
from keras_vit.zoo.fetch import fetch, find
from keras_vit.zoo.fetching import bucket, hub, lock, web
from keras_vit.zoo.fetching.addresses import entries, fetch_repo, fetch_url
from keras_vit.zoo.fetching.sources import Bucket, Hub, Web, parse

COMMIT, NEWER = "a" * 40, "b" * 40
REPO = "hf://org/repo"
CONFIG = b'{"model_type": "vit"}'


def tensors(seed: int = 0) -> bytes:
    values = bytes((seed + i) % 251 for i in range(3000))
    header = json.dumps({"a": {"dtype": "U8", "shape": [3000], "data_offsets": [0, 3000]}}).encode()
    return struct.pack("<Q", len(header)) + header + values


def hdf5() -> bytes:
    head = b"\x89HDF\r\n\x1a\n" + bytes([0, 0, 0, 0, 0, 8, 8, 0]) + bytes(8)
    return (head + struct.pack("<QQQ", 0, 2**64 - 1, 600)).ljust(600, b"\0")


MODEL = tensors()


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


@pytest.fixture
def repo(server):
    """`repo(files)` answers as the hub does: large files lie on another host."""

    def publish(files: dict[str, bytes], commit=COMMIT, revision="main", name="org/repo", **about):
        for file, body in files.items():
            for at in (revision, commit):
                path = f"/{name}/resolve/{at}/{file}"
                headers = {"X-Repo-Commit": commit}
                if not file.endswith(".json"):
                    store = f"/store/{commit}/{file}"
                    server.put(store, body, etag=f'"{digest(body)[:20]}"', **about)
                    headers |= {
                        "X-Linked-Etag": f'"{digest(body)}"',
                        "X-Linked-Size": str(len(body)),
                        "Location": server.url(store, host="localhost"),
                    }
                    server.put(path, b"", status=302, headers=headers)
                else:
                    server.put(path, body, headers=headers, etag='"' + "1" * 40 + '"')
        # What is not there is answered with a code of the hub's own.
        for at in (revision, commit):
            for file in (*OPTIONAL, "config.json", "model.safetensors"):
                server.pages.setdefault(f"/{name}/resolve/{at}/{file}", [_absent(server)])

    return publish


OPTIONAL = (
    "metadata.json",
    "preprocessor_config.json",
    "model.safetensors.index.json",
    "model.weights.h5",
    "task.json",
    "task.weights.h5",
    "preprocessor.json",
    "image_converter.json",
)


def _absent(server):
    server.put("/absent", b"", status=404, headers={"X-Error-Code": "EntryNotFound"})
    return server.pages["/absent"][0]


def names(folder: Path) -> list[str]:
    """Files of a folder besides our records."""
    return sorted(
        p.name
        for p in folder.iterdir()
        if not p.name.endswith(lock.RECORD_SUFFIX) and p.name[0] != "."
    )


def pinned(file: str = "") -> str:
    return f"{REPO}@{COMMIT}" + (f"/{file}" if file else "")


def test_a_repository_becomes_a_folder_of_what_loading_needs(server, repo, tmp_path):
    files = {"config.json": CONFIG, "preprocessor_config.json": b"{}", "model.safetensors": MODEL}
    repo({**files, "pytorch_model.bin": b"\x80", "README.md": b"# hello"})
    folder = fetch_repo(pinned())
    assert folder == tmp_path / "cache/hub/org/repo" / COMMIT
    assert names(folder) == sorted(files)
    assert {n: (folder / n).read_bytes() for n in files} == files
    count = len(server.requests)
    assert fetch_repo(pinned()) == folder
    assert fetch_repo(pinned(), offline=True) == folder
    assert len(server.requests) == count


def test_a_keras_hub_preset_is_fetched_whole(repo):
    files = {"config.json": b"{}", "metadata.json": b"{}", "model.weights.h5": hdf5()}
    files |= {"task.json": b"{}", "task.weights.h5": hdf5(), "preprocessor.json": b"{}"}
    repo({**files, "model.safetensors": MODEL})
    assert names(fetch_repo(pinned())) == sorted(files)


def shards(**weight_map: str) -> bytes:
    return json.dumps({"metadata": {}, "weight_map": weight_map}).encode()


def test_a_checkpoint_in_parts_is_fetched_whole(repo):
    index = shards(
        a="model-1-of-2.safetensors", b="model-2-of-2.safetensors", c="model-1-of-2.safetensors"
    )
    files = {"config.json": CONFIG, "model.safetensors.index.json": index}
    files |= {"model-1-of-2.safetensors": MODEL, "model-2-of-2.safetensors": tensors(7)}
    repo(files)
    assert names(fetch_repo(pinned())) == sorted(files)


@pytest.mark.parametrize(
    "name",
    [
        "../../x.safetensors",
        "/etc/x.safetensors",
        "a\\b.safetensors",
        ".x.safetensors",
        "w.bin",
        "",
    ],
)
def test_parts_with_hostile_names_are_refused(server, repo, name):
    repo({"config.json": CONFIG, "model.safetensors.index.json": shards(a=name)})
    with pytest.raises(ValueError, match="which is no safetensors file name"):
        fetch_repo(pinned())
    with pytest.raises(FileNotFoundError):
        fetch_repo(pinned(), offline=True)


@pytest.mark.parametrize("index", [b'{"weight_map": {}}', b'{"weight_map": 3}', b'{"a": 1}', b"[]"])
def test_a_broken_index_is_refused(repo, index):
    repo({"config.json": CONFIG, "model.safetensors.index.json": index})
    with pytest.raises(ValueError, match=r"is no index|names 0 parts"):
        fetch_repo(pinned())


def test_the_cap_holds_for_all_parts_together(server, repo):
    index = shards(a="model-1-of-2.safetensors", b="model-2-of-2.safetensors")
    repo({"config.json": CONFIG, "model.safetensors.index.json": index})
    repo({"model-1-of-2.safetensors": MODEL, "model-2-of-2.safetensors": tensors(7)})
    with pytest.raises(OSError, match="more than the"):
        fetch_repo(pinned(), cap=2 * len(MODEL) - 1)
    assert [r.path for r in server.gets() if r.path.endswith("2-of-2.safetensors")] == []


def test_a_repository_of_pickles_is_refused_in_words(repo):
    repo({"config.json": CONFIG, "pytorch_model.bin": b"\x80"})
    with pytest.raises(OSError, match=r"neither model\.safetensors .*PyTorch pickles are not read"):
        fetch_repo(pinned())


def test_a_floating_revision_warns_once_and_names_its_commit(server, repo, tmp_path):
    repo({"config.json": CONFIG, "model.safetensors": MODEL})
    with pytest.warns(UserWarning, match=f"hf://org/repo at main is commit {COMMIT} today") as seen:
        folder = fetch_repo(REPO)
    assert len(seen) == 1 and folder.name == COMMIT
    assert fetch_repo(REPO) == fetch_repo(REPO, offline=True) == folder
    repo({"config.json": CONFIG, "model.safetensors": tensors(1)}, commit=NEWER)
    assert fetch_repo(REPO).name == NEWER
    assert (fetch_repo(REPO) / "model.safetensors").read_bytes() == tensors(1)
    assert fetch_repo(pinned(), offline=True) == folder


def test_a_hub_that_cannot_be_reached_leaves_what_is_here(server, repo, monkeypatch):
    repo({"config.json": CONFIG, "model.safetensors": MODEL})
    with pytest.warns(UserWarning, match="today"):
        folder = fetch_repo(REPO)
    server.put("/org/repo/resolve/main/config.json", b"", status=500)
    with pytest.warns(UserWarning, match=r"cannot be looked up \(failed \(500\)\): the commit"):
        assert fetch_repo(REPO) == folder


def test_a_lock_file_holds_a_floating_revision(server, repo, tmp_path, monkeypatch):
    repo({"config.json": CONFIG, "model.safetensors": MODEL})
    with pytest.warns(UserWarning, match="today"):
        folder = fetch_repo(REPO)
    lock.write_json(tmp_path / "my.lock", lock.lock_values(entries(REPO)))
    written = json.loads((tmp_path / "my.lock").read_text())
    assert written["commits"] == {"org/repo@main": COMMIT}
    key = f"hub/org/repo/{COMMIT}/model.safetensors"
    assert written["files"][key]["sha256"] == digest(MODEL)
    monkeypatch.setenv("KERAS_VIT_LOCK", str(tmp_path / "my.lock"))
    repo({"config.json": CONFIG, "model.safetensors": tensors(1)}, commit=NEWER)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert fetch_repo(REPO) == folder
        other = fetch_repo(REPO, cache_dir=tmp_path / "elsewhere")
    assert (other / "model.safetensors").read_bytes() == MODEL
    # The same commit with another content, by a server that lies about its hash as well.
    repo({"config.json": CONFIG, "model.safetensors": tensors(2)})
    with pytest.raises(OSError, match=r"but .*my\.lock lists"):
        fetch_repo(REPO, cache_dir=tmp_path / "third")


def test_the_token_goes_to_the_hub_only(server, repo, monkeypatch):
    monkeypatch.setattr(hub.huggingface_hub, "get_token", lambda: "hf_s3cret")
    repo({"config.json": CONFIG, "model.safetensors": MODEL})
    fetch_repo(pinned())
    got = {r.path: r.headers.get("Authorization") for r in server.requests}
    assert got[f"/org/repo/resolve/{COMMIT}/model.safetensors"] == "Bearer hf_s3cret"
    assert got[f"/store/{COMMIT}/model.safetensors"] is None


@pytest.mark.parametrize(
    ("about", "said"),
    [
        (
            {"status": 401, "headers": {"X-Error-Code": "RepoNotFound"}},
            "has no repository org/repo, unless it",
        ),
        ({"status": 403, "headers": {"X-Error-Code": "GatedRepo"}}, "wants its terms accepted"),
        ({"status": 404, "headers": {"X-Error-Code": "RevisionNotFound"}}, "has no revision"),
        (
            {"status": 404, "headers": {"X-Error-Code": "EntryNotFound"}},
            "has no file config.json in org/repo",
        ),
        ({"status": 500}, r"failed \(500\)"),
        ({"headers": {}}, "does not say its commit"),
        ({"headers": {"X-Repo-Commit": "../../../etc"}}, "does not say its commit"),
        ({"headers": {"X-Repo-Commit": NEWER}}, f"answers for the commit {NEWER}"),
    ],
)
def test_what_the_hub_answers_is_told(server, about, said):
    server.put(f"/org/repo/resolve/{COMMIT}/config.json", CONFIG, **about)
    with pytest.raises(OSError, match=said):
        fetch_repo(pinned())


def test_a_size_above_the_cap_is_refused_before_the_body(server, repo):
    repo({"model.safetensors": MODEL})
    with pytest.raises(OSError, match=r"offers 3,0.. bytes, more than the 100 allowed"):
        fetch_url(pinned("model.safetensors"), cap=100)
    assert server.gets() == []


def test_content_that_is_not_what_the_hub_lists_is_refused(server, repo, tmp_path):
    repo({"model.safetensors": MODEL})
    server.put(f"/store/{COMMIT}/model.safetensors", tensors(3))
    with pytest.raises(OSError, match=f"SHA-256 {digest(tensors(3))} instead of {digest(MODEL)}"):
        fetch_url(pinned("model.safetensors"))
    assert [p for p in (tmp_path / "cache").rglob("*") if p.is_file()] == []


def test_a_hash_counts_where_the_hub_gives_no_size(server, repo):
    repo({"model.safetensors": MODEL})
    (page,) = server.pages[f"/org/repo/resolve/{COMMIT}/model.safetensors"]
    del page.headers["X-Linked-Size"]
    server.put(f"/store/{COMMIT}/model.safetensors", tensors(3))
    with pytest.raises(OSError, match=f"instead of {digest(MODEL)}"):
        fetch_url(pinned("model.safetensors"))


def test_the_hub_must_list_the_hash_of_the_card(server, repo, tmp_path):
    repo({"w.safetensors": MODEL})
    fields = {"file": "b/w.safetensors", "size": len(MODEL), "sources": (pinned("w.safetensors"),)}
    with pytest.raises(FileNotFoundError, match=f"SHA-256 {digest(MODEL)} instead of {'0' * 64}"):
        fetch(Card("ViT-Ti/16", "test", sha256="0" * 64, **fields))
    assert server.gets() == []
    path = fetch(Card("ViT-Ti/16", "test", sha256=digest(MODEL), **fields))
    assert path == tmp_path / "cache/b/w.safetensors"


def test_a_store_that_breaks_is_gone_on_with(server, repo):
    repo({"model.safetensors": MODEL}, cut=1000)
    server.put(f"/store/{COMMIT}/model.safetensors", MODEL, {"cut": None}, cut=1000)
    assert fetch_repo(pinned("model.safetensors")).read_bytes() == MODEL
    assert server.requests[-1].headers["Range"] == "bytes=1000-"


def in_hub_cache(root: Path, files: dict[str, bytes]) -> Path:
    """Files as huggingface_hub keeps them: links to blobs."""
    base = root / "models--org--repo"
    snapshot = base / "snapshots" / COMMIT
    for folder in (snapshot, base / "blobs", base / "refs"):
        folder.mkdir(parents=True, exist_ok=True)
    (base / "refs/main").write_text(COMMIT)
    for name, body in files.items():
        (base / "blobs" / digest(body)).write_bytes(body)
        (snapshot / name).symlink_to(base / "blobs" / digest(body))
    return snapshot


def test_what_the_hubs_own_cache_holds_is_used_without_network(server, tmp_path, monkeypatch):
    monkeypatch.setattr(socket, "socket", None)
    snapshot = in_hub_cache(tmp_path / "hf", {"config.json": CONFIG, "model.safetensors": MODEL})
    assert fetch_repo(pinned()) == snapshot
    assert fetch_repo(REPO, offline=True) == snapshot
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert fetch_repo(REPO) == snapshot
    assert fetch_repo(f"{REPO}/model.safetensors") == snapshot / "model.safetensors"
    card = Card("ViT-Ti/16", "test", file="b/w.npz", sources=(pinned("model.safetensors"),))
    assert find(card) == fetch(card) == snapshot / "model.safetensors"
    values = lock.lock_values(entries(REPO))
    assert values["commits"] == {"org/repo@main": COMMIT}
    values["files"][f"hub/org/repo/{COMMIT}/model.safetensors"]["sha256"] = digest(tensors(1))
    lock.write_json(tmp_path / "my.lock", values)
    monkeypatch.setenv("KERAS_VIT_LOCK", str(tmp_path / "my.lock"))
    with pytest.raises(ValueError, match=r"my\.lock lists"):
        find(card)
    with pytest.raises(ValueError, match=r"my\.lock lists"):
        fetch_repo(pinned())


def test_half_a_repository_is_not_taken_for_a_whole_one(server, repo, tmp_path):
    in_hub_cache(tmp_path / "hf", {"config.json": CONFIG})
    with pytest.raises(FileNotFoundError, match="and this is offline"):
        fetch_repo(pinned(), offline=True)
    repo({"config.json": CONFIG, "model.safetensors": MODEL}, cut=10, ranges=False)
    with pytest.raises(OSError, match="broke off"):
        fetch_repo(pinned())
    with pytest.raises(FileNotFoundError, match="and this is offline"):
        fetch_repo(pinned(), offline=True)
    repo({"config.json": CONFIG, "model.safetensors": MODEL})
    assert names(fetch_repo(pinned())) == ["config.json", "model.safetensors"]


def test_a_card_is_fetched_from_the_hub_in_another_container(server, repo, tmp_path):
    repo({"model.safetensors": MODEL})
    source = pinned("model.safetensors")
    card = Card("ViT-Ti/16", "test", file="b/w.npz", sources=(server.url("/w.npz"), source), size=9)
    path = fetch(card)
    assert path == tmp_path / f"cache/hub/org/repo/{COMMIT}/model.safetensors"
    assert find(card) == path
    path.write_bytes(tensors(5))
    with pytest.raises(ValueError, match="was seen at its first download"):
        find(card)


def test_the_environment_names_the_hub_and_its_caches(server, repo, tmp_path):
    """As a user sets them, before Python starts."""
    repo({"config.json": CONFIG, "model.safetensors": MODEL})
    code = (
        "from keras_vit.zoo.fetching.addresses import fetch_repo\n"
        f"print(fetch_repo('hf://org/repo@{COMMIT}'))\n"
        "import sys; assert not {'keras', 'tensorflow', 'jax'} & set(sys.modules)\n"
    )
    environment = {
        **os.environ,
        "HF_ENDPOINT": server.url(""),
        "HF_HOME": str(tmp_path / "home"),
        "HF_TOKEN": "hf_from_the_environment",
        "KERAS_HOME": str(tmp_path / "keras"),
    }
    environment.pop("KERAS_VIT_CACHE")
    done = subprocess.run(
        [sys.executable, "-P", "-c", code],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert Path(done.stdout.strip()) == tmp_path / "keras/keras_vit/hub/org/repo" / COMMIT
    assert server.requests[0].headers["Authorization"] == "Bearer hf_from_the_environment"


def test_addresses_of_the_hub_are_read_and_written_alike():
    for text in (
        "hf://org/repo",
        "hf://org/repo@v1.0/a/b.npz",
        f"hf://o/r@{COMMIT}",
        "hf://o/r@refs%2Fpr%2F1",
    ):
        assert str(parse(text)) == text
    assert parse("hf://o/r@refs%2Fpr%2F1") == Hub("o/r", "refs/pr/1")


class FakeStorage:
    """What is used of gcsfs.GCSFileSystem."""

    def __init__(self, files: dict[str, bytes], generation: str = "1"):
        self.files, self.generation, self.opened = files, generation, []
        self.breaks_at: int | None = None

    def invalidate_cache(self):
        pass

    def info(self, path):
        if path not in self.files:
            raise FileNotFoundError(path)
        return {"size": len(self.files[path]), "generation": self.generation}

    def open(self, path, mode, cache_type):
        storage, data = self, self.files[path]

        class File:
            at = 0

            def seek(self, position):
                storage.opened.append(position)
                self.at = position

            def read(self, count):
                if storage.breaks_at is not None and self.at >= storage.breaks_at:
                    storage.breaks_at = None
                    raise ConnectionResetError("reset")
                piece = data[self.at : self.at + min(count, 1000)]
                self.at += len(piece)
                return piece

            def close(self):
                pass

        return File()


@pytest.fixture
def storage(server, monkeypatch):
    made = FakeStorage({"bucket/a/w.safetensors": MODEL})
    monkeypatch.setattr(bucket, "has_client", lambda: True)
    monkeypatch.setattr(bucket, "_file_system", lambda: made)
    return made


def test_a_bucket_is_read_with_the_users_account(storage, tmp_path):
    path = fetch_url("gs://bucket/a/w.safetensors")
    assert path == tmp_path / "cache/gs/bucket/a/w.safetensors" and path.read_bytes() == MODEL
    with pytest.raises(OSError, match=r"gs://bucket/a/x\.npz does not have it"):
        fetch_url("gs://bucket/a/x.npz")


def test_a_bucket_that_breaks_is_gone_on_with(storage):
    storage.breaks_at = 2000
    assert fetch_url("gs://bucket/a/w.safetensors").read_bytes() == MODEL
    assert storage.opened == [0, 2000]


def test_a_bucket_that_ends_early_is_told(storage):
    storage.info = lambda path: {"size": len(MODEL) + 10, "generation": "1"}
    with pytest.raises(OSError, match="broke off with 10 bytes missing"):
        fetch_url("gs://bucket/a/w.safetensors")


def test_a_bucket_whose_file_changes_begins_again(storage):
    class Changing(FakeStorage):
        @property
        def generation(self):
            return "1" if self.breaks_at else "2"

        @generation.setter
        def generation(self, value):
            pass

    storage.__class__ = Changing
    storage.breaks_at = 2000
    assert fetch_url("gs://bucket/a/w.safetensors").read_bytes() == MODEL
    assert storage.opened == [0, 0]


def test_an_account_that_may_not_read_is_told(storage, monkeypatch):
    monkeypatch.setattr(
        storage, "info", lambda path: (_ for _ in ()).throw(PermissionError("Forbidden"))
    )
    with pytest.raises(OSError, match="refuses to give it to your account"):
        fetch_url("gs://bucket/a/w.safetensors")

    class RefreshError(Exception):
        pass

    monkeypatch.setattr(
        storage, "info", lambda path: (_ for _ in ()).throw(RefreshError("no\ncredentials"))
    )
    with pytest.raises(OSError, match=r"failed \(RefreshError: no credentials\)"):
        fetch_url("gs://bucket/a/w.safetensors")


@pytest.fixture
def public(server, monkeypatch):
    """Google's public host is the server."""
    monkeypatch.setattr(
        Bucket, "anonymous", property(lambda self: Web(server.url(f"/{self.bucket}/{self.file}")))
    )
    monkeypatch.setattr(
        bucket, "of_web", lambda source: Bucket(*source.url.split("/", 3)[3].split("/", 1))
    )
    return server


def test_without_the_extra_a_bucket_is_read_as_the_public_sees_it(public, monkeypatch):
    monkeypatch.setattr(bucket, "has_client", lambda: False)
    public.put("/bucket/a/w.safetensors", MODEL)
    assert fetch_url("gs://bucket/a/w.safetensors").read_bytes() == MODEL
    public.put("/bucket/b/w.safetensors", b"", status=403)
    with pytest.raises(
        OSError, match=r"refuses to give it \(403\); .*pip install 'keras-vit-zoo\[gs\]'"
    ):
        fetch_url("gs://bucket/b/w.safetensors")


def test_a_public_address_that_is_refused_is_read_with_the_users_account(public, storage):
    url = public.put("/bucket/a/w.safetensors", b"", status=403)
    assert fetch_url(url).read_bytes() == MODEL
    assert storage.opened == [0]
    public.put("/bucket/a/w.safetensors", b"", status=404)
    with pytest.raises(OSError, match="does not have it"):
        fetch_url(url + "?again")


def test_the_public_host_is_known_by_its_name():
    url = "https://storage.googleapis.com/vit_models/imagenet21k/ViT-B_16.npz"
    assert bucket.of_web(Web(url)) == Bucket("vit_models", "imagenet21k/ViT-B_16.npz")
    assert Bucket("vit_models", "imagenet21k+imagenet2012/x.npz").anonymous.url.endswith(
        "/vit_models/imagenet21k%2Bimagenet2012/x.npz"
    )
    assert bucket.of_web(Web(url.replace("storage", "store"))) is None
    assert web.is_loopback("127.0.0.1") and not web.is_loopback("127.0.0.1.org")
