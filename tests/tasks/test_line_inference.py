"""Tasks that map lines to lines: order, chunks, prefixes and length limits."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from addnorm.core.errors import UserError
from addnorm.data.batches import iter_chunks
from addnorm.data.tokenizer import START
from addnorm.decode import DecodingOptions
from addnorm.tasks import InputWarnings, classify_texts, generate_texts, translate_texts
from tests.tasks.sample_runs import make_run

LINES = ["ab cab", "", "dad", "  ", "a bad bed for dad", "xyz€", "b"]
SHORT = DecodingOptions(beam=2, max_new=6)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    return {
        task: make_run(task, tmp_path_factory.mktemp(task))
        for task in ("translate", "lm", "classify")
    }


def run_task(run, lines, **options):
    """Return the best output of the run's task for each line."""
    if run.task == "translate":
        return [each[0].text for each in translate_texts(run, lines, SHORT, **options)]
    if run.task == "lm":
        sampling = DecodingOptions(temperature=1.5, max_new=6)
        return [each[0].text for each in generate_texts(run, lines, sampling, **options)]
    return [each.label for each in classify_texts(run, lines, **options)]


@pytest.mark.parametrize("task", ["translate", "lm", "classify"])
def test_each_line_has_one_output_and_empty_lines_an_empty_one(runs, task):
    outputs = run_task(runs[task], LINES)
    assert len(outputs) == len(LINES)
    assert [index for index, output in enumerate(outputs) if not output] == [1, 3]


@pytest.mark.parametrize("task", ["translate", "lm", "classify"])
def test_outputs_do_not_depend_on_chunk_size(runs, task):
    lines = LINES * 3
    expected = run_task(runs[task], lines)
    assert run_task(runs[task], lines, chunk=1) == expected
    assert run_task(runs[task], lines, chunk=4) == expected


@pytest.mark.parametrize("task", ["translate", "lm", "classify"])
def test_input_is_read_one_chunk_at_a_time(runs, task):
    """Endless input produces outputs."""
    read = []

    def endless_lines():
        while True:
            read.append(1)
            yield "ab"

    outputs = {
        "translate": lambda: translate_texts(runs[task], endless_lines(), SHORT, chunk=3),
        "lm": lambda: generate_texts(
            runs[task], endless_lines(), DecodingOptions(max_new=2), chunk=3
        ),
        "classify": lambda: classify_texts(runs[task], endless_lines(), chunk=3),
    }[task]()
    next(outputs)
    assert len(read) == 3
    assert [bool(next(outputs)) for _ in range(4)] == [True] * 4
    assert len(read) == 6


@settings(max_examples=10)
@given(st.lists(st.text(max_size=12), max_size=5))
def test_any_text_has_an_output(runs, lines):
    for run in runs.values():
        assert len(run_task(run, lines)) == len(lines)


def test_output_starts_with_prefix(runs):
    lines, prefixes = ["ab cab", "dad", ""], ["bad", "", "a"]
    outputs = translate_texts(
        runs["translate"], lines, DecodingOptions(beam=3, nbest=2, max_new=4), prefixes=prefixes
    )
    outputs = list(outputs)
    assert all(each.text.startswith("bad") for each in outputs[0])
    assert [len(each) for each in outputs] == [2, 2, 1]
    assert outputs[2][0].text == ""


@pytest.mark.parametrize(
    ("prefixes", "message"),
    [
        (["a"], "prefixes: expected one per line, got 1 and more lines; use an empty line"),
        (["a", "b", "c"], "prefixes: expected one per line, got more than 2"),
    ],
)
def test_number_of_prefixes_must_equal_number_of_lines(runs, prefixes, message):
    with pytest.raises(UserError, match=message):
        list(translate_texts(runs["translate"], ["ab", "cd"], SHORT, prefixes=prefixes))


@pytest.mark.parametrize(("chunk", "num_outputs"), [(1, 2), (2, 2), (3, 0), (512, 0)])
def test_surplus_prefixes_are_rejected_when_the_lines_end(runs, chunk, num_outputs):
    """The error precedes the outputs unless the lines fill a chunk: more lines might follow."""
    prefixes = ["a", "b", "c"]
    outputs = translate_texts(
        runs["translate"], ["ab", "cd"], SHORT, prefixes=prefixes, chunk=chunk
    )
    for _ in range(num_outputs):
        next(outputs)
    with pytest.raises(UserError, match="got more than 2"):
        next(outputs)


