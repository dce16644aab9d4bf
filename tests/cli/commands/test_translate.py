"""`addnorm translate`: lines in, lines out."""

import gzip
import json

import pytest

from addnorm.decode import DecodingOptions
from addnorm.tasks import translate_texts
from tests.cli.sample_runs import ask_fixture, runs_fixture  # noqa: F401

LINES = b"ab cab\n\ndad\na bad bed"
SHORT = ("--max-new-tokens", "6", "--beam", "3")


def test_one_line_out_for_each_line_in(ask, runs):
    done = ask("translate", "translate", *SHORT, lines=LINES)
    options = DecodingOptions(beam=3, max_new=6)
    wanted = translate_texts(runs["translate"], ["ab cab", "", "dad", "a bad bed"], options)
    assert done.out == "".join(f"{each[0].text}\n" for each in wanted)
    assert (done.code, done.err) == (0, "")
    assert done.out.split("\n")[1] == ""


@pytest.mark.parametrize("chunk", [1, 2, 100])
def test_chunks_change_nothing(ask, chunk):
    whole = ask("translate", "translate", *SHORT, lines=LINES).out
    assert ask("translate", "translate", *SHORT, "--chunk-lines", chunk, lines=LINES).out == whole


def test_files_are_read_one_after_the_other(ask, tmp_path):
    (tmp_path / "one").write_bytes(b"ab cab\r\n\r\n")
    (tmp_path / "two").write_bytes(gzip.compress(b"dad\na bad bed\n"))
    done = ask("translate", "translate", tmp_path / "one", tmp_path / "two", *SHORT)
    assert done.out == ask("translate", "translate", *SHORT, lines=LINES).out


def test_nothing_in_is_nothing_out(ask):
    done = ask("translate", "translate")
    assert (done.code, done.out, done.err) == (0, "", "")


def test_the_best_are_numbered_scored_and_in_order(ask):
    done = ask("translate", "translate", *SHORT, "--nbest", "3", lines=LINES)
    rows = [line.split("\t") for line in done.out.splitlines()]
    assert [number for number, _, _ in rows] == [*"111", "2", *"333", *"444"]
    assert rows[3] == ["2", "0.0000", ""]
    assert all(float(score) < 0 for number, score, _ in rows if number != "2")


def test_scores_stand_before_texts(ask):
    plain = ask("translate", "translate", *SHORT, lines=LINES).out.splitlines()
    scored = ask("translate", "translate", *SHORT, "--scores", lines=LINES).out.splitlines()
    assert [line.partition("\t")[2] for line in scored] == plain
    assert scored[1] == "" and float(scored[0].partition("\t")[0]) < 0


def test_json_says_all(ask):
    done = ask("translate", "translate", *SHORT, "--nbest", "2", "--json", lines=LINES)
    rows = [json.loads(line) for line in done.out.splitlines()]
    assert [(row["line"], row["input"]) for row in rows] == [
        (1, "ab cab"),
        (2, ""),
        (3, "dad"),
        (4, "a bad bed"),
    ]
    assert [len(row["answers"]) for row in rows] == [2, 1, 2, 2]
    assert set(rows[0]["answers"][0]) == {"text", "score", "length", "ended"}


def test_a_prefix_begins_every_answer(ask, tmp_path):
    (tmp_path / "begins").write_text("ba\nx\n\nc\n")
    arguments = (*SHORT, "--prefix", tmp_path / "begins")
    out = ask("translate", "translate", *arguments, lines=LINES).out.split("\n")
    assert out[0].startswith("ba") and out[1] == "" and out[3].startswith("c")
    (tmp_path / "begins").write_text("ba\n")
    done = ask("translate", "translate", *arguments, lines=LINES)
    assert done.code == 2
    assert "prefixes: expected one per line, got 1 and more lines" in done.err


