"""`reproduce`: whether a checkpoint gives on one's own images what is reported of it."""

from pathlib import Path
from typing import Annotated, Any

import typer

from keras_vit.cli.classifier import Model, open_classifier
from keras_vit.cli.common import Answer, command_line, log, table

TEST_SPLITS = {"fashion_mnist": "test", "tfds:imagenet2012": "validation"}


def reproduce(
    model: Model,
    data: Annotated[
        str,
        typer.Option(
            "--data",
            help="The images of the report: tfds:imagenet2012, folder:PATH (a folder per class), "
            "fashion_mnist or an .npz; the test or validation split unless another is named.",
            show_default=False,
        ),
    ],
    real: Annotated[
        Path | None,
        typer.Option(
            "--real", help="ReaL's real.json: measure with its labels as well.", show_default=False
        ),
    ] = None,
    batch_size: Annotated[
        int, typer.Option("--batch-size", min=1, help="Images at a time; changes only speed.")
    ] = 64,
    results: Annotated[
        Path | None,
        typer.Option(
            "--results", help="Add what was measured to this .jsonl store.", show_default=False
        ),
    ] = None,
) -> Answer:
    """Measure a checkpoint as its card says, and compare with what was reported of it.

    Preprocessing, resolution and numerics are the card's. The exit code is 1 when a reported number
    lies outside the 95 % interval of the measured one; where sources differ, one of them is enough.
    """
    from keras_vit.results import store

    if results is not None:
        store.check(results)
    source = _open(data, real)
    classifier = open_classifier(model)
    from keras_vit.cli.progress import counter
    from keras_vit.train.run import versions
    from keras_vit.transfer.reproduce import reproduce as measure

    if classifier.card is None:
        raise ValueError(f"{model} has no card, so nothing is reported of it.")
    with counter("images") as progress:
        found = measure(
            classifier.card,
            classifier.predict,
            source,
            class_names=classifier.class_names,
            image_size=classifier.image_size,
            channels=classifier.channels,
            preprocessing=classifier.preprocessing,
            real=real is not None,
            batch_size=batch_size,
            progress=progress,
        )
    if results is not None:
        about = {"command": command_line(), "when": store.now(), "versions": versions()}
        store.add(results, found.results(**about))
        log(f"added to {results}")
    values = found.to_dict()
    return Answer(values, _view(values), 0 if found.passed else 1)


def _open(data: str, real: Path | None):
    from keras_vit.data.sources import open_feed_source
    from keras_vit.transfer.real import open_real, read_real

    if data.partition(":")[2] == "" or (data.startswith("tfds:") and data.count(":") == 1):
        split = TEST_SPLITS.get(data, "test" if data.startswith("tfds:") else "")
        data = f"{data}:{split}" if split else data
    return open_real(data, read_real(real)) if real else open_feed_source(data)


def _view(values: dict[str, Any]) -> tuple[Any, ...]:
    rows = []
    for check in values["checks"]:
        numbers = (f"{check['reported']:g} %", f"{check['measured']:.2%}", _range(check))
        verdict = "inside" if check["inside"] else "OUTSIDE"
        rows.append((check["metric"], check["source"], *numbers, verdict))
    if real := values["real"]:
        counted = f"{real['examples']:,} images that have labels"
        rows.append(("ReaL", counted, "–", f"{real['accuracy']:.2%}", _range(real), ""))
    head = ("metric", "source", "reported", "measured", "95 % interval", "")
    verdict = "as reported" if values["passed"] else "not as reported"
    return (
        f"{values['model']} on {values['examples']:,} images of {values['images']}: {verdict}",
        "",
        table(head, rows, left=2),
        *(("", *(f"note: {note}" for note in values["notes"])) if values["notes"] else ()),
    )


def _range(measured: dict[str, Any]) -> str:
    low, high = measured["interval"]
    return f"{low:.2%} to {high:.2%}"
