"""Where the doctor works, and that it leaves no trace."""

import dataclasses
import hashlib
import random
import warnings

import numpy
import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import addnorm
from addnorm.doctor.visit import visiting
from tests.doctor.small import (
    DEPTH,
    DIM,
    LENGTH,
    FeedForward,
    HandNorm,
    Model,
    PostBlock,
    PreBlock,
    ids,
    stack,
    vectors,
)


def wirings(model, example=None, **options):
    report = addnorm.doctor(model, ids() if example is None else example, **options)
    return [block.wiring for block in report.blocks]


def pre():
    torch.manual_seed(0)
    return Model(stack(PreBlock), nn.LayerNorm(DIM))


RIGHT = ["pre_ln"] * 2 * DEPTH


def state(model):
    """Everything a visit could leave changed, as one checksum."""
    digest = hashlib.sha256()
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        digest.update(name.encode() + tensor.detach().float().numpy().tobytes())
    for weight in model.parameters():
        digest.update(repr((weight.requires_grad, weight.grad)).encode())
    for module in model.modules():
        hooks = [len(v) for k, v in vars(module).items() if "hooks" in k and hasattr(v, "__len__")]
        digest.update(repr((module.training, hooks)).encode())
    digest.update(torch.get_rng_state().numpy().tobytes())
    digest.update(repr((random.getstate(), numpy.random.get_state()[1].tobytes())).encode())
    hooks = torch.nn.modules.module
    digest.update(
        repr((len(hooks._global_forward_hooks), len(hooks._global_forward_pre_hooks))).encode()
    )
    return digest.hexdigest()


class Restless(nn.Module):
    """Writes to buffers and weights, draws numbers, drops."""

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
def test_a_visit_leaves_no_trace(training):
    torch.manual_seed(0)
    model = Restless().train(training)
    model.body[0].weight.requires_grad_(False)
    model.out.weight.grad = torch.ones(DIM, DIM)
    model.out.register_forward_hook(lambda *_: None)
    before = state(model)
    addnorm.doctor(model, torch.randn(6, DIM, generator=torch.Generator().manual_seed(0)))
    assert state(model) == before


def test_a_visit_that_fails_half_way_leaves_no_trace():
    model = Restless(fails=True)
    before = state(model)
    x = torch.randn(6, DIM, generator=torch.Generator().manual_seed(0))
    with pytest.raises(
        addnorm.UserError, match="could not be run on these inputs: RuntimeError: half"
    ):
        addnorm.doctor(model, x)
    assert state(model) == before


def test_a_loss_that_fails_leaves_no_trace():
    model = pre()
    before = state(model)

    def loss(out):
        raise KeyError("no such thing")

    with pytest.raises(addnorm.UserError, match="KeyError"):
        addnorm.doctor(model, ids(), loss)
    assert state(model) == before


def test_the_loss_of_the_caller_is_differentiated():
    model = pre()
    one = addnorm.doctor(model, ids(), lambda out: out.square().mean(), rules=())
    ten = addnorm.doctor(model, ids(), lambda out: 10 * out.square().mean(), rules=())
    for a, b in zip(one.blocks, ten.blocks, strict=True):
        assert b.gradient_norm == pytest.approx(10 * a.gradient_norm, rel=1e-4)


def test_gradients_and_variances_are_those_of_plain_autograd():
    model = pre()
    kept = []
    hooks = [b.register_forward_hook(lambda m, a, out: (out.retain_grad(), kept.append(out))[1])
             for b in model.blocks]  # fmt: skip
    model.eval()
    model(ids()).square().mean().backward()
    for hook in hooks:
        hook.remove()
    wanted = [(out.var(-1, correction=0).mean().item(), out.grad.norm().item()) for out in kept]
    model.zero_grad()
    report = addnorm.doctor(model, ids(), lambda out: out.square().mean(), rules=())
    got = [(b.stream_variance, b.gradient_norm) for b in report.blocks[1::2]]
    torch.testing.assert_close(torch.tensor(got), torch.tensor(wanted))


def test_bfloat16_and_autocast():
    assert wirings(pre().bfloat16()) == RIGHT
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert wirings(pre()) == RIGHT


def test_tied_weights():
    model = pre()
    model.head.weight = model.table.weight
    assert wirings(model) == RIGHT


def test_a_wrapped_model():
    assert wirings(nn.DataParallel(pre())) == RIGHT


@pytest.mark.slow
def test_a_compiled_model_is_visited_as_it_was_written():
    assert wirings(torch.compile(pre())) == RIGHT
    inside = pre()
    inside.blocks[1] = torch.compile(inside.blocks[1])
    assert wirings(inside) == RIGHT


