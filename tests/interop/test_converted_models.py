"""Use of converted models: gradients, saving, `to_hf` and greedy decoding."""

import pytest
import torch
import transformers
from torch.nn import functional as F
from torch.nn.utils.prune import l1_unstructured

import addnorm.models
from addnorm.core.errors import UserError
from addnorm.interop import from_hf
from tests.interop.cases import ENCODERS, GPTS, LLAMAS, PAIRS
from tests.interop.zoo import assert_same_outputs, assert_same_tensors, batch, round_trip

pytestmark = pytest.mark.peer


@pytest.mark.parametrize("case", [ENCODERS[1], GPTS[2], LLAMAS[0], PAIRS[0], PAIRS[4]], ids=str)
def test_gradients_match(case):
    model = case.build()
    ours = from_hf(model)
    inputs = batch(model, "right")
    if model.config.is_encoder_decoder:
        inputs["decoder_input_ids"] = batch(model, seed=3)["input_ids"]
    labels = torch.randint(0, 61, (3, 9)).masked_fill(inputs["attention_mask"] == 0, -100)
    for one in (model, ours):
        F.cross_entropy(one(**inputs).logits.flatten(0, 1), labels.flatten()).backward()
    expected = model.get_input_embeddings().weight.grad
    torch.testing.assert_close(ours.model.embed.table.grad, expected, atol=1e-5, rtol=1e-4)


def test_to_hf_returns_the_current_weights():
    model = LLAMAS[0].build()
    ours = from_hf(model)
    with torch.no_grad():
        for weight in ours.model.parameters():
            weight.mul_(0.9)
    returned = ours.to_hf()
    assert_same_outputs(returned, ours, batch(model, "left"))
    assert not torch.equal(returned.lm_head.weight, model.lm_head.weight)
    assert (
        returned.lm_head.weight.data_ptr() == returned.model.embed_tokens.weight.data_ptr()
    ) is False


def test_to_hf_keeps_tied_weights():
    returned = from_hf(GPTS[2].build()).to_hf()
    assert returned.lm_head.weight is returned.transformer.wte.weight


def test_conversion_copies_weights():
    model = GPTS[2].build()
    before = model.transformer.wte.weight.clone()
    ours = from_hf(model)
    with torch.no_grad():
        ours.model.embed.table.zero_()
        ours.to_hf().transformer.wte.weight.fill_(3.0)
    assert torch.equal(model.transformer.wte.weight, before)
    assert not ours.model.embed.table.any()


def test_conversion_keeps_dtype_and_mode():
    model = LLAMAS[0].build().bfloat16()
    ours = round_trip(model)
    assert ours.model.embed.table.dtype == torch.bfloat16
    assert not ours.training and from_hf(model.train()).training
    assert_same_outputs(model.eval(), ours, batch(model), tolerance=0.1)


def test_converted_model_can_be_saved_and_loaded(tmp_path):
    model = PAIRS[4].build()
    ours = from_hf(model)
    ours.model.save(tmp_path)
    ours.model = addnorm.models.load(tmp_path).eval()
    inputs = batch(model) | {"decoder_input_ids": batch(model, seed=4)["input_ids"]}
    assert_same_outputs(model, ours, inputs)
    assert_same_tensors(model, ours.to_hf())


def test_output_by_name_and_by_index():
    model = PAIRS[4].build()
    ids = batch(model)["input_ids"]
    output = from_hf(model)(input_ids=ids, decoder_input_ids=ids, return_dict=True, use_cache=False)
    assert output["logits"] is output[0] is output.logits
    assert list(output) == ["logits", "encoder_last_hidden_state"]
    assert [part.shape[-1] for part in output.to_tuple()] == [61, 32]
    assert output.pooler_output is None


def tiny_gpt2(**changes):
    torch.manual_seed(0)
    sizes = {"vocab_size": 61, "n_positions": 32, "n_embd": 32, "n_layer": 2, "n_head": 4}
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes | changes)).eval()


