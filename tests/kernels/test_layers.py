"""Linear layers in one go: gradients, and who must not be passed by."""

from itertools import pairwise, product

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize
from torch.utils.checkpoint import checkpoint

from addnorm.kernels import layers, native
from addnorm.kernels.layers import project, projections, rectified
from addnorm.sublayers import FeedForward, SelfAttention

pytestmark = pytest.mark.skipif(not native.levels(), reason="the native library was not built")
ROWS = 120  # more than few


def make(*widths, bias=True, seed=0):
    torch.manual_seed(seed)
    return [nn.Linear(a, b, bias=bias) for a, b in pairwise(widths)]


def three(bias=True):
    torch.manual_seed(0)
    return [nn.Linear(32, wide, bias=bias) for wide in (32, 16, 48)]


def apart(given, x):
    return [layer(x) for layer in given]


def chain(given, x):
    return [given[1](torch.relu(given[0](x)))]


WAYS = {
    "projections": (three, projections, apart),
    "rectified": (
        lambda bias=True: make(32, 64, 16, bias=bias),
        lambda pair, x: [rectified(*pair, x)],
        chain,
    ),
}
both = pytest.mark.parametrize("way", WAYS)


def learned(way, given, x, weight=torch.sin):
    """All gradients of some loss of what comes out."""
    made = way(given, x)
    wanted = [x, *(p for layer in given for p in layer.parameters())]
    wanted = [each for each in wanted if each.requires_grad]
    loss = sum((n + 1) * weight(each).sum() for n, each in enumerate(made))
    return [*made, *torch.autograd.grad(loss, wanted)]


@both
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(ROWS, 32), (3, 50, 32), (1, 2, 70, 32)])
@pytest.mark.parametrize("dense", [True, False])
def test_gradients_are_those_of_the_layers(way, bias, shape, dense, calls):
    make_them, ours, theirs = WAYS[way]
    given = make_them(bias=bias)
    x = torch.randn(shape) if dense else torch.randn(*shape[:-1], 64)[..., ::2]
    x.requires_grad_()
    found, wanted = learned(ours, given, x), learned(theirs, given, x)
    assert calls.count("linear") == 2 * (3 if way == "projections" else 2)
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


@both
@pytest.mark.parametrize("dense", [True, False])
def test_gradients_of_gradients(way, dense):
    make_them, ours, theirs = WAYS[way]
    given, x = make_them(), torch.randn(ROWS, 32, requires_grad=True)
    if not dense:
        x = torch.randn(32, ROWS, requires_grad=True).T

    def twice(run):
        inputs = [x, *(p for layer in given for p in layer.parameters())]
        loss = sum(each.sin().sum() for each in run(given, x))
        slopes = torch.autograd.grad(loss, inputs, create_graph=True)
        return torch.autograd.grad(sum(each.square().sum() for each in slopes), inputs)

    for one, other in zip(twice(ours), twice(theirs), strict=True):
        assert (one - other).norm() < 1e-4 * other.norm()


@both
def test_what_is_frozen_gets_no_gradient(way):
    make_them, ours, theirs = WAYS[way]
    given, x = make_them(), torch.randn(ROWS, 32)
    given[0].weight.requires_grad_(False)
    given[1].bias.requires_grad_(False)
    found, wanted = learned(ours, given, x), learned(theirs, given, x)
    assert len(found) == len(wanted)
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


