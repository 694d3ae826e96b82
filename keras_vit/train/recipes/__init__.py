"""Recipes by name: functions that return what a paper's table says for a model."""

import difflib
import inspect
from collections.abc import Callable
from typing import Any

from keras_vit.train.recipe import Recipe
from keras_vit.train.recipes import augreg, bit, mixer, paper, paper_finetune, plain_vit, release

RECIPES: dict[str, Callable[..., Recipe]] = {
    "paper/jft": paper.jft,
    "paper/imagenet21k": paper.imagenet21k,
    "paper/imagenet": paper.imagenet,
    "paper/masked_patch": paper.masked_patch,
    "paper/finetune-imagenet": paper_finetune.imagenet,
    "paper/finetune-cifar10": paper_finetune.cifar10,
    "paper/finetune-cifar100": paper_finetune.cifar100,
    "paper/finetune-pets": paper_finetune.pets,
    "paper/finetune-flowers": paper_finetune.flowers,
    "paper/finetune-vtab": paper_finetune.vtab,
    "release/imagenet21k": release.imagenet21k,
    "bit/imagenet21k": bit.imagenet21k,
    "bit/imagenet": bit.imagenet,
    "bit/hyperrule": bit.hyperrule,
    "augreg/imagenet21k": augreg.imagenet21k,
    "augreg/imagenet": augreg.imagenet,
    "augreg/finetune": augreg.finetune,
    "plain/s16": plain_vit.s16,
    "mixer/imagenet": mixer.imagenet,
}

# The models that need nothing but their name.
MODELS: dict[str, tuple[str, ...]] = {
    "paper/jft": tuple(paper.JFT_ROWS),
    "paper/imagenet21k": tuple(paper.IMAGENET21K_ROWS),
    "paper/imagenet": paper.IMAGENET_ROWS,
    "paper/masked_patch": paper.MASKED_PATCH_MODELS,
    **{name: paper_finetune.MODELS for name in RECIPES if name.startswith("paper/finetune-")},
    "release/imagenet21k": release.MODELS,
    "bit/imagenet21k": bit.MODELS,
    "bit/imagenet": bit.MODELS,
    "bit/hyperrule": bit.HYPERRULE_MODELS,
    "augreg/imagenet21k": tuple(augreg.LEVEL_21K),
    "augreg/imagenet": tuple(augreg.LEVEL_1K),
    "augreg/finetune": augreg.MODELS,
    "plain/s16": plain_vit.MODELS,
    "mixer/imagenet": mixer.MODELS,
}


def find(name: str) -> Callable[..., Recipe]:
    """The function of a recipe.

    Raises:
        ValueError: there is none of that name; the message gives the nearest.
    """
    if name in RECIPES:
        return RECIPES[name]
    near = difflib.get_close_matches(str(name).lower(), RECIPES, 3, 0.5)
    hint = f"did you mean {' or '.join(near)}?" if near else f"there are {', '.join(RECIPES)}."
    raise ValueError(f"no recipe {name!r}: {hint}")


def resolve(name: str, model: str | None = None, **options: Any) -> Recipe:
    """The recipe of a name for a model.

    Args:
        name: one of `RECIPES`.
        model: in any spelling, with or without `@tag`; None for the recipe's own default.
        options: the other arguments of the recipe's function, such as `epochs=30` or
            `level="medium1"`.

    Raises:
        ValueError: no such recipe, no such option, an option missing, or no row for the model.
    """
    function = find(name)
    parameters = inspect.signature(function).parameters
    known = [key for key in parameters if key != "model"]
    if extra := [key for key in options if key not in known]:
        raise ValueError(
            f"{name} has no option {', '.join(extra)}: "
            + (f"it takes {', '.join(known)}." if known else "it takes none.")
        )
    needed = [key for key in known if parameters[key].default is inspect.Parameter.empty]
    if missing := [key for key in needed if key not in options]:
        raise ValueError(f"{name} needs {' and '.join(f'{key}=' for key in missing)}.")
    return function(**options) if model is None else function(model, **options)


def default_model(name: str) -> str:
    """The model that a recipe is for when none is named."""
    return inspect.signature(find(name)).parameters["model"].default
