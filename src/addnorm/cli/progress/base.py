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
    """Format seconds as `h:mm:ss`, or as `?` if they are not finite.

    >>> format_duration(3725), format_duration(math.nan)
    ('1:02:05', '?')
    """
    if not math.isfinite(seconds):
        return "?"
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{rest:02}"
