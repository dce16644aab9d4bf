"""Tensor parallelism: the processes of a replica share the heads and feed-forward features.

    q, k, v, up, gate    split by columns: each process computes heads / N and hidden / N features
    out, down            split by rows: each process computes a summand, and an all-reduce adds them

Everything else (embedding, norms, wiring, head) is computed by all processes alike. torch's
`parallelize_module` splits the weights. The result is that of one process up to rounding, if
nothing between the two matrices depends on features of other processes; other models are rejected.

Shoeybi et al., Megatron-LM, 2019, arXiv 1909.08053, section 3.
"""

import logging
import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from addnorm.core.errors import UserError
from addnorm.core.plan import Plugs
from addnorm.measure.sharded_norms import find_mesh
from addnorm.models import Model
from addnorm.stacks import Stack
from addnorm.sublayers.attention import CrossAttention, SelfAttention
from addnorm.sublayers.feedforward import FeedForward
from addnorm.sublayers.multihead import MultiHeadAttention
from addnorm.sublayers.positions import Positions
from addnorm.train.distributed import World, gather_shards

COLUMNS = ("q_proj", "k_proj", "v_proj", "up_proj", "gate_proj")
ROWS = ("out_proj", "down_proj")
PLUGS = tuple(name for name in Plugs.__dataclass_fields__ if name != "logit_scale")
"""Plugs that act on heads or hidden features."""


def apply_tensor_parallel(model: Model, world: World) -> None:
    """Split the weights of all attention and feed-forward sub-layers in place.

    Raises:
        UserError: the result would not be that of one process, with the reason
    """
    size = world.tensor_parallel
    assert world.mesh is not None
    for stack in model.stacks:
        for reason in _iter_conflicts(stack, size):
            raise UserError(f"tensor_parallel={size} would not be exact: {reason}")
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    # With FSDP, torch warns in each process that it makes two collectives of one.
    logging.getLogger("torch.distributed.tensor._redistribute").setLevel(logging.ERROR)
    # A sub-layer may stand at several sites. The order must be the same in all processes.
    for sublayer in dict.fromkeys(each for stack in model.stacks for each in stack.sublayers):
        names = [name for name, _ in sublayer.named_children()]
        plan: dict[str, Any] = {name: ColwiseParallel() for name in COLUMNS if name in names}
        plan |= {name: RowwiseParallel() for name in ROWS if name in names}
        parallelize_module(sublayer, world.mesh["tensor"], plan)
        if isinstance(sublayer, MultiHeadAttention):
            sublayer.heads //= size
            sublayer.kv_heads //= size


def _iter_conflicts(stack: Stack, size: int) -> Iterator[str]:
    """Yield why a stack cannot be split over `size` processes."""
    positions = getattr(stack, "positions", None)
    if positions is not None and type(positions).bias is not Positions.bias:
        yield f"positions {stack.positions_call} add a bias to each head; use rotary or sinusoid"
    for site in stack.plan.sites:
        plugs = stack.wiring.plugs(site)
        plug = next((name for name in PLUGS if getattr(plugs, name) is not None), None)
        if plug is not None:
            yield (
                f"wiring {stack.wiring_call} has a norm or scale inside its sub-layers ({plug}), "
                "over features that are split; use parallel=fsdp"
            )
        yield from _iter_sublayer_conflicts(stack.sublayers[site.index], size)


def _iter_sublayer_conflicts(sublayer: nn.Module, size: int) -> Iterator[str]:
    if type(sublayer) not in (SelfAttention, CrossAttention, FeedForward):
        yield f"{type(sublayer).__name__} is neither attention nor a feed-forward"
        return
    widths = {"hidden": getattr(sublayer, "hidden", None)}
    dropout, key = getattr(sublayer.dropout, "p", sublayer.dropout), "activation_dropout"
    if isinstance(sublayer, MultiHeadAttention):
        widths = {"heads": sublayer.heads, "kv_heads": sublayer.kv_heads}
        key = "attention_dropout"
        if sublayer.qk_norm.all_heads:
            yield f"qk_norm {sublayer.qk_norm_call} is computed over all heads; use qk_norm=none"
    elif isinstance(sublayer, FeedForward) and isinstance(sublayer.act, nn.Module):
        yield f"activation {sublayer.activation} has weights or statistics over all features"
    for name, width in widths.items():
        if width is not None and width % size:
            yield f"{name}: expected a multiple of {size}, got {width}"
    if dropout:
        yield (
            f"{key}={dropout} would drop the same features in all processes; set {key}=0 (dropout "
            "behind the sub-layers is possible)"
        )
    split = {f"{name}.{kind}" for name in COLUMNS + ROWS for kind in ("weight", "bias")}
    others = [name for name, _ in sublayer.named_parameters() if name not in split]
    if others:
        owner = type(sublayer).__name__
        yield f"{others[0]} of {owner} is a weight of heads or features that are split"


def clip_gradients(weights: Sequence[nn.Parameter], max_norm: float | None) -> Tensor:
    """Clip gradients in place to a norm, if one is given; return the norm before, on the device.

    torch's `clip_grad_norm_` cannot combine weights that are split in different ways.
    """
    max_norm = math.inf if max_norm is None else max_norm
    groups: dict[Any, list[nn.Parameter]] = {}
    for weight in weights:
        groups.setdefault(find_mesh(weight), []).append(weight)
    if len(groups) == 1:
        return gather_shards(torch.nn.utils.clip_grad_norm_(weights, max_norm))
    gradients = [
        [each.grad for each in group if each.grad is not None] for group in groups.values()
    ]
    norms = [gather_shards(torch.nn.utils.get_total_norm(group)) for group in gradients]
    norm = torch.linalg.vector_norm(torch.stack(norms))
    factor = (max_norm / (norm + 1e-6)).clamp_max(1.0)
    for gradient in (each for group in gradients for each in group):
        gradient.mul_(factor)
    return norm
