"""`--smoke`: a command as it is, with a tiny network and made-up images in place of what it names."""

import contextlib
import functools
import inspect
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from keras_vit.cli.common import Answer

Smoke = Annotated[
    bool, typer.Option("--smoke", help="A tiny network of the same family on made-up images.")
]
TRAIN, TEST = 64, 16  # images


def with_smoke(function: Callable[..., Answer]) -> Callable[..., Answer]:
    """Adds the option to a command with a `model`, and `data`, `test` or `images`.

    Everything after the names is what runs without it: files are opened, weights loaded.
    """

    @functools.wraps(function)
    def wrapper(*, smoke: bool = False, **arguments: Any) -> Answer:
        if not smoke:
            return function(**arguments)
        with stand_ins(arguments["model"]) as files:
            return function(**arguments | {k: v for k, v in files.items() if arguments.get(k)})

    option = inspect.Parameter(
        "smoke", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=Smoke
    )
    signature = inspect.signature(function)
    wrapper.__signature__ = signature.replace(  # pyright: ignore[reportAttributeAccessIssue]
        parameters=[*signature.parameters.values(), option]
    )
    wrapper.__annotations__ = {**function.__annotations__, "smoke": Smoke}
    return wrapper


@contextlib.contextmanager
def stand_ins(model: str) -> Iterator[dict[str, Any]]:
    """Files by the arguments that they stand for: `model`, `data`, `test`, `images`.

    The network's card reports the accuracy that it has on these images. ReaL's labels (`real`) are of
    ImageNet's images and stand for nothing else.
    """
    import keras
    import numpy as np
    from PIL import Image

    from keras_vit.card import Card, Metric
    from keras_vit.model import VisionModel
    from keras_vit.train.evaluate import evaluate
    from keras_vit.train.recipes import smoke
    from keras_vit.train.task import variant_of
    from keras_vit.zoo.variants import VARIANTS

    keras.utils.set_random_seed(0)
    variant = variant_of(model)
    network = VisionModel(smoke.tiny(VARIANTS[variant].spec))
    for head in (layer for layer in network.layers if layer.name == "head"):
        head.kernel.assign(
            keras.random.normal(head.kernel.shape)
        )  # no zeros, which predict nothing
    train, test = (smoke.images(network.spec, n, seed) for seed, n in enumerate((TRAIN, TEST)))
    with tempfile.TemporaryDirectory() as folder:
        files: dict[str, Any] = {"model": f"{folder}/tiny.keras", "images": [], "real": None}
        for name, source in (("data", train), ("test", test)):
            files[name] = f"{folder}/{name}.npz"
            np.savez(
                files[name],
                images=source.images,
                labels=source.labels,
                class_names=np.array(source.class_names),
            )
        for i in range(2):
            path = Path(folder) / f"image_{i}.png"
            Image.fromarray(np.squeeze(test.images[i])).save(path)
            files["images"].append(str(path))
        measured = evaluate(
            network.probabilities,
            train,
            image_size=network.spec.image_size,
            channels=network.spec.in_channels,
            preprocessing=network.preprocessing,
        )
        network.card = Card(
            variant=variant,
            tag="smoke",
            num_classes=network.spec.num_classes,
            class_names=train.class_names,
            image_size=network.spec.image_size,
            metrics=(Metric("made-up images", "top1", 100 * measured.accuracy, "measured before"),),
        )
        network.save(files["model"])
        yield files
