"""The 52,000 files of "How to train your ViT?" (arXiv 2106.10270) by their names.

A name states how the file was made:

    B_16-i21k-300ep-lr_0.001-aug_medium1-wd_0.1-do_0.0-sd_0.0--imagenet2012-steps_20k-lr_0.01-res_224

Model, data, epochs, learning rate, augmentation, weight decay, dropout and stochastic depth of
pre-training; after `--` data, steps, learning rate and pixels of fine-tuning. `card_of` makes a card
of any such name. Which file is best stands in the authors' index, see `keras_vit.zoo.augreg_index`.

Sources: vit_jax/checkpoint.py, vit_jax_augreg.ipynb; steps_0k is 500 and steps_2k is 2,500.
"""

import dataclasses
import re

from keras_vit.card import Card
from keras_vit.zoo.cards import all_cards, card_spec

FOLDER = "vit_models/augreg"

# Model in the index: variant, bytes of npz and array headers.
MODELS = {
    "Ti/16": ("ViT-Ti/16", 68_918),
    "S/32": ("ViT-S/32", 68_918),
    "S/16": ("ViT-S/16", 68_918),
    "B/32": ("ViT-B/32", 68_918),
    "B/16": ("ViT-B/16", 68_918),
    "B/8": ("ViT-B/8", 68_918),
    "L/16": ("ViT-L/16", 135_974),
    "R+Ti/16": ("R+ViT-Ti/16", 69_696),
    "R26+S/32": ("R26+ViT-S/32", 93_088),
    "R50+L/32": ("R50+ViT-L/32", 180_112),
}
FILE_MODELS = {re.sub(r"[/+]", "_", model): model for model in MODELS}
DATA = {"i1k": ("ImageNet-1k", 1000), "i21k": ("ImageNet-21k", 21843)}
# light0 and light1 are called light1 and light2 in the paper.
AUGMENTATIONS = ("none", "light0", "light1", "medium1", "medium2", "strong1", "strong2")
STEPS = {"0k": 500, "2k": 2500, "10k": 10_000, "20k": 20_000}
# Data of fine-tuning: what it is called, classes.
DATASETS = {
    "cifar100": ("CIFAR-100", 100),
    "imagenet2012": ("ImageNet-1k", 1000),
    "kitti": ("KITTI distance", 4),
    "oxford_iiit_pet": ("Oxford-IIIT Pet", 37),
    "resisc45": ("RESISC45", 45),
}

_UPSTREAM = (
    r"(?P<model>[A-Za-z0-9_]+)-(?P<data>i1k|i21k)-(?P<epochs>\d{1,4})ep-lr_(?P<lr>[\d.e-]{1,12})"
    r"-aug_(?P<augmentation>[a-z0-9]+)-wd_(?P<weight_decay>[\d.e-]{1,12})-do_(?P<dropout>[\d.]{1,8})"
    r"-sd_(?P<stochastic_depth>[\d.]{1,8})"
)
_FINE_TUNING = r"(?P<dataset>[a-z0-9_]+)-steps_(?P<steps>\d{1,2}k)-lr_(?P<lr>[\d.e-]{1,12})-res_(?P<pixels>\d{3})"


@dataclasses.dataclass(frozen=True)
class FineTuning:
    """How a file was fine-tuned; `steps` is one of the values of `STEPS`."""

    dataset: str
    steps: int
    lr: float
    pixels: int


@dataclasses.dataclass(frozen=True)
class Settings:
    """How a file was made; `fine_tuning` is None for one that was only pre-trained."""

    model: str
    data: str
    epochs: int
    lr: float
    augmentation: str
    weight_decay: float
    dropout: float
    stochastic_depth: float
    fine_tuning: FineTuning | None = None

    @property
    def stem(self) -> str:
        """The file's name without `.npz`; the inverse of `parse`."""
        return f"{re.sub(r'[/+]', '_', self.model)}-{self.after_model}"

    @property
    def after_model(self) -> str:
        """The name without the model, which is the tag of the file's card."""
        upstream = (
            f"{self.data}-{self.epochs}ep-lr_{self.lr:g}-aug_{self.augmentation}"
            f"-wd_{self.weight_decay:g}-do_{self.dropout}-sd_{self.stochastic_depth}"
        )
        if self.fine_tuning is None:
            return upstream
        tuned = self.fine_tuning
        steps = {steps: token for token, steps in STEPS.items()}[tuned.steps]
        return f"{upstream}--{tuned.dataset}-steps_{steps}-lr_{tuned.lr:g}-res_{tuned.pixels}"


