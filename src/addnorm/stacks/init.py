"""Weight initialization: standard deviation by scheme and role, times the wiring's gain."""

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from addnorm.core.errors import UserError, unknown_name_message
from addnorm.norms.base import Norm
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


StdFunction = Callable[
    [float, float, float], float
]  # standard deviation from rows, columns and dim


def _xavier_std(rows: float, columns: float, dim: float) -> float:
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
def init_weight_(
    weight: Tensor,
    *,
    scheme: str,
    role: str,
    gain: float = 1.0,
    rows: float | None = None,
    ratios: tuple[float, float] = (1.0, 1.0),
) -> None:
    """Fill a weight in place by scheme and role. A gain of 0 gives zeros.

    Args:
        weight: (rows, ...) weight or rows of one
        scheme: a key of `SCHEMES`
        role: one of `ROLES`
        gain: factor of the standard deviation
        rows: output features of the matrix, if the weight is a part of it
        ratios: rows and columns over those of the base model of a scale, whose standard deviation
            is taken
    """
    if not isinstance(scheme, str) or scheme not in SCHEMES:
        raise UserError(unknown_name_message("scheme", str(scheme), SCHEMES))
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
    columns = weight.flatten(1).shape[1] / ratios[1]
    rows = (weight.shape[0] if rows is None else rows) / ratios[0]
    dim = rows if role in ("out", "ffn_out") else columns
    fill(weight, gain * std(rows, columns, dim))


def check_seed(seed: object) -> None:
    """Raise a UserError unless a seed is None or an integer of 64 bits."""
    is_integer = isinstance(seed, int) and not isinstance(seed, bool)
    if seed is not None and not (is_integer and 0 <= seed < 2**64):  # type: ignore[operator]
        raise UserError(f"seed: expected None or an integer from 0 to 2 ** 64 - 1, got {seed!r}")


def reset_all_parameters(module: nn.Module) -> None:
    """Reset norms, wirings, positions and sub-layers, children before parents."""
    for child in module.children():
        reset_all_parameters(child)
    if isinstance(module, Norm | WiringModule | Positions | Wiring | Sublayer):
        module.reset_parameters()
