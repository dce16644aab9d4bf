"""From a visit to its report: blocks, norms, rows and a line for each stream."""

import math
from collections import Counter
from collections.abc import Iterator
from typing import Any

from addnorm.core.rows import Row
from addnorm.doctor.analysis.labels import find_entry_scales, list_tags, wiring_label
from addnorm.doctor.analysis.norms import TITLES as NORM_TITLES
from addnorm.doctor.analysis.post_norms import common_path
from addnorm.doctor.analysis.results import AddAnalysis, ModelAnalysis
from addnorm.doctor.analysis.typical_layer import find_period
from addnorm.doctor.analysis.weight_roles import find_weight_roles
from addnorm.doctor.graph.nodes import Scale
from addnorm.doctor.graph.ops import ATTENTION, PRODUCT, SLICES, is_mixing
from addnorm.doctor.model_trace import ModelTrace
from addnorm.doctor.report import Block, NormUse
from addnorm.doctor.trace.statistics import Attention

WIRING_TITLES = {
    "pre_ln": "Pre-LN", "post_ln": "Post-LN", "res_post": "Res-Post-LN", "sandwich": "Sandwich-LN",
    "none": "no norm", "mid-norm": "a norm inside the branch", "false_pre_ln": "false Pre-LN",
    "pre_post": "a norm before and behind", "res_post_post": "Res-Post-LN and Post-LN",
    "sandwich_post": "Sandwich-LN and Post-LN", "attention_score": "attention scores",
}  # fmt: skip
SCALE_TAGS = ("scaled-shortcut", "scaled-branch", "rezero", "layer-scale", "scaled-input")


def build_blocks(trace: ModelTrace, readings: list[AddAnalysis]) -> tuple[Block, ...]:
    """The public face of readings."""
    return tuple(
        _build_block(trace, number, reading=reading) for number, reading in enumerate(readings)
    )


def _build_block(trace: ModelTrace, number: int, *, reading: AddAnalysis) -> Block:
    anatomy, join = trace.analysis, reading.add
    graph = anatomy.graph
    branch = common_path(
        [graph[i].path for i in join.path if i != join.fork and is_mixing(graph[i].op)]
    )
    signs = dict(join.stats)
    alike = trace.recorder.stats.token_similarity(join.node)
    if "stream_variance" in signs:
        signs["token_similarity"] = alike
    gradient = trace.recorder.stats.gradients.get(join.node)
    if gradient is not None:
        signs["gradient_norm"] = gradient
    own = [v for n, v in trace.weight_gradients.items() if branch and n.startswith(f"{branch}.")]
    if own:
        signs["weight_gradient_norm"] = math.sqrt(sum(v * v for v in own))
    return Block(
        index=number, path=join.module, branch=branch, kind=reading.kind,
        wiring=wiring_label(anatomy, reading), tags=list_tags(anatomy, reading), stream=reading.stream,
        norm=_norm_kind(anatomy, reading), shortcut_scale=_scale_product(join.shortcut_scales),
        branch_scale=_scale_product(reading.scales), measurements=signs,
    )  # fmt: skip


def _norm_kind(analysis: ModelAnalysis, reading: AddAnalysis) -> str | None:
    places = [*reading.entry_norms, reading.post_norm, reading.exit_norm, *reading.link.norms()]
    if not reading.is_false_pre_norm:
        places = places[: len(reading.entry_norms) + 2]
    return next((analysis.norms[i].kind for i in places if i in analysis.norms), None)


def _scale_product(scales: tuple[Scale, ...]) -> float | None:
    values = [s.value for s in scales if s.kind != "input"]
    if not values or any(v is None for v in values):
        return None
    return math.prod(v for v in values if v is not None)


def list_norm_uses(trace: ModelTrace, readings: list[AddAnalysis]) -> tuple[NormUse, ...]:
    """Every use of a norm and where it stands."""
    places: dict[int, tuple[str, int]] = {}
    for number, reading in enumerate(readings):
        for i in reading.inner_norms:
            places.setdefault(i, ("inside", number))
    for number, reading in enumerate(readings):
        for i in reading.final_norms:
            places[i] = ("final", number)
        for i in (*reading.entry_norms, *reading.partial_norms):
            places[i] = ("entry", number)
        if reading.is_false_pre_norm:
            for i in reading.link.norms()[:1]:
                places[i] = ("entry", number)
        if reading.exit_norm >= 0:
            places[reading.exit_norm] = ("exit", number)
        if reading.has_post_norm:
            places[reading.post_norm] = ("after", number)
    found = []
    for index, norm in sorted(trace.analysis.norms.items()):
        place, block = places.get(index, ("elsewhere", None))
        found.append(NormUse(norm.path, norm.kind, place, norm.eps, norm.by_hand, block))
    return tuple(found)


