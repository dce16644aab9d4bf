"""Campaign of hostile cases: a fixed-seed subset by default, the long one by `make torture`.

Every case derives from a seed, which is part of a failure's name or message. Environment variables:
`TORTURE_SEED` chooses the seed (default 0, `make torture` draws one) and `TORTURE_CASES` multiplies
the number of cases.
"""

import os

import pytest

from tests.torture.commands import run_in_process

SEED = int(os.environ.get("TORTURE_SEED", "0"))
CASE_FACTOR = float(os.environ.get("TORTURE_CASES", "1"))


def pytest_report_header():
    return f"torture: TORTURE_SEED={SEED} TORTURE_CASES={CASE_FACTOR:g}"


def pytest_generate_tests(metafunc):
    """Parametrize `case_seed` with the seeds of a test marked `cases(number)`."""
    if "case_seed" in metafunc.fixturenames:
        (mark,) = metafunc.definition.iter_markers("cases")
        count = max(1, round(mark.args[0] * CASE_FACTOR))
        metafunc.parametrize("case_seed", [SEED * 1_000_003 + number for number in range(count)])


@pytest.fixture(scope="session")
def texts(tmp_path_factory):
    """A folder with odd files."""
    folder = tmp_path_factory.mktemp("odd")
    (folder / "empty").touch()
    (folder / "folder").mkdir()
    (folder / "binary").write_bytes(bytes(range(256)) * 20)
    (folder / "text.txt").write_text("one line\nanother\n")
    (folder / "list.json").write_text("[]")
    (folder / "deep.json").write_text("[" * 100_000)
    (folder / "bad.yaml").write_text("a: [1\n b: {")
    (folder / "table.csv").write_text("a,b,y\n1,x,=1+1\n2,,-\n3,z,ok\n")
    (folder / "ragged.csv").write_text('a,b,y\n1\n"2,3\n')
    (folder / "loop").symlink_to(folder / "loop")
    (folder / "nowhere").symlink_to(folder / "missing")
    return folder


@pytest.fixture
def run(monkeypatch, tmp_path):
    """Return a function that runs a command in this process and checks how it ends."""
    monkeypatch.chdir(tmp_path)
    return run_in_process
