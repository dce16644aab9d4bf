"""What one does with a model that came over: train it, save it, send it back."""

import pytest
import torch
from torch.nn import functional as F

import addnorm.models
from addnorm.interop import from_hf
from tests.interop.cases import ENCODERS, GPTS, LLAMAS, PAIRS
from tests.interop.zoo import batch, compare, same_tensors, there_and_back

pytestmark = pytest.mark.peer


@pytest.mark.parametrize("case", [ENCODERS[1], GPTS[2], LLAMAS[0], PAIRS[0], PAIRS[4]], ids=str)
def test_gradients_are_the_same(case):
    model = case.build()
    ours = from_hf(model)
    inputs = batch(model, "right")
    if model.config.is_encoder_decoder:
        inputs["decoder_input_ids"] = batch(model, seed=3)["input_ids"]
    labels = torch.randint(0, 61, (3, 9)).masked_fill(inputs["attention_mask"] == 0, -100)
    for one in (model, ours):
        F.cross_entropy(one(**inputs).logits.flatten(0, 1), labels.flatten()).backward()
    wanted = model.get_input_embeddings().weight.grad
    torch.testing.assert_close(ours.model.embed.table.grad, wanted, atol=1e-5, rtol=1e-4)


def test_what_was_trained_here_goes_back():
    model = LLAMAS[0].build()
    ours = from_hf(model)
    with torch.no_grad():
        for weight in ours.model.parameters():
            weight.mul_(0.9)
    again = ours.to_hf()
    compare(again, ours, batch(model, "left"))
    assert not torch.equal(again.lm_head.weight, model.lm_head.weight)
    assert (again.lm_head.weight.data_ptr() == again.model.embed_tokens.weight.data_ptr()) is False


def test_a_tie_is_a_tie_after_the_way_back():
    again = from_hf(GPTS[2].build()).to_hf()
    assert again.lm_head.weight is again.transformer.wte.weight


def test_neither_shares_memory_with_the_other():
    model = GPTS[2].build()
    before = model.transformer.wte.weight.clone()
    ours = from_hf(model)
    with torch.no_grad():
        ours.model.embed.table.zero_()
        ours.to_hf().transformer.wte.weight.fill_(3.0)
    assert torch.equal(model.transformer.wte.weight, before)
    assert not ours.model.embed.table.any()


def test_precision_and_mode_are_kept():
    model = LLAMAS[0].build().bfloat16()
    ours = there_and_back(model)
    assert ours.model.embed.table.dtype == torch.bfloat16
    assert not ours.training and from_hf(model.train()).training
    compare(model.eval(), ours, batch(model), tolerance=0.1)


def test_it_can_be_saved_and_loaded(tmp_path):
    model = PAIRS[4].build()
    ours = from_hf(model)
    ours.model.save(tmp_path)
    ours.model = addnorm.models.load(tmp_path).eval()
    inputs = batch(model) | {"decoder_input_ids": batch(model, seed=4)["input_ids"]}
    compare(model, ours, inputs)
    same_tensors(model, ours.to_hf())


def test_answers_by_name_number_and_in_turn():
    model = PAIRS[4].build()
    ids = batch(model)["input_ids"]
    answer = from_hf(model)(input_ids=ids, decoder_input_ids=ids, return_dict=True, use_cache=False)
    assert answer["logits"] is answer[0] is answer.logits
    assert [part.shape[-1] for part in answer] == [61, 32]
    assert answer.pooler_output is None
