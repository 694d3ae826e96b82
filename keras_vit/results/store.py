"""One tidy file of measurements: a row is one number, with all that is needed to read it alone.

The rows are JSON lines, so that they can be read while they grow; the same rows lie beside them as CSV.
"""

import contextlib
import csv
import dataclasses
import datetime
import fcntl
import io
import json
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from keras_vit.train import rundir

UNITS = ("share", "number")  # shares are printed in percent


@dataclasses.dataclass(frozen=True)
class Result:
    """One number.

    Attributes:
        study: what it belongs to: `fewshot`, `transfer`, `vtab`, `reproduce`, ...
        model: name of the checkpoint, or its file.
        data: name of the images that it was measured on.
        metric: `accuracy`, `top5`, `real`, ...
        value: an accuracy in [0, 1] when `unit` is `share`.
        unit: `share` or `number`.
        examples: how many images it is the mean of, None where it is unknown.
        interval: of 95 %, in the same unit.
        std: standard deviation over repetitions.
        settings: what else was chosen, plain values: shots, seed, endpoint, resolution, protocol.
        source: where a published number is printed; None for one that was measured here.
        command: that measured it.
        when: time of the measurement, ISO 8601, UTC.
        versions: of the packages.
    """

    study: str
    model: str
    data: str
    metric: str
    value: float
    unit: str = "share"
    examples: int | None = None
    interval: tuple[float, float] | None = None
    std: float | None = None
    settings: dict[str, Any] = dataclasses.field(default_factory=dict)
    source: str | None = None
    command: str | None = None
    when: str | None = None
    versions: dict[str, str] = dataclasses.field(default_factory=dict)

    def __post_init__(self):
        if self.unit not in UNITS:
            raise ValueError(f"unit must be one of {list(UNITS)}, got {self.unit!r}.")
        if self.unit == "share" and not 0.0 <= self.value <= 1.0:
            raise ValueError(
                f"a share lies between 0 and 1, got {self.value} for {self.metric} of {self.model} on "
                f"{self.data}: divide percentages by 100."
            )
        if self.interval is not None:
            object.__setattr__(self, "interval", tuple(self.interval))

    @property
    def key(self) -> str:
        """What a later measurement of the same thing shares with this one."""
        same = (self.study, self.model, self.data, self.metric, self.settings, self.source)
        return json.dumps(same, sort_keys=True)

    def to_dict(self) -> dict[str, Any]:
        """Plain values only, for JSON."""
        values = dataclasses.asdict(self)
        values["interval"] = list(self.interval) if self.interval else None
        return values


def now() -> str:
    """The time in UTC, for `Result.when`."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def read(path: Path) -> list[Result]:
    """The rows of a store, in the order in which they were measured.

    Raises:
        ValueError: a line is no result.
        FileNotFoundError: there is no such store.
    """
    rows = []
    for number, line in enumerate(Path(path).read_text("utf-8").splitlines(), 1):
        try:
            rows.append(Result(**json.loads(line)))
        except (TypeError, ValueError) as error:
            raise ValueError(
                f"line {number} of {path} is no result ({error}): remove it, or name another file."
            ) from None
    return rows


def check(path: Path) -> None:
    """Refuses a store that cannot be written or is none, before any work is done.

    Raises:
        ValueError: another suffix, or a line that is no result.
        OSError: it cannot be written.
    """
    path = Path(path)
    if path.suffix != ".jsonl":
        raise ValueError(f"a store of results is a .jsonl file, got {path}.")
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=path.parent):
        pass
    if path.exists():
        read(path)


def add(path: Path, results: Iterable[Result]) -> list[Result]:
    """Adds rows to a store, made when there is none, and writes the CSV beside it.

    A row replaces an earlier one with the same study, model, data, metric, settings and source.
    Several processes may add to one store.

    Args:
        path: of the JSON lines, `results.jsonl`.
        results: rows to add.

    Returns:
        All rows of the store.

    Raises:
        ValueError: the file is no store, or its name has another suffix.
        OSError: it cannot be written.
    """
    path = Path(path)
    if path.suffix != ".jsonl":
        raise ValueError(f"a store of results is a .jsonl file, got {path}.")
    path.parent.mkdir(parents=True, exist_ok=True)
    with _alone(path):
        rows = {row.key: row for row in (read(path) if path.exists() else [])}
        for result in results:
            rows.pop(result.key, None)
            rows[result.key] = result
        found = list(rows.values())
        lines = (json.dumps(row.to_dict(), ensure_ascii=False, allow_nan=False) for row in found)
        rundir.write_text(path, "".join(f"{line}\n" for line in lines))
        rundir.write_text(path.with_suffix(".csv"), to_csv(found))
    return found


def to_csv(results: list[Result]) -> str:
    """One line a result; every setting that occurs has a column `settings.NAME`."""
    fields = [f.name for f in dataclasses.fields(Result) if f.name not in ("settings", "versions")]
    names = sorted({name for row in results for name in row.settings})
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*fields, *(f"settings.{name}" for name in names)])
    for row in results:
        values = [_cell(getattr(row, field)) for field in fields]
        writer.writerow([*values, *(_cell(row.settings.get(name)) for name in names)])
    return text.getvalue()


def _cell(value: Any) -> Any:
    if value is None:
        return ""
    return " ".join(map(str, value)) if isinstance(value, (tuple, list)) else value


@contextlib.contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Keeps other processes from rewriting a store at the same time."""
    with path.with_name(f".{path.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
