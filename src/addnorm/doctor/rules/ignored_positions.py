"""Rule `ignored_positions`: positions that a model holds, but that do not tell its tokens apart.

x = tokens(ids)                   a table of positions exists and is not added
x = tokens(ids) + positions(ids)  the table is read by the ids
q = rotate(q); scores = q @ k     only the queries are rotated

The first attention of such a model does not change at a token if two other tokens change places.
"""

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from addnorm.doctor.analysis.results import AddAnalysis
from addnorm.doctor.graph.ops import EMBEDDINGS, LOOKUPS
from addnorm.doctor.report import Finding
from addnorm.doctor.rule_context import RuleContext
from addnorm.doctor.rules.base import rule
from addnorm.doctor.rules.positions import constant_positions
from addnorm.doctor.rules.probing.model_runs import (
    get_inputs,
    is_image,
    named_inputs,
    replace_inputs,
)
from addnorm.doctor.rules.probing.perturb import find_stream_input
from addnorm.doctor.rules.probing.watched_run import capture_calls

MIN_TOKENS = 5
ROUNDING = 1e-4
"""Change, relative to that of a replaced token, that counts as none."""


@rule("ignored_positions")
def ignored_positions(context: RuleContext) -> Iterator[Finding]:
    """Report models whose first attention does not depend on the order of the other tokens.

    Something must show that it should: a table with a row for each token, constants that rotate
    queries or keys, or two embeddings of the same ids. Sets, and causal models without positions,
    have none of these.
    """
    block = next((b for b in context.blocks if b.kind == "self-attention"), None)
    if block is None or any(constant_positions(context)):
        return  # the other rule says more
    reason = _find_reason(context, block)
    if reason and _ignores_order(context, block):
        yield Finding(
            "ignored_positions", "error", context.module_path(block),
            f"{reason}, but two tokens can change places without an effect on what the first "
            "attention returns at another token, so the order of the tokens is lost; add the "
            "position of each token to its embedding, or rotate queries and keys by it",
            {"reason": reason},
        )  # fmt: skip


def _find_reason(context: RuleContext, block: AddAnalysis) -> str:
    """Return what shows that the model should know positions; empty if nothing does."""
    shape = context.graph[block.add.fork].shape
    if len(shape) != 3 or max(shape[:2]) < MIN_TOKENS:
        return ""
    rows = max(shape[:2])
    tables = _iter_unread_tables(context, rows=rows, width=shape[-1])
    if table := next((t for t in tables if not _is_added(context, block, t, rows=rows)), ""):
        return f"the model has the table {table}"
    if _find_rotation(context, block):
        return "constants rotate queries or keys"
    names = _find_doubled_embedding(context, block)
    return f"the model adds {' and '.join(names)}, both read by the same ids" if names else ""


def _iter_unread_tables(context: RuleContext, *, rows: int, width: int) -> Iterator[str]:
    """Yield tables with a row for each token that are not read, or not by the inputs."""
    read = {
        o.name
        for node in context.graph
        for o in node.operands
        if o.kind == "weight" and (node.active or node.op not in EMBEDDINGS | LOOKUPS)
    }
    for path, module in context.trace.model.named_modules():
        is_plain = not path or not isinstance(module, nn.Linear)
        for name, tensor in (*module.named_parameters(recurse=False),
                             *module.named_buffers(recurse=False)):  # fmt: skip
            whole = f"{path}.{name}" if path else name
            is_table = tensor.is_floating_point() and tensor.shape[-1:] == (width,)
            count = tensor.numel() // max(width, 1)
            is_bare = tensor.dim() == 3 or isinstance(module, nn.Embedding)
            is_buffer = not isinstance(tensor, nn.Parameter) and tensor.dim() in (2, 3)
            is_long = is_table and count >= rows and max(tensor.shape[:-1], default=0) == count
            if is_plain and is_long and (is_buffer or (is_bare and whole not in read)):
                yield whole


