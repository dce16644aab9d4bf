"""Properties of every registered wiring."""

import copy
import io
import shutil

import pytest
import safetensors.torch
import torch
from torch import nn

from addnorm import Decoder, Encoder, Stack, UserError
from addnorm.core import ArrangementMismatchError, Call
from addnorm.sublayers import FeedForward, KVCache, SelfAttention
from addnorm.wirings import Wiring, registry
from tests.helpers import PAIR, TRIPLE, ZeroBranch, gradients, perturb, tokens, toy_stack

WIRINGS = list(registry)
STOPS_GRADIENTS = {"gpas"}  # its backward is not the derivative of its forward, by design
DIM, HEADS, DEPTH = 12, 3, 3


def encoder(wiring: str, **options) -> Encoder:
    torch.manual_seed(0)
    return Encoder(dim=DIM, depth=DEPTH, heads=HEADS, wiring=wiring, **options)


def decoder(wiring: str, **options) -> Decoder:
    torch.manual_seed(0)
    return Decoder(dim=DIM, depth=DEPTH, heads=HEADS, wiring=wiring, **options)


def test_registry_has_all_wirings_and_decorators():
    assert len(WIRINGS) >= 32
    assert {"drop_path", "layer_drop"} <= set(WIRINGS)


@pytest.mark.parametrize("name", WIRINGS)
def test_card_is_complete(name):
    card = registry.card(name)
    assert card.title and card.summary.endswith(".") and card.year
    assert card.arxiv or "ICML" in card.paper or card.paper.endswith("without a paper")
    assert card.formula and card.symbols
    assert registry.member(name).__module__ == f"addnorm.wirings.{name}"


@pytest.mark.parametrize("name", WIRINGS)
def test_call_string_is_canonical(name):
    options = registry.card(name).options
    explicit = Call(name, {option: value.default for option, value in options.items()})
    assert str(registry.resolve(explicit)) == name