def test_positions_are_expanded_to_the_batch():
    theirs = tiny_gpt2()
    ids, positions = torch.arange(10).view(2, 5), torch.arange(3, 8)[None]
    ours = from_hf(theirs)(input_ids=ids, position_ids=positions).logits
    expected = theirs(input_ids=ids, position_ids=positions).logits
    torch.testing.assert_close(ours, expected, rtol=0, atol=1e-5)


def test_packed_positions_are_rejected():
    ours = from_hf(tiny_gpt2())
    ids, positions = torch.arange(5)[None], torch.tensor([[0, 1, 2, 0, 1]])
    with pytest.raises(
        UserError, match="position_ids: expected positions that increase by 1, got packed sequences"
    ):
        ours(input_ids=ids, position_ids=positions, use_cache=False)
    expected = tiny_gpt2()(input_ids=ids, position_ids=positions).logits  # causal with a cache
    torch.testing.assert_close(ours(input_ids=ids, position_ids=positions).logits, expected)


@pytest.mark.parametrize(
    "change",
    [
        lambda model: setattr(model.transformer.h[0].mlp, "act", torch.nn.ReLU()),
        lambda model: setattr(model.transformer.ln_f, "eps", 0.5),
        lambda model: model.transformer.h[1].register_forward_hook(lambda m, i, out: out * 2),
    ],
    ids=["activation", "eps", "hook"],
)
def test_models_changed_after_construction_are_rejected(change):
    model = tiny_gpt2()
    change(model)
    with pytest.raises(UserError, match="as its config describes it, got logits that differ"):
        from_hf(model)


def test_verification_leaves_the_original_unchanged():
    model = tiny_gpt2().train()
    model.transformer.h[0].eval()
    state = torch.get_rng_state()
    converted = from_hf(model)
    assert converted.training and model.training and not model.transformer.h[0].training
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("new", [1, 6])
def test_forced_end_token_applies_to_the_last_position(new):
    model = tiny_gpt2()
    model.generation_config.forced_eos_token_id = 5
    model.generation_config.eos_token_id = model.generation_config.pad_token_id = 5
    ids = torch.tensor([[7, 8, 9]])
    expected = model.generate(ids, do_sample=False, max_new_tokens=new)
    assert torch.equal(from_hf(model).greedy(ids, max_new_tokens=new), expected)


@pytest.mark.parametrize(
    ("name", "value"),
    [("repetition_penalty", 1.8), ("no_repeat_ngram_size", 2), ("num_beams", 3)],
)
def test_unsupported_generation_settings_are_rejected(name, value):
    model = tiny_gpt2()
    setattr(model.generation_config, name, value)
    with pytest.raises(UserError, match=f"generation_config.{name}: expected None .*, got {value}"):
        from_hf(model).greedy(torch.tensor([[7, 8]]))


def test_max_new_tokens_must_be_positive():
    with pytest.raises(UserError, match="max_new_tokens: expected an integer >= 1, got 0"):
        from_hf(tiny_gpt2()).greedy(torch.tensor([[7, 8]]), max_new_tokens=0)


def replace_model(ours, **changes):
    """Replace the model by one of another arrangement with the same tensors."""
    config = ours.model.config.replace(**changes)
    model = addnorm.models.build(config)
    state = {name: v for name, v in ours.model.state_dict().items() if "_extra_state" not in name}
    model.load_state_dict(state, strict=False)
    ours.model = model.eval()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"wiring": "post_ln"}, "wiring=pre_ln.*got wiring=post_ln"),
        ({"norm": "layer(eps=0.1)"}, r"got norm=layer\(eps=0.1\)"),
        ({"activation": "relu"}, "got activation=relu"),
        ({"depth": 3}, "depth=2, got depth=3"),
        ({"embed_scale": 2.0}, "embed_scale=1.0, got embed_scale=2.0"),
    ],
)
def test_to_hf_refuses_a_model_of_another_arrangement(changes, message):
    ours = from_hf(tiny_gpt2())
    replace_model(ours, **changes)
    with pytest.raises(UserError, match=message):
        ours.to_hf()


