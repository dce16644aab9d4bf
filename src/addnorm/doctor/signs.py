"""Vital signs taken while the forward runs: variances at each join, gradients, attention."""

import contextlib
import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear

from addnorm.doctor.graph import Graph
from addnorm.doctor.joins import Join

QUERIES = 64
"""Queries of one example that are looked at."""
FLAT = {"tanh": 1.818, "erf": 1.517}
"""From here on their slope is below a tenth of the largest."""
BARRED = -1e4
"""Logits below it are masked."""


@dataclass(slots=True)
class Attention:
    """One product of queries and keys, turned into weights."""

    path: str
    node: int
    """The graph's length when it happened: the node that came next."""
    square: bool
    causal: bool
    queries: int = -1
    """The node of the queries, or of the logits."""
    largest: float = math.nan
    entropy: float = math.nan
    """As a share of the largest possible."""


class Signs:
    """Everything measured in one forward."""

    def __init__(self) -> None:
        self.attentions: list[Attention] = []
        self.gradients: dict[int, float] = {}
        self.saturation: dict[int, float] = {}
        """Share of values at each tanh and erf where it is all but flat, by node."""

    def operands(self, join: Join, shortcut: Tensor, branch: Tensor) -> None:
        """Both sides of a join, before it happens."""
        with torch.no_grad(), torch._C.DisableTorchFunction(), _never_in_the_way():
            join.signs["shortcut_variance"] = _variance(shortcut)
            join.signs["branch_variance"] = _variance(branch)

    def total(self, join: Join, out: Tensor) -> None:
        """The sum, and a hook for its gradient."""
        with torch.no_grad(), torch._C.DisableTorchFunction(), _never_in_the_way():
            variance = _variance(out)
            join.signs["stream_variance"] = variance
            join.signs["token_similarity"] = _similarity(out)
            if "branch_variance" in join.signs:
                share = join.signs["branch_variance"] / variance if variance > 0 else math.nan
                join.signs["dependency"] = share
        if out.requires_grad:
            index = join.node
            out.register_hook(lambda gradient: self._gradient(index, gradient))  # type: ignore[no-untyped-call]

    def squashed(self, op: str, given: Tensor, node: int) -> None:
        """What goes into a tanh or erf: how much of it lies where the slope is below a tenth."""
        with torch.no_grad(), torch._C.DisableTorchFunction(), _never_in_the_way():
            if given.is_floating_point() and given.numel():
                self.saturation[node] = float((given.detach().abs() > FLAT[op]).float().mean())

    def _gradient(self, index: int, gradient: Tensor) -> None:
        with torch.no_grad():
            self.gradients[index] = float(gradient.detach().float().norm())

    def attention(
        self,
        op: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        graph: Graph,
        known: Any,
        path: str,
    ) -> None:
        """Logits of an attention, as far as the call shows them."""
        reader = _READERS.get(op)
        if reader is None:
            return
        try:
            with torch.no_grad(), torch._C.DisableTorchFunction():
                seen = reader(args, kwargs)
                if seen is None:
                    return
                logits, causal, square, source = seen
                found = Attention(path, len(graph), square, causal, known.get(source, -1))
                _measure(found, logits)
        except Exception:  # a sign is never worth a broken forward
            return
        self.attentions.append(found)


def _never_in_the_way() -> contextlib.AbstractContextManager[None]:
    """A sign is not worth a broken forward: inside vmap a tensor has no numbers to show."""
    return contextlib.suppress(RuntimeError)


def _variance(tensor: Tensor) -> float:
    """Mean over tokens of the variance over features."""
    values = tensor.detach()
    values = values if values.dtype in (torch.float32, torch.float64) else values.float()
    axis = 1 if _image(values) else -1
    if not values.dim():
        return math.nan
    centred = values - values.mean(dim=axis, keepdim=True)  # torch's own var is ten times slower
    return float(centred.square_().mean())


def _image(values: Tensor) -> bool:
    return values.dim() == 4 and values.shape[-1] == values.shape[-2] and values.shape[1] > 1


def _similarity(tensor: Tensor) -> float:
    """Mean cosine between the tokens of a sequence; 1 when all are alike."""
    values = tensor.detach().float()
    if _image(values):
        values = values.flatten(2).transpose(1, 2)
    if values.dim() != 3 or values.shape[1] < 2:
        return math.nan
    length = values.shape[1]
    unit = values / values.norm(dim=-1, keepdim=True).clamp_min(1e-12)
    together = float(unit.mean(1).square().sum(-1).mean())
    return (length * together - 1) / (length - 1)


