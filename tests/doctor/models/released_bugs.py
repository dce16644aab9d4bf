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


def vec():
    return torch.randn(B, T, D, generator=torch.Generator().manual_seed(1))


def sp(y):
    return y.unflatten(-1, (H, -1)).transpose(1, 2)


def mlp():
    return nn.Sequential(nn.Linear(D, 2 * D), nn.ReLU(), nn.Dropout(0.1), nn.Linear(2 * D, D))


CASES = {}


def case(rule, inp=ids):

    def dec(f):
        CASES[f.__name__] = (rule, f, inp)
        return f

    return dec


class Emb(nn.Module):
    def __init__(s, body, head=True):
        super().__init__()
        s.e = nn.Embedding(V, D)
        s.pos = nn.Embedding(64, D)
        s.body = body
        s.head = nn.Linear(D, V) if head else nn.Identity()

    def forward(s, x):
        return s.head(s.body(s.e(x) + s.pos(torch.arange(x.shape[1]))))


class TorchLayer(nn.Module):
    def __init__(s, bug):
        super().__init__()
        s.bug = bug
        s.self_attn = nn.MultiheadAttention(D, H, dropout=0.1)
        s.linear1 = nn.Linear(D, 48)
        s.linear2 = nn.Linear(48, D)
        s.norm1 = nn.LayerNorm(D)
        s.norm2 = nn.LayerNorm(D)
        s.dropout = nn.Dropout(0.1)

    def forward(s, src):
        if s.bug:
            src = s.norm1(src)
            src2 = s.self_attn(src, src, src)[0]
            src = src + s.dropout(src2)
            src = s.norm2(src)
            src2 = s.linear2(s.dropout(F.relu(s.linear1(src))))
            return src + s.dropout(src2)
        h = s.norm1(src)
        src = src + s.dropout(s.self_attn(h, h, h)[0])
        h = s.norm2(src)
        return src + s.dropout(s.linear2(s.dropout(F.relu(s.linear1(h)))))


@case("skip_after_norm", lambda: torch.randn(T, B, D))
def pytorch_61165(bug):
    return nn.Sequential(*[TorchLayer(bug) for _ in range(L)], nn.LayerNorm(D))


@case("doubled_final_norm", vec)
def pytorch_24930(bug):
    lay = nn.TransformerEncoderLayer(D, H, 48, batch_first=True)
    m = nn.TransformerEncoder(
        lay, L, norm=nn.LayerNorm(D) if bug else None, enable_nested_tensor=False
    )
    for p in m.parameters():
        if p.dim() > 1:
            nn.init.xavier_uniform_(p)
    return m


@case("cloned_layers", vec)
def pytorch_86274(bug):
    lay = nn.TransformerEncoderLayer(D, H, 48, batch_first=True, norm_first=True)
    m = nn.TransformerEncoder(lay, L, norm=nn.LayerNorm(D), enable_nested_tensor=False)
    if not bug:
        for p in m.parameters():
            if p.dim() > 1:
                nn.init.xavier_uniform_(p)
    return m


class DeepNorm(nn.Module):
    def __init__(s, alpha, bug):
        super().__init__()
        s.alpha = alpha
        s.layer_norm = nn.LayerNorm(D)
        s.bug = bug

    def forward(s, x, gx):
        if s.bug == "unused":
            return x + s.alpha * gx
        if s.bug == "branch":
            return s.layer_norm(x + s.alpha * gx)
        return s.layer_norm(s.alpha * x + gx)


class DNLayer(nn.Module):
    def __init__(s, bug):
        super().__init__()
        a = (2 * L) ** 0.25
        s.at = nn.MultiheadAttention(D, H, batch_first=True)
        s.ff = mlp()
        s.n1 = DeepNorm(a, bug)
        s.n2 = DeepNorm(a, bug)
        beta = (8 * L) ** (-0.25)
        for m in s.ff:
            if isinstance(m, nn.Linear):
                nn.init.xavier_normal_(m.weight, gain=beta)

    def forward(s, x):
        x = s.n1(x, s.at(x, x, x, need_weights=False)[0])
        return s.n2(x, s.ff(x))


@case("inert_norm")
def labml_unused(bug):
    return Emb(nn.Sequential(*[DNLayer("unused" if bug else "") for _ in range(L)]))


