"""Multi-head attention: the common part of self-attention and cross-attention.

`attend` chooses the implementation of the product:

    packed tokens, nothing to show or mask     `varlen_attention`
    taps, probabilities or a cap requested     explicit softmax in torch
    few queries without gradient               `decode_attention`
    otherwise                                  torch's `scaled_dot_product_attention`
"""

from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from addnorm.core.plan import Plugs, Shape
from addnorm.kernels.attention import decode
from addnorm.kernels.attention.varlen import can_use_varlen, varlen_attention
from addnorm.kernels.linear import apply_linear
from addnorm.sublayers import masks
from addnorm.sublayers.attention_options.output_gate import OutputGate
from addnorm.sublayers.base import Sublayer, Tap, init_normal_
from addnorm.sublayers.head_config import HeadConfig, split_dim
from addnorm.sublayers.packing import Packing
from addnorm.sublayers.qk_norm import registry as qk_norms

AttentionOutput = Tensor | tuple[Tensor, Tensor]
HeadsFunction = Callable[[Tensor], Tensor]


class MultiHeadAttention(Sublayer):
    """Multi-head attention with grouped keys, soft cap and persistent memory.

    y = out(join(softmax(cap(scale * q . k) + bias) v)),  cap(a) = c * tanh(a / c) if c is given

    q: (B, heads, L, K); k, v: (B, kv_heads, S, K), each shared by heads / kv_heads query heads
    K: head_dim, dim / heads unless given
    scale: 1 / sqrt(K), unless it is given or the wiring or the qk_norm has its own;
        sqrt(K_base) / K with base_head_dim
    gate: heads' outputs are multiplied by sigmoid(W x) before the output projection, feature by
        feature ("element") or head by head ("head")
    sink: exp(s) is added to the denominator of the softmax; s: (heads), starts at 0, for "learned",
        fixed at 0 for "off_by_one"
    persistent: P learned keys and values per key head, always visible, without position, before
        those of the tokens; keys start at N(0, 1 / K) and are used times
        sqrt(K), values at N(0, 1 / P) times sqrt(P)

    A query without visible keys, as in a sequence of padding, gets zeros and finite gradients.

    Two taps, both (B, heads, L, P + S), whose hooks may only observe: `logits_tap`, cap(scale * q .
    k) without the bias, -inf where a query may not attend; `probabilities_tap`, before dropout.
    With a hook on a tap, torch's fused kernel is not used, and dropout draws other numbers.

    Vaswani et al. 2017, section 3.2; kv_heads: Ainslie et al., GQA, 2023, arXiv 2305.13245;
    persistent: Sukhbaatar et al., Augmenting Self-attention with Persistent Memory, 2019, arXiv
    1907.01470; cap: Gemma Team, Gemma 2, 2024, arXiv 2408.00118; gate: Qiu et al., Gated Attention,
    2025, arXiv 2505.06708; sink: OpenAI, gpt-oss, 2025, arXiv 2508.10925.
    """

    def __init__(self, options: HeadConfig) -> None:
        super().__init__()
        self.options = options
        self.dim, self.heads = options.dim, options.heads
        self.dropout, self.persistent = options.dropout, options.persistent
        self.memory_dim = options.memory_dim or options.dim
        self.kv_heads = options.kv_heads or options.heads
        self.head_dim = options.head_dim or split_dim(options.dim, options.heads)
        self.qk_norm_call = qk_norms.resolve(options.qk_norm)
        self.qk_norm = qk_norms.make(self.qk_norm_call, self.heads, self.kv_heads, self.head_dim)
        inner, kv_inner = self.heads * self.head_dim, self.kv_heads * self.head_dim
        bias, out_bias = options.bias, options.out_bias
        self.q_proj = nn.Linear(self.dim, inner, bias=bias)
        self.k_proj = nn.Linear(self.memory_dim, kv_inner, bias=bias and self.qk_norm.key_bias)
        self.v_proj = nn.Linear(self.memory_dim, kv_inner, bias=bias)
        self.out_proj = nn.Linear(inner, self.dim, bias=bias if out_bias is None else out_bias)
        slots = (self.kv_heads, self.persistent, self.head_dim)
        self.persistent_keys = nn.Parameter(torch.empty(slots)) if self.persistent else None
        self.persistent_values = nn.Parameter(torch.empty(slots)) if self.persistent else None
        has_gate, has_sink = options.gate != "none", options.sink == "learned"
        widths = (self.dim, self.heads, self.head_dim)
        self.output_gate = OutputGate(*widths, options.gate) if has_gate else None
        self.sinks = nn.Parameter(torch.empty(self.heads)) if has_sink else None
        self.logits_tap, self.probabilities_tap = Tap(), Tap()
        self.reset_parameters()

    @property
    def has_qk_norm(self) -> bool:
        """Whether queries and keys are normalized by this sub-layer itself."""
        return self.qk_norm_call.name != "none"

    @property
    def logit_scale(self) -> float:
        """Factor of query . key, unless the wiring or the query-key norm has its own."""
        base = self.options.base_head_dim or self.head_dim
        scale = base**-0.5 if self.options.scale is None else self.options.scale
        return scale if base == self.head_dim else scale * (base / self.head_dim)

    @property
    def has_hooks(self) -> bool:
        """Whether a tap has a hook."""
        return self.logits_tap.has_hooks or self.probabilities_tap.has_hooks

    @property
    def shape(self) -> Shape:
        inner = self.heads * self.head_dim
        return Shape(inner, inner, self.heads, self.kv_heads, self.head_dim, self.dim)

    def roles(self) -> Iterator[tuple[str, Tensor]]:
        linears = (self.q_proj, self.k_proj, self.v_proj, self.out_proj)
        for role, linear in zip(("query", "key", "value", "out"), linears, strict=True):
            yield role, linear.weight
        if self.output_gate is not None:
            yield "query", self.output_gate.proj.weight
        yield from (("bias", linear.bias) for linear in linears if linear.bias is not None)

    def init_gain(self, role: str) -> float:
        # Without 1 / sqrt(K), as in T5, the factor is part of the initial queries. A scale below
        # 1 / sqrt(K), as in Granite, is meant to make the logits small and is left alone.
        if role != "query" or self.options.scale is None or self.has_qk_norm:
            return 1.0
        base = self.options.base_head_dim or self.head_dim
        return min(1.0, base**-0.5 / self.options.scale)

    def find_plug_conflict(self, plugs: Plugs) -> str | None:
        theirs = [name for name in ("query", "key", "match") if getattr(plugs, name) is not None]
        scaled = self.options.scale is not None or self.qk_norm.logit_scale is not None
        if scaled and plugs.logit_scale is not None:
            theirs.append("logit_scale")
        own = f"qk_norm={str(self.qk_norm_call)!r}" if self.has_qk_norm else ""
        own = own or (f"scale={self.options.scale}" if "logit_scale" in theirs else "")
        if theirs and own:
            return (
                f"it has {own} and the wiring brings its own ({', '.join(theirs)}); "
                "leave out one of them"
            )
        if theirs and self.persistent:
            return (
                f"what the wiring does to queries and keys ({', '.join(theirs)}) would not "
                f"apply to its {self.persistent} persistent keys; leave out one of them"
            )
        return None

    def reset_parameters(self) -> None:
        self.qk_norm.reset_parameters()
        if self.persistent_keys is not None and self.persistent_values is not None:
            init_normal_(self.persistent_keys, self.head_dim**-0.5)
            init_normal_(self.persistent_values, self.persistent**-0.5)
        if self.sinks is not None:
            nn.init.zeros_(self.sinks)

    def extra_repr(self) -> str:
        return f"heads={self.heads}, kv_heads={self.kv_heads}, persistent={self.persistent}"

    def project_queries(self, x: Tensor, plugs: Plugs) -> Tensor:
        """Return the queries (B, heads, L, K) of tokens (B, L, dim)."""
        return self._prepare_queries(apply_linear(self.q_proj, x), plugs)

    def project_keys_values(self, x: Tensor, plugs: Plugs) -> tuple[Tensor, Tensor]:
        """Return keys and values, (B, kv_heads, S, K) each, of tokens (B, S, memory_dim)."""
        k, v = apply_linear(self.k_proj, x), apply_linear(self.v_proj, x)
        return self._prepare_keys(k, plugs), self._prepare_values(v, plugs)

    def project_qkv(
        self,
        x: Tensor,
        plugs: Plugs,
        *,
        mix: HeadsFunction | None = None,
        values: HeadsFunction | None = None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries, keys and values of the same tokens.

        Args:
            x: (B, L, dim) tokens
            plugs: of the wiring
            mix: applied to the concatenated projections, before heads are split, and behind a
                query-key norm of all heads
            values: applied to the values, (B, kv_heads, L, K), before the plugs
        """
        q, k, v = (apply_linear(layer, x) for layer in (self.q_proj, self.k_proj, self.v_proj))
        is_normed = mix is not None and self.qk_norm.all_heads
        if is_normed:
            q, k = self.qk_norm.query(q), self.qk_norm.key(k)
        if mix is not None:
            sizes = [q.shape[-1], k.shape[-1], v.shape[-1]]
            parts = torch.split(mix(torch.cat((q, k, v), -1)), sizes, -1)
            q, k, v = (part.contiguous() for part in parts)
        return (
            self._prepare_queries(q, plugs, is_normed=is_normed),
            self._prepare_keys(k, plugs, is_normed=is_normed),
            self._prepare_values(v, plugs, values),
        )

    def attend(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        plugs: Plugs,
        visible: Tensor | None = None,
        bias: Tensor | None = None,
        causal: bool = False,
        packing: Packing | None = None,
        memory_packing: Packing | None = None,
        finish: HeadsFunction | None = None,
        weights: bool = False,
    ) -> AttentionOutput:
        """Compute softmax attention and the output projection.

        Args:
            q: (B, heads, L, K) queries
            k: (B, kv_heads, S, K) keys
            v: (B, kv_heads, S, K) values
            plugs: of the wiring
            visible: broadcastable to (B, heads, L, S), True where a query may attend
            bias: broadcastable to (B, heads, L, S), added to the logits
            causal: whether to mask later keys; only without visible and bias
            packing: of the queries, if they are packed
            memory_packing: of keys and values, if they are packed
            finish: applied to the outputs of the heads, (B, heads, L, K), packed if q is
            weights: whether to return also the probabilities
        """
        scales = (plugs.logit_scale, self.qk_norm.logit_scale)
        given = [scale for scale in scales if scale is not None]
        scale = given[0] if given else self.logit_scale
        dropout = self.dropout if self.training else 0.0
        cap, probabilities = self.options.cap, None
        # Fused kernels neither return nor cap their logits.
        explicit = weights or self.has_hooks or cap is not None
        if packing is not None and memory_packing is not None:
            unsupported = explicit or dropout or self.persistent or self.options.sink != "none"
            unsupported = unsupported or not can_use_varlen(q, k)
            if visible is None and bias is None and not unsupported:
                offsets = packing.offsets, memory_packing.offsets
                # squeeze, not q[0], whose backward would copy
                q, k, v = q.squeeze(0), k.squeeze(0), v.squeeze(0)
                heads = varlen_attention(q, k, v, *offsets, causal=causal, scale=scale)
                return self._project_output(heads[None], plugs, finish)
            q = packing.unpack(q, dim=2)
            k, v = memory_packing.unpack(k, dim=2), memory_packing.unpack(v, dim=2)
            visible, causal = memory_packing.key_visibility(visible, causal)
        k, v, visible, bias = self._prepend_persistent(k, v, visible, bias)
        if self.options.sink != "none":
            if causal:
                causal, visible = False, masks.causal_mask(q.shape[2], device=q.device)
            k, v, visible, bias = self._prepend_sink(k, v, visible, bias)
        attn_mask = visible
        if bias is not None:
            bias = bias.to(q.dtype)  # torch's kernels misread a bias of another dtype
            attn_mask = bias if visible is None else bias.masked_fill(~visible, -torch.inf)
        if explicit:
            attn_mask = masks.causal_mask(q.shape[2], device=q.device) if causal else attn_mask
            logits = q @ self._repeat_kv_heads(k).mT * scale
            logits = logits if cap is None else cap * (logits / cap).tanh()
            probabilities = _masked_softmax(logits, attn_mask).to(q.dtype)
            heads = F.dropout(probabilities, dropout) @ self._repeat_kv_heads(v)
            first = 0 if self.options.sink == "none" else 1
            probabilities = probabilities[..., first:]
            if self.has_hooks:
                self.logits_tap(_mask_logits(logits, attn_mask)[..., first:])
                self.probabilities_tap(probabilities)
        elif not (dropout or causal) and decode.can_use_decode_attention(q, k, v, attn_mask):
            heads = decode.decode_attention(q, k, v, attn_mask, scale=scale)
        else:
            heads = F.scaled_dot_product_attention(
                q,
                k,
                v,
                attn_mask=attn_mask,
                dropout_p=dropout,
                is_causal=causal,
                scale=scale,
                enable_gqa=self.kv_heads < self.heads,
            )
        heads = heads if packing is None else packing.pack(heads, dim=2)
        y = self._project_output(heads, plugs, finish)
        return (y, probabilities) if weights and probabilities is not None else y

    def gate_heads(self, x: Tensor) -> Tensor | None:
        """Return the gates of the heads' outputs, (B, heads, L, K or 1); None without a gate."""
        return None if self.output_gate is None else self.output_gate(x)

    def _project_output(self, heads: Tensor, plugs: Plugs, finish: HeadsFunction | None) -> Tensor:
        """Map (B, heads, L, K) to (B, L, dim)."""
        heads = heads if finish is None else finish(heads)
        heads = heads if plugs.heads is None else plugs.heads(heads)
        inner = heads.transpose(1, 2).flatten(2)  # (B, L, heads * K)
        return apply_linear(self.out_proj, inner if plugs.inner is None else plugs.inner(inner))

    def _prepare_queries(self, q: Tensor, plugs: Plugs, *, is_normed: bool = False) -> Tensor:
        norm = self.qk_norm.query
        q = self._split_heads(q) if is_normed else self._norm_and_split_heads(q, norm)
        return q if plugs.query is None else plugs.query(q)

    def _prepare_keys(self, k: Tensor, plugs: Plugs, *, is_normed: bool = False) -> Tensor:
        norm = self.qk_norm.key
        k = self._split_heads(k) if is_normed else self._norm_and_split_heads(k, norm)
        return k if plugs.key is None else plugs.key(k)

    def _prepare_values(
        self, v: Tensor, plugs: Plugs, values: HeadsFunction | None = None
    ) -> Tensor:
        v = self._split_heads(v)
        v = v if values is None else values(v)
        return v if plugs.value is None else plugs.value(v)

    def _norm_and_split_heads(self, y: Tensor, norm: Callable[[Tensor], Tensor]) -> Tensor:
        return self._split_heads(norm(y)) if self.qk_norm.all_heads else norm(self._split_heads(y))

    def _split_heads(self, y: Tensor) -> Tensor:
        heads = y.shape[-1] // self.head_dim
        return y.reshape(*y.shape[:2], heads, self.head_dim).transpose(1, 2)  # (B, H, L, K)

    def _repeat_kv_heads(self, k: Tensor) -> Tensor:
        return k.repeat_interleave(self.heads // self.kv_heads, 1)

    def _prepend_persistent(
        self, k: Tensor, v: Tensor, visible: Tensor | None, bias: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
        """Put the persistent keys and values before those of the tokens."""
        if not self.persistent:
            return k, v, visible, bias
        assert self.persistent_keys is not None and self.persistent_values is not None
        slots = self.persistent
        # Scaled at use, as in the released code, which raises their effective learning rate.
        keys = (self.persistent_keys * self.head_dim**0.5).to(k.dtype)
        values = (self.persistent_values * slots**0.5).to(v.dtype)
        return (
            torch.cat((keys.expand(k.shape[0], -1, -1, -1), k), 2),
            torch.cat((values.expand(v.shape[0], -1, -1, -1), v), 2),
            None if visible is None else F.pad(visible, (slots, 0), value=True),
            None if bias is None else F.pad(bias, (slots, 0)),
        )

    def _prepend_sink(
        self, k: Tensor, v: Tensor, visible: Tensor | None, bias: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor | None, Tensor]:
        """Put a key and a value of zeros first, whose logit is the sink: exp(s) in the softmax."""
        sinks = k.new_zeros(self.heads) if self.sinks is None else self.sinks.to(k.dtype)
        column = sinks.view(1, -1, 1, 1)
        k, v = F.pad(k, (0, 0, 1, 0)), F.pad(v, (0, 0, 1, 0))
        visible = None if visible is None else F.pad(visible, (1, 0), value=True)
        if bias is None:
            bias = F.pad(column, (0, k.shape[2] - 1))
        else:
            bias = bias if bias.ndim == 4 else bias.unsqueeze(0)
            column = column.expand(len(bias), -1, bias.shape[2], -1)
            bias = torch.cat((column, bias.to(k.dtype).expand(-1, self.heads, -1, -1)), 3)
        return k, v, visible, bias


def _mask_logits(logits: Tensor, attn_mask: Tensor | None) -> Tensor:
    """Set the logits to -inf where a query may not attend; do not add the bias."""
    if attn_mask is None:
        return logits
    visible = attn_mask if attn_mask.dtype == torch.bool else attn_mask != -torch.inf
    return logits.masked_fill(~visible, -torch.inf)


def _masked_softmax(logits: Tensor, attn_mask: Tensor | None) -> Tensor:
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        logits = logits.masked_fill(~attn_mask, -torch.inf)
    elif attn_mask is not None:
        logits = logits + attn_mask
    blind = (logits == -torch.inf).all(-1, keepdim=True)  # no visible key: softmax would be 0 / 0
    return logits.masked_fill(blind, 0.0).softmax(-1).masked_fill(blind, 0.0)
