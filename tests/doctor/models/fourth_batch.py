"""Fourth batch: 40 broken and 40 healthy models, written without reading the code of the rules.

The kinds of bugs are those that the doctor has rules for, in new code; 15 of the 40 cite a public
issue. The expectation was fixed before the first run: a broken model has a finding of severity
warning or error, a healthy model has none. Each case returns (model, inputs), or (model, inputs,
further arguments of `addnorm.doctor`).
"""

import math

import torch
import torch.nn.functional as F
from torch import nn

D, H, V, T, B = 32, 4, 50, 9, 2
BROKEN, HEALTHY = {}, {}


def broken(kind, source=""):
    def wrap(f):
        BROKEN[f.__name__] = (kind, source, f)
        return f

    return wrap


def healthy(like):
    def wrap(f):
        HEALTHY[f.__name__] = (like, "", f)
        return f

    return wrap


def ids(n=T):
    return torch.randint(1, V, (B, n))


def padded_ids(n=T, pads=3):
    x = ids(n)
    x[1, n - pads :] = 0
    return x


def small_init(module):
    for m in module.modules():
        if isinstance(m, (nn.Linear, nn.Embedding)):
            nn.init.normal_(m.weight, std=0.02)
            if isinstance(m, nn.Linear) and m.bias is not None:
                nn.init.zeros_(m.bias)


def fresh(module):
    for p in module.parameters():
        if p.dim() > 1:
            nn.init.xavier_uniform_(p)
    return module


# ---------------------------------------------------------------- shared parts


class Attn(nn.Module):
    """Fused qkv and SDPA."""

    def __init__(self, d=D, h=H, causal=True, drop=0.0):
        super().__init__()
        self.h, self.causal = h, causal
        self.qkv = nn.Linear(d, 3 * d)
        self.proj = nn.Linear(d, d)
        self.drop = nn.Dropout(drop)

    def forward(self, x, mask=None):
        b, t, d = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.h, d // self.h).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, is_causal=self.causal and mask is None
        )
        return self.drop(self.proj(y.transpose(1, 2).reshape(b, t, d)))


class MLP(nn.Sequential):
    def __init__(self, d=D, drop=0.0):
        super().__init__(nn.Linear(d, 4 * d), nn.GELU(), nn.Linear(4 * d, d), nn.Dropout(drop))


class Block(nn.Module):
    def __init__(self, d=D, causal=True, drop=0.0, eps=1e-5):
        super().__init__()
        self.ln_1 = nn.LayerNorm(d, eps=eps)
        self.attn = Attn(d, causal=causal, drop=drop)
        self.ln_2 = nn.LayerNorm(d, eps=eps)
        self.mlp = MLP(d, drop)

    def forward(self, x, mask=None):
        x = x + self.attn(self.ln_1(x), mask)
        return x + self.mlp(self.ln_2(x))


class GPT(nn.Module):
    def __init__(self, blocks, norm=True, n=T, d=D):
        super().__init__()
        self.wte = nn.Embedding(V, d)
        self.wpe = nn.Embedding(n, d)
        self.h = nn.ModuleList(blocks)
        self.ln_f = nn.LayerNorm(d) if norm is True else norm
        self.lm_head = nn.Linear(d, V, bias=False)
        small_init(self)

    def forward(self, idx):
        x = self.wte(idx) + self.wpe(torch.arange(idx.shape[1], device=idx.device))
        for b in self.h:
            x = b(x)
        if self.ln_f:
            x = self.ln_f(x)
        return self.lm_head(x)


class EinsumAttn(nn.Module):
    """Written-out attention; `mask_fn(scores, mask)` applies the mask."""

    def __init__(self, mask_fn=None, scale=True, d=D, h=H, post=None):
        super().__init__()
        self.h, self.scale, self.mask_fn, self.post = h, scale, mask_fn, post
        self.q, self.k, self.v, self.o = (nn.Linear(d, d) for _ in range(4))

    def forward(self, x, mask=None, ctx=None):
        ctx = x if ctx is None else ctx
        b, t, d = x.shape
        q = self.q(x).view(b, t, self.h, -1)
        k = self.k(ctx).view(b, ctx.shape[1], self.h, -1)
        v = self.v(ctx).view(b, ctx.shape[1], self.h, -1)
        s = torch.einsum("bqhd,bkhd->bhqk", q, k)
        if self.scale:
            s = s / math.sqrt(d // self.h)
        if mask is not None and self.mask_fn is not None:
            s = self.mask_fn(s, mask)
        a = s.softmax(-1)
        if self.post is not None and mask is not None:
            a = self.post(a, mask)
        return self.o(torch.einsum("bhqk,bkhd->bqhd", a, v).reshape(b, t, d))


class PostLayer(nn.Module):
    """BERT-like layer."""

    def __init__(self, attn, d=D, drop=0.0):
        super().__init__()
        self.attn = attn
        self.norm1, self.norm2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.ff = MLP(d, drop)
        self.drop = nn.Dropout(drop)

    def forward(self, x, mask=None):
        x = self.norm1(x + self.drop(self.attn(x, mask)))
        return self.norm2(x + self.ff(x))


class Bert(nn.Module):
    """Token ids with padding 0; the mask is made by `make_mask(ids)`."""

    def __init__(self, make_mask, attn, n=T, pool=None, layers=2):
        super().__init__()
        self.emb = nn.Embedding(V, D, padding_idx=0)
        self.pos = nn.Parameter(torch.randn(1, n, D) * 0.02)
        self.norm = nn.LayerNorm(D)
        self.layers = nn.ModuleList(PostLayer(attn()) for _ in range(layers))
        self.make_mask, self.pool = make_mask, pool
        self.out = nn.Linear(D, 5)

    def forward(self, x):
        mask = self.make_mask(x)
        y = self.norm(self.emb(x) + self.pos[:, : x.shape[1]])
        for layer in self.layers:
            y = layer(y, mask)
        if self.pool:
            y = self.pool(y, x)
        return self.out(y)


class RMS(nn.Module):
    def __init__(self, d=D, eps=1e-6, f32=True):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(d))
        self.eps, self.f32 = eps, f32

    def forward(self, x):
        y = x.float() if self.f32 else x
        y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + self.eps)
        return y.to(x.dtype) * self.weight


def rope(x, offset=0):
    t, d = x.shape[-2], x.shape[-1]
    inv = 1.0 / 10000 ** (torch.arange(0, d, 2).float() / d)
    ang = torch.outer(torch.arange(offset, offset + t).float(), inv)
    cos, sin = (
        torch.cat([ang.cos()] * 2, -1).to(x.dtype),
        torch.cat([ang.sin()] * 2, -1).to(x.dtype),
    )
    x1, x2 = x.chunk(2, -1)
    return x * cos + torch.cat([-x2, x1], -1) * sin


