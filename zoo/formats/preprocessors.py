"""What other libraries write about preprocessing, as ours, and ours as theirs.

Pillow resizes for PyTorch's tools, which always widens its kernel when it shrinks: `antialias=True`.
"""

import math
from typing import Any

from keras_vit.card import Preprocessing
from keras_vit.zoo.formats.configs import Config

# Pillow's number of a method, which Hugging Face writes.
PILLOW = {2: "bilinear", 3: "bicubic"}
METHODS = ("bilinear", "bicubic")


def from_huggingface(config: Config, image_size: tuple[int, int] | None) -> Preprocessing | None:
    """The rule of a `preprocessor_config.json`; None where there is none.

    Args:
        config: the file.
        image_size: of the model.

    Raises:
        ValueError: a rule that cannot be expressed.
    """
    if not config:
        return None
    factor = 1.0
    if _does(config, "rescale"):
        factor = _positive(config, "rescale_factor", 1 / 255)
    mean, std = [0.0], [1.0]
    if _does(config, "normalize"):
        mean = config.numbers("image_mean", [0.5, 0.5, 0.5])
        std = config.numbers("image_std", [0.5, 0.5, 0.5])
    values: dict[str, Any] = {"mean": _equal(mean, factor), "std": _equal(std, factor)}
    if not _does(config, "resize"):
        return Preprocessing(resize="none", **values)
    number = config.take("resample", int, 2)
    if number not in PILLOW:
        raise ValueError(f"{config.path} has resample {number}: known are {sorted(PILLOW)}.")
    return Preprocessing(
        method=PILLOW[number],
        antialias=True,
        rounded=True,
        **_size(config, image_size),
        **values,
    )


def to_huggingface(how: Preprocessing, image_size: tuple[int, int]) -> dict[str, Any]:
    """The nearest `preprocessor_config.json`: all but antialiasing, which Pillow always does.

    Args:
        how: our rule.
        image_size: of the model.
    """
    height, width = image_size
    name, size, crop = "ViTImageProcessor", {"height": height, "width": width}, False
    if how.resize == "shorter_side":
        name, size, crop = (
            "BitImageProcessor",
            {"shortest_edge": how.resize_to or min(image_size)},
            True,
        )
    elif how.resize_to and (how.resize_to, how.resize_to) != image_size:
        name, crop = "DeiTImageProcessor", True
        size = {"height": how.resize_to, "width": how.resize_to}
    return {
        "image_processor_type": name,
        "do_resize": how.resize != "none",
        "size": size,
        "resample": {method: number for number, method in PILLOW.items()}.get(how.method, 2),
        "do_center_crop": crop,
        **({"crop_size": {"height": height, "width": width}} if crop else {}),
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": [m / 255 for m in _three(how.mean)],
        "image_std": [s / 255 for s in _three(how.std)],
    }


def from_timm(config: Config) -> Preprocessing | None:
    """The rule of timm's `pretrained_cfg`; None where it tells none."""
    if "mean" not in config or "input_size" not in config:
        return None
    sizes = config.numbers("input_size")
    method = config.take("interpolation", str, "bicubic")
    if method not in METHODS or not sizes:
        return None
    to = math.floor(sizes[-1] / _positive(config, "crop_pct", 0.875))
    return Preprocessing(
        resize="stretch" if config.take("crop_mode", str, "center") == "squash" else "shorter_side",
        method=method,
        antialias=True,
        rounded=True,
        resize_to=to,
        mean=_equal(config.numbers("mean"), 1 / 255),
        std=_equal(config.numbers("std"), 1 / 255),
    )


def from_keras_hub(config: Config) -> Preprocessing | None:
    """The rule of an image converter of KerasHub; None where it tells none.

    Raises:
        ValueError: a rule that cannot be expressed.
    """
    if "image_size" not in config:
        return None
    config.refuse("pad_to_aspect_ratio", (False, None), False)
    config.refuse("interpolation", METHODS, "bilinear")
    scale = config.values.get("scale")
    offset = config.values.get("offset")
    scales = _listed(1.0 if scale is None else scale, config, "scale")
    offsets = _listed(0.0 if offset is None else offset, config, "offset")
    count = max(len(scales), len(offsets))
    scales, offsets = (v * (count if len(v) == 1 else 1) for v in (scales, offsets))
    if len(scales) != len(offsets) or 0.0 in scales:
        raise ValueError(f"{config.path} has scale {scales} and offset {offsets}: none to use.")
    crops = config.take("crop_to_aspect_ratio", bool, True)
    return Preprocessing(
        resize="shorter_side" if crops else "stretch",
        method=config.take("interpolation", str, "bilinear"),
        antialias=config.take("antialias", bool, False),
        mean=tuple(round(-o / s, 9) for o, s in zip(offsets, scales, strict=True)),
        std=tuple(round(1 / s, 9) for s in scales),
    )


def to_keras_hub(how: Preprocessing, image_size: tuple[int, int]) -> dict[str, Any] | None:
    """The fields of an image converter; None for a rule that KerasHub has not."""
    exact = how.resize_to in (None, min(image_size)) and not how.truncate
    if how.resize == "none" or how.method not in METHODS or not exact:
        return None
    scales = [1 / s for s in how.std]
    offsets = [-m / s for m, s in zip(how.mean, how.std, strict=True)]
    return {
        "image_size": list(image_size),
        "scale": scales[0] if len(scales) == 1 else scales,
        "offset": offsets[0] if len(offsets) == 1 else offsets,
        "interpolation": how.method,
        "antialias": how.antialias,
        "crop_to_aspect_ratio": how.resize == "shorter_side",
        "pad_to_aspect_ratio": False,
    }


def _does(config: Config, what: str) -> bool:
    return config.take(f"do_{what}", bool, True)


def _positive(config: Config, key: str, default: float) -> float:
    value = config.take(key, (int, float), default)
    if not 0 < value < math.inf:
        raise ValueError(f"{config.path} has {key} {value}: expected a positive number.")
    return value


def _size(config: Config, image_size: tuple[int, int] | None) -> dict[str, Any]:
    """`resize` and `resize_to` of a size in any of the ways it was written over the years."""
    size = config.take("size", (int, dict), 224)
    if isinstance(size, int):
        by_side = "Bit" in str(config.values.get("image_processor_type", ""))
        size = {"shortest_edge": size} if by_side else {"height": size, "width": size}
    if "shortest_edge" in size:
        to = Config(config.path, size).take("shortest_edge", int)
        return {"resize": "shorter_side", "resize_to": to}
    sides = tuple(Config(config.path, size).take(side, int) for side in ("height", "width"))
    if sides == image_size:
        return {"resize": "stretch", "resize_to": None}
    if sides[0] != sides[1]:
        raise ValueError(
            f"{config.path} resizes to {sides[0]}x{sides[1]}, not to the model's size."
        )
    return {"resize": "stretch", "resize_to": sides[0]}


def _equal(values: list[float], factor: float) -> tuple[float, ...]:
    """Values in units of 0..255; one for all channels where they are equal."""
    units = [round(v / factor, 9) for v in values]
    return tuple(units[:1] if len(set(units)) == 1 else units)


def _three(values: tuple[float, ...]) -> tuple[float, ...]:
    return values * 3 if len(values) == 1 else values


def _listed(value: Any, config: Config, key: str) -> list[float]:
    values = value if isinstance(value, list) else [value]
    return Config(config.path, {key: values}).numbers(key)