@pytest.mark.parametrize("reentrant", [True, False])
def test_activation_checkpointing(reentrant):
    class Thrifty(PreBlock):
        def forward(self, x, mask=None):
            return checkpoint(super().forward, x, use_reentrant=reentrant)

    torch.manual_seed(0)
    model = Model(stack(Thrifty), nn.LayerNorm(DIM))
    report = addnorm.doctor(model, ids())
    assert [block.wiring for block in report.blocks] == RIGHT
    assert report.findings == ()
    if reentrant:
        assert "gradient" in report.notes[0]
    else:
        assert all("gradient_norm" in block.measurements for block in report.blocks)


def test_a_model_that_runs_only_in_train_mode():
    class Stubborn(Model):
        def forward(self, tokens):
            if not self.training:
                raise RuntimeError("train only")
            return super().forward(tokens)

    torch.manual_seed(0)
    model = Stubborn(stack(PreBlock), nn.LayerNorm(DIM), after=nn.Dropout(0.5)).eval()
    assert wirings(model) == RIGHT
    assert not model.training


def test_frozen_models_are_seen_too():
    model = pre().requires_grad_(False)
    report = addnorm.doctor(model, ids())
    assert [block.wiring for block in report.blocks] == RIGHT
    assert report.findings == ()
    assert not any(weight.requires_grad for weight in model.parameters())


@dataclasses.dataclass
class Output:
    hidden: torch.Tensor
    extra: dict


@pytest.mark.parametrize(
    "wrap",
    [
        lambda y: {"y": y},
        lambda y: (y, None),
        lambda y: [y, {"z": (y,)}],
        lambda y: Output(y, {"y": y}),
    ],
)
def test_outputs_of_any_shape(wrap):
    class Wrapped(Model):
        def forward(self, tokens):
            return wrap(super().forward(tokens))

    torch.manual_seed(0)
    report = addnorm.doctor(Wrapped(stack(PreBlock), nn.LayerNorm(DIM)), ids())
    assert [block.wiring for block in report.blocks] == RIGHT
    assert report.findings == ()
    assert all("gradient_norm" in block.measurements for block in report.blocks)


def test_inputs_as_tensor_tuple_or_dict():
    for example in (ids(), (ids(),), [ids()], {"tokens": ids()}):
        assert wirings(pre(), example) == RIGHT
    with pytest.raises(addnorm.UserError, match="got example inputs of type str; wanted a tensor"):
        addnorm.doctor(pre(), "ids")
    with pytest.raises(addnorm.UserError, match=r"got str; wanted a torch\.nn\.Module"):
        addnorm.doctor("model", ids())


def test_in_place_and_fused_adds():
    class Spelt(nn.Module):
        def __init__(self, way):
            super().__init__()
            self.norm, self.f, self.way = nn.LayerNorm(DIM), FeedForward(), way

        def forward(self, x):
            h = self.f(self.norm(x))
            if self.way == "+=":
                h += x
                return h
            if self.way == "add_":
                return h.add_(x)
            if self.way == "onto the stream":
                x = x.clone()
                x += h
                return x
            if self.way == "slice":
                out = x.clone()
                out[:] = x + h
                return out
            if self.way == "stack and sum":
                return torch.stack([x, h]).sum(0)
            if self.way == "addcmul":
                return torch.addcmul(x, h, torch.ones(()))
            if self.way == "sum of a list":
                return sum([x, h])
            return torch.add(h, x)

    for way in (
        "+=",
        "add_",
        "onto the stream",
        "slice",
        "sum of a list",
        "stack and sum",
        "torch.add",
    ):
        model = nn.Sequential(
            nn.Linear(DIM, DIM), *[Spelt(way) for _ in range(3)], nn.LayerNorm(DIM)
        )
        assert wirings(model, vectors()) == ["pre_ln"] * 3, way


def test_a_model_without_residuals_says_so():
    report = addnorm.doctor(nn.Sequential(nn.Linear(DIM, 5), nn.ReLU(), nn.Linear(5, 2)), vectors())
    assert report.blocks == () and report.stacks == () and report.arrangement is None


def test_a_recurrent_cell_written_out_is_no_residual():
    class Cell(nn.Module):
        def __init__(self):
            super().__init__()
            self.x, self.h = nn.Linear(DIM, 4 * DIM), nn.Linear(DIM, 4 * DIM)

        def forward(self, x):
            h = c = torch.zeros(x.shape[0], DIM)
            for t in range(x.shape[1]):
                i, f, g, o = (self.x(x[:, t]) + self.h(h)).chunk(4, -1)
                c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
                h = torch.sigmoid(o) * torch.tanh(c)
            return h

    assert wirings(Cell(), vectors()) == []


def test_kinds_of_branches():
    torch.manual_seed(0)
    report = addnorm.doctor(Model(stack(PostBlock, norm=HandNorm)), ids(), rules=())
    assert [b.kind for b in report.blocks] == ["self-attention", "feed-forward"] * DEPTH
    assert report.blocks[2].path == "blocks.1"
    assert report.blocks[2].branch == "blocks.1.attention"


