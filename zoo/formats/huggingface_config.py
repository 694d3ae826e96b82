"""The `config.json` of Hugging Face: what it tells of a network, and what it must tell of ours."""

from typing import Any

from keras_vit.spec import HybridSpec, MixerSpec, ResNetSpec, Spec, ViTSpec
from keras_vit.zoo.formats.configs import Config
from keras_vit.zoo.formats.keys import Weights
from keras_vit.zoo.formats.preprocessors import from_huggingface

# hidden_act: ours. The second and third are the official code's.
GELU = {"gelu": "gelu", "gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh"}
# model_type: LayerNorm epsilon where the file does not say it.
TYPES = {
    "vit": 1e-12,
    "vit_hybrid": 1e-12,
    "vit_mae": 1e-12,
    "deit": 1e-12,
    "dinov2": 1e-6,
    "dinov2_with_registers": 1e-6,
    "bit": None,
}
RATES = {
    "hidden_dropout_prob": "dropout",
    "attention_probs_dropout_prob": "attention_dropout",
    "drop_path_rate": "stochastic_depth",
}
# transformers' arithmetic in a ResNet, and the rules of its two kinds of layers.
CONVOLUTIONS = {"weight_standardization": "var", "weight_epsilon": 1e-8, "norm_epsilon": 1e-5}
LAYERS = {
    "preactivation": {"preactivation": True, "padding": "fixed", "pool_border": "zero"},
    "bottleneck": {"preactivation": False, "padding": "same", "pool_border": "-inf"},
}


def facts_of(weights: Weights, config: Config, processor: Config) -> dict[str, Any]:
    """Fields of the spec that shapes do not tell.

    Raises:
        ValueError: a network that differs from ours in more than names.
    """
    found = weights.entries
    scaled = "encoderblock_0/scale1/scale" in found
    is_bit = "conv_root/kernel" in found and "embedding/kernel" not in found
    kind = config.take("model_type", str, "bit" if is_bit else "dinov2" if scaled else "vit")
    if kind not in TYPES:
        raise ValueError(
            f"{config.path} is of a {kind!r} model, which is none of this package's: known are "
            f"{list(TYPES)}."
        )
    facts: dict[str, Any] = {}
    if is_bit:
        if size := _pixels(processor):
            facts["image_size"] = size
        return {**facts, "body": _body(config)}
    act = config.take("hidden_act", str, "gelu")
    if act not in GELU:
        raise ValueError(f"{config.path} has hidden_act {act!r}: known are {list(GELU)}.")
    facts["activation"] = GELU[act]
    facts["norm_epsilon"] = config.take("layer_norm_eps", (int, float), TYPES[kind])
    for key, field in RATES.items():
        facts[field] = config.take(key, (int, float), 0.0)
    if "num_attention_heads" in config:
        facts["num_heads"] = config.take("num_attention_heads", int)
    if "image_size" in config:
        facts["image_size"] = config.take("image_size", (int, list))
    if "pre_logits/kernel" in found:
        config.refuse("pooler_act", ("tanh",), "tanh")
    if scaled:
        facts["layer_scale"] = config.take("layerscale_value", (int, float), 1.0)
    if "conv_root/kernel" in found:
        inner = config.table("backbone_config")
        facts["body"] = _body(inner) if inner else {**CONVOLUTIONS, **LAYERS["bottleneck"]}
    return facts


def known_of(config: Config, processor: Config, size: Any) -> dict[str, Any]:
    """Fields of a card: class names and preprocessing.

    Args:
        config: the `config.json`.
        processor: the `preprocessor_config.json`.
        size: of the model's images, if anything tells it.
    """
    known: dict[str, Any] = {}
    labels = config.table("id2label").values
    names = [labels.get(str(i)) for i in range(len(labels))]
    invented = all(name == f"LABEL_{i}" for i, name in enumerate(names))
    if names and not invented and all(isinstance(name, str) for name in names):
        known["class_names"] = tuple(names)
    size = (size, size) if isinstance(size, int) else tuple(size) if size else None
    if how := from_huggingface(processor, size):
        known["preprocessing"] = how
    return known


