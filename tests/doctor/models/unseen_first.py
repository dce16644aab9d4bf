"""Twenty architectures that are not in the zoo, with the expected report of each.

The expectations were written before the first run and are not to be changed to fit a result. They
state the residual adds, the class of each, and tags that each must have.
"""

import torch
from torch import nn

LAYERS, DIM, HEADS, VOCAB, BATCH, LENGTH = 3, 32, 4, 60, 2, 10


def ids():
    return torch.randint(5, VOCAB, (BATCH, LENGTH))


def images(size=32):
    return torch.randn(BATCH, 3, size, size)


def hf(name, config, example, **options):
    import transformers

    transformers.logging.set_verbosity_error()
    return getattr(transformers, name)(getattr(transformers, config)(**options)), example


SIZES = {
    "hidden_size": DIM, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS,
    "intermediate_size": 48, "vocab_size": VOCAB,
}  # fmt: skip
PAD = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}


class GRUGate(nn.Module):
    """Gate of GTrXL, written out."""

    def __init__(self, dim):
        super().__init__()
        self.w = nn.ModuleList([nn.Linear(dim, dim, bias=False) for _ in range(6)])
        self.bias = nn.Parameter(torch.full((dim,), 2.0))

    def forward(self, x, y):
        r = torch.sigmoid(self.w[0](y) + self.w[1](x))
        z = torch.sigmoid(self.w[2](y) + self.w[3](x) - self.bias)
        h = torch.tanh(self.w[4](y) + self.w[5](r * x))
        return (1 - z) * x + z * h


class GTrXL(nn.Module):
    def __init__(self):
        super().__init__()
        make = nn.ModuleList
        self.norms = make([nn.LayerNorm(DIM) for _ in range(2 * LAYERS)])
        self.gates = make([GRUGate(DIM) for _ in range(2 * LAYERS)])
        self.looks = make(
            [nn.MultiheadAttention(DIM, HEADS, batch_first=True) for _ in range(LAYERS)]
        )
        self.mlps = make(
            [
                nn.Sequential(nn.Linear(DIM, 48), nn.ReLU(), nn.Linear(48, DIM))
                for _ in range(LAYERS)
            ]
        )

    def forward(self, x):
        for i in range(LAYERS):
            h = self.norms[2 * i](x)
            x = self.gates[2 * i](x, torch.relu(self.looks[i](h, h, h)[0]))
            x = self.gates[2 * i + 1](x, torch.relu(self.mlps[i](self.norms[2 * i + 1](x))))
        return x