@pytest.mark.parametrize("layer", [PAIR, TRIPLE], ids=["encoder", "decoder"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", WIRINGS)
def test_shape_and_dtype_are_kept(name, dtype, layer):
    stack = toy_stack(name, dtype=dtype, layer=layer)
    for shape in ((3, 7, 10), (1, 1, 10), (2, 3, 4, 10), (0, 5, 10)):
        y = stack(tokens(*shape, dtype=dtype))
        assert (y.shape, y.dtype) == (shape, dtype)


@pytest.mark.parametrize("name", WIRINGS)
def test_gradients_are_the_derivatives_of_the_forward(name):
    stack = toy_stack(name, dim=4, depth=2, dtype=torch.float64).eval()
    if name not in STOPS_GRADIENTS:
        perturb(stack.wiring)
    own = dict(stack.wiring.named_parameters())

    def run(x, *values):
        parameters = {f"wiring.{key}": value for key, value in zip(own, values, strict=True)}
        return torch.func.functional_call(stack, parameters, (x,))

    x = tokens(1, 2, 4, dtype=torch.float64).requires_grad_()
    assert torch.autograd.gradcheck(run, (x, *own.values()), fast_mode=True)


@pytest.mark.parametrize("name", WIRINGS)
def test_wirings_act_on_each_token_separately(name):
    stack = toy_stack(name, depth=5).eval()
    perturb(stack.wiring)
    x = tokens()
    changed = x.clone()
    changed[1, 3] = tokens(10, seed=12)
    same = torch.ones(3, 7, dtype=torch.bool)
    same[1, 3] = False
    before, after = stack(x), stack(changed)
    assert torch.equal(before[same], after[same])
    assert not torch.equal(before[1, 3], after[1, 3])


@pytest.mark.parametrize("norm", ["layer", "batch", "instance", "ada_ln"])
@pytest.mark.parametrize("name", WIRINGS)
def test_padding_does_not_change_outputs(name, norm):
    stack = encoder(name, norm=norm, positions="sinusoid")
    perturb(stack)
    if norm != "batch":
        stack.eval()  # batch statistics are tested in training, where only valid tokens may count
    elif name in ("drop_path", "layer_drop"):
        pytest.skip("draws random numbers in training")
    x, garbage = tokens(2, 5, DIM), 100 * tokens(2, 3, DIM, seed=9)
    trimmed = torch.ones(2, 5, dtype=torch.bool)
    padded = torch.cat([trimmed, torch.zeros(2, 3, dtype=torch.bool)], 1)
    y = copy.deepcopy(stack)(x, mask=trimmed)
    z = stack(torch.cat([x, garbage], 1), mask=padded)
    torch.testing.assert_close(z[:, :5], y, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", WIRINGS)
def test_decoders_are_causal(name):
    stack = perturb(decoder(name)).eval()
    x = tokens(2, 6, DIM)
    changed = torch.cat([x[:, :4], tokens(2, 2, DIM, seed=12)], 1)
    torch.testing.assert_close(stack(x)[:, :4], stack(changed)[:, :4], rtol=0, atol=1e-6)
    assert not torch.allclose(stack(x)[:, 4:], stack(changed)[:, 4:])


@pytest.mark.parametrize("name", WIRINGS)
def test_decoding_with_a_cache_equals_the_full_forward(name):
    stack = perturb(decoder(name, other_depth=2, positions="rotary")).eval()
    x, memory = tokens(2, 9, DIM), tokens(2, 4, DIM, seed=7)
    full = stack(x, memory=memory)
    cache = KVCache(len(stack.plan.sites))
    steps = [x[:, :5], *x[:, 5:].split(1, 1)]
    parts = [stack(step, memory=memory, cache=cache) for step in steps]
    torch.testing.assert_close(torch.cat(parts, 1), full, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", WIRINGS)
def test_evaluation_is_deterministic_and_changes_no_state(name):
    stack = encoder(name, dropout=0.3).eval()
    before = {key: value.clone() for key, value in stack.state_dict().items()}
    x = tokens(2, 5, DIM)
    assert torch.equal(stack(x), stack(x))
    assert all(torch.equal(value, before[key]) for key, value in stack.state_dict().items())


@pytest.mark.parametrize("name", WIRINGS)
def test_degenerate_tokens_stay_finite(name):
    stack = encoder(name)
    x = tokens(3, 4, DIM)
    x[0, 0], x[0, 1], x[1] = 0.0, 7.0, 0.0
    mask = torch.ones(3, 4, dtype=torch.bool)
    mask[1], mask[2, 2:] = False, False  # the second sentence contains only padding
    x.requires_grad_()
    y = stack(x, mask=mask)
    assert y.isfinite().all()
    inputs = [x, *stack.parameters()]
    assert all(grad.isfinite().all() for grad in gradients(y, inputs))


@pytest.mark.parametrize("name", WIRINGS)
def test_every_parameter_of_a_wiring_is_used(name):
    stack = perturb(encoder(name, other_depth=2))
    y = stack.eval()(tokens(2, 5, DIM))
    named = dict(stack.wiring.named_parameters())
    grads = gradients(y, list(named.values())) if named else []
    unused = [key for key, grad in zip(named, grads, strict=True) if not grad.abs().sum() > 0]
    assert unused == []


@pytest.mark.parametrize("name", WIRINGS)
def test_state_dict_round_trip(name):
    stack = perturb(encoder(name))
    restored = encoder(name)
    buffer = io.BytesIO()
    torch.save(stack.state_dict(), buffer)
    buffer.seek(0)
    restored.load_state_dict(torch.load(buffer, weights_only=True))
    x = tokens(2, 5, DIM)
    assert torch.equal(stack.eval()(x), restored.eval()(x))
    again = encoder(name)
    again.load_state_dict(safetensors.torch.load(safetensors.torch.save(stack.state_dict())))
    assert torch.equal(stack(x), again.eval()(x))


@pytest.mark.parametrize(
    ("saved", "loaded"),
    [
        ({"wiring": "post_ln"}, {"wiring": "deepnorm"}),
        ({"wiring": "deepnorm"}, {"wiring": "deepnorm(alpha=1.0)"}),
        ({"wiring": "pre_ln", "norm": "rms"}, {"wiring": "pre_ln", "norm": "rms(eps=1e-4)"}),
        ({"wiring": "mix_ln"}, {"wiring": "pre_ln"}),
    ],
)
def test_weights_of_another_arrangement_are_rejected_even_if_shapes_match(saved, loaded):
    target = Stack([nn.Linear(4, 4), nn.Linear(4, 4)], dim=4, **loaded)
    before = {key: value.clone() for key, value in target.state_dict().items()}
    weights = perturb(Stack([nn.Linear(4, 4), nn.Linear(4, 4)], dim=4, **saved)).state_dict()
    with pytest.raises(ArrangementMismatchError, match="weights of the arrangement") as caught:
        target.load_state_dict(weights)
    assert saved["wiring"] in str(caught.value) and loaded["wiring"] in str(caught.value)
    assert all(torch.equal(value, before[key]) for key, value in target.state_dict().items())


@pytest.mark.parametrize("name", WIRINGS)
def test_init_weights_overwrites_all_state(name):
    fresh = encoder(name).init_weights(seed=5)
    used = perturb(encoder(name), seed=8).init_weights(seed=5)
    for (key, one), (_, other) in zip(
        fresh.state_dict().items(), used.state_dict().items(), strict=True
    ):
        torch.testing.assert_close(one, other, rtol=0, atol=0, msg=key)


@pytest.mark.parametrize("name", WIRINGS)
def test_stack_on_meta_device_can_be_initialized(name):
    with torch.device("meta"):
        stack = Encoder(dim=DIM, depth=DEPTH, heads=HEADS, wiring=name)
    assert all(parameter.is_meta for parameter in stack.parameters())
    stack = stack.to_empty(device="cpu").init_weights(seed=5)
    fresh = encoder(name).init_weights(seed=5)
    x = tokens(2, 5, DIM)
    assert torch.equal(stack.eval()(x), fresh.eval()(x))


@pytest.mark.parametrize("name", WIRINGS)
def test_layers_start_with_different_weights(name):
    stack = encoder(name)
    for one, other in zip(stack.sublayers[:2], stack.sublayers[2:4], strict=True):
        for (key, a), (_, b) in zip(one.named_parameters(), other.named_parameters(), strict=True):
            matrix = a.ndim == 2 and a.abs().sum() > 0  # Fixup's output matrices start at zero
            assert not matrix or not torch.equal(a, b), key


@pytest.mark.parametrize("name", WIRINGS)
def test_construction_keeps_the_weights_of_sublayers(name):
    sublayers = [nn.Linear(10, 10) for _ in range(4)]
    before = [module.weight.clone() for module in sublayers]
    stack = Stack(sublayers, dim=10, wiring=name)
    stack(tokens())
    assert all(torch.equal(a, b.weight) for a, b in zip(before, sublayers, strict=True))
    stack.init_weights()
    assert not any(torch.equal(a, b.weight) for a, b in zip(before, sublayers, strict=True))


@pytest.mark.parametrize("name", WIRINGS)
def test_step_equals_read_sublayer_write(name):
    stack = toy_stack(name).eval()
    wiring, x = perturb(stack.wiring), tokens()
    one = other = wiring.open(x)
    for site, sublayer in zip(stack.plan.sites, stack.sublayers, strict=True):
        one = wiring.step(one, site, sublayer)
        h, other = wiring.read(other, site)
        other = wiring.write(other, site, sublayer(h))
        assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))
        assert wiring.trunk(one).shape == x.shape
    assert torch.equal(wiring.close(one), stack(x))


@pytest.mark.parametrize("name", WIRINGS)
def test_state_has_num_state_tensors(name):
    stack = toy_stack(name).eval()
    state = stack.wiring.open(tokens())
    counts = []
    for site, sublayer in zip(stack.plan.sites, stack.sublayers, strict=True):
        state = stack.wiring.step(state, site, sublayer)
        counts += [len(state)] if site.last else []
    leaves = stack.wiring.num_state_tensors
    assert set(counts) == {leaves} if leaves else len(set(counts)) > 1


@pytest.mark.parametrize("name", WIRINGS)
def test_deepcopy_is_independent(name):
    stack = encoder(name).eval()
    duplicate = copy.deepcopy(stack)
    x = tokens(2, 5, DIM)
    before = stack(x)
    perturb(duplicate)
    assert torch.equal(stack(x), before) and not torch.equal(duplicate(x), before)


@pytest.mark.parametrize("name", WIRINGS)
def test_no_decay_has_norms_scales_and_biases(name):
    stack = encoder(name, positions="learned")
    excluded = stack.no_decay()
    named = dict(stack.named_parameters())
    assert excluded <= set(named)
    assert {key for key, value in named.items() if value.ndim < 2} <= excluded
    matrices = {f"sublayers.{i}.q_proj.weight" for i in range(0, 2 * DEPTH, 2)}
    assert matrices <= set(named) - excluded


@pytest.mark.parametrize("name", WIRINGS)
def test_stack_learns(name):
    """Ten steps lower the loss, so branches and gradients are connected."""
    stack = encoder(name).train()
    x, target = tokens(4, 6, DIM), tokens(4, 6, DIM, seed=11)
    head = nn.Linear(DIM, DIM)
    if "calibration" in registry.card(name).needs:
        stack.calibrate(x)
    optimizer = torch.optim.Adam([*stack.parameters(), *head.parameters()], lr=3e-3)
    losses = []
    for _ in range(12):
        loss = (head(stack(x)) - target).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        stack.after_step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] - 0.01


COMPILED = ("post_ln", "pre_ln", "deepnorm", "dlcl", "hyper")


@pytest.mark.parametrize("name", WIRINGS)
def test_compiles_to_one_graph(name):
    stack = perturb(encoder(name)).eval()
    x = tokens(2, 5, DIM)
    torch._dynamo.reset()
    compiled = torch.compile(stack, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(x), stack(x), rtol=1e-5, atol=1e-6)


@pytest.mark.skipif(torch.__version__ < "2.7", reason="graph break at __new__ in torch 2.6")
@pytest.mark.parametrize("norm", ["batch", "instance", "power", "ada_ln"])
def test_norms_with_mask_or_condition_compile_to_one_graph(norm):
    stack = perturb(encoder("drop_path(inner=sandwich)", norm=norm)).eval()
    mask = torch.ones(2, 5, dtype=torch.bool)
    mask[0, 3:] = False
    arguments = {"cond": tokens(2, DIM)} if norm == "ada_ln" else {"mask": mask}
    torch._dynamo.reset()
    compiled = torch.compile(stack, backend="eager", fullgraph=True)
    x = tokens(2, 5, DIM)
    torch.testing.assert_close(
        compiled(x, **arguments), stack(x, **arguments), rtol=1e-5, atol=1e-6
    )


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # raised inside inductor
@pytest.mark.skipif(shutil.which("g++") is None, reason="inductor needs a C++ compiler")
@pytest.mark.parametrize("name", COMPILED)
def test_compiled_stack_gives_the_same_outputs(name):
    stack = perturb(encoder(name))
    x = tokens(2, 5, DIM).requires_grad_()
    torch._dynamo.reset()
    compiled = torch.compile(stack, fullgraph=True)
    inputs = [x, *stack.parameters()]
    ours, theirs = stack(x), compiled(x)
    torch.testing.assert_close(theirs, ours, rtol=1e-4, atol=1e-5)
    pairs = zip(gradients(ours, inputs), gradients(theirs, inputs), strict=True)
    for a, b in pairs:
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4)


