"""Statistics at initialization, as derived in the literature, measured on stacks."""

import math

import pytest
import torch
from torch import nn

from addnorm import Encoder, Stack

DIM = 256


class ValueAttention(nn.Module):
    """Attention in the model of Xiong et al.: zero queries and keys, so it averages values."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(DIM, DIM) / math.sqrt(DIM))

    def forward(self, x):
        return (x @ self.weight).mean(1, keepdim=True).expand_as(x)


class ReluFeedForward(nn.Module):
    """Feed-forward in the model of Xiong et al.: dim x dim matrices, entries N(0, 1 / dim)."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Parameter(torch.randn(DIM, DIM) / math.sqrt(DIM))
        self.second = nn.Parameter(torch.randn(DIM, DIM) / math.sqrt(DIM))

    def forward(self, x):
        return (x @ self.first).relu() @ self.second


def xiong_stack(wiring: str, depth: int, seed: int = 0) -> Stack:
    torch.manual_seed(seed)
    sublayers = [module for _ in range(depth) for module in (ValueAttention(), ReluFeedForward())]
    return Stack(sublayers, dim=DIM, wiring=wiring)


def streams(wiring: str, depth: int, length: int = 1) -> list[torch.Tensor]:
    """Return the stream after every sub-layer; with one token, attention is its value matrix."""
    stack = xiong_stack(wiring, depth)
    torch.manual_seed(1)
    with torch.no_grad(), stack.taps.record() as tape:
        stack(torch.randn(64, length, DIM))
    return tape["stream"]


def square_norm(x: torch.Tensor) -> float:
    return x.square().sum(-1).mean().item() / DIM


def test_pre_ln_stream_grows_linearly_within_the_published_bounds():
    """(1 + l / 2) d <= E|x_l|^2 <= (1 + 3 l / 2) d: Xiong et al. 2020, lemma 2."""
    behind_layers = [square_norm(stream) for stream in streams("pre_ln", depth=12)[1::2]]
    for layer, value in enumerate(behind_layers, start=1):
        assert (1 + layer / 2) * 0.97 <= value <= (1 + 3 * layer / 2) * 1.03
    growth = [behind_layers[i] - behind_layers[i - 1] for i in range(1, 12)]
    assert max(growth) < 1.5 * min(growth)  # linear: every layer adds about the same


def test_post_ln_stream_keeps_its_size_and_its_sum_is_three_halves():
    stack = xiong_stack("post_ln", depth=8)
    sums: list[torch.Tensor] = []
    for norm in stack.wiring.norms[1::2]:
        norm.register_forward_pre_hook(lambda _norm, inputs: sums.append(inputs[0]))
    with torch.no_grad(), stack.taps.record() as tape:
        stack(torch.randn(64, 1, DIM))
    for stream in tape["stream"]:
        assert square_norm(stream) == pytest.approx(1.0, rel=1e-3)
    for total in sums:
        assert square_norm(total) == pytest.approx(1.5, rel=0.08)


def last_ffn_gradient(wiring: str, depth: int) -> float:
    """Return the mean gradient norm of the last matrix, over 4 models and 12 tokens."""
    norms = []
    for seed in range(4):
        stack = xiong_stack(wiring, depth, seed)
        head = torch.randn(DIM, 32) / math.sqrt(DIM)
        logits = stack(torch.randn(12, 1, DIM))[:, 0] @ head
        losses = nn.functional.cross_entropy(logits, torch.arange(12), reduction="none")
        for loss in losses:
            (grad,) = torch.autograd.grad(loss, stack.sublayers[-1].second, retain_graph=True)
            norms.append(grad.norm().item())
    return sum(norms) / len(norms)


def test_last_gradient_is_constant_in_post_ln_and_falls_with_depth_in_pre_ln():
    """Xiong et al. 2020, theorem 1; here Pre-LN gradients scale as 1 / sqrt(1 + depth / 2)."""
    depths = (4, 16)
    post = [last_ffn_gradient("post_ln", depth) for depth in depths]
    pre = [last_ffn_gradient("pre_ln", depth) for depth in depths]
    assert post[0] / post[1] == pytest.approx(1.0, rel=0.12)
    assert pre[0] / pre[1] == pytest.approx(math.sqrt((1 + 16) / (1 + 4)), rel=0.2)


