"""Activations of a model at named sites, for models of addnorm and for any other module."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from addnorm.stacks import Stack
from addnorm.sublayers.multihead import MultiHeadAttention

Recording = dict[str, list[Tensor]]
"""Tensors of each site, one per layer and call, in the order of the forward pass."""
OUTPUT = "output"
KIND_NAMES = {"self": "attention", "cross": "cross-attention", "ffn": "feed-forward"}


@contextmanager
def record_sites(model: nn.Module) -> Iterator[Recording]:
    """Record the activations of a forward pass.

    Models with stacks are recorded at the last stream of each stack, at the branches by kind, and
    at the attention logits; other modules at the outputs of all leaves (`name_sites`). `output` is
    that of the whole module.
    """
    record: Recording = {}
    hooks = [model.register_forward_hook(_store(record, OUTPUT))]
    stacks = {name: each for name, each in model.named_modules() if isinstance(each, Stack)}
    for name, stack in stacks.items():
        hooks += _hook_stack(
            record, stack, f"{name.rpartition('.')[2]} " if len(stacks) > 1 else ""
        )
    if not stacks:
        hooks += [
            leaf.register_forward_hook(_store(record, site))
            for leaf, site in name_sites(model).items()
        ]
    try:
        yield record
    finally:
        for hook in hooks:
            hook.remove()


def name_sites(model: nn.Module) -> dict[nn.Module, str]:
    """Return the sites of a module's leaves; the same place of different layers is one site.

    Children of a list are layers if they have one class and equal shapes: `*` stands for their
    number. In a list of different children, those that are alike share the number of the first.

    >>> blocks = [nn.Sequential(nn.LayerNorm(4), nn.Linear(4, 4)) for _ in range(3)]
    >>> sorted(set(name_sites(nn.Sequential(*blocks)).values()))
    ['*.0', '*.1']
    """
    sites: dict[nn.Module, str] = {}
    _add_leaves(sites, model, "")
    return sites


def _add_leaves(sites: dict[nn.Module, str], module: nn.Module, path: str) -> None:
    children = dict(module.named_children())
    if not children and path:
        sites.setdefault(module, path)
    kinds = {
        name: (type(child), tuple(tuple(each.shape) for each in child.parameters()))
        for name, child in children.items()
        if name.isdigit()
    }
    are_layers = len(set(kinds.values())) == 1
    first: dict[Any, str] = {}
    for name, child in children.items():
        number = "*" if are_layers else first.setdefault(kinds.get(name), name)
        own = number if name in kinds else name
        _add_leaves(sites, child, f"{path}.{own}" if path else own)


def _hook_stack(record: Recording, stack: Stack, prefix: str) -> list[Any]:
    hooks = []
    for site, sublayer in zip(stack.plan.sites, stack.sublayers, strict=True):
        kind = KIND_NAMES.get(site.kind, site.kind)
        branch = stack.taps.branch[site.index]
        hooks.append(branch.register_forward_hook(_store(record, f"{prefix}{kind} branch")))
        if isinstance(sublayer, MultiHeadAttention):
            name = f"{prefix}{kind} logits"
            hooks.append(sublayer.logits_tap.register_forward_hook(_store(record, name)))
    last = stack.taps.stream[len(stack.plan.sites) - 1]
    hooks.append(last.register_forward_hook(_store(record, f"{prefix}stream")))
    return hooks


def _store(record: Recording, name: str) -> Any:
    def hook(_module: nn.Module, _inputs: Any, output: Any) -> None:
        tensor = first_tensor(output)
        if tensor is not None:
            record.setdefault(name, []).append(tensor.detach().float())

    return hook


def first_tensor(output: Any) -> Tensor | None:
    """Return the floating-point tensor that an output is or begins with; None if there is none."""
    if isinstance(output, Tensor):
        return output if output.is_floating_point() else None
    if isinstance(output, dict):
        values: Any = (output[name] for name in ("logits", "last_hidden_state") if name in output)
        return first_tensor(next(values, next(iter(output.values()), None)))
    if isinstance(output, tuple | list):
        return next((each for each in map(first_tensor, output) if each is not None), None)
    return None


def rms(tensors: list[Tensor]) -> float:
    """Return the root mean square of all finite entries, every tensor with the same weight."""
    squares = []
    for tensor in tensors:
        masked = tensor[tensor != -torch.inf]  # attention logits of later tokens
        squares.append(masked.square().mean().item() if masked.numel() else 0.0)
    return float((sum(squares) / len(squares)) ** 0.5) if squares else 0.0


def difference(now: list[Tensor], before: list[Tensor]) -> list[Tensor]:
    """Return the changes of tensors; entries that are not finite before are left out."""
    return [
        torch.where(old == -torch.inf, old, new - old) for new, old in zip(now, before, strict=True)
    ]
