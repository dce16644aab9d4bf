"""Plainly broken Transformers: one network in several notations, each with one mistake.

`Broken(fault)` is a small language model; `style` selects the notation of its attention and
`place` the position of its norms. The fault "" builds the correct model.
"""

import math

import torch
from torch import nn
from torch.nn import functional as F

DIM, HEADS, LENGTH, VOCAB = 32, 2, 9, 41
STYLES = ("softmax", "sdpa", "mha", "einsum")


def ids():
    return torch.randint(3, VOCAB, (2, LENGTH), generator=torch.Generator().manual_seed(1))


class SelfAttention(nn.Module):
    """Causal self-attention in several notations."""

    def __init__(self, style="softmax", fault="", causal=True):
        super().__init__()
        self.style, self.fault, self.causal = style, fault, causal
        if style == "mha":
            self.mha = nn.MultiheadAttention(DIM, HEADS, batch_first=True)
        else:
            self.q, self.k, self.v, self.o = (nn.Linear(DIM, DIM) for _ in range(4))

    def hidden(self, length):
        """Return the mask, True at hidden keys."""
        ones = torch.ones(length, length, dtype=torch.bool)
        if self.fault == "hides everything":
            return ones
        if self.fault == "hides others":
            return ~torch.eye(length, dtype=torch.bool)
        if self.fault == "inverted":
            return ones.tril(-1)
        if self.fault == "inverted with itself":
            return ones.tril()
        return ones.triu(1) if self.causal else ~ones

    def forward(self, x):
        hidden = self.hidden(x.shape[1])
        if self.style == "mha":
            return self.mha(x, x, x, attn_mask=hidden, need_weights=False)[0]
        q, k, v = (
            m(x).unflatten(-1, (HEADS, -1)).transpose(1, 2) for m in (self.q, self.k, self.v)
        )
        scale = 1.0 if self.fault == "unscaled" else 1 / math.sqrt(DIM // HEADS)
        if self.style == "sdpa":
            y = F.scaled_dot_product_attention(q, k, v, attn_mask=~hidden, scale=scale)
        else:
            equation = "bhqd,bhkd->bhqk"
            scores = torch.einsum(equation, q, k) if self.style == "einsum" else q @ k.mT
            scores = scores if self.fault == "unscaled" else scores * scale
            fill = torch.finfo(x.dtype).min if self.style == "einsum" else -math.inf
            y = scores.masked_fill(hidden, fill).softmax(-1) @ v
        return self.o(y.transpose(1, 2).flatten(2))


class Mlp(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Linear(DIM, 4 * DIM), nn.GELU(), nn.Linear(4 * DIM, DIM))


class Layer(nn.Module):
    """One layer; faults of its residual connections, dropout and gradients."""

    def __init__(self, style="softmax", place="pre", fault="", causal=True):
        super().__init__()
        self.attention, self.mlp = SelfAttention(style, fault, causal), Mlp()
        self.one, self.two = nn.LayerNorm(DIM), nn.LayerNorm(DIM)
        self.drop, self.place, self.fault = nn.Dropout(0.1), place, fault

    def join(self, x, f, norm, *, adds):
        """Return the stream after one sub-layer."""
        y = f(norm(x) if self.place == "pre" else x)
        if self.fault == "detached branch":
            y = y.detach()
        skip = x.detach() if self.fault == "detached skip" else x
        y = skip + y if adds else y
        if self.fault == "dropout":
            y = self.drop(y)
        if self.place == "post":
            y = norm(y)
        return self.drop(y) if self.fault == "dropout after norm" else y

    def forward(self, x):
        x = self.join(x, self.attention, self.one, adds=self.fault != "no attention skip")
        x = self.join(x, self.mlp, self.two, adds=self.fault != "no mlp skip")
        return x.detach() if self.fault == "detach" else x.data if self.fault == "data" else x


class Broken(nn.Module):
    """Language model whose layers all have the fault, or only the layer `only`."""

    def __init__(self, fault="", *, style="softmax", place="pre", depth=3, only=None, causal=True):
        super().__init__()
        self.table, self.place = nn.Embedding(VOCAB, DIM), nn.Parameter(torch.zeros(LENGTH, DIM))
        nn.init.normal_(self.table.weight, std=0.5)
        nn.init.normal_(self.place, std=0.1)
        faults = [fault if only in (None, i) else "" for i in range(depth)]
        self.layers = nn.ModuleList(Layer(style, place, each, causal) for each in faults)
        self.final = nn.LayerNorm(DIM) if place == "pre" else nn.Identity()
        self.head, self.fault = nn.Linear(DIM, VOCAB, bias=False), fault
        if fault == "zero":
            for weight in self.parameters():
                nn.init.zeros_(weight)
        if fault == "zero layers":
            for weight in self.layers.parameters():
                nn.init.zeros_(weight)
        if fault == "constant":
            for weight in self.parameters():
                nn.init.constant_(weight, 0.02)
        if fault == "deviation 1":
            for weight in self.parameters():
                if weight.dim() > 1:
                    nn.init.normal_(weight)

    def forward(self, tokens):
        x = self.table(tokens) + self.place[: tokens.shape[1]]
        for i, layer in enumerate(self.layers):
            if self.fault == "no_grad" and i == 1:
                with torch.no_grad():
                    x = layer(x)
            else:
                x = layer(x)
        return self.head(self.final(x))


EVERYWHERE = {
    "missing_residual": ("no attention skip", "no mlp skip"),
    "detached_layers": ("detach", "data", "detached branch", "no_grad"),
    "inverted_mask": ("inverted", "inverted with itself"),
    "blocking_mask": ("hides everything", "hides others"),
    "dropout_on_stream": ("dropout",),
    "unscaled_attention": ("unscaled",),
    "constant_weights": ("zero", "zero layers", "constant"),
    "large_initial_logits": ("deviation 1",),
}
BROKEN = {
    f"{fault}, {style}, {place}": (rule, fault, {"style": style, "place": place})
    for rule, faults in EVERYWHERE.items()
    for fault in faults
    for style in STYLES
    for place in ("pre", "post")
    if not (fault == "unscaled" and style == "mha")
}
"""Rule, fault and options by name."""
