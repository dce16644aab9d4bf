"""Laws of folding: rewrites of weights that leave a model's outputs unchanged.

`readers` of a site are the matrices that read the stream: query, key and value of self-attention,
the query of cross-attention, up and gate of a feed-forward. The `writer` is the matrix that writes
to it: out or down. All functions change weights in place; call them in float64.
"""

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from addnorm.core.errors import UserError
from addnorm.sublayers import FeedForward, MixtureOfExperts
from addnorm.sublayers.multihead import MultiHeadAttention

Scale = float | Tensor
"""A number, or one per feature, (dim)."""


def readers(sublayer: nn.Module) -> list[nn.Linear]:
    """Return the matrices of a sub-layer that read the stream."""
    if isinstance(sublayer, MultiHeadAttention):
        own = [sublayer.q_proj, sublayer.k_proj, sublayer.v_proj]
        own = own[:1] if sublayer.shape.crosses else own
        return own if sublayer.output_gate is None else [*own, sublayer.output_gate.proj]
    if isinstance(sublayer, MixtureOfExperts):
        gates = [each for each in (sublayer.router, sublayer.shared_gate) if each is not None]
        return [*gates, *(each for network in sublayer.networks() for each in readers(network))]
    assert isinstance(sublayer, FeedForward)
    return [each for each in (sublayer.up_proj, sublayer.gate_proj) if each is not None]


def memory_readers(sublayer: nn.Module) -> list[nn.Linear]:
    """Return the matrices of a sub-layer that read the memory: key and value of cross-attention."""
    if isinstance(sublayer, MultiHeadAttention) and sublayer.shape.crosses:
        return [sublayer.k_proj, sublayer.v_proj]
    return []


def writer(sublayer: nn.Module) -> nn.Linear:
    """Return the matrix of a sub-layer that writes to the stream.

    Raises:
        UserError: a mixture of experts, which has several
    """
    first, *others = writers(sublayer)
    if others:
        raise UserError(
            f"sub-layer: expected one matrix that writes to the stream, got {len(others) + 1} of a "
            f"{type(sublayer).__name__}"
        )
    return first


def writers(sublayer: nn.Module) -> list[nn.Linear]:
    """Return the matrices of a sub-layer that write to the stream, one of every expert."""
    if isinstance(sublayer, MultiHeadAttention):
        return [sublayer.out_proj]
    if isinstance(sublayer, MixtureOfExperts):
        return [network.down_proj for network in sublayer.networks()]
    assert isinstance(sublayer, FeedForward)
    return [sublayer.down_proj]


def scale_outputs(linears: Iterable[nn.Linear], s: Scale) -> None:
    """L1, branch scale: s * (W x + b) = (s W) x + s b, s for each row."""
    for linear in linears:
        linear.weight.mul_(s[:, None] if isinstance(s, Tensor) and s.ndim else s)
        if linear.bias is not None:
            linear.bias.mul_(s)


def scale_inputs(linears: Iterable[nn.Linear], s: Scale) -> None:
    """L2, input scale: W (s * x) = (W s) x, s for each column."""
    for linear in linears:
        linear.weight.mul_(s)


def shift_inputs(linears: Iterable[nn.Linear], t: Tensor) -> None:
    """L3, input shift: W (x + t) + b = W x + (b + W t); a missing bias is created."""
    for linear in linears:
        shift_outputs(linear, linear.weight @ t)


def shift_outputs(linear: nn.Linear, t: Tensor) -> None:
    """Add t to the bias of a linear map, which is created if it is missing."""
    if linear.bias is None:
        linear.bias = nn.Parameter(torch.zeros_like(linear.weight[:, 0]), requires_grad=False)
    linear.bias.add_(t)


def carry_scale(
    previous_gain: Tensor, previous_bias: Tensor | None, linears: Iterable[nn.Linear], s: Scale
) -> None:
    """L4, stream scale: N(s x + f(x)) = N(x' + f(x' / s)), x' = s x.

    The norm before makes x' instead of x: its gain and bias times s. Readers divide by s. The eps
    of N does not change. No entry of s may be 0.

    Args:
        previous_gain: gain of the norm that makes x
        previous_bias: its bias
        linears: readers of the site
        s: the scale of the skip
    """
    previous_gain.mul_(s)
    if previous_bias is not None:
        previous_bias.mul_(s)
    scale_inputs(linears, 1 / s)


def divide_branch(linear: nn.Linear, eps: float, s: float) -> float:
    """L5, branch division: N(s x + f; eps) = sign(s) N(x + f / s; eps / s^2), s a number.

    Divides the writer; returns the eps of the norm. A negative s changes the sign of its gain (L7).
    """
    scale_outputs([linear], 1 / s)
    return eps / s**2


def transport_eps(linears: Iterable[nn.Linear], eps: float, new_eps: float) -> float:
    """L6, eps transport: N(c z; c^2 eps) = N(z; eps).

    Scales the matrices that make the input z of a norm by c, so that the norm may have another eps.

    Returns:
        c = sqrt(new_eps / eps), by which any other term of z must be scaled.
    """
    c = float((new_eps / eps) ** 0.5)
    scale_outputs(linears, c)
    return c


