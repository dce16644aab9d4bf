"""Site plan: where the residual sites of a model are, found once by the doctor, as plain data.

The doctor records one forward pass and finds the residual adds. A plan keeps, for each of them, the
key of the function call that adds, so that a light recorder finds the same place again:

    model code                      site of the plan
    x = x + self.attn(self.ln(x))   Site(path="transformer.h.0", kind="self-attention",
                                         wiring="pre_ln", call=("transformer.h.0", 1, "add", 1),
                                         shortcut=0, branch=1, weights=("transformer.h.0.ln.weight",
                                         ...))
"""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from addnorm.doctor.analysis.labels import list_tags
from addnorm.doctor.analysis.norms import Norm, find_gain_nodes
from addnorm.doctor.analysis.results import AddAnalysis
from addnorm.doctor.analysis.typical_layer import find_period
from addnorm.doctor.blind_spots import list_blind_spots
from addnorm.doctor.build_report import find_branch_path, is_attention
from addnorm.doctor.graph.graph import Graph
from addnorm.doctor.graph.nodes import CallKey, Node, Operand
from addnorm.doctor.graph.ops import PASS_THROUGH, SLICES, is_mixing
from addnorm.doctor.model_trace import ModelTrace
from addnorm.doctor.report import join_paths
from addnorm.doctor.rule_context import RuleContext
from addnorm.doctor.trace.module_stack import unwrapped_name
from addnorm.doctor.trace.statistics import feature_axis

ROW_KINDS = {"self-attention": "self", "cross-attention": "cross", "feed-forward": "ffn"}
"""Kind of a site in rows, where sites of addnorm models have these words too."""
ADDS_TO_SHORTCUT = ("addmm", "baddbmm", "addbmm", "gru_cell")
"""Operations that compute the branch themselves: it is the sum without the shortcut."""
MAX_SIDE_STEPS = 32
"""Steps back from a branch to a weight that its side inputs read, such as the keys of a memory."""


@dataclass(frozen=True, kw_only=True)
class Site:
    """One residual add of a model."""

    index: int
    path: str
    """Module that executes the addition; empty for the model itself."""
    branch_path: str = ""
    """Module that computes the branch."""
    name: str = ""
    """Path that tells it from other sites of its kind: of the addition, of the branch, or with the
    number of the site."""
    kind: str
    """self-attention, cross-attention, feed-forward, convolution, mixer or other."""
    wiring: str
    """Position of its norms, such as pre_ln."""
    tags: tuple[str, ...] = ()
    """Further properties, as in the report of the doctor."""
    stack: str = "stream 0"
    """Residual stream that it adds to."""
    layer: int = 0
    weights: tuple[str, ...] = ()
    """Names of the weights of its branch and norms."""
    call: CallKey | None = None
    """Call that adds; None if the sum is not the result of one call."""
    shortcut: int | None = None
    branch: int | None = None
    """Positions among the tensors of the call; None if the tensor is not an argument."""
    axis: int = -1
    """Axis of the features."""

    @property
    def label(self) -> str:
        """Path, kind and wiring in one line, as in `transformer.h.3: attention, pre_ln`."""
        kind = "attention" if self.kind == "self-attention" else self.kind
        return f"{self.name or self.path or 'the model itself'}: {kind}, {self.wiring}"

    def __str__(self) -> str:
        return self.label

    def to_fields(self) -> dict[str, Any]:
        """Return the fields that identify the site in a row."""
        return {
            "stack": self.stack,
            "site": self.index,
            "layer": self.layer,
            "kind": ROW_KINDS.get(self.kind, self.kind),
            "path": self.path,
            "label": self.label,
        }


@dataclass(frozen=True, kw_only=True)
class PlannedAttention:
    """A call that computes attention weights, and the site of its branch."""

    call: CallKey
    site: int


@dataclass(frozen=True, kw_only=True)
class PlannedGain:
    """A call that multiplies by the gain of a norm, and the site that the norm belongs to."""

    call: CallKey
    site: int
    position: int
    """Position of the gain among the tensors of the call."""
    norm: str
    """Path of the norm."""


@dataclass(frozen=True, kw_only=True)
class SitePlan:
    """Sites of a model, and the calls at which they are measured."""

    sites: tuple[Site, ...]
    attentions: tuple[PlannedAttention, ...] = ()
    gains: tuple[PlannedGain, ...] = ()
    notes: tuple[str, ...] = ()
    """What cannot be measured, one line each."""

    @property
    def ops(self) -> frozenset[str]:
        """Names of the functions that the plan refers to."""
        calls = [*(s.call for s in self.sites), *(a.call for a in self.attentions)]
        calls += [gain.call for gain in self.gains]
        return frozenset(call.op for call in calls if call is not None)


