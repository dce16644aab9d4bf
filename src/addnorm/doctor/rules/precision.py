"""Rules `eps_too_small`, `eps_too_large` and `low_precision_residual`: numeric problems."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from addnorm.doctor.analysis.norms import Norm
from addnorm.doctor.graph.graph import Graph
from addnorm.doctor.report import Finding, Severity
from addnorm.doctor.rule_context import RuleContext
from addnorm.doctor.rules.base import rule

MIN_ADDITIONS = 8
"""Fewest residual adds at which rounding of the stream is reported."""
ZERO_GUARD_OPS = frozenset(
    {"add", "sub", "clamp", "clamp_min", "maximum", "max", "where", "nan_to_num"}
)
"""Operations that keep a divisor away from zero."""
EPS_KINDS = ("layer", "rms", "group", "batch", "instance", "l2")
LARGEST_EPS = 0.01
"""Larger numbers that are added to a divisor are not an epsilon."""
LARGE_EPS = 0.05
"""Epsilon from which a norm hardly normalizes tokens with a small variance."""
LOW_PRECISION_DTYPES = (torch.float16, torch.bfloat16)


@rule("eps_too_small")
def eps_too_small(context: RuleContext) -> Iterator[Finding]:
    """Report norms whose epsilon is missing, zero, or rounds to zero in their dtype."""
    reported: set[str] = set()
    for norm in context.iter_norms():
        if norm.path in reported:
            continue
        finding = _check_eps(context, norm) or _check_root(context, norm)
        if finding is not None:
            reported.add(norm.path)
            yield finding


def _check_eps(context: RuleContext, norm: Norm) -> Finding | None:
    """Return a finding if the epsilon of a norm is 0 in a dtype that holds it."""
    graph, eps = context.graph, norm.eps
    dtype = graph[norm.source].dtype
    is_exact = norm.by_hand or dtype not in LOW_PRECISION_DTYPES
    if norm.kind == "l2" and is_exact and not _is_stream_norm(context, norm):
        return None  # queries, keys and final features are not zero in practice
    if norm.kind not in EPS_KINDS:
        return None
    if norm.by_hand:
        guards = list(_find_zero_guards(context, norm))
        if guards and not any(_precedes_division(graph, norm, g) for g in guards):
            guards, eps = [], None  # added to 1 / 0, which stays infinite
        if eps is None and guards:
            return None  # another operation keeps the divisor away from zero
        dtypes = [g.dtype for g in guards if g.value == eps]
        dtypes = [dtypes[0] if dtypes else graph[norm.node].dtype]
        dtypes += [graph[graph[root].inputs[0]].dtype for root in _find_roots(graph, norm)]
        eps = eps or 0.0
    else:
        dtypes = [dtype]
    dtypes = [each for each in dtypes if each is not None and each.is_floating_point]
    if eps is None or not dtypes:
        return None
    rounded, exact = min(
        ((_round_to(eps, each), each) for each in dtypes), key=lambda pair: pair[0]
    )
    if rounded > 0 and rounded >= torch.finfo(exact).smallest_normal / 1024:
        return None
    subject = f"eps={eps:g}" if eps or not norm.by_hand else "the norm has no epsilon, which"
    is_exact_inside = not norm.by_hand and eps and norm.kind != "l2"
    consequence = (
        "so kernels that do not compute the statistics in float32 divide a token with equal "
        "features by zero"
        if is_exact_inside
        else "so a token with equal features is divided by zero"
    )
    return Finding(
        "eps_too_small", "warning" if eps else "error", norm.path,
        f"{subject} is {rounded:g} in {str(exact).removeprefix('torch.')}, {consequence}; use "
        "eps=1e-5 or compute the norm in float32",
        {"eps": eps, "as computed": rounded, "dtype": str(exact)},
    )  # fmt: skip


def _precedes_division(graph: Graph, norm: Norm, guard: "_ZeroGuard") -> bool:
    """Return whether a guard acts on a magnitude, not on its reciprocal."""
    half = graph[norm.source].size / 2
    between = graph.nodes_between(norm.source, guard.node) - {guard.node}
    return not any(
        graph[i].size <= half
        and (
            graph[i].op in ("rsqrt", "reciprocal", "rdiv")
            or (graph[i].op == "pow" and any((o.value or 0) < 0 for o in graph[i].operands))
        )
        for i in between
    )


def _is_stream_norm(context: RuleContext, norm: Norm) -> bool:
    """Return whether a norm reads the stream of a block, where a padding token may be all zeros."""
    return any(norm.node in (*block.entry_norms, block.post_norm) for block in context.blocks)


def _round_to(value: float, dtype: torch.dtype) -> float:
    return float(torch.tensor(value, dtype=torch.float64).to(dtype))


def _check_root(context: RuleContext, norm: Norm) -> Finding | None:
    """Return a finding if the epsilon of a norm is added after the root instead of inside.

    The root of 0 has no gradient, and a variance computed as E[x^2] - E[x]^2 may be below 0.
    """
    graph = context.graph
    if not norm.by_hand or norm.kind not in EPS_KINDS:
        return None
    guards = list(_find_zero_guards(context, norm))
    for root in _find_roots(graph, norm):
        inside = graph.nodes_between(norm.source, root)
        if not guards or any(guard.node in inside for guard in guards):
            continue
        half = graph[norm.source].size / 2
        is_difference = any(
            graph[i].op in ("sub", "rsub") and len(graph[i].inputs) == 2 and graph[i].size <= half
            for i in inside
        )
        is_added = any(g.is_added and g.value and g.value < LARGEST_EPS for g in guards)
        if is_difference or is_added:
            problem = (
                "which rounding can make negative, so its root is not a number"
                if is_difference
                else "so the gradient of a token of equal features is not a number"
            )
            return Finding(
                "eps_too_small", "warning", norm.path,
                f"the root is taken of a variance without epsilon, {problem}; add eps inside the "
                "root",
                {"eps": norm.eps, "after the root": True, "dtype": str(graph[root].dtype)},
            )  # fmt: skip
    return None


def _find_roots(graph: Graph, norm: Norm) -> list[int]:
    """Return the square roots of the statistic of a norm written by hand."""
    half = graph[norm.source].size / 2
    return [
        index
        for index in sorted(graph.nodes_between(norm.source, norm.node))
        if (node := graph[index]).size <= half
        and len(node.inputs) == 1
        and (
            node.op in ("sqrt", "rsqrt")
            or (node.op == "pow" and any(abs(o.value or 0) == 0.5 for o in node.operands))
        )
    ]


@dataclass(frozen=True, slots=True)
class _ZeroGuard:
    """An operation that keeps the divisor of a norm away from zero."""

    node: int
    dtype: Any
    value: float | None
    """The number it adds or limits to; None if it is not known."""
    is_added: bool


def _find_zero_guards(context: RuleContext, norm: Norm) -> Iterator[_ZeroGuard]:
    """Yield the operations that guard a norm's divisor."""
    for index in sorted(context.graph.nodes_between(norm.source, norm.node) - {norm.source}):
        node = context.graph[index]
        is_added = node.op in ("add", "sub")
        if node.op in ZERO_GUARD_OPS and (not is_added or len(node.inputs) == 1):
            others = [o for o in node.operands if o.node not in node.inputs]
            known = [context.graph[o.node].value if o.kind == "node" else o.value for o in others]
            values = [value for value in known if value != 0]
            values += [node.detail["min"]] if "min" in node.detail else []
            for value in values:
                yield _ZeroGuard(index, node.dtype, abs(value) if value else None, is_added)


@rule("eps_too_large")
def eps_too_large(context: RuleContext) -> Iterator[Finding]:
    """Report norms whose epsilon is as large as a variance, such as a dropout rate in its place."""
    for norm in context.iter_norms():
        if norm.kind in ("layer", "rms", "group") and not norm.by_hand:
            eps = norm.eps or 0.0
            if eps >= LARGE_EPS:
                yield Finding(
                    "eps_too_large", "warning", norm.path,
                    f"eps={eps:g} is added to the variance of each token, so that small tokens are "
                    "not normalized; use 1e-5, and check the order of the arguments",
                    {"eps": eps},
                )  # fmt: skip
                return


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
