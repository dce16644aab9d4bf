"""Time spent, tokens a second, and a polite end."""

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from addnorm.train.train_state import TrainState


class Throughput:
    """Adds the seconds of this sitting to a progress; knows the speed since it was last asked."""

    def __init__(self, progress: TrainState) -> None:
        self.previous_seconds, self.start = progress.seconds, time.monotonic()
        self.window_start, self.tokens = self.start, 0

    def add_tokens(self, tokens: int) -> float:
        """Count tokens; all seconds of the run so far."""
        self.tokens += tokens
        return self.previous_seconds + time.monotonic() - self.start

    def tokens_per_second(self) -> float:
        """Tokens a second since the last call."""
        now = time.monotonic()
        rate = self.tokens / max(now - self.window_start, 1e-9)
        self.window_start, self.tokens = now, 0
        return rate


class StopFlag:
    """Rings once somebody wants an end."""

    requested = False


@contextmanager
def graceful_shutdown() -> Iterator[StopFlag]:
    """Ctrl-C or a request to terminate rings the bell, so that no update is cut in half; a second
    one ends the program at once.
    """
    bell = StopFlag()

    def ring(number: int, frame: FrameType | None) -> None:
        if bell.requested:
            raise KeyboardInterrupt
        bell.requested = True

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
