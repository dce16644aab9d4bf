"""Ctrl-C while a stranger's model runs: noted at once, raised where nothing can swallow it.

Python drops what is raised inside a callback of a weak reference or a finalizer, and torch runs
such callbacks at every step.
"""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

STOP_MESSAGE = b"addnorm: stopping at the next operation; Ctrl-C once more to stop at once\n"


class _InterruptState:
    """What was heard since somebody listens."""

    pending = False


_INTERRUPT = _InterruptState()


def raise_if_interrupted() -> None:
    """Raise KeyboardInterrupt if Ctrl-C was pressed."""
    if _INTERRUPT.pending:
        _INTERRUPT.pending = False
        raise KeyboardInterrupt


@contextmanager
def deferred_interrupt() -> Iterator[None]:
    """Note Ctrl-C for `check`, and say so; a second one ends the program at once.

    A handler of the caller's own is left alone, and only the main thread hears signals.
    """
    own = signal.getsignal(signal.SIGINT) is not signal.default_int_handler
    if own or threading.current_thread() is not threading.main_thread():
        yield
        return

    def note(number: int, frame: FrameType | None) -> None:
        if _INTERRUPT.pending:
            raise KeyboardInterrupt
        _INTERRUPT.pending = True
        os.write(
            2, STOP_MESSAGE
        )  # print may be at work already, and cannot be called twice at once

    _INTERRUPT.pending = False
    signal.signal(signal.SIGINT, note)
    try:
        yield
        raise_if_interrupted()
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        _INTERRUPT.pending = False
