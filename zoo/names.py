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
from keras_vit.zoo.defaults import DEFAULTS, TAG_GROUPS, TIMM_ORDER
from keras_vit.zoo.scope import out_of_scope
from keras_vit.zoo.spellings import fold, timm_variant, variant_of, without_suffix
from keras_vit.zoo.variants import VARIANTS

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
        full = f"{variant}@{tag}" if variant else text
        if card := _named(text, _files) or augreg.card_of(full):
            return card.variant, card.tag
        if variant is None and not tag and (found := _timm(text)):
            return found
    if variant is None:
        raise ValueError(_unknown(text))
    if at and not tag:
        raise ValueError(f"{name!r} ends in @: add a tag of {variant}, {_tags_of(variant)}.")
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
    raise ValueError(f"{variant} has no weights {tag!r}: it has {_tags_of(variant)}.{why}{hint}")


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
        raise ValueError(f"{variant} has no default weights: name one of {_tags_of(variant)}.")
    raise ValueError(_nothing_released(variant))


def _nothing_released(variant: str) -> str:
    near = difflib.get_close_matches(variant, DEFAULTS, 3, 0.0)
    return (
        f"the authors never released weights of {variant}: use keras_vit.build({variant!r}) for random "
        f"ones, weights= the path of your own file, or a variant with weights, such as "
        f"{_listed(near)}."
    )


def _tags_of(variant: str, limit: int = 10) -> str:
    known = tags(variant)
    if len(known) <= limit:
        return _listed(known)
    see = f"keras_vit.list_models('{variant}@*', pretrained=True)"
    return f"{_listed(known[:limit])} and {len(known) - limit} more, see {see}"


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
