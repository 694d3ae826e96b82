"""The architectures: one row per variant, each citing where its numbers come from.

A variant is a network, not weights; those are in `keras_vit.zoo.cards`. The mean-pooled models of
the GSAM release (`-gap` in the official code) are no variants: their cards set `pool = "gap"`.
"""

import dataclasses

from keras_vit.spec import ViTSpec


@dataclasses.dataclass(frozen=True)
class Variant:
    """One architecture.

    Attributes:
        name: as in the paper, `ViT-L/16`.
        spec: 224 px and 1000 classes unless the variant says otherwise; no dropout.
        dropout: rate in the authors' fine-tuning configuration of that name.
        source: table or file that defines it.
        note: anything a user must know.
    """

    name: str
    spec: ViTSpec
    dropout: float
    source: str
    note: str = ""


# name: (hidden_size, mlp_dim, num_heads, num_layers), source.
SIZES = {
    "Ti": ((192, 768, 3, 12), "arXiv 2106.10270; vit_jax/configs/models.py"),
    "S": ((384, 1536, 6, 12), "arXiv 2106.10270; vit_jax/configs/models.py"),
    "b": ((384, 1536, 6, 12), "arXiv 2010.11929, Figure 4"),
    "B": ((768, 3072, 12, 12), "arXiv 2010.11929, Table 1"),
    "L": ((1024, 4096, 16, 24), "arXiv 2010.11929, Table 1"),
    "H": ((1280, 5120, 16, 32), "arXiv 2010.11929, Table 1"),
    "g": ((1408, 6144, 16, 40), "arXiv 2106.04560; big_vision models/vit.py:297"),
    "G": ((1664, 8192, 16, 48), "arXiv 2106.04560; big_vision models/vit.py:297"),
}

_TOKEN_NOTE = (
    "The original pools by attention (pool='map'); this row has a class token, as the others."
)

# size, patch, dropout (vision_transformer vit_jax/configs/models.py), note.
ROWS = (
    ("Ti", 16, 0.0, ""),
    ("S", 32, 0.0, ""),
    ("S", 16, 0.0, ""),
    (
        "b",
        32,
        0.0,
        "ViT-B with every width halved; the paper does not say how many heads: 6 keeps 64 per head.",
    ),
    ("B", 32, 0.0, "The published configuration had dropout 0.1 before May 2021."),
    ("B", 16, 0.0, "The published configuration had dropout 0.1 before May 2021."),
    ("B", 8, 0.0, ""),
    ("L", 32, 0.0, "No dropout in the published configuration, although ViT-L/16 has 0.1."),
    ("L", 16, 0.1, ""),
    ("L", 14, 0.0, "A size of big_vision, not in the papers' tables; without released weights."),
    (
        "H",
        14,
        0.1,
        "At 384 px the official code drops the last 6 rows and columns: allow_crop=True.",
    ),
    ("g", 14, 0.0, _TOKEN_NOTE),
    ("G", 14, 0.0, _TOKEN_NOTE),
)

MINI = Variant(
    name="ViT-Mini/4",
    spec=ViTSpec(
        hidden_size=96,
        mlp_dim=192,
        num_heads=3,
        num_layers=4,
        patch_size=(4, 4),
        image_size=(28, 28),
        in_channels=1,
        num_classes=10,
        pool="gap",
    ),
    dropout=0.0,
    source="this project, keras_vit/train/recipes/fashion_mnist.py",
    note="For 28x28 grey images; its weights ship with the package.",
)


def _variant(size: str, patch: int, dropout: float, note: str) -> Variant:
    (hidden_size, mlp_dim, num_heads, num_layers), source = SIZES[size]
    spec = ViTSpec(hidden_size, mlp_dim, num_heads, num_layers, (patch, patch))
    return Variant(f"ViT-{size}/{patch}", spec, dropout, source, note)


VARIANTS: dict[str, Variant] = {v.name: v for v in (*(_variant(*row) for row in ROWS), MINI)}