def _is_added(context: RuleContext, block: AddAnalysis, table: str, *, rows: int) -> bool:
    """Return whether rows of a table, one for each token, are part of what a block reads.

    Then the order is known, even if small weights hide it from the first attention: uniform
    attention sums over the tokens in any order.
    """
    graph = context.graph
    nodes = (graph[i] for i in graph.data_ancestors(block.add.fork))
    return any(
        rows in node.shape[:-1] and any(o.name == table for o in node.operands) for node in nodes
    )


def _find_rotation(context: RuleContext, block: AddAnalysis) -> bool:
    """Return whether constants with several rows multiply activations before the scores."""
    graph = context.graph
    attentions = [a.node for a in context.square_attentions([block])]
    if not attentions:
        return False
    count = 0
    for index in block.add.path - {block.add.fork}:
        node = graph[index]
        others = [o for o in node.operands if o.node not in node.inputs and o.kind != "number"]
        if node.op != "mul" or index > max(attentions) or len(others) != 1:
            continue
        (other,) = others
        source = graph[other.node] if other.kind == "node" else None
        if other.kind == "weight" or (source is not None and source.learned):
            continue
        shape = other.shape if source is None else source.shape
        count += len([size for size in shape if size > 1]) > 1
    return count > 0


def _find_doubled_embedding(context: RuleContext, block: AddAnalysis) -> tuple[str, ...]:
    """Return the tables of two embeddings of the same ids that are added before a block."""
    graph = context.graph
    looked_up: dict[int, list[str]] = {}
    for index in sorted(graph.data_ancestors(block.add.fork)):
        node = graph[index]
        names = [o.name for o in node.operands if o.kind == "weight"]
        ids = [o.node for o in node.operands if o.kind == "node"]
        if node.op in EMBEDDINGS and names and len(ids) == 1:
            looked_up.setdefault(ids[0], []).append(names[0])
    for names in looked_up.values():
        for one, other in pairwise(names):
            if one != other and context.weights[one].shape[-1] == context.weights[other].shape[-1]:
                return one, other
    return ()


def _ignores_order(context: RuleContext, block: AddAnalysis) -> bool:
    """Return whether two tokens can change places without an effect on the last token."""
    names = named_inputs(context)
    target = find_stream_input(context, names)
    if target is None or names[target].dim() < 2 or is_image(names[target]):
        return False
    tokens = names[target]
    length = tokens.shape[1]
    pair = _find_pair(tokens, [t for name, t in names.items() if name != target])
    branch = context.graph[block.add.branch]
    if pair is None or len(branch.shape) != 3 or length not in branch.shape[:2]:
        return False
    axis = 1 if branch.shape[1] == length else 0
    if branch.shape[:2] == (length, length):
        return False
    order = list(range(length))
    order[pair[0]], order[pair[1]] = pair[1], pair[0]
    replaced = list(range(length))
    replaced[pair[0]] = pair[1]
    results = [
        _last_token(context, block, {target: tokens[:, rows]}, axis=axis)
        for rows in (list(range(length)), order, replaced)
    ]
    if any(result is None or not bool(result.isfinite().all()) for result in results):
        return False
    before, swapped, other = (result.double() for result in results if result is not None)
    effect = float((other - before).abs().max())
    return effect > 0 and float((swapped - before).abs().max()) < ROUNDING * effect


def _find_pair(tokens: Tensor, others: list[Tensor]) -> tuple[int, int] | None:
    """Return two different tokens, not the last, that no other input tells apart."""
    length = tokens.shape[1]
    for one in range(length - 2):
        for other in range(one + 1, length - 1):
            is_free = not bool((tokens[:, one] == tokens[:, other]).any())
            is_equal = all(
                torch.equal(t[:, one], t[:, other]) for t in others if t.shape[1:2] == (length,)
            )
            if is_free and is_equal and not any(t.shape[2:3] == (length,) for t in others):
                return one, other
    return None


def _last_token(
    context: RuleContext, block: AddAnalysis, inputs: dict[str, Tensor], *, axis: int
) -> Tensor | None:
    """Return what a branch adds to the last token for other inputs; None if it does not run."""
    example: Any = replace_inputs(get_inputs(context), inputs)
    result = capture_calls(context, [block.add.branch], example=example).get(block.add.branch)
    return None if result is None else result.detach().select(axis, -1)
