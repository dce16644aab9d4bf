"""Attention maps of a model."""

from typing import Any

from torch import Tensor, nn

from addnorm.core.plan import Site
from addnorm.measure.metrics.site_activations import SiteActivations
from addnorm.measure.probe import visit_sites
from addnorm.measure.sites import find_stacks, unwrap_model


def attention_maps(model: nn.Module, *args: Any, **kwargs: Any) -> dict[str, list[Tensor]]:
    """Return the probabilities of every attention in one forward pass in evaluation mode.

    Args:
        model: an addnorm model or Stack, or a module that holds one
        *args, **kwargs: arguments of the model

    Returns:
        Lists with one (B, heads, L, S) tensor per layer. The keys are `encoder` and `decoder` for
        self-attention and `cross` for cross-attention, as far as the model has them. Padding keys
        have probability 0; rows of padding queries are undefined.

    >>> import torch
    >>> from addnorm.models import build
    >>> model = build(kind="seq2seq", vocab=9, dim=8, depth=3, heads=2)
    >>> maps = attention_maps(model, torch.tensor([[4, 5, 6, 2]]), torch.tensor([[1, 7]]))
    >>> {name: (len(layers), tuple(layers[0].shape)) for name, layers in maps.items()}
    {'encoder': (3, (1, 2, 4, 4)), 'decoder': (3, (1, 2, 2, 2)), 'cross': (3, (1, 2, 2, 4))}
    """
    stacks = find_stacks(unwrap_model(model))
    maps: dict[str, list[Tensor]] = {}

    def visit(name: str, site: Site, activations: SiteActivations) -> None:
        is_cross = stacks[name].plan.sublayer_kind(site) == "cross"
        if activations.probabilities:
            maps.setdefault("cross" if is_cross else name, []).extend(activations.probabilities)

    visit_sites(model, visit, *args, **kwargs)
    return maps
