"""Names: the class of a join and its tags."""

from addnorm.doctor.analysis.norms import is_query_key
from addnorm.doctor.analysis.results import Anatomy, Reading
from addnorm.doctor.graph.nodes import Scale

CLASSES = {
    (False, False, True): "post_ln",
    (True, False, False): "pre_ln",
    (False, True, False): "res_post",
    (True, True, False): "sandwich",
    (True, False, True): "pre_post",
    (False, True, True): "res_post_post",
    (True, True, True): "sandwich_post",
    (False, False, False): "none",
}


def label(anatomy: Anatomy, reading: Reading) -> str:
    """The class of a join."""
    if reading.score:
        return "attention_score"
    if reading.false:
        return "false_pre_ln"
    named = CLASSES[(reading.pre, reading.exit >= 0, reading.post)]
    if named == "none":
        graph, norms = anatomy.graph, anatomy.norms
        inner = [i for i in (*reading.inner, *reading.partial) if not is_query_key(graph, norms[i])]
        if any(i not in reading.partial for i in inner):
            return "mid-norm"
    return named


def tags(anatomy: Anatomy, reading: Reading) -> tuple[str, ...]:
    """What else is to be said of a join."""
    join = reading.join
    found: list[str] = []
    if reading.inside >= 0:
        found.append("inner")
    for scale in reading.scales:
        if scale.kind == "weight":
            found.append("rezero" if scale.size == 1 else "layer-scale")
        elif differs(scale):
            found.append("scaled-branch")
    if any(scale.kind == "weight" or differs(scale) for scale in join.scales):
        found.append("scaled-shortcut")
    weighed = {r.join.node for r in anatomy.readings if r.join.weighed}
    dense = reading.link.dense or reads_several(anatomy, reading)
    dense |= join.weighed or join.fork in weighed
    said = {
        "gated": join.gated and not join.mixed, "hyper-connections": join.mixed,
        "parallel": reading.parallel, "projection-shortcut": join.projection,
        "long-skip": reading.around > 0, "activation-after-add": bool(reading.after),
        "reversible": reading.reversible, "merge": reading.merge, "dual": reading.dual,
        "dense": dense and not join.mixed,
        "interpolated": join.towards >= 0, "normalized-shortcut": join.normed and not join.mixed,
        "scaled-stream": any(m.what == "scale" for m in reading.link.met) and reading.pre
        and not reading.link.norms() and reading.link.before >= 0,
        "scaled-input": bool(entry_scales(anatomy, reading)),
    }  # fmt: skip
    found += [name for name, true in said.items() if true]
    return tuple(dict.fromkeys(found))


def differs(scale: Scale) -> bool:
    """Whether a constant is not 1; its sign does not matter."""
    single = scale.kind == "constant" and scale.size == 1  # a larger one is a mask or a table
    return single and scale.value is not None and abs(abs(scale.value) - 1) > 1e-6


def entry_scales(anatomy: Anatomy, reading: Reading) -> list[float]:
    """Constants that multiply what a branch reads, right behind its norm."""
    graph = anatomy.graph
    found = []
    for index in reading.entry:
        if anatomy.norms[index].kind == "l2" or not anatomy.norms[index].axes:
            continue
        width = anatomy.graph[anatomy.norms[index].source].shape[-1]
        for kid in graph.onward(index):
            if kid in reading.join.path and (step := graph.back(kid)) is not None:
                scale = step[1]
                if scale is None or not differs(scale) or scale.value is None:
                    continue
                if abs(scale.value**2 - width) > 1e-2 * width:  # sqrt(dim): a unit vector's
                    found.append(scale.value)
    return found


def reads_several(anatomy: Anatomy, reading: Reading) -> bool:
    """Whether a branch reads a mixture of several earlier streams."""
    graph = anatomy.graph
    for index in reading.entry:
        way = graph.between(reading.join.fork, anatomy.norms[index].source)
        if any(graph[i].op == "stack" and len(graph[i].ins) > 1 for i in way):
            return True
    return False
