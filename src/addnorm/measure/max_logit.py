"""How large do the logits of attention get?"""

import torch
from torch import Tensor

from addnorm.measure.site_activations import Sight


def max_logit(sight: Sight) -> Tensor | None:
    """The largest logit of attention.

    value = max_{b, h, t, s} cap(scale * q[b, h, t] . k[b, h, s])

    q, k: (B, heads, L, K) and (B, heads, S, K), as they are multiplied: normalised and rotated
    t, s: valid queries and keys that they may see; -inf if there are none
    cap: the bound of the logits, if the attention has one; a position bias is not in the value

    Dehghani et al., Scaling Vision Transformers to 22 Billion Parameters, 2023, arXiv 2302.05442,
    section 2.
    """
    if not sight.logits:
        return None
    return torch.stack([_largest(logits.float(), sight.valid) for logits in sight.logits]).max()


def _largest(logits: Tensor, valid: Tensor | None) -> Tensor:
    if valid is not None:
        logits = logits.masked_fill(~valid[:, None, :, None], -torch.inf)
    return logits.max()
