"""Commands run in this process with captured streams, and the rules that every command keeps."""

import io
import sys
from contextlib import contextmanager
from dataclasses import dataclass

from addnorm.cli.main import main

EXIT_CODES = {0, 1, 2, 130, 143}


@dataclass
class CommandResult:
    """Exit code and output of a command."""

    code: int
    out: str
    err: str


@contextmanager
def captured_streams(stdin: bytes | None):
    """Replace the standard streams; None is a closed standard input."""
    saved = sys.stdin, sys.stdout, sys.stderr
    out = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    err = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", errors="backslashreplace")
    sys.stdin = None if stdin is None else io.TextIOWrapper(io.BytesIO(stdin), encoding="utf-8")
    sys.stdout, sys.stderr = out, err
    try:
        yield out, err
    finally:
        sys.stdin, sys.stdout, sys.stderr = saved


def run_in_process(*arguments: str, stdin: bytes | None = b"") -> CommandResult:
    """Run a command; fail unless it ends with a known code and, on errors, a line that says why."""
    with captured_streams(stdin) as (out, err):
        code = main(arguments)
    ended = CommandResult(code, *(_read_text(stream) for stream in (out, err)))
    check_ending(ended, arguments)
    return ended


def check_ending(ended: CommandResult, arguments: tuple[str, ...]) -> None:
    """Fail unless the command kept the rules of exit codes and messages."""
    assert ended.code in EXIT_CODES, (arguments, ended)
    assert "Traceback" not in ended.out + ended.err, (arguments, ended)
    if ended.code == 2:
        last = ended.err.splitlines()[-1]
        assert last.startswith("addnorm: ") and len(last) > len("addnorm: x"), (arguments, ended)


def _read_text(stream: io.TextIOWrapper) -> str:
    stream.flush()
    return stream.buffer.getvalue().decode("utf-8", errors="replace")
