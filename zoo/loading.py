"""How `load` works: find the checkpoint and its own architecture, decide the target's, fill it."""

import dataclasses
import json
import os
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from keras_vit.card import Card
from keras_vit.model import VisionModel
from keras_vit.spec import ViTSpec, spec_from_dict
from keras_vit.zoo import names
from keras_vit.zoo.cards import all_cards
from keras_vit.zoo.fetch import find
from keras_vit.zoo.formats import google_npz
from keras_vit.zoo.formats.keras_file import load_keras_file
from keras_vit.zoo.variants import VARIANTS

SUFFIXES = (".npz", ".keras")
NETWORK = ("hf://", "http://", "https://", "gs://")


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """Where weights are and what network they were saved from.

    Attributes:
        spec: the network of the weights, at their own resolution and with their own head.
        card: what is known of them, or None.
        weights: path or arrays in the official layout; None for random ones.
        dtype: policy the model was saved with, None when unknown.
        model: the model itself when the container rebuilt it already.
    """

    spec: ViTSpec
    card: Card | None = None
    weights: Path | Mapping[str, np.ndarray] | None = None
    dtype: str | None = None
    model: VisionModel | None = None


def as_path(value: Any) -> Path | None:
    """The value as a path when it is one: a PathLike, an existing file, or with a known suffix.

    Raises:
        FileNotFoundError: it is a path of nothing.
    """
    text = os.fspath(value)
    if not isinstance(value, os.PathLike) and not Path(text).is_file():
        if text.startswith(NETWORK) or Path(text).suffix not in SUFFIXES:
            return None
    if not Path(text).is_file():
        raise FileNotFoundError(f"{text} does not exist: give the path of a checkpoint file.")
    return Path(text)


def of_spec(spec: ViTSpec, weights: Any) -> Checkpoint:
    """A spec with the weights of a file, or random ones."""
    if weights is None:
        return Checkpoint(spec)
    path = None if weights == "default" else as_path(weights)
    if path is None:
        raise ValueError(
            f"a spec has no weights={weights!r}: give the path of a file, or None for random ones."
        )
    return _with_file(path, spec)


def of_file(path: Path, image_size: tuple[int, int] | None) -> Checkpoint:
    """A lone file: the JSON beside it tells what it is, else the weights themselves do."""
    if path.suffix == ".keras":
        model = load_keras_file(path)
        arrays = google_npz.to_arrays(model)
        return Checkpoint(model.spec, model.card, arrays, model.policy.name, model)
    beside = google_npz.sidecar(path)
    if not beside.is_file():
        return Checkpoint(google_npz.spec_of(path, image_size=image_size), None, path)
    try:
        about = json.loads(beside.read_text("utf-8"))
        card = Card.from_dict(about["card"]) if about.get("card") else None
        return Checkpoint(spec_from_dict(about["spec"]), card, path)
    except (json.JSONDecodeError, KeyError, TypeError) as error:
        raise ValueError(
            f"{beside} does not describe {path.name} ({error}): restore it or move it away."
        ) from None


def of_name(name: str, weights: Any, cache_dir: Any, offline: bool | None) -> Checkpoint:
    """A variant with default, named, random or a file's weights."""
    if name.startswith(NETWORK):
        raise ValueError(
            f"{name}: this version fetches nothing; download the file and give its path."
        )
    variant, tag = names.resolve(name)
    if tag and weights != "default":
        raise ValueError(f"{name} names weights already: leave @{tag} or weights={weights!r} out.")
    if weights is None:
        return Checkpoint(VARIANTS[variant].spec)
    if weights != "default":
        if path := as_path(weights):
            return _with_file(path, VARIANTS[variant].spec)
        tag = names.resolve_tag(variant, str(weights))
    card = all_cards()[f"{variant}@{tag or names.default_tag(variant)}"]
    spec = dataclasses.replace(
        VARIANTS[variant].spec,
        **{"image_size": card.image_size, "num_classes": card.num_classes, **card.spec},
    )
    return Checkpoint(spec, card, find(card, cache_dir=cache_dir, offline=offline))


