"""Check of a few gradients before every update: is there a NaN or infinity?"""

import torch
from torch import nn

from addnorm.doctor.trace.module_stack import unwrapped_name
from addnorm.monitor.sites.site_plan import SitePlan

MAX_ENTRIES = 1 << 14
"""Entries of the gradients that are checked before every update."""


class GradientCheck:
    """Check of the smallest weights of the first and last sites.

    A NaN in the loss spreads to all gradients, and one that arises in the backward pass to those of
    all earlier sites, so the gradients at both ends of the model show either.
    """

    def __init__(self, model: nn.Module, plan: SitePlan) -> None:
        named = {unwrapped_name(name): weight for name, weight in model.named_parameters()}
        ends = [plan.sites[0], plan.sites[-1]] if plan.sites else []
        groups = [[named[name] for name in site.weights if name in named] for site in ends]
        trained = [p for p in named.values() if p.requires_grad]
        groups += [trained[:1], trained[-1:]]
        self._weights: list[nn.Parameter] = []
        for group in groups:
            small = sorted((p for p in group if p.requires_grad), key=lambda p: p.numel())
            self._weights += [p for p in small[:2] if p.numel() <= MAX_ENTRIES]

    def is_finite(self) -> bool:
        """Return whether the checked gradients are finite; missing ones count as finite."""
        gradients = [weight.grad for weight in self._weights if weight.grad is not None]
        if not gradients:
            return True
        with torch.no_grad():
            norms = torch._foreach_norm(gradients)
            return bool(torch.stack([norm.float() for norm in norms]).isfinite().all())
