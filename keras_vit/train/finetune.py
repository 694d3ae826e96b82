"""Fine-tuning: from a checkpoint and labelled images to a model of their classes, with a report.

The recipe follows arXiv 2010.11929, appendix B.1.1 (no weight decay on anything but kernels, clipped
gradients, cosine decay, a new zero head), with AdamW at a low rate in place of SGD, because it needs
no search over rates on small sets.
"""

import dataclasses
import os
import re
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np

from keras_vit.card import Card, Metric
from keras_vit.data.sources import Source
from keras_vit.model import VisionModel
from keras_vit.spec import ResNetSpec, Spec, changed, pair
from keras_vit.train import report as reports
from keras_vit.train import rundir
from keras_vit.train.evaluate import Evaluation, evaluate_model
from keras_vit.train.recipe import Optimizer, Recipe, Schedule
from keras_vit.train.run import Result, fit
from keras_vit.zoo import api, loading, names
from keras_vit.zoo.cards import all_cards, card_spec
from keras_vit.zoo.variants import VARIANTS

# AdamW's peak rate by the width of a model: larger models need smaller steps.
RATES = ((128, 1e-3), (256, 3e-4), (512, 1e-4), (768, 5e-5), (1024, 3e-5))
RATE_BEYOND = 2e-5
RATE_FROM_SCRATCH = 3e-4  # at least
RATE_HEAD_ONLY = 3e-3  # a linear model on fixed features
# BiT fine-tunes with SGD: arXiv 1912.11370, section 3.3 (BiT-HyperRule), its rate for 512 images. Small
# batches take it too: 300 steps at a rate scaled down to 32 images hardly move a network.
RATE_RESNET = 3e-3


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What fine-tuning gave.

    Attributes:
        model: float32, with the best weights, the data's class names on its card, not compiled.
        evaluation: on the validation images (on the training images when there are none).
        result: history, best epoch, seconds.
        report: what `report.json` holds.
    """

    model: VisionModel
    evaluation: Evaluation
    result: Result
    report: dict[str, Any]


def default_recipe(
    spec: Spec, examples: int, *, from_scratch: bool = False, freeze: bool = False, seed: int = 0
) -> Recipe:
    """A recipe that is safe for a model of this size on this many images.

    AdamW at a low rate (SGD for a trained ResNet) with a tenth of warm-up, clipping at 1, cosine
    decay; as many epochs as give 300 steps, at least 5 and at most 30; stop after 5 epochs without a
    better validation accuracy.
    """
    sgd = isinstance(spec, ResNetSpec) and not (freeze or from_scratch)
    width = getattr(spec, "hidden_size", spec.feature_size)
    rate = next((r for size, r in RATES if width <= size), RATE_BEYOND)
    if sgd:
        rate = RATE_RESNET
    elif freeze:
        rate = RATE_HEAD_ONLY
    elif from_scratch:
        rate = max(rate, RATE_FROM_SCRATCH)
    batch_size = min(32, max(1, examples // 4))
    return Recipe(
        epochs=min(30, max(5, -(-300 * batch_size // max(examples, 1)))),
        batch_size=batch_size,
        schedule=Schedule(rate),
        optimizer=Optimizer("sgd" if sgd else "adamw", weight_decay=0.0 if sgd else 0.01),
        early_stopping=5,
        seed=seed,
    )


def finetune(
    model: str | os.PathLike | VisionModel,
    train: Source,
    *,
    out: str | os.PathLike,
    validation: Source | None = None,
    val_split: float = 0.1,
    image_size: int | tuple[int, int] | None = None,
    recipe: Recipe | Callable[[Recipe], Recipe] | None = None,
    from_scratch: bool = False,
    freeze: bool = False,
    force: bool = False,
    seed: int = 0,
    command: str | None = None,
    callbacks: tuple[keras.callbacks.Callback, ...] = (),
    verbose: int | str = 0,
) -> Outcome:
    """Fine-tunes a model and writes it, its report and its class names into a folder.

    A killed or interrupted run keeps its checkpoints in the folder, and a second call with the same
    arguments goes on from it. Images that cannot be decoded are left out and listed in the report.

    Args:
        model: what `keras_vit.load` takes, or a model, whose trunk is taken over.
        train: images; with labels (n, classes) the task is multi-label.
        out: folder for `model.keras`, `model.npz` with `model.json`, `report.json`, `report.md`.
        validation: images to choose the best epoch by; None splits them off `train`.
        val_split: share of every class to split off; 0 for no validation.
        image_size: pixels, None for the checkpoint's.
        recipe: None for `default_recipe`, or a function that changes it, or a whole recipe.
        from_scratch: the same network with random weights.
        freeze: train the head only.
        force: replace what an earlier run left in `out`.
        seed: of the split and the default recipe.
        command: noted in the report.
        callbacks: further Keras callbacks.
        verbose: as in Keras.

    Raises:
        ValueError: data, model and arguments do not fit each other, or `out` holds another run.
        FileExistsError: `out` holds something, and `force` is not given.
        FloatingPointError: the loss became NaN; the last good state is in `out`.
    """
    folder = Path(out)
    rundir.check_out(folder, force)
    train, validation = _data(train, validation, val_split, seed)
    size = pair(image_size, "image_size") if image_size is not None else None
    base = recipe if isinstance(recipe, Recipe) else None
    if base is None:
        spec = model.spec if isinstance(model, VisionModel) else _spec_and_card(model)[0]
        base = default_recipe(spec, len(train), from_scratch=from_scratch, freeze=freeze, seed=seed)
        base = recipe(base) if callable(recipe) else base
    keras.utils.set_random_seed(base.seed)
    network = _network(model, train, size, from_scratch, base.dtype)
    for layer in network.layers:
        layer.trainable = layer.name == "head" or not freeze
    about = {
        "model": str(model) if not isinstance(model, VisionModel) else model.name,
        "from_scratch": from_scratch,
        "freeze": freeze,
        "image_size": list(network.spec.image_size),
        "weights": _crc(*(keras.ops.convert_to_numpy(w) for w in network.weights)),
        "train": fingerprint(train),
        "validation": fingerprint(validation) if validation else None,
    }
    rundir.start(folder, about, force)
    result = fit(
        network,
        train,
        base,
        validation=validation,
        out=folder,
        verbose=verbose,
        callbacks=callbacks,
    )
    final = finished(network, train)
    measured = evaluate_model(final, validation or train, batch_size=base.batch_size)
    final.card = finetuned_card(network.card, about["model"], final, train, measured)
    report = reports.build(final, measured, result, base, about, command)
    _write(folder, final, report)
    return Outcome(final, measured, result, report)


def finished(model: VisionModel, train: Source) -> VisionModel:
    """A float32 copy without optimizer; with multi-label targets its outputs are sigmoids."""
    return rebuilt(model, "sigmoid" if train.multi_label else None, "float32")


def rebuilt(
    model: VisionModel,
    classifier_activation: str | None,
    dtype: str,
    values: dict[str, Callable] | None = None,
) -> VisionModel:
    """The same weights, frozen layers and card under another activation and dtype policy.

    `values` gives weights, by path, that this process does not hold itself.
    """
    spec = dataclasses.replace(model.spec, classifier_activation=classifier_activation)
    config = model.get_config()
    copy = model.with_spec(spec, dtype=dtype, frozen=config["frozen"], values=values)
    copy._trainable = config["trainable"]
    return copy


def finetuned_card(
    card: Card | None, origin: str, model: VisionModel, train: Source, measured: Evaluation
) -> Card:
    """The card of the new weights: where they come from, their classes, what was measured."""
    tag = re.sub(r"[^\w.-]+", "_", f"{card.tag if card else 'scratch'}-{train.name}").strip("_")
    return Card(
        variant=card.variant if card else "custom",
        tag=tag,
        description=f"{origin}, fine-tuned on {train.name}."
        if card
        else f"{origin}, trained on {train.name}.",
        num_classes=train.num_classes,
        class_names=train.class_names,
        image_size=model.spec.image_size,
        preprocessing=model.preprocessing,
        posemb_resize=card.posemb_resize if card else "align_corners",
        pretraining=card.pretraining if card else "",
        metrics=(
            Metric(
                measured.data,
                "top1" if measured.mean_average_precision is None else "exact_match",
                round(100 * measured.accuracy, 2),
                f"this project: measured on {measured.examples} images after fine-tuning",
            ),
        ),
        license=card.license if card else "",
    )


def fingerprint(source: Any) -> dict[str, Any]:
    """What tells one data set from another: counts, and checksums of labels, pixels or file sizes.

    Of a stream, which is not read for it, the name and the count.
    """
    found = {"name": source.name, "examples": len(source)}
    if not isinstance(source, Source):
        return found
    images = source.images
    parts = [images] if isinstance(images, np.ndarray) else map(_content, images)
    return {**found, "labels_crc32": _crc(source.labels), "images_crc32": _crc(*parts)}


def _data(
    train: Source, validation: Source | None, val_split: float, seed: int
) -> tuple[Source, Source | None]:
    present = np.flatnonzero(train.labels.any(axis=0)) if train.multi_label else train.labels
    if train.num_classes < 2 or len(np.unique(present)) < 2:
        raise ValueError(
            f"{train.name} has images of {len(np.unique(present))} class, but at least 2 are needed."
        )
    if validation is not None:
        if validation.class_names != train.class_names:
            raise ValueError(
                f"{validation.name} has the classes {list(validation.class_names)[:5]}, but "
                f"{train.name} has {list(train.class_names)[:5]}: they must be the same."
            )
    elif val_split:
        train, validation = train.split(val_split, seed)
    return train, validation


def _network(
    model: Any, train: Source, image_size: Any, from_scratch: bool, dtype: Any
) -> VisionModel:
    """The network to train: a zero head for the data's classes on the trunk, giving logits."""
    given = isinstance(model, VisionModel)
    if given and image_size not in (None, model.spec.image_size):
        raise ValueError(
            f"the model takes {model.spec.image_size} pixels: give its name or file in place of "
            f"itself to change that to {image_size}."
        )
    if from_scratch:
        spec, card = (model.spec, model.card) if given else _spec_and_card(model)
        changes = {
            "num_classes": train.num_classes,
            "image_size": image_size or spec.image_size,
            "representation_size": None,
            "classifier_activation": None,
        }
        spec = changed(spec, changes, str(model))
        return VisionModel(spec, card=_scratch_card(card, spec), dtype=dtype)
    if given:
        network = model.replace_head(train.num_classes, train.class_names)
    else:
        network = api.load(
            model, num_classes=train.num_classes, new_head=True, image_size=image_size, dtype=dtype
        )
    if network.spec.classifier_activation:
        network = rebuilt(network, None, network.policy.name)
    return network


