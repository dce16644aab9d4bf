"""Twenty more architectures, with the expected report of each.

As in unseen_first.py, the expectations were written before the first run and are not to be changed
to fit a result: the class of each residual add in order, and tags that each must have.
"""

import torch
from torch import nn
from torch.nn import functional as F

from tests.doctor.models.unseen_first import (
    DIM,
    HEADS,
    LAYERS,
    LENGTH,
    PAD,
    SIZES,
    VOCAB,
    hf,
    ids,
    images,
    tokens,
    vectors,
)

PRE, POST = "pre_ln", "post_ln"


def attention():
    return nn.MultiheadAttention(DIM, HEADS, batch_first=True)


def mlp(dim=DIM, wide=48):
    return nn.Sequential(nn.Linear(dim, wide), nn.GELU(), nn.Linear(wide, dim))


class ClassAttention(nn.Module):
    """CaiT: layers on patches, then layers that update a class token only; all with LayerScale."""

    def __init__(self):
        super().__init__()
        self.patch = nn.Conv2d(3, DIM, 8, 8)
        self.start = nn.Parameter(torch.randn(1, 1, DIM))
        self.norms = nn.ModuleList([nn.LayerNorm(DIM) for _ in range(8)])
        self.looks = nn.ModuleList([attention() for _ in range(4)])
        self.mlps = nn.ModuleList([mlp() for _ in range(4)])
        self.gains = nn.ParameterList([nn.Parameter(torch.full((DIM,), 1e-4)) for _ in range(8)])
        self.last = nn.LayerNorm(DIM)

    def forward(self, pictures):
        x = self.patch(pictures).flatten(2).transpose(1, 2)
        for i in range(2):
            h = self.norms[2 * i](x)
            x = x + self.gains[2 * i] * self.looks[i](h, h, h, need_weights=False)[0]
            x = x + self.gains[2 * i + 1] * self.mlps[i](self.norms[2 * i + 1](x))
        c = self.start.expand(len(x), -1, -1)
        for i in range(2, 4):
            u = self.norms[2 * i](torch.cat([c, x], 1))
            c = c + self.gains[2 * i] * self.looks[i](u[:, :1], u, u, need_weights=False)[0]
            c = c + self.gains[2 * i + 1] * self.mlps[i](self.norms[2 * i + 1](c))
        return self.last(torch.cat([c, x], 1))[:, 0]


class GatedMLP(nn.Module):
    """gMLP: one block per layer, which mixes tokens in a gate."""

    def __init__(self):
        super().__init__()
        self.norm, self.inner = nn.LayerNorm(DIM), nn.LayerNorm(24)
        self.up, self.down = nn.Linear(DIM, 48), nn.Linear(24, DIM)
        self.tokens = nn.Conv1d(LENGTH, LENGTH, 1)

    def forward(self, x):
        u, v = F.gelu(self.up(self.norm(x))).chunk(2, dim=-1)
        return x + self.down(u * self.tokens(self.inner(v)))


class AffineMLP(nn.Module):
    """ResMLP: no norms, only an affine map before and a gain after each branch."""

    def __init__(self):
        super().__init__()
        vector = lambda value: nn.Parameter(torch.full((DIM,), value))  # noqa: E731
        self.a, self.b, self.c, self.d = vector(1.0), vector(0.0), vector(1.0), vector(0.0)
        self.g, self.h = vector(0.1), vector(0.1)
        self.tokens, self.features = nn.Linear(LENGTH, LENGTH), mlp()

    def forward(self, x):
        x = x + self.g * self.tokens((x * self.a + self.b).mT).mT
        return x + self.h * self.features(x * self.c + self.d)


class Inverted(nn.Module):
    """MobileNet v2: inverted bottleneck, linear output, a norm after each convolution."""

    def __init__(self, inside, outside, stride):
        super().__init__()
        wide = 2 * inside
        self.body = nn.Sequential(
            nn.Conv2d(inside, wide, 1, bias=False), nn.BatchNorm2d(wide), nn.ReLU6(True),
            nn.Conv2d(wide, wide, 3, stride, 1, groups=wide, bias=False), nn.BatchNorm2d(wide),
            nn.ReLU6(True), nn.Conv2d(wide, outside, 1, bias=False), nn.BatchNorm2d(outside),
        )  # fmt: skip
        self.same = stride == 1 and inside == outside

    def forward(self, x):
        return x + self.body(x) if self.same else self.body(x)


def mobile():
    body = [nn.Conv2d(3, 8, 3, 2, 1), Inverted(8, 8, 1), Inverted(8, 16, 2), Inverted(16, 16, 1)]
    body += [Inverted(16, 16, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 5)]
    return nn.Sequential(*body), images(16)


