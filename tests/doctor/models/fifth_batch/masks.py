"""Padding that leaks, and tokens that see the future or another example."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .parts import (
    BATCH,
    DIM,
    HEADS,
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
    keep_mask,
    merge_heads,
    split_heads,
    text,
)


class PreNormWith(nn.Module):
    """Pre-LN block around any attention that reads (x, mask)."""

    def __init__(self, attention: nn.Module):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(DIM), nn.LayerNorm(DIM)
        self.attention, self.ffn = attention, FeedForward()

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        x = x + self.attention(self.norm1(x), mask)
        return x + self.ffn(self.norm2(x))


# -- https://github.com/mlverse/torch/issues/1205


class FloatMaskAttention(nn.Module):
    """The mask is added in nn.MultiheadAttention's convention: 0, or minus infinity for padding."""

    def __init__(self, fixed: bool):
        super().__init__()
        self.fixed = fixed
        self.in_proj, self.out_proj = nn.Linear(DIM, 3 * DIM), nn.Linear(DIM, DIM)

    def forward(self, x: Tensor, key_padding_mask: Tensor) -> Tensor:
        q, k, v = (split_heads(p) for p in self.in_proj(x).chunk(3, -1))
        scores = q @ k.mT / q.shape[-1] ** 0.5
        mask = key_padding_mask[:, None, None, :]
        scores = scores + mask if self.fixed else scores.masked_fill(mask == 1, float("-inf"))
        return self.out_proj(merge_heads(scores.softmax(-1) @ v))


class FloatMaskEncoder(nn.Module):
    def __init__(self, fixed: bool):
        super().__init__()
        self.embed = Embed()
        self.layers = nn.ModuleList([PreNormWith(FloatMaskAttention(fixed)) for _ in range(2)])
        self.norm, self.head = nn.LayerNorm(DIM), nn.Linear(DIM, 4)
        initialize(self)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        mask = torch.zeros(attention_mask.shape).masked_fill(attention_mask == 0, float("-inf"))
        x = self.embed(input_ids)
        for layer in self.layers:
            x = layer(x, mask)
        return self.head(self.norm(x))


# -- https://github.com/Shujun-He/RibonanzaNet/issues/5


class PairBiasAttention(nn.Module):
    def __init__(self, fill: float):
        super().__init__()
        self.fill = fill
        self.w_qs, self.w_ks, self.w_vs = (nn.Linear(DIM, DIM, bias=False) for _ in range(3))
        self.fc = nn.Linear(DIM, DIM, bias=False)
        self.bias = nn.Parameter(torch.zeros(HEADS, 33))

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        q, k, v = (split_heads(p) for p in (self.w_qs(x), self.w_ks(x), self.w_vs(x)))
        steps = torch.arange(x.shape[1])
        distance = (steps[:, None] - steps).clamp(-16, 16) + 16
        attn = torch.matmul(q / q.shape[-1] ** 0.5, k.transpose(2, 3)) + self.bias[:, distance]
        attn = attn.masked_fill(mask[:, None, None, :] == 0, self.fill)
        return self.fc(merge_heads(attn.softmax(-1) @ v))


# -- https://github.com/lsdefine/attention-is-all-you-need-keras/issues/16