def test_custom_wiring_needs_only_the_four_steps():
    class Halved(Wiring):
        def read(self, state, site):
            return state[0], state

        def write(self, state, site, branch):
            return (state[0] + branch / 2,)

        def close(self, state):
            return state[0]

    stack = toy_stack("none")
    stack.wiring = Halved(stack.plan)
    x = tokens()
    y = x
    for sublayer in stack.sublayers:
        y = y + sublayer(y) / 2
    torch.testing.assert_close(stack(x), y)


def test_layer_drop_rejects_wirings_with_history():
    with pytest.raises(UserError, match="layer_drop cannot wrap dlcl: it keeps a history"):
        toy_stack("layer_drop(inner=dlcl)")


@pytest.mark.parametrize("inner", ["hyper", "mhc", "b2t", "dlcl", "resi_dual"])
def test_gpas_rejects_several_streams(inner):
    with pytest.raises(UserError, match=f"gpas scales one stream, and {inner} has several"):
        toy_stack(f"gpas(inner={inner})")


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ("dlcl(place=post, final_norm=True)", "normalizes its last combination already"),
        ("u_skips(mix=concat, start=0.3)", "has no scalars to start at 0.3"),
        ("gated(gate=input, bias=5.0)", "has no bias to start at 5.0"),
        ("attn_res(form=full, block=2)", "has no blocks, got block=2"),
        ("hyper(dynamic=False, tanh=False)", "has nothing that tanh could bound"),
    ],
)
def test_options_without_effect_are_rejected(call, message):
    with pytest.raises(UserError, match=message):
        toy_stack(call)


