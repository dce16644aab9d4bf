"""Ctrl-C and SIGTERM without a half-finished operation.

Two context managers, for two kinds of code:

- `graceful_shutdown` is for loops of our own. The signal handler sets a flag, and the loop checks
  it between steps, so that no update or file is cut in half.
- `deferred_interrupt` is for code that runs the user's model. Python discards exceptions raised
  inside weak-reference callbacks and finalizers, which torch runs all the time, so a
  `KeyboardInterrupt` raised by the default handler can get lost there. The handler only records the
  signal, and `raise_if_interrupted` raises it where it propagates.

In both, a second Ctrl-C raises `KeyboardInterrupt` at once.
"""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

STOP_MESSAGE = b"addnorm: stopping at the next operation; Ctrl-C once more to stop at once\n"


class StopFlag:
    """Flag set by Ctrl-C or SIGTERM; the loop checks it between steps."""

    requested = False


@contextmanager
def graceful_shutdown() -> Iterator[StopFlag]:
    """Turn Ctrl-C and SIGTERM into a flag inside the block; restore the handlers on exit.

    Outside the main thread, where Python allows no signal handlers, the flag is never set.
    """
    stop_flag = StopFlag()
    if not _in_main_thread():
        yield stop_flag
        return

    def request_stop(number: int, frame: FrameType | None) -> None:
        if stop_flag.requested:
            raise KeyboardInterrupt
        stop_flag.requested = True

    previous: dict[int, Any] = {
        number: signal.signal(number, request_stop) for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield stop_flag
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


class _InterruptState:
    """Whether Ctrl-C was pressed inside `deferred_interrupt` and not raised yet."""

    pending = False


_INTERRUPT = _InterruptState()


@contextmanager
def deferred_interrupt() -> Iterator[None]:
    """Record Ctrl-C inside the block for `raise_if_interrupted`, and print that it was noticed.

    Does nothing if the caller has installed a SIGINT handler, or outside the main thread.
    """
    has_own_handler = signal.getsignal(signal.SIGINT) is not signal.default_int_handler
    if has_own_handler or not _in_main_thread():
        yield
        return

    def record(number: int, frame: FrameType | None) -> None:
        if _INTERRUPT.pending:
            raise KeyboardInterrupt
        _INTERRUPT.pending = True
        # Not print: the signal may arrive inside a print, which is not reentrant.
        os.write(2, STOP_MESSAGE)

    _INTERRUPT.pending = False
    signal.signal(signal.SIGINT, record)
    try:
        yield
        raise_if_interrupted()
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        _INTERRUPT.pending = False


def raise_if_interrupted() -> None:
    """Raise KeyboardInterrupt if Ctrl-C was pressed inside `deferred_interrupt`."""
    if _INTERRUPT.pending:
        _INTERRUPT.pending = False
        raise KeyboardInterrupt


def _in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()
