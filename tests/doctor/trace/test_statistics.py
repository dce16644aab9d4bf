"""Statistics: gradients by role, saturation, attention logits, token similarity."""

import math

import pytest
import torch
from torch import nn

import addnorm
from addnorm.doctor.model_trace import trace_model
from addnorm.doctor.trace import statistics
from addnorm.doctor.trace.attention_logits import hides_later
from tests.doctor.models.tiny import DIM, Model, PreBlock, ids, stack, vectors


def by_role(report):
    return {
        row["role"]: row["value"]
        for row in report.rows
        if row["measure"] == "role_gradient_norm" and "site" not in row
    }


class Apart(nn.Module):
    """Separate query, key and value matrices with meaningless names."""

    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(DIM)
        self.a, self.b, self.c, self.d = (nn.Linear(DIM, DIM) for _ in range(4))

    def forward(self, x):
        h = self.norm(x)
        q, k, v = (m(h).unflatten(-1, (3, -1)).transpose(1, 2) for m in (self.a, self.b, self.c))
        y = (q @ k.mT / 3).softmax(-1) @ v
        return x + self.d(y.transpose(1, 2).flatten(-2))


@pytest.mark.parametrize("fused", [False, True])
def test_gradients_by_role_equal_autograd(fused):
    torch.manual_seed(0)
    block = Apart()
    if fused:
        block.forward = lambda x: x + block.d(look(block, x))
    model = nn.Sequential(block, nn.LayerNorm(DIM))
    weigh = torch.randn(2, 7, DIM)
    report = addnorm.doctor(model, vectors(), loss=lambda y: (y * weigh).sum())
    (model(vectors()) * weigh).sum().backward()
    names = {"query": block.a, "key": block.b, "value": block.c, "out": block.d}
    expected = {role: float(m.weight.grad.norm()) for role, m in names.items()}
    assert by_role(report) == pytest.approx(expected, rel=1e-4)


def look(block, x):
    h = block.norm(x)
    q, k, v = (m(h).unflatten(-1, (3, -1)).transpose(1, 2) for m in (block.a, block.b, block.c))
    return (
        nn.functional.scaled_dot_product_attention(q, k, v, scale=1 / 3).transpose(1, 2).flatten(-2)
    )


def test_roles_of_fused_qkv_and_feed_forward():
    report = addnorm.doctor(Model(stack(PreBlock), nn.LayerNorm(DIM)), ids())
    assert set(by_role(report)) == {"qkv", "out", "ffn_in", "ffn_out"}
    sites = [r for r in report.rows if r["measure"] == "role_gradient_norm" and "site" in r]
    first = {(r["site"], r["role"]) for r in sites if r["site"] < 2}
    assert first == {(0, "qkv"), (0, "out"), (1, "ffn_in"), (1, "ffn_out")}


def test_roles_in_multihead_attention():
    layer = nn.TransformerEncoderLayer(DIM, 3, 48, batch_first=True, norm_first=True)
    report = addnorm.doctor(nn.Sequential(layer, nn.LayerNorm(DIM)), vectors())
    assert set(by_role(report)) == {"qkv", "out", "ffn_in", "ffn_out"}


class Squashed(nn.Module):
    def __init__(self, alpha, squash):
        super().__init__()
        self.alpha, self.gain = nn.Parameter(torch.tensor(alpha)), nn.Parameter(torch.ones(DIM))
        self.squash = squash

    def forward(self, x):
        return self.gain * self.squash(self.alpha * x)


@pytest.mark.parametrize(("squash", "point"), [(torch.tanh, 1.818), (torch.erf, 1.517)])
def test_saturation_is_fraction_with_small_slope(squash, point):
    x = vectors()
    z = torch.tensor(point, requires_grad=True)
    (slope,) = torch.autograd.grad(squash(z), z)
    top = float(torch.autograd.grad(squash(u := torch.zeros((), requires_grad=True)), u)[0])
    assert float(slope) == pytest.approx(top / 10, rel=2e-3)

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.mlp = Squashed(2.0, squash), nn.Linear(DIM, DIM)

        def forward(self, x):
            return x + self.mlp(self.norm(x))

    report = addnorm.doctor(nn.Sequential(Block(), nn.LayerNorm(DIM)), x)
    (row,) = [r for r in report.rows if r["measure"] == "saturation"]
    assert row["path"] == "0.norm"
    assert row["value"] == pytest.approx(float(((2 * x).abs() > point).float().mean()))


def test_tanh_that_is_not_a_norm_has_no_saturation():
    model = nn.Sequential(nn.Linear(DIM, DIM), nn.Tanh(), nn.Linear(DIM, DIM))
    assert not [r for r in addnorm.doctor(model, vectors()).rows if r["measure"] == "saturation"]


def values(report, measure):
    return [row["value"] for row in report.rows if row["measure"] == measure]


class Masked(nn.Module):
    """Handwritten attention with an additive mask."""

    def __init__(self, low):
        super().__init__()
        self.norm, self.q, self.k, self.low = nn.LayerNorm(DIM), *map(linear, range(2)), low

    def forward(self, x):
        h = self.norm(x)
        later = torch.ones(x.shape[1], x.shape[1]).triu(1) * self.low
        self.logits = self.q(h) @ self.k(h).mT
        return x + (self.logits + later).softmax(-1) @ h


def linear(seed):
    torch.manual_seed(seed)
    return nn.Linear(DIM, DIM)