@pytest.mark.parametrize("name", WIRINGS)
def test_autocast_does_not_round_the_stream(name):
    stack = encoder(name).eval()
    with torch.autocast("cpu", dtype=torch.bfloat16), stack.taps.record() as tape:
        stack(tokens(2, 5, DIM))
    assert {stream.dtype for stream in tape["stream"]} == {torch.float32}


@pytest.mark.parametrize("name", WIRINGS)
def test_sublayer_kind_is_detected_from_the_module(name):
    """Kinds may have any name; attention is detected from its module."""
    usual = encoder(name).eval()
    own = Stack(list(usual.sublayers), dim=DIM, wiring=name, kinds=("mixer", "mlp")).eval()
    weights = {
        key: value
        for key, value in usual.state_dict().items()
        if not key.startswith(("positions", "embed"))
    }
    own.load_state_dict(weights | {"_extra_state": own.get_extra_state()})
    assert torch.equal(own(tokens(2, 5, DIM)), usual(tokens(2, 5, DIM)))


@pytest.mark.parametrize("name", ["pre_ln", "hybrid_norm", "sub_ln", "normformer", "hyper"])
def test_condition_per_token_reaches_the_norms(name):
    stack = perturb(encoder(name, norm="ada_ln"))
    # The length equals the number of heads, so a wrong broadcast changes values, not shapes.
    x, cond = tokens(2, HEADS, DIM), tokens(2, HEADS, DIM, seed=6)
    order = torch.tensor([2, 0, 1])
    y = stack.eval()(x, cond=cond)
    torch.testing.assert_close(stack(x[:, order], cond=cond[:, order]), y[:, order])


