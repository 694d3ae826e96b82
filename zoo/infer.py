"""The architecture that weights tell of themselves, for checkpoints that no card describes."""

import math
import re
from collections.abc import Mapping
from typing import Any

from keras_vit.posemb import infer_grid
from keras_vit.spec import HybridSpec, MixerSpec, ResNetBody, ResNetSpec, Spec, ViTSpec, pair
from keras_vit.zoo.formats.entry import Entry
from keras_vit.zoo.formats.keys import Weights
from keras_vit.zoo.variants import BIT_NUMERICS, VARIANTS


def spec_of(
    weights: Weights, *, image_size: tuple[int, int] | None = None, like: Spec | None = None
) -> Spec:
    """The network that weights were saved from.

    Pooling cannot be read off weights alone: with a class token it is taken to be `token`, with an
    attention head `map`, else `gap`. Tables of positions are taken to be square where they can be.
    What the container tells (`weights.facts`) goes before all guesses.

    Args:
        weights: of a file.
        image_size: for files without a table, or whose table is not square.
        like: the network that is expected; tells the number of heads where the file does not.

    Raises:
        ValueError: no known network, or nothing tells the image size or the number of heads.
    """
    found = weights.entries
    if "mixerblock_0/token_mixing/dense1/kernel" in found:
        return _mixer(weights, image_size)
    if "conv_root/kernel" in found and "embedding/kernel" not in found:
        return _resnet(weights, image_size, like)
    return _vit(weights, image_size, like)


def _vit(weights: Weights, image_size: tuple[int, int] | None, like: Spec | None) -> ViTSpec:
    found, facts = weights.entries, dict(weights.facts)
    axial = "encoderblock_0/row/norm1/scale" in found
    block = "encoderblock_0/row" if axial else "encoderblock_0"
    swiglu = f"{block}/mlp/gate/kernel" in found
    mlp = f"{block}/mlp/{'gate' if swiglu else 'dense1'}/kernel"
    bare = "conv_root/kernel" in found and not _count(found, r"encoderblock_(\d+)/.*")
    needed = ["embedding/kernel"]
    needed += [] if bare else [f"{block}/attention/query/kernel", mlp]
    if missing := [key for key in needed if key not in found]:
        raise ValueError(f"{weights.name} is no Vision Transformer: it lacks {missing}.")
    height, width, channels, size = _shape(weights, "embedding/kernel", 4)
    body = _body(weights, facts.pop("body", {}), like) if "conv_root/kernel" in found else None
    distilled = "dist/token" in found
    posemb, posemb_at, first = _posemb(found, like)
    table = f"{first}/table"
    includes_cls = True
    image_size = pair(facts["image_size"], "image_size") if "image_size" in facts else image_size
    if table in found:
        full = 1 + int(distilled) if "cls/token" in found else 0
        wanted = _grid(image_size, (height, width), body)
        grid, prefix = _positions(_shape(weights, table, 3)[1], full, wanted, like)
        includes_cls = prefix > 0 or not full
        if grid != wanted or not body:
            image_size = _image_size(grid, (height, width), body)
    elif posemb == "2d":
        grid = _shape(weights, f"{first}/rows", 4)[1], _shape(weights, f"{first}/columns", 4)[2]
        includes_cls = f"{first}/prefix" in found or "cls/token" not in found
        image_size = image_size if body else _image_size(grid, (height, width), body)
    fields = {
        "hidden_size": size,
        "mlp_dim": 1 if bare else _shape(weights, mlp, 2)[1],
        "num_layers": _count(found, r"encoderblock_(\d+)/.*"),
        "patch_size": (height, width),
        "image_size": image_size,
        "in_channels": _shape(weights, "conv_root/kernel", 4)[2] if body else channels,
        "num_classes": _classes(found),
        "pool": "map" if "map/probe" in found else "token" if "cls/token" in found else "gap",
        "representation_size": _last_axis(found, "pre_logits/kernel"),
        "posemb": "none" if bare else posemb,
        "posemb_at": posemb_at,
        "attention": "axial" if axial else "full",
        "posemb_includes_cls": includes_cls,
        "distilled": distilled,
        "num_registers": _shape(weights, "registers/tokens", 3)[1]
        if "registers/tokens" in found
        else 0,
        "layer_scale": 1e-5 if f"{block}/scale1/scale" in found else None,
        "ffn": "swiglu" if swiglu else "mlp",
        **({"num_heads": 1} if bare else {}),
        **{**facts, "image_size": image_size},
    }
    if fields["image_size"] is None:
        raise ValueError(f"{weights.name} has no position table: give image_size.")
    if "num_heads" not in fields:
        fields["num_heads"] = _heads(fields, weights.name, like)
    return HybridSpec(**fields, resnet=body) if body else ViTSpec(**fields)


def _posemb(found: Mapping[str, Entry], like: Spec | None) -> tuple[str, str, str]:
    """Kind of positions, where they are added, and the layer of the first or only ones.

    Nothing tells a table that is added once from one that is added before every block; nor fixed
    positions from none.
    """
    at_layers = any(path.startswith("posembed_0/") for path in found)
    first = "posembed_0" if at_layers else "posembed_input"
    kinds = {f"{first}/table": "learn", f"{first}/rows": "2d"}
    kinds |= {"encoderblock_0/attention/offsets": "relative"}
    kind = next((kind for path, kind in kinds.items() if path in found), None)
    expected = like if isinstance(like, ViTSpec) else None
    if kind is None:
        bare = expected is not None and expected.posemb == "none"
        return "none" if bare else "sincos2d", "stem", first
    shared = expected is not None and expected.posemb_at == "layers_shared"
    return kind, "layers" if at_layers else "layers_shared" if shared else "stem", first


