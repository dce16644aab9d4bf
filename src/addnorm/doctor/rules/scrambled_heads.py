"""Rule `scrambled_heads`: heads that a reshape splits or merges without a transpose.

A reshape keeps the order of the numbers in memory. Heads are part of the features, so they must be
moved behind the tokens before they are merged. With T tokens, H heads and d features each:

    (B, T, H, d) -> (B, T, H d)      the axes of tokens and heads keep their numbers
    (B, H, T, d) -> (B, T, H d)      scrambled: a row of the result holds parts of several tokens

`graph/axis_layout.py` follows the axes. An axis is scrambled if it holds a part of the tokens
behind a part of the features, or if tokens are torn apart between examples and heads.
"""

from collections.abc import Iterator

from addnorm.doctor.analysis.axis_mixing import trace_axes
from addnorm.doctor.analysis.results import AddAnalysis
from addnorm.doctor.graph.axis_layout import Axis, Layout
from addnorm.doctor.graph.contractions import is_activation_product
from addnorm.doctor.graph.ops import ATTENTION, is_mixing
from addnorm.doctor.report import Finding
from addnorm.doctor.rule_context import RuleContext
from addnorm.doctor.rules.base import rule

RESHAPES = frozenset({"view", "reshape", "unflatten", "view_as", "reshape_as"})
FEATURES, TOKENS, EXAMPLES = (frozenset({axis}) for axis in (-1, -2, -3))


@rule("scrambled_heads")
def scrambled_heads(context: RuleContext) -> Iterator[Finding]:
    """Report attentions whose reshapes mix the numbers of different tokens."""
    wrong = [(block, node) for block in context.blocks if (node := _find_scrambled(context, block))]
    if wrong:
        block, index = wrong[0]
        source = context.graph[index]
        yield Finding(
            "scrambled_heads", "error", source.path or context.module_path(block),
            f"{len(wrong)} attentions split or merge their heads by a reshape without a transpose, "
            "so the features of different tokens are mixed up; transpose heads and tokens before "
            "merging, as x.transpose(1, 2).reshape(B, T, C), and after splitting",
            {"shape": source.shape, "operation": source.op, "attentions": len(wrong)},
        )  # fmt: skip


def _find_scrambled(context: RuleContext, block: AddAnalysis) -> int | None:
    """Return an input of a matrix or of a product of activations whose axes are scrambled."""
    graph, fork = context.graph, block.add.fork
    if block.kind != "self-attention" or len(graph[fork].shape) != 3:
        return None
    layouts, _ = trace_axes(graph, block.add.path, starts=[fork])
    for index in sorted(block.add.path - {fork}):
        node = graph[index]
        before = layouts.get(node.inputs[0]) if node.op in RESHAPES and node.inputs else None
        if before and not _is_merged(before) and _is_merged(layouts.get(index, ())):
            return index
        is_product = is_activation_product(graph, node) or node.op in ATTENTION
        if not is_product and not is_mixing(node.op):
            continue
        for source in node.inputs:
            layout = layouts.get(source)
            if layout and (_is_torn(layout) or (is_product and _is_split(layout))):
                return source
    return None


def _is_torn(layout: Layout) -> bool:
    """Return whether an axis holds a part of the tokens behind a part of the features."""
    return any(
        _position(axis, FEATURES) < _position(axis, TOKENS) < len(axis)
        and sum(f.origins >= TOKENS for other in layout for f in other) > 1
        for axis in layout
    )


def _is_merged(layout: Layout) -> bool:
    """Return whether one number counts tokens and features together, as sizes cross borders."""
    return any(factor.origins >= TOKENS | FEATURES for axis in layout for factor in axis)


def _is_split(layout: Layout) -> bool:
    """Return whether examples hold one part of the tokens, and an axis with features the other."""
    held = [axis for axis in layout if _position(axis, TOKENS) < len(axis)]
    with_examples = [axis for axis in held if _position(axis, EXAMPLES) < len(axis)]
    with_features = [axis for axis in held if _position(axis, FEATURES) < len(axis)]
    return len(held) == 2 and len(with_examples) == 1 and with_features == held[1:]


def _position(axis: Axis, origins: frozenset[int]) -> int:
    """Return the first factor of an axis with these origins; the length of the axis if none."""
    return next((i for i, factor in enumerate(axis) if factor.origins == origins), len(axis))
