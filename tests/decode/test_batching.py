"""Whatever the search: batches change nothing, scores are the model's, limits and prefixes hold."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from addnorm.core.errors import UserError
from addnorm.decode import DecodingOptions, Sentence, decode
from addnorm.decode.batching import batch_sentences
from addnorm.decode.greedy import decode_greedy
from addnorm.decode.stepper import make_stepper, max_positions, pad_tokens
from addnorm.models import build
from tests.decode.tiny_models import (
    END,
    Spy,
    endless,
    every,
    model_of,
    score_of,
    sentences_of,
    written,
)

WAYS = {
    "greedy": DecodingOptions(),
    "beam": DecodingOptions(beam=4, nbest=3),
    "mean": DecodingOptions(beam=3, nbest=2, length_penalty="mean"),
    "exact": DecodingOptions(beam=3, stop="exact"),
    "draws": DecodingOptions(temperature=1.4, nbest=3, seed=7),
    "top_p": DecodingOptions(top_p=0.8, top_k=3),
}


@pytest.mark.parametrize("wiring", ["pre_ln", "post_ln", "b2t"])
@pytest.mark.parametrize("positions", ["sinusoid", "rotary", "t5", "learned(length=32)"])
@pytest.mark.parametrize("kind", ["seq2seq", "lm"])
def test_scores_are_the_models_own(kind, positions, wiring):
    """Over the cache, left-padded prefixes and reordered beams: the same as one plain pass."""
    model = model_of(kind, positions=positions, wiring=wiring)
    rows = sentences_of(kind, seed=11)
    for options in WAYS.values():
        for sentence, found in zip(rows, decode(model, rows, options), strict=True):
            for hypothesis, tokens in zip(found, written(found), strict=True):
                assert hypothesis.score == pytest.approx(score_of(model, sentence, tokens))
                assert hypothesis.length == len(tokens)


@settings(deadline=None, max_examples=8)
@given(
    st.sampled_from(["seq2seq", "lm"]),
    st.integers(0, 1000),
    st.sampled_from(sorted(WAYS)),
    st.integers(1, 120),
)
def test_a_batch_changes_nothing(kind, seed, way, tokens):
    model, rows = model_of(kind, seed % 3), sentences_of(kind, seed)
    options = DecodingOptions(**{**WAYS[way].__dict__, "batch_tokens": tokens})
    alone = [written(decode(model, [sentence], WAYS[way])[0]) for sentence in rows]
    assert [written(found) for found in decode(model, rows, options)] == alone


@settings(deadline=None, max_examples=8)
@given(st.sampled_from(["seq2seq", "lm"]), st.integers(0, 1000), st.sampled_from(sorted(WAYS)))
def test_limits_hold_and_only_words_are_written(kind, seed, way):
    model, rows = model_of(kind, seed % 3), sentences_of(kind, seed)
    for sentence, found in zip(rows, decode(model, rows, WAYS[way]), strict=True):
        assert len(found) == WAYS[way].nbest or len(found) > 1 or sentence.limit == 1
        for hypothesis in found:
            assert hypothesis.length <= sentence.limit
            assert hypothesis.ended or hypothesis.length == sentence.limit
            assert all(token >= 4 for token in hypothesis.tokens)


def test_another_end_is_an_end():
    """In running text a document ends where the next one starts."""
    model, rows = model_of("lm"), sentences_of("lm", count=20)
    found = [each for [each] in decode(model, rows, DecodingOptions(temperature=1.0), end=1)]
    assert any(each.ended for each in found) and all(END not in each.tokens for each in found)
    for sentence, each in zip(rows, found, strict=True):
        tokens = (*each.tokens, *([1] if each.ended else []))
        assert each.score == pytest.approx(score_of(model, sentence, tokens))


def test_behind_a_prefix_comes_the_best_that_can():
    model, source = model_of("seq2seq", seed=2), (4, 6, END)
    options = DecodingOptions(beam=60, length_penalty=0)
    [[found]] = decode(model, [Sentence((1, 6), 3, source)], options)
    whole = Sentence((1,), 4, source)
    begun = [tokens for tokens in every(whole, 7) if tokens[0] == 6]
    best = max(begun, key=lambda tokens: score_of(model, whole, tokens))
    assert [(6, *tokens) for tokens in written([found])] == [best]


def test_draws_differ_by_seed_number_and_copy():
    model = model_of("lm", seed=3)
    rows = [Sentence((1, 5), 12, number=number) for number in (0, 1)]
    options = DecodingOptions(temperature=2.0, nbest=4)
    one, two = (written(each) for each in decode(model, rows, options))
    other = written(decode(model, rows, DecodingOptions(temperature=2.0, nbest=4, seed=1))[0])
    assert len({*one, *two, *other}) > 9
    assert one == written(decode(model, rows, options)[0])


def test_rows_that_have_ended_leave_the_batch():
    model = endless("lm")
    rows = [Sentence((1, 5), limit) for limit in (2, 5, 3)]
    with torch.inference_mode():
        spy = Spy(make_stepper(model, rows))
        decode_greedy(spy, rows, DecodingOptions())
    assert spy.steps == [3, 2, 1, 1]


@pytest.mark.parametrize("kind", ["lm", "seq2seq"])
def test_beams_that_go_on_from_others_move_no_key(kind):
    rows = sentences_of(kind, count=2)
    with torch.inference_mode():
        stepper = make_stepper(model_of(kind), rows)
        stepper.start()
        stepper.expand_beams(3)
        stepper.step(torch.tensor([4, 5, 6, 4, 5, 6]))
        before = [slot.keys for slot in slots(stepper.cache)]
        stepper.reorder_beams(torch.tensor([[2, 0, 0], [1, 1, 2]]))
        assert all(
            slot.keys is kept for slot, kept in zip(slots(stepper.cache), before, strict=True)
        )
        assert all(len(slot.keys) == 2 for slot in slots(stepper.cache))


def slots(cache):
    return [cache[site] for site in range(len(cache)) if cache[site].keys is not None]


def test_batches_are_full_of_neighbours_and_lose_nobody():
    rows = sentences_of("seq2seq", count=50)
    options = DecodingOptions(batch_tokens=60, beam=2)
    made = list(batch_sentences(rows, options))
    assert sorted(place for batch in made for place in batch) == list(range(50))
    sizes = [[rows[place].size for place in batch] for batch in made]
    assert all(max(each) * len(each) * 2 <= 60 or len(each) == 1 for each in sizes)
    lengths = [len(rows[place].source) for batch in made for place in batch]
    assert lengths == sorted(lengths, reverse=True)
    assert len(made) > 3


def test_padding_stands_on_the_side_it_should():
    ids, mask = pad_tokens([(5, 6), (7,)], torch.device("cpu"), pad_left=True)
    assert ids.tolist() == [[5, 6], [0, 7]] and mask.tolist() == [[True, True], [False, True]]
    ids, mask = pad_tokens([(5, 6), (7,)], torch.device("cpu"))
    assert ids.tolist() == [[5, 6], [7, 0]] and mask.tolist() == [[True, True], [True, False]]
    assert pad_tokens([(5,), (7,)], torch.device("cpu"))[1] is None


def test_learned_positions_have_an_end():
    assert max_positions(model_of("lm", positions="learned(length=17)").decoder) == 17
    assert max_positions(model_of("lm").decoder) is None


def test_nothing_to_decode_is_nothing():
    assert decode(model_of("lm"), []) == []


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: decode(model_of("lm").train(), []),
            "expected eval mode, got training mode; call model.eval",
        ),
        (lambda: Sentence((), 3), "prefix: expected at least one token, got none"),
        (lambda: Sentence((1,), 0), "limit: expected a whole number from 1, got 0"),
        (
            lambda: decode(model_of("seq2seq"), [Sentence((1,), 3)]),
            "source: expected at least the end token, got an empty one",
        ),
        (
            lambda: decode(
                build(kind="classifier", vocab=9, dim=8, depth=1, heads=2, classes=2).eval(),
                [Sentence((1,), 3)],
            ),
            "expected a Seq2Seq or LanguageModel, got a Classifier",
        ),
    ],
)
def test_mistakes_are_told(make, message):
    with pytest.raises(UserError, match=message):
        make()
