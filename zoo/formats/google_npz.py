"""The npz layouts of the official checkpoints: every era's spelling is read, the published is written.

The ViT files of 2020-2021 carry pre-Linen names, one counter over all children of a block (norm 0,
attention 1, norm 2, MLP 3); later code counts per kind (norm 0 and 1, attention 0, MLP 0). BiT files
are a dump of TensorFlow variables. What follows the tables is the little that a table cannot say:
prefixes and blocks stacked by `scan`.
"""

import os
import re
from collections.abc import Mapping

import numpy as np

from keras_vit.spec import MixerSpec, ResNetSpec, Spec, ViTSpec
from keras_vit.zoo.formats.entry import Entry, upcast
from keras_vit.zoo.formats.keys import Table, Weights, arrays_of, translate
from keras_vit.zoo.formats.npz import open_npz

NAME = "the official npz layout"

# Where the parameters start. Bare keys: all releases of the paper; opt/target: a Flax optimiser
# tree (2020); params: the optax era; img: the image tower of LiT and other two-tower models.
PREFIXES = ("", "opt/target/", "params/img/", "img/", "params/")

# What may stand beside the parameters and is none of the image model's business.
FOREIGN = re.compile(r"(opt|state|txt|params/txt|params/t|t|step|rng|params_ema)(/.*)?")


def _block(norm2: int, attention: int, mlp: int) -> Table:
    key, variable = "Transformer/encoderblock_{i}", "encoderblock_{i}"
    heads = f"{key}/MultiHeadDotProductAttention_{attention}"
    return (
        (f"{key}/LayerNorm_0/{{leaf}}", f"{variable}/norm1/{{leaf}}"),
        (f"{key}/LayerNorm_{norm2}/{{leaf}}", f"{variable}/norm2/{{leaf}}"),
        *_heads(heads, f"{variable}/attention"),
        (f"{key}/MlpBlock_{mlp}/Dense_0/{{leaf}}", f"{variable}/mlp/dense1/{{leaf}}"),
        (f"{key}/MlpBlock_{mlp}/Dense_1/{{leaf}}", f"{variable}/mlp/dense2/{{leaf}}"),
    )


def _heads(key: str, variable: str) -> Table:
    return (
        (f"{key}/out/kernel", f"{variable}/out/kernel", "from_heads"),
        (f"{key}/out/bias", f"{variable}/out/bias"),
        (f"{key}/{{part}}/kernel", f"{variable}/{{part}}/kernel", "per_head"),
        (f"{key}/{{part}}/bias", f"{variable}/{{part}}/bias", "per_head"),
    )


def _map_head(key: str) -> Table:
    return (
        (f"{key}probe", "map/probe"),
        *_heads(f"{key}MultiHeadDotProductAttention_0", "map/attention"),
        (f"{key}LayerNorm_0/{{leaf}}", "map/norm/{leaf}"),
        (f"{key}MlpBlock_0/Dense_0/{{leaf}}", "map/mlp/dense1/{leaf}"),
        (f"{key}MlpBlock_0/Dense_1/{{leaf}}", "map/mlp/dense2/{leaf}"),
    )


# ViT, hybrids, and the V1 ResNet of big_vision. (1, 1, 1, C) for GroupNorm is the published shape.
VIT: Table = (
    ("embedding/{leaf}", "embedding/{leaf}"),
    ("cls", "cls/token"),
    ("Transformer/posembed_input/pos_embedding", "posembed_input/table"),
    ("pos_embedding", "posembed_input/table"),  # big_vision
    ("Transformer/pos_embedding", "posembed_input/table"),  # big_vision, for a while in 2022
    *_block(norm2=2, attention=1, mlp=3),
    *_block(norm2=1, attention=0, mlp=0),
    ("Transformer/encoder_norm/{leaf}", "encoder_norm/{leaf}"),
    *_map_head("MAPHead_0/"),
    *_map_head(""),  # once inlined at the top level
    ("pre_logits/{leaf}", "pre_logits/{leaf}"),
    ("head/{leaf}", "head/{leaf}"),
    ("conv_root/kernel", "conv_root/kernel"),
    ("gn_root/{leaf}", "gn_root/{leaf}", "channels"),
    ("block{i}/unit{j}/conv_proj/kernel", "block{i}_unit{j}/conv_proj/kernel"),
    ("block{i}/unit{j}/gn_proj/{leaf}", "block{i}_unit{j}/gn_proj/{leaf}", "channels"),
    ("block{i}/unit{j}/conv{k}/kernel", "block{i}_unit{j}/conv{k}/kernel"),
    ("block{i}/unit{j}/gn{k}/{leaf}", "block{i}_unit{j}/gn{k}/{leaf}", "channels"),
)

