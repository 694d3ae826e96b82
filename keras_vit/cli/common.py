"""What the commands share: answers for people and machines, options, checks before work starts."""

import contextlib
import dataclasses
import functools
import inspect
import json
import os
import shlex
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

PIPE_WIDTH = 120  # columns when the output is no terminal

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, and nothing else, on stdout.")]
Force = Annotated[bool, typer.Option("--force", help="Replace what an earlier call wrote there.")]
Data = Annotated[
    str,
    typer.Option(
        "--data",
        help="folder:PATH (a folder per class), fashion_mnist:SPLIT, tfds:NAME:SPLIT, or an .npz "
        "with images and labels.",
        show_default=False,
    ),
]
Set = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        help="Another value for a field of the recipe: schedule.warmup_steps=500. May be repeated.",
        metavar="FIELD=VALUE",
        show_default=False,
    ),
]
DataDir = Annotated[
    str | None, typer.Option("--data-dir", help="Where tensorflow-datasets keeps its files.")
]
Devices = Annotated[
    str,
    typer.Option(
        "--devices", help="auto, cpu, gpu, tpu, multi-worker, or a number of them: gpu:2."
    ),
]
SmokeRun = Annotated[
    bool, typer.Option("--smoke", help="A few steps of a tiny network on made-up images.")
]
Classes = Annotated[
    str | None,
    typer.Option("--classes", help="Only these classes of the data, as numbers or names: 5,8."),
]


class Interrupted(Exception):
    """Ctrl-C; the text says what is kept and how to go on."""


@contextlib.contextmanager
def training_run(out: Path) -> Iterator[None]:
    """A training run in a folder: an interruption says what is kept there.

    Raises:
        Interrupted: Ctrl-C.
        Preempted: SIGTERM, also before and after the steps.
    """
    from keras_vit.train.preemption import Preempted, on_sigterm

    def leave() -> None:
        raise Preempted(f"stopped by SIGTERM: {_kept(out)}")

    try:
        with on_sigterm(leave):
            yield
    except KeyboardInterrupt:
        raise Interrupted(_kept(out)) from None


def _kept(out: Path) -> str:
    kept = ["finished runs"] if any(out.glob("*/report.json")) else []  # of a transfer, of VTAB
    kept += ["the last checkpoint"] if any(out.rglob("checkpoints/step_*")) else []
    what = f"kept in {out}: {' and '.join(kept)}" if kept else f"nothing is kept yet in {out}"
    return f"{what}; run the same command again to go on."


def command_line() -> str:
    """The command being run, as one would type it, for reports."""
    return shlex.join(["keras-vit", *sys.argv[1:]])


class CheckFailed(Exception):
    """What was asked for was done and found wrong; the text says what."""


@dataclasses.dataclass(frozen=True)
class Answer:
    """What a command found.

    Attributes:
        data: plain values, printed with --json.
        view: strings and rich renderables for people, in order.
        code: the exit code.
    """

    data: Any
    view: tuple[Any, ...] = ()
    code: int = 0


def command(function: Callable[..., Answer]) -> Callable[..., int]:
    """Turns a function that returns an `Answer` into one that typer runs, with --json.

    While the function works, its stdout is stderr, so that nothing a library prints gets among the
    answer, and what native code writes to stderr is hidden (KERAS_VIT_DEBUG=1 shows it).
    """

    @functools.wraps(function)
    def wrapper(*, as_json: bool, **arguments: Any) -> int:
        try:
            with contextlib.redirect_stdout(sys.stderr), hidden_native_output():
                answer = function(**arguments)
        except SystemExit as stopped:
            from keras_vit.train.preemption import Preempted

            if not isinstance(stopped, Preempted):
                raise
            answer = Answer({"preempted": str(stopped)}, (str(stopped),))
        except KeyboardInterrupt as stopped:  # a download says what is kept of it
            raise Interrupted(
                f"{stopped or 'nothing is left half-written; run it again'}."
            ) from None
        if as_json:
            print(json.dumps(answer.data, indent=1, ensure_ascii=False))
        else:
            show(sys.stdout, *answer.view)
        return answer.code

    option = inspect.Parameter(
        "as_json", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=AsJson
    )
    signature = inspect.signature(function)
    wrapper.__signature__ = signature.replace(  # pyright: ignore[reportAttributeAccessIssue]
        parameters=[*signature.parameters.values(), option], return_annotation=int
    )
    wrapper.__annotations__ = {**function.__annotations__, "as_json": AsJson}
    return wrapper


