"""Rule `scrambled_heads`: heads that a reshape splits or merges without a transpose.

A reshape keeps the order of the numbers in memory. Heads are part of the features, so they must be
moved behind the tokens before they are merged. With T tokens, H heads and d features each:

    (B, T, H, d) -> (B, T, H d)      the axes of tokens and heads keep their numbers
    (B, H, T, d) -> (B, T, H d)      scrambled: a row of the result holds parts of several tokens

`graph/axis_layout.py` follows the axes. An axis is scrambled if it holds a part of the tokens
behind a part of the features, or if tokens are torn apart between examples and heads. What it does
not follow shows in a run in which the attention copies one token (`probing/token_sources.py`).
"""

from collections.abc import Iterator
from itertools import accumulate
from operator import mul

from addnorm.doctor.analysis.axis_mixing import trace_axes
from addnorm.doctor.analysis.results import AddAnalysis
from addnorm.doctor.graph.axis_layout import Axis, Layout
from addnorm.doctor.graph.contractions import is_activation_product
from addnorm.doctor.graph.nodes import Node, Shape
from addnorm.doctor.graph.ops import ATTENTION, is_mixing
from addnorm.doctor.report import Finding
from addnorm.doctor.rule_context import RuleContext
from addnorm.doctor.rules.base import rule
from addnorm.doctor.rules.probing.token_sources import find_token_sources

RESHAPES = frozenset({"view", "reshape", "unflatten", "view_as", "reshape_as"})
FEATURES, TOKENS, EXAMPLES = (frozenset({axis}) for axis in (-1, -2, -3))


@rule("scrambled_heads")
def scrambled_heads(context: RuleContext) -> Iterator[Finding]:
    """Report attentions whose reshapes mix the numbers of different tokens.

    Axes that cannot be followed, as those of interleaved rotations, may look scrambled; a run in
    which the attention copies one token decides.
    """
    sources = find_token_sources(context)
    intact = {s.block.add.node for s in sources if not s.is_scrambled and not s.is_unmixed}
    wrong = [
        (block, node)
        for block in context.blocks
        if block.add.node not in intact and (node := _find_scrambled(context, block))
    ]
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
        return
    swapping = _find_swapping_reshape(context)
    if swapping is not None:
        before = context.graph[swapping.inputs[0]].shape
        yield Finding(
            "scrambled_heads", "error", swapping.path,
            f"a reshape from {before} to {swapping.shape} exchanges the sizes of two axes, but not "
            "their numbers, so tokens and features are mixed up; use transpose or permute",
            {"before": before, "after": swapping.shape, "operation": swapping.op},
        )  # fmt: skip
        return
    scrambled = [s for s in sources if s.is_scrambled]
    unmixed = [s for s in sources if s.is_unmixed]
    if scrambled:
        first = scrambled[0]
        yield Finding(
            "scrambled_heads", "error", context.module_path(first.block),
            f"{len(scrambled)} attentions mix up the features of different tokens: with weights "
            f"that copy token {first.expected} to token {first.token}, parts of the tokens "
            f"{list(first.found)[:4]} arrive there; split heads as view(B, T, H, d).transpose(1, "
            "2), and merge them in the reverse order",
            {"attentions": len(scrambled), "copied": first.expected, "arrived": first.found[:8]},
        )  # fmt: skip
    elif unmixed and len(unmixed) == len(sources):
        first = unmixed[0]
        yield Finding(
            "scrambled_heads", "error", context.module_path(first.block),
            f"{len(unmixed)} attentions do not look along the tokens, but along their heads: with "
            f"weights that copy token {first.expected} to token {first.token}, token "
            f"{first.token} itself arrives; transpose heads and tokens before the product of "
            "queries and keys",
            {"attentions": len(unmixed), "copied": first.expected, "arrived": first.found},
        )  # fmt: skip


def _find_swapping_reshape(context: RuleContext) -> Node | None:
    """Return a reshape that was probably meant as a transpose of tokens, pixels and features.

    (B, T, C) -> (T, B, C)             sizes change places
    (B, C, H, W) -> (B, H W, C)        an image, as if its channels were last
    (B, H W, C) -> (B, C, H, W)        and back
    (B, C, T, H, W) -> (B T, C, H W)   frames of a video, as if they were next to the examples

    A view after padding that shifts each row by one is a trick of relative positions, which also
    explains why scores of four axes are not checked.
    """
    graph = context.graph
    for node in graph:
        if node.op not in RESHAPES or len(node.inputs) != 1 or not context.is_used(node.index):
            continue
        source = graph[node.inputs[0]]
        if not source.active or source.op in ("pad", "constant_pad_nd", "cat"):
            continue
        if len(source.shape) == len(node.shape) == 3 and _is_swapped(source.shape, node.shape):
            return node
        if len(source.shape) == 4 and len(node.shape) == 3 and _is_image(*source.shape, node.shape):
            return node
        if len(source.shape) == 3 and len(node.shape) == 4 and _is_image(*node.shape, source.shape):
            return node
        if len(source.shape) > 3 and _is_frame_merge(source.shape, node.shape):
            return node
    return None


def _is_swapped(one: Shape, other: Shape) -> bool:
    """Return whether two neighboring sizes change places that differ by more than one."""
    changed = [i for i, (a, b) in enumerate(zip(one, other, strict=True)) if a != b]
    if len(changed) != 2 or changed[1] - changed[0] != 1 or 1 in one:
        return False
    i, j = changed
    return (one[i], one[j]) == (other[j], other[i]) and abs(one[i] - one[j]) > 1


def _is_frame_merge(one: Shape, other: Shape) -> bool:
    """Return whether examples are merged with an axis behind the channels, which stay."""
    batch, channels, *rest = one
    is_plain = other[0] in accumulate(one, mul)  # neighboring axes, as those of windows
    if is_plain or len(other) < 3 or other[1] != channels or channels < 2:
        return False
    return any(1 < size != channels and other[0] == batch * size for size in rest)


def _is_image(batch: int, channels: int, height: int, width: int, tokens: Shape) -> bool:
    """Return whether tokens have the sizes of an image with channels first, but channels last."""
    pixels = height * width
    is_flat = tokens == (batch, pixels, channels)
    return is_flat and height > 1 and width > 1 and channels > 1 and channels not in (pixels, width)


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
