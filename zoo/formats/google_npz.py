"""The npz layout of the official checkpoints, read in every era's spelling and written as published.

One table maps checkpoint keys to model variables. What follows it is the little that a table cannot
say: prefixes, blocks stacked by `scan`, per-head shapes, and the position table.
"""

import dataclasses
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import keras
import numpy as np

from keras_vit.model import VisionModel
from keras_vit.posemb import infer_grid, resize
from keras_vit.spec import ViTSpec
from keras_vit.zoo.formats.npz import Entry, open_npz, upcast, write_npz

# Where the parameters start. Bare keys: all releases of the paper; opt/target: a Flax optimiser
# tree (2020); params: the optax era; img: the image tower of LiT and other two-tower models.
PREFIXES = ("", "opt/target/", "params/img/", "img/", "params/")

# What may stand beside the parameters and is none of the image model's business.
FOREIGN = re.compile(r"(opt|state|txt|params/txt|params/t|t|step|rng|params_ema)(/.*)?")

_ATTENTION = r"MultiHeadDotProductAttention_\d/(query|key|value|out)/(kernel|bias)"

# (regex on the checkpoint key, model variable). The published files of 2020-2021 carry pre-Linen
# names, one counter over all children of a block (norm 0, attention 1, norm 2, MLP 3); later code
# counts per kind (norm 0 and 1, attention 0, MLP 0). Both spellings are matched.
TABLE = (
    (r"embedding/(kernel|bias)", r"embedding/\1"),
    (r"cls", r"cls/token"),
    (r"Transformer/posembed_input/pos_embedding", r"posembed_input/table"),
    (r"pos_embedding", r"posembed_input/table"),  # big_vision
    (r"Transformer/pos_embedding", r"posembed_input/table"),  # big_vision, for a while in 2022
    (r"Transformer/encoderblock_(\d+)/LayerNorm_0/(scale|bias)", r"encoderblock_\1/norm1/\2"),
    (r"Transformer/encoderblock_(\d+)/LayerNorm_[12]/(scale|bias)", r"encoderblock_\1/norm2/\2"),
    (rf"Transformer/encoderblock_(\d+)/{_ATTENTION}", r"encoderblock_\1/attention/\2/\3"),
    (
        r"Transformer/encoderblock_(\d+)/MlpBlock_\d/Dense_0/(kernel|bias)",
        r"encoderblock_\1/mlp/dense1/\2",
    ),
    (
        r"Transformer/encoderblock_(\d+)/MlpBlock_\d/Dense_1/(kernel|bias)",
        r"encoderblock_\1/mlp/dense2/\2",
    ),
    (r"Transformer/encoder_norm/(scale|bias)", r"encoder_norm/\1"),
    # The attention-pooling head, once inlined at the top level.
    (r"(?:MAPHead_0/)?probe", r"map/probe"),
    (rf"(?:MAPHead_0/)?{_ATTENTION}", r"map/attention/\1/\2"),
    (r"(?:MAPHead_0/)?LayerNorm_0/(scale|bias)", r"map/norm/\1"),
    (r"(?:MAPHead_0/)?MlpBlock_0/Dense_0/(kernel|bias)", r"map/mlp/dense1/\1"),
    (r"(?:MAPHead_0/)?MlpBlock_0/Dense_1/(kernel|bias)", r"map/mlp/dense2/\1"),
    (r"pre_logits/(kernel|bias)", r"pre_logits/\1"),
    (r"head/(kernel|bias)", r"head/\1"),
)

