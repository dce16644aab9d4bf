"""How commands are run in tests: in this process, or as a program of their own."""

import re
import subprocess
import sys
from dataclasses import dataclass

import pytest

from addnorm.cli.main import main


@dataclass
class Done:
    """What a command left behind."""

    code: int
    out: str
    err: str


@pytest.fixture
def addnorm(capsys):
    """Run a command in this process."""

    def run(*arguments):
        code = main(arguments)
        return Done(code, *capsys.readouterr())

    return run


@pytest.fixture
def terminal(monkeypatch, addnorm):
    """Run a command as on a terminal of so many columns, without colour."""

    def run(columns, *arguments):
        monkeypatch.setenv("TTY_COMPATIBLE", "1")
        monkeypatch.setenv("NO_COLOR", "1")
        monkeypatch.setenv("TERM", "xterm")
        monkeypatch.setenv("COLUMNS", str(columns))
        done = addnorm(*arguments)
        done.out = re.sub(r"\x1b\[[0-9;]*m", "", done.out)  # bold is no colour
        return done

    return run


@pytest.fixture
def program():
    """Run `python -m addnorm` for itself, standard output where one wants it."""

    def run(*arguments, stdout=subprocess.PIPE, **rest):
        command = [sys.executable, "-m", "addnorm", *arguments]
        done = subprocess.run(command, stdout=stdout, stderr=subprocess.PIPE, text=True, **rest)
        return Done(done.returncode, done.stdout or "", done.stderr)

    return run
