"""The model is restored, and failures are reported."""

import random
import warnings

import numpy
import pytest
import torch
from torch import nn

import addnorm
from tests.doctor.models.tiny import DIM, LENGTH, FeedForward, Model, PreBlock, ids, stack, vectors
from tests.doctor.state_checksum import pre, state


class Restless(nn.Module):
    """Writes to buffers and weights, draws random numbers, uses dropout."""

    def __init__(self, fails=False):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(DIM, DIM), nn.BatchNorm1d(DIM), nn.Dropout(0.5))
        self.out = nn.Linear(DIM, DIM)
        self.register_buffer("calls", torch.zeros(()))
        self.fails = fails

    def forward(self, x):
        self.calls += 1
        with torch.no_grad():
            self.out.weight.mul_(1.5)
            self.out.weight.data.add_(torch.randn(()))
        random.random()
        numpy.random.rand()
        x = x + self.out(torch.relu(self.body(x)))
        if self.fails:
            raise RuntimeError("half way")
        return x


@pytest.mark.parametrize("training", [True, False])
def test_model_is_restored(training):
    torch.manual_seed(0)
    model = Restless().train(training)
    model.body[0].weight.requires_grad_(False)
    model.out.weight.grad = torch.ones(DIM, DIM)
    model.out.register_forward_hook(lambda *_: None)
    before = state(model)
    addnorm.doctor(model, torch.randn(6, DIM, generator=torch.Generator().manual_seed(0)))
    assert state(model) == before


def test_model_is_restored_after_failing_forward():
    model = Restless(fails=True)
    before = state(model)
    x = torch.randn(6, DIM, generator=torch.Generator().manual_seed(0))
    with pytest.raises(
        addnorm.UserError, match="could not be run on these inputs: RuntimeError: half"
    ):
        addnorm.doctor(model, x)
    assert state(model) == before


def test_model_is_restored_after_failing_loss():
    model = pre()
    before = state(model)

    def loss(out):
        raise KeyError("no such thing")

    with pytest.raises(addnorm.UserError, match="KeyError"):
        addnorm.doctor(model, ids(), loss)
    assert state(model) == before


class MaxNormModel(nn.Module):
    """An embedding with max_norm, which rescales rows in place."""

    def __init__(self, table):
        super().__init__()
        self.table, self.f, self.norm = table, FeedForward(), nn.LayerNorm(DIM)

    def forward(self, tokens):
        x = self.table(tokens)
        return self.norm(x + self.f(x))


def test_embedding_with_max_norm_is_restored():
    torch.manual_seed(0)
    model = MaxNormModel(nn.Embedding(40, DIM, max_norm=0.1))
    before = state(model)
    addnorm.doctor(model, ids())
    assert state(model) == before


def test_weights_that_share_storage_are_restored():
    class Flat(nn.Module):
        def __init__(self):
            super().__init__()
            flat = torch.randn(2 * DIM * DIM, generator=torch.Generator().manual_seed(0))
            self.a = nn.Parameter(flat[: DIM * DIM].view(DIM, DIM))
            self.b = nn.Parameter(flat[DIM * DIM :].view(DIM, DIM))

        def forward(self, x):
            with torch.no_grad():
                self.b.mul_(2)
            return x + torch.relu(x @ self.a) @ self.b

    model = Flat()
    before = state(model)
    addnorm.doctor(model, vectors())
    assert state(model) == before


def scripted():
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = nn.Sequential(
            nn.Linear(DIM, DIM), torch.jit.script(nn.LayerNorm(DIM)), nn.BatchNorm1d(LENGTH)
        )
    model[0].weight.requires_grad_(False)
    model[1].weight.grad = torch.ones(DIM)
    return model


def test_scripted_module_is_restored():
    model = scripted()
    before = state(model)
    addnorm.doctor(model, vectors())
    assert state(model) == before


def test_everything_else_is_restored_if_one_restore_fails(monkeypatch):
    from addnorm.doctor.trace.state_guard import StateGuard

    def broken(self):
        raise AttributeError("cannot")

    model = pre()
    model.table.weight.requires_grad_(False)
    model.head.weight.grad = torch.ones_like(model.head.weight)
    model.train()
    monkeypatch.setattr(StateGuard, "restore", broken)
    with pytest.raises(AttributeError, match="cannot"):
        addnorm.doctor(model, ids())
    assert model.training and not model.table.weight.requires_grad
    assert model.head.weight.grad is not None and model.head.weight.requires_grad


def test_lazy_module_raises():
    with pytest.raises(
        addnorm.UserError, match=r"expected initialized weights, got 0\.weight of a lazy"
    ):
        addnorm.doctor(nn.Sequential(nn.LazyLinear(3)), vectors())


def test_inputs_are_unchanged():
    class Writes(nn.Module):
        def __init__(self):
            super().__init__()
            self.f = FeedForward()

        def forward(self, x, other):
            other += 1
            return x + self.f(x) + other

    torch.manual_seed(0)
    x, other = vectors().requires_grad_(), torch.zeros(DIM)
    report = addnorm.doctor(Writes(), (x, other))
    assert x.grad is None and not other.any()
    assert report.findings == () or "leak" not in report.findings[0].rule


