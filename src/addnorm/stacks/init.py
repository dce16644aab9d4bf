"""Weight initialization: standard deviation by scheme and role, times the wiring's gain."""

import math
import warnings
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import ParametrizationList

from addnorm.core.errors import UserError, WeightsNotInitializedWarning, unknown_name_message
from addnorm.norms.base import Norm
from addnorm.stacks.forward_signature import as_sublayer
from addnorm.sublayers.base import Sublayer
from addnorm.sublayers.positions import Positions
from addnorm.wirings.base import Wiring, WiringModule

FillFunction = Callable[[Tensor, float], Tensor]  # fills a weight with a given standard deviation


def _fill_uniform(weight: Tensor, std: float) -> Tensor:
    return weight.uniform_(-math.sqrt(3) * std, math.sqrt(3) * std)


def _fill_normal(weight: Tensor, std: float) -> Tensor:
    return weight.normal_(0.0, std)


def _fill_truncated_normal(weight: Tensor, std: float) -> Tensor:
    return nn.init.trunc_normal_(weight, std=std, a=-3 * std, b=3 * std)


StdFunction = Callable[[int, int, int], float]  # standard deviation from rows, columns and dim


def _xavier_std(rows: int, columns: int, dim: int) -> float:
    return math.sqrt(2 / (rows + columns))


def _std_by_dim(factor: float) -> StdFunction:
    return lambda rows, columns, dim: math.sqrt(factor / dim)


# scheme: (distribution, std of an attention matrix, of a feed-forward matrix, of an embedding
# table). Each std is a function of rows (output features), columns (input features) and dim
# (whichever of them is the stream's). Biases start at 0 in every scheme.
SCHEMES: dict[str, tuple[FillFunction, StdFunction, StdFunction, StdFunction]] = {
    "xavier_uniform": (_fill_uniform, _xavier_std, _xavier_std, _std_by_dim(1)),
    "xavier_normal": (_fill_normal, _xavier_std, _xavier_std, _std_by_dim(1)),
    "gpt2": (_fill_normal, *3 * (lambda rows, columns, dim: 0.02,)),
    # SmallInit of Nguyen and Salazar 2019: attention matrices as if they had 4 * dim outputs.
    "small": (_fill_normal, _std_by_dim(2 / 5), _xavier_std, _std_by_dim(1)),
    "megatron": (_fill_truncated_normal, *3 * (_std_by_dim(2 / 5),)),
    "unit": (_fill_normal, *3 * (_std_by_dim(1),)),
    "torch": (
        _fill_uniform,
        *2 * (lambda rows, columns, dim: (3 * columns) ** -0.5,),
        lambda *_: 1.0,
    ),
}

ATTENTION_ROLES = ("query", "key", "value", "out")
FEED_FORWARD_ROLES = ("ffn_in", "ffn_out")
ROLES = (*ATTENTION_ROLES, *FEED_FORWARD_ROLES, "embed", "bias")


@torch.no_grad()
def init_weight_(weight: Tensor, *, scheme: str, role: str, gain: float = 1.0) -> None:
    """Fill a weight in place by scheme and role. A gain of 0 gives zeros."""
    if scheme not in SCHEMES:
        raise UserError(unknown_name_message("scheme", scheme, SCHEMES))
    if role not in ROLES:
        raise UserError(unknown_name_message("role", role, ROLES))
    if weight.is_meta:
        return
    if role == "bias" or gain == 0:
        weight.zero_()
        return
    fill, attention, feed_forward, embed = SCHEMES[scheme]
    std = (
        attention
        if role in ATTENTION_ROLES
        else feed_forward
        if role in FEED_FORWARD_ROLES
        else embed
    )
    rows, columns = weight.flatten(1).shape
    dim = rows if role in ("out", "ffn_out") else columns
    fill(weight, gain * std(rows, columns, dim))


def iter_weight_roles(sublayer: nn.Module, kind: str) -> Iterator[tuple[str, Tensor]]:
    """Yield the weights of a sub-layer with their roles.

    A `Sublayer` declares them. For a plain module this rule applies: the last matrix writes to the
    stream (`out`, or `ffn_out` in kind "ffn"), all earlier ones are `value` or `ffn_in`, vectors
    named "bias" are biases, and other parameters are skipped. torch.nn.MultiheadAttention is split
    into query, key, value and out.
    """
    described = as_sublayer(sublayer)
    if described is not None:
        yield from described.roles()
        return
    fused = [module for module in sublayer.modules() if isinstance(module, nn.MultiheadAttention)]
    parts = {id(part) for module in fused for part in module.modules()}
    for module in fused:
        yield from _iter_fused_roles(module)
    others = [module for module in sublayer.modules() if id(module) not in parts]
    unknown = [module for module in others if isinstance(module, nn.RNNBase | ParametrizationList)]
    if unknown:
        warnings.warn(
            f"{type(unknown[0]).__name__} in {type(sublayer).__name__} has weights whose roles are "
            "not known; they are not initialized. Derive the sub-layer from "
            "addnorm.sublayers.Sublayer and return them in roles()",
            WeightsNotInitializedWarning,
            stacklevel=2,
        )
    own = [
        (name, parameter)
        for module in others
        if module not in unknown
        for name, parameter in module.named_parameters(recurse=False)
    ]
    matrices = [parameter for _, parameter in own if parameter.ndim >= 2]
    inner, output = ("ffn_in", "ffn_out") if kind == "ffn" else ("value", "out")
    last = None if fused or unknown or not matrices else matrices[-1]
    for parameter in matrices:
        yield (output if parameter is last else inner), parameter
    yield from (
        ("bias", parameter) for name, parameter in own if name == "bias" and parameter.ndim < 2
    )


def _iter_fused_roles(attention: nn.MultiheadAttention) -> Iterator[tuple[str, Tensor]]:
    if attention.in_proj_weight is None:
        separate = (attention.q_proj_weight, attention.k_proj_weight, attention.v_proj_weight)
        yield from zip(("query", "key", "value"), separate, strict=True)
    else:
        yield from zip(("query", "key", "value"), attention.in_proj_weight.chunk(3), strict=True)
    yield "out", attention.out_proj.weight
    biases = (attention.in_proj_bias, attention.out_proj.bias)
    yield from (("bias", bias) for bias in biases if bias is not None)


def reset_all_parameters(module: nn.Module) -> None:
    """Reset norms, wirings, positions and sub-layers, children before parents."""
    for child in module.children():
        reset_all_parameters(child)
    if isinstance(module, Norm | WiringModule | Positions | Wiring | Sublayer):
        module.reset_parameters()