def build_rows(trace: ModelTrace, blocks: tuple[Block, ...]) -> Iterator[Row]:
    """Vital signs, one number a row."""
    for block in blocks:
        for name, value in block.measurements.items():
            yield _make_row(name, value, site=block.index, kind=block.kind, path=block.path)
    for stream in sorted({block.stream for block in blocks}):
        mine = [block for block in blocks if block.stream == stream]
        yield from _stream_rows(stream, mine)
    for attention in trace.recorder.stats.attentions:
        if math.isfinite(attention.max_logit) and _is_attention(trace.analysis, attention):
            yield _make_row("max_logit", attention.max_logit, path=attention.path)
            yield _make_row("attention_entropy", attention.entropy, path=attention.path)
    yield from _role_rows(trace, blocks)
    for norm in trace.analysis.norms.values():
        if norm.kind in ("dyt", "derf") and norm.node in trace.recorder.stats.saturation:
            yield _make_row(
                "saturation", trace.recorder.stats.saturation[norm.node], path=norm.path
            )


def _is_attention(analysis: ModelAnalysis, attention: Attention) -> bool:
    """Whether weights are for values: a softmax over experts or classes is no attention."""
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
    depend = [v for b in blocks if math.isfinite(v := b.measurements.get("dependency", math.nan))]
    if depend:
        yield _make_row("dependency_sum", sum(depend), stream=stream)
    sizes = [v for b in blocks if (v := b.measurements.get("stream_variance", 0)) > 0]
    if len(sizes) > 1:
        yield _make_row("growth", sizes[-1] / sizes[0], stream=stream)
    alike = [
        v for b in blocks if math.isfinite(v := b.measurements.get("token_similarity", math.nan))
    ]
    if len(alike) > 1:
        yield _make_row("similarity_rise", alike[-1] - alike[0], stream=stream)


def _role_rows(trace: ModelTrace, blocks: tuple[Block, ...]) -> Iterator[Row]:
    """Gradient norms by what weights do: at each block, then over all blocks."""
    whole: dict[str, float] = {}
    given = trace.weight_gradients
    for block, reading in zip(blocks, trace.analysis.blocks(), strict=True):
        mine: dict[str, float] = {}
        for name, role in find_weight_roles(trace.analysis, reading).items():
            if name in given:
                mine[role] = mine.get(role, 0.0) + given[name] ** 2
        for role, square in mine.items():
            whole[role] = whole.get(role, 0.0) + square
            yield _make_row("role_gradient_norm", math.sqrt(square), site=block.index, role=role)
    for role, square in whole.items():
        yield _make_row("role_gradient_norm", math.sqrt(square), role=role)


# a line for each stream


def describe_streams(
    trace: ModelTrace, readings: list[AddAnalysis], *, blocks: tuple[Block, ...]
) -> Iterator[str]:
    """What a stream is made of, in one line."""
    for stream in sorted({b.stream for b in blocks}):
        mine = [b for b in blocks if b.stream == stream]
        yield _describe_stream(trace, [readings[b.index] for b in mine], blocks=mine)


def _describe_stream(trace: ModelTrace, readings: list[AddAnalysis], *, blocks: list[Block]) -> str:
    kinds = [b.kind for b in blocks]
    length = find_period(kinds)
    wirings = Counter(b.wiring for b in blocks)
    usual = [name for name, count in wirings.most_common() if 3 * count >= len(blocks)]
    parts = [f"{len(kinds) // length} x [{', '.join(kinds[:length])}]"]
    norm = Counter(b.norm for b in blocks if b.norm).most_common(1)
    title = " and ".join(WIRING_TITLES.get(name, name) for name in usual or wirings)
    if norm:
        eps = {n.eps for n in trace.analysis.norms.values() if n.kind == norm[0][0] and n.eps}
        said = f" eps {min(eps):.0e}".replace("e-0", "e-") if eps else ""
        title += f" with {NORM_TITLES.get(norm[0][0], norm[0][0])}{said}"
    parts.append(title)
    common_tags = [
        t for t, c in Counter(t for b in blocks for t in b.tags).items() if c * 2 > len(blocks)
    ]
    parts += [t.replace("-", " ") for t in common_tags]
    finals = readings[-1].final_norms
    parts.append("final norm" if finals else "no final norm")
    if not any(t in SCALE_TAGS for b in blocks for t in b.tags):
        parts.append("no warm-up-critical scaling")
    return ", ".join(parts)


