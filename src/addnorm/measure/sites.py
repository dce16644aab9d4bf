"""Stacks of a model, names of their sites, and the parameters that belong to a site."""

from collections.abc import Iterator
from typing import Any

from torch import nn
from torch.nn.parallel import DistributedDataParallel

from addnorm.core.errors import UserError
from addnorm.core.plan import Site
from addnorm.stacks.stack import Stack

KIND_LABELS = {"self": "self-attention", "cross": "cross-attention", "ffn": "feed-forward"}


def unwrap_model(model: nn.Module) -> nn.Module:
    """Return the model inside (Distributed)DataParallel and torch.compile, in any order."""
    while True:
        if isinstance(model, nn.DataParallel | DistributedDataParallel):
            model = model.module
        elif "_orig_mod" in model._modules:  # torch._dynamo.OptimizedModule, slow to import
            model = model.get_submodule("_orig_mod")
        else:
            return model


def find_stacks(model: nn.Module) -> dict[str, Stack]:
    """Return the stacks of a module by name, in the order of the forward pass.

    The name of a stack is its role, `encoder` or `decoder`, or its path if several have that role.

    >>> from addnorm.models import build
    >>> list(find_stacks(build(kind="seq2seq", vocab=9, dim=8, depth=1, heads=2)))
    ['encoder', 'decoder']
    """
    stacks = [(name, module) for name, module in model.named_modules() if isinstance(module, Stack)]
    if not stacks:
        raise UserError(
            "model: expected an addnorm model or Stack, or a module that holds one, got "
            f"{type(model).__name__}"
        )
    roles = [stack.plan.role.removesuffix("_only") for _, stack in stacks]
    return {
        role if roles.count(role) == 1 else path: stack
        for role, (path, stack) in zip(roles, stacks, strict=True)
    }


def site_fields(stack: str, site: Site) -> dict[str, Any]:
    """Return the fields that identify a site in a row."""
    return {"stack": stack, "site": site.index, "layer": site.layer, "kind": site.kind}


def describe_site(stack: str, site: Site) -> str:
    """Return the name of a site in messages.

    >>> describe_site("decoder", Site(10, 3, 1, "cross", False, False))
    'decoder layer 3, cross-attention'
    """
    return f"{stack} layer {site.layer}, {KIND_LABELS.get(site.kind, site.kind)}"


def site_parameters(stack: Stack, site: Site) -> Iterator[nn.Parameter]:
    """Iterate over the parameters of a site: those of its sub-layer, then those of its wiring.

    A wiring's parameters belong to a site if they are in a ModuleList with one module per site:
    norms, gates, mixers. Other parameters of a wiring (one tensor for all sites, scalars of a
    layer, a final norm) belong to no site.
    """
    yield from stack.sublayers[site.index].parameters()
    for module in stack.wiring.modules():
        if isinstance(module, nn.ModuleList) and len(module) == len(stack.plan.sites):
            yield from module[site.index].parameters()
