"""Stress test: rows of the runs, and an unchanged model."""

import math
import threading
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import addnorm
from addnorm.core.errors import UserError
from addnorm.doctor.report import compute_sensitivity
from addnorm.doctor.stress_test import StressTestError, stress
from tests.doctor.models.tiny import DIM, Model, PreBlock, ids, stack


def model():
    torch.manual_seed(0)
    return Model(stack(PreBlock, 1), nn.LayerNorm(DIM))


def test_six_runs_learn_and_leave_the_model_unchanged():
    trained = model()
    before = [weight.detach().clone() for weight in trained.parameters()]
    rows = list(stress(trained, ids(), lr=3e-3, steps=12))
    assert [row["warmup"] for row in rows] == [0, 3] * 3
    assert [row["lr"] for row in rows[::2]] == pytest.approx([1e-3, 3e-3, 9e-3])
    assert all(row["finite"] and row["last_loss"] < row["first_loss"] for row in rows)
    assert all(torch.equal(a, b) for a, b in zip(before, trained.parameters(), strict=True))


def test_diverging_run_is_not_finite():
    rows = list(stress(model(), ids(), lambda out: out.exp().exp().mean(), lr=3.0, steps=8))
    assert not all(row["finite"] for row in rows)
    assert not math.isfinite(rows[-2]["last_loss"])


def test_invalid_arguments_are_rejected():
    with pytest.raises(UserError, match="lr: expected a positive number such as 1e-3, got -1"):
        list(stress(model(), ids(), lr=-1))
    with pytest.raises(UserError, match="expected a trainable model"):
        list(stress(nn.ReLU(), torch.randn(2, 3), lr=1e-3))


def test_losses_by_name():
    one = next(stress(model(), ids(), "cross_entropy", lr=1e-3, steps=2))
    assert one == next(stress(model(), ids(), lr=1e-3, steps=2))
    assert one["first_loss"] != next(stress(model(), ids(), "mse", lr=1e-3, steps=2))["first_loss"]
    with pytest.raises(UserError, match="--loss own: expected a loss in the model's output"):
        next(stress(model(), ids(), "own", lr=1e-3))
    with pytest.raises(UserError, match="unknown loss 'mean'"):
        next(stress(model(), ids(), "mean", lr=1e-3))
    with pytest.raises(
        UserError, match=r"expected logits of tokens .* got an output of shape \(2, 3\)"
    ):
        next(stress(nn.Linear(3, 3), torch.randn(2, 3), "cross_entropy", lr=1e-3))


class Graded(nn.Module):
    """Returns its loss next to its output."""

    def __init__(self, kind):
        super().__init__()
        torch.manual_seed(0)
        self.f, self.kind = nn.Linear(3, 3), kind

    def forward(self, x):
        y = x + self.f(x)
        return self.kind(loss=10 * y.square().mean(), logits=y)


@pytest.mark.parametrize("kind", [dict, SimpleNamespace])
def test_loss_returned_by_the_model_is_used(kind):
    x = torch.randn(2, 4, 3, generator=torch.Generator().manual_seed(0))
    model = Graded(kind)
    row = next(stress(model, x, "own", lr=1e-3, steps=1))
    assert row["first_loss"] == pytest.approx((10 * (x + model.f(x)).square().mean()).item())
    assert row == next(stress(model, x, lr=1e-3, steps=1))

    def own(out):
        return out["loss"] if kind is dict else out.loss

    default, explicit = addnorm.doctor(model, x), addnorm.doctor(model, x, own)
    assert default.blocks[0].measurements["gradient_norm"] == pytest.approx(
        explicit.blocks[0].measurements["gradient_norm"]
    )


def synthetic_rows(warmup, first, *ends):
    return [
        {"warmup": warmup, "first_loss": first, "last_loss": end, "finite": math.isfinite(end)}
        for end in ends
    ]


def test_sensitivity_is_the_fraction_lost_by_other_rates():
    rows = synthetic_rows(0, 4.0, 2.0, 2.0, 2.0) + synthetic_rows(5, 4.0, 2.0, 4.0, math.nan)
    assert compute_sensitivity(rows) == {0: 0.0, 5: pytest.approx(2 / 3)}
    assert compute_sensitivity(synthetic_rows(0, 4.0, 3.0, 2.0, 9.0)) == {
        0: pytest.approx((1 + 0 + 2) / 6)
    }
    assert compute_sensitivity(synthetic_rows(0, 4.0, 4.0, 5.0, math.inf)) == {0: 1.0}
    assert compute_sensitivity([]) == {}


def test_random_generators_are_restored_between_rows():
    torch.manual_seed(5)
    expected = torch.randn(3)
    torch.manual_seed(5)
    runs = stress(model(), ids(), lr=1e-3, steps=2)
    torch.manual_seed(5)
    next(runs)
    assert torch.equal(torch.randn(3), expected)


def test_inputs_are_unchanged():
    class Writes(nn.Linear):
        def forward(self, x):
            x += 1
            return super().forward(x)

    x = torch.zeros(2, 3)
    next(stress(Writes(3, 3), x, lr=1e-3, steps=2))
    assert not x.any()


class OnlyEval(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x):
        if self.training:
            raise RuntimeError("give labels in train mode")
        return x + self.linear(x)


def test_model_that_cannot_be_trained_or_copied_raises():
    with pytest.raises(StressTestError, match="RuntimeError: give labels in train mode"):
        list(stress(OnlyEval(), torch.ones(2, 4), lr=1e-3))
    model = nn.Linear(4, 4)
    model.lock = threading.Lock()
    with pytest.raises(StressTestError, match="cannot pickle"):
        list(stress(model, torch.ones(2, 4), lr=1e-3))