def kind_of(spec: Spec) -> str:
    """Which of Hugging Face's models a network is: `vit`, `deit`, `dinov2` or `bit`.

    Raises:
        ValueError: none of them; the message says what they lack.
    """
    if isinstance(spec, ResNetSpec):
        kind, lacks = "bit", _lacks_of_resnet(spec)
    elif isinstance(spec, HybridSpec | MixerSpec):
        kind, lacks = "", f"{spec.family} model to be written"
    else:
        kind = "deit" if spec.distilled else "vit" if spec.layer_scale is None else "dinov2"
        lacks = _lacks_of_vit(spec, kind)
    if lacks:
        raise ValueError(f"Hugging Face's layout has no {lacks}: choose another format.")
    return kind


def config_of(spec: Spec, class_names: tuple[str, ...] | None) -> dict[str, Any]:
    """The `config.json` of a network, with which transformers computes what it computes here.

    BiT's epsilons, which no field of it tells, are the exception: they move logits by less than 1e-6.

    Args:
        spec: the network.
        class_names: of its head, None for transformers' own LABEL_0, LABEL_1, ...

    Raises:
        ValueError: Hugging Face has no such network.
    """
    kind = kind_of(spec)
    config: dict[str, Any] = {"dtype": "float32", "num_channels": spec.in_channels}
    if isinstance(spec, ResNetSpec):
        config |= _bit_config(spec)
    elif isinstance(spec, ViTSpec):
        config |= _vit_config(spec, kind)
    if spec.num_classes:
        names = class_names or tuple(f"LABEL_{i}" for i in range(spec.num_classes))
        config["id2label"] = {str(i): name for i, name in enumerate(names)}
        config["label2id"] = {name: i for i, name in enumerate(names)}
    return config


def _body(config: Config) -> dict[str, Any]:
    """Fields of `ResNetBody`.

    Raises:
        ValueError: a combination that no network here has.
    """
    config.refuse("hidden_act", ("relu",), "relu")
    kind = config.take("layer_type", str, "preactivation")
    config.refuse("layer_type", tuple(LAYERS), kind)
    same = config.take("global_padding", str, "").upper() == "SAME"
    dynamic = config.take("embedding_dynamic_padding", bool, False)
    if (kind, same, dynamic) not in (("preactivation", False, False), ("bottleneck", True, True)):
        raise ValueError(
            f"{config.path} pads as no network here does: layer_type {kind} with global_padding "
            f"{config.values.get('global_padding')} and embedding_dynamic_padding {dynamic}."
        )
    stages = len(config.take("depths", list, [0] * 4))
    if stages > 1 and 2**stages >= config.take("output_stride", int, 32):
        raise ValueError(f"{config.path} has dilated convolutions (output_stride), unknown here.")
    return {**CONVOLUTIONS, **LAYERS[kind], "norm_groups": config.take("num_groups", int, 32)}


def _pixels(processor: Config) -> tuple[int, int] | None:
    """(height, width) that BiT's preprocessing leaves, which its config does not tell."""
    crops = processor.values.get("do_center_crop", True)
    size = processor.values.get("crop_size") if crops else processor.values.get("size")
    if isinstance(size, dict):
        size = size.get("height"), size.get("width")
    height, width = size if isinstance(size, tuple) else (size, size)
    if isinstance(height, int) and isinstance(width, int) and min(height, width) > 0:
        return height, width
    return None


def _lacks_of_vit(spec: ViTSpec, kind: str) -> str | None:
    """What a network has that none of the models has."""
    if not spec.num_layers:
        return "network without encoder (num_layers=0)"
    if spec.pool != "token" or spec.posemb != "learn":
        return f"network with pool={spec.pool!r} and posemb={spec.posemb!r}"
    if spec.representation_size and (spec.num_classes or not spec.representation_tanh):
        return "pre_logits below a head, or without tanh"
    if kind == "dinov2":
        if spec.num_classes or spec.representation_size:
            return "layer_scale below a head of one token (DINOv2's takes two) or pre_logits"
        return None if _mlp_ratio(spec) else f"DINOv2 with mlp_dim={spec.mlp_dim}"
    if spec.num_registers or spec.ffn != "mlp" or spec.layer_scale is not None:
        return (
            "registers, layer_scale or swiglu in a model other than DINOv2, which has layer_scale"
        )
    return None


