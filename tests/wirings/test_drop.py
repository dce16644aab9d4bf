"""Stochastic depth: dropped branches and layers in training."""

from itertools import pairwise

import pytest
import torch
from torch import nn

from addnorm import Stack
from tests.helpers import Constant, perturb, tokens, toy_stack


def zero_tokens(batch: int = 4000) -> torch.Tensor:
    return torch.zeros(batch, 1, 10)


def test_dropped_branches_are_dropped_per_sample_and_rescaled():
    torch.manual_seed(0)
    branch = Constant(10)
    stack = Stack([branch] * 2, dim=10, wiring="drop_path(inner=none, rate=0.25)", kinds=("ffn",))
    # The first layer is always kept; the second is dropped at a rate of 0.25.
    y = stack(zero_tokens())[:, 0] / branch.value
    values = {round(value, 4) for value in y[:, 0].tolist()}
    assert values == {1.0, round(1 + 1 / 0.75, 4)}
    assert y[:, 0].mean().item() == pytest.approx(2.0, abs=0.05)  # as in evaluation
    assert torch.equal(stack.eval()(zero_tokens(1))[0, 0], 2 * branch.value)


def test_rate_grows_linearly_with_the_layer():
    torch.manual_seed(0)
    branches = [Constant(10, seed=k) for k in range(5)]
    stack = Stack(branches, dim=10, wiring="drop_path(inner=none, rate=0.4)", kinds=("ffn",))
    with stack.taps.record() as tape:
        stack(zero_tokens())
    streams = [zero_tokens(), *tape["stream"]]
    dropped = [
        (after == before).all(-1).float().mean().item() for before, after in pairwise(streams)
    ]
    assert dropped == pytest.approx([0, 0.1, 0.2, 0.3, 0.4], abs=0.03)


def test_rate_one_equals_zero_branches():
    stack = toy_stack("drop_path(rate=1.0)", depth=2)
    y = stack(tokens())
    first = toy_stack("pre_ln", depth=1)
    first.wiring.final_norm = None
    torch.testing.assert_close(y, nn.functional.layer_norm(first(tokens()), (10,)))


def test_layers_are_dropped_for_the_whole_batch():
    torch.manual_seed(0)
    branch = Constant(10)
    stack = Stack([branch] * 2, dim=10, wiring="layer_drop(inner=none, rate=0.5)")
    counts = []
    for _ in range(400):
        y = stack(zero_tokens(3))[:, 0] / branch.value
        assert (y == y[0, 0]).all()
        counts.append(round(y[0, 0].item()))
    assert set(counts) == {0, 2}
    assert sum(counts) / 800 == pytest.approx(0.5, abs=0.08)


@pytest.mark.parametrize("inner", ["post_ln", "b2t", "resi_dual", "hyper", "siamese", "parallel"])
def test_dropped_layer_keeps_the_state(inner):
    stack = toy_stack(f"layer_drop(inner={inner}, rate=1.0)", depth=2)
    perturb(stack.wiring)
    state = stack.wiring.open(tokens())
    for site, sublayer in zip(stack.plan.sites, stack.sublayers, strict=True):
        state = stack.wiring.step(state, site, sublayer)
        assert stack.wiring.trunk(state).shape == (3, 7, 10)
    before = stack.wiring.open(tokens())
    assert all(torch.equal(a, b) for a, b in zip(state, before, strict=True))


@pytest.mark.parametrize("inner", ["post_ln", "b2t", "resi_dual", "hyper", "siamese", "parallel"])
def test_kept_layer_is_unchanged(inner):
    kept, plain = toy_stack(f"layer_drop(inner={inner}, rate=0.0)"), toy_stack(inner)
    torch.testing.assert_close(kept.train()(tokens()), plain(tokens()))


def test_decorator_inherits_the_initialization():
    wrapped, plain = toy_stack("drop_path(inner=deepnorm)"), toy_stack("deepnorm")
    assert wrapped.wiring.scheme == "xavier_normal"
    assert wrapped.wiring.gain("value") == plain.wiring.gain("value") < 1
    assert {f"wiring.inner.{name}" for name in plain.wiring.no_decay()} <= wrapped.no_decay()


def test_decorators_nest():
    nested = "drop_path(inner=layer_drop(inner=b2t, rate=0.0), rate=0.0)"
    torch.testing.assert_close(toy_stack(nested)(tokens()), toy_stack("b2t")(tokens()))
