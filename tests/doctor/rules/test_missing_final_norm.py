"""Final norms of encoder streams that a decoder or a head reads."""

import pytest
import torch
from torch import nn

from tests.doctor.models.tiny import DIM, VOCAB, PreBlock, findings, ids, stack


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


class Pair(nn.Module):
    """Pre-LN encoder, and decoders that attend to it."""

    def __init__(self, final, readers=1, more=""):
        super().__init__()
        self.table, self.head = nn.Embedding(VOCAB, DIM), nn.Linear(DIM, VOCAB)
        self.encoder = nn.ModuleList(stack(PreBlock))
        self.final, self.more, self.own = final, more, nn.Linear(DIM, 5)
        self.decoders = nn.ModuleList(self.decoder() for _ in range(readers))
        self.last = nn.LayerNorm(DIM)

    def decoder(self):
        options = {"norm_first": True, "batch_first": True}
        layer = nn.TransformerDecoderLayer(DIM, 3, 2 * DIM, **options)
        return layer

    def forward(self, source, target):
        x, y = self.table(source), self.table(target)
        for block in self.encoder:
            x = block(x)
        memory = x if self.final is None or self.more == "normed for the head" else self.final(x)
        for decoder in self.decoders:
            y = decoder(y, memory)
        y = self.head(self.last(y))
        return (y, self.own(self.final(x) if self.final else x)) if self.more else y


def reported_rules(model):
    found = findings(model, (ids(), ids()[:, :5]))
    assert {f.rule for f in found} <= {"missing_final_norm"}
    return [(f.path, f.evidence["read by"]) for f in found]


@pytest.mark.parametrize("readers", [1, 2])
def test_memory_without_final_norm_is_found(readers):
    names = [f"decoders.{i}.multihead_attn" for i in range(readers)]
    assert reported_rules(Pair(None, readers)) == [("encoder.2", names)]
    assert reported_rules(Pair(nn.LayerNorm(DIM), readers)) == []


def test_memory_normalized_for_another_head_only_is_found():
    assert reported_rules(Pair(nn.LayerNorm(DIM), more="all normed")) == []
    names = ["decoders.0.multihead_attn"]
    assert reported_rules(Pair(nn.LayerNorm(DIM), more="normed for the head")) == [
        ("encoder.2", names)
    ]
    assert reported_rules(Pair(None, more="raw")) == [("encoder.2", [*names, "own"])]


def test_memory_normalized_by_its_reader_is_not_reported():
    class Careful(Pair):
        def decoder(self):
            layer = super().decoder()
            layer.memory_norm = nn.LayerNorm(DIM)
            layer.register_forward_pre_hook(lambda m, args: (args[0], m.memory_norm(args[1])))
            return layer

    assert reported_rules(Careful(None, 2)) == []
