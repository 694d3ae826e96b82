"""SIGTERM: how clusters say that they are about to take a machine away."""

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator


class Preempted(SystemExit):
    """SIGTERM came, what there was to save is saved, and the process ends with exit code 0."""

    def __init__(self, text: str):
        super().__init__(0)
        self.text = text

    def __str__(self) -> str:
        return self.text


@contextlib.contextmanager
def on_sigterm(handler: Callable[[], None]) -> Iterator[None]:
    """Calls a handler at SIGTERM while the block runs.

    Once the block has ended with `Preempted`, further signals are ignored, so that none of them ends
    the process otherwise while it shuts down. Only the main thread may handle signals: in others,
    nothing changes.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    # None stands for a handler that is not Python's, which cannot be put back.
    before = signal.signal(signal.SIGTERM, lambda *_: handler()) or signal.SIG_DFL
    try:
        yield
    except Preempted:
        before = signal.SIG_IGN
        raise
    finally:
        signal.signal(signal.SIGTERM, before)