class LlamaAttn(nn.Module):
    def __init__(self, d=D, h=4, kv=2, qk_norm=None):
        super().__init__()
        self.h, self.kv, self.hd = h, kv, d // h
        self.q_proj = nn.Linear(d, d, bias=False)
        self.k_proj = nn.Linear(d, kv * self.hd, bias=False)
        self.v_proj = nn.Linear(d, kv * self.hd, bias=False)
        self.o_proj = nn.Linear(d, d, bias=False)
        self.q_norm, self.k_norm = (qk_norm(self.hd), qk_norm(self.hd)) if qk_norm else (None, None)

    def forward(self, x, mask=None):
        b, t, d = x.shape
        q = self.q_proj(x).view(b, t, self.h, -1).transpose(1, 2)
        k = self.k_proj(x).view(b, t, self.kv, -1).transpose(1, 2)
        v = self.v_proj(x).view(b, t, self.kv, -1).transpose(1, 2)
        if self.q_norm is not None:
            q, k = self.q_norm(q), self.k_norm(k)
        q, k = rope(q), rope(k)
        k, v = (z.repeat_interleave(self.h // self.kv, 1) for z in (k, v))
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None)
        return self.o_proj(y.transpose(1, 2).reshape(b, t, d))


class SwiGLU(nn.Module):
    def __init__(self, d=D, m=64):
        super().__init__()
        self.gate, self.up, self.down = (
            nn.Linear(d, m, bias=False),
            nn.Linear(d, m, bias=False),
            nn.Linear(m, d, bias=False),
        )

    def forward(self, x):
        return self.down(F.silu(self.gate(x)) * self.up(x))


class LlamaBlock(nn.Module):
    def __init__(self, norm=RMS, **kw):
        super().__init__()
        self.input_layernorm, self.post_attention_layernorm = norm(D), norm(D)
        self.self_attn, self.mlp = LlamaAttn(**kw), SwiGLU()

    def forward(self, x, mask=None):
        x = x + self.self_attn(self.input_layernorm(x), mask)
        return x + self.mlp(self.post_attention_layernorm(x))


class Llama(nn.Module):
    def __init__(self, blocks, norm):
        super().__init__()
        self.embed_tokens = nn.Embedding(V, D)
        self.layers = nn.ModuleList(blocks)
        self.norm = norm
        self.lm_head = nn.Linear(D, V, bias=False)
        small_init(self)

    def forward(self, input_ids):
        x = self.embed_tokens(input_ids)
        for layer in self.layers:
            x = layer(x)
        return self.lm_head(self.norm(x))


def half_input():
    return torch.randn(B, T, D).half()


# ---------------------------------------------------------------- broken: doubled norms


@broken("final norm by stack and head", "class of Helsinki-NLP/mammoth#3")
def b01_final_norm_in_stack_and_head():
    class Head(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.proj = nn.LayerNorm(D), nn.Linear(D, V)

        def forward(self, x):
            return self.proj(self.norm(x))

    class M(nn.Module):
        def __init__(self):
            super().__init__()
            self.trunk = GPT([Block(), Block()])
            self.trunk.lm_head = nn.Identity()
            self.head = Head()

        def forward(self, idx):
            return self.head(self.trunk(idx))

    return M(), ids()


@broken("doubled final norm after Post-LN", "pytorch/pytorch#50086")
def b02_nn_transformer_default():
    class M(nn.Module):
        def __init__(self):
            super().__init__()
            self.src, self.tgt = nn.Embedding(V, D), nn.Embedding(V, D)
            self.pos = nn.Parameter(torch.randn(T, 1, D) * 0.02)
            self.tr = fresh(nn.Transformer(D, H, 2, 2, 64, dropout=0.0))
            self.out = nn.Linear(D, V)

        def forward(self, src, tgt):
            m = nn.Transformer.generate_square_subsequent_mask(tgt.shape[0])
            y = self.tr(
                self.src(src) + self.pos[: len(src)],
                self.tgt(tgt) + self.pos[: len(tgt)],
                tgt_mask=m,
            )
            return self.out(y)

    return M(), (ids(T).t().contiguous(), ids(7).t().contiguous())


@broken("norms doubled across stacks", "Helsinki-NLP/mammoth#3")
def b03_consecutive_layer_stacks():
    class Stack(nn.Module):
        def __init__(self, n):
            super().__init__()
            self.first = nn.LayerNorm(D)
            self.blocks = nn.ModuleList(Block(causal=False) for _ in range(n))
            self.last = nn.LayerNorm(D)

        def forward(self, x):
            x = self.first(x)
            for b in self.blocks:
                x = b(x)
            return self.last(x)

    return nn.Sequential(nn.Linear(D, D), Stack(2), Stack(1), nn.Linear(D, 3)), torch.randn(B, T, D)


class ConvModule(nn.Module):
    def __init__(self):
        super().__init__()
        self.pw1 = nn.Linear(D, 2 * D)
        self.dw = nn.Conv1d(D, D, 3, padding=1, groups=D)
        self.pw2 = nn.Linear(D, D)

    def forward(self, x):
        x = F.glu(self.pw1(x), -1)
        return self.pw2(F.silu(self.dw(x.transpose(1, 2)).transpose(1, 2)))


class ConformerLayer(nn.Module):
    def __init__(self, before):
        super().__init__()
        self.before = before
        self.ff1, self.ff2 = MLP(), MLP()
        self.attn, self.conv = Attn(causal=False), ConvModule()
        self.n1, self.n2, self.n3, self.n4, self.n5 = (nn.LayerNorm(D) for _ in range(5))

    def sub(self, x, f, n, s=1.0):
        return x + s * f(n(x)) if self.before else n(x + s * f(x))

    def forward(self, x):
        x = self.sub(x, self.ff1, self.n1, 0.5)
        x = self.sub(x, self.attn, self.n2)
        x = self.sub(x, self.conv, self.n3)
        x = self.sub(x, self.ff2, self.n4, 0.5)
        return self.n5(x)


@broken("repeated norm at the end of each layer", "k2-fsa/snowfall#184")
def b04_conformer_post_norm_repeated():
    return nn.Sequential(
        nn.Linear(20, D), ConformerLayer(False), ConformerLayer(False), nn.Linear(D, 10)
    ), torch.randn(B, T, 20)


@broken("norm of encoder repeated by the decoder", "class of mammoth#3")
def b05_memory_normed_twice():
    class M(nn.Module):
        def __init__(self):
            super().__init__()
            self.enc = nn.ModuleList(Block(causal=False) for _ in range(2))
            self.enc_norm = nn.LayerNorm(D)
            self.memory_norm = nn.LayerNorm(D)
            self.emb, self.pos = nn.Embedding(V, D), nn.Parameter(torch.randn(T, D) * 0.02)
            self.n1 = nn.ModuleList(nn.LayerNorm(D) for _ in range(2))
            self.n2 = nn.ModuleList(nn.LayerNorm(D) for _ in range(2))
            self.n3 = nn.ModuleList(nn.LayerNorm(D) for _ in range(2))
            self.sa = nn.ModuleList(Attn() for _ in range(2))
            self.ca = nn.ModuleList(EinsumAttn() for _ in range(2))
            self.ff = nn.ModuleList(MLP() for _ in range(2))
            self.norm, self.out = nn.LayerNorm(D), nn.Linear(D, V)

        def forward(self, feats, tgt):
            m = feats
            for b in self.enc:
                m = b(m)
            m = self.enc_norm(m)
            m = self.memory_norm(m)
            x = self.emb(tgt) + self.pos[: tgt.shape[1]]
            for i in range(2):
                x = x + self.sa[i](self.n1[i](x))
                x = x + self.ca[i](self.n2[i](x), ctx=m)
                x = x + self.ff[i](self.n3[i](x))
            return self.out(self.norm(x))

    return M(), (torch.randn(B, 11, D), ids(7))


# ---------------------------------------------------------------- broken: padding


def fill(value):
    return lambda s, m: s.masked_fill(m == 0, value)


@broken("padding mask over the wrong axis", "hyunwoongko/transformer#40")
def b06_pad_mask_on_queries():
    return Bert(
        lambda x: (x != 0)[:, None, :, None], lambda: EinsumAttn(fill(-10000.0))
    ), padded_ids()


@broken("padding mask of wrong polarity", "mlwithme/TransformerTranslation#6")
def b07_key_padding_mask_polarity():
    class M(nn.Module):
        def __init__(self):
            super().__init__()
            self.emb = nn.Embedding(V, D)
            self.pos = nn.Embedding(T, D)
            self.enc = fresh(
                nn.TransformerEncoder(
                    nn.TransformerEncoderLayer(D, H, 64, 0.0, batch_first=True),
                    2,
                    enable_nested_tensor=False,
                )
            )
            self.cls = nn.Linear(D, 4)

        def forward(self, input_ids, attention_mask):
            x = self.emb(input_ids) + self.pos.weight[: input_ids.shape[1]]
            x = self.enc(x, src_key_padding_mask=attention_mask.bool())
            return self.cls(x)

    i = padded_ids()
    m = (i != 0).long()
    m[0, -1] = 0  # so that no row is hidden as a whole
    return M(), {"input_ids": i, "attention_mask": m}


@broken("mask value without effect", "1e-9 instead of -1e9, common")
def b08_fill_with_tiny_value():
    return Bert(lambda x: (x != 0)[:, None, None, :], lambda: EinsumAttn(fill(1e-9))), padded_ids()


@broken("mask only reaches the first layer")
def b09_mask_in_first_layer_only():
    class M(Bert):
        def forward(self, x):
            mask = self.make_mask(x)
            y = self.norm(self.emb(x) + self.pos[:, : x.shape[1]])
            for i, layer in enumerate(self.layers):
                y = layer(y, mask if i == 0 else None)
            return self.out(y)

    return M(lambda x: (x != 0)[:, None, None, :], lambda: EinsumAttn(fill(-1e9))), padded_ids()


@broken("pooling over padding", "sentence-embedding classic")
def b10_mean_pool_counts_padding():
    return (
        Bert(
            lambda x: (x != 0)[:, None, None, :],
            lambda: EinsumAttn(fill(-1e9)),
            pool=lambda y, x: y.mean(1),
        ),
        padded_ids(),
    )


class EncDec(nn.Module):
    def __init__(self, memory_mask):
        super().__init__()
        self.emb = nn.Embedding(V, D, padding_idx=0)
        self.pos = nn.Parameter(torch.randn(1, T, D) * 0.02)
        self.tr = fresh(nn.Transformer(D, H, 2, 2, 64, 0.0, batch_first=True, norm_first=True))
        self.out = nn.Linear(D, V)
        self.memory_mask = memory_mask

    def forward(self, src, tgt):
        pad = src == 0
        causal = torch.ones(tgt.shape[1], tgt.shape[1]).triu(1).bool()
        y = self.tr(
            self.emb(src) + self.pos[:, : src.shape[1]],
            self.emb(tgt) + self.pos[:, : tgt.shape[1]],
            tgt_mask=causal,
            src_key_padding_mask=pad,
            memory_key_padding_mask=pad if self.memory_mask else None,
        )
        return self.out(y)


@broken("cross-attention without padding mask", "nn.Transformer classic")
def b11_no_memory_key_padding_mask():
    return EncDec(False), (padded_ids(), ids(7))


class PerHeadMask(nn.Module):
    def __init__(self, interleave):
        super().__init__()
        self.emb, self.pos = nn.Embedding(V, D), nn.Parameter(torch.randn(T, D) * 0.02)
        self.attn = nn.ModuleList(nn.MultiheadAttention(D, H, batch_first=True) for _ in range(2))
        self.n1 = nn.ModuleList(nn.LayerNorm(D) for _ in range(2))
        self.n2 = nn.ModuleList(nn.LayerNorm(D) for _ in range(2))
        self.ff = nn.ModuleList(MLP() for _ in range(2))
        self.norm, self.out = nn.LayerNorm(D), nn.Linear(D, 6)
        self.interleave = interleave

    def forward(self, tokens, valid):
        x = self.emb(tokens) + self.pos[: tokens.shape[1]]
        hide = ~valid[:, None, :].expand(-1, tokens.shape[1], -1)
        hide = hide.repeat_interleave(H, 0) if self.interleave else hide.repeat(H, 1, 1)
        for a, n1, n2, f in zip(self.attn, self.n1, self.n2, self.ff, strict=False):
            y = n1(x)
            x = x + a(y, y, y, attn_mask=hide, need_weights=False)[0]
            x = x + f(n2(x))
        return self.out(self.norm(x))


@broken(
    "per-head mask in the wrong order", "repeat vs repeat_interleave of nn.MultiheadAttention masks"
)
def b12_mask_repeat_order():
    i = padded_ids()
    return PerHeadMask(False), {"tokens": i, "valid": i != 0}


@broken("mask after the softmax")
def b13_mask_after_softmax():
    return (
        Bert(lambda x: (x != 0)[:, None, None, :], lambda: EinsumAttn(post=lambda a, m: a * m)),
        padded_ids(),
    )


class SDPAEncoder(nn.Module):
    def __init__(self, convert):
        super().__init__()
        self.proj = nn.Linear(12, D)
        self.blocks = nn.ModuleList(Block(causal=False) for _ in range(2))
        self.norm, self.head = nn.LayerNorm(D), nn.Linear(D, 3)
        self.convert = convert

    def forward(self, features, attention_mask):
        mask = self.convert(attention_mask[:, None, None, :])
        x = self.proj(features)
        for b in self.blocks:
            x = b(x, mask)
        return (self.head(self.norm(x)), x)


def feature_inputs():
    m = torch.ones(B, T, dtype=torch.long)
    m[1, -3:] = 0
    return {"features": torch.randn(B, T, 12), "attention_mask": m}


@broken("0/1 mask added to the scores by SDPA")
def b14_float_mask_in_sdpa():
    return SDPAEncoder(lambda m: m.float()), feature_inputs()


def _discard(s, m):
    s.masked_fill(m == 0, float("-inf"))
    return s


@broken("result of masked_fill discarded")
def b15_masked_fill_discarded():
    return Bert(lambda x: (x != 0)[:, None, None, :], lambda: EinsumAttn(_discard)), padded_ids()


# ---------------------------------------------------------------- broken: options


@broken("option without effect", "k2-fsa/snowfall#184")
def b16_normalize_before_ignored():
    class Layer(nn.Module):
        def __init__(self, normalize_before=True):
            super().__init__()
            self.nb = normalize_before
            self.a, self.f, self.n1, self.n2 = (
                Attn(causal=False),
                MLP(),
                nn.LayerNorm(D),
                nn.LayerNorm(D),
            )

        def forward(self, x):
            if self.nb:
                x = x + self.a(self.n1(x))
                return x + self.f(self.n2(x))
            x = self.n1(x + self.a(x))
            return self.n2(x + self.f(x))

    class M(nn.Module):
        def __init__(self, num_layers=2, normalize_before=True):
            super().__init__()
            self.normalize_before = normalize_before
            self.inp = nn.Linear(12, D)
            self.layers = nn.ModuleList(Layer() for _ in range(num_layers))
            self.norm = nn.LayerNorm(D)
            self.out = nn.Linear(D, 3)

        def forward(self, x):
            x = self.inp(x)
            for layer in self.layers:
                x = layer(x)
            return self.out(self.norm(x))

    c = {"num_layers": 2, "normalize_before": True}
    return M(**c), torch.randn(B, T, 12), {"config": c, "build": M}


class Configurable(nn.Module):
    def __init__(
        self,
        d_model=D,
        n_layers=2,
        layer_norm_eps=1e-5,
        attention_dropout=0.1,
        use_eps=True,
        use_drop=True,
    ):
        super().__init__()
        self.inp = nn.Linear(12, d_model)
        e = layer_norm_eps if use_eps else 1e-5
        p = attention_dropout if use_drop else 0.1
        self.blocks = nn.ModuleList(
            Block(d_model, causal=False, drop=p, eps=e) for _ in range(n_layers)
        )
        self.norm = nn.LayerNorm(d_model, eps=e)
        self.out = nn.Linear(d_model, 3)

    def forward(self, x):
        x = self.inp(x)
        for b in self.blocks:
            x = b(x)
        return self.out(self.norm(x))


def _options(**fixed):
    def build(d_model=D, n_layers=2, layer_norm_eps=1e-5, attention_dropout=0.1):
        return Configurable(d_model, n_layers, layer_norm_eps, attention_dropout, **fixed)

    c = {"d_model": D, "n_layers": 2, "layer_norm_eps": 1e-5, "attention_dropout": 0.1}
    return build(**c), torch.randn(B, T, 12), {"config": c, "build": build}


@broken("option without effect", "class of pytorch/pytorch#44367")
def b17_layer_norm_eps_ignored():
    return _options(use_eps=False)


@broken("option without effect")
def b18_attention_dropout_ignored():
    return _options(use_drop=False)


# ---------------------------------------------------------------- broken: epsilon


@broken("epsilon rounds to zero in float16", "class of huggingface/diffusers#13316")
def b19_rms_eps_half():
    def norm(d=D):
        return RMS(d, 1e-8, f32=False)

    return Llama([LlamaBlock(norm) for _ in range(2)], norm()).half(), ids()


@broken("epsilon too small for float16", "wenet-e2e/wenet#907")
def b20_layernorm_1e12_half():
    class LN(nn.Module):
        def __init__(self, d=D):
            super().__init__()
            self.weight, self.bias = nn.Parameter(torch.ones(d)), nn.Parameter(torch.zeros(d))

        def forward(self, x):
            u = x.mean(-1, keepdim=True)
            s = (x - u).pow(2).mean(-1, keepdim=True)
            return self.weight * (x - u) / torch.sqrt(s + 1e-12) + self.bias

    class L(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.f, self.n1, self.n2 = Attn(causal=False), MLP(), LN(), LN()

        def forward(self, x):
            x = self.n1(x + self.a(x))
            return self.n2(x + self.f(x))

    return nn.Sequential(nn.Linear(D, D), L(), L(), nn.Linear(D, 4)).half(), half_input()


@broken("epsilon of F.normalize underflows in float16", "huggingface/diffusers#13316")
def b21_f_normalize_half():
    class N(nn.Module):
        def __init__(self, d=D):
            super().__init__()
            self.scale, self.gamma = d**0.5, nn.Parameter(torch.ones(d))

        def forward(self, x):
            return F.normalize(x, dim=-1) * self.scale * self.gamma

    return Llama([LlamaBlock(N) for _ in range(2)], N()).half(), ids()


@broken("epsilon of a query-key norm underflows in float16")
def b22_qk_l2norm_half():
    class L2(nn.Module):
        def __init__(self, d):
            super().__init__()
            self.g = nn.Parameter(torch.ones(d) * d**0.5)

        def forward(self, x):
            return x / (x.square().sum(-1, keepdim=True) + 1e-10).sqrt() * self.g

    return Llama([LlamaBlock(RMS, qk_norm=L2) for _ in range(2)], RMS()).half(), ids()


# ---------------------------------------------------------------- broken: axis


@broken("norm over the examples", "sequence-first stream")
def b23_seq_first_norm_over_batch():
    class N(nn.Module):
        def __init__(self):
            super().__init__()
            self.g, self.b = nn.Parameter(torch.ones(D)), nn.Parameter(torch.zeros(D))

        def forward(self, x):
            m = x.mean(1, keepdim=True)
            s = x.var(1, keepdim=True, unbiased=False)
            return (x - m) / torch.sqrt(s + 1e-5) * self.g + self.b

    class M(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = nn.ModuleList(nn.MultiheadAttention(D, H) for _ in range(2))
            self.f = nn.ModuleList(MLP() for _ in range(2))
            self.n = nn.ModuleList(N() for _ in range(5))
            self.out = nn.Linear(D, 3)

        def forward(self, x):
            for i in range(2):
                y = self.n[2 * i](x)
                x = x + self.a[i](y, y, y)[0]
                x = x + self.f[i](self.n[2 * i + 1](x))
            return self.out(self.n[4](x))

    return M(), torch.randn(T, 3, D)


class ConvNeXtBlock(nn.Module):
    def __init__(self, norm, c=16, scale=1e-6):
        super().__init__()
        self.dw = nn.Conv2d(c, c, 3, padding=1, groups=c)
        self.norm = norm
        self.pw1, self.pw2 = nn.Conv2d(c, 4 * c, 1), nn.Conv2d(4 * c, c, 1)
        self.gamma = nn.Parameter(scale * torch.ones(c, 1, 1))

    def forward(self, x):
        return x + self.gamma * self.pw2(F.gelu(self.pw1(self.norm(self.dw(x)))))


class Norm2d(nn.Module):
    def __init__(self, dim, c=16):
        super().__init__()
        self.dim = dim
        self.w, self.b = nn.Parameter(torch.ones(c, 1, 1)), nn.Parameter(torch.zeros(c, 1, 1))

    def forward(self, x):
        u = x.mean(self.dim, keepdim=True)
        s = (x - u).pow(2).mean(self.dim, keepdim=True)
        return (x - u) / torch.sqrt(s + 1e-6) * self.w + self.b


class ConvNeXt(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 2, 2)
        self.stem_norm = Norm2d(1)
        self.blocks = nn.Sequential(*(ConvNeXtBlock(Norm2d(dim)) for _ in range(3)))
        self.norm, self.head = nn.LayerNorm(16), nn.Linear(16, 5)

    def forward(self, x):
        x = self.blocks(self.stem_norm(self.stem(x)))
        return self.head(self.norm(x.mean((2, 3))))


@broken("channels-first norm over one side of the image")
def b24_convnext_norm_over_width():
    return ConvNeXt(-1), torch.randn(B, 3, 12, 16)


@broken("RMS over the whole tensor", "mean() without an axis")
def b25_rms_over_everything():
    class N(nn.Module):
        def __init__(self, d=D):
            super().__init__()
            self.w = nn.Parameter(torch.ones(d))

        def forward(self, x):
            return x / torch.sqrt(x.pow(2).mean() + 1e-6) * self.w

    return Llama([LlamaBlock(N) for _ in range(2)], N()), ids()


@broken("LayerNorm over fields and features", "reczoo/FuxiCTR#23")
def b26_layernorm_over_fields():
    class M(nn.Module):
        def __init__(self):
            super().__init__()
            self.emb = nn.Embedding(100, 16)
            self.register_buffer("off", torch.arange(8) * 12)
            self.n = nn.ModuleList(nn.LayerNorm([8, 16]) for _ in range(2))
            self.n2 = nn.ModuleList(nn.LayerNorm([8, 16]) for _ in range(2))
            self.a = nn.ModuleList(Attn(16, 2, causal=False) for _ in range(2))
            self.f = nn.ModuleList(MLP(16) for _ in range(2))
            self.out = nn.Linear(8 * 16, 1)

        def forward(self, x):
            x = self.emb(x + self.off)
            for a, f, n, n2 in zip(self.a, self.f, self.n, self.n2, strict=False):
                x = n(x + a(x))
                x = n2(x + f(x))
            return self.out(x.flatten(1))

    return M(), torch.randint(0, 12, (3, 8))


# ---------------------------------------------------------------- broken: scales


class DeepLayer(nn.Module):
    def __init__(self, alpha, beta):
        super().__init__()
        self.alpha = alpha
        self.q, self.k, self.v, self.o = (nn.Linear(D, D) for _ in range(4))
        self.fc1, self.fc2 = nn.Linear(D, 4 * D), nn.Linear(4 * D, D)
        self.n1, self.n2 = nn.LayerNorm(D), nn.LayerNorm(D)
        for m in (self.q, self.k, self.v, self.o, self.fc1, self.fc2):
            nn.init.xavier_normal_(m.weight, gain=1.0 if m in (self.q, self.k) else beta)
            nn.init.zeros_(m.bias)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = (m(x).view(b, t, H, -1).transpose(1, 2) for m in (self.q, self.k, self.v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, d)
        x = self.n1(x * self.alpha + self.o(y))
        return self.n2(x * self.alpha + self.fc2(F.gelu(self.fc1(x))))


def deepnorm(beta):
    n = 3
    model = GPT([], norm=None)
    model.h = nn.ModuleList(DeepLayer((2 * n) ** 0.25, beta) for _ in range(n))
    return model, ids()


@broken("DeepNorm alpha without beta")
def b27_deepnorm_without_beta():
    return deepnorm(1.0)


class ReZeroLayer(nn.Module):
    def __init__(self, start):
        super().__init__()
        self.attn, self.mlp = nn.MultiheadAttention(D, H, batch_first=True), MLP()
        self.resweight = nn.Parameter(torch.tensor([float(start)]))

    def forward(self, x):
        x = x + self.resweight * self.attn(x, x, x, need_weights=False)[0]
        return x + self.resweight * self.mlp(x)


@broken("ReZero gate starts at 1")
def b28_rezero_starts_at_one():
    return nn.Sequential(
        nn.Linear(12, D), *(ReZeroLayer(1) for _ in range(3)), nn.Linear(D, 4)
    ), torch.randn(B, T, 12)


class ViTLayer(nn.Module):
    def __init__(self, scale):
        super().__init__()
        self.norm1, self.attn = nn.LayerNorm(D), Attn(causal=False)
        self.norm2, self.mlp = nn.LayerNorm(D), MLP()
        self.gamma_1, self.gamma_2 = (
            nn.Parameter(scale * torch.ones(D)),
            nn.Parameter(scale * torch.ones(D)),
        )

    def forward(self, x):
        x = x + self.gamma_1 * self.attn(self.norm1(x))
        return x + self.gamma_2 * self.mlp(self.norm2(x))


class ViT(nn.Module):
    def __init__(self, layers, gap=False):
        super().__init__()
        self.patch = nn.Conv2d(3, D, 4, 4)
        self.cls = nn.Parameter(torch.randn(1, 1, D) * 0.02)
        self.pos = nn.Parameter(torch.randn(1, 10, D) * 0.02)
        self.blocks = nn.ModuleList(layers)
        self.norm, self.head, self.gap = nn.LayerNorm(D), nn.Linear(D, 5), gap

    def forward(self, img):
        x = self.patch(img).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls.expand(len(x), -1, -1), x], 1) + self.pos
        for b in self.blocks:
            x = b(x)
        return self.head(self.norm(x[:, 1:].mean(1)) if self.gap else self.norm(x)[:, 0])


@broken("LayerScale starts at 1")
def b29_layerscale_one():
    return ViT([ViTLayer(1.0) for _ in range(3)]), torch.randn(B, 3, 12, 12)


class DiTBlock(nn.Module):
    def __init__(self, zero):
        super().__init__()
        self.n1, self.n2 = (nn.LayerNorm(D, elementwise_affine=False, eps=1e-6) for _ in range(2))
        self.attn, self.mlp = Attn(causal=False), MLP()
        self.ada = nn.Sequential(nn.SiLU(), nn.Linear(D, 6 * D))
        if zero:
            nn.init.zeros_(self.ada[1].weight)
            nn.init.zeros_(self.ada[1].bias)

    def forward(self, x, c):
        s1, k1, g1, s2, k2, g2 = self.ada(c)[:, None].chunk(6, -1)
        x = x + g1 * self.attn(self.n1(x) * (1 + k1) + s1)
        return x + g2 * self.mlp(self.n2(x) * (1 + k2) + s2)


class DiT(nn.Module):
    def __init__(self, zero):
        super().__init__()
        self.inp, self.t = (
            nn.Linear(8, D),
            nn.Sequential(nn.Linear(1, D), nn.SiLU(), nn.Linear(D, D)),
        )
        self.pos = nn.Parameter(torch.randn(1, T, D) * 0.02)
        self.blocks = nn.ModuleList(DiTBlock(zero) for _ in range(2))
        self.norm, self.out = nn.LayerNorm(D, elementwise_affine=False, eps=1e-6), nn.Linear(D, 8)
        self.final_ada = nn.Sequential(nn.SiLU(), nn.Linear(D, 2 * D))
        if zero:
            nn.init.zeros_(self.final_ada[1].weight)
            nn.init.zeros_(self.final_ada[1].bias)

    def forward(self, x, t):
        c = self.t(t[:, None])
        x = self.inp(x) + self.pos
        for b in self.blocks:
            x = b(x, c)
        s, k = self.final_ada(c)[:, None].chunk(2, -1)
        return self.out(self.norm(x) * (1 + k) + s)


@broken("adaLN-Zero gates not at zero")
def b30_dit_without_zero_init():
    return DiT(False), (torch.randn(B, T, 8), torch.rand(B))


class FlaggedAttn(Attn):
    def __init__(self):
        super().__init__()
        self.proj.SCALE_INIT = 1


class FlaggedMLP(nn.Module):
    def __init__(self):
        super().__init__()
        self.c_fc, self.c_proj = nn.Linear(D, 4 * D), nn.Linear(4 * D, D)
        self.c_proj.SCALE_INIT = 1

    def forward(self, x):
        return self.c_proj(F.gelu(self.c_fc(x)))


def gpt2_init(attribute):
    blocks = [Block() for _ in range(3)]
    for b in blocks:
        b.attn, b.mlp = FlaggedAttn(), FlaggedMLP()
    model = GPT(blocks)
    for m in model.modules():
        if isinstance(m, nn.Linear):
            std = 0.02 * (6**-0.5 if hasattr(m, attribute) else 1.0)
            nn.init.normal_(m.weight, std=std)
    return model, ids()


@broken("scaled initialization requested and never applied", "build-nanogpt, misspelled attribute")
def b31_gpt2_scale_attribute_misspelled():
    return gpt2_init("GPT_SCALE_INIT")


# ---------------------------------------------------------------- broken: wiring


@broken("missing residual of the cross-attention")
def b32_cross_attention_replaces_stream():
    class Dec(nn.Module):
        def __init__(self):
            super().__init__()
            self.sa, self.ca = (nn.MultiheadAttention(D, H, batch_first=True) for _ in range(2))
            self.n1, self.n2, self.n3, self.f = (
                nn.LayerNorm(D),
                nn.LayerNorm(D),
                nn.LayerNorm(D),
                MLP(),
            )

        def forward(self, x, m, mask):
            y = self.n1(x)
            x = x + self.sa(y, y, y, attn_mask=mask)[0]
            x = self.ca(self.n2(x), m, m)[0]
            return x + self.f(self.n3(x))

    class M(nn.Module):
        def __init__(self):
            super().__init__()
            self.inp, self.emb, self.pos = nn.Linear(12, D), nn.Embedding(V, D), nn.Embedding(T, D)
            self.enc = nn.Sequential(Block(causal=False), Block(causal=False), nn.LayerNorm(D))
            self.dec = nn.ModuleList(Dec() for _ in range(2))
            self.norm, self.out = nn.LayerNorm(D), nn.Linear(D, V)

        def forward(self, feats, tgt):
            m = self.enc(self.inp(feats))
            t = tgt.shape[1]
            mask = torch.full((t, t), float("-inf")).triu(1)
            x = self.emb(tgt) + self.pos.weight[:t]
            for d in self.dec:
                x = d(x, m, mask)
            return self.out(self.norm(x))

    return M(), (torch.randn(B, 11, 12), ids(7))


@broken("detach between layers")
def b33_detach_between_layers():
    class M(GPT):
        def forward(self, idx):
            x = self.wte(idx) + self.wpe.weight[: idx.shape[1]]
            states = []
            for b in self.h:
                x = b(x)
                states.append(x.clone().detach())
                x = states[-1]
            return self.lm_head(self.ln_f(x)), states

    return M([Block() for _ in range(3)]), ids()


@broken("inverted causal mask", "boolean convention of SDPA vs nn.Transformer")
def b34_causal_mask_inverted_for_sdpa():
    class M(GPT):
        def forward(self, idx):
            t = idx.shape[1]
            x = self.wte(idx) + self.wpe.weight[:t]
            mask = torch.triu(torch.ones(t, t)).bool()
            for b in self.h:
                x = b(x, mask)
            return self.lm_head(self.ln_f(x))

    return M([Block(), Block()]), ids()


@broken("dropout on the whole stream")
def b35_dropout_on_stream():
    class L(Block):
        def __init__(self):
            super().__init__()
            self.dropout = nn.Dropout(0.1)

        def forward(self, x, mask=None):
            x = self.dropout(x + self.attn(self.ln_1(x)))
            return self.dropout(x + self.mlp(self.ln_2(x)))

    return GPT([L(), L()]), ids()


@broken("attention without 1/sqrt(d)")
def b36_attention_without_scale():
    return Bert(
        lambda x: (x != 0)[:, None, None, :], lambda: EinsumAttn(fill(-1e9), scale=False)
    ), padded_ids()


@broken("Pre-LN without final norm")
def b37_llama_without_final_norm():
    return Llama([LlamaBlock() for _ in range(3)], nn.Identity()), ids()


@broken("one norm shared by all sub-layers", "kyegomez/MambaTransformer#14")
def b38_shared_norm():
    class M(nn.Module):
        def __init__(self):
            super().__init__()
            self.inp = nn.Linear(12, D)
            self.norm = nn.LayerNorm(D)
            self.attns = nn.ModuleList(Attn(causal=False) for _ in range(2))
            self.ffns = nn.ModuleList(MLP() for _ in range(2))
            self.final, self.out = nn.LayerNorm(D), nn.Linear(D, 3)

        def forward(self, x):
            x = self.inp(x)
            for a, f in zip(self.attns, self.ffns, strict=False):
                x = x + a(self.norm(x))
                x = x + f(self.norm(x))
            return self.out(self.final(x))

    return M(), torch.randn(B, T, 12)


@broken("skip taken after the norm", "Howuhh/faster-trajectory-transformer#3")
def b39_skip_after_norm():
    class L(Block):
        def forward(self, x, mask=None):
            x = self.ln_1(x)
            x = x + self.attn(x)
            return x + self.mlp(self.ln_2(x))

    return GPT([L(), L(), L()]), ids()


@broken("feed-forward fed the un-added branch")
def b40_ffn_reads_branch():
    class L(Block):
        def forward(self, x, mask=None):
            y = self.attn(self.ln_1(x))
            x = x + y
            return x + self.mlp(self.ln_2(y))

    return GPT([L(), L()]), ids()


# ---------------------------------------------------------------- healthy


@healthy("b01")
def h01_gpt_final_norm_once():
    return GPT([Block(drop=0.1), Block(drop=0.1)]), ids()


@healthy("b02")
def h02_post_ln_encoder_without_final_norm():
    class M(nn.Module):
        def __init__(self):
            super().__init__()
            self.inp = nn.Linear(12, D)
            layer = nn.TransformerEncoderLayer(D, H, 64)
            self.enc = fresh(nn.TransformerEncoder(layer, 2, enable_nested_tensor=False))
            self.out = nn.Linear(D, 3)

        def forward(self, x):
            return self.out(self.enc(self.inp(x)))

    return M(), torch.randn(T, B, 12)


@healthy("b02, b11")
def h03_nn_transformer_norm_first_with_masks():
    return EncDec(True), (padded_ids(), ids(7))


@healthy("b04")
def h04_conformer():
    return nn.Sequential(
        nn.Linear(20, D), ConformerLayer(True), ConformerLayer(True), nn.Linear(D, 10)
    ), torch.randn(B, T, 20)


class AlibiAttn(Attn):
    def forward(self, x, mask=None):
        _b, t, _d = x.shape
        slopes = 2.0 ** -(torch.arange(1, self.h + 1) * 8 / self.h)
        dist = torch.arange(t)[None] - torch.arange(t)[:, None]
        bias = slopes[:, None, None] * dist
        bias = bias.masked_fill(dist > 0, float("-inf"))
        return super().forward(x, bias[None])


@healthy("b01: norm after the embedding, then Pre-LN (BLOOM)")
def h05_bloom_embedding_norm_alibi():
    class M(nn.Module):
        def __init__(self):
            super().__init__()
            self.emb, self.emb_norm = nn.Embedding(V, D), nn.LayerNorm(D)
            self.h = nn.ModuleList(Block() for _ in range(2))
            for b in self.h:
                b.attn = AlibiAttn()
            self.ln_f = nn.LayerNorm(D)
            self.head = nn.Linear(D, V, bias=False)
            self.head.weight = self.emb.weight

        def forward(self, idx):
            x = self.emb_norm(self.emb(idx))
            for b in self.h:
                x = b(x)
            return self.head(self.ln_f(x))

    return M(), ids()


@healthy("b06")
def h06_pad_mask_on_keys():
    return Bert(
        lambda x: (x != 0)[:, None, None, :], lambda: EinsumAttn(fill(-10000.0))
    ), padded_ids()


@healthy("b07")
def h07_key_padding_mask():
    class M(nn.Module):
        def __init__(self):
            super().__init__()
            self.emb, self.pos = nn.Embedding(V, D), nn.Embedding(T, D)
            self.enc = fresh(
                nn.TransformerEncoder(
                    nn.TransformerEncoderLayer(D, H, 64, 0.0, batch_first=True),
                    2,
                    enable_nested_tensor=False,
                )
            )
            self.cls = nn.Linear(D, 4)

        def forward(self, input_ids, attention_mask):
            x = self.emb(input_ids) + self.pos.weight[: input_ids.shape[1]]
            return {"logits": self.cls(self.enc(x, src_key_padding_mask=attention_mask == 0))}

    i = padded_ids()
    return M(), {"input_ids": i, "attention_mask": (i != 0).long()}


@healthy("b14")
def h08_additive_mask():
    return SDPAEncoder(lambda m: (1.0 - m.float()) * -10000.0), feature_inputs()


@healthy("b10")
def h09_masked_mean_pool():
    def pool(y, x):
        m = (x != 0)[..., None].float()
        return (y * m).sum(1) / m.sum(1).clamp(min=1)

    return Bert(
        lambda x: (x != 0)[:, None, None, :], lambda: EinsumAttn(fill(-1e9)), pool=pool
    ), padded_ids()


@healthy("b12")
def h10_mask_repeat_interleave():
    i = padded_ids()
    return PerHeadMask(True), {"tokens": i, "valid": i != 0}


@healthy("b13: renormalized after the mask")
def h11_mask_after_softmax_renormalized():
    def post(a, m):
        a = a * m
        return a / a.sum(-1, keepdim=True).clamp(min=1e-6)

    return Bert(lambda x: (x != 0)[:, None, None, :], lambda: EinsumAttn(post=post)), padded_ids()


@healthy("b36: T5, scale in the initialization, relative bias")
def h12_t5_unscaled():
    class A(nn.Module):
        def __init__(self):
            super().__init__()
            self.q, self.k, self.v, self.o = (nn.Linear(D, D, bias=False) for _ in range(4))
            nn.init.normal_(self.q.weight, std=(D * (D // H)) ** -0.5)
            for m in (self.k, self.v, self.o):
                nn.init.normal_(m.weight, std=D**-0.5)

        def forward(self, x, bias):
            b, t, d = x.shape
            q, k, v = (m(x).view(b, t, H, -1).transpose(1, 2) for m in (self.q, self.k, self.v))
            a = (q @ k.transpose(-1, -2) + bias).softmax(-1)
            return self.o((a @ v).transpose(1, 2).reshape(b, t, d))

    class M(nn.Module):
        def __init__(self):
            super().__init__()
            self.emb, self.rel = nn.Embedding(V, D), nn.Embedding(2 * T, H)
            self.a = nn.ModuleList(A() for _ in range(2))
            self.f = nn.ModuleList(SwiGLU() for _ in range(2))
            self.n1, self.n2 = (nn.ModuleList(RMS() for _ in range(2)) for _ in range(2))
            self.norm, self.out = RMS(), nn.Linear(D, V, bias=False)

        def forward(self, idx):
            t = idx.shape[1]
            r = torch.arange(t)[None] - torch.arange(t)[:, None] + T
            bias = self.rel(r).permute(2, 0, 1)[None]
            x = self.emb(idx)
            for a, f, n1, n2 in zip(self.a, self.f, self.n1, self.n2, strict=False):
                x = x + a(n1(x), bias)
                x = x + f(n2(x))
            return self.out(self.norm(x))

    return M(), ids()


@healthy("b16-b18")
def h13_options_with_effect():
    return _options()


@healthy("b20")
def h14_layernorm_half():
    return nn.Sequential(
        nn.Linear(D, D), Block(causal=False), Block(causal=False), nn.LayerNorm(D), nn.Linear(D, 4)
    ).half(), half_input()


@healthy("b19: statistics in float32")
def h15_llama_half_float32_norm():
    return Llama([LlamaBlock() for _ in range(2)], RMS()).half(), ids()


@healthy("b19: bfloat16 keeps 1e-6")
def h16_llama_bfloat16():
    return Llama([LlamaBlock() for _ in range(2)], RMS()).bfloat16(), ids()


class GemmaNorm(nn.Module):
    def __init__(self, d=D):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(d))

    def forward(self, x):
        y = x.float()
        y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-6)
        return (y * (1.0 + self.weight.float())).type_as(x)


@healthy("b01: Gemma 2, norms before and after each branch, gains 1 + w")
def h17_gemma2_sandwich():
    class L(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.f = LlamaAttn(kv=1), SwiGLU()
            self.n1, self.n2, self.n3, self.n4 = (GemmaNorm() for _ in range(4))

        def forward(self, x):
            x = x + self.n2(self.a(self.n1(x)))
            return x + self.n4(self.f(self.n3(x)))

    class M(Llama):
        def forward(self, input_ids):
            x = self.embed_tokens(input_ids) * D**0.5
            for layer in self.layers:
                x = layer(x)
            y = F.linear(self.norm(x), self.embed_tokens.weight)
            return 30 * torch.tanh(y / 30)

    m = M([L(), L()], GemmaNorm())
    del m.lm_head
    return m, ids()


@healthy("b22, b38: parallel block with QK norm (ViT-22B)")
def h18_vit22b_parallel_qk_norm():
    class L(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.LayerNorm(D)
            self.qkv, self.o, self.f = nn.Linear(D, 3 * D, bias=False), nn.Linear(D, D), MLP()
            self.qn, self.kn = nn.LayerNorm(D // H, bias=False), nn.LayerNorm(D // H, bias=False)

        def forward(self, x):
            b, t, d = x.shape
            y = self.norm(x)
            q, k, v = self.qkv(y).view(b, t, 3, H, -1).permute(2, 0, 3, 1, 4)
            a = F.scaled_dot_product_attention(self.qn(q), self.kn(k), v)
            return x + self.o(a.transpose(1, 2).reshape(b, t, d)) + self.f(y)

    return ViT([L(), L()]), torch.randn(B, 3, 12, 12)


@healthy("b38, b40: GPT-J parallel block, one norm")
def h19_gptj_parallel():
    class L(nn.Module):
        def __init__(self):
            super().__init__()
            self.ln, self.a, self.f = nn.LayerNorm(D), LlamaAttn(kv=4), MLP()

        def forward(self, x):
            y = self.ln(x)
            return x + self.a(y) + self.f(y)

    return Llama([L(), L()], nn.LayerNorm(D)), ids()


@healthy("b29: LayerScale 1e-4")
def h20_cait_layerscale():
    return ViT([ViTLayer(1e-4) for _ in range(3)]), torch.randn(B, 3, 12, 12)


@healthy("b28")
def h21_rezero():
    return nn.Sequential(
        nn.Linear(12, D), *(ReZeroLayer(0) for _ in range(3)), nn.Linear(D, 4)
    ), torch.randn(B, T, 12)


@healthy("b27")
def h22_deepnorm():
    return deepnorm((8 * 3) ** -0.25)


@healthy("b30")
def h23_dit_adaln_zero():
    return DiT(True), (torch.randn(B, T, 8), torch.rand(B))


@healthy("b31")
def h24_gpt2_scaled_init():
    return gpt2_init("SCALE_INIT")


@healthy("b24")
def h25_convnext():
    return ConvNeXt(1), torch.randn(B, 3, 12, 16)


@healthy("b23")
def h26_seq_first_pre_ln():
    class M(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = nn.ModuleList(nn.MultiheadAttention(D, H) for _ in range(2))
            self.f = nn.ModuleList(MLP() for _ in range(2))
            self.n = nn.ModuleList(RMS() for _ in range(5))
            self.out = nn.Linear(D, 3)

        def forward(self, x):
            for i in range(2):
                y = self.n[2 * i](x)
                x = x + self.a[i](y, y, y)[0]
                x = x + self.f[i](self.n[2 * i + 1](x))
            return self.out(self.n[4](x))

    return M(), torch.randn(T, 3, D)


class MaskedGPT(GPT):
    def __init__(self, blocks, masks):
        super().__init__(blocks)
        self.masks = masks

    def forward(self, idx):
        t = idx.shape[1]
        x = self.wte(idx) + self.wpe.weight[:t]
        for b, m in zip(self.h, self.masks, strict=False):
            x = b(x, m(t))
        return self.lm_head(self.ln_f(x))


@healthy("b34: prefix-LM mask")
def h27_prefix_lm():
    def mask(t):
        m = torch.ones(t, t).tril().bool()
        m[:, :3] = True
        return m

    return MaskedGPT([Block(), Block()], [mask, mask]), ids()


@healthy("b34: sliding window alternating with full causal")
def h28_sliding_window():
    def full(t):
        return torch.ones(t, t).tril().bool()

    def window(t):
        return full(t) & torch.ones(t, t).triu(-2).bool()

    return MaskedGPT([Block(), Block(), Block()], [window, full, window]), ids()


@healthy("b13: attention sinks, weights need not sum to 1")
def h29_learned_sinks():
    class A(nn.Module):
        def __init__(self):
            super().__init__()
            self.qkv, self.o = nn.Linear(D, 3 * D), nn.Linear(D, D)
            self.sinks = nn.Parameter(torch.zeros(H))

        def forward(self, x, mask=None):
            b, t, d = x.shape
            q, k, v = self.qkv(x).chunk(3, -1)
            q, k, v = (z.view(b, t, H, -1).transpose(1, 2) for z in (q, k, v))
            s = rope(q) @ rope(k).transpose(-1, -2) * (d // H) ** -0.5
            s = s.masked_fill(torch.ones(t, t).triu(1).bool(), float("-inf"))
            s = torch.cat([s, self.sinks.view(1, H, 1, 1).expand(b, H, t, 1)], -1)
            a = s.softmax(-1)[..., :-1]
            return self.o((a @ v).transpose(1, 2).reshape(b, t, d))

    class L(LlamaBlock):
        def __init__(self):
            super().__init__()
            self.self_attn = A()

    return Llama([L(), L()], RMS()), ids()


@healthy("b05: Perceiver, context norm of raw input")
def h30_perceiver():
    class M(nn.Module):
        def __init__(self):
            super().__init__()
            self.lat = nn.Parameter(torch.randn(6, D) * 0.02)
            self.inp = nn.Linear(12, D)
            self.nq, self.nc, self.nf = nn.LayerNorm(D), nn.LayerNorm(D), nn.LayerNorm(D)
            self.ca, self.cf = EinsumAttn(), MLP()
            self.blocks = nn.ModuleList(Block(causal=False) for _ in range(2))
            self.norm, self.out = nn.LayerNorm(D), nn.Linear(D, 5)

        def forward(self, x):
            c = self.nc(self.inp(x))
            z = self.lat.expand(len(x), -1, -1)
            z = z + self.ca(self.nq(z), ctx=c)
            z = z + self.cf(self.nf(z))
            for b in self.blocks:
                z = b(z)
            return self.out(self.norm(z).mean(1))

    return M(), torch.randn(B, 11, 12)


@healthy("b37: RoPE, GQA, final norm")
def h31_llama_gqa():
    return Llama([LlamaBlock() for _ in range(3)], RMS()), {"input_ids": ids()}


@healthy("b34: KV cache argument, mask aligned to the end")
def h32_kv_cache():
    class A(nn.Module):
        def __init__(self):
            super().__init__()
            self.qkv, self.o = nn.Linear(D, 3 * D), nn.Linear(D, D)

        def forward(self, x, past):
            b, t, d = x.shape
            q, k, v = (z.view(b, t, H, -1).transpose(1, 2) for z in self.qkv(x).split(D, -1))
            p = past[0].shape[2]
            q, k = rope(q, p), rope(k, p)
            k, v = torch.cat([past[0], k], 2), torch.cat([past[1], v], 2)
            mask = torch.ones(t, p + t).tril(p).bool()
            y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
            return self.o(y.transpose(1, 2).reshape(b, t, d)), (k, v)

    class M(nn.Module):
        def __init__(self):
            super().__init__()
            self.emb = nn.Embedding(V, D)
            self.a = nn.ModuleList(A() for _ in range(2))
            self.f = nn.ModuleList(SwiGLU() for _ in range(2))
            self.n1, self.n2 = (nn.ModuleList(RMS() for _ in range(2)) for _ in range(2))
            self.norm, self.out = RMS(), nn.Linear(D, V, bias=False)

        def forward(self, idx, past):
            x, new = self.emb(idx), []
            for a, f, n1, n2, p in zip(self.a, self.f, self.n1, self.n2, past, strict=False):
                y, kv = a(n1(x), p)
                new.append(kv)
                x = x + y
                x = x + f(n2(x))
            return self.out(self.norm(x)), new

    past = [(torch.randn(B, H, 4, D // H), torch.randn(B, H, 4, D // H)) for _ in range(2)]
    return M(), (ids(7), past)


@healthy("b39: OLMo 2, norm on the output of the branch, QK norm over the width")
def h33_olmo2():
    class A(nn.Module):
        def __init__(self):
            super().__init__()
            self.q, self.k, self.v, self.o = (nn.Linear(D, D, bias=False) for _ in range(4))
            self.qn, self.kn = RMS(), RMS()

        def forward(self, x):
            b, t, d = x.shape
            q, k, v = self.qn(self.q(x)), self.kn(self.k(x)), self.v(x)
            q, k, v = (z.view(b, t, H, -1).transpose(1, 2) for z in (q, k, v))
            y = F.scaled_dot_product_attention(rope(q), rope(k), v, is_causal=True)
            return self.o(y.transpose(1, 2).reshape(b, t, d))

    class L(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.f, self.n1, self.n2 = A(), SwiGLU(), RMS(), RMS()

        def forward(self, x):
            x = x + self.n1(self.a(x))
            return x + self.n2(self.f(x))

    return Llama([L(), L()], RMS()), ids()


@healthy("b33: detached copies are only returned")
def h34_returns_detached_states():
    class M(GPT):
        def forward(self, idx):
            x = self.wte(idx) + self.wpe.weight[: idx.shape[1]]
            states = []
            for b in self.h:
                x = b(x)
                states.append(x.detach())
            return self.lm_head(self.ln_f(x)), states

    return M([Block() for _ in range(2)]), ids()


@healthy("b38: ALBERT shares the whole layer")
def h35_albert():
    class M(nn.Module):
        def __init__(self):
            super().__init__()
            self.emb, self.up = nn.Embedding(V, 16), nn.Linear(16, D)
            self.pos, self.norm = nn.Parameter(torch.randn(T, 16) * 0.02), nn.LayerNorm(16)
            self.layer = PostLayer(Attn(causal=False))
            self.out = nn.Linear(D, 4)

        def forward(self, idx):
            x = self.up(self.norm(self.emb(idx) + self.pos))
            for _ in range(3):
                x = self.layer(x)
            return self.out(x)

    return M(), ids()


@healthy("b35: dropout on embeddings and branches only")
def h36_bert_dropout():
    class M(nn.Module):
        def __init__(self):
            super().__init__()
            self.tok, self.seg, self.pos = (
                nn.Embedding(V, D),
                nn.Embedding(2, D),
                nn.Embedding(T, D),
            )
            self.norm, self.drop = nn.LayerNorm(D, eps=1e-12), nn.Dropout(0.1)
            self.layers = nn.ModuleList(PostLayer(Attn(causal=False), drop=0.1) for _ in range(2))
            self.pooler, self.out = nn.Linear(D, D), nn.Linear(D, 2)

        def forward(self, input_ids, token_type_ids):
            x = (
                self.tok(input_ids)
                + self.seg(token_type_ids)
                + self.pos.weight[: input_ids.shape[1]]
            )
            x = self.drop(self.norm(x))
            for layer in self.layers:
                x = layer(x)
            return x, self.out(torch.tanh(self.pooler(x[:, 0])))

    return M(), {
        "input_ids": ids(),
        "token_type_ids": torch.tensor([[0] * 5 + [1] * 4, [0] * 4 + [1] * 5]),
    }


@healthy("b32: U-ViT long skips by concatenation")
def h37_uvit_long_skips():
    class M(nn.Module):
        def __init__(self):
            super().__init__()
            self.inp, self.pos = nn.Linear(8, D), nn.Parameter(torch.randn(T, D) * 0.02)
            self.down = nn.ModuleList(Block(causal=False) for _ in range(2))
            self.mid = Block(causal=False)
            self.merge = nn.ModuleList(nn.Linear(2 * D, D) for _ in range(2))
            self.up = nn.ModuleList(Block(causal=False) for _ in range(2))
            self.norm, self.out = nn.LayerNorm(D), nn.Linear(D, 8)

        def forward(self, x):
            x, skips = self.inp(x) + self.pos, []
            for b in self.down:
                x = b(x)
                skips.append(x)
            x = self.mid(x)
            for m, b in zip(self.merge, self.up, strict=False):
                x = b(m(torch.cat([x, skips.pop()], -1)))
            return self.out(self.norm(x))

    return M(), torch.randn(B, T, 8)


@healthy("b40: mixture of experts with a router")
def h38_moe():
    class MoE(nn.Module):
        def __init__(self, n=3):
            super().__init__()
            self.router = nn.Linear(D, n, bias=False)
            self.experts = nn.ModuleList(SwiGLU() for _ in range(n))

        def forward(self, x):
            w, i = self.router(x).softmax(-1).topk(2, -1)
            w = w / w.sum(-1, keepdim=True)
            y = torch.zeros_like(x)
            for j, e in enumerate(self.experts):
                y = y + (w * (i == j)).sum(-1, keepdim=True) * e(x)
            return y

    blocks = [LlamaBlock() for _ in range(2)]
    for b in blocks:
        b.mlp = MoE()
    return Llama(blocks, RMS()), ids()


@healthy("b01: NormFormer, extra norms inside the branches")
def h39_normformer():
    class F1(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.n, self.b = nn.Linear(D, 64), nn.LayerNorm(64), nn.Linear(64, D)

        def forward(self, x):
            return self.b(self.n(F.gelu(self.a(x))))

    class L(nn.Module):
        def __init__(self):
            super().__init__()
            self.n1, self.n2, self.n3, self.a, self.f = (
                nn.LayerNorm(D),
                nn.LayerNorm(D),
                nn.LayerNorm(D),
                Attn(),
                F1(),
            )

        def forward(self, x, mask=None):
            x = x + self.n2(self.a(self.n1(x)))
            return x + self.f(self.n3(x))

    return GPT([L(), L()]), ids()


@healthy("b37: ViT with mean pooling, norm after the pooling")
def h40_vit_gap_fc_norm():
    layers = [Block(causal=False) for _ in range(3)]
    return ViT(layers, gap=True), torch.randn(B, 3, 12, 12)


# ---------------------------------------------------------------- runs


def build(function):
    """Return the model, its inputs and further arguments of `addnorm.doctor` for a case."""
    torch.manual_seed(0)
    case = function()
    return case if len(case) == 3 else (*case, {})
