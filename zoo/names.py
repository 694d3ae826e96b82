"""From any name a model goes by to its variant and tag.

Understood, without regard to case and to `_`, `-`, `/`, `+` or space between words:

- the paper's names, `ViT-L/16`, `ViT-L/16@augreg_in21k_ft_in1k_384`, and shorter, `vit_l16`, `L/16`;
- checkpoint files, `ViT-L_16.npz`, `imagenet21k/ViT-L_16`, whole AugReg file names, their addresses;
- timm, `vit_large_patch16_384.augreg_in21k_ft_in1k`, also without the tag;
- Hugging Face, `google/vit-large-patch16-384`, `timm/...`; KerasHub, `vit_large_patch16_384_imagenet`.

Names of weights stand in the cards (`hub`, `aliases`, `file`, `sources`); spellings of variants in
`keras_vit.zoo.spellings`; what is not here in `keras_vit.zoo.scope`.
"""

import difflib
import re
from collections.abc import Callable, Iterable, Iterator

from keras_vit.card import Card
from keras_vit.zoo import augreg
from keras_vit.zoo.cards import all_cards, tags
from keras_vit.zoo.scope import out_of_scope
from keras_vit.zoo.spellings import fold, timm_variant, variant_of, without_suffix
from keras_vit.zoo.variants import VARIANTS

# What `load(variant)` gives. ViT and hybrids: AugReg fine-tuned on ImageNet-1k at the native resolution
# the authors recommend; else the paper's fine-tuned release; else its ImageNet-21k one, which has no
# usable head. The others: their authors' release with an ImageNet-1k head, where there is one, from
# the most data and the longest training; DeiT at the 224 px it was trained at.
DEFAULTS = {
    "ViT-Ti/16": "augreg_in21k_ft_in1k_384",
    "ViT-S/32": "augreg_in21k_ft_in1k_384",
    "ViT-S/16": "augreg_in21k_ft_in1k_384",
    "ViT-B/32": "augreg_in21k_ft_in1k_384",
    "ViT-B/16": "augreg_in21k_ft_in1k_384",
    "ViT-B/8": "augreg_in21k_ft_in1k_224",
    "ViT-L/32": "orig_in21k_ft_in1k_384",
    "ViT-L/16": "augreg_in21k_ft_in1k_384",
    "ViT-H/14": "orig_in21k",
    "R+ViT-Ti/16": "augreg_in21k_ft_in1k_384",
    "R26+ViT-S/32": "augreg_in21k_ft_in1k_384",
    "R26+ViT-B/32": "orig_in21k",
    "R50+ViT-B/16": "orig_in21k_ft_in1k_384",
    "R50+ViT-L/32": "augreg_in21k_ft_in1k_384",
    "BiT-R50x1": "bit_in21k_ft_in1k_480",
    "BiT-R50x3": "bit_in21k_ft_in1k_480",
    "BiT-R101x1": "bit_in21k_ft_in1k_480",
    "BiT-R101x3": "bit_in21k_ft_in1k_480",
    "BiT-R152x2": "bit_in21k_ft_in1k_480",
    "BiT-R152x4": "bit_in21k_ft_in1k_480",
    "Mixer-S/32": "gsam_in1k",
    "Mixer-S/16": "gsam_in1k",
    "Mixer-S/8": "gsam_in1k",
    "Mixer-B/32": "sam_in1k",
    "Mixer-B/16": "orig_in1k",
    "Mixer-L/16": "orig_in1k",
    "DeiT-Ti/16": "deit_in1k_224",
    "DeiT-S/16": "deit_in1k_224",
    "DeiT-B/16": "deit_in1k_224",
    "DeiT-Ti/16-distilled": "deit_in1k_224",
    "DeiT-S/16-distilled": "deit_in1k_224",
    "DeiT-B/16-distilled": "deit_in1k_224",
    "DINO-S/16": "dino_in1k",
    "DINO-B/16": "dino_in1k",
    "DINO-S/8": "dino_in1k",
    "DINO-B/8": "dino_in1k",
    "DINOv2-S/14": "dinov2_lvd142m",
    "DINOv2-B/14": "dinov2_lvd142m",
    "DINOv2-L/14": "dinov2_lvd142m",
    "DINOv2-g/14": "dinov2_lvd142m",
    "DINOv2-S/14-reg4": "dinov2_lvd142m",
    "DINOv2-B/14-reg4": "dinov2_lvd142m",
    "DINOv2-L/14-reg4": "dinov2_lvd142m",
    "DINOv2-g/14-reg4": "dinov2_lvd142m",
    "MAE-B/16": "mae_in1k",
    "MAE-L/16": "mae_in1k",
    "MAE-H/14": "mae_in1k",
    "FlexiViT-S": "flexi_in1k_1200ep",
    "FlexiViT-B": "flexi_in1k_1200ep",
    "FlexiViT-L": "flexi_in1k_1200ep",
    "ViT-Mini/4": "fashion_mnist",
}

