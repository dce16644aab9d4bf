"""Vital signs taken while the forward runs: variances at each join, gradients, attention."""

import contextlib
import math
from dataclasses import dataclass
from inspect import signature
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear, multi_head_attention_forward

from addnorm.doctor.graph.graph import Graph
from addnorm.doctor.graph.ops import CONVOLUTION, POOLING
from addnorm.doctor.residual.residual_adds import ResidualAdd
from addnorm.doctor.trace.call import Call

MAX_QUERIES = 64
"""Queries of one example that are looked at."""
SATURATION_THRESHOLDS = {"tanh": 1.818, "erf": 1.517}
"""From here on their slope is below a tenth of the largest."""
MASKED_LOGIT_GAP = 500.0
"""So far below the largest of its row a logit is masked: its weight is nothing."""


@dataclass(slots=True)
class Attention:
    """One product of queries and keys, turned into weights."""

    path: str
    node: int
    """The graph's length when it happened: the node that came next."""
    is_square: bool
    is_causal: bool
    query_node: int = -1
    """The node of the queries, or of the logits."""
    query_count: int = 0
    """Tokens that look."""
    max_logit: float = math.nan
    entropy: float = math.nan
    """As a share of the largest possible."""


class ActivationStats:
    """Everything measured in one forward."""

    def __init__(self) -> None:
        self.attentions: list[Attention] = []
        self.gradients: dict[int, float] = {}
        self.saturation: dict[int, float] = {}
        """Share of values at each tanh and erf where it is all but flat, by node."""
        self.similarities: dict[int, dict[int, tuple[int, float]]] = {}
        """By sum and axis: how long it is, and how alike what stands along it."""

    def record_operands(
        self, add: ResidualAdd, shortcut: Tensor, *, branch: Tensor, graph: Graph
    ) -> None:
        """Both sides of a join, before it happens."""
        with torch.no_grad(), torch._C.DisableTorchFunction(), _suppress_runtime_errors():
            add.stats["shortcut_variance"] = _mean_variance(
                shortcut, feature_axis(graph, add, shortcut)
            )
            add.stats["branch_variance"] = _mean_variance(branch, feature_axis(graph, add, branch))

    def record_sum(self, add: ResidualAdd, out: Tensor, *, graph: Graph) -> None:
        """The sum, and a hook for its gradient."""
        with torch.no_grad(), torch._C.DisableTorchFunction(), _suppress_runtime_errors():
            axis = feature_axis(graph, add, out)
            variance = _mean_variance(out, axis)
            add.stats["stream_variance"] = variance
            self.similarities[add.node] = _similarities(out, axis, add=add)
            if "branch_variance" in add.stats:
                share = add.stats["branch_variance"] / variance if variance > 0 else math.nan
                add.stats["dependency"] = share
        if out.requires_grad:
            index = add.node
            out.register_hook(lambda gradient: self._record_gradient(index, gradient))  # type: ignore[no-untyped-call]

    def token_similarity(self, node: int) -> float:
        """Mean cosine between the tokens of a sum; 1 when all are alike.

        Tokens stand on the second axis; on the first, if attention looks along its length only.
        """
        found = self.similarities.get(node, {})
        if len(found) > 1:
            looked = {attention.query_count for attention in self.attentions}
            first, second = (length for length, _ in found.values())
            return found[0 if first in looked and second not in looked else 1][1]
        return next((value for _, value in found.values()), math.nan)

    def record_saturation(self, op: str, inputs: Tensor, node: int) -> None:
        """What goes into a tanh or erf: how much of it lies where the slope is below a tenth."""
        with torch.no_grad(), torch._C.DisableTorchFunction(), _suppress_runtime_errors():
            if inputs.is_floating_point() and inputs.numel():
                self.saturation[node] = float(
                    (inputs.detach().abs() > SATURATION_THRESHOLDS[op]).float().mean()
                )

    def _record_gradient(self, index: int, gradient: Tensor) -> None:
        with torch.no_grad():
            self.gradients[index] = float(gradient.detach().float().norm())

    def record_attention(self, call: Call, *, graph: Graph, tensor_nodes: Any, path: str) -> None:
        """Logits of an attention, as far as the call shows them."""
        reader = _LOGIT_READERS.get(call.op)
        if reader is None:
            return
        try:
            with torch.no_grad(), torch._C.DisableTorchFunction():
                seen = reader(call.args, call.kwargs)
                if seen is None:
                    return
                logits, causal, square, source, length = seen
                found = Attention(
                    path, len(graph), square, causal, tensor_nodes.get(source, -1), length
                )
                _measure_logits(found, logits)
        except Exception:  # a sign is never worth a broken forward
            return
        self.attentions.append(found)


