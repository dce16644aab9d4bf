"""`addnorm generate`: continuations of a prompt or of lines."""

import json

import pytest

from tests.cli.sample_runs import run_command_fixture, runs_fixture  # noqa: F401

LINES = b"ab\n\ndad\n"
SHORT = ("--max-new-tokens", "5")


def test_lines_are_continued(run_command):
    result = run_command("generate", "lm", *SHORT, lines=LINES)
    out = result.out.split("\n")
    assert len(out) == 4 and out[0].startswith("ab") and out[1] == "" and out[2].startswith("dad")
    assert (result.code, result.err) == (0, "")
    assert (
        run_command("generate", "lm", *SHORT, "--chunk-lines", "1", lines=LINES).out == result.out
    )


def test_prompt_is_continued_depending_on_seed(run_command):
    texts = {
        run_command("generate", "lm", "--prompt", "ab", "--seed", seed).out for seed in range(5)
    }
    assert len(texts) > 2 and all(text.startswith("ab") for text in texts)
    assert run_command("generate", "lm", "--prompt", "ab", "--seed", 3).out in texts


def test_empty_prompt_starts_a_document(run_command):
    texts = [run_command("generate", "lm", "--prompt", "", "--seed", seed).out for seed in range(3)]
    assert any(text.strip() for text in texts)


def test_beam_search_ignores_seed(run_command):
    one, two = (
        run_command("generate", "lm", *SHORT, "--prompt", "ab", "--beam", "3", "--seed", s)
        for s in "12"
    )
    assert one.out == two.out and one.code == 0
    greedy = run_command("generate", "lm", *SHORT, "--prompt", "ab", "--beam", "1").out
    cold = run_command("generate", "lm", *SHORT, "--prompt", "ab", "--top-k", "1").out
    assert greedy == cold


def test_samples_are_numbered(run_command):
    result = run_command("generate", "lm", *SHORT, "--num-samples", "3", lines=LINES)
    rows = [line.split("\t") for line in result.out.splitlines()]
    assert [row[0] for row in rows] == [*"111", "2", *"333"]
    assert len({row[2] for row in rows}) > 4


def test_sampling_options_are_passed(run_command):
    warm = run_command(
        "generate", "lm", *SHORT, "--temperature", "3", "--num-samples", "20", "--prompt", "ab"
    ).out
    cold = run_command(
        "generate", "lm", *SHORT, "--temperature", "0.01", "--num-samples", "20", "--prompt", "ab"
    ).out
    texts = [{line.split("\t")[2] for line in each.splitlines()} for each in (warm, cold)]
    assert len(texts[0]) > 10 and len(texts[1]) == 1
    for setting in (("--top-p", "0.01"), ("--min-p", "1")):
        out = run_command(
            "generate", "lm", *SHORT, *setting, "--num-samples", "20", "--prompt", "ab"
        ).out
        assert {line.split("\t")[2] for line in out.splitlines()} == texts[1]


def test_json_contains_all_samples(run_command):
    result = run_command("generate", "lm", *SHORT, "--json", "--num-samples", "2", lines=LINES)
    rows = [json.loads(line) for line in result.out.splitlines()]
    assert [row["input"] for row in rows] == ["ab", "", "dad"]
    assert [len(row["answers"]) for row in rows] == [2, 1, 2]


def test_attention_report_is_written(run_command, tmp_path):
    page = tmp_path / "attention.html"
    result = run_command("generate", "lm", *SHORT, "--prompt", "ab", "--attention", page)
    assert result.code == 0 and "Attention maps" in page.read_text(encoding="utf-8")


def test_unwritable_attention_report_is_rejected_before_output(run_command, tmp_path):
    result = run_command("generate", "lm", *SHORT, "--attention", tmp_path, lines=LINES)
    assert (result.code, result.out) == (2, "")
    assert (
        f"--attention: expected a file in a writable folder, got {tmp_path} (it is a folder)"
        in result.err
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--temperature", "0"], "temperature: expected a number above 0, got 0.0"),
        (["--top-p", "1.5"], "top_p: expected a number above 0 and at most 1, got 1.5"),
        (["--beam", "3", "--top-k", "4"], "expected --beam or --top-k, got both; leave one out"),
        (["--beam", "1", "--top-p", "0.5"], "expected --beam or --top-p, got both"),
        (
            ["--beam", "2", "--num-samples", "3"],
            "nbest: expected at most beam=2, got 3; try beam=3",
        ),
        (
            ["--prompt", "a", "file"],
            "expected --prompt or files of prompts, got both; leave one out",
        ),
    ],
)
def test_invalid_arguments_are_one_line_errors(run_command, arguments, message):
    result = run_command("generate", "lm", *arguments, lines=LINES)
    assert (result.code, result.out) == (2, "")
    assert message in result.err and result.err.count("\n") == 1


def test_run_of_another_task_is_rejected(run_command):
    result = run_command("generate", "translate", lines=LINES)
    assert result.code == 2 and "try `addnorm translate`" in result.err
