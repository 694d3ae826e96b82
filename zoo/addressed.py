"""Addresses that users give where a name could stand: of a known checkpoint, or of any weights."""

import os
import re
from typing import Any
from urllib.parse import unquote

from keras_vit.card import Card
from keras_vit.zoo import augreg
from keras_vit.zoo.cards import all_cards
from keras_vit.zoo.fetch import fetch
from keras_vit.zoo.fetching.sources import GOOGLE_HOST, NETWORK


def named(value: Any) -> Any:
    """The value; for an address that is a source of a card the name of that card.

    A known checkpoint is more than its file: labels, preprocessing, numerics, hash, and the place in
    the cache where its name finds it.
    """
    card = _card_at(value)
    return card.name if card else value


def fetched(
    value: Any, cache_dir: str | os.PathLike | None = None, offline: bool | None = None
) -> Any:
    """The value; for an address the path of what was fetched from there.

    Raises:
        OSError, ValueError: it cannot be fetched, or is no address of weights.
    """
    if not is_address(value):
        return value
    if card := _card_at(value):
        return fetch(card, cache_dir=cache_dir, offline=offline)
    from keras_vit.zoo.fetching.addresses import fetch_repo, fetch_url

    by_scheme = fetch_repo if value.startswith("hf://") else fetch_url
    return by_scheme(value, cache_dir=cache_dir, offline=offline)


def is_address(value: Any) -> bool:
    """Whether a value is the address of something on the network."""
    return isinstance(value, str) and value.startswith(NETWORK)


def _card_at(value: Any) -> Card | None:
    """The card that has a file, or the weights of a hub repository, among its sources."""
    if not is_address(value):
        return None
    wanted = {_comparable(value), _comparable(f"{value.rstrip('/')}/model.safetensors")}
    made = augreg.card_of(value)
    for card in (*all_cards().values(), *([made] if made else ())):
        if not wanted.isdisjoint(map(_comparable, card.sources)):
            return card
    return None


def _comparable(address: str) -> str:
    """An address without the choices of spelling: Google's two schemes, and quoted characters."""
    return unquote(re.sub(r"^gs://", f"https://{GOOGLE_HOST}/", address))
