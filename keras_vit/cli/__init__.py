"""The command `keras-vit`: thin commands over the library.

Nothing here imports Keras before a command needs it, so that `--help`, `list` and `info` are quick.
Exit codes: 0 done, 1 a check failed (or this program did), 2 bad input, 130 interrupted.
"""

import os
import sys
import warnings
from collections.abc import Sequence

EXPECTED = (ValueError, OSError, ImportError, KeyError, TypeError)


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the command line and ends the process with its exit code."""
    sys.exit(run(sys.argv[1:] if arguments is None else arguments))


def run(arguments: Sequence[str]) -> int:
    """Runs one command and returns its exit code; errors become one line on stderr."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    from keras_vit.cli.app import app
    from keras_vit.cli.common import CheckFailed, Interrupted

    with warnings.catch_warnings():
        warnings.showwarning = _show_warning
        try:
            return app(list(arguments), prog_name="keras-vit", standalone_mode=False) or 0
        except Interrupted as stopped:
            return _fail(f"interrupted: {stopped}", 130)
        except CheckFailed as failed:
            return _fail(failed, 1)
        except Exception as error:
            if os.environ.get("KERAS_VIT_DEBUG") == "1":
                raise
            return _fail(*_judge(error))


def _judge(error: Exception) -> tuple[str, int]:
    """(what to say, exit code)."""
    if hasattr(error, "format_message"):  # of the parser, whose classes differ between versions
        return f"{error.format_message()} Try --help.", 2  # pyright: ignore
    if type(error).__name__ == "Abort":
        return "interrupted.", 130
    if isinstance(error, FloatingPointError):
        return str(error), 1
    if type(error).__name__ == "ExportError":
        return str(error), 1
    if isinstance(error, (*EXPECTED, RuntimeError)):
        text = error.args[0] if isinstance(error, KeyError) and error.args else error
        return str(text) or type(error).__name__, 2
    return f"{type(error).__name__}: {error} (KERAS_VIT_DEBUG=1 shows where)", 1


def _fail(message: object, code: int) -> int:
    print("error:" if code != 130 else "keras-vit:", _one_line(message), file=sys.stderr)
    return code


def _show_warning(message, category, filename, lineno, file=None, line=None) -> None:
    print("warning:", _one_line(message), file=sys.stderr)


def _one_line(message: object) -> str:
    return " ".join(str(message).split())
