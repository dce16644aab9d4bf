"""Stacks: context, taps, and errors for invalid arguments and sub-layers."""

import pytest
import torch
from torch import nn

from addnorm import Decoder, Encoder, Stack, UserError
from addnorm.core import UnknownNameError
from tests.helpers import TRIPLE, ZeroBranch, tokens, toy_stack


class RecordsContext(nn.Module):
    """Sub-layer that records its context."""

    def forward(self, x, mask=None, memory=None, *, graph=None):
        self.context = {"mask": mask, "memory": memory, "graph": graph}
        return x


class NeedsMemory(nn.Module):
    def forward(self, x, memory):
        return x + memory.mean(1, keepdim=True)


def test_context_reaches_sublayers_that_declare_it():
    recorder = RecordsContext()
    stack = Stack([recorder, nn.Tanh()], dim=10)
    memory, mask = tokens(3, 4, 10, seed=5), torch.ones(3, 7, dtype=torch.bool)
    stack(tokens(), mask=mask, memory=memory, graph="anything")
    assert recorder.context == {"mask": mask, "memory": memory, "graph": "anything"}


def test_unused_context_raises():
    with pytest.raises(UserError, match="no sub-layer of this stack takes 'memory'"):
        Stack([nn.Tanh(), nn.Tanh()], dim=10)(tokens(), memory=tokens())
    with pytest.raises(UserError, match="no sub-layer of this stack takes 'memroy'"):
        Stack([RecordsContext(), nn.Tanh()], dim=10)(tokens(), memroy=tokens())


def test_missing_required_context_raises():
    stack = Stack([nn.Tanh(), NeedsMemory(), nn.Tanh()], dim=10, **TRIPLE)
    with pytest.raises(
        UserError, match=r"memory: required by sub-layer 1 \(NeedsMemory, kind 'cross'\)"
    ):
        stack(tokens())
    assert stack(tokens(), memory=tokens(3, 4, 10)).shape == (3, 7, 10)


class AcceptsAnyKeyword(nn.Module):
    def forward(self, x, **context):
        self.context = context
        return x


def test_sublayer_with_kwargs_receives_all_context():
    recorder = AcceptsAnyKeyword()
    mask = torch.ones(3, 7, dtype=torch.bool)
    Stack([recorder, nn.Tanh()], dim=10)(tokens(), mask=mask, graph="anything")
    assert recorder.context == {"mask": mask, "graph": "anything"}


def test_compiled_sublayers_keep_context_and_weight_roles():
    torch.manual_seed(0)
    plain = Encoder(dim=12, depth=1, heads=3, wiring="sub_ln").eval()
    compiled = [torch.compile(module, backend="eager") for module in plain.sublayers]
    stack = Stack(compiled, dim=12, wiring="sub_ln").eval()
    mask = torch.ones(2, 5, dtype=torch.bool)
    mask[0, 3:] = False
    x = tokens(2, 5, 12)
    with torch.no_grad():  # dynamo warns when it traces with gradients
        torch.testing.assert_close(stack(x, mask=mask), plain(x, mask=mask))
    assert [role for role, _ in stack.weights()] == [role for role, _ in plain.weights()]


def test_mask_is_accepted_when_no_sublayer_uses_it():
    stack = toy_stack("pre_ln")
    mask = torch.ones(3, 7, dtype=torch.bool)
    torch.testing.assert_close(stack(tokens(), mask=mask), stack(tokens()))