# Folders of the published buckets, and data names, as tags: the first that the variant has.
TAG_GROUPS = {
    "imagenet21k": ("orig_in21k", "augreg_in21k", "bit_in21k"),
    "in21k": ("orig_in21k", "augreg_in21k", "bit_in21k"),
    "imagenet21k+imagenet2012": ("orig_in21k_ft_in1k", "bit_in21k_ft_in1k"),
    "imagenet21k+imagenet2012-224": ("orig_in21k_ft_in1k_224",),
    "imagenet1k": ("orig_in1k", "bit_in1k"),
    "orig": ("orig_in21k_ft_in1k", "orig_in21k"),
    "augreg": ("augreg_in21k_ft_in1k",),
    "sam": ("sam_in1k",),
    "gsam": ("gsam_in1k",),
    "bit-s": ("bit_in1k",),
    "bit-m": ("bit_in21k",),
    "bit": ("bit_in21k_ft_in1k", "bit_in21k"),
    "distill": ("distill_in1k",),
    "teacher": ("teacher_in21k_ft_in1k",),
}

# The weights that a name of timm's without a tag means here, best first: what it means to timm where
# that is known and here.
TIMM_ORDER = (
    "augreg_in21k_ft_in1k",
    "orig_in21k_ft_in1k",
    "goog_distilled_in1k",
    "goog_teacher_in21k_ft_in1k",
    "goog_in21k_ft_in1k",
    "1200ep_in1k",
    "fb_in1k",
    "lvd142m",
    "augreg_in1k",
    "augreg_in21k",
    "orig_in21k",
    "goog_in21k",
    "dino",
    "mae",
)

# One of each family, for messages.
EXAMPLES = ("ViT-B/16", "R50+ViT-B/16", "BiT-R50x1", "Mixer-B/16", "DeiT-B/16", "DINOv2-B/14")


def resolve(name: str) -> tuple[str, str | None]:
    """Variant and tag that a name means; the tag is None when the name names no weights.

    Raises:
        ValueError: nothing goes by that name (the message gives the nearest), or the variant has no
            such tag (the message gives those it has).
    """
    text = str(name).strip()
    base, at, tag = text.partition("@")
    if card := _named(text, _own_names):
        return card.variant, card.tag
    variant = variant_of(base)
    # Before the files: ViT-S_32.npz was published once, but it names the variant all the same.
    if variant is None or tag:
        if card := _named(text, _files) or augreg.card_of(text):
            return card.variant, card.tag
        if variant is None and not tag and (found := _timm(text)):
            return found
    if variant is None:
        raise ValueError(_unknown(text))
    if at and not tag:
        raise ValueError(f"{name!r} ends in @: add a tag of {variant}, {_listed(tags(variant))}.")
    return variant, resolve_tag(variant, tag) if tag else None


def resolve_tag(variant: str, tag: str) -> str:
    """The full tag that a tag, a tag without its resolution, or a bucket folder means for a variant.

    Raises:
        ValueError: the variant has no such tag; the message gives those it has.
    """
    known = tags(variant)
    folded = tag.strip().lower()
    for wanted in TAG_GROUPS.get(folded, (folded.replace("-", "_"),)):
        for candidate in known:
            if candidate.lower() == wanted:
                return candidate
        # Without its resolution a tag means the largest, and the authors' pick.
        longer = [c for c in known if re.fullmatch(rf"{re.escape(wanted)}_\d+", c.lower())]
        if longer:
            return max(longer, key=lambda c: int(c.rsplit("_", 1)[1]))
    # A series alone means the default where that belongs to it, else its only member.
    series = [c for c in known if c.lower().startswith(f"{folded}_")]
    if DEFAULTS.get(variant) in series or len(series) == 1:
        return DEFAULTS[variant] if DEFAULTS.get(variant) in series else series[0]
    if not known:
        raise ValueError(_nothing_released(variant))
    near = difflib.get_close_matches(folded, known, 1, 0.6)
    hint = f" Did you mean {variant}@{near[0]}?" if near else ""
    why = " Weights trained on JFT were never released." if "jft" in folded else ""
    raise ValueError(f"{variant} has no weights {tag!r}: it has {_listed(known)}.{why}{hint}")


def default_tag(variant: str) -> str:
    """The tag that `load(variant)` loads.

    Raises:
        ValueError: nothing was released of this variant.
    """
    if variant in DEFAULTS:
        return DEFAULTS[variant]
    own = tags(variant)  # of a user's own table
    if len(own) == 1:
        return own[0]
    if own:
        raise ValueError(f"{variant} has no default weights: name one of {_listed(own)}.")
    raise ValueError(_nothing_released(variant))


