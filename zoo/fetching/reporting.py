"""Progress of downloads on stderr: a bar with size and rate in a terminal, lines elsewhere."""

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Protocol

Callback = Callable[[str, int, int | None], None]  # name, bytes done, bytes in all
Progress = bool | Callback | None


class Reporter(Protocol):
    """What a download tells while it works."""

    def update(self, done: int, total: int | None) -> None:
        """So many bytes are here."""

    def say(self, text: str) -> None:
        """Something that a waiting user must know."""


@contextlib.contextmanager
def reporter(name: str, progress: Progress) -> Iterator[Reporter]:
    """Who to tell about the download of one file.

    Args:
        name: of the file, for people.
        progress: None: a bar when stderr is a terminal, else nothing; True: a bar there, else
            lines; False: nothing; or a function (name, bytes done, bytes in all or None).
    """
    terminal = sys.stderr is not None and sys.stderr.isatty()
    if callable(progress):
        yield _Calls(name, progress)
    elif progress is False or (progress is None and not terminal):
        yield _Silent()
    elif not terminal:
        yield _Lines(name)
    else:
        with _Bar(name) as bar:
            yield bar


class _Silent:
    def update(self, done: int, total: int | None) -> None:
        pass

    def say(self, text: str) -> None:
        pass


class _Calls(_Silent):
    def __init__(self, name: str, callback: Callback):
        self.name, self.callback = name, callback

    def update(self, done: int, total: int | None) -> None:
        self.callback(self.name, done, total)


class _Lines:
    """A line when it begins and when it is done, for logs."""

    def __init__(self, name: str):
        self.name, self.begun = name, False

    def update(self, done: int, total: int | None) -> None:
        if not self.begun:
            self.begun = True
            size = f"{total / 1e6:,.1f} MB" if total is not None else "unknown size"
            self.say(f"fetching, {size}" + (f", {done / 1e6:,.1f} MB are here" if done else ""))

    def say(self, text: str) -> None:
        print(f"{self.name}: {text}", file=sys.stderr, flush=True)


class _Bar:
    """A bar that is gone afterwards."""

    def __init__(self, name: str):
        from rich.console import Console
        from rich.markup import escape
        from rich.progress import (
            BarColumn,
            DownloadColumn,
            Progress,
            TextColumn,
            TimeRemainingColumn,
            TransferSpeedColumn,
        )

        self.bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            DownloadColumn(),
            TransferSpeedColumn(),
            TimeRemainingColumn(),
            console=Console(file=sys.stderr),
            transient=True,
        )
        self.task = self.bar.add_task(escape(name), total=None)

    def __enter__(self) -> "_Bar":
        self.bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.bar.stop()

    def update(self, done: int, total: int | None) -> None:
        self.bar.update(self.task, completed=done, total=total)

    def say(self, text: str) -> None:
        self.bar.console.print(text, markup=False, highlight=False)
