"""Options inside sub-layers: references, laws, cache, packing, beams, and Hugging Face's layers."""

import copy

import pytest
import torch
from torch import nn

import addnorm
from addnorm import Decoder, Encoder, UserError
from addnorm.core import ArrangementMismatchError
from addnorm.sublayers import FeedForward, KVCache, SelfAttention
from addnorm.sublayers.attention_options.canon import CanonLayer
from tests.helpers import gradients, perturb, tokens

F64 = torch.float64
OPTIONS = [
    {"gate": "element"},
    {"gate": "head"},
    {"sink": "learned"},
    {"sink": "off_by_one"},
    {"exclusive": True},
    {"value_residual": "half"},
    {"value_residual": "scalar"},
    {"value_residual": "token"},
    {"canon": "AC"},
    {"canon": "ABCD", "activation": "swiglu", "qk_norm": "rms"},
    {"canon": "BD", "qk_norm": "rms_head"},
    {"gate": "head", "sink": "learned", "exclusive": True, "value_residual": "token", "cap": 5.0},
]
every_option = pytest.mark.parametrize("options", OPTIONS, ids=str)


def make_attention(**options):
    torch.manual_seed(0)
    return perturb(SelfAttention(12, 4, kv_heads=2, causal=True, **options)).to(F64).eval()


def make_decoder(**options):
    torch.manual_seed(0)
    sizes = {"dim": 16, "depth": 3, "heads": 4, "kv_heads": 2, "positions": "rotary"}
    return perturb(Decoder(**sizes | options)).to(F64).eval()


def run_heads(attention, x, sink=None):
    """Return heads, (B, L, H, K), and values, written out with a loop over queries."""
    batch, length, _ = x.shape
    q = attention.q_proj(x).view(batch, length, 4, 3)
    k = attention.k_proj(x).view(batch, length, 2, 3).repeat_interleave(2, 2)
    v = attention.v_proj(x).view(batch, length, 2, 3).repeat_interleave(2, 2)
    rows = []
    for t in range(length):
        weights = torch.exp(torch.einsum("bhk,bshk->bhs", q[:, t], k[:, : t + 1]) / 3**0.5)
        total = weights.sum(-1, keepdim=True)
        total = total if sink is None else total + torch.exp(sink)[:, None]
        rows.append(torch.einsum("bhs,bshk->bhk", weights / total, v[:, : t + 1]))
    return torch.stack(rows, 1), v


@pytest.mark.parametrize("kind", ["element", "head"])
def test_gates_multiply_the_outputs_of_the_heads(kind):
    attention, x = make_attention(gate=kind), tokens(2, 5, 12, dtype=F64)
    heads, _ = run_heads(attention, x)
    gates = 1 / (1 + torch.exp(-(x @ attention.output_gate.proj.weight.T)))
    expected = heads * gates.unflatten(-1, (4, -1))
    torch.testing.assert_close(attention(x), attention.out_proj(expected.flatten(2)))


@pytest.mark.parametrize("kind", ["learned", "off_by_one"])
@pytest.mark.parametrize("bias", [False, True])
def test_sinks_add_to_the_denominator(kind, bias):
    attention, x = make_attention(sink=kind), tokens(2, 5, 12, dtype=F64)
    sink = attention.sinks if kind == "learned" else torch.zeros(4, dtype=F64)
    heads, _ = run_heads(attention, x, sink)
    zeros = {"bias": torch.zeros(4, 5, 5, dtype=F64)} if bias else {}
    expected = attention.out_proj(heads.flatten(2))
    torch.testing.assert_close(attention(x, **zeros), expected)
    y, probabilities = attention(x, weights=True, **zeros)
    torch.testing.assert_close(y, expected)
    assert probabilities.shape == (2, 4, 5, 5) and bool((probabilities.sum(-1) < 1).all())


