"""`doctor`: whether this installation can do what it should, and what to do where not."""

import dataclasses
import importlib.metadata
import importlib.util
import os
import platform
import tempfile
from collections.abc import Iterator
from pathlib import Path

from keras_vit.cli.common import Answer, table

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


def doctor() -> Answer:
    """Check versions, backend, devices, folders and settings; exit code 1 when something is wrong."""
    checks = [*_versions(), *_owners(), *_backend(), *_settings(), *_folders(), *_models()]
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
    yield Check("keras-vit-zoo", "ok", _version("keras-vit-zoo") or "not installed as a package")
    for package, minimum in MINIMUM.items():
        found = _version(package)
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


def _owners() -> Iterator[Check]:
    owners = tensorflow_owners()
    if len(owners) > 1:
        yield Check(
            "folder tensorflow",
            "wrong",
            f"installed by {', '.join(owners)}, so files of both are mixed",
            f"pip uninstall {' '.join(owners)}, then install one of them",
        )


def tensorflow_owners() -> list[str]:
    """Distributions that own the import package `tensorflow`; more than one breaks it."""
    names = importlib.metadata.packages_distributions().get("tensorflow", [])
    return sorted(set(names))


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


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
