"""`predict`: classify image files."""

from typing import Annotated

import typer

from keras_vit.cli.classifier import ImageSize, Model, open_classifier
from keras_vit.cli.common import Answer, log, size_option, table

BATCH = 32  # images decoded and classified at a time


def predict(
    model: Model,
    images: Annotated[list[str], typer.Argument(help="Image files.", show_default=False)],
    top: Annotated[int, typer.Option("--top", min=1, help="Predictions per image.")] = 5,
    image_size: ImageSize = None,
) -> Answer:
    """Classify images, best classes first.

    Files that are no images are named on stderr, the others are classified, and the exit code is 2.
    """
    import numpy as np

    from keras_vit.data.images import read_image
    from keras_vit.layers.preprocessor import preprocess

    classifier = open_classifier(model, size_option(image_size))
    data = []
    for start in range(0, len(images), BATCH):
        good, inputs = [], []
        for name in images[start : start + BATCH]:
            entry = {"image": name, "predictions": [], "error": None}
            data.append(entry)
            try:
                pixels = read_image(name, classifier.channels)
            except ValueError as error:
                entry["error"] = str(error)
                log(f"error: {error}")
                continue
            inputs.append(preprocess(pixels, classifier.image_size, classifier.preprocessing))
            good.append(entry)
        if not good:
            continue
        probabilities = np.asarray(classifier.predict(np.stack(inputs)))
        for entry, row in zip(good, probabilities, strict=True):
            best = np.argsort(-row, kind="stable")[:top]
            entry["predictions"] = [
                {
                    "label": classifier.class_names[i],
                    "index": int(i),
                    "probability": float(row[i]),
                }
                for i in best
            ]
    rows = [
        (entry["image"] if rank == 0 else "", p["label"], f"{p['probability']:.4f}", p["index"])
        for entry in data
        for rank, p in enumerate(entry["predictions"])
    ]
    failed = any(entry["error"] for entry in data)
    view = (table(("image", "class", "probability", "index"), rows, 2),) if rows else ()
    return Answer(data, view, 2 if failed else 0)
