"""The ViT against outputs of the official code, and against a float64 reference written in NumPy."""

import dataclasses
import importlib.util
import json
from pathlib import Path

import keras
import numpy as np
import pytest

from keras_vit.model import VisionModel
from keras_vit.spec import ViTSpec
from keras_vit.zoo.weights import load_weights

ORACLES = Path(__file__).parent / "oracles"
# sensitivity of these fixtures: exact instead of tanh GELU moves a logit by 5e-4, LayerNorm
# epsilon 1e-5 by 8e-5; two float32 implementations differ by about 2e-6.
TOLERANCE = 2e-5
VIT_JAX = sorted(p.stem for p in ORACLES.glob("vit_tiny_*.npz"))
BIG_VISION = sorted(p.stem for p in ORACLES.glob("bv_vit_*.npz"))
VIT_JAX_POOLS = {
    "token": "token",
    "gap": "gap",
    "unpooled": "none",
    "token_unpooled": "token_unpooled",
}
BIG_VISION_POOLS = {"gap": "gap", "map": "map", "tok": "token"}


def read(name):
    with np.load(ORACLES / f"{name}.npz", allow_pickle=False) as file:
        arrays = {key: file[key] for key in file.files if key != "config"}
        return arrays, json.loads(str(file["config"]))


def parameters(arrays, prefix="params/"):
    return {k.removeprefix(prefix): v for k, v in arrays.items() if k.startswith(prefix)}


def vit_jax_spec(config, image_size):
    model, transformer = config["model"], config["model"]["transformer"]
    return ViTSpec(
        hidden_size=model["hidden_size"],
        mlp_dim=transformer["mlp_dim"],
        num_heads=transformer["num_heads"],
        num_layers=transformer["num_layers"],
        patch_size=tuple(model["patches"]["size"]),
        image_size=tuple(image_size),
        num_classes=config["num_classes"],
        pool=VIT_JAX_POOLS[model["classifier"]],
        representation_size=model["representation_size"],
        allow_crop=True,
    )


def big_vision_spec(config, image_size):
    model = config["model"]
    return ViTSpec(
        hidden_size=model["width"],
        mlp_dim=model["mlp_dim"],
        num_heads=model["num_heads"],
        num_layers=model["depth"],
        patch_size=tuple(model["patch_size"]),
        image_size=tuple(image_size),
        num_classes=config["num_classes"] or 0,
        pool=BIG_VISION_POOLS[model["pool_type"]],
        posemb=model.get("posemb", "learn"),
        posemb_includes_cls=False,
        representation_size=model["width"] if model.get("rep_size") else None,
    )


def run(model, names, x):
    """Several endpoints in one pass, the output last."""
    tensors = [model.endpoints[name] for name in names]
    values = keras.Model(model.inputs[0], [*tensors, model.outputs[0]])(x)
    return dict(zip([*names, "output"], map(keras.ops.convert_to_numpy, values), strict=True))


def close(actual, expected, tolerance=TOLERANCE):
    assert actual.shape == expected.shape
    np.testing.assert_allclose(actual, expected, rtol=0, atol=tolerance)


def test_every_fixture_is_here():
    assert len(VIT_JAX) == 9
    assert len(BIG_VISION) == 6


@pytest.mark.parametrize("name", VIT_JAX)
def test_vision_transformer_fixtures_at_every_endpoint(name):
    arrays, config = read(name)
    x = arrays["input"]
    model = VisionModel(vit_jax_spec(config, x.shape[1:3]))
    assert model.count_params() == model.spec.num_params == config["num_params"]
    load_weights(model, parameters(arrays))

    keys = {k[6:].replace("encoder_norm", "encoded"): k for k in arrays if k.startswith("inter/")}
    assert len(keys) == 8  # embedding, posembed_input, two blocks, two attentions, norm, pre_logits
    found = run(model, list(keys), x)
    close(found["output"], arrays["output"])
    for name, key in keys.items():
        close(found[name], arrays[key])


