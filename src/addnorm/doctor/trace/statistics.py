"""Statistics of one forward and backward pass: variances, gradients, attention, saturation.

A `StatsCollector` observes while the recorder runs and returns a frozen `ActivationStats`. Every
entry is keyed by a node of the graph. For one Pre-LN block with the sum at node 6:

    stats.add_stats[6]     {"shortcut_variance": 1.0, "branch_variance": 0.3,
                            "stream_variance": 1.3, "dependency": 0.23}
    collector.sum_gradients[6]   2.1   norm of the gradient at the sum, after the backward pass

A statistic never breaks the forward pass: tensors without values, as inside `torch.vmap`, are
skipped.
"""

import contextlib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from addnorm.doctor.graph.graph import Graph
from addnorm.doctor.graph.nodes import Shape
from addnorm.doctor.graph.ops import CONVOLUTION, POOLING
from addnorm.doctor.residual.residual_adds import AddMatch, ResidualAdd
from addnorm.doctor.trace.attention_logits import (
    LogitReading,
    find_masked,
    hides_later,
    is_causal,
    is_exploding,
    read_logits,
)
from addnorm.doctor.trace.call_arguments import Call

SATURATION_THRESHOLDS = {"tanh": 1.818, "erf": 1.517}
"""Inputs beyond which the slope is below a tenth of its maximum."""

MIN_PATTERN_TOKENS = 4
"""Smallest number of tokens at which the pattern of a mask is recognized."""

Visibility = Literal["others", "prefix", "later", "itself", "nothing", "before"]
"""What each token sees: a `prefix` and what precedes it, `later` tokens and perhaps itself, only
`itself`, `nothing`, or only those `before` it, so that the first token sees none; `others` stands
for everything else, such as all tokens or earlier ones."""


@dataclass(frozen=True, slots=True)
class Attention:
    """Logits of one attention."""

    path: str
    node: int
    """Index of the node that the call makes."""
    is_square: bool
    """Whether there are as many queries as keys."""
    is_causal: bool
    query_count: int
    max_logit: float
    """Largest absolute logit that is not masked."""
    entropy: float
    """Mean entropy of the weights, as a fraction of the maximum."""
    logit_deviation: float = math.nan
    """Standard deviation of the logits that are not masked, within the rows."""
    visible: Visibility = "others"
    """Which tokens the masks leave to each token of a square attention."""
    min_logit: float = math.nan
    """Smallest absolute logit that is not masked."""
    has_blind_query: bool = False
    """Whether all logits of some query are minus infinity, so that its weights are NaN."""
    is_triangular: bool = False
    """Whether the i-th query sees the first i keys, also if there are more keys than queries."""


@dataclass(frozen=True, slots=True)
class ActivationStats:
    """Observations of one forward pass."""

    attentions: tuple[Attention, ...]
    add_stats: Mapping[int, Mapping[str, float]]
    """By residual add: variances of shortcut, branch and stream, and the dependency."""
    saturation: Mapping[int, float]
    """By node of a tanh or erf: fraction of inputs where it is nearly flat."""
    similarities: Mapping[int, Mapping[int, tuple[int, float]]]
    """By residual add and axis: length of the axis, and mean cosine along it."""

    def token_similarity(self, node: int) -> float:
        """Return the mean cosine between the tokens of a sum; 1 if all tokens are equal.

        Tokens lie on the second axis, or on the first if only its length equals a number of
        queries.
        """
        by_axis = self.similarities.get(node, {})
        if len(by_axis) > 1:
            query_counts = {attention.query_count for attention in self.attentions}
            first, second = (length for length, _ in by_axis.values())
            axis = 0 if first in query_counts and second not in query_counts else 1
            return by_axis[axis][1]
        return next((value for _, value in by_axis.values()), math.nan)