def test_a_sink_far_below_is_plain_attention():
    attention, plain = make_attention(sink="learned"), make_attention()
    plain.load_state_dict(attention.state_dict(), strict=False)
    nn.init.constant_(attention.sinks, -200.0)
    x = tokens(2, 5, 12, dtype=F64)
    torch.testing.assert_close(attention(x), plain(x))


def test_off_by_one_is_a_key_and_a_value_of_zeros():
    attention = make_attention(sink="off_by_one")
    theirs = nn.MultiheadAttention(12, 4, add_zero_attn=True, batch_first=True, dtype=F64)
    full = SelfAttention(12, 4, sink="off_by_one").to(F64)
    with torch.no_grad():
        theirs.in_proj_weight.copy_(
            torch.cat([full.q_proj.weight, full.k_proj.weight, full.v_proj.weight])
        )
        theirs.in_proj_bias.copy_(torch.cat([full.q_proj.bias, full.k_proj.bias, full.v_proj.bias]))
        theirs.out_proj.load_state_dict(full.out_proj.state_dict())
    x = tokens(2, 5, 12, dtype=F64)
    torch.testing.assert_close(full(x), theirs(x, x, x)[0])
    assert attention(x).isfinite().all()


def test_exclusive_heads_are_orthogonal_to_their_own_value():
    attention, x = make_attention(exclusive=True), tokens(2, 5, 12, dtype=F64)
    heads, v = run_heads(attention, x)
    along = (heads * v).sum(-1, keepdim=True) / v.square().sum(-1, keepdim=True)
    expected = heads - along * v
    assert (expected * v).sum(-1).abs().max().item() < 1e-12
    torch.testing.assert_close(attention(x), attention.out_proj(expected.flatten(2)))
    assert expected[:, 0].abs().max().item() < 1e-12  # the first token sees only itself


@pytest.mark.parametrize("kind", ["half", "scalar", "token"])
def test_values_are_mixed_with_those_of_the_first_layer(kind):
    seen = []

    def hook(module, args, kwargs):
        seen.append((module, args[0]))

    stack = make_decoder(value_residual=kind, positions="none")
    for attention in stack.sublayers[::2]:
        attention.register_forward_pre_hook(hook, with_kwargs=True)
    plugged = []

    def record(attend):
        def run(q, k, v, **options):
            plugged.append(v)
            return attend(q, k, v, **options)

        return run

    for attention in stack.sublayers[::2]:
        attention.attend = record(attention.attend)
    stack(tokens(2, 5, 16, dtype=F64))
    (first, h0), *others = seen
    v0 = first.v_proj(h0)
    for (attention, h), actual in zip(others, plugged[1:], strict=True):
        residual = attention.value_residual
        m = 0.5
        if kind == "scalar":
            m = residual.weight
        if kind == "token":
            m = torch.sigmoid(residual.proj(h)).repeat_interleave(4, -1)
        expected = m * attention.v_proj(h) + (1 - m) * v0
        torch.testing.assert_close(actual, expected.view(2, 5, 2, 4).transpose(1, 2))
    assert first.value_residual is None


def test_canon_layer_is_a_causal_convolution_with_a_skip():
    layer, h = perturb(CanonLayer(6)).to(F64), tokens(2, 9, 6, dtype=F64)
    convolution = nn.Conv1d(6, 6, 4, groups=6, padding=3, bias=False, dtype=F64)
    with torch.no_grad():
        convolution.weight.copy_(layer.weight.flip(1).unsqueeze(1))
    expected = h + convolution(h.mT)[..., :9].mT
    torch.testing.assert_close(layer(h)[0], expected)


@every_option
def test_decoding_with_a_cache_equals_the_full_forward(options):
    stack, x = make_decoder(**options), tokens(2, 9, 16, dtype=F64)
    cache = KVCache(len(stack.plan.sites))
    with torch.no_grad():
        parts = [stack(part, cache=cache) for part in (x[:, :4], *x[:, 4:].split(1, 1))]
        torch.testing.assert_close(torch.cat(parts, 1), stack(x))


