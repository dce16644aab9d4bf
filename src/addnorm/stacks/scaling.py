"""Scale of a stack: which parameters grow with the width, and what follows for each."""

import warnings
from collections.abc import Iterable
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from addnorm.core.calls import Call
from addnorm.core.errors import UserError
from addnorm.core.plan import Plan, Shape
from addnorm.scales.base import Kind, Scale
from addnorm.stacks.roles import RoleWeight
from addnorm.wirings.base import Wiring, make_wiring

MATRIX_ROLES = ("query", "key", "value", "out", "ffn_in", "ffn_out")


@dataclass(frozen=True)
class ParameterSize:
    """What a scale must know about one parameter."""

    kind: Kind
    depth: int | None = None
    """Layers of the stack that it is in; None outside of layers."""
    fan_in_ratio: float = 1.0
    """Its input features over those in the base model."""
    role: str = ""
    """Role of a matrix in a sub-layer; empty for all others."""


def init_ratios(
    rule: Scale | None, part: RoleWeight, dim: int
) -> tuple[float, tuple[float, float]]:
    """Return the factor on the base's deviation, and rows and columns over the base's."""
    if rule is None or part.role not in MATRIX_ROLES:
        return 1.0, (1.0, 1.0)
    columns = part.weight.flatten(1).shape[1]
    ratios = axis_ratios(rule, part.role, dim=dim, rows=part.rows, columns=columns)
    return rule.init_factor("matrix", ratios[1]), ratios


def axis_ratios(
    rule: Scale, role: str, *, dim: int, rows: int, columns: int
) -> tuple[float, float]:
    """Return rows and columns of a matrix in a layer over those in the base model."""
    width = rule.width_ratio(dim)
    if role == "ffn_in":
        return rule.ffn_ratio(dim, rows), width
    if role == "ffn_out":
        return width, rule.ffn_ratio(dim, columns)
    return width, width


def apply_residual_multiplier(wiring: Wiring, factor: float, *, scale: object) -> float:
    """Make a wiring multiply what it adds to the stream, if it does so itself.

    Returns:
        The factor that remains for the branch.

    Raises:
        UserError: no factor is defined for this wiring
    """
    if wiring.multiplier_place == "none":
        raise UserError(
            f"scale: expected a wiring with one residual add per sub-layer for {scale}, got "
            f"{type(wiring).__name__}, for which no depth rule is known; use mup, or another wiring"
        )
    if wiring.multiplier_place == "branch":
        return factor
    wiring.multiply_residual(factor)
    return 1.0


def measure_wiring(
    wiring: Wiring, plan: Plan, call: Call, rule: Scale | None
) -> dict[int, ParameterSize]:
    """Return the sizes of a wiring's parameters, by id.

    A wiring of twice the width is built beside it: axes that differ grow with the width.
    """
    with torch.device("meta"), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the first wiring has warned
        wide = dict(make_wiring(call, _double_width(plan)).named_parameters())
    no_decay = wiring.no_decay()
    final = {
        id(parameter)
        for module in wiring.modules()
        if isinstance(module, Wiring) and isinstance(module._modules.get("final_norm"), nn.Module)
        for parameter in module.final_norm.parameters()  # type: ignore[union-attr]
    }
    width = 1.0 if rule is None else rule.width_ratio(plan.dim)
    sizes: dict[int, ParameterSize] = {}
    for name, parameter in wiring.named_parameters():
        growing = sum(a != b for a, b in zip(parameter.shape, wide[name].shape, strict=True))
        is_matrix = name not in no_decay and parameter.ndim >= 2
        kind: Kind = "vector"
        if is_matrix and growing:
            kind = "matrix" if growing > 1 else "map"
        depth = None if id(parameter) in final else plan.depth
        sizes[id(parameter)] = ParameterSize(kind, depth, width)
    return sizes


def measure_sublayers(
    sublayers: nn.Module, parts: Iterable[RoleWeight], plan: Plan, rule: Scale | None
) -> dict[int, ParameterSize]:
    """Return the sizes of the parameters of sub-layers, by id; those without a role are vectors."""
    sizes = {id(each): ParameterSize("vector", plan.depth) for each in sublayers.parameters()}
    for part in parts:
        if part.role in MATRIX_ROLES:
            _, (_, fan_in) = init_ratios(rule, part, plan.dim)
            size = ParameterSize("matrix", plan.depth, fan_in, part.role)
            sizes[id(base_parameter(part.weight))] = size
    return sizes


def measure_others(module: nn.Module) -> dict[int, ParameterSize]:
    """Return the sizes of parameters outside of layers, such as positions and their norms."""
    return {
        id(parameter): ParameterSize("table" if parameter.ndim >= 2 else "vector")
        for parameter in module.parameters()
    }


def matrix_ids(parts: Iterable[tuple[str, Tensor]]) -> set[int]:
    """Return the ids of the matrices in sub-layers, which Muon trains.

    parts: (role, weight) of all sub-layers; see `Stack.weights`
    """
    weights = [base_parameter(weight) for role, weight in parts if role in MATRIX_ROLES]
    return {id(weight) for weight in weights if weight.ndim == 2}


def base_parameter(weight: Tensor) -> Tensor:
    """Return the parameter that a weight is, or is a view of."""
    return weight if weight._base is None else weight._base


def _double_width(plan: Plan) -> Plan:
    shapes = tuple(None if shape is None else _double_shape(shape) for shape in plan.shapes)
    return replace(plan, dim=2 * plan.dim, shapes=shapes)


def _double_shape(shape: Shape) -> Shape:
    return replace(
        shape,
        inner=2 * shape.inner,
        hidden=2 * shape.hidden,
        head_dim=2 * shape.head_dim,
        dim=2 * shape.dim,
    )
