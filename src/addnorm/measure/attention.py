"""Where does attention look?"""

from typing import Any

from torch import Tensor, nn

from addnorm.core.plan import Site
from addnorm.measure.probe import visit_sites
from addnorm.measure.site_activations import SiteActivations
from addnorm.measure.sites import find_stacks, unwrap_model


def attention_maps(model: nn.Module, *args: Any, **kwargs: Any) -> dict[str, list[Tensor]]:
    """The probabilities of every attention in one forward, in evaluation mode.

    maps[name][layer][b, h, t, s] = how much of what head h of query t reads comes from key s

    name: `encoder` and `decoder` for the self-attention of that stack, `cross` for attention from
        decoder to encoder; what the model has
    map: (B, heads, L, S); padding has zeros as a key and means nothing as a query

    >>> import torch
    >>> from addnorm.models import build
    >>> model = build(kind="seq2seq", vocab=9, dim=8, depth=3, heads=2)
    >>> maps = attention_maps(model, torch.tensor([[4, 5, 6, 2]]), torch.tensor([[1, 7]]))
    >>> {name: (len(layers), tuple(layers[0].shape)) for name, layers in maps.items()}
    {'encoder': (3, (1, 2, 4, 4)), 'decoder': (3, (1, 2, 2, 2)), 'cross': (3, (1, 2, 2, 4))}
    """
    stacks = find_stacks(unwrap_model(model))
    maps: dict[str, list[Tensor]] = {}

    def visit(name: str, site: Site, sight: SiteActivations) -> None:
        crosses = stacks[name].plan.sublayer_kind(site) == "cross"
        if sight.probabilities:
            maps.setdefault("cross" if crosses else name, []).extend(sight.probabilities)

    visit_sites(model, visit, *args, **kwargs)
    return maps
