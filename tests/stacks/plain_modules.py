"""Sub-layers as users write them, with the role of every row of their matrices."""

from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

DIM, HEADS, HEAD_DIM = 16, 4, 4


def split_heads(x: Tensor) -> Tensor:
    return x.unflatten(-1, (-1, HEAD_DIM)).transpose(1, 2)


def attend(q: Tensor, k: Tensor, v: Tensor, *, causal: bool = False) -> Tensor:
    q, k, v = split_heads(q), split_heads(k), split_heads(v)
    groups = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
    return F.scaled_dot_product_attention(q, k, v, is_causal=causal).transpose(1, 2).flatten(2)


class Separate(nn.Module):
    """Four matrices with names that say nothing, declared in an unusual order."""

    roles_of_rows: ClassVar = {"a": ["out"], "b": ["value"], "c": ["key"], "d": ["query"]}

    def __init__(self):
        super().__init__()
        self.a, self.b, self.c, self.d = (nn.Linear(DIM, DIM) for _ in range(4))

    def forward(self, x):
        return self.a(attend(self.d(x), self.c(x), self.b(x)))


class Fused(nn.Module):
    roles_of_rows: ClassVar = {"mix": ["query", "key", "value"], "proj": ["out"]}

    def __init__(self):
        super().__init__()
        self.mix, self.proj = nn.Linear(DIM, 3 * DIM), nn.Linear(DIM, DIM)

    def forward(self, x):
        return self.proj(attend(*self.mix(x).chunk(3, -1), causal=True))


class FusedInOtherOrder(Fused):
    roles_of_rows: ClassVar = {"mix": ["value", "query", "key"], "proj": ["out"]}

    def forward(self, x):
        v, q, k = self.mix(x).chunk(3, -1)
        return self.proj(attend(q, k, v))


class Interleaved(Fused):
    """Query, key and value of each head follow each other, as in GPT-NeoX."""

    roles_of_rows: ClassVar = {
        "mix": [role for _ in range(HEADS) for role in ("query", "key", "value")],
        "proj": ["out"],
    }

    def forward(self, x):
        q, k, v = self.mix(x).unflatten(-1, (HEADS, 3, HEAD_DIM)).unbind(-2)
        return self.proj(attend(q.flatten(2), k.flatten(2), v.flatten(2)))


class GroupedKeys(nn.Module):
    """Queries in one matrix, keys and values of two heads in another."""

    roles_of_rows: ClassVar = {"first": ["query"], "second": ["key", "value"], "third": ["out"]}

    def __init__(self):
        super().__init__()
        self.first, self.third = nn.Linear(DIM, DIM, bias=False), nn.Linear(DIM, DIM, bias=False)
        self.second = nn.Linear(DIM, 2 * 2 * HEAD_DIM, bias=False)

    def forward(self, x):
        return self.third(attend(self.first(x), *self.second(x).chunk(2, -1)))


class GroupedFused(nn.Module):
    """Queries, and keys and values of one head, in one matrix."""

    roles_of_rows: ClassVar = {"mix": ["query"] * 4 + ["key", "value"], "proj": ["out"]}

    def __init__(self):
        super().__init__()
        self.mix, self.proj = nn.Linear(DIM, DIM + 2 * HEAD_DIM), nn.Linear(DIM, DIM)

    def forward(self, x):
        return self.proj(attend(*self.mix(x).split((DIM, HEAD_DIM, HEAD_DIM), -1)))


class Handwritten(Separate):
    """Softmax written out, with rotary positions and norms of queries and keys."""

    def forward(self, x):
        q, k, v = (split_heads(each(x)) for each in (self.d, self.c, self.b))
        angles = torch.arange(x.shape[1])[:, None] * torch.tensor([1.0, 0.1])
        turn = torch.polar(torch.ones_like(angles), angles)
        q, k = (
            torch.view_as_real(
                torch.view_as_complex(each.unflatten(-1, (-1, 2)).contiguous()) * turn
            )
            for each in (F.normalize(q, dim=-1), F.normalize(k, dim=-1))
        )
        scores = q.flatten(-2) @ k.flatten(-2).mT * 3
        hidden = torch.triu(torch.ones_like(scores, dtype=torch.bool), 1)
        y = scores.masked_fill(hidden, -torch.inf).softmax(-1) @ v
        return self.a(y.transpose(1, 2).flatten(2))


class Columns(nn.Module):
    """Raw parameters with output features in the columns, as in Hugging Face's Conv1D."""

    roles_of_rows: ClassVar = {"mix": ["query", "key", "value"], "proj": ["out"]}
    transposed = True

    def __init__(self):
        super().__init__()
        self.mix = nn.Parameter(torch.randn(DIM, 3 * DIM))
        self.proj = nn.Parameter(torch.randn(DIM, DIM))

    def forward(self, x):
        return attend(*(x @ self.mix).chunk(3, -1)) @ self.proj


class Cross(Separate):
    def forward(self, x, memory, memory_mask=None):
        return self.a(attend(self.d(x), self.c(memory), self.b(memory)))


class NormInside(Separate):
    """A norm before the projections, one after the last, dropout between."""

    def __init__(self):
        super().__init__()
        self.before, self.after, self.drop = nn.LayerNorm(DIM), nn.LayerNorm(DIM), nn.Dropout(0.5)

    def forward(self, x):
        return self.drop(self.after(super().forward(self.before(x))))


