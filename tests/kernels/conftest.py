"""What tests of kernels share."""

import pytest

from addnorm.kernels import library


@pytest.fixture
def calls(monkeypatch):
    """Names of the functions of the native library that were called."""
    made = []

    def run(name, given, inner=library.call_native):
        made.append(name)
        return inner(name, given)

    monkeypatch.setattr(library, "call_native", run)
    return made
