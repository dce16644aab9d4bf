"""The command `addnorm claims`."""

import io
import json
import signal
import subprocess
import sys

import pytest
from rich.console import Console

from addnorm.claims import LayerNormLength, registry
from addnorm.claims.checks import Check
from addnorm.cli.commands.claims import VERDICT_COLUMNS, _render_table
from addnorm.comparison.statistics import Estimate

QUICK = ["run", "layer_norm_length", "rank_collapse", "--budget", "smoke"]


@pytest.fixture(autouse=True)
def no_vega(monkeypatch):
    """Skip Vega's script and static charts, which take seconds."""
    monkeypatch.setattr("addnorm.report.html.page._vega_script", lambda: "/* vega */")
    monkeypatch.setattr("addnorm.report.html.page.Chart.static_svg", "a static image")


def test_list_shows_every_claim(addnorm):
    result = addnorm("claims", "list")
    assert result.code == 0
    lines = result.out.splitlines()
    assert [line.split()[0] for line in lines[1:]] == list(registry)
    for text in ("Xiong et al., 2020", "cells, ", "no training"):
        assert text in result.out
    claims = json.loads(addnorm("claims", "list", "--json").out)
    assert [each["id"] for each in claims] == list(registry)
    assert set(claims[0]["cost"]) == {"smoke", "standard", "full"}
    assert claims[0]["statement"] and claims[0]["paper"] and claims[0]["rule"]


def test_claims_appear_in_list_and_show(addnorm):
    assert "last_gradient" in addnorm("list", "claims").out
    assert "1 / sqrt(depth) in Pre-LN" in addnorm("show", "last_gradient").out


def test_run_prints_verdicts_and_writes_report(addnorm, tmp_path):
    out = tmp_path / "claims"
    result = addnorm("claims", *QUICK, "-o", str(out))
    assert result.code == 0, result.err
    assert "layer_norm_length  held" in result.out and "largest |y . 1| / dim" in result.out
    assert "claim 1 of 2: layer_norm_length (at the start)" in result.err
    assert f"report: {out / 'claims.html'}" in result.err
    assert "<html" in (out / "claims.html").read_text()
    assert "| [`layer_norm_length`](#layer_norm_length) | held |" in (out / "claims.md").read_text()
    repeated = addnorm("claims", *QUICK, "-o", str(out), "--json")
    assert "layer_norm_length: held, already done" in repeated.err
    first, second = json.loads(repeated.out)
    assert (first["id"], first["answer"]) == ("layer_norm_length", "held")
    assert second["checks"][0]["found"]["count"] == 2


def test_claims_report_can_be_rebuilt(addnorm, tmp_path):
    addnorm("claims", *QUICK, "-o", str(tmp_path))
    (tmp_path / "claims.html").unlink()
    result = addnorm("report", str(tmp_path))
    assert (result.code, result.out) == (0, f"{tmp_path / 'claims.html'}\n")
    assert (tmp_path / "claims.html").is_file()


def test_strict_exit_code(addnorm, tmp_path, monkeypatch):
    bad = [Check("bad", Estimate(1.0, 0.1, 3), high=0)]
    monkeypatch.setattr(LayerNormLength, "checks", lambda self, rows: bad)
    lax = addnorm("claims", *QUICK, "-o", str(tmp_path))
    strict = addnorm("claims", *QUICK, "--strict", "-o", str(tmp_path))
    assert (lax.code, strict.code) == (0, 1)
    assert "layer_norm_length  not held" in strict.out


def test_crash_is_reported_with_exit_code_1(addnorm, tmp_path, monkeypatch):
    def broken(self, at):
        raise RuntimeError("out of luck")
        yield

    monkeypatch.setattr(LayerNormLength, "measure", broken)
    result = addnorm("claims", *QUICK, "-o", str(tmp_path))
    assert result.code == 1
    assert "layer_norm_length: crashed (RuntimeError: out of luck)" in result.err
    assert "rank_collapse  " in result.out
    assert "out of luck" in (tmp_path / "claims.html").read_text()


