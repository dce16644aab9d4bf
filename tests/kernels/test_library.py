"""Loading of the native library: availability, levels, versions, forks and threads."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from addnorm.core.errors import UserError
from addnorm.kernels import library
from addnorm.kernels.add_norm import native

needs_native = pytest.mark.skipif(
    not library.list_levels(), reason=library.get_availability().reason
)


@pytest.fixture
def unloaded_library(monkeypatch):
    """Reset the loader to the state of a new process."""
    monkeypatch.setattr(library._State, "library", None)
    monkeypatch.setattr(library._State, "availability", None)


@pytest.mark.usefixtures("unloaded_library")
def test_missing_library_is_reported_with_remedy(monkeypatch, tmp_path):
    monkeypatch.setattr(library, "LIBRARY_PATH", tmp_path / "none.so")
    with library.use_level(""):
        assert not library.get_availability()
        assert "was not built" in library.get_availability().reason
        assert "install addnorm again" in library.get_availability().reason
        assert library.list_levels() == ()
        assert not library.can_use_native(1, torch.randn(100, 100))


@pytest.mark.usefixtures("unloaded_library")
def test_unloadable_library_is_reported(monkeypatch, tmp_path):
    path = tmp_path / "broken.so"
    path.write_bytes(b"no library")
    monkeypatch.setattr(library, "LIBRARY_PATH", path)
    with library.use_level(""):
        assert re.search(
            "cannot be loaded, kernels run in plain torch: .+",
            library.get_availability().reason,
        )


@needs_native
@pytest.mark.usefixtures("unloaded_library")
def test_library_of_other_version_is_rejected(monkeypatch):
    version = library.VERSION
    monkeypatch.setattr(library, "VERSION", 999)
    with library.use_level(""):
        assert f"has version {version}, expected 999" in library.get_availability().reason


@needs_native
def test_best_level_is_chosen_and_reported():
    with library.use_level(""):
        assert library.get_availability().level == library.list_levels()[-1]
        assert (
            library.get_availability().reason
            == f"native kernels with {library.list_levels()[-1]} instructions"
        )


def test_version_matches_header():
    header = Path(__file__).parents[2] / "native" / "common" / "addnorm.h"
    assert f"#define ADDNORM_VERSION {library.VERSION}\n" in header.read_text()


def test_native_kernels_can_be_switched_off():
    with library.use_level("off"):
        assert not library.get_availability()
        assert "ADDNORM_NATIVE=off" in library.get_availability().reason


def test_unknown_and_unavailable_levels_raise(monkeypatch):
    with (
        pytest.raises(UserError, match="unknown level of ADDNORM_NATIVE 'avx'; did you mean"),
        library.use_level("avx"),
    ):
        pass
    monkeypatch.setattr(library, "list_levels", lambda: ("portable",))
    monkeypatch.setattr(library, "_load", lambda: object())
    with (
        pytest.raises(UserError, match=r"expected a level .* \(portable\) or off, got avx512"),
        library.use_level("avx512"),
    ):
        pass


def run_python(code, **environment):
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        capture_output=True,
        text=True,
        timeout=120,
        env=os.environ | environment,
    )


@needs_native
@pytest.mark.slow
def test_environment_variable_selects_level():
    code = "from addnorm.kernels import library; print(library.get_availability().level)"
    assert run_python(code, ADDNORM_NATIVE="portable").stdout == "portable\n"


@needs_native
def test_torch_and_library_share_one_openmp():
    """Other packages, such as scikit-learn, bring their own copy."""
    code = """
import re
from addnorm.kernels import library
assert library.get_availability()
with open("/proc/self/maps") as maps:
    libraries = set(re.findall(r"\\S*libgomp\\S*", maps.read()))
assert len(libraries) == 1, libraries
"""
    process = run_python(code)
    assert process.returncode == 0, process.stderr


@needs_native
@pytest.mark.slow
def test_kernels_run_in_forked_child():
    code = """
import os, signal, torch
from addnorm.kernels.add_norm.native import dropout_native
torch.set_num_threads(2)
x, seed = torch.randn(1024, 64), torch.tensor(1)
expected = dropout_native(x, seed, 0.5).numpy().tobytes()
child = os.fork()
if child == 0:
    signal.alarm(30)  # ends the child if it hangs
    # no torch operation here: its thread pool does not survive a fork
    actual = dropout_native(x, seed, 0.5).numpy().tobytes()
    os._exit(0 if actual == expected else 1)
_, status = os.waitpid(child, 0)
assert status == 0, status
"""
    process = run_python(code)
    assert process.returncode == 0, process.stderr


@needs_native
def test_concurrent_calls_are_independent():
    """Python threads share the library, which keeps no state between calls."""
    from concurrent.futures import ThreadPoolExecutor

    x, seeds = torch.randn(512, 64), [torch.tensor(seed) for seed in range(8)]
    expected = [native.dropout_native(x, seed, 0.5) for seed in seeds]
    with ThreadPoolExecutor(4) as pool:
        actual = list(pool.map(lambda seed: native.dropout_native(x, seed, 0.5), seeds))
    assert all(torch.equal(*pair) for pair in zip(actual, expected, strict=True))