class TorchAttention(nn.Module):
    """torch's attention, followed by a matrix."""

    roles_of_rows: ClassVar = {
        "inner.in_proj_weight": ["query", "key", "value"],
        "inner.out_proj": ["out"],
        "mixer": ["out"],
    }

    def __init__(self):
        super().__init__()
        self.inner = nn.MultiheadAttention(DIM, HEADS, batch_first=True)
        self.mixer = nn.Linear(DIM, DIM)

    def forward(self, x):
        return self.mixer(self.inner(x, x, x, need_weights=False)[0])


class SigmoidAttention(Separate):
    """The weights of a token do not sum to 1, so equal tokens do not hide queries and keys."""

    def forward(self, x):
        return self.a(torch.sigmoid(self.d(x) @ self.c(x).mT / 4) @ self.b(x))


class SquaredReLUAttention(Separate):
    def forward(self, x):
        scores = torch.einsum("bqd,bkd->bqk", self.d(x), self.c(x))
        return self.a(torch.einsum("bqk,bkd->bqd", F.relu(scores / 4).square(), self.b(x)))


class SoftmaxWithSink(Separate):
    """One is added to the denominator, so that a token can attend to nothing."""

    def forward(self, x):
        weights = torch.bmm(self.d(x), self.c(x).transpose(1, 2)).div(4).exp()
        return self.a(weights / (1 + weights.sum(-1, keepdim=True)) @ self.b(x))


class PositionsInside(Separate):
    """Equal tokens differ after positions are added."""

    def forward(self, x):
        steps = torch.arange(x.shape[1])[:, None] * torch.linspace(0.1, 1, DIM)
        x = x + torch.sin(steps)
        return self.a(attend(self.d(x), self.c(x), self.b(x)))


class AdditiveAttention(Separate):
    """Scores and mixture written with broadcasting, without a matrix product."""

    def forward(self, x):
        q, k, v = self.d(x), self.c(x), self.b(x)
        weights = torch.sigmoid(torch.tanh(q[:, :, None] + k[:, None]).sum(-1, keepdim=True))
        return self.a((weights * v[:, None]).sum(2))


class Convolutions(nn.Module):
    roles_of_rows: ClassVar = {"second": ["out"], "first": ["value"]}

    def __init__(self):
        super().__init__()
        self.second = nn.Conv1d(2 * DIM, DIM, 1)
        self.first = nn.Conv1d(DIM, 2 * DIM, 3, padding=1)

    def forward(self, x):
        return self.second(F.relu(self.first(x.mT))).mT


class TokenMixer(nn.Module):
    """The token mixing of MLP-Mixer: matrices over a fixed number of tokens."""

    roles_of_rows: ClassVar = {"second": ["out"], "first": ["value"]}
    LENGTH = 9

    def __init__(self):
        super().__init__()
        self.second, self.first = nn.Linear(20, self.LENGTH), nn.Linear(self.LENGTH, 20)

    def forward(self, x):
        return self.second(F.gelu(self.first(x.mT))).mT


class Plain(nn.Module):
    roles_of_rows: ClassVar = {"second": ["ffn_out"], "first": ["ffn_in"]}

    def __init__(self):
        super().__init__()
        self.second, self.first = nn.Linear(4 * DIM, DIM), nn.Linear(DIM, 4 * DIM)

    def forward(self, x):
        return self.second(F.relu(self.first(x)))


class Gated(nn.Module):
    roles_of_rows: ClassVar = {"w1": ["ffn_in"], "w2": ["ffn_out"], "w3": ["ffn_in"]}

    def __init__(self):
        super().__init__()
        self.w1, self.w2, self.w3 = (
            nn.Linear(DIM, 40, bias=False),
            nn.Linear(40, DIM, bias=False),
            nn.Linear(DIM, 40, bias=False),
        )

    def forward(self, x):
        return self.w2(F.silu(self.w1(x)) * self.w3(x))


class FusedGate(nn.Module):
    """Value and gate in one matrix of twice the rows."""

    roles_of_rows: ClassVar = {"up": ["ffn_in"], "down": ["ffn_out"]}
    matrix_rows: ClassVar = {"up": 40}

    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(DIM, 80), nn.Linear(40, DIM)

    def forward(self, x):
        value, gate = self.up(x).chunk(2, -1)
        return self.down(value * torch.sigmoid(gate))


class Deep(nn.Module):
    """Three matrices, of which the first has twice as many rows as the last has columns."""

    roles_of_rows: ClassVar = {"a": ["ffn_in"], "b": ["ffn_in"], "c": ["ffn_out"]}

    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = nn.Linear(DIM, 40), nn.Linear(40, 20), nn.Linear(20, DIM)

    def forward(self, x):
        return self.c(F.relu(self.b(F.relu(self.a(x)))))


ATTENTION = [
    *(Separate, Fused, FusedInOtherOrder, Interleaved, GroupedKeys, GroupedFused, Handwritten),
    *(Columns, Cross, NormInside, TorchAttention, Convolutions, TokenMixer),
    *(SigmoidAttention, SquaredReLUAttention, SoftmaxWithSink, PositionsInside, AdditiveAttention),
]
FEED_FORWARD = [Plain, Gated, FusedGate, Deep]