class StatsCollector:
    """Collector of the observations that become an `ActivationStats`.

    `sum_gradients` is filled later, by hooks that run in the backward pass.
    """

    def __init__(self) -> None:
        self.attentions: list[Attention] = []
        self.add_stats: dict[int, dict[str, float]] = {}
        self.saturation: dict[int, float] = {}
        self.similarities: dict[int, dict[int, tuple[int, float]]] = {}
        self.sum_gradients: dict[int, float] = {}
        """By residual add: norm of the gradient at the sum."""

    def finish(self) -> ActivationStats:
        """Return the observations of the forward pass."""
        return ActivationStats(
            tuple(self.attentions), self.add_stats, self.saturation, self.similarities
        )

    def measure_operands(
        self, match: AddMatch, shortcut: Tensor, *, branch: Tensor, graph: Graph
    ) -> dict[str, float]:
        """Return the variances of both operands of an addition that is about to run."""
        variances: dict[str, float] = {}
        with torch.no_grad(), torch._C.DisableTorchFunction(), _suppress_runtime_errors():
            for name, tensor in (("shortcut", shortcut), ("branch", branch)):
                axis = feature_axis(graph, match, tuple(tensor.shape))
                variances[f"{name}_variance"] = _mean_variance(tensor, axis)
        return variances

    def record_sum(
        self, add: ResidualAdd, out: Tensor, *, graph: Graph, operand_stats: Mapping[str, float]
    ) -> None:
        """Measure the sum of a residual add and register a hook for its gradient."""
        values = self.add_stats[add.node] = dict(operand_stats)
        with torch.no_grad(), torch._C.DisableTorchFunction(), _suppress_runtime_errors():
            axis = feature_axis(graph, add, tuple(out.shape))
            variance = _mean_variance(out, axis)
            values["stream_variance"] = variance
            self.similarities[add.node] = _similarities(out, axis, add=add)
            if "branch_variance" in values:
                fraction = values["branch_variance"] / variance if variance > 0 else math.nan
                values["dependency"] = fraction
        if out.requires_grad:
            index = add.node
            out.register_hook(lambda gradient: self._record_gradient(index, gradient))

    def record_saturation(self, op: str, inputs: Tensor, node: int) -> None:
        """Record the fraction of inputs of a tanh or erf where its slope is small."""
        with torch.no_grad(), torch._C.DisableTorchFunction(), _suppress_runtime_errors():
            if inputs.is_floating_point() and inputs.numel():
                self.saturation[node] = float(
                    (inputs.detach().abs() > SATURATION_THRESHOLDS[op]).float().mean()
                )

    def _record_gradient(self, index: int, gradient: Tensor) -> None:
        with torch.no_grad():
            self.sum_gradients[index] = float(gradient.detach().float().norm())

    def record_attention(self, call: Call, *, node: int, path: str) -> None:
        """Record the logits of an attention that is about to run and becomes the node `node`."""
        try:
            with torch.no_grad(), torch._C.DisableTorchFunction():
                reading = read_logits(call.op, call.args, call.kwargs)
                if reading is None:
                    return
                max_logit, min_logit, entropy, deviation = _measure_logits(reading.logits)
                attention = Attention(
                    path=path,
                    node=node,
                    is_square=reading.is_square,
                    is_causal=_is_causal_attention(call.op, reading),
                    query_count=reading.query_count,
                    max_logit=max_logit,
                    entropy=entropy,
                    logit_deviation=deviation,
                    min_logit=min_logit,
                    visible=_find_visible(reading.logits) if reading.is_square else "others",
                    has_blind_query=bool((reading.logits[:1] == -math.inf).all(-1).any()),
                    is_triangular=_is_triangular(reading.logits),
                )
        except Exception:  # a statistic must not break the forward pass
            return
        self.attentions.append(attention)


def _is_causal_attention(op: str, reading: LogitReading) -> bool:
    if reading.is_declared_causal or not reading.is_square:
        return reading.is_declared_causal
    if op == "softmax":
        return is_causal(find_masked(reading.logits))
    return hides_later(reading.logits)


def _suppress_runtime_errors() -> contextlib.AbstractContextManager[None]:
    """Ignore tensors without values, as inside `torch.vmap`."""
    return contextlib.suppress(RuntimeError)


def feature_axis(graph: Graph, add: AddMatch, shape: Shape) -> int:
    """Return the axis of a tensor of this shape that holds features.

    Where streams are mixed, it is the last axis with as many entries as a token has features. It is
    the second axis if a convolution or pooling of the branch reads or writes the stream as it is.
    Otherwise it is the last axis.
    """
    if add.width and add.width in shape:
        return len(shape) - 1 - tuple(reversed(shape)).index(add.width)
    shapes = {shape, graph[add.fork].shape}
    for index in add.path if len(shape) > 2 else ():
        node = graph[index]
        has_channels = index != add.fork and node.op in CONVOLUTION | POOLING
        if has_channels and shapes & {node.shape, *(graph[i].shape for i in node.inputs)}:
            return 1
    return -1


