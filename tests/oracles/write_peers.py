"""Writes what Hugging Face's and timm's own models save and compute, for tests.

Run once where both are installed (transformers 5.24, timm 1.0.31, torch 2.14 wrote these):
`python tests/oracles/write_peers.py`. Random weights, float32, on the CPU.
"""

from pathlib import Path

import numpy as np
import torch
import transformers
from timm.layers import SwiGLUPacked
from timm.models import save_for_hf
from timm.models.deit import VisionTransformerDistilled
from timm.models.vision_transformer import VisionTransformer
from transformers import models

FOLDER = Path(__file__).parent
SMALL = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "image_size": 32,
    "patch_size": 8,
}
LABELS = {i: f"label {i}" for i in range(5)}


def randomised(model, seed):
    """A model with no weight at its initial zeros or ones."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            scale = parameter[0].numel() ** -0.5 if parameter.dim() > 1 else 0.1
            parameter.copy_(noise * scale + (parameter == 1).all())
    return model.eval()


def images(shape, seed):
    random = np.random.RandomState(seed)
    return random.randint(-128, 128, size=shape).astype(np.float32) / 128


def run(model, x, **options):
    with torch.no_grad():
        return model(torch.from_numpy(x.transpose(0, 3, 1, 2)).contiguous(), **options)


def huggingface(name, model, outputs, seed, sizes=((32, 32),)):
    """The folder that the model saves, and its outputs beside it."""
    randomised(model, seed).save_pretrained(FOLDER / "hf" / name)
    arrays = {}
    for i, size in enumerate(sizes):
        x, end = images((1, *size, 3), seed + i), f"_{i}" if i else ""
        options = {"interpolate_pos_encoding": True} if i and "bit" not in name else {}
        found = run(model, x, **options)
        arrays[f"input{end}"] = x
        arrays |= {f"{key}{end}": getattr(found, key).numpy() for key in outputs}
    np.savez(FOLDER / "hf" / f"{name}_io.npz", **arrays)


def timm(name, model, architecture, arguments, seed):
    """A folder as timm puts it on a hub, and its outputs."""
    model = randomised(model, seed)
    model.pretrained_cfg = {
        "architecture": architecture,
        "input_size": [3, 32, 32],
        "mean": [0.485, 0.456, 0.406],
        "std": [0.229, 0.224, 0.225],
        "interpolation": "bicubic",
        "crop_pct": 0.875,
    }
    folder = FOLDER / "timm" / name
    config = {"label_names": list(LABELS.values())} if model.num_classes else {}
    save_for_hf(
        model,
        folder,
        {**config, "num_classes": model.num_classes},
        arguments,
        safe_serialization=True,
    )
    x = images((1, 32, 32, 3), seed)
    np.savez(FOLDER / "timm" / f"{name}_io.npz", input=x, output=run(model, x).numpy())


def main():
    labels = {"id2label": LABELS, "label2id": {v: k for k, v in LABELS.items()}}
    deit = transformers.DeiTConfig(**SMALL, **labels)
    huggingface(
        "deit_two_heads",
        models.deit.DeiTForImageClassificationWithTeacher(deit),
        ("logits", "cls_logits", "distillation_logits"),
        1,
        sizes=((32, 32), (48, 40)),
    )
    huggingface("deit_one_head", models.deit.DeiTForImageClassification(deit), ("logits",), 2)
    registers = {k: v for k, v in SMALL.items() if k != "intermediate_size"}
    huggingface(
        "dinov2_registers",
        transformers.Dinov2WithRegistersModel(
            transformers.Dinov2WithRegistersConfig(**registers, mlp_ratio=2, num_register_tokens=3)
        ),
        ("last_hidden_state", "pooler_output"),
        3,
    )
    bit = transformers.BitConfig(
        embedding_size=16,
        hidden_sizes=[32, 64],
        depths=[1, 2],
        num_groups=8,
        layer_type="bottleneck",
        global_padding="SAME",
        embedding_dynamic_padding=True,
        **labels,
    )
    huggingface(
        "bit_v1",
        transformers.BitForImageClassification(bit),
        ("logits",),
        4,
        sizes=((32, 32), (45, 38)),
    )
    mae = transformers.ViTMAEConfig(
        **SMALL,
        decoder_hidden_size=16,
        decoder_num_hidden_layers=1,
        decoder_num_attention_heads=2,
        decoder_intermediate_size=16,
        mask_ratio=0.0,
    )
    randomised(transformers.ViTMAEForPreTraining(mae), 5).save_pretrained(
        FOLDER / "hf" / "mae_whole"
    )

    small = {"img_size": 32, "patch_size": 8, "embed_dim": 16, "depth": 2, "num_heads": 2}
    registers = {
        **small,
        "mlp_ratio": 3.0,
        "reg_tokens": 3,
        "no_embed_class": True,
        "init_values": 1.0,
        "num_classes": 0,
    }
    timm(
        "dinov2_registers_swiglu",
        VisionTransformer(**registers, mlp_layer=SwiGLUPacked, act_layer=torch.nn.SiLU),
        "vit_giant_patch14_reg4_dinov2",
        {key: registers[key] for key in small},
        6,
    )
    timm(
        "deit_distilled",
        VisionTransformerDistilled(**small, mlp_ratio=2.0, num_classes=5),
        "deit_tiny_distilled_patch16_224",
        small,
        7,
    )


if __name__ == "__main__":
    main()
