"""Names: the class of a join and its tags."""

from addnorm.doctor.analysis.norms import is_query_key
from addnorm.doctor.analysis.results import AddAnalysis, ModelAnalysis
from addnorm.doctor.graph.nodes import Scale

WIRING_LABELS = {
    (False, False, True): "post_ln",
    (True, False, False): "pre_ln",
    (False, True, False): "res_post",
    (True, True, False): "sandwich",
    (True, False, True): "pre_post",
    (False, True, True): "res_post_post",
    (True, True, True): "sandwich_post",
    (False, False, False): "none",
}


def wiring_label(analysis: ModelAnalysis, reading: AddAnalysis) -> str:
    """The class of a join."""
    if reading.is_attention_score:
        return "attention_score"
    if reading.is_false_pre_norm:
        return "false_pre_ln"
    named = WIRING_LABELS[(reading.has_pre_norm, reading.exit_norm >= 0, reading.has_post_norm)]
    if named == "none":
        graph, norms = analysis.graph, analysis.norms
        inner = [
            i
            for i in (*reading.inner_norms, *reading.partial_norms)
            if not is_query_key(graph, norms[i])
        ]
        if any(i not in reading.partial_norms for i in inner):
            return "mid-norm"
    return named


def list_tags(analysis: ModelAnalysis, reading: AddAnalysis) -> tuple[str, ...]:
    """What else is to be said of a join."""
    join = reading.add
    found: list[str] = []
    if reading.outer_add >= 0:
        found.append("inner")
    for scale in reading.scales:
        if scale.kind == "weight":
            found.append("rezero" if scale.size == 1 else "layer-scale")
        elif differs_from_one(scale):
            found.append("scaled-branch")
    if any(scale.kind == "weight" or differs_from_one(scale) for scale in join.shortcut_scales):
        found.append("scaled-shortcut")
    weighed = {r.add.node for r in analysis.add_analyses if r.add.is_weighted}
    dense = reading.link.is_dense or reads_multiple_streams(analysis, reading)
    dense |= join.is_weighted or join.fork in weighed
    said = {
        "gated": join.is_gated and not join.is_mixed, "hyper-connections": join.is_mixed,
        "parallel": reading.is_parallel, "projection-shortcut": join.has_projection,
        "long-skip": reading.skipped_adds > 0, "activation-after-add": bool(reading.activation_after),
        "reversible": reading.is_reversible, "merge": reading.is_merge, "dual": reading.is_dual,
        "dense": dense and not join.is_mixed,
        "interpolated": join.difference_node >= 0, "normalized-shortcut": join.has_normed_shortcut and not join.is_mixed,
        "scaled-stream": any(m.kind == "scale" for m in reading.link.events) and reading.has_pre_norm
        and not reading.link.norms() and reading.link.previous >= 0,
        "scaled-input": bool(find_entry_scales(analysis, reading)),
    }  # fmt: skip
    found += [name for name, true in said.items() if true]
    return tuple(dict.fromkeys(found))


def differs_from_one(scale: Scale) -> bool:
    """Whether a constant is not 1; its sign does not matter."""
    single = scale.kind == "constant" and scale.size == 1  # a larger one is a mask or a table
    return single and scale.value is not None and abs(abs(scale.value) - 1) > 1e-6


def find_entry_scales(analysis: ModelAnalysis, reading: AddAnalysis) -> list[float]:
    """Constants that multiply what a branch reads, right behind its norm."""
    graph = analysis.graph
    found = []
    for index in reading.entry_norms:
        if analysis.norms[index].kind == "l2" or not analysis.norms[index].axes:
            continue
        width = analysis.graph[analysis.norms[index].source].shape[-1]
        for kid in graph.forward_reach(index):
            if kid in reading.add.path and (step := graph.parent_through_scale(kid)) is not None:
                scale = step[1]
                if scale is None or not differs_from_one(scale) or scale.value is None:
                    continue
                if abs(scale.value**2 - width) > 1e-2 * width:  # sqrt(dim): a unit vector's
                    found.append(scale.value)
    return found


def reads_multiple_streams(analysis: ModelAnalysis, reading: AddAnalysis) -> bool:
    """Whether a branch reads a mixture of several earlier streams."""
    graph = analysis.graph
    for index in reading.entry_norms:
        way = graph.nodes_between(reading.add.fork, analysis.norms[index].source)
        if any(graph[i].op == "stack" and len(graph[i].inputs) > 1 for i in way):
            return True
    return False
