"""What tests of kernels share."""

import pytest

from addnorm.kernels import native


@pytest.fixture
def calls(monkeypatch):
    """Names of the functions of the native library that were called."""
    made = []

    def run(name, given, inner=native.run):
        made.append(name)
        return inner(name, given)

    monkeypatch.setattr(native, "run", run)
    return made
