"""The optimizers of the original code, to the last operation, as Keras optimizers.

Keras's own differ from them in three things that change numbers: its SGD multiplies the rate into the
momentum, so that a schedule acts on past gradients; its Adam adds epsilon before the bias of the second
moment is corrected; neither keeps a first moment in bfloat16.
"""

import re
from typing import Any

import keras
from keras import ops

from keras_vit.layers.common import PACKAGE
from keras_vit.train import recipe as recipes
from keras_vit.train.schedules import from_recipe

BLOCK = re.compile(r"encoderblock_\d+|mixerblock_\d+|block\d+_unit\d+")


class _Decoupled(keras.optimizers.Optimizer):
    """variable -= rate * (direction + weight_decay * variable), kernels alone decaying.

    Args:
        learning_rate: a number or schedule.
        decay: part of a kernel that a step of rate 1 removes.
        moment_dtype: of the first moment; the update uses the new one before it is rounded.
        average: factor of the averaged weights, None for none. They never replace the weights.
        rate_factors: by variable path, factors on the learning rate; 1 where a path is missing.
    """

    moment = "momentum"  # the name of the first moment's variables

    def __init__(
        self,
        learning_rate: Any = 1e-3,
        decay: float = 0.0,
        moment_dtype: str = "float32",
        average: float | None = None,
        rate_factors: dict[str, float] | None = None,
        **options,
    ):
        super().__init__(
            learning_rate=learning_rate,
            use_ema=average is not None,
            ema_momentum=average or 0.99,
            **options,
        )
        self.decay = decay
        self.moment_dtype = moment_dtype
        self.average = average
        self.rate_factors = dict(rate_factors or {})

    def build(self, variables):
        if self.built:
            return
        super().build(variables)
        self.factors = [self.rate_factors.get(v.path, 1.0) for v in variables]
        kernels = [v.path.split("/")[-1] == "kernel" for v in variables]
        self.decays = [self.decay if kernel else 0.0 for kernel in kernels]
        self.moments = self.add_optimizer_variables(variables, self.moment)

    def add_variable(self, shape, initializer="zeros", dtype=None, name=None, **options):
        if name and name.endswith(self.moment):
            dtype = self.moment_dtype
        return super().add_variable(
            shape, initializer=initializer, dtype=dtype, name=name, **options
        )

    def update_step(self, gradient, variable, learning_rate):
        i = self._get_variable_index(variable)
        rate = ops.cast(learning_rate, variable.dtype) * self.factors[i]
        direction = self.direction(i, ops.cast(gradient, variable.dtype))
        if self.decays[i]:
            direction = direction + self.decays[i] * ops.convert_to_tensor(variable)
        self.assign_sub(variable, rate * direction)

    def direction(self, index: int, gradient):
        """Updates the moments of variable `index` and gives what the rate is multiplied with."""
        raise NotImplementedError

    def _next_moment(self, index: int, share: float, keep: float, gradient):
        """share * gradient + keep * moment, stored rounded and given exact."""
        moment = ops.convert_to_tensor(self.moments[index])
        # In the dtype of the moment, the factor as well: optax leaves the types to JAX's promotion.
        kept = ops.cast(keep, self.moment_dtype) * moment
        exact = share * gradient + ops.cast(kept, gradient.dtype)
        self.assign(self.moments[index], ops.cast(exact, self.moment_dtype))
        return exact

    def finalize_variable_values(self, var_list):
        """Leaves the weights as they are; Keras would replace them by the averages after each fit."""

    def get_config(self):
        config = super().get_config()
        for name in ("use_ema", "ema_momentum", "ema_overwrite_frequency"):
            config.pop(name)
        return {
            **config,
            "decay": self.decay,
            "moment_dtype": self.moment_dtype,
            "average": self.average,
            "rate_factors": self.rate_factors,
        }


