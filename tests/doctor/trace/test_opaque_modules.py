"""Norms that are recognized by their behavior."""

import torch
from torch import nn

import addnorm
from tests.doctor.models.tiny import DIM, LENGTH, Model, PreBlock, ids, stack


class OwnBatchNorm(nn.Module):
    """Handwritten batch norm with running statistics."""

    def __init__(self, dim):
        super().__init__()
        self.gain, self.bias = nn.Parameter(torch.ones(dim)), nn.Parameter(torch.zeros(dim))
        self.register_buffer("mean", torch.zeros(dim))
        self.register_buffer("square", torch.ones(dim))

    def forward(self, x):
        mean, square = self.mean, self.square
        if self.training:
            mean, square = x.mean((0, 1)), x.var((0, 1), correction=0)
            self.mean.lerp_(mean.detach(), 0.1)
            self.square.lerp_(square.detach(), 0.1)
        return (x - mean) / torch.sqrt(square + 1e-5) * self.gain + self.bias


def test_handwritten_batch_norm_runs_in_train_mode():
    torch.manual_seed(0)
    model = Model(stack(PreBlock, norm=OwnBatchNorm), OwnBatchNorm(DIM))
    kept = [b.clone() for b in model.buffers()]
    report = addnorm.doctor(model, ids())
    assert {(b.wiring, b.norm) for b in report.blocks} == {("pre_ln", "batch")}
    assert [n.place for n in report.norms] == ["entry"] * 6 + ["final"]
    assert report.findings == ()
    assert all(torch.equal(a, b) for a, b in zip(kept, model.buffers(), strict=True))


def test_batch_norm_over_positions_has_its_own_message():
    torch.manual_seed(0)
    norm = lambda d: nn.BatchNorm1d(LENGTH)  # noqa: E731
    report = addnorm.doctor(Model(stack(PreBlock, norm=norm), nn.LayerNorm(DIM)), ids())
    assert {f.rule for f in report.findings} == {"wrong_axis"}
    words = "statistics over the examples of the batch and the features, with one mean per position"
    assert all(words in f.message for f in report.findings)
    (note,) = [n for n in report.notes if "batch" in n]
    assert note.startswith(
        "leaks between examples in train mode: the batch norms at 'blocks.0.one'"
    )
