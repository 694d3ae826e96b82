"""Under which names results meet: `tfds:cifar10:test` and the paper's CIFAR-10 are one data set."""

import re

from keras_vit.results.store import Result
from keras_vit.transfer.vtab.tasks import GROUPS, TASKS
from keras_vit.zoo.names import resolve

DATA_SETS = {
    "ImageNet": ("imagenet2012", "imagenet", "imagenet1k", "ilsvrc2012"),
    "CIFAR-10": ("cifar10",),
    "CIFAR-100": ("cifar100",),
    "Pets": ("oxford_iiit_pet", "oxford_iiit_pets", "pets", "pet"),
    "Flowers-102": ("oxford_flowers102", "flowers102", "flowers"),
    "Fashion-MNIST": ("fashion_mnist",),
    "ObjectNet": ("objectnet",),
    "VTAB": ("vtab", "vtab1k", "mean"),
}
VTAB_GROUPS = {
    f"VTAB {group}": tuple(task.title for task in TASKS.values() if task.group == group)
    for group in GROUPS
}
_METRICS = {"real": "ReaL", "exaflops": "exaFLOPs", "tpuv3_core_days": "TPUv3-core-days"}
_PRETRAINING = {"in1k": "ImageNet", "in21k": "ImageNet-21k"}


def _fold(name: str) -> str:
    return "".join(c for c in name.lower() if c.isalnum())


_BY_DATA = {_fold(alias): name for name, aliases in DATA_SETS.items() for alias in (name, *aliases)}
_BY_TASK = {_fold(alias): t.title for t in TASKS.values() for alias in (t.name, t.title)}
# Sets with one task can go by the name of the set.
_BY_TASK |= {
    _fold(data.partition("/")[0]): titles[0]
    for data in (t.data for t in TASKS.values())
    if len(titles := [t.title for t in TASKS.values() if t.data == data]) == 1
}


def data_name(name: str, study: str = "") -> str:
    """The paper's name of a data set, from any; a name that is not known stays as it is.

    Args:
        name: `tfds:oxford_iiit_pet:test`, `fashion_mnist:test`, `CIFAR-10`.
        study: with `vtab`, the name may be that of one of its tasks.
    """
    if name.startswith("folder:"):
        return name
    plain = name.removeprefix("VTAB ").removeprefix("tfds:")
    base = _fold(plain.partition(":")[0].partition("/")[0])
    if (study == "vtab" or name.startswith("VTAB ")) and base in _BY_TASK:
        return f"VTAB {_BY_TASK[base]}"
    return _BY_DATA.get(base, name)


def column_name(result: Result) -> str:
    """The column of a table where a result belongs: its data set, or what was measured."""
    data = data_name(result.data, result.study)
    if result.metric in _METRICS:
        return _METRICS[result.metric]
    if result.metric == "accuracy":
        return data
    return f"{data} {'top-5' if result.metric == 'top5' else result.metric}"


def model_name(name: str) -> str:
    """The variant of a model, from any of its names or the paper's; else the name as it is."""
    plain = re.sub(r"^BiT-[SML] ", "BiT-", re.sub(r"^R(\d+)x1\+", r"R\1+", name))
    for spelling in (plain, f"BiT-{plain}"):
        try:
            return resolve(spelling)[0]
        except ValueError:
            pass
    return name


def pretraining_name(result: Result) -> str | None:
    """What a model was pre-trained on: as its settings say, or its tag (`SERIES_DATA[_ft_DATA]`)."""
    if "pretraining" in result.settings:
        return str(result.settings["pretraining"])
    try:
        tag = resolve(result.model)[1] or ""
    except ValueError:
        return None
    return next((_PRETRAINING[part] for part in tag.split("_") if part in _PRETRAINING), None)
