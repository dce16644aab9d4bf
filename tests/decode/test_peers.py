"""Greedy and beam search against `generate` of transformers, on the same weights."""

from collections import Counter

import pytest
import torch

from addnorm.decode import DecodingOptions, Sentence, decode
from addnorm.interop import from_hf
from tests.interop.zoo import GPT, PAIR, Case

pytestmark = pytest.mark.peer

VOCAB = 13
SPECIAL = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1}
MARIAN = Case("MarianMTModel", "MarianConfig", PAIR | SPECIAL | {"vocab_size": VOCAB})
T5 = Case(
    "T5ForConditionalGeneration",
    "T5Config",
    {
        **{"vocab_size": VOCAB, "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2},
        **{"num_heads": 4, "decoder_start_token_id": 1, "pad_token_id": 0, "eos_token_id": 2},
    },
)
GPT2 = Case(
    "GPT2LMHeadModel",
    "GPT2Config",
    GPT | SPECIAL | {"decoder_start_token_id": None, "vocab_size": VOCAB},
)
LENGTHS = (9, 4, 7, 1, 6)
NEW = 14


def make_sentences(case, seed):
    """Return sources that end with token 2, or prompts that start with token 1."""
    torch.manual_seed(seed)
    rows = [torch.randint(4, VOCAB, (length,)).tolist() for length in LENGTHS]
    if case is GPT2:
        return [Sentence((1, *row), NEW) for row in rows]
    return [Sentence((1,), NEW, (*row, 2)) for row in rows]


def generate_with_transformers(model, sentence, end, **settings):
    """Return (tokens up to the end token, score / penalty) of each output for one sentence."""
    ids = torch.tensor([sentence.source or sentence.prefix])
    output = model.generate(
        ids,
        do_sample=False,
        max_new_tokens=NEW,
        suppress_tokens=[0, 1, 2, 3],
        return_dict_in_generate=True,
        output_scores=True,
        **settings,
    )
    start = len(sentence.prefix)
    rows = [row[start:].tolist() for row in output.sequences]
    rows = [row[: row.index(end) + 1] if end in row else row for row in rows]
    ranks = output.sequences_scores.tolist() if settings.get("num_beams", 1) > 1 else [None]
    return list(zip(rows, ranks, strict=True))


def with_end(hypothesis, end):
    return [*hypothesis.tokens, *([end] if hypothesis.ended else [])]


def prepare(case, seed):
    """Return the peer's model, ours, sentences and an end token that both generate sometimes.

    A model with random weights repeats itself and would not generate the end token of its config.
    """
    model = case.build(seed).double()
    ours, rows = from_hf(model).model, make_sentences(case, seed)
    outputs = decode(ours, rows, DecodingOptions(beam=4, nbest=4))
    counts = Counter(token for best in outputs for each in best for token in set(each.tokens))
    end = counts.most_common()[len(counts) // 2][0]
    model.generation_config.eos_token_id = end
    model.generation_config.forced_eos_token_id = None
    return model, ours, rows, end


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("case", [MARIAN, T5, GPT2], ids=str)
def test_greedy_matches_transformers(case, seed):
    model, ours, rows, end = prepare(case, seed)
    results = decode(ours, rows, end=end)
    for sentence, [best] in zip(rows, results, strict=True):
        assert with_end(best, end) == generate_with_transformers(model, sentence, end)[0][0]


@pytest.mark.parametrize(("penalty", "power"), [(0.0, 0.0), ("mean", 1.0)], ids=["plain", "mean"])
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("case", [MARIAN, T5, GPT2], ids=str)
def test_beam_matches_transformers(case, seed, penalty, power):
    model, ours, rows, end = prepare(case, seed)
    options = DecodingOptions(beam=4, nbest=4, length_penalty=penalty)
    results = decode(ours, rows, options, end=end)
    for sentence, hypotheses in zip(rows, results, strict=True):
        expected = generate_with_transformers(
            model,
            sentence,
            end,
            num_beams=4,
            num_return_sequences=4,
            length_penalty=power,
            early_stopping=False,
        )
        assert [with_end(each, end) for each in hypotheses] == [tokens for tokens, _ in expected]
        ranks = [each.score / options.penalty(each.length) for each in hypotheses]
        assert ranks == pytest.approx([rank for _, rank in expected], abs=1e-5)


def test_some_sentences_end_before_the_limit():
    """Finished and unfinished hypotheses both occur, so the tests above cover the whole search."""
    hypotheses = []
    for case in (MARIAN, T5, GPT2):
        for seed in range(3):
            _, ours, rows, end = prepare(case, seed)
            for best in decode(ours, rows, DecodingOptions(beam=4, nbest=4), end=end):
                hypotheses += best
    assert 0.2 < sum(each.ended for each in hypotheses) / len(hypotheses) < 0.8
    assert len({each.length for each in hypotheses}) > 5
