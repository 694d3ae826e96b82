"""timm's state dicts: ViT and its relatives, hybrids, BiT and V1 ResNets, MLP-Mixer.

A state dict holds weights and no numerics. What timm computes with one is taken for granted where
nothing else is known: exact GELU, in ResNets sqrt(var + 1e-8) under a kernel and GroupNorm epsilon
1e-5, positions resized bicubically with antialiasing. A card or a named model says otherwise for
weights that come from elsewhere.
"""

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from keras_vit.spec import HybridSpec, MixerSpec, ResNetSpec, Spec, ViTSpec
from keras_vit.zoo.formats.configs import Config
from keras_vit.zoo.formats.entry import Entry
from keras_vit.zoo.formats.keys import Table, Weights, arrays_of, translate
from keras_vit.zoo.formats.preprocessors import from_timm
from keras_vit.zoo.formats.torch_rows import conv, dense, norm
from keras_vit.zoo.spellings import timm_variant
from keras_vit.zoo.variants import VARIANTS

NAME = "timm's state dict"


def _resnet(key: str) -> Table:
    unit, to = f"{key}stages.{{i}}.blocks.{{j}}", "block{i+1}_unit{j+1}"
    return (
        *conv(f"{key}stem.conv", "conv_root"),
        *norm(f"{key}stem.norm", "gn_root"),
        *conv(f"{unit}.conv{{k}}", f"{to}/conv{{k}}"),
        *norm(f"{unit}.norm{{k}}", f"{to}/gn{{k}}"),
        *conv(f"{unit}.downsample.conv", f"{to}/conv_proj"),
        *norm(f"{unit}.downsample.norm", f"{to}/gn_proj"),
    )


_BLOCK = "encoderblock_{i}"
_STEM = (
    *conv("patch_embed.backbone.conv", "conv_root"),
    *norm("patch_embed.backbone.norm", "gn_root"),
)
# The gate and the value of SwiGLU are one projection; w12 and w3 are its authors' names.
_SWIGLU = (
    *dense("blocks.{i}.mlp.fc1", f"{_BLOCK}/mlp/{{gate|up}}"),
    *dense("blocks.{i}.mlp.fc2", f"{_BLOCK}/mlp/down"),
    *dense("blocks.{i}.mlp.w12", f"{_BLOCK}/mlp/{{gate|up}}"),
    *dense("blocks.{i}.mlp.w3", f"{_BLOCK}/mlp/down"),
)
VIT: Table = (
    ("cls_token", "cls/token"),
    ("dist_token", "dist/token"),
    ("reg_token", "registers/tokens"),
    ("register_tokens", "registers/tokens"),  # DINOv2's own
    ("pos_embed", "posembed_input/table"),
    *conv("patch_embed.proj", "embedding"),
    *_resnet("patch_embed.backbone."),
    *_STEM,
    *norm("blocks.{i}.norm1", f"{_BLOCK}/norm1"),
    *dense("blocks.{i}.attn.qkv", f"{_BLOCK}/attention/{{query|key|value}}"),
    *dense("blocks.{i}.attn.proj", f"{_BLOCK}/attention/out"),
    ("blocks.{i}.ls1.gamma", f"{_BLOCK}/scale1/scale"),
    *norm("blocks.{i}.norm2", f"{_BLOCK}/norm2"),
    *dense("blocks.{i}.mlp.fc{k}", f"{_BLOCK}/mlp/dense{{k}}"),
    ("blocks.{i}.ls2.gamma", f"{_BLOCK}/scale2/scale"),
    *norm("norm", "encoder_norm"),
    ("attn_pool.latent", "map/probe"),
    *dense("attn_pool.q", "map/attention/query"),
    *dense("attn_pool.kv", "map/attention/{key|value}"),
    *dense("attn_pool.proj", "map/attention/out"),
    *norm("attn_pool.norm", "map/norm"),
    *dense("attn_pool.mlp.fc{k}", "map/mlp/dense{k}"),
    *dense("pre_logits.fc", "pre_logits"),  # until 2022; timm drops it since
    *dense("head", "head"),
    *dense("head_dist", "head_dist"),
)

RESNET: Table = (
    *_resnet(""),
    *norm("norm", "final_norm"),
    ("head.fc.weight", "head/kernel", "oihw_pointwise"),
    ("head.fc.bias", "head/bias"),
)

_MIXER = "mixerblock_{i}"
MIXER: Table = (
    *conv("stem.proj", "embedding"),
    *norm("blocks.{i}.norm{k}", f"{_MIXER}/norm{{k}}"),
    *dense("blocks.{i}.mlp_tokens.fc{k}", f"{_MIXER}/token_mixing/dense{{k}}"),
    *dense("blocks.{i}.mlp_channels.fc{k}", f"{_MIXER}/channel_mixing/dense{{k}}"),
    *norm("norm", "encoder_norm"),
    *dense("head", "head"),
)

# What tells a family: a key that every file of it has.
SIGNS = (
    ("patch_embed.proj.weight", VIT),
    ("stem.proj.weight", MIXER),
    ("stem.conv.weight", RESNET),
)

