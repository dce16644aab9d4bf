"""Beam search: beside lists and loops, beside all that can be written, and how much it does."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from addnorm.decode import DecodingOptions, Sentence, decode
from addnorm.decode.beam import beam_search, top_candidates
from addnorm.decode.stepper import make_stepper
from tests.decode.tiny_models import (
    END,
    Spy,
    endless,
    every,
    model_of,
    plain_beam,
    score_of,
    sentences_of,
    written,
)

KINDS = ["seq2seq", "lm"]
PENALTIES = [0.0, 0.6, 1.5, "mean"]


@settings(deadline=None, max_examples=6)
@given(
    st.sampled_from(KINDS),
    st.integers(0, 1000),
    st.integers(2, 5),
    st.sampled_from(PENALTIES),
    st.data(),
)
def test_it_is_the_search_with_lists(kind, seed, beam, penalty, data):
    nbest = data.draw(st.integers(1, beam))
    options = DecodingOptions(beam=beam, nbest=nbest, length_penalty=penalty)
    model, rows = model_of(kind, seed % 3), sentences_of(kind, seed, count=4)
    for sentence, found in zip(rows, decode(model, rows, options), strict=True):
        wanted = plain_beam(model, sentence, options)
        assert written(found) == [tokens for tokens, _ in wanted]
        assert [each.score for each in found] == pytest.approx([score for _, score in wanted])


@pytest.mark.parametrize("penalty", PENALTIES)
@pytest.mark.parametrize("kind", KINDS)
def test_a_beam_wide_enough_finds_the_best_of_all(kind, penalty):
    model = model_of(kind, seed=2)
    options = DecodingOptions(beam=60, nbest=5, length_penalty=penalty, stop="exact")
    rows = sentences_of(kind, seed=5, count=3, limit=3)
    for sentence, found in zip(rows, decode(model, rows, options), strict=True):
        scores = {tokens: score_of(model, sentence, tokens) for tokens in every(sentence, 7)}
        best = sorted(scores, key=lambda tokens: -scores[tokens] / options.penalty(len(tokens)))
        assert written(found) == best[:5]
        assert [each.score for each in found] == pytest.approx([scores[each] for each in best[:5]])


@pytest.mark.parametrize("penalty", PENALTIES)
@pytest.mark.parametrize("kind", KINDS)
def test_a_beam_of_one_is_greedy(kind, penalty):
    model, rows = model_of(kind, seed=1), sentences_of(kind, seed=3, count=12)
    options = DecodingOptions(length_penalty=penalty)
    with torch.inference_mode():
        found = beam_search(make_stepper(model, rows), rows, options)
    greedy = decode(model, rows, options)
    assert [written(each) for each in found] == [written(each) for each in greedy]
    assert [each.score for [each] in found] == pytest.approx([each.score for [each] in greedy])


def test_a_wider_beam_never_scores_worse_where_it_is_exact():
    model, rows = model_of("lm", seed=4), sentences_of("lm", seed=9, count=10, limit=4)
    exact = [
        each[0].score for each in decode(model, rows, DecodingOptions(beam=120, length_penalty=0))
    ]
    for beam in (1, 2, 4):
        found = decode(model, rows, DecodingOptions(beam=beam, length_penalty=0))
        assert all(best[0].score <= most + 1e-9 for best, most in zip(found, exact, strict=True))


def test_equal_continuations_are_taken_in_the_order_of_hypotheses_and_tokens():
    logits, scores = torch.zeros(2, 5), torch.zeros(1, 2)
    values, token, parent = top_candidates(logits, logits.logsumexp(-1, keepdim=True), scores, 7)
    assert token.tolist() == [[0, 1, 2, 3, 4, 0, 1]]
    assert parent.tolist() == [[0, 0, 0, 0, 0, 1, 1]]
    assert values.unique().numel() == 1


def test_answers_of_a_model_without_favourites_are_the_lowest_tokens():
    model = model_of("lm")
    with torch.no_grad():
        model.head.table.zero_()
    [found] = decode(model, [Sentence((1,), 2)], DecodingOptions(beam=3, nbest=3, length_penalty=0))
    assert written(found) == [(END,), (4, END), (4, 4)]


def test_sentences_that_are_done_are_not_worked_on():
    model = endless("seq2seq")
    rows = [Sentence((1,), limit, (5, 6, END)) for limit in (2, 9, 4)]
    with torch.inference_mode():
        spy = Spy(make_stepper(model, rows))
        beam_search(spy, rows, DecodingOptions(beam=3))
    assert spy.steps == [9, 6, 6, 3, 3, 3, 3, 3]


def test_what_was_kept_of_the_sources_is_moved_only_when_sentences_leave():
    model = endless("seq2seq")
    rows = [Sentence((1,), limit, (5, 6, END)) for limit in (3, 6)]
    with torch.inference_mode():
        spy = Spy(make_stepper(model, rows))
        beam_search(spy, rows, DecodingOptions(beam=2))
    assert [len(parents) for parents in spy.orders] == [2, 2, 1, 1, 1]
    assert spy.orders[0] == [[0, 0], [0, 0]]
    assert spy.kept == [[1]]


def test_more_hypotheses_than_can_be_written_are_not_invented():
    model = model_of("lm")
    [found] = decode(model, [Sentence((1,), 1)], DecodingOptions(beam=9, nbest=9))
    assert sorted(written(found)) == [(END,), (4,), (5,), (6,)]
