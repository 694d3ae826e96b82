"""The folder of a run: refused early when it cannot be, taken up again, finished in one step."""

import contextlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

STATE = ("checkpoints", "recipe.json", "run.json")  # of an unfinished run
RESULTS = (
    *("model.keras", "model.npz", "model.json", "report.md", "report.json"),
    *("metrics.jsonl", "curves.svg", "reconstructions.png"),
)


def check_out(folder: str | os.PathLike, force: bool) -> None:
    """Refuses a folder that cannot be written or holds something, before any work is done.

    Raises:
        FileExistsError: a finished run or anything else is there, and `force` is not given.
        OSError: it cannot be written.
    """
    folder = Path(folder)
    if folder.exists() and not folder.is_dir():
        raise FileExistsError(f"{folder} is a file: give a folder.")
    if (folder / "report.json").exists() and not force:
        raise FileExistsError(
            f"{folder} holds a finished run: give another folder, or --force (force=True) to replace it."
        )
    unfinished = (folder / "run.json").is_file()
    if folder.is_dir() and any(folder.iterdir()) and not unfinished and not force:
        raise FileExistsError(
            f"{folder} is not empty: give another folder, or --force (force=True) to write there."
        )
    made = [p for p in (folder.absolute(), *folder.absolute().parents) if not p.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise OSError(
            f"cannot write to {folder} ({error.strerror or error}): give a folder that can be written."
        ) from None
    finally:
        for parent in made:  # innermost first: nothing is left when the run cannot even start
            if parent.is_dir():
                parent.rmdir()


def start(folder: Path, about: dict[str, Any], force: bool) -> bool:
    """Begins a run, or takes up the same one that was interrupted there.

    Args:
        folder: of the run.
        about: plain values that must be the same for a run to go on.
        force: forget what an earlier run left.

    Returns:
        Whether it goes on with an earlier one.

    Raises:
        ValueError: another run is unfinished there.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if force:
        _remove(folder, (*RESULTS, *STATE))
    if not (folder / "run.json").is_file():
        write_json(folder / "run.json", about)
        return False
    before = json.loads((folder / "run.json").read_text("utf-8"))
    about = json.loads(json.dumps(about))
    if differ := [key for key in about if before.get(key) != about[key]]:
        raise ValueError(
            f"{folder} holds an unfinished run with another {', '.join(differ)}: give the same "
            f"arguments to go on with it, another folder, or --force (force=True) to replace it."
        )
    return True


def finish(folder: Path) -> None:
    """Removes what only an unfinished run needs."""
    _remove(folder, STATE)


def _remove(folder: Path, names: tuple[str, ...]) -> None:
    for name in names:
        if (folder / name).is_dir():
            shutil.rmtree(folder / name)
        else:
            (folder / name).unlink(missing_ok=True)


def write_json(path: Path, values: dict[str, Any]) -> None:
    """Writes plain values, aside and renamed.

    Raises:
        OSError: it cannot be written.
    """
    write_text(path, json.dumps(values, indent=1, ensure_ascii=False, allow_nan=False) + "\n")


def write_text(path: Path, text: str) -> None:
    """Writes a text, aside and renamed.

    Raises:
        OSError: it cannot be written.
    """
    write_bytes(path, text.encode("utf-8"))


def write_bytes(path: Path, data: bytes) -> None:
    """Writes bytes, aside and renamed.

    Raises:
        OSError: it cannot be written.
    """
    part = path.with_name(f".{path.name}.part")
    with _told(path):
        part.write_bytes(data)
        os.replace(part, path)


def append_text(path: Path, text: str) -> None:
    """Adds a text to a file.

    Raises:
        OSError: it cannot be written.
    """
    with _told(path), path.open("a", encoding="utf-8") as file:
        file.write(text)


@contextlib.contextmanager
def _told(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise OSError(
            f"cannot write {path} ({error.strerror or error}): what was written before is untouched; "
            f"make room or give another folder, and run again."
        ) from None
