"""Closed, broken, full and strange standard streams."""

import os
import subprocess
import sys

import pytest

from addnorm.cli import main as cli
from addnorm.cli.streams import MessageStream
from tests.torture.commands import CommandResult, check_ending
from tests.torture.valid_commands import TASKS, replace_long_work

SHORT = {
    "translate": ["--beam", "1", "--max-new-tokens", "4"],
    "generate": ["--max-new-tokens", "4"],
}
INPUTS = {
    "invalid UTF-8": b"ab\n\xff\xfe\xc3\nab\n",
    "NUL bytes": b"a\0b\n\0\n",
    "no final newline": b"ab\nab",
    "nothing": b"",
    "Windows lines": b"ab\r\n\r\nab\r\n",
    "control characters": "\x1b[31m\x07\u2028\u0085\ufeffab\n".encode(),
    "a very long line": b"ab " * 340_000 + b"\nab\n",
    "a very long line of wide characters": "€😀".encode() * 510_000,
}


@pytest.mark.parametrize("verb", TASKS)
@pytest.mark.parametrize("name", INPUTS)
def test_odd_input(run, monkeypatch, verb, name):
    """Every line has an output, whatever its bytes are."""
    replace_long_work(monkeypatch, (verb,))
    ended = run(verb, "RUN", *SHORT.get(verb, ()), stdin=INPUTS[name])
    assert ended.code == 0, ended
    assert ended.out.count("\n") == len(INPUTS[name].splitlines())
    assert ("cut after a million characters" in ended.err) == ("very long" in name)
    assert ("not UTF-8" in ended.err) == (name == "invalid UTF-8")


@pytest.mark.parametrize("verb", TASKS)
def test_closed_input_is_one_line(run, monkeypatch, verb):
    replace_long_work(monkeypatch, (verb,))
    ended = run(verb, "RUN", stdin=None)
    assert ended.code == 2
    assert ended.err == ("addnorm: standard input is closed; pass a file, or redirect one with <\n")


def test_prompt_needs_no_input(run, monkeypatch):
    replace_long_work(monkeypatch, ("generate",))
    assert run("generate", "RUN", "--prompt", "ab", *SHORT["generate"], stdin=None).code == 0


def shell(command):
    """Run a shell command, in which `addnorm` is this program."""
    command = command.replace("addnorm", f"{sys.executable} -m addnorm")
    result = subprocess.run(["sh", "-c", command], capture_output=True, text=True)
    ended = CommandResult(result.returncode, result.stdout, result.stderr)
    if ended.err:
        check_ending(ended, (command,))
    return ended


@pytest.mark.parametrize(
    ("command", "code", "err"),
    [
        ("addnorm --version <&-", 0, ""),
        ("addnorm --version 2>&-", 0, ""),
        ("addnorm lst 2>&-", 2, ""),
        ("addnorm lst 2>/dev/full", 2, ""),
        ("addnorm --version >&- 2>&-", 2, ""),
        ("addnorm --version <&- >&-", 2, "standard output is closed"),
        ("addnorm --help > /dev/full", 2, "addnorm: standard output: No space left on device\n"),
        ("addnorm --help 1< /dev/null", 2, "addnorm: standard output: Bad file descriptor\n"),
        ("addnorm --help | true", 0, ""),
    ],
)
def test_closed_and_full_streams(command, code, err):
    ended = shell(command)
    assert ended.code == code
    assert err in ended.err if err else ended.err == ""


def test_standard_error_that_breaks_does_not_stop_the_command():
    reading, writing = os.pipe()
    stream = MessageStream(os.fdopen(writing, "wb"), encoding="utf-8", line_buffering=True)
    print("heard", file=stream)
    os.close(reading)
    print("lost", file=stream)
    print("lost", file=stream, flush=True)
    stream.close()


def test_messages_do_not_reach_the_output_if_standard_error_is_closed(monkeypatch, capsys):
    """`print(file=None)` writes to standard output."""
    monkeypatch.setattr(sys, "stderr", None)
    assert cli.main(["lst"]) == 2
    assert capsys.readouterr().out == ""
