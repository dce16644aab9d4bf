"""Encoder that computes only its first output token.

A model that reads its prediction from the first token does not need the other tokens of the last
layer. This encoder computes the last attention for one query. With one query, the key and value
projections can be folded into the query and into the output, so that no keys and values are
computed either (`first_token_attention`).
"""

from typing import Any

import torch
from torch import Tensor

from addnorm.core.plan import Plugs, Site
from addnorm.kernels.dropout_rng import sample_dropout_factors
from addnorm.stacks import Encoder
from addnorm.sublayers import SelfAttention
from addnorm.wirings.base import Branch, State, Wiring


class FirstTokenEncoder(Encoder):
    """Encoder that returns its first token, (B, 1, dim), without computing the others.

    In the last layer only the first token is a query; all tokens are keys and values. The methods
    `read` and `write` of a wiring act on each token separately, so slicing the state between them
    is correct for any wiring. With norms that compute statistics over several tokens, all tokens
    are computed.

    The package of Gorishniy et al. 2021 does the same.
    """

    def forward(
        self, x: Tensor, *, mask: Tensor | None = None, cond: Tensor | None = None, **context: Any
    ) -> Tensor:
        """Encode tokens, (B, L, dim), and return the first one, (B, 1, dim)."""
        if not self.has_tokenwise_norms or mask is not None or context:
            return super().forward(x, mask=mask, cond=cond, **context)[:, :1]
        return self._run_sites(x, None, cond, {}, self._first_token_step)[:, :1]

    def all_tokens(self, x: Tensor) -> Tensor:
        """Return all tokens, (B, L, dim)."""
        return Encoder.forward(self, x)

    def _first_token_step(self, wiring: Wiring, state: State, site: Site, branch: Branch) -> State:
        if site.layer < self.plan.depth - 1 or site.kind != "self":
            return wiring.step(state, site, branch)
        h, state = wiring.read(state, site)
        h = self.taps.read[site.index](h)
        attention = self.sublayers[site.index]
        assert isinstance(attention, SelfAttention)
        output = first_token_attention(attention, h, wiring.plugs(site))
        output = self.taps.branch[site.index](self.dropout(output))
        return wiring.write(tuple(map(_slice_first_token, state)), site, output)


def _slice_first_token(leaf: Tensor) -> Tensor:
    """Slice a tensor of the state; one without a token axis (a drop mask) is returned unchanged."""
    return leaf[:, :1] if leaf.ndim > 1 else leaf


def first_token_attention(attention: SelfAttention, h: Tensor, plugs: Plugs) -> Tensor:
    """Return the output of self-attention for the first token, (B, 1, dim).

    With a single query, the key and value projections are folded:

    q . (K h_j + b)          = (K^T q) . h_j + q . b
    sum of p_j (V h_j + b)   = V (sum of p_j h_j) + b (sum of p_j)

    Dropout makes sum of p_j differ from 1, so the value bias is scaled by it.

    Args:
        attention: self-attention of the last layer
        h: (B, L, dim) input tokens
        plugs: modifications of the attention by the wiring
    """
    if not _can_fold_projections(attention, plugs):
        q = attention.project_queries(h[:, :1], plugs)
        k, v = attention.project_keys_values(h, plugs)
        if plugs.match is not None:
            q, k = plugs.match(q, k)
        output = attention.attend(q, k, v, plugs=plugs)
        assert isinstance(output, Tensor)
        return output
    heads, width = attention.heads, attention.head_dim
    q = attention.q_proj(h[:, 0]).view(-1, heads, width) * attention.logit_scale  # (B, H, K)
    key, value = attention.k_proj, attention.v_proj
    matrices = [part.weight.view(heads, width, -1) for part in (key, value)]  # (H, K, dim)
    folded_query = torch.bmm(q.transpose(0, 1), matrices[0]).transpose(0, 1)  # (B, H, dim)
    logits = folded_query @ h.mT
    if key.bias is not None:
        logits = logits + (q * key.bias.view(heads, width)).sum(-1, keepdim=True)
    p = logits.softmax(-1)  # (B, H, L)
    if attention.training and attention.dropout:
        p = p * sample_dropout_factors(p, attention.dropout)
    values = torch.bmm((p @ h).transpose(0, 1), matrices[1].mT).transpose(0, 1)  # (B, H, K)
    if value.bias is not None:
        values = values + p.sum(-1, keepdim=True) * value.bias.view(heads, width)
    inner = values.flatten(1)[:, None]
    return attention.out_proj(inner if plugs.inner is None else plugs.inner(inner))


def _can_fold_projections(attention: SelfAttention, plugs: Plugs) -> bool:
    inner_plugs = (
        *(plugs.query, plugs.key, plugs.value),
        *(plugs.match, plugs.heads, plugs.logit_scale),
    )
    is_plain = all(plug is None for plug in inner_plugs) and not attention.has_qk_norm
    has_hooks = attention.logits_tap.has_hooks or attention.probabilities_tap.has_hooks
    shares_keys = attention.kv_heads < attention.heads or attention.persistent > 0
    return is_plain and not has_hooks and not shares_keys and attention.options.cap is None