# The other direction, in the spelling of the published files.
WRITE = (
    (r"cls/token", r"cls"),
    (r"posembed_input/table", r"Transformer/posembed_input/pos_embedding"),
    (r"(encoderblock_\d+)/norm1/(.*)", r"Transformer/\1/LayerNorm_0/\2"),
    (r"(encoderblock_\d+)/norm2/(.*)", r"Transformer/\1/LayerNorm_2/\2"),
    (r"(encoderblock_\d+)/attention/(.*)", r"Transformer/\1/MultiHeadDotProductAttention_1/\2"),
    (r"(encoderblock_\d+)/mlp/dense1/(.*)", r"Transformer/\1/MlpBlock_3/Dense_0/\2"),
    (r"(encoderblock_\d+)/mlp/dense2/(.*)", r"Transformer/\1/MlpBlock_3/Dense_1/\2"),
    (r"encoder_norm/(.*)", r"Transformer/encoder_norm/\1"),
    (r"map/probe", r"MAPHead_0/probe"),
    (r"map/attention/(.*)", r"MAPHead_0/MultiHeadDotProductAttention_0/\1"),
    (r"map/norm/(.*)", r"MAPHead_0/LayerNorm_0/\1"),
    (r"map/mlp/dense1/(.*)", r"MAPHead_0/MlpBlock_0/Dense_0/\1"),
    (r"map/mlp/dense2/(.*)", r"MAPHead_0/MlpBlock_0/Dense_1/\1"),
    (r"((?:embedding|pre_logits|head)/.*)", r"\1"),
)

Arrays = str | os.PathLike | Mapping[str, np.ndarray]


@dataclasses.dataclass(frozen=True)
class LoadReport:
    """What a load did.

    Attributes:
        loaded: model variables that took a value.
        unused: checkpoint keys left out on request.
        resized: (old grid, new grid) of the position table, or None.
    """

    loaded: tuple[str, ...]
    unused: tuple[str, ...]
    resized: tuple[tuple[int, int], tuple[int, int]] | None = None


def read(source: Arrays) -> dict[str, tuple[str, Entry]]:
    """Model variable -> (checkpoint key, entry), in any layout; unknown keys map to themselves.

    Raises:
        FileNotFoundError, ValueError: see `open_npz`; or the file holds no Vision Transformer.
    """
    if isinstance(source, Mapping):
        entries = {k: Entry(v.shape, v.dtype, lambda v=v: upcast(v)) for k, v in source.items()}
        name = "the mapping"
    else:
        entries, name = open_npz(source), str(source)
    prefix = next((p for p in PREFIXES if f"{p}embedding/kernel" in entries), None)
    if prefix is None:
        raise ValueError(
            f"{name} holds no Vision Transformer: expected a key `embedding/kernel`, bare or under "
            f"one of {[p for p in PREFIXES if p]}; it has {sorted(entries)[:5]}..."
        )
    found: dict[str, tuple[str, Entry]] = {}
    for key, entry in _unstack(entries, prefix).items():
        if not key.startswith(prefix) or FOREIGN.fullmatch(key[len(prefix) :]):
            continue
        target = _match(TABLE, key[len(prefix) :]) or key
        if target in found:
            raise ValueError(f"{name} has both {found[target][0]!r} and {key!r} for {target!r}.")
        found[target] = (key, entry)
    return found


def load_weights(
    model: VisionModel,
    source: Arrays,
    *,
    skip: Sequence[str] = (),
    source_grid: tuple[int, int] | None = None,
    posemb_resize: str | None = "align_corners",
) -> LoadReport:
    """Assigns every weight of a checkpoint to a model, or changes nothing.

    Args:
        model: of the checkpoint's architecture; grid and head may differ as below.
        source: path of an npz file, or a mapping from official keys to arrays.
        skip: regular expressions on model variables (`head/.*`) that keep the model's own values;
            the file's are reported as unused.
        source_grid: (h, w) of the file's position table; by default the model's own when the
            number of entries agrees, else the square one.
        posemb_resize: `align_corners`, or None to refuse another grid.

    Raises:
        ValueError: one message with every missing (-), extra (+) and mis-shaped (!) key.
    """
    found = read(source)
    skipped = [t for t in found if any(re.fullmatch(p, t) for p in skip)]
    unused = tuple(found[t][0] for t in skipped)
    found = {t: found[t] for t in found if t not in skipped}
    variables = {v.path: v for v in model.weights if not any(re.fullmatch(p, v.path) for p in skip)}
    table, cls, resized = None, None, None
    if "posembed_input/table" in found and "posembed_input/table" in variables:
        table, cls, resized = _position_table(model.spec, found, source_grid)
    problems = _compare(model.spec, found, variables, table)
    if resized and not problems and posemb_resize is None:
        problems = [f"! posembed_input/table has grid {resized[0]}, the model {resized[1]}"]
    if problems:
        hint = _hint(problems)
        raise ValueError(
            f"{source if not isinstance(source, Mapping) else 'the mapping'} does not fit this model "
            f"(- missing in the file, + only in the file, ! other shape):\n  "
            + "\n  ".join(problems)
            + (f"\n{hint}" if hint else "")
        )
    for path, variable in variables.items():
        if path == "posembed_input/table" and table is not None:
            value = table
        elif path == "cls/token" and cls is not None:
            value = cls
        else:
            value = found[path][1].read()
        variable.assign(value.reshape(tuple(variable.shape)))
    return LoadReport(tuple(variables), unused, resized)


