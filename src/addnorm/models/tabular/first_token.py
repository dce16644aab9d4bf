"""An encoder that is asked for its first token alone."""

from typing import Any

import torch
from torch import Tensor

from addnorm.core.plan import Plugs, Site
from addnorm.kernels.dropout_rng import sample_dropout_factors
from addnorm.stacks import Encoder
from addnorm.sublayers import SelfAttention
from addnorm.wirings.base import Branch, State, Wiring


class FirstTokenEncoder(Encoder):
    """The first token of what an encoder returns, (B, 1, dim), without the work for the others.

    In the last layer only the first token asks; all are still keys and values. Verbs act on each
    token alone, so cutting the state between `read` and `write` changes nothing for any wiring.
    Where norms compute statistics over several tokens, all are computed.

    Gorishniy et al. 2021 do the same in their package.
    """

    def forward(
        self, x: Tensor, *, mask: Tensor | None = None, cond: Tensor | None = None, **context: Any
    ) -> Tensor:
        """(B, L, dim) to (B, 1, dim)."""
        if not self.has_tokenwise_norms or mask is not None or context:
            return super().forward(x, mask=mask, cond=cond, **context)[:, :1]
        return self._run_sites(x, None, cond, {}, self._first_token_step)[:, :1]

    def all_tokens(self, x: Tensor) -> Tensor:
        """All tokens, (B, L, dim)."""
        return Encoder.forward(self, x)

    def _first_token_step(self, wiring: Wiring, state: State, site: Site, branch: Branch) -> State:
        if site.layer < self.plan.depth - 1 or site.kind != "self":
            return wiring.step(state, site, branch)
        h, state = wiring.read(state, site)
        h = self.taps.read[site.index](h)
        attention = self.sublayers[site.index]
        assert isinstance(attention, SelfAttention)
        answer = first_token_attention(attention, h, wiring.plugs(site))
        answer = self.taps.branch[site.index](self.dropout(answer))
        return wiring.write(tuple(map(_slice_first_token, state)), site, answer)


def _slice_first_token(leaf: Tensor) -> Tensor:
    """The first token's part of a leaf; what a whole batch shares (a coin) has no parts."""
    return leaf[:, :1] if leaf.ndim > 1 else leaf


def first_token_attention(attention: SelfAttention, h: Tensor, plugs: Plugs) -> Tensor:
    """What attention returns for the first token, (B, 1, dim).

    With a single query no keys or values need to be made:

    q . (K h_j + b)          = (K^T q) . h_j + q . b
    sum of p_j (V h_j + b)   = V (sum of p_j h_j) + b (sum of p_j)

    h: (B, L, dim)
    """
    if not _can_fold_projections(attention, plugs):
        q = attention.project_queries(h[:, :1], plugs)
        k, v = attention.project_keys_values(h, plugs)
        if plugs.match is not None:
            q, k = plugs.match(q, k)
        answer = attention.attend(q, k, v, plugs=plugs)
        assert isinstance(answer, Tensor)
        return answer
    heads, width = attention.heads, attention.head_dim
    scale = attention.options.scale or width**-0.5
    q = attention.q_proj(h[:, 0]).view(-1, heads, width) * scale  # (B, H, K)
    key, value = attention.k_proj, attention.v_proj
    matrices = [part.weight.view(heads, width, -1) for part in (key, value)]  # (H, K, dim)
    asked = torch.bmm(q.transpose(0, 1), matrices[0]).transpose(0, 1)  # (B, H, dim)
    logits = asked @ h.mT
    if key.bias is not None:
        logits = logits + (q * key.bias.view(heads, width)).sum(-1, keepdim=True)
    p = logits.softmax(-1)  # (B, H, L)
    if attention.training and attention.dropout:
        p = p * sample_dropout_factors(p, attention.dropout)
    met = torch.bmm((p @ h).transpose(0, 1), matrices[1].mT).transpose(0, 1)  # (B, H, K)
    if value.bias is not None:
        met = met + p.sum(-1, keepdim=True) * value.bias.view(heads, width)
    inner = met.flatten(1)[:, None]
    return attention.out_proj(inner if plugs.inner is None else plugs.inner(inner))


def _can_fold_projections(attention: SelfAttention, plugs: Plugs) -> bool:
    inside = (plugs.query, plugs.key, plugs.value, plugs.match, plugs.heads, plugs.logit_scale)
    plain = all(plug is None for plug in inside) and not attention.has_qk_norm
    watched = attention.logits_tap.has_hooks or attention.probabilities_tap.has_hooks
    shared = attention.kv_heads < attention.heads or attention.persistent > 0
    return plain and not watched and not shared and attention.options.cap is None
