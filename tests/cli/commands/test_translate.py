"""`addnorm translate`: source lines in, translated lines out."""

import gzip
import json

import pytest

from addnorm.decode import DecodingOptions
from addnorm.tasks import translate_texts
from tests.cli.sample_runs import run_command_fixture, runs_fixture  # noqa: F401

LINES = b"ab cab\n\ndad\na bad bed"
SHORT = ("--max-new-tokens", "6", "--beam", "3")


def test_one_line_out_for_each_line_in(run_command, runs):
    result = run_command("translate", "translate", *SHORT, lines=LINES)
    options = DecodingOptions(beam=3, max_new=6)
    expected = translate_texts(runs["translate"], ["ab cab", "", "dad", "a bad bed"], options)
    assert result.out == "".join(f"{each[0].text}\n" for each in expected)
    assert (result.code, result.err) == (0, "")
    assert result.out.split("\n")[1] == ""


@pytest.mark.parametrize("chunk", [1, 2, 100])
def test_outputs_do_not_depend_on_chunk_size(run_command, chunk):
    expected = run_command("translate", "translate", *SHORT, lines=LINES).out
    assert (
        run_command("translate", "translate", *SHORT, "--chunk-lines", chunk, lines=LINES).out
        == expected
    )


def test_files_are_read_in_order(run_command, tmp_path):
    (tmp_path / "one").write_bytes(b"ab cab\r\n\r\n")
    (tmp_path / "two").write_bytes(gzip.compress(b"dad\na bad bed\n"))
    result = run_command("translate", "translate", tmp_path / "one", tmp_path / "two", *SHORT)
    assert result.out == run_command("translate", "translate", *SHORT, lines=LINES).out


def test_empty_input_has_empty_output(run_command):
    result = run_command("translate", "translate")
    assert (result.code, result.out, result.err) == (0, "", "")


def test_nbest_prints_number_score_and_text(run_command):
    result = run_command("translate", "translate", *SHORT, "--nbest", "3", lines=LINES)
    rows = [line.split("\t") for line in result.out.splitlines()]
    assert [number for number, _, _ in rows] == [*"111", "2", *"333", *"444"]
    assert rows[3] == ["2", "0.0000", ""]
    assert all(float(score) < 0 for number, score, _ in rows if number != "2")


def test_scores_precede_texts(run_command):
    plain = run_command("translate", "translate", *SHORT, lines=LINES).out.splitlines()
    scored = run_command("translate", "translate", *SHORT, "--scores", lines=LINES).out.splitlines()
    assert [line.partition("\t")[2] for line in scored] == plain
    assert scored[1] == "" and float(scored[0].partition("\t")[0]) < 0


def test_json_contains_all_hypotheses(run_command):
    result = run_command("translate", "translate", *SHORT, "--nbest", "2", "--json", lines=LINES)
    rows = [json.loads(line) for line in result.out.splitlines()]
    assert [(row["line"], row["input"]) for row in rows] == [
        (1, "ab cab"),
        (2, ""),
        (3, "dad"),
        (4, "a bad bed"),
    ]
    assert [len(row["answers"]) for row in rows] == [2, 1, 2, 2]
    assert set(rows[0]["answers"][0]) == {"text", "score", "length", "ended"}


def test_outputs_start_with_prefixes(run_command, tmp_path):
    (tmp_path / "prefixes").write_text("ba\nx\n\nc\n")
    arguments = (*SHORT, "--prefix", tmp_path / "prefixes")
    out = run_command("translate", "translate", *arguments, lines=LINES).out.split("\n")
    assert out[0].startswith("ba") and out[1] == "" and out[3].startswith("c")
    (tmp_path / "prefixes").write_text("ba\n")
    result = run_command("translate", "translate", *arguments, lines=LINES)
    assert result.code == 2
    assert "prefixes: expected one per line, got 1 and more lines" in result.err