def parse(name: str) -> Settings | None:
    """The settings in the name of an AugReg file: a stem, a file, a path or an address; else None."""
    stem = re.split(r"[/\\]", name.strip())[-1]
    stem = re.sub(r"\.npz$", "", stem, flags=re.IGNORECASE)
    upstream, separator, tuned = stem.partition("--")
    first = re.fullmatch(_UPSTREAM, upstream, re.ASCII)
    second = re.fullmatch(_FINE_TUNING, tuned, re.ASCII) if separator else None
    if not first or bool(separator) != bool(second) or first["model"] not in FILE_MODELS:
        return None
    if first["augmentation"] not in AUGMENTATIONS:
        return None
    try:
        fine_tuning = None
        if second:
            if second["dataset"] not in DATASETS or second["steps"] not in STEPS:
                return None
            steps, pixels = STEPS[second["steps"]], int(second["pixels"])
            fine_tuning = FineTuning(second["dataset"], steps, float(second["lr"]), pixels)
        settings = Settings(
            FILE_MODELS[first["model"]],
            first["data"],
            int(first["epochs"]),
            float(first["lr"]),
            first["augmentation"],
            float(first["weight_decay"]),
            float(first["dropout"]),
            float(first["stochastic_depth"]),
            fine_tuning,
        )
    except ValueError:
        return None
    return settings if settings.stem == stem else None  # 0.10 is no 0.1 in a file's name


def card_of(name: str) -> Card | None:
    """The card of an AugReg file by its name, address, or `VARIANT@` and the name after the model.

    A file that a table has a card for gets that card. None for any other name, and for a resolution
    that the model cannot have.
    """
    variant, at, tag = name.strip().partition("@")
    if at:
        model = next((m for m, (v, _) in MODELS.items() if v == variant), "")
        settings = parse(f"{re.sub(r'[/+]', '_', model)}-{tag}")
    else:
        settings = parse(name)
    if settings is None:
        return None
    file = f"{FOLDER}/{settings.stem}.npz"
    for card in all_cards().values():
        if card.file == file:
            return card
    try:
        return _card(settings, file)
    except ValueError:
        return None


def known_card(variant: str, tag: str) -> Card:
    """The card of `variant@tag` as `names.resolve` gives them: of a table, or made from its name.

    Raises:
        ValueError: neither.
    """
    name = f"{variant}@{tag}"
    card = all_cards().get(name) or card_of(name)
    if card is None:
        raise ValueError(f"{name} is no checkpoint: keras-vit list --pretrained shows all.")
    return card


def describe(settings: Settings) -> str:
    """One line on how a file was made."""
    s, tuned = settings, settings.fine_tuning
    text = (
        f"{DATA[s.data][0]}, {s.epochs} epochs, lr {s.lr:g}, augmentation {s.augmentation}, weight "
        f"decay {s.weight_decay:g}, dropout {s.dropout}, stochastic depth {s.stochastic_depth}"
    )
    if tuned is None:
        return text
    return (
        f"{text}; fine-tuned on {DATASETS[tuned.dataset][0]}, {tuned.steps:,} steps, lr {tuned.lr:g}, "
        f"{tuned.pixels} px"
    )


def _card(settings: Settings, file: str) -> Card:
    variant, overhead = MODELS[settings.model]
    tuned = settings.fine_tuning
    num_classes = DATASETS[tuned.dataset][1] if tuned else DATA[settings.data][1]
    pixels = tuned.pixels if tuned else 224
    card = Card(
        variant=variant,
        tag=settings.after_model,
        description="AugReg, one of the authors' 52,000 files.",
        file=file,
        sources=(f"https://storage.googleapis.com/{file}",),
        size_predicted=True,
        num_classes=num_classes,
        class_names={1000: "imagenet2012", 21843: "imagenet21k"}.get(num_classes),
        image_size=(pixels, pixels),
        pretraining=describe(settings),
        license="Apache-2.0",
        note="Made from the file's name; its accuracy stands in the authors' index.csv.",
    )
    return dataclasses.replace(card, size=4 * card_spec(card).num_params + overhead)
