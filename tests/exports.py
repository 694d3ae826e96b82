"""A small model with a card, for tests of what exported files say of themselves."""

from keras_vit.card import Card, Preprocessing
from keras_vit.spec import ViTSpec

NAMES = ("ant", "bee", "cat", "dog")
SPEC = ViTSpec(
    hidden_size=24,
    mlp_dim=40,
    num_heads=3,
    num_layers=1,
    patch_size=8,
    image_size=(32, 40),
    in_channels=3,
    num_classes=4,
)
CARD = Card(
    variant="ViT-Test/8",
    tag="random",
    num_classes=4,
    class_names=NAMES,
    preprocessing=Preprocessing(resize="shorter_side", resize_to=36, mean=(120.0,), std=(60.0,)),
)
