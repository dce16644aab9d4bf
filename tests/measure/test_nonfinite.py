"""Location of the first NaN or Inf."""

import math

import pytest
import torch
from torch import nn

from addnorm import Stack
from addnorm.measure import first_nonfinite
from tests.helpers import tanh_sublayers, tokens
from tests.measure.cases import loss_of, pair, translator

SITES = [("encoder", site) for site in range(4)] + [("decoder", site) for site in range(6)]


def find(model):
    return first_nonfinite(model, lambda: loss_of(model))


def poison(weight, value=math.nan):
    with torch.no_grad():
        weight.view(-1)[0] = value


@pytest.mark.parametrize("recompute", [False, True], ids=["kept", "recomputed"])
@pytest.mark.parametrize("wiring", ["pre_ln", "post_ln", "hyper", "layer_drop"])
@pytest.mark.parametrize(("stack", "index"), SITES)
def test_nan_weight_is_located_at_each_site(wiring, stack, index, recompute):
    model = translator(wiring)
    chosen = getattr(model, stack)
    chosen.recompute = recompute
    poison(next(chosen.sublayers[index].parameters()))
    found = find(model)
    assert not found.backward
    assert found.location == {
        "place": "branch",
        "pass": "forward",
        "stack": stack,
        "site": index,
        "layer": chosen.plan.sites[index].layer,
        "kind": chosen.plan.sites[index].kind,
    }


@pytest.mark.parametrize(("wiring", "place"), [("pre_ln", "read"), ("post_ln", "stream")])
def test_infinite_norm_is_located_at_read_or_stream(wiring, place):
    model = translator(wiring)
    poison(model.decoder.wiring.norms[4].weight, math.inf)
    found = find(model)
    assert (found.stack, found.site.index, found.component, found.value) == (
        "decoder",
        4,
        place,
        pytest.approx(math.inf) if found.value > 0 else -math.inf,
    )
    assert found.message == f"the first Inf arose in decoder layer 1, cross-attention ({place})"


def test_earliest_of_several_is_returned():
    model = translator()
    for stack, index in (("decoder", 5), ("decoder", 2), ("encoder", 3)):
        poison(next(getattr(model, stack).sublayers[index].parameters()))
    assert find(model).message == "the first NaN arose in encoder layer 1, feed-forward (branch)"


def test_input_and_loss_are_located():
    model = translator()
    with torch.no_grad():
        model.embed.table[pair()[0][0][0, 0]] = math.nan
    found = find(model)
    assert found.message == "the first NaN arose in the input of the encoder"
    assert {"stack": "encoder", "place": "input"}.items() <= found.location.items()
    assert "site" not in found.location
    model = translator()
    found = first_nonfinite(model, lambda: loss_of(model) * math.inf)
    assert found.message == "the first Inf arose after the last stack (head or loss)"
    assert found.location == {"place": "loss", "pass": "forward"}


class Breaks(torch.autograd.Function):
    """Identity with a NaN gradient."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        return grad * math.nan


class Broken(nn.Module):
    def __init__(self, inner, place):
        super().__init__()
        self.inner, self.place = inner, place

    def forward(self, x):
        if self.place == "read":
            return self.inner(Breaks.apply(x))
        return Breaks.apply(self.inner(x))


@pytest.mark.parametrize("place", ["read", "parameters"])
@pytest.mark.parametrize("index", range(6))
def test_nan_gradient_is_located_at_its_site(index, place):
    sublayers = tanh_sublayers(6, 10)
    sublayers[index] = Broken(sublayers[index], place)
    stack = Stack(sublayers, dim=10)
    kept = torch.ones_like(sublayers[0].inner[0].weight if index == 0 else sublayers[0][0].weight)
    weight = next(stack.sublayers[0].parameters())
    weight.grad = kept
    found = first_nonfinite(stack, lambda: stack(tokens().requires_grad_()).sum())
    assert found.backward
    assert (found.stack, found.site.index, found.component) == ("encoder", index, place)
    kind = "self-attention" if index % 2 == 0 else "feed-forward"
    assert found.message == (
        f"the first NaN of the gradients arose in encoder layer {index // 2}, {kind} ({place})"
    )
    assert found.location["pass"] == "backward"
    assert weight.grad is kept
    assert torch.equal(kept, torch.ones_like(kept))
    assert all(each.grad is None for each in list(stack.parameters())[1:])


def test_nan_gradient_after_the_stack_is_located_at_the_last_site():
    stack = Stack(tanh_sublayers(4, 10), dim=10)
    found = first_nonfinite(stack, lambda: Breaks.apply(stack(tokens())).sum())
    assert (found.site.index, found.component, found.backward) == (3, "stream", True)


def test_nan_gradient_outside_all_sites():
    class Headed(nn.Module):
        def __init__(self):
            super().__init__()
            self.stack, self.head = Stack(tanh_sublayers(2, 10), dim=10), nn.Linear(10, 3)

        def forward(self, x):
            return self.stack(x).sum() + Breaks.apply(self.head(x)).sum()

    model = Headed()
    found = first_nonfinite(model, lambda: model(tokens()))
    assert found.message == "the first NaN of the gradients arose in a parameter outside all sites"


def test_finite_step_returns_none_and_changes_nothing():
    model = translator(dropout=0.3)
    state = torch.get_rng_state()
    assert find(model) is None
    assert torch.equal(torch.get_rng_state(), state)
    assert all(each.grad is None for each in model.parameters())
    assert model.training
    assert not any(module._forward_hooks for module in model.modules())
    with torch.no_grad():
        assert find(model) is None


def test_backward_can_be_replaced():
    model = translator()
    seen = []
    assert first_nonfinite(model, lambda: loss_of(model), seen.append) is None
    assert [loss.requires_grad for loss in seen] == [True]


def test_backward_runs_after_nonfinite_forward():
    model = translator()
    poison(next(model.encoder.sublayers[2].parameters()))
    seen = []
    found = first_nonfinite(model, lambda: loss_of(model), seen.append)
    assert (found.site.index, found.backward, len(seen)) == (2, False, 1)