# BiT; the second spelling is that of big_vision models/bit_paper.py.
_UNIT, _TO = "resnet/block{i}/unit{j:02}", "block{i}_unit{j}"
BIT: Table = (
    ("resnet/root_block/standardized_conv2d/kernel", "conv_root/kernel"),
    *(
        row
        for letter, k in zip("abc", (1, 2, 3), strict=True)
        for row in (
            (f"{_UNIT}/{letter}/standardized_conv2d/kernel", f"{_TO}/conv{k}/kernel"),
            (f"{_UNIT}/{letter}/group_norm/gamma", f"{_TO}/gn{k}/scale"),
            (f"{_UNIT}/{letter}/group_norm/beta", f"{_TO}/gn{k}/bias"),
        )
    ),
    (f"{_UNIT}/a/proj/standardized_conv2d/kernel", f"{_TO}/conv_proj/kernel"),
    ("resnet/group_norm/gamma", "final_norm/scale"),
    ("resnet/group_norm/beta", "final_norm/bias"),
    ("resnet/head/conv2d/kernel", "head/kernel", "pointwise"),
    ("resnet/head/conv2d/bias", "head/bias"),
    ("root_block/conv_root/kernel", "conv_root/kernel"),
    ("block{i}/unit{j:02}/conv{k}/kernel", f"{_TO}/conv{{k}}/kernel"),
    ("block{i}/unit{j:02}/conv_proj/kernel", f"{_TO}/conv_proj/kernel"),
    ("block{i}/unit{j:02}/gn{k}/{leaf}", f"{_TO}/gn{{k}}/{{leaf}}", "channels"),
    ("norm-pre-head/{leaf}", "final_norm/{leaf}", "channels"),
    ("head/{leaf}", "head/{leaf}"),
)

_MIXER = "MixerBlock_{i}"
MIXER: Table = (
    ("stem/{leaf}", "embedding/{leaf}"),
    (f"{_MIXER}/LayerNorm_0/{{leaf}}", "mixerblock_{i}/norm1/{leaf}"),
    (f"{_MIXER}/LayerNorm_1/{{leaf}}", "mixerblock_{i}/norm2/{leaf}"),
    *(
        (f"{_MIXER}/{kind}/Dense_{n}/{{leaf}}", f"mixerblock_{{i}}/{kind}/dense{n + 1}/{{leaf}}")
        for kind in ("token_mixing", "channel_mixing")
        for n in (0, 1)
    ),
    ("pre_head_layer_norm/{leaf}", "encoder_norm/{leaf}"),
    ("head/{leaf}", "head/{leaf}"),
)

# What tells a family: a key that every file of it has.
SIGNS = (
    ("embedding/kernel", VIT),
    ("resnet/root_block/standardized_conv2d/kernel", BIT),
    ("root_block/conv_root/kernel", BIT),
    ("stem/kernel", MIXER),
    ("conv_root/kernel", VIT),  # the V1 ResNet, which embeds nothing
)


def read(source: str | os.PathLike | Mapping[str, np.ndarray], *, verify: bool = False) -> Weights:
    """The weights of an official file, in any of its spellings.

    Args:
        source: path of an npz file, or a mapping from official keys to arrays.
        verify: check the checksum of every array now, and not only when it is read.

    Raises:
        FileNotFoundError, ValueError: see `open_npz`; or the file holds no network of these.
    """
    if isinstance(source, Mapping):
        entries = {
            k: Entry(v.shape, v.dtype, lambda v=v: np.array(upcast(v))) for k, v in source.items()
        }
        name = "the mapping"
    else:
        entries, name = open_npz(source, verify=verify), str(source)
    # BiT files that were trained longer than others number their convolutions.
    entries = {re.sub(r"(standardized_conv2d)_\d+/", r"\1/", k): e for k, e in entries.items()}
    signs = ((p, table) for sign, table in SIGNS for p in PREFIXES if f"{p}{sign}" in entries)
    prefix, table = next(signs, ("", None))
    if table is None:
        raise ValueError(
            f"{name} holds no network of the official releases: expected a key like "
            f"`embedding/kernel`, bare or under one of {[p for p in PREFIXES if p]}; it has "
            f"{sorted(entries)[:5]}..."
        )
    own = {
        key: entry
        for key, entry in _unstack(entries, prefix).items()
        if key.startswith(prefix) and not FOREIGN.fullmatch(key[len(prefix) :])
    }
    weights = translate(table, own, name, prefix=prefix)
    query = weights.shapes.get("encoderblock_0/attention/query/kernel", ())
    if len(query) == 3:
        weights.facts["num_heads"] = query[1]
    return weights


def to_arrays(variables: dict[str, np.ndarray], spec: Spec) -> dict[str, np.ndarray]:
    """The weights of a model under the published keys and shapes.

    Raises:
        ValueError: the official layout has no place for a weight.
    """
    table = variables.get("posembed_input/table")
    if isinstance(spec, ViTSpec) and table is not None and spec.has_cls and not spec.posemb_prefix:
        # Published files give the class token an entry of its own; zero leaves it unmoved.
        padded = np.concatenate([np.zeros_like(table[:, :1]), table], axis=1)
        variables = {**variables, "posembed_input/table": padded}
    return arrays_of(table_of(spec), variables, spec, NAME)


def table_of(spec: Spec) -> Table:
    """The rows by which a network is written."""
    if isinstance(spec, MixerSpec):
        return MIXER
    return BIT if isinstance(spec, ResNetSpec) and spec.body.preactivation else VIT


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
