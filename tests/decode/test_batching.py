"""Properties of every search: independence of batching, scores, limits and prefixes."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from addnorm.core.errors import UserError
from addnorm.decode import DecodingOptions, Sentence, decode
from addnorm.decode.batching import batch_sentences
from addnorm.decode.engine import length_limits
from addnorm.decode.greedy import decode_greedy
from addnorm.decode.stepper import make_stepper, pad_tokens
from addnorm.models import build
from tests.decode.tiny_models import (
    END,
    SpyStepper,
    all_outputs,
    make_endless_model,
    make_model,
    make_sentences,
    sequence_score,
    tokens_with_end,
)

SEARCHES = {
    "greedy": DecodingOptions(),
    "beam": DecodingOptions(beam=4, nbest=3),
    "mean": DecodingOptions(beam=3, nbest=2, length_penalty="mean"),
    "exact": DecodingOptions(beam=3, stop="exact"),
    "sampling": DecodingOptions(temperature=1.4, nbest=3, seed=7),
    "top_p": DecodingOptions(top_p=0.8, top_k=3),
}


@pytest.mark.parametrize("wiring", ["pre_ln", "post_ln", "b2t"])
@pytest.mark.parametrize("positions", ["sinusoid", "rotary", "t5", "learned(length=32)"])
@pytest.mark.parametrize("kind", ["seq2seq", "lm"])
def test_scores_equal_model_log_probabilities(kind, positions, wiring):
    """Cached, left-padded and reordered decoding gives the scores of one plain forward pass."""
    model = make_model(kind, positions=positions, wiring=wiring)
    rows = make_sentences(kind, seed=11)
    for options in SEARCHES.values():
        for sentence, hypotheses in zip(rows, decode(model, rows, options), strict=True):
            for hypothesis, tokens in zip(hypotheses, tokens_with_end(hypotheses), strict=True):
                assert hypothesis.score == pytest.approx(sequence_score(model, sentence, tokens))
                assert hypothesis.length == len(tokens)


@settings(max_examples=8)
@given(
    st.sampled_from(["seq2seq", "lm"]),
    st.integers(0, 1000),
    st.sampled_from(sorted(SEARCHES)),
    st.integers(1, 120),
)
def test_results_do_not_depend_on_batching(kind, seed, search, tokens):
    model, rows = make_model(kind, seed % 3), make_sentences(kind, seed)
    options = DecodingOptions(**{**SEARCHES[search].__dict__, "batch_tokens": tokens})
    expected = [
        tokens_with_end(decode(model, [sentence], SEARCHES[search])[0]) for sentence in rows
    ]
    assert [tokens_with_end(hypotheses) for hypotheses in decode(model, rows, options)] == expected


@settings(max_examples=8)
@given(st.sampled_from(["seq2seq", "lm"]), st.integers(0, 1000), st.sampled_from(sorted(SEARCHES)))
def test_limits_hold_and_special_tokens_are_not_generated(kind, seed, search):
    model, rows = make_model(kind, seed % 3), make_sentences(kind, seed)
    for sentence, hypotheses in zip(rows, decode(model, rows, SEARCHES[search]), strict=True):
        assert (
            len(hypotheses) == SEARCHES[search].nbest or len(hypotheses) > 1 or sentence.limit == 1
        )
        for hypothesis in hypotheses:
            assert hypothesis.length <= sentence.limit
            assert hypothesis.ended or hypothesis.length == sentence.limit
            assert all(token >= 4 for token in hypothesis.tokens)


def test_end_token_can_be_chosen():
    """In the text of a language model, a document ends where the next one starts."""
    model, rows = make_model("lm"), make_sentences("lm", count=20)
    hypotheses = [each for [each] in decode(model, rows, DecodingOptions(temperature=1.0), end=1)]
    assert any(each.ended for each in hypotheses) and all(
        END not in each.tokens for each in hypotheses
    )
    for sentence, each in zip(rows, hypotheses, strict=True):
        tokens = (*each.tokens, *([1] if each.ended else []))
        assert each.score == pytest.approx(sequence_score(model, sentence, tokens))


def test_best_continuation_of_prefix_is_found():
    model, source = make_model("seq2seq", seed=2), (4, 6, END)
    options = DecodingOptions(beam=60, length_penalty=0)
    [[hypothesis]] = decode(model, [Sentence((1, 6), 3, source)], options)
    unprefixed = Sentence((1,), 4, source)
    candidates = [tokens for tokens in all_outputs(unprefixed, 7) if tokens[0] == 6]
    best = max(candidates, key=lambda tokens: sequence_score(model, unprefixed, tokens))
    assert [(6, *tokens) for tokens in tokens_with_end([hypothesis])] == [best]


def test_samples_differ_by_seed_sentence_and_copy():
    model = make_model("lm", seed=3)
    rows = [Sentence((1, 5), 12, number=number) for number in (0, 1)]
    options = DecodingOptions(temperature=2.0, nbest=4)
    one, two = (tokens_with_end(each) for each in decode(model, rows, options))
    other = tokens_with_end(
        decode(model, rows, DecodingOptions(temperature=2.0, nbest=4, seed=1))[0]
    )
    assert len({*one, *two, *other}) > 9
    assert one == tokens_with_end(decode(model, rows, options)[0])


def test_finished_rows_leave_the_batch():
    model = make_endless_model("lm")
    rows = [Sentence((1, 5), limit) for limit in (2, 5, 3)]
    with torch.inference_mode():
        spy = SpyStepper(make_stepper(model, rows))
        decode_greedy(spy, rows, DecodingOptions())
    assert spy.steps == [3, 2, 1, 1]


@pytest.mark.parametrize("kind", ["lm", "seq2seq"])
def test_reordering_beams_does_not_copy_keys(kind):
    rows = make_sentences(kind, count=2)
    with torch.inference_mode():
        stepper = make_stepper(make_model(kind), rows)
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


def test_batches_group_similar_lengths_and_cover_all_sentences():
    rows = make_sentences("seq2seq", count=50)
    options = DecodingOptions(batch_tokens=60, beam=2)
    batches = list(batch_sentences(rows, options))
    assert sorted(index for batch in batches for index in batch) == list(range(50))
    sizes = [[rows[index].size for index in batch] for batch in batches]
    assert all(max(each) * len(each) * 2 <= 60 or len(each) == 1 for each in sizes)
    lengths = [len(rows[index].source) for batch in batches for index in batch]
    assert lengths == sorted(lengths, reverse=True)
    assert len(batches) > 3


def test_padding_side():
    ids, mask = pad_tokens([(5, 6), (7,)], torch.device("cpu"), pad_left=True)
    assert ids.tolist() == [[5, 6], [0, 7]] and mask.tolist() == [[True, True], [False, True]]
    ids, mask = pad_tokens([(5, 6), (7,)], torch.device("cpu"))
    assert ids.tolist() == [[5, 6], [7, 0]] and mask.tolist() == [[True, True], [True, False]]
    assert pad_tokens([(5,), (7,)], torch.device("cpu"))[1] is None


def test_length_limits_are_those_of_learned_positions():
    assert length_limits(make_model("lm", positions="learned(length=17)")) == (17, 17)
    assert length_limits(make_model("lm", positions="learned_t5(length=17)")) == (17, 17)
    assert length_limits(make_model("lm")) == (None, None)
    rotary = "rotary(scaling=llama3, length=8)"  # trained on 8 tokens, but no limit
    assert length_limits(make_model("lm", positions=rotary)) == (None, None)


def test_no_sentences_give_no_results():
    assert decode(make_model("lm"), []) == []


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: decode(make_model("lm").train(), []),
            "expected eval mode, got training mode; call model.eval",
        ),
        (lambda: Sentence((), 3), "prefix: expected at least one token, got none"),
        (lambda: Sentence((1,), 0), "limit: expected a whole number from 1, got 0"),
        (
            lambda: decode(make_model("seq2seq"), [Sentence((1,), 3)]),
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
def test_invalid_calls_are_rejected(call, message):
    with pytest.raises(UserError, match=message):
        call()
