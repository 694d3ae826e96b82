"""How `load` works: find the checkpoint and its own architecture, decide the target's, fill it."""

import dataclasses
import math
import os
import re
import warnings
from pathlib import Path
from typing import Any

import keras

from keras_vit.card import Card
from keras_vit.model import HEADS, VisionModel
from keras_vit.spec import ResNetSpec, Spec, ViTSpec, changed
from keras_vit.zoo import adapt, names
from keras_vit.zoo.addressed import is_address
from keras_vit.zoo.augreg import known_card
from keras_vit.zoo.cards import all_cards, card_spec
from keras_vit.zoo.fetch import fetch
from keras_vit.zoo.formats import read_weights, sidecar
from keras_vit.zoo.formats.configs import read_config
from keras_vit.zoo.formats.detect import what_is
from keras_vit.zoo.formats.entry import Entry
from keras_vit.zoo.formats.keras_file import checked_spec, load_keras_file
from keras_vit.zoo.formats.keys import Weights
from keras_vit.zoo.infer import spec_of
from keras_vit.zoo.variants import VARIANTS
from keras_vit.zoo.weights import model_of

SUFFIXES = (".npz", ".keras", ".safetensors", ".h5")


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """Where weights are and what network they were saved from.

    Attributes:
        spec: the network of the weights, at their own resolution and with their own head.
        card: what is known of them, or None.
        weights: what the file holds; None for random ones.
        dtype: policy the model was saved with, None when unknown.
        model: the model itself when the container rebuilt it already.
        patch_resize: the card's rule for other patch sizes where there is no card.
    """

    spec: Spec
    card: Card | None = None
    weights: Weights | None = None
    dtype: str | None = None
    model: VisionModel | None = None
    patch_resize: str | None = None

    @property
    def any_patch(self) -> bool:
        """Whether the weights are made for any patch size, so that the file's needs not be the spec's."""
        return bool(self.patch_resize or (self.card and self.card.patch_resize))


def as_path(value: Any) -> Path | None:
    """The value as a path when it is one: a PathLike, an existing file, a folder that holds a model, an
    index of shards, or something with a known suffix.

    Raises:
        FileNotFoundError: it is a path of nothing.
    """
    text = os.fspath(value)
    path = Path(text).expanduser()
    is_path = isinstance(value, os.PathLike) or path.is_file() or _is_folder(path)
    if not is_path and (is_address(text) or path.suffix not in SUFFIXES):
        return None
    if not path.exists():
        raise FileNotFoundError(f"{text} does not exist: give the path of a checkpoint file.")
    return path


def _is_folder(path: Path) -> bool:
    """Whether it is a folder of weights, and not one that happens to be called like a model."""
    if not path.is_dir():
        return False
    holds_model = any(path.glob("*.safetensors")) or (path / "config.json").is_file()
    return holds_model or path.is_absolute()


def of_spec(spec: Spec, weights: Any) -> Checkpoint:
    """A spec with the weights of a file, or random ones."""
    if weights is None:
        return Checkpoint(spec)
    path = None if weights == "default" else as_path(weights)
    if path is None:
        raise ValueError(
            f"a spec has no weights={weights!r}: give the path of a file, or None for random ones."
        )
    return _with_file(path, spec)


def of_file(path: Path, image_size: tuple[int, int] | None, like: Spec | None = None) -> Checkpoint:
    """A lone file or folder: the JSON beside it tells what it is, else the container does, else its
    weights themselves.

    Args:
        path: of the file or folder.
        image_size: for weights that do not tell it.
        like: the network that is expected, for what nothing tells.
    """
    if what_is(path) == "keras":
        model = load_keras_file(path)
        return Checkpoint(model.spec, model.card, weights_of(model), model.policy.name, model)
    beside = sidecar(path)
    if not beside.is_file():
        weights = read_weights(path, spec=like)
        spec = spec_of(weights, image_size=image_size, like=like)
        return Checkpoint(spec, _card_told(weights, spec, path), weights)
    try:
        about = read_config(beside).values
        card = Card.from_dict(about["card"]) if about.get("card") else None
        spec = checked_spec(about)
        weights = read_weights(path, spec=spec)
        stored = sum(math.prod(entry.shape) for entry in weights.entries.values())
        if spec.num_params > 2 * stored + 1_000_000:  # before memory is taken for it
            raise ValueError(f"its network has {spec.num_params:,} parameters, the file {stored:,}")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(
            f"{beside} does not describe {path.name} ({error}): restore it or move it away."
        ) from None
    return Checkpoint(spec, card, weights)


