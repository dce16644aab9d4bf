"""Metric `max_logit`: largest attention logit."""

import torch
from torch import Tensor

from addnorm.measure.metrics.site_activations import SiteActivations


def max_logit(activations: SiteActivations) -> Tensor | None:
    """Return the largest attention logit.

    value = max_{b, h, t, s} cap(scale * q[b, h, t] . k[b, h, s])

    q, k: (B, heads, L, K) and (B, heads, S, K), after query-key norms and rotary positions
    t, s: valid queries and their visible keys; the value is -inf if there are none
    cap: soft cap of the logits, if the attention has one; position biases are not included

    Dehghani et al., Scaling Vision Transformers to 22 Billion Parameters, 2023, arXiv 2302.05442,
    section 2.
    """
    if not activations.logits:
        return None
    return torch.stack(
        [_max_valid_logit(logits.float(), activations.valid) for logits in activations.logits]
    ).max()


def _max_valid_logit(logits: Tensor, valid: Tensor | None) -> Tensor:
    if valid is not None:
        logits = logits.masked_fill(~valid[:, None, :, None], -torch.inf)
    return logits.max()