@both
def test_many_gradients_at_once(way):
    make_them, ours, theirs = WAYS[way]
    given, x = make_them(), torch.randn(ROWS, 32, requires_grad=True)

    def many(run):
        (y, *_) = run(given, x)
        many = torch.randn(3, *y.shape, generator=torch.Generator().manual_seed(0))
        inputs = [x, *given[0].parameters()]
        return torch.autograd.grad(y, inputs, many, is_grads_batched=True)

    for one, other in zip(many(ours), many(theirs), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


@both
def test_what_hooks_keep_in_another_order(way):
    make_them, ours, theirs = WAYS[way]
    given, x = make_them(), torch.randn(ROWS, 32, requires_grad=True)

    def moved(given, x):
        with torch.autograd.graph.saved_tensors_hooks(
            lambda t: t, lambda t: t.t().contiguous().t() if t.ndim == 2 else t
        ):
            return ours(given, x)

    for one, other in zip(learned(moved, given, x), learned(theirs, given, x), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


@both
def test_a_bias_of_another_shape_is_torchs_business(way):
    make_them, ours, theirs = WAYS[way]
    given, x = make_them(), torch.randn(ROWS, 32)
    given[0].bias = nn.Parameter(torch.ones(1))
    for grad in (True, False):
        with torch.set_grad_enabled(grad):
            torch.testing.assert_close(ours(given, x)[0], theirs(given, x)[0])
    given[1].bias = nn.Parameter(torch.ones(3))
    with pytest.raises(RuntimeError):
        ours(given, x)


@both
@pytest.mark.parametrize("grad", [True, False])
def test_weights_whose_memory_was_taken_away(way, grad):
    make_them, ours, _ = WAYS[way]
    given, x = make_them(), torch.randn(ROWS, 32)
    given[0].weight.untyped_storage().resize_(0)
    with torch.set_grad_enabled(grad), pytest.raises(RuntimeError):
        ours(given, x)


def test_another_forward_of_all_linear_layers(monkeypatch):
    calls, inner = [], nn.Linear.forward
    monkeypatch.setattr(nn.Linear, "forward", lambda self, x: (calls.append(1), inner(self, x))[1])
    projections(three(), torch.randn(ROWS, 32))
    assert len(calls) == 3


def test_answers_that_nobody_uses():
    given, x = three(), torch.randn(ROWS, 32, requires_grad=True)
    projections(given, x)[1].sum().backward()
    torch.testing.assert_close(x.grad, given[1].weight.sum(0).expand(ROWS, -1))
    assert given[0].weight.grad is None and given[2].bias.grad is None
    assert given[1].weight.grad is not None


@both
def test_a_checkpoint_makes_it_again(way):
    make_them, ours, theirs = WAYS[way]
    given, x = make_them(), torch.randn(ROWS, 32, requires_grad=True)

    def kept(given, x):
        return checkpoint(lambda x: tuple(ours(given, x)), x, use_reentrant=False)

    for one, other in zip(learned(kept, given, x), learned(theirs, given, x), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def watch(layer):
    seen = []
    layer.register_forward_hook(lambda *_: seen.append("hook"))
    return seen


def watch_back(layer):
    seen = []
    layer.register_full_backward_hook(lambda *_: seen.append("back"))
    return seen


def replace(layer):
    seen = []
    inner = layer.forward

    def forward(x):
        seen.append("forward")
        return inner(x)

    layer.forward = forward
    return seen


def wrap(layer):
    seen = []

    class Counting(nn.Module):
        def forward(self, weight):
            seen.append("weight")
            return weight

    parametrize.register_parametrization(layer, "weight", Counting())
    seen.clear()
    return seen


@both
@pytest.mark.parametrize(
    ("how", "learns"),
    [(watch_back, True), *product((watch, replace, wrap), (True, False))],
)
def test_nobody_who_looks_is_passed_by(way, how, learns):
    make_them, ours, _ = WAYS[way]
    given, x = make_them(), torch.randn(ROWS, 32, requires_grad=learns)
    seen = how(given[1])
    with torch.set_grad_enabled(learns):
        made = ours(given, x)
    if learns:
        sum(each.sum() for each in made).backward()
    assert seen


def test_hooks_of_all_modules_are_called():
    layer, x, seen = make(32, 32)[0], torch.randn(ROWS, 32), []
    hook = nn.modules.module.register_module_forward_hook(lambda *_: seen.append("all"))
    try:
        with torch.no_grad():
            project(layer, x)
    finally:
        hook.remove()
    assert seen == ["all"]


class Halved(nn.Module):
    """Another module in the place of a layer: its weight is no tensor."""

    def weight(self):
        raise AssertionError

    def forward(self, x):
        return x[..., :16] * 0.5


def test_other_modules_may_stand_there():
    x = torch.randn(2, ROWS, 32)
    found = projections([*three()[:2], Halved()], x)
    torch.testing.assert_close(found[2], x[..., :16] / 2)
    ffn = FeedForward(32, 64)
    ffn.up_proj = nn.Sequential(ffn.up_proj)
    assert ffn(x).shape == x.shape


def test_wrong_widths_are_refused_as_by_torch():
    with pytest.raises(RuntimeError, match="shapes"):
        projections(three(), torch.randn(ROWS, 16))
    up, down = make(32, 64)[0], make(48, 32)[0]
    with pytest.raises(RuntimeError, match="shapes"):
        rectified(up, down, torch.randn(ROWS, 32))


def test_sublayers_use_them(calls):
    x = torch.randn(2, ROWS, 32, requires_grad=True)
    attention, ffn = SelfAttention(32, 2), FeedForward(32)
    attention(x).sum().backward()
    assert calls.count("linear") == 6  # three maps, and three gradients of x
    calls.clear()
    ffn(x).sum().backward()
    assert calls.count("linear") == 4
    calls.clear()
    for other in (FeedForward(32, activation="gelu"), FeedForward(32, dropout=0.5)):
        other(x).sum().backward()
    assert calls.count("linear") == 0


def test_the_plain_way_gives_the_same():
    torch.manual_seed(1)
    x = torch.randn(2, ROWS, 32, requires_grad=True)
    ffn, attention = FeedForward(32), SelfAttention(32, 2, causal=True)

    def run():
        made = attention(ffn(x))
        return [made, *torch.autograd.grad(made.sin().sum(), [x, *ffn.parameters()])]

    found = run()
    with native.using("off"):
        wanted = run()
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def test_a_compiled_graph_and_autocast_are_left_to_torch(calls):
    given, x = three(), torch.randn(ROWS, 32, requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16):
        assert projections(given, x)[0].dtype == torch.bfloat16
    calls.clear()
    torch.compile(lambda x: layers.projections(given, x), backend="eager")(x)
    assert not calls
