"""`cost`: parameters, operations, activations and the compute of a training, by formula."""

import dataclasses
from pathlib import Path
from typing import Annotated, Any

import typer

from keras_vit.cli.common import Answer, bytes_text, size_option, table


def cost(
    models: Annotated[
        list[str],
        typer.Argument(metavar="MODEL...", help="Names of networks, or files.", show_default=False),
    ],
    image_size: Annotated[
        str | None,
        typer.Option("--image-size", help="Pixels, 384 or HEIGHTxWIDTH; the model's by default."),
    ] = None,
    allow_crop: Annotated[
        bool,
        typer.Option(
            "--allow-crop",
            help="Drop the pixels that no patch covers, as the official code does.",
        ),
    ] = False,
    recipe: Annotated[
        str | None,
        typer.Option(
            "--recipe", help="How it is trained: paper/jft. Sets head, pixels, images and epochs."
        ),
    ] = None,
    options: Annotated[
        list[str] | None,
        typer.Option("--with", help="An option of the recipe: epochs=30.", metavar="KEY=VALUE"),
    ] = None,
    classes: Annotated[
        int | None, typer.Option("--classes", min=0, help="Other outputs of the head.")
    ] = None,
    examples: Annotated[
        int | None, typer.Option("--examples", min=1, help="Images of the training set.")
    ] = None,
    epochs: Annotated[
        float | None, typer.Option("--epochs", help="Passes over them; the recipe's by default.")
    ] = None,
    dtype: Annotated[
        str, typer.Option("--dtype", help="Keras dtype policy of the activations.")
    ] = "float32",
) -> Answer:
    """Count what networks cost, without building them: for one image, and for a whole training.

    With one model --json is an object with the keys parameters, macs, flops_forward, flops_training,
    activation_bytes, tokens and training_exaflops (null without a recipe, or --examples with
    --epochs); with several it maps the names to such objects. docs/cost.md says what is counted.
    """
    from keras_vit.spec import changed
    from keras_vit.studies.cost import cost as cost_of

    if options and recipe is None:
        raise ValueError("--with belongs to a recipe: give --recipe too.")
    if recipe is None and (examples is None) != (epochs is None):
        raise ValueError(
            "the compute of a training needs --recipe, or both --examples and --epochs."
        )
    if epochs is not None and not 0 < epochs < float("inf"):
        raise ValueError(f"--epochs must be more than 0, got {epochs:g}.")
    found, sizes = {}, []
    changes: dict[str, Any] = {"allow_crop": allow_crop}
    if classes is not None:
        changes["num_classes"] = classes
    if pixels := size_option(image_size):
        changes["image_size"] = pixels
    for model in models:
        if recipe is None:
            spec = _spec(model)
            images = None if examples is None or epochs is None else examples * epochs
        else:
            spec, images = _trained(model, recipe, options or [], examples, epochs)
        spec = changed(spec, changes, model)
        found[model] = dataclasses.asdict(cost_of(spec, images=images, dtype=dtype))
        sizes.append("x".join(map(str, spec.image_size)))
    data = found if len(found) > 1 else next(iter(found.values()))
    return Answer(data, (_view(found, sizes, dtype),))


def _spec(model: str) -> Any:
    """The network of a name or a file, without its weights."""
    path = Path(model)
    if path.exists():
        from keras_vit.zoo import loading

        return loading.of_file(path, None).spec
    from keras_vit.zoo.api import card as card_of
    from keras_vit.zoo.cards import card_spec
    from keras_vit.zoo.names import resolve
    from keras_vit.zoo.variants import VARIANTS

    variant, tag = resolve(model)
    return card_spec(card_of(model)) if tag else VARIANTS[variant].spec


def _trained(
    model: str, recipe: str, options: list[str], examples: int | None, epochs: float | None
) -> tuple[Any, float | None]:
    """The network as a recipe trains it, and the images it sees."""
    from keras_vit.studies.trained import images_seen, trained_spec
    from keras_vit.train import overrides, recipes
    from keras_vit.zoo.names import resolve

    variant = resolve(model)[0]
    wanted = recipes.resolve(recipe, variant, **overrides.options(recipes.find(recipe), options))
    if epochs is not None:
        wanted = dataclasses.replace(wanted, epochs=epochs, steps=None)
    if examples is not None:
        wanted = dataclasses.replace(wanted, examples=examples)
    images = images_seen(wanted)
    if images is None:
        raise ValueError(f"{recipe} does not say how many images there are: give --examples.")
    return trained_spec(variant, wanted), images


def _view(found: dict[str, dict[str, Any]], sizes: list[str], dtype: str) -> Any:
    columns = ("model", "image", "tokens", "parameters", "GMACs", "GFLOPs", "training GFLOPs")
    columns += (f"{dtype} activations",)
    trained = any(values["training_exaflops"] is not None for values in found.values())
    rows = []
    for (name, values), size in zip(found.items(), sizes, strict=True):
        row = [name, size, f"{values['tokens']:,}", f"{values['parameters'] / 1e6:,.2f} M"]
        row += [_giga(values[key]) for key in ("macs", "flops_forward", "flops_training")]
        row.append(bytes_text(values["activation_bytes"]))
        if trained:
            row.append(f"{values['training_exaflops']:,.4g}")
        rows.append(tuple(row))
    return table((*columns, "run exaFLOPs") if trained else columns, rows)


def _giga(count: int) -> str:
    digits = 4 if count < 1e9 else 3 if count < 1e10 else 1
    return f"{count / 1e9:,.{digits}f}"
