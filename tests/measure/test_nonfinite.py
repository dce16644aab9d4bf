"""Location of the first NaN or Inf."""

import math

import pytest
import torch
from torch import nn

from addnorm import Stack
from addnorm.measure import first_nonfinite
from tests.helpers import tanh_sublayers, tokens
from tests.measure.cases import compute_loss, make_batch, make_translator

SITES = [("encoder", site) for site in range(4)] + [("decoder", site) for site in range(6)]


def locate(model):
    return first_nonfinite(model, lambda: compute_loss(model))


def corrupt(weight, value=math.nan):
    with torch.no_grad():
        weight.view(-1)[0] = value


@pytest.mark.parametrize("recompute", [False, True], ids=["kept", "recomputed"])
@pytest.mark.parametrize("wiring", ["pre_ln", "post_ln", "hyper", "layer_drop"])
@pytest.mark.parametrize(("stack", "index"), SITES)
def test_nan_weight_is_located_at_each_site(wiring, stack, index, recompute):
    model = make_translator(wiring)
    chosen = getattr(model, stack)
    chosen.recompute = recompute
    corrupt(next(chosen.sublayers[index].parameters()))
    result = locate(model)
    assert not result.backward
    assert result.location == {
        "place": "branch",
        "pass": "forward",
        "stack": stack,
        "site": index,
        "layer": chosen.plan.sites[index].layer,
        "kind": chosen.plan.sites[index].kind,
    }


@pytest.mark.parametrize(("wiring", "place"), [("pre_ln", "read"), ("post_ln", "stream")])
def test_infinite_norm_is_located_at_read_or_stream(wiring, place):
    model = make_translator(wiring)
    corrupt(model.decoder.wiring.norms[4].weight, math.inf)
    result = locate(model)
    assert (result.stack, result.site.index, result.component, result.value) == (
        "decoder",
        4,
        place,
        pytest.approx(math.inf) if result.value > 0 else -math.inf,
    )
    assert result.message == f"the first Inf arose in decoder layer 1, cross-attention ({place})"


def test_earliest_of_several_nans_is_located():
    model = make_translator()
    for stack, index in (("decoder", 5), ("decoder", 2), ("encoder", 3)):
        corrupt(next(getattr(model, stack).sublayers[index].parameters()))
    assert locate(model).message == "the first NaN arose in encoder layer 1, feed-forward (branch)"


def test_input_and_loss_are_located():
    model = make_translator()
    with torch.no_grad():
        model.embed.table[make_batch()[0][0][0, 0]] = math.nan
    result = locate(model)
    assert result.message == "the first NaN arose in the input of the encoder"
    assert {"stack": "encoder", "place": "input"}.items() <= result.location.items()
    assert "site" not in result.location
    model = make_translator()
    result = first_nonfinite(model, lambda: compute_loss(model) * math.inf)
    assert result.message == "the first Inf arose after the last stack (head or loss)"
    assert result.location == {"place": "loss", "pass": "forward"}


class NanGradient(torch.autograd.Function):
    """Identity with a NaN gradient."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        return grad * math.nan


class NanGradientAt(nn.Module):
    """Sub-layer with a NaN gradient at its input (`read`) or at its output."""

    def __init__(self, inner, place):
        super().__init__()
        self.inner, self.place = inner, place

    def forward(self, x):
        if self.place == "read":
            return self.inner(NanGradient.apply(x))
        return NanGradient.apply(self.inner(x))


@pytest.mark.parametrize("place", ["read", "parameters"])
@pytest.mark.parametrize("index", range(6))
def test_nan_gradient_is_located_at_its_site(index, place):
    sublayers = tanh_sublayers(6, 10)
    sublayers[index] = NanGradientAt(sublayers[index], place)
    stack = Stack(sublayers, dim=10)
    kept = torch.ones_like(sublayers[0].inner[0].weight if index == 0 else sublayers[0][0].weight)
    weight = next(stack.sublayers[0].parameters())
    weight.grad = kept
    result = first_nonfinite(stack, lambda: stack(tokens().requires_grad_()).sum())
    assert result.backward
    assert (result.stack, result.site.index, result.component) == ("encoder", index, place)
    kind = "self-attention" if index % 2 == 0 else "feed-forward"
    assert result.message == (
        f"the first NaN of the gradients arose in encoder layer {index // 2}, {kind} ({place})"
    )
    assert result.location["pass"] == "backward"
    assert weight.grad is kept
    assert torch.equal(kept, torch.ones_like(kept))
    assert all(each.grad is None for each in list(stack.parameters())[1:])


def test_nan_gradient_after_the_stack_is_located_at_the_last_site():
    stack = Stack(tanh_sublayers(4, 10), dim=10)
    result = first_nonfinite(stack, lambda: NanGradient.apply(stack(tokens())).sum())
    assert (result.site.index, result.component, result.backward) == (3, "stream", True)


def test_nan_gradient_outside_all_sites():
    class Headed(nn.Module):
        def __init__(self):
            super().__init__()
            self.stack, self.head = Stack(tanh_sublayers(2, 10), dim=10), nn.Linear(10, 3)

        def forward(self, x):
            return self.stack(x).sum() + NanGradient.apply(self.head(x)).sum()

    model = Headed()
    result = first_nonfinite(model, lambda: model(tokens()))
    assert result.message == "the first NaN of the gradients arose in a parameter outside all sites"


def test_finite_step_returns_none_and_changes_nothing():
    model = make_translator(dropout=0.3)
    state = torch.get_rng_state()
    assert locate(model) is None
    assert torch.equal(torch.get_rng_state(), state)
    assert all(each.grad is None for each in model.parameters())
    assert model.training
    assert not any(module._forward_hooks for module in model.modules())
    with torch.no_grad():
        assert locate(model) is None


def test_backward_can_be_replaced():
    model = make_translator()
    seen = []
    assert first_nonfinite(model, lambda: compute_loss(model), seen.append) is None
    assert [loss.requires_grad for loss in seen] == [True]


def test_backward_runs_after_nonfinite_forward():
    model = make_translator()
    corrupt(next(model.encoder.sublayers[2].parameters()))
    seen = []
    result = first_nonfinite(model, lambda: compute_loss(model), seen.append)
    assert (result.site.index, result.backward, len(seen)) == (2, False, 1)