class KerasAttention(nn.Module):
    def __init__(self, fixed: bool):
        super().__init__()
        self.fixed = fixed
        self.qs, self.ks, self.vs, self.wo = (nn.Linear(DIM, DIM, bias=False) for _ in range(4))

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        q, k, v = (split_heads(p) for p in (self.qs(x), self.ks(x), self.vs(x)))
        attn = torch.einsum("bhqd,bhkd->bhqk", q, k) / (DIM // HEADS) ** 0.5
        penalty = -1e10 * (1 - mask.to(x.dtype))
        # One value for each query is constant over the keys, so the softmax ignores it.
        attn = attn + (penalty[:, None, None, :] if self.fixed else penalty[:, None, :, None])
        return self.wo(merge_heads(attn.softmax(-1) @ v))


# -- https://github.com/ml-explore/mlx-lm/pull/1903


class GroupedQueryAttention(nn.Module):
    """Queries of a group share keys and values; scores are (batch, groups, repeats, query, key)."""

    def __init__(self, fixed: bool, groups: int = 2, repeats: int = 2):
        super().__init__()
        self.fixed, self.groups, self.repeats = fixed, groups, repeats
        size = DIM // (groups * repeats)
        self.q_proj, self.o_proj = nn.Linear(DIM, DIM, bias=False), nn.Linear(DIM, DIM, bias=False)
        self.k_proj = nn.Linear(DIM, groups * size, bias=False)
        self.v_proj = nn.Linear(DIM, groups * size, bias=False)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        q = self.q_proj(x).unflatten(-1, (self.groups, self.repeats, -1)).permute(0, 2, 3, 1, 4)
        k = self.k_proj(x).unflatten(-1, (self.groups, 1, -1)).permute(0, 2, 3, 1, 4)
        v = self.v_proj(x).unflatten(-1, (self.groups, 1, -1)).permute(0, 2, 3, 1, 4)
        scores = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
        keep = mask[:, None, None, :].bool()  # (batch, 1, 1, keys)
        if self.fixed:
            keep = keep[:, None]
        scores = torch.where(keep, scores, torch.finfo(scores.dtype).min)
        y = (scores.softmax(-1) @ v).permute(0, 3, 1, 2, 4).flatten(2)
        return self.o_proj(y)


def two_rows() -> dict[str, Tensor]:
    mask = keep_mask(2)
    return {"input_ids": ids(2) * mask, "attention_mask": mask}


# -- https://github.com/huggingface/transformers/pull/47946


class CrossBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.ln_1, self.ln_cross, self.ln_2 = (nn.LayerNorm(DIM) for _ in range(3))
        self.attn, self.crossattention, self.mlp = (
            Attention(causal=True),
            Attention(),
            FeedForward(),
        )

    def forward(self, x: Tensor, memory: Tensor, memory_keep: Tensor | None) -> Tensor:
        x = x + self.attn(self.ln_1(x))
        x = x + self.crossattention(self.ln_cross(x), memory_keep, memory)
        return x + self.mlp(self.ln_2(x))


class CaptionDecoder(nn.Module):
    def __init__(self, fixed: bool):
        super().__init__()
        self.fixed = fixed
        self.embed, self.source = Embed(), Embed()
        self.encoder = nn.ModuleList([PreBlock() for _ in range(2)])
        self.encoder_norm = nn.LayerNorm(DIM)
        self.h = nn.ModuleList([CrossBlock() for _ in range(2)])
        self.ln_f, self.lm_head = nn.LayerNorm(DIM), nn.Linear(DIM, VOCAB, bias=False)
        initialize(self)

    def forward(
        self, input_ids: Tensor, encoder_ids: Tensor, encoder_attention_mask: Tensor
    ) -> Tensor:
        memory = self.source(encoder_ids)
        for layer in self.encoder:
            memory = layer(memory, encoder_attention_mask)
        memory = self.encoder_norm(memory)
        keep = encoder_attention_mask if self.fixed else None
        x = self.embed(input_ids)
        for block in self.h:
            x = block(x, memory, keep)
        return self.lm_head(self.ln_f(x))


def captions() -> dict[str, Tensor]:
    mask = keep_mask()
    return {"input_ids": ids(BATCH, 7), "encoder_ids": ids() * mask, "encoder_attention_mask": mask}


# -- https://github.com/lucidrains/soundstorm-pytorch/issues/26


class ConformerConv(nn.Module):
    def __init__(self, fixed: bool):
        super().__init__()
        self.fixed = fixed
        self.norm, self.up, self.down = (
            nn.LayerNorm(DIM),
            nn.Linear(DIM, 2 * DIM),
            nn.Linear(DIM, DIM),
        )
        self.depthwise = nn.Conv1d(DIM, DIM, 5, padding=2, groups=DIM)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        y = F.glu(self.up(self.norm(x)), -1)
        if self.fixed:
            y = y.masked_fill(mask[..., None] == 0, 0.0)
        y = self.depthwise(y.transpose(1, 2)).transpose(1, 2)
        return self.down(F.silu(y))


class ConformerBlock(nn.Module):
    def __init__(self, conv: nn.Module):
        super().__init__()
        self.ff1, self.ff2 = FeedForward(), FeedForward()
        self.norm1, self.norm2, self.norm3, self.norm4 = (nn.LayerNorm(DIM) for _ in range(4))
        self.attn, self.conv = Attention(), conv

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        x = x + 0.5 * self.ff1(self.norm1(x))
        x = x + self.attn(self.norm2(x), mask)
        x = x + self.conv(x, mask)
        x = x + 0.5 * self.ff2(self.norm3(x))
        return self.norm4(x)


def soundstorm(fixed: bool) -> nn.Module:
    return Encoder(*(ConformerBlock(ConformerConv(fixed)) for _ in range(2)), final=nn.Identity())


# -- https://github.com/pytorch/audio/pull/4206


class GroupNormConv(nn.Module):
    """Convolution module whose norm pools over time; the repair masks and normalizes each frame."""

    def __init__(self, fixed: bool):
        super().__init__()
        self.fixed = fixed
        self.layer_norm, self.pointwise = nn.LayerNorm(DIM), nn.Conv1d(DIM, 2 * DIM, 1)
        self.depthwise = nn.Conv1d(DIM, DIM, 3, padding=1, groups=DIM)
        self.norm = nn.LayerNorm(DIM) if fixed else nn.GroupNorm(1, DIM)
        self.out = nn.Conv1d(DIM, DIM, 1)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        y = F.glu(self.pointwise(self.layer_norm(x).transpose(1, 2)), 1)
        if self.fixed:
            y = y * mask[:, None, :]
        y = self.depthwise(y)
        y = self.norm(y.transpose(1, 2)).transpose(1, 2) if self.fixed else self.norm(y)
        return self.out(F.silu(y)).transpose(1, 2)


class AudioConformer(nn.Module):
    def __init__(self, fixed: bool):
        super().__init__()
        self.project = nn.Linear(16, DIM)
        self.layers = nn.ModuleList([ConformerBlock(GroupNormConv(fixed)) for _ in range(2)])
        self.head = nn.Linear(DIM, 9)

    def forward(self, features: Tensor, lengths: Tensor) -> Tensor:
        mask = (torch.arange(features.shape[1]) < lengths[:, None]).to(features.dtype)
        x = self.project(features)
        for layer in self.layers:
            x = layer(x, mask)
        return self.head(x)


# -- https://github.com/HKUDS/LightRAG/pull/3675


class SentenceEmbedder(nn.Module):
    def __init__(self, fixed: bool):
        super().__init__()
        self.fixed = fixed
        self.embed, self.norm = Embed(), nn.LayerNorm(DIM)
        self.layers = nn.ModuleList([PostBlock() for _ in range(2)])
        initialize(self)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        x = self.norm(self.embed(input_ids))
        for layer in self.layers:
            x = layer(x, attention_mask)
        if not self.fixed:
            return x.mean(dim=1)
        weights = attention_mask[..., None].to(x.dtype)
        return (x * weights).sum(1) / weights.sum(1).clamp(min=1)


# -- https://github.com/pytorch/pytorch/issues/21518


class CausalByMask(nn.Module):
    """The causal mask is given to nn.MultiheadAttention, which adds a float mask to the scores."""

    def __init__(self, fixed: bool):
        super().__init__()
        self.fixed = fixed
        self.attn = nn.MultiheadAttention(DIM, 2, batch_first=True)
        self.ln1, self.ln2, self.ff = nn.LayerNorm(DIM), nn.LayerNorm(DIM), FeedForward()

    def forward(self, x: Tensor) -> Tensor:
        size = x.shape[1]
        ones = torch.ones(size, size)
        mask = ones.triu(1).bool() if self.fixed else ones.tril()
        y = self.ln1(x)
        x = x + self.attn(y, y, y, attn_mask=mask, need_weights=False)[0]
        return x + self.ff(self.ln2(x))


# -- https://github.com/karpathy/nanochat/issues/844


class BlockSummaryAttention(nn.Module):
    """Queries also read a mean over their chunk of tokens."""

    def __init__(self, fixed: bool, chunk: int = 4):
        super().__init__()
        self.fixed, self.chunk = fixed, chunk
        self.c_qkv, self.c_proj = (
            nn.Linear(DIM, 3 * DIM, bias=False),
            nn.Linear(DIM, DIM, bias=False),
        )

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        q, k, v = self.c_qkv(x).chunk(3, -1)
        chunks = q.unflatten(1, (-1, self.chunk))
        count = torch.arange(1, self.chunk + 1)[:, None]
        running = chunks.cumsum(2) / count
        summary = running if self.fixed else chunks.mean(2, keepdim=True).expand_as(chunks)
        q = q + summary.flatten(1, 2)
        q, k, v = (split_heads(p) for p in (q, k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.c_proj(merge_heads(y))


# -- https://github.com/Shwai-He/MEO/issues/2


class RoutedExperts(nn.Module):
    """Experts merged by a weight of the sequence or, after the repair, of each token."""

    def __init__(self, fixed: bool, experts: int = 4):
        super().__init__()
        self.fixed = fixed
        self.router = nn.Linear(DIM, experts)
        self.experts = nn.ModuleList([FeedForward() for _ in range(experts)])

    def forward(self, x: Tensor) -> Tensor:
        gates = self.router(x if self.fixed else x.mean(1, keepdim=True)).softmax(-1)
        stacked = torch.stack([expert(x) for expert in self.experts], -1)
        return (stacked * gates.unsqueeze(-2)).sum(-1)


class ExpertBlock(nn.Module):
    def __init__(self, experts: nn.Module):
        super().__init__()
        self.norm1, self.norm2 = RMSNorm(), RMSNorm()
        self.attn, self.experts = Attention(causal=True), experts

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.norm1(x))
        return x + self.experts(self.norm2(x))


# -- https://github.com/hirofumi0810/neural_sp/pull/145


class StreamingConv(nn.Module):
    def __init__(self, fixed: bool, width: int = 5):
        super().__init__()
        self.left = width - 1 if fixed else (width - 1) // 2
        self.right = width - 1 - self.left
        self.norm, self.conv, self.out = (
            nn.LayerNorm(DIM),
            nn.Conv1d(DIM, DIM, width, groups=DIM),
            nn.Linear(DIM, DIM),
        )

    def forward(self, x: Tensor) -> Tensor:
        y = F.pad(self.norm(x).transpose(1, 2), (self.left, self.right))
        return self.out(F.silu(self.conv(y).transpose(1, 2)))


class StreamingBlock(nn.Module):
    """Unidirectional Conformer block."""

    def __init__(self, fixed: bool):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(DIM), nn.LayerNorm(DIM)
        self.attn, self.conv, self.ff = Attention(causal=True), StreamingConv(fixed), FeedForward()

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.norm1(x))
        x = x + self.conv(x)
        return x + self.ff(self.norm2(x))


class StreamingRecognizer(nn.Module):
    def __init__(self, fixed: bool):
        super().__init__()
        self.project = nn.Linear(16, DIM)
        self.blocks = nn.Sequential(*(StreamingBlock(fixed) for _ in range(2)))
        self.norm, self.out = nn.LayerNorm(DIM), nn.Linear(DIM, 30)

    def forward(self, frames: Tensor) -> Tensor:
        return self.out(self.norm(self.blocks(self.project(frames))))


# -- https://github.com/deepspeedai/DeepSpeed/pull/2110


class ResidualExperts(nn.Module):
    """A dense feed-forward and an expert, mixed by a learned coefficient of each token."""

    def __init__(self, axis: int):
        super().__init__()
        self.axis = axis
        self.mlp, self.expert, self.coefficient = FeedForward(), FeedForward(), nn.Linear(DIM, 2)

    def forward(self, x: Tensor) -> Tensor:
        weights = F.softmax(self.coefficient(x), dim=self.axis)
        return self.expert(x) * weights[..., 0:1] + self.mlp(x) * weights[..., 1:]


# -- https://github.com/PetrochukM/PyTorch-NLP/issues/2


class DocumentAttention(nn.Module):
    """A learned query reads the encoded tokens."""

    def __init__(self, axis: int):
        super().__init__()
        self.axis, self.query, self.linear_in = (
            axis,
            nn.Parameter(torch.randn(DIM)),
            nn.Linear(DIM, DIM),
        )

    def forward(self, context: Tensor) -> Tensor:
        scores = self.linear_in(context) @ self.query / DIM**0.5
        weights = torch.softmax(scores, dim=self.axis)
        return (weights.unsqueeze(1) @ context).squeeze(1)


class DocumentClassifier(nn.Module):
    def __init__(self, fixed: bool):
        super().__init__()
        self.embed = Embed()
        self.blocks = nn.Sequential(PreBlock(), PreBlock())
        self.norm, self.attention, self.out = (
            nn.LayerNorm(DIM),
            DocumentAttention(-1 if fixed else 0),
            nn.Linear(DIM, 3),
        )

    def forward(self, input_ids: Tensor) -> Tensor:
        return self.out(self.attention(self.norm(self.blocks(self.embed(input_ids)))))


CASES = [
    Case(
        "r_torch_float_padding_mask",
        "padding leak",
        "https://github.com/mlverse/torch/issues/1205",
        "padding changes the output of real tokens, or the mask has no effect",
        FloatMaskEncoder,
        text,
    ),
    Case(
        "ribonanza_fill",
        "padding leak",
        "https://github.com/Shujun-He/RibonanzaNet/issues/5",
        "padding changes the output of real tokens",
        lambda fixed: Encoder(
            *(PreNormWith(PairBiasAttention(-1e9 if fixed else -1e-9)) for _ in range(2))
        ),
        text,
    ),
    Case(
        "keras_query_mask",
        "padding leak",
        "https://github.com/lsdefine/attention-is-all-you-need-keras/issues/16",
        "padding changes the output of real tokens, or the mask is on the queries",
        lambda fixed: Encoder(*(PreNormWith(KerasAttention(fixed)) for _ in range(2))),
        text,
    ),
    Case(
        "mlx_mask_on_groups",
        "padding leak",
        "https://github.com/ml-explore/mlx-lm/pull/1903",
        "padding changes the output of real tokens, or the mask of one example acts on another",
        lambda fixed: Encoder(*(PreNormWith(GroupedQueryAttention(fixed)) for _ in range(2))),
        two_rows,
    ),
    Case(
        "gpt2_cross_mask_discarded",
        "padding leak",
        "https://github.com/huggingface/transformers/pull/47946",
        "padding of the encoder changes the output, or the cross-attention lacks its mask",
        CaptionDecoder,
        captions,
    ),
    Case(
        "soundstorm_convolution",
        "padding leak",
        "https://github.com/lucidrains/soundstorm-pytorch/issues/26",
        "padding changes the output of real tokens",
        soundstorm,
        text,
    ),
    Case(
        "torchaudio_group_norm",
        "padding leak",
        "https://github.com/pytorch/audio/pull/4206",
        "padding changes the output of real frames",
        AudioConformer,
        lambda: {"features": features(3, 12, 16), "lengths": torch.tensor([12, 9, 6])},
    ),
    Case(
        "lightrag_mean",
        "padding leak",
        "https://github.com/HKUDS/LightRAG/pull/3675",
        "padding changes the pooled output",
        SentenceEmbedder,
        text,
    ),
    Case(
        "torch_additive_tril",
        "causal mask",
        "https://github.com/pytorch/pytorch/issues/21518",
        "the causal mask hides nothing, or tokens see the future",
        lambda fixed: Decoder(*(CausalByMask(fixed) for _ in range(2))),
        ids,
    ),
    Case(
        "nanochat_chunk_summary",
        "causal mask",
        "https://github.com/karpathy/nanochat/issues/844",
        "tokens of a causal model see the future",
        lambda fixed: Decoder(*(PreNormWith(BlockSummaryAttention(fixed)) for _ in range(2))),
        ids,
    ),
    Case(
        "meo_sequence_routing",
        "causal mask",
        "https://github.com/Shwai-He/MEO/issues/2",
        "tokens of a causal model see the future",
        lambda fixed: Decoder(
            *(ExpertBlock(RoutedExperts(fixed)) for _ in range(2)), final=RMSNorm()
        ),
        ids,
    ),
    Case(
        "neural_sp_convolution",
        "causal mask",
        "https://github.com/hirofumi0810/neural_sp/pull/145",
        "frames of a causal model see the future",
        StreamingRecognizer,
        lambda: features(2, TOKENS, 16),
    ),
    Case(
        "deepspeed_expert_softmax",
        "causal mask",
        "https://github.com/deepspeedai/DeepSpeed/pull/2110",
        "a softmax acts over the tokens, or tokens see the future",
        lambda fixed: Decoder(
            *(ExpertBlock(ResidualExperts(-1 if fixed else 1)) for _ in range(2)), final=RMSNorm()
        ),
        ids,
    ),
    Case(
        "pytorch_nlp_batch_softmax",
        "softmax over the wrong axis",
        "https://github.com/PetrochukM/PyTorch-NLP/issues/2",
        "one example changes the output of another, or the softmax acts over the batch",
        DocumentClassifier,
        ids,
    ),
]
