"""KerasHub's presets of ViT: a folder of JSON files and HDF5 weights, read as data.

No class that a preset names is imported. The backbone's weights stand in `model.weights.h5` and the
head's in `task.weights.h5`, under the names of KerasHub's classes and attributes.
"""

import dataclasses
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from keras_vit.card import Preprocessing
from keras_vit.spec import Spec, ViTSpec
from keras_vit.zoo.formats.configs import Config, read_config
from keras_vit.zoo.formats.entry import Entry
from keras_vit.zoo.formats.hdf5_file import open_hdf5
from keras_vit.zoo.formats.keys import Table, Weights, arrays_of, translate
from keras_vit.zoo.formats.preprocessors import from_keras_hub, to_keras_hub

NAME = "a KerasHub preset"
BACKBONE, TASK = "model.weights.h5", "task.weights.h5"
HEAD = "layers/dense"  # begins the names of what the task adds to the backbone


def _layer(key: str, variable: str, scale: str = "kernel") -> Table:
    return ((f"{key}/vars/0", f"{variable}/{scale}"), (f"{key}/vars/1", f"{variable}/bias"))


_INPUT = "layers/vi_t_patching_and_embedding"
_BLOCK, _TO = "layers/vi_t_encoder/encoder_layers/vi_t_encoder_block{_i}", "encoderblock_{i}"
_TRUNK: Table = (
    (f"{_INPUT}/vars/0", "cls/token"),
    (f"{_INPUT}/position_embedding/vars/0", "posembed_input/table", "batched"),
    *_layer(f"{_INPUT}/patch_embedding", "embedding"),
    *_layer(f"{_BLOCK}/layer_norm_{{k}}", f"{_TO}/norm{{k}}", "scale"),
    (f"{_BLOCK}/mha/output_dense/vars/0", f"{_TO}/attention/out/kernel", "from_heads"),
    (f"{_BLOCK}/mha/output_dense/vars/1", f"{_TO}/attention/out/bias"),
    (f"{_BLOCK}/mha/{{part}}_dense/vars/0", f"{_TO}/attention/{{part}}/kernel", "per_head"),
    (f"{_BLOCK}/mha/{{part}}_dense/vars/1", f"{_TO}/attention/{{part}}/bias", "per_head"),
    *_layer(f"{_BLOCK}/mlp/dense_{{k}}", f"{_TO}/mlp/dense{{k}}"),
    *_layer("layers/vi_t_encoder/layer_norm", "encoder_norm", "scale"),
)
# Dense layers are counted, so the head's name depends on whether pre_logits is below it.
TABLE: Table = (*_TRUNK, *_layer(HEAD, "head"))
TABLE_WITH_PRE_LOGITS: Table = (
    *_TRUNK,
    *_layer(HEAD, "pre_logits"),
    *_layer(f"{HEAD}_1", "head"),
)

ACTIVATIONS = {None: None, "linear": None, "softmax": "softmax", "sigmoid": "sigmoid"}


def read(folder: str | os.PathLike) -> Weights:
    """The weights of a preset.

    Raises:
        FileNotFoundError: a file of it is missing.
        ValueError: another network than ViT, or one that differs from ours in more than names.
    """
    folder = Path(folder)
    config = read_config(folder / "config.json")
    if (name := config.take("class_name", str)) != "ViTBackbone":
        raise ValueError(
            f"{folder} is KerasHub's {name!r}: of its presets only those of ViTBackbone are read. Take "
            f"the same weights from another container."
        )
    entries: dict[str, Entry] = dict(open_hdf5(folder / BACKBONE))
    task = read_config(folder / "task.json").table("config")
    with_head = bool(task) and (folder / TASK).is_file()
    if with_head:
        # The task may repeat the backbone.
        head = open_hdf5(folder / TASK)
        entries |= {k: e for k, e in head.items() if k.startswith(HEAD) or k not in entries}
    own = {key: entry for key, entry in entries.items() if not _is_state(key)}
    deep = with_head and "intermediate_dim" in task
    weights = translate(TABLE_WITH_PRE_LOGITS if deep else TABLE, own, str(folder))
    return dataclasses.replace(
        weights,
        facts=_facts(config.table("config"), task if with_head else None),
        known=_known(folder),
        ignored=tuple(key for key in entries if key not in own),
    )