def _suppress_runtime_errors() -> contextlib.AbstractContextManager[None]:
    """A sign is not worth a broken forward: inside vmap a tensor has no numbers to show."""
    return contextlib.suppress(RuntimeError)


def feature_axis(graph: Graph, add: ResidualAdd, tensor: Tensor) -> int:
    """The axis of the features: the second where a convolution or pooling on the branch reads or
    writes the stream as it is, else the last; beside several streams, the one that is as long."""
    if add.width and add.width in tensor.shape:
        return len(tensor.shape) - 1 - tuple(reversed(tensor.shape)).index(add.width)
    shapes = {tuple(tensor.shape), graph[add.fork].shape}
    for index in add.path if tensor.dim() > 2 else ():
        node = graph[index]
        first = index != add.fork and node.op in CONVOLUTION | POOLING
        if first and shapes & {node.shape, *(graph[i].shape for i in node.inputs)}:
            return 1
    return -1


def _mean_variance(tensor: Tensor, axis: int) -> float:
    """Mean over tokens of the variance over features."""
    values = tensor.detach()
    values = values if values.dtype in (torch.float32, torch.float64) else values.float()
    if not values.dim():
        return math.nan
    centred = values - values.mean(dim=axis, keepdim=True)  # torch's own var is ten times slower
    return float(centred.square_().mean())


def _similarities(tensor: Tensor, axis: int, *, add: ResidualAdd) -> dict[int, tuple[int, float]]:
    """Likeness along each axis on which tokens may stand; pixels are tokens in rows."""
    values = tensor.detach().float().movedim(axis, -1)
    places = [0, 1]
    if axis == 1 or (values.dim() == 4 and not add.is_mixed):
        values, places = values.flatten(1, -2), [1]
    if values.dim() != 3:
        return {}
    unit = values / values.norm(dim=-1, keepdim=True).clamp_min(1e-12)
    found = {}
    for place in places:
        length = values.shape[place]
        together = float(unit.mean(place).square().sum(-1).mean())
        alike = (length * together - 1) / (length - 1) if length > 1 else math.nan
        found[place] = (length, alike)
    return found


AttentionLogits = tuple[Tensor, bool, bool, Tensor, int]
"""Logits of the first example, causal, square, what is known of the queries, how many they are."""


def _softmax_logits(args: tuple[Any, ...], kwargs: dict[str, Any]) -> AttentionLogits | None:
    logits = args[0] if args else kwargs.get("input")
    if not isinstance(logits, Tensor) or logits.dim() < 3:
        return None
    axis = args[1] if len(args) > 1 else kwargs.get("dim")
    turned = logits.detach().movedim(axis if isinstance(axis, int) else -1, -1)
    square = turned.shape[-1] == turned.shape[-2]
    return turned, square and _is_causal(_find_masked(turned)), square, logits, turned.shape[-2]


