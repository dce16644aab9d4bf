"""Norms after each sum: which block owns them.

The norm after a sum can belong to three blocks, and the graph alone does not tell which:

    x = norm(x + f(x))                  Post-LN: the norm belongs to the block of the sum
    x = x + f(norm(x)); ...; norm(x)    Pre-LN: the norm after the last sum is a final norm
    h = norm(x); x = h + f(h)           false Pre-LN: the norm belongs to the block after it

In the third form the shortcut carries the normalized stream. It computes the same as Post-LN with
all norms moved by half a block, so the position of the norms within the stack decides.

The pass refines its own result in four steps:

1. From the last add to the first: a norm on the link to the next add follows this sum. Norms after
   the last add of a stream are final norms.
2. A final norm becomes the post-norm of its block if the corresponding block of the layer before
   has one, or if the block is alone and has no other norm.
3. Runs of blocks are recognized as false Pre-LN: a norm before the first sum, none after the last,
   or norms whose module path is nearer to the branch after them.
4. A norm that was assigned in step 2 because of a post-norm that step 3 took away is final again.

Example: two blocks of `x = norm(x + f(x))`, with sums at nodes 5 and 9 and norms at 6 and 10.

    step 1   {5: PostNorms(has_post_norm=True, post_norm=6), 9: PostNorms(final_norms=(10,))}
    step 2   {..., 9: PostNorms(has_post_norm=True, post_norm=10)}
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import pairwise

from addnorm.doctor.analysis.norms import Norm, find_coefficient_norms, is_query_key
from addnorm.doctor.analysis.results import NestedAdd, PostNorms
from addnorm.doctor.analysis.streams import find_own_copy
from addnorm.doctor.graph.graph import Graph
from addnorm.doctor.graph.ops import NONLINEAR, POOLING, is_mixing
from addnorm.doctor.residual.mixtures import find_later_mixtures

MAX_BLOCKS_BACK = 200
"""Number of blocks in which a repeating layer is searched."""
PASS_OPS = POOLING | {"getitem", "select", "cat", "index", "stack", "sum", "mean"}
"""Operations between the last sum and a final norm."""


def assign_post_norms(
    graph: Graph, norms: Mapping[int, Norm], *, adds: list[NestedAdd]
) -> dict[int, PostNorms]:
    """Return the norms after each sum, by the node of the add.

    Args:
        graph: recorded graph
        norms: all norms, by the node of their result
        adds: residual adds in the order of execution
    """
    return _PostNormPass(graph, norms, adds).run()


class _PostNormPass:
    """Working state of the pass: the records so far, by the node of the add."""

    def __init__(self, graph: Graph, norms: Mapping[int, Norm], adds: list[NestedAdd]) -> None:
        self.graph, self.norms, self.adds = graph, norms, adds
        self.by_node = {add.add.node: add for add in adds}
        self.records = {node: PostNorms() for node in self.by_node}

    def run(self) -> dict[int, PostNorms]:
        self._assign_from_links()
        claimed = self._claim_final_norms()
        self._find_false_pre_norms()
        for add, counterpart in claimed:
            if (
                counterpart is not None
                and not self._get(counterpart).has_post_norm
                and not self._get(add).is_false_pre_norm
            ):
                self._make_final_norm(add)
        return self.records

    def _get(self, add: NestedAdd) -> PostNorms:
        return self.records[add.add.node]

    def _update(self, add: NestedAdd, **changes: object) -> None:
        self.records[add.add.node] = replace(self._get(add), **changes)  # type: ignore[arg-type]

    def _make_final_norm(self, add: NestedAdd) -> None:
        """Turn the post-norm of an add into a final norm."""
        norm, final_norms = self._get(add).post_norm, self._get(add).final_norms
        if norm is not None and norm not in final_norms:
            final_norms = (norm, *final_norms)
        self._update(add, has_post_norm=False, post_norm=None, final_norms=final_norms)

    # step 1: norms between an add and the next, and after the last

    def _assign_from_links(self) -> None:
        followers: dict[int, list[NestedAdd]] = {}
        for add in self.adds:
            if add.link.previous is not None:
                followers.setdefault(add.link.previous, []).append(add)
        has_parallel = {add.add.parallel_to for add in self.adds}
        for add in reversed(self.adds):
            after = followers.get(add.add.node, [])
            blocks = [
                a
                for a in after
                if not a.is_attention_score and a.outer_add is None and not a.is_dual
            ]
            after = blocks or after
            if after:
                self._assign_from_next(add, after=after[0])
            elif add.add.node not in has_parallel:
                self._assign_last(add)

    def _assign_from_next(self, add: NestedAdd, *, after: NestedAdd) -> None:
        norms = after.link.norms(include_before_mixture=not add.has_pre_norm)
        activations = [e.node for e in after.link.events if e.kind == "activation"]
        activation = self.graph[activations[-1]].op if activations else ""
        if after.skipped_adds and not norms:
            # A long skip is added before the norm: the norm follows both sums.
            self.records[add.add.node] = replace(self._get(after), activation_after=activation)
            return
        self._update(
            add,
            activation_after=activation,
            has_post_norm=bool(norms),
            post_norm=norms[-1] if norms else None,
        )

    def _assign_last(self, add: NestedAdd) -> None:
        """Collect the norms after the last add of a stream as final norms."""
        sources = self._nodes_after_last(add)
        read_by_other_stream = {i for a in self.adds if a.add.is_crossed for i in a.entry_norms}
        following = {norm.node for norm in self.norms.values() if norm.source in sources}
        following -= find_coefficient_norms(
            self.graph, self.norms, first=following, start=add.add.node
        )
        users = (self.graph[i].op for i in self.graph[add.add.node].users)
        self._update(
            add,
            final_norms=tuple(sorted(following - read_by_other_stream)),
            activation_after=next((op for op in users if op in NONLINEAR), ""),
        )

    def _nodes_after_last(self, add: NestedAdd) -> set[int]:
        """Return the nodes that still are the last sum, up to pooling, slices and activations."""
        graph, node = self.graph, add.add.node
        reached = graph.forward_reach(node, extra_ops=PASS_OPS | set(NONLINEAR))
        mixtures: set[int] = set()
        if add.add.is_mixed:  # parallel streams are read as one
            mixtures = find_later_mixtures(graph, node, width=add.add.width)
        for index in sorted(mixtures):
            reached |= {index, *graph.forward_reach(index, extra_ops=PASS_OPS)}
        nodes = {node, *mixtures}
        nodes |= {i for i in reached if graph[i].op in PASS_OPS or _is_pass_through(graph, i)}
        for index in list(reached):
            if index not in nodes and find_own_copy(graph, index) is not None:
                later = (i for i in graph.forward_reach(index) if _is_pass_through(graph, i))
                nodes |= {index, *later}
        for index in [i for n in nodes for i in graph[n].users if i not in nodes]:
            if _is_weighted(graph, index, nodes=nodes):  # a sum over depth, one weight per source
                nodes |= {index, *graph.forward_reach(index, extra_ops=PASS_OPS)}
        return nodes

    # step 2: final norms that belong to the last block

    def _claim_final_norms(self) -> list[tuple[NestedAdd, NestedAdd | None]]:
        """Turn final norms into post-norms; return the adds that got one and their counterparts."""
        claimed: list[tuple[NestedAdd, NestedAdd | None]] = []
        for add in self.adds:
            record = self._get(add)
            if not record.final_norms or record.has_post_norm:
                continue
            counterpart = self._find_counterpart(add)
            if counterpart is None:
                is_own = not add.has_pre_norm and add.exit_norm is None
                is_own = is_own and not self._has_inner_norm(add)
            else:
                is_own = (
                    self._get(counterpart).has_post_norm
                    and add.has_pre_norm <= counterpart.has_pre_norm
                )
            if is_own:
                self._update(
                    add,
                    has_post_norm=True,
                    post_norm=record.final_norms[0],
                    final_norms=record.final_norms[1:],
                )
                claimed.append((add, counterpart))
        return claimed

    def _has_inner_norm(self, add: NestedAdd) -> bool:
        """Return whether the branch has a norm inside, other than those of queries and keys."""
        return any(
            self.norms[i].kind != "l2" and not is_query_key(self.graph, self.norms[i])
            for i in add.inner_norms
        )

    def _find_counterpart(self, last: NestedAdd) -> NestedAdd | None:
        """Return the block at the same position in the layer before.

        If layers do not repeat, it is the block right before.
        """
        back: list[NestedAdd] = []
        add: NestedAdd | None = last
        while add is not None and len(back) < MAX_BLOCKS_BACK:
            if bool(add.skipped_adds) == bool(last.skipped_adds):
                back.append(add)
            add = self._previous(add)
        kinds = [(a.kind, a.has_pre_norm) for a in back]
        for period in range(1, len(kinds) // 2 + 1):
            if kinds[:period] == kinds[period : 2 * period]:
                return back[period]
        return back[1] if len(back) > 1 else None

    def _previous(self, add: NestedAdd) -> NestedAdd | None:
        return None if add.link.previous is None else self.by_node.get(add.link.previous)

    # step 3: shortcuts that carry the normalized stream

    def _find_false_pre_norms(self) -> None:
        blocks = [a for a in self.adds if not a.is_attention_score and a.outer_add is None]
        for block in blocks:
            self._check_false_pre_norm(block)
        streams: dict[int, list[NestedAdd]] = {}
        for block in blocks:
            root = block
            while (previous := self._previous(root)) is not None:
                root = previous
            streams.setdefault(root.add.node, []).append(block)
        for rows in streams.values():
            self._check_first_block(rows)
            first_run = self._find_first_run(rows)
            for run in (rows, first_run):
                if run and self._is_shifted_post_norm(run):
                    for block in run:
                        self._update(block, is_false_pre_norm=True, has_post_norm=False)

    def _check_false_pre_norm(self, block: NestedAdd) -> None:
        """Mark a block whose norm lies on the stream, if the block before does not need it."""
        norms = block.link.norms(include_before_mixture=False)
        if block.has_pre_norm or not norms or block.exit_norm is not None or block.skipped_adds:
            return
        before = self._previous(block)
        if before is None or not self._get(before).has_post_norm or before.skipped_adds:
            return
        has_post_norm = self._get(block).has_post_norm
        if (
            before.has_pre_norm
            or self._get(before).is_false_pre_norm
            or (before.inner_norms and not block.inner_norms and not has_post_norm)
        ):
            self._update(block, is_false_pre_norm=True)
            self._update(before, has_post_norm=False)
            if has_post_norm and not before.has_pre_norm:
                self._make_final_norm(block)

    def _find_first_run(self, rows: list[NestedAdd]) -> list[NestedAdd]:
        """Return the first blocks of a stream whose shortcut is normalized, if others follow.

        The run ends with the first block whose sum has no norm after it.
        """
        for count, block in enumerate(rows, start=1):
            if block.has_pre_norm or not block.link.norms():
                return []
            if not self._get(block).has_post_norm:
                return rows[:count] if 1 < count < len(rows) else []
        return []

    def _check_first_block(self, rows: list[NestedAdd]) -> None:
        """Mark the first block like the next block of its kind, if it reads the same way."""
        first = rows[0]
        later = next((r for r in rows[1:] if r.kind == first.kind), None)
        has_other_norm = (
            first.has_pre_norm
            or self._get(first).has_post_norm
            or first.exit_norm is not None
            or bool(first.skipped_adds)
        )
        if later is None or has_other_norm or not first.link.norms():
            return
        if self._get(later).is_false_pre_norm:
            self._update(first, is_false_pre_norm=True)

    def _is_shifted_post_norm(self, rows: list[NestedAdd]) -> bool:
        """Return whether blocks are Post-LN moved by half a block.

        There is a norm before the first sum, and none of its own after the last. A norm that
        follows the last sum becomes a final norm if the others belong to the blocks after them.
        """
        if any(
            r.has_pre_norm
            or r.exit_norm is not None
            or r.is_gated_or_mixed
            or r.skipped_adds
            or not r.link.norms()
            for r in rows
        ):
            return False
        last = self._get(rows[-1])
        following = [*last.final_norms, *([] if last.post_norm is None else [last.post_norm])]
        if not following:
            return True
        is_shifted = self._belongs_to_next(rows, after_last=following[0])
        if is_shifted:
            self._make_final_norm(rows[-1])
        return is_shifted

    def _belongs_to_next(self, rows: list[NestedAdd], *, after_last: int) -> bool:
        """Return whether the module path of each norm is nearer to the branch after it."""
        graph = self.graph

        def closeness(norm: int, block: NestedAdd) -> int:
            return _shared_depth(graph[norm].path, _branch_path(graph, block))

        votes = 0
        for before, after in pairwise(rows):
            norm = after.link.norms()[0]
            votes += closeness(norm, after) - closeness(norm, before)
        nearest = max(closeness(row.link.norms()[0], row) for row in rows)
        return votes > 0 and closeness(after_last, rows[-1]) < nearest


def _is_weighted(graph: Graph, index: int, *, nodes: set[int]) -> bool:
    """Return whether a product multiplies each vector of one of the nodes by a single weight."""
    node = graph[index]
    if node.op != "mul" or len(node.inputs) != 2:
        return False
    return any(
        own in nodes and graph[own].shape == node.shape and graph[weight].shape[-1:] == (1,)
        for own, weight in (node.inputs, node.inputs[::-1])
    )


def _is_pass_through(graph: Graph, index: int) -> bool:
    node = graph[index]
    return len(node.inputs) == 1 and not is_mixing(node.op)


def _branch_path(graph: Graph, block: NestedAdd) -> str:
    return common_path(graph[i].path for i in block.add.path if is_mixing(graph[i].op))


def _shared_depth(one: str, other: str) -> int:
    shared = common_path([one, other])
    return len(shared.split(".")) if shared else 0


def common_path(paths: Iterable[str]) -> str:
    """Return the longest module path that all of these start with.

    >>> common_path(["layers.0.attention.query", "layers.0.attention.key"])
    'layers.0.attention'
    """
    shared: list[str] = []
    for parts in zip(*(path.split(".") for path in paths), strict=False):
        if len(set(parts)) > 1:
            break
        shared.append(parts[0])
    return ".".join(shared)
