"""The classification head that every family ends in."""

import keras
from keras import layers

from keras_vit.spec import Spec


def add_head(spec: Spec, x, endpoints: dict[str, keras.KerasTensor], dtype=None) -> None:
    """Adds `logits` (B, num_classes), float32, and `probabilities` to the endpoints, if any.

    Args:
        spec: with `num_classes` 0 there is no head.
        x: (B, F) features, or (B, N, F) for logits per token.
        endpoints: gets the new tensors.
        dtype: Keras dtype policy of the layers before.
    """
    if not spec.num_classes:
        return
    add_outputs(spec, dense_head(spec, "head", dtype)(x), endpoints, dtype)


def dense_head(spec: Spec, name: str, dtype=None) -> layers.Layer:
    """The linear layer to the classes: zero kernel as in the paper; float32, so that logits and
    losses never are half precision."""
    return layers.Dense(
        spec.num_classes,
        kernel_initializer="zeros",
        bias_initializer=keras.initializers.Constant(spec.head_bias_init),
        name=name,
        dtype=head_dtype(dtype),
    )


def add_outputs(spec: Spec, logits, endpoints: dict[str, keras.KerasTensor], dtype=None) -> None:
    """Names the logits, and what the spec's classifier activation makes of them."""
    endpoints["logits"] = logits
    if spec.classifier_activation:
        endpoints["probabilities"] = layers.Activation(
            spec.classifier_activation, name="probabilities", dtype=head_dtype(dtype)
        )(logits)


def head_dtype(dtype) -> str:
    """The variable dtype of a policy: float32 under the mixed ones."""
    policy = keras.dtype_policies.get(dtype or keras.config.dtype_policy())
    return policy.variable_dtype
