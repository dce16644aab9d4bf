"""From a visit to its report: blocks, norms, rows and a line for each stream."""

import math
from collections import Counter
from collections.abc import Iterator
from typing import Any

from addnorm.core.rows import Row
from addnorm.doctor.analysis.labels import entry_scales, label, tags
from addnorm.doctor.analysis.norms import TITLES as NORM_TITLES
from addnorm.doctor.analysis.post_norms import common
from addnorm.doctor.analysis.results import Anatomy, Reading
from addnorm.doctor.analysis.typical_layer import period
from addnorm.doctor.analysis.weight_roles import roles
from addnorm.doctor.graph.nodes import Scale
from addnorm.doctor.graph.ops import ATTENTION, PRODUCT, SLICES, mixes
from addnorm.doctor.model_trace import Visit
from addnorm.doctor.report import Block, NormUse
from addnorm.doctor.trace.statistics import Attention

TITLES = {
    "pre_ln": "Pre-LN", "post_ln": "Post-LN", "res_post": "Res-Post-LN", "sandwich": "Sandwich-LN",
    "none": "no norm", "mid-norm": "a norm inside the branch", "false_pre_ln": "false Pre-LN",
    "pre_post": "a norm before and behind", "res_post_post": "Res-Post-LN and Post-LN",
    "sandwich_post": "Sandwich-LN and Post-LN", "attention_score": "attention scores",
}  # fmt: skip
SCALED = ("scaled-shortcut", "scaled-branch", "rezero", "layer-scale", "scaled-input")


def blocks(visit: Visit, readings: list[Reading]) -> tuple[Block, ...]:
    """The public face of readings."""
    return tuple(_block(visit, number, reading=reading) for number, reading in enumerate(readings))


def _block(visit: Visit, number: int, *, reading: Reading) -> Block:
    anatomy, join = visit.anatomy, reading.join
    graph = anatomy.graph
    branch = common([graph[i].path for i in join.path if i != join.fork and mixes(graph[i].op)])
    signs = dict(join.signs)
    alike = visit.recorder.signs.token_similarity(join.node)
    if "stream_variance" in signs:
        signs["token_similarity"] = alike
    gradient = visit.recorder.signs.gradients.get(join.node)
    if gradient is not None:
        signs["gradient_norm"] = gradient
    own = [v for n, v in visit.weight_gradients.items() if branch and n.startswith(f"{branch}.")]
    if own:
        signs["weight_gradient_norm"] = math.sqrt(sum(v * v for v in own))
    return Block(
        index=number, path=join.module, branch=branch, kind=reading.kind,
        wiring=label(anatomy, reading), tags=tags(anatomy, reading), stream=reading.stream,
        norm=_norm_kind(anatomy, reading), shortcut_scale=_product(join.scales),
        branch_scale=_product(reading.scales), measurements=signs,
    )  # fmt: skip


def _norm_kind(anatomy: Anatomy, reading: Reading) -> str | None:
    places = [*reading.entry, reading.post_norm, reading.exit, *reading.link.norms()]
    if not reading.false:
        places = places[: len(reading.entry) + 2]
    return next((anatomy.norms[i].kind for i in places if i in anatomy.norms), None)


def _product(scales: tuple[Scale, ...]) -> float | None:
    values = [s.value for s in scales if s.kind != "input"]
    if not values or any(v is None for v in values):
        return None
    return math.prod(v for v in values if v is not None)


def norm_uses(visit: Visit, readings: list[Reading]) -> tuple[NormUse, ...]:
    """Every use of a norm and where it stands."""
    places: dict[int, tuple[str, int]] = {}
    for number, reading in enumerate(readings):
        for i in reading.inner:
            places.setdefault(i, ("inside", number))
    for number, reading in enumerate(readings):
        for i in reading.final_norms:
            places[i] = ("final", number)
        for i in (*reading.entry, *reading.partial):
            places[i] = ("entry", number)
        if reading.false:
            for i in reading.link.norms()[:1]:
                places[i] = ("entry", number)
        if reading.exit >= 0:
            places[reading.exit] = ("exit", number)
        if reading.post:
            places[reading.post_norm] = ("after", number)
    found = []
    for index, norm in sorted(visit.anatomy.norms.items()):
        place, block = places.get(index, ("elsewhere", None))
        found.append(NormUse(norm.path, norm.kind, place, norm.eps, norm.by_hand, block))
    return tuple(found)


