"""Base class of the progress reporters."""

import math

from rich.console import Console

from addnorm.core.callbacks import Callback

LOG_INTERVAL_SECONDS = 10.0
"""Minimum time between two progress lines when standard error is not a terminal."""


class ProgressReporter(Callback):
    """Callback that writes to a console on standard error."""

    def __init__(self) -> None:
        self.console = Console(stderr=True, highlight=False, markup=False, soft_wrap=True)

    def on_message(self, text: str) -> None:
        self.console.print(f"addnorm: {text}")


def format_duration(seconds: float) -> str:
    """Format seconds as `h:mm:ss`.

    >>> format_duration(3725)
    '1:02:05'
    """
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{rest:02}"


def format_time_left(seconds: float) -> str:
    """Format an estimate of the remaining time, which is not finite before the first measurement.

    >>> format_time_left(3725), format_time_left(math.nan)
    ('1:02:05 left', 'time left unknown')
    """
    return f"{format_duration(seconds)} left" if math.isfinite(seconds) else "time left unknown"
