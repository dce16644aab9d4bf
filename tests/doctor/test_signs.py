"""Vital signs by what weights do, and how flat squashed norms are."""

import pytest
import torch
from torch import nn

import addnorm
from tests.doctor.small import DIM, Model, PreBlock, ids, stack, vectors


def by_role(report):
    return {
        row["role"]: row["value"]
        for row in report.rows
        if row["measure"] == "role_gradient_norm" and "site" not in row
    }


class Apart(nn.Module):
    """Queries, keys and values of matrices of their own; the names say nothing."""

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
def test_gradients_by_role_are_those_of_autograd(fused):
    torch.manual_seed(0)
    block = Apart()
    if fused:
        block.forward = lambda x: x + block.d(look(block, x))
    model = nn.Sequential(block, nn.LayerNorm(DIM))
    weigh = torch.randn(2, 7, DIM)
    report = addnorm.doctor(model, vectors(), loss=lambda y: (y * weigh).sum())
    (model(vectors()) * weigh).sum().backward()
    names = {"query": block.a, "key": block.b, "value": block.c, "out": block.d}
    wanted = {role: float(m.weight.grad.norm()) for role, m in names.items()}
    assert by_role(report) == pytest.approx(wanted, rel=1e-4)


def look(block, x):
    h = block.norm(x)
    q, k, v = (m(h).unflatten(-1, (3, -1)).transpose(1, 2) for m in (block.a, block.b, block.c))
    return (
        nn.functional.scaled_dot_product_attention(q, k, v, scale=1 / 3).transpose(1, 2).flatten(-2)
    )


def test_roles_of_one_matrix_for_all_and_of_the_feed_forward():
    report = addnorm.doctor(Model(stack(PreBlock), nn.LayerNorm(DIM)), ids())
    assert set(by_role(report)) == {"qkv", "out", "ffn_in", "ffn_out"}
    sites = [r for r in report.rows if r["measure"] == "role_gradient_norm" and "site" in r]
    first = {(r["site"], r["role"]) for r in sites if r["site"] < 2}
    assert first == {(0, "qkv"), (0, "out"), (1, "ffn_in"), (1, "ffn_out")}


def test_torchs_own_attention_has_roles_too():
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
def test_saturation_is_the_share_beyond_a_tenth_of_the_slope(squash, point):
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


def test_a_tanh_that_is_no_norm_has_no_saturation():
    model = nn.Sequential(nn.Linear(DIM, DIM), nn.Tanh(), nn.Linear(DIM, DIM))
    assert not [r for r in addnorm.doctor(model, vectors()).rows if r["measure"] == "saturation"]
