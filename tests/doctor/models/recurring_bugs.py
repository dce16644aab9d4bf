"""More mistakes of released code, which occur in several projects; see released_bugs.py."""

import torch
from torch import nn
from torch.nn import functional as F

from tests.doctor.models.released_bugs import (
    B,
    D,
    DeepNormLayer,
    EmbeddingModel,
    H,
    L,
    Saint,
    T,
    V,
    case,
    ids,
    mlp,
    split_heads,
    vectors,
)


class BatchAxisAttention(nn.Module):
    def __init__(self, bug):
        super().__init__()
        self.at = nn.MultiheadAttention(D, H, batch_first=not bug)
        self.n1, self.n2 = (nn.LayerNorm(D), nn.LayerNorm(D))
        self.ff = mlp()

    def forward(self, x):
        h = self.n1(x)
        x = x + self.at(h, h, h)[0]
        return x + self.ff(self.n2(x))


@case("batch_leak")
def batch_first(bug):
    return EmbeddingModel(
        nn.Sequential(*[BatchAxisAttention(bug) for _ in range(L)], nn.LayerNorm(D))
    )


class CCT(nn.Module):
    def __init__(self, bug):
        super().__init__()
        self.bug = bug
        self.pre_norm = nn.LayerNorm(D)
        self.norm1 = nn.LayerNorm(D)
        self.self_attn = nn.MultiheadAttention(D, H, batch_first=True)
        self.linear1, self.linear2 = (nn.Linear(D, 48), nn.Linear(48, D))

    def forward(self, src):
        h = self.pre_norm(src)
        src = src + self.self_attn(h, h, h)[0]
        if self.bug:
            src = self.norm1(src)
            src2 = self.linear2(F.gelu(self.linear1(src)))
            return src + src2
        return src + self.linear2(F.gelu(self.linear1(self.norm1(src))))


@case("skip_after_norm", vectors)
def cct_25(bug):
    return nn.Sequential(*[CCT(bug) for _ in range(L)], nn.LayerNorm(D))


class GPT(nn.Module):
    def __init__(self, bug):
        super().__init__()
        self.bug = bug
        self.qkv = nn.Linear(D, 3 * D)
        self.o = nn.Linear(D, D)
        self.n1, self.n2 = (nn.LayerNorm(D), nn.LayerNorm(D))
        self.ff = mlp()

    def forward(self, x):
        q, k, v = self.qkv(self.n1(x)).chunk(3, -1)
        t = x.shape[1]
        m = torch.ones(t, t).tril().bool()
        sc = split_heads(q) @ split_heads(k).mT / 3
        if self.bug != "mask":
            sc = sc.masked_fill(~m, -1000000000.0)
        a = sc.softmax(-1) @ split_heads(v)
        x = x + self.o(a.transpose(1, 2).flatten(-2))
        return x + self.ff(self.n2(x))


@case("future_leak")
def causal_missing_one(bug):
    return EmbeddingModel(
        nn.Sequential(GPT(""), GPT("mask" if bug else ""), GPT(""), nn.LayerNorm(D))
    )


class ChannelNormBlock(nn.Module):
    def __init__(self, bug):
        super().__init__()
        self.at = nn.MultiheadAttention(D, H, batch_first=True)
        self.ff = nn.Sequential(nn.Conv1d(D, 48, 1), nn.ReLU(), nn.Conv1d(48, D, 1))
        self.bug = bug
        self.g1 = nn.Parameter(torch.ones(1, T if bug else 1, 1 if bug else D))
        self.g2 = nn.Parameter(torch.ones(1, T if bug else 1, 1 if bug else D))

    def n(self, x, g):
        ax = 1 if self.bug else 2
        m = x.mean(ax, keepdim=True)
        v = x.var(ax, keepdim=True, unbiased=False)
        return (x - m) / torch.sqrt(v + 1e-05) * g

    def forward(self, x):
        h = self.n(x, self.g1)
        x = x + self.at(h, h, h)[0]
        return x + self.ff(self.n(x, self.g2).transpose(1, 2)).transpose(1, 2)


@case("wrong_axis")
def norm_over_time(bug):
    return EmbeddingModel(
        nn.Sequential(*[ChannelNormBlock(bug) for _ in range(L)], nn.LayerNorm(D))
    )


class SharedNormBlock(nn.Module):
    def __init__(self, bug):
        super().__init__()
        self.n = nn.LayerNorm(D)
        self.m = self.n if bug else nn.LayerNorm(D)
        self.at = nn.MultiheadAttention(D, H, batch_first=True)
        self.ff = mlp()

    def forward(self, x):
        x = self.n(x + self.at(x, x, x)[0])
        return self.m(x + self.ff(x))


@case("shared_norm")
def shared(bug):
    return EmbeddingModel(nn.Sequential(*[SharedNormBlock(bug) for _ in range(L)]))


class UnscaledDeepNormLayer(DeepNormLayer):
    def __init__(self, bug):
        super().__init__("")
        if bug:
            for m in self.ff:
                if isinstance(m, nn.Linear):
                    nn.init.xavier_uniform_(m.weight)


@case("scale_without_init")
def deep_without_beta(bug):
    return EmbeddingModel(nn.Sequential(*[UnscaledDeepNormLayer(bug) for _ in range(L)]))


@case("dropout_after_norm")
def dropout_end(bug):
    return EmbeddingModel(
        nn.Sequential(
            *[Saint(False) for _ in range(L)], nn.LayerNorm(D), *([nn.Dropout(0.1)] if bug else [])
        )
    )


@case("eps_too_small")
def eps(bug):
    return EmbeddingModel(
        nn.Sequential(*[Saint(False) for _ in range(L)], nn.LayerNorm(D, eps=0.0 if bug else 1e-05))
    )