def _image_size(
    grid: tuple[int, int], patch: tuple[int, int], body: ResNetBody | None
) -> tuple[int, int]:
    """The image that has so many patches, of those that halve without a rest."""
    stride = 2 ** (2 + max(len(body.block_units) - 1, 0)) if body else 1
    return grid[0] * patch[0] * stride, grid[1] * patch[1] * stride


def _grid(
    image_size: tuple[int, int] | None, patch: tuple[int, int], body: ResNetBody | None
) -> tuple[int, int] | None:
    """Patches (down, across) of an image."""
    if image_size is None:
        return None
    height, width = body.feature_map(image_size) if body else image_size
    return height // patch[0], width // patch[1]


def _positions(
    count: int, full: int, wanted: tuple[int, int] | None, like: Spec | None
) -> tuple[tuple[int, int], int]:
    """The grid of a position table and the number of entries before it.

    24 patches and a class token are as many entries as 5x5 patches, so what is expected goes first,
    and an entry for each token before none.

    Args:
        count: entries of the table.
        full: of them the tokens', if they have any.
        wanted: the grid of the images that are meant.
        like: the network that is expected.

    Raises:
        ValueError: it is no grid that is expected, and no square one.
    """
    if isinstance(like, ViTSpec) and math.prod(like.grid) + like.posemb_prefix == count:
        return like.grid, like.posemb_prefix
    for prefix in (full, 0):
        if wanted and math.prod(wanted) + prefix == count:
            return wanted, prefix
        if math.isqrt(count - prefix) ** 2 == count - prefix > 0:
            return infer_grid(count, prefixes=(prefix,))
    return infer_grid(count, prefixes=(0, full))


def _heads(fields: Mapping[str, Any], name: str, like: Spec | None) -> int:
    """Heads of a network whose file does not tell them: those of the expected network, of a known one
    of the same sizes, or as many as are 64 wide, which all of the paper's but H, g and G have."""
    if isinstance(like, ViTSpec) and like.hidden_size == fields["hidden_size"]:
        return like.num_heads
    sizes = ("hidden_size", "mlp_dim", "num_layers")
    for variant in VARIANTS.values():
        if all(getattr(variant.spec, field, None) == fields[field] for field in sizes):
            if isinstance(variant.spec, ViTSpec):
                return variant.spec.num_heads
    if fields["hidden_size"] % 64:
        raise ValueError(
            f"{name} does not tell its number of heads: load it with weights= of a named model or a spec."
        )
    return fields["hidden_size"] // 64


def _resnet(weights: Weights, image_size: tuple[int, int] | None, like: Spec | None) -> ResNetSpec:
    return ResNetSpec(
        body=_body(weights, weights.facts.get("body", {}), like),
        in_channels=_shape(weights, "conv_root/kernel", 4)[2],
        num_classes=_classes(weights.entries),
        image_size=image_size or weights.facts.get("image_size") or (224, 224),
    )


def _body(weights: Weights, facts: Mapping[str, Any], like: Spec | None) -> ResNetBody:
    found = weights.entries
    stages = _count(found, r"block(\d+)_unit\d+/.*")
    root = _shape(weights, "conv_root/kernel", 4)[3]
    width = root
    if "block1_unit1/conv1/kernel" in found:
        width = _shape(weights, "block1_unit1/conv1/kernel", 4)[3]
    rules = {} if "gn_root/scale" in found else BIT_NUMERICS  # files cannot tell them
    expected = getattr(like, "body", getattr(like, "resnet", None))
    groups = {"norm_groups": expected.norm_groups} if expected else {}
    return ResNetBody(
        tuple(_count(found, rf"block{i}_unit(\d+)/.*") for i in range(1, stages + 1)),
        width / 64,
        **{**rules, **groups, **facts},
        root_channels=None if root == width else root,
    )


def _mixer(weights: Weights, image_size: tuple[int, int] | None) -> MixerSpec:
    found = weights.entries
    height, width, channels, size = _shape(weights, "embedding/kernel", 4)
    tokens, tokens_mlp = _shape(weights, "mixerblock_0/token_mixing/dense1/kernel", 2)
    side = math.isqrt(tokens)
    if image_size is None and side * side != tokens:
        raise ValueError(f"{weights.name} mixes {tokens} tokens, no square: give image_size.")
    return MixerSpec(
        **{
            "hidden_size": size,
            "tokens_mlp_dim": tokens_mlp,
            "channels_mlp_dim": _shape(weights, "mixerblock_0/channel_mixing/dense1/kernel", 2)[1],
            "num_layers": _count(found, r"mixerblock_(\d+)/.*"),
            "patch_size": (height, width),
            "image_size": image_size or (side * height, side * width),
            "in_channels": channels,
            "num_classes": _classes(found),
            **weights.facts,
        }
    )


def _shape(weights: Weights, path: str, rank: int) -> tuple[int, ...]:
    """The shape of an array that a network cannot do without.

    Raises:
        ValueError: it is missing, empty, or has other axes.
    """
    if path not in weights.entries:
        raise ValueError(f"{weights.name} has nothing for {path}: it is another network.")
    shape = tuple(weights.entries[path].shape)
    if len(shape) != rank or 0 in shape:
        raise ValueError(
            f"{weights.name} has {weights.keys.get(path, path)} of the shape {weights.shapes.get(path, shape)}, "
            f"which no network here has."
        )
    return shape


def _classes(found: Mapping[str, Entry]) -> int:
    return _last_axis(found, "head/kernel") or 0


def _last_axis(found: Mapping[str, Entry], path: str) -> int | None:
    return found[path].shape[-1] if path in found and found[path].shape else None


def _count(found: Mapping[str, Entry], pattern: str) -> int:
    return len({m[1] for path in found if (m := re.fullmatch(pattern, path))})
