"""The means that VTAB reports."""

import dataclasses
from collections.abc import Mapping

from keras_vit.transfer.vtab.tasks import GROUPS, TASKS, find


@dataclasses.dataclass(frozen=True)
class Means:
    """Means over tasks, each task once; None while a task of them is missing.

    Attributes:
        groups: by group, in order.
        overall: over all 19 tasks, not over the three groups.
    """

    groups: dict[str, float | None]
    overall: float | None


def means(values: Mapping[str, float]) -> Means:
    """Means per group and over all tasks.

    Args:
        values: accuracy by the name of the task, in any unit.

    Raises:
        ValueError: no such task.

    Source: arXiv 2010.11929, section 4.1 and Table 9; arXiv 1910.04867, section 2.
    """
    for name in values:
        find(name)
    members = {group: [t.name for t in TASKS.values() if t.group == group] for group in GROUPS}
    return Means(
        {group: _mean(values, names) for group, names in members.items()},
        _mean(values, list(TASKS)),
    )


def _mean(values: Mapping[str, float], names: list[str]) -> float | None:
    if not set(names) <= set(values):
        return None
    return sum(float(values[name]) for name in names) / len(names)