@every_option
@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_changes_nothing(options, side):
    stack, x = make_decoder(**options), tokens(1, 6, 16, dtype=F64)
    garbage = 50 * tokens(1, 3, 16, seed=9, dtype=F64)
    valid, padding = torch.ones(1, 6, dtype=torch.bool), torch.zeros(1, 3, dtype=torch.bool)
    parts = ([garbage, x], [padding, valid]) if side == "left" else ([x, garbage], [valid, padding])
    padded, mask = (torch.cat(part, 1) for part in parts)
    y = stack(padded, mask=mask)
    torch.testing.assert_close(y[mask], stack(x)[0])


@every_option
def test_packed_equals_padded(options):
    stack, x = make_decoder(**options), tokens(3, 8, 16, dtype=F64).requires_grad_()
    mask = torch.arange(8) < torch.tensor([[3], [8], [5]])
    inputs = [x, *stack.parameters()]
    plain = stack(x, mask=mask)[mask]
    stack.packed = True
    packed = stack(x, mask=mask)[mask]
    torch.testing.assert_close(packed, plain)
    for one, other in zip(gradients(packed, inputs), gradients(plain, inputs), strict=True):
        torch.testing.assert_close(one, other)


@every_option
def test_beams_share_a_cache_as_separate_rows_would(options):
    stack = make_decoder(**options)
    prompt, steps = tokens(2, 4, 16, dtype=F64), tokens(6, 3, 16, seed=5, dtype=F64)
    parents = torch.tensor([[1, 1, 0], [2, 0, 0]])
    rows = (parents + torch.tensor([[0], [3]])).flatten()
    cache, plain = KVCache(6), KVCache(6)
    with torch.no_grad():
        stack(prompt, cache=cache)
        cache.expand_beams(3)
        stack(prompt.repeat_interleave(3, 0), cache=plain)
        for step in range(3):
            token = steps[:, step : step + 1]
            y, expected = stack(token, cache=cache), stack(token, cache=plain)
            torch.testing.assert_close(y, expected)
            cache.reorder_beams(parents)
            plain.reorder(rows)
        kept = torch.tensor([1])
        cache.select_groups(kept)
        plain.reorder(torch.tensor([3, 4, 5]))
        token = steps[3:, :1]
        torch.testing.assert_close(stack(token, cache=cache), stack(token, cache=plain))


@every_option
def test_left_padded_prompts_continue_like_single_ones(options):
    stack = make_decoder(**options)
    one, two = tokens(1, 2, 16, dtype=F64), tokens(1, 5, 16, seed=6, dtype=F64)
    batch = torch.cat([nn.functional.pad(one, (0, 0, 3, 0), value=9.0), two])
    mask = torch.tensor([[False] * 3 + [True] * 2, [True] * 5])
    step, cache, single = tokens(2, 1, 16, seed=7, dtype=F64), KVCache(6), KVCache(6)
    with torch.no_grad():
        stack(batch, mask=mask, cache=cache)
        stack(one, cache=single)
        torch.testing.assert_close(stack(step, cache=cache)[:1], stack(step[:1], cache=single))


@every_option
def test_recomputing_activations_changes_no_gradient(options):
    stack, x = make_decoder(**options).train(), tokens(2, 5, 16, dtype=F64).requires_grad_()
    inputs = [x, *stack.parameters()]
    plain = gradients(stack(x), inputs)
    stack.recompute = True
    for one, other in zip(gradients(stack(x), inputs), plain, strict=True):
        torch.testing.assert_close(one, other)