def rows(visit: Visit, made: tuple[Block, ...]) -> Iterator[Row]:
    """Vital signs, one number a row."""
    for block in made:
        for name, value in block.measurements.items():
            yield _row(name, value, site=block.index, kind=block.kind, path=block.path)
    for stream in sorted({block.stream for block in made}):
        mine = [block for block in made if block.stream == stream]
        yield from _stream_rows(stream, mine)
    for attention in visit.recorder.signs.attentions:
        if math.isfinite(attention.largest) and _looks(visit.anatomy, attention):
            yield _row("max_logit", attention.largest, path=attention.path)
            yield _row("attention_entropy", attention.entropy, path=attention.path)
    yield from _role_rows(visit, made)
    for norm in visit.anatomy.norms.values():
        if norm.kind in ("dyt", "derf") and norm.node in visit.recorder.signs.saturation:
            yield _row("saturation", visit.recorder.signs.saturation[norm.node], path=norm.path)


def _looks(anatomy: Anatomy, attention: Attention) -> bool:
    """Whether weights are for values: a softmax over experts or classes is no attention."""
    graph = anatomy.graph
    if attention.square or attention.node >= len(graph):
        return attention.square
    if graph[attention.node].op in ATTENTION:
        return True
    return any(graph[i].op in PRODUCT for i in graph.onward(attention.node, also=SLICES))


def _row(measure: str, value: float, **where: Any) -> Row:
    return {"measure": measure, "value": value, **where}


def _stream_rows(stream: int, mine: list[Block]) -> Iterator[Row]:
    depend = [v for b in mine if math.isfinite(v := b.measurements.get("dependency", math.nan))]
    if depend:
        yield _row("dependency_sum", sum(depend), stream=stream)
    sizes = [v for b in mine if (v := b.measurements.get("stream_variance", 0)) > 0]
    if len(sizes) > 1:
        yield _row("growth", sizes[-1] / sizes[0], stream=stream)
    alike = [
        v for b in mine if math.isfinite(v := b.measurements.get("token_similarity", math.nan))
    ]
    if len(alike) > 1:
        yield _row("similarity_rise", alike[-1] - alike[0], stream=stream)


def _role_rows(visit: Visit, made: tuple[Block, ...]) -> Iterator[Row]:
    """Gradient norms by what weights do: at each block, then over all blocks."""
    whole: dict[str, float] = {}
    given = visit.weight_gradients
    for block, reading in zip(made, visit.anatomy.blocks(), strict=True):
        mine: dict[str, float] = {}
        for name, role in roles(visit.anatomy, reading).items():
            if name in given:
                mine[role] = mine.get(role, 0.0) + given[name] ** 2
        for role, square in mine.items():
            whole[role] = whole.get(role, 0.0) + square
            yield _row("role_gradient_norm", math.sqrt(square), site=block.index, role=role)
    for role, square in whole.items():
        yield _row("role_gradient_norm", math.sqrt(square), role=role)


# a line for each stream


def describe(visit: Visit, readings: list[Reading], *, made: tuple[Block, ...]) -> Iterator[str]:
    """What a stream is made of, in one line."""
    for stream in sorted({b.stream for b in made}):
        mine = [b for b in made if b.stream == stream]
        yield _line(visit, [readings[b.index] for b in mine], mine=mine)


def _line(visit: Visit, readings: list[Reading], *, mine: list[Block]) -> str:
    kinds = [b.kind for b in mine]
    length = period(kinds)
    wirings = Counter(b.wiring for b in mine)
    usual = [name for name, count in wirings.most_common() if 3 * count >= len(mine)]
    parts = [f"{len(kinds) // length} x [{', '.join(kinds[:length])}]"]
    norm = Counter(b.norm for b in mine if b.norm).most_common(1)
    title = " and ".join(TITLES.get(name, name) for name in usual or wirings)
    if norm:
        eps = {n.eps for n in visit.anatomy.norms.values() if n.kind == norm[0][0] and n.eps}
        said = f" eps {min(eps):.0e}".replace("e-0", "e-") if eps else ""
        title += f" with {NORM_TITLES.get(norm[0][0], norm[0][0])}{said}"
    parts.append(title)
    common_tags = [
        t for t, c in Counter(t for b in mine for t in b.tags).items() if c * 2 > len(mine)
    ]
    parts += [t.replace("-", " ") for t in common_tags]
    finals = readings[-1].final_norms
    parts.append("final norm" if finals else "no final norm")
    if not any(t in SCALED for b in mine for t in b.tags):
        parts.append("no warm-up-critical scaling")
    return ", ".join(parts)