@pytest.mark.parametrize(
    ("mask", "message"),
    [
        (torch.ones(3, 7), "mask: expected booleans, True at valid tokens, got torch.float32"),
        (torch.ones(3, 7, dtype=torch.int64), "for torch's key_padding_mask"),
        (torch.ones(7, 3, dtype=torch.bool), r"\(3, 7\) for \(3, 7, 10\), got \(7, 3\)"),
        (torch.ones(3, 7, 7, dtype=torch.bool), r"one entry per token"),
        ([[True] * 7] * 3, "got list"),
    ],
)
def test_invalid_masks_raise(mask, message):
    with pytest.raises(UserError, match=message):
        toy_stack("pre_ln")(tokens(), mask=mask)


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (torch.zeros(3, 7, 11), r"shape \(..., L, 10\), got torch.float32 of shape \(3, 7, 11\)"),
        (torch.zeros(3, 7, 10, dtype=torch.int64), "floating point"),
        (torch.zeros(10), r"shape \(..., L, 10\), got torch.float32 of shape \(10,\)"),
        ([[1.0]], "expected a tensor .*, got list"),
    ],
)
def test_invalid_inputs_raise(x, message):
    with pytest.raises(UserError, match=message):
        toy_stack("pre_ln")(x)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"sublayers": []}, "expected a flat list with 2 sub-layers per layer, .* got 0"),
        (
            {"sublayers": [ZeroBranch()] * 3},
            "expected a flat list with 2 sub-layers per layer, .* got 3",
        ),
        (
            {"sublayers": [ZeroBranch(), lambda x: x]},
            "sub-layer 1: expected a torch.nn.Module .* got <function",
        ),
        ({"sublayers": [[ZeroBranch(), ZeroBranch()]]}, "in one flat list"),
        ({"dim": 0}, "dim: expected a whole number from 1, got 0"),
        ({"dim": 8.0}, "dim: expected a whole number from 1, got 8.0"),
        ({"dropout": 1.0}, "dropout: expected a number from 0 to below 1, got 1.0"),
        ({"dropout": -0.1}, "dropout: expected a number"),
        ({"dropout": "lots"}, "dropout: expected a number"),
        ({"kinds": ()}, "expected a flat list with 0 sub-layers per layer"),
        ({"role": "encodr"}, "unknown role 'encodr'; did you mean 'encoder'"),
        ({"role": "encoder"}, "pass it, or use role 'encoder_only'"),
        ({"other_depth": 3}, "other_depth: expected None for role .*, got 3"),
        ({"role": "decoder", "other_depth": 0}, "other_depth: expected a whole number from 1"),
        ({"wiring": "postln"}, "unknown wiring 'postln'; did you mean 'post_ln'"),
        ({"wiring": "post_ln(norm=3)"}, "wiring 'post_ln' has no option 'norm'; .*final_norm"),
        ({"wiring": "mix_ln(post=2.0)"}, "option 'post' of wiring 'mix_ln': expected .* got 2.0"),
        ({"wiring": "pre_ln(init=gpt3)"}, "expected one of xavier, gpt2"),
        ({"wiring": "hyper(streams=0)"}, "option 'streams' of wiring 'hyper': expected .* got 0"),
        ({"wiring": "drop_path(inner=nope)"}, "unknown wiring 'nope'"),
        ({"wiring": "pre_ln + post_ln"}, "unknown wiring|not a literal"),
        ({"wiring": 3}, "expected a call string, got 3 of type int"),
        ({"norm": "LayerNorm"}, "unknown norm 'LayerNorm'; did you mean"),
        ({"norm": "layer(epz=1)"}, "norm 'layer' has no option 'epz'; did you mean 'eps'"),
        ({"norm": "batch", "role": "decoder_only"}, "norm batch computes statistics over several"),
        ({"wiring": "res_post(start=0.0)", "norm": "layer(affine=False)"}, "has no gain"),
    ],
)
def test_invalid_constructor_arguments_raise(arguments, message):
    arguments = {"sublayers": [ZeroBranch(), ZeroBranch()], "dim": 8} | arguments
    with pytest.raises(UserError, match=message):
        Stack(arguments.pop("sublayers"), **arguments)


def test_unknown_names_raise_a_value_error_subclass():
    with pytest.raises(UnknownNameError):
        Stack([ZeroBranch()], dim=8, kinds=("ffn",), wiring="nope")
    assert issubclass(UnknownNameError, ValueError)


@pytest.mark.parametrize(
    ("sublayer", "message"),
    [
        (nn.Linear(10, 12), r"sub-layer 1 \(Linear, kind 'ffn'\): expected .* got \(3, 7, 12\)"),
        (nn.LSTM(10, 10), r"sub-layer 1 \(LSTM, kind 'ffn'\): expected .* got tuple"),
    ],
)
def test_sublayer_that_changes_shape_is_named_in_error(sublayer, message):
    with pytest.raises(UserError, match=message):
        Stack([nn.Tanh(), sublayer], dim=10)(tokens())


def test_dropout_acts_on_branches_and_only_in_training():
    torch.manual_seed(0)
    stack = Stack([nn.Tanh(), nn.Tanh()], dim=10, wiring="none", dropout=0.5)
    with stack.taps.record() as tape:
        stack(tokens())
    zeros = (torch.cat(tape["branch"]) == 0).float().mean().item()
    assert zeros == pytest.approx(0.5, abs=0.1)
    plain = Stack([nn.Tanh(), nn.Tanh()], dim=10, wiring="none")
    assert torch.equal(stack.eval()(tokens()), plain(tokens()))


def test_taps_record_read_branch_and_stream():
    stack = toy_stack("pre_ln")
    with stack.taps.record() as tape:
        y = stack(tokens())
    x = tokens()
    for k, sublayer in enumerate(stack.sublayers):
        torch.testing.assert_close(tape["read"][k], stack.wiring.norms[k](x))
        torch.testing.assert_close(tape["branch"][k], sublayer(tape["read"][k]))
        x = x + tape["branch"][k]
        torch.testing.assert_close(tape["stream"][k], x)
    torch.testing.assert_close(y, stack.wiring.final_norm(x))
    assert not any(tap.has_hooks for tap in stack.taps.stream)  # nothing stays hooked


def test_tap_hook_can_replace_output():
    stack = toy_stack("pre_ln")
    hook = stack.taps.branch[3].register_forward_hook(lambda _t, _i, out: torch.zeros_like(out))
    changed = stack(tokens())
    hook.remove()
    stack.sublayers[3] = ZeroBranch()
    torch.testing.assert_close(changed, stack(tokens()))


