"""`doctor`: whether this installation can do what it should, and what to do where not."""

import dataclasses
import importlib.util
import os
import platform
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from keras_vit.cli.common import Answer, table
from keras_vit.train import hardware

MINIMUM = {"keras": (3, 13), "tensorflow": (2, 20)}
# Import name -> (what needs it, the extra that brings it).
OPTIONAL = {
    "tensorflow": ("exports, tf.data", "tf"),
    "ai_edge_litert": ("running .tflite files", "export"),
    "ai_edge_quantizer": ("quantised exports", "export"),
    "tensorflow_datasets": ("tfds: data", "tfds"),
    "matplotlib": ("figures", "plots"),
}
SPARE_BYTES = 2**30
# What has to do with devices; versions that work together are named in docs/tpu.md.
WHEELS = (
    *hardware.TENSORFLOW_WHEELS,
    "jax",
    "jaxlib",
    "libtpu",
    "jax-cuda12-plugin",
    "jax-cuda13-plugin",
)


@dataclasses.dataclass(frozen=True)
class Check:
    """One thing looked at.

    Attributes:
        what: the thing.
        state: `ok`, `note` (something optional is missing), or `wrong`.
        found: what was found.
        remedy: what to do, empty when nothing.
    """

    what: str
    state: str
    found: str
    remedy: str = ""


def doctor(
    devices: Annotated[
        str | None,
        typer.Option(
            "--devices", help="Train a network of one block there: auto, cpu, gpu:2, tpu, ..."
        ),
    ] = None,
) -> Answer:
    """Check versions, hardware, backend, folders and settings; exit code 1 when something is wrong.

    With --devices a training of a minute shows whether they work.
    """
    # First, since several workers must be opened before anything is computed.
    checks = list(_trial(devices)) if devices else []
    checks += [*_versions(), *_wheels(), *_backend(), *_accelerators()]
    checks += [*_settings(), *_folders(), *_models()]
    wrong = [check for check in checks if check.state == "wrong"]
    rows = [(c.what, c.state, c.found + (f" -> {c.remedy}" if c.remedy else "")) for c in checks]
    verdict = f"{len(wrong)} things are wrong." if len(wrong) > 1 else "One thing is wrong."
    return Answer(
        {"ok": not wrong, "checks": [dataclasses.asdict(check) for check in checks]},
        (table(("what", "state", "found"), rows, 3), "", verdict if wrong else "All is well."),
        1 if wrong else 0,
    )


def _versions() -> Iterator[Check]:
    yield Check("python", "ok", platform.python_version())
    yield Check(
        "keras-vit-zoo", "ok", hardware.version("keras-vit-zoo") or "not installed as a package"
    )
    for package, minimum in MINIMUM.items():
        found = hardware.version(package)
        if found is None:
            continue  # tensorflow may come as tensorflow-cpu; the backend check tells
        if tuple(int(part) for part in found.split(".")[:2]) < minimum:
            wanted = ".".join(map(str, minimum))
            yield Check(package, "wrong", found, f"pip install '{package}>={wanted}'")
        else:
            yield Check(package, "ok", found)
    for module, (what, extra) in OPTIONAL.items():
        if importlib.util.find_spec(module) is None:
            yield Check(module, "note", f"missing: {what}", f"pip install 'keras-vit-zoo[{extra}]'")


def _trial(devices: str) -> Iterator[Check]:
    try:
        from keras_vit.train.selfcheck import check_devices, said

        yield Check(f"training on {devices}", "ok", said(check_devices(devices)))
    except (ValueError, ImportError) as error:
        text = " ".join(str(error).split())
        yield Check(f"training on {devices}", "wrong", text.rstrip("."), "see docs/tpu.md")


def _wheels() -> Iterator[Check]:
    owners = hardware.tensorflow_wheels()
    if len(owners) > 1:
        yield Check(
            "folder tensorflow",
            "wrong",
            f"installed by {', '.join(owners)}, so files of both are mixed",
            f"pip uninstall {' '.join(owners)}, then install one of them",
        )
    found = {wheel: v for wheel in WHEELS if (v := hardware.version(wheel)) is not None}
    yield Check("wheels", "ok", ", ".join(f"{w} {v}" for w, v in found.items()) or "no backend")
    jax, jaxlib = found.get("jax"), found.get("jaxlib")
    if jax and _release(jax) != _release(jaxlib):
        yield Check(
            "jaxlib",
            "wrong",
            f"{jaxlib or 'missing'}, while jax is {jax}: they belong together",
            f"pip install 'jaxlib=={jax}'",
        )


def _release(version: str | None) -> list[str]:
    return (version or "").split(".")[:2]


def _accelerators() -> Iterator[Check]:
    backend, tpu, gpu = _backend_name(), hardware.tpu_signs(), hardware.gpu_signs()
    if tpu and backend in ("tensorflow", "jax"):
        if _sees("tpu"):
            yield Check("TPU", "ok", f"{backend} uses it ({', '.join(tpu)})")
        elif (problem := hardware.tpu_problem(backend)) is not None:
            yield Check("TPU", "wrong", f"not used by {backend}: {problem[0]}", problem[1])
        elif backend == "jax":  # TensorFlow shows a TPU only to those who open it
            yield Check("TPU", "wrong", "it does not answer", "keras-vit doctor --devices tpu")
    if gpu and backend in ("tensorflow", "jax"):
        if _sees("gpu"):
            yield Check("GPU", "ok", f"{backend} uses it ({', '.join(gpu)})")
        else:
            yield Check("GPU", *_why_no_gpu(backend, gpu))


