"""Errors of `from_hf`: unsupported families, settings, tensors and inputs."""

import sys
from types import SimpleNamespace

import pytest
import torch
import transformers
from torch import nn

from addnorm.core.errors import UserError
from addnorm.interop import from_hf
from addnorm.interop.verify import suggest_repair
from tests.interop.cases import BERT, FALCON, LLAMAS, MPT, OPT, ROBERTA, T5
from tests.interop.zoo import GPT, GROUPED, IMAGE, PAIR, TEXT, Case, batch

pytestmark = pytest.mark.peer


def test_other_modules_are_rejected():
    with pytest.raises(UserError, match="hf_model: expected a model of transformers, got Linear"):
        from_hf(nn.Linear(2, 2))


def test_missing_transformers_names_the_extra_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(UserError, match=r"pip install 'addnorm\[interop\]'"):
        from_hf(nn.Linear(2, 2))


@pytest.mark.parametrize(
    ("case", "message"),
    [
        (
            Case("AlbertModel", "AlbertConfig", TEXT | {"embedding_size": 32}),
            "cannot convert AlbertModel exactly: its layers share their weights",
        ),
        (
            Case("PhimoeForCausalLM", "PhimoeConfig", GROUPED | {"num_local_experts": 4}),
            "cannot convert PhimoeForCausalLM exactly: its router or experts compute something",
        ),
        (
            Case("NystromformerModel", "NystromformerConfig", TEXT),
            "expected a supported family, got NystromformerModel of the family 'nystromformer'; "
            "supported: apertus,",
        ),
        (
            Case("BertForQuestionAnswering", "BertConfig", BERT),
            "expected a supported class of the family 'bert', got BertForQuestionAnswering; "
            "supported: BertModel",
        ),
        (
            Case("GPT2ForSequenceClassification", "GPT2Config", GPT),
            "expected a supported class of the family 'gpt2', got GPT2ForSequenceClassification, "
            "a classifier on a decoder",
        ),
    ],
    ids=["shared layers", "experts", "family", "class", "head"],
)
def test_unsupported_families_and_classes_are_rejected(case, message):
    with pytest.raises(UserError) as error:
        from_hf(case.build())
    assert message in str(error.value)


ROPE = {"rope_theta": 1e4, "factor": 2.0}
UNSUPPORTED = [
    ("Qwen3Moe", "ForCausalLM", GROUPED, {"mlp_only_layers": [1]}, "mlp_only_layers=[1]"),
    ("Mixtral", "ForCausalLM", GROUPED, {"router_jitter_noise": 0.1}, "router_jitter_noise=0.1"),
    ("GPT2", "LMHeadModel", GPT, {"scale_attn_by_inverse_layer_idx": True}, "inverse_layer_idx=T"),
    ("GPT2", "LMHeadModel", GPT, {"activation_function": "mish"}, "activation_function='mish'"),
    ("GPT2", "LMHeadModel", GPT, {"add_cross_attention": True}, "add_cross_attention=True"),
    ("GPT2", "LMHeadModel", GPT, {"sliding_window": 3}, "sliding_window=3 (not supported)"),
    ("Bert", "Model", BERT, {"is_decoder": True}, "is_decoder=True (only False"),
    ("MPNet", "Model", BERT, {"relative_attention_num_buckets": 16}, "buckets=16 (only 32"),
    ("Roberta", "ForMaskedLM", ROBERTA, {"hidden_act": "relu"}, "its head always uses gelu"),
    (
        "Llama",
        "ForCausalLM",
        GROUPED,
        {"rope_parameters": ROPE | {"rope_type": "proportional"}},
        "'pro",
    ),
    ("Llama", "ForCausalLM", GROUPED, {"is_causal": False}, "is_causal=False (not supported)"),
    ("Llama", "Model", GROUPED, {"partial_rotary_factor": 0.5}, "partial_rotary_factor=0.5 (this"),
    ("GPTNeoX", "ForCausalLM", TEXT, {"head_dim": 16}, "head_dim=16 (not supported)"),
    ("Llama", "ForCausalLM", GROUPED, {"hidden_act": "relu2"}, "hidden_act='relu2'"),
    ("Falcon", "ForCausalLM", FALCON, {"alibi": True}, "alibi=True (only False"),
    ("Mpt", "ForCausalLM", MPT, {"n_heads": 6, "d_model": 36}, "n_heads=6 (its ALiBi slopes"),
    ("Gemma", "Model", GROUPED, {"use_bidirectional_attention": True}, "use_bidirectional_attenti"),
    ("OPT", "ForCausalLM", OPT, {"word_embed_proj_dim": 16}, "word_embed_proj_dim=16 (only 32"),
    ("Olmo", "ForCausalLM", GROUPED, {"clip_qkv": 2.0}, "clip_qkv=2.0"),
    ("Cohere", "ForCausalLM", GROUPED, {"use_qk_norm": True}, "use_qk_norm=True"),
    ("Phi", "ForCausalLM", GROUPED, {"qk_layernorm": True}, "qk_layernorm=True"),
    ("SmolLM3", "ForCausalLM", GROUPED, {"no_rope_layers": [1, 0]}, "no_rope_layers=[1, 0]"),
    ("T5", "ForConditionalGeneration", T5, {"feed_forward_proj": "tanh"}, "dense_act_fn='tanh'"),
    ("Bart", "Model", PAIR, {"encoder_ffn_dim": 40}, "encoder_ffn_dim=40 (must be equal)"),
    ("ViT", "Model", IMAGE, {"image_size": (16, 8)}, "image_size=[16, 8] (only squares"),
    ("ViT", "Model", IMAGE, {"pooler_act": "silu"}, "pooler_act='silu'"),
]