def branch_variance_shares(wiring: str, depth: int) -> list[float]:
    """Return Var[f] / Var[x + f] at every site: Liu et al. 2020."""
    torch.manual_seed(0)
    sublayers = [nn.Linear(DIM, DIM, bias=False) for _ in range(2 * depth)]
    for module in sublayers:
        nn.init.normal_(module.weight, std=DIM**-0.5)  # every branch has the variance of its input
    stack = Stack(sublayers, dim=DIM, wiring=wiring)
    shares, carried = [], torch.randn(64, 3, DIM)
    with torch.no_grad(), stack.taps.record() as tape:
        stack(carried)
    before = [carried, *tape["stream"][:-1]]
    for x, f in zip(before, tape["branch"], strict=True):
        shares.append((f.var() / (x + f).var()).item())
    return shares


def test_branch_share_is_harmonic_in_pre_ln_and_constant_in_post_ln():
    pre, post = branch_variance_shares("pre_ln", 10), branch_variance_shares("post_ln", 10)
    expected = [1 / (i + 1) for i in range(1, 21)]
    assert pre == pytest.approx(expected, rel=0.2)
    assert post == pytest.approx([0.5] * 20, rel=0.1)


def test_sandwich_and_res_post_grow_by_one_per_sublayer_for_any_weights():
    for wiring in ("sandwich", "res_post"):
        torch.manual_seed(0)
        sublayers = [nn.Linear(DIM, DIM) for _ in range(16)]
        for module in sublayers:
            nn.init.normal_(module.weight, std=0.5)
        stack = Stack(sublayers, dim=DIM, wiring=wiring)
        with torch.no_grad(), stack.taps.record() as tape:
            stack(torch.randn(64, 3, DIM))
        sizes = [square_norm(stream) for stream in tape["stream"]]
        assert sizes == pytest.approx([2 + k for k in range(16)], rel=0.15)


def test_gpt2_init_keeps_stream_variance_at_any_depth():
    from addnorm import Encoder

    def growth(init: str, depth: int) -> float:
        stack = Encoder(dim=64, depth=depth, heads=4, wiring=f"pre_ln(init={init})")
        stack.init_weights(
            scheme="xavier_uniform", seed=0
        )  # 0.02 is too small to see at this width
        torch.manual_seed(1)
        x = torch.randn(64, 6, 64)
        with torch.no_grad(), stack.taps.record() as tape:
            stack(x)
        return (tape["stream"][-1].square().mean() - x.square().mean()).item()

    assert growth("gpt2", 16) == pytest.approx(growth("gpt2", 4), rel=0.4)
    assert growth("xavier", 16) > 3 * growth("xavier", 4)


def input_gradient_norm(wiring: str, depth: int) -> float:
    """Return the norm of the gradient of the input, through saturating sub-layers."""
    torch.manual_seed(0)
    sublayers = [nn.Sequential(nn.Linear(64, 64), nn.Tanh()) for _ in range(2 * depth)]
    for module in sublayers:
        nn.init.normal_(module[0].weight, std=1.5 / 8)
    stack = Stack(sublayers, dim=64, wiring=wiring)
    x = torch.randn(8, 3, 64, requires_grad=True)
    y = stack(x)
    (grad,) = torch.autograd.grad((y * torch.randn_like(y)).sum(), x)
    return grad.norm().item()


def test_keel_gradients_stay_bounded_where_post_ln_gradients_explode():
    assert input_gradient_norm("keel", 128) == pytest.approx(
        input_gradient_norm("keel", 1), rel=0.8
    )
    assert input_gradient_norm("post_ln", 128) > 1e3 * input_gradient_norm("post_ln", 1)


@pytest.mark.parametrize(("scale", "factor"), [(1.0, 0.25), (0.5, 0.5), (None, 1.0), (1 / 16, 1.0)])
def test_queries_start_smaller_without_the_factor_of_the_logits(scale, factor):
    """T5 has no 1 / sqrt(head_dim); it is part of its initial queries."""

    def std_of_queries(scale):
        stack = Encoder(dim=64, depth=1, heads=4, scale=scale)  # head_dim 16
        attention = stack.init_weights(seed=0).sublayers[0]
        return attention.q_proj.weight.std() / attention.k_proj.weight.std()

    torch.testing.assert_close(std_of_queries(scale) / std_of_queries(None), torch.tensor(factor))