def test_running_statistics_with_memory_of_another_length():
    stack = decoder("hybrid_norm", norm="power(warmup=0)", other_depth=2)
    mask = torch.ones(2, 5, dtype=torch.bool)
    assert stack(tokens(2, 5, DIM), mask=mask, memory=tokens(2, 7, DIM)).shape == (2, 5, DIM)


def test_weights_of_a_seq2seq_stack_do_not_fit_another_depth():
    small = encoder("deepnorm", other_depth=2)
    with pytest.raises(ArrangementMismatchError, match=r"other_depth=50.*, got .*other_depth=2 "):
        encoder("deepnorm", other_depth=50).load_state_dict(small.state_dict())


def test_causal_sublayer_makes_the_stack_causal():
    parts = [SelfAttention(8, 2, causal=True), FeedForward(8)]
    with pytest.raises(UserError, match="norm batch computes statistics over several tokens"):
        Stack(parts, dim=8, norm="batch")


def test_sublayers_of_another_width_are_rejected():
    with pytest.raises(UserError, match=r"sub-layer 0 \(SelfAttention\): expected dim=.* got 12"):
        Stack([SelfAttention(12, 2), FeedForward(12)], dim=8)


def test_scales_with_axes_of_one_are_not_decayed():
    stack = encoder("pre_ln", qk_norm="cosine")
    assert "sublayers.0.qk_norm.s" in stack.no_decay()


def test_repr_of_uncalibrated_admin():
    stack = encoder("admin")
    assert "not calibrated" in repr(stack)
    stack.calibrate(tokens(2, 5, DIM))
    assert "not calibrated" not in repr(stack)


@pytest.mark.parametrize("norm", ["l2", "fixnorm"])
@pytest.mark.parametrize("name", ["post_ln", "b2t", "deepnorm"])
def test_zero_rows_stay_finite_with_unit_norms(name, norm):
    stack = encoder(name, norm=norm)
    x = torch.zeros(2, 5, DIM, requires_grad=True)
    stack(x, mask=torch.zeros(2, 5, dtype=torch.bool)).sum().backward()
    assert x.grad.isfinite().all()
    assert all(p.grad is None or p.grad.isfinite().all() for p in stack.parameters())


def test_empty_batch_and_empty_memory():
    assert encoder("pre_ln")(torch.randn(0, 5, DIM)).shape == (0, 5, DIM)
    stack = decoder("pre_ln", other_depth=2)
    assert stack(tokens(2, 5, DIM), memory=torch.randn(2, 0, DIM)).isfinite().all()


def test_inner_norms_of_plain_modules_are_ignored_with_a_warning():
    from addnorm.core import InnerNormsIgnoredWarning

    with pytest.warns(InnerNormsIgnoredWarning, match="SubLN has norms or scales inside"):
        Stack([ZeroBranch(), ZeroBranch()], dim=4, wiring="sub_ln")


@pytest.mark.parametrize("name", ["batch", "instance", "power"])
def test_noncausal_norms_are_rejected_in_causal_stacks(name):
    with pytest.raises(UserError, match=f"norm {name} computes statistics over several tokens"):
        decoder("pre_ln", norm=name)
    encoder("pre_ln", norm=name)


def test_power_norm_without_warm_up_is_causal():
    decoder("pre_ln", norm="power(warmup=0)")
