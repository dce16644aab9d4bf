"""Models of torch, Hugging Face and x-transformers, and toy models in many notations.

ZOO maps a name to (build function, number of residual adds, wiring, tags of every add). A build
function returns the model and its inputs.
"""

import numpy
import torch
from torch import nn
from torch.nn import functional as F

L, D, H, V, B, T = 4, 64, 4, 100, 2, 12


def ids():
    return torch.randint(5, V, (B, T))


def vectors():
    return torch.randn(B, T, D)


def images(size=32):
    return torch.randn(B, 3, size, size)


def encoder(pre):
    layer = nn.TransformerEncoderLayer(D, H, 128, norm_first=pre, batch_first=True)
    norm = nn.LayerNorm(D) if pre else None
    return nn.TransformerEncoder(layer, L, norm=norm, enable_nested_tensor=False), vectors()


def pair(pre):
    return nn.Transformer(D, H, L, L, 128, norm_first=pre, batch_first=True), (vectors(), vectors())


def hf(name, config, inputs, **options):
    def make():
        import transformers

        transformers.logging.set_verbosity_error()
        return getattr(transformers, name)(getattr(transformers, config)(**options)), inputs()

    return make


def text():
    return {"input_ids": ids()}


def both():
    return {"input_ids": ids(), "decoder_input_ids": ids()}


def pixels():
    return {"pixel_values": images()}


def audio():
    return {"input_features": torch.randn(B, 8, 40), "decoder_input_ids": ids()}


def xt(**options):
    def make():
        from x_transformers import Decoder, TransformerWrapper

        layers = Decoder(dim=D, depth=L, heads=H, attn_dim_head=16, **options)
        return TransformerWrapper(num_tokens=V, max_seq_len=64, attn_layers=layers), ids()

    return make


SIZES = {
    "hidden_size": D, "num_hidden_layers": L, "num_attention_heads": H, "intermediate_size": 128,
    "vocab_size": V,
}  # fmt: skip
GROUPED = {**SIZES, "num_key_value_heads": 2}
HEADED = {**GROUPED, "head_dim": 16}
GPT = {"n_embd": D, "n_layer": L, "n_head": H, "vocab_size": V}
VISION = {
    "hidden_size": D, "num_hidden_layers": L, "num_attention_heads": H, "image_size": 32,
    "patch_size": 8,
}  # fmt: skip
PAIRED = {
    "d_model": D, "encoder_layers": L, "decoder_layers": L, "encoder_attention_heads": H,
    "decoder_attention_heads": H, "encoder_ffn_dim": 128, "decoder_ffn_dim": 128, "vocab_size": V,
}  # fmt: skip
SWIN = {
    "image_size": 32, "patch_size": 2, "embed_dim": 16, "depths": [2, 2], "num_heads": [2, 4],
    "window_size": 4,
}  # fmt: skip


# Toy models


