"""What is known of one checkpoint: where it is, what it expects, what it was measured to do."""

import dataclasses
from typing import Any

RESIZES = ("stretch", "shorter_side", "none")
METHODS = ("bilinear", "bicubic", "area")


@dataclasses.dataclass(frozen=True)
class Preprocessing:
    """From an 8-bit image of any size to the numbers a checkpoint was evaluated with.

    Attributes:
        resize: `stretch` to `resize_to` ignoring the aspect ratio, `shorter_side` to bring the
            shorter side to `resize_to`, `none`.
        method: `bilinear` (half-pixel centres), `bicubic` (a = -0.5), `area` (means of cells).
        antialias: widen the kernel when shrinking; the Google checkpoints do not.
        resize_to: pixels, None for the model's own input size.
        truncate: cast back to uint8 after resizing, dropping fractions (big_vision, LiT).
        mean: subtracted, in units of 0..255, one value or one per channel.
        std: divided by afterwards.

    A central crop to the input size follows whenever the resized image is larger.
    """

    resize: str = "stretch"
    method: str = "bilinear"
    antialias: bool = False
    resize_to: int | None = None
    truncate: bool = False
    mean: tuple[float, ...] = (127.5,)
    std: tuple[float, ...] = (127.5,)

    def __post_init__(self):
        if self.resize not in RESIZES:
            raise ValueError(f"resize must be one of {list(RESIZES)}, got {self.resize!r}.")
        if self.method not in METHODS:
            raise ValueError(f"method must be one of {list(METHODS)}, got {self.method!r}.")
        object.__setattr__(self, "mean", tuple(float(v) for v in self.mean))
        object.__setattr__(self, "std", tuple(float(v) for v in self.std))
        if len(self.mean) != len(self.std) or not self.mean:
            raise ValueError(
                f"mean and std must be as many, got {len(self.mean)} and {len(self.std)}."
            )
        if not all(v > 0.0 for v in self.std):
            raise ValueError(f"std must be positive, got {self.std}.")

    @property
    def value_range(self) -> tuple[float, float]:
        """Smallest and largest value a preprocessed image can hold."""
        low = min((0.0 - m) / s for m, s in zip(self.mean, self.std, strict=True))
        high = max((255.0 - m) / s for m, s in zip(self.mean, self.std, strict=True))
        return low, high


@dataclasses.dataclass(frozen=True)
class Metric:
    """One reported number.

    Attributes:
        dataset: what it was measured on.
        name: `top1`, `top5`, ... in percent.
        value: the number.
        source: where it is reported, or the command that measured it.
    """

    dataset: str
    name: str
    value: float
    source: str


@dataclasses.dataclass(frozen=True)
class Card:
    """One checkpoint.

    Attributes:
        variant: architecture name, for example `ViT-B/16`.
        tag: which weights of it, for example `augreg_in21k_ft_in1k_384`.
        description: one sentence.
        file: path below a mirror, as published (`vit_models/imagenet21k/ViT-B_16.npz`).
        sources: addresses in order of preference.
        hub: the same weights in another container, as `org/name`.
        size: bytes of the file, None when unknown.
        size_predicted: the size is computed from the keys in the file and may be a few kilobytes
            off, because no exact size was published.
        sha256: hash of the file, None where none is public.
        num_classes: outputs of the head in the file.
        class_names: names in order, or the name of a shipped list, or None.
        image_size: pixels the checkpoint was trained at last, (height, width).
        spec: fields of the spec that differ from the variant's.
        preprocessing: what turns an image into input.
        posemb_resize: rule for other resolutions, see `keras_vit.posemb.METHODS`; `align_corners`
            is the original one.
        patch_resize: rule for other patch sizes; `pseudo_inverse` for checkpoints made for any
            patch size (FlexiViT), None where the patch kernel must fit as it is.
        usable_head: False where the published head is all zeros on purpose.
        pretraining: data and schedule.
        metrics: reported numbers, never measured here unless their source is a command.
        license: SPDX identifier.
        aliases: other names of the same checkpoint.
        note: anything a user must know.
    """

    variant: str
    tag: str
    description: str = ""
    file: str | None = None
    sources: tuple[str, ...] = ()
    hub: str | None = None
    size: int | None = None
    size_predicted: bool = False
    sha256: str | None = None
    num_classes: int = 1000
    class_names: tuple[str, ...] | str | None = None
    image_size: tuple[int, int] = (224, 224)
    spec: dict[str, Any] = dataclasses.field(default_factory=dict)
    preprocessing: Preprocessing = Preprocessing()
    posemb_resize: str = "align_corners"
    patch_resize: str | None = None
    usable_head: bool = True
    pretraining: str = ""
    metrics: tuple[Metric, ...] = ()
    license: str = ""
    aliases: tuple[str, ...] = ()
    note: str = ""

    @property
    def name(self) -> str:
        """`variant@tag`, the full name that `keras_vit.load` takes."""
        return f"{self.variant}@{self.tag}"

    def to_dict(self) -> dict[str, Any]:
        """Plain values only; fields at their default are left out."""
        values = {}
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            default = field.default_factory() if callable(field.default_factory) else field.default
            if value != default:
                values[field.name] = _plain(value)
        return values

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "Card":
        """Rebuilds a card from `to_dict()` or a TOML row.

        Raises:
            ValueError: a field is unknown or missing.
        """
        values = dict(values)
        known = {field.name for field in dataclasses.fields(cls)}
        if extra := sorted(set(values) - known):
            raise ValueError(f"unknown fields {extra} in a card: known are {sorted(known)}.")
        if missing := sorted({"variant", "tag"} - set(values)):
            raise ValueError(f"a card needs the fields {missing}.")
        if "preprocessing" in values:
            values["preprocessing"] = Preprocessing(**values["preprocessing"])
        values["metrics"] = tuple(Metric(**m) for m in values.get("metrics", ()))
        for field in ("sources", "aliases", "image_size", "class_names"):
            if isinstance(values.get(field), list):
                values[field] = tuple(values[field])
        return cls(**values)


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {k: _plain(v) for k, v in dataclasses.asdict(value).items()}
    if isinstance(value, (tuple, list)):
        return [_plain(v) for v in value]
    return value