def to_arrays(
    variables: dict[str, np.ndarray], spec: Spec
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """The weights of a model as KerasHub stores those of the backbone, and those of the task.

    Raises:
        ValueError: KerasHub has no such network; the message says why.
    """
    if not isinstance(spec, ViTSpec) or (reason := _lacks(spec)):
        reason = reason if isinstance(spec, ViTSpec) else f"{spec.family} network here"
        raise ValueError(f"{NAME} has no {reason}: choose another format.")
    if spec.has_cls and not spec.posemb_prefix:
        # Its class token has a position of its own; zero leaves it unmoved.
        table = variables["posembed_input/table"]
        padded = np.concatenate([np.zeros_like(table[:, :1]), table], axis=1)
        variables = {**variables, "posembed_input/table": padded}
    table = TABLE_WITH_PRE_LOGITS if spec.representation_size else TABLE
    arrays = arrays_of(table, variables, spec, NAME)
    head = {key: value for key, value in arrays.items() if key.startswith(HEAD)}
    return {key: value for key, value in arrays.items() if key not in head}, head


def configs_of(spec: ViTSpec, how: Preprocessing | None) -> dict[str, dict[str, Any]]:
    """File name -> content of the JSON files of a preset.

    Args:
        spec: the network.
        how: its preprocessing, left out where KerasHub has no such rule.
    """
    backbone = _object(
        "vit.vit_backbone",
        "ViTBackbone",
        {
            "image_shape": [*spec.image_size, spec.in_channels],
            "patch_size": list(spec.patch_size),
            "num_layers": spec.num_layers,
            "num_heads": spec.num_heads,
            "hidden_dim": spec.hidden_size,
            "mlp_dim": spec.mlp_dim,
            "dropout_rate": spec.dropout,
            "attention_dropout": spec.attention_dropout,
            "layer_norm_epsilon": spec.norm_epsilon,
            "use_mha_bias": True,
            "use_mlp_bias": True,
            "use_class_token": spec.has_cls,
            "use_patch_bias": True,
        },
    )
    trunk = dataclasses.replace(spec, num_classes=0, representation_size=None)
    about = {"parameter_count": trunk.num_params, "tasks": ["ImageClassifier"]}
    files = {"config.json": backbone, "metadata.json": about}
    converter = to_keras_hub(how, spec.image_size) if how else None
    if converter:
        converter = _object("vit.vit_image_converter", "ViTImageConverter", converter)
        files["image_converter.json"] = converter
        files["preprocessor.json"] = _object(
            "vit.vit_image_classifier_preprocessor",
            "ViTImageClassifierPreprocessor",
            {"image_converter": converter, "config_file": "preprocessor.json"},
        )
    if spec.num_classes:
        head = {
            "backbone": backbone,
            "preprocessor": files.get("preprocessor.json"),
            "num_classes": spec.num_classes,
            "pooling": spec.pool,
            "activation": spec.classifier_activation,
            "intermediate_dim": spec.representation_size,
        }
        files["task.json"] = _object("vit.vit_image_classifier", "ViTImageClassifier", head)
    return files


def _is_state(key: str) -> bool:
    """Whether an array is state of training and no weight."""
    return key.startswith(("optimizer/", "metrics/")) or "seed_generator/" in key


def _facts(backbone: Config, task: Config | None) -> dict[str, Any]:
    """Fields of the spec that shapes do not tell."""
    has_cls = backbone.take("use_class_token", bool, True)
    facts: dict[str, Any] = {
        "activation": "gelu",
        "num_heads": backbone.take("num_heads", int),
        "norm_epsilon": backbone.take("layer_norm_epsilon", (int, float), 1e-6),
        "image_size": backbone.take("image_shape", list)[:2],
        "attention_dropout": backbone.take("attention_dropout", (int, float), 0.0),
    }
    if rate := backbone.take("dropout_rate", (int, float), 0.0):
        facts |= {"dropout": rate, "embedding_dropout": 0.0}
    if task is None:
        return facts
    pooling = task.take("pooling", str, "token")
    if pooling != ("token" if has_cls else "gap"):
        raise ValueError(
            f"{task.path} pools by {pooling!r} {'with' if has_cls else 'without'} a class token, which "
            f"no network here does: known are 'token' with and 'gap' without one."
        )
    activation = task.values.get("activation")
    if isinstance(activation, dict):  # how Keras writes a function
        activation = activation.get("config")
    if not isinstance(activation, str | None) or activation not in ACTIVATIONS:
        raise ValueError(f"{task.path} has activation {activation!r}: known are softmax, sigmoid.")
    return {**facts, "classifier_activation": ACTIVATIONS[activation]}


def _known(folder: Path) -> dict[str, Any]:
    """Fields of a card: preprocessing."""
    converter = read_config(folder / "image_converter.json")
    if not converter:  # older presets keep it inside of the preprocessor
        converter = (
            read_config(folder / "preprocessor.json").table("config").table("image_converter")
        )
    how = from_keras_hub(converter.table("config"))
    return {"preprocessing": how} if how else {}


def _lacks(spec: ViTSpec) -> str | None:
    """What a network has that KerasHub's has not."""
    if spec.family != "vit" or not spec.num_layers:
        return f"{spec.family} network of this kind"
    if any(side % patch for side, patch in zip(spec.image_size, spec.patch_size, strict=True)):
        return "images that are no multiple of the patch (allow_crop)"
    if spec.pool not in ("token", "gap") or spec.posemb != "learn":
        return f"network with pool={spec.pool!r} and posemb={spec.posemb!r}"
    if spec.distilled or spec.num_registers or spec.layer_scale is not None or spec.ffn != "mlp":
        return "distillation token, registers, layer_scale or swiglu"
    if spec.representation_size and not (spec.num_classes and spec.representation_tanh):
        return "pre_logits without a head, or without tanh"
    return None


def _object(module: str, name: str, config: Mapping[str, Any]) -> dict[str, Any]:
    """An object as Keras writes it."""
    return {
        "module": f"keras_hub.src.models.{module}",
        "class_name": name,
        "config": dict(config),
        "registered_name": f"keras_hub>{name}",
    }