class MixerBlock(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two = nn.LayerNorm(DIM), nn.LayerNorm(DIM)
        self.tokens = nn.Sequential(nn.Linear(LENGTH, 20), nn.GELU(), nn.Linear(20, LENGTH))
        self.features = nn.Sequential(nn.Linear(DIM, 48), nn.GELU(), nn.Linear(48, DIM))

    def forward(self, x):
        x = x + self.tokens(self.one(x).transpose(1, 2)).transpose(1, 2)
        return x + self.features(self.two(x))


class ConformerBlock(nn.Module):
    def __init__(self):
        super().__init__()

        def mlp():
            return nn.Sequential(
                nn.LayerNorm(DIM), nn.Linear(DIM, 48), nn.SiLU(), nn.Dropout(0.1),
                nn.Linear(48, DIM), nn.Dropout(0.1),
            )  # fmt: skip

        self.first, self.second = mlp(), mlp()
        self.norm = nn.LayerNorm(DIM)
        self.look = nn.MultiheadAttention(DIM, HEADS, batch_first=True)
        self.conv_norm = nn.LayerNorm(DIM)
        self.wide, self.back = nn.Conv1d(DIM, 2 * DIM, 1), nn.Conv1d(DIM, DIM, 1)
        self.deep, self.batch = nn.Conv1d(DIM, DIM, 3, padding=1, groups=DIM), nn.BatchNorm1d(DIM)
        self.last = nn.LayerNorm(DIM)

    def conv(self, x):
        h = nn.functional.glu(self.wide(self.conv_norm(x).transpose(1, 2)), dim=1)
        return self.back(nn.functional.silu(self.batch(self.deep(h)))).transpose(1, 2)

    def forward(self, x):
        x = x + 0.5 * self.first(x)
        h = self.norm(x)
        x = x + self.look(h, h, h, need_weights=False)[0]
        x = x + self.conv(x)
        x = x + 0.5 * self.second(x)
        return self.last(x)


class PreActivation(nn.Module):
    def __init__(self, inside, outside, stride):
        super().__init__()
        self.bn1, self.bn2 = nn.BatchNorm2d(inside), nn.BatchNorm2d(outside)
        self.conv1 = nn.Conv2d(inside, outside, 3, stride, 1, bias=False)
        self.conv2 = nn.Conv2d(outside, outside, 3, 1, 1, bias=False)
        self.short = nn.Conv2d(inside, outside, 1, stride, bias=False) if stride > 1 else None

    def forward(self, x):
        h = torch.relu(self.bn1(x))
        skip = x if self.short is None else self.short(h)
        return self.conv2(torch.relu(self.bn2(self.conv1(h)))) + skip


def vectors():
    return torch.randn(BATCH, LENGTH, DIM)


def table_model():
    from rtdl_revisiting_models import FTTransformer

    model = FTTransformer(
        n_cont_features=4, cat_cardinalities=[3, 5], d_out=2, n_blocks=3, d_block=DIM,
        attention_n_heads=4, attention_dropout=0.1, ffn_d_hidden_multiplier=1.5, ffn_dropout=0.1,
        residual_dropout=0.0,
    )  # fmt: skip
    return model, (torch.randn(5, 4), torch.stack([torch.randint(0, c, (5,)) for c in (3, 5)], 1))


def clip():
    text = {**SIZES, "max_position_embeddings": 16, "projection_dim": 16, **PAD}
    vision = {
        "hidden_size": DIM, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS,
        "intermediate_size": 48, "image_size": 16, "patch_size": 8, "projection_dim": 16,
    }  # fmt: skip
    example = {"input_ids": ids(), "pixel_values": images(16)}
    return hf("CLIPModel", "CLIPConfig", example, text_config=text, vision_config=vision,
              projection_dim=16)  # fmt: skip


def resnet_v2():
    body = [nn.Conv2d(3, 8, 3, 1, 1), PreActivation(8, 8, 1), PreActivation(8, 16, 2)]
    body += [PreActivation(16, 16, 1), nn.BatchNorm2d(16), nn.ReLU(), nn.AdaptiveAvgPool2d(1)]
    return nn.Sequential(*body, nn.Flatten(), nn.Linear(16, 5)), images(16)


def tokens(name, config, **options):
    return lambda: hf(name, config, {"input_ids": ids()}, **options)


PRE, POST = "pre_ln", "post_ln"
FIRST_SET = {
    # name: (build function, wiring of each add, tags of every add)
    "Phi": (tokens("PhiForCausalLM", "PhiConfig", **SIZES), [PRE] * LAYERS, {"parallel"}),
    "GPT-Neo": (
        tokens("GPTNeoForCausalLM", "GPTNeoConfig", hidden_size=DIM, num_layers=LAYERS,
               num_heads=HEADS, vocab_size=VOCAB, intermediate_size=48,
               attention_types=[[["global", "local", "global"], 1]]),
        [PRE] * 2 * LAYERS, set()),
    "ELECTRA": (tokens("ElectraModel", "ElectraConfig", **SIZES, embedding_size=16),
                [POST] * 2 * LAYERS, set()),
    "Gemma": (tokens("GemmaForCausalLM", "GemmaConfig", **SIZES, num_key_value_heads=2, head_dim=8),
              [PRE] * 2 * LAYERS, set()),
    "GLM-4": (tokens("Glm4ForCausalLM", "Glm4Config", **SIZES, num_key_value_heads=2, head_dim=8,
                     **PAD), ["sandwich"] * 2 * LAYERS, set()),
    "StableLM": (tokens("StableLmForCausalLM", "StableLmConfig", **SIZES, num_key_value_heads=2),
                 [PRE] * 2 * LAYERS, set()),
    "wav2vec 2.0": (
        lambda: hf("Wav2Vec2Model", "Wav2Vec2Config", {"input_values": torch.randn(BATCH, 400)},
                   **SIZES, conv_dim=[16, 16], conv_stride=[4, 2], conv_kernel=[8, 3],
                   num_feat_extract_layers=2, num_conv_pos_embeddings=8,
                   num_conv_pos_embedding_groups=2, mask_time_prob=0.0),
        [POST] * (2 * LAYERS + 1), set()),  # the positions are a convolution of the stream
    "XLNet": (tokens("XLNetModel", "XLNetConfig", d_model=DIM, n_layer=LAYERS, n_head=HEADS,
                     d_inner=48, vocab_size=VOCAB), [POST] * 2 * LAYERS, set()),
    "MPT": (tokens("MptForCausalLM", "MptConfig", d_model=DIM, n_layers=LAYERS, n_heads=HEADS,
                   vocab_size=VOCAB, max_seq_len=32), [PRE] * 2 * LAYERS, set()),
    "OLMo": (tokens("OlmoForCausalLM", "OlmoConfig", **SIZES, num_key_value_heads=2, **PAD),
             [PRE] * 2 * LAYERS, set()),
    "SegFormer": (
        lambda: hf("SegformerModel", "SegformerConfig", {"pixel_values": images()},
                   num_encoder_blocks=2, depths=[1, 2], sr_ratios=[2, 1], hidden_sizes=[16, 32],
                   patch_sizes=[3, 3], strides=[2, 2], num_attention_heads=[1, 2],
                   mlp_ratios=[2, 2]),
        [PRE] * 6, set()),
    "PoolFormer": (
        lambda: hf("PoolFormerModel", "PoolFormerConfig", {"pixel_values": images()},
                   num_encoder_blocks=2, depths=[1, 2], hidden_sizes=[16, 32],
                   patch_sizes=[3, 3], strides=[2, 2], padding=[1, 1], mlp_ratio=2.0),
        [PRE] * 6, {"layer-scale"}),
    "CLIP": (clip, [PRE] * 4 * LAYERS, set()),
    "StarCoder 2": (tokens("Starcoder2ForCausalLM", "Starcoder2Config", **SIZES,
                           num_key_value_heads=2, **PAD), [PRE] * 2 * LAYERS, set()),
    "FT-Transformer": (table_model, ["none", *[PRE] * 5], set()),  # without its first norm
    "GTrXL, written out": (lambda: (GTrXL(), vectors()), [PRE] * 2 * LAYERS, {"gated"}),
    "MLP-Mixer, written out": (
        lambda: (nn.Sequential(*[MixerBlock() for _ in range(LAYERS)], nn.LayerNorm(DIM)),
                 vectors()),
        [PRE] * 2 * LAYERS, set()),
    "Conformer, written out": (
        lambda: (nn.Sequential(*[ConformerBlock() for _ in range(LAYERS)]), vectors()),
        [PRE, PRE, PRE, "pre_post"] * LAYERS, set()),
    "ResNet v2, written out": (resnet_v2, [PRE] * 3, set()),
    "RWKV": (tokens("RwkvModel", "RwkvConfig", hidden_size=DIM, num_hidden_layers=LAYERS,
                    vocab_size=VOCAB, context_length=32, attention_hidden_size=DIM,
                    intermediate_size=48), [PRE] * 2 * LAYERS, set()),
}  # fmt: skip


def report_error(report, classes, tags):
    """Return how a report differs from the expectation; empty if it does not."""
    reported = [block.wiring for block in report.blocks]
    if reported != classes:
        return f"expected {classes}, got {reported}"
    missing = [b.index for b in report.blocks if not tags <= set(b.tags)]
    return f"tags {tags} missing at {missing}" if missing else ""
