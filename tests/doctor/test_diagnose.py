"""Arguments of `addnorm.doctor`: invalid values raise one-line errors; notes explain gaps."""

import pytest
import torch
from torch import nn

import addnorm
from tests.doctor.models.tiny import ids
from tests.doctor.state_checksum import pre


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"rules": "inert_norm"},
            r"rules: expected a list of rule ids, got 'inert_norm'; pass \['inert_norm'\]",
        ),
        ({"rules": ["inert"]}, "unknown rule 'inert'; did you mean 'inert_norm'"),
        ({"rules": [3]}, "unknown rule '3'"),
        ({"loss": "mse"}, "loss: expected a function of the model's output, got 'mse'"),
        ({"optimizer": 5}, "optimizer: expected a torch.optim.Optimizer, got 5"),
        ({"config": {"depth": 2}}, "expected both or neither, got config only; pass build as well"),
        ({"build": pre}, "expected both or neither, got build only; pass config as well"),
    ],
)
def test_invalid_argument_raises_one_line_error(arguments, message):
    with pytest.raises(addnorm.UserError, match=message) as caught:
        addnorm.doctor(pre(), ids(), **arguments)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("shape", [(0, 7), (2, 0)])
def test_empty_input_raises(shape):
    with pytest.raises(
        addnorm.UserError, match=r"input 0: expected at least one example .* shape \(\d, \d\)"
    ):
        addnorm.doctor(pre(), torch.zeros(shape, dtype=torch.int64))


def test_rules_and_optimizer_arguments_are_used():
    model = pre()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, weight_decay=0.1)
    findings = addnorm.doctor(model, ids(), optimizer=optimizer, rules=("decayed_gain",)).findings
    assert [f.rule for f in findings] == ["decayed_gain"]
    assert addnorm.doctor(model, ids(), rules=()).findings == ()


class Mapped(nn.Module):
    def __init__(self):
        super().__init__()
        self.f = nn.Linear(4, 4)

    def forward(self, x):
        return torch.vmap(lambda one: one + self.f(one))(x)


def test_notes_distinguish_untraceable_operations_from_missing_ones():
    notes = " ".join(addnorm.doctor(Mapped(), torch.randn(2, 3, 4)).notes)
    assert "from 'f' on, could not be traced back to the inputs, as inside torch.vmap" in notes
    notes = " ".join(addnorm.doctor(nn.ReLU(), torch.randn(2, 3, 4)).notes)
    assert "no operation mixes features or tokens of the inputs" in notes


class Add(nn.Module):
    """x + f(x), with a dense, sparse or mixed output."""

    def __init__(self, out="dense"):
        super().__init__()
        self.f, self.out = nn.Linear(8, 8), out

    def forward(self, x, edges=None):
        y = x + self.f(x if edges is None else torch.sparse.mm(edges, x))
        if self.out == "dense":
            return y
        return y.to_sparse() if self.out == "sparse" else {"y": y, "edges": y.to_sparse()}


@pytest.mark.parametrize("shape", [(3, 8), (2, 3, 8)])
@pytest.mark.parametrize("out", ["sparse", "mixed"])
def test_sparse_output_is_analyzed(out, shape):
    report = addnorm.doctor(Add(out), torch.randn(shape))
    assert [block.kind for block in report.blocks] == ["feed-forward"]
    assert report.blocks[0].gradient_norm > 0
    assert report.findings == () and not any("could not be applied" in n for n in report.notes)


@pytest.mark.parametrize("layout", [torch.sparse_coo, torch.sparse_csr])
@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support")
def test_sparse_input_is_left_as_it_is(layout):
    edges = torch.eye(5).to_sparse(layout=layout)
    report = addnorm.doctor(Add(), (torch.randn(5, 8), edges))
    assert [block.kind for block in report.blocks] == ["feed-forward"]
    assert not any("could not be applied" in n for n in report.notes)
    assert edges.layout == layout and torch.equal(edges.to_dense(), torch.eye(5))


def test_tensors_without_values_are_rejected():
    with torch.device("meta"):
        empty = nn.Sequential(Add(), Add())
    for model, example, message in [
        (Add(), torch.randn(2, 8, device="meta"), "input 0: expected a tensor with values"),
        (Add(), {"x": torch.randn(2, 8, device="meta")}, "input x: expected a tensor with values"),
        (empty, torch.randn(2, 8), "got 4 on the meta device, the first '0.f.weight'"),
        (nn.Sequential(Add(), empty[0]), torch.randn(2, 8), "got 2 on the meta device"),
    ]:
        with pytest.raises(addnorm.UserError, match=message) as caught:
            addnorm.doctor(model, example)
        assert "\n" not in str(caught.value)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_nested_input_is_rejected():
    nested = torch.nested.nested_tensor([torch.randn(2, 8), torch.randn(3, 8)])
    with pytest.raises(addnorm.UserError, match="input 0: expected a tensor with a shape"):
        addnorm.doctor(Add(), nested)