def test_failing_loss_and_backward_are_reported():
    class Wrong(nn.Module):
        def __init__(self):
            super().__init__()
            self.f = nn.Linear(DIM, DIM)

        def forward(self, x):
            return x + self.f(x)

    def silly(out):
        return out["loss"]

    with pytest.raises(addnorm.UserError, match=r"loss: expected a function .* but it raised"):
        addnorm.doctor(Wrong(), vectors(), silly)
    with pytest.raises(
        addnorm.UserError, match=r"loss: expected a scalar tensor, got shape \(2, 7, 24\)"
    ):
        addnorm.doctor(Wrong(), vectors(), lambda out: out)
    with pytest.raises(addnorm.UserError, match="loss: expected a scalar tensor, got float"):
        addnorm.doctor(Wrong(), vectors(), lambda out: 1.0)
    report = addnorm.doctor(Wrong(), vectors(), lambda out: out.detach().mean())
    assert report.notes[0].startswith("gradients: the backward pass failed")


def test_internal_error_is_reported_as_such(monkeypatch):
    def broken(graph, adds):
        raise KeyError("lost")

    monkeypatch.setattr("addnorm.doctor.model_trace.classify", broken)
    with pytest.raises(addnorm.UserError, match=r"analyzing the traced graph \(\d+ operations\)"):
        addnorm.doctor(pre(), ids())


def test_failing_rule_becomes_note(monkeypatch):
    from addnorm.doctor.rules import RULES

    def broken(case):
        raise KeyError("lost")

    monkeypatch.setitem(RULES, "double_norm", broken)
    report = addnorm.doctor(Model(stack(PreBlock)), ids())
    assert [f.rule for f in report.findings] == ["missing_final_norm"]
    assert "the rule double_norm could not be applied: KeyError: 'lost'" in report.notes


class Acting(nn.Module):
    """A block whose forward runs a side effect."""

    def __init__(self, act):
        super().__init__()
        self.norm, self.f, self.act = nn.LayerNorm(DIM), nn.Linear(DIM, DIM), act
        self.register_buffer("seen", torch.ones(1))
        self.own = torch.Generator().manual_seed(3)

    def forward(self, x):
        self.act(self)
        return x + self.f(self.norm(x))


def resized(model):
    model.seen.resize_(2).add_(1)
    model.seen.resize_(1)


def longer(model):
    model.seen.resize_(3).add_(1)


def rebound(model):
    model.norm.weight = nn.Parameter(model.norm.weight.detach() * 2)


def hooked(model):
    model.norm.register_forward_hook(lambda *_: None)


def drawn(model):
    torch.rand(1, generator=model.own)


def remembered(model):
    model.seen_last = torch.ones(2)


def by_numpy(model):
    model.f.weight.detach().numpy()[:] *= 0.9


@pytest.mark.parametrize("act", [resized, longer, rebound, hooked, drawn, remembered, by_numpy])
def test_side_effects_of_forward_are_undone(act):
    torch.manual_seed(0)
    model = Acting(act)
    before = (state(model), set(vars(model)), model.seen.tolist(), model.own.get_state().tolist())
    report = addnorm.doctor(model, vectors())
    after = (state(model), set(vars(model)), model.seen.tolist(), model.own.get_state().tolist())
    assert after == before
    assert not any("not as they were" in note for note in report.notes)


class Counting(nn.Module):
    """A module that resizes its buffer, as the spectral norm of PyTorch does."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(DIM))
        self.register_buffer("size", torch.ones(DIM))
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        self.mean.resize_(x.shape[0]).add_(1)
        return x


def test_module_tested_with_random_inputs_is_restored():
    from addnorm.doctor.trace.opaque_modules import behaves_as_norm

    part, calls = Counting(), []
    part.register_forward_hook(lambda *_: calls.append(1))
    before = state(part)
    assert not behaves_as_norm(part, set())
    assert (state(part), part.calls, calls) == (before, 0, [])


def test_spectral_norm_buffers_are_restored():
    torch.manual_seed(0)
    model = Acting(lambda _: None)
    nn.utils.parametrizations.spectral_norm(model.f)
    before = state(model)
    addnorm.doctor(model, vectors())
    assert state(model) == before


def stepping(model, how):
    """Return a model and a hook that steps as soon as a gradient is accumulated."""
    momentum = {w: torch.optim.SGD([w], lr=0.1, momentum=0.9) for w in model.parameters()}

    def step(weight):
        momentum[weight].step()
        momentum[weight].zero_grad()

    def part(module, *_):
        with torch.no_grad():
            module.weight.mul_(0.5)

    if how == "weight":
        for weight in model.parameters():
            weight.register_post_accumulate_grad_hook(step)
    else:
        model.f.register_full_backward_hook(part)
    return momentum


@pytest.mark.parametrize("how", ["weight", "module"])
def test_optimizer_step_in_backward_hook_is_disabled(how):
    torch.manual_seed(0)
    model = Acting(lambda _: None)
    momentum = stepping(model, how)
    before = state(model)
    report = addnorm.doctor(model, vectors())
    assert state(model) == before
    assert not any(o.state for o in momentum.values())
    assert not any("not as they were" in note for note in report.notes)
    model(vectors()).sum().backward()  # and afterwards it does again
    assert state(model) != before and bool(momentum[model.f.bias].state) is (how == "weight")


def test_model_is_restored_after_guessing_inputs():
    from addnorm.doctor.loading.example_inputs import guess_inputs

    model = Restless()
    before = state(model)
    guess_inputs(model)
    assert state(model) == before


def test_caller_in_inference_mode():
    model = Acting(lambda _: None)
    with torch.inference_mode():
        report = addnorm.doctor(model, vectors())
        made = Acting(lambda _: None)
        with pytest.raises(
            addnorm.UserError, match=r"got seen, created under torch\.inference_mode"
        ):
            made.norm = made.f = nn.Identity()
            addnorm.doctor(made, vectors())
    assert len(report.blocks) == 1 and "gradient_norm" in report.blocks[0].measurements
