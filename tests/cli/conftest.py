"""Fixtures that run commands in this process or in a new one."""

import re
import subprocess
import sys
from dataclasses import dataclass

import pytest

from addnorm.cli.main import main


@dataclass
class CommandResult:
    """Exit code and output of a command."""

    code: int
    out: str
    err: str


@pytest.fixture
def addnorm(capsys):
    """Run a command in this process."""

    def run(*arguments):
        code = main(arguments)
        return CommandResult(code, *capsys.readouterr())

    return run


@pytest.fixture
def terminal(monkeypatch, addnorm):
    """Run a command as on a terminal of a given width, without color."""

    def run(columns, *arguments):
        monkeypatch.setenv("TTY_COMPATIBLE", "1")
        monkeypatch.setenv("NO_COLOR", "1")
        monkeypatch.setenv("TERM", "xterm")
        monkeypatch.setenv("COLUMNS", str(columns))
        result = addnorm(*arguments)
        result.out = re.sub(r"\x1b\[[0-9;]*m", "", result.out)  # bold is not a color
        return result

    return run


@pytest.fixture
def program():
    """Run `python -m addnorm` in a new process."""

    def run(*arguments, stdout=subprocess.PIPE, **rest):
        command = [sys.executable, "-m", "addnorm", *arguments]
        result = subprocess.run(command, stdout=stdout, stderr=subprocess.PIPE, text=True, **rest)
        return CommandResult(result.returncode, result.stdout or "", result.stderr)

    return run
