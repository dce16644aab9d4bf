"""Textbook twins, without classes, without kernels."""

import math

import torch
from torch import Tensor


def split(y: Tensor, heads: int) -> Tensor:
    """(B, L, heads * K) as (B, L, heads, K)."""
    return y.reshape(y.shape[0], y.shape[1], heads, -1)


def attend(q, k, v, scale: float, allowed: Tensor, bias: Tensor, cap: float | None = None) -> tuple:
    """Attention of (B, L, H, K) to (B, S, G, K); allowed and bias broadcast to (B, H, L, S)."""
    group = q.shape[2] // k.shape[2]
    k, v = (torch.stack([t[:, :, h // group] for h in range(q.shape[2])], 2) for t in (k, v))
    logits = scale * torch.einsum("blhk,bshk->bhls", q, k)
    logits = (logits if cap is None else torch.tanh(logits / cap) * cap) + bias
    raised = torch.exp(logits - logits.amax(-1, keepdim=True)) * allowed
    probabilities = raised / raised.sum(-1, keepdim=True)
    return torch.einsum("bhls,bshk->blhk", probabilities, v), probabilities


def attention(
    module, x: Tensor, memory: Tensor, *, allowed=None, bias=None, scale=None, cap=None
) -> Tensor:
    """Multi-head attention with a module's weights, no query-key norm, no persistent memory."""
    allowed = torch.ones((), dtype=torch.bool) if allowed is None else allowed
    bias = torch.zeros((), dtype=x.dtype) if bias is None else bias
    q, k, v = (
        split(inputs @ linear.weight.T + (0 if linear.bias is None else linear.bias), heads)
        for inputs, linear, heads in (
            (x, module.q_proj, module.heads),
            (memory, module.k_proj, module.kv_heads),
            (memory, module.v_proj, module.kv_heads),
        )
    )
    scale = 1 / math.sqrt(module.head_dim) if scale is None else scale
    y, _ = attend(q, k, v, scale, allowed, bias, cap)
    out = module.out_proj
    return y.flatten(2) @ out.weight.T + (0 if out.bias is None else out.bias)


def later_hidden(length: int) -> Tensor:
    """The causal rule by its definition."""
    return torch.tensor([[key <= query for key in range(length)] for query in range(length)])


def rotate(x: Tensor, positions: list[int], base: float = 10000.0) -> Tensor:
    """Rotary positions by complex numbers, pairs half the features apart; x: (B, H, L, K)."""
    half = x.shape[-1] // 2
    z = torch.complex(x[..., :half].double(), x[..., half:].double())
    turns = torch.tensor([[p * base ** (-j / half) for j in range(half)] for p in positions])
    turned = z * torch.polar(torch.ones_like(turns.double()), turns.double())
    return torch.cat((turned.real, turned.imag), -1).to(x.dtype)


def t5_bucket(distance: int, *, causal: bool, buckets: int = 32, limit: int = 128) -> int:
    """Bucket of key - query, one number at a time."""
    offset = 0
    if causal:
        far = max(0, -distance)
    else:
        buckets //= 2
        offset, far = (buckets if distance > 0 else 0), abs(distance)
    exact = buckets // 2
    if far < exact:
        return offset + far
    step = math.log(far / exact) / math.log(limit / exact) * (buckets - exact)
    # The nearest float32, as T5 computes it: an exact power must not fall below its bucket.
    return offset + min(buckets - 1, exact + int(step + 1e-6))