@pytest.mark.parametrize("name", BIG_VISION)
def test_big_vision_fixtures(name):
    arrays, config = read(name)
    x = arrays["input"]
    model = VisionModel(big_vision_spec(config, x.shape[1:3]))
    load_weights(model, parameters(arrays))

    found = run(model, ["embedding", "posembed_input", "encoded", "pre_logits"], x)
    close(found["output"], arrays["output"])
    close(found["encoded"], arrays["inter/encoded"])
    close(found["pre_logits"], arrays["inter/pre_logits"])
    # Their intermediate precedes the class token.
    tokens = found["posembed_input"][:, int(model.spec.has_cls) :]
    close(tokens, arrays["inter/with_posemb"])
    if "inter/posemb" in arrays:
        added = tokens - found["embedding"].reshape(tokens.shape)
        close(added, np.broadcast_to(arrays["inter/posemb"], tokens.shape))
    # pre_logits_2d is a head applied per token: not ours, except that without pooling and
    # without pre_logits it is what `encoded` holds as a map.
    if model.spec.representation_size is None:
        close(
            keras.ops.convert_to_numpy(model.features("encoded", as_map=True)(x)),
            arrays["inter/pre_logits_2d"],
        )


def test_scan_stacked_blocks_are_the_same_network():
    (plain, _), (stacked, _) = read("bv_vit_map"), read("bv_vit_scan_map")
    assert "params/Transformer/encoderblock/LayerNorm_0/bias" in stacked
    assert "params/Transformer/encoderblock_0/LayerNorm_0/bias" in plain


@pytest.mark.parametrize("posemb_includes_cls", [False, True])
def test_converted_old_checkpoint_in_either_form(posemb_includes_cls):
    arrays, _ = read("bv_fix_old_checkpoint")
    old, config = read("vit_tiny_token")
    spec = dataclasses.replace(
        vit_jax_spec(config, (32, 32)), posemb_includes_cls=posemb_includes_cls
    )
    for params in (parameters(arrays, "params_fixed/"), parameters(old)):
        model = VisionModel(spec)
        load_weights(model, params)
        close(keras.ops.convert_to_numpy(model(arrays["input"])), arrays["output"])


# The NumPy reference: every choice of a spec, float64, prime-ish sizes.


def reference():
    spec = importlib.util.spec_from_file_location("numpy_vit", ORACLES / "numpy_vit.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.vit


BASE = ViTSpec(
    hidden_size=28,
    mlp_dim=37,
    num_heads=7,
    num_layers=3,
    patch_size=(5, 3),
    image_size=(35, 33),
    in_channels=5,
    num_classes=11,
)
CASES = {
    **{
        f"pool_{p}": {"pool": p} for p in ("token", "gap", "map", "none", "token_unpooled", "first")
    },
    **{
        f"posemb_{kind}_{pool}": {"pool": pool, "posemb": kind}
        for kind in ("sincos2d", "none")
        for pool in ("token", "gap")
    },
    "posemb_before_cls": {"posemb_includes_cls": False},
    "rep": {"representation_size": 13},
    "rep_without_tanh": {"representation_size": 13, "representation_tanh": False, "pool": "gap"},
    "rep_per_token": {"representation_size": 13, "pool": "none"},
    "exact_gelu": {"activation": "gelu"},
    "exact_gelu_map": {"activation": "gelu", "pool": "map"},
    "epsilon": {"norm_epsilon": 1e-2},
    "no_head": {"num_classes": 0, "representation_size": 13},
    "softmax": {"classifier_activation": "softmax"},
    "sigmoid": {"classifier_activation": "sigmoid"},
    "crop": {"image_size": (38, 34), "allow_crop": True},
    "one_block": {"num_layers": 1},
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.case("L20")
@pytest.mark.case("L21")
def test_matches_the_float64_reference(case):
    spec = dataclasses.replace(BASE, **CASES[case])
    model = VisionModel(spec)
    rng = np.random.default_rng(17)
    for variable in model.weights:
        variable.assign(rng.normal(0.0, 0.3, variable.shape))
    params = {v.path: keras.ops.convert_to_numpy(v).astype(np.float64) for v in model.weights}
    x = rng.uniform(-1, 1, (3, *spec.image_size, 5)).astype(np.float32)
    expected = reference()(spec, params, x)

    expected["output"] = list(expected.values())[-1]
    found = run(model, [name for name in expected if name != "output"], x)
    for name, value in expected.items():
        # float32 rounding, relative to the size of the values; the other GELU moves them by 1e-4.
        close(found[name], value.astype(np.float32), 5e-6 * max(1.0, np.abs(value).max()))
    assert model.count_params() == spec.num_params