class Universal(nn.Module):
    """Universal Transformer: one Post-LN layer applied repeatedly, with a time signal."""

    def __init__(self):
        super().__init__()
        self.look, self.ffn = attention(), mlp()
        self.one, self.two = nn.LayerNorm(DIM), nn.LayerNorm(DIM)
        self.times = nn.Parameter(torch.randn(LAYERS, DIM))

    def forward(self, x):
        for turn in range(LAYERS):
            x = x + self.times[turn]
            x = self.one(x + self.look(x, x, x, need_weights=False)[0])
            x = self.two(x + self.ffn(x))
        return x


class Perceiver(nn.Module):
    """Learned latents with cross-attention to the input, then self-attention."""

    def __init__(self):
        super().__init__()
        self.latents = nn.Parameter(torch.randn(4, DIM))
        self.cross, self.looks = attention(), nn.ModuleList([attention() for _ in range(2)])
        self.mlps = nn.ModuleList([mlp() for _ in range(3)])
        self.norms = nn.ModuleList([nn.LayerNorm(DIM) for _ in range(8)])

    def forward(self, x):
        n = self.norms
        z = self.latents.unsqueeze(0).repeat(len(x), 1, 1)
        keys = n[0](x)
        z = z + self.cross(n[1](z), keys, keys, need_weights=False)[0]
        z = z + self.mlps[0](n[2](z))
        for i in range(2):
            h = n[3 + 2 * i](z)
            z = z + self.looks[i](h, h, h, need_weights=False)[0]
            z = z + self.mlps[i + 1](n[4 + 2 * i](z))
        return n[7](z).mean(1)


class WaveNet(nn.Module):
    """Dilated gated convolutions with a residual connection and no norm."""

    def __init__(self):
        super().__init__()
        self.first = nn.Conv1d(3, DIM, 1)
        self.wide = nn.ModuleList([nn.Conv1d(DIM, 2 * DIM, 2, dilation=2**i) for i in range(3)])
        self.back = nn.ModuleList([nn.Conv1d(DIM, DIM, 1) for _ in range(3)])
        self.last = nn.Conv1d(DIM, 5, 1)

    def forward(self, x):
        x = self.first(x)
        for i, (wide, back) in enumerate(zip(self.wide, self.back, strict=True)):
            a, b = wide(F.pad(x, (2**i, 0))).chunk(2, dim=1)
            x = x + back(torch.tanh(a) * torch.sigmoid(b))
        return self.last(torch.relu(x))


class NormFormer(nn.Module):
    """Pre-LN with a norm after attention and one inside the feed-forward."""

    def __init__(self):
        super().__init__()
        self.one, self.behind, self.two = (nn.LayerNorm(DIM) for _ in range(3))
        self.inside = nn.LayerNorm(48)
        self.look, self.up, self.down = attention(), nn.Linear(DIM, 48), nn.Linear(48, DIM)

    def forward(self, x):
        h = self.one(x)
        x = x + self.behind(self.look(h, h, h, need_weights=False)[0])
        return x + self.down(self.inside(F.gelu(self.up(self.two(x)))))


