"""Head of a classifier or masked language model, which CTranslate2's encoders lack."""

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from addnorm.models import Config
from addnorm.models.classifier import ACTIVATIONS
from addnorm.norms import Norm, make_norm
from addnorm.sublayers.activations import PLAIN_ACTIVATIONS


def apply_head(
    config: Config, weights: Mapping[str, Tensor], hidden: Tensor, mask: Tensor | None
) -> Tensor:
    """Return the logits of hidden states.

    Args:
        config: config of the exported model
        weights: tensors of `head_tensors`
        hidden: (B, L, dim)
        mask: (B, L) boolean, True at valid tokens
    """
    if config.kind == "masked_lm":
        return _predict_tokens(config, weights, hidden)
    if config.classes is None:
        return hidden
    pooled = hidden if config.pooling == "none" else hidden[:, 0]
    if config.pooling == "mean":
        valid = torch.ones(hidden.shape[:2]) if mask is None else mask.to(hidden.dtype)
        pooled = (hidden * valid[..., None]).sum(1) / valid.sum(1, keepdim=True).clamp_min(1)
    if config.pooler:
        pooled = F.linear(pooled, weights["pooler.weight"], weights["pooler.bias"])
        pooled = ACTIVATIONS[config.pooler_activation](pooled)
        pooled = _load_norm(config.pooler_norm, config.dim, "pooler_norm", weights)(pooled)
    return F.linear(pooled, weights["head.weight"], weights["head.bias"])


def _predict_tokens(config: Config, weights: Mapping[str, Tensor], hidden: Tensor) -> Tensor:
    if config.head_layer:
        linear = F.linear(hidden, weights["head_matrix.weight"], weights["head_matrix.bias"])
        norm = _load_norm(config.norm, config.dim, "head_norm", weights)
        hidden = norm(PLAIN_ACTIVATIONS[config.head_layer_activation](linear))
    logits = F.linear(hidden * config.head_factor, weights["head.table"], weights.get("head.bias"))
    cap = config.head_cap
    return logits if cap is None else cap * (logits / cap).tanh()


def _load_norm(call: str, dim: int, name: str, weights: Mapping[str, Tensor]) -> Norm:
    """Return a norm with its weights."""
    norm, prefix = make_norm(call, dim), f"{name}."
    norm.load_state_dict(
        {key.removeprefix(prefix): weights[key] for key in weights if key.startswith(prefix)}
    )
    return norm.eval()
