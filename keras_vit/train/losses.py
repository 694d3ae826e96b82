"""The cross-entropies of the papers, on logits: one number per example, the mean over the batch."""

import keras
from keras import ops

from keras_vit.layers.common import PACKAGE, at_least_float32
from keras_vit.train.recipe import Loss

HEADS = ("head", "head_dist")  # the second is that of a distilled DeiT


def make_loss(loss: Loss) -> keras.losses.Loss:
    """The Keras loss of a recipe; it takes logits (B, classes) and targets of the same shape."""
    kind = {"softmax": SoftmaxCrossEntropy, "sigmoid": SigmoidCrossEntropy}[loss.kind]
    return kind(loss.label_smoothing)


def softmax_cross_entropy(targets, logits, label_smoothing: float = 0.0):
    """(B, classes) twice -> (B,): minus the log-probabilities, weighted by the targets.

    Args:
        targets: one-hot or mixed; a row need not sum to 1.
        logits: of any floating dtype; half precision is computed in float32.
        label_smoothing: share of the target that is spread over all classes.

    Source: big_vision utils.py `softmax_xent`; oracle `losses_mixup.npz`.
    """
    logits = at_least_float32(logits)
    targets = ops.cast(targets, logits.dtype)
    if label_smoothing:
        targets = targets * (1.0 - label_smoothing) + label_smoothing / targets.shape[-1]
    return -ops.sum(targets * ops.log_softmax(logits, axis=-1), axis=-1)


def sigmoid_cross_entropy(targets, logits, label_smoothing: float = 0.0):
    """(B, classes) twice -> (B,): one binary cross-entropy per class, summed over the classes.

    Args:
        targets: 0 and 1, any number of ones per row, or mixed.
        logits: of any floating dtype; half precision is computed in float32.
        label_smoothing: targets of 0 and 1 become `label_smoothing` and `1 - label_smoothing`.

    Source: big_vision utils.py `sigmoid_xent`; oracle `losses_mixup.npz`.
    """
    logits = at_least_float32(logits)
    targets = ops.cast(targets, logits.dtype)
    if label_smoothing:
        targets = label_smoothing + targets * (1.0 - 2.0 * label_smoothing)
    # softplus(-x) is -log p and softplus(x) is -log(1 - p): exact in both tails, and smooth at 0,
    # where the logits of a new head are.
    return ops.sum(targets * ops.softplus(-logits) + (1.0 - targets) * ops.softplus(logits), -1)


def init_head_bias(model: keras.Model, value: float) -> None:
    """Sets the bias of every head of a `VisionModel` to one value.

    A sigmoid over thousands of classes starts with each of them unlikely: -10 for ImageNet-21k.

    Raises:
        ValueError: the model has no head.
    """
    heads = [layer for layer in model.layers if layer.name in HEADS]
    if not heads:
        raise ValueError(
            f"{model.name} has no head whose bias could start at {value}: load it with num_classes."
        )
    for head in heads:
        head.bias.assign(ops.full(head.bias.shape, value))


@keras.saving.register_keras_serializable(package=PACKAGE)
class SoftmaxCrossEntropy(keras.losses.Loss):
    """`softmax_cross_entropy` as a Keras loss."""

    def __init__(
        self,
        label_smoothing: float = 0.0,
        reduction: str | None = "sum_over_batch_size",
        name: str = "softmax_cross_entropy",
        dtype=None,
    ):
        super().__init__(name=name, reduction=reduction, dtype=dtype)
        self.label_smoothing = label_smoothing

    def call(self, y_true, y_pred):
        _check_shapes(y_true, y_pred)
        return softmax_cross_entropy(y_true, y_pred, self.label_smoothing)

    def get_config(self):
        return {**super().get_config(), "label_smoothing": self.label_smoothing}


@keras.saving.register_keras_serializable(package=PACKAGE)
class SigmoidCrossEntropy(keras.losses.Loss):
    """`sigmoid_cross_entropy` as a Keras loss, for one label per image and for several."""

    def __init__(
        self,
        label_smoothing: float = 0.0,
        reduction: str | None = "sum_over_batch_size",
        name: str = "sigmoid_cross_entropy",
        dtype=None,
    ):
        super().__init__(name=name, reduction=reduction, dtype=dtype)
        self.label_smoothing = label_smoothing

    def call(self, y_true, y_pred):
        _check_shapes(y_true, y_pred)
        return sigmoid_cross_entropy(y_true, y_pred, self.label_smoothing)

    def get_config(self):
        return {**super().get_config(), "label_smoothing": self.label_smoothing}


def _check_shapes(targets, logits) -> None:
    # Class numbers (B,) would broadcast against (B, classes) without a word.
    if tuple(targets.shape[1:]) != tuple(logits.shape[1:]):
        raise ValueError(
            f"targets must have the shape of the logits, {tuple(logits.shape)}, got "
            f"{tuple(targets.shape)}: turn class numbers into one-hot rows."
        )