@case("scale_on_branch")
def labml_branch(bug):
    return Emb(nn.Sequential(*[DNLayer("branch" if bug else "") for _ in range(L)]))


class RZ(nn.Module):
    def __init__(s, bug):
        super().__init__()
        s.at = nn.MultiheadAttention(D, H, batch_first=True)
        s.ff = mlp()
        s.w = nn.Parameter(torch.zeros(1) + 0.1)
        s.bug = bug

    def forward(s, x):
        a = s.at(x, x, x)[0] * s.w
        y = x + a
        return y + s.ff(a if s.bug else y) * s.w


@case("ffn_fed_unadded")
def rezero_4(bug):
    return Emb(nn.Sequential(*[RZ(bug) for _ in range(L)]))


class PT(nn.Module):
    def __init__(s, bug):
        super().__init__()
        s.bug = bug
        s.mha = nn.MultiheadAttention(D, H, batch_first=True)
        s.ff = mlp()
        s.an1 = nn.LayerNorm(D)
        s.an2 = nn.LayerNorm(D)

    def forward(s, x):
        y = s.mha(x, x, x)[0]
        x = s.an1(x + y)
        y2 = s.ff(y if s.bug else x)
        return s.an2(x + y2)


@case("ffn_fed_unadded")
def pytorch_tabular(bug):
    return Emb(nn.Sequential(*[PT(bug) for _ in range(L)]))