def test_interrupted_run_writes_report(addnorm, tmp_path, monkeypatch):
    def stopped(self, at):
        raise KeyboardInterrupt
        yield

    monkeypatch.setattr("addnorm.claims.RankCollapse.measure", stopped)
    result = addnorm("claims", *QUICK, "-o", str(tmp_path))
    assert result.code == 130
    assert "interrupted" in result.err
    assert (tmp_path / "claims.html").is_file()


def test_run_all_claims(addnorm, tmp_path, monkeypatch):
    ran = []
    monkeypatch.setattr(
        "addnorm.claims.run_claims", lambda names, out, **rest: ran.extend(names) or {}
    )
    monkeypatch.setattr("addnorm.comparison.engines.make_engine", lambda *_, **__: None)
    assert addnorm("claims", "run", "--all", "--budget", "smoke", "-o", str(tmp_path)).code == 0
    assert ran == list(registry)


@pytest.mark.slow
def test_claim_by_training_runs_in_processes(addnorm, tmp_path):
    arguments = ["run", "rms_norm_equals_layer_norm", "--budget", "smoke", "--workers", "1"]
    result = addnorm("claims", *arguments, "-o", str(tmp_path))
    assert result.code == 0, result.err
    assert "2 cells of 4 steps" in result.err and "2/2" in result.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "last_gradent"], "unknown claim 'last_gradent'; did you mean 'last_gradient'?"),
        (["run", "last_gradient", "--budget", "huge"], "unknown budget 'huge'"),
        (["run", "b2t_trains_deep", "--workers", "0"], "workers: expected 1 or more, got 0"),
        (["run"], "expected the names of claims or --all"),
        (["run", "last_gradient", "--all"], "expected the names of claims or --all"),
    ],
)
def test_errors_are_one_line(addnorm, arguments, message, tmp_path):
    result = addnorm("claims", *arguments, "-o", str(tmp_path / "new"))
    assert result.code == 2
    assert message in result.err and result.err.count("\n") == 1
    assert result.out == "" and not (tmp_path / "new").exists()


@pytest.mark.slow
def test_interrupted_training_is_resumed(tmp_path):
    """After Ctrl-C finished cells are kept, and the same command completes the claim."""
    arguments = ["run", "shallow_post_ln_is_as_good", "--budget", "smoke", "--workers", "1"]
    command = [sys.executable, "-m", "addnorm", "claims", *arguments, "-o", str(tmp_path)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        for line in process.stderr:
            if line.startswith("1/4 "):  # the first cell has ended
                process.send_signal(signal.SIGINT)
                break
        rest = process.communicate(timeout=600)[1]
    finally:
        process.kill()
    assert process.returncode == 130, rest
    ended = len(list(tmp_path.glob("studies/*/cells/*.json")))
    assert 1 <= ended < 4 and not (tmp_path / "shallow_post_ln_is_as_good" / "result.json").exists()
    result = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert result.returncode == 0, result.stderr
    assert f"{ended} of 4 cells are already done" in result.stderr


def test_invalid_workers_are_rejected_without_training(addnorm, tmp_path):
    result = addnorm("claims", *QUICK, "--workers", "0", "-o", str(tmp_path / "claims"))
    assert (result.code, result.out) == (2, "")
    assert "workers: expected 1 or more, got 0" in result.err
    assert not (tmp_path / "claims").exists()


def test_narrow_terminal_prints_paragraphs():
    console = Console(width=60, file=io.StringIO(), force_terminal=True)
    console.print(
        *_render_table(console, VERDICT_COLUMNS, [("a_claim", "held", "It is so. " * 12, "Held.")])
    )
    lines = console.file.getvalue().splitlines()
    assert len(lines) > 4 and "a_claim" in lines[0] and "held" in lines[1]
    assert all(len(line.rstrip()) <= 72 for line in lines)