def test_no_global_hook_stays_behind():
    """torch's own handle leaves an entry, after which every torch.compile warns."""
    from torch.nn.modules import module

    names = [name for name in dir(module) if name.startswith("_global") and "hooks" in name]
    model = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4))
    addnorm.doctor(model, torch.randn(2, 3, 4))
    assert [name for name in names if getattr(module, name)] == []


class Looked(nn.Module):
    """A table whose rows are shortened when they are looked up."""

    def __init__(self, table):
        super().__init__()
        self.table, self.f, self.norm = table, FeedForward(), nn.LayerNorm(DIM)

    def forward(self, tokens):
        x = self.table(tokens)
        return self.norm(x + self.f(x))


def test_rows_that_a_lookup_shortens_are_given_back():
    torch.manual_seed(0)
    model = Looked(nn.Embedding(40, DIM, max_norm=0.1))
    before = state(model)
    addnorm.doctor(model, ids())
    assert state(model) == before


def test_weights_that_are_views_of_one_buffer_are_given_back():
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


def test_a_scripted_part_leaves_no_trace():
    model = scripted()
    before = state(model)
    addnorm.doctor(model, vectors())
    assert state(model) == before


def test_everything_is_given_back_even_if_something_cannot_be(monkeypatch):
    from addnorm.doctor.guard import Guard

    def broken(self):
        raise AttributeError("cannot")

    model = pre()
    model.table.weight.requires_grad_(False)
    model.head.weight.grad = torch.ones_like(model.head.weight)
    model.train()
    monkeypatch.setattr(Guard, "restore", broken)
    with pytest.raises(AttributeError, match="cannot"):
        addnorm.doctor(model, ids())
    assert model.training and not model.table.weight.requires_grad
    assert model.head.weight.grad is not None and model.head.weight.requires_grad


def test_a_lazy_module_is_refused():
    with pytest.raises(addnorm.UserError, match=r"0\.weight has no shape yet, as a lazy module"):
        addnorm.doctor(nn.Sequential(nn.LazyLinear(3)), vectors())


def test_inputs_are_left_as_they_were():
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


def test_what_fails_is_named():
    class Wrong(nn.Module):
        def __init__(self):
            super().__init__()
            self.f = nn.Linear(DIM, DIM)

        def forward(self, x):
            return x + self.f(x)

    def silly(out):
        return out["loss"]

    with pytest.raises(addnorm.UserError, match="the loss could not be computed of what the model"):
        addnorm.doctor(Wrong(), vectors(), silly)
    with pytest.raises(addnorm.UserError, match=r"the loss returned shape \(2, 7, 24\); wanted"):
        addnorm.doctor(Wrong(), vectors(), lambda out: out)
    with pytest.raises(addnorm.UserError, match="the loss returned float; wanted a scalar"):
        addnorm.doctor(Wrong(), vectors(), lambda out: 1.0)
    report = addnorm.doctor(Wrong(), vectors(), lambda out: out.detach().mean())
    assert report.notes[0].startswith("the backward pass failed, no gradients were measured")


def test_a_graph_that_cannot_be_read_is_no_fault_of_the_inputs(monkeypatch):
    def broken(graph, joins):
        raise KeyError("lost")

    monkeypatch.setattr("addnorm.doctor.visit.classify", broken)
    with pytest.raises(addnorm.UserError, match=r"the model ran, but its graph of \d+ operations"):
        addnorm.doctor(pre(), ids())


def test_a_rule_that_fails_costs_only_itself(monkeypatch):
    from addnorm.doctor.rules import RULES

    def broken(case):
        raise KeyError("lost")

    monkeypatch.setitem(RULES, "double_norm", broken)
    report = addnorm.doctor(Model(stack(PreBlock)), ids())
    assert [f.rule for f in report.findings] == ["missing_final_norm"]
    assert "the rule double_norm could not be applied: KeyError: 'lost'" in report.notes


def test_a_wrapped_model_keeps_its_name():
    assert addnorm.doctor(nn.DataParallel(pre()), ids()).model == "Model"


def test_gradients_of_several_checkpoints_add_up():
    class Twice(nn.Module):
        def __init__(self, thrifty):
            super().__init__()
            self.f, self.thrifty = nn.Linear(DIM, DIM), thrifty

        def forward(self, x):
            for _ in range(3):
                x = checkpoint(self.once, x, use_reentrant=True) if self.thrifty else self.once(x)
            return x

        def once(self, x):
            return x + torch.relu(self.f(x))

    found = []
    for thrifty in (False, True):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(DIM, DIM), Twice(thrifty))
        with visiting(model, vectors(), lambda out: out.square().sum()) as visit:
            found.append(visit.weight_gradients)
    assert found[1] == pytest.approx(found[0], rel=1e-4)
