"""One quantisation from options to a file: what it needs, what it does, what it says of it."""

import dataclasses
from typing import Any

import numpy as np

from keras_vit.export.calibrate import (
    Progress,
    activation_ranges,
    check_images,
    input_limits,
    parse_method,
)
from keras_vit.export.paths import operation_table, select
from keras_vit.export.quantize import (
    MODES,
    STATIC,
    by_layer,
    chosen_operations,
    left_in_float,
    quantized,
)
from keras_vit.export.sensitivity import check_labels, choose_blocks
from keras_vit.export.verify import ExportError
from keras_vit.spec import ResNetSpec

NPU_NOTE = (
    "int16x8 is for NPUs: the CPU delegate takes none of its operations, so it is many times slower "
    "than float32 on a CPU."
)
STATIC_NOTE = (
    "static int8 is for NPUs: on CPUs dynamic_int8 is faster and more exact for transformers."
)


@dataclasses.dataclass(frozen=True)
class Options:
    """How a mode quantises.

    Attributes:
        float_layers: patterns of layers that stay in float32 besides those of the mode.
        strict: `int8` and `int16x8`: every operation, input and output are integers, or it fails.
        calibration: `minmax` or `percentile:P`.
        max_drop: accuracy budget; blocks stay in float32 until it is kept. Needs labels.
    """

    float_layers: tuple[str, ...] = ()
    strict: bool = False
    calibration: str = "minmax"
    max_drop: float | None = None


def check_quantization(
    spec: Any,
    mode: str,
    options: Options,
    *,
    batch: int | None,
    input: str,
    images: Any,
    labels: Any,
) -> None:
    """Refuses what cannot be, before anything is built.

    Raises:
        ValueError: the mode does not exist or does not fit the model, or options contradict.
    """
    if mode not in MODES:
        raise ValueError(f"quantize must be None or one of {list(MODES[1:])}, got {mode!r}.")
    parse_method(options.calibration)
    static = mode in STATIC
    if mode == "int4_weights" and isinstance(spec, ResNetSpec):
        raise ValueError(
            "int4_weights stores dense layers in 4 bits and a ResNet has convolutions: use "
            "dynamic_int8 or int8."
        )
    if static and images is None:
        raise ValueError(
            f"{mode} is calibrated on images: give images of the kind the model will see (images=, "
            f"--data), or use dynamic_int8, which needs none."
        )
    if static and batch is None:
        raise ValueError(f"{mode} has a fixed batch: use batch=1, or dynamic_int8 for a free one.")
    for name, given in (
        ("strict", options.strict),
        ("max_drop", options.max_drop is not None),
        ("calibration", options.calibration != "minmax"),
    ):
        if given and not static:
            raise ValueError(f"{name} is an option of {' and '.join(STATIC)}, not of {mode}.")
    if options.float_layers and mode in ("float32", "float16"):
        raise ValueError(f"float_layers means nothing for {mode}, which computes in float32.")
    if options.strict and (options.float_layers or options.max_drop is not None):
        raise ValueError(
            "strict leaves nothing in float32: leave float_layers and max_drop out, or strict."
        )
    if options.strict and input == "uint8":
        raise ValueError(
            "strict cannot take uint8 pixels, because their normalisation computes in float32: use "
            "input='float32'; the file then takes int8, and its report says at which scale."
        )
    if options.max_drop is not None:
        check_labels(labels, len(images), options.max_drop)


