"""Models with habits of their own: fused projections, state in buffers, several paths."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import addnorm
from addnorm.norms.rms import RMSNorm
from tests.rewiring.models import DIM, Block, Model, far_from_neutral, fingerprint, ids

HEADS = 2


def difference(original, result, *inputs):
    one, other = (copy.deepcopy(each).double().eval() for each in (original, result))
    with torch.no_grad():
        return float((one(*inputs) - other(*inputs)).abs().max())


class FusedAttention(nn.Module):
    """Attention of timm: one matrix for queries, keys and values, norms of queries and keys."""

    def __init__(self, qk_norm):
        super().__init__()
        self.norm, self.qkv, self.proj = (
            nn.LayerNorm(DIM),
            nn.Linear(DIM, 3 * DIM),
            nn.Linear(DIM, DIM),
        )
        make = nn.LayerNorm if qk_norm else nn.Identity
        self.q_norm, self.k_norm = make(DIM // HEADS), make(DIM // HEADS)

    def forward(self, x):
        batch, length, dim = x.shape
        qkv = self.qkv(self.norm(x)).reshape(batch, length, 3, HEADS, dim // HEADS)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        y = F.scaled_dot_product_attention(self.q_norm(q), self.k_norm(k), v, is_causal=True)
        return x + self.proj(y.transpose(1, 2).reshape(x.shape))


def test_fused_projection_is_exact():
    model = far_from_neutral(Model([FusedAttention(qk_norm=False), Block()], tied=True)).double()
    result, report = addnorm.rewire(model, norm="rms", example_inputs=ids())
    assert report.grade == "exact"
    assert difference(model, result, ids(3, 11, seed=5)) < 1e-11


def test_values_of_a_fused_projection_are_not_centered():
    """Centering the fused matrix for the norms of queries and keys would change the values."""
    model = far_from_neutral(Model([FusedAttention(qk_norm=True), Block()]))
    _, report = addnorm.rewire(model, norm="rms", calibrate=ids(4, 12))
    grades = {change.site: change.grade for change in report.changes}
    assert grades.pop("blocks.0.q_norm") == grades.pop("blocks.0.k_norm") == "fitted"
    assert set(grades.values()) == {"exact"}
    text = next(c.text for c in report.changes if c.site == "blocks.0.q_norm")
    assert "splits off a part of it that no norm reads" in text
    assert report.loss_after < report.loss_naive


class Counting(Model):
    """Changes itself in every forward pass, in evaluation mode too."""

    def __init__(self):
        super().__init__()
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))
        self.last_shape = None

    def forward(self, tokens):
        self.calls += 1
        self.last_shape = tokens.shape
        return super().forward(tokens)


def test_a_model_that_changes_itself_is_untouched():
    model = far_from_neutral(Counting())
    before, state = fingerprint(model), torch.get_rng_state()
    for norm in ("rms", "dyt"):
        addnorm.rewire(model, norm=norm, calibrate=ids())
    assert fingerprint(model) == before
    assert (int(model.calls), model.last_shape) == (0, None)
    assert torch.equal(torch.get_rng_state(), state)


def test_another_path_for_long_inputs_is_not_exact():
    """The given batch shows nothing of it; the varied inputs do."""

    class TwoPaths(Model):
        def forward(self, tokens):
            x = self.stream(tokens)
            y = self.head(self.last(x))
            return y + x.mean() if tokens.shape[1] > 7 else y

    model = far_from_neutral(TwoPaths())
    _, report = addnorm.rewire(model, norm="rms", calibrate=ids(2, 7))
    assert report.grade == "fitted"
    assert "outputs differ on varied inputs" in report.changes[0].text
    with pytest.raises(addnorm.UserError, match="require: expected a change that is exact"):
        addnorm.rewire(model, norm="rms", calibrate=ids(2, 7), require="exact")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_reported(dtype):
    model = far_from_neutral(Model()).to(dtype)
    result, report = addnorm.rewire(model, norm="rms", calibrate=ids())
    assert {each.dtype for each in result.parameters()} == {dtype}
    assert report.max_error < 1e-10 < report.rounding_error
    name = str(dtype).removeprefix("torch.")
    assert f"largest difference in {name}: {report.rounding_error:.2g}" in str(report)


def test_a_model_that_cannot_be_copied():
    model = Model()
    model.cache = model.head.weight * 2  # not a leaf of the graph
    with pytest.raises(addnorm.UserError, match=r"one that copy\.deepcopy can copy") as info:
        addnorm.rewire(model, norm="rms", calibrate=ids())
    assert "\n" not in str(info.value)


def test_data_loaders():
    model = far_from_neutral(Model())
    data = TensorDataset(ids(8, 7))
    _, report = addnorm.rewire(model, norm="rms", calibrate=DataLoader(data, batch_size=4))
    assert report.grade == "exact"
    labelled = DataLoader(TensorDataset(ids(8, 7), ids(8, 7)), batch_size=4)
    with pytest.raises(addnorm.UserError, match="leave labels out of a tuple"):
        addnorm.rewire(model, norm="rms", calibrate=labelled)


def test_norms_in_containers():
    class Routed(Block):
        def __init__(self):
            super().__init__(nn.ModuleDict({"pre": nn.Sequential(nn.LayerNorm(DIM, bias=False))}))

        def normalize(self, x):
            return self.norm["pre"](x)

    model = far_from_neutral(Model([Routed(), Block(nn.LayerNorm(DIM, elementwise_affine=False))]))
    result, report = addnorm.rewire(model.double(), norm="rms", example_inputs=ids())
    assert report.grade == "exact"
    assert isinstance(result.blocks[0].norm["pre"][0], RMSNorm)
    assert difference(model, result, ids(3, 9, seed=4)) < 1e-10