@pytest.mark.parametrize(("begins", "count"), [("ba\n", 1), ("a\nb\nc\nd\ne\n", 5)])
def test_prefixes_for_other_lines_are_refused_before_the_run_is_opened(
    addnorm, tmp_path, begins, count
):
    (tmp_path / "begins").write_text(begins)
    (tmp_path / "one").write_bytes(gzip.compress(LINES[:7] + b"\n"))
    (tmp_path / "two").write_bytes(b"dad\na bad bed")
    paths = [str(tmp_path / name) for name in ("no-run", "one", "two")]
    done = addnorm("translate", *paths, "--prefix", str(tmp_path / "begins"))
    assert (done.code, done.out) == (2, "")
    assert done.err == (
        f"addnorm: prefixes: expected one per line, 4 in all, got {count}; use empty lines where "
        "no prefix is forced\n"
    )


def test_surplus_prefixes_for_standard_input_are_refused_before_an_answer(ask, tmp_path):
    (tmp_path / "begins").write_text("a\nb\nc\nd\ne\n")
    done = ask("translate", "translate", *SHORT, "--prefix", tmp_path / "begins", lines=LINES)
    assert (done.code, done.out) == (2, "")
    assert "prefixes: expected one per line, got more than 4; remove some" in done.err


def test_what_was_cut_or_replaced_is_told(ask):
    lines = b"ab\xff\nab\n" + b"ab" * 2000 + b"\n"
    done = ask("translate", "translate", *SHORT, lines=lines)
    assert len(done.out.splitlines()) == 3
    assert done.err.splitlines() == [
        "addnorm: 1 of 3 lines were too long and cut",
        "addnorm: 1 of 3 lines were not UTF-8; what could not be read was replaced",
    ]


def test_attention_is_drawn(ask, tmp_path):
    page = tmp_path / "attention.html"
    done = ask("translate", "translate", *SHORT, "--attention", page, lines=LINES)
    assert done.code == 0
    assert done.err == f"addnorm: drew the attention of 3 of 4 lines into {page}\n"
    assert "Attention maps" in page.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("place", "why"),
    [("", "it is a folder"), ("file/page.html", "File exists"), ("file/deep/page.html", "Not a")],
)
def test_a_page_that_cannot_be_written_is_refused_before_an_answer(ask, tmp_path, place, why):
    (tmp_path / "file").write_text("")
    page = tmp_path / place
    done = ask("translate", "translate", *SHORT, "--attention", page, lines=LINES)
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith(f"addnorm: --attention {page} cannot be written ({why}")
    assert "wanted a file in a folder that you may write to; try" in done.err
    assert done.err.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--beam", "0"], "beam: expected a whole number from 1, got 0"),
        (["--beam", "2", "--nbest", "3"], "nbest: expected at most beam=2, got 3; try beam=3"),
        (["--nbest", "0"], "nbest: expected a whole number from 1, got 0"),
        (["--length-penalty", "much"], "a number from 0 or 'mean', got 'much'; try 0.6"),
        (
            ["--length-penalty", "-1"],
            "length_penalty: expected a number from 0 or 'mean', got -1.0",
        ),
        (["--chunk-lines", "0"], "chunk: expected a number of lines from 1, got 0"),
        (["no-such-file"], "no lines at no-such-file: there is no such file; expected a text file"),
    ],
)
def test_mistakes_are_told_in_one_line(ask, arguments, message):
    done = ask("translate", "translate", *arguments, lines=LINES)
    assert (done.code, done.out) == (2, "")
    assert message in done.err and done.err.count("\n") == 1


def test_a_run_for_something_else_is_refused(ask):
    done = ask("translate", "lm", lines=LINES)
    assert (done.code, done.out) == (2, "")
    assert done.err == (
        "addnorm: expected a run trained for 'translate', got one trained for 'lm'; try `addnorm "
        "generate`\n"
    )


def test_no_run_is_no_traceback(addnorm, tmp_path):
    done = addnorm("translate", str(tmp_path))
    assert (done.code, done.out) == (2, "")
    assert f"no run at {tmp_path}" in done.err and done.err.count("\n") == 1


def test_other_penalties_are_understood(ask):
    for penalty in ("mean", "0", "1.5"):
        assert ask("translate", "translate", "--length-penalty", penalty, lines=b"ab").code == 0
