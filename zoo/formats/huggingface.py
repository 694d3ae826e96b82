"""Hugging Face's models: ViT, DeiT, DINOv2 with and without registers, MAE encoders, hybrids, BiT.

Names differ between files (as `save_pretrained` writes them) and models in memory since transformers 5,
and base models lack the prefix that classifiers have: all of it is read, the names of files are
written. What the table cannot say is in `huggingface_config`.
"""

import dataclasses
import re
from collections.abc import Mapping

import numpy as np

from keras_vit.spec import Spec, ViTSpec
from keras_vit.zoo.formats.configs import Config
from keras_vit.zoo.formats.entry import Entry
from keras_vit.zoo.formats.huggingface_config import facts_of, kind_of, known_of
from keras_vit.zoo.formats.keys import Table, Weights, arrays_of, translate
from keras_vit.zoo.formats.torch_rows import conv, dense, norm

NAME = "Hugging Face's layout"

_LAYER, _BLOCK = "encoder.layer.{i}", "encoderblock_{i}"


def _resnet(key: str) -> Table:
    unit, to = f"{key}encoder.stages.{{i}}.layers.{{j}}", "block{i+1}_unit{j+1}"
    return (
        *conv(f"{key}embedder.convolution", "conv_root"),
        *norm(f"{key}embedder.norm", "gn_root"),
        *conv(f"{unit}.conv{{k}}", f"{to}/conv{{k}}"),
        *norm(f"{unit}.norm{{k}}", f"{to}/gn{{k}}"),
        *conv(f"{unit}.downsample.conv", f"{to}/conv_proj"),
        *norm(f"{unit}.downsample.norm", f"{to}/gn_proj"),
    )


_COMMON = (
    ("embeddings.cls_token", "cls/token"),
    ("embeddings.distillation_token", "dist/token"),
    ("embeddings.register_tokens", "registers/tokens"),
    ("embeddings.position_embeddings", "posembed_input/table"),
    *conv("embeddings.patch_embeddings.projection", "embedding"),
    *dense(f"{_LAYER}.attention.output.dense", f"{_BLOCK}/attention/out"),
    *dense(f"{_LAYER}.attention.attention.{{part}}", f"{_BLOCK}/attention/{{part}}"),
    *norm("layernorm", "encoder_norm"),
    *dense("pooler.dense", "pre_logits"),
)
_VIT = (
    *norm(f"{_LAYER}.layernorm_before", f"{_BLOCK}/norm1"),
    *norm(f"{_LAYER}.layernorm_after", f"{_BLOCK}/norm2"),
    *dense(f"{_LAYER}.intermediate.dense", f"{_BLOCK}/mlp/dense1"),
    *dense(f"{_LAYER}.output.dense", f"{_BLOCK}/mlp/dense2"),
)
_DINOV2 = (
    *norm(f"{_LAYER}.norm{{k}}", f"{_BLOCK}/norm{{k}}"),
    (f"{_LAYER}.layer_scale{{k}}.lambda1", f"{_BLOCK}/scale{{k}}/scale"),
    *dense(f"{_LAYER}.mlp.fc{{k}}", f"{_BLOCK}/mlp/dense{{k}}"),
    *dense(f"{_LAYER}.mlp.weights_in", f"{_BLOCK}/mlp/{{gate|up}}"),
    *dense(f"{_LAYER}.mlp.weights_out", f"{_BLOCK}/mlp/down"),
)
_HEAD = dense("classifier", "head")
_HEADS = (*dense("cls_classifier", "head"), *dense("distillation_classifier", "head_dist"))
# As modules are called in memory, below `layers.` in some models and `encoder.layer.` in others.
_MEMORY = tuple(
    row
    for layer in ("layers.{i}", _LAYER)
    for row in (
        *dense(f"{layer}.attention.q_proj", f"{_BLOCK}/attention/query"),
        *dense(f"{layer}.attention.k_proj", f"{_BLOCK}/attention/key"),
        *dense(f"{layer}.attention.v_proj", f"{_BLOCK}/attention/value"),
        *dense(f"{layer}.attention.o_proj", f"{_BLOCK}/attention/out"),
        *norm(f"{layer}.layernorm_before", f"{_BLOCK}/norm1"),
        *norm(f"{layer}.layernorm_after", f"{_BLOCK}/norm2"),
        *dense(f"{layer}.mlp.fc{{k}}", f"{_BLOCK}/mlp/dense{{k}}"),
        *dense(f"{layer}.mlp.gate_proj", f"{_BLOCK}/mlp/gate"),
        *dense(f"{layer}.mlp.up_proj", f"{_BLOCK}/mlp/up"),
        *dense(f"{layer}.mlp.down_proj", f"{_BLOCK}/mlp/down"),
    )
)
_HYBRID = _resnet("embeddings.patch_embeddings.backbone.bit.")