def _why_no_gpu(backend: str, files: list[str]) -> tuple[str, str, str]:
    """(state, what was found, remedy) where a GPU is there and the backend does not use it."""
    found = f"{', '.join(files)}, not used by {backend}"
    if os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1"):
        return "note", f"{found}: CUDA_VISIBLE_DEVICES hides it", "unset it to use the GPU"
    if backend == "tensorflow":
        if not _built_with_cuda():
            return (
                "wrong",
                f"{found}: its wheel is built without CUDA",
                "pip uninstall tensorflow-cpu, then pip install 'tensorflow[and-cuda]'",
            )
        return "wrong", f"{found}: CUDA is missing", "pip install 'tensorflow[and-cuda]'"
    if hardware.jax_skips("cuda") and hardware.jax_skips("gpu"):
        return "wrong", f"{found}: JAX_PLATFORMS leaves it out", "unset JAX_PLATFORMS"
    if not any(hardware.version(f"jax-cuda{n}-plugin") for n in (12, 13)):
        return "wrong", f"{found}: its wheel is built without CUDA", "pip install 'jax[cuda13]'"
    return "wrong", f"{found}: its plugin does not start", "compare nvidia-smi with jax's CUDA"


def _backend_name() -> str:
    """The backend that Keras runs on, empty when it cannot start (which `_backend` tells)."""
    try:
        import keras

        return keras.backend.backend()
    except Exception:
        return ""


def _sees(kind: str) -> bool:
    """Whether the backend lists devices of a kind."""
    import keras

    try:
        return bool(keras.distribution.list_devices(kind))
    except RuntimeError:  # JAX knows no such platform
        return False


def _built_with_cuda() -> bool:
    import tensorflow as tf

    return tf.test.is_built_with_cuda()


def _backend() -> Iterator[Check]:
    try:
        import keras

        name = keras.backend.backend()
        total = float(keras.ops.sum(keras.ops.ones((8, 8)) @ keras.ops.ones((8, 8))))
        if total != 512.0:
            yield Check("backend", "wrong", f"{name} computed {total} for 512", "reinstall it")
            return
    except Exception as error:
        text = " ".join(str(error).split())
        yield Check(
            "backend",
            "wrong",
            f"Keras cannot start: {text}",
            "pip install 'keras-vit-zoo[tf]', or set KERAS_BACKEND to what is installed",
        )
        return
    yield Check("backend", "ok", name)
    try:
        devices = [str(device) for device in keras.distribution.list_devices()]
    except Exception as error:
        yield Check("devices", "wrong", " ".join(str(error).split()), "see the message")
        return
    yield Check("devices", "ok", ", ".join(devices) or f"{os.cpu_count()} CPU cores")


def _settings() -> Iterator[Check]:
    if os.environ.get("TF_USE_LEGACY_KERAS") not in (None, "", "0", "False"):
        yield Check(
            "TF_USE_LEGACY_KERAS",
            "wrong",
            "set: tf.keras is then Keras 2, whose objects do not mix with this package's",
            "unset it",
        )
    keras_home = Path(os.environ.get("KERAS_HOME", Path.home() / ".keras"))
    if "KERAS_BACKEND" not in os.environ and (keras_home / "keras.json").is_file():
        yield Check("keras.json", "note", f"{keras_home / 'keras.json'} chooses the backend")


def _folders() -> Iterator[Check]:
    from keras_vit.zoo.cards import all_cards
    from keras_vit.zoo.fetch import MIRROR_VARIABLE, cache_folder

    mirror = os.environ.get(MIRROR_VARIABLE, "")
    if mirror.startswith(("https://", "http://")):
        yield Check(MIRROR_VARIABLE, "ok", f"{mirror} (a server, not asked)")
    elif mirror and not Path(mirror).expanduser().is_dir():
        yield Check(MIRROR_VARIABLE, "wrong", f"{mirror} is no directory", "name one, or unset it")
    elif mirror:
        yield Check(MIRROR_VARIABLE, "ok", mirror)
    yield _cache(cache_folder())
    try:
        yield Check("cards", "ok", f"{len(all_cards())} checkpoints known")
    except ValueError as error:
        yield Check("cards", "wrong", str(error), "correct or unset KERAS_VIT_CARDS")


def _cache(folder: Path) -> Check:
    existing = next(p for p in (folder, *folder.absolute().parents) if p.exists())
    try:
        with tempfile.TemporaryFile(dir=existing):
            pass
    except OSError as error:
        return Check(
            "cache",
            "wrong",
            f"{folder} cannot be written ({error.strerror or error})",
            "set KERAS_VIT_CACHE to a folder that can",
        )
    space = os.statvfs(existing)
    free = space.f_bavail * space.f_frsize
    text = f"{folder}, {free / 1e9:.1f} GB free"
    if free < SPARE_BYTES:
        return Check("cache", "note", text, "a large checkpoint takes 1.3 GB")
    return Check("cache", "ok", text)


def _models() -> Iterator[Check]:
    from keras_vit.zoo.cards import all_cards
    from keras_vit.zoo.fetch import find

    try:
        cards = [card for card in all_cards().values() if card.variant == "ViT-Mini/4"]
    except ValueError:
        return  # told above
    for card in cards:
        try:
            yield Check(card.name, "ok", str(find(card, offline=True)))
        except (OSError, ValueError) as error:
            text = " ".join(str(error).split())
            yield Check(card.name, "wrong", text, "reinstall keras-vit-zoo")