def save_weights(model: VisionModel, path: str | os.PathLike, *, dtype: str = "float32") -> None:
    """Writes a model in the official layout: published key names, shapes and order.

    Args:
        model: any plain ViT.
        path: target; written aside and renamed.
        dtype: `float32` as published, or `float16` to halve the file.
    """
    write_npz(path, {key: value.astype(dtype) for key, value in to_arrays(model).items()})


def to_arrays(model: VisionModel) -> dict[str, np.ndarray]:
    """The weights of a model under the published keys and shapes.

    Raises:
        ValueError: the official layout has no place for a weight.
    """
    arrays = {}
    for variable in model.weights:
        key = _match(WRITE, variable.path)
        if key is None:
            raise ValueError(f"the official layout has no key for {variable.path!r}.")
        value = keras.ops.convert_to_numpy(variable)
        if (
            variable.path == "posembed_input/table"
            and model.spec.has_cls
            and not model.spec.posemb_prefix
        ):
            # Published files give the class token an entry of its own; zero leaves it unmoved.
            value = np.concatenate([np.zeros_like(value[:, :1]), value], axis=1)
        arrays[key] = value.reshape(official_shape(model.spec, variable.path, value.shape))
    return arrays


def official_shape(spec: ViTSpec, path: str, shape: Sequence[int]) -> tuple[int, ...]:
    """The shape a variable has in the files: attention weights are stored per head."""
    match = re.fullmatch(r".*attention/(query|key|value|out)/(kernel|bias)", path)
    if match is None or (match[1] == "out" and match[2] == "bias"):
        return tuple(shape)
    heads, size = spec.num_heads, spec.hidden_size // spec.num_heads
    if match[2] == "bias":
        return (heads, size)
    return (heads, size, shape[1]) if match[1] == "out" else (shape[0], heads, size)


def spec_of(source: Arrays, *, image_size: tuple[int, int] | None = None) -> ViTSpec:
    """The architecture a file tells of itself, for checkpoints that no card describes.

    Pooling cannot be read off weights alone: with a class token it is taken to be `token`, with an
    attention head `map`, else `gap`. Tables of positions are taken to be square where they can be.

    Args:
        source: as in `load_weights`.
        image_size: for files without a table, or whose table is not square.

    Raises:
        ValueError: no position table, so that `image_size` must be given; or no such network.
    """
    found = {target: entry for target, (_, entry) in read(source).items()}
    needed = (
        "embedding/kernel",
        "encoderblock_0/attention/query/kernel",
        "encoderblock_0/mlp/dense1/kernel",
    )
    if missing := [key for key in needed if key not in found]:
        raise ValueError(f"{source} is no plain Vision Transformer: it lacks {missing}.")
    height, width, channels, size = found["embedding/kernel"].shape
    table = found.get("posembed_input/table")
    if table is not None:
        try:
            grid, _ = infer_grid(table.shape[1])
            image_size = (grid[0] * height, grid[1] * width)
        except ValueError:  # not square, so only the caller can know
            if image_size is None:
                raise
    if image_size is None:
        raise ValueError(f"{source} has no position table: give image_size.")
    representation = found.get("pre_logits/kernel")
    head = found.get("head/kernel")
    return ViTSpec(
        hidden_size=size,
        mlp_dim=found["encoderblock_0/mlp/dense1/kernel"].shape[1],
        num_heads=found["encoderblock_0/attention/query/kernel"].shape[1],
        num_layers=len({k.split("/")[0] for k in found if k.startswith("encoderblock_")}),
        patch_size=(height, width),
        image_size=image_size,
        in_channels=channels,
        num_classes=head.shape[-1] if head else 0,
        pool="map" if "map/probe" in found else "token" if "cls/token" in found else "gap",
        representation_size=representation.shape[-1] if representation else None,
        posemb="learn" if table else "sincos2d",
    )