Seen = tuple[Tensor, bool, bool, Tensor]


def _softmax(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Seen | None:
    logits = args[0] if args else kwargs.get("input")
    if not isinstance(logits, Tensor) or logits.dim() < 3:
        return None
    square = logits.shape[-1] == logits.shape[-2]
    return logits.detach(), square and _barred(logits < BARRED), square, logits


def _fused(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Seen | None:
    names = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
    said = dict(zip(names, args, strict=False)) | kwargs
    query, key = said["query"].detach(), said["key"].detach()
    square = query.shape[-2] == key.shape[-2]
    mask = said.get("attn_mask")
    causal = bool(said.get("is_causal")) or (square and _triangular(mask))
    query, key = query[:1, ..., :QUERIES, :].float(), key[:1].float()
    if query.dim() == 4 and key.shape[1] != query.shape[1]:
        key = key.repeat_interleave(query.shape[1] // key.shape[1], 1)
    scale = said.get("scale") or query.shape[-1] ** -0.5
    logits = query @ key.mT * scale
    if isinstance(mask, Tensor):
        part = mask.detach()
        part = part[:1] if part.dim() == 4 else part
        part = part[..., :QUERIES, :]
        logits = logits.masked_fill(~part, -math.inf) if part.dtype == torch.bool else logits + part
    elif said.get("is_causal"):
        later = torch.ones(logits.shape[-2:], dtype=torch.bool, device=logits.device).triu(1)
        logits = logits.masked_fill(later, -math.inf)
    return logits, causal, square, said["query"]


def _whole(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Seen | None:
    """torch's own attention, whose queries and keys are made inside."""
    query, key, heads, weight, bias = args[0], args[1], args[4], args[5], args[6]
    dim = query.shape[-1]
    mask = kwargs.get("attn_mask")
    square = query.shape[0] == key.shape[0]
    causal = bool(kwargs.get("is_causal")) or (square and _triangular(mask))
    if weight is None:
        return torch.zeros(1, 1, 1), causal, square, query
    biases = [None if bias is None else bias[i * dim : (i + 1) * dim] for i in (0, 1)]
    made = [
        linear(x.detach()[:QUERIES, :1].float(), weight[i * dim : (i + 1) * dim].float(), b)
        for i, (x, b) in enumerate(zip((query, key), biases, strict=True))
    ]
    split = [x.view(*x.shape[:-1], heads, -1).permute(1, 2, 0, 3) for x in made]
    logits = split[0] @ split[1].mT / math.sqrt(dim // heads)
    if isinstance(mask, Tensor) and mask.dim() == 2:
        part = mask.detach()[: logits.shape[-2], : logits.shape[-1]]
        logits = logits.masked_fill(part, -math.inf) if part.dtype == torch.bool else logits + part
    return logits, causal, square, query


_READERS = {
    "softmax": _softmax,
    "scaled_dot_product_attention": _fused,
    "multi_head_attention_forward": _whole,
}


def _triangular(mask: Any) -> bool:
    """Whether a mask hides all later tokens: additive, or True where one may look."""
    if not isinstance(mask, Tensor) or mask.dim() < 2 or mask.shape[-1] != mask.shape[-2]:
        return False
    if mask.dtype == torch.bool:
        return _barred(~mask) or _barred(mask)
    return _barred(mask < BARRED)


def _barred(hidden: Tensor) -> bool:
    """Whether everything above the diagonal is hidden and not all below."""
    length = hidden.shape[-1]
    if length < 2 or hidden.shape[-2] != length:
        return False
    above = torch.ones(length, length, dtype=torch.bool, device=hidden.device).triu(1)
    own = hidden.diagonal(dim1=-2, dim2=-1)
    return bool(hidden[..., above].all()) and not bool(own.all())


def _measure(found: Attention, logits: Tensor) -> None:
    logits = logits[:1].float()
    alive = logits[logits > BARRED]
    if alive.numel():
        found.largest = float(alive.abs().max())
    if logits.shape[-1] > 1:
        weights = logits.softmax(-1)
        entropy = -(weights * weights.clamp_min(1e-20).log()).sum(-1)
        found.entropy = float(entropy.nanmean()) / math.log(logits.shape[-1])
