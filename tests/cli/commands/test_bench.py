"""`addnorm bench`: table, JSON and one-line errors."""

import json

import pytest

from addnorm.bench import Benchmark
from addnorm.bench import doctor as doctors
from addnorm.cli.main import main
from addnorm.core.errors import UserError


@pytest.fixture
def quick(monkeypatch):
    """Replace the doctor benchmarks by a fast one and one whose peer is missing."""

    def make_benchmarks():
        yield Benchmark(
            "quick",
            lambda: {"addnorm": lambda: None, "slow": lambda: sum(range(20000))},
            {"slow": 2.0},
        )

        def absent():
            raise UserError("no peer here; try pip install peer")

        yield Benchmark("absent", absent, {})

    monkeypatch.setattr(doctors, "make_benchmarks", make_benchmarks)


def test_table_has_goals_and_limits(quick, capsys):
    assert main(["bench", "doctor", "--rounds", "3"]) == 0
    out, err = capsys.readouterr()
    assert "quick" in out and "slow" in out and "GFLOP/s" in out
    assert ": no peer here" in err


def test_json_rows(quick, capsys):
    assert (
        main(["bench", "doctor", "--rounds", "3", "--json", "--threads", "1", "--threads", "2"])
        == 0
    )
    rows = json.loads(capsys.readouterr().out)
    assert [row["threads"] for row in rows] == [1, 2]
    assert {"name", "ratio", "goal", "peer", "threads", "dtype"} <= set(rows[0])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nonsense"], "nonsense"),
        (["doctor", "--rounds", "0"], "rounds"),
        (["doctor", "--threads", "0"], "threads"),
    ],
)
def test_invalid_arguments_are_one_line_errors(quick, capsys, arguments, message):
    assert main(["bench", *arguments]) == 2
    err = capsys.readouterr().err
    assert message in err and err.count("\n") == 1
