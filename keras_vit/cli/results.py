"""`results`: tables of what was measured, beside what the paper printed."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from keras_vit.cli.common import Answer


class Format(StrEnum):
    """How results are printed."""

    markdown = "markdown"
    csv = "csv"
    json = "json"


class Spread(StrEnum):
    """What stands beside a number."""

    std = "std"
    interval = "interval"
    none = "none"


def results(
    stores: Annotated[
        list[Path] | None,
        typer.Argument(metavar="[STORE.jsonl]...", help="Stores of results.", show_default=False),
    ] = None,
    paper: Annotated[
        str | None,
        typer.Option(
            "--table",
            help="A published table, with the stores' rows in it: 2, 5, 6, 7, 8, 9, figure-2 or "
            "others.",
            show_default=False,
        ),
    ] = None,
    study: Annotated[
        str | None,
        typer.Option("--study", help="Only the results of this study.", show_default=False),
    ] = None,
    form: Annotated[
        Format,
        typer.Option("--format", help="A table, or each number with all that is known of it."),
    ] = Format.markdown,
    decimals: Annotated[
        int | None,
        typer.Option("--decimals", min=0, max=4, help="Of percentages.", show_default=False),
    ] = None,
    spread: Annotated[
        Spread,
        typer.Option(
            "--spread", help="Beside a number: standard deviation, 95 % interval, nothing."
        ),
    ] = Spread.std,
    best: Annotated[bool, typer.Option("--best", help="The best of each column in bold.")] = False,
) -> Answer:
    """Print the tables of stores of results, or a published table with one's own rows in it.

    Rows meet by the model's variant and the data's name: tfds:oxford_iiit_pet is the paper's Pets.
    """
    import json

    from keras_vit.results import store
    from keras_vit.results.published import LAYOUTS, layout_name, published
    from keras_vit.results.tables import beside_published, study_tables

    if not stores and paper is None:
        raise ValueError("name a store of results (.jsonl), or a published table with --table.")
    measured = [row for path in stores or () for row in store.read(path)]
    if study is not None:
        known = sorted({row.study for row in measured})
        measured = [row for row in measured if row.study == study]
        if not measured:
            raise ValueError(f"no results of the study {study!r}: there are {', '.join(known)}.")
    rows = [*(published(paper) if paper else ()), *measured]
    options = {"spread": None if spread == Spread.none else spread.value, "best": best}
    if decimals is not None:
        options["decimals"] = decimals
    data = [row.to_dict() for row in rows]
    if form == Format.json:
        return Answer(data, (json.dumps(data, indent=1, ensure_ascii=False),))
    if form == Format.csv:
        return Answer(data, (store.to_csv(rows).rstrip("\n"),))
    if paper:
        made = {LAYOUTS[layout_name(paper)].title: beside_published(paper, measured, **options)}
    else:
        made = study_tables(measured, **options)
    parts = [f"## {title}\n\n{table.markdown()}" for title, table in made.items()]
    return Answer(data, ("\n".join(parts).rstrip("\n"),))