# What pre-training leaves beside the encoder.
FOREIGN = re.compile(r"mask_token|decoder_.*|decoder\..*")

GELU = {"gelu": "gelu", "gelu_tanh": "gelu_tanh"}
# timm's arithmetic in a ResNet.
CONVOLUTIONS = {"weight_standardization": "var", "weight_epsilon": 1e-8, "norm_epsilon": 1e-5}


def is_timm(entries: Mapping[str, Entry]) -> bool:
    """Whether arrays have timm's names."""
    return any(sign in entries for sign, _ in SIGNS)


def read(entries: Mapping[str, Entry], name: str, config: Config) -> Weights:
    """The weights of a state dict.

    Args:
        entries: key -> array, of which `is_timm` is true.
        name: of the file, for messages.
        config: the `config.json` that timm puts beside it; may be empty.

    Raises:
        ValueError: a network that differs from ours in more than names.
    """
    table = next(table for sign, table in SIGNS if sign in entries)
    if "fc_norm.weight" in entries:
        raise ValueError(
            f"{name} normalises after pooling (fc_norm), which no network here does: timm's models "
            f"with fc_norm=False and those with a class token are read."
        )
    if table is VIT and _is_swiglu(entries):
        table = (*_SWIGLU, *VIT)
    own = {key: entry for key, entry in entries.items() if not FOREIGN.fullmatch(key)}
    weights = translate(table, own, name)
    return dataclasses.replace(
        weights,
        facts=_facts(weights, config),
        known=_known(config),
        ignored=tuple(key for key in entries if key not in own),
        posemb_resize="bicubic_antialias",
    )


def to_arrays(variables: dict[str, np.ndarray], spec: Spec) -> dict[str, np.ndarray]:
    """The weights of a model under timm's keys and in its shapes.

    Raises:
        ValueError: timm has no such network.
    """
    if isinstance(spec, ViTSpec) and not spec.num_layers:
        raise ValueError(f"{NAME} has no ViT without encoder (num_layers=0): choose google_npz.")
    if isinstance(spec, ViTSpec) and spec.num_registers and spec.posemb_prefix:
        if spec.distilled:
            raise ValueError(f"{NAME} has no registers beside a distillation token.")
        # Its models with registers add the class token's position to the token itself.
        positions = variables["posembed_input/table"]
        variables = {
            **variables,
            "cls/token": variables["cls/token"] + positions[:, :1],
            "posembed_input/table": positions[:, 1:],
        }
    return arrays_of(table_of(spec), variables, spec, NAME)


def table_of(spec: Spec) -> Table:
    """The rows by which a network is written."""
    if isinstance(spec, MixerSpec):
        return MIXER
    if isinstance(spec, ResNetSpec):
        return RESNET
    if isinstance(spec, HybridSpec) and not spec.resnet.block_units:
        return (*_STEM, *VIT)
    return (*_SWIGLU, *VIT) if spec.ffn == "swiglu" else VIT


def _is_swiglu(entries: Mapping[str, Entry]) -> bool:
    if "blocks.0.mlp.w12.weight" in entries:
        return True
    hidden, out = (entries.get(f"blocks.0.mlp.{fc}.weight") for fc in ("fc1", "fc2"))
    if hidden is None or out is None or not len(hidden.shape) == len(out.shape) == 2:
        return False
    return hidden.shape[0] == 2 * out.shape[1]


def _facts(weights: Weights, config: Config) -> dict[str, Any]:
    """Fields of the spec that shapes do not tell."""
    facts: dict[str, Any] = {}
    if "conv_root/kernel" in weights.entries:
        facts["body"] = dict(CONVOLUTIONS)
        if "embedding/kernel" not in weights.entries:  # a ResNet, which has no GELU
            return facts
    arguments = config.table("model_args")
    act = arguments.take("act_layer", str, "gelu")
    if act not in GELU:
        raise ValueError(f"{config.path} has act_layer {act!r}: known are {list(GELU)}.")
    facts["activation"] = GELU[act]
    if "mixerblock_0/norm1/scale" in weights.entries:
        return facts
    if "cls/token" in weights.entries:
        config.refuse("global_pool", ("token", "", None), None)
    found = timm_variant(config.take("architecture", str, "").partition(".")[0])
    known = VARIANTS[found[0]].spec if found else None
    if "num_heads" in arguments:
        facts["num_heads"] = arguments.take("num_heads", int)
    elif isinstance(known, ViTSpec):
        facts["num_heads"] = known.num_heads
    return facts


def _known(config: Config) -> dict[str, Any]:
    """Fields of a card: what timm's configuration says of classes and preprocessing."""
    known: dict[str, Any] = {}
    labels = config.take("label_names", list, [])
    if labels and all(isinstance(label, str) for label in labels):
        texts = config.table("label_descriptions").values
        known["class_names"] = tuple(str(texts.get(label, label)) for label in labels)
    if how := from_timm(config.table("pretrained_cfg")):
        known["preprocessing"] = how
    return known