def _sdpa_logits(args: tuple[Any, ...], kwargs: dict[str, Any]) -> AttentionLogits | None:
    names = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
    said = dict(zip(names, args, strict=False)) | kwargs
    query, key = said["query"].detach(), said["key"].detach()
    length, square = query.shape[-2], query.shape[-2] == key.shape[-2]
    mask = said.get("attn_mask")
    causal = bool(said.get("is_causal")) or (square and _is_causal_mask(mask))
    query, key = query[:1, ..., :MAX_QUERIES, :].float(), key[:1].float()
    if query.dim() == 4 and key.shape[1] != query.shape[1]:
        key = key.repeat_interleave(query.shape[1] // key.shape[1], 1)
    scale = said.get("scale") or query.shape[-1] ** -0.5
    logits = query @ key.mT * scale
    if isinstance(mask, Tensor):
        part = mask.detach()
        part = part[:1] if part.dim() == 4 else part
        part = part[..., :MAX_QUERIES, :]
        logits = logits.masked_fill(~part, -math.inf) if part.dtype == torch.bool else logits + part
    elif said.get("is_causal"):
        later = torch.ones(logits.shape[-2:], dtype=torch.bool, device=logits.device).triu(1)
        logits = logits.masked_fill(later, -math.inf)
    return logits, causal, square, said["query"], length


def _mha_logits(args: tuple[Any, ...], kwargs: dict[str, Any]) -> AttentionLogits | None:
    """torch's own attention, whose queries and keys are made inside."""
    said = signature(multi_head_attention_forward).bind(*args, **kwargs).arguments
    query, key, heads, bias = (said[n] for n in ("query", "key", "num_heads", "in_proj_bias"))
    dim, mask, whole = query.shape[-1], said.get("attn_mask"), said["in_proj_weight"]
    square = query.shape[0] == key.shape[0]
    causal = bool(said.get("is_causal")) or (square and _is_causal_mask(mask))
    made = []
    for place, (tensor, own) in enumerate(((query, "q_proj_weight"), (key, "k_proj_weight"))):
        part = slice(place * dim, (place + 1) * dim)
        weight = said[own] if whole is None else whole[part]
        few = tensor.detach()[: None if place else MAX_QUERIES, :1].float()
        flat = linear(few, weight.float(), None if bias is None else bias[part].float())
        made.append(flat.view(*flat.shape[:-1], heads, -1).permute(1, 2, 0, 3))
    logits = made[0] @ made[1].mT / math.sqrt(dim // heads)
    padding = said.get("key_padding_mask")
    if isinstance(mask, Tensor):  # (queries, keys), or one for each example and head
        logits = _apply_mask(
            logits, (mask[:heads] if mask.dim() == 3 else mask)[..., :MAX_QUERIES, :]
        )
    if isinstance(padding, Tensor):
        logits = _apply_mask(logits, padding[:1] if padding.dim() == 2 else padding)
    return logits, causal, square, query, query.shape[0]


def _apply_mask(logits: Tensor, mask: Tensor) -> Tensor:
    """Logits with a mask of torch's own attention: True hides."""
    if mask.dtype == torch.bool:
        return logits.masked_fill(mask, -math.inf)
    return logits + mask.detach().float()


_LOGIT_READERS = {
    "softmax": _softmax_logits,
    "scaled_dot_product_attention": _sdpa_logits,
    "multi_head_attention_forward": _mha_logits,
}


def _is_causal_mask(mask: Any) -> bool:
    """Whether a mask hides all later tokens: additive, or True where one may look."""
    if not isinstance(mask, Tensor) or mask.dim() < 2 or mask.shape[-1] != mask.shape[-2]:
        return False
    if mask.dtype == torch.bool:
        return _is_causal(~mask) or _is_causal(mask)
    return _is_causal(_find_masked(mask))


def _find_masked(logits: Tensor) -> Tensor:
    """Which logits are masked, beside the largest of their row or 0 in a row of masked ones."""
    return logits < logits.amax(-1, keepdim=True).clamp_min(0) - MASKED_LOGIT_GAP


def _is_causal(hidden: Tensor) -> bool:
    """Whether everything above the diagonal is hidden and not all below."""
    length = hidden.shape[-1]
    if length < 2 or hidden.shape[-2] != length:
        return False
    above = torch.ones(length, length, dtype=torch.bool, device=hidden.device).triu(1)
    own = hidden.diagonal(dim1=-2, dim2=-1)
    return bool(hidden[..., above].all()) and not bool(own.all())


def _measure_logits(attention: Attention, logits: Tensor) -> None:
    logits = logits[:1].float()
    alive = logits[~_find_masked(logits)]
    if alive.numel():
        attention.max_logit = float(alive.abs().max())
    if logits.shape[-1] > 1:
        weights = logits.softmax(-1)
        entropy = -(weights * weights.clamp_min(1e-20).log()).sum(-1)
        attention.entropy = float(entropy.nanmean()) / math.log(logits.shape[-1])
