"""Textbook reference implementations, without modules and kernels."""

import math

import torch
from torch import Tensor


def split(y: Tensor, heads: int) -> Tensor:
    """Reshape (B, L, heads * K) to (B, L, heads, K)."""
    return y.reshape(y.shape[0], y.shape[1], heads, -1)


def attend(q, k, v, scale: float, allowed: Tensor, bias: Tensor, cap: float | None = None) -> tuple:
    """Attend from (B, L, H, K) to (B, S, G, K); allowed and bias broadcast to (B, H, L, S)."""
    group = q.shape[2] // k.shape[2]
    k, v = (torch.stack([t[:, :, h // group] for h in range(q.shape[2])], 2) for t in (k, v))
    logits = scale * torch.einsum("blhk,bshk->bhls", q, k)
    logits = (logits if cap is None else torch.tanh(logits / cap) * cap) + bias
    exponentials = torch.exp(logits - logits.amax(-1, keepdim=True)) * allowed
    probabilities = exponentials / exponentials.sum(-1, keepdim=True)
    return torch.einsum("bhls,bshk->blhk", probabilities, v), probabilities


def attention(
    module, x: Tensor, memory: Tensor, *, allowed=None, bias=None, scale=None, cap=None
) -> Tensor:
    """Apply multi-head attention with the weights of a module; no query-key norm or slots."""
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


def causal_mask(length: int) -> Tensor:
    """Return (length, length), True where the key is not after the query."""
    return torch.tensor([[key <= query for key in range(length)] for query in range(length)])


def rotate(x: Tensor, positions: list[int], base: float = 10000.0) -> Tensor:
    """Rotate x, (B, H, L, K), with complex numbers; pairs are half the features apart."""
    half = x.shape[-1] // 2
    z = torch.complex(x[..., :half].double(), x[..., half:].double())
    angles = torch.tensor([[p * base ** (-j / half) for j in range(half)] for p in positions])
    rotated = z * torch.polar(torch.ones_like(angles.double()), angles.double())
    return torch.cat((rotated.real, rotated.imag), -1).to(x.dtype)


def t5_bucket(distance: int, *, causal: bool, buckets: int = 32, limit: int = 128) -> int:
    """Return the bucket of one distance, key - query."""
    offset = 0
    if causal:
        magnitude = max(0, -distance)
    else:
        buckets //= 2
        offset, magnitude = (buckets if distance > 0 else 0), abs(distance)
    exact = buckets // 2
    if magnitude < exact:
        return offset + magnitude
    step = math.log(magnitude / exact) / math.log(limit / exact) * (buckets - exact)
    # T5 computes in float32; without the offset an exact power could fall into a lower bucket.
    return offset + min(buckets - 1, exact + int(step + 1e-6))
