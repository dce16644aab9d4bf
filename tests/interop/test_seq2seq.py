"""Encoder-decoders give the outputs and generations of transformers."""

import pytest
import torch
from torch import nn

from addnorm.interop import from_hf
from tests.interop.cases import PAIRS, T5
from tests.interop.zoo import PAIR, Case, assert_same_outputs, batch, perturb, round_trip

pytestmark = pytest.mark.peer

GENERATORS = [case for case in PAIRS if case.name.endswith("Generation") or "MTModel" in case.name]


@pytest.mark.parametrize("case", PAIRS, ids=str)
def test_outputs_match(case):
    model = case.build()
    ours = round_trip(model)
    for side in (None, "right", "left"):
        inputs = batch(model, side)
        target = batch(model, side, seed=3, length=7)
        inputs["decoder_input_ids"] = target["input_ids"]
        assert_same_outputs(model, ours, inputs)
        if side is not None:
            inputs["decoder_attention_mask"] = target["attention_mask"]
            assert_same_outputs(model, ours, inputs)


@pytest.mark.parametrize("case", GENERATORS, ids=str)
def test_greedy_matches_generate(case):
    model = case.build(seed=2)
    model.generation_config.encoder_no_repeat_ngram_size = None
    ours = round_trip(model)
    for side in (None, "left", "right"):
        inputs = batch(model, side)
        expected = model.generate(**inputs, do_sample=False, num_beams=1, max_new_tokens=10)
        assert torch.equal(ours.greedy(**inputs, max_new_tokens=10), expected), side


def test_forced_first_token():
    model = next(case for case in PAIRS if case.name.startswith("MBart")).build()
    model.generation_config.forced_bos_token_id = 17
    inputs = batch(model)
    expected = model.generate(**inputs, do_sample=False, num_beams=1, max_new_tokens=5)
    assert torch.equal(round_trip(model).greedy(**inputs, max_new_tokens=5), expected)
    assert (expected[:, 1] == 17).all()


def test_t5_with_untied_head():
    """In T5 1.1 and Flan-T5 the weights are not tied although the config says so."""
    model = Case("T5ForConditionalGeneration", "T5Config", T5).build()
    model.lm_head.weight = nn.Parameter(torch.randn_like(model.lm_head.weight))
    ours = round_trip(model)
    assert not ours.config.tied
    inputs = batch(model)
    assert_same_outputs(
        model, ours, inputs | {"decoder_input_ids": batch(model, seed=4)["input_ids"]}
    )


@pytest.mark.parametrize("name", ["T5", "MT5"])
def test_t5_encoder(name):
    model = Case(f"{name}EncoderModel", f"{name}Config", T5).build()
    ours = round_trip(model)
    for side in (None, "right", "left"):
        assert_same_outputs(model, ours, batch(model, side))


def test_zero_bias_is_dropped():
    model = PAIRS[4].build()
    model.final_logits_bias.zero_()
    ours = round_trip(model)
    assert not ours.config.head_bias
    inputs = batch(model) | {"decoder_input_ids": batch(model, seed=4)["input_ids"]}
    assert_same_outputs(model, ours, inputs)
    assert perturb(model).final_logits_bias.any()


def test_marian_with_other_positions_has_a_learned_table():
    model = Case("MarianMTModel", "MarianConfig", PAIR).build()
    with torch.no_grad():
        model.model.decoder.embed_positions.weight[3] += 1
    ours = from_hf(model)
    assert ours.config.positions == "learned(length=40)"
    inputs = batch(model) | {"decoder_input_ids": torch.randint(3, 61, (3, 5))}
    assert_same_outputs(model, ours, inputs)


def test_marian_with_separate_embeddings():
    values = PAIR | {"share_encoder_decoder_embeddings": False, "decoder_vocab_size": 43}
    model = Case("MarianMTModel", "MarianConfig", values).build()
    ours = round_trip(model)
    assert (ours.config.source_vocab, ours.config.vocab) == (61, 43)
    inputs = batch(model) | {"decoder_input_ids": torch.randint(3, 43, (3, 5))}
    assert_same_outputs(model, ours, inputs)
