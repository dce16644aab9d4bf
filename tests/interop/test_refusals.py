"""What is not understood is refused with its name, and nothing is half loaded."""

import sys

import pytest
import torch
import transformers
from torch import nn

from addnorm.core.errors import UserError
from addnorm.interop import from_hf
from tests.interop.cases import BERT, FALCON, LLAMAS, MPT, OPT, ROBERTA, T5
from tests.interop.zoo import GPT, GROUPED, IMAGE, PAIR, TEXT, Case, batch

pytestmark = pytest.mark.peer


def test_what_is_no_model_of_transformers():
    with pytest.raises(UserError, match="wanted a model of transformers, got Linear"):
        from_hf(nn.Linear(2, 2))


def test_without_transformers_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(UserError, match=r"pip install 'addnorm\[interop\]'"):
        from_hf(nn.Linear(2, 2))


@pytest.mark.parametrize(
    ("case", "said"),
    [
        (
            Case("AlbertModel", "AlbertConfig", TEXT | {"embedding_size": 32}),
            "AlbertModel is of the family 'albert', which is not understood; nothing was loaded. "
            "Known: bart, bert",
        ),
        (
            Case("BertForTokenClassification", "BertConfig", BERT),
            "BertForTokenClassification of the family 'bert' is not understood; nothing was loaded."
            " Known: BertModel",
        ),
        (
            Case("GPT2ForSequenceClassification", "GPT2Config", GPT),
            "GPT2ForSequenceClassification of the family 'gpt2' is not understood",
        ),
    ],
    ids=["family", "class", "head"],
)
def test_unknown_families_and_classes(case, said):
    with pytest.raises(UserError) as problem:
        from_hf(case.build())
    assert said in str(problem.value)


ROPE = {"rope_theta": 1e4, "factor": 2.0}
STRANGE = [
    ("GPT2", "LMHeadModel", GPT, {"scale_attn_by_inverse_layer_idx": True}, "inverse_layer_idx=T"),
    ("GPT2", "LMHeadModel", GPT, {"activation_function": "mish"}, "activation_function='mish'"),
    ("GPT2", "LMHeadModel", GPT, {"add_cross_attention": True}, "add_cross_attention=True"),
    ("GPT2", "LMHeadModel", GPT, {"sliding_window": 3}, "sliding_window=3 (nobody looked at it)"),
    ("Bert", "Model", BERT, {"is_decoder": True}, "is_decoder=True (only False"),
    ("Electra", "Model", BERT, {"embedding_size": 16}, "embedding_size=16 (must be hidden_size"),
    ("Roberta", "ForMaskedLM", ROBERTA, {"hidden_act": "relu"}, "its head always has gelu"),
    ("Llama", "ForCausalLM", GROUPED, {"rope_parameters": ROPE | {"rope_type": "dynamic"}}, "'dyn"),
    ("Llama", "ForCausalLM", GROUPED, {"rope_parameters": ROPE | {"rope_type": "yarn"}}, "'yarn'"),
    ("Llama", "ForCausalLM", GROUPED, {"is_causal": False}, "is_causal=False (nobody looked at"),
    ("Llama", "Model", GROUPED, {"partial_rotary_factor": 0.5}, "partial_rotary_factor=0.5 (this"),
    ("GPTNeoX", "ForCausalLM", TEXT, {"head_dim": 16}, "head_dim=16 (nobody looked at it)"),
    ("Llama", "ForCausalLM", GROUPED, {"hidden_act": "relu2"}, "hidden_act='relu2'"),
    ("Falcon", "ForCausalLM", FALCON, {"alibi": True}, "alibi=True (only False"),
    ("Mpt", "ForCausalLM", MPT, {"n_heads": 6, "d_model": 36}, "n_heads=6 (its slopes"),
    ("Gemma", "Model", GROUPED, {"use_bidirectional_attention": True}, "use_bidirectional_attenti"),
    ("OPT", "ForCausalLM", OPT, {"word_embed_proj_dim": 16}, "word_embed_proj_dim=16 (only 32"),
    ("Olmo", "ForCausalLM", GROUPED, {"clip_qkv": 2.0}, "clip_qkv=2.0"),
    ("Granite", "ForCausalLM", GROUPED, {"residual_multiplier": 0.2}, "residual_multiplier=0.2"),
    ("Cohere", "ForCausalLM", GROUPED, {"use_qk_norm": True}, "use_qk_norm=True"),
    ("Phi", "ForCausalLM", GROUPED, {"qk_layernorm": True}, "qk_layernorm=True"),
    ("SmolLM3", "ForCausalLM", GROUPED, {"no_rope_layers": [1, 0]}, "no_rope_layers=[1, 0]"),
    ("T5", "ForConditionalGeneration", T5, {"feed_forward_proj": "tanh"}, "dense_act_fn='tanh'"),
    ("Bart", "Model", PAIR, {"encoder_ffn_dim": 40}, "encoder_ffn_dim=40 (must be equal)"),
    ("ViT", "Model", IMAGE, {"image_size": (16, 8)}, "image_size=[16, 8] (only squares"),
    ("ViT", "Model", IMAGE, {"pooler_act": "silu"}, "pooler_act='silu'"),
]