def outlier_blocks(blocks: tuple[Block, ...]) -> Iterator[str]:
    """Blocks unlike the other blocks of their kind in their stream."""
    for stream in sorted({b.stream for b in blocks}):
        mine = [b for b in blocks if b.stream == stream]
        for kind in dict.fromkeys(b.kind for b in mine):
            same = [b for b in mine if b.kind == kind]
            usual, count = Counter((b.wiring, b.tags) for b in same).most_common(1)[0]
            if count * 2 <= len(same):
                continue
            for b in same:
                if (b.wiring, b.tags) != usual:
                    said, other = " ".join([b.wiring, *b.tags]), " ".join([usual[0], *usual[1]])
                    yield f"{b.path or 'block'} ({kind} {b.index}): {said}, not {other}"


def build_signature(analysis: ModelAnalysis) -> tuple[Any, ...]:
    """What tells one arrangement from another, without numbers of layers or features."""
    readings = analysis.blocks()
    kinds: dict[str, Counter[tuple[Any, ...]]] = {}
    for reading in readings:
        said = (
            wiring_label(analysis, reading),
            *sorted(list_tags(analysis, reading)),
            *_list_variants(analysis, reading),
        )
        kinds.setdefault(reading.kind, Counter())[said] += 1
    final = any(r.final_norms for r in readings)
    return tuple(sorted((kind, _count_fractions(counts)) for kind, counts in kinds.items())), final


def _count_fractions(counts: Counter[tuple[Any, ...]]) -> tuple[tuple[tuple[Any, ...], float], ...]:
    total = sum(counts.values())
    return tuple(sorted(((said, round(c / total, 2)) for said, c in counts.items()), key=str))


def _list_variants(analysis: ModelAnalysis, reading: AddAnalysis) -> tuple[str, ...]:
    """Finer marks: norms inside, start values of learned scales."""
    found = []
    if reading.inner_norms:
        found.append(f"inner {min(len(reading.inner_norms), 3)}")
    shifted = _has_scalar_shifts(analysis, reading)
    found += ["scalar shifts"] if shifted else []
    for scale in reading.scales:
        if scale.kind == "weight" and not (shifted and scale.size == 1):
            found.append(f"starts at {_initial_value(scale)}")
    if any(s.kind == "weight" for s in reading.add.shortcut_scales):
        found.append("learned shortcut")
    if find_entry_scales(analysis, reading):
        found.append("shrinking")
    if reading.add.is_mixed and _has_softmax_mixing(analysis, reading):
        found.append("balanced")
    return tuple(found)


def _initial_value(scale: Scale) -> str:
    """Where a learned scale began, for all that is known: one number that is neither 0 nor 1 was
    trained, and those that begin at 0 are many."""
    if scale.value is None:
        return "unknown"
    if scale.size == 1:
        return "one" if scale.value == 1 else "zero"
    return "zero" if scale.value == 0 else "some"


def _has_scalar_shifts(analysis: ModelAnalysis, reading: AddAnalysis) -> bool:
    """Whether single learned numbers are added inside the branch, as in Fixup."""
    graph = analysis.graph
    return any(
        graph[i].op in ("add", "sub")
        and graph.make_scale(o, i).kind == "weight"
        and graph.make_scale(o, i).size == 1
        for i in reading.add.path - {reading.add.fork}
        for o in graph[i].operands
        if len(graph[i].inputs) == 1 and o.node not in graph[i].inputs and o.kind != "number"
    )


def _has_softmax_mixing(analysis: ModelAnalysis, reading: AddAnalysis) -> bool:
    """Whether the matrix that mixes the streams is made by a softmax, as in mHC."""
    graph, fork = analysis.graph, reading.add.fork
    behind = graph.ancestors(reading.add.shortcut, fork)
    return any(graph[index].op == "softmax" for index in behind if index != fork)
