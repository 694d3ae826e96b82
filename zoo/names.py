"""From any name a model goes by to its variant and tag.

Understood, without regard to case and to `_`, `-`, `/` or space between words:

- the paper's names, `ViT-L/16`, `ViT-L/16@augreg_in21k_ft_in1k_384`, and shorter, `vit_l16`, `L/16`;
- checkpoint files, `ViT-L_16.npz`, `imagenet21k/ViT-L_16`, whole AugReg file names, their addresses;
- timm, `vit_large_patch16_384.augreg_in21k_ft_in1k`, also without the tag;
- Hugging Face, `google/vit-large-patch16-384`, `timm/...`; KerasHub, `vit_large_patch16_384_imagenet`.
"""

import difflib
import re

from keras_vit.card import Card
from keras_vit.zoo.cards import all_cards, tags
from keras_vit.zoo.variants import VARIANTS

# What `load(variant)` gives: AugReg fine-tuned on ImageNet-1k at the native resolution the authors
# recommend; else the paper's fine-tuned release; else its ImageNet-21k one, which has no usable head.
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
    "ViT-Mini/4": "fashion_mnist",
}

# Folders of the published buckets, and data names, as tags: the first that the variant has.
TAG_GROUPS = {
    "imagenet21k": ("orig_in21k", "augreg_in21k"),
    "in21k": ("orig_in21k", "augreg_in21k"),
    "imagenet21k+imagenet2012": ("orig_in21k_ft_in1k",),
    "imagenet21k+imagenet2012-224": ("orig_in21k_ft_in1k_224",),
    "orig": ("orig_in21k_ft_in1k", "orig_in21k"),
    "augreg": ("augreg_in21k_ft_in1k",),
    "sam": ("sam_in1k",),
    "gsam": ("gsam_in1k",),
}

TIMM_SIZES = {
    "tiny": "Ti",
    "small": "S",
    "base": "B",
    "large": "L",
    "huge": "H",
    "giant": "g",
    "gigantic": "G",
}
# The weights that a name of timm's without a tag means here, best first.
TIMM_ORDER = (
    "augreg_in21k_ft_in1k",
    "orig_in21k_ft_in1k",
    "augreg_in1k",
    "augreg_in21k",
    "orig_in21k",
)

# What the paper's other models are called: pattern, kind, canonical names.
_HYBRIDS = (
    "R+ViT-Ti/16",
    "R26+ViT-S/32",
    "R26+ViT-B/32",
    "R50+ViT-B/32",
    "R50+ViT-B/16",
    "R50+ViT-L/32",
    "R50+ViT-L/16",
)
_OTHER_FAMILIES = (
    (
        r"(mlp-?)?mixer",
        "an MLP-Mixer",
        ("Mixer-S/32", "Mixer-S/16", "Mixer-B/32", "Mixer-B/16", "Mixer-L/16"),
    ),
    (
        r"bit[-_ ]|google/bit|resnet|.*_bit([._]|$)",
        "a BiT ResNet",
        ("BiT-R50x1", "BiT-R50x3", "BiT-R101x1", "BiT-R101x3", "BiT-R152x2", "BiT-R152x4"),
    ),
    (
        r"google/vit-hybrid|r\d*\+|r\d+[-_ ]|r_ti|(timm/)?vit_\w+_r\d*_s\d+",
        "a hybrid of ResNet and ViT",
        _HYBRIDS,
    ),
    (
        r"(facebook/|timm/)?(deit|dino|beit|eva|flexivit|siglip|swin|convnext)",
        "another architecture",
        (),
    ),
)


def resolve(name: str) -> tuple[str, str | None]:
    """Variant and tag that a name means; the tag is None when the name names no weights.

    Raises:
        ValueError: nothing goes by that name (the message gives the nearest), or the variant has no
            such tag (the message gives those it has).
    """
    text = str(name).strip()
    base, _, tag = text.partition("@")
    variant = _variant(base)
    # Before the files: ViT-S_32.npz was published once, but it names the variant all the same.
    if variant is None or tag:
        if card := _by_published_name(text):
            return card.variant, card.tag
        if variant is None and not tag and (found := _timm(text)):
            return found
    if variant is None:
        raise ValueError(_unknown(text))
    if "@" in text and not tag:
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
    if not known:
        raise ValueError(_nothing_released(variant))
    near = difflib.get_close_matches(folded, known, 1, 0.6)
    hint = f" Did you mean {variant}@{near[0]}?" if near else ""
    raise ValueError(f"{variant} has no weights {tag!r}: it has {_listed(known)}.{hint}")


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
    return (
        f"the authors never released weights of {variant}: use keras_vit.build({variant!r}) for random "
        f"ones, weights= the path of your own file, or a variant with weights, {_listed(DEFAULTS)}."
    )


def _fold(name: str) -> str:
    """Lower case, without what separates words."""
    return re.sub(r"[\s_\-/]+", "", name.lower())


def _listed(names) -> str:
    return ", ".join(names)


