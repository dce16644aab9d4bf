"""Small Transformers in several coding styles, each with an optional mistake.

`fault` names the mistake; "" builds the correct model. The styles differ in the module that holds
the norms and in the notation of norms and adds, never in the computation.
"""

import copy
import math

import torch
from torch import nn
from torch.nn import functional as F

import addnorm

DIM, HEADS, DEPTH, LENGTH, BATCH, VOCAB = 24, 3, 3, 7, 2, 40


def ids():
    return torch.randint(3, VOCAB, (BATCH, LENGTH), generator=torch.Generator().manual_seed(1))


def findings(model, example=None, **options):
    return addnorm.doctor(model, ids() if example is None else example, **options).findings


def rules(model, example=None, **options):
    return {finding.rule for finding in findings(model, example, **options)}


def vectors():
    return torch.randn(BATCH, LENGTH, DIM, generator=torch.Generator().manual_seed(1))


class HandNorm(nn.Module):
    """gamma * (x - mean) / (std + eps), as in the Annotated Transformer."""

    def __init__(self, dim, eps=1e-6, axis=-1):
        super().__init__()
        self.a_2, self.b_2 = nn.Parameter(torch.ones(dim)), nn.Parameter(torch.zeros(dim))
        self.eps, self.axis = eps, axis

    def forward(self, x):
        mean, std = x.mean(self.axis, keepdim=True), x.std(self.axis, keepdim=True)
        return self.a_2 * (x - mean) / (std + self.eps) + self.b_2


class HandRMS(nn.Module):
    def __init__(self, dim, eps=1e-6, axis=-1):
        super().__init__()
        self.weight, self.eps, self.axis = nn.Parameter(torch.ones(dim)), eps, axis

    def forward(self, x):
        y = x.float()
        y = y * torch.rsqrt(y.pow(2).mean(self.axis, keepdim=True) + self.eps)
        return (y * self.weight).to(x.dtype)


class Attention(nn.Module):
    def __init__(self, dim=DIM, causal=False):
        super().__init__()
        self.qkv, self.proj, self.causal = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim), causal

    def forward(self, x, mask=None):
        b, t, d = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, HEADS, d // HEADS).permute(2, 0, 3, 1, 4)
        scores = q @ k.transpose(-1, -2) / math.sqrt(d // HEADS)
        if self.causal:
            later = torch.ones(t, t, dtype=torch.bool).triu(1)
            scores = scores.masked_fill(later, float("-inf"))
        if mask is not None:
            scores = scores.masked_fill(~mask.bool()[:, None, None], float("-inf"))
        y = scores.softmax(-1) @ v
        return self.proj(y.transpose(1, 2).reshape(b, t, d))


class FeedForward(nn.Sequential):
    def __init__(self, dim=DIM):
        super().__init__(nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim))


class Model(nn.Module):
    """Embedding, blocks, optional final norm, head."""

    def __init__(self, blocks, final=None, head=True, after=None, embed_norm=None):
        super().__init__()
        self.table = nn.Embedding(VOCAB, DIM)
        self.place = nn.Parameter(torch.randn(LENGTH, DIM) * 0.1)
        self.embed_norm = embed_norm
        self.blocks = nn.ModuleList(blocks)
        self.final, self.after = final, after
        self.head = nn.Linear(DIM, VOCAB) if head else None

    def forward(self, tokens, mask=None):
        x = self.table(tokens) + self.place[: tokens.shape[1]]
        if self.embed_norm is not None:
            x = self.embed_norm(x)
        for block in self.blocks:
            x = block(x) if mask is None else block(x, mask)
        if self.final is not None:
            x = self.final(x)
        if self.after is not None:
            x = self.after(x)
        return self.head(x) if self.head is not None else x


class PreBlock(nn.Module):
    """x = x + f(norm(x)), with the norms as attributes of the block."""

    def __init__(self, norm=nn.LayerNorm, fault="", causal=False):
        super().__init__()
        self.one, self.two = norm(DIM), norm(DIM)
        self.attention, self.ffn, self.fault = Attention(causal=causal), FeedForward(), fault
        if fault == "shared":
            self.two = self.one
        if fault == "inert":
            self.three = norm(DIM)

    def forward(self, x, mask=None):
        look = self.attention if mask is None else lambda h: self.attention(h, mask)
        if self.fault == "skip":
            x = self.one(x)
            x = x + look(x)
            x = self.two(x)
            return x + self.ffn(x)
        if self.fault == "half skip":
            x = x + look(self.one(x))
            h = self.two(x)
            return h + self.ffn(h)
        if self.fault == "unadded":
            a = look(self.one(x))
            x = x + a
            return x + self.ffn(self.two(a))
        if self.fault == "double":
            x = x + look(self.one(self.two(x)))
            return x + self.ffn(self.two(x))
        if self.fault == "thrown away":
            self.one(x)
            x = x + look(x)
            return x + self.ffn(self.two(x))
        x = x + look(self.one(x))
        return x + self.ffn(self.two(x))


