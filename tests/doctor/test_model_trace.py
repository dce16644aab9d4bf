"""Models, inputs, outputs and modes that the doctor supports."""

import dataclasses

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import addnorm
from addnorm.core.errors import UserError
from addnorm.doctor.model_trace import trace_model
from tests.doctor.models.tiny import (
    DEPTH,
    DIM,
    FeedForward,
    HandNorm,
    Model,
    PostBlock,
    PreBlock,
    ids,
    stack,
    vectors,
)
from tests.doctor.state_checksum import pre


def wirings(model, example=None, **options):
    report = addnorm.doctor(model, ids() if example is None else example, **options)
    return [block.wiring for block in report.blocks]


RIGHT = ["pre_ln"] * 2 * DEPTH


def test_loss_argument_is_differentiated():
    model = pre()
    one = addnorm.doctor(model, ids(), lambda out: out.square().mean(), rules=())
    ten = addnorm.doctor(model, ids(), lambda out: 10 * out.square().mean(), rules=())
    for a, b in zip(one.blocks, ten.blocks, strict=True):
        assert b.gradient_norm == pytest.approx(10 * a.gradient_norm, rel=1e-4)


def test_gradients_and_variances_equal_autograd():
    model = pre()
    kept = []
    hooks = [b.register_forward_hook(lambda m, a, out: (out.retain_grad(), kept.append(out))[1])
             for b in model.blocks]  # fmt: skip
    model.eval()
    model(ids()).square().mean().backward()
    for hook in hooks:
        hook.remove()
    expected = [(out.var(-1, correction=0).mean().item(), out.grad.norm().item()) for out in kept]
    model.zero_grad()
    report = addnorm.doctor(model, ids(), lambda out: out.square().mean(), rules=())
    got = [(b.stream_variance, b.gradient_norm) for b in report.blocks[1::2]]
    torch.testing.assert_close(torch.tensor(got), torch.tensor(expected))


def test_bfloat16_and_autocast():
    assert wirings(pre().bfloat16()) == RIGHT
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert wirings(pre()) == RIGHT


@pytest.mark.filterwarnings("ignore")
def test_quantized_linear():
    quantized = torch.ao.quantization.quantize_dynamic(pre().eval(), {nn.Linear}, torch.qint8)
    report = addnorm.doctor(quantized, ids(), rules=())
    assert [b.wiring for b in report.blocks] == RIGHT
    assert [b.kind for b in report.blocks] == ["self-attention", "feed-forward"] * DEPTH


def test_tied_weights():
    model = pre()
    model.head.weight = model.table.weight
    assert wirings(model) == RIGHT


def test_wrapped_model():
    assert wirings(nn.DataParallel(pre())) == RIGHT


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*script_method:DeprecationWarning")  # torch's own compiler
def test_compiled_model_runs_eagerly():
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


def test_model_that_runs_in_train_mode_only():
    class Stubborn(Model):
        def forward(self, tokens):
            if not self.training:
                raise RuntimeError("train only")
            return super().forward(tokens)

    torch.manual_seed(0)
    model = Stubborn(stack(PreBlock), nn.LayerNorm(DIM), after=nn.Dropout(0.5)).eval()
    assert wirings(model) == RIGHT
    assert not model.training


def test_frozen_model():
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
    with pytest.raises(addnorm.UserError, match=r"example_inputs: expected a tensor, .* got str"):
        addnorm.doctor(pre(), "ids")
    with pytest.raises(addnorm.UserError, match=r"model: expected a torch\.nn\.Module, got str"):
        addnorm.doctor("model", ids())


