"""Summary lines: direction of each stream, parallel branches, Sub-LN, and norms by their name."""

import pytest
import torch

import addnorm
from tests.doctor.models.broken import Broken, ids
from tests.doctor.models.healthy import HEALTHY


def summarize(model, example, **options):
    return addnorm.doctor(model, example, **options).stacks


def build_wiring(wiring, kind):
    sizes = {"vocab": 41, "dim": 32, "depth": 2, "heads": 2, "seed": 0}
    return addnorm.build(kind=kind, wiring=wiring, **sizes)


@pytest.mark.parametrize("style", ["softmax", "sdpa", "mha", "einsum"])
@pytest.mark.parametrize(
    ("fault", "causal", "word"),
    [
        ("", True, "causal"),
        ("", False, "bidirectional"),
        ("inverted", True, "sees later tokens only"),
    ],
)
def test_direction_is_part_of_the_summary(style, fault, causal, word):
    torch.manual_seed(0)
    (line,) = summarize(Broken(fault, style=style, causal=causal), ids(), rules=())
    assert f", {word}, final norm," in line


def test_each_stack_has_its_own_direction():
    encoder, decoder = summarize(build_wiring("pre_ln", "seq2seq"), (ids(), ids().flip(1)))
    assert ", bidirectional," in encoder and ", causal," in decoder
    assert ", bidirectional," in summarize(build_wiring("pre_ln", "masked_lm"), ids())[0]


def test_layers_of_both_directions_are_named():
    torch.manual_seed(0)
    model = Broken(only=None)
    model.layers[1].attention.causal = False
    assert ", causal and bidirectional," in summarize(model, ids(), rules=())[0]


@pytest.mark.parametrize(
    ("name", "word"),
    [
        ("prefix LM: the first tokens see each other", "causal behind a prefix"),
        ("Mamba-like: a gated selective scan", "causal"),  # no attention: shown by the probe
        ("RWKV-like: shifted tokens and a decaying sum", "causal"),
        ("rotary positions, sliding window", "causal"),
        ("vision Transformer with a class token and registers", "bidirectional"),
    ],
)
def test_direction_of_unusual_models(name, word):
    torch.manual_seed(0)
    assert f", {word}," in summarize(*HEALTHY[name]())[-1]


def test_both_parallel_branches_are_listed():
    torch.manual_seed(0)
    report = addnorm.doctor(*HEALTHY["parallel attention and feed-forward"]())
    assert report.stacks[0].startswith(
        "3 x [self-attention + feed-forward], parallel Pre-LN with LayerNorm"
    )
    assert [b.branches for b in report.blocks] == [("self-attention", "feed-forward")] * 3
    assert report.to_dict()["blocks"][0]["branches"] == ["self-attention", "feed-forward"]
    two_adds = addnorm.doctor(build_wiring("parallel", "lm"), ids())
    assert two_adds.stacks[0].startswith("2 x [self-attention, feed-forward], parallel Pre-LN")
    assert {b.branches for b in two_adds.blocks} == {("self-attention",), ("feed-forward",)}


@pytest.mark.parametrize("layers", [1, 3])
def test_stablelm_with_parallel_residual_is_parallel(layers):
    transformers = pytest.importorskip("transformers")
    config = transformers.StableLmConfig(
        hidden_size=32, num_hidden_layers=layers, num_attention_heads=4, num_key_value_heads=2,
        intermediate_size=48, vocab_size=41, use_parallel_residual=True,
    )  # fmt: skip
    torch.manual_seed(0)
    model = transformers.StableLmForCausalLM(config)
    report = addnorm.doctor(model, {"input_ids": ids()}, rules=())
    assert report.arrangement == "parallel" and "parallel Pre-LN" in report.stacks[0]


def test_sub_ln_is_not_called_pre_ln():
    report = addnorm.doctor(build_wiring("sub_ln", "lm"), ids(), rules=())
    assert report.arrangement == "sub_ln" and "], Sub-LN with LayerNorm" in report.stacks[0]
    assert {b.tags for b in report.blocks} == {("sub-ln",)}
    plain = addnorm.doctor(build_wiring("pre_ln", "lm"), ids(), rules=())
    assert "], Pre-LN with" in plain.stacks[0] and {b.tags for b in plain.blocks} == {()}


@pytest.mark.parametrize("name", ["query-key norm instead of a scale"])
def test_query_key_norm_is_not_sub_ln(name):
    torch.manual_seed(0)
    report = addnorm.doctor(*HEALTHY[name](), rules=())
    assert "], Pre-LN with" in report.stacks[0] and {b.tags for b in report.blocks} == {()}


def test_norms_of_low_rank_projections_are_not_sub_ln():
    transformers = pytest.importorskip("transformers")
    config = transformers.DeepseekV3Config(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=2,
        intermediate_size=48, moe_intermediate_size=16, vocab_size=41, q_lora_rank=16,
        kv_lora_rank=16, qk_rope_head_dim=8, qk_nope_head_dim=8, v_head_dim=8, n_routed_experts=4,
        n_group=1, topk_group=1, num_experts_per_tok=2, first_k_dense_replace=1, pad_token_id=0,
    )  # fmt: skip
    torch.manual_seed(0)
    model = transformers.DeepseekV3ForCausalLM(config)
    report = addnorm.doctor(model, {"input_ids": ids()}, rules=())
    assert "], Pre-LN with RMSNorm" in report.stacks[0]