class Highway(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.gate, self.norm = mlp(), nn.Linear(DIM, DIM), nn.LayerNorm(DIM)

    def forward(self, x):
        h = self.norm(x)
        t = torch.sigmoid(self.gate(h))
        return t * self.body(h) + (1 - t) * x


class Bare(nn.Module):
    """Llama in one function: weights in a dict, every operation written out."""

    def __init__(self):
        super().__init__()
        self.w = nn.ParameterDict({"table": nn.Parameter(torch.randn(VOCAB, DIM))})
        for i in range(LAYERS):
            square, wide, narrow = (DIM, DIM), (DIM, 48), (48, DIM)
            shapes = {"q": square, "k": square, "v": square, "o": square}
            for name, shape in {**shapes, "up": wide, "gate": wide, "down": narrow}.items():
                self.w[f"{name}{i}"] = nn.Parameter(torch.randn(shape) / shape[0] ** 0.5)
            for name in ("n", "m"):
                self.w[f"{name}{i}"] = nn.Parameter(torch.ones(DIM))
        self.w["final"] = nn.Parameter(torch.ones(DIM))

    def rms(self, x, name):
        return x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt() * self.w[name]

    def forward(self, tokens):
        w = self.w
        x = w["table"][tokens]
        b, t, _ = x.shape
        for i in range(LAYERS):
            h = self.rms(x, f"n{i}")
            q, k, v = ((h @ w[f"{n}{i}"]).reshape(b, t, HEADS, -1).swapaxes(1, 2) for n in "qkv")
            weights = torch.einsum("bhqd,bhkd->bhqk", q, k) * (DIM // HEADS) ** -0.5
            weights = weights + torch.full((t, t), float("-inf")).triu(1)
            y = torch.einsum("bhqk,bhkd->bhqd", F.softmax(weights, dim=-1), v)
            x = x + y.swapaxes(1, 2).reshape(b, t, DIM) @ w[f"o{i}"]
            h = self.rms(x, f"m{i}")
            x = x + (F.silu(h @ w[f"gate{i}"]) * (h @ w[f"up{i}"])) @ w[f"down{i}"]
        return self.rms(x, "final") @ w["table"].T


def paired(name, config, **options):
    sizes = {
        "d_model": DIM, "encoder_layers": LAYERS, "decoder_layers": LAYERS, "vocab_size": VOCAB,
        "encoder_attention_heads": HEADS, "decoder_attention_heads": HEADS, "encoder_ffn_dim": 48,
        "decoder_ffn_dim": 48, "max_position_embeddings": 32,
    }  # fmt: skip
    return lambda: hf(name, config, {"input_ids": ids(), "decoder_input_ids": ids()[:, :7]},
                      **sizes, **options)  # fmt: skip


GROUPED = {**SIZES, "num_key_value_heads": 2}
SECOND_SET = {
    "XGLM": (tokens("XGLMForCausalLM", "XGLMConfig", d_model=DIM, num_layers=LAYERS, ffn_dim=48,
                    attention_heads=HEADS, vocab_size=VOCAB), [PRE] * 2 * LAYERS, set()),
    "CodeGen": (tokens("CodeGenForCausalLM", "CodeGenConfig", n_embd=DIM, n_layer=LAYERS,
                       n_head=HEADS, vocab_size=VOCAB, rotary_dim=8), [PRE] * LAYERS, {"parallel"}),
    "EXAONE 4": (tokens("Exaone4ForCausalLM", "Exaone4Config", **GROUPED),
                 ["res_post"] * 2 * LAYERS, set()),
    "GraniteMoE": (tokens("GraniteMoeForCausalLM", "GraniteMoeConfig", **GROUPED,
                          num_local_experts=4, residual_multiplier=0.3), [PRE] * 2 * LAYERS,
                   {"scaled-branch"}),
    "Nemotron": (tokens("NemotronForCausalLM", "NemotronConfig", **GROUPED), [PRE] * 2 * LAYERS,
                 set()),
    "OPT with Post-LN": (
        tokens("OPTForCausalLM", "OPTConfig", hidden_size=DIM, num_hidden_layers=LAYERS, ffn_dim=48,
               num_attention_heads=HEADS, vocab_size=VOCAB, word_embed_proj_dim=16,
               do_layer_norm_before=False), [POST] * 2 * LAYERS, set()),
    "ConvBERT": (tokens("ConvBertModel", "ConvBertConfig", **SIZES, embedding_size=DIM),
                 [POST] * 2 * LAYERS, set()),
    "M2M-100": (paired("M2M100Model", "M2M100Config", **PAD), [PRE] * 5 * LAYERS, set()),
    "ESM": (tokens("EsmModel", "EsmConfig", **SIZES, pad_token_id=0, mask_token_id=3,
                   position_embedding_type="rotary"), [PRE] * 2 * LAYERS, set()),
    "DeiT": (lambda: hf("DeiTModel", "DeiTConfig", {"pixel_values": images()}, hidden_size=DIM,
                        num_hidden_layers=LAYERS, num_attention_heads=HEADS, intermediate_size=48,
                        image_size=32, patch_size=8), [PRE] * 2 * LAYERS, set()),
    "CaiT, written out": (lambda: (ClassAttention(), images()), [PRE] * 8, {"layer-scale"}),
    "gMLP, written out": (
        lambda: (nn.Sequential(*[GatedMLP() for _ in range(LAYERS)], nn.LayerNorm(DIM)), vectors()),
        [PRE] * LAYERS, set()),
    "ResMLP, written out": (
        lambda: (nn.Sequential(*[AffineMLP() for _ in range(LAYERS)]), vectors()),
        ["none"] * 2 * LAYERS, {"layer-scale"}),
    "MobileNet v2, written out": (mobile, ["res_post"] * 3, set()),
    "Universal Transformer, written out": (lambda: (Universal(), vectors()), [POST] * 2 * LAYERS,
                                           set()),
    "Perceiver, written out": (lambda: (Perceiver(), vectors()), [PRE] * 6, set()),
    "WaveNet, written out": (lambda: (WaveNet(), torch.randn(2, 3, 20)), ["none"] * 3, set()),
    "NormFormer, written out": (
        lambda: (nn.Sequential(*[NormFormer() for _ in range(LAYERS)], nn.LayerNorm(DIM)),
                 vectors()), ["sandwich", PRE] * LAYERS, set()),
    "Highway, written out": (
        lambda: (nn.Sequential(*[Highway() for _ in range(LAYERS)], nn.LayerNorm(DIM)), vectors()),
        [PRE] * LAYERS, {"gated"}),
    "Llama, in one function": (lambda: (Bare(), ids()), [PRE] * 2 * LAYERS, set()),
}  # fmt: skip
