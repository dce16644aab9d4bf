"""Canon layers: short causal convolutions between neighboring tokens."""

import torch
from torch import Tensor, nn

from addnorm.core.errors import UserError
from addnorm.sublayers.cache import LayerCache
from addnorm.sublayers.packing import Packing

KERNEL = 4
PLACES = "ABCD"


class CanonLayer(nn.Module):
    """Causal depth-wise convolution with its own skip.

    h_t <- h_t + sum_{j = 0..3} w_j * h_{t - j}

    h: (B, L, features); zeros before the first token and at padding
    w: (features, 4), starts uniform in +-1 / 2

    Allen-Zhu, Physics of Language Models: Part 4.1, 2025, arXiv 2512.17351. w = 0 is the identity.
    """

    def __init__(self, features: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(features, KERNEL))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the weights as torch.nn.Conv1d does."""
        if not self.weight.is_meta:
            nn.init.uniform_(self.weight, -(KERNEL**-0.5), KERNEL**-0.5)

    def forward(
        self,
        h: Tensor,
        *,
        mask: Tensor | None = None,
        packing: Packing | None = None,
        recent: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Convolve.

        Args:
            h: (B, L, features), or (1, N, features) if packed
            mask: (B, L), True at valid tokens
            packing: of the batch, if h holds its valid tokens only
            recent: (B, 3, features) last inputs of earlier calls; zeros if None

        Returns:
            The output, and the last three valid inputs, for the next call.
        """
        if packing is not None:
            padded, kept = self(packing.unpack(h), mask=packing.mask)
            return packing.pack(padded), kept
        inputs = h if mask is None else h.masked_fill(~mask.unsqueeze(-1), 0)
        if recent is None:
            recent = h.new_zeros(h.shape[0], KERNEL - 1, h.shape[2])
        window = torch.cat((recent.to(h.dtype), inputs), 1)
        length, weights = h.shape[1], self.weight.to(h.dtype).unbind(1)
        y = h
        for lag, weight in enumerate(weights):
            start = KERNEL - 1 - lag
            y = y + weight * window[:, start : start + length]
        if mask is not None:  # padding on the right must not hide the last tokens
            valid = torch.cat((mask.new_ones(len(mask), KERNEL - 1), mask), 1)
            order = valid.long().argsort(dim=1, stable=True)
            window = window.gather(1, order.unsqueeze(-1).expand_as(window))
        return y, window[:, -(KERNEL - 1) :]


def run_canon(
    layer: CanonLayer,
    h: Tensor,
    name: str,
    *,
    mask: Tensor | None,
    cache: LayerCache | None,
    packing: Packing | None,
) -> Tensor:
    """Convolve h with the last inputs that a layer cache holds under a name, and store the new."""
    recent = None if cache is None else cache.recent.get(name)
    h, kept = layer(h, mask=mask, packing=packing, recent=recent)
    if cache is not None:
        cache.recent[name] = kept
    return h


def check_places(canon: object, allowed: str = PLACES) -> str:
    """Return the places of Canon layers, such as "AC"; raise a UserError for any others."""
    if not isinstance(canon, str) or "".join(sorted(set(canon) & set(allowed))) != canon:
        raise UserError(
            f"canon: expected letters of {allowed} in order, such as {allowed[:2]!r}, got {canon!r}"
        )
    return canon