@pytest.mark.parametrize(
    ("name", "kind", "values", "change", "message"),
    UNSUPPORTED,
    ids=[str(row[4]) for row in UNSUPPORTED],
)
def test_unsupported_settings_are_rejected(name, kind, values, change, message):
    case = Case(f"{name}{kind}", f"{name}Config", values | change)
    with pytest.raises(UserError) as error:
        from_hf(case.build())
    assert f"cannot convert {case.name} exactly: " in str(error.value)
    assert message in str(error.value)


def test_notes_list_undeclared_fields_and_merged_dropout():
    model = Case("GPT2Model", "GPT2Config", GPT | {"foo": 3, "embd_pdrop": 0.2}).build()
    assert set(from_hf(model).notes) == {
        "foo=3 is ignored: its config class has no such field",
        "training uses 0.1 of resid_pdrop instead of embd_pdrop=0.2",
    }


def test_subclasses_outside_of_transformers_are_rejected():
    class GPT2Model(transformers.GPT2Model):
        pass

    with pytest.raises(
        UserError, match=r"expected a class of transformers, got GPT2Model of tests\."
    ):
        from_hf(GPT2Model(transformers.GPT2Config(**GPT)))


def build_llama():
    return LLAMAS[0].build()


def test_unknown_tensors_are_rejected():
    model = build_llama()
    model.model.layers[1].extra = nn.Linear(3, 3)
    with pytest.raises(
        UserError, match=r"unknown tensors: model\.layers\.1\.extra\.weight, .*bias"
    ):
        from_hf(model)


def test_missing_tensors_are_rejected():
    model = build_llama()
    del model.model.layers[1].mlp.up_proj
    with pytest.raises(
        UserError, match=r"missing tensors, by addnorm name: decoder\.sublayers\.3\.up_proj"
    ):
        from_hf(model)


def test_tensors_of_another_shape_are_rejected():
    model = build_llama()
    model.model.layers[0].mlp.up_proj = nn.Linear(32, 7, bias=False)
    with pytest.raises(
        UserError, match=r"up_proj.weight: expected a shape that gives .*, got \(7, 32\)"
    ):
        from_hf(model)


def test_changed_sinusoids_are_rejected():
    model = Case("PegasusModel", "PegasusConfig", PAIR).build()
    model.encoder.embed_positions.weight.data[3] += 1
    with pytest.raises(UserError, match="expected a table of sinusoids, got other values"):
        from_hf(model)


def test_different_tied_tensors_are_rejected():
    model = Case("T5Model", "T5Config", T5).build()
    model.encoder.embed_tokens.weight = nn.Parameter(torch.randn(61, 32))
    with pytest.raises(
        UserError, match="expected the values of the tensor that it is tied to, got others"
    ):
        from_hf(model)


def test_models_without_weights_are_rejected():
    with torch.device("meta"):
        model = transformers.GPT2Model(transformers.GPT2Config(**GPT))
    with pytest.raises(
        UserError, match="expected a model with weights, got GPT2Model on the meta device"
    ):
        from_hf(model)


def test_unsupported_inputs_are_rejected():
    ours = from_hf(build_llama())
    ids = batch(ours.origin)["input_ids"]
    for inputs, message in [
        ({"decoder_input_ids": ids}, "inputs of LlamaForCausalLM among input_ids, .*, got 'decod"),
        ({"inputs_embeds": ids}, r"inputs_embeds: expected one of \(None,\), got a tensor"),
        ({"token_type_ids": ids}, "got 'token_type_ids'"),
        ({"labels": ids[:, 1:]}, "labels: expected integers of shape"),
        ({"output_attentions": True}, "output_attentions: expected .*, got True; leave it out"),
        ({"return_dict": False}, "return_dict: expected .*, got False"),
        ({"attention_mask": ids[None]}, r"attention_mask: expected the shape of its tokens, \(3,"),
    ]:
        with pytest.raises(UserError, match=message):
            ours(input_ids=ids, **inputs)
    with pytest.raises(
        UserError, match="input_ids: expected a tensor for LlamaForCausalLM, got none"
    ):
        ours()
    with pytest.raises(UserError, match="padded on the left"):
        ours.greedy(**batch(ours.origin, "right"))
    with pytest.raises(
        UserError, match="greedy: expected a language model with a head, got BertModel"
    ):
        from_hf(Case("BertModel", "BertConfig", BERT).build()).greedy(ids)
    pair = from_hf(Case("BartModel", "BartConfig", PAIR).build())
    with pytest.raises(
        UserError, match="decoder_input_ids: expected a tensor for BartModel, got none"
    ):
        pair(input_ids=ids)


def test_families_without_an_exact_counterpart_are_refused_with_the_reason():
    sizes = {"vocab_size": 40, "hidden_size": 16, "num_hidden_layers": 1, "head_dim": 8}
    sizes |= {"num_attention_heads": 2, "num_key_value_heads": 1, "intermediate_size": 16}
    linear = {"linear_num_key_heads": 1, "linear_num_value_heads": 1, "num_experts": 0}
    config = transformers.Qwen3NextConfig(**sizes, **linear, layer_types=["linear_attention"])
    with pytest.raises(UserError, match="layer_types with 'linear_attention'"):
        from_hf(transformers.Qwen3NextForCausalLM(config))


def test_attention_that_ignores_the_cap_of_logits_is_named():
    """transformers before 5.22 chooses sdpa for Gemma 2, which ignores the cap."""
    config = SimpleNamespace(attn_logit_softcapping=50.0, _attn_implementation="sdpa")
    assert 'load it with attn_implementation="eager"' in suggest_repair(
        SimpleNamespace(config=config)
    )
    config._attn_implementation = "eager"
    assert "modules or hooks" in suggest_repair(SimpleNamespace(config=config))
