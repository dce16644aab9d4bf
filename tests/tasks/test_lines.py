"""Answers to lines: one for each, in order, whatever the lines are."""

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from addnorm.core.errors import UserError
from addnorm.data.batches import iter_chunks
from addnorm.data.tokenizer import START
from addnorm.decode import DecodingOptions
from addnorm.tasks import InputWarnings, classify_texts, generate_texts, translate_texts
from tests.tasks.sample_runs import run_of

LINES = ["ab cab", "", "dad", "  ", "a bad bed for dad", "xyz€", "b"]
SHORT = DecodingOptions(beam=2, max_new=6)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    return {
        task: run_of(task, tmp_path_factory.mktemp(task))
        for task in ("translate", "lm", "classify")
    }


def answers_of(run, lines, **options):
    """Whatever the task: the answer to each line."""
    if run.task == "translate":
        return [each[0].text for each in translate_texts(run, lines, SHORT, **options)]
    if run.task == "lm":
        draws = DecodingOptions(temperature=1.5, max_new=6)
        return [each[0].text for each in generate_texts(run, lines, draws, **options)]
    return [each.label for each in classify_texts(run, lines, **options)]


@pytest.mark.parametrize("task", ["translate", "lm", "classify"])
def test_one_answer_a_line_in_order_and_empty_for_empty(runs, task):
    found = answers_of(runs[task], LINES)
    assert len(found) == len(LINES)
    assert [place for place, answer in enumerate(found) if not answer] == [1, 3]


@pytest.mark.parametrize("task", ["translate", "lm", "classify"])
def test_chunks_change_nothing(runs, task):
    lines = LINES * 3
    whole = answers_of(runs[task], lines)
    assert answers_of(runs[task], lines, chunk=1) == whole
    assert answers_of(runs[task], lines, chunk=4) == whole


@pytest.mark.parametrize("task", ["translate", "lm", "classify"])
def test_lines_are_read_a_chunk_at_a_time(runs, task):
    """Endless input is answered."""
    read = []

    def endless():
        while True:
            read.append(1)
            yield "ab"

    made = {
        "translate": lambda: translate_texts(runs[task], endless(), SHORT, chunk=3),
        "lm": lambda: generate_texts(runs[task], endless(), DecodingOptions(max_new=2), chunk=3),
        "classify": lambda: classify_texts(runs[task], endless(), chunk=3),
    }[task]()
    next(made)
    assert len(read) == 3
    assert [bool(next(made)) for _ in range(4)] == [True] * 4
    assert len(read) == 6


@settings(deadline=None, max_examples=10, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.text(max_size=12), max_size=5))
def test_any_text_is_answered(runs, lines):
    for run in runs.values():
        assert len(answers_of(run, lines)) == len(lines)


def test_a_prefix_begins_the_answer(runs):
    lines, begins = ["ab cab", "dad", ""], ["bad", "", "a"]
    found = translate_texts(
        runs["translate"], lines, DecodingOptions(beam=3, nbest=2, max_new=4), prefixes=begins
    )
    found = list(found)
    assert all(each.text.startswith("bad") for each in found[0])
    assert [len(each) for each in found] == [2, 2, 1]
    assert found[2][0].text == ""


@pytest.mark.parametrize(
    ("begins", "message"),
    [
        (["a"], "prefixes: expected one per line, got 1 and more lines; use an empty line"),
        (["a", "b", "c"], "prefixes: expected one per line, got more than 2"),
    ],
)
def test_prefixes_are_as_many_as_lines(runs, begins, message):
    with pytest.raises(UserError, match=message):
        list(translate_texts(runs["translate"], ["ab", "cd"], SHORT, prefixes=begins))


@pytest.mark.parametrize(("chunk", "answered"), [(1, 2), (2, 2), (3, 0), (512, 0)])
def test_surplus_prefixes_are_noticed_as_soon_as_the_lines_end(runs, chunk, answered):
    """That is before the answers, unless the last lines fill a chunk: more might be typed."""
    begins = ["a", "b", "c"]
    found = translate_texts(runs["translate"], ["ab", "cd"], SHORT, prefixes=begins, chunk=chunk)
    for _ in range(answered):
        next(found)
    with pytest.raises(UserError, match="got more than 2"):
        next(found)


def test_answers_are_no_longer_than_the_source_allows(runs):
    options = DecodingOptions(ratio=1.0, extra=2)
    [[answer]] = translate_texts(runs["translate"], ["abc"], options)
    assert len(answer.tokens) + answer.ended <= 5


