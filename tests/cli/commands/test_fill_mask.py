"""`addnorm fill-mask`: masked lines in, filled lines out."""

import json

import pytest

from addnorm.tasks import fill_mask
from tests.cli.sample_runs import run_command_fixture, runs_fixture  # noqa: F401

LINES = b"a<mask>d\n\n<mask> bed <mask>\n"
TEXTS = ["a<mask>d", "", "<mask> bed <mask>"]


def test_one_line_out_for_each_line_in(run_command, runs):
    result = run_command("fill-mask", "mlm", lines=LINES)
    expected = [result.text for result in fill_mask(runs["mlm"], TEXTS)]
    assert (result.code, result.out.splitlines(), result.err) == (0, expected, "")
    assert "<mask>" not in result.out
    assert run_command("fill-mask", "mlm", "--chunk-lines", 1, lines=LINES).out == result.out


def test_files_are_read(run_command, tmp_path):
    (tmp_path / "lines").write_bytes(LINES)
    result = run_command("fill-mask", "mlm", tmp_path / "lines")
    assert result.out == run_command("fill-mask", "mlm", lines=LINES).out


def test_top_k_prints_a_row_per_token(run_command, runs):
    rows = [
        line.split("\t")
        for line in run_command("fill-mask", "mlm", "--top-k", 3, lines=LINES).out.splitlines()
    ]
    assert [row[:2] for row in rows] == [["1", "1"]] * 3 + [["3", "1"]] * 3 + [["3", "2"]] * 3
    [first, *_] = fill_mask(runs["mlm"], TEXTS)
    assert rows[0][2:] == [f"{first.fills[0][0].probability:.4f}", first.fills[0][0].token]


def test_json_has_all_candidates(run_command):
    result = run_command("fill-mask", "mlm", "--json", lines=LINES)
    rows = [json.loads(line) for line in result.out.splitlines()]
    assert [row["input"] for row in rows] == TEXTS
    assert [[len(fills) for fills in row["masks"]] for row in rows] == [[5], [], [5, 5]]
    assert set(rows[0]["masks"][0][0]) == {"token", "probability"}
    result = run_command("fill-mask", "mlm", "--json", "--top-k", 2, lines=LINES)
    assert len(json.loads(result.out.splitlines()[0])["masks"][0]) == 2


def test_lines_without_a_mask_are_copied_and_counted(run_command):
    result = run_command("fill-mask", "mlm", lines=b"a [MASK]\n" + LINES)
    assert result.code == 0 and result.out.splitlines()[0] == "a [MASK]"
    assert result.err == "addnorm: 1 of 4 lines have no <mask>; nothing was filled in\n"


def test_long_and_invalid_lines_are_reported(run_command):
    result = run_command("fill-mask", "mlm", lines=b"<mask>" + b"ab" * 40 + b"\n\xff<mask>\n")
    assert result.err.splitlines() == [
        "addnorm: 1 of 2 lines were too long and truncated",
        "addnorm: 1 of 2 lines were not UTF-8; invalid bytes were replaced",
    ]


def test_attention_report_is_written(run_command, tmp_path):
    page = tmp_path / "attention.html"
    result = run_command("fill-mask", "mlm", "--attention", page, lines=LINES)
    assert result.code == 0 and "Attention maps" in page.read_text(encoding="utf-8")


def test_empty_input_has_empty_output(run_command):
    result = run_command("fill-mask", "mlm")
    assert (result.code, result.out, result.err) == (0, "", "")


@pytest.mark.parametrize(
    ("task", "arguments", "message"),
    [
        ("mlm", ["--top-k", "0"], "top_k: expected a whole number from 1, got 0"),
        ("mlm", ["--chunk-lines", "0"], "chunk: expected a number of lines from 1, got 0"),
        ("mlm", ["no-such-file"], "no lines at no-such-file"),
        ("lm", [], "expected a run trained for 'mlm', got one trained for 'lm'"),
    ],
)
def test_invalid_arguments_are_one_line_errors(run_command, task, arguments, message):
    result = run_command("fill-mask", task, *arguments, lines=LINES)
    assert (result.code, result.out) == (2, "")
    assert message in result.err and result.err.count("\n") == 1