@pytest.mark.parametrize(
    ("name", "kind", "values", "change", "said"), STRANGE, ids=[str(row[4]) for row in STRANGE]
)
def test_settings_that_cannot_be_expressed(name, kind, values, change, said):
    case = Case(f"{name}{kind}", f"{name}Config", values | change)
    with pytest.raises(UserError) as problem:
        from_hf(case.build())
    assert f"cannot express {case.name} exactly: " in str(problem.value)
    assert said in str(problem.value)
    assert str(problem.value).endswith("nothing was loaded")


def test_leftovers_in_a_config_are_told():
    model = Case("GPT2Model", "GPT2Config", GPT | {"foo": 3, "embd_pdrop": 0.2}).build()
    assert set(from_hf(model).notes) == {
        "foo=3 is no field of its config",
        "in training embd_pdrop=0.2 is 0.1 here, as resid_pdrop",
    }


def test_classes_of_others():
    class GPT2Model(transformers.GPT2Model):
        pass

    with pytest.raises(UserError, match=r"GPT2Model is a class of tests\..*, not of transformers"):
        from_hf(GPT2Model(transformers.GPT2Config(**GPT)))


def llama():
    return LLAMAS[0].build()


def test_a_tensor_that_has_no_place():
    model = llama()
    model.model.layers[1].extra = nn.Linear(3, 3)
    with pytest.raises(UserError, match=r"no place: model\.layers\.1\.extra\.weight, .*bias"):
        from_hf(model)


def test_a_tensor_that_is_missing():
    model = llama()
    del model.model.layers[1].mlp.up_proj
    with pytest.raises(UserError, match=r"missing, in our names: decoder\.sublayers\.3\.up_proj"):
        from_hf(model)


def test_a_tensor_of_another_shape():
    model = llama()
    model.model.layers[0].mlp.up_proj = nn.Linear(32, 7, bias=False)
    with pytest.raises(UserError, match=r"up_proj.weight of shape \(7, 32\) does not give"):
        from_hf(model)


def test_a_table_of_sinusoids_that_was_changed():
    model = Case("MarianModel", "MarianConfig", PAIR).build()
    model.encoder.embed_positions.weight.data[3] += 1
    with pytest.raises(UserError, match="should be a table of sinusoids, and it is not"):
        from_hf(model)


def test_tied_tensors_that_differ():
    model = Case("T5Model", "T5Config", T5).build()
    model.encoder.embed_tokens.weight = nn.Parameter(torch.randn(61, 32))
    with pytest.raises(UserError, match="should be tied, and its values are those of another"):
        from_hf(model)


def test_no_weights():
    with torch.device("meta"):
        model = transformers.GPT2Model(transformers.GPT2Config(**GPT))
    with pytest.raises(UserError, match="GPT2Model is on the meta device and has no weights"):
        from_hf(model)


def test_inputs_that_are_not_understood():
    ours = from_hf(llama())
    ids = batch(ours.origin)["input_ids"]
    for inputs, said in [
        ({"labels": ids}, "takes no 'labels' here; wanted some of input_ids, attention_mask"),
        ({"inputs_embeds": ids}, "takes no 'inputs_embeds'"),
        ({"token_type_ids": ids}, "takes no 'token_type_ids'"),
        ({"output_attentions": True}, "output_attentions=True is not understood; leave it out"),
        ({"return_dict": False}, "return_dict=False is not understood"),
        ({"attention_mask": ids[None]}, r"attention_mask must have the shape of its tokens, \(3,"),
    ]:
        with pytest.raises(UserError, match=said):
            ours(input_ids=ids, **inputs)
    with pytest.raises(UserError, match="LlamaForCausalLM needs 'input_ids'"):
        ours()
    with pytest.raises(UserError, match="padded on the left"):
        ours.greedy(**batch(ours.origin, "right"))
    with pytest.raises(UserError, match="BertModel writes no tokens"):
        from_hf(Case("BertModel", "BertConfig", BERT).build()).greedy(ids)
    pair = from_hf(Case("BartModel", "BartConfig", PAIR).build())
    with pytest.raises(UserError, match="BartModel needs 'decoder_input_ids'"):
        pair(input_ids=ids)