def odd_ones(made: tuple[Block, ...]) -> Iterator[str]:
    """Blocks unlike the other blocks of their kind in their stream."""
    for stream in sorted({b.stream for b in made}):
        mine = [b for b in made if b.stream == stream]
        for kind in dict.fromkeys(b.kind for b in mine):
            same = [b for b in mine if b.kind == kind]
            usual, count = Counter((b.wiring, b.tags) for b in same).most_common(1)[0]
            if count * 2 <= len(same):
                continue
            for b in same:
                if (b.wiring, b.tags) != usual:
                    said, other = " ".join([b.wiring, *b.tags]), " ".join([usual[0], *usual[1]])
                    yield f"{b.path or 'block'} ({kind} {b.index}): {said}, not {other}"


def signature(anatomy: Anatomy) -> tuple[Any, ...]:
    """What tells one arrangement from another, without numbers of layers or features."""
    readings = anatomy.blocks()
    kinds: dict[str, Counter[tuple[Any, ...]]] = {}
    for reading in readings:
        said = (
            label(anatomy, reading),
            *sorted(tags(anatomy, reading)),
            *_flavour(anatomy, reading),
        )
        kinds.setdefault(reading.kind, Counter())[said] += 1
    final = any(r.final_norms for r in readings)
    return tuple(sorted((kind, _shares(counts)) for kind, counts in kinds.items())), final


def _shares(counts: Counter[tuple[Any, ...]]) -> tuple[tuple[tuple[Any, ...], float], ...]:
    total = sum(counts.values())
    return tuple(sorted(((said, round(c / total, 2)) for said, c in counts.items()), key=str))


def _flavour(anatomy: Anatomy, reading: Reading) -> tuple[str, ...]:
    """Finer marks: norms inside, start values of learned scales."""
    found = []
    if reading.inner:
        found.append(f"inner {min(len(reading.inner), 3)}")
    shifted = _scalar_shifts(anatomy, reading)
    found += ["scalar shifts"] if shifted else []
    for scale in reading.scales:
        if scale.kind == "weight" and not (shifted and scale.size == 1):
            found.append(f"starts at {_start(scale)}")
    if any(s.kind == "weight" for s in reading.join.scales):
        found.append("learned shortcut")
    if entry_scales(anatomy, reading):
        found.append("shrinking")
    if reading.join.mixed and _balanced(anatomy, reading):
        found.append("balanced")
    return tuple(found)


def _start(scale: Scale) -> str:
    """Where a learned scale began, for all that is known: one number that is neither 0 nor 1 was
    trained, and those that begin at 0 are many."""
    if scale.value is None:
        return "unknown"
    if scale.size == 1:
        return "one" if scale.value == 1 else "zero"
    return "zero" if scale.value == 0 else "some"


def _scalar_shifts(anatomy: Anatomy, reading: Reading) -> bool:
    """Whether single learned numbers are added inside the branch, as in Fixup."""
    graph = anatomy.graph
    return any(
        graph[i].op in ("add", "sub")
        and graph.factor(o, i).kind == "weight"
        and graph.factor(o, i).size == 1
        for i in reading.join.path - {reading.join.fork}
        for o in graph[i].operands
        if len(graph[i].ins) == 1 and o.node not in graph[i].ins and o.kind != "number"
    )


def _balanced(anatomy: Anatomy, reading: Reading) -> bool:
    """Whether the matrix that mixes the streams is made by a softmax, as in mHC."""
    graph, fork = anatomy.graph, reading.join.fork
    behind = graph.ancestors(reading.join.shortcut, fork)
    return any(graph[index].op == "softmax" for index in behind if index != fork)
