"""Beam search against a reference implementation, exhaustive search and step counts."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from addnorm.decode import DecodingOptions, Sentence, decode
from addnorm.decode.beam import beam_search, top_candidates
from addnorm.decode.stepper import make_stepper
from tests.decode.tiny_models import (
    END,
    SpyStepper,
    all_outputs,
    make_endless_model,
    make_model,
    make_sentences,
    reference_beam_search,
    sequence_score,
    tokens_with_end,
)

KINDS = ["seq2seq", "lm"]
PENALTIES = [0.0, 0.6, 1.5, "mean"]


@settings(max_examples=6)
@given(
    st.sampled_from(KINDS),
    st.integers(0, 1000),
    st.integers(2, 5),
    st.sampled_from(PENALTIES),
    st.data(),
)
def test_beam_search_matches_reference(kind, seed, beam, penalty, data):
    nbest = data.draw(st.integers(1, beam))
    options = DecodingOptions(beam=beam, nbest=nbest, length_penalty=penalty)
    model, rows = make_model(kind, seed % 3), make_sentences(kind, seed, count=4)
    for sentence, hypotheses in zip(rows, decode(model, rows, options), strict=True):
        expected = reference_beam_search(model, sentence, options)
        assert tokens_with_end(hypotheses) == [tokens for tokens, _ in expected]
        assert [each.score for each in hypotheses] == pytest.approx(
            [score for _, score in expected]
        )


@pytest.mark.parametrize("penalty", PENALTIES)
@pytest.mark.parametrize("kind", KINDS)
def test_wide_beam_finds_the_best_outputs(kind, penalty):
    model = make_model(kind, seed=2)
    options = DecodingOptions(beam=60, nbest=5, length_penalty=penalty, stop="exact")
    rows = make_sentences(kind, seed=5, count=3, limit=3)
    for sentence, hypotheses in zip(rows, decode(model, rows, options), strict=True):
        scores = {
            tokens: sequence_score(model, sentence, tokens) for tokens in all_outputs(sentence, 7)
        }
        best = sorted(scores, key=lambda tokens: -scores[tokens] / options.penalty(len(tokens)))
        assert tokens_with_end(hypotheses) == best[:5]
        assert [each.score for each in hypotheses] == pytest.approx(
            [scores[each] for each in best[:5]]
        )


@pytest.mark.parametrize("penalty", PENALTIES)
@pytest.mark.parametrize("kind", KINDS)
def test_beam_of_one_is_greedy(kind, penalty):
    model, rows = make_model(kind, seed=1), make_sentences(kind, seed=3, count=12)
    options = DecodingOptions(length_penalty=penalty)
    with torch.inference_mode():
        results = beam_search(make_stepper(model, rows), rows, options)
    greedy = decode(model, rows, options)
    assert [tokens_with_end(each) for each in results] == [tokens_with_end(each) for each in greedy]
    assert [each.score for [each] in results] == pytest.approx([each.score for [each] in greedy])


def test_narrow_beams_score_at_most_as_well_as_exact_search():
    model, rows = make_model("lm", seed=4), make_sentences("lm", seed=9, count=10, limit=4)
    exact = [
        each[0].score for each in decode(model, rows, DecodingOptions(beam=120, length_penalty=0))
    ]
    for beam in (1, 2, 4):
        results = decode(model, rows, DecodingOptions(beam=beam, length_penalty=0))
        assert all(
            best[0].score <= bound + 1e-9 for best, bound in zip(results, exact, strict=True)
        )


def test_ties_are_broken_by_hypothesis_and_token():
    logits, scores = torch.zeros(2, 5), torch.zeros(1, 2)
    values, token, parent = top_candidates(logits, logits.logsumexp(-1, keepdim=True), scores, 7)
    assert token.tolist() == [[0, 1, 2, 3, 4, 0, 1]]
    assert parent.tolist() == [[0, 0, 0, 0, 0, 1, 1]]
    assert values.unique().numel() == 1


def test_uniform_model_generates_the_lowest_tokens():
    model = make_model("lm")
    with torch.no_grad():
        model.head.table.zero_()
    [hypotheses] = decode(
        model, [Sentence((1,), 2)], DecodingOptions(beam=3, nbest=3, length_penalty=0)
    )
    assert tokens_with_end(hypotheses) == [(END,), (4, END), (4, 4)]


def test_finished_sentences_are_not_stepped():
    model = make_endless_model("seq2seq")
    rows = [Sentence((1,), limit, (5, 6, END)) for limit in (2, 9, 4)]
    with torch.inference_mode():
        spy = SpyStepper(make_stepper(model, rows))
        beam_search(spy, rows, DecodingOptions(beam=3))
    assert spy.steps == [9, 6, 6, 3, 3, 3, 3, 3]


def test_source_state_is_selected_only_when_sentences_finish():
    model = make_endless_model("seq2seq")
    rows = [Sentence((1,), limit, (5, 6, END)) for limit in (3, 6)]
    with torch.inference_mode():
        spy = SpyStepper(make_stepper(model, rows))
        beam_search(spy, rows, DecodingOptions(beam=2))
    assert [len(parents) for parents in spy.orders] == [2, 2, 1, 1, 1]
    assert spy.orders[0] == [[0, 0], [0, 0]]
    assert spy.kept == [[1]]


def test_nbest_is_limited_by_possible_outputs():
    model = make_model("lm")
    [hypotheses] = decode(model, [Sentence((1,), 1)], DecodingOptions(beam=9, nbest=9))
    assert sorted(tokens_with_end(hypotheses)) == [(END,), (4,), (5,), (6,)]
