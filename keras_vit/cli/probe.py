"""`probe`: how good frozen features are, by few-shot regression, nearest neighbours or a linear probe."""

import contextlib
import dataclasses
import tempfile
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from keras_vit.cli.classifier import ImageSize, Model
from keras_vit.cli.common import (
    Answer,
    Data,
    Interrupted,
    check_file,
    command_line,
    is_exported,
    log,
    size_option,
    table,
)

SPLIT_OFF = 0.2  # of --data, when there is no --test


class Method(StrEnum):
    """Choices of --method."""

    fewshot = "fewshot"
    knn = "knn"
    linear = "linear"


class Pool(StrEnum):
    """Choices of --pool."""

    cls = "class"
    mean = "mean"
    both = "both"


def probe(
    model: Model,
    data: Data,
    test: Annotated[
        str | None,
        typer.Option("--test", help="Images to test on; a fifth of --data by default."),
    ] = None,
    method: Annotated[Method, typer.Option("--method", help="What learns.")] = Method.fewshot,
    shots: Annotated[
        str, typer.Option("--shots", help="Images per class for fewshot; all for every one.")
    ] = "1,5,10,25",
    seeds: Annotated[
        int, typer.Option("--seeds", min=1, help="Choices of these images for fewshot.")
    ] = 3,
    neighbours: Annotated[
        int, typer.Option("--neighbours", min=1, help="Neighbours that vote, for knn.")
    ] = 20,
    endpoint: Annotated[
        str | None,
        typer.Option("--endpoint", help="Where features are taken; pre_logits by default."),
    ] = None,
    pool: Annotated[
        Pool | None, typer.Option("--pool", help="How tokens become one vector.")
    ] = None,
    image_size: ImageSize = None,
    resize_to: Annotated[
        int | None,
        typer.Option(
            "--resize-to", min=1, help="Pixels to resize to before the crop; as the card says."
        ),
    ] = None,
    batch_size: Annotated[
        int, typer.Option("--batch-size", min=1, help="Images at a time; changes only speed.")
    ] = 64,
    features: Annotated[
        Path | None,
        typer.Option("--features", help="Folder that keeps the features, to be used again."),
    ] = None,
    results: Annotated[
        Path | None, typer.Option("--results", help="A .jsonl that the numbers are added to.")
    ] = None,
) -> Answer:
    """Measure frozen features: learn only a classifier on them, and test it.

    fewshot is the closed-form regression of the ViT paper, on features whitened by the training
    images, with the penalty 1024. knn is the vote of the nearest neighbours by cosine similarity,
    weighed with temperature 0.07. linear is logistic regression whose penalty is chosen on a tenth of
    the training images. Features are computed once; an interrupted call goes on where it stopped if
    --features names a folder.

    An exported SavedModel gives its signature features, a .tflite file its output.
    """
    wanted = shots_option(shots)
    size = size_option(image_size)
    if results is not None:
        check_file(results, (".jsonl",), force=True)
    sources = _sources(data, test)
    extractor = open_extractor(model, endpoint, pool and pool.value, size, resize_to)
    from keras_vit.cli.progress import counter
    from keras_vit.train.evaluate import align
    from keras_vit.transfer.features import extract

    with contextlib.ExitStack() as stack:
        folder = features or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        sets = []
        try:
            for part, source in sources.items():
                source = align(source, sets[0].class_names) if sets else source
                with counter(f"{part} images") as progress:
                    sets.append(
                        extract(
                            extractor,
                            source,
                            folder / part,
                            batch_size=batch_size,
                            progress=progress,
                        )
                    )
                for message in sets[-1].broken[:5]:
                    log(f"warning: {message}")
        except KeyboardInterrupt:
            raise Interrupted(_kept(features)) from None
        with counter(method.value) as progress:
            view, rows = _measured(method, sets, wanted, seeds, neighbours, progress)
    values = {
        "model": extractor.name,
        "method": method.value,
        "features": extractor.about(),
        **{
            part: {"data": found.name, "images": len(found), "broken": list(found.broken)}
            for part, found in zip(sources, sets, strict=True)
        },
        "results": [row.to_dict() for row in rows],
    }
    if results is not None:
        from keras_vit.results import store

        store.add(results, rows)
    return Answer(values, (*_heading(values), "", *view))


def shots_option(text: str) -> list[int | None]:
    """`1,5,all` as numbers, None for all."""
    words = [word.strip() for word in text.split(",")]
    if not all(word == "all" or (word.isdigit() and int(word)) for word in words):
        raise ValueError(f"--shots takes numbers and all, such as 1,5,all, got {text!r}.")
    return [None if word == "all" else int(word) for word in dict.fromkeys(words)]


def _sources(data: str, test: str | None) -> dict[str, Any]:
    from keras_vit.data.sources import Source, open_feed_source

    train = open_feed_source(data)
    if test is not None:
        return {"train": train, "test": open_feed_source(test)}
    if not isinstance(train, Source):
        raise ValueError(f"{data} is too large to be split in memory: name the images of --test.")
    parts = train.split(SPLIT_OFF)
    shares = (1.0 - SPLIT_OFF, SPLIT_OFF)
    return {
        name: dataclasses.replace(part, name=f"{train.name}[{share:.0%}]")
        for name, part, share in zip(("train", "test"), parts, shares, strict=True)
    }


