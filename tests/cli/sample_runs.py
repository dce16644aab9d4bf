"""Fixtures that run commands on untrained runs, with lines on standard input."""

import io
import sys

import pytest

from addnorm.cli import line_io as cli
from tests.tasks.sample_runs import make_run


@pytest.fixture(scope="module", name="runs")
def runs_fixture(tmp_path_factory):
    """Untrained runs by task."""
    return {
        task: make_run(task, tmp_path_factory.mktemp(task))
        for task in ("translate", "lm", "classify", "mlm")
    }


@pytest.fixture(name="run_command")
def run_command_fixture(addnorm, monkeypatch, runs):
    """Return a function that runs a command on the run of a task, with lines on standard input."""

    def run(verb, task, *arguments, lines=b""):
        monkeypatch.setattr(cli, "open_run", lambda folder, device, **_: runs[task])
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(lines)))
        return addnorm(verb, "RUN", *map(str, arguments))

    return run
