"""`inspect`: what a model has learned and where it looks, as one report."""

import itertools
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from keras_vit.cli.classifier import ImageSize
from keras_vit.cli.common import (
    Answer,
    Force,
    command_line,
    is_exported,
    log,
    open_data,
    size_option,
    table,
)

DEFAULT_SHOWN = 4  # images of --data that are shown when none are named
MOST_SHOWN = 16  # image files that are shown; more count for the distance only


class Part(StrEnum):
    """What can be looked at."""

    FILTERS = "filters"
    POSITIONS = "positions"
    DISTANCE = "distance"
    ROLLOUT = "rollout"
    MAPS = "maps"
    FEATURES = "features"


def inspect(
    model: Annotated[
        str, typer.Argument(help="A name (ViT-B/16) or a checkpoint.", show_default=False)
    ],
    images: Annotated[
        list[str] | None,
        typer.Argument(help="Image files to show; the first of --data by default."),
    ] = None,
    out: Annotated[
        Path, typer.Option("--out", help="Folder for the report, its figures and arrays.")
    ] = Path("inspection"),
    data: Annotated[
        str | None,
        typer.Option(
            "--data",
            help="Images for the attention distance: folder:PATH, fashion_mnist:SPLIT, "
            "tfds:NAME:SPLIT or an .npz; the image files by default.",
        ),
    ] = None,
    limit: Annotated[
        int,
        typer.Option("--limit", min=1, help="How many images the attention distance is over."),
    ] = 128,
    what: Annotated[
        list[Part] | None,
        typer.Option("--what", help="Only this part. May be repeated.", show_default=False),
    ] = None,
    layer: Annotated[
        list[int] | None,
        typer.Option(
            "--layer",
            help="A layer whose attention is shown, from 0; -1, the default, is the last. May be "
            "repeated.",
            show_default=False,
        ),
    ] = None,
    head: Annotated[
        list[int] | None,
        typer.Option(
            "--head",
            help="A head whose attention is shown, from 0; all by default. May be repeated.",
            show_default=False,
        ),
    ] = None,
    image_size: ImageSize = None,
    force: Force = False,
) -> Answer:
    """Look inside a ViT or hybrid: filters, positions, attention and features, as one HTML report.

    The attention distance is the mean over --data, up to --limit images; the paper takes 128. Files
    that are no images are named on stderr, the others are shown, and the exit code is 2.
    """
    from keras_vit.analysis.figures import check_installed
    from keras_vit.train.rundir import check_out

    check_installed()
    check_out(out, force)
    if is_exported(Path(model)):
        raise ValueError(
            f"{model} is an exported file, which hides its layers: inspect the model it came from."
        )
    if not images and not data:
        raise ValueError("there is nothing to look at: name image files, or --data.")
    source = open_data(data, None) if data else None
    size = size_option(image_size)
    log("loading the model ...")
    import numpy as np

    from keras_vit.analysis import inspection
    from keras_vit.analysis.backbone import check_attention
    from keras_vit.cli.progress import counter
    from keras_vit.zoo.api import load

    loaded = load(model, image_size=size)
    check_attention(loaded)
    parts = tuple(map(str, what)) if what else inspection.PARTS
    broken: list[str] = []
    everything = _of(source, loaded) if source is not None else _read(loaded, images or [], broken)
    shown = _read(loaded, images, broken) if images else _of(source, loaded)
    pairs = list(itertools.islice(shown, MOST_SHOWN if images else DEFAULT_SHOWN))
    if not pairs:
        raise ValueError("none of the images can be read.")
    if images and len(images) > MOST_SHOWN:
        log(f"the first {MOST_SHOWN} images are shown.")
    names, inputs = zip(*pairs, strict=True)
    several = min(limit, len(source) if source is not None else len(images or []))
    total, done = len(inputs) + (several if "distance" in parts else 0), 0
    with counter("images") as bar:

        def progress(count: int) -> None:
            nonlocal done
            done += count
            bar(done, total)

        found = inspection.inspect(
            loaded,
            np.stack(inputs),
            names=names,
            parts=parts,
            layers=layer or (-1,),
            heads=head,
            distance_images=(pixels for _, pixels in itertools.islice(everything, limit)),
            progress=progress,
        )
    for message in (source.broken if source is not None else [])[:5]:
        log(f"warning: {message}")
    files = inspection.write(found, out, command=command_line())
    values = {"out": str(out), "files": files, "errors": broken, **found.summary()}
    return Answer(values, _view(values), 2 if broken else 0)


def _read(model: Any, paths: list[str], broken: list[str]) -> Iterator[tuple[str, Any]]:
    """(name, preprocessed image) of files one at a time; those that are no images go to `broken`."""
    from keras_vit.analysis.pictures import prepare

    for path in paths:
        try:
            (pixels,) = prepare(model, [path])
        except ValueError as error:
            if str(error) not in broken:
                broken.append(str(error))
                log(f"error: {error}")
        else:
            yield Path(path).name, pixels


def _of(source: Any, model: Any) -> Iterator[tuple[str, Any]]:
    """(class, preprocessed image) of the images of a source that can be read, one at a time."""
    from keras_vit.layers.preprocessor import preprocess

    spec = model.spec
    for index in _spread(source):
        pixels = source.image(index, spec.in_channels)
        if pixels is not None:
            label = source.labels[index]
            name = f"image {index}" if source.multi_label else source.class_names[int(label)]
            yield name, preprocess(pixels, spec.image_size, model.preprocessing)


def _spread(source: Any) -> list[int]:
    """Every example once, in an order that is random and always the same: folders are sorted by
    class, and the first images would be of one."""
    import numpy as np

    return np.random.default_rng(0).permutation(len(source)).tolist()


def _view(values: dict[str, Any]) -> tuple[Any, ...]:
    """The main numbers, and where the report is."""
    rows = []
    if "filters" in values:
        share = sum(values["filters"]["variance"][:3])
        rows.append(("first three filters' share of the variance", f"{share:.1%}"))
    if "positions" in values and values["positions"]["mean_of_neighbours"] is not None:
        near, all_pairs = (values["positions"][k] for k in ("mean_of_neighbours", "mean_of_others"))
        rows.append(("similarity of positions that touch", f"{near:.3f}"))
        rows.append(("similarity of all pairs of positions", f"{all_pairs:.3f}"))
    if "distance" in values:
        found = values["distance"]
        rows.append(
            (f"attention distance, {found['images']} images", f"{found['mean']:.1f} pixels")
        )
        layers = found["per_layer"]
        rows.append(
            ("in the first and the last layer", f"{layers[0]:.1f}, {layers[-1]:.1f} pixels")
        )
        rows.append(("everywhere alike", f"{found['uniform']:.1f} pixels"))
    notes = [f"{part}: {note}" for part, note in values["notes"].items()]
    parts: list[Any] = [table(("", ""), rows)] if rows else []
    return (*parts, *notes, f"report: {values['files']['report']}")