def test_to_hf_refuses_a_model_whose_modules_were_changed():
    ours = from_hf(tiny_gpt2())
    ours.model.decoder.sublayers[1].act = torch.sin
    with pytest.raises(UserError, match="outputs that differ"):
        ours.to_hf()
    ours.model = torch.nn.Linear(2, 2)
    with pytest.raises(UserError, match="expected the attribute model to be an addnorm model"):
        ours.to_hf()


def test_to_hf_accepts_the_same_arrangement_in_other_words():
    theirs = tiny_gpt2()
    ours = from_hf(theirs)
    replace_model(ours, norm="layer( eps=0.00001 )", dropout=0.5)
    ids = torch.arange(5)[None]
    torch.testing.assert_close(ours.to_hf()(ids).logits, theirs(ids).logits, rtol=0, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
def test_changed_activation_is_noticed_in_every_precision(dtype):
    theirs = tiny_gpt2().to(dtype)
    from_hf(theirs)
    with torch.no_grad():
        theirs.transformer.h[0].mlp.act = torch.nn.ReLU()
        theirs.transformer.h[1].mlp.act = torch.nn.ReLU()
        for block in theirs.transformer.h:  # a difference far below the rounding of logits
            block.mlp.c_fc.weight.mul_(3)
    with pytest.raises(UserError, match="logits that differ"):
        from_hf(theirs)


def replace_linear(ours):
    ours.model.decoder.sublayers[1].up_proj = torch.nn.Sequential(
        ours.model.decoder.sublayers[1].up_proj, torch.nn.Tanh()
    )


def prune_linear(ours):
    linear = ours.model.decoder.sublayers[1].up_proj
    l1_unstructured(linear, "weight", 0.5)


def remove_bias(ours):
    ours.model.decoder.sublayers[1].up_proj.bias = None


@pytest.mark.parametrize("change", [replace_linear, prune_linear, remove_bias])
def test_to_hf_names_changed_weights(change):
    ours = from_hf(tiny_gpt2())
    change(ours)
    with pytest.raises(UserError, match=r"up_proj") as caught:
        ours.to_hf()
    assert "\n" not in str(caught.value)


def test_to_hf_accepts_fields_that_are_left_out():
    """None stands for a value that depends on other fields."""
    theirs = tiny_gpt2()
    ours = from_hf(theirs)
    replace_model(ours, ffn_dim=None, kv_heads=None, head_dim=None, scale=None)
    ids = torch.arange(5)[None]
    torch.testing.assert_close(ours.to_hf()(ids).logits, theirs(ids).logits, rtol=0, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
def test_other_gelu_in_one_layer_is_noticed(dtype):
    """The two differ by 5e-4 at most, and by nothing where weights are small."""
    theirs = tiny_gpt2().to(dtype)
    before = {name: value.clone() for name, value in theirs.state_dict().items()}
    from_hf(theirs)
    assert all(torch.equal(value, before[name]) for name, value in theirs.state_dict().items())
    theirs.transformer.h[1].mlp.act = torch.nn.GELU()
    with pytest.raises(UserError, match="logits that differ"):
        from_hf(theirs)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_small_factor_in_a_hook_is_noticed_in_half_precision(dtype):
    theirs = tiny_gpt2().to(dtype)
    theirs.transformer.h[0].mlp.register_forward_hook(lambda module, args, y: y * 1.01)
    with pytest.raises(UserError, match="logits that differ"):
        from_hf(theirs)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_constants_rounded_by_half_are_not_a_difference(dtype):
    from_hf(LLAMAS[0].build().to(dtype))
