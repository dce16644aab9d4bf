"""QK-clip: query and key matrices are scaled down when a head's logits grow too large."""

from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn

from addnorm.core.errors import UserError
from addnorm.sublayers.multihead import MultiHeadAttention


class QKClip:
    """Bound of the largest logit of every head, applied to weights after each optimizer step.

    eta = min(1, tau / m),  W_q <- eta^a W_q,  W_k <- eta^(1 - a) W_k

    m: largest logit of a key head's query heads since the last call of `apply`
    tau: bound, 100 in Kimi K2
    a: balance, 1 / 2

    Kimi Team, Kimi K2, 2025, arXiv 2507.20534: MuonClip. Only forward passes in training mode
    count. While it is attached, attention computes its softmax explicitly, which is slower.

    >>> from addnorm.sublayers import SelfAttention
    >>> attention = SelfAttention(8, 2, bias=False)
    >>> _ = nn.init.ones_(attention.q_proj.weight), nn.init.ones_(attention.k_proj.weight)
    >>> clip = QKClip([attention], tau=1e-3)
    >>> _ = attention.train()(torch.ones(1, 3, 8))
    >>> clip.apply()
    2
    """

    # NOTE[DIFF]: Megatron scales weights only; here biases are scaled, too, so that the logits are
    # scaled exactly.
    def __init__(
        self, attentions: Iterable[MultiHeadAttention], *, tau: float = 100.0, balance: float = 0.5
    ) -> None:
        if not tau > 0:
            raise UserError(f"tau: expected a positive number, got {tau!r}")
        if not 0 <= balance <= 1:
            raise UserError(f"balance: expected a number from 0 to 1, got {balance!r}")
        self.tau, self.balance = tau, balance
        self.attentions = list(attentions)
        for attention in self.attentions:
            if attention.has_qk_norm:
                raise UserError(
                    f"qk_clip: expected attention without a query-key norm, got "
                    f"{attention.qk_norm_call}, whose logits do not depend on the size of weights"
                )
        self.largest: list[Tensor | None] = [None] * len(self.attentions)
        self._hooks = [
            attention.logits_tap.register_forward_hook(self._make_hook(number, attention))
            for number, attention in enumerate(self.attentions)
        ]

    def _make_hook(self, number: int, attention: MultiHeadAttention) -> Callable[..., None]:
        def record(module: nn.Module, inputs: tuple[Tensor, ...], logits: Tensor) -> None:
            if not attention.training or not logits.numel():
                return
            largest = logits.detach().amax((0, 2, 3))
            before = self.largest[number]
            self.largest[number] = largest if before is None else torch.maximum(before, largest)

        return record

    @torch.no_grad()
    def apply(self) -> int:
        """Scale the weights of heads whose logits exceeded tau; return how many key heads did."""
        count = 0
        for number, attention in enumerate(self.attentions):
            largest, self.largest[number] = self.largest[number], None
            if largest is not None:
                count += clip_query_key(attention, largest, tau=self.tau, balance=self.balance)
        return count

    def remove(self) -> None:
        """Remove the hooks."""
        for hook in self._hooks:
            hook.remove()


@torch.no_grad()
def clip_query_key(
    attention: MultiHeadAttention, largest: Tensor, *, tau: float, balance: float = 0.5
) -> int:
    """Scale queries and keys so that no logit exceeds tau; return the number of scaled key heads.

    Args:
        attention: the attention, whose weights change in place
        largest: (heads) largest logit of every query head
        tau: bound
        balance: exponent of the queries' share
    """
    groups = attention.heads // attention.kv_heads
    per_key_head = largest.view(attention.kv_heads, groups).amax(1)
    eta = torch.where(per_key_head > tau, tau / per_key_head, 1.0)
    for linear, factor, repeat in (
        (attention.q_proj, eta**balance, groups),
        (attention.k_proj, eta ** (1 - balance), 1),
    ):
        rows = factor.repeat_interleave(repeat * attention.head_dim).to(linear.weight.dtype)
        linear.weight.mul_(rows[:, None])
        if linear.bias is not None:
            linear.bias.mul_(rows)
    return int((eta < 1).sum())
