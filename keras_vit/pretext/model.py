"""A Vision Transformer that is trained by predicting patches which it does not see."""

import dataclasses
import math
from typing import Any

import keras
from keras import ops

from keras_vit.analysis.backbone import pixels_per_token
from keras_vit.card import Card
from keras_vit.model import VisionModel
from keras_vit.models.head import head_dtype
from keras_vit.pretext.corrupt import CorruptPatches
from keras_vit.pretext.objective import Pretext
from keras_vit.pretext.targets import (
    MeanOverBatch,
    colour_classes,
    mean_over_corrupted,
    patch_losses,
    targets_of,
)
from keras_vit.spec import Spec, ViTSpec


@dataclasses.dataclass(frozen=True)
class _Halves:
    """The network up to its patch embeddings and from there; plain, so that Keras counts no layer twice."""

    before: keras.Model
    after: keras.Model


class MaskedPatchModel(VisionModel):
    """The encoder of a spec with patch embeddings corrupted, and a linear prediction for each patch.

    It trains by `compile` and `fit` like a classifier; labels are ignored. Embeddings are corrupted
    after the patch projection and before positions are added; the paper does not say where. The
    encoder's weights have the paths of a classifier's, so `with_spec` gives them as a `VisionModel`.

    Args:
        spec: a ViT; its head and `pre_logits` are left out.
        pretext: what is predicted.
        card, name, dtype, frozen: as of `VisionModel`.

    Raises:
        ValueError: the network has no patches, no encoder, or layers that the loss does not reach.

    A call gives predictions (B, N, cells, classes) or (B, N, values), and (B, N) float32, 1 for the
    corrupted patches.
    """

    def __init__(
        self,
        spec: Spec,
        pretext: Pretext,
        *,
        card: Card | None = None,
        name: str | None = None,
        dtype: Any = None,
        frozen: Any = (),
    ):
        encoder = encoder_of(spec)
        super().__init__(encoder, card=card, name=name, dtype=dtype, frozen=frozen)
        self.pretext = pretext
        tokens = self.get_layer("patch_tokens").output
        encoded = self.endpoints["encoded"]
        self._halves = _Halves(keras.Model(self.inputs[0], tokens), keras.Model(tokens, encoded))
        height, width = encoder.grid
        self.patch_size = pixels_per_token(encoder)
        self._shape = pretext.outputs(self.patch_size, encoder.in_channels)
        counts = dataclasses.asdict(pretext.counts(height * width))
        self.corruption = CorruptPatches(**counts, name="corruption", dtype=self.policy)
        self.corruption.build((None, height * width, encoder.hidden_size))
        self.prediction = keras.layers.Dense(
            math.prod(self._shape),
            kernel_initializer="lecun_normal",
            name="prediction",
            dtype=head_dtype(self.policy),
        )
        self.prediction.build((None, height * width, encoder.hidden_size))
        self.accuracy = keras.metrics.Mean("accuracy")
        self._mean_over_batch = MeanOverBatch()

    def call(self, inputs, training=None, mask=None):
        self._check_input(inputs)
        tokens = self._halves.before(inputs, training=training)
        tokens, corrupted = self.corruption(tokens, training=bool(training))
        encoded = self._halves.after(tokens, training=training)
        predicted = self.prediction(encoded[:, self.spec.num_prefix_tokens :])
        return ops.reshape(predicted, (-1, *predicted.shape[1:2], *self._shape)), corrupted

    def compute_loss(
        self, x=None, y=None, y_pred: Any = None, sample_weight=None, training=True
    ) -> Any:
        """Mean over the corrupted patches of an image, then over images, so that neither the share nor
        the grid changes its scale."""
        predictions, corrupted = y_pred
        losses = patch_losses(self.pretext, self.targets(x), predictions)
        losses = mean_over_corrupted(losses, corrupted)
        return self._mean_over_batch(losses, losses, sample_weight)

    def compute_metrics(self, x, y, y_pred, sample_weight=None):
        """`accuracy`: share of the corrupted patches, or of their cells, whose colour class is right."""
        predictions, corrupted = y_pred
        right = ops.mean(ops.cast(self._classes(x, predictions), "float32"), axis=-1)
        self.accuracy.update_state(mean_over_corrupted(right, corrupted), sample_weight)
        return self.get_metrics_result()

    def take_encoder(self, model: VisionModel) -> None:
        """Takes over the weights of a network that has all those of the encoder, by their paths."""
        values = {v.path: v for v in model.weights}
        for layer in self.layers:
            for variable in layer.weights:
                variable.assign(values[variable.path])

    def targets(self, x):
        """What is to be predicted of preprocessed images, see `targets.targets_of`."""
        return targets_of(self.pretext, x, self.spec.grid, self.patch_size, self.preprocessing)

    def _classes(self, x, predictions):
        """(B, N, cells) whether predicted colours are the right classes."""
        if self.pretext.target != "pixels":
            return ops.equal(ops.cast(ops.argmax(predictions, axis=-1), "int32"), self.targets(x))
        how = (self.preprocessing, 1, self.pretext.bits_per_channel)
        whole = colour_classes(x, self.spec.grid, self.patch_size, *how)
        # Each patch is a row of its own in an image of nothing else.
        patches = ops.reshape(predictions, (-1, *self.patch_size, self.spec.in_channels))
        found = colour_classes(patches, (1, 1), self.patch_size, *how)
        return ops.equal(ops.reshape(found, (-1, *whole.shape[1:])), whole)


def encoder_of(spec: Spec) -> Any:
    """The spec without a head, checked.

    Raises:
        ValueError: see `MaskedPatchModel`.
    """
    if not isinstance(spec, ViTSpec) or not spec.num_layers:
        raise ValueError(
            "masked patch prediction needs patches and an encoder, which this network lacks: choose a "
            "Vision Transformer or a hybrid."
        )
    if spec.pool == "map":
        raise ValueError(
            "masked patch prediction trains no pooling layer, but this network has pool='map': use "
            "pool='token' or 'gap' (--set changes.pool=gap)."
        )
    return dataclasses.replace(
        spec, num_classes=0, representation_size=None, classifier_activation=None
    )