def build_plan(trace: ModelTrace) -> SitePlan:
    """Return the plan of a traced model."""
    context = RuleContext(trace)
    graph, blocks = context.graph, context.blocks
    layers = _number_layers(blocks)
    last_of_call = {graph[block.add.node].call: block.add.node for block in blocks}
    sites = tuple(
        _plan_site(context, index, block, layers[index], last_of_call)
        for index, block in enumerate(blocks)
    )
    sites = _name_sites(sites)
    attentions = tuple(_plan_attentions(trace, blocks))
    gains = tuple(_plan_gains(context))
    notes = tuple(_list_notes(trace, sites, attentions))
    return SitePlan(sites=sites, attentions=attentions, gains=gains, notes=notes)


def _name_sites(sites: tuple[Site, ...]) -> tuple[Site, ...]:
    """Return the sites with names that differ within a kind."""

    def is_unique(site: Site, get_path: Callable[[Site], str]) -> bool:
        return sum(s.kind == site.kind and get_path(s) == get_path(site) for s in sites) == 1

    def choose(site: Site) -> str:
        if is_unique(site, lambda s: s.path):
            return site.path
        for get_path in (_common_path, lambda s: s.branch_path):
            if get_path(site) and is_unique(site, get_path):
                return get_path(site)
        return f"{site.branch_path or site.path or 'the model itself'} (site {site.index})"

    return tuple(replace(site, name=choose(site)) for site in sites)


def _common_path(site: Site) -> str:
    """Return the module that holds all weights of a site, such as the layer of a `ModuleList`."""
    paths = [name.split(".")[:-1] for name in site.weights]
    shared = [parts[0] for parts in zip(*paths, strict=False) if len(set(parts)) == 1]
    return ".".join(shared)


