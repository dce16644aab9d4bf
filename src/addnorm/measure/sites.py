"""Where rows come from: the stacks of a model, their sites, and what belongs to a site."""

from collections.abc import Iterator
from typing import Any

from torch import nn
from torch.nn.parallel import DistributedDataParallel

from addnorm.core.errors import UserError
from addnorm.core.plan import Site
from addnorm.stacks.stack import Stack

KIND_LABELS = {"self": "self-attention", "cross": "cross-attention", "ffn": "feed-forward"}


def unwrap_model(model: nn.Module) -> nn.Module:
    """The model inside DistributedDataParallel and torch.compile, in whatever order."""
    while True:
        if isinstance(model, DistributedDataParallel):
            model = model.module
        elif "_orig_mod" in model._modules:  # torch._dynamo.OptimizedModule, slow to import
            model = model.get_submodule("_orig_mod")
        else:
            return model


def find_stacks(model: nn.Module) -> dict[str, Stack]:
    """The stacks of any module by name, the one that reads first at the front.

    A stack is called by its side, `encoder` or `decoder`; where two have the same, by the path in
    their module.

    >>> from addnorm.models import build
    >>> list(stacks_of(build(kind="seq2seq", vocab=9, dim=8, depth=1, heads=2)))
    ['encoder', 'decoder']
    """
    found = [(name, module) for name, module in model.named_modules() if isinstance(module, Stack)]
    if not found:
        raise UserError(
            f"nothing to measure in {type(model).__name__}: wanted an addnorm model or Stack, or a "
            "module that holds one"
        )
    sides = [stack.plan.role.removesuffix("_only") for _, stack in found]
    return {
        side if sides.count(side) == 1 else path: stack
        for side, (path, stack) in zip(sides, found, strict=True)
    }


def site_fields(stack: str, site: Site) -> dict[str, Any]:
    """How a row names a site."""
    return {"stack": stack, "site": site.index, "layer": site.layer, "kind": site.kind}


def describe_site(stack: str, site: Site) -> str:
    """How a sentence names a site.

    >>> spell("decoder", Site(10, 3, 1, "cross", False, False))
    'decoder layer 3, cross-attention'
    """
    return f"{stack} layer {site.layer}, {KIND_LABELS.get(site.kind, site.kind)}"


def site_parameters(stack: Stack, site: Site) -> Iterator[nn.Parameter]:
    """Parameters of the sub-layer at a site, then those of the wiring that are known to be its.

    Known are members of a list with one module a site: its norms, gates, mixers. Other parameters
    of a wiring (vectors of all sites in one tensor, scalars of a layer, a final norm) belong to no
    site, only to the whole.
    """
    yield from stack.sublayers[site.index].parameters()
    for module in stack.wiring.modules():
        if isinstance(module, nn.ModuleList) and len(module) == len(stack.plan.sites):
            yield from module[site.index].parameters()
