"""`dedup`: training images that show what a test image shows."""

import contextlib
import csv
import dataclasses
import io
import tempfile
from pathlib import Path
from typing import Annotated, Any

import typer

from keras_vit.cli.common import Answer, Force, check_file, check_parent, log, table

SHOWN = 20  # pairs; the list has all
COLUMNS = (
    *("train", "test", "distance", "likeness", "exact"),
    *("train_index", "test_index", "train_class", "test_class"),
)


def dedup(
    train: Annotated[
        str,
        typer.Argument(
            help="Images to train on: folder:PATH, fashion_mnist:SPLIT, tfds:NAME:SPLIT or an .npz.",
            show_default=False,
        ),
    ],
    test: Annotated[
        str, typer.Argument(help="Images to test on, named likewise.", show_default=False)
    ],
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="List of all pairs, a .csv or .json.", dir_okay=False),
    ] = None,
    write_kept: Annotated[
        Path | None,
        typer.Option(
            "--write-kept",
            help="The training images without the duplicates: a folder of links for folder: data, an "
            ".npz for arrays.",
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option("--model", help="Compare features of this model, not pictures."),
    ] = None,
    cosine: Annotated[
        float | None, typer.Option("--cosine", help="With --model: least cosine; 0.95 by default.")
    ] = None,
    features: Annotated[
        Path | None,
        typer.Option("--features", help="With --model: folder that keeps features, to go on with."),
    ] = None,
    bits: Annotated[
        int | None,
        typer.Option("--bits", help="Bits of the 144 that may differ; 28, of tiny images 12."),
    ] = None,
    likeness: Annotated[
        float | None,
        typer.Option("--likeness", help="Least correlation of pixels; 0.95, of tiny images 0.99."),
    ] = None,
    data_dir: Annotated[
        str | None, typer.Option("--data-dir", help="Where tensorflow-datasets keeps its files.")
    ] = None,
    force: Force = False,
) -> Answer:
    """Find training images that are near-duplicates of test images. Nothing is deleted.

    Re-encoded, resized, slightly cropped or brightened copies are found by perceptual hash and by laying
    the images on top of each other; other kinds by the features of a model (--model). docs/dedup.md has
    the measured rates.
    """
    from keras_vit.data.kept import checked_kept
    from keras_vit.data.kept import write_kept as write
    from keras_vit.data.sources import open_feed_source
    from keras_vit.train.rundir import write_text

    if model is None and (cosine is not None or features is not None):
        raise ValueError("--cosine and --features belong to features: give --model too.")
    if model is not None and (bits is not None or likeness is not None):
        raise ValueError("--bits and --likeness belong to pictures: leave out --model.")
    if output is not None:
        check_file(output, (".csv", ".json"), force)
    trained, tested = (open_feed_source(name, data_dir=data_dir) for name in (train, test))
    sources, left = (trained, tested), None
    if write_kept is not None:
        left = checked_kept(trained, write_kept)
        check_parent(write_kept)
    if model is None:
        pairs, how = _by_picture(trained, tested, bits, likeness)
    else:
        pairs, how = _by_features(trained, tested, model, cosine, features)
    for message in [message for source in sources for message in source.broken][:5]:
        log(f"warning: {message}")
    rows = [_row(pair, trained, tested) for pair in pairs]
    values: dict[str, Any] = {
        "train": train,
        "test": test,
        "train_images": len(sources[0]),
        "test_images": len(sources[1]),
        **how,
        "train_duplicates": len({pair.train for pair in pairs}),
        "test_duplicates": len({pair.test for pair in pairs}),
        "exact": sum(bool(pair.exact) for pair in pairs),
        "other_class": sum(row["train_class"] != row["test_class"] for row in rows),
        "broken": [message for source in sources for message in source.broken],
        "pairs": rows,
    }
    if output is not None:
        write_text(output, _list(rows, values, output.suffix))
    if left is not None and write_kept is not None:
        values["kept"] = write(left, {pair.train for pair in pairs}, write_kept)
    return Answer(values, _view(values, output, write_kept))