def _mean_variance(tensor: Tensor, axis: int) -> float:
    """Return the mean over tokens of the variance over features."""
    values = tensor.detach()
    values = values if values.dtype in (torch.float32, torch.float64) else values.float()
    if not values.dim():
        return math.nan
    centered = values - values.mean(dim=axis, keepdim=True)  # ten times faster than torch.var
    return float(centered.square_().mean())


def _similarities(tensor: Tensor, axis: int, *, add: ResidualAdd) -> dict[int, tuple[int, float]]:
    """Return length and mean cosine for each axis that may hold tokens; pixels count as tokens."""
    values = tensor.detach().float().movedim(axis, -1)
    token_axes = [0, 1]
    if axis == 1 or (values.dim() == 4 and not add.is_mixed):
        values, token_axes = values.flatten(1, -2), [1]
    if values.dim() != 3:
        return {}
    unit = values / values.norm(dim=-1, keepdim=True).clamp_min(1e-12)
    by_axis = {}
    for token_axis in token_axes:
        length = values.shape[token_axis]
        # The squared norm of the mean unit vector averages over all pairs, equal ones included.
        all_pairs = float(unit.mean(token_axis).square().sum(-1).mean())
        cosine = (length * all_pairs - 1) / (length - 1) if length > 1 else math.nan
        by_axis[token_axis] = (length, cosine)
    return by_axis


def _find_visible(logits: Tensor) -> Visibility:
    """Return which tokens the queries of the first example see, in any head.

    A NaN, left by an earlier layer whose mask hides everything, counts as visible.
    """
    logits = logits[:1].nan_to_num(nan=0.0, neginf=-math.inf)
    visible = (~find_masked(logits)).flatten(0, -3).any(0)
    queries, keys = visible.shape
    if keys < MIN_PATTERN_TOKENS or is_exploding(logits):
        return "others"
    if not bool(visible.any()):
        return "nothing"
    if bool(visible.tril(-1).any()):
        if queries == keys and torch.equal(visible, torch.ones_like(visible).tril(-1)):
            return "before"
        return "prefix" if _is_prefix(visible[:, :queries]) else "others"
    later = visible.triu(1).any(-1)
    if bool(later[: keys - 1].all()):
        return "later"
    return "others" if bool(later.any()) else "itself"


def _is_triangular(logits: Tensor) -> bool:
    """Return whether the i-th query of the first example sees the first i keys only."""
    logits = logits[:1].nan_to_num(nan=0.0, neginf=-math.inf)
    if min(logits.shape[-2:]) < MIN_PATTERN_TOKENS or is_exploding(logits):
        return False
    visible = (~find_masked(logits)).flatten(0, -3).any(0)
    return torch.equal(visible, torch.ones_like(visible).tril())


def _is_prefix(visible: Tensor) -> bool:
    """Return whether tokens see each other within a prefix, and after it only earlier tokens."""
    later = visible.triu(1)
    prefix = int(later.any(0).nonzero().max()) + 1 if bool(later.any()) else 0
    inside = visible[:prefix, :prefix].all() and visible.diagonal()[prefix:].all()
    return 1 < prefix < len(visible) and bool(inside)


def _measure_logits(logits: Tensor) -> tuple[float, float, float, float]:
    """Return largest and smallest absolute logit, relative entropy and deviation of one example."""
    logits = logits[:1].float()
    hidden = find_masked(logits)
    visible = logits[~hidden]
    sizes = visible.abs()
    max_logit, min_logit = (
        (float(sizes.max()), float(sizes.min())) if visible.numel() else (math.nan, math.nan)
    )
    if logits.shape[-1] < 2:
        return max_logit, min_logit, math.nan, math.nan
    means = logits.masked_fill(hidden, 0.0).sum(-1, keepdim=True) / (~hidden).sum(-1, keepdim=True)
    deviation = float((logits - means)[~hidden].square().mean().sqrt())
    weights = logits.softmax(-1)
    entropy = -(weights * weights.clamp_min(1e-20).log()).sum(-1)
    share = float(entropy.nanmean()) / math.log(logits.shape[-1])
    return max_logit, min_logit, share, deviation
