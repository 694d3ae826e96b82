"""Keras's `.weights.h5` of this package's own models, as `model.save_weights` writes it.

Layers stand there under the names of their classes, counted from the input to the output, and below
them under the attributes of a class. So what `layers/dense_1` is depends on the network; it is told
from the arrays themselves.
"""

import dataclasses
import re
from collections.abc import Mapping

from keras_vit.spec import Spec
from keras_vit.zoo.formats.entry import Entry
from keras_vit.zoo.formats.keys import Table, Weights, translate

NAME = "Keras's weights file"


def _layer(key: str, variable: str, first: str = "kernel") -> Table:
    return ((f"{key}/vars/0", f"{variable}/{first}"), (f"{key}/vars/1", f"{variable}/bias"))


# Layers whose name does not depend on the network; the others go by their own names, see `_names`.
_UNIT, _BLOCK, _MIXER = "block{i}_unit{j}", "layers/encoder_block{_i}", "layers/mixer_block{_i}"
_AXIAL = "layers/axial_block{_i}/{axis}"
TABLE: Table = (
    ("layers/std_conv2d/vars/0", "conv_root/kernel"),
    *_layer("layers/gn_root", "gn_root", "scale"),
    (f"layers/{_UNIT}/conv{{k}}/vars/0", f"{_UNIT}/conv{{k}}/kernel"),
    *_layer(f"layers/{_UNIT}/gn{{k}}", f"{_UNIT}/gn{{k}}", "scale"),
    (f"layers/{_UNIT}/conv_proj/vars/0", f"{_UNIT}/conv_proj/kernel"),
    *_layer(f"layers/{_UNIT}/gn_proj", f"{_UNIT}/gn_proj", "scale"),
    *_layer("layers/final_norm", "final_norm", "scale"),
    *_layer("layers/conv2d", "embedding"),
    ("layers/cls/vars/0", "cls/token"),
    ("layers/dist/vars/0", "dist/token"),
    ("layers/posembed_input/vars/0", "posembed_input/table"),
    ("layers/posembed_{i}/vars/0", "posembed_{i}/table"),
    *(
        (f"layers/axis_{layer}/vars/{k}", f"{layer}/{name}")
        for layer in ("posembed_input", "posembed_{i}")
        for k, name in enumerate(("columns", "rows", "prefix"))
    ),
    ("layers/register_tokens/vars/0", "registers/tokens"),
    *_layer(f"{_BLOCK}/norm{{k}}", "encoderblock_{i}/norm{k}", "scale"),
    *_layer(f"{_BLOCK}/{{part}}/{{leaf}}", "encoderblock_{i}/{part}/{leaf}"),
    (f"{_BLOCK}/scale{{k}}/vars/0", "encoderblock_{i}/scale{k}/scale"),
    (f"{_BLOCK}/attention/vars/0", "encoderblock_{i}/attention/offsets"),
    *_layer(f"{_AXIAL}/norm{{k}}", "encoderblock_{i}/{axis}/norm{k}", "scale"),
    *_layer(f"{_AXIAL}/{{part}}/{{leaf}}", "encoderblock_{i}/{axis}/{part}/{leaf}"),
    (f"{_AXIAL}/scale{{k}}/vars/0", "encoderblock_{i}/{axis}/scale{k}/scale"),
    *_layer(f"{_MIXER}/norm{{k}}", "mixerblock_{i}/norm{k}", "scale"),
    *_layer(f"{_MIXER}/{{part}}/{{leaf}}", "mixerblock_{i}/{part}/{leaf}"),
    *_layer("layers/layer_norm", "encoder_norm", "scale"),
    ("layers/map_head/vars/0", "map/probe"),
    *_layer("layers/map_head/norm", "map/norm", "scale"),
    *_layer("layers/map_head/{part}/{leaf}", "map/{part}/{leaf}"),
    *_layer("layers/pre_logits", "pre_logits"),
    *_layer("layers/head", "head"),
    *_layer("layers/head_dist", "head_dist"),
)

# What `fit` and dropout keep beside the weights.
STATE = re.compile(r"(.*/)?seed_generator/.*|optimizer/.*|metrics/.*|compile_metrics/.*")


def is_keras_weights(entries: Mapping[str, Entry]) -> bool:
    """Whether arrays have the names of this package's layers."""
    return any(key in entries for key in ("layers/conv2d/vars/0", "layers/std_conv2d/vars/0"))


def read(entries: Mapping[str, Entry], name: str, spec: Spec | None) -> Weights:
    """The weights of a file.

    Args:
        entries: path in the file -> array, of which `is_keras_weights` is true.
        name: of the file, for messages.
        spec: the network they are of, where it is known.
    """
    own = {key: entry for key, entry in entries.items() if not STATE.fullmatch(key)}
    names = _names(own, spec)
    renamed = {key: _renamed(key, names) for key in own}
    weights = translate(TABLE, {renamed[key]: entry for key, entry in own.items()}, name)
    stored = {new: key for key, new in renamed.items()}
    return dataclasses.replace(
        weights,
        keys={variable: stored[key] for variable, key in weights.keys.items()},
        ignored=tuple(key for key in entries if key not in own),
    )


def _renamed(key: str, names: Mapping[str, str]) -> str:
    root, layer, *rest = key.split("/")
    return "/".join((root, names.get(layer, layer), *rest))


def _names(entries: Mapping[str, Entry], spec: Spec | None) -> dict[str, str]:
    """Layers under their class's name -> their own, for classes that occur several times."""
    layers = {key.split("/")[1] for key in entries if key.startswith("layers/")}
    units = _counted("bottleneck_unit", layers)
    first = [f"layers/{unit}/conv_proj/vars/0" in entries for unit in units]
    names: dict[str, str] = {}
    stage, place = 0, 0
    for unit, is_first in zip(units, first, strict=True):  # the first of a stage has a projection
        stage, place = (stage + 1, 1) if is_first else (stage, place + 1)
        names[unit] = f"block{stage}_unit{place}"
    before = any(f"layers/{unit}/gn_proj/vars/0" in entries for unit in units) or not units
    for kind, prefix in (("position_embedding", ""), ("axis_position_embedding", "axis_")):
        tables = _counted(kind, layers)
        if len(tables) > 1 or (spec is not None and getattr(spec, "posemb_at", "") == "layers"):
            names |= {table: f"{prefix}posembed_{i}" for i, table in enumerate(tables)}
        else:
            names |= {table: f"{prefix}posembed_input" for table in tables}
    names["group_norm"] = "gn_root" if before else "final_norm"
    distilled = "class_token_1" in layers
    names |= (
        {"class_token": "dist", "class_token_1": "cls"} if distilled else {"class_token": "cls"}
    )
    if "dense_1" in layers:
        heads = ("head", "head_dist") if distilled else ("pre_logits", "head")
        return names | {"dense": heads[0], "dense_1": heads[1]}
    headless = spec is not None and not spec.num_classes
    return names | {"dense": "pre_logits" if headless else "head"}


def _counted(name: str, layers: set[str]) -> list[str]:
    """`name`, `name_1`, `name_2`, ... as far as they exist."""
    found = [name] if name in layers else []
    while f"{name}_{len(found)}" in layers and found:
        found.append(f"{name}_{len(found)}")
    return found
