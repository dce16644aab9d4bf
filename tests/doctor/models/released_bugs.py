"""Mistakes of released code, re-created in their coding style.

Each function builds the model with or without the mistake. Names state where it was found.
"""

import math

import torch
from torch import nn
from torch.nn import functional as F

D, H, L, V, T, B = (24, 3, 3, 40, 7, 2)


def ids():
    return torch.randint(3, V, (B, T), generator=torch.Generator().manual_seed(1))


def vectors():
    return torch.randn(B, T, D, generator=torch.Generator().manual_seed(1))


def split_heads(y):
    return y.unflatten(-1, (H, -1)).transpose(1, 2)


def mlp():
    return nn.Sequential(nn.Linear(D, 2 * D), nn.ReLU(), nn.Dropout(0.1), nn.Linear(2 * D, D))


CASES = {}


def case(rule, inputs=ids):

    def register(f):
        CASES[f.__name__] = (rule, f, inputs)
        return f

    return register


class EmbeddingModel(nn.Module):
    def __init__(self, body, head=True):
        super().__init__()
        self.e = nn.Embedding(V, D)
        self.pos = nn.Embedding(64, D)
        self.body = body
        self.head = nn.Linear(D, V) if head else nn.Identity()

    def forward(self, x):
        return self.head(self.body(self.e(x) + self.pos(torch.arange(x.shape[1]))))


class TorchLayer(nn.Module):
    def __init__(self, bug):
        super().__init__()
        self.bug = bug
        self.self_attn = nn.MultiheadAttention(D, H, dropout=0.1)
        self.linear1 = nn.Linear(D, 48)
        self.linear2 = nn.Linear(48, D)
        self.norm1 = nn.LayerNorm(D)
        self.norm2 = nn.LayerNorm(D)
        self.dropout = nn.Dropout(0.1)

    def forward(self, src):
        if self.bug:
            src = self.norm1(src)
            src2 = self.self_attn(src, src, src)[0]
            src = src + self.dropout(src2)
            src = self.norm2(src)
            src2 = self.linear2(self.dropout(F.relu(self.linear1(src))))
            return src + self.dropout(src2)
        h = self.norm1(src)
        src = src + self.dropout(self.self_attn(h, h, h)[0])
        h = self.norm2(src)
        return src + self.dropout(self.linear2(self.dropout(F.relu(self.linear1(h)))))


@case("skip_after_norm", lambda: torch.randn(T, B, D))
def pytorch_61165(bug):
    return nn.Sequential(*[TorchLayer(bug) for _ in range(L)], nn.LayerNorm(D))


@case("doubled_final_norm", vectors)
def pytorch_24930(bug):
    lay = nn.TransformerEncoderLayer(D, H, 48, batch_first=True)
    m = nn.TransformerEncoder(
        lay, L, norm=nn.LayerNorm(D) if bug else None, enable_nested_tensor=False
    )
    for p in m.parameters():
        if p.dim() > 1:
            nn.init.xavier_uniform_(p)
    return m


@case("cloned_layers", vectors)
def pytorch_86274(bug):
    lay = nn.TransformerEncoderLayer(D, H, 48, batch_first=True, norm_first=True)
    m = nn.TransformerEncoder(lay, L, norm=nn.LayerNorm(D), enable_nested_tensor=False)
    if not bug:
        for p in m.parameters():
            if p.dim() > 1:
                nn.init.xavier_uniform_(p)
    return m


class DeepNorm(nn.Module):
    def __init__(self, alpha, bug):
        super().__init__()
        self.alpha = alpha
        self.layer_norm = nn.LayerNorm(D)
        self.bug = bug

    def forward(self, x, gx):
        if self.bug == "unused":
            return x + self.alpha * gx
        if self.bug == "branch":
            return self.layer_norm(x + self.alpha * gx)
        return self.layer_norm(self.alpha * x + gx)


class DeepNormLayer(nn.Module):
    def __init__(self, bug):
        super().__init__()
        a = (2 * L) ** 0.25
        self.at = nn.MultiheadAttention(D, H, batch_first=True)
        self.ff = mlp()
        self.n1 = DeepNorm(a, bug)
        self.n2 = DeepNorm(a, bug)
        beta = (8 * L) ** (-0.25)
        for m in self.ff:
            if isinstance(m, nn.Linear):
                nn.init.xavier_normal_(m.weight, gain=beta)

    def forward(self, x):
        x = self.n1(x, self.at(x, x, x, need_weights=False)[0])
        return self.n2(x, self.ff(x))


@case("inert_norm")
def labml_unused(bug):
    return EmbeddingModel(
        nn.Sequential(*[DeepNormLayer("unused" if bug else "") for _ in range(L)])
    )


@case("scale_on_branch")
def labml_branch(bug):
    return EmbeddingModel(
        nn.Sequential(*[DeepNormLayer("branch" if bug else "") for _ in range(L)])
    )


class ReZeroLayer(nn.Module):
    def __init__(self, bug):
        super().__init__()
        self.at = nn.MultiheadAttention(D, H, batch_first=True)
        self.ff = mlp()
        self.w = nn.Parameter(torch.zeros(1) + 0.1)
        self.bug = bug

    def forward(self, x):
        a = self.at(x, x, x)[0] * self.w
        y = x + a
        return y + self.ff(a if self.bug else y) * self.w


@case("ffn_fed_unadded")
def rezero_4(bug):
    return EmbeddingModel(nn.Sequential(*[ReZeroLayer(bug) for _ in range(L)]))