def open_extractor(
    name: str,
    endpoint: str | None = None,
    pool: str | None = None,
    image_size: tuple[int, int] | None = None,
    resize_to: int | None = None,
) -> Any:
    """The `Extractor` of a model or an exported file.

    Raises:
        ValueError: no such endpoint, or a choice that an exported file does not leave.
        FileNotFoundError: it is not on this machine.
    """
    path = Path(name)
    if is_exported(path):
        if endpoint or pool or image_size or resize_to:
            raise ValueError(
                f"{name} is an exported file: what it gives and how images are resized is fixed."
            )
        return _exported(path)
    from keras_vit.transfer.features import extractor_of
    from keras_vit.zoo.api import load

    model = load(name, image_size=image_size)
    rule = model.preprocessing
    if resize_to and (rule.resize == "none" or resize_to < min(model.spec.image_size)):
        raise ValueError(
            f"--resize-to must be at least the {min(model.spec.image_size)} pixels of the model, "
            f"and its card must say how to resize, got {resize_to} and {rule.resize!r}."
        )
    try:
        return extractor_of(
            model,
            endpoint or "pre_logits",
            pool=pool,
            name=name if path.exists() else None,
            preprocessing=dataclasses.replace(rule, resize_to=resize_to) if resize_to else rule,
        )
    except KeyError as error:
        raise ValueError(str(error.args[0])) from None


def _exported(path: Path) -> Any:
    import numpy as np

    from keras_vit.card import Preprocessing
    from keras_vit.export import open_artifact
    from keras_vit.transfer.features import Extractor, digest

    signature = "features" if path.is_dir() else "serving_default"
    artifact = open_artifact(path, signature=signature)
    if artifact.report is None:
        raise ValueError(
            f"{path} has no report beside it, so its preprocessing is unknown: export it with "
            f"keras-vit export, and keep the .json with it."
        )
    spec, card = artifact.report.source["spec"], artifact.report.source["card"] or {}
    output = "features" if "features" in artifact.outputs else artifact.outputs[0]

    def predict(images: np.ndarray) -> np.ndarray:
        return artifact.run(artifact.checked(images))[output]

    files = [path] if path.is_file() else sorted(p for p in path.rglob("*") if p.is_file())
    shape = (*spec["image_size"], spec["in_channels"])
    return Extractor(
        name=str(path),
        endpoint=output,
        pool=None,
        predict=predict,
        dim=predict(np.zeros((1, *shape), np.float32)).shape[-1],
        image_size=shape[:2],
        channels=shape[2],
        preprocessing=Preprocessing(**card.get("preprocessing", {})),
        weights=digest(file.read_bytes() for file in files),
    )


def _measured(method: Method, sets: list[Any], shots, seeds, neighbours, progress):
    """What is shown, and the rows of the store."""
    from keras_vit.results.store import now
    from keras_vit.train.run import versions

    about = {"command": command_line(), "when": now(), "versions": versions()}
    if method is Method.fewshot:
        from keras_vit.transfer import fewshot

        found = fewshot.fewshot(*sets, shots=shots, seeds=range(seeds), progress=progress)
        return _fewshot_view(found), fewshot.results(found, *sets, **about)
    if method is Method.knn:
        from keras_vit.transfer import knn

        voted = knn.knn(*sets, k=neighbours, progress=progress)
        rows = knn.results(voted, *sets, **about)
        chosen = f"{voted.k} neighbours, temperature {voted.temperature:g}"
    else:
        from keras_vit.transfer import probe as linear

        fitted = linear.probe(*sets, progress=progress)
        rows = linear.results(fitted, *sets, **about)
        chosen = f"penalty {fitted.l2:g}, chosen with seed {fitted.seed}; {fitted.steps} steps"
    low, high = rows[0].interval or (0.0, 1.0)
    return (f"accuracy {rows[0].value:.2%} ({low:.2%} to {high:.2%}); {chosen}",), rows


def _heading(values: dict[str, Any]) -> list[str]:
    about, train, test = values["features"], values["train"], values["test"]
    rule = about["preprocessing"]
    height, width = about["resolution"]
    pooled = f", {about['pool']} of the tokens" if about["pool"] else ""
    first = rule["resize_to"] or f"{height}x{width}"
    resized = "as they are" if rule["resize"] == "none" else f"{rule['resize']} to {first}"
    return [
        f"{values['model']}, weights {about['weights']}",
        f"features: {about['endpoint']}{pooled}, {about['dim']} of each image at {height}x{width} "
        f"pixels ({resized})",
        *(
            f"{part}: {found['data']}, {found['images']:,} images"
            + (f", {len(found['broken'])} could not be read" if found["broken"] else "")
            for part, found in (("train", train), ("test", test))
        ),
    ]


def _fewshot_view(found: list[Any]) -> tuple[Any, ...]:
    seeds = next((one.seeds for one in found if one.seeds), ())
    rows = []
    for one in found:
        spread = "–" if one.std is None else f"{100 * one.std:.2f}"
        own = (
            [f"{100 * value:.2f}" for value in one.accuracies] if one.seeds else ["–"] * len(seeds)
        )
        rows.append((one.shots or "all", one.rows, f"{100 * one.mean:.2f}", spread, *own))
    columns = ("shots", "images", "accuracy %", "std", *(f"seed {seed}" for seed in seeds))
    notes = []
    for one in found:
        if one.too_few:
            names = ", ".join(f"{name} ({n})" for name, n in list(one.too_few.items())[:5])
            more = f" and {len(one.too_few) - 5} more" if len(one.too_few) > 5 else ""
            few = "no images" if one.shots is None else f"fewer than {one.shots} images"
            notes.append(f"classes with {few}: {names}{more}")
    return (table(columns, rows, left=0), f"penalty {found[0].l2:g}", *notes)


def _kept(features: Path | None) -> str:
    if features is None:
        return "nothing is kept; with --features FOLDER the same command goes on where it stopped"
    return f"finished features are kept in {features}; run the same command again to go on"
