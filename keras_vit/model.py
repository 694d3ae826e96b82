"""`VisionModel`: a Keras functional model that knows its spec, its card and its endpoints."""

import collections.abc
import dataclasses
import re
import sys
import warnings
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_vit.card import Card, Preprocessing
from keras_vit.data.images import ImageLike, read_image
from keras_vit.data.labels import label_names
from keras_vit.layers import Preprocessor, StdConv2D
from keras_vit.layers.common import PACKAGE
from keras_vit.layers.preprocessor import preprocess
from keras_vit.models import BUILDERS
from keras_vit.spec import Spec, changed, spec_from_dict, without_standardization
from keras_vit.stepping import Stepping

Prediction = tuple[str, int, float]

HEADS = r"head(_dist)?/.*"  # the weights that a new head replaces
PRIVATE = "into_"  # of endpoints: what a block sees


class Endpoints(collections.abc.Mapping):
    """Named intermediate tensors; `attention_{i}` (B, heads, N, N) is added to the graph when asked."""

    def __init__(self, model: "VisionModel", tensors: dict[str, keras.KerasTensor]):
        self._model = model
        # What each block sees; not public.
        self._inputs = {n: t for n, t in tensors.items() if n.startswith(PRIVATE)}
        self._tensors = {n: t for n, t in tensors.items() if n not in self._inputs}
        axial = getattr(model.spec, "attention", None) == "axial"
        blocks = [] if axial else [n for n in tensors if n.startswith("encoderblock_")]
        self.attention = {f"attention_{n.rsplit('_', 1)[1]}": n for n in blocks}

    def __getitem__(self, name: str) -> keras.KerasTensor:
        if name in self.attention and name not in self._tensors:
            block_name = self.attention[name]
            block = self._model.get_layer(block_name)
            self._tensors[name] = block(self.block_input(block_name), return_attention=True)
        if name not in self:
            raise KeyError(f"unknown endpoint {name!r}: this model has {list(self)}.")
        return self._tensors[name]

    def block_input(self, block: str) -> keras.KerasTensor:
        """What an encoder block sees: the block before, with positions where they are added there."""
        return self._inputs[PRIVATE + block]

    def __contains__(self, name: object) -> bool:
        return name in self._tensors or name in self.attention

    def __iter__(self):
        return iter([*(n for n in self._tensors if n not in self.attention), *self.attention])

    def __len__(self) -> int:
        return len({*self._tensors, *self.attention})


