"""Labels of residual adds: wiring and tags, the words that the report prints.

    entry norm only                     "pre_ln"
    entry norm, learned vector scale    "pre_ln" with the tag "layer-scale"
    post-norm, shortcut times 2         "post_ln" with the tag "scaled-shortcut"

The words are stored in `signatures.json` and in reports; do not change them.
"""

from addnorm.doctor.analysis.branch_kinds import attention_steps
from addnorm.doctor.analysis.norms import is_query_key
from addnorm.doctor.analysis.results import AddAnalysis, ModelAnalysis
from addnorm.doctor.graph.nodes import Scale

WIRING_LABELS = {  # (entry norm, exit norm, post-norm)
    (False, False, True): "post_ln",
    (True, False, False): "pre_ln",
    (False, True, False): "res_post",
    (True, True, False): "sandwich",
    (True, False, True): "pre_post",
    (False, True, True): "res_post_post",
    (True, True, True): "sandwich_post",
    (False, False, False): "none",
}


def wiring_label(analysis: ModelAnalysis, block: AddAnalysis) -> str:
    """Return the wiring of a residual add: where its norms are."""
    if block.is_attention_score:
        return "attention_score"
    if block.is_false_pre_norm:
        return "false_pre_ln"
    label = WIRING_LABELS[_placement(block)]
    if label == "none" and any(
        i not in block.partial_norms and not is_query_key(analysis.graph, analysis.norms[i])
        for i in block.inner_norms
    ):
        return "mid-norm"
    return label


def _placement(block: AddAnalysis) -> tuple[bool, bool, bool]:
    return (block.has_pre_norm, block.exit_norm is not None, block.has_post_norm)


def list_tags(analysis: ModelAnalysis, block: AddAnalysis) -> tuple[str, ...]:
    """Return further properties of a residual add, in a fixed order."""
    add, link = block.add, block.link
    tags: list[str] = []
    if block.outer_add is not None:
        tags.append("inner")
    for scale in block.scales:
        if scale.kind == "weight":
            tags.append("rezero" if scale.size == 1 else "layer-scale")
        elif differs_from_one(scale):
            tags.append("scaled-branch")
    if any(scale.kind == "weight" or differs_from_one(scale) for scale in add.shortcut_scales):
        tags.append("scaled-shortcut")
    weighted = {other.add.node for other in analysis.add_analyses if other.add.is_weighted}
    is_dense = link.is_dense or reads_multiple_streams(analysis, block)
    is_dense |= add.is_weighted or add.fork in weighted
    scales_stream = any(event.kind == "scale" for event in link.events) and not link.norms()
    properties = {
        "gated": add.is_gated and not add.is_mixed,
        "hyper-connections": add.is_mixed,
        "parallel": block.is_parallel,
        "sub-ln": has_sub_norm(analysis, block),
        "projection-shortcut": add.has_projection,
        "long-skip": block.skipped_adds > 0,
        "activation-after-add": bool(block.activation_after),
        "reversible": block.is_reversible,
        "merge": block.is_merge,
        "dual": block.is_dual,
        "dense": is_dense and not add.is_mixed,
        "interpolated": add.difference_node is not None,
        "normalized-shortcut": add.has_normed_shortcut and not add.is_mixed,
        "scaled-stream": scales_stream and block.has_pre_norm and link.previous is not None,
        "scaled-input": bool(find_entry_scales(analysis, block)),
    }
    tags += [name for name, holds in properties.items() if holds]
    return tuple(dict.fromkeys(tags))


def has_sub_norm(analysis: ModelAnalysis, block: AddAnalysis) -> bool:
    """Whether Pre-LN has another norm before the last matrix of its branch, as Sub-LN has.

    In an attention it follows the product with the values; norms of queries, keys and their
    low-rank projections precede it. In a feed-forward it follows the first matrix.
    """
    kinds = ("self-attention", "cross-attention", "feed-forward")
    if WIRING_LABELS[_placement(block)] != "pre_ln" or block.kind not in kinds:
        return False
    graph, products = analysis.graph, attention_steps(block.steps)
    for index in block.inner_norms:
        source = analysis.norms[index].source
        before = graph.ancestors(source, block.add.fork) & (block.add.path - {block.add.fork})
        after = graph.nodes_between(index, block.add.branch) - {index}
        is_late = (
            any(product in before for product in products) if products else graph.has_mixing(before)
        )
        if is_late and graph.has_mixing(after) and index not in block.partial_norms:
            return True
    return False


def differs_from_one(scale: Scale) -> bool:
    """Whether a scale is a constant scalar other than 1 and -1."""
    is_scalar = scale.kind == "constant" and scale.size == 1  # a larger one is a mask or a table
    return is_scalar and scale.value is not None and abs(abs(scale.value) - 1) > 1e-6


def find_entry_scales(analysis: ModelAnalysis, block: AddAnalysis) -> list[float]:
    """Return the constants that multiply the input of a branch, right after its entry norm."""
    graph = analysis.graph
    constants = []
    for index in block.entry_norms:
        norm = analysis.norms[index]
        if norm.kind == "l2" or not norm.axes:
            continue
        width = graph[norm.source].shape[-1]
        for user in graph.forward_reach(index):
            if user in block.add.path and (step := graph.parent_through_scale(user)) is not None:
                scale = step[1]
                if scale is None or not differs_from_one(scale) or scale.value is None:
                    continue
                if abs(scale.value**2 - width) > 1e-2 * width:  # sqrt(dim) belongs to an RMS norm
                    constants.append(scale.value)
    return constants


def reads_multiple_streams(analysis: ModelAnalysis, block: AddAnalysis) -> bool:
    """Whether a branch reads a mixture of several earlier streams."""
    graph = analysis.graph
    for index in block.entry_norms:
        path = graph.nodes_between(block.add.fork, analysis.norms[index].source)
        if any(graph[i].op == "stack" and len(graph[i].inputs) > 1 for i in path):
            return True
    return False
