"""Where a run computes: one device, several, or several hosts, behind one argument.

TensorFlow's strategies and Keras's distributions on JAX look alike from here: a `Placement`.
"""

import keras

from keras_vit.train.placement import Placement

KINDS = ("auto", "cpu", "gpu", "tpu", "multi-worker")


def open_devices(devices: str = "auto", *, model_parallel: int = 1) -> Placement:
    """The placement of a run; to be called before anything else is computed.

    Args:
        devices: `auto` takes the several hosts that the environment names, or else a TPU, or else
            GPUs, or else the CPU; `cpu`, `gpu` and `tpu` all devices of the kind, `gpu:2` two of
            them (`cpu:4` makes four out of one, for trials); `multi-worker` what each host has.
        model_parallel: devices over which one copy of the model is spread (JAX only).

    Several hosts are named by KERAS_DISTRIBUTION_JOB_ADDRESSES (host:port,...), _NUM_PROCESSES and
    _PROCESS_ID, by TF_CONFIG (TensorFlow), or by what JAX knows of TPU pods, Slurm and MPI.

    Raises:
        ValueError: no such devices here; the message says what to do.
    """
    kind, _, number = devices.partition(":")
    if kind not in KINDS or (number and (kind not in KINDS[1:4] or not number.isdigit())):
        raise ValueError(
            f"devices must be one of {list(KINDS)}, or such as 'gpu:2', got {devices!r}."
        )
    if number == "0" or model_parallel < 1:
        raise ValueError(
            f"a run needs at least one device, got {devices!r} and model_parallel={model_parallel}."
        )
    count = int(number) if number else None
    backend = keras.backend.backend()
    if backend == "jax":
        from keras_vit.train.distribute_jax import open_jax

        return open_jax(kind, count, model_parallel)
    if backend != "tensorflow":
        raise ValueError(
            f"training runs on TensorFlow and JAX: set KERAS_BACKEND, now {backend!r}."
        )
    if model_parallel > 1:
        raise ValueError(
            "model_parallel needs JAX: set KERAS_BACKEND=jax, or leave it at 1 with TensorFlow."
        )
    from keras_vit.train.distribute_tf import open_tensorflow

    return open_tensorflow(kind, count)