class PostBlock(nn.Module):
    """x = norm(alpha x + beta f(x))."""

    def __init__(self, norm=nn.LayerNorm, fault="", alpha=1.0, beta=1.0):
        super().__init__()
        self.one, self.two = norm(DIM), norm(DIM)
        self.attention, self.ffn, self.fault = Attention(), FeedForward(), fault
        self.alpha, self.beta = alpha, beta
        if fault == "shared":
            self.two = self.one

    def forward(self, x, mask=None):
        a = self.attention(x) if mask is None else self.attention(x, mask)
        h = self.one(x * self.alpha + a * self.beta)
        if self.fault == "unadded":
            return self.two(h + self.ffn(a))
        if self.fault == "double":
            h = self.one(h)
        return self.two(h * self.alpha + self.ffn(h) * self.beta)


class Connection(nn.Module):
    """Residual connection as a module, as in the Annotated Transformer."""

    def __init__(self, norm, place="pre", fault=""):
        super().__init__()
        self.norm, self.dropout, self.place, self.fault = norm, nn.Dropout(0.1), place, fault

    def forward(self, x, sublayer):
        if self.fault == "skip":
            x = self.norm(x)
            return x + self.dropout(sublayer(x))
        if self.fault == "inert":
            return x + self.dropout(sublayer(x))
        if self.fault == "double":
            return x + self.dropout(sublayer(self.norm(self.norm(x))))
        if self.place == "pre":
            return x + self.dropout(sublayer(self.norm(x)))
        return self.norm(x + self.dropout(sublayer(x)))


class ConnectedBlock(nn.Module):
    def __init__(self, norm=HandNorm, place="pre", fault="", causal=False):
        super().__init__()
        self.attention, self.ffn = Attention(causal=causal), FeedForward()
        one = norm(DIM)
        two = one if fault == "shared" else norm(DIM)
        self.connections = nn.ModuleList([Connection(n, place, fault) for n in (one, two)])

    def forward(self, x, mask=None):
        x = self.connections[0](x, lambda h: self.attention(h, mask))
        return self.connections[1](x, self.ffn)


class Flat(nn.Module):
    """One forward function: weights in lists, functional norms, in-place adds."""

    def __init__(self, place="pre", fault="", final=True):
        super().__init__()
        self.table = nn.Embedding(VOCAB, DIM)
        self.gains = nn.ParameterList([nn.Parameter(torch.ones(DIM)) for _ in range(2 * DEPTH + 1)])
        self.attentions = nn.ModuleList([Attention() for _ in range(DEPTH)])
        self.ins = nn.ModuleList([nn.Linear(DIM, 2 * DIM) for _ in range(DEPTH)])
        self.outs = nn.ModuleList([nn.Linear(2 * DIM, DIM) for _ in range(DEPTH)])
        self.place, self.fault, self.last = place, fault, final

    def norm(self, x, i):
        i = 0 if self.fault == "shared" else i
        axis = 1 if self.fault == "axis" else -1
        centered = x - x.mean(axis, keepdim=True)
        size = torch.sqrt((centered**2).mean(axis).unsqueeze(axis) + 1e-5)
        return centered / size * self.gains[i]

    def forward(self, tokens):
        x = self.table(tokens)
        for i in range(DEPTH):
            ffn = lambda h, i=i: self.outs[i](F.relu(self.ins[i](h)))  # noqa: E731
            for j, f in enumerate((self.attentions[i], ffn)):
                if self.place == "post":
                    x = self.norm(x + f(x), 2 * i + j)
                    continue
                h = self.norm(x, 2 * i + j)
                h = self.norm(h, 2 * i + j) if self.fault == "double" else h
                if self.fault == "skip":
                    x = h
                y = f(h)
                y += x
                x = y
        if self.last:
            x = self.norm(x, 2 * DEPTH)
        return x


def stack(block, depth=DEPTH, **options):
    return [block(**options) for _ in range(depth)]


def clones(block, depth=DEPTH):
    return [copy.deepcopy(block) for _ in range(depth)]
