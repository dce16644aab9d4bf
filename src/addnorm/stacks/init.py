"""Initialisation: one table, scheme x role x the wiring's gain."""

import math
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

from addnorm.core.errors import UserError, unknown
from addnorm.norms.base import Norm
from addnorm.stacks.wants import as_sublayer
from addnorm.sublayers.base import Sublayer
from addnorm.sublayers.positions import Positions
from addnorm.wirings.base import Part, Wiring

Draw = Callable[[Tensor, float], Tensor]  # fills a weight with a given standard deviation


def _uniform(weight: Tensor, std: float) -> Tensor:
    return weight.uniform_(-math.sqrt(3) * std, math.sqrt(3) * std)


def _normal(weight: Tensor, std: float) -> Tensor:
    return weight.normal_(0.0, std)


def _clipped(weight: Tensor, std: float) -> Tensor:
    return nn.init.trunc_normal_(weight, std=std, a=-3 * std, b=3 * std)


def _xavier(rows: int, columns: int) -> float:
    return math.sqrt(2 / (rows + columns))


# scheme: (how it draws, standard deviation of an attention matrix, of a feed-forward matrix, of an
# embedding table), each of rows (features made) and columns (features read). Biases start at 0 in
# every scheme.
SCHEMES: dict[
    str,
    tuple[
        Draw, Callable[[int, int], float], Callable[[int, int], float], Callable[[int, int], float]
    ],
] = {
    "xavier_uniform": (_uniform, _xavier, _xavier, lambda rows, columns: columns**-0.5),
    "xavier_normal": (_normal, _xavier, _xavier, lambda rows, columns: columns**-0.5),
    "gpt2": (
        _normal,
        lambda rows, columns: 0.02,
        lambda rows, columns: 0.02,
        lambda rows, columns: 0.02,
    ),
    # SmallInit of Nguyen and Salazar 2019: attention matrices as if they made 4 times their
    # features.
    "small": (
        _normal,
        lambda rows, columns: math.sqrt(2 / (5 * columns)),
        _xavier,
        lambda rows, columns: columns**-0.5,
    ),
    "megatron": (_clipped, *3 * (lambda rows, columns: math.sqrt(2 / (5 * min(rows, columns))),)),
    "unit": (_normal, *3 * (lambda rows, columns: min(rows, columns) ** -0.5,)),
    "torch": (
        _uniform,
        *2 * (lambda rows, columns: (3 * columns) ** -0.5,),
        lambda rows, columns: 1.0,
    ),
}

ATTENTION = ("query", "key", "value", "out")
FEED_FORWARD = ("ffn_in", "ffn_out")
ROLES = (*ATTENTION, *FEED_FORWARD, "embed", "bias")


@torch.no_grad()
def draw(weight: Tensor, *, scheme: str, role: str, gain: float = 1.0) -> None:
    """Fill a weight as the table says. A gain of 0 gives zeros."""
    if scheme not in SCHEMES:
        raise UserError(unknown("scheme", scheme, SCHEMES))
    if role not in ROLES:
        raise UserError(unknown("role", role, ROLES))
    if role == "bias" or gain == 0:
        weight.zero_()
        return
    fill, attention, feed_forward, embed = SCHEMES[scheme]
    std = attention if role in ATTENTION else feed_forward if role in FEED_FORWARD else embed
    fill(weight, gain * std(*weight.shape))


def roles_of(sublayer: nn.Module, kind: str) -> Iterator[tuple[str, Tensor]]:
    """Weights of a sub-layer with their roles; a `Sublayer` says them, a plain module is read by
    this rule.

    Its last matrix writes to the stream (`out` or, in kind "ffn", `ffn_out`), all before it make
    features (`value` or `ffn_in`), vectors called "bias" are biases, all other parameters are left
    alone. torch.nn.MultiheadAttention is taken apart into query, key, value and out.
    """
    known = as_sublayer(sublayer)
    if known is not None:
        yield from known.roles()
        return
    fused = [module for module in sublayer.modules() if isinstance(module, nn.MultiheadAttention)]
    parts = {id(parameter) for module in fused for parameter in module.parameters()}
    for module in fused:
        yield from _fused_roles(module)
    named = [
        (name, parameter)
        for name, parameter in sublayer.named_parameters()
        if id(parameter) not in parts
    ]
    matrices = [parameter for _, parameter in named if parameter.ndim == 2]
    makes, writes = ("ffn_in", "ffn_out") if kind == "ffn" else ("value", "out")
    for parameter in matrices:
        yield (writes if parameter is matrices[-1] and not fused else makes), parameter
    linear = [
        module
        for module in sublayer.modules()
        if isinstance(module, nn.Linear) and module.bias is not None
    ]
    yield from (("bias", module.bias) for module in linear if id(module.bias) not in parts)


def _fused_roles(attention: nn.MultiheadAttention) -> Iterator[tuple[str, Tensor]]:
    if attention.in_proj_weight is None:
        separate = (attention.q_proj_weight, attention.k_proj_weight, attention.v_proj_weight)
        yield from zip(("query", "key", "value"), separate, strict=True)
    else:
        yield from zip(("query", "key", "value"), attention.in_proj_weight.chunk(3), strict=True)
    yield "out", attention.out_proj.weight
    biases = (attention.in_proj_bias, attention.out_proj.bias)
    yield from (("bias", bias) for bias in biases if bias is not None)


def restart(module: nn.Module) -> None:
    """Put norms, wirings, positions and sub-layers at their start, children before parents."""
    for child in module.children():
        restart(child)
    if isinstance(module, Norm | Part | Positions | Wiring | Sublayer):
        module.reset_parameters()