@pytest.mark.parametrize(("prefixes", "count"), [("ba\n", 1), ("a\nb\nc\nd\ne\n", 5)])
def test_wrong_number_of_prefixes_is_rejected_before_the_run_is_opened(
    addnorm, tmp_path, prefixes, count
):
    (tmp_path / "prefixes").write_text(prefixes)
    (tmp_path / "one").write_bytes(gzip.compress(LINES[:7] + b"\n"))
    (tmp_path / "two").write_bytes(b"dad\na bad bed")
    paths = [str(tmp_path / name) for name in ("no-run", "one", "two")]
    result = addnorm("translate", *paths, "--prefix", str(tmp_path / "prefixes"))
    assert (result.code, result.out) == (2, "")
    assert result.err == (
        f"addnorm: prefixes: expected one per line, 4 in all, got {count}; use empty lines where "
        "no prefix is forced\n"
    )


def test_surplus_prefixes_for_standard_input_are_rejected_before_output(run_command, tmp_path):
    (tmp_path / "prefixes").write_text("a\nb\nc\nd\ne\n")
    result = run_command(
        "translate", "translate", *SHORT, "--prefix", tmp_path / "prefixes", lines=LINES
    )
    assert (result.code, result.out) == (2, "")
    assert "prefixes: expected one per line, got more than 4; remove some" in result.err


def test_truncated_and_invalid_lines_are_reported(run_command):
    lines = b"ab\xff\nab\n" + b"ab" * 2000 + b"\n"
    result = run_command("translate", "translate", *SHORT, lines=lines)
    assert len(result.out.splitlines()) == 3
    assert result.err.splitlines() == [
        "addnorm: 1 of 3 lines were too long and truncated",
        "addnorm: 1 of 3 lines were not UTF-8; invalid bytes were replaced",
    ]


def test_attention_report_is_written(run_command, tmp_path):
    page = tmp_path / "attention.html"
    result = run_command("translate", "translate", *SHORT, "--attention", page, lines=LINES)
    assert result.code == 0
    assert result.err == f"addnorm: wrote attention maps of 3 of 4 lines to {page}\n"
    assert "Attention maps" in page.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("location", "reason"),
    [("", "it is a folder"), ("file/page.html", "File exists"), ("file/deep/page.html", "Not a")],
)
def test_unwritable_attention_report_is_rejected_before_output(
    run_command, tmp_path, location, reason
):
    (tmp_path / "file").write_text("")
    page = tmp_path / location
    result = run_command("translate", "translate", *SHORT, "--attention", page, lines=LINES)
    assert (result.code, result.out) == (2, "")
    expected = "addnorm: --attention: expected a file in a writable folder, got"
    assert result.err.startswith(f"{expected} {page} ({reason}")
    assert "; try --attention attention.html" in result.err
    assert result.err.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--beam", "0"], "beam: expected a whole number from 1 to 10,000, got 0"),
        (["--beam", "2", "--nbest", "3"], "nbest: expected at most beam=2, got 3; try beam=3"),
        (["--nbest", "0"], "nbest: expected a whole number from 1 to 10,000, got 0"),
        (["--length-penalty", "much"], "a number from 0 or 'mean', got 'much'; try 0.6"),
        (
            ["--length-penalty", "-1"],
            "length_penalty: expected a number from 0 or 'mean', got -1.0",
        ),
        (["--chunk-lines", "0"], "chunk: expected a number of lines from 1, got 0"),
        (["no-such-file"], "no lines at no-such-file: there is no such file; expected a text file"),
    ],
)
def test_invalid_arguments_are_one_line_errors(run_command, arguments, message):
    result = run_command("translate", "translate", *arguments, lines=LINES)
    assert (result.code, result.out) == (2, "")
    assert message in result.err and result.err.count("\n") == 1


def test_run_of_another_task_is_rejected(run_command):
    result = run_command("translate", "lm", lines=LINES)
    assert (result.code, result.out) == (2, "")
    assert result.err == (
        "addnorm: expected a run trained for 'translate', got one trained for 'lm'; try `addnorm "
        "generate`\n"
    )


def test_missing_run_is_a_one_line_error(addnorm, tmp_path):
    result = addnorm("translate", str(tmp_path))
    assert (result.code, result.out) == (2, "")
    assert f"no run at {tmp_path}" in result.err and result.err.count("\n") == 1


def test_length_penalties_are_accepted(run_command):
    for penalty in ("mean", "0", "1.5"):
        assert (
            run_command("translate", "translate", "--length-penalty", penalty, lines=b"ab").code
            == 0
        )