def _card_told(weights: Weights, spec: Spec, path: Path) -> Card | None:
    """What a container tells beyond the network: class names and preprocessing."""
    known = dict(weights.known)
    if len(known.get("class_names", ())) != spec.num_classes:
        known.pop("class_names", None)
    if not known:
        return None
    return Card(
        variant="custom",
        tag=re.sub(r"[^\w.-]+", "_", path.resolve().stem) or "file",
        num_classes=spec.num_classes,
        image_size=spec.image_size,
        posemb_resize=weights.posemb_resize,
        **known,
    )


def weights_of(model: VisionModel) -> Weights:
    """A model's own weights, as if they were a file's."""
    entries = {
        v.path: Entry(tuple(v.shape), v.dtype, lambda v=v: keras.ops.convert_to_numpy(v))
        for v in model.weights
    }
    return Weights(
        model.name, entries, {p: p for p in entries}, {p: e.shape for p, e in entries.items()}
    )


def of_name(name: str, weights: Any, cache_dir: Any, offline: bool | None) -> Checkpoint:
    """A variant with default, named, random or a file's weights."""
    variant, tag = names.resolve(name)
    if tag and weights != "default":
        raise ValueError(f"{name} names weights already: leave @{tag} or weights={weights!r} out.")
    if weights is None:
        return Checkpoint(VARIANTS[variant].spec)
    if weights != "default":
        if not _is_tag(variant, weights) and (path := as_path(weights)):
            return _with_file(path, VARIANTS[variant].spec, variant)
        tag = names.resolve_tag(variant, str(weights))
    card = known_card(variant, tag or names.default_tag(variant))
    path = fetch(card, cache_dir=cache_dir, offline=offline)
    return Checkpoint(card_spec(card), card, read_weights(path))


def _is_tag(variant: str, weights: Any) -> bool:
    """Whether a word is a tag, which it is before it is the name of a file or folder."""
    if not isinstance(weights, str) or set(weights) & {"/", os.sep, "."}:
        return False
    try:
        return bool(names.resolve_tag(variant, weights))
    except ValueError:
        return False


# What makes two networks different ones; the rest is a matter of head, resolution and numerics.
FIXED = (
    "family",
    "hidden_size",
    "mlp_dim",
    "num_heads",
    "num_layers",
    "patch_size",
    "ffn",
    "posemb_at",
    "attention",
    "distilled",
    "num_registers",
    "tokens_mlp_dim",
    "channels_mlp_dim",
)
TRUNK = ("block_units", "width_factor", "preactivation")


def _with_file(path: Path, spec: Spec, variant: str | None = None) -> Checkpoint:
    """A file for a known architecture: head, resolution and pooling are the file's, the rest the spec's.

    For a name, a file that this package wrote keeps its own numerics too. Positions and patches are
    resized by the rules of the variant's published checkpoints, whatever the container would do,
    unless the file has a card of its own.
    """
    checkpoint = of_file(path, spec.image_size, spec)
    theirs = checkpoint.spec
    rules = checkpoint.card
    if variant and (rules is None or rules.variant == "custom"):  # told by the container only
        kin = [card for card in all_cards().values() if card.variant == variant]
        rules = next((c for c in kin if c.patch_resize), None) or next(iter(kin), rules)
    checkpoint = dataclasses.replace(checkpoint, patch_resize=rules and rules.patch_resize)
    differ = {
        field: (found, wanted)
        for field, found, wanted in _identity(theirs, spec)
        if found != wanted and not (checkpoint.any_patch and field == "patch_size")
    }
    if "family" in differ:  # which says it all
        differ = {"family": differ["family"]}
    if differ:
        raise ValueError(
            f"{path} is another network: it has "
            + ", ".join(f"{field} {a} instead of {b}" for field, (a, b) in differ.items())
            + "."
        )
    cells = theirs.grid[0] * theirs.grid[1] == spec.grid[0] * spec.grid[1]
    if variant and (checkpoint.model is not None or sidecar(path).is_file()):
        flexible = ("patch_size", "image_size") if checkpoint.any_patch else ()
        spec = dataclasses.replace(theirs, **{field: getattr(spec, field) for field in flexible})
    fields = {
        "image_size": spec.image_size if cells or checkpoint.any_patch else theirs.image_size,
        "in_channels": theirs.in_channels,
        "num_classes": theirs.num_classes,
    }
    if isinstance(theirs, ViTSpec) and isinstance(spec, ViTSpec):
        fields["representation_size"] = theirs.representation_size
        fields["pool"] = theirs.pool if theirs.has_cls != spec.has_cls else spec.pool
    if rules and checkpoint.weights:
        method = rules.posemb_resize
        weights = dataclasses.replace(checkpoint.weights, posemb_resize=method)
        card = checkpoint.card and dataclasses.replace(checkpoint.card, posemb_resize=method)
        checkpoint = dataclasses.replace(checkpoint, weights=weights, card=card)
    return dataclasses.replace(checkpoint, spec=dataclasses.replace(spec, **fields))


