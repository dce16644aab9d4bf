"""Rules `eps_too_small` and `low_precision_residual`: problems of reduced precision."""

from collections.abc import Iterator
from typing import Any

import torch

from addnorm.doctor.analysis.norms import Norm
from addnorm.doctor.report import Finding, Severity
from addnorm.doctor.rules.base import RuleContext, rule

MIN_ADDITIONS = 8
"""Fewest residual adds at which rounding of the stream is reported."""
ZERO_GUARD_OPS = frozenset(
    {"add", "sub", "clamp", "clamp_min", "maximum", "max", "where", "nan_to_num"}
)
"""Operations that keep a divisor away from zero."""
LOW_PRECISION_DTYPES = (torch.float16, torch.bfloat16)


@rule("eps_too_small")
def eps_too_small(context: RuleContext) -> Iterator[Finding]:
    """Report norms whose epsilon is missing, zero, or rounds to zero in their dtype."""
    reported: set[str] = set()
    for norm in context.iter_norms():
        if norm.kind not in ("layer", "rms", "group", "batch", "instance") or norm.path in reported:
            continue
        eps, exact = norm.eps, torch.float32  # built-in norms compute statistics in float32
        if norm.by_hand:
            guards = list(_find_zero_guards(context, norm))
            if eps is None and guards:
                continue  # another operation keeps the divisor away from zero
            dtypes = [dtype for dtype, value in guards if value == eps]
            exact = dtypes[0] if dtypes else context.graph[norm.node].dtype
            eps = eps or 0.0
        if eps is None or exact is None or not exact.is_floating_point:
            continue
        rounded = float(torch.tensor(eps, dtype=torch.float64).to(exact))
        if rounded > 0 and rounded >= torch.finfo(exact).smallest_normal / 1024:
            continue
        reported.add(norm.path)
        what = f"eps={eps:g}" if eps or not norm.by_hand else "the norm has no epsilon, which"
        yield Finding(
            "eps_too_small", "warning" if eps else "error", norm.path,
            f"{what} is {rounded:g} in {str(exact).removeprefix('torch.')}, so a token with equal "
            "features is divided by zero; use eps=1e-5 or compute the norm in float32",
            {"eps": eps, "as computed": rounded, "dtype": str(exact)},
        )  # fmt: skip


def _find_zero_guards(context: RuleContext, norm: Norm) -> Iterator[tuple[Any, float | None]]:
    """Yield dtype and value (None if unknown) of each operation that guards a norm's divisor."""
    for index in context.graph.nodes_between(norm.source, norm.node) - {norm.source}:
        node = context.graph[index]
        if node.op in ZERO_GUARD_OPS and (node.op not in ("add", "sub") or len(node.inputs) == 1):
            values = [o.value for o in node.operands if o.node not in node.inputs and o.value != 0]
            values += [node.detail["min"]] if "min" in node.detail else []
            yield from ((node.dtype, abs(value) if value else None) for value in values)


@rule("low_precision_residual")
def low_precision_residual(context: RuleContext) -> Iterator[Finding]:
    """Report long streams that are summed in float16 or bfloat16."""
    streams: dict[int, list[int]] = {}
    for block in context.blocks:
        streams.setdefault(block.stream, []).append(block.add.node)
    for nodes in streams.values():
        coarse = [n for n in nodes if context.graph[n].dtype in LOW_PRECISION_DTYPES]
        if len(coarse) < MIN_ADDITIONS:
            continue
        dtype = context.graph[coarse[0]].dtype
        severity: Severity = "warning" if dtype == torch.float16 else "info"
        yield Finding(
            "low_precision_residual", severity, context.graph[coarse[0]].path,
            f"{len(coarse)} residual adds are computed in {str(dtype).removeprefix('torch.')}, "
            f"whose precision is {torch.finfo(dtype).eps:g}, so small branches are rounded "
            "away; keep the stream in float32",
            {"additions": len(coarse), "dtype": str(dtype)},
        )  # fmt: skip
