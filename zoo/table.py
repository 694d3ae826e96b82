"""The Markdown tables of models in the README and in docs/models.md, generated from the cards.

`python -m keras_vit.zoo.table` prints docs/models.md; `--summary` prints the README's table;
`--replace FILE` puts that between the markers of a file.
"""

import argparse
import os
import sys
from pathlib import Path

from keras_vit.card import Card
from keras_vit.spec import MixerSpec, ResNetSpec, Spec
from keras_vit.zoo.cards import all_cards, card_spec
from keras_vit.zoo.names import DEFAULTS
from keras_vit.zoo.variants import VARIANTS

BEGIN, END = "<!-- models:begin -->", "<!-- models:end -->"

COLUMNS = ("model", "params, M", "image", "classes", "top-1 %, reported by", "file, MB", "licence")

INTRODUCTION = """\
# Models

Generated from `zoo/cards/*.toml` by `python -m keras_vit.zoo.table`; a test fails when they differ.

Load one by its full name, `keras_vit.load("ViT-B/16@augreg_in21k_ft_in1k_384")`. The variant alone,
`keras_vit.load("ViT-B/16")`, loads the row in bold.

Accuracies are as reported by their source on the validation images of the data in brackets
(ImageNet-1k where none is named); none was measured by this project unless it says so. *authors*:
the README and threads of the official repository, partly for runs of the same recipe rather than
for the very file. *timm*: its results table, for a PyTorch port with exact GELU and bicubic centre
crops. Sizes are computed from the arrays in the file where no exact one was published. The licence
is that of the official repository; no separate one is named for the weights.
"""


def table(cards: list[Card], bold: frozenset[str] = frozenset()) -> str:
    """A Markdown table of checkpoints.

    Args:
        cards: one row each, in order.
        bold: full names set in bold.
    """
    rows = [COLUMNS, tuple("---" if i == 0 or i in (4, 6) else "--:" for i in range(len(COLUMNS)))]
    rows += [_row(card, card.name in bold) for card in cards]
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def summary() -> str:
    """The default weights of every variant that has some."""
    cards = all_cards()
    return table(
        [cards[f"{variant}@{DEFAULTS[variant]}"] for variant in VARIANTS if variant in DEFAULTS]
    )


def document() -> str:
    """The content of docs/models.md."""
    bold = frozenset(f"{variant}@{tag}" for variant, tag in DEFAULTS.items())
    return (
        f"{INTRODUCTION}\n{table(list(all_cards().values()), bold)}\n{_architectures()}\n{_notes()}"
    )


def replace_block(text: str) -> str:
    """The text with the summary table between its markers.

    Raises:
        ValueError: the markers are not there, once each and in order.
    """
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end or BEGIN in rest or END in after or END in before:
        raise ValueError(f"the text must hold {BEGIN} and then {END}, once each.")
    return f"{before}{BEGIN}\n{summary()}{END}{after}"


def _row(card: Card, bold: bool) -> tuple[str, ...]:
    name = f"**`{card.name}`**" if bold else f"`{card.name}`"
    height, width = card.image_size
    size = "–" if card.size is None else f"{card.size / 1e6:,.0f}"
    return (
        name,
        _millions(card_spec(card).num_params),
        f"{height}" if height == width else f"{height}x{width}",
        f"{card.num_classes:,}" + ("" if card.usable_head else " (head is zeros)"),
        _accuracy(card),
        size,
        card.license or "–",
    )


def _millions(count: int) -> str:
    return f"{count / 1e6:,.2f}" if count < 1e7 else f"{count / 1e6:,.1f}"


def _accuracy(card: Card) -> str:
    found = []
    for metric in card.metrics:
        if metric.name == "top1":
            data = "" if metric.dataset == "imagenet2012" else f" ({metric.dataset})"
            found.append(f"{metric.value:g} {metric.source.partition(':')[0]}{data}")
    return ", ".join(found) or "–"


def _architectures() -> str:
    lines = [
        "## Architectures",
        "",
        "At 224 px with 1000 classes, but for DINOv2 (518 px), FlexiViT (240 px), and ViT-Mini/4 "
        "(28 px, grey, 10 classes). MLP of a Mixer: of its channels. Patch of a hybrid: on the map of "
        "its ResNet.",
        "",
        "| name | width | MLP | heads | blocks | patch | params | default weights | source |",
        "| --- | --: | --: | --: | --: | --: | --: | --- | --- |",
    ]
    for name, variant in VARIANTS.items():
        default = f"`{DEFAULTS[name]}`" if name in DEFAULTS else "none released"
        numbers, count = _shape(variant.spec), f"{variant.spec.num_params:,}"
        cells = (f"`{name}`", *numbers, count, default, variant.source)
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _shape(spec: Spec) -> tuple[str, ...]:
    """Width, MLP, heads, blocks and patch, as far as the family has them."""
    if isinstance(spec, ResNetSpec):
        return f"{spec.feature_size}", "–", "–", "+".join(map(str, spec.body.block_units)), "–"
    blocks, patch = f"{spec.num_layers}", f"{spec.patch_size[0]}"
    if isinstance(spec, MixerSpec):
        return f"{spec.hidden_size}", f"{spec.channels_mlp_dim}", "–", blocks, patch
    return f"{spec.hidden_size}", f"{spec.mlp_dim}", f"{spec.num_heads}", blocks, patch


def _notes() -> str:
    """What a user must know of single files, once for all files it is true of."""
    by_note: dict[str, list[str]] = {}
    for card in all_cards().values():
        if card.note:
            by_note.setdefault(card.note, []).append(f"`{card.name}`")
    for name, variant in VARIANTS.items():
        if variant.note:
            by_note.setdefault(variant.note, []).append(f"`{name}`")
    return "## Notes\n\n" + "".join(
        f"- {', '.join(names)}: {note}\n" for note, names in by_note.items()
    )


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m keras_vit.zoo.table",
        description="Prints the table of models.",
        epilog="example: python -m keras_vit.zoo.table > docs/models.md",
    )
    parser.add_argument("--summary", action="store_true", help="the README's table: defaults only")
    parser.add_argument(
        "--replace", metavar="FILE", help=f"put the summary between {BEGIN} and {END}"
    )
    options = parser.parse_args(arguments)
    if options.replace:
        path = Path(options.replace)
        part = path.with_name(f".{path.name}.part")
        part.write_text(replace_block(path.read_text("utf-8")), "utf-8")
        os.replace(part, path)
        return
    sys.stdout.write(summary() if options.summary else document())


if __name__ == "__main__":
    main()