def test_output_length_is_limited_by_source_length(runs):
    options = DecodingOptions(ratio=1.0, extra=2)
    [[output]] = translate_texts(runs["translate"], ["abc"], options)
    assert len(output.tokens) + output.ended <= 5


def test_long_inputs_are_truncated_and_counted(runs):
    warnings = InputWarnings()
    options = DecodingOptions(max_source=4, max_new=3)
    outputs = list(
        translate_texts(runs["translate"], ["abcabc", "abc", "abcd"], options, warnings=warnings)
    )
    assert (warnings.num_truncated, warnings.num_lines) == (2, 3)
    assert [len(each[0].source) for each in outputs] == [4, 4, 4]
    warnings = InputWarnings()
    list(classify_texts(runs["classify"], ["ab" * 40, "ab"], warnings=warnings))
    assert (warnings.num_truncated, warnings.num_lines) == (1, 2)


def test_long_prompt_keeps_its_end(runs):
    warnings = InputWarnings()
    options = DecodingOptions(max_source=4, max_new=3)
    [[output]] = generate_texts(runs["lm"], ["abcdabcda"], options, warnings=warnings)
    assert warnings.num_truncated == 1
    assert output.text.startswith("abcdabcda")
    assert runs["lm"].tokenizer.decode([list(output.tokens[:3])]) == ["cda"]


def test_learned_positions_limit_the_length(tmp_path):
    run = make_run("lm", tmp_path, positions="learned(length=8)")
    for prompt in ("ab", "abcdabcdabcd", ""):
        [[output]] = generate_texts(run, [prompt], DecodingOptions(max_new=50), allow_blank=True)
        assert len(output.tokens) + output.ended <= 8
        assert len(output.tokens) + output.ended == 8 or output.ended
    run = make_run("translate", tmp_path / "pair", positions="learned(length=8)")
    warnings = InputWarnings()
    [[output], _] = translate_texts(
        run, ["abcdabcdabcd", "ab"], DecodingOptions(beam=2), warnings=warnings
    )
    assert warnings.num_truncated == 1 and len(output.source) == 8
    with pytest.raises(
        UserError, match=r"prefix of line 1: expected fewer than 8 tokens, .* got 9"
    ):
        list(translate_texts(run, ["ab"], SHORT, prefixes=["abcdabcda"]))


def test_empty_prompt_starts_a_document_if_allowed(runs):
    [[output]] = generate_texts(
        runs["lm"], [""], DecodingOptions(max_new=9, temperature=1.0), allow_blank=True
    )
    assert output.score < 0


def test_outputs_start_with_unchanged_prompts(tmp_path):
    run = make_run("lm", tmp_path, kind="bpe")
    prompts = ["ab cab", "ab ", "  Öde €", "a\tb"]
    for prompt, [output] in zip(
        prompts, generate_texts(run, prompts, DecodingOptions(max_new=5)), strict=True
    ):
        assert output.text.startswith(prompt.rstrip(" "))


def test_probabilities_equal_model_softmax(runs):
    run = runs["classify"]
    [prediction] = classify_texts(run, ["a bad cab"])
    ids = torch.tensor([[START, *run.tokenizer.encode(["a bad cab"])[0]]])
    expected = run.model(ids).softmax(-1)[0]
    assert prediction.probabilities == pytest.approx(expected.tolist())
    assert prediction.label == run.labels[int(expected.argmax())]
    assert prediction.probability == max(prediction.probabilities)


def test_labels_do_not_depend_on_batching(runs):
    lines = ["ab", "a bad cab for dad", "dad", "add a bed"]
    singles = [next(classify_texts(runs["classify"], [line])) for line in lines]
    for batched, single in zip(classify_texts(runs["classify"], lines), singles, strict=True):
        assert batched.probabilities == pytest.approx(single.probabilities)


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
def test_run_of_another_task_is_rejected(runs, call, message):
    with pytest.raises(UserError, match=message):
        call(runs)


def test_iter_chunks():
    assert list(iter_chunks(range(5), 2)) == [[0, 1], [2, 3], [4]]
    with pytest.raises(UserError, match="chunk: expected a number of lines from 1, got 0"):
        list(iter_chunks([], 0))
