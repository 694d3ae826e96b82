"""`evaluate`: accuracy of a model or an exported file on labelled images."""

from typing import Annotated, Any

import typer

from keras_vit.cli.classifier import ImageSize, Model, open_classifier
from keras_vit.cli.common import Answer, Classes, Data, log, open_data, size_option, table

MATRIX_LIMIT = 12  # classes whose confusion matrix is shown; --json has it always


def evaluate(
    model: Model,
    data: Data,
    classes: Classes = None,
    image_size: ImageSize = None,
    batch_size: Annotated[
        int, typer.Option("--batch-size", min=1, help="Images at a time; changes only speed.")
    ] = 64,
) -> Answer:
    """Measure accuracy, with its 95 % interval, and every class, on labelled images.

    Classes of the data are matched with those of the model by name; the data may have fewer.
    """
    from keras_vit.data.sources import open_feed_source

    size = size_option(image_size)
    # Only images with random access can be picked by class; others are streamed where they must be.
    source = open_data(data, classes) if classes else open_feed_source(data)
    classifier = open_classifier(model, size)
    from keras_vit.cli.progress import counter
    from keras_vit.train.evaluate import align
    from keras_vit.train.evaluate import evaluate as measure

    if source.multi_label != classifier.sigmoid:
        has, gives = (
            ("several labels", "one class")
            if source.multi_label
            else ("one class", "several labels")
        )
        raise ValueError(f"{data} has {has} per image, but {model} gives {gives}.")
    with counter("images") as progress:
        found = measure(
            classifier.predict,
            align(source, classifier.class_names),
            image_size=classifier.image_size,
            channels=classifier.channels,
            preprocessing=classifier.preprocessing,
            batch_size=batch_size,
            progress=progress,
        )
    for message in found.broken[:5]:
        log(f"warning: {message}")
    values = {"model": model, "kind": classifier.kind, **found.to_dict()}
    return Answer(values, evaluation_view(values))


def evaluation_view(values: dict[str, Any]) -> tuple[Any, ...]:
    """An evaluation for people: one line, and a row per class."""
    low, high = values["interval"]
    several = values["mean_average_precision"] is not None
    parts = [
        f"{'exact matches' if several else 'accuracy'} {values['accuracy']:.2%} "
        f"({low:.2%} to {high:.2%}) of {values['examples']:,} images",
    ]
    if values["top5"] is not None:
        parts.append(f"top-5 {values['top5']:.2%}")
    if several:
        parts.append(f"mean average precision {values['mean_average_precision']:.4f}")
    if values["broken"]:
        parts.append(f"{len(values['broken'])} images could not be read")
    fields = ("precision", "recall", "f1", *(("average_precision",) if several else ()))
    rows = [
        (s["name"], s["examples"], *("–" if s[f] is None else f"{s[f]:.3f}" for f in fields))
        for s in values["per_class"]
        if s["examples"] or s["precision"] is not None
    ]
    view: list[Any] = [", ".join(parts), "", table(("class", "images", *fields), rows)]
    counts, names = values["confusion"], [s["name"] for s in values["per_class"]]
    if counts is not None and len(names) <= MATRIX_LIMIT:
        rows = [(name, *row) for name, row in zip(names, counts, strict=True)]
        view += ["", "true class (rows) and predicted class (columns):", ""]
        view.append(table(("", *names), rows))
    return tuple(view)
