"""Record of a historic bug, and the layers that its models share."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

import addnorm

D, H, LAYERS, VOCAB, LENGTH, BATCH = 24, 3, 3, 40, 7, 3


@dataclass(frozen=True)
class HistoricBug:
    """A mistake of a public repository, as a function that builds it or its fixed form."""

    name: str
    source: str
    """Repository and number of the issue or pull request."""
    rules: frozenset[str]
    """Ids of the rules that describe the mistake."""
    build: Callable[[bool], Any]
    """Returns the model; with `options`, the function that builds it from them."""
    inputs: Callable[[], Any]
    options: dict[str, Any] | None = None

    def findings(self, bug):
        """Run the doctor on the buggy or the fixed form."""
        torch.manual_seed(0)
        built = self.build(bug)
        if self.options is None:
            return addnorm.doctor(built, self.inputs()).findings
        model = built(**self.options)
        return addnorm.doctor(model, self.inputs(), config=self.options, build=built).findings


def register(cases, source, rules, inputs, options=None):
    """Return a decorator that appends a builder to a list of cases."""

    def add(build):
        named = frozenset(rules.split("|"))
        cases.append(HistoricBug(build.__name__, source, named, build, inputs, options))
        return build

    return add


def generator():
    return torch.Generator().manual_seed(1)


def ids():
    return torch.randint(3, VOCAB, (BATCH, LENGTH), generator=generator())


def vectors():
    return torch.randn(BATCH, LENGTH, D, generator=generator())


def lengths():
    return torch.tensor([LENGTH, LENGTH - 2, LENGTH - 3])


def valid():
    """(B, L) True at valid tokens; the first example has no padding."""
    return torch.arange(LENGTH)[None] < lengths()[:, None]


def padded_ids():
    return ids() * valid()


def split_heads(x):
    return x.unflatten(-1, (H, -1)).transpose(1, 2)


def join_heads(x):
    return x.transpose(1, 2).flatten(-2)


class Attention(nn.Module):
    """Attention with an additive bias of any shape that broadcasts to (B, H, Q, K)."""

    def __init__(self, dim=D):
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(dim, dim) for _ in range(4))

    def forward(self, x, memory=None, bias=None):
        memory = x if memory is None else memory
        q, k, v = (split_heads(f(y)) for f, y in ((self.q, x), (self.k, memory), (self.v, memory)))
        scores = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
        scores = scores if bias is None else scores + bias
        return self.o(join_heads(scores.softmax(-1) @ v))


def feed_forward(dim=D):
    return nn.Sequential(nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim))


class PreLayer(nn.Module):
    def __init__(self, norm=nn.LayerNorm, attention=Attention):
        super().__init__()
        self.n1, self.n2, self.attention, self.ff = norm(D), norm(D), attention(), feed_forward()

    def forward(self, x, **options):
        x = x + self.attention(self.n1(x), **options)
        return x + self.ff(self.n2(x))


class PostLayer(nn.Module):
    def __init__(self, norm=nn.LayerNorm, attention=Attention):
        super().__init__()
        self.n1, self.n2, self.attention, self.ff = norm(D), norm(D), attention(), feed_forward()

    def forward(self, x, **options):
        x = self.n1(x + self.attention(x, **options))
        return self.n2(x + self.ff(x))


class Tokens(nn.Module):
    """Token and position embedding."""

    def __init__(self, padding_idx=None):
        super().__init__()
        self.table = nn.Embedding(VOCAB, D, padding_idx=padding_idx)
        self.positions = nn.Parameter(torch.randn(64, D) * 0.1)

    def forward(self, ids):
        return self.table(ids) + self.positions[: ids.shape[1]]


class Classifier(nn.Module):
    """Embedding, layers, final norm and a head for every token."""

    def __init__(self, layers, final=None, head=True, embedding=None):
        super().__init__()
        self.embedding = Tokens() if embedding is None else embedding
        self.layers = nn.ModuleList(layers)
        self.final = final or nn.Identity()
        self.head = nn.Linear(D, VOCAB) if head else nn.Identity()

    def forward(self, ids):
        x = self.embedding(ids)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.final(x))


def log_mask(keep):
    """Return an additive mask: 0 where `keep` is True and a large negative number elsewhere."""
    return torch.zeros(keep.shape).masked_fill(~keep.bool(), -1e9)


def gelu_mlp(x, up, down):
    return F.linear(F.gelu(F.linear(x, up)), down)
