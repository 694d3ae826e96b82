"""The documents generated from the cards: the README's table, docs/models.md, and docs/models/*.md.

`python -m keras_vit.zoo.table` prints docs/models.md, `--write docs` writes it and the pages of the
families; `--summary` prints the README's table, `--replace FILE` puts that between the markers of a
file.
"""

import argparse
import os
import sys
from pathlib import Path

from keras_vit.spec import MixerSpec, ResNetSpec, Spec
from keras_vit.zoo.cards import all_cards
from keras_vit.zoo.groups import groups_table
from keras_vit.zoo.names import DEFAULTS
from keras_vit.zoo.pages import PAGES, cards_of, page_text, table, variants_of
from keras_vit.zoo.variants import VARIANTS

BEGIN, END = "<!-- models:begin -->", "<!-- models:end -->"

INTRODUCTION = """\
# Models

Generated from `zoo/cards` by `python -m keras_vit.zoo.table --write docs`; a test fails when they
differ. Every card in full: {pages}.

Load one by its full name, `keras_vit.load("ViT-B/16@augreg_in21k_ft_in1k_384")`. The variant alone,
`keras_vit.load("ViT-B/16")`, loads the row in bold.

Accuracies are as reported by their source on the validation images of the data in brackets
(ImageNet-1k where none is named); none was measured by this project unless it says so. *authors*:
the README and threads of the official repository, partly for runs of the same recipe rather than
for the very file. *timm*: its results table, for its own PyTorch networks and evaluation. Sizes are
those of the authors' file, computed from the arrays in it where no exact one was published; a mirror
in another container differs by its headers. The licence is that of the official repository where no
separate one is named for the weights.

Sources are tried in order. Since February 2026 the Google buckets refuse reads without an account,
so copies come first: timm's and Google's on Hugging Face, in safetensors, and files of GitHub
releases. Originals that are PyTorch pickles are not read.
"""


def summary() -> str:
    """The README's table: a row for each family."""
    lines = [
        "| family | architectures | checkpoints | for example |",
        "| --- | --: | --: | --- |",
    ]
    for page in PAGES:
        example = f"`{page.example}@{DEFAULTS[page.example]}`"
        cells = (
            f"[{page.title}](docs/models/{page.file})",
            f"{len(variants_of(page))}",
            f"{len(cards_of(page))}",
            example,
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def document() -> str:
    """The content of docs/models.md."""
    cards = all_cards()
    pages = ", ".join(f"[{page.title}](models/{page.file})" for page in PAGES)
    defaults = [cards[f"{name}@{DEFAULTS[name]}"] for name in VARIANTS if name in DEFAULTS]
    return "\n".join(
        (
            INTRODUCTION.format(pages=pages),
            "## What is here\n",
            groups_table(list(cards.values())),
            "## Default weights\n",
            table(defaults, _defaults()),
            _architectures(),
            _notes(),
        )
    )


def documents() -> dict[str, str]:
    """Every generated page below docs: its path and content."""
    found = {"models.md": document()}
    for page in PAGES:
        found[f"models/{page.file}"] = page_text(page, _defaults())
    return found


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


def _defaults() -> frozenset[str]:
    return frozenset(f"{variant}@{tag}" for variant, tag in DEFAULTS.items())


def _architectures() -> str:
    lines = [
        "## Architectures",
        "",
        "At 224 px with 1000 classes, but for DINOv2 (518 px), FlexiViT (240 px), and the three Mini "
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
    """What a user must know of an architecture, once for all that it is true of."""
    by_note: dict[str, list[str]] = {}
    for name, variant in VARIANTS.items():
        if variant.note:
            by_note.setdefault(variant.note, []).append(f"`{name}`")
    return "## Notes\n\n" + "".join(
        f"- {', '.join(names)}: {note}\n" for note, names in by_note.items()
    )


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.part")
    part.write_text(text, "utf-8")
    os.replace(part, path)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m keras_vit.zoo.table",
        description="Prints docs/models.md, or writes the documents made from the cards.",
        epilog="example: python -m keras_vit.zoo.table --write docs --replace README.md",
    )
    parser.add_argument("--summary", action="store_true", help="the README's table: the families")
    parser.add_argument(
        "--replace", metavar="FILE", help=f"put the summary between {BEGIN} and {END}"
    )
    parser.add_argument("--write", metavar="FOLDER", help="write models.md and models/*.md there")
    options = parser.parse_args(arguments)
    if options.write:
        for name, text in documents().items():
            _write(Path(options.write) / name, text)
    if options.replace:
        path = Path(options.replace)
        _write(path, replace_block(path.read_text("utf-8")))
    if not options.write and not options.replace:
        sys.stdout.write(summary() if options.summary else document())


if __name__ == "__main__":
    main()