@every_option
def test_every_parameter_has_a_gradient_and_is_reset(options):
    stack = make_decoder(**options)
    names, parameters = zip(*stack.named_parameters(), strict=True)
    grads = gradients(stack(tokens(2, 5, 16, dtype=F64)), list(parameters))
    unused = [n for n, g in zip(names, grads, strict=True) if not g.abs().sum() > 0]
    assert [name for name in unused if not name.endswith("k_proj.bias")] == []
    torch.manual_seed(0)
    fresh = Decoder(dim=16, depth=3, heads=4, kv_heads=2, positions="rotary", **options).to(F64)
    fresh.init_weights(seed=3)
    stack.init_weights(seed=3)
    for name, value in fresh.state_dict().items():
        assert torch.equal(value, stack.state_dict()[name]), name


@every_option
def test_compiles_to_one_graph(options):
    stack, x = make_decoder(**options), tokens(2, 5, 16, dtype=F64)
    torch._dynamo.reset()
    compiled = torch.compile(stack, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(x), stack(x))


def test_options_are_part_of_the_arrangement():
    plain, exclusive = make_decoder(), make_decoder(exclusive=True)
    with pytest.raises(ArrangementMismatchError, match="exclusive=True"):
        plain.load_state_dict(exclusive.state_dict())


def test_a_gate_of_zeros_and_a_doubled_output_is_no_gate():
    gated, plain = make_attention(gate="element"), make_attention()
    plain.load_state_dict(gated.state_dict(), strict=False)
    with torch.no_grad():
        gated.output_gate.proj.weight.zero_()
        gated.out_proj.weight.mul_(2)
    x = tokens(2, 5, 12, dtype=F64)
    torch.testing.assert_close(gated(x), plain(x))


def test_value_embeddings_depend_on_token_ids():
    model = addnorm.build(kind="lm", vocab=20, dim=16, depth=3, heads=2, value_embed=True, seed=0)
    perturb(model).eval()
    attentions = model.decoder.sublayers[::2]
    assert [each.value_embed is not None for each in attentions] == [True, False, True]
    ids = torch.randint(4, 20, (2, 7), generator=torch.Generator().manual_seed(0))
    cache = model.new_cache()
    with torch.no_grad():
        full = model(ids)
        parts = [model(part, cache=cache) for part in (ids[:, :3], *ids[:, 3:].split(1, 1))]
        torch.testing.assert_close(torch.cat(parts, 1), full, rtol=1e-4, atol=1e-5)
        mask = torch.arange(7) < torch.tensor([[4], [7]])
        plain = model(ids, mask=mask)[mask]
        model.decoder.packed = True
        torch.testing.assert_close(model(ids, mask=mask)[mask], plain, rtol=1e-4, atol=1e-5)
    attention = attentions[0]
    h, part = tokens(2, 7, 16), attention.value_embed
    gate = 2 / (1 + torch.exp(-(h[..., :12] @ part.gate.T)))
    expected = gate[..., None] * part.table[ids].view(2, 7, 2, 8)
    torch.testing.assert_close(part(h, ids), expected.transpose(1, 2))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: SelfAttention(8, 2, gate="all"), "gate: expected|unknown gate"),
        (lambda: SelfAttention(8, 2, sink="one"), "sink"),
        (lambda: SelfAttention(8, 2, canon="A"), "canon: expected causal=True"),
        (lambda: SelfAttention(8, 2, canon="C", causal=True), "canon: expected letters of AB"),
        (lambda: FeedForward(8, canon="DC"), "canon: expected letters of CD in order"),
        (lambda: Encoder(dim=8, depth=1, heads=2, canon="AC"), "canon: expected '' in an encoder"),
        (lambda: Encoder(dim=8, depth=1, heads=2, value_residual="all"), "value_residual"),
        (
            lambda: addnorm.build(
                kind="classifier", vocab=9, dim=8, depth=1, heads=2, value_embed=True
            ),
            "value_embed: expected kind lm or prefix_lm",
        ),
    ],
)
def test_refusals(make, message):
    with pytest.raises(UserError, match=message):
        make()