def _match(table: tuple[tuple[str, str], ...], key: str) -> str | None:
    for pattern, target in table:
        if match := re.fullmatch(pattern, key):
            return match.expand(target)
    return None


def _unstack(entries: dict[str, Entry], prefix: str) -> dict[str, Entry]:
    """Splits blocks that `scan` training stacked under one key along a leading depth axis."""
    stacked = f"{prefix}Transformer/encoderblock/"
    flat = {}
    for key, entry in entries.items():
        if not key.startswith(stacked):
            flat[key] = entry
            continue
        for i in range(entry.shape[0]):
            name = f"{prefix}Transformer/encoderblock_{i}/{key[len(stacked) :]}"
            flat[name] = Entry(entry.shape[1:], entry.dtype, lambda e=entry, i=i: e.read()[i])
    return flat


def _position_table(spec: ViTSpec, found: dict, source_grid: tuple[int, int] | None):
    """The file's table on the model's grid, with the class token's entry where the model has it.

    vision_transformer gives the class token an entry; big_vision adds the table before the token.
    Both directions are exact: an entry of zeros one way, cls + entry the other.

    Returns:
        (table, cls or None for the file's own, (old grid, new grid) or None).
    """
    entry = found["posembed_input/table"][1]
    count = entry.shape[1]
    if source_grid is None:
        cells = spec.grid[0] * spec.grid[1]
        # An entry beyond the cells is the class token's, so only files with one may have it.
        source_grid = (
            spec.grid if count - cells in (0, int("cls/token" in found)) else infer_grid(count)[0]
        )
    prefix = count - source_grid[0] * source_grid[1]
    if prefix not in (0, 1):
        raise ValueError(
            f"the position table has {count} entries, which is no {source_grid[0]}x{source_grid[1]} "
            f"grid with or without a class token: give source_grid."
        )
    table = resize(entry.read(), source_grid, spec.grid, num_prefix=prefix)
    cls = None
    if spec.posemb_prefix > prefix:
        table = np.concatenate([np.zeros_like(table[:, :1]), table], axis=1)
    elif spec.posemb_prefix < prefix:
        if spec.has_cls and "cls/token" in found:
            cls = found["cls/token"][1].read() + table[:, :1]
        table = table[:, 1:]
    return table, cls, None if source_grid == spec.grid else (source_grid, spec.grid)


def _compare(spec: ViTSpec, found: dict, variables: dict, table: np.ndarray | None) -> list[str]:
    problems = [f"- {_match(WRITE, path) or path}" for path in variables if path not in found]
    problems += [f"+ {found[target][0]}" for target in found if target not in variables]
    for path in variables:
        if path not in found:
            continue
        key, entry = found[path]
        shape = entry.shape if table is None or path != "posembed_input/table" else table.shape
        expected = official_shape(spec, path, tuple(variables[path].shape))
        if shape != expected:
            problems.append(f"! {key} has shape {shape} in the file, {expected} in the model")
    return problems


def _hint(problems: list[str]) -> str:
    text = "\n".join(problems)
    hints = []
    if re.search(r"! \S*head/", text):
        hints.append("num_classes= of the file keeps its head, another number makes a new one")
    if "pos_embedding" in text:
        hints.append("image_size= decides the grid of the position table")
    if "pre_logits" in text:
        hints.append("representation_size of the spec decides about pre_logits")
    return "Hint: " + "; ".join(hints) + "." if hints else ""


def sidecar(path: str | os.PathLike) -> Path:
    """The JSON beside an npz that keeps what weights cannot: spec, class names, preprocessing."""
    return Path(path).with_suffix(".json")
