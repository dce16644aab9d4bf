"""What one does with a model that came over: train it, save it, send it back."""

import pytest
import torch
import transformers
from torch.nn import functional as F

import addnorm.models
from addnorm.core.errors import UserError
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


def tiny_gpt2(**changes):
    torch.manual_seed(0)
    sizes = {"vocab_size": 61, "n_positions": 32, "n_embd": 32, "n_layer": 2, "n_head": 4}
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes | changes)).eval()


def test_one_row_of_positions_serves_a_batch():
    theirs = tiny_gpt2()
    ids, places = torch.arange(10).view(2, 5), torch.arange(3, 8)[None]
    ours = from_hf(theirs)(input_ids=ids, position_ids=places).logits
    wanted = theirs(input_ids=ids, position_ids=places).logits
    torch.testing.assert_close(ours, wanted, rtol=0, atol=1e-5)


def test_positions_of_packed_sequences_are_refused():
    ours = from_hf(tiny_gpt2())
    ids, places = torch.arange(5)[None], torch.tensor([[0, 1, 2, 0, 1]])
    with pytest.raises(UserError, match="several packed sequences for transformers"):
        ours(input_ids=ids, position_ids=places, use_cache=False)
    wanted = tiny_gpt2()(input_ids=ids, position_ids=places).logits  # with a cache: plainly causal
    torch.testing.assert_close(ours(input_ids=ids, position_ids=places).logits, wanted)


@pytest.mark.parametrize(
    "change",
    [
        lambda model: setattr(model.transformer.h[0].mlp, "act", torch.nn.ReLU()),
        lambda model: setattr(model.transformer.ln_f, "eps", 0.5),
        lambda model: model.transformer.h[1].register_forward_hook(lambda m, i, out: out * 2),
    ],
    ids=["activation", "eps", "hook"],
)
def test_a_model_that_was_changed_after_it_was_built_is_refused(change):
    model = tiny_gpt2()
    change(model)
    with pytest.raises(UserError, match="answers otherwise"):
        from_hf(model)


def test_the_comparison_leaves_the_source_as_it_was():
    model = tiny_gpt2().train()
    model.transformer.h[0].eval()
    state = torch.get_rng_state()
    made = from_hf(model)
    assert made.training and model.training and not model.transformer.h[0].training
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("new", [1, 6])
def test_a_forced_end_stands_at_the_end_only(new):
    model = tiny_gpt2()
    model.generation_config.forced_eos_token_id = 5
    model.generation_config.eos_token_id = model.generation_config.pad_token_id = 5
    ids = torch.tensor([[7, 8, 9]])
    wanted = model.generate(ids, do_sample=False, max_new_tokens=new)
    assert torch.equal(from_hf(model).greedy(ids, max_new_tokens=new), wanted)


@pytest.mark.parametrize(
    ("name", "value"),
    [("repetition_penalty", 1.8), ("no_repeat_ngram_size", 2), ("num_beams", 3)],
)
def test_generation_settings_that_greedy_does_not_know_are_refused(name, value):
    model = tiny_gpt2()
    setattr(model.generation_config, name, value)
    with pytest.raises(UserError, match=f"the generation config says {name}={value}"):
        from_hf(model).greedy(torch.tensor([[7, 8]]))


def test_no_tokens_are_not_written():
    with pytest.raises(UserError, match="max_new_tokens counts from 1, got 0"):
        from_hf(tiny_gpt2()).greedy(torch.tensor([[7, 8]]), max_new_tokens=0)