@keras.saving.register_keras_serializable(package=PACKAGE)
class AdamW(_Decoupled):
    """Adam with decoupled decay of kernels.

    Args:
        beta_1, beta_2: factors of the moments.
        epsilon: added to the root of the corrected second moment.
        options: those of all optimizers here: learning_rate, decay, moment_dtype, average,
            rate_factors.

    Source: optax scale_by_adam with mu_dtype; big_vision optax.py; oracle `optimizers.npz`.
    """

    def __init__(self, beta_1=0.9, beta_2=0.999, epsilon=1e-8, **options):
        super().__init__(**options)
        self.beta_1, self.beta_2, self.epsilon = beta_1, beta_2, epsilon

    def build(self, variables):
        if self.built:
            return
        super().build(variables)
        self.velocities = self.add_optimizer_variables(variables, "velocity")

    def direction(self, index, gradient):
        step = ops.cast(self.iterations + 1, gradient.dtype)
        moment = self._next_moment(index, 1.0 - self.beta_1, self.beta_1, gradient)
        velocity = self.velocities[index]
        self.assign(velocity, (1.0 - self.beta_2) * ops.square(gradient) + self.beta_2 * velocity)
        corrected = ops.convert_to_tensor(velocity) / (1.0 - ops.power(self.beta_2, step))
        return (moment / (1.0 - ops.power(self.beta_1, step))) / (
            ops.sqrt(corrected) + self.epsilon
        )

    def get_config(self):
        own = {"beta_1": self.beta_1, "beta_2": self.beta_2, "epsilon": self.epsilon}
        return {**super().get_config(), **own}


@keras.saving.register_keras_serializable(package=PACKAGE)
class SGD(_Decoupled):
    """SGD with momentum and decoupled decay of kernels: the rate multiplies the momentum.

    Args:
        momentum: factor of past gradients.
        options: those of all optimizers here.

    Source: optax.sgd with accumulator_dtype; vision_transformer train.py; oracle `optimizers.npz`.
    """

    def __init__(self, momentum=0.9, **options):
        super().__init__(**options)
        self.momentum = momentum

    def direction(self, index, gradient):
        return self._next_moment(index, 1.0, self.momentum, gradient)

    def get_config(self):
        return {**super().get_config(), "momentum": self.momentum}


def make_optimizer(
    recipe: recipes.Recipe, model: keras.Model, total_steps: int
) -> keras.optimizers.Optimizer:
    """The recipe's optimizer for a model and a run of `total_steps`.

    Decay touches kernels only, never norms, biases, tokens or tables.
    """
    wanted = recipe.optimizer
    decay = wanted.weight_decay
    if decay and not wanted.decay_times_lr:
        # What is not multiplied by the peak rate is still multiplied by the shape of the schedule.
        decay /= recipe.schedule.base_lr
    options = {
        "learning_rate": from_recipe(recipe.schedule, total_steps),
        "decay": decay,
        "moment_dtype": wanted.moment_dtype,
        "average": wanted.average,
        "rate_factors": layer_rates(model, wanted.layer_decay) if wanted.layer_decay < 1 else None,
    }
    if wanted.name == "sgd":
        return SGD(wanted.momentum, **options)
    return AdamW(wanted.beta_1, wanted.beta_2, wanted.epsilon, **options)


def layer_rates(model: keras.Model, decay: float) -> dict[str, float]:
    """Factors by variable path: 1 after the last block, times `decay` for each block below it.

    Source: arXiv 2106.08254 (BEiT), appendix: layer-wise learning-rate decay.
    """
    layers = [layer for layer in model.layers if layer.weights]
    blocks = [i for i, layer in enumerate(layers) if BLOCK.fullmatch(layer.name)]
    factors = {}
    for i, layer in enumerate(layers):
        # A block lies below itself too: the last has one factor, what precedes the first has all.
        above = sum(b >= i for b in blocks) + (bool(blocks) and i < blocks[0])
        for variable in layer.trainable_variables:
            factors[variable.path] = decay**above
    return factors
