"""Mistakes that an independent review planted, reduced to one option of a small model each."""

import torch
from torch import nn

from tests.doctor.models.tiny import DIM, HEADS, LENGTH, VOCAB, FeedForward

SCALE = (DIM // HEADS) ** -0.5


class Attention(nn.Module):
    """Separate projections; the scores are (batch, queries, keys, heads)."""

    def __init__(self, fault=""):
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(DIM, DIM) for _ in range(4))
        self.fault = fault

    def forward(self, x, context=None):
        context = x if context is None else context
        q, k, v = (
            project(each).unflatten(-1, (HEADS, -1))
            for project, each in ((self.q, x), (self.k, context), (self.v, context))
        )
        scale = {"large factor": 1 / SCALE, "divided": SCALE}.get(self.fault, SCALE)
        scores = torch.einsum("bihd,bjhd->bijh", q, k)
        scores = scores / scale if self.fault == "divided" else scores * scale
        if self.fault == "slots":  # slot attention: over the queries, then a mean over the keys
            weights = scores.softmax(1)
            weights = weights / weights.sum(2, keepdim=True)
        else:
            weights = scores.softmax(1 if self.fault == "queries" else 2)
        return self.o(torch.einsum("bijh,bjhd->bihd", weights, v).flatten(2))


class Block(nn.Module):
    def __init__(self, fault="", pre=True):
        super().__init__()
        self.one, self.two = nn.LayerNorm(DIM), nn.LayerNorm(DIM)
        self.attention, self.ffn = Attention(fault), FeedForward()
        self.fault, self.pre = fault, pre

    def forward(self, x):
        if not self.pre:
            y = self.one(x + self.attention(x))
            if self.fault == "layer input":
                return self.two(x + self.ffn(y))
            if self.fault == "both inputs":  # as in B2T
                return self.two(x + (y + self.ffn(y)))
            return self.two(y + self.ffn(y))
        h = self.one(x)
        context = {"raw keys": x, "normed keys": self.one(x.flip(1))}.get(self.fault)
        y = x + self.attention(h, context)
        if self.fault == "layer input":
            return x + self.ffn(self.two(y))
        return y + self.ffn(self.two(y))


class Transformer(nn.Module):
    """Embedding with positions, two blocks, final norm, output projection."""

    def __init__(self, fault="", pre=True):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(VOCAB, DIM), nn.Embedding(LENGTH, DIM)
        blocks = [Block(fault, pre) for _ in range(2)]
        self.blocks = blocks if fault in ("list", "frozen list") else nn.ModuleList(blocks)
        self.norm, self.head = nn.LayerNorm(DIM), nn.Linear(DIM, VOCAB, bias=False)
        if fault == "frozen list":
            for block in blocks:
                block.requires_grad_(False)
        for module in [self, *blocks]:
            for each in module.modules():
                if isinstance(each, nn.Linear):
                    nn.init.normal_(each.weight, 0, 0.3)
        if fault == "copied head":
            self.head.weight = nn.Parameter(self.tokens.weight.detach().clone())
        if fault == "tied head":
            self.head.weight = self.tokens.weight
        if fault == "two tables":
            self.second = nn.Embedding.from_pretrained(self.tokens.weight.clone(), freeze=False)
        self.fault = fault

    def forward(self, ids):
        x = self.tokens(ids)
        if self.fault == "two tables":
            x = x + self.second(ids.flip(1))
        sum_with_positions = x + self.positions(torch.arange(ids.shape[1]))
        if self.fault != "discarded":
            x = sum_with_positions
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))