def _identity(theirs: Spec, ours: Spec):
    """(field, theirs, ours) of what must agree."""
    for field in FIXED:
        yield field, getattr(theirs, field, None), getattr(ours, field, None)
    bodies = [getattr(s, "resnet", getattr(s, "body", None)) for s in (theirs, ours)]
    for field in TRUNK:
        yield field, *(getattr(body, field, None) for body in bodies)


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
    target = changed(own, changes, card.name if card else "this model")
    makes_head = target.num_classes != 0 and (new_head or target.num_classes != own.num_classes)
    if makes_head and isinstance(target, ViTSpec):
        target = dataclasses.replace(target, representation_size=None)
    weights = checkpoint.weights
    if weights is None:
        return VisionModel(target, dtype=dtype)
    if checkpoint.model is not None and target == own and not makes_head and dtype is None:
        return checkpoint.model
    skip = []
    if makes_head:
        skip = [HEADS, r"pre_logits/.*"]
    elif not target.num_classes or _leaves_out_head(card, weights):
        skip = [HEADS]
    any_patch = checkpoint.any_patch or "patch_size" in changes
    if any_patch and not isinstance(target, ResNetSpec):
        weights = adapt.with_patches(weights, target.patch_size)
    if target.in_channels != own.in_channels:
        weights = adapt.with_channels(weights, target.input_layer, target.in_channels)
    model = model_of(
        weights,
        target,
        card=_card_of(card, target, makes_head),
        dtype=dtype or checkpoint.dtype,
        frozen=_frozen(checkpoint.model, makes_head),
        skip=skip,
        source_grid=adapt.stored_grid(weights, own) if checkpoint.any_patch else own.grid,
        posemb_resize=posemb_resize or (card.posemb_resize if card else weights.posemb_resize),
    )
    _warn(model, checkpoint, makes_head)
    return model


def _frozen(model: VisionModel | None, makes_head: bool) -> list[str]:
    """Paths of the layers that a saved model does not train; a new head is trained."""
    frozen = model.get_config()["frozen"] if model else []
    return [path for path in frozen if not (makes_head and re.fullmatch(HEADS, f"{path}/"))]


def _leaves_out_head(card: Card | None, weights: Weights) -> bool:
    """Whether this copy of a checkpoint has no head because the published one is all zeros."""
    return card is not None and not card.usable_head and "head/kernel" not in weights.entries


def _card_of(card: Card | None, target: Spec, makes_head: bool) -> Card | None:
    if card is None:
        return None
    how = card.preprocessing
    if how.resize_to and target.image_size != card.image_size:
        # The crop keeps its share of the image: 224 of 256 becomes 336 of 384.
        side = max if how.resize == "stretch" else min
        resize_to = round(how.resize_to * side(target.image_size) / side(card.image_size))
        how = dataclasses.replace(how, resize_to=max(resize_to, side(target.image_size)))
    card = dataclasses.replace(
        card, image_size=target.image_size, num_classes=target.num_classes, preprocessing=how
    )
    if makes_head:
        card = dataclasses.replace(card, class_names=None, usable_head=False, metrics=())
    return card


def _warn(model: VisionModel, checkpoint: Checkpoint, makes_head: bool) -> None:
    if makes_head or not model.spec.num_classes:
        return
    own, card = checkpoint.spec, checkpoint.card
    name = card.name if card else "this checkpoint"
    if not model.has_usable_head:
        warnings.warn(
            f"{name} has no usable head: its weights are zeros on purpose, so every class scores the "
            f"same. Give num_classes= to fine-tune, or num_classes=0 for features.",
            stacklevel=4,
        )
    (h, w), (new_h, new_w) = (getattr(s, "patch_size", (1, 1)) for s in (own, model.spec))
    if checkpoint.any_patch and model.spec.image_size == own.image_size:
        return
    if (h, w) != (new_h, new_w) and not checkpoint.any_patch:
        trained = f"patches of {h}x{w} pixels"
    else:
        by_pixels = isinstance(own, ResNetSpec)
        sizes = [spec.image_size if by_pixels else spec.grid for spec in (own, model.spec)]
        (h, w), (new_h, new_w) = sizes
        if sizes[0] == sizes[1]:
            return
        trained = f"{h}x{w} {'pixels' if by_pixels else 'patches'}"
    warnings.warn(
        f"{name} was trained with {trained} and is now used with {new_h}x{new_w}: accuracy drops until "
        f"it is fine-tuned.",
        stacklevel=4,
    )