@keras.saving.register_keras_serializable(package=PACKAGE)
class VisionModel(Stepping):
    """A network of this package: plain Keras in use, rebuilt from its spec when loaded.

    Args:
        spec: the architecture.
        card: what is known of the weights, None for random ones.
        name: Keras name; None derives it from the family.
        dtype: Keras dtype policy of every layer, None for the global one.
        frozen: paths of layers that are not trainable.

    Attributes:
        spec, card: as given. Assign a new card to change labels or preprocessing.
        endpoints: mapping from endpoint names to symbolic tensors.

    The input is float (B, H, W, C) as `preprocess` makes it, the output float32 logits (B, classes).
    """

    def __init__(
        self,
        spec: Spec,
        *,
        card: Card | None = None,
        name: str | None = None,
        dtype: Any = None,
        frozen: collections.abc.Sequence[str] = (),
    ):
        family = spec.to_dict()["family"]
        policy = keras.dtype_policies.get(dtype or keras.config.dtype_policy())
        images, tensors = BUILDERS[family](spec, policy)
        public = {n: t for n, t in tensors.items() if not n.startswith(PRIVATE)}
        super().__init__(inputs=images, outputs=list(public.values())[-1], name=name or family)
        self.spec = spec
        self.card = card
        self._policy = policy
        self._endpoints = Endpoints(self, tensors)
        self._range_checked = self._range_warned = False
        self._jit_compile_wish: bool | str = "auto"
        for layer in self._flatten_layers(include_self=False):
            if layer.path in frozen or layer.name in frozen:
                layer.trainable = False

    @property
    def endpoints(self) -> Endpoints:
        """Named intermediate tensors of this graph."""
        return self._endpoints

    def features(self, endpoint: str = "pre_logits", *, as_map: bool = False) -> keras.Model:
        """The sub-model that ends at an endpoint; it shares this model's weights.

        Args:
            endpoint: one of `endpoints`.
            as_map: give patch tokens as (B, h, w, D), without class token and registers.

        Raises:
            KeyError: no such endpoint.
            ValueError: `as_map` for an endpoint that holds no patch tokens.
        """
        x = self.endpoints[endpoint]
        is_map = len(x.shape) == 4 and endpoint not in self.endpoints.attention
        if as_map and not is_map:
            height, width = self.spec.grid
            prefix = self.spec.num_prefix_tokens
            if len(x.shape) != 3 or x.shape[1] != prefix + height * width:
                raise ValueError(
                    f"endpoint {endpoint!r} of shape {tuple(x.shape)} holds no patch tokens: "
                    f"as_map works for feature maps and for `encoderblock_*` and `encoded`."
                )
            x = ops.reshape(x[:, prefix:], (-1, height, width, x.shape[-1]))
        return keras.Model(self.inputs[0], x, name=f"{self.name}_{endpoint}")

    @property
    def policy(self) -> keras.DTypePolicy:
        """The dtype policy of every layer."""
        return self._policy

    @property
    def preprocessing(self) -> Preprocessing:
        """The card's rule, or the one of the original code."""
        return self.card.preprocessing if self.card else Preprocessing()

    @property
    def preprocessor(self) -> Preprocessor:
        """A layer from uint8 images (B, h, w, C) of any size to this model's input."""
        return Preprocessor(self.spec.image_size, self.preprocessing, name="preprocessor")

    @property
    def class_names(self) -> tuple[str, ...]:
        """Names of the outputs in order: the card's, or `class 0`, `class 1`, ..."""
        names = label_names(self.card.class_names) if self.card else None
        if names is None or len(names) != self.spec.num_classes:
            names = tuple(f"class {i}" for i in range(self.spec.num_classes))
        return names

    @property
    def has_usable_head(self) -> bool:
        """Whether the logits mean anything: there is a head and its kernel is not all zeros."""
        return bool(self.spec.num_classes) and bool(ops.any(self.get_layer("head").kernel != 0))

    def predict_images(
        self, images: ImageLike | list[ImageLike], *, top: int = 5, batch_size: int = 32
    ) -> list[list[Prediction]]:
        """Classifies images and returns, for each, its `top` (label, index, probability).

        Args:
            images: one or several of: path, bytes, PIL image, array (h, w, C) or (h, w) of uint8,
                or an array (B, h, w, C). EXIF rotation is honoured; CMYK, palette, grey, alpha
                and 16-bit images are converted to the model's channels.
            top: predictions per image, best first.
            batch_size: images per forward pass.

        Raises:
            ValueError: the model has no usable head, or something is no image.
        """
        if not self.has_usable_head:
            raise ValueError(
                f"{self.card.name if self.card else self.name} has no usable head (it is missing or "
                f"all zeros): fine-tune it first, or load a checkpoint with classes."
            )
        if len(self.output_shape) != 2:
            pool = getattr(self.spec, "pool", None)
            raise ValueError(
                f"this model gives one prediction per token (pool={pool!r}), not one per image: use "
                f"model.probabilities on preprocessed images."
            )
        if isinstance(images, np.ndarray) and images.ndim == 4:
            images = list(images)
        elif not isinstance(images, (list, tuple)):
            images = [images]
        names, found = self.class_names, []
        for start in range(0, len(images), batch_size):
            # In NumPy: on a compiling backend every new image size would cost a compilation.
            batch = [
                preprocess(
                    read_image(image, self.spec.in_channels),
                    self.spec.image_size,
                    self.preprocessing,
                )
                for image in images[start : start + batch_size]
            ]
            for row in self.probabilities(np.stack(batch)):
                best = np.argsort(-row, kind="stable")[:top]
                found.append([(names[i], int(i), float(row[i])) for i in best])
        return found

    def probabilities(self, x) -> np.ndarray:
        """Preprocessed images (B, H, W, C) -> probabilities (B, classes), whatever the head gives."""
        outputs = self(x, training=False)
        if not self.spec.classifier_activation:
            outputs = ops.softmax(outputs)
        return ops.convert_to_numpy(outputs)

    def compile(
        self,
        *args,
        clip_norm: float | None = None,
        accumulation_steps: int = 1,
        jit_compile: bool | str = "auto",
        **kwargs,
    ):
        """Keras's compile, with the two things about gradients that depend on all devices.

        Args:
            clip_norm: bound on the global norm of the gradient, averaged over parts and replicas.
            accumulation_steps: equal parts in which a batch is computed, one after the other.
            jit_compile: `auto` is what is fastest for the device: on CPU graph mode (bfloat16 is
                about twice as fast as under XLA, float32 equal), on GPU and TPU XLA.

        Raises:
            ValueError: the optimizer clips or accumulates as well.
        """
        self._jit_compile_wish = jit_compile
        self._clip_norm, self._accumulation_steps = clip_norm, accumulation_steps
        if jit_compile == "auto" and keras.backend.backend() == "tensorflow":
            jit_compile = "auto" if keras.distribution.list_devices("gpu") else False
        super().compile(*args, jit_compile=jit_compile, **kwargs)
        # Keras asks the model for its policy, which only the layers have here.
        scales = kwargs.get("auto_scale_loss", True) and self._policy.name == "mixed_float16"
        if scales and not isinstance(self.optimizer, keras.optimizers.LossScaleOptimizer):
            self.optimizer = keras.optimizers.LossScaleOptimizer(self.optimizer)
        self._check_optimizer()

    def get_compile_config(self) -> dict[str, Any]:
        config = super().get_compile_config()
        # The wish, not what it meant here: False from TensorFlow on a CPU must not reach JAX.
        ours = {
            "jit_compile": self._jit_compile_wish,
            "clip_norm": self._clip_norm,
            "accumulation_steps": self._accumulation_steps,
        }
        return {**config, **ours} if config else config

    def compile_from_config(self, config: dict[str, Any]) -> None:
        # Keras leaves a model whose compile() is overridden uncompiled, and drops its optimizer.
        self.compile(**keras.saving.deserialize_keras_object(config))
        self.optimizer.build(self.trainable_variables)

    def fit(self, x=None, *args, **kwargs):
        self._check_range(x, bytes_too=False)
        return super().fit(x, *args, **kwargs)

    def evaluate(self, x=None, *args, **kwargs):
        self._check_range(x, bytes_too=False)
        return super().evaluate(x, *args, **kwargs)

    def predict(self, x, *args, **kwargs):
        self._check_range(x, bytes_too=False)
        return super().predict(x, *args, **kwargs)

    def __call__(self, inputs, *args, **kwargs):
        # Here, because Keras's own check of the shape comes before call(); and there, because
        # JAX's fit and predict go to call() directly.
        self._check_input(inputs)
        return super().__call__(inputs, *args, **kwargs)

    def call(self, inputs, training=None, mask=None):
        self._check_input(inputs)
        return super().call(inputs, training=training, mask=mask)

    def _check_input(self, inputs) -> None:
        """One sentence for a wrong shape; one warning for pixels that were not preprocessed."""
        shape = getattr(inputs, "shape", None)
        expected = (*self.spec.image_size, self.spec.in_channels)
        if shape is not None and (len(shape) != 4 or tuple(shape[1:]) != expected):
            raise ValueError(
                f"this model takes images of shape (batch, {', '.join(map(str, expected))}), got "
                f"{tuple(shape)}: pass them through model.preprocessor, or load the model with "
                f"image_size= of your images."
            )
        if not self._range_checked and _is_concrete(inputs):
            self._range_checked = True  # once: it waits for the device
            self._check_range(inputs)

    def _check_range(self, images, bytes_too: bool = True) -> None:
        """One warning per model when pixels look as if they were never preprocessed."""
        if self._range_warned or not _is_concrete(images) or not len(images):
            return
        if not bytes_too and images.dtype == np.uint8:
            return  # the steps of fit, evaluate and predict normalise them
        largest = float(ops.max(ops.abs(ops.cast(images[:32], "float32"))))
        limit = max(abs(v) for v in self.preprocessing.value_range)
        if largest > 2.0 * limit and largest > 2.0:
            self._range_warned = True
            warnings.warn(
                f"the input reaches {largest:.0f}, but this model expects values in "
                f"{[round(v, 2) for v in self.preprocessing.value_range]}: pass 0..255 images "
                f"through model.preprocessor first.",
                stacklevel=3,
            )

    def get_config(self) -> dict[str, Any]:
        layers = self._flatten_layers(include_self=False)
        return {
            "spec": self.spec.to_dict(),
            "card": self.card.to_dict() if self.card else None,
            "name": self.name,
            "dtype": self._policy.name,
            "frozen": [layer.path for layer in layers if not layer._trainable and layer.weights],
            "trainable": self._trainable,
        }

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects=None) -> "VisionModel":
        card = Card.from_dict(config["card"]) if config.get("card") else None
        model = cls(
            spec_from_dict(config["spec"]),
            card=card,
            name=config["name"],
            dtype=config["dtype"],
            frozen=tuple(config.get("frozen", ())),
        )
        # The model's own flag alone: its setter would overwrite those of the layers.
        model._trainable = config.get("trainable", True)
        return model

    def export(self, filepath, format="tf_saved_model", **options):
        """Exports as `tf_saved_model`, `litert` or `onnx`, checked and reported; other formats are Keras's.

        Args:
            filepath: the folder or file to write.
            format: `tf_saved_model`, `litert`, `onnx`, or another one that `keras.Model.export` knows.
            options: those of the function of this name in `keras_vit.export`.

        Returns the report of our three formats.
        """
        # The exporters stand above the models in the order of imports, so this method, whose name
        # is Keras's, asks the facade for them: it stands above both and is always loaded.
        exporter = sys.modules["keras_vit"].export.FORMATS.get(format)
        if exporter is None:
            return super().export(filepath, format=format, **options)
        return exporter(self, filepath, **options)

    def quantize(self, *args, **kwargs):
        """Refused: the exports quantise, with a report."""
        raise ValueError(
            "Keras's quantize() leaves files that neither reload nor convert: use "
            "keras_vit.export.litert(model, path, quantize='dynamic_int8') instead."
        )

    def replace_head(
        self, num_classes: int, class_names: tuple[str, ...] | None = None
    ) -> "VisionModel":
        """A new model with the same trunk and a zero-initialised head, without `pre_logits`."""
        spec = changed(self.spec, {"num_classes": num_classes, "representation_size": None})
        card = self.card and dataclasses.replace(
            self.card, num_classes=num_classes, class_names=class_names, usable_head=False
        )
        frozen = [p for p in self.get_config()["frozen"] if not re.fullmatch(HEADS, f"{p}/")]
        return self.with_spec(spec, card=card, frozen=frozen, skip=HEADS)

    @property
    def standardizes_kernels(self) -> bool:
        """Whether convolution kernels are standardised in every call (hybrids, BiT)."""
        return self.spec != without_standardization(self.spec)

    def standardized(self) -> "VisionModel":
        """A copy for inference whose convolution kernels are standardised once, not in every call.

        It gives the same numbers: BiT-R50x1 takes 0.6 times the time for one image on a CPU, 0.9
        times for each of eight. Train on with the original.
        """
        kernels = {
            layer.kernel.path: layer.standardized_kernel
            for layer in self._flatten_layers(include_self=False)
            if isinstance(layer, StdConv2D)
        }
        return self.with_spec(without_standardization(self.spec), values=kernels)

    def with_spec(
        self,
        spec: Spec,
        *,
        card: Card | None = None,
        dtype: Any = None,
        frozen: collections.abc.Sequence[str] = (),
        skip: str | None = None,
        values: collections.abc.Mapping[str, collections.abc.Callable] | None = None,
    ) -> "VisionModel":
        """A model of another spec with this one's weights; none is initialised to be overwritten.

        Args:
            spec: a network that has weights of the same paths and shapes, but for those skipped.
            card: None for this model's.
            dtype: Keras dtype policy, None for this model's.
            frozen: paths of layers that are not trainable.
            skip: regular expression on paths of weights that start afresh.
            values: path -> what gives its value in place of this model's weight.

        Raises:
            KeyError: the spec has a weight that this model lacks.
        """
        values = {**{v.path: lambda v=v: v for v in self.weights}, **(values or {})}
        # Keras gives what is made in such a scope its first value when the scope ends.
        with keras.StatelessScope():
            model = VisionModel(
                spec,
                card=card or self.card,
                name=self.name,
                dtype=dtype or self._policy,
                frozen=frozen,
            )
            for variable in model.weights:
                if skip is None or not re.fullmatch(skip, variable.path):
                    # By value: JAX gives an array away for good when `fit` donates it.
                    variable._initializer = lambda shape, dtype=None, give=values[variable.path]: (
                        ops.convert_to_numpy(give()).astype(dtype)
                    )
        return model


def _is_concrete(x: Any) -> bool:
    """Whether `x` holds numbers now, rather than standing for them in a traced graph."""
    if isinstance(x, np.ndarray):
        return True
    if isinstance(x, keras.KerasTensor) or not hasattr(x, "shape"):
        return False
    if keras.backend.backend() == "tensorflow":
        return hasattr(x, "numpy")
    if keras.backend.backend() == "jax":
        return not type(x).__name__.endswith("Tracer") and hasattr(x, "__array__")
    return False
