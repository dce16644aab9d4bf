"""Problems of a monitor: warnings that are shown once and never stop the training."""

import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from addnorm.core.errors import MonitorWarning, format_one_line
from addnorm.doctor.trace.errors import describe_exception


class Problems:
    """Warnings of one monitor.

    Args:
        on_failure: called when a guarded block fails, to turn the monitor off
    """

    def __init__(self, on_failure: Callable[[], None]) -> None:
        self.texts: list[str] = []
        """Every warning so far."""
        self._on_failure = on_failure

    def warn(self, text: str) -> None:
        """Warn once per text; where warnings are errors, training continues all the same."""
        text = format_one_line(text)
        if text in self.texts:
            return
        self.texts.append(text)
        with suppress(MonitorWarning):
            warnings.warn(text, MonitorWarning, stacklevel=_find_caller())

    @contextmanager
    def guard(self, what: str) -> Iterator[None]:
        """Turn an exception inside the block into a warning, and the monitor off."""
        try:
            yield
        except Exception as problem:
            self._on_failure()
            self.warn(
                f"{what} failed ({describe_exception(problem)}); the monitor is off, training "
                "continues"
            )


def _find_caller() -> int:
    """Return the stack level, for `warn`, of the training code that this package was called from.

    Hooks are called by torch, whose frames are skipped too.
    """
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None:
        package = frame.f_globals.get("__name__", "").partition(".")[0]
        if package not in ("addnorm", "torch", "contextlib"):
            return level
        frame, level = frame.f_back, level + 1
    return level
