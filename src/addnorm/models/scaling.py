"""Scale of a model: initial weights and sizes of the parameters outside of stacks."""

from collections.abc import Iterable
from typing import Any

from torch import Tensor

from addnorm.models.config import Config
from addnorm.scales.base import Kind, Scale
from addnorm.stacks.scaling import ParameterSize

MINIMAL_FIELDS: dict[str, Any] = {
    **{"depth": 1, "heads": 1, "kv_heads": None, "head_dim": 2, "ffn_dim": 1, "window": None},
    **{"positions": "none", "wiring": "none", "scale": None, "qk_norm": "none"},
}
"""Fields of a model whose stacks are not used; its outer weights are those of any other."""


def wide_config(config: Config) -> Config:
    """Return the config of a model with twice the width and the smallest stacks.

    Axes of outer weights that differ from those of the model grow with the width.
    """
    fields = dict(MINIMAL_FIELDS)
    if config.kind == "seq2seq":
        fields |= {"encoder_depth": 1, "encoder_wiring": None}
    return config.replace(dim=2 * config.dim, **fields)


def compare_outer_weights(
    weights: Iterable[tuple[str, Tensor]], wide_weights: Iterable[tuple[str, Tensor]], ratio: float
) -> list[ParameterSize]:
    """Return what a scale must know about each weight outside of stacks.

    Args:
        weights: (role, weight) of a model
        wide_weights: the same of a wider model
        ratio: width of the model over that of its base
    """
    sizes = []
    for (role, weight), (_, wide) in zip(weights, wide_weights, strict=True):
        shapes = zip(_matrix_shape(weight), _matrix_shape(wide), strict=True)
        rows_grow, columns_grow = (ours != theirs for ours, theirs in shapes)
        kind: Kind = "table"
        if role == "bias" or weight.ndim < 2:
            kind = "vector"
        elif role != "embed":
            kind = "matrix" if rows_grow and columns_grow else "map"
        sizes.append(ParameterSize(kind, None, ratio if columns_grow else 1.0, role))
    return sizes


def outer_init_ratios(rule: Scale, size: ParameterSize) -> tuple[float, tuple[float, float]]:
    """Return the factor on the deviation of a weight outside of stacks, and its axes over the
    base's."""
    rows = size.fan_in_ratio if size.kind == "matrix" else 1.0
    return rule.init_factor(size.kind, size.fan_in_ratio), (rows, size.fan_in_ratio)


def _matrix_shape(weight: Tensor) -> tuple[int, int]:
    return (weight.shape[0], weight[0].numel()) if weight.ndim > 1 else (1, weight.numel())