def _with_file(path: Path, spec: ViTSpec) -> Checkpoint:
    """A file for a known architecture: head, resolution and pooling are the file's, the rest the spec's."""
    checkpoint = of_file(path, spec.image_size)
    theirs = checkpoint.spec
    fixed = ("hidden_size", "mlp_dim", "num_heads", "num_layers", "patch_size")
    differ = [f for f in fixed if getattr(spec, f) != getattr(theirs, f)]
    if differ:
        raise ValueError(
            f"{path} is another network: it has "
            + ", ".join(f"{f} {getattr(theirs, f)} instead of {getattr(spec, f)}" for f in differ)
            + "."
        )
    cells = theirs.grid[0] * theirs.grid[1] == spec.grid[0] * spec.grid[1]
    own = dataclasses.replace(
        spec,
        image_size=spec.image_size if cells else theirs.image_size,
        in_channels=theirs.in_channels,
        num_classes=theirs.num_classes,
        representation_size=theirs.representation_size,
        pool=theirs.pool if theirs.has_cls != spec.has_cls else spec.pool,
    )
    return dataclasses.replace(checkpoint, spec=own)


def make_model(
    checkpoint: Checkpoint,
    changes: dict[str, Any],
    *,
    new_head: bool,
    posemb_resize: str | None,
    dtype: Any,
) -> VisionModel:
    """Builds the wanted network and fills it with what the checkpoint has for it.

    Args:
        checkpoint: the weights and their own network.
        changes: spec fields the caller asked for.
        new_head: a new head even for the same number of classes.
        posemb_resize: None for the card's rule.
        dtype: policy, None for the saved or global one.
    """
    own, card = checkpoint.spec, checkpoint.card
    target = dataclasses.replace(own, **changes)
    makes_head = target.num_classes != 0 and (new_head or target.num_classes != own.num_classes)
    if makes_head:
        target = dataclasses.replace(target, representation_size=None)
    if checkpoint.weights is None:
        return VisionModel(target, dtype=dtype)
    if checkpoint.model is not None and target == own and not makes_head and dtype is None:
        return checkpoint.model
    skip = []
    if makes_head:
        skip = [r"head/.*", r"pre_logits/.*"]
    elif not target.num_classes:
        skip = [r"head/.*"]
    if target.in_channels != own.in_channels:
        skip.append(r"embedding/kernel")
    model = VisionModel(
        target, card=_card_of(card, target, makes_head), dtype=dtype or checkpoint.dtype
    )
    rule = posemb_resize or (card.posemb_resize if card else "align_corners")
    google_npz.load_weights(
        model, checkpoint.weights, skip=skip, source_grid=own.grid, posemb_resize=rule
    )
    if target.in_channels != own.in_channels:
        kernel = google_npz.read(checkpoint.weights)["embedding/kernel"][1].read()
        model.get_layer("embedding").kernel.assign(adapt_channels(kernel, target.in_channels))
    _warn(model, own, card, makes_head)
    return model


def adapt_channels(kernel: np.ndarray, channels: int) -> np.ndarray:
    """(h, w, old, D) -> (h, w, channels, D): summed for fewer channels, tiled for more.

    For fewer channels, and when tiling a whole number of times, a grey image repeated over all
    channels gives the same features as before; otherwise the scale is old / channels.
    """
    old = kernel.shape[2]
    if channels < old:
        return np.repeat(kernel.sum(axis=2, keepdims=True) / channels, channels, axis=2)
    return np.take(kernel, np.arange(channels) % old, axis=2) * (old / channels)


def _card_of(card: Card | None, target: ViTSpec, makes_head: bool) -> Card | None:
    if card is None:
        return None
    card = dataclasses.replace(card, image_size=target.image_size, num_classes=target.num_classes)
    if makes_head:
        card = dataclasses.replace(card, class_names=None, usable_head=False, metrics=())
    return card


def _warn(model: VisionModel, own: ViTSpec, card: Card | None, makes_head: bool) -> None:
    if makes_head or not model.spec.num_classes:
        return
    name = card.name if card else "this checkpoint"
    if not model.has_usable_head:
        warnings.warn(
            f"{name} has no usable head: its weights are zeros on purpose, so every class scores the "
            f"same. Give num_classes= to fine-tune, or num_classes=0 for features.",
            stacklevel=4,
        )
    if model.spec.grid != own.grid:
        warnings.warn(
            f"{name} was trained with {own.grid[0]}x{own.grid[1]} patches and is now used with "
            f"{model.spec.grid[0]}x{model.spec.grid[1]}: accuracy drops until it is fine-tuned.",
            stacklevel=4,
        )