def _lacks_of_resnet(spec: ResNetSpec) -> str | None:
    body = spec.body
    rules = {field: getattr(body, field) for field in LAYERS["bottleneck"]}
    if rules not in LAYERS.values() or body.weight_standardization is None:
        return f"ResNet with {rules} and weight_standardization={body.weight_standardization!r}"
    return (
        f"ResNet of {body.root_width} channels, no multiple of 8" if body.root_width % 8 else None
    )


def _vit_config(spec: ViTSpec, kind: str) -> dict[str, Any]:
    model = {"vit": "ViT", "deit": "DeiT", "dinov2": "Dinov2"}[kind]
    suffix = "Model" if not spec.num_classes else "ForImageClassification"
    if spec.distilled and spec.num_classes:
        suffix += "WithTeacher"
    config: dict[str, Any] = {
        "architectures": [f"{model}{suffix}"],
        "model_type": kind,
        "hidden_size": spec.hidden_size,
        "num_hidden_layers": spec.num_layers,
        "num_attention_heads": spec.num_heads,
        "hidden_act": "gelu" if spec.activation == "gelu" else "gelu_pytorch_tanh",
        "layer_norm_eps": spec.norm_epsilon,
        "image_size": _plain(spec.image_size),
        "patch_size": _plain(spec.patch_size),
        "qkv_bias": True,
        "hidden_dropout_prob": spec.dropout,
        "attention_probs_dropout_prob": spec.attention_dropout,
    }
    if spec.representation_size:
        config |= {"pooler_output_size": spec.representation_size, "pooler_act": "tanh"}
    if kind != "dinov2":
        return config | {"intermediate_size": spec.mlp_dim}
    if spec.num_registers:
        config["architectures"] = [f"Dinov2WithRegisters{suffix}"]
        config["model_type"] = "dinov2_with_registers"
        config["num_register_tokens"] = spec.num_registers
    return config | {
        "mlp_ratio": _mlp_ratio(spec),
        "use_swiglu_ffn": spec.ffn == "swiglu",
        "layerscale_value": spec.layer_scale,
        "drop_path_rate": spec.stochastic_depth,
        "use_mask_token": False,
    }


def _bit_config(spec: ResNetSpec) -> dict[str, Any]:
    body, stages = spec.body, len(spec.body.block_units)
    return {
        "architectures": ["BitForImageClassification" if spec.num_classes else "BitModel"],
        "model_type": "bit",
        "layer_type": "preactivation" if body.preactivation else "bottleneck",
        "global_padding": None if body.padding == "fixed" else "SAME",
        "embedding_dynamic_padding": body.padding == "same",
        "embedding_size": body.root_width,
        "hidden_sizes": [4 * body.stage_width(stage) for stage in range(stages)],
        "depths": list(body.block_units),
        "num_groups": body.norm_groups,
        "hidden_act": "relu",
        "width_factor": 1,
        "drop_path_rate": 0.0,
        "output_stride": max(32, 2 ** (stages + 1)),
    }


def _mlp_ratio(spec: ViTSpec) -> int | float | None:
    """The ratio from which transformers computes the width of the MLP; None where none gives it."""
    width = spec.mlp_dim * (3 / 2 if spec.ffn == "swiglu" else 1)
    ratio = width / spec.hidden_size
    for candidate in (round(ratio), ratio, (width + 0.5) / spec.hidden_size):
        hidden = int(spec.hidden_size * candidate)
        if spec.ffn == "swiglu":
            hidden = (int(hidden * 2 / 3) + 7) // 8 * 8
        if hidden == spec.mlp_dim:
            return candidate
    return None


def _plain(size: tuple[int, int]) -> int | list[int]:
    return size[0] if size[0] == size[1] else list(size)
