"""`addnorm generate`: a prompt, or lines of them."""

import json

import pytest

from tests.cli.sample_runs import ask_fixture, runs_fixture  # noqa: F401

LINES = b"ab\n\ndad\n"
SHORT = ("--max-new-tokens", "5")


def test_lines_go_on(ask):
    done = ask("generate", "lm", *SHORT, lines=LINES)
    out = done.out.split("\n")
    assert len(out) == 4 and out[0].startswith("ab") and out[1] == "" and out[2].startswith("dad")
    assert (done.code, done.err) == (0, "")
    assert ask("generate", "lm", *SHORT, "--chunk-lines", "1", lines=LINES).out == done.out


def test_a_prompt_goes_on_and_a_seed_decides(ask):
    texts = {ask("generate", "lm", "--prompt", "ab", "--seed", seed).out for seed in range(5)}
    assert len(texts) > 2 and all(text.startswith("ab") for text in texts)
    assert ask("generate", "lm", "--prompt", "ab", "--seed", 3).out in texts


def test_an_empty_prompt_begins_a_document(ask):
    texts = [ask("generate", "lm", "--prompt", "", "--seed", seed).out for seed in range(3)]
    assert any(text.strip() for text in texts)


def test_a_beam_is_no_matter_of_chance(ask):
    one, two = (
        ask("generate", "lm", *SHORT, "--prompt", "ab", "--beam", "3", "--seed", s) for s in "12"
    )
    assert one.out == two.out and one.code == 0
    greedy = ask("generate", "lm", *SHORT, "--prompt", "ab", "--beam", "1").out
    cold = ask("generate", "lm", *SHORT, "--prompt", "ab", "--top-k", "1").out
    assert greedy == cold


def test_several_draws_are_numbered(ask):
    done = ask("generate", "lm", *SHORT, "--num-samples", "3", lines=LINES)
    rows = [line.split("\t") for line in done.out.splitlines()]
    assert [row[0] for row in rows] == [*"111", "2", *"333"]
    assert len({row[2] for row in rows}) > 4


def test_filters_are_passed_on(ask):
    warm = ask(
        "generate", "lm", *SHORT, "--temperature", "3", "--num-samples", "20", "--prompt", "ab"
    ).out
    cold = ask(
        "generate", "lm", *SHORT, "--temperature", "0.01", "--num-samples", "20", "--prompt", "ab"
    ).out
    texts = [{line.split("\t")[2] for line in each.splitlines()} for each in (warm, cold)]
    assert len(texts[0]) > 10 and len(texts[1]) == 1
    for setting in (("--top-p", "0.01"), ("--min-p", "1")):
        out = ask("generate", "lm", *SHORT, *setting, "--num-samples", "20", "--prompt", "ab").out
        assert {line.split("\t")[2] for line in out.splitlines()} == texts[1]


def test_json_says_all(ask):
    done = ask("generate", "lm", *SHORT, "--json", "--num-samples", "2", lines=LINES)
    rows = [json.loads(line) for line in done.out.splitlines()]
    assert [row["input"] for row in rows] == ["ab", "", "dad"]
    assert [len(row["answers"]) for row in rows] == [2, 1, 2]


def test_attention_is_drawn(ask, tmp_path):
    page = tmp_path / "attention.html"
    done = ask("generate", "lm", *SHORT, "--prompt", "ab", "--attention", page)
    assert done.code == 0 and "Attention maps" in page.read_text(encoding="utf-8")


def test_a_page_that_cannot_be_written_is_refused_before_an_answer(ask, tmp_path):
    done = ask("generate", "lm", *SHORT, "--attention", tmp_path, lines=LINES)
    assert (done.code, done.out) == (2, "")
    assert (
        f"--attention: expected a file in a writable folder, got {tmp_path} (it is a folder)"
        in done.err
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
def test_mistakes_are_told_in_one_line(ask, arguments, message):
    done = ask("generate", "lm", *arguments, lines=LINES)
    assert (done.code, done.out) == (2, "")
    assert message in done.err and done.err.count("\n") == 1


def test_a_run_for_something_else_is_refused(ask):
    done = ask("generate", "translate", lines=LINES)
    assert done.code == 2 and "try `addnorm translate`" in done.err