def quantize_file(
    model: bytes,
    mode: str,
    options: Options,
    *,
    source: Any,
    inputs: np.ndarray,
    given: np.ndarray,
    labels: Any = None,
    progress: Progress | None = None,
) -> tuple[bytes, dict[str, Any]]:
    """A float32 .tflite in another mode, and what the report says of it.

    Args:
        model: the float32 file.
        mode: a key of `quantize.MODES` but `float32`.
        options: checked by `check_quantization`.
        source: the VisionModel, for what its preprocessing gives.
        inputs: preprocessed images (N, H, W, C), which are checked.
        given: the same as the file takes them.
        labels: (N,) class indices, for `max_drop`.
        progress: called with (done, total) while images are calibrated on and blocks are ranked.

    Raises:
        ValueError: the images are no preprocessed ones, or a pattern matches no layer.
        ExportError: an operation stays in float32 in a strict file.
    """
    details: dict[str, Any] = {"float_layers": list(options.float_layers)}
    if mode not in STATIC:
        chosen = select(operation_table(model), options.float_layers)
        made = quantized(model, mode, in_float=chosen)
        return made, {**details, "float": by_layer(left_in_float(made))}
    spec = source.spec
    check_images(inputs, (*spec.image_size, spec.in_channels), input_limits(source))
    chosen = chosen_operations(model, mode, options.float_layers, strict=options.strict)
    ranges = activation_ranges(model, given, options.calibration, progress)
    details |= {"calibration": options.calibration, "calibration_images": len(given)}
    if options.max_drop is not None:
        choice = choose_blocks(
            model, mode, ranges, given, labels, options.max_drop, in_float=chosen, progress=progress
        )
        details["sensitivity"] = dataclasses.asdict(choice)
        names = [op for op in operation_table(model) if op.paths[-1] in choice.blocks]
        chosen = tuple({op.index: op for op in (*chosen, *names)}.values())
    made = quantized(model, mode, ranges=ranges, in_float=chosen, whole=options.strict)
    remaining = left_in_float(made)
    if options.strict and remaining:
        listed = ", ".join(
            f"{kind} in {layer}"
            for layer, kinds in list(by_layer(remaining).items())[:5]
            for kind in kinds
        )
        raise ExportError(
            f"strict {mode}: {len(remaining)} operations remain in float32 ({listed}): export "
            f"without strict; nothing was written."
        )
    details |= {"strict": options.strict, "float": by_layer(remaining)}
    return made, {**details, **(_ends(made) if options.strict else {})}


def quantization_notes(mode: str, details: dict[str, Any] | None) -> tuple[str, ...]:
    """Sentences on what stayed in float32 and where a file of this mode belongs."""
    found = []
    if details is None:
        return ()
    if mode in STATIC:
        counts: dict[str, int] = {}
        for kinds in details["float"].values():
            for kind, count in kinds.items():
                counts[kind] = counts.get(kind, 0) + count
        listed = ", ".join(f"{count} {kind}" for kind, count in sorted(counts.items()))
        total = sum(counts.values())
        found.append(
            f"{total} operations compute in float32 ({listed}), in {len(details['float'])} layers."
            if total
            else "no operation computes in float32."
        )
        found.append(NPU_NOTE if mode == "int16x8" else STATIC_NOTE)
    if mode == "int4_weights":
        found.append(
            "kernels of dense layers have 4 bits; activations are quantised while running."
        )
    if entry := details.get("input"):
        found.append(
            f"the input is {entry['dtype']}: round(x / {entry['scale']:.8g}) {entry['zero_point']:+d} "
            f"of a preprocessed value x."
        )
    if chosen := details.get("sensitivity"):
        blocks = ", ".join(chosen["blocks"]) or "none"
        found.append(
            f"blocks left in float32 for the accuracy budget: {blocks}; "
            f"accuracy against float32: {-chosen['drop']:+.2%} of the images."
        )
    return tuple(found)


def _ends(model: bytes) -> dict[str, Any]:
    """Types and scales of the input and the output of a file whose ends are integers."""
    from ai_edge_litert.interpreter import Interpreter

    runtime: Any = Interpreter(model_content=model)
    ends = {"input": runtime.get_input_details()[0], "output": runtime.get_output_details()[0]}
    return {
        name: {
            "dtype": np.dtype(end["dtype"]).name,
            "scale": float(end["quantization"][0]),
            "zero_point": int(end["quantization"][1]),
        }
        for name, end in ends.items()
    }
