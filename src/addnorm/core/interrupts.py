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

AGAIN = b"addnorm: stopping at the next operation; Ctrl-C once more to stop at once\n"


class _Ear:
    """What was heard since somebody listens."""

    heard = False


_EAR = _Ear()


def check() -> None:
    """Raise KeyboardInterrupt if Ctrl-C was pressed."""
    if _EAR.heard:
        _EAR.heard = False
        raise KeyboardInterrupt


@contextmanager
def listening() -> Iterator[None]:
    """Note Ctrl-C for `check`, and say so; a second one ends the program at once.

    A handler of the caller's own is left alone, and only the main thread hears signals.
    """
    own = signal.getsignal(signal.SIGINT) is not signal.default_int_handler
    if own or threading.current_thread() is not threading.main_thread():
        yield
        return

    def note(number: int, frame: FrameType | None) -> None:
        if _EAR.heard:
            raise KeyboardInterrupt
        _EAR.heard = True
        os.write(2, AGAIN)  # print may be at work already, and cannot be called twice at once

    _EAR.heard = False
    signal.signal(signal.SIGINT, note)
    try:
        yield
        check()
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        _EAR.heard = False