@pytest.mark.parametrize("low", [-1e4, -1e9])
def test_logits_far_below_their_row_are_masked(low):
    model = Masked(low)
    with trace_model(model, vectors()) as trace:
        (found,) = trace.recording.stats.attentions
        seen = model.logits.detach().tril()[:1].abs().max()
    assert found.is_causal and found.max_logit == pytest.approx(float(seen), rel=1e-5)


def test_causal_mask_detection():
    with trace_model(Masked(0.0), vectors()) as trace:
        assert not trace.recording.stats.attentions[0].is_causal
    mask = torch.full((4, 4), -1e9).triu(1)
    mask[0] = -1e9
    assert hides_later(mask) and not hides_later(torch.zeros(4, 4))


@pytest.mark.parametrize("first", [True, False])
def test_token_similarity_for_both_token_axes(first):
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(DIM, 3, 48, batch_first=not first, dropout=0.0)
    one = torch.randn(5, 1, DIM).expand(5, 9, DIM)  # in each example all tokens are the same
    report = addnorm.doctor(layer, one.transpose(0, 1) if first else one, rules=())
    assert [b.token_similarity for b in report.blocks] == pytest.approx([1.0, 1.0], abs=1e-4)


@pytest.mark.parametrize("sides", [(6, 6), (4, 8)])
@pytest.mark.parametrize("last", [True, False])
def test_statistics_of_images_in_both_layouts(sides, last):
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.f = nn.Linear(5, 5) if last else nn.Conv2d(5, 5, 3, padding=1)

        def forward(self, x):
            return x + torch.relu(self.f(x))

    torch.manual_seed(0)
    model = Block()
    x = torch.randn(2, *sides, 5) if last else torch.randn(2, 5, *sides)
    (block,) = addnorm.doctor(model, x, rules=()).blocks
    out = model(x).detach()
    tokens = out.flatten(1, 2) if last else out.flatten(2).mT
    unit = nn.functional.normalize(tokens, dim=-1)
    length = tokens.shape[1]
    alike = ((unit @ unit.mT).sum((1, 2)) - length) / length / (length - 1)
    assert block.stream_variance == pytest.approx(float(tokens.var(-1, correction=0).mean()))
    assert block.token_similarity == pytest.approx(float(alike.mean()), abs=1e-5)


@pytest.mark.parametrize("padded", [0, 20])
@pytest.mark.parametrize("kdim", [None, DIM + 3])
def test_entropy_and_max_logit_of_multihead_attention(padded, kdim):
    class CrossAttention(nn.Module):
        def __init__(self):
            super().__init__()
            self.f = nn.MultiheadAttention(DIM, 3, batch_first=True, kdim=kdim, vdim=kdim)

        def forward(self, x, y, hidden):
            out, self.weights = self.f(x, y, y, key_padding_mask=hidden, average_attn_weights=False)
            return x + out

    torch.manual_seed(0)
    model, x, y = CrossAttention(), torch.randn(2, 60, DIM), torch.randn(2, 100, kdim or DIM)
    hidden = torch.zeros(2, 100, dtype=torch.bool)
    hidden[:, 100 - padded :] = padded > 0
    report = addnorm.doctor(model, (x, 2 * y, hidden), rules=())
    model(x, 2 * y, hidden)  # run again: the guard discards attributes set in the traced run
    weights = model.weights[0].detach().clamp_min(1e-20)
    expected = -(weights * weights.log()).sum(-1).mean() / torch.tensor(100.0).log()
    assert values(report, "attention_entropy") == pytest.approx([float(expected)], rel=1e-4)
    assert values(report, "max_logit")[0] > 0


def test_softmax_over_another_axis():
    class Slots(nn.Module):
        def forward(self, x):
            weights = (x @ x.mT[:, :, :3]).softmax(dim=1)
            self.weights = weights.mT
            return weights.mT @ x

    model = Slots()
    whole = nn.Sequential(nn.Linear(DIM, DIM), model)
    report = addnorm.doctor(whole, vectors(), rules=())
    whole(vectors())
    weights = model.weights[0].detach()
    expected = -(weights * weights.clamp_min(1e-20).log()).sum(-1).mean() / torch.tensor(7.0).log()
    assert values(report, "attention_entropy") == pytest.approx([float(expected)], rel=1e-4)


def test_softmax_over_experts_is_not_attention():
    class Router(nn.Module):
        def __init__(self):
            super().__init__()
            self.gate, self.f = nn.Linear(DIM, 4), nn.Linear(DIM, 4 * DIM)

        def forward(self, x):
            out = self.f(x).unflatten(-1, (4, DIM)) * self.gate(x).softmax(-1).unsqueeze(-1)
            return x + out.sum(-2)

    assert values(addnorm.doctor(Router(), vectors(), rules=()), "attention_entropy") == []


@pytest.mark.parametrize("shift", [0.0, -4e5, 4e5])
def test_huge_scores_are_not_taken_for_masked_ones(shift):
    """Scores of deep models without norms explode; their causal mask is not a blocking one."""
    scores = torch.randn(1, 2, 7, 7, generator=torch.Generator().manual_seed(0)) + shift
    causal = scores.masked_fill(torch.ones(7, 7).triu(1).bool(), -math.inf)
    assert statistics._find_visible(causal) == "others"
    assert statistics._find_visible(scores) == ("nothing" if shift < 0 else "others")
    spread = scores * 1e3  # differences as large as those between scores and fill values
    assert not statistics.hides_later(spread)