def _by_picture(train: Any, test: Any, bits: int | None, likeness: float | None):
    from keras_vit.cli.progress import counter
    from keras_vit.data import duplicates

    limits = None
    if bits is not None or likeness is not None:
        given = {"bits": bits, "likeness": likeness}
        limits = dataclasses.replace(
            duplicates.PICTURES, **{k: v for k, v in given.items() if v is not None}
        )
    with counter("images") as progress:
        pairs = duplicates.picture_pairs(train, test, limits=limits, progress=progress)
    chosen = "by the images' size" if limits is None else dataclasses.asdict(limits)
    return pairs, {"method": "pictures", "limits": chosen}


def _by_features(train: Any, test: Any, model: str, cosine: float | None, folder: Path | None):
    from keras_vit.cli.probe import open_extractor
    from keras_vit.cli.progress import counter
    from keras_vit.data import duplicates
    from keras_vit.transfer.features import extract

    least = duplicates.LEAST_COSINE if cosine is None else cosine
    duplicates.check_cosine(least)
    extractor = open_extractor(model)
    with contextlib.ExitStack() as stack:
        root = folder or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        sets = []
        for part, source in (("train", train), ("test", test)):
            with counter(f"{part} images") as progress:
                sets.append(extract(extractor, source, root / part, progress=progress))
            if len(sets[-1]) < len(source):
                raise ValueError(
                    f"{len(source) - len(sets[-1])} images of {source.name} cannot be read: remove "
                    f"them, or compare pictures, without --model."
                )
        blocks = [(x for x, _ in found.blocks()) for found in sets]
        pairs = duplicates.feature_pairs(*blocks, least_cosine=least)
    return pairs, {"method": "features", "model": model, "limits": {"cosine": least}}


def _row(pair: Any, train: Any, test: Any) -> dict[str, Any]:
    """A pair as the list has it."""
    values = dataclasses.asdict(pair)
    for part, source in (("train", train), ("test", test)):
        place = values[f"{part}_index"] = values[part]
        image = getattr(source, "images", {place: None})[place]
        values[part] = image if isinstance(image, str) else f"{source.name}[{place}]"
        values[f"{part}_class"] = _class_of(source, place)
    return {key: values[key] for key in COLUMNS}


def _class_of(source: Any, place: int) -> str | None:
    labels = getattr(source, "labels", None)
    if labels is None or labels.ndim != 1:
        return None
    return source.class_names[labels[place]]


def _list(rows: list[dict[str, Any]], values: dict[str, Any], suffix: str) -> str:
    if suffix == ".json":
        import json

        return json.dumps(values, indent=1, ensure_ascii=False) + "\n"
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _view(values: dict[str, Any], output: Path | None, kept: Path | None) -> tuple[Any, ...]:
    count, share = values["train_duplicates"], values["train_duplicates"] / values["train_images"]
    lines = [
        f"{count:,} of {values['train_images']:,} training images ({share:.3%}) are near-duplicates "
        f"of {values['test_duplicates']:,} of {values['test_images']:,} test images",
        f"{len(values['pairs']):,} pairs, {values['exact']:,} of them with equal pixels, "
        f"{values['other_class']:,} with another class",
    ]
    rows = [
        (row["train"], row["test"], f"{row['distance']:g}", _text(row["likeness"]))
        for row in values["pairs"][:SHOWN]
    ]
    shown: list[Any] = [*lines]
    if rows:
        shown.append(table(("train", "test", "distance", "likeness"), rows, 2))
    if len(values["pairs"]) > SHOWN:
        shown.append(f"{SHOWN} pairs shown; --output FILE.csv lists all")
    if output is not None:
        shown.append(f"list: {output}")
    if kept is not None:
        shown.append(f"kept: {values['kept']:,} images, --data {_data_name(kept)}")
    return tuple(shown)


def _data_name(path: Path) -> str:
    return str(path) if path.suffix == ".npz" else f"folder:{path}"


def _text(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"
