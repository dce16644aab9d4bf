"""Numbers too small or too coarse for the type they are computed in."""

from collections.abc import Iterator

import torch

from addnorm.doctor.report import Finding, Severity
from addnorm.doctor.rules.base import Case, rule

DEEP = 8
"""Additions from which on rounding of the stream is worth a word."""
LOW = (torch.float16, torch.bfloat16)


@rule("eps_too_small")
def eps_too_small(case: Case) -> Iterator[Finding]:
    """An epsilon that is zero, or rounds to zero where it is added."""
    told: set[str] = set()
    for norm in case.each_norm():
        kind = case.graph[norm.node].dtype
        if norm.kind not in ("layer", "rms", "group", "batch", "instance") or norm.path in told:
            continue
        exact = kind if norm.by_hand else torch.float32  # kernels compute statistics in float32
        eps = norm.eps
        if eps is None or kind is None or not kind.is_floating_point:
            continue
        rounded = float(torch.tensor(eps, dtype=torch.float64).to(exact))
        if rounded > 0 and rounded >= torch.finfo(exact).smallest_normal / 1024:
            continue
        told.add(norm.path)
        yield Finding(
            "eps_too_small", "warning" if eps else "error", norm.path,
            f"eps={eps:g} is {rounded:g} in {str(exact).removeprefix('torch.')}: a constant token "
            "divides by zero; take 1e-5, or compute the norm in float32",
            {"eps": eps, "as computed": rounded, "dtype": str(exact)},
        )  # fmt: skip


@rule("low_precision_residual")
def low_precision_residual(case: Case) -> Iterator[Finding]:
    """A long stream summed in bfloat16 or float16."""
    streams: dict[int, list[int]] = {}
    for reading in case.blocks:
        streams.setdefault(reading.stream, []).append(reading.join.node)
    for nodes in streams.values():
        coarse = [n for n in nodes if case.graph[n].dtype in LOW]
        if len(coarse) < DEEP:
            continue
        kind = case.graph[coarse[0]].dtype
        severity: Severity = "warning" if kind == torch.float16 else "info"
        yield Finding(
            "low_precision_residual", severity, case.graph[coarse[0]].path,
            f"{len(coarse)} additions are made in {str(kind).removeprefix('torch.')}, which has "
            f"steps of {torch.finfo(kind).eps:g}: small branches are rounded away; keep the stream "
            "in float32",
            {"additions": len(coarse), "dtype": str(kind)},
        )  # fmt: skip
