"""Encoder and decoder: comparison with torch.nn, and properties of every wiring."""

import copy
import warnings

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from addnorm import Decoder, Encoder
from addnorm.core.errors import ArrangementMismatchError, UserError
from addnorm.stacks.arrangement import decode_text
from addnorm.sublayers import KVCache, masks
from addnorm.sublayers.positions import registry as positions
from addnorm.wirings import registry as wirings
from tests.bfloat16_bounds import assert_bfloat16_close
from tests.helpers import gradients, perturb, tokens


def make_stack(kind=Encoder, *, dtype=torch.float32, perturbed=True, **options):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        stack = kind(**{"dim": 12, "depth": 3, "heads": 2} | options)
        return (perturb(stack) if perturbed else stack).to(dtype)


# Comparison with torch.nn on copied weights.


def copy_attention(theirs, ours):
    linears = (ours.q_proj, ours.k_proj, ours.v_proj)
    with torch.no_grad():
        theirs.in_proj_weight.copy_(torch.cat([linear.weight for linear in linears]))
        theirs.in_proj_bias.copy_(torch.cat([linear.bias for linear in linears]))
    theirs.out_proj.load_state_dict(ours.out_proj.state_dict())


def copy_stack(theirs, ours):
    """Copy the weights of a stack to torch.nn.TransformerEncoder or TransformerDecoder."""
    for site, sublayer in zip(ours.plan.sites, ours.sublayers, strict=True):
        layer = theirs.layers[site.layer]
        if site.kind == "ffn":
            layer.linear1.load_state_dict(sublayer.up_proj.state_dict())
            layer.linear2.load_state_dict(sublayer.down_proj.state_dict())
        else:
            copy_attention(
                layer.self_attn if site.kind == "self" else layer.multihead_attn, sublayer
            )
        norm = getattr(layer, f"norm{site.slot + 1}")
        norm.load_state_dict(ours.wiring.norms[site.index].state_dict())
    final = getattr(ours.wiring, "final_norm", None)
    assert (theirs.norm is None) == (final is None)
    if final is not None:
        theirs.norm.load_state_dict(final.state_dict())
    return theirs


def torch_encoder(ours, **layer):
    options = {"dim_feedforward": 48, "dropout": 0.0, "batch_first": True} | layer
    final = getattr(ours.wiring, "final_norm", None)
    encoder = nn.TransformerEncoder(
        nn.TransformerEncoderLayer(12, 2, **options),
        3,
        norm=None if final is None else nn.LayerNorm(12),
        enable_nested_tensor=False,
    )
    return copy_stack(encoder, ours)


NORM_ORDERS = [("post_ln", False), ("pre_ln", True)]


@pytest.mark.peer
@pytest.mark.parametrize(("wiring", "norm_first"), NORM_ORDERS)
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_equals_torch_transformer_encoder_in_both_orders(wiring, norm_first, masked, activation):
    """norm_first=False is post_ln and has no final norm; norm_first=True is pre_ln only together
    with norm=LayerNorm, which torch does not add by itself."""
    ours = make_stack(wiring=wiring, activation=activation)
    theirs = torch_encoder(ours, norm_first=norm_first, activation=activation)
    x = tokens(3, 7, 12).requires_grad_()
    mask = masks.padding_mask(torch.tensor([7, 4, 1])) if masked else None
    valid = torch.ones(3, 7, dtype=torch.bool) if mask is None else mask
    y = ours(x, mask=mask)[valid]
    z = theirs(x, src_key_padding_mask=None if mask is None else ~mask)[valid]
    torch.testing.assert_close(y, z, rtol=0, atol=1e-5)
    torch.testing.assert_close(gradients(y, [x]), gradients(z, [x]), rtol=1e-4, atol=1e-4)


@pytest.mark.peer
@pytest.mark.parametrize(("wiring", "norm_first"), NORM_ORDERS)
@pytest.mark.parametrize("masked", [False, True])
def test_equals_torch_transformer_decoder(wiring, norm_first, masked):
    ours = make_stack(Decoder, wiring=wiring, other_depth=2)
    layer = nn.TransformerDecoderLayer(
        12, 2, dim_feedforward=48, dropout=0.0, batch_first=True, norm_first=norm_first
    )
    theirs = nn.TransformerDecoder(layer, 3, norm=nn.LayerNorm(12) if norm_first else None)
    copy_stack(theirs, ours)
    x, memory = tokens(3, 7, 12), tokens(3, 5, 12, seed=9)
    mask = masks.padding_mask(torch.tensor([7, 4, 1])) if masked else None
    memory_mask = masks.padding_mask(torch.tensor([2, 5, 3])) if masked else None
    y = ours(x, memory=memory, mask=mask, memory_mask=memory_mask)
    z = theirs(
        x,
        memory,
        tgt_mask=~masks.causal_mask(7),
        tgt_key_padding_mask=None if mask is None else ~mask,
        memory_key_padding_mask=None if memory_mask is None else ~memory_mask,
    )
    valid = torch.ones(3, 7, dtype=torch.bool) if mask is None else mask
    torch.testing.assert_close(y[valid], z[valid], rtol=0, atol=1e-5)