@pytest.mark.parametrize("wiring", ["pre_ln", "post_ln", "false_pre_ln", "hyper", "dlcl"])
def test_skip_tap_records_trunk_and_changes_nothing(wiring):
    torch.manual_seed(0)
    stack = Stack([nn.Linear(8, 8) for _ in range(4)], dim=8, wiring=wiring)
    x, skips, trunks = torch.randn(2, 5, 8), [], []
    y = stack(x)
    hooks = [
        tap.register_forward_hook(lambda _t, _i, out: skips.append(out)) for tap in stack.taps.skip
    ]
    write = stack.wiring.write

    def record_write(state, site, branch):
        trunks.append(stack.wiring.trunk(state))
        return write(state, site, branch)

    stack.wiring.write = record_write
    assert stack(x).equal(y)
    assert len(skips) == len(trunks) == 4
    assert all(one.equal(other) for one, other in zip(skips, trunks, strict=True))
    for hook in hooks:
        hook.remove()


def test_taps_are_released_after_failed_forward():
    stack = Stack([nn.Tanh(), nn.Linear(10, 12)], dim=10)
    with pytest.raises(UserError), stack.taps.record():
        stack(tokens())
    assert not any(tap.has_hooks for tap in stack.taps.modules() if hasattr(tap, "watched"))


def test_layers_can_share_weights():
    shared = nn.Linear(10, 10)
    stack = Stack([shared, nn.Tanh()] * 3, dim=10, wiring="post_ln")
    assert len(list(stack.sublayers.parameters())) == 2
    assert len(stack.wiring.norms) == 6
    stack(tokens())


def test_forward_leaves_no_state():
    stack = Encoder(dim=12, depth=2, heads=3, norm="instance", wiring="dlcl")
    x = tokens(2, 5, 12)
    mask = torch.ones(2, 5, dtype=torch.bool)
    mask[0, 3:] = False
    before = stack(x)
    stack(x, mask=mask)
    assert torch.equal(stack(x), before)
    assert stack.wiring._mask is None


def test_unused_condition_raises():
    with pytest.raises(UserError, match="cond: expected None, because norm layer"):
        Encoder(dim=12, depth=1, heads=3)(tokens(2, 5, 12), cond=tokens(2, 12))


class AcceptsNothing(nn.Module):
    def forward(self):
        return None


def test_sublayer_whose_forward_has_no_parameter_raises():
    with pytest.raises(UserError, match=r"AcceptsNothing.forward: expected a parameter"):
        Stack([AcceptsNothing(), nn.Tanh()], dim=8)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"attention_dropout": "x"},
            "attention_dropout: expected a number from 0 to below 1, got 'x'",
        ),
        ({"bias": "no"}, "bias: expected True or False, got 'no'"),
        ({"ffn_bias": 1}, "ffn_bias: expected True or False, got 1"),
        ({"ffn_dim": -1}, "ffn_dim: expected an integer of at least 1, got -1"),
    ],
)
def test_invalid_encoder_options_raise_with_option_name(options, message):
    with pytest.raises(UserError, match=message):
        Encoder(dim=12, depth=1, heads=3, **options)


def test_negative_position_index_raises():
    stack = Encoder(dim=12, depth=1, heads=3, positions="learned")
    with pytest.raises(UserError, match="expected integers from 0, got negative"):
        stack(tokens(2, 3, 12), position_index=torch.tensor([-1, 0, 1]))


def test_condition_reaches_norms():
    stack = Encoder(dim=12, depth=2, heads=3, norm="ada_ln", wiring="sandwich")
    x, cond = tokens(2, 5, 12), tokens(2, 12, seed=6)
    assert torch.equal(stack(x, cond=cond), stack(x))  # modulation starts at zero
    with torch.no_grad():
        for parameter in stack.wiring.parameters():
            parameter.normal_()
    assert not torch.allclose(stack(x, cond=cond), stack(x))


def test_encoder_and_decoder_with_different_wirings():
    encoder = Encoder(dim=12, depth=3, heads=3, wiring="deepnorm", other_depth=2)
    decoder = Decoder(dim=12, depth=2, heads=3, wiring="b2t", norm="rms", other_depth=3)
    memory = encoder(tokens(2, 6, 12))
    assert decoder(tokens(2, 4, 12), memory=memory).shape == (2, 4, 12)
    assert encoder.plan.role == "encoder" and decoder.plan.kinds == ("self", "cross", "ffn")


def test_every_wiring_under_autocast():
    from addnorm.wirings import registry

    for name in registry:
        stack = Encoder(dim=12, depth=2, heads=3, wiring=name).eval()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = stack(tokens(2, 5, 12))
        assert y.isfinite().all(), name
        torch.testing.assert_close(y.float(), stack(tokens(2, 5, 12)), rtol=0.1, atol=0.2)
