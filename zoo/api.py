"""The public functions: from a name, a file or a spec to a model, and back to a file."""

import fnmatch
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from keras_vit.card import Card
from keras_vit.spec import ImageSpec, Spec, changed, pair
from keras_vit.zoo import names
from keras_vit.zoo.augreg import known_card
from keras_vit.zoo.cards import all_cards
from keras_vit.zoo.variants import VARIANTS

if TYPE_CHECKING:
    from keras_vit.model import VisionModel


def list_models(
    pattern: str = "*", *, family: str | None = None, pretrained: bool | None = None
) -> list[str]:
    """Names of models.

    Args:
        pattern: shell pattern on the name, `ViT-B*`.
        family: `vit` (DeiT, DINO, DINOv2, MAE and FlexiViT among them), `hybrid`, `resnet`,
            `mixer`; None for all.
        pretrained: True: `variant@tag` of every known checkpoint; False: variants of which nothing
            was ever released; None: all variants.

    Raises:
        ValueError: no such family.
    """
    families = sorted({variant.spec.family for variant in VARIANTS.values()})
    if family is not None and family not in families:
        raise ValueError(f"family must be one of {families}, got {family!r}.")
    found = {variant: variant for variant in VARIANTS}
    if pretrained is not None:
        cards = {card.name: card.variant for card in all_cards().values()}
        found = cards if pretrained else {v: v for v in VARIANTS if v not in cards.values()}
    return [
        name
        for name, variant in found.items()
        if family in (None, VARIANTS[variant].spec.family) and fnmatch.fnmatchcase(name, pattern)
    ]


def card(name: str) -> Card:
    """What is known of a checkpoint; a name without `@tag` means its default weights.

    Raises:
        ValueError: unknown name or tag (with the nearest), or nothing was released of the variant.
    """
    variant, tag = names.resolve(name)
    return known_card(variant, tag or names.default_tag(variant))


def build(
    name_or_spec: str | Spec,
    *,
    num_classes: int = 1000,
    image_size: int | tuple[int, int] = 224,
    allow_crop: bool = False,
    in_channels: int = 3,
    classifier_activation: str | None = None,
    dropout: float = 0.0,
    attention_dropout: float = 0.0,
    stochastic_depth: float = 0.0,
    dtype: Any = None,
) -> "VisionModel":
    """A model with random weights.

    Args:
        name_or_spec: a variant's name, or a spec, which is then built as it is (the other
            arguments but `dtype` belong to names).
        num_classes: outputs; 0 for features.
        image_size: pixels, int or (height, width).
        allow_crop: accept sizes that are no multiple of the patch, see `ViTSpec`.
        in_channels: channels of the input.
        classifier_activation: None for logits, `softmax`, `sigmoid`.
        dropout, attention_dropout, stochastic_depth: rates in [0, 1).
        dtype: Keras dtype policy.
    """
    from keras_vit.model import VisionModel

    if isinstance(name_or_spec, ImageSpec):
        return VisionModel(name_or_spec, dtype=dtype)
    variant, tag = names.resolve(name_or_spec)
    if tag:
        raise ValueError(
            f"build gives random weights and takes no tag: build({variant!r}), or load({name_or_spec!r})."
        )
    changes = {
        "num_classes": num_classes,
        "image_size": pair(image_size, "image_size"),
        "allow_crop": allow_crop,
        "in_channels": in_channels,
        "classifier_activation": classifier_activation,
        "dropout": dropout,
        "attention_dropout": attention_dropout,
        "stochastic_depth": stochastic_depth,
    }
    spec = changed(VARIANTS[variant].spec, changes, variant)
    return VisionModel(spec, dtype=dtype)


