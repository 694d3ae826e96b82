"""What every result on frozen features says, whatever learned on them."""

from typing import Any

from keras_vit.results.store import Result
from keras_vit.train.evaluate import wilson
from keras_vit.transfer.features import FeatureSet


def row(
    study: str,
    train: FeatureSet,
    test: FeatureSet,
    right: int,
    tested: int,
    settings: dict[str, Any],
    **about: Any,
) -> Result:
    """The row of one classifier for a store.

    Args:
        study: of the result.
        train, test: features that it learned from and was tested on.
        right, tested: test images that it classified rightly, and all of them.
        settings: what was chosen, besides what `settings_of` says.
        about: further fields of the `Result`: `command`, `when`, `versions`.
    """
    return Result(
        **about_features(study, train, test),
        value=right / tested,
        examples=tested,
        interval=wilson(right, tested),
        settings={**settings_of(train), **settings},
        **about,
    )


def about_features(study: str, train: FeatureSet, test: FeatureSet) -> dict[str, str]:
    """Fields of a `Result` that are the same for all numbers on these features."""
    model = train.about.get("name", "unknown")
    return {"study": study, "model": model, "data": test.name, "metric": "accuracy"}


def settings_of(train: FeatureSet) -> dict[str, object]:
    """What a result on frozen features must say of them."""
    kept = ("endpoint", "pool", "resolution", "weights")
    rule = train.about.get("preprocessing", {})
    return {
        "train": train.name,
        **{name: train.about.get(name) for name in kept},
        **{name: rule.get(name) for name in ("resize", "resize_to")},
    }