def negate_input(gain: Tensor) -> None:
    """L7, negative scale: N(-z; g, b) = N(z; -g, b)."""
    gain.neg_()


def divide_by_running_scale(
    linear: nn.Linear, gain: Tensor | None, eps: float, scale: float
) -> float:
    """L8, running scale: x <- c (x + f(N(x))) with x = C z is z <- z + f(N(C z)) / C, C <- c C.

    N(C z; g, eps) = N(z; sign(C) g, eps / C^2).

    Args:
        linear: writer of the site, divided by C
        gain: gain of the site's norm, which takes the sign of C
        eps: eps of the norm
        scale: C, the product of the scales of the sites before

    Returns:
        The eps that the site's norm needs.
    """
    scale_outputs([linear], 1 / scale)
    if gain is not None and scale < 0:
        negate_input(gain)
    return eps / scale**2


def drop_value_bias(attention: MultiHeadAttention) -> None:
    """L9, value bias: probabilities sum to 1, so out(sum_j p_j (v_j + b)) = out(...) + W_out b.

    Not with a sink, whose probabilities sum to less, nor with anything behind the heads.
    """
    bias = attention.v_proj.bias
    if attention.options.sink != "none" or attention.options.gate != "none":
        raise UserError("value bias: expected attention without sink and gate")
    if bias is None:
        return
    repeat = attention.heads // attention.kv_heads
    per_head = bias.view(attention.kv_heads, -1).repeat_interleave(repeat, 0)
    shift_outputs(attention.out_proj, attention.out_proj.weight @ per_head.flatten())
    bias.zero_()


def drop_key_bias(attention: MultiHeadAttention) -> None:
    """L9, key bias: q . (k_j + b) adds q . b to all logits of a query, which softmax ignores.

    Not with rotary positions, a query-key norm, a cap or persistent keys.
    """
    if attention.has_qk_norm or attention.options.cap is not None or attention.persistent:
        raise UserError(
            "key bias: expected attention without query-key norm, cap and persistent keys"
        )
    if attention.k_proj.bias is not None:
        attention.k_proj.bias.zero_()


def center_outputs(linears: Iterable[nn.Linear]) -> None:
    """L10, centering: LN(x) = RMS(P x), P = I - 1 1^T / d, because P x has mean 0 and the same eps.

    With P applied to all that writes to a Pre-LN stream, embedding and positions included (see
    `center_rows`), every LayerNorm on it may be an RMSNorm.
    """
    for linear in linears:
        linear.weight.sub_(linear.weight.mean(0, keepdim=True))
        if linear.bias is not None:
            linear.bias.sub_(linear.bias.mean())


def center_rows(table: Tensor) -> None:
    """L10 for a table whose rows are added to the stream, (rows, dim)."""
    table.sub_(table.mean(-1, keepdim=True))


def permute_inputs(linears: Iterable[nn.Linear], order: Tensor) -> None:
    """L11, permutation: W x = W[:, order] x[order]."""
    for linear in linears:
        linear.weight.copy_(linear.weight[:, order].clone())


def permute_outputs(linears: Iterable[nn.Linear], order: Tensor) -> None:
    """L11, permutation: (W x + b)[order] = W[order] x + b[order]."""
    for linear in linears:
        linear.weight.copy_(linear.weight[order].clone())
        if linear.bias is not None:
            linear.bias.copy_(linear.bias[order].clone())


def interleaved_to_half(size: int) -> Tensor:
    """Return the order that turns pairs (2 j, 2 j + 1) into (j, j + size / 2).

    >>> interleaved_to_half(6)
    tensor([0, 2, 4, 1, 3, 5])
    """
    return torch.cat((torch.arange(0, size, 2), torch.arange(1, size, 2)))


def rotary_to_half(attention: MultiHeadAttention, rotary_dim: int) -> None:
    """L11 in each head: rotary pairs of layout interleaved to layout half, in query and key."""
    head = torch.arange(attention.head_dim)
    head[:rotary_dim] = interleaved_to_half(rotary_dim)
    for linear in (attention.q_proj, attention.k_proj):
        count = linear.weight.shape[0] // attention.head_dim
        order = (torch.arange(count)[:, None] * attention.head_dim + head).flatten()
        permute_outputs([linear], order)


def repeat_key_heads(attention: MultiHeadAttention) -> tuple[nn.Linear, nn.Linear]:
    """L12, groups: a key head that r query heads share is r equal heads.

    Returns:
        Key and value projections with as many heads as the queries.
    """
    repeat, width = attention.heads // attention.kv_heads, attention.head_dim
    result = []
    for linear in (attention.k_proj, attention.v_proj):
        full = nn.Linear(
            linear.in_features,
            attention.heads * width,
            bias=linear.bias is not None,
            dtype=linear.weight.dtype,
        )
        for name, parameter in linear.named_parameters():
            heads = parameter.view(attention.kv_heads, width, *parameter.shape[1:])
            getattr(full, name).data.copy_(heads.repeat_interleave(repeat, 0).flatten(0, 1))
        result.append(full)
    return result[0], result[1]
