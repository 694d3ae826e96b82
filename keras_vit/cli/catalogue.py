"""`list` and `info`: what there is, without loading any framework."""

import math
from pathlib import Path
from typing import Annotated, Any

import typer

from keras_vit.cli.common import Answer, bytes_text, is_exported, table

Pattern = Annotated[
    str,
    typer.Argument(
        help="Shell pattern on the name, or augreg:MODEL for the files of AugReg in its index.",
        show_default=False,
    ),
]
Name = Annotated[str, typer.Argument(help="Any name of a model, or a file.", show_default=False)]


def list_models(
    pattern: Pattern = "*",
    pretrained: Annotated[
        bool, typer.Option("--pretrained", help="Every known checkpoint, not architectures.")
    ] = False,
    best: Annotated[
        str | None,
        typer.Option(
            "--best",
            metavar="DATASET",
            help="With augreg:MODEL: the files fine-tuned on this data, best first.",
        ),
    ] = None,
    index: Annotated[
        Path | None,
        typer.Option("--index", help="With augreg:MODEL: the authors' index.csv.", dir_okay=False),
    ] = None,
) -> Answer:
    """List the architectures, or with --pretrained the checkpoints, that this version knows.

    augreg:B/16 lists the 52,000 files of "How to train your ViT?" for a model from the authors'
    index.csv: --index, KERAS_VIT_AUGREG_INDEX, or in the cache. As the authors choose, the best by
    validation accuracy comes first; load it by its name.
    """
    if pattern.startswith("augreg:"):
        return _augreg(pattern.removeprefix("augreg:"), best, index)
    if best or index:
        raise ValueError("--best and --index belong to augreg:MODEL, as in augreg:B/16.")
    from keras_vit.zoo.api import list_models as names_of
    from keras_vit.zoo.cards import all_cards, card_spec
    from keras_vit.zoo.names import DEFAULTS
    from keras_vit.zoo.variants import VARIANTS

    found = names_of(pattern, pretrained=True if pretrained else None)
    if not found:
        raise ValueError(f"no model matches {pattern!r}: keras-vit list shows all.")
    if pretrained:
        cards = [all_cards()[name] for name in found]
        data = [
            {
                "name": card.name,
                "parameters": card_spec(card).num_params,
                "image_size": list(card.image_size),
                "num_classes": card.num_classes,
                "usable_head": card.usable_head,
                "default": DEFAULTS.get(card.variant) == card.tag,
                "license": card.license,
            }
            for card in cards
        ]
        rows = [
            (
                d["name"] + (" *" if d["default"] else ""),
                _millions(d["parameters"]),
                _size(d["image_size"]),
                f"{d['num_classes']:,}" + ("" if d["usable_head"] else " (head is zeros)"),
            )
            for d in data
        ]
        view = table(("checkpoint", "parameters", "image", "classes"), rows)
        return Answer(data, (view, "* what the variant's name alone loads"))
    data = [
        {
            "name": name,
            "parameters": VARIANTS[name].spec.num_params,
            "default": DEFAULTS.get(name),
            "source": VARIANTS[name].source,
        }
        for name in found
    ]
    rows = [
        (d["name"], d["default"] or "none released", d["source"], _millions(d["parameters"]))
        for d in data
    ]
    return Answer(data, (table(("model", "default weights", "source", "parameters"), rows, 3),))


SHOWN = 20  # lines of the index; --json gives all


def _augreg(model: str, best: str | None, index: Path | None) -> Answer:
    from keras_vit.zoo.augreg import describe
    from keras_vit.zoo.augreg_index import index_path, read_index

    path = index_path(index)
    found = read_index(path, model, best)
    if not found:
        raise ValueError(
            f"{path} has no file of {model}{f' fine-tuned on {best}' if best else ''}."
        )
    data = [
        {
            "name": row.settings.stem,
            "val": row.val,
            "test": None if math.isnan(row.test) else row.test,
            "settings": describe(row.settings),
        }
        for row in found
    ]
    rows = [
        (d["name"], f"{d['val']:.2f}", "–" if d["test"] is None else f"{d['test']:.2f}")
        for d in data[:SHOWN]
    ]
    top = f"best: keras_vit.load({data[0]['name']!r})"
    rest = f"{len(data):,} files, {len(rows)} shown; best by validation accuracy first"
    return Answer(data, (table(("file", "val %", "test %"), rows, 1), rest, top))


def info(name: Name) -> Answer:
    """Show what is known of a checkpoint, an architecture or a file."""
    path = Path(name)
    if path.exists() and is_exported(path):
        return _artifact(path)
    if path.exists():
        return _file(path)
    from keras_vit.zoo import names
    from keras_vit.zoo.api import card as card_of
    from keras_vit.zoo.cards import card_spec, tags
    from keras_vit.zoo.fetch import find
    from keras_vit.zoo.variants import VARIANTS

    variant, tag = names.resolve(name)
    if not tag and not tags(variant):
        spec, about = VARIANTS[variant].spec, VARIANTS[variant]
        data = {"name": variant, "spec": spec.to_dict(), "parameters": spec.num_params}
        note = f"{about.source} {about.note}".strip()
        return Answer(data, (f"{variant}: no weights were ever released.", note, _spec_view(data)))
    card = card_of(name)
    spec = card_spec(card)
    try:
        where = str(find(card, offline=True))
    except (FileNotFoundError, ValueError):
        where = None
    data = {
        "name": card.name,
        "card": card.to_dict(),
        "spec": spec.to_dict(),
        "parameters": spec.num_params,
        "file_here": where,
        "other_tags": [t for t in tags(variant) if t != card.tag],
    }
    lines = [f"{card.name}", card.description, card.pretraining, card.note]
    lines += [f"{m.name} on {m.dataset}: {m.value:g} % ({m.source})" for m in card.metrics]
    lines.append(f"file: {card.file}" + (f", {bytes_text(card.size)}" if card.size else ""))
    lines.append(f"on this machine: {where or 'no; keras-vit fetch gets it'}")
    lines.append(f"license: {card.license or 'not stated'}")
    if data["other_tags"]:
        lines.append(f"other weights: {', '.join(data['other_tags'])}")
    return Answer(data, (*(line for line in lines if line), _spec_view(data)))


def _file(path: Path) -> Answer:
    from keras_vit.zoo import loading

    checkpoint = loading.of_file(path, None)
    card = checkpoint.card
    data = {
        "name": str(path),
        "card": card.to_dict() if card else None,
        "spec": checkpoint.spec.to_dict(),
        "parameters": checkpoint.spec.num_params,
    }
    lines = [f"{path}: {card.name if card else 'no card'}", card.description if card else ""]
    return Answer(data, (*(line for line in lines if line), _spec_view(data)))


def _artifact(path: Path) -> Answer:
    from keras_vit.export.report import Report

    try:
        report = Report.read(path)
    except (OSError, KeyError, TypeError, ValueError):
        raise ValueError(
            f"{path} has no report beside it that says what it is: export it with keras-vit export."
        ) from None
    return Answer(report.to_dict(), (report.to_text(),))


def _spec_view(data: dict[str, Any]) -> Any:
    spec = {"parameters": f"{data['parameters']:,}", **data["spec"]}
    return table(("field", "value"), [(key, value) for key, value in spec.items()], 2)


def _millions(count: int) -> str:
    return f"{count / 1e6:,.2f} M" if count < 1e7 else f"{count / 1e6:,.1f} M"


def _size(size: list[int]) -> str:
    return str(size[0]) if size[0] == size[1] else f"{size[0]}x{size[1]}"