# The first row that fits is the one that is written, and that names what a file lacks.
TABLES: dict[str, Table] = {
    "vit": (*_COMMON, *_VIT, *_HEAD, *_HYBRID, *_DINOV2, *_HEADS, *_MEMORY),
    "deit": (*_COMMON, *_VIT, *_HEADS, *_HEAD, *_DINOV2, *_MEMORY),
    "dinov2": (*_COMMON, *_DINOV2, *_HEAD, *_VIT, *_MEMORY),
    "bit": (*_resnet(""), *norm("norm", "final_norm"), *dense("classifier.1", "head")),
}

# What every file of a family has, below whatever prefix.
SIGNS = ("embeddings.patch_embeddings.projection.weight", "embedder.convolution.weight")
PREFIX = {"vit": "vit.", "deit": "deit.", "dinov2": "dinov2.", "bit": "bit."}

# What masked training leaves beside the encoder.
FOREIGN = re.compile(r"(embeddings\.)?mask_token|decoder\..*")


def is_huggingface(entries: Mapping[str, Entry]) -> bool:
    """Whether arrays have Hugging Face's names."""
    return _prefix(entries) is not None


def read(entries: Mapping[str, Entry], name: str, config: Config, processor: Config) -> Weights:
    """The weights of a model.

    Args:
        entries: key -> array, of which `is_huggingface` is true.
        name: of the file, for messages.
        config: the `config.json` beside it; may be empty.
        processor: the `preprocessor_config.json` beside it; may be empty.

    Raises:
        ValueError: a network that differs from ours in more than names.
    """
    prefix = _prefix(entries) or ""
    full = {key.removeprefix(prefix): key for key in entries}
    own = {key: entries[full[key]] for key in full if not FOREIGN.fullmatch(key)}
    weights = translate(TABLES[_kind(own)], own, name)
    # Its models with registers antialias; DeiT's token that is read as a register below does not.
    rule = "bicubic_antialias" if "registers/tokens" in weights.entries else "bicubic"
    if "dist/token" in weights.entries and "head/kernel" in weights.entries:
        if "head_dist/kernel" not in weights.entries:
            weights = _as_register(weights)
    facts = facts_of(weights, config, processor)
    return dataclasses.replace(
        weights,
        keys={variable: full.get(key, key) for variable, key in weights.keys.items()},
        facts=facts,
        known=known_of(config, processor, facts.get("image_size")),
        ignored=tuple(full[key] for key in full if key not in own),
        posemb_resize=rule,
    )


def to_arrays(variables: dict[str, np.ndarray], spec: Spec) -> dict[str, np.ndarray]:
    """The weights of a model under the keys and in the shapes that `save_pretrained` writes.

    Raises:
        ValueError: Hugging Face has no such network; the message says why.
    """
    kind = kind_of(spec)
    if isinstance(spec, ViTSpec) and not spec.posemb_prefix:
        # Its class token has a position of its own; zero leaves it unmoved.
        table = variables["posembed_input/table"]
        padded = np.concatenate([np.zeros_like(table[:, : 1 + spec.distilled]), table], axis=1)
        variables = {**variables, "posembed_input/table": padded}
    arrays = arrays_of(TABLES[kind], variables, spec, NAME)
    if isinstance(spec, ViTSpec) and spec.num_registers:
        # Used in masked training only, but a model with registers insists on one.
        arrays["embeddings.mask_token"] = np.zeros((1, spec.hidden_size), np.float32)
    if not spec.num_classes:
        return arrays
    heads = ("classifier", "cls_classifier", "distillation_classifier")
    return {k if k.startswith(heads) else PREFIX[kind] + k: v for k, v in arrays.items()}


def _prefix(entries: Mapping[str, Entry]) -> str | None:
    """What stands before the keys of the trunk, None where there is none of Hugging Face's."""
    for sign in SIGNS:
        for key in entries:
            # The backbone of a hybrid has the second sign as well, deep inside.
            if key.endswith(sign) and "patch_embeddings.backbone" not in key:
                return key.removesuffix(sign)
    return None


def _kind(keys: Mapping[str, Entry]) -> str:
    if SIGNS[1] in keys:
        return "bit"
    if "embeddings.distillation_token" in keys:
        return "deit"
    return "dinov2" if any(".layer_scale1." in key for key in keys) else "vit"


def _as_register(weights: Weights) -> Weights:
    """DeiT with its second token but only the class token's head.

    The token takes part in attention and in no output: a register, with its position added.
    """
    entries = dict(weights.entries)
    token, table = entries.pop("dist/token"), entries["posembed_input/table"]
    entries["registers/tokens"] = dataclasses.replace(
        token, read=lambda: token.read() + table.read()[:, 1:2]
    )
    entries["posembed_input/table"] = dataclasses.replace(
        table,
        shape=(1, table.shape[1] - 1, *table.shape[2:]),
        read=lambda: np.delete(table.read(), 1, axis=1),
    )
    keys = {**weights.keys, "registers/tokens": weights.keys["dist/token"]}
    shapes = {**weights.shapes, "registers/tokens": token.shape}
    return dataclasses.replace(weights, entries=entries, keys=keys, shapes=shapes)
