"""Hyper-connections with the axis of the streams in every position and several notations."""

import torch
from torch import nn

from tests.doctor.models.tiny import DIM, VOCAB, Attention, FeedForward

STREAMS, DEPTH = 4, 2
LAYOUTS = ("bntd", "btnd", "btdn", "nbtd", "tbnd", "tnbd", "bdtn", "bndt", "ntbd")
WAYS = ("einsum", "tensordot", "matmul", "loop", "list", "sum")


class Hyper(nn.Module):
    """H = Ar H + B f(norm(Am H)), with the axes of H in the order of `layout`."""

    def __init__(self, layout, way, *, streams=STREAMS, keep=False, last="sum"):
        super().__init__()
        self.layout, self.way, self.keep, self.last, self.n = layout, way, keep, last, streams
        self.table = nn.Embedding(VOCAB, DIM)
        self.subs = nn.ModuleList(m for _ in range(DEPTH) for m in (Attention(), FeedForward()))
        self.norms = nn.ModuleList(nn.LayerNorm(DIM) for _ in self.subs)
        count = len(self.subs)
        self.read = nn.Parameter(torch.rand(count, streams))
        self.mix = nn.Parameter(torch.rand(count, streams, streams))
        self.write = nn.Parameter(torch.rand(count, streams))
        self.out = nn.Parameter(torch.rand(streams))
        self.final, self.head = nn.LayerNorm(DIM), nn.Linear(DIM, VOCAB)

    def forward(self, tokens):
        x = self.table(tokens)
        axis, rest = self.layout.index("n"), self.layout.replace("n", "")
        x = x.permute(*("btd".index(a) for a in rest))
        streams = [x] * self.n if self.way == "list" else self.opened(x, axis)
        for i, f in enumerate(self.subs):
            h = self.reads(streams, self.read[i], axis)
            y = h.permute(*(rest.index(a) for a in "btd"))
            y = f(self.norms[i](y)).permute(*("btd".index(a) for a in rest))
            streams = self.writes(streams, self.mix[i], self.write[i], y, axis)
        x = self.reads(streams, self.out, axis)
        if self.last == "sum":
            x = sum(streams) if self.way == "list" else streams.sum(axis)
        return self.head(self.final(x.permute(*(rest.index(a) for a in "btd"))))

    def opened(self, x, axis):
        sizes = [*x.shape[:axis], self.n, *x.shape[axis:]]
        return x.unsqueeze(axis).expand(sizes)

    def reads(self, streams, weights, axis):
        full, rest = self.layout, self.layout.replace("n", "")
        if self.way == "einsum":
            return torch.einsum(f"n,{full}->{rest}", weights, streams)
        if self.way == "tensordot":
            return torch.tensordot(weights, streams, dims=([0], [axis]))
        if self.way == "matmul":
            return (weights[None] @ streams.movedim(axis, -2)).squeeze(-2)
        if self.way == "sum":
            return (weights.reshape(-1, *[1] * (3 - axis)) * streams).sum(axis)
        parts = streams if self.way == "list" else streams.unbind(axis)
        return sum(weights[j] * part for j, part in enumerate(parts))

    def writes(self, streams, mix, write, y, axis):
        full, rest = self.layout, self.layout.replace("n", "")
        if self.way == "einsum":
            kept = torch.einsum(f"nm,{full}->{full.replace('n', 'm')}", mix, streams)
            kept = streams if self.keep else kept
            return kept + torch.einsum(f"n,{rest}->{full}", write, y)
        if self.way == "tensordot":
            kept = torch.tensordot(mix, streams, dims=([0], [axis])).movedim(0, axis)
            kept = streams if self.keep else kept
            return kept + torch.tensordot(write, y, dims=0).movedim(0, axis)
        if self.way == "matmul":
            kept = (mix.T @ streams.movedim(axis, -2)).movedim(-2, axis)
            kept = streams if self.keep else kept
            return kept + (write[:, None] @ y.unsqueeze(-2)).movedim(-2, axis)
        if self.way == "sum":
            lifted = mix.reshape(self.n, self.n, *[1] * (3 - axis))
            kept = (lifted * streams.unsqueeze(axis + 1)).sum(axis)
            kept = streams if self.keep else kept
            return kept + write.reshape(-1, *[1] * (3 - axis)) * y.unsqueeze(axis)
        parts = streams if self.way == "list" else streams.unbind(axis)
        new = []
        for j in range(self.n):
            kept = sum(mix[k, j] * part for k, part in enumerate(parts))
            new.append((parts[j] if self.keep else kept) + write[j] * y)
        return new if self.way == "list" else torch.stack(new, axis)
