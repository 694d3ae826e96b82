"""A checkpoint is found where a user put it, checked, and never mistaken for another."""

import dataclasses
import hashlib
import os
from pathlib import Path

import pytest

from keras_vit.card import Card
from keras_vit.zoo import cards, fetch
from keras_vit.zoo.cards import all_cards
from keras_vit.zoo.fetch import PREDICTION_SLACK, find
from keras_vit.zoo.fetching import hub, places

DATA = b"weights of a test"
FILE = "bucket/folder/File 1.npz"
CARD = Card(
    "ViT-B/16",
    "test",
    file=FILE,
    sources=("https://example.org/first/File%201.npz", "https://example.com/second/File%201.npz"),
    hub="org/name",
    size=len(DATA),
    sha256=hashlib.sha256(DATA).hexdigest(),
)


@pytest.fixture(autouse=True)
def empty_machine(tmp_path, monkeypatch):
    """No mirror, no lock file, and caches of its own."""
    for name in (fetch.MIRROR_VARIABLE, cards.CARDS_VARIABLE, "KERAS_HOME", "HF_HUB_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("KERAS_VIT_LOCK", "")
    monkeypatch.setattr(hub.constants, "HF_HUB_CACHE", str(tmp_path / "hf"))
    monkeypatch.setenv(fetch.CACHE_VARIABLE, str(tmp_path / "cache"))


@pytest.fixture
def mirror(tmp_path, monkeypatch):
    folder = tmp_path / "mirror"
    folder.mkdir()
    monkeypatch.setenv(fetch.MIRROR_VARIABLE, str(folder))
    return folder


def put(path: Path, content: bytes = DATA) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def sparse(path: Path, size: int) -> Path:
    """A file of a full-size checkpoint's size that takes no disk."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        file.truncate(size)
    return path


@pytest.mark.parametrize("place", ["bucket/folder/File 1.npz", "folder/File 1.npz", "File 1.npz"])
def test_mirror_holds_published_paths_or_is_flat(mirror, place):
    path = put(mirror / place)
    assert find(CARD) == path


def test_order_is_mirror_then_cache(mirror, tmp_path):
    cached = put(tmp_path / "cache" / FILE)
    assert find(CARD) == cached
    flat = put(mirror / "File 1.npz")
    assert find(CARD) == flat
    assert find(CARD) != cached
    full = put(mirror / FILE)
    assert find(CARD) == full


def test_cache_is_an_argument_then_a_variable_then_the_home(tmp_path, monkeypatch):
    by_variable = put(tmp_path / "cache" / FILE)
    assert find(CARD) == by_variable
    by_argument = put(tmp_path / "other" / FILE)
    assert find(CARD, cache_dir=tmp_path / "other") == by_argument
    monkeypatch.delenv(fetch.CACHE_VARIABLE)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    at_home = put(tmp_path / "home/.cache/keras_vit" / FILE)
    assert find(CARD) == at_home


@pytest.mark.case("L10", "L13")
def test_a_missing_file_is_explained_completely(tmp_path):
    with pytest.raises(FileNotFoundError) as error:
        find(CARD)
    message = str(error.value)
    target = tmp_path / "cache" / FILE
    assert message.startswith(
        "the weights of ViT-B/16@test are not on this machine: bucket/folder/File 1.npz (17 bytes"
    )
    for part in (
        *CARD.sources,
        str(target),
        "KERAS_VIT_MIRROR",
        "weights=",
        "huggingface.co/org/name",
    ):
        assert part in message
    assert f"curl -fL -o '{target}' https://example.com/second/File%201.npz" in message
    assert not (tmp_path / "cache").exists()


def test_offline_gives_no_command_that_needs_a_network():
    with pytest.raises(FileNotFoundError) as error:
        find(CARD, offline=True)
    assert "curl" not in str(error.value)
    assert CARD.sources[0] in str(error.value)


def test_every_public_card_is_explained_with_its_exact_file():
    for card in all_cards().values():
        if card.file is None or card.file.startswith("embedded/"):
            continue
        with pytest.raises(FileNotFoundError) as error:
            find(card)
        size = f"about {card.size:,} bytes" if card.size else ""
        for part in (card.file, size, f"keras-vit fetch {card.name}", *card.sources):
            assert part in str(error.value)


def test_find_asks_no_mirror_that_is_an_address(monkeypatch, tmp_path):
    monkeypatch.setenv(fetch.MIRROR_VARIABLE, "https://mirror.example.org")
    with pytest.raises(FileNotFoundError, match="are not on this machine"):
        find(CARD)
    assert find(CARD, cache_dir=put(tmp_path / "here" / FILE).parents[2]).is_file()


def test_a_mirror_that_does_not_exist_is_named(monkeypatch, tmp_path):
    monkeypatch.setenv(fetch.MIRROR_VARIABLE, str(tmp_path / "nowhere"))
    with pytest.raises(FileNotFoundError, match="nowhere, which is no directory"):
        find(CARD)


def test_a_truncated_file_is_refused_with_both_sizes(mirror):
    path = put(mirror / FILE, DATA[:-1])
    with pytest.raises(
        ValueError, match=r"has 16 bytes, but ViT-B/16@test has 17: it is truncated"
    ) as error:
        find(CARD)
    assert str(path) in str(error.value)


def test_a_changed_file_is_refused_with_both_hashes(mirror):
    put(mirror / FILE, DATA[::-1])
    with pytest.raises(ValueError) as error:
        find(CARD)
    assert hashlib.sha256(DATA).hexdigest() in str(error.value)
    assert hashlib.sha256(DATA[::-1]).hexdigest() in str(error.value)


def test_a_predicted_size_leaves_room_for_headers_only(mirror):
    # 522 arrays, the most of any checkpoint, times what writers of npz differ by.
    assert 522 * (20 + 48) < PREDICTION_SLACK < 100_000
    card = dataclasses.replace(CARD, size=10**6, size_predicted=True, sha256=None)
    for size in (10**6 - PREDICTION_SLACK, 10**6, 10**6 + PREDICTION_SLACK):
        path = sparse(mirror / FILE, size)
        assert find(card) == path
    for size in (10**6 - PREDICTION_SLACK - 1, 10**6 + PREDICTION_SLACK + 1, 0):
        sparse(mirror / FILE, size)
        with pytest.raises(ValueError, match="but ViT-B/16@test has about 1,000,000"):
            find(card)


def test_unknown_sizes_are_not_compared(mirror):
    card = dataclasses.replace(CARD, size=None, sha256=None)
    path = put(mirror / FILE, b"")
    assert find(card) == path


def test_a_shared_file_name_is_told_apart_by_size(mirror):
    """ViT-B_16.npz is the name of four files; lying flat, only its size says which it is."""
    found = all_cards()
    flat = mirror / "ViT-B_16.npz"
    for tag in ("orig_in21k", "orig_in21k_ft_in1k_384"):
        sparse(flat, found[f"ViT-B/16@{tag}"].size)
        assert find(found[f"ViT-B/16@{tag}"]) == flat
        with pytest.raises(ValueError, match="another file"):
            find(found["ViT-B/16@sam_in1k"])
    # The SAM and GSAM files differ by the class token only, less than the slack.
    sparse(flat, found["ViT-B/16@sam_in1k"].size)
    with pytest.raises(
        ValueError, match=r"may be ViT-B/16@sam_in1k or ViT-B/16@gsam_in1k, .*put it at"
    ):
        find(found["ViT-B/16@sam_in1k"])
    path = sparse(mirror / "sam/ViT-B_16.npz", found["ViT-B/16@sam_in1k"].size)
    assert find(found["ViT-B/16@sam_in1k"]) == path


def test_a_file_beside_a_users_table_is_used(tmp_path, monkeypatch):
    folder = tmp_path / "own"
    put(folder / "birds.npz")
    (folder / "mine.toml").write_text(
        f'[[card]]\nvariant = "ViT-B/16"\ntag = "birds"\nfile = "birds.npz"\nsize = {len(DATA)}\n'
    )
    monkeypatch.setenv(cards.CARDS_VARIABLE, str(folder))
    cards._merged.cache_clear()
    card = all_cards()["ViT-B/16@birds"]
    assert find(card) == folder / "birds.npz"
    (folder / "birds.npz").unlink()
    with pytest.raises(FileNotFoundError, match=r"birds\.npz of ViT-B/16@birds does not exist"):
        find(card)
    cards._merged.cache_clear()


def test_a_card_without_a_file_says_so():
    with pytest.raises(FileNotFoundError, match="names no file: give weights="):
        find(dataclasses.replace(CARD, file=None, sources=()))


def test_embedded_models_come_from_the_package(tmp_path, monkeypatch):
    card = dataclasses.replace(CARD, file="embedded/tiny.npz")
    monkeypatch.setattr(places.resources, "files", lambda package: tmp_path / package)
    with pytest.raises(FileNotFoundError, match=r"ships inside the package.*reinstall"):
        find(card)
    path = put(tmp_path / "keras_vit.zoo/embedded/tiny.npz")
    assert find(card) == path
    put(path, DATA + b"!")
    with pytest.raises(ValueError, match="has 18 bytes"):
        find(card)


def test_nothing_is_written_and_nothing_is_asked_of_the_network(mirror, tmp_path, monkeypatch):
    import socket

    def refuse(*args, **kwargs):
        raise AssertionError("a socket was opened")

    monkeypatch.setattr(socket, "socket", refuse)
    before = sorted(os.walk(tmp_path))
    hub_card = dataclasses.replace(CARD, sources=("hf://org/repo/model.safetensors",))
    for card in (CARD, hub_card):
        with pytest.raises(FileNotFoundError):
            find(card)
    assert sorted(os.walk(tmp_path)) == before
