"""What a recipe makes of a network, and how many images it shows to it."""

from keras_vit.spec import Spec, changed
from keras_vit.train.recipe import Recipe
from keras_vit.zoo.variants import VARIANTS


def trained_spec(
    variant: str, recipe: Recipe, image_size: int | tuple[int, int] | None = None
) -> Spec:
    """The network as a recipe trains it.

    Args:
        variant: its name.
        recipe: whose changes, classes (1000 where they are open) and image size it gets.
        image_size: other pixels.

    Raises:
        ValueError: the network cannot be changed so.
    """
    pixels = image_size or recipe.image_size
    fields = {**dict(recipe.changes), "num_classes": recipe.classes or 1000}
    if pixels:
        fields["image_size"] = (pixels, pixels) if isinstance(pixels, int) else tuple(pixels)
    return changed(VARIANTS[variant].spec, fields, variant)


def images_seen(recipe: Recipe) -> float | None:
    """Images of the whole training, repetitions among them; None where the data set is open."""
    if recipe.steps is not None:
        return float(recipe.steps * recipe.batch_size)
    return None if recipe.examples is None else (recipe.epochs or 0.0) * recipe.examples