def test_what_is_too_long_is_cut_and_counted(runs):
    notes = InputWarnings()
    options = DecodingOptions(max_source=4, max_new=3)
    found = list(
        translate_texts(runs["translate"], ["abcabc", "abc", "abcd"], options, warnings=notes)
    )
    assert (notes.num_truncated, notes.num_lines) == (2, 3)
    assert [len(each[0].source) for each in found] == [4, 4, 4]
    notes = InputWarnings()
    list(classify_texts(runs["classify"], ["ab" * 40, "ab"], warnings=notes))
    assert (notes.num_truncated, notes.num_lines) == (1, 2)


def test_a_long_prompt_is_read_from_its_end(runs):
    notes = InputWarnings()
    options = DecodingOptions(max_source=4, max_new=3)
    [[answer]] = generate_texts(runs["lm"], ["abcdabcda"], options, warnings=notes)
    assert notes.num_truncated == 1
    assert answer.text.startswith("abcdabcda")
    assert runs["lm"].tokenizer.decode([list(answer.tokens[:3])]) == ["cda"]


def test_learned_positions_are_not_overrun(tmp_path):
    run = run_of("lm", tmp_path, positions="learned(length=8)")
    for prompt in ("ab", "abcdabcdabcd", ""):
        [[answer]] = generate_texts(run, [prompt], DecodingOptions(max_new=50), allow_blank=True)
        assert len(answer.tokens) + answer.ended <= 8
        assert len(answer.tokens) + answer.ended == 8 or answer.ended
    run = run_of("translate", tmp_path / "pair", positions="learned(length=8)")
    notes = InputWarnings()
    [[answer], _] = translate_texts(
        run, ["abcdabcdabcd", "ab"], DecodingOptions(beam=2), warnings=notes
    )
    assert notes.num_truncated == 1 and len(answer.source) == 8
    with pytest.raises(
        UserError, match=r"prefix of line 1: expected fewer than 8 tokens, .* got 9"
    ):
        list(translate_texts(run, ["ab"], SHORT, prefixes=["abcdabcda"]))


def test_an_empty_prompt_begins_a_document_if_wanted(runs):
    [[answer]] = generate_texts(
        runs["lm"], [""], DecodingOptions(max_new=9, temperature=1.0), allow_blank=True
    )
    assert answer.score < 0


def test_prompts_stay_as_they_were_given(tmp_path):
    run = run_of("lm", tmp_path, kind="bpe")
    prompts = ["ab cab", "ab ", "  Öde €", "a\tb"]
    for prompt, [answer] in zip(
        prompts, generate_texts(run, prompts, DecodingOptions(max_new=5)), strict=True
    ):
        assert answer.text.startswith(prompt.rstrip(" "))


def test_probabilities_are_those_of_the_model(runs):
    run = runs["classify"]
    [verdict] = classify_texts(run, ["a bad cab"])
    ids = torch.tensor([[START, *run.tokenizer.encode(["a bad cab"])[0]]])
    wanted = run.model(ids).softmax(-1)[0]
    assert verdict.probabilities == pytest.approx(wanted.tolist())
    assert verdict.label == run.labels[int(wanted.argmax())]
    assert verdict.probability == max(verdict.probabilities)


def test_several_labels_are_given_in_a_batch_as_alone(runs):
    lines = ["ab", "a bad cab for dad", "dad", "add a bed"]
    alone = [next(classify_texts(runs["classify"], [line])) for line in lines]
    for together, one in zip(classify_texts(runs["classify"], lines), alone, strict=True):
        assert together.probabilities == pytest.approx(one.probabilities)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda runs: translate_texts(runs["lm"], []),
            "a run trained for 'translate', got one trained for 'lm'; try",
        ),
        (lambda runs: generate_texts(runs["classify"], []), "try `addnorm classify`"),
        (lambda runs: classify_texts(runs["translate"], []), "try `addnorm translate`"),
    ],
)
def test_a_run_for_something_else_is_refused_at_once(runs, call, message):
    with pytest.raises(UserError, match=message):
        call(runs)


def test_chunks():
    assert list(iter_chunks(range(5), 2)) == [[0, 1], [2, 3], [4]]
    with pytest.raises(UserError, match="chunk: expected a number of lines from 1, got 0"):
        list(iter_chunks([], 0))
