"""T5, BART and their relatives answer and write as in transformers."""

import pytest
import torch
from torch import nn

from tests.interop.cases import PAIRS, T5
from tests.interop.zoo import Case, batch, compare, shake, there_and_back

pytestmark = pytest.mark.peer

WRITERS = [case for case in PAIRS if case.name.endswith("Generation") or "MTModel" in case.name]


@pytest.mark.parametrize("case", PAIRS, ids=str)
def test_answers_and_the_way_back(case):
    model = case.build()
    ours = there_and_back(model)
    for side in (None, "right", "left"):
        inputs = batch(model, side)
        target = batch(model, side, seed=3, length=7)
        inputs["decoder_input_ids"] = target["input_ids"]
        compare(model, ours, inputs)
        if side is not None:
            inputs["decoder_attention_mask"] = target["attention_mask"]
            compare(model, ours, inputs)


@pytest.mark.parametrize("case", WRITERS, ids=str)
def test_greedy_generation_token_for_token(case):
    model = case.build(seed=2)
    model.generation_config.encoder_no_repeat_ngram_size = None
    ours = there_and_back(model)
    for side in (None, "left", "right"):
        inputs = batch(model, side)
        wanted = model.generate(**inputs, do_sample=False, num_beams=1, max_new_tokens=10)
        assert torch.equal(ours.greedy(**inputs, max_new_tokens=10), wanted), side


def test_a_forced_first_token():
    model = next(case for case in PAIRS if case.name.startswith("MBart")).build()
    model.generation_config.forced_bos_token_id = 17
    inputs = batch(model)
    wanted = model.generate(**inputs, do_sample=False, num_beams=1, max_new_tokens=5)
    assert torch.equal(there_and_back(model).greedy(**inputs, max_new_tokens=5), wanted)
    assert (wanted[:, 1] == 17).all()


def test_t5_with_a_head_of_its_own():
    """T5 1.1 and Flan-T5: the config of transformers says tied, the weights say otherwise."""
    model = Case("T5ForConditionalGeneration", "T5Config", T5).build()
    model.lm_head.weight = nn.Parameter(torch.randn_like(model.lm_head.weight))
    ours = there_and_back(model)
    assert not ours.config.tied
    inputs = batch(model)
    compare(model, ours, inputs | {"decoder_input_ids": batch(model, seed=4)["input_ids"]})


@pytest.mark.parametrize("name", ["T5", "MT5"])
def test_the_encoder_of_t5_alone(name):
    model = Case(f"{name}EncoderModel", f"{name}Config", T5).build()
    ours = there_and_back(model)
    for side in (None, "right", "left"):
        compare(model, ours, batch(model, side))


def test_a_bias_of_zeros_is_none():
    model = PAIRS[4].build()
    model.final_logits_bias.zero_()
    ours = there_and_back(model)
    assert not ours.config.head_bias
    inputs = batch(model) | {"decoder_input_ids": batch(model, seed=4)["input_ids"]}
    compare(model, ours, inputs)
    assert shake(model).final_logits_bias.any()
