"""The loader: what it finds, what it says, what it survives."""

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

built = pytest.mark.skipif(not library.levels(), reason=library.get_availability().reason)


@pytest.fixture
def fresh(monkeypatch):
    """As in a process that has not looked for the library yet."""
    monkeypatch.setattr(library._State, "library", None)
    monkeypatch.setattr(library._State, "availability", None)


@pytest.mark.usefixtures("fresh")
def test_without_a_library_it_says_so_and_what_to_do(monkeypatch, tmp_path):
    monkeypatch.setattr(library, "LIBRARY_PATH", tmp_path / "none.so")
    with library.use_level(""):
        assert not library.get_availability()
        assert "was not built" in library.get_availability().reason
        assert "install addnorm again" in library.get_availability().reason
        assert library.levels() == ()
        assert not library.can_use_native(1, torch.randn(100, 100))


@pytest.mark.usefixtures("fresh")
def test_a_library_that_is_none_is_no_disaster(monkeypatch, tmp_path):
    path = tmp_path / "broken.so"
    path.write_bytes(b"no library")
    monkeypatch.setattr(library, "LIBRARY_PATH", path)
    with library.use_level(""):
        assert re.search(
            "cannot be loaded, kernels run in plain torch: .+", library.get_availability().reason
        )


@built
@pytest.mark.usefixtures("fresh")
def test_a_library_of_another_version_is_refused(monkeypatch):
    own = library.VERSION
    monkeypatch.setattr(library, "VERSION", 999)
    with library.use_level(""):
        assert f"has version {own}, expected 999" in library.get_availability().reason


@built
def test_the_best_level_is_taken_and_named():
    with library.use_level(""):
        assert library.get_availability().level == library.levels()[-1]
        assert (
            library.get_availability().reason
            == f"native kernels with {library.levels()[-1]} instructions"
        )


def test_the_version_is_that_of_the_header():
    header = Path(__file__).parents[2] / "native" / "common" / "addnorm.h"
    assert f"#define ADDNORM_VERSION {library.VERSION}\n" in header.read_text()


def test_it_can_be_switched_off():
    with library.use_level("off"):
        assert not library.get_availability()
        assert "ADDNORM_NATIVE=off" in library.get_availability().reason


def test_levels_that_are_none_or_not_here_are_refused(monkeypatch):
    with (
        pytest.raises(UserError, match="unknown level of ADDNORM_NATIVE 'avx'; did you mean"),
        library.use_level("avx"),
    ):
        pass
    monkeypatch.setattr(library, "levels", lambda: ("portable",))
    monkeypatch.setattr(library, "_load", lambda: object())
    with (
        pytest.raises(UserError, match=r"expected a level .* \(portable\) or off, got avx512"),
        library.use_level("avx512"),
    ):
        pass


def run(code, **environment):
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        capture_output=True,
        text=True,
        timeout=120,
        env=os.environ | environment,
    )


@built
@pytest.mark.slow
def test_the_environment_chooses():
    code = "from addnorm.kernels import library; print(library.get_availability().level)"
    assert run(code, ADDNORM_NATIVE="portable").stdout == "portable\n"


@built
def test_there_is_one_openmp_for_torch_and_the_library():
    """Others, such as scikit-learn, bring their own."""
    code = """
import re
from addnorm.kernels import library
assert library.get_availability()
with open("/proc/self/maps") as maps:
    found = set(re.findall(r"\\S*libgomp\\S*", maps.read()))
assert len(found) == 1, found
"""
    done = run(code)
    assert done.returncode == 0, done.stderr


@built
@pytest.mark.slow
def test_a_child_of_a_fork_goes_on_alone():
    code = """
import os, signal, torch
from addnorm.kernels.add_norm.native import dropout_native
torch.set_num_threads(2)
x, seed = torch.randn(1024, 64), torch.tensor(1)
wanted = dropout_native(x, seed, 0.5).numpy().tobytes()
child = os.fork()
if child == 0:
    signal.alarm(30)  # a child that hangs dies of it
    made = dropout_native(x, seed, 0.5).numpy().tobytes()  # torch itself does not survive a fork
    os._exit(0 if made == wanted else 1)
_, status = os.waitpid(child, 0)
assert status == 0, status
"""
    done = run(code)
    assert done.returncode == 0, done.stderr


@built
def test_two_threads_at_once_do_not_disturb_each_other():
    """Python's threads share the library; a call keeps nothing between calls."""
    from concurrent.futures import ThreadPoolExecutor

    x, seeds = torch.randn(512, 64), [torch.tensor(seed) for seed in range(8)]
    wanted = [native.dropout_native(x, seed, 0.5) for seed in seeds]
    with ThreadPoolExecutor(4) as pool:
        made = list(pool.map(lambda seed: native.dropout_native(x, seed, 0.5), seeds))
    assert all(torch.equal(*pair) for pair in zip(made, wanted, strict=True))
