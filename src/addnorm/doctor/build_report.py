"""Report of a traced model: blocks, norms, measurements, and one line per stream.

    ModelTrace, findings, notes   ->   build_report   ->   Report

A block of the report is the public view of one `AddAnalysis`: labels instead of node indices, and
the statistics of the trace.
"""

import math
from collections.abc import Iterable, Iterator
from typing import Any

from addnorm.core.rows import Row
from addnorm.doctor.analysis.branch_kinds import find_branch_kinds
from addnorm.doctor.analysis.labels import list_tags, wiring_label
from addnorm.doctor.analysis.post_norms import common_path
from addnorm.doctor.analysis.results import AddAnalysis, ModelAnalysis
from addnorm.doctor.analysis.typical_layer import build_typical_layers
from addnorm.doctor.analysis.weight_roles import find_weight_roles
from addnorm.doctor.blind_spots import list_blind_spots
from addnorm.doctor.graph.graph import Graph
from addnorm.doctor.graph.nodes import Scale
from addnorm.doctor.graph.ops import ATTENTION, PRODUCT, SLICES, is_mixing
from addnorm.doctor.matching import match_arrangement
from addnorm.doctor.model_trace import ModelTrace
from addnorm.doctor.report import SEVERITIES, Block, Finding, NormUse, Report
from addnorm.doctor.residual.residual_adds import ResidualAdd
from addnorm.doctor.signature import build_signature
from addnorm.doctor.stream_summary import describe_outliers, describe_streams
from addnorm.doctor.trace.statistics import Attention


def build_report(
    trace: ModelTrace,
    *,
    findings: Iterable[Finding],
    notes: Iterable[str],
    reads_ahead: bool | None = None,
) -> Report:
    """Build the report of a traced model.

    Args:
        trace: the traced model
        findings: findings of the rules, in any order
        notes: notes of the rules
        reads_ahead: whether a probe showed that the output depends on later tokens; None if
            unknown
    """
    analysis = trace.analysis
    adds = analysis.blocks()
    blocks = _build_blocks(trace, adds)
    signature = build_signature(analysis)
    match = match_arrangement(signature, blocks)
    return Report(
        model=type(trace.model).__name__,
        blocks=blocks,
        findings=tuple(sorted(findings, key=lambda f: -SEVERITIES.index(f.severity))),
        rows=tuple(_build_rows(trace, blocks)),
        norms=_list_norm_uses(analysis, adds),
        inner=_build_blocks(trace, [add for add in analysis.add_analyses if add.is_excluded]),
        stacks=tuple(describe_streams(trace, blocks=blocks, reads_ahead=reads_ahead)),
        odd=tuple(describe_outliers(blocks)),
        notes=(
            *trace.notes,
            *notes,
            *_note_missing_gradients(trace, blocks),
            *list_blind_spots(trace),
        ),
        signature=signature,
        arrangement=match.arrangement,
        fits=match.fits,
        families=match.families,
        sketches=build_typical_layers(analysis),
    )


def _note_missing_gradients(trace: ModelTrace, blocks: tuple[Block, ...]) -> Iterator[str]:
    missing = sum("gradient_norm" not in block.measurements for block in blocks)
    if missing and trace.gradients.weights:
        yield (
            f"gradients at {missing} of {len(blocks)} adds: the sums are detached, or recomputed "
            "in the backward pass"
        )


# blocks


def _build_blocks(trace: ModelTrace, adds: list[AddAnalysis]) -> tuple[Block, ...]:
    return tuple(_build_block(trace, index, add=add) for index, add in enumerate(adds))


def _build_block(trace: ModelTrace, index: int, *, add: AddAnalysis) -> Block:
    analysis, residual = trace.analysis, add.add
    graph = analysis.graph
    branch = find_branch_path(graph, residual)
    return Block(
        index=index,
        path=residual.module,
        branch=branch,
        kind=add.kind,
        branches=find_branch_kinds(graph, analysis.norms, add=residual, kind=add.kind),
        wiring=wiring_label(analysis, add),
        tags=list_tags(analysis, add),
        stream=add.stream,
        norm=_norm_kind(analysis, add),
        shortcut_scale=_scale_product(residual.shortcut_scales),
        branch_scale=_scale_product(add.scales),
        measurements=_collect_measurements(trace, residual.node, branch=branch),
    )


def find_branch_path(graph: Graph, add: ResidualAdd) -> str:
    """Return the path of the module that computes the branch of a residual add."""
    return common_path(graph[i].path for i in add.path if i != add.fork and is_mixing(graph[i].op))


def _collect_measurements(trace: ModelTrace, node: int, *, branch: str) -> dict[str, float]:
    """Return the statistics at a residual add, and the gradient norm of its branch's weights."""
    stats = trace.recording.stats
    measurements = dict(stats.add_stats.get(node, {}))
    if "stream_variance" in measurements:
        measurements["token_similarity"] = stats.token_similarity(node)
    if node in trace.gradients.sums:
        measurements["gradient_norm"] = trace.gradients.sums[node]
    gradients = [
        norm
        for name, norm in trace.gradients.weights.items()
        if branch and name.startswith(f"{branch}.")
    ]
    if gradients:
        measurements["weight_gradient_norm"] = math.sqrt(sum(norm * norm for norm in gradients))
    return measurements