class TabularBlock(nn.Module):
    def __init__(self, bug):
        super().__init__()
        self.bug = bug
        self.mha = nn.MultiheadAttention(D, H, batch_first=True)
        self.ff = mlp()
        self.an1 = nn.LayerNorm(D)
        self.an2 = nn.LayerNorm(D)

    def forward(self, x):
        y = self.mha(x, x, x)[0]
        x = self.an1(x + y)
        y2 = self.ff(y if self.bug else x)
        return self.an2(x + y2)


@case("ffn_fed_unadded")
def pytorch_tabular(bug):
    return EmbeddingModel(nn.Sequential(*[TabularBlock(bug) for _ in range(L)]))


class QueryKeyNormAttention(nn.Module):
    def __init__(self, bug):
        super().__init__()
        self.bug = bug
        self.wq, self.wk, self.wv, self.wo = [nn.Linear(D, D, bias=False) for _ in range(4)]
        self.qn, self.kn = (nn.LayerNorm(D // H), nn.LayerNorm(D // H))
        self.n1, self.n2 = (nn.LayerNorm(D), nn.LayerNorm(D))
        self.ff = mlp()

    def forward(self, x):
        h = self.n1(x)
        b, t, _ = h.shape
        q, k, v = [w(h).view(b, t, H, -1).transpose(1, 2) for w in (self.wq, self.wk, self.wv)]
        if not self.bug:
            q, k = (self.qn(q), self.kn(k))
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, D)
        x = x + self.wo(a)
        return x + self.ff(self.n2(x))


@case("inert_norm")
def cerebras_85(bug):
    return EmbeddingModel(
        nn.Sequential(*[QueryKeyNormAttention(bug) for _ in range(L)], nn.LayerNorm(D))
    )


class Saint(nn.Module):
    def __init__(self, bug):
        super().__init__()
        self.bug = bug
        self.norm1, self.norm2 = (nn.LayerNorm(D), nn.LayerNorm(D))
        self.att = nn.MultiheadAttention(D, H, batch_first=True)
        self.ff = mlp()

    def forward(self, x):
        if self.bug:
            x = x + self.att(x, x, x)[0]
            return x + self.ff(x)
        h = self.norm1(x)
        x = x + self.att(h, h, h)[0]
        return x + self.ff(self.norm2(x))


@case("inert_norm")
def deeptab_416(bug):
    return EmbeddingModel(nn.Sequential(*[Saint(bug) for _ in range(L)], nn.LayerNorm(D)))


class Marian(nn.Module):
    def __init__(self, bug=""):
        super().__init__()
        self.bug = bug
        self.q, self.k, self.v, self.o = [nn.Linear(D, D) for _ in range(4)]
        self.ff = mlp()
        self.g = nn.ParameterList([nn.Parameter(torch.ones(D)) for _ in range(4)])

    def ln(self, x, i):
        return F.layer_norm(x, (D,), self.g[2 * i], self.g[2 * i + 1] - 1)

    def forward(self, x):
        h = self.ln(x, 0)
        kv = x if self.bug == "keys" else h
        a = F.softmax(
            split_heads(self.q(h)) @ split_heads(self.k(kv)).mT / math.sqrt(D / H), -1
        ) @ split_heads(self.v(kv))
        x = x + self.o(a.transpose(1, 2).flatten(-2))
        return x + self.ff(self.ln(x, 1))


class MarianBody(nn.Module):
    def __init__(self, bug):
        super().__init__()
        self.ls = nn.ModuleList([Marian() for _ in range(L)])
        self.top = None if bug else nn.LayerNorm(D)

    def forward(self, x):
        for layer in self.ls:
            x = layer(x)
        return x if self.top is None else self.top(x)


@case("missing_final_norm")
def marian_719(bug):
    return EmbeddingModel(MarianBody(bug))


class DeepTabEncoder(nn.Module):
    def __init__(self, bug):
        super().__init__()
        n = nn.LayerNorm(D)
        self.enc = nn.TransformerEncoder(
            nn.TransformerEncoderLayer(D, H, 48, batch_first=True),
            L,
            norm=n,
            enable_nested_tensor=False,
        )
        self.norm = n
        self.bug = bug
        self.head = nn.Linear(D, 1)

    def forward(self, x):
        x = self.enc(x)
        if self.bug:
            x = self.norm(x)
        return self.head(x.mean(1))


@case("double_norm|doubled_final_norm", vectors)
def deeptab_double(bug):
    m = DeepTabEncoder(bug)
    for p in m.parameters():
        if p.dim() > 1:
            nn.init.xavier_uniform_(p)
    if not bug:
        m.enc.norm = None
        del m.norm
        m.norm = nn.Identity()
    return m


class MlxBlock(nn.Module):
    def __init__(self, bug):
        super().__init__()
        self.bug = bug
        self.ln1, self.ln2 = (nn.LayerNorm(D), nn.LayerNorm(D))
        self.attention = nn.MultiheadAttention(D, H, batch_first=True)
        self.l1, self.l2 = (nn.Linear(D, 48), nn.Linear(48, D))

    def forward(self, x):
        y = self.ln1(x)
        y = self.attention(y, y, y)[0]
        x = x + y
        if self.bug:
            y = self.ln2(x)
            y = self.l2(F.relu(self.l1(y)))
            return self.ln2(x) + y
        y = self.ln2(x)
        y = self.l2(F.relu(self.l1(y)))
        return x + y


@case("skip_after_norm")
def mlx_1327(bug):
    return EmbeddingModel(nn.Sequential(*[MlxBlock(bug) for _ in range(L)], nn.LayerNorm(D)))