def _scratch_card(card: Card | None, spec: Spec) -> Card | None:
    """Keeps the preprocessing of a card for random weights, and nothing that is said of the old."""
    if card is None:
        return None
    return Card(
        variant=card.variant,
        tag="scratch",
        num_classes=spec.num_classes,
        image_size=spec.image_size,
        preprocessing=card.preprocessing,
        posemb_resize=card.posemb_resize,
    )


def _spec_and_card(name: str | os.PathLike) -> tuple[Spec, Card | None]:
    """The network and card a name or file stands for, without the weights of a named checkpoint."""
    if path := loading.as_path(name):
        checkpoint = loading.of_file(path, None)
        return checkpoint.spec, checkpoint.card
    variant, tag = names.resolve(str(name))
    if tag is None and variant not in names.DEFAULTS:
        return VARIANTS[variant].spec, None
    card = all_cards()[f"{variant}@{tag or names.default_tag(variant)}"]
    return card_spec(card), card


def _write(folder: Path, model: VisionModel, report: dict[str, Any]) -> None:
    """Everything of a finished run; report.json comes last and says that it is finished."""
    part = folder / "model.part.keras"
    model.save(part)
    os.replace(part, folder / "model.keras")
    api.save_weights_as(model, folder / "model.npz", force=True)
    rundir.write_text(folder / "report.md", reports.markdown(report))
    rundir.write_json(folder / "report.json", report)
    rundir.finish(folder)


def _content(image: Any) -> np.ndarray:
    """Pixels or bytes of an image; of a file name and size, enough to notice that a folder changed."""
    if isinstance(image, np.ndarray):
        return image
    if isinstance(image, (str, os.PathLike)):
        path = Path(image)
        image = f"{path.name}:{path.stat().st_size}".encode()
    return np.frombuffer(image, np.uint8)


def _crc(*arrays: np.ndarray) -> int:
    value = 0
    for array in arrays:
        value = zlib.crc32(np.ascontiguousarray(array).view(np.uint8).ravel().data, value)
    return value