def show(stream: Any, *parts: Any) -> None:
    """Prints strings as they are and renderables as rich does."""
    console = Console(file=stream, highlight=False, width=None if stream.isatty() else PIPE_WIDTH)
    for part in parts:
        if isinstance(part, str):
            console.print(part, markup=False, soft_wrap=True)
        else:
            console.print(part)


def log(text: str) -> None:
    """A line about progress, on stderr."""
    print(text, file=sys.stderr, flush=True)


def table(columns: tuple[str, ...], rows: list[tuple[Any, ...]], left: int = 1) -> Table:
    """A plain table; the first `left` columns are texts, the others numbers."""
    made = Table(box=None, pad_edge=False, header_style="bold")
    for i, name in enumerate(columns):
        made.add_column(name, justify="left" if i < left else "right", overflow="fold")
    for row in rows:
        made.add_row(*(escaped(str(cell)) for cell in row))
    return made


def escaped(text: str) -> str:
    """Text that rich shows as it is, without control characters."""
    from rich.markup import escape

    return escape("".join(c if c.isprintable() else "?" for c in text))


@contextlib.contextmanager
def hidden_native_output() -> Iterator[None]:
    """Hides what native code writes to file descriptor 2; Python's own stderr stays visible."""
    if os.environ.get("KERAS_VIT_DEBUG") == "1":
        yield
        return
    python_stderr = sys.stderr
    kept = os.dup(2)
    with open(os.devnull, "w") as nowhere, os.fdopen(kept, "w", buffering=1) as visible:
        own = _is_descriptor_2(python_stderr)
        os.dup2(nowhere.fileno(), 2)
        if own:
            sys.stderr = visible
            if sys.stdout is python_stderr:
                sys.stdout = visible
        try:
            yield
        finally:
            sys.stderr = python_stderr
            os.dup2(kept, 2)


def _is_descriptor_2(stream: Any) -> bool:
    try:
        return stream.fileno() == 2
    except (OSError, ValueError, AttributeError):
        return False


def check_file(path: Path, suffixes: tuple[str, ...], force: bool) -> None:
    """Refuses an output file that cannot be written, before any work is done.

    Raises:
        ValueError: another suffix than expected.
        FileExistsError: it exists, and `force` is not given.
        OSError: its folder cannot be written.
    """
    if not path.name.endswith(suffixes):
        raise ValueError(f"the output must end in {' or '.join(suffixes)}, got {str(path)!r}.")
    if os.path.lexists(path) and (path.is_dir() or not force):
        raise FileExistsError(f"{path} exists: give another name, or --force to replace a file.")
    check_parent(path)


def is_exported(path: Path) -> bool:
    """Whether a path is an exported model: a .tflite or .onnx file or a folder, unless it holds weights."""
    holds_weights = (path / "config.json").is_file() or any(path.glob("*.safetensors"))
    return path.suffix in (".tflite", ".onnx") or (path.is_dir() and not holds_weights)


def check_parent(path: Path) -> None:
    """Refuses an output whose folder does not exist or cannot be written.

    Raises:
        OSError: with the folder and the reason.
    """
    try:
        with tempfile.TemporaryFile(dir=path.absolute().parent):
            pass
    except OSError as error:
        raise OSError(
            f"cannot write to {path.absolute().parent} ({error.strerror or error}): give a folder "
            f"that exists and can be written."
        ) from None


def open_data(name: str, classes: str | None):
    """A source by name, with some of its classes only, given as numbers or names."""
    from keras_vit.data.sources import open_source

    source = open_source(name)
    if not classes:
        return source
    keep = []
    for word in (part.strip() for part in classes.split(",")):
        if word in source.class_names:
            keep.append(source.class_names.index(word))
        elif word.isdigit():
            keep.append(int(word))
        else:
            raise ValueError(
                f"{name} has no class {word!r}: it has {', '.join(source.class_names[:20])}."
            )
    return source.classes(keep)


def size_option(text: str | None) -> tuple[int, int] | None:
    """`224` or `224x160` (height x width) as a pair, None for None."""
    if text is None:
        return None
    parts = text.lower().split("x")
    if len(parts) > 2 or not all(part.isdigit() and int(part) for part in parts):
        raise ValueError(f"an image size is a number, or HEIGHTxWIDTH, got {text!r}.")
    return int(parts[0]), int(parts[-1])


def bytes_text(size: int) -> str:
    """`1.2 MB` for people."""
    return f"{size / 1e6:.2f} MB" if size < 1e8 else f"{size / 1e6:,.0f} MB"
