"""Progress on stderr: a bar in a terminal, a line per epoch everywhere."""

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

import keras
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from keras_vit.cli.common import log


def make_bar() -> Progress:
    """A progress bar on stderr, drawn only in a terminal and gone afterwards."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=Console(file=sys.stderr),
        transient=True,
        disable=not sys.stderr.isatty(),
    )


@contextlib.contextmanager
def counter(what: str) -> Iterator[Callable[[int, int], None]]:
    """A bar as a callback (done, total)."""
    with make_bar() as bar:
        task = bar.add_task(what, total=None)

        def update(done: int, total: int) -> None:
            bar.update(task, completed=done, total=total)

        yield update


class EpochLines(keras.callbacks.Callback):
    """A bar of steps while an epoch runs and a line of its numbers when it ends."""

    def __init__(self, epochs: int):
        super().__init__()
        self.epochs = epochs
        self.bar = make_bar()
        self.task: Any = None

    def on_train_begin(self, logs=None):
        self.bar.start()
        self.task = self.bar.add_task("training", total=None)

    def on_epoch_begin(self, epoch, logs=None):
        self.bar.reset(self.task, total=self.params.get("steps"))
        self.bar.update(self.task, description=f"epoch {epoch + 1} of {self.epochs}")

    def on_train_batch_end(self, batch, logs=None):
        self.bar.advance(self.task)

    def on_epoch_end(self, epoch, logs=None):
        numbers = "  ".join(f"{name} {value:.4f}" for name, value in (logs or {}).items())
        line = f"epoch {epoch + 1} of {self.epochs}: {numbers}"
        if self.bar.disable:
            log(line)
        else:
            self.bar.console.print(line, markup=False)

    def stop(self) -> None:
        """Takes the bar away, also after an interruption."""
        self.bar.stop()


@contextlib.contextmanager
def epoch_lines() -> Iterator[Callable[[int], EpochLines]]:
    """From a number of epochs to their bar and lines; that of the run before is taken away."""
    shown: list[EpochLines] = []

    def lines(epochs: int) -> EpochLines:
        for before in shown:
            before.stop()
        shown.append(EpochLines(epochs))
        return shown[-1]

    try:
        yield lines
    finally:
        for each in shown:
            each.stop()