def test_in_place_and_fused_adds():
    class Added(nn.Module):
        def __init__(self, way):
            super().__init__()
            self.norm, self.f, self.way = nn.LayerNorm(DIM), FeedForward(), way
            self.last = nn.Parameter(torch.randn(DIM, DIM) / DIM)

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
            if self.way == "addmm":
                return torch.addmm(x.flatten(0, 1), h.flatten(0, 1), self.last).view_as(x)
            if self.way == "baddbmm":
                return torch.baddbmm(x, h, self.last.expand(len(x), -1, -1))
            if self.way == "sum of a list":
                return sum([x, h])
            return torch.add(h, x)

    for way in (
        "+=", "add_", "onto the stream", "slice", "sum of a list", "stack and sum", "addcmul",
        "addmm", "baddbmm", "torch.add",
    ):  # fmt: skip
        model = nn.Sequential(
            nn.Linear(DIM, DIM), *[Added(way) for _ in range(3)], nn.LayerNorm(DIM)
        )
        assert wirings(model, vectors()) == ["pre_ln"] * 3, way


def test_model_without_residuals():
    report = addnorm.doctor(nn.Sequential(nn.Linear(DIM, 5), nn.ReLU(), nn.Linear(5, 2)), vectors())
    assert report.blocks == () and report.stacks == () and report.arrangement is None


def test_handwritten_recurrent_cell_is_not_residual():
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


def test_global_hooks_are_removed():
    """The hook handle of PyTorch leaves an entry, after which torch.compile warns."""
    from torch.nn.modules import module

    names = [name for name in dir(module) if name.startswith("_global") and "hooks" in name]
    model = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4))
    addnorm.doctor(model, torch.randn(2, 3, 4))
    assert [name for name in names if getattr(module, name)] == []


def test_wrapped_model_keeps_its_name():
    assert addnorm.doctor(nn.DataParallel(pre()), ids()).model == "Model"


def test_gradients_of_several_checkpoints_accumulate():
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
        with trace_model(model, vectors(), lambda out: out.square().sum()) as trace:
            found.append(trace.gradients.weights)
    assert found[1] == pytest.approx(found[0], rel=1e-4)


@pytest.mark.parametrize("cross", [False, True])
@pytest.mark.parametrize("weights", [False, True])
def test_attention_that_returns_weights_belongs_to_its_block(cross, weights):
    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention = nn.MultiheadAttention(DIM, 3, batch_first=True)
            self.norm, self.final = nn.LayerNorm(DIM), nn.LayerNorm(DIM)

        def forward(self, x, memory):
            h = self.norm(x)
            read = memory if cross else h
            return self.final(x + self.attention(h, read, read, need_weights=weights)[0])

    report = addnorm.doctor(Attention(), (vectors(), vectors()[:, :5] * 2))
    assert [b.kind for b in report.blocks] == ["cross-attention" if cross else "self-attention"]
    assert report.notes == ()


class OtherOutput(nn.Module):
    """A Pre-LN block whose output is not of an ordinary type."""

    def __init__(self, convert):
        super().__init__()
        self.linear, self.norm, self.convert = nn.Linear(8, 8), nn.LayerNorm(8), convert

    def forward(self, x):
        return self.convert(x + self.linear(self.norm(x)))


@pytest.mark.parametrize(
    ("convert", "note"),
    [
        (lambda y: None, "gradients: the model returned no tensor"),
        (lambda y: y.argmax(-1), "gradients: outputs of type torch.int64 have none"),
        (lambda y: y.detach(), "gradients: no output depends on a weight"),
    ],
    ids=["None", "integers", "detached"],
)
def test_note_says_why_there_is_no_gradient(convert, note):
    assert note in addnorm.doctor(OtherOutput(convert), torch.randn(2, 3, 8)).notes


def test_complex_output_has_gradients():
    model = OtherOutput(lambda y: torch.view_as_complex(y.unflatten(-1, (4, 2))))
    report = addnorm.doctor(model, torch.randn(2, 3, 8))
    assert not [note for note in report.notes if note.startswith("gradients")]


@pytest.mark.parametrize("convert", [lambda y: y.to("meta"), lambda y: (y, y.to("meta"))])
def test_output_on_the_meta_device_is_one_line(convert):
    with pytest.raises(UserError, match="expected outputs with values, got one on the meta device"):
        addnorm.doctor(OtherOutput(convert), torch.randn(2, 3, 8))
