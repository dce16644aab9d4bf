"""Standard streams of the console script, which may be closed, full or a broken pipe."""

import io
import os
import sys
from typing import TextIO

STANDARD_OUTPUT = "standard output"


class ResultStream(io.TextIOWrapper):
    """Standard output whose errors name it, as those of files do."""

    def write(self, text: str) -> int:
        """Write a text; an error names the stream."""
        try:
            return super().write(text)
        except OSError as problem:
            problem.filename = STANDARD_OUTPUT
            raise

    def flush(self) -> None:
        """Flush the stream; an error names it."""
        try:
            super().flush()
        except OSError as problem:
            problem.filename = STANDARD_OUTPUT
            raise


class MessageStream(io.TextIOWrapper):
    """Standard error that discards what cannot be written.

    Messages are not the result of a command: a closed pipe or a full disk behind standard error
    must not stop a training.
    """

    def write(self, text: str) -> int:
        """Write a text, or discard it."""
        try:
            return super().write(text)
        except OSError:
            self._discard()
            return len(text)

    def flush(self) -> None:
        """Flush the stream, or discard what is left."""
        try:
            super().flush()
        except OSError:
            self._discard()

    def _discard(self) -> None:
        with open(os.devnull, "wb") as nowhere:
            os.dup2(nowhere.fileno(), self.fileno())


def open_standard_streams() -> None:
    """Prepare standard input, output and error of this process.

    Closed descriptors are opened on /dev/null: otherwise the next file that is opened would get
    their number, and messages of C libraries would be written into it. `sys.stdin` and `sys.stdout`
    stay None if they were closed, so that the command can report it.
    """
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest free number, which is this one
            os.set_inheritable(descriptor, True)
    if sys.stdout is not None:
        sys.stdout = _reopen(ResultStream, 1, sys.stdout)
    sys.stderr = _reopen(MessageStream, 2, sys.stderr)


def _reopen(
    kind: type[io.TextIOWrapper], descriptor: int, stream: TextIO | None
) -> io.TextIOWrapper:
    """Return a stream for a descriptor with the encoding and buffering of `stream`."""
    return kind(
        io.BufferedWriter(io.FileIO(descriptor, "wb", closefd=False)),
        encoding=getattr(stream, "encoding", "utf-8"),
        errors=getattr(stream, "errors", "backslashreplace"),
        line_buffering=getattr(stream, "line_buffering", True),
        write_through=getattr(stream, "write_through", False),
    )
