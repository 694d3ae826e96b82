"""Counts the products in the graph that JAX traces of a network, and what its gradient keeps.

    KERAS_BACKEND=jax python tests/traced_cost.py < request.json

The request is a list of [name, spec as a dictionary, whether to trace the gradient]; each answer is a
line of JSON. No weight is allocated.
"""

import json
import math
import sys

import jax
import keras
from jax.extend.core import Literal
from keras.src.backend.common import global_state

from keras_vit.model import VisionModel
from keras_vit.spec import spec_from_dict


def main() -> None:
    for name, values, gradient in json.load(sys.stdin):
        spec = spec_from_dict(values)
        model = without_weights(spec)
        answer = {"name": name, "macs": macs(jaxpr(model, 1))}
        if gradient:
            answer["kept"] = residuals(model, 2) - residuals(model, 1)
        print(json.dumps(answer), flush=True)
        keras.utils.clear_session()


def without_weights(spec) -> VisionModel:
    with keras.StatelessScope(initialize_variables=False):
        model = VisionModel(spec)
    global_state.set_global_attribute("uninitialized_variables", [])
    return model


def function(model: VisionModel):
    """The network as a function of its learned weights and images, and those as shapes."""
    rest = model.non_trainable_variables

    def call(weights, images):
        mapping = [*zip(model.trainable_variables, weights, strict=True)]
        mapping += [(v, jax.numpy.zeros(v.shape, v.dtype)) for v in rest]
        with keras.StatelessScope(state_mapping=mapping):
            return model(images, training=True)

    return call, [jax.ShapeDtypeStruct(v.shape, v.dtype) for v in model.trainable_variables]


def images(model: VisionModel, batch: int):
    shape = (batch, *model.spec.image_size, model.spec.in_channels)
    return jax.ShapeDtypeStruct(shape, "float32")


def jaxpr(model: VisionModel, batch: int):
    call, weights = function(model)
    return jax.make_jaxpr(call)(weights, images(model, batch)).jaxpr


def residuals(model: VisionModel, batch: int) -> int:
    """Bytes that JAX keeps for the backward pass, weights among them."""
    call, weights = function(model)

    def kept(weights, images):
        return jax.vjp(call, weights, images)[1]

    leaves = jax.tree.leaves(jax.eval_shape(kept, weights, images(model, batch)))
    return sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in leaves)


def macs(graph, padded: dict | None = None) -> int:
    """Products of a graph, those with padding left out.

    Args:
        graph: a jaxpr.
        padded: variable -> what was padded to it, ((low, high) per axis); filled on the way.
    """
    padded, total = {} if padded is None else padded, 0
    for equation in graph.eqns:
        name, parameters = equation.primitive.name, equation.params
        inner = next(
            (parameters[k] for k in ("jaxpr", "call_jaxpr", "fun_jaxpr") if k in parameters), None
        )
        if name == "dot_general":
            total += products_of_dot(equation)
        elif name == "conv_general_dilated":
            total += products_of_convolution(equation, padded)
        elif name == "pad":
            padded[equation.outvars[0]] = [
                (low, high) for low, high, _ in parameters["padding_config"]
            ]
        elif inner is not None:
            inner = getattr(inner, "jaxpr", inner)
            known = zip(inner.invars, equation.invars, strict=True)
            inside = {i: padded[o] for i, o in known if not isinstance(o, Literal) and o in padded}
            total += macs(inner, inside)
            for outer, o in zip(equation.outvars, inner.outvars, strict=True):
                if not isinstance(o, Literal) and o in inside:
                    padded[outer] = inside[o]
    return total


def products_of_dot(equation) -> int:
    (contracted, _), _ = equation.params["dimension_numbers"]
    shape = equation.invars[0].aval.shape
    return math.prod(equation.outvars[0].aval.shape) * math.prod(shape[i] for i in contracted)


def products_of_convolution(equation, padded) -> int:
    parameters, (image, kernel) = equation.params, equation.invars
    numbers = parameters["dimension_numbers"]
    assert parameters["feature_group_count"] == parameters["batch_group_count"] == 1
    already = padded.get(image, [(0, 0)] * 4)
    total = 1
    for axis in range(2):
        place, size = numbers.lhs_spec[2 + axis], kernel.aval.shape[numbers.rhs_spec[2 + axis]]
        before, after = already[place]
        length = image.aval.shape[place] - before - after
        before += parameters["padding"][axis][0]
        stride = parameters["window_strides"][axis]
        outputs = equation.outvars[0].aval.shape[numbers.out_spec[2 + axis]]
        total *= sum(
            0 <= o * stride - before + k < length for o in range(outputs) for k in range(size)
        )
    channels = (kernel.aval.shape[numbers.rhs_spec[i]] for i in (0, 1))
    return int(total) * math.prod(channels) * image.aval.shape[numbers.lhs_spec[0]]


if __name__ == "__main__":
    main()
