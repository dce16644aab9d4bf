"""Norms of queries and keys in a trained model, with gains fitted on data.

A norm makes all queries, and all keys, equally long; what their lengths carried is lost. The gains
keep the mean lengths, so that the logits keep their size.
"""

import torch
from torch import Tensor, nn

from addnorm.models import Model
from addnorm.norms.base import Norm
from addnorm.rewiring.batches import Batch
from addnorm.rewiring.core_models import get_state, rebuild, start_tensors
from addnorm.rewiring.fitting import fit_norm, record_tensors
from addnorm.rewiring.report import Change
from addnorm.sublayers.multihead import MultiHeadAttention
from addnorm.sublayers.qk_norm import CosineQueryKeyNorm, L2QueryKeyNorm
from addnorm.sublayers.qk_norm import registry as qk_norms

MAX_COSINE_FACTOR = 100.0


def change_qk_norm(core: Model, call: str) -> tuple[Model, list[Change], list[str]]:
    """Return a model with other norms of queries and keys at their start values, in float64."""
    target = qk_norms.resolve(call)
    before = str(qk_norms.resolve(core.config.qk_norm))
    if before == str(target):
        return core, [], []
    fields = {"qk_norm": str(target)}
    _, tensors = start_tensors(core, **fields)
    old = get_state(core)
    result = {  # gains of norms that were there are kept where they fit
        name: old[name] if name in old and old[name].shape == value.shape else value
        for name, value in tensors.items()
    }
    new = rebuild(core, result, **fields)
    notes = [
        f"{name} was dropped: the keys of {target.name} have no bias"
        for name in sorted(set(old) - set(tensors))
        if name.endswith("k_proj.bias")
    ][:1]
    changes = [
        Change(path, f"qk_norm {before}", f"qk_norm {target}", "fitted")
        for path, each in new.named_modules()
        if isinstance(each, MultiHeadAttention)
    ]
    return new, changes, notes


def fit_qk_norms(module: nn.Module, core: Model, batches: list[Batch]) -> None:
    """Set the gains of all norms of queries and keys, layer after layer, in place."""
    prefix = "" if module is core else "model."
    for path, attention in core.named_modules():
        if isinstance(attention, MultiHeadAttention) and attention.has_qk_norm:
            wanted = {f"{prefix}{path}.{name}": "output" for name in ("q_proj", "k_proj")}
            q, k = record_tensors(module, wanted, batches).values()
            with torch.no_grad():
                _fit_attention(attention, q, k)


def _fit_attention(attention: MultiHeadAttention, q: Tensor, k: Tensor) -> None:
    norm = attention.qk_norm
    size = attention.head_dim
    q_heads, k_heads = (each.view(len(each), -1, size) for each in (q, k))
    scale = attention.options.scale or size**-0.5
    if isinstance(norm, L2QueryKeyNorm):
        norm.g.fill_(scale * float(q_heads.norm(dim=-1).mean() * k_heads.norm(dim=-1).mean()))
        return
    if isinstance(norm, CosineQueryKeyNorm):
        keys = k_heads.norm(dim=-1).mean(0).repeat_interleave(attention.heads // attention.kv_heads)
        factor = scale * q_heads.norm(dim=-1).mean(0) * keys
        norm.s.copy_(factor.clamp(1e-3, MAX_COSINE_FACTOR).log().view(norm.s.shape))
        return
    query, key = getattr(norm, "query_norm", None), getattr(norm, "key_norm", None)
    if isinstance(query, Norm) and isinstance(key, Norm):
        whole = norm.all_heads
        for each, rows, heads in ((query, q, q_heads), (key, k, k_heads)):
            x = rows if whole else heads.flatten(0, 1)
            fit_norm(each, x, x)


def gain_parameters(core: Model) -> list[nn.Parameter]:
    """Return the parameters of all norms of queries and keys."""
    return [
        parameter
        for module in core.modules()
        if isinstance(module, MultiHeadAttention)
        for parameter in module.qk_norm.parameters()
    ]