def _nothing_released(variant: str) -> str:
    near = difflib.get_close_matches(variant, DEFAULTS, 3, 0.0)
    return (
        f"the authors never released weights of {variant}: use keras_vit.build({variant!r}) for random "
        f"ones, weights= the path of your own file, or a variant with weights, such as "
        f"{_listed(near)}."
    )


def _listed(names: Iterable[str]) -> str:
    return ", ".join(names)


def _named(text: str, names_of: Callable[[Card], Iterator[str]]) -> Card | None:
    """The one card that has the name among `names_of(card)`; None for several.

    A file name that several releases share (ViT-B_16) names the variant only.
    """
    text = re.sub(r"^(hf-hub:|hf_hub:|hf://)", "", text, flags=re.IGNORECASE)
    cards = list(all_cards().values())
    before, index = _INDEXES.get(names_of, ([], {}))
    if cards != before:  # quick: the same objects, but where a user's table was added
        index = {}
        for card in cards:
            for name in {fold(name) for name in names_of(card)}:
                index.setdefault(name, []).append(card)
        _INDEXES[names_of] = cards, index
    found = index.get(fold(without_suffix(text)), [])
    return found[0] if len(found) == 1 else None


# Names of all cards, folded, by what lists them: filled on first use.
_INDEXES: dict[Callable, tuple[list[Card], dict[str, list[Card]]]] = {}


def _own_names(card: Card) -> Iterator[str]:
    """Names of the weights: the full one, and those in libraries and on hubs."""
    yield card.name
    for known in filter(None, (card.hub, *card.aliases)):
        yield without_suffix(known)
        yield known.removeprefix("timm/")


def _files(card: Card) -> Iterator[str]:
    """The file, below its bucket or from any folder on, and its addresses."""
    if card.file:
        parts = without_suffix(card.file).split("/")
        yield f"gs://{'/'.join(parts)}"
        yield from ("/".join(parts[i:]) for i in range(len(parts)))
    yield from (without_suffix(re.sub("^hf://", "", source)) for source in card.sources)


def _timm(text: str) -> tuple[str, str | None] | None:
    """Variant and tag of a name such as `vit_base_patch16_224` or `mixer_b16_224.goog_in21k`."""
    lower = re.sub(r"^(hf-hub:)?(timm/)?", "", text.lower()).replace("-", "_")
    lower = re.sub(r"^(deit_\w+)_imagenet$", r"\1", lower)  # KerasHub's presets
    arch, dot, _ = lower.partition(".")
    known = {name: card for card in all_cards().values() for name in _timm_names(card)}
    same = {name: card for name, card in known.items() if name.startswith(f"{arch}.")}
    found = timm_variant(arch)
    if not found and not same:
        return None
    variant, pixels = found or (next(iter(same.values())).variant, None)
    if dot:
        near = same or {name: card for name, card in known.items() if card.variant == variant}
        raise ValueError(
            f"{text!r}: of timm's weights for {variant} this version knows {_listed(near) or 'none'}."
        )
    for tag in TIMM_ORDER:
        if card := same.get(f"{arch}.{tag}"):
            return card.variant, card.tag
    for tag in TIMM_ORDER:  # converted by others than timm
        if (full := f"{tag}_{pixels}") in tags(variant):
            return variant, full
    return variant, None


def _timm_names(card: Card) -> Iterator[str]:
    for known in (card.hub, *card.aliases):
        if known and known.startswith("timm/"):
            yield known.removeprefix("timm/")


def _unknown(text: str) -> str:
    if answer := out_of_scope(text):
        return answer
    of_augreg = re.match(r"([A-Za-z0-9_+]+_\d+)-i(1|21)k-\d+ep-lr_", text)
    if of_augreg and (variant := variant_of(of_augreg[1])):
        return (
            f"{text!r} is named as one of the 50,000 AugReg files, but has no card here: fetch it and "
            f"use keras_vit.load({variant!r}, weights='PATH/{without_suffix(text)}.npz')."
        )
    if near := _nearest(text):
        return f"no model goes by the name {text!r}: did you mean {' or '.join(near)}?"
    return (
        f"no model goes by the name {text!r}: there are {_listed(EXAMPLES)} and more, and "
        f"keras_vit.list_models() gives all."
    )


def _nearest(text: str, limit: int = 3) -> list[str]:
    """Known names close to one, each as a user would type it."""
    known: dict[str, str] = {fold(variant): variant for variant in VARIANTS}
    for card in all_cards().values():
        for name in (card.name, card.hub, *card.aliases):
            if name:
                known.setdefault(fold(name), name)
                known.setdefault(fold(name.removeprefix("timm/")), name.removeprefix("timm/"))
    return [known[key] for key in difflib.get_close_matches(fold(text), known, limit, 0.6)]
