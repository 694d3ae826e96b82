"""What tests/test_tpu_compile.py runs in processes of their own: training steps compiled for TPU v3.

`python tpu_steps.py jax:FAMILY` compiles the step of `fit` on JAX over eight cores, `tensorflow:FAMILY`
the one that runs under TPUStrategy on each of its cores, `refused` something that no TPU can do. A line
of JSON on stdout for every argument.
"""

import json
import re
import sys

import numpy as np

from keras_vit.model import VisionModel
from keras_vit.spec import HybridSpec, MixerSpec, ResNetBody, ResNetSpec, ViTSpec
from keras_vit.studies import lowering
from keras_vit.studies.figures import figures_of
from keras_vit.studies.topology import parse
from keras_vit.train.recipe import Loss, Optimizer, Recipe, Schedule
from keras_vit.train.run import compile_for

WHERE = parse("v3-8")
BATCH = 32
SMALL = {"image_size": 32, "num_classes": 5}
TOKENS = {"hidden_size": 16, "mlp_dim": 24, "num_heads": 2, "num_layers": 1}
DROP = {"dropout": 0.1, "attention_dropout": 0.1, "stochastic_depth": 0.1}
BODY = ResNetBody(block_units=(1,), width_factor=0.5)
SPECS = {
    "vit": ViTSpec(patch_size=8, **TOKENS, **DROP, **SMALL),
    "hybrid": HybridSpec(patch_size=1, resnet=BODY, **TOKENS, **DROP, **SMALL),
    "resnet": ResNetSpec(body=BODY, **SMALL),
    "mixer": MixerSpec(
        patch_size=8,
        hidden_size=16,
        tokens_mlp_dim=12,
        channels_mlp_dim=24,
        num_layers=1,
        stochastic_depth=0.1,
        **SMALL,
    ),
}
RECIPE = Recipe(
    epochs=None,
    steps=100,
    batch_size=BATCH,
    schedule=Schedule(base_lr=1e-3, warmup_steps=10),
    optimizer=Optimizer(weight_decay=0.03, clip_norm=1.0, accumulation_steps=2, average=0.9999),
    loss=Loss(kind="sigmoid", head_bias=-10.0),
)
# Operations whose shapes are only known when they run, which TPUs cannot do.
DYNAMIC = r"stablehlo\.(?:real_)?dynamic_(?!slice|update_slice)\w+|tensor<[^>]*\?"


def on_jax(family: str) -> dict:
    """The step of a family, with everything that a recipe can switch on."""
    import jax

    model = lowering.abstract_model(SPECS[family], RECIPE, 100, "mixed_bfloat16")
    lowered = lowering.lower_step(model, lowering.topology_devices(WHERE), BATCH)
    program = lowered.compile()
    text = program.as_text()
    return {
        "dynamic": re.findall(DYNAMIC, lowered.as_text()),
        "allocated": sum(x.size for x in jax.live_arrays()),
        "variables": sum(len(part) for part in _parts(model)),
        "arguments": len(jax.tree.leaves(lowered.args_info)),
        "all_reduces": len(re.findall(r"= [^=]* all-reduce(?:-start)?\(", text)),
        "per_core": re.findall(r"f32\[(\d+),32,32,3\]", text)[:1],
        "bfloat16_products": len(re.findall(r"bf16\[[^\]]*\][^=\n]* convolution\(", text)),
        "partitions": int(re.search(r"num_partitions=(\d+)", text)[1]),
        "figures": vars(figures_of(program, WHERE)),
    }


def _parts(model):
    return (
        model.trainable_variables,
        model.non_trainable_variables,
        model.optimizer.variables,
        model.metrics_variables,
    )


def on_tensorflow(family: str) -> dict:
    """The step that runs on each core under TPUStrategy, which has no compiler without TPUs: XLA's
    portable form of it, through JAX's."""
    import jax
    import tensorflow as tf
    from jax._src import compiler
    from jax._src.interpreters import mlir
    from jax._src.lib import xla_client
    from jax._src.lib.mlir import ir

    model = VisionModel(SPECS[family], dtype="mixed_bfloat16")
    compile_for(model, RECIPE, 100)
    model.optimizer.build(model.trainable_variables)
    step = tf.function(lambda x, y: model.train_step((x, y)), jit_compile=True)
    images = tf.zeros((BATCH // WHERE.devices, *model.spec.image_size, 3))
    targets = tf.zeros((len(images), model.spec.num_classes))
    text = step.experimental_get_compiler_ir(images, targets)(stage="stablehlo")
    foreign = re.findall(r"= \"?(?!stablehlo\.|func\.)(\w+\.\w+)\"?[ (]", text)
    # Copies that TensorFlow asks for and that change nothing.
    text = re.sub(r"= mhlo\.copy (?=%)", "= stablehlo.optimization_barrier ", text)
    device = lowering.topology_devices(WHERE)[0]
    with mlir.make_ir_context():
        module = ir.Module.parse(text)
    options = compiler.get_compile_options(1, 1, device_assignment=np.array([[device.id]]))
    devices = xla_client.DeviceList((device,))
    program = compiler.backend_compile_and_load(device.client, module, devices, options, [])
    memory = program.get_compiled_memory_stats()
    return {
        "jax": jax.__version__,
        "dynamic": re.findall(DYNAMIC, text),
        "foreign": sorted(set(foreign)),
        "arguments_in_bytes": memory.argument_size_in_bytes,
        "variables_in_bytes": sum(_bytes(v) for v in model.variables + model.optimizer.variables),
        "code": memory.generated_code_size_in_bytes,
        "bfloat16_products": len(re.findall(r"(?:dot|dot_general|convolution)\b.*bf16", text)),
    }


def _bytes(variable) -> int:
    return int(np.prod(variable.shape)) * np.dtype(variable.dtype).itemsize


def refused(_: str) -> dict:
    """What the compiler says of eigenvalues, which it has no program for on a TPU."""
    import jax

    matrix = jax.ShapeDtypeStruct(
        (4, 4),
        "float32",
        sharding=jax.sharding.SingleDeviceSharding(lowering.topology_devices(WHERE)[0]),
    )
    try:
        jax.jit(jax.numpy.linalg.eigvals).lower(matrix).compile()
    except NotImplementedError as error:
        return {"error": str(error)}
    return {}


MODES = {"jax": on_jax, "tensorflow": on_tensorflow, "refused": refused}


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        mode, _, family = argument.partition(":")
        print(json.dumps(MODES[mode](family)), flush=True)