def _by_published_name(text: str) -> Card | None:
    """The card that a full name, file, address, hub id, preset or timm name belongs to."""
    folded, found = _fold(re.sub(r"\.npz$", "", text, flags=re.IGNORECASE)), {}
    for card in all_cards().values():
        if any(_fold(known) == folded for known in _published_names(card)):
            found[card.name] = card
    # A file name that several releases share (ViT-B_16) names the variant only.
    return next(iter(found.values())) if len(found) == 1 else None


def _published_names(card: Card):
    yield card.name
    for known in (card.hub, *card.aliases):
        if known:
            yield known
            yield known.removeprefix("timm/")
            if known.startswith("timm/"):
                yield f"hf-hub:{known}"
    if card.file:
        parts = card.file.removesuffix(".npz").split("/")
        yield f"gs://{'/'.join(parts)}"
        yield from ("/".join(parts[i:]) for i in range(len(parts)))
    yield from (source.removesuffix(".npz") for source in card.sources)


def _variant(text: str) -> str | None:
    """The variant of a name in the paper's style, `ViT-L/16`, `vit_l_16`, `L/16`, `ViT-L_16.npz`."""
    text = re.sub(r"\.npz$", "", text.strip(), flags=re.IGNORECASE)
    for variant in VARIANTS:  # case matters first: ViT-b and ViT-g are not ViT-B and ViT-G
        if re.sub(r"[\s_\-/]+", "-", text) == re.sub(r"[\s_\-/]+", "-", variant):
            return variant
    match = re.fullmatch(r"(?:(vit)[\s_\-]*)?([a-z]+)[\s_\-/]*(\d+)", text, re.IGNORECASE)
    if not match:
        return None
    size, patch = match[2], match[3]
    same = [v for v in VARIANTS if _fold(v) == _fold(f"ViT-{size}/{patch}")]
    # In a name that is lower case throughout, b is the common B and not the paper's half-size b;
    # otherwise the case of the letter decides between g and G.
    size = size.upper() if size == "b" else size
    exact = [v for v in same if v.startswith(f"ViT-{size}/")]
    return next(iter(exact or same), None)


def _timm(text: str) -> tuple[str, str | None] | None:
    """Variant and tag of a name such as `vit_base_patch16_224` or `vit_base_patch16_224.dino`."""
    match = re.fullmatch(
        r"(?:hf_hub:)?(?:timm/)?vit_([a-z]+)_patch(\d+)_(\d+)(?:\.(\w+))?",
        text.lower().replace("-", "_"),
    )
    if not match or match[1] not in TIMM_SIZES:
        return None
    variant = f"ViT-{TIMM_SIZES[match[1]]}/{match[2]}"
    if variant not in VARIANTS:
        return None
    arch = f"vit_{match[1]}_patch{match[2]}_{match[3]}"
    names = _timm_names(variant)
    if match[4]:
        same = [name for name in names if name.startswith(f"{arch}.")] or list(names)
        raise ValueError(
            f"{text!r}: of timm's weights for {variant} this version knows {_listed(same) or 'none'}."
        )
    for tag in TIMM_ORDER:
        if f"{arch}.{tag}" in names:
            return variant, names[f"{arch}.{tag}"]
    for tag in TIMM_ORDER:  # converted by others than timm
        if (full := f"{tag}_{match[3]}") in tags(variant):
            return variant, full
    return variant, None


def _timm_names(variant: str) -> dict[str, str]:
    """timm's names of a variant's cards, and their tags here."""
    found = {}
    for card in all_cards().values():
        for known in (card.hub, *card.aliases):
            if card.variant == variant and known and known.startswith("timm/"):
                found[known.removeprefix("timm/")] = card.tag
    return found


def _unknown(text: str) -> str:
    for pattern, kind, canonical in _OTHER_FAMILIES:
        if re.match(pattern, text.lower()):
            folded = {_fold(name): name for name in canonical}
            near = [folded[key] for key in difflib.get_close_matches(_fold(text), folded, 1, 0.6)]
            return (
                f"{text!r} names {kind}{f' ({near[0]})' if near else ''}, and this version has plain "
                f"ViT models only: {_listed(VARIANTS)}."
            )
    if (augreg := re.match(r"([A-Za-z]+_\d+)-i(1|21)k-\d+ep-lr_", text)) and _variant(augreg[1]):
        return (
            f"{text!r} is named as one of the 50,000 AugReg files, but has no card here: fetch it and "
            f"use keras_vit.load({_variant(augreg[1])!r}, weights='PATH/{text.removesuffix('.npz')}.npz')."
        )
    near = _nearest(text)
    hint = f"did you mean {' or '.join(near)}?" if near else f"there are {_listed(VARIANTS)}."
    return f"no model goes by the name {text!r}: {hint}"


def _nearest(text: str, limit: int = 3) -> list[str]:
    """Known names close to one, each as a user would type it."""
    known: dict[str, str] = {_fold(variant): variant for variant in VARIANTS}
    for card in all_cards().values():
        for name in (card.name, card.hub, *card.aliases):
            if name:
                known.setdefault(_fold(name), name)
                known.setdefault(_fold(name.removeprefix("timm/")), name.removeprefix("timm/"))
    return [known[key] for key in difflib.get_close_matches(_fold(text), known, limit, 0.6)]
