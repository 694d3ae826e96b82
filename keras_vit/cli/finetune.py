"""`finetune`: a pretrained model for the user's classes."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from keras_vit.cli.classifier import ImageSize
from keras_vit.cli.common import (
    Answer,
    Classes,
    Data,
    Force,
    Set,
    command_line,
    log,
    open_data,
    size_option,
    training_run,
)
from keras_vit.cli.evaluate import evaluation_view


class Optimizer(StrEnum):
    """Choices of --optimizer."""

    adamw = "adamw"
    sgd = "sgd"


class ClassWeights(StrEnum):
    """Choices of --class-weights."""

    balanced = "balanced"


def finetune(
    model: Annotated[
        str, typer.Argument(help="A name, or a .keras or .npz file.", show_default=False)
    ],
    data: Data,
    out: Annotated[
        Path, typer.Option("--out", help="Folder for model and report.", show_default=False)
    ],
    val: Annotated[
        str | None, typer.Option("--val", help="Validation data; split off --data by default.")
    ] = None,
    val_split: Annotated[
        float, typer.Option("--val-split", help="Share of every class to split off; 0 for none.")
    ] = 0.1,
    classes: Classes = None,
    image_size: ImageSize = None,
    epochs: Annotated[
        int | None, typer.Option("--epochs", min=1, help="By default 300 steps.")
    ] = None,
    batch_size: Annotated[
        int | None, typer.Option("--batch-size", min=1, help="By default 32.")
    ] = None,
    lr: Annotated[float | None, typer.Option("--lr", help="Peak rate; by default by size.")] = None,
    optimizer: Annotated[
        Optimizer | None,
        typer.Option(
            "--optimizer", help="By default adamw, for ResNets sgd; give --lr with another."
        ),
    ] = None,
    augment: Annotated[
        str | None, typer.Option("--augment", help="Of flip, shift, erase, crop: flip,shift.")
    ] = None,
    class_weights: Annotated[
        ClassWeights | None, typer.Option("--class-weights", help="Weigh rare classes more.")
    ] = None,
    patience: Annotated[
        int | None,
        typer.Option("--patience", min=0, help="Epochs without a better one; 0 for all epochs."),
    ] = None,
    dtype: Annotated[
        str | None, typer.Option("--dtype", help="Of training, for example mixed_bfloat16.")
    ] = None,
    from_scratch: Annotated[
        bool, typer.Option("--from-scratch", help="The same network with random weights.")
    ] = False,
    freeze: Annotated[bool, typer.Option("--freeze", help="Train the head only.")] = False,
    seed: Annotated[int, typer.Option("--seed", help="Of split, order and augmentation.")] = 0,
    more: Set = None,
    force: Force = False,
) -> Answer:
    """Fine-tune a model on labelled images and write it with a report.

    A part of the images is kept for validation, the best epoch is kept, and training stops when it
    gets no better. Labels (n, classes) in an .npz are multi-label targets. Run the same command
    again to go on after an interruption.
    """
    from keras_vit.train.rundir import check_out

    check_out(out, force)
    size = size_option(image_size)
    source = open_data(data, classes)
    validation = open_data(val, classes) if val else None
    from keras_vit.cli.progress import epoch_lines
    from keras_vit.train import overrides
    from keras_vit.train.finetune import finetune as tune
    from keras_vit.train.recipe import Recipe

    changes = [
        f"{field}={value}"
        for field, value in (
            ("epochs", epochs),
            ("batch_size", batch_size),
            ("schedule.base_lr", lr),
            ("optimizer.name", optimizer.value if optimizer else None),
            ("loss.class_weights", class_weights.value if class_weights else None),
            ("dtype", dtype),
            ("early_stopping", None if patience is None else patience or "none"),
        )
        if value is not None
    ]
    changes += _augmentations(augment) if augment else []
    changes += more or []
    with training_run(out), epoch_lines() as lines:
        line = lines(0)

        def recipe(default: Recipe) -> Recipe:
            made = overrides.apply(default, changes)
            per_epoch = max(1, len(source) // made.batch_size)
            line.epochs = -(-made.total_steps(per_epoch) // per_epoch)
            log(f"{len(source):,} images of {source.num_classes} classes; {_told(made)}")
            return made

        found = tune(
            model,
            source,
            out=out,
            validation=validation,
            val_split=val_split,
            image_size=size,
            recipe=recipe,
            from_scratch=from_scratch,
            freeze=freeze,
            force=force,
            seed=seed,
            command=command_line(),
            callbacks=(line,),
        )
    report = found.report
    files = f"{out}/model.keras, model.npz, report.md and report.json"
    head = f"best of {report['epochs']} epochs: {report['best_epoch']}; {report['evaluated_on']} images:"
    return Answer(
        {"out": str(out), **report},
        (head, *evaluation_view(report["evaluation"]), "", f"written: {files}"),
    )


def _told(recipe) -> str:
    return (
        f"{recipe.epochs} epochs of batches of {recipe.batch_size}, {recipe.optimizer.name} at "
        f"{recipe.schedule.base_lr:g}, seed {recipe.seed}"
    )


# What --augment names, as fields of the recipe.
AUGMENTATIONS = {
    "flip": "augment.flip=true",
    "shift": "augment.shift=true",
    "erase": "augment.erase=0.5",
    "crop": "augment.crop=inception",
}


def _augmentations(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",")]
    if unknown := [name for name in names if name not in AUGMENTATIONS]:
        raise ValueError(f"unknown augmentations {unknown}: there are {sorted(AUGMENTATIONS)}.")
    return [AUGMENTATIONS[name] for name in names]