def load(
    name_or_spec: str | os.PathLike | Spec,
    *,
    weights: str | os.PathLike | None = "default",
    num_classes: int | None = None,
    new_head: bool = False,
    image_size: int | tuple[int, int] | None = None,
    allow_crop: bool = False,
    in_channels: int | None = None,
    classifier_activation: str | None = None,
    dropout: float | None = None,
    attention_dropout: float | None = None,
    stochastic_depth: float | None = None,
    posemb_resize: str | None = None,
    patch_size: int | tuple[int, int] | None = None,
    dtype: Any = None,
    cache_dir: str | os.PathLike | None = None,
    offline: bool | None = None,
) -> "VisionModel":
    """A model with pretrained weights; never a random one in silence.

    Args:
        name_or_spec: the paper's name (`ViT-L/16`), `name@tag`, any alias, the path of a checkpoint
            or `.keras` file, an address (`hf://ORG/REPO[@COMMIT][/FILE]`, `https://...`,
            `gs://...`), or a spec together with `weights=` a path or address.
        weights: `default`, a tag, a path (it has a separator or a suffix, or exists), an address,
            or None for random weights.
        num_classes: None or the checkpoint's own number keeps its head; another number makes a
            zero-initialised head and drops `pre_logits`; 0 gives features.
        new_head: make a new head even for the checkpoint's own number.
        image_size: pixels, int or (height, width); another than the checkpoint's resizes the
            position table and warns.
        allow_crop: accept sizes that are no multiple of the patch, see `ViTSpec`.
        in_channels: None for the checkpoint's; for another number the patch kernel is summed or
            tiled so that grey images repeated over channels give the same features (nearly so in
            hybrids and ResNets, which standardise the sum anew: fine-tune them).
        classifier_activation: None for logits, `softmax`, `sigmoid`.
        dropout, attention_dropout, stochastic_depth: None for what the card says.
        posemb_resize: None for what the card says; else one of `keras_vit.posemb.METHODS`.
        patch_size: None for the checkpoint's; another one resizes the patch kernel by the
            pseudo-inverse rule of FlexiViT, whose checkpoints are made for it.
        dtype: Keras dtype policy.
        cache_dir: where checkpoints are kept; None for KERAS_VIT_CACHE or the user's cache.
        offline: never touch the network; None for what HF_HUB_OFFLINE says.

    Returns:
        The model, with `card` set to what is known of the weights.

    Raises:
        ValueError: unknown name or tag, a file that does not fit; the message names all of it.
        FileNotFoundError: the weights are not on this machine; the message says how to get them.
    """
    from keras_vit.zoo import addressed, loading

    changes = {
        "num_classes": num_classes,
        "image_size": pair(image_size, "image_size") if image_size is not None else None,
        "patch_size": pair(patch_size, "patch_size") if patch_size is not None else None,
        "in_channels": in_channels,
        "allow_crop": allow_crop or None,
        "classifier_activation": classifier_activation,
        "dropout": dropout,
        "attention_dropout": attention_dropout,
        "stochastic_depth": stochastic_depth,
    }
    changes = {field: value for field, value in changes.items() if value is not None}
    if not isinstance(name_or_spec, (str, os.PathLike, ImageSpec)):
        raise ValueError(f"load takes a name, a path, an address or a spec, got {name_or_spec!r}.")
    if not isinstance(weights, (str, os.PathLike, type(None))):
        raise ValueError(f"weights must be a tag, a path, an address or None, got {weights!r}.")
    name_or_spec = addressed.fetched(addressed.named(name_or_spec), cache_dir, offline)
    weights = addressed.fetched(_tag_at(name_or_spec, weights), cache_dir, offline)
    if isinstance(name_or_spec, ImageSpec):
        checkpoint = loading.of_spec(name_or_spec, weights)
        asked = ("num_classes", "image_size", "in_channels")
        changes = {**{field: getattr(name_or_spec, field) for field in asked}, **changes}
    elif path := loading.as_path(name_or_spec):
        if weights != "default":
            raise ValueError(f"{name_or_spec} is a file already: leave weights= out.")
        checkpoint = loading.of_file(path, changes.get("image_size"))
    else:
        checkpoint = loading.of_name(str(name_or_spec), weights, cache_dir, offline)
    return loading.make_model(
        checkpoint, changes, new_head=new_head, posemb_resize=posemb_resize, dtype=dtype
    )


def _tag_at(name: Any, weights: Any) -> Any:
    """The weights; for the address of a known checkpoint of the named variant its tag."""
    from keras_vit.zoo import addressed

    known = addressed.named(weights)
    if known == weights or not isinstance(name, str):
        return weights
    variant, _, tag = known.partition("@")
    return tag if names.resolve(name) == (variant, None) else weights


def save_weights_as(
    model: "VisionModel",
    path: str | os.PathLike,
    *,
    format: str = "google_npz",
    dtype: str = "float32",
    force: bool = False,
) -> Path:
    """Writes weights in a published layout, and with them a JSON with spec, labels, preprocessing.

    Args:
        model: a model of this package.
        path: target, a file with the format's suffix or, for formats without one, a folder.
        format: `google_npz` (.npz, the official layout), `timm` (.safetensors, a state dict),
            `huggingface` (a folder), `keras_hub` (a folder, a preset), `keras_weights`
            (.weights.h5, as `save_weights` writes it).
        dtype: `float32`, or `float16` to halve the file.
        force: replace an existing file, or a folder that holds nothing but weights and JSON.

    Raises:
        ValueError: unknown format or dtype, another suffix, or something the layout cannot hold.
        FileExistsError: the target exists and is not to be, or cannot be, replaced.
    """
    from keras_vit.model import VisionModel
    from keras_vit.zoo.formats import FORMATS, write_weights

    path = Path(path)
    if not isinstance(model, VisionModel):
        raise ValueError(f"{model!r} is no model of this package: only those have a layout here.")
    if dtype not in ("float32", "float16"):
        raise ValueError(f"dtype must be 'float32' or 'float16', got {dtype!r}.")
    if format not in FORMATS:
        raise ValueError(f"format must be one of {list(FORMATS)}, got {format!r}.")
    if not path.name.endswith(FORMATS[format]):
        raise ValueError(f"{format} is written to a file {FORMATS[format]}, got {str(path)!r}.")
    if path.exists() and not force:
        raise FileExistsError(f"{path} exists: give another path, or force=True to replace it.")
    if not path.parent.is_dir() or not os.access(path.parent, os.W_OK):
        raise OSError(f"{path.parent} is no folder that can be written to: give another path.")
    about = {"spec": model.spec.to_dict(), "card": model.card.to_dict() if model.card else None}
    write_weights(model, path, format=format, dtype=dtype, about=about)
    return path
