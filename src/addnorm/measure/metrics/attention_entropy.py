"""Metric `attention_entropy`: how evenly attention is spread over the keys."""

import torch
from torch import Tensor

from addnorm.measure.metrics.site_activations import SiteActivations, masked_mean


def attention_entropy(activations: SiteActivations) -> Tensor | None:
    """Return the mean entropy of attention in nats.

    value = mean_{b, h, t}(-sum_s p[b, h, t, s] * log p[b, h, t, s])

    p: (B, heads, L, S), probabilities before dropout
    b, h, t: all heads and all valid queries with a visible key
    value: 0 if each query attends to one key, log S if to all S keys equally; a collapse towards 0
        accompanies unstable training

    The value is not divided by the logarithm of the number of visible keys, which is 0 for the
    first token of a causal stack. Compare values at equal sequence lengths only.

    Zhai et al., Stabilizing Transformer Training by Preventing Attention Entropy Collapse, 2023,
    arXiv 2303.06296, section 3.
    """
    if not activations.probabilities:
        return None
    return torch.stack(
        [_entropy(p.float(), activations.valid) for p in activations.probabilities]
    ).mean()


def _entropy(p: Tensor, valid: Tensor | None) -> Tensor:
    sees = p.sum(-1) != 0  # (B, heads, L); NaN counts, so that the value is NaN
    return masked_mean(
        torch.special.entr(p).sum(-1), sees if valid is None else sees & valid.unsqueeze(-2)
    )