class RMS(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.g = nn.Parameter(torch.ones(dim))

    def forward(self, x):
        return x / (x.pow(2).mean(-1, keepdim=True) + 1e-6).sqrt() * self.g


class DyT(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.a = nn.Parameter(torch.full((1,), 0.5))
        self.w, self.b = nn.Parameter(torch.ones(dim)), nn.Parameter(torch.zeros(dim))

    def forward(self, x):
        return torch.tanh(self.a * x) * self.w + self.b


class Kernel(torch.autograd.Function):
    """Layer norm inside a custom autograd function, opaque to the recorder."""

    @staticmethod
    def forward(ctx, x, g):
        a = x.detach().numpy()
        y = (a - a.mean(-1, keepdims=True)) / numpy.sqrt(a.var(-1, keepdims=True) + 1e-5)
        ctx.save_for_backward(x, g)
        return torch.from_numpy(y) * g

    @staticmethod
    def backward(ctx, grad):
        x, g = ctx.saved_tensors
        with torch.enable_grad():
            y = x.detach().requires_grad_()
            (back,) = torch.autograd.grad(F.layer_norm(y, y.shape[-1:]), y, grad * g)
        return back, None


class Hidden(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.g = nn.Parameter(torch.ones(dim))

    def forward(self, x):
        return Kernel.apply(x, self.g)


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(D, 2 * D), nn.Linear(2 * D, D)

    def forward(self, x):
        return self.down(F.gelu(self.up(x)))


class Toy(nn.Module):
    def __init__(self, step, norm):
        super().__init__()
        self.norm = nn.ModuleList([norm(D) for _ in range(L)])
        self.mlp = nn.ModuleList([Mlp() for _ in range(L)])
        self.scalar = nn.ParameterList([nn.Parameter(torch.zeros(1)) for _ in range(L)])
        self.vector = nn.ParameterList([nn.Parameter(torch.full((D,), 1e-4)) for _ in range(L)])
        self.step, self.embed, self.head = step, nn.Linear(D, D), nn.Linear(D, D)

    def forward(self, x):
        x = self.embed(x)
        for i in range(L):
            x = self.step(self, i, x)
        return self.head(x)


def toy(step, norm=RMS, flat=False):
    return lambda: (Toy(step, norm), torch.randn(24, D) if flat else vectors())


def branch(s, i, x):
    return s.mlp[i](s.norm[i](x))


def in_place(s, i, x):
    h = branch(s, i, x)
    h += x
    return h


def fused_product(s, i, x):
    return torch.addmm(x, F.gelu(s.mlp[i].up(s.norm[i](x))), s.mlp[i].down.weight.t())


def in_double(s, i, x):
    return (x.double() + branch(s, i, x).double()).float()


def in_parallel(s, i, x):
    return x + branch(s, i, x) + s.mlp[(i + 1) % L](s.norm[i](x))


def by_data(s, i, x):
    return x + branch(s, i, x) if x.abs().mean().item() > -1 else x


class ViTBlock(nn.Module):
    """timm block: fused query-key-value matrix, LayerScale, DropPath."""

    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(D), nn.LayerNorm(D)
        self.qkv, self.proj = nn.Linear(D, 3 * D), nn.Linear(D, D)
        self.mlp = Mlp()
        self.g1, self.g2 = (nn.Parameter(torch.full((D,), 1e-5)) for _ in range(2))

    def attend(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(x).reshape(b, t, 3, H, d // H).permute(2, 0, 3, 1, 4).unbind(0)
        return self.proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, t, d))

    def drop(self, x):
        if not self.training:
            return x
        return x * x.new_empty(x.shape[0], 1, 1).bernoulli_(0.9).div_(0.9)

    def forward(self, x):
        x = x + self.drop(self.g1 * self.attend(self.norm1(x)))
        return x + self.drop(self.mlp(self.norm2(x)).mul_(self.g2))


class ViT(nn.Module):
    def __init__(self):
        super().__init__()
        self.patch, self.start = nn.Conv2d(3, D, 8, 8), nn.Parameter(torch.zeros(1, 1, D))
        self.place = nn.Parameter(torch.randn(1, 17, D) * 0.02)
        self.blocks = nn.Sequential(*[ViTBlock() for _ in range(L)])
        self.norm, self.head = nn.LayerNorm(D), nn.Linear(D, 10)

    def forward(self, x):
        x = self.patch(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.start.expand(x.shape[0], -1, -1), x], 1) + self.place
        return self.head(self.norm(self.blocks(x))[:, 0])


class Basic(nn.Module):
    """ResNet block with in-place operations."""

    def __init__(self, inside, outside, stride):
        super().__init__()
        self.c1, self.b1 = nn.Conv2d(inside, outside, 3, stride, 1), nn.BatchNorm2d(outside)
        self.c2, self.b2 = nn.Conv2d(outside, outside, 3, 1, 1), nn.BatchNorm2d(outside)
        self.short = None
        if stride > 1:
            self.short = nn.Sequential(
                nn.Conv2d(inside, outside, 1, stride), nn.BatchNorm2d(outside)
            )
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x):
        skip = x if self.short is None else self.short(x)
        out = self.b2(self.c2(self.relu(self.b1(self.c1(x)))))
        out += skip
        return self.relu(out)


def resnet():
    body = [nn.Conv2d(3, 16, 3, 1, 1), nn.BatchNorm2d(16), nn.ReLU(inplace=True)]
    body += [Basic(16, 16, 1), Basic(16, 32, 2), Basic(32, 32, 1), nn.AdaptiveAvgPool2d(1)]
    return nn.Sequential(*body, nn.Flatten(), nn.Linear(32, 10)), images(16)


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(16, 16), nn.Linear(16, 16)

    def forward(self, x):
        h = torch.zeros(x.shape[0], 16)
        for t in range(x.shape[1]):
            h = torch.tanh(self.a(x[:, t]) + self.b(h))
        return h


def mlp():
    layers = [nn.Linear(16, 32), nn.LayerNorm(32), nn.ReLU(), nn.Linear(32, 32), nn.LayerNorm(32)]
    return nn.Sequential(*layers, nn.GELU(), nn.Linear(32, 4)), torch.randn(8, 16)


PRE, POST, NOTHING = "pre_ln", "post_ln", set()
ZOO = {
    "nn.TransformerEncoder post": (lambda: encoder(False), 2 * L, POST, NOTHING),
    "nn.TransformerEncoder pre": (lambda: encoder(True), 2 * L, PRE, NOTHING),
    "nn.Transformer post": (lambda: pair(False), 5 * L, POST, NOTHING),
    "nn.Transformer pre": (lambda: pair(True), 5 * L, PRE, NOTHING),
    "BERT": (hf("BertModel", "BertConfig", text, **SIZES), 2 * L, POST, NOTHING),
    "RoBERTa": (hf("RobertaForMaskedLM", "RobertaConfig", text, **SIZES), 2 * L, POST, NOTHING),
    "DistilBERT": (hf("DistilBertModel", "DistilBertConfig", text, dim=D, n_layers=L, n_heads=H,
                      hidden_dim=128, vocab_size=V), 2 * L, POST, NOTHING),
    "ALBERT": (hf("AlbertModel", "AlbertConfig", text, **SIZES, embedding_size=32), 2 * L, POST,
               NOTHING),
    "GPT-2": (hf("GPT2LMHeadModel", "GPT2Config", text, **GPT), 2 * L, PRE, NOTHING),
    "OPT": (hf("OPTForCausalLM", "OPTConfig", text, hidden_size=D, num_hidden_layers=L,
               num_attention_heads=H, ffn_dim=128, vocab_size=V, word_embed_proj_dim=D), 2 * L, PRE,
            NOTHING),
    "BLOOM": (hf("BloomForCausalLM", "BloomConfig", text, hidden_size=D, n_layer=L, n_head=H,
                 vocab_size=V), 2 * L, PRE, NOTHING),
    "T5": (hf("T5ForConditionalGeneration", "T5Config", both, d_model=D, num_layers=L, num_heads=H,
              d_kv=16, d_ff=128, vocab_size=V), 5 * L, PRE, NOTHING),
    "Llama": (hf("LlamaForCausalLM", "LlamaConfig", text, **GROUPED), 2 * L, PRE, NOTHING),
    "Qwen3": (hf("Qwen3ForCausalLM", "Qwen3Config", text, **HEADED), 2 * L, PRE, NOTHING),
    "Gemma 2": (hf("Gemma2ForCausalLM", "Gemma2Config", text, **HEADED), 2 * L, "sandwich",
                NOTHING),
    "OLMo 2": (hf("Olmo2ForCausalLM", "Olmo2Config", text, **GROUPED, pad_token_id=0), 2 * L,
               "res_post", NOTHING),
    "Mixtral": (hf("MixtralForCausalLM", "MixtralConfig", text, **GROUPED, num_local_experts=4),
                2 * L, PRE, NOTHING),
    "Granite": (hf("GraniteForCausalLM", "GraniteConfig", text, **GROUPED,
                   residual_multiplier=0.22), 2 * L, PRE, {"scaled-branch"}),
    "Marian": (hf("MarianMTModel", "MarianConfig", both, **PAIRED, pad_token_id=0,
                  decoder_start_token_id=0, eos_token_id=1, forced_eos_token_id=1), 5 * L, POST,
               NOTHING),
    "BART": (hf("BartForConditionalGeneration", "BartConfig", both, **PAIRED), 5 * L, POST,
             NOTHING),
    "GPT-J": (hf("GPTJForCausalLM", "GPTJConfig", text, **GPT, rotary_dim=8), L, PRE,
              {"parallel"}),
    "GPT-NeoX": (hf("GPTNeoXForCausalLM", "GPTNeoXConfig", text, **SIZES), L, PRE, {"parallel"}),
    "Falcon": (hf("FalconForCausalLM", "FalconConfig", text, hidden_size=D, num_hidden_layers=L,
                  num_attention_heads=H, vocab_size=V, new_decoder_architecture=False,
                  parallel_attn=True), L, PRE, {"parallel"}),
    "Cohere": (hf("CohereForCausalLM", "CohereConfig", text, **GROUPED), 2 * L, PRE, {"parallel"}),
    "ViT": (hf("ViTModel", "ViTConfig", pixels, **VISION, intermediate_size=128), 2 * L, PRE,
            NOTHING),
    "DINOv2": (hf("Dinov2Model", "Dinov2Config", pixels, **VISION, mlp_ratio=2), 2 * L, PRE,
               {"layer-scale"}),
    "BEiT": (hf("BeitModel", "BeitConfig", pixels, **VISION, intermediate_size=128, vocab_size=V,
                layer_scale_init_value=0.1), 2 * L, PRE, {"layer-scale"}),
    "Swin": (hf("SwinModel", "SwinConfig", pixels, **SWIN), 8, PRE, NOTHING),
    "Swin v2": (hf("Swinv2Model", "Swinv2Config", pixels, **SWIN), 8, "res_post", NOTHING),
    "ConvNeXt": (hf("ConvNextModel", "ConvNextConfig", pixels, hidden_sizes=[16, 32], depths=[2, 2],
                    num_stages=2, image_size=32), 4, "mid-norm", {"layer-scale"}),
    "ResNet": (hf("ResNetModel", "ResNetConfig", lambda: {"pixel_values": images(64)},
                  embedding_size=16, hidden_sizes=[16, 32], depths=[2, 2], layer_type="basic"), 4,
               "res_post", {"activation-after-add"}),
    "Whisper": (hf("WhisperModel", "WhisperConfig", audio, **{**PAIRED, "encoder_layers": 2,
                   "decoder_layers": 2}, max_source_positions=20, num_mel_bins=8, pad_token_id=0,
                   decoder_start_token_id=1, bos_token_id=1, eos_token_id=1), 10, PRE, NOTHING),
    "Mamba": (hf("MambaForCausalLM", "MambaConfig", text, hidden_size=D, num_hidden_layers=L,
                 vocab_size=V), L, PRE, NOTHING),
    "FNet": (hf("FNetModel", "FNetConfig", text, hidden_size=D, num_hidden_layers=L,
                intermediate_size=128, vocab_size=V), 2 * L, POST, NOTHING),
    "DeBERTa v2": (hf("DebertaV2Model", "DebertaV2Config", text, **SIZES), 2 * L, POST, NOTHING),
    "x default": (xt(), 2 * L, PRE, NOTHING),
    "x post": (xt(pre_norm=False), 2 * L, POST, NOTHING),
    "x sandwich": (xt(sandwich_norm=True), 2 * L, "sandwich", NOTHING),
    "x hyper-connections": (xt(num_residual_streams=4), 2 * L, PRE, {"hyper-connections"}),
    "x llama": (xt(use_rmsnorm=True, rotary_pos_emb=True, ff_glu=True, ff_swish=True), 2 * L, PRE,
                NOTHING),
    "x scaled": (xt(scale_residual=True), 2 * L, PRE, {"scaled-shortcut"}),
    "x gated": (xt(gate_residual=True), 2 * L, PRE, {"gated"}),
    "x residual attention": (xt(residual_attn=True), 2 * L, PRE, NOTHING),
    "x query-key norm": (xt(attn_qk_norm=True), 2 * L, PRE, NOTHING),
    "x macaron": (xt(macaron=True), 3 * L, PRE, NOTHING),
    "x layer-scale": (xt(use_layerscale=True), 2 * L, PRE, {"layer-scale"}),
    "timm ViT": (lambda: (ViT(), images()), 2 * L, PRE, {"layer-scale"}),
    "toy ResNet": (resnet, 3, "res_post", {"activation-after-add"}),
    "MLP": (mlp, 0, PRE, NOTHING),
    "RNN": (lambda: (Recurrent(), torch.randn(4, 6, 16)), 0, PRE, NOTHING),
    "LSTM": (lambda: (nn.LSTM(16, 16, 2, batch_first=True), torch.randn(4, 6, 16)), 0, PRE,
             NOTHING),
    "in place": (toy(in_place), L, PRE, NOTHING),
    "alpha": (toy(lambda s, i, x: torch.add(x, branch(s, i, x), alpha=0.5)), L, PRE,
              {"scaled-branch"}),
    "addcmul": (toy(lambda s, i, x: torch.addcmul(x, s.vector[i], branch(s, i, x))), L, PRE,
                {"layer-scale"}),
    "addmm": (toy(fused_product, flat=True), L, PRE, NOTHING),
    "ReZero": (toy(lambda s, i, x: x + s.scalar[i] * s.mlp[i](x)), L, "none", {"rezero"}),
    "DeepNorm": (toy(lambda s, i, x: s.norm[i](x * 1.7 + s.mlp[i](x)), nn.LayerNorm), L, POST,
                 {"scaled-shortcut"}),
    "double": (toy(in_double), L, PRE, NOTHING),
    "no norm": (toy(lambda s, i, x: x + s.mlp[i](x)), L, "none", NOTHING),
    "parallel": (toy(in_parallel), 2 * L, PRE, {"parallel"}),
    "hidden kernel": (toy(lambda s, i, x: x + branch(s, i, x), Hidden), L, PRE, NOTHING),
    "DyT": (toy(lambda s, i, x: x + branch(s, i, x), DyT), L, PRE, NOTHING),
    "control flow": (toy(by_data), L, PRE, NOTHING),
}  # fmt: skip
OPTIONAL_TAGS = {"projection-shortcut", "scaled-branch"}
"""Further tags that some adds of a model may have."""
