"""Fixtures shared by the kernel tests."""

import pytest

from addnorm.kernels import library

collect_ignore = ["liger_interpreter.py"]
"""A program of its own: it needs an optional package, and sets a variable of the environment."""


@pytest.fixture
def calls(monkeypatch):
    """Record the names of the native functions that are called."""
    names = []

    def run(name, args, inner=library.call_native):
        names.append(name)
        return inner(name, args)

    monkeypatch.setattr(library, "call_native", run)
    return names
