"""What is known of one checkpoint: where it is, what it expects, what it was measured to do."""

import dataclasses
import math
import reprlib
from typing import Any

RESIZES = ("stretch", "shorter_side", "none")
METHODS = ("bilinear", "bicubic", "area")
# What `keras_vit.posemb` knows; told here so that a card is checked without NumPy.
POSEMB_RESIZES = ("align_corners", "half_pixel", "bicubic", "bicubic_antialias", "linear_antialias")
PATCH_RESIZES = (None, "pseudo_inverse")


_KIND_NAMES = {
    str: "a string",
    int: "an integer",
    float: "a number",
    bool: "true or false",
    list: "a list",
    tuple: "a list",
    dict: "a table",
}


def _kind(field: str, value: Any, kinds: tuple[type, ...]) -> None:
    if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
        wanted = " or ".join(dict.fromkeys(_KIND_NAMES[k] for k in kinds if k is not type(None)))
        raise ValueError(f"{field} must be {wanted}, got {_shown(value)}.")


def _shown(value: Any) -> str:
    """A value in a message, of a length that can be read."""
    text = reprlib.repr(value)
    return text if len(text) < 200 else f"{text[:200]}..."


def _choice(field: str, value: Any, choices: tuple) -> None:
    if not isinstance(value, (str, type(None))) or value not in choices:
        raise ValueError(f"{field} must be one of {list(choices)}, got {_shown(value)}.")


def _numbers(field: str, values: Any) -> tuple[float, ...]:
    """Finite numbers as floats."""
    _kind(field, values, (list, tuple))
    for value in values:
        _kind(field, value, (int, float))
        if (isinstance(value, int) and abs(value) > 2**53) or not math.isfinite(value):
            raise ValueError(f"{field} must be finite, got {_shown(value)}.")
    return tuple(float(value) for value in values)


def _made(kind: type, field: str, values: Any) -> Any:
    """A dataclass from the table of its fields."""
    _kind(field, values, (dict,))
    try:
        return kind(**values)
    except TypeError:
        known = [f.name for f in dataclasses.fields(kind)]
        raise ValueError(f"{field} takes the fields {known}, got {_shown(list(values))}.") from None


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
        rounded: round to whole numbers in 0..255 after resizing, as Pillow does (PyTorch's pipelines).

    A central crop to the input size follows whenever the resized image is larger.
    """

    resize: str = "stretch"
    method: str = "bilinear"
    antialias: bool = False
    resize_to: int | None = None
    truncate: bool = False
    mean: tuple[float, ...] = (127.5,)
    std: tuple[float, ...] = (127.5,)
    rounded: bool = False

    def __post_init__(self):
        _choice("resize", self.resize, RESIZES)
        _choice("method", self.method, METHODS)
        for field in ("antialias", "truncate"):
            _kind(field, getattr(self, field), (bool,))
        _kind("resize_to", self.resize_to, (int, type(None)))
        if self.resize_to is not None and self.resize_to <= 0:
            raise ValueError(f"resize_to must be positive, got {self.resize_to}.")
        object.__setattr__(self, "mean", _numbers("mean", self.mean))
        object.__setattr__(self, "std", _numbers("std", self.std))
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

    def __post_init__(self):
        for field in ("dataset", "name", "source"):
            _kind(field, getattr(self, field), (str,))
        object.__setattr__(self, "value", _numbers("value", [self.value])[0])


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

        An empty list of `class_names` means none, and so does away with a table's default.

        Raises:
            ValueError: a field is unknown, missing or of another kind than documented.
        """
        if not isinstance(values, dict):
            raise ValueError(f"a card must be a table of fields, got {_shown(values)}.")
        values = dict(values)
        known = {field.name for field in dataclasses.fields(cls)}
        if extra := sorted(set(values) - known):
            raise ValueError(f"unknown fields {extra} in a card: known are {sorted(known)}.")
        if missing := sorted({"variant", "tag"} - set(values)):
            raise ValueError(f"a card needs the fields {missing}.")
        if "preprocessing" in values:
            values["preprocessing"] = _made(Preprocessing, "preprocessing", values["preprocessing"])
        metrics = values.get("metrics", ())
        _kind("metrics", metrics, (list, tuple))
        values["metrics"] = tuple(_made(Metric, "metrics", metric) for metric in metrics)
        for field in ("sources", "aliases", "image_size", "class_names"):
            if isinstance(values.get(field), list):
                values[field] = tuple(values[field])
        if values.get("class_names") == () and values.get("num_classes"):
            values["class_names"] = None
        for field, kinds in _KINDS.items():
            if field in values:
                _kind(field, values[field], kinds)
        for field in ("sources", "aliases", "class_names"):
            value = values.get(field)
            for item in value if isinstance(value, tuple) else ():
                _kind(f"every entry of {field}", item, (str,))
        _choice("posemb_resize", values.get("posemb_resize", "align_corners"), POSEMB_RESIZES)
        _choice("patch_resize", values.get("patch_resize"), PATCH_RESIZES)
        return cls(**values)


_KINDS: dict[str, tuple[type, ...]] = {
    "variant": (str,),
    "tag": (str,),
    "description": (str,),
    "file": (str, type(None)),
    "sources": (tuple,),
    "hub": (str, type(None)),
    "size": (int, type(None)),
    "size_predicted": (bool,),
    "sha256": (str, type(None)),
    "num_classes": (int,),
    "class_names": (tuple, str, type(None)),
    "image_size": (tuple,),
    "spec": (dict,),
    "usable_head": (bool,),
    "pretraining": (str,),
    "license": (str,),
    "aliases": (tuple,),
    "note": (str,),
}


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {k: _plain(v) for k, v in dataclasses.asdict(value).items()}
    if isinstance(value, (tuple, list)):
        return [_plain(v) for v in value]
    return value
