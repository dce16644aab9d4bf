"""Rule `narrow_projections`: heads that are split before the projections, which they then share.

q = linear(x.view(B, T, H, d))         one matrix of d x d for all heads, on a part of the token
q = linear(x).view(B, T, H, d)         each head reads the whole token
"""

from collections.abc import Iterator

from addnorm.doctor.analysis.results import AddAnalysis
from addnorm.doctor.analysis.weight_roles import find_weight_roles
from addnorm.doctor.report import Finding
from addnorm.doctor.rule_context import RuleContext
from addnorm.doctor.rules.base import rule

ROLES = ("query", "key", "value")


@rule("narrow_projections")
def narrow_projections(context: RuleContext) -> Iterator[Finding]:
    """Report attentions in which queries, keys and values of all heads come from narrow matrices.

    All three must read the features of one head only, and the same matrix must serve all heads.
    """
    wrong = [(b, names) for b in context.blocks if (names := _find_narrow(context, b))]
    if not wrong:
        return
    block, names = wrong[0]
    size = context.weights[names[0]].shape[-1]
    width = context.graph[block.add.fork].shape[-1]
    yield Finding(
        "narrow_projections", "warning", names[0].rpartition(".")[0],
        f"{len(wrong)} attentions split their {width} features into heads of {size} before the "
        f"projections of queries, keys and values, so that all heads share matrices of {size} x "
        f"{size} and no head reads the whole token; project all features, then split",
        {"weights": names, "attentions": len(wrong)},
    )  # fmt: skip


def _find_narrow(context: RuleContext, block: AddAnalysis) -> list[str]:
    """Return the matrices of queries, keys and values if all of them are narrow; or nothing."""
    graph, width = context.graph, context.graph[block.add.fork].shape[-1]
    if block.kind != "self-attention":
        return []
    by_role: dict[str, str] = {}
    for name, role in find_weight_roles(context.analysis, block).items():
        by_role.setdefault(role, name)
    names = [by_role[role] for role in ROLES if role in by_role]
    shapes = {tuple(context.weights[name].shape) for name in names}
    if len(names) < 3 or len(shapes) != 1:
        return []
    (shape,) = shapes
    if len(shape) != 2 or shape[0] != shape[1] or width % shape[0] or shape[0] == width:
        return []
    for node in graph:
        if node.op == "linear" and set(names) & set(context.weight_names(node.index)):
            before = graph[node.inputs[0]].shape
            if before[-1] * before[-2] != width:
                return []  # not all heads of a token side by side
    return names
