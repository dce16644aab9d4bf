"""Tokens that reach a token through an attention that copies one token.

With weights that copy the token before, a self-attention returns at each token a function of that
one token, whatever its heads do. If parts of other tokens arrive, heads were split or merged in the
wrong order; if only the token itself arrives, the attention does not look along the tokens.

    values of tokens     0  1  2  3        healthy       heads merged without a transpose
    arrive at token 3                      2             1 and 2
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from addnorm.doctor.analysis.branch_kinds import attention_steps
from addnorm.doctor.analysis.results import AddAnalysis
from addnorm.doctor.analysis.weight_roles import FUSED_QKV, find_weight_roles
from addnorm.doctor.graph.graph import Graph
from addnorm.doctor.graph.ops import (
    ATTENTION,
    CONVOLUTION,
    CUMULATIVE,
    FOURIER,
    LOOKUPS,
    POOLING,
    RECURRENT,
    is_mixing,
)
from addnorm.doctor.rule_context import RuleContext
from addnorm.doctor.rules.probing.watched_run import capture_calls, copied_token
from addnorm.doctor.trace.statistics import Attention

MIXES_TOKENS = (
    CONVOLUTION | POOLING | FOURIER | RECURRENT | CUMULATIVE
    | {"opaque", "roll", "flip", "sort", "topk", "argsort", "scatter", "index_put", "fold",
       "unfold", "pad", "scatter_add", "index_add", "cdist"}
)  # fmt: skip
"""Operations that may move tokens, so that nothing is known about a branch that contains one."""
MAX_BLOCKS = 8
"""Attentions that are examined."""
MIN_TOKENS = 4
SMALL = 1e-5
"""Size of a gradient, relative to the largest one, that counts as none."""


@dataclass(frozen=True, slots=True)
class TokenSources:
    """What reaches one token of a branch, while its attention copies one token."""

    block: AddAnalysis
    token: int
    expected: int
    """Token that the attention copies."""
    found: tuple[int, ...]
    """Tokens of the same example that reach the token."""
    is_own_allowed: bool
    """Whether the branch multiplies or adds what the token itself holds, as a gate does."""

    @property
    def is_unmixed(self) -> bool:
        """Whether the attention returns each token by itself."""
        return self.found == (self.token,) != (self.expected,) and not self.is_own_allowed

    @property
    def is_scrambled(self) -> bool:
        """Whether more arrives than the copied token."""
        allowed = {self.expected, self.token} if self.is_own_allowed else {self.expected}
        return not self.is_unmixed and bool(set(self.found) - allowed)


def find_token_sources(context: RuleContext) -> list[TokenSources]:
    """Return the tokens that reach the last token of each attention that can be examined.

    The result is cached.
    """
    if "token sources" not in context.cache:
        context.cache["token sources"] = list(_iter_token_sources(context))
    found: list[TokenSources] = context.cache["token sources"]
    return found


def _iter_token_sources(context: RuleContext) -> Iterator[TokenSources]:
    attentions = context.trace.recording.stats.attentions
    plans: list[tuple[AddAnalysis, Attention, int]] = []
    for block in context.blocks:
        own = [a for a in attentions if a.node in block.add.path]
        start = _find_start(context, block, own)
        if own and start is not None and len(plans) < MAX_BLOCKS:
            plans.append((block, own[0], start))
    if not plans:
        return
    copying = {a.node for block, _, _ in plans for a in attentions if a.node in block.add.path}
    nodes = {i for block, _, start in plans for i in (block.add.branch, start)}
    results = capture_calls(context, nodes, copying=copying)
    for block, attention, start in plans:
        if start in results and block.add.branch in results:
            yield from _read_sources(
                context, block, attention, source=results[start], branch=results[block.add.branch]
            )


def _find_start(context: RuleContext, block: AddAnalysis, own: list[Attention]) -> int | None:
    """Return the node after which the branch must keep tokens apart; None if nothing is known."""
    graph, add = context.graph, block.add
    if not own or add.is_mixed or add.has_projection:
        return None
    if len({(a.query_count, _key_count(graph, a)) for a in own}) > 1:
        return None
    first, last = min(a.node for a in own), max(a.node for a in own)
    if first != last and first in graph.data_ancestors(last):
        return None  # in series, as in the long branches of ResiDual: tokens are copied twice
    if len(attention_steps(block.steps)) != len(own):
        return None  # some of its attentions have weights that are not computed by a softmax
    if block.kind == "cross-attention":
        starts = _find_value_sources(context, block)
    elif block.kind == "self-attention" and own[0].is_square:
        starts = [i for i in block.entry_norms if i in add.path] or [add.fork]
    else:
        return None
    tokens = own[0].query_count
    if len(starts) != 1 or tokens < MIN_TOKENS:
        return None
    for index in add.path:
        node = graph[index]
        if index <= starts[0] and index != add.fork:
            continue
        if node.op in MIXES_TOKENS and not _is_pointwise(context, index):
            return None
        if node.op in LOOKUPS and "p" in str(node.detail.get("index")):
            return None
        if index in context.norms and index != starts[0] and not _keeps_tokens(context, index):
            return None
        names = context.weight_names(index) if is_mixing(node.op) else []
        if any(tokens in context.weights[n].shape for n in names):
            return None  # perhaps a matrix that mixes tokens
    return starts[0]


def _is_pointwise(context: RuleContext, index: int) -> bool:
    """Return whether a convolution has a kernel of one pixel."""
    names = context.weight_names(index)
    is_convolution = context.graph[index].op in CONVOLUTION and bool(names)
    return is_convolution and all(set(context.weights[name].shape[2:]) <= {1} for name in names)


def _key_count(graph: Graph, attention: Attention) -> int:
    """Return the number of tokens that an attention looks at."""
    node = graph[attention.node]
    if node.op == "softmax":
        return node.shape[-1]
    keys = graph[node.operands[1].node].shape
    return keys[0] if node.op == "multi_head_attention_forward" else keys[-2]


def _find_value_sources(context: RuleContext, block: AddAnalysis) -> list[int]:
    """Return the nodes that the values of a cross-attention are projected from."""
    roles = find_weight_roles(context.analysis, block)
    names = {name for name, role in roles.items() if role in ("value", FUSED_QKV)}
    sources: set[int] = set()
    for node in context.graph:
        if is_mixing(node.op) and names & {*context.weight_names(node.index)}:
            is_whole = node.op == "multi_head_attention_forward"
            sources.update(node.inputs[-1:] if is_whole else node.inputs[:1])
    return sorted(sources)


def _keeps_tokens(context: RuleContext, index: int) -> bool:
    """Return whether a norm inside a branch has statistics of single tokens."""
    norm = context.norms[index]
    return norm.kind not in ("group", "batch", "instance") and norm.axes == (-1,)


def _read_sources(
    context: RuleContext,
    block: AddAnalysis,
    attention: Attention,
    *,
    source: Tensor,
    branch: Tensor,
) -> Iterator[TokenSources]:
    """Yield the sources of the last token; nothing if the layout of the tokens is not known."""
    tokens, keys = attention.query_count, _key_count(context.graph, attention)
    if not branch.requires_grad or not source.requires_grad:
        return
    allowed = _has_own_operand(context.graph, block, attention)
    if len(branch.shape) == 3 and tokens not in branch.shape[:2] and keys == tokens:
        yield from _read_own_token(context, block, source=source, branch=branch)
        return
    readings = []
    for layout in _iter_layouts(tuple(branch.shape), tokens):
        if layout not in _iter_layouts(tuple(source.shape), keys):
            continue
        reached = _find_reaching(source, branch, layout=layout)
        if reached is None:
            return
        found = tuple(int(i) for i in reached[0].nonzero().flatten())
        expected = copied_token(tokens - 1, queries=tokens, keys=keys)
        readings.append(TokenSources(block, tokens - 1, expected, found, allowed))
    healthy = [r for r in readings if not r.is_scrambled and not r.is_unmixed]
    yield from healthy[:1] or readings[:1]


def _read_own_token(
    context: RuleContext, block: AddAnalysis, *, source: Tensor, branch: Tensor
) -> Iterator[TokenSources]:
    """Yield the sources of the last token if only itself arrives, also without copying.

    An attention between channels compares them over all tokens, so that other tokens arrive.
    """
    token = branch.shape[1] - 1
    if source.shape != branch.shape or token < MIN_TOKENS - 1:
        return
    for nodes in ((source, branch), _capture_pair(context, block)):
        reached = _find_reaching(*nodes, layout="BTC") if nodes else None
        if reached is None or reached[0].nonzero().flatten().tolist() != [token]:
            return
    yield TokenSources(block, token, token - 1, (token,), is_own_allowed=False)


def _capture_pair(context: RuleContext, block: AddAnalysis) -> tuple[Tensor, Tensor] | None:
    """Return start and end of a branch in a run with its own attention."""
    norms = [i for i in block.entry_norms if i in block.add.path]
    ends = (norms or [block.add.fork])[0], block.add.branch
    results = capture_calls(context, ends)
    return (results[ends[0]], results[ends[1]]) if len(results) == 2 else None


def _find_reaching(source: Tensor, branch: Tensor, *, layout: str) -> Tensor | None:
    """Return which tokens of a source, (examples, tokens), reach the last token of a branch."""
    out = _to_tokens(branch, layout)
    generator = torch.Generator().manual_seed(0)
    direction = torch.randn(out.shape[-1], generator=generator).to(out)
    (gradient,) = torch.autograd.grad(
        (out[0, -1] * direction).sum(), source, retain_graph=True, allow_unused=True
    )
    if gradient is None or not bool(gradient.isfinite().all()) or not bool(gradient.any()):
        return None
    sizes = _to_tokens(gradient, layout).float().abs().amax(-1)
    return sizes > SMALL * sizes.max()


def _iter_layouts(shape: tuple[int, ...], tokens: int) -> Iterator[str]:
    """Yield where a stream may hold its tokens, by their number: the likeliest first."""
    if len(shape) == 3:
        yield from ("BTC",) if shape[1] == tokens else ()
        yield from ("TBC",) if shape[0] == tokens else ()
    elif len(shape) == 4:
        yield from ("BHWC",) if shape[1] * shape[2] == tokens else ()
        yield from ("BCHW",) if shape[2] * shape[3] == tokens else ()


def _to_tokens(tensor: Tensor, layout: str) -> Tensor:
    """Return a tensor as (examples, tokens, features)."""
    if layout == "TBC":
        return tensor.transpose(0, 1)
    if layout == "BHWC":
        return tensor.flatten(1, 2)
    if layout == "BCHW":
        return tensor.flatten(2).transpose(1, 2)
    return tensor


def _has_own_operand(graph: Graph, block: AddAnalysis, attention: Attention) -> bool:
    """Return whether something that does not come from the attention joins its result."""
    reached: set[int] = set()
    for index in sorted(block.add.path):
        node = graph[index]
        if index == attention.node or any(i in reached for i in node.inputs):
            reached.add(index)
            is_values = is_mixing(node.op) or node.op in ATTENTION
            others = [i for i in node.inputs if i not in reached]
            if index != attention.node and not is_values and others and len(node.inputs) > 1:
                return True
    return False