class FairseqLayer(nn.Module):
    def __init__(self, bug):
        super().__init__()
        self.bug = bug
        self.nb = True
        self.fc1, self.fc2 = (nn.Linear(D, 48), nn.Linear(48, D))
        self.at = nn.MultiheadAttention(D, H)
        self.l1, self.l2 = (nn.LayerNorm(D), nn.LayerNorm(D))

    def maybe(self, ln, x, before=False, after=False):
        return ln(x) if after ^ self.nb else x

    def forward(self, x):
        r = x
        x = self.maybe(self.l1, x, before=True)
        if self.bug:
            r = x
        x = self.at(x, x, x)[0]
        x = r + x
        x = self.maybe(self.l1, x, after=True)
        r = x
        x = self.maybe(self.l2, x, before=True)
        if self.bug:
            r = x
        x = self.fc2(F.relu(self.fc1(x)))
        x = r + x
        return self.maybe(self.l2, x, after=True)


@case("skip_after_norm", lambda: torch.randn(T, B, D))
def fairseq_residual(bug):
    return nn.Sequential(*[FairseqLayer(bug) for _ in range(L)], nn.LayerNorm(D))


class InnerNormAttn(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(D)
        self.at = nn.MultiheadAttention(D, H, batch_first=True)

    def forward(self, x):
        x = self.norm(x)
        return self.at(x, x, x)[0]


class TwiceNormedBlock(nn.Module):
    def __init__(self, bug):
        super().__init__()
        self.n1 = nn.LayerNorm(D) if bug else nn.Identity()
        self.a = InnerNormAttn()
        self.n2 = nn.LayerNorm(D)
        self.ff = mlp()

    def forward(self, x):
        x = x + self.a(self.n1(x))
        return x + self.ff(self.n2(x))


@case("double_norm")
def prenorm_twice(bug):
    return EmbeddingModel(
        nn.Sequential(*[TwiceNormedBlock(bug) for _ in range(L)], nn.LayerNorm(D))
    )


class DiscardedNormBlock(nn.Module):
    def __init__(self, bug):
        super().__init__()
        self.bug = bug
        self.n1, self.n2 = (nn.LayerNorm(D), nn.LayerNorm(D))
        self.at = nn.MultiheadAttention(D, H, batch_first=True)
        self.ff = mlp()

    def forward(self, x):
        h = self.n1(x)
        x = x + self.at(h, h, h)[0]
        n = self.n2(x)
        return x + self.ff(x if self.bug else n)


@case("inert_norm")
def discarded(bug):
    return EmbeddingModel(
        nn.Sequential(*[DiscardedNormBlock(bug) for _ in range(L)], nn.LayerNorm(D))
    )


class NemoDecoder(nn.Module):
    def __init__(self, bug):
        super().__init__()
        self.src = nn.Embedding(V, D)
        self.tgt = nn.Embedding(V, D)
        self.enc = nn.ModuleList([Saint(False) for _ in range(2)])
        self.en = nn.LayerNorm(D)
        self.dn = None if bug else nn.LayerNorm(D)
        self.sa = nn.ModuleList([nn.MultiheadAttention(D, H, batch_first=True) for _ in range(2)])
        self.ca = nn.ModuleList([nn.MultiheadAttention(D, H, batch_first=True) for _ in range(2)])
        self.ff = nn.ModuleList([mlp() for _ in range(2)])
        self.n = nn.ModuleList([nn.LayerNorm(D) for _ in range(6)])
        self.head = nn.Linear(D, V)

    def forward(self, a, b):
        x = self.src(a)
        for layer in self.enc:
            x = layer(x)
        m = self.en(x)
        y = self.tgt(b)
        for i in range(2):
            h = self.n[3 * i](y)
            y = y + self.sa[i](h, h, h)[0]
            h = self.n[3 * i + 1](y)
            y = y + self.ca[i](h, m, m)[0]
            y = y + self.ff[i](self.n[3 * i + 2](y))
        return self.head(y if self.dn is None else self.dn(y))


@case("missing_final_norm", lambda: (ids(), ids()))
def nemo_4350(bug):
    return NemoDecoder(bug)


class AdminLayer(nn.Module):
    def __init__(self, bug):
        super().__init__()
        self.bug = bug
        self.w = nn.ParameterList([nn.Parameter(torch.full((D,), 1.8)) for _ in range(2)])
        self.n1, self.n2 = (nn.LayerNorm(D), nn.LayerNorm(D))
        self.at = nn.MultiheadAttention(D, H, batch_first=True)
        self.ff = mlp()

    def forward(self, x):
        a = self.at(x, x, x)[0]
        x = self.n1(x + self.w[0] * a if self.bug else self.w[0] * x + a)
        f = self.ff(x)
        return self.n2(x + self.w[1] * f if self.bug else self.w[1] * x + f)


@case("scale_on_branch")
def admin_branch(bug):
    return EmbeddingModel(nn.Sequential(*[AdminLayer(bug) for _ in range(L)]))


class PooledModel(nn.Module):
    def __init__(self, bug):
        super().__init__()
        self.bug = bug
        self.e = nn.Embedding(V, D)
        self.l = nn.ModuleList(
            [nn.TransformerEncoderLayer(D, H, 48, batch_first=True) for _ in range(2)]
        )
        self.h = nn.Linear(D, 3)

    def forward(self, x, mask):
        x = self.e(x)
        for layer in self.l:
            x = layer(x, src_key_padding_mask=~mask.bool())
        if self.bug:
            return self.h(x.mean(1))
        m = mask[..., None].float()
        return self.h((x * m).sum(1) / m.sum(1))


@case("padding_leak", lambda: (ids(), torch.ones(B, T, dtype=torch.long)))
def pooled_padding(bug):
    return PooledModel(bug)
