"""What both exporters need of a model: how it is stored, its outputs by name, its origin."""

import dataclasses
import hashlib
from typing import Any

import numpy as np

INPUTS = ("float32", "uint8")
OUTPUTS = ("probabilities", "logits", "features")


def check_backend() -> None:
    """Exports need TensorFlow underneath Keras.

    Raises:
        RuntimeError: this process runs another backend, or TensorFlow is not installed.
    """
    import keras

    backend = keras.backend.backend()
    if backend != "tensorflow":
        raise RuntimeError(
            f"exports are made by TensorFlow, and this process runs KERAS_BACKEND={backend}: call "
            f"keras_vit.export.in_tensorflow_process(model, path, ...), which starts a process of "
            f"its own for it, or save the model and run `keras-vit export`."
        )


def check_model(model: Any) -> None:
    """Refuses what is no model of this package, with a TypeError."""
    if not hasattr(model, "spec") or not hasattr(model.spec, "num_params"):
        raise TypeError(
            f"only models of this package can be exported here, got {type(model).__name__}: use "
            f"Keras's own model.export for other models."
        )


def float32_model(model: Any) -> tuple[Any, str | None]:
    """(the model, or a float32 copy of one that computes in another type; a note in that case).

    Half precision on a server's CPU or on a phone is slower and less exact than float32; the
    exporters quantise from float32 instead.
    """
    policy = model.get_config()["dtype"]
    if policy == "float32":
        return model, None
    return (
        model.with_spec(model.spec, dtype="float32"),
        f"exported from a float32 copy of the {policy} model, which is what it is compared with.",
    )


def stored_model(model: Any) -> tuple[Any, str | None]:
    """(the model, or the copy that is written in its place; a note in that case).

    Kernels that the network standardises in every call are stored standardised: a SavedModel would
    do it in every call too, and LiteRT would rely on the converter to do it once.
    """
    if not model.standardizes_kernels:
        return model, None
    return (
        model.standardized(),
        "the stored convolution kernels are standardised ones: train on with the original model.",
    )


def named_outputs(model: Any) -> Any:
    """A Keras model from the same input to a dict with `features` and, where there is a head,
    `logits` and `probabilities`; it shares the weights."""
    import keras

    tensors = {"features": model.endpoints["pre_logits"]}
    if model.spec.num_classes:
        tensors["logits"] = model.endpoints["logits"]
        if model.spec.classifier_activation:
            tensors["probabilities"] = model.endpoints["probabilities"]
        else:
            tensors["probabilities"] = keras.ops.softmax(tensors["logits"])
    return keras.Model(model.inputs[0], tensors, name=f"{model.name}_outputs")


def normalization(model: Any) -> Any:
    """A layer from uint8 images (B, H, W, C) of the model's own size to its input."""
    from keras_vit.layers import Preprocessor

    how, channels = model.preprocessing, model.spec.in_channels
    # A number for each channel: the converter would multiply a single one into the first kernel, and
    # its mean into the bias, where the rounding of an int8 kernel is as large as the mean.
    mean, std = (v * channels if len(v) == 1 else v for v in (how.mean, how.std))
    how = dataclasses.replace(how, resize="none", resize_to=None, mean=mean, std=std)
    return Preprocessor(model.spec.image_size, how, name="normalization")


def rounded_pixels(model: Any, inputs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(uint8 images nearest to preprocessed ones (B, H, W, C), those preprocessed)."""
    mean, std = (
        np.asarray(v, np.float32) for v in (model.preprocessing.mean, model.preprocessing.std)
    )
    pixels = np.clip(np.rint(inputs * std + mean), 0, 255).astype(np.uint8)
    return pixels, (pixels.astype(np.float32) - mean) / std


def source(model: Any) -> dict[str, Any]:
    """What a report says of the model."""
    return {
        "spec": model.spec.to_dict(),
        "card": model.card.to_dict() if model.card else None,
        "dtype": model.get_config()["dtype"],
        "num_params": model.spec.num_params,
        "weights_sha256": weights_sha256(model),
    }


def weights_sha256(model: Any) -> str:
    """A hash of the names and float values of all weights, in order."""
    found = hashlib.sha256()
    for variable in model.weights:
        found.update(variable.path.split("/", 1)[-1].encode())
        found.update(np.ascontiguousarray(np.asarray(variable.numpy(), np.float32)).tobytes())
    return found.hexdigest()


def notes(model: Any, *more: str | None) -> tuple[str, ...]:
    """The sentences given, and one when the head means nothing."""
    found = [note for note in more if note]
    if model.spec.num_classes and not model.has_usable_head:
        found.append(
            "the head is all zeros, so logits and probabilities mean nothing: fine-tune first."
        )
    return tuple(found)
