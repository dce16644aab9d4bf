"""Time spent, tokens a second, and a polite end."""

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from addnorm.train.train_state import Progress


class Clock:
    """Adds the seconds of this sitting to a progress; knows the speed since it was last asked."""

    def __init__(self, progress: Progress) -> None:
        self.before, self.start = progress.seconds, time.monotonic()
        self.mark, self.tokens = self.start, 0

    def tick(self, tokens: int) -> float:
        """Count tokens; all seconds of the run so far."""
        self.tokens += tokens
        return self.before + time.monotonic() - self.start

    def rate(self) -> float:
        """Tokens a second since the last call."""
        now = time.monotonic()
        rate = self.tokens / max(now - self.mark, 1e-9)
        self.mark, self.tokens = now, 0
        return rate


class Bell:
    """Rings once somebody wants an end."""

    rung = False


@contextmanager
def stoppable() -> Iterator[Bell]:
    """Ctrl-C or a request to terminate rings the bell, so that no update is cut in half; a second
    one ends the program at once.
    """
    bell = Bell()

    def ring(number: int, frame: FrameType | None) -> None:
        if bell.rung:
            raise KeyboardInterrupt
        bell.rung = True

    if threading.current_thread() is not threading.main_thread():
        yield bell  # only the main thread hears signals
        return
    wanted = (signal.SIGINT, signal.SIGTERM)
    former: dict[int, Any] = {number: signal.signal(number, ring) for number in wanted}
    try:
        yield bell
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)