def _number_layers(blocks: list[AddAnalysis]) -> list[int]:
    """Return the layer of each block, from the period with which the kinds of a stream repeat."""
    kinds: dict[int, list[str]] = {}
    for block in blocks:
        kinds.setdefault(block.stream, []).append(block.kind)
    periods = {stream: find_period(each) for stream, each in kinds.items()}
    counts: Counter[int] = Counter()
    layers = []
    for block in blocks:
        layers.append(counts[block.stream] // periods[block.stream])
        counts[block.stream] += 1
    return layers


def _plan_site(
    context: RuleContext,
    index: int,
    block: AddAnalysis,
    layer: int,
    last_of_call: dict[CallKey | None, int],
) -> Site:
    graph, add = context.graph, block.add
    node = graph[add.node]
    is_result = node.call is not None and last_of_call[node.call] == add.node
    shortcut, branch = _find_positions(graph, block) if is_result else (None, None)
    return Site(
        index=index,
        path=unwrapped_name(add.module),
        branch_path=unwrapped_name(find_branch_path(graph, add)),
        kind=block.kind,
        wiring=context.wiring(block),
        tags=list_tags(context.analysis, block),
        stack=f"stream {block.stream}",
        layer=layer,
        weights=tuple(dict.fromkeys(map(unwrapped_name, _iter_weights(context, block)))),
        call=node.call if is_result else None,
        shortcut=shortcut,
        branch=branch,
        axis=feature_axis(graph, add, node.shape),
    )


def _find_positions(graph: Graph, block: AddAnalysis) -> tuple[int | None, int | None]:
    """Return the positions of shortcut and branch among the tensors of the call that adds."""
    add, node = block.add, graph[block.add.node]
    tensors = [operand for operand in node.operands if operand.kind != "number"]

    def position(index: int) -> int | None:
        if graph[index].call == node.call:
            return None  # a step inside a fused addition
        return next((n for n, operand in enumerate(tensors) if operand.node == index), None)

    shortcut, branch = position(add.shortcut), position(add.branch)
    active = [n for n, o in enumerate(tensors) if o.kind == "node" and graph[o.node].active]
    if shortcut is None and branch is not None and len(active) == 2:
        shortcut = active[1 - active.index(branch)]
    is_fused = node.call is not None and node.call.op in ADDS_TO_SHORTCUT
    if branch is not None and (is_fused or graph[add.branch].shape != node.shape):
        branch = None
    return shortcut, branch


def _iter_weights(context: RuleContext, block: AddAnalysis) -> Iterator[str]:
    """Yield the names of the weights on the way from the fork to the sum, and of the post-norm."""
    graph, add = context.graph, block.add
    path = add.path - {add.fork}
    for index in sorted(path | {add.node}):
        yield from context.weight_names(index)
        if graph[index].op == "opaque":
            prefix = f"{graph[index].path}."
            yield from (name for name in context.weights if name.startswith(prefix))
    for index in sorted(path):
        for side in set(graph[index].inputs) - add.path:
            yield from _iter_side_weights(context, side)
    for norm in _list_norms(context, block):
        yield from context.norm_weights(norm)


def _iter_side_weights(context: RuleContext, index: int) -> Iterator[str]:
    """Yield the weights that compute a side input of a branch, such as the keys of a memory."""
    graph = context.graph
    for _ in range(MAX_SIDE_STEPS):
        node = graph[index]
        if is_mixing(node.op):
            yield from context.weight_names(index)
            return
        passes_on = node.op in PASS_THROUGH | SLICES or node.op in ("add", "mul")
        if not passes_on or len(node.inputs) != 1:
            return
        index = node.inputs[0]


def _list_norms(context: RuleContext, block: AddAnalysis) -> list[Norm]:
    """Return the norms of a block: before, inside and at the end of its branch, after the sum."""
    indices = [*block.entry_norms, *block.partial_norms, *block.inner_norms]
    indices += [block.exit_norm] if block.exit_norm is not None else []
    indices += [block.post_norm] if block.has_post_norm and block.post_norm is not None else []
    return [context.norms[index] for index in dict.fromkeys(indices) if index in context.norms]


def _list_final_norms(context: RuleContext, block: AddAnalysis) -> list[Norm]:
    """Return the norms after the last add of a stream; their weights belong to no site."""
    return [context.norms[index] for index in block.final_norms if index in context.norms]


def _plan_gains(context: RuleContext) -> Iterator[PlannedGain]:
    """Yield the calls that apply the gains of norms, as far as they can be seen."""
    graph = context.graph
    norms = [
        (site, norm)
        for site, block in enumerate(context.blocks)
        for norm in [*_list_norms(context, block), *_list_final_norms(context, block)]
    ]
    paths = Counter(norm.path for _, norm in norms)
    for site, norm in norms:
        for index in [norm.node] if norm.gain else sorted(find_gain_nodes(graph, norm))[:1]:
            call, position = graph[index].call, _find_learned(graph, graph[index])
            if call is None or position is None:
                continue
            weights = context.norm_weights(norm)
            is_named = norm.path and paths[norm.path] == 1
            name = norm.path if is_named or not weights else weights[0]
            yield PlannedGain(call=call, site=site, position=position, norm=unwrapped_name(name))


def _find_learned(graph: Graph, node: Node) -> int | None:
    """Return the position of the first weight, or result of weights, among a call's tensors."""

    def is_learned(operand: Operand) -> bool:
        is_result = operand.kind == "node" and graph[operand.node].learned
        return operand.kind == "weight" or is_result

    tensors = [operand for operand in node.operands if operand.kind != "number"]
    return next((n for n, operand in enumerate(tensors) if is_learned(operand)), None)


def _plan_attentions(trace: ModelTrace, blocks: list[AddAnalysis]) -> Iterator[PlannedAttention]:
    graph = trace.analysis.graph
    for attention in trace.recording.stats.attentions:
        if attention.node >= len(graph) or not is_attention(trace.analysis, attention):
            continue
        call = graph[attention.node].call
        owner = next((n for n, b in enumerate(blocks) if attention.node in b.add.path), None)
        if call is not None and owner is not None:
            yield PlannedAttention(call=call, site=owner)


def _list_notes(
    trace: ModelTrace, sites: tuple[Site, ...], attentions: tuple[PlannedAttention, ...]
) -> Iterator[str]:
    """Yield what cannot be measured: adds, sums, branches, attentions or weights of some sites."""
    yield from list_blind_spots(trace)
    visible = {attention.site for attention in attentions}
    groups = {
        "the sum is not the result of one call; stream and branch are not measured": [
            site for site in sites if site.call is None
        ],
        "the branch is not an argument of the sum; its dependency is not measured": [
            site for site in sites if site.call and site.branch is None and site.shortcut is None
        ],
        "attention is not visible (fused kernel); entropy and logits are not measured": [
            site for site in sites if site.kind.endswith("attention") and site.index not in visible
        ],
        "no weight has a name; gradients and updates are not measured": [
            site for site in sites if not site.weights
        ],
    }
    for reason, affected in groups.items():
        if affected:
            yield f"{join_paths(site.name for site in affected)}: {reason}"