def test_a_cache_of_canon_layers_cannot_be_truncated():
    stack, cache = make_decoder(canon="A"), KVCache(6)
    stack(tokens(1, 5, 16, dtype=F64), cache=cache)
    with pytest.raises(UserError, match="Canon layers keep only the last inputs"):
        cache.truncate(3)


def test_caches_with_canon_layers_are_pytrees():
    stack, cache = make_decoder(canon="ABCD"), KVCache(6)
    stack(tokens(1, 5, 16, dtype=F64), cache=cache)
    leaves, spec = torch.utils._pytree.tree_flatten(cache)
    again = torch.utils._pytree.tree_unflatten([leaf.clone() for leaf in leaves], spec)
    x = tokens(1, 1, 16, seed=8, dtype=F64)
    torch.testing.assert_close(stack(x, cache=again), stack(x, cache=cache))


def identity_rotation(length, width):
    return torch.ones(1, length, width, dtype=F64), torch.zeros(1, length, width, dtype=F64)


@pytest.mark.peer
def test_sinks_equal_those_of_gpt_oss():
    from transformers import GptOssConfig
    from transformers.models.gpt_oss.modeling_gpt_oss import GptOssAttention

    config = GptOssConfig(
        hidden_size=12, num_attention_heads=4, num_key_value_heads=2, head_dim=4,
        num_hidden_layers=1, layer_types=["full_attention"], attn_implementation="eager",
    )  # fmt: skip
    theirs = GptOssAttention(config, 0).to(F64)
    ours = make_attention(sink="learned", head_dim=4)
    names = {"out_proj.weight": "o_proj.weight", "out_proj.bias": "o_proj.bias"}
    state = {names.get(name, name): value for name, value in ours.state_dict().items()}
    theirs.load_state_dict(state)
    x = tokens(2, 5, 12, dtype=F64)
    mask = torch.full((5, 5), -torch.inf, dtype=F64).triu(1)[None, None]
    expected = theirs(x, identity_rotation(5, 2), mask)[0]
    torch.testing.assert_close(ours(x), expected)


@pytest.mark.peer
def test_gates_equal_those_of_qwen3_next():
    from transformers import Qwen3NextConfig
    from transformers.models.qwen3_next.modeling_qwen3_next import Qwen3NextAttention

    config = Qwen3NextConfig(
        hidden_size=12, num_attention_heads=4, num_key_value_heads=2, head_dim=3,
        num_hidden_layers=1, layer_types=["full_attention"], attn_implementation="eager",
        attention_bias=False,
    )  # fmt: skip
    theirs = Qwen3NextAttention(config, 0).to(F64)
    eps = config.rms_norm_eps
    ours = make_attention(
        gate="element", bias=False, qk_norm=f"rms_head(eps={eps!r}, gain=one_plus)"
    )
    state = ours.state_dict()
    rows = [state["q_proj.weight"].view(4, 3, 12), state["output_gate.proj.weight"].view(4, 3, 12)]
    theirs.load_state_dict(
        {
            "q_proj.weight": torch.cat(rows, 1).flatten(0, 1),
            "k_proj.weight": state["k_proj.weight"],
            "v_proj.weight": state["v_proj.weight"],
            "o_proj.weight": state["out_proj.weight"],
            "q_norm.weight": state["qk_norm.query_norm.weight"],
            "k_norm.weight": state["qk_norm.key_norm.weight"],
        }
    )
    x = tokens(2, 5, 12, dtype=F64)
    mask = torch.full((5, 5), -torch.inf, dtype=F64).triu(1)[None, None]
    expected = theirs(x, identity_rotation(5, 3), mask)[0]
    torch.testing.assert_close(ours(x), expected)


def test_deepcopy_of_a_stack_shares_no_values():
    stack = make_decoder(value_residual="half")
    duplicate = copy.deepcopy(stack)
    perturb(duplicate)
    x = tokens(1, 3, 16, dtype=F64)
    assert not torch.allclose(stack(x), duplicate(x))