@pytest.mark.peer
def test_torch_transformer_adds_second_final_norm_to_post_ln():
    """torch.nn.Transformer with norm_first=False, its default, adds a final norm to encoder and
    decoder although the last layer has normalized already (pytorch issue 24930)."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about nested tensors
        theirs = nn.Transformer(12, 2, 3, 3, 48, dropout=0.0, batch_first=True)
    shared = {"wiring": "post_ln(final_norm=True)", "other_depth": 3}
    encoder, decoder = make_stack(**shared), make_stack(Decoder, **shared)
    copy_stack(theirs.encoder, encoder)
    copy_stack(theirs.decoder, decoder)
    x, y = tokens(3, 7, 12), tokens(3, 5, 12, seed=9)
    ours = decoder(y, memory=encoder(x))
    torch.testing.assert_close(
        ours, theirs(x, y, tgt_mask=~masks.causal_mask(5)), rtol=0, atol=1e-5
    )

    plain = make_stack(wiring="post_ln", other_depth=3)
    state = {
        name: value
        for name, value in encoder.state_dict().items()
        if "final_norm" not in name and "extra_state" not in name
    }
    plain.load_state_dict(state, strict=False)
    assert not torch.allclose(plain(x), encoder(x), atol=1e-2)  # plain is the published Post-LN


@pytest.mark.peer
def test_layers_have_different_initial_weights_unlike_torch():
    layer = nn.TransformerEncoderLayer(12, 2, batch_first=True)
    theirs = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).layers
    assert torch.equal(theirs[0].linear1.weight, theirs[1].linear1.weight)
    ours = make_stack(perturbed=False).sublayers
    assert not torch.equal(ours[1].up_proj.weight, ours[3].up_proj.weight)


# Properties of every wiring.


def make_all_roles(wiring, **options):
    """Yield encoder, decoder-only and decoder with memory, each with its context."""
    memory = tokens(2, 5, 12, seed=9, dtype=torch.float64)
    for kind, other, context in (
        (Encoder, None, {}),
        (Decoder, None, {}),
        (Decoder, 4, {"memory": memory}),
    ):
        stack = make_stack(
            kind, wiring=wiring, other_depth=other, depth=4, dtype=torch.float64, **options
        )
        yield stack.eval(), context


@pytest.mark.parametrize("wiring", wirings)
def test_every_wiring_decodes_incrementally(wiring):
    for stack, context in make_all_roles(wiring, positions="rotary"):
        if not stack.plan.causal:
            continue
        x, cache = tokens(2, 6, 12, dtype=torch.float64), KVCache(len(stack.plan.sites))
        parts = (x[:, :3], x[:, 3:4], x[:, 4:])
        steps = [stack(part, cache=cache, **context) for part in parts]
        torch.testing.assert_close(torch.cat(steps, 1), stack(x, **context))


@pytest.mark.parametrize("wiring", wirings)
def test_every_causal_wiring_ignores_later_tokens(wiring):
    for stack, context in make_all_roles(wiring, positions="alibi"):
        x = tokens(2, 6, 12, dtype=torch.float64)
        changed = x.clone()
        changed[:, 3] += 1
        difference = (stack(changed, **context) - stack(x, **context)).abs().amax(-1)
        assert (difference[:, 3] > 0).all()
        if stack.plan.causal:
            assert (difference[:, :3] == 0).all()


@pytest.mark.parametrize("wiring", wirings)
def test_every_wiring_ignores_padding(wiring):
    for stack, context in make_all_roles(wiring, positions="sinusoid"):
        x = tokens(2, 6, 12, dtype=torch.float64)
        mask = torch.ones(2, 6, dtype=torch.bool)
        mask[:, 4:] = False
        padded = stack(x, mask=mask, **context)[:, :4]
        torch.testing.assert_close(padded, stack(x[:, :4], **context))


@pytest.mark.parametrize("wiring", wirings)
def test_every_wiring_is_finite_for_all_padding_sequence(wiring):
    for stack, context in make_all_roles(wiring, positions="t5"):
        x = tokens(2, 6, 12, dtype=torch.float64)
        x[0] = 0
        x.requires_grad_()
        mask = torch.tensor([[False] * 6, [True] * 6])
        y = stack(x, mask=mask, **context)
        assert y.isfinite().all()
        grads = gradients(y[1], [x, *stack.parameters()])
        assert all(gradient.isfinite().all() for gradient in grads)


@pytest.mark.parametrize("wiring", wirings)
def test_every_wiring_starts_layers_with_different_weights(wiring):
    for stack in (
        make_stack(wiring=wiring, perturbed=False),
        make_stack(Decoder, wiring=wiring, other_depth=2, perturbed=False),
    ):
        starts = set()
        for role, weight in stack.weights():
            if role != "bias" and weight.any():  # some wirings start matrices at zero
                starts.add(weight.flatten()[:4].detach().numpy().tobytes())
        nonzero = [role for role, weight in stack.weights() if role != "bias" and weight.any()]
        assert len(starts) == len(nonzero) > 0


# Positions.

# MPNet's bias counts places in the row, as its released code does, not positions.
BY_POSITION = [call for call in positions if call != "learned_t5"]


@pytest.mark.parametrize("call", BY_POSITION)
@pytest.mark.parametrize("kind", [Encoder, Decoder])
@settings(max_examples=15)
@given(rows=st.lists(st.lists(st.booleans(), min_size=6, max_size=6), min_size=1, max_size=3))
def test_padded_equals_trimmed_for_any_mask_and_position(call, kind, rows):
    """Padding on the left, on the right or between tokens does not shift positions."""
    stack, mask = make_stack(kind, positions=call, dtype=torch.float64), torch.tensor(rows)
    x = tokens(len(rows), 6, 12, dtype=torch.float64)
    padded = stack(x, mask=mask)
    for row, keep in enumerate(mask):
        if keep.any():
            torch.testing.assert_close(padded[row, keep], stack(x[row : row + 1, keep])[0])


@pytest.mark.parametrize("call", BY_POSITION)
def test_encoder_depends_on_token_order_only_through_positions(call):
    encoder = make_stack(positions=call, dtype=torch.float64)
    x = tokens(2, 6, 12, dtype=torch.float64)
    order = torch.tensor([3, 0, 5, 1, 4, 2])
    order_is_ignored = torch.allclose(encoder(x[:, order]), encoder(x)[:, order])
    assert order_is_ignored == (call == "none")
    reordered = encoder(x[:, order], position_index=order)
    torch.testing.assert_close(reordered, encoder(x)[:, order])


@pytest.mark.parametrize("call", ["rotary", "t5", "alibi"])
def test_relative_positions_depend_only_on_differences(call):
    decoder, x = make_stack(Decoder, positions=call), tokens(2, 6, 12)
    shifted = decoder(x, position_index=torch.arange(6) + 50)
    torch.testing.assert_close(shifted, decoder(x), rtol=1e-4, atol=1e-4)


def test_absolute_positions_are_added_once_before_the_stack():
    with_positions, plain = make_stack(positions="sinusoid"), make_stack()
    x = tokens(2, 6, 12)
    plain.load_state_dict(
        {k: v for k, v in with_positions.state_dict().items() if k != "_extra_state"}, strict=False
    )
    expected = plain(with_positions.positions.add(x, torch.arange(6)))
    torch.testing.assert_close(with_positions(x), expected)


def test_layers_share_one_position_table():
    encoder = make_stack(positions="t5")
    assert [name for name in encoder.state_dict() if "table" in name] == ["positions.table"]
    grad = gradients(encoder(tokens(2, 6, 12)), [encoder.positions.table])[0]
    assert grad.abs().sum() > 0


def test_calibration_adds_positions():
    """The calibration forward records the same branches as a normal forward."""
    encoder, x = make_stack(positions="learned"), tokens(2, 6, 12)
    with encoder.taps.record() as tape:
        encoder(x)
    branches = []
    encoder.wiring.calibrate = lambda run: run(lambda site, state, branch: branches.append(branch))
    encoder.calibrate(x)
    torch.testing.assert_close(branches, tape["branch"])


# Construction.


def test_roles_and_kinds():
    for stack, role, kinds in (
        (make_stack(), "encoder_only", ("self", "ffn")),
        (make_stack(other_depth=2), "encoder", ("self", "ffn")),
        (make_stack(Decoder), "decoder_only", ("self", "ffn")),
        (make_stack(Decoder, other_depth=2), "decoder", ("self", "cross", "ffn")),
    ):
        assert (stack.plan.role, stack.plan.kinds) == (role, kinds)
        assert stack.plan.depth == 3
        assert len(stack.sublayers) == 3 * len(kinds)


def test_options_reach_their_sublayers():
    stack = make_stack(
        Decoder,
        other_depth=2,
        heads=4,
        ffn_dim=20,
        activation="swiglu",
        kv_heads=2,
        head_dim=6,
        qk_norm="rms_head",
        bias=False,
        attention_dropout=0.1,
        activation_dropout=0.2,
    )
    attention, cross, ffn = stack.sublayers[:3]
    for module in (attention, cross):
        assert (module.kv_heads, module.head_dim, module.dropout) == (2, 6, 0.1)
        assert module.qk_norm_call.name == "rms_head"
        assert module.q_proj.bias is None
    assert attention.causal
    assert (ffn.hidden, ffn.activation, ffn.dropout.p) == (20, "swiglu", 0.2)
    assert ffn.up_proj.bias is None
    persistent = make_stack(Decoder, other_depth=2, persistent=5).sublayers
    assert (persistent[0].persistent, persistent[1].persistent) == (5, 0)


def test_seed_determines_parameters_and_keeps_global_generator():
    options = {"positions": "learned", "qk_norm": "l2"}
    one, two = make_stack(Decoder, **options), make_stack(Decoder, **options)
    torch.manual_seed(5)
    one.init_weights(seed=7)
    after = torch.rand(())
    torch.manual_seed(6)
    two.init_weights(seed=7)
    for (name, a), b in zip(one.state_dict().items(), two.state_dict().values(), strict=True):
        assert torch.equal(a, b), name
    torch.manual_seed(5)
    assert torch.equal(torch.rand(()), after)
    assert not torch.equal(two.init_weights(seed=8).positions.table, one.positions.table)


@pytest.mark.parametrize("call", positions)
def test_state_dict_round_trip(call):
    one = make_stack(Decoder, positions=call, qk_norm="cosine", kv_heads=1)
    two = make_stack(Decoder, positions=call, qk_norm="cosine", kv_heads=1, perturbed=False)
    two.load_state_dict(one.state_dict())
    assert torch.equal(one(tokens(2, 6, 12)), two(tokens(2, 6, 12)))


@pytest.mark.parametrize(
    "other",
    [{"positions": "rotary"}, {"heads": 3}, {"activation": "gelu"}, {"wiring": "post_ln"}],
    ids=str,
)
def test_weights_of_other_arrangement_with_same_shapes_raise(other):
    with pytest.raises(ArrangementMismatchError, match="expected weights of the arrangement"):
        make_stack(**other).load_state_dict(make_stack().state_dict(), strict=False)


@pytest.mark.parametrize("call", positions)
def test_construction_on_the_meta_device(call):
    with torch.device("meta"):
        stack = Decoder(dim=12, depth=2, heads=2, other_depth=2, positions=call, qk_norm="cosine")
    assert all(parameter.is_meta for parameter in stack.parameters())
    stack = stack.to_empty(device="cpu").init_weights(seed=0)
    assert stack(tokens(2, 6, 12), memory=tokens(2, 5, 12)).isfinite().all()


@pytest.mark.parametrize("call", positions)
def test_float64_equals_float32_up_to_rounding(call):
    x = tokens(2, 6, 12)
    y = make_stack(Decoder, positions=call, dtype=torch.float64)(x.double())
    assert y.dtype == torch.float64
    expected = make_stack(Decoder, positions=call)(x)
    torch.testing.assert_close(y.float(), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("call", positions)
def test_bfloat16_equals_float32_up_to_rounding(call):
    """Output and all gradients, with the same rounded inputs and weights."""
    stack = make_stack(Decoder, positions=call, dtype=torch.bfloat16)
    x = tokens(2, 6, 12, dtype=torch.bfloat16).requires_grad_()
    y = stack(x)
    actual = [y, *gradients(y, [x, *stack.parameters()])]
    exact, exact_x = copy.deepcopy(stack).float(), x.detach().float().requires_grad_()

    def run_reference():
        y = exact(exact_x)
        return [y, *gradients(y, [exact_x, *exact.parameters()])]

    assert_bfloat16_close(actual, run_reference)


@pytest.mark.slow
@pytest.mark.parametrize("call", positions)
def test_compiles_into_one_graph(call):
    torch._dynamo.reset()
    stack, x = make_stack(Decoder, positions=call, kv_heads=1, qk_norm="rms_head"), tokens(2, 6, 12)
    mask = masks.padding_mask(torch.tensor([6, 3]))
    compiled = torch.compile(stack, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(x, mask=mask), stack(x, mask=mask))


def test_eval_is_deterministic_and_dropout_acts_in_training():
    options = {"dropout": 0.2, "attention_dropout": 0.2, "activation_dropout": 0.2}
    stack, x = make_stack(**options), tokens(2, 6, 12)
    assert not torch.equal(stack(x), stack(x))
    stack.eval()
    assert torch.equal(stack(x), stack(x))
    torch.testing.assert_close(stack(x), make_stack()(x))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: make_stack(ffn_dims=3),
            "unknown option of Encoder 'ffn_dims'; did you mean 'ffn_dim'",
        ),
        (lambda: make_stack(Decoder, causal=False), "unknown option of Decoder 'causal'"),
        (lambda: make_stack(depth=0), "depth: expected an integer of at least 1"),
        (lambda: make_stack(heads=5), "heads: expected a divisor of dim=12, got 5"),
        (lambda: make_stack(positions="rope"), "unknown position 'rope'"),
        (lambda: make_stack(positions="rotary", heads=4), "expected an even number"),
        (lambda: make_stack(Decoder, other_depth=2)(tokens(2, 6, 12)), "memory: required by"),
        (lambda: make_stack(Decoder)(tokens(2, 6, 12), memory=tokens(2, 6, 12)), "takes 'memory'"),
        (lambda: make_stack(positions="learned")(tokens(2, 6, 11)), r"\(B, L, 12\), got .*11\)"),
        (lambda: make_stack(positions="sinusoid")(tokens(6, 12)), r"\(B, L, 12\), got .*\(6, 12\)"),
        (
            lambda: make_stack()(tokens(2, 6, 12), mask=torch.ones(2, 6)),
            "torch's key_padding_mask .* pass ~key_padding_mask",
        ),
        (
            lambda: make_stack()(tokens(2, 6, 12), cache=KVCache(6)),
            "cache: expected None in an encoder",
        ),
        (
            lambda: make_stack(positions="alibi")(tokens(2, 6, 12), bias=torch.zeros(2, 6, 6)),
            "bias: expected None, because positions alibi provide it",
        ),
        (
            lambda: make_stack()(tokens(2, 6, 12), position_index=torch.zeros(6)),
            r"position_index: expected integers of shape \(6,\) or \(2, 6\), got torch.float32",
        ),
        (
            lambda: make_stack()(tokens(2, 6, 12), position_index=torch.arange(5)),
            r"got torch.int64 of shape \(5,\)",
        ),
        (
            lambda: make_stack(positions="learned(length=4)")(tokens(2, 6, 12)),
            "expected below 4, the learned positions, got 5",
        ),
    ],
)
def test_errors(call, message):
    with pytest.raises(UserError, match=message):
        call()


# Embedding norm, windows and biases.


def test_embedding_norm_follows_positions():
    stack = make_stack(positions="sinusoid", embed_norm="rms(eps=1e-5)")
    bare = make_stack(positions="none")
    bare.load_state_dict(
        {key: value for key, value in stack.state_dict().items() if not key.startswith("embed")}
        | {"_extra_state": bare.get_extra_state()}
    )
    x = tokens(2, 5, 12)
    with_positions = stack.positions.add(x, torch.arange(5))
    torch.testing.assert_close(stack(x), bare(stack.embed_norm(with_positions)))
    assert "embed_norm=rms(eps=1e-05)" in decode_text(stack.get_extra_state())


def test_windows_alternate_between_layers():
    stack = make_stack(Decoder, depth=5, window=(4, None, 2))
    assert [stack.sublayers[2 * layer].window for layer in range(5)] == [4, None, 2, 4, None]
    assert all(module.window == 3 for module in make_stack(Decoder, window=3).sublayers[::2])


def test_attention_and_feed_forward_biases_are_independent():
    stack = make_stack(bias=False, ffn_bias=True)
    attention, ffn = stack.sublayers[:2]
    assert attention.q_proj.bias is None and attention.out_proj.bias is None
    assert ffn.up_proj.bias is not None


def test_embedding_norm_over_several_tokens_in_decoder_raises():
    with pytest.raises(
        UserError, match="embed_norm: expected a token-wise norm in a decoder, got batch"
    ):
        make_stack(Decoder, embed_norm="batch")
    make_stack(Encoder, embed_norm="batch")
