"""`addnorm fill-mask`: lines with masks in, filled lines out."""

import json

import pytest

from addnorm.tasks import fill_mask
from tests.cli.sample_runs import ask_fixture, runs_fixture  # noqa: F401

LINES = b"a<mask>d\n\n<mask> bed <mask>\n"
TEXTS = ["a<mask>d", "", "<mask> bed <mask>"]


def test_one_line_out_for_each_line_in(ask, runs):
    done = ask("fill-mask", "mlm", lines=LINES)
    expected = [result.text for result in fill_mask(runs["mlm"], TEXTS)]
    assert (done.code, done.out.splitlines(), done.err) == (0, expected, "")
    assert "<mask>" not in done.out
    assert ask("fill-mask", "mlm", "--chunk-lines", 1, lines=LINES).out == done.out


def test_files_are_read(ask, tmp_path):
    (tmp_path / "lines").write_bytes(LINES)
    done = ask("fill-mask", "mlm", tmp_path / "lines")
    assert done.out == ask("fill-mask", "mlm", lines=LINES).out


def test_top_k_prints_a_row_per_token(ask, runs):
    rows = [
        line.split("\t")
        for line in ask("fill-mask", "mlm", "--top-k", 3, lines=LINES).out.splitlines()
    ]
    assert [row[:2] for row in rows] == [["1", "1"]] * 3 + [["3", "1"]] * 3 + [["3", "2"]] * 3
    [first, *_] = fill_mask(runs["mlm"], TEXTS)
    assert rows[0][2:] == [f"{first.fills[0][0].probability:.4f}", first.fills[0][0].token]


def test_json_has_all_candidates(ask):
    done = ask("fill-mask", "mlm", "--json", lines=LINES)
    rows = [json.loads(line) for line in done.out.splitlines()]
    assert [row["input"] for row in rows] == TEXTS
    assert [[len(fills) for fills in row["masks"]] for row in rows] == [[5], [], [5, 5]]
    assert set(rows[0]["masks"][0][0]) == {"token", "probability"}
    done = ask("fill-mask", "mlm", "--json", "--top-k", 2, lines=LINES)
    assert len(json.loads(done.out.splitlines()[0])["masks"][0]) == 2


def test_lines_without_a_mask_are_copied_and_counted(ask):
    done = ask("fill-mask", "mlm", lines=b"a [MASK]\n" + LINES)
    assert done.code == 0 and done.out.splitlines()[0] == "a [MASK]"
    assert done.err == "addnorm: 1 of 4 lines have no <mask>; nothing was filled in\n"


def test_long_and_invalid_lines_are_reported(ask):
    done = ask("fill-mask", "mlm", lines=b"<mask>" + b"ab" * 40 + b"\n\xff<mask>\n")
    assert done.err.splitlines() == [
        "addnorm: 1 of 2 lines were too long and cut",
        "addnorm: 1 of 2 lines were not UTF-8; what could not be read was replaced",
    ]


def test_attention_is_written(ask, tmp_path):
    page = tmp_path / "attention.html"
    done = ask("fill-mask", "mlm", "--attention", page, lines=LINES)
    assert done.code == 0 and "Attention maps" in page.read_text(encoding="utf-8")


def test_nothing_in_is_nothing_out(ask):
    done = ask("fill-mask", "mlm")
    assert (done.code, done.out, done.err) == (0, "", "")


@pytest.mark.parametrize(
    ("task", "arguments", "message"),
    [
        ("mlm", ["--top-k", "0"], "top_k: expected a whole number from 1, got 0"),
        ("mlm", ["--chunk-lines", "0"], "chunk: expected a number of lines from 1, got 0"),
        ("mlm", ["no-such-file"], "no lines at no-such-file"),
        ("lm", [], "expected a run trained for 'mlm', got one trained for 'lm'"),
    ],
)
def test_mistakes_are_reported_in_one_line(ask, task, arguments, message):
    done = ask("fill-mask", task, *arguments, lines=LINES)
    assert (done.code, done.out) == (2, "")
    assert message in done.err and done.err.count("\n") == 1