class QK(nn.Module):
    def __init__(s, bug):
        super().__init__()
        s.bug = bug
        s.wq, s.wk, s.wv, s.wo = [nn.Linear(D, D, bias=False) for _ in range(4)]
        s.qn, s.kn = (nn.LayerNorm(D // H), nn.LayerNorm(D // H))
        s.n1, s.n2 = (nn.LayerNorm(D), nn.LayerNorm(D))
        s.ff = mlp()

    def forward(s, x):
        h = s.n1(x)
        b, t, _ = h.shape
        q, k, v = [w(h).view(b, t, H, -1).transpose(1, 2) for w in (s.wq, s.wk, s.wv)]
        if not s.bug:
            q, k = (s.qn(q), s.kn(k))
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, D)
        x = x + s.wo(a)
        return x + s.ff(s.n2(x))


@case("inert_norm")
def cerebras_85(bug):
    return Emb(nn.Sequential(*[QK(bug) for _ in range(L)], nn.LayerNorm(D)))


class Saint(nn.Module):
    def __init__(s, bug):
        super().__init__()
        s.bug = bug
        s.norm1, s.norm2 = (nn.LayerNorm(D), nn.LayerNorm(D))
        s.att = nn.MultiheadAttention(D, H, batch_first=True)
        s.ff = mlp()

    def forward(s, x):
        if s.bug:
            x = x + s.att(x, x, x)[0]
            return x + s.ff(x)
        h = s.norm1(x)
        x = x + s.att(h, h, h)[0]
        return x + s.ff(s.norm2(x))


@case("inert_norm")
def deeptab_416(bug):
    return Emb(nn.Sequential(*[Saint(bug) for _ in range(L)], nn.LayerNorm(D)))


class Marian(nn.Module):
    def __init__(s, bug=""):
        super().__init__()
        s.bug = bug
        s.q, s.k, s.v, s.o = [nn.Linear(D, D) for _ in range(4)]
        s.ff = mlp()
        s.g = nn.ParameterList([nn.Parameter(torch.ones(D)) for _ in range(4)])

    def ln(s, x, i):
        return F.layer_norm(x, (D,), s.g[2 * i], s.g[2 * i + 1] - 1)

    def forward(s, x):
        h = s.ln(x, 0)
        kv = x if s.bug == "keys" else h
        a = F.softmax(sp(s.q(h)) @ sp(s.k(kv)).mT / math.sqrt(D / H), -1) @ sp(s.v(kv))
        x = x + s.o(a.transpose(1, 2).flatten(-2))
        return x + s.ff(s.ln(x, 1))


class MarianBody(nn.Module):
    def __init__(s, bug):
        super().__init__()
        s.ls = nn.ModuleList([Marian() for _ in range(L)])
        s.top = None if bug else nn.LayerNorm(D)

    def forward(s, x):
        for layer in s.ls:
            x = layer(x)
        return x if s.top is None else s.top(x)


@case("missing_final_norm")
def marian_719(bug):
    return Emb(MarianBody(bug))


class DT(nn.Module):
    def __init__(s, bug):
        super().__init__()
        n = nn.LayerNorm(D)
        s.enc = nn.TransformerEncoder(
            nn.TransformerEncoderLayer(D, H, 48, batch_first=True),
            L,
            norm=n,
            enable_nested_tensor=False,
        )
        s.norm = n
        s.bug = bug
        s.head = nn.Linear(D, 1)

    def forward(s, x):
        x = s.enc(x)
        if s.bug:
            x = s.norm(x)
        return s.head(x.mean(1))


@case("double_norm|doubled_final_norm", vec)
def deeptab_double(bug):
    m = DT(bug)
    for p in m.parameters():
        if p.dim() > 1:
            nn.init.xavier_uniform_(p)
    if not bug:
        m.enc.norm = None
        del m.norm
        m.norm = nn.Identity()
    return m


class Mlx(nn.Module):
    def __init__(s, bug):
        super().__init__()
        s.bug = bug
        s.ln1, s.ln2 = (nn.LayerNorm(D), nn.LayerNorm(D))
        s.attention = nn.MultiheadAttention(D, H, batch_first=True)
        s.l1, s.l2 = (nn.Linear(D, 48), nn.Linear(48, D))

    def forward(s, x):
        y = s.ln1(x)
        y = s.attention(y, y, y)[0]
        x = x + y
        if s.bug:
            y = s.ln2(x)
            y = s.l2(F.relu(s.l1(y)))
            return s.ln2(x) + y
        y = s.ln2(x)
        y = s.l2(F.relu(s.l1(y)))
        return x + y


@case("skip_after_norm")
def mlx_1327(bug):
    return Emb(nn.Sequential(*[Mlx(bug) for _ in range(L)], nn.LayerNorm(D)))


class BF(nn.Module):
    def __init__(s, bug):
        super().__init__()
        s.at = nn.MultiheadAttention(D, H, batch_first=not bug)
        s.n1, s.n2 = (nn.LayerNorm(D), nn.LayerNorm(D))
        s.ff = mlp()

    def forward(s, x):
        h = s.n1(x)
        x = x + s.at(h, h, h)[0]
        return x + s.ff(s.n2(x))


@case("batch_leak")
def batch_first(bug):
    return Emb(nn.Sequential(*[BF(bug) for _ in range(L)], nn.LayerNorm(D)))


class CCT(nn.Module):
    def __init__(s, bug):
        super().__init__()
        s.bug = bug
        s.pre_norm = nn.LayerNorm(D)
        s.norm1 = nn.LayerNorm(D)
        s.self_attn = nn.MultiheadAttention(D, H, batch_first=True)
        s.linear1, s.linear2 = (nn.Linear(D, 48), nn.Linear(48, D))

    def forward(s, src):
        h = s.pre_norm(src)
        src = src + s.self_attn(h, h, h)[0]
        if s.bug:
            src = s.norm1(src)
            src2 = s.linear2(F.gelu(s.linear1(src)))
            return src + src2
        return src + s.linear2(F.gelu(s.linear1(s.norm1(src))))


@case("skip_after_norm", vec)
def cct_25(bug):
    return nn.Sequential(*[CCT(bug) for _ in range(L)], nn.LayerNorm(D))


class GPT(nn.Module):
    def __init__(s, bug):
        super().__init__()
        s.bug = bug
        s.qkv = nn.Linear(D, 3 * D)
        s.o = nn.Linear(D, D)
        s.n1, s.n2 = (nn.LayerNorm(D), nn.LayerNorm(D))
        s.ff = mlp()

    def forward(s, x):
        q, k, v = s.qkv(s.n1(x)).chunk(3, -1)
        t = x.shape[1]
        m = torch.ones(t, t).tril().bool()
        sc = sp(q) @ sp(k).mT / 3
        if s.bug != "mask":
            sc = sc.masked_fill(~m, -1000000000.0)
        a = sc.softmax(-1) @ sp(v)
        x = x + s.o(a.transpose(1, 2).flatten(-2))
        return x + s.ff(s.n2(x))


@case("future_leak")
def causal_missing_one(bug):
    return Emb(nn.Sequential(GPT(""), GPT("mask" if bug else ""), GPT(""), nn.LayerNorm(D)))


class CF(nn.Module):
    def __init__(s, bug):
        super().__init__()
        s.at = nn.MultiheadAttention(D, H, batch_first=True)
        s.ff = nn.Sequential(nn.Conv1d(D, 48, 1), nn.ReLU(), nn.Conv1d(48, D, 1))
        s.bug = bug
        s.g1 = nn.Parameter(torch.ones(1, T if bug else 1, 1 if bug else D))
        s.g2 = nn.Parameter(torch.ones(1, T if bug else 1, 1 if bug else D))

    def n(s, x, g):
        ax = 1 if s.bug else 2
        m = x.mean(ax, keepdim=True)
        v = x.var(ax, keepdim=True, unbiased=False)
        return (x - m) / torch.sqrt(v + 1e-05) * g

    def forward(s, x):
        h = s.n(x, s.g1)
        x = x + s.at(h, h, h)[0]
        return x + s.ff(s.n(x, s.g2).transpose(1, 2)).transpose(1, 2)


@case("wrong_axis")
def norm_over_time(bug):
    return Emb(nn.Sequential(*[CF(bug) for _ in range(L)], nn.LayerNorm(D)))


class Sh(nn.Module):
    def __init__(s, bug):
        super().__init__()
        s.n = nn.LayerNorm(D)
        s.m = s.n if bug else nn.LayerNorm(D)
        s.at = nn.MultiheadAttention(D, H, batch_first=True)
        s.ff = mlp()

    def forward(s, x):
        x = s.n(x + s.at(x, x, x)[0])
        return s.m(x + s.ff(x))


@case("shared_norm")
def shared(bug):
    return Emb(nn.Sequential(*[Sh(bug) for _ in range(L)]))


class DN2(DNLayer):
    def __init__(s, bug):
        super().__init__("")
        if bug:
            for m in s.ff:
                if isinstance(m, nn.Linear):
                    nn.init.xavier_uniform_(m.weight)


@case("scale_without_init")
def deep_without_beta(bug):
    return Emb(nn.Sequential(*[DN2(bug) for _ in range(L)]))


@case("dropout_after_norm")
def dropout_end(bug):
    return Emb(
        nn.Sequential(
            *[Saint(False) for _ in range(L)], nn.LayerNorm(D), *([nn.Dropout(0.1)] if bug else [])
        )
    )


@case("eps_too_small")
def eps(bug):
    return Emb(
        nn.Sequential(*[Saint(False) for _ in range(L)], nn.LayerNorm(D, eps=0.0 if bug else 1e-05))
    )


class FS(nn.Module):
    def __init__(s, bug):
        super().__init__()
        s.bug = bug
        s.nb = True
        s.fc1, s.fc2 = (nn.Linear(D, 48), nn.Linear(48, D))
        s.at = nn.MultiheadAttention(D, H)
        s.l1, s.l2 = (nn.LayerNorm(D), nn.LayerNorm(D))

    def maybe(s, ln, x, before=False, after=False):
        return ln(x) if after ^ s.nb else x

    def forward(s, x):
        r = x
        x = s.maybe(s.l1, x, before=True)
        if s.bug:
            r = x
        x = s.at(x, x, x)[0]
        x = r + x
        x = s.maybe(s.l1, x, after=True)
        r = x
        x = s.maybe(s.l2, x, before=True)
        if s.bug:
            r = x
        x = s.fc2(F.relu(s.fc1(x)))
        x = r + x
        return s.maybe(s.l2, x, after=True)


@case("skip_after_norm", lambda: torch.randn(T, B, D))
def fairseq_residual(bug):
    return nn.Sequential(*[FS(bug) for _ in range(L)], nn.LayerNorm(D))


class InnerNormAttn(nn.Module):
    def __init__(s):
        super().__init__()
        s.norm = nn.LayerNorm(D)
        s.at = nn.MultiheadAttention(D, H, batch_first=True)

    def forward(s, x):
        x = s.norm(x)
        return s.at(x, x, x)[0]


class DbN(nn.Module):
    def __init__(s, bug):
        super().__init__()
        s.n1 = nn.LayerNorm(D) if bug else nn.Identity()
        s.a = InnerNormAttn()
        s.n2 = nn.LayerNorm(D)
        s.ff = mlp()

    def forward(s, x):
        x = x + s.a(s.n1(x))
        return x + s.ff(s.n2(x))


@case("double_norm")
def prenorm_twice(bug):
    return Emb(nn.Sequential(*[DbN(bug) for _ in range(L)], nn.LayerNorm(D)))


class Disc(nn.Module):
    def __init__(s, bug):
        super().__init__()
        s.bug = bug
        s.n1, s.n2 = (nn.LayerNorm(D), nn.LayerNorm(D))
        s.at = nn.MultiheadAttention(D, H, batch_first=True)
        s.ff = mlp()

    def forward(s, x):
        h = s.n1(x)
        x = x + s.at(h, h, h)[0]
        n = s.n2(x)
        return x + s.ff(x if s.bug else n)


@case("inert_norm")
def discarded(bug):
    return Emb(nn.Sequential(*[Disc(bug) for _ in range(L)], nn.LayerNorm(D)))


class Dec(nn.Module):
    def __init__(s, bug):
        super().__init__()
        s.src = nn.Embedding(V, D)
        s.tgt = nn.Embedding(V, D)
        s.enc = nn.ModuleList([Saint(False) for _ in range(2)])
        s.en = nn.LayerNorm(D)
        s.dn = None if bug else nn.LayerNorm(D)
        s.sa = nn.ModuleList([nn.MultiheadAttention(D, H, batch_first=True) for _ in range(2)])
        s.ca = nn.ModuleList([nn.MultiheadAttention(D, H, batch_first=True) for _ in range(2)])
        s.ff = nn.ModuleList([mlp() for _ in range(2)])
        s.n = nn.ModuleList([nn.LayerNorm(D) for _ in range(6)])
        s.head = nn.Linear(D, V)

    def forward(s, a, b):
        x = s.src(a)
        for layer in s.enc:
            x = layer(x)
        m = s.en(x)
        y = s.tgt(b)
        for i in range(2):
            h = s.n[3 * i](y)
            y = y + s.sa[i](h, h, h)[0]
            h = s.n[3 * i + 1](y)
            y = y + s.ca[i](h, m, m)[0]
            y = y + s.ff[i](s.n[3 * i + 2](y))
        return s.head(y if s.dn is None else s.dn(y))


@case("missing_final_norm", lambda: (ids(), ids()))
def nemo_4350(bug):
    return Dec(bug)


class Adm(nn.Module):
    def __init__(s, bug):
        super().__init__()
        s.bug = bug
        s.w = nn.ParameterList([nn.Parameter(torch.full((D,), 1.8)) for _ in range(2)])
        s.n1, s.n2 = (nn.LayerNorm(D), nn.LayerNorm(D))
        s.at = nn.MultiheadAttention(D, H, batch_first=True)
        s.ff = mlp()

    def forward(s, x):
        a = s.at(x, x, x)[0]
        x = s.n1(x + s.w[0] * a if s.bug else s.w[0] * x + a)
        f = s.ff(x)
        return s.n2(x + s.w[1] * f if s.bug else s.w[1] * x + f)


@case("scale_on_branch")
def admin_branch(bug):
    return Emb(nn.Sequential(*[Adm(bug) for _ in range(L)]))


class Pad(nn.Module):
    def __init__(s, bug):
        super().__init__()
        s.bug = bug
        s.e = nn.Embedding(V, D)
        s.l = nn.ModuleList(
            [nn.TransformerEncoderLayer(D, H, 48, batch_first=True) for _ in range(2)]
        )
        s.h = nn.Linear(D, 3)

    def forward(s, x, mask):
        x = s.e(x)
        for layer in s.l:
            x = layer(x, src_key_padding_mask=~mask.bool())
        if s.bug:
            return s.h(x.mean(1))
        m = mask[..., None].float()
        return s.h((x * m).sum(1) / m.sum(1))


@case("padding_leak", lambda: (ids(), torch.ones(B, T, dtype=torch.long)))
def pooled_padding(bug):
    return Pad(bug)
