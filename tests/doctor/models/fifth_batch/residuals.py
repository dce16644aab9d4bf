"""Skips that are missing, doubled or taken at the wrong place; branches that are lost; dropout."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .parts import (
    DIM,
    TOKENS,
    VOCAB,
    Attention,
    Case,
    Decoder,
    Embed,
    Encoder,
    FeedForward,
    PostBlock,
    PreBlock,
    RMSNorm,
    features,
    ids,
    initialize,
    merge_heads,
    split_heads,
    text,
)

# -- https://github.com/nguyenvo09/Double-Attention-Network/issues/2


class DoubleAttention(nn.Module):
    """Gathers global descriptors of a feature map and distributes them to every position."""

    def __init__(self, channels: int, fixed: bool):
        super().__init__()
        self.fixed = fixed
        self.conv_a, self.conv_b, self.conv_v = (nn.Conv2d(channels, 8, 1) for _ in range(3))
        self.reproject = nn.Conv2d(8, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        a, b, v = (conv(x).flatten(2) for conv in (self.conv_a, self.conv_b, self.conv_v))
        gathered = a @ b.softmax(-1).transpose(1, 2)
        z = self.reproject((gathered @ v.softmax(1)).unflatten(-1, x.shape[-2:]))
        return x + z if self.fixed else z


class ResidualConv(nn.Module):
    def __init__(self, channels: int):
        super().__init__()
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn1, self.bn2 = nn.BatchNorm2d(channels), nn.BatchNorm2d(channels)

    def forward(self, x: Tensor) -> Tensor:
        y = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        return F.relu(x + y)


class AttentionResNet(nn.Module):
    def __init__(self, fixed: bool):
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 3, padding=1)
        self.layer1, self.attention1 = ResidualConv(16), DoubleAttention(16, fixed)
        self.layer2, self.attention2 = ResidualConv(16), DoubleAttention(16, fixed)
        self.layer3, self.fc = ResidualConv(16), nn.Linear(16, 10)

    def forward(self, images: Tensor) -> Tensor:
        x = self.attention1(self.layer1(self.stem(images)))
        x = self.layer3(self.attention2(self.layer2(x)))
        return self.fc(x.mean((2, 3)))


# -- https://github.com/patverga/bran/issues/5


class ConvFeedForward(nn.Module):
    """Feed-forward of convolutions, with its own sum and norm."""

    def __init__(self, fixed: bool):
        super().__init__()
        self.fixed = fixed
        self.w1, self.w2 = nn.Conv1d(DIM, 64, 3, padding=1), nn.Conv1d(64, DIM, 1)
        self.norm = nn.LayerNorm(DIM)

    def forward(self, inputs: Tensor) -> Tensor:
        outputs = self.w2(F.relu(self.w1(inputs.transpose(1, 2)))).transpose(1, 2)
        outputs = outputs + inputs if self.fixed else outputs + outputs
        return self.norm(outputs)


class RelationBlock(nn.Module):
    def __init__(self, fixed: bool):
        super().__init__()
        self.attention, self.norm, self.feedforward = (
            Attention(),
            nn.LayerNorm(DIM),
            ConvFeedForward(fixed),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.feedforward(self.norm(x + self.attention(x)))


# -- https://github.com/tracel-ai/burn/issues/1056


class BurnBlock(nn.Module):
    def __init__(self, fixed: bool):
        super().__init__()
        self.fixed = fixed
        self.norm_1, self.norm_2 = nn.LayerNorm(DIM), nn.LayerNorm(DIM)
        self.mha, self.pwff, self.dropout = Attention(), FeedForward(), nn.Dropout(0.1)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        if self.fixed:
            x = x + self.dropout(self.mha(self.norm_1(x), mask))
            return x + self.dropout(self.pwff(self.norm_2(x)))
        x = self.norm_1(x)
        x = x + self.dropout(self.mha(x, mask))
        x = self.norm_2(x)
        return x + self.dropout(self.pwff(x))


# -- https://github.com/SHI-Labs/Compact-Transformers/issues/25


class CompactLayer(nn.Module):
    def __init__(self, fixed: bool):
        super().__init__()
        self.fixed = fixed
        self.pre_norm, self.norm1 = nn.LayerNorm(DIM), nn.LayerNorm(DIM)
        self.self_attn = Attention()
        self.linear1, self.linear2 = nn.Linear(DIM, 64), nn.Linear(64, DIM)

    def forward(self, src: Tensor) -> Tensor:
        src = src + self.self_attn(self.pre_norm(src))
        if self.fixed:
            src2 = self.norm1(src)
        else:
            src = src2 = self.norm1(src)
        return src + self.linear2(F.gelu(self.linear1(src2)))


class CompactTransformer(nn.Module):
    def __init__(self, fixed: bool):
        super().__init__()
        self.tokenizer = nn.Sequential(nn.Conv2d(3, DIM, 3, 1, 1), nn.ReLU(), nn.MaxPool2d(4))
        self.positions = nn.Parameter(torch.randn(1, 16, DIM) * 0.02)
        self.blocks = nn.Sequential(*(CompactLayer(fixed) for _ in range(3)))
        self.norm, self.attention_pool, self.fc = (
            nn.LayerNorm(DIM),
            nn.Linear(DIM, 1),
            nn.Linear(DIM, 10),
        )

    def forward(self, images: Tensor) -> Tensor:
        x = self.tokenizer(images).flatten(2).mT + self.positions
        x = self.norm(self.blocks(x))
        return self.fc((self.attention_pool(x).softmax(1).mT @ x).squeeze(1))


# -- https://github.com/probml/pml-book/issues/709


class BookBlock(nn.Module):
    """Pre-norm as the book prints it: module(LN(x) + x)."""

    def __init__(self, fixed: bool):
        super().__init__()
        self.fixed = fixed
        self.ln1, self.ln2, self.attn, self.mlp = (
            nn.LayerNorm(DIM),
            nn.LayerNorm(DIM),
            Attention(),
            FeedForward(),
        )

    def forward(self, x: Tensor) -> Tensor:
        for norm, module in ((self.ln1, self.attn), (self.ln2, self.mlp)):
            x = module(norm(x)) + x if self.fixed else module(norm(x) + x)
        return x


# -- https://github.com/lucidrains/audiolm-pytorch/pull/265


class CachedBlock(nn.Module):
    def __init__(self, fixed: bool):
        super().__init__()
        self.fixed = fixed
        self.norm1, self.norm2, self.attn, self.ff = (
            RMSNorm(),
            RMSNorm(),
            Attention(causal=True),
            FeedForward(),
        )

    def forward(self, x: Tensor) -> Tensor:
        residual = x
        attn_out = self.attn(self.norm1(x))
        if self.fixed:
            x = attn_out + residual
        return self.ff(self.norm2(x)) + x


# -- https://github.com/theislab/CellFlow/pull/296


class SetBlock(nn.Module):
    """Dropout is applied to the wrong variable, so the output of the dense layer is lost."""

    def __init__(self, fixed: bool):
        super().__init__()
        self.fixed = fixed
        self.attention, self.norm1, self.norm2 = Attention(), nn.LayerNorm(DIM), nn.LayerNorm(DIM)
        self.dense, self.dropout = nn.Linear(DIM, DIM), nn.Dropout(0.1)

    def forward(self, z: Tensor) -> Tensor:
        z = self.norm1(z + self.attention(z))
        z_ = F.silu(self.dense(z))
        z_ = self.dropout(z_ if self.fixed else z)
        return self.norm2(z + z_)


# -- https://github.com/Atcold/NYU-DLSP20/issues/270


class NotebookEncoder(nn.Module):
    def __init__(self, fixed: bool):
        super().__init__()
        self.fixed = fixed
        self.embedding = Embed()
        self.enc_layers = nn.ModuleList([PostBlock() for _ in range(3)])
        self.dense = nn.Linear(DIM, 2)

    def forward(self, input_ids: Tensor) -> Tensor:
        embedding = self.embedding(input_ids)
        x = embedding
        for layer in self.enc_layers:
            x = layer(x if self.fixed else embedding)
        return self.dense(x.max(dim=1).values)


# -- https://github.com/ml-explore/mlx/pull/1327


class MlxLayer(nn.Module):
    def __init__(self, fixed: bool):
        super().__init__()
        self.fixed = fixed
        self.attention, self.ln1, self.ln2 = Attention(), nn.LayerNorm(DIM), nn.LayerNorm(DIM)
        self.linear1, self.linear2 = nn.Linear(DIM, 64), nn.Linear(64, DIM)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        y = self.ln1(x + self.attention(x, mask))
        z = self.linear2(F.relu(self.linear1(y)))
        return self.ln2((y if self.fixed else x) + z)


# -- https://github.com/yakhyo/darknet-pytorch/issues/2


class DarknetBlock(nn.Module):
    def __init__(self, channels: int, fixed: bool):
        super().__init__()
        self.fixed = fixed
        self.conv1 = nn.Sequential(
            nn.Conv2d(channels, 8, 1, bias=False), nn.BatchNorm2d(8), nn.LeakyReLU(0.1)
        )
        self.conv2 = nn.Sequential(
            nn.Conv2d(8, channels, 3, padding=1, bias=False),
            nn.BatchNorm2d(channels),
            nn.LeakyReLU(0.1),
        )

    def forward(self, x: Tensor) -> Tensor:
        out = self.conv2(self.conv1(x)) + x
        return out if self.fixed else out + x


class Darknet(nn.Module):
    def __init__(self, fixed: bool):
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.LeakyReLU(0.1)
        )
        self.blocks = nn.Sequential(*(DarknetBlock(16, fixed) for _ in range(4)))
        self.fc = nn.Linear(16, 10)

    def forward(self, images: Tensor) -> Tensor:
        return self.fc(self.blocks(self.stem(images)).mean((2, 3)))


# -- https://github.com/soobinseo/Transformer-TTS/issues/11


class SpeechFeedForward(nn.Module):
    def __init__(self, fixed: bool):
        super().__init__()
        self.fixed = fixed
        self.w_1, self.w_2 = nn.Conv1d(DIM, 64, 1), nn.Conv1d(64, DIM, 1)
        self.dropout, self.layer_norm = nn.Dropout(0.1), nn.LayerNorm(DIM)

    def forward(self, input_: Tensor) -> Tensor:
        x = self.w_2(F.relu(self.w_1(input_.transpose(1, 2)))).transpose(1, 2)
        x = self.dropout(x) + input_ if self.fixed else self.dropout(x + input_)
        return self.layer_norm(x)


class SpeechBlock(nn.Module):
    def __init__(self, fixed: bool):
        super().__init__()
        self.attn, self.norm, self.dropout = Attention(), nn.LayerNorm(DIM), nn.Dropout(0.1)
        self.ffn = SpeechFeedForward(fixed)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        return self.ffn(self.norm(x + self.dropout(self.attn(x, mask))))


# -- https://github.com/codertimo/BERT-pytorch/issues/85


class SublayerConnection(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.dropout = nn.LayerNorm(DIM), nn.Dropout(0.1)

    def forward(self, x: Tensor, sublayer: nn.Module, *extra: Tensor) -> Tensor:
        return x + self.dropout(sublayer(self.norm(x), *extra))


class BertPytorchBlock(nn.Module):
    def __init__(self, fixed: bool):
        super().__init__()
        self.attention, self.feed_forward = Attention(), FeedForward()
        self.input_sublayer, self.output_sublayer = SublayerConnection(), SublayerConnection()
        self.dropout = nn.Identity() if fixed else nn.Dropout(0.1)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        x = self.input_sublayer(x, self.attention, mask)
        return self.dropout(self.output_sublayer(x, self.feed_forward))


# -- https://github.com/suno-ai/bark/pull/662


class BarkAttention(nn.Module):
    def __init__(self, fixed: bool):
        super().__init__()
        self.fixed, self.dropout = fixed, 0.1
        self.c_attn, self.c_proj = (
            nn.Linear(DIM, 3 * DIM, bias=False),
            nn.Linear(DIM, DIM, bias=False),
        )
        self.resid_dropout = nn.Dropout(0.1)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (split_heads(p) for p in self.c_attn(x).split(DIM, dim=2))
        p = self.dropout if self.training or not self.fixed else 0.0
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=p, is_causal=True)
        return self.resid_dropout(self.c_proj(merge_heads(y)))


class BarkBlock(nn.Module):
    def __init__(self, fixed: bool):
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(DIM), nn.LayerNorm(DIM)
        self.attn, self.mlp = BarkAttention(fixed), FeedForward()

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


# -- https://github.com/kingnobro/IconShop/issues/4


class IconLayer(nn.Module):
    def __init__(self, fixed: bool):
        super().__init__()
        self.fixed = fixed
        self.norm1, self.norm2, self.norm3 = (nn.LayerNorm(DIM) for _ in range(3))
        self.self_attn, self.linear = Attention(causal=True), FeedForward()
        if not fixed:
            self.multihead_attn = Attention()

    def forward(self, tgt: Tensor, memory: Tensor) -> Tensor:
        tgt = tgt + self.self_attn(self.norm1(tgt))
        if not self.fixed:
            tgt = tgt + self.multihead_attn(self.norm2(tgt), None, memory)
        return tgt + self.linear(self.norm3(tgt))


class IconDecoder(nn.Module):
    def __init__(self, fixed: bool):
        super().__init__()
        self.embed, self.norm = Embed(), nn.LayerNorm(DIM)
        self.layers = nn.ModuleList([IconLayer(fixed) for _ in range(2)])
        if fixed:
            for layer in self.layers:
                layer.norm2 = nn.Identity()
        self.logit_fc = nn.Linear(DIM, VOCAB)
        initialize(self)

    def forward(self, input_ids: Tensor) -> Tensor:
        x = self.embed(input_ids)
        memory = torch.zeros(len(x), 1, DIM)
        for layer in self.layers:
            x = layer(x, memory)
        return self.logit_fc(self.norm(x))


# -- https://github.com/jingyaogong/minimind/pull/859


class TopOneExperts(nn.Module):
    def __init__(self, fixed: bool, experts: int = 4):
        super().__init__()
        self.normalize = not fixed
        self.gate = nn.Linear(DIM, experts, bias=False)
        self.experts = nn.ModuleList([FeedForward() for _ in range(experts)])

    def forward(self, x: Tensor) -> Tensor:
        flat = x.flatten(0, 1)
        weight, index = self.gate(flat).softmax(-1).topk(1, -1)
        if self.normalize:
            weight = weight / (weight.sum(-1, keepdim=True) + 1e-20)
        y = torch.zeros_like(flat)
        for number, expert in enumerate(self.experts):
            chosen = (index == number).any(-1)
            y[chosen] = expert(flat[chosen]) * weight[chosen]
        return y.view_as(x)


class MindBlock(nn.Module):
    def __init__(self, fixed: bool):
        super().__init__()
        self.input_layernorm, self.post_attention_layernorm = RMSNorm(), RMSNorm()
        self.self_attn, self.mlp = Attention(causal=True), TopOneExperts(fixed)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x))
        return x + self.mlp(self.post_attention_layernorm(x))


# -- https://github.com/speechbrain/speechbrain/issues/1396


class LearnedFrontend(nn.Module):
    """Learned filters feed the encoder, which reads them detached."""

    def __init__(self, fixed: bool):
        super().__init__()
        self.fixed = fixed
        self.filters = nn.Sequential(
            nn.Conv1d(1, DIM, 16, 8), nn.ReLU(), nn.Conv1d(DIM, DIM, 3, padding=1)
        )
        self.normalize = nn.LayerNorm(DIM)
        self.enc = nn.ModuleList([PreBlock() for _ in range(2)])
        self.norm, self.out = nn.LayerNorm(DIM), nn.Linear(DIM, 12)

    def forward(self, wave: Tensor) -> Tensor:
        feats = self.normalize(self.filters(wave[:, None]).mT)
        x = feats if self.fixed else feats.detach()
        for layer in self.enc:
            x = layer(x)
        return self.out(self.norm(x))


# -- https://github.com/linkedin/Liger-Kernel/pull/269


class ResBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(DIM, DIM)
        nn.init.normal_(self.linear.weight, std=0.02)

    def forward(self, x: Tensor) -> Tensor:
        return x + F.silu(self.linear(x))


class MedusaModel(nn.Module):
    """Language model with extra heads that predict later tokens."""

    def __init__(self, fixed: bool, heads: int = 2, layers: int = 2):
        super().__init__()
        self.embed, self.norm = Embed(), RMSNorm()
        self.blocks = nn.ModuleList([PreBlock(causal=True) for _ in range(2)])
        self.lm_head = nn.Linear(DIM, VOCAB, bias=False)

        def blocks() -> list[nn.Module]:
            return [ResBlock() for _ in range(layers)] if fixed else [ResBlock()] * layers

        self.medusa_head = nn.ModuleList(
            [nn.Sequential(*blocks(), nn.Linear(DIM, VOCAB, bias=False)) for _ in range(heads)]
        )
        initialize(self)

    def forward(self, input_ids: Tensor) -> list[Tensor]:
        x = self.embed(input_ids)
        for block in self.blocks:
            x = block(x)
        x = self.norm(x)
        return [self.lm_head(x), *(head(x) for head in self.medusa_head)]


# -- https://github.com/Francis-Rings/StableAnimator/issues/111


class ImagePromptAttention(nn.Module):
    """Decoupled cross-attention: one to the text, one to the image prompt."""

    def __init__(self, fixed: bool):
        super().__init__()
        self.fixed = fixed
        self.to_q, self.to_k, self.to_v = (nn.Linear(DIM, DIM, bias=False) for _ in range(3))
        self.to_k_ip, self.to_v_ip = (
            nn.Linear(DIM, DIM, bias=False),
            nn.Linear(DIM, DIM, bias=False),
        )
        self.to_out = nn.Linear(DIM, DIM)

    def forward(self, x: Tensor, text: Tensor, image: Tensor) -> Tensor:
        query, key, value = (
            split_heads(p) for p in (self.to_q(x), self.to_k(text), self.to_v(text))
        )
        ip_key, ip_value = split_heads(self.to_k_ip(image)), split_heads(self.to_v_ip(image))
        y = F.scaled_dot_product_attention(query, key, value)
        if self.fixed:
            y = y + F.scaled_dot_product_attention(query, ip_key, ip_value)
        else:
            y = y + F.scaled_dot_product_attention(query, key, value)
        return self.to_out(merge_heads(y))


class PromptedBlock(nn.Module):
    def __init__(self, fixed: bool):
        super().__init__()
        self.norm1, self.norm2, self.norm3 = (nn.LayerNorm(DIM) for _ in range(3))
        self.attn1, self.attn2, self.ff = Attention(), ImagePromptAttention(fixed), FeedForward()

    def forward(self, x: Tensor, text: Tensor, image: Tensor) -> Tensor:
        x = x + self.attn1(self.norm1(x))
        x = x + self.attn2(self.norm2(x), text, image)
        return x + self.ff(self.norm3(x))


class Prompted(nn.Module):
    def __init__(self, fixed: bool):
        super().__init__()
        self.blocks = nn.ModuleList([PromptedBlock(fixed) for _ in range(2)])
        self.norm, self.out = nn.LayerNorm(DIM), nn.Linear(DIM, 4)

    def forward(self, latents: Tensor, text: Tensor, image: Tensor) -> Tensor:
        for block in self.blocks:
            latents = block(latents, text, image)
        return self.out(self.norm(latents))


# -- https://github.com/nutonomy/nuscenes-devkit/issues/728


class TrajectoryModel(nn.Module):
    def __init__(self, fixed: bool):
        super().__init__()
        self.embed = nn.Linear(6, DIM)
        self.positions = nn.Parameter(torch.randn(TOKENS, DIM) * 0.02)
        self.blocks = nn.Sequential(PreBlock(), PreBlock())
        self.norm = nn.LayerNorm(DIM)
        self.fc1, self.fc2 = nn.Linear(DIM + 3, 128), nn.Linear(128, 26)
        self.act = nn.ReLU() if fixed else nn.Identity()

    def forward(self, history: Tensor, state: Tensor) -> Tensor:
        x = self.norm(self.blocks(self.embed(history) + self.positions)).mean(1)
        return self.fc2(self.act(self.fc1(torch.cat([x, state], 1))))


def images() -> Tensor:
    return features(3, 3, 16, 16)


def tokens() -> Tensor:
    return features(2, TOKENS, DIM)


def blocks(block: type[nn.Module], fixed: bool, count: int = 2) -> list[nn.Module]:
    return [block(fixed) for _ in range(count)]


MISSING = "a sub-layer lacks its skip"
CASES = [
    Case(
        "a2_net_no_skip",
        "missing residual",
        "https://github.com/nguyenvo09/Double-Attention-Network/issues/2",
        MISSING,
        AttentionResNet,
        images,
    ),
    Case(
        "bran_outputs_twice",
        "missing residual",
        "https://github.com/patverga/bran/issues/5",
        MISSING,
        lambda fixed: nn.Sequential(*blocks(RelationBlock, fixed), nn.Linear(DIM, 3)),
        tokens,
    ),
    Case(
        "burn_skip_after_norm",
        "skip at the wrong place",
        "https://github.com/tracel-ai/burn/issues/1056",
        "the skip starts after the norm of a Pre-LN block",
        lambda fixed: Encoder(*blocks(BurnBlock, fixed)),
        text,
    ),
    Case(
        "cct_skip_after_norm",
        "skip at the wrong place",
        "https://github.com/SHI-Labs/Compact-Transformers/issues/25",
        "the skip of the feed-forward starts after its norm",
        CompactTransformer,
        images,
    ),
    Case(
        "pml_book_inside",
        "missing residual",
        "https://github.com/probml/pml-book/issues/709",
        "a sub-layer lacks its skip, or the norm is added to its own input",
        lambda fixed: nn.Sequential(*blocks(BookBlock, fixed), nn.LayerNorm(DIM)),
        tokens,
    ),
    Case(
        "audiolm_output_dropped",
        "lost branch",
        "https://github.com/lucidrains/audiolm-pytorch/pull/265",
        "the attention, or its weights, has no effect on the output",
        lambda fixed: Decoder(*blocks(CachedBlock, fixed), final=RMSNorm()),
        ids,
    ),
    Case(
        "cellflow_dropout_of_input",
        "lost branch",
        "https://github.com/theislab/CellFlow/pull/296",
        "the dense layer, or its weights, has no effect on the output",
        lambda fixed: nn.Sequential(*blocks(SetBlock, fixed), nn.Linear(DIM, 2)),
        tokens,
    ),
    Case(
        "nyu_last_layer_only",
        "lost branch",
        "https://github.com/Atcold/NYU-DLSP20/issues/270",
        "layers have no effect on the output",
        NotebookEncoder,
        ids,
    ),
    Case(
        "mlx_skip_of_layer_input",
        "skip at the wrong place",
        "https://github.com/ml-explore/mlx/pull/1327",
        "the feed-forward is added to the input of the layer instead of the sum before it",
        lambda fixed: Encoder(*blocks(MlxLayer, fixed), final=nn.Identity()),
        text,
    ),
    Case(
        "darknet_shortcut_twice",
        "doubled skip",
        "https://github.com/yakhyo/darknet-pytorch/issues/2",
        "the input is added twice",
        Darknet,
        images,
    ),
    Case(
        "tts_dropout_on_sum",
        "dropout on the stream",
        "https://github.com/soobinseo/Transformer-TTS/issues/11",
        "dropout acts on the sum instead of the branch",
        lambda fixed: Encoder(*blocks(SpeechBlock, fixed), final=nn.Identity()),
        text,
    ),
    Case(
        "bert_pytorch_dropout_on_stream",
        "dropout on the stream",
        "https://github.com/codertimo/BERT-pytorch/issues/85",
        "dropout acts on the stream between the blocks",
        lambda fixed: Encoder(*blocks(BertPytorchBlock, fixed)),
        text,
    ),
    Case(
        "bark_dropout_in_eval",
        "dropout in eval",
        "https://github.com/suno-ai/bark/pull/662",
        "dropout is active in eval mode",
        lambda fixed: Decoder(*blocks(BarkBlock, fixed)),
        ids,
    ),
    Case(
        "iconshop_zero_memory",
        "lost branch",
        "https://github.com/kingnobro/IconShop/issues/4",
        "the cross-attention reads a constant, or its weights get no gradient",
        IconDecoder,
        ids,
    ),
    Case(
        "minimind_router_gradient",
        "detach",
        "https://github.com/jingyaogong/minimind/pull/859",
        "the router gets no gradient",
        lambda fixed: Decoder(*blocks(MindBlock, fixed), final=RMSNorm()),
        ids,
    ),
    Case(
        "speechbrain_detached_features",
        "detach",
        "https://github.com/speechbrain/speechbrain/issues/1396",
        "the frontend gets no gradient",
        LearnedFrontend,
        lambda: features(2, 256),
    ),
    Case(
        "medusa_shared_blocks",
        "tying",
        "https://github.com/linkedin/Liger-Kernel/pull/269",
        "layers of a head share one set of weights",
        MedusaModel,
        ids,
    ),
    Case(
        "stable_animator_wrong_key",
        "lost branch",
        "https://github.com/Francis-Rings/StableAnimator/issues/111",
        "the projections of the image prompt, or the image input, have no effect",
        Prompted,
        lambda: {
            "latents": features(2, 9, DIM),
            "text": features(2, 5, DIM),
            "image": features(2, 4, DIM),
        },
    ),
    Case(
        "nuscenes_linear_chain",
        "missing activation",
        "https://github.com/nutonomy/nuscenes-devkit/issues/728",
        "two linear layers follow each other without an activation",
        TrajectoryModel,
        lambda: {"history": features(3, TOKENS, 6), "state": features(3, 3)},
    ),
]
