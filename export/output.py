"""Where an export goes: refused early when it cannot, put in place in one step when it is good."""

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from keras_vit.export.report import Report, report_path


def check_output(path: str | Path, *, force: bool, folder: bool, suffix: str = ".tflite") -> Path:
    """Refuses an output that exists or cannot be, before any work is done.

    Args:
        path: the file or folder to write.
        force: whether an earlier export may be replaced.
        folder: whether a SavedModel folder is written, else a file.
        suffix: of a file.

    Raises:
        ValueError: a file has another suffix.
        FileExistsError: something is there, and `force` is not given or it is no earlier export.
    """
    path = Path(path)
    if not folder and path.suffix != suffix:
        raise ValueError(f"the output must end in {suffix}, got {str(path)!r}.")
    taken = next((p for p in (path, report_path(path)) if os.path.lexists(p)), None)
    if taken and not force:
        raise FileExistsError(f"{taken} exists already: choose another name, or pass force=True.")
    replaceable = (path / "saved_model.pb").is_file() if folder else path.is_file()
    if os.path.lexists(path) and not replaceable:
        # Even with force: a folder of photos must not vanish because its name was mistyped.
        kind = "SavedModel folder" if folder else "file"
        raise FileExistsError(
            f"{path} exists and is no {kind} that could be replaced: choose another name."
        )
    return path


@contextlib.contextmanager
def workplace(path: Path) -> Iterator[Path]:
    """A temporary folder beside `path`, gone afterwards; folders made for it go when it fails.

    Raises:
        OSError: the folder cannot be written.
    """
    made = [p for p in path.absolute().parents if not p.exists()]
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
    except OSError as error:
        _remove_empty(made)
        raise OSError(
            f"cannot write to {path.parent}: {error.strerror or error}; choose a folder that can be "
            f"written."
        ) from None
    try:
        yield folder
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        _remove_empty(made)
        raise
    shutil.rmtree(folder, ignore_errors=True)


def put_in_place(made: Path, path: Path, report: Report) -> None:
    """Moves a finished artifact and its report from the workplace to where they belong."""
    if made.is_dir():
        (made / "report.json").write_text(report.to_json(), "utf-8")
        if path.exists():
            # A folder cannot be replaced in one step: the old one goes into the workplace first.
            os.replace(path, made.parent / "replaced")
        os.replace(made, path)
        return
    text = made.with_name("report.json")
    text.write_text(report.to_json(), "utf-8")
    os.replace(made, path)
    os.replace(text, report_path(path))


def _remove_empty(folders: list[Path]) -> None:
    for folder in folders:  # innermost first
        with contextlib.suppress(OSError):
            folder.rmdir()
