"""Ctrl-C and SIGTERM without a half-finished operation.

- `install_handlers` is for the console script. Ctrl-C and SIGTERM raise `KeyboardInterrupt`, and
  one that Python discards is raised again.
- `graceful_shutdown` is for loops of our own. The signal handler sets a flag, and the loop checks
  it between steps, so that no update or file is cut in half.
- `deferred_interrupt` is for code that runs the user's model. Python discards exceptions raised
  inside weak-reference callbacks and finalizers, which torch runs all the time, so a
  `KeyboardInterrupt` raised by the default handler can get lost there. The handler only records the
  signal, and `raise_if_interrupted` raises it where it propagates.
- `block_signals` is for starting a process that must not be stopped together with this one.

In the second and the third, another signal raises `KeyboardInterrupt` at once.
"""

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM)
STOP_MESSAGE = b"addnorm: stopping at the next operation; Ctrl-C once more to stop at once\n"
RAISE_AGAIN_SECONDS = 0.05
"""Delay before an interrupt that Python discarded is raised again."""


class _SignalState:
    """The last signal, and whether `deferred_interrupt` has not raised it yet."""

    received: int | None = None
    pending = False
    is_command = False
    """Whether the console script runs, which prints a line of its own when it stops."""
    ignores_repeats = False
    """Whether a second signal is the same request, sent by another process."""


_STATE = _SignalState()


def install_handlers() -> None:
    """Make Ctrl-C and SIGTERM raise KeyboardInterrupt in the main thread.

    A signal that the parent process has set to be ignored stays ignored.
    """
    _STATE.is_command = True
    defaults = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}
    for number, default in defaults.items():
        if signal.getsignal(number) is default:
            signal.signal(number, _raise_interrupt)
    signal.signal(signal.SIGALRM, _raise_again)
    sys.unraisablehook = _handle_unraisable


def ignore_signals() -> None:
    """Ignore Ctrl-C and SIGTERM from now on, so that the exit code stays that of the command."""
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def ignore_repeated_signals() -> None:
    """Make `graceful_shutdown` ignore further signals after the first.

    For a process that is stopped by several others, not by an impatient user.
    """
    _STATE.ignores_repeats = True


def received_signal() -> int | None:
    """Return the last signal that a handler of this module received."""
    return _STATE.received


def clear_received_signal() -> None:
    """Forget the last signal."""
    _STATE.received = None


def interrupt_exit_code() -> int:
    """Return the exit code of an interrupted command: 130 after Ctrl-C, 143 after SIGTERM."""
    return 128 + (_STATE.received or signal.SIGINT)


@contextmanager
def block_signals() -> Iterator[None]:
    """Block Ctrl-C and SIGTERM; processes started inside the block inherit that."""
    previous = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, previous)


def unblock_signals() -> None:
    """Undo `block_signals` in a process that inherited it."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)


class StopFlag:
    """Flag set by Ctrl-C or SIGTERM; the loop checks it between steps."""

    requested = False


@contextmanager
def graceful_shutdown() -> Iterator[StopFlag]:
    """Turn Ctrl-C and SIGTERM into a flag inside the block; restore the handlers on exit.

    Outside the main thread, where Python allows no signal handlers, the flag is never set.
    """
    stop_flag = StopFlag()

    def request_stop(number: int, frame: FrameType | None) -> None:
        _STATE.received = number
        if stop_flag.requested and not _STATE.ignores_repeats:
            raise KeyboardInterrupt
        stop_flag.requested = True

    with _handlers(request_stop, SIGNALS if _in_main_thread() else ()):
        yield stop_flag


@contextmanager
def deferred_interrupt() -> Iterator[None]:
    """Record Ctrl-C inside the block for `raise_if_interrupted`, and print that it was noticed.

    A console script prints nothing here: it ends with one line, `addnorm: interrupted`.
    Does nothing for a signal for which the caller has installed a handler, or outside the main
    thread.
    """
    replaceable = (signal.default_int_handler, _raise_interrupt)
    numbers = [number for number in SIGNALS if signal.getsignal(number) in replaceable]
    if not numbers or not _in_main_thread():
        yield
        return

    def record(number: int, frame: FrameType | None) -> None:
        _STATE.received = number
        if _STATE.pending:
            raise KeyboardInterrupt
        _STATE.pending = True
        if not _STATE.is_command:
            # Not print: the signal may arrive inside a print, which is not reentrant.
            with suppress(OSError):
                os.write(2, STOP_MESSAGE)

    _STATE.pending = False
    try:
        with _handlers(record, numbers):
            yield
            raise_if_interrupted()
    finally:
        _STATE.pending = False


def raise_if_interrupted() -> None:
    """Raise KeyboardInterrupt if Ctrl-C was pressed inside `deferred_interrupt`."""
    if _STATE.pending:
        _STATE.pending = False
        raise KeyboardInterrupt


@contextmanager
def _handlers(handler: Any, numbers: Any) -> Iterator[None]:
    previous = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, each in previous.items():
            signal.signal(number, each)


def _raise_interrupt(number: int, frame: FrameType | None) -> None:
    _STATE.received = number
    raise KeyboardInterrupt


def _raise_again(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _handle_unraisable(unraisable: Any) -> None:
    """Raise a discarded KeyboardInterrupt again; print any other discarded exception."""
    if issubclass(unraisable.exc_type, KeyboardInterrupt):
        # Later, because an exception raised inside this hook would be discarded, too.
        signal.setitimer(signal.ITIMER_REAL, RAISE_AGAIN_SECONDS)
    else:
        sys.__unraisablehook__(unraisable)


def _in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()