def _norm_kind(analysis: ModelAnalysis, add: AddAnalysis) -> str | None:
    """Return the kind of the first norm of a block: entry, post, exit, or on its stream."""
    candidates = [*add.entry_norms, add.post_norm, add.exit_norm]
    if add.is_false_pre_norm:
        candidates += add.link.norms()
    return next((analysis.norms[i].kind for i in candidates if i is not None), None)


def _scale_product(scales: tuple[Scale, ...]) -> float | None:
    values = [s.value for s in scales if s.kind != "input"]
    if not values or any(v is None for v in values):
        return None
    return math.prod(v for v in values if v is not None)


def _list_norm_uses(analysis: ModelAnalysis, adds: list[AddAnalysis]) -> tuple[NormUse, ...]:
    """Return every use of a norm and its place; later places override earlier ones.

    Long skips and duals come first: a norm that they share with a sub-layer belongs to the
    sub-layer.
    """
    places: dict[int, tuple[str, int]] = {}
    for block, add in enumerate(adds):
        for i in add.inner_norms:
            places.setdefault(i, ("inside", block))
    extra_first = sorted(enumerate(adds), key=lambda pair: not _is_extra(pair[1]))
    for block, add in extra_first:
        for i in add.final_norms:
            places[i] = ("final", block)
        for i in (*add.entry_norms, *add.partial_norms):
            places[i] = ("entry", block)
        if add.is_false_pre_norm:
            for i in add.link.norms()[:1]:
                places[i] = ("entry", block)
        if add.exit_norm is not None:
            places[add.exit_norm] = ("exit", block)
        if add.has_post_norm and add.post_norm is not None:
            places[add.post_norm] = ("after", block)
    uses = []
    for index, norm in sorted(analysis.norms.items()):
        place, owner = places.get(index, ("elsewhere", None))
        uses.append(NormUse(norm.path, norm.kind, place, norm.eps, norm.by_hand, owner))
    return tuple(uses)


def _is_extra(add: AddAnalysis) -> bool:
    """Return whether an add has no sub-layer of its own."""
    return add.skipped_adds > 0 or add.is_dual


# measurements


def _build_rows(trace: ModelTrace, blocks: tuple[Block, ...]) -> Iterator[Row]:
    """Yield the measurements, one number per row."""
    for block in blocks:
        for name, value in block.measurements.items():
            yield _make_row(name, value, site=block.index, kind=block.kind, path=block.path)
    for stream in sorted({block.stream for block in blocks}):
        yield from _stream_rows(stream, [block for block in blocks if block.stream == stream])
    for attention in trace.recording.stats.attentions:
        if math.isfinite(attention.max_logit) and is_attention(trace.analysis, attention):
            yield _make_row("max_logit", attention.max_logit, path=attention.path)
            yield _make_row("attention_entropy", attention.entropy, path=attention.path)
    yield from _role_rows(trace, blocks)
    for norm in trace.analysis.norms.values():
        if norm.kind in ("dyt", "derf") and norm.node in trace.recording.stats.saturation:
            yield _make_row(
                "saturation", trace.recording.stats.saturation[norm.node], path=norm.path
            )


def is_attention(analysis: ModelAnalysis, attention: Attention) -> bool:
    """Return whether the weights of a softmax multiply values, unlike those of a router."""
    graph = analysis.graph
    if attention.is_square or attention.node >= len(graph):
        return attention.is_square
    if graph[attention.node].op in ATTENTION:
        return True
    return any(
        graph[i].op in PRODUCT for i in graph.forward_reach(attention.node, extra_ops=SLICES)
    )


def _make_row(measure: str, value: float, **fields: Any) -> Row:
    return {"measure": measure, "value": value, **fields}


def _stream_rows(stream: int, blocks: list[Block]) -> Iterator[Row]:
    def finite(name: str) -> list[float]:
        values = (block.measurements.get(name, math.nan) for block in blocks)
        return [value for value in values if math.isfinite(value)]

    dependencies = finite("dependency")
    if dependencies:
        yield _make_row("dependency_sum", sum(dependencies), stream=stream)
    variances = [v for b in blocks if (v := b.measurements.get("stream_variance", 0)) > 0]
    if len(variances) > 1:
        yield _make_row("growth", variances[-1] / variances[0], stream=stream)
    similarities = finite("token_similarity")
    if len(similarities) > 1:
        yield _make_row("similarity_rise", similarities[-1] - similarities[0], stream=stream)


def _role_rows(trace: ModelTrace, blocks: tuple[Block, ...]) -> Iterator[Row]:
    """Yield gradient norms by the role of the weights: at each block, then over all blocks."""
    totals: dict[str, float] = {}
    gradients = trace.gradients.weights
    for block, add in zip(blocks, trace.analysis.blocks(), strict=True):
        squares: dict[str, float] = {}
        for name, role in find_weight_roles(trace.analysis, add).items():
            if name in gradients:
                squares[role] = squares.get(role, 0.0) + gradients[name] ** 2
        for role, square in squares.items():
            totals[role] = totals.get(role, 0.0) + square
            yield _make_row("role_gradient_norm", math.sqrt(square), site=block.index, role=role)
    for role, square in totals.items():
        yield _make_row("role_gradient_norm", math.sqrt(square), role=role)
