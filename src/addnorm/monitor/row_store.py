"""Rows of a monitor: kept in memory, and passed on to sinks by the main process."""

from collections.abc import Callable, Sequence

from torch import distributed

from addnorm.core.rows import Row
from addnorm.doctor.trace.errors import describe_exception
from addnorm.monitor.sinks import Sink


def is_main_process() -> bool:
    """Return whether this process writes files: the first one, or the only one."""
    is_distributed = distributed.is_available() and distributed.is_initialized()
    return not is_distributed or distributed.get_rank() == 0


class RowStore:
    """Rows in the order of measurement.

    Args:
        sinks: receivers of the rows; one that fails gets no further rows
        warn: function that shows a warning
    """

    def __init__(self, sinks: Sequence[Sink], warn: Callable[[str], None]) -> None:
        self.rows: list[Row] = []
        self.sinks = list(sinks)
        self._warn = warn
        self._unwritten: list[Row] = []

    def add(self, *rows: Row) -> None:
        """Append rows; `flush` writes them."""
        self.rows += rows
        self._unwritten += rows

    def has(self, name: str) -> bool:
        """Return whether there is a row of this name."""
        return any(row["name"] == name for row in self.rows)

    def flush(self) -> None:
        """Pass the rows since the last flush to the sinks."""
        rows, self._unwritten = self._unwritten, []
        if rows and is_main_process():
            self._call_sinks("write", rows)

    def close(self) -> None:
        """Flush and close the sinks."""
        self.flush()
        if is_main_process():
            self._call_sinks("close")

    def _call_sinks(self, method: str, *args: object) -> None:
        for sink in list(self.sinks):
            try:
                getattr(sink, method)(*args)
            except Exception as problem:
                self.sinks.remove(sink)
                self._warn(
                    f"the sink {type(sink).__name__} failed ({describe_exception(problem)}); it "
                    "gets no further rows"
                )
