"""Self-attention and cross-attention."""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from addnorm.core.errors import UserError, unknown_name_message
from addnorm.core.plan import Plugs, Shape
from addnorm.kernels.inputs import check_tensor, has_shape
from addnorm.norms.base import check_mask
from addnorm.sublayers import masks
from addnorm.sublayers.attention_options.canon import CanonLayer, check_places, run_canon
from addnorm.sublayers.attention_options.exclusive import remove_own_value
from addnorm.sublayers.attention_options.shared_tensors import SharedTensors
from addnorm.sublayers.attention_options.value_embedding import ValueEmbedding
from addnorm.sublayers.attention_options.value_residual import VALUE_RESIDUALS, ValueResidual
from addnorm.sublayers.base import check_bool, check_input, check_positive_int
from addnorm.sublayers.cache import LayerCache
from addnorm.sublayers.head_config import HeadConfig
from addnorm.sublayers.multihead import AttentionOutput, HeadsFunction, MultiHeadAttention
from addnorm.sublayers.packing import Packing
from addnorm.sublayers.positions import Rotation


class SelfAttention(MultiHeadAttention):
    """Self-attention of a sequence.

    y = out(join(softmax(q . k / sqrt(K) + bias) v)),  q, k, v = query(x), key(x), value(x)

    x, y: (B, L, dim)
    q, k, v: (B, heads, L, K); k and v have kv_heads if given
    causal: whether a token sees only itself and earlier tokens
    window: number of tokens that a token sees, itself and earlier ones; without `causal` as many
        later ones, too
    exclusive: whether heads return nothing along the token's own value (XSA)
    value_residual: source (the values are shared with later layers), or half, scalar or token
        (mixed with those of the source); see `ValueResidual`
    value_embed: rows of a table of values per token, added to the values; see `ValueEmbedding`
    canon: places of Canon layers, of "A" (input) and "B" (queries, keys and values)
    options: fields of `HeadConfig`, such as kv_heads, bias, scale, cap, qk_norm, persistent

    >>> attention = SelfAttention(12, 4, kv_heads=2, causal=True, qk_norm="rms_head")
    >>> y, probabilities = attention(torch.randn(2, 5, 12), weights=True)
    >>> y.shape, probabilities.shape
    (torch.Size([2, 5, 12]), torch.Size([2, 4, 5, 5]))
    """

    def __init__(
        self,
        dim: int,
        heads: int,
        *,
        causal: bool = False,
        window: int | None = None,
        exclusive: bool = False,
        value_residual: str = "none",
        value_embed: int | None = None,
        canon: str = "",
        **options: Any,
    ) -> None:
        super().__init__(HeadConfig(dim=dim, heads=heads, **options))
        if window is not None:
            check_positive_int("window", window)
        check_bool("exclusive", exclusive)
        if value_residual not in (*VALUE_RESIDUALS, "source"):
            choices = (*VALUE_RESIDUALS, "source")
            raise UserError(unknown_name_message("value_residual", str(value_residual), choices))
        if check_places(canon, "AB") and not causal:
            raise UserError("canon: expected causal=True, for which Canon layers are defined")
        self.causal, self.window, self.exclusive = causal, window, exclusive
        self.shares_values = value_residual == "source"
        mixes = value_residual not in ("none", "source")
        self.value_residual = ValueResidual(dim, self.kv_heads, value_residual) if mixes else None
        self.value_embed: ValueEmbedding | None = None
        if value_embed is not None:
            check_positive_int("value_embed", value_embed)
            self.value_embed = ValueEmbedding(value_embed, dim, self.kv_heads, self.head_dim)
        inner = (self.heads + 2 * self.kv_heads) * self.head_dim
        self.canon_a = CanonLayer(dim) if "A" in canon else None
        self.canon_b = CanonLayer(inner) if "B" in canon else None

    def roles(self) -> Iterator[tuple[str, Tensor]]:
        yield from super().roles()
        if self.value_embed is not None:
            yield "embed", self.value_embed.table

    def reset_parameters(self) -> None:
        super().reset_parameters()
        names = ("value_residual", "value_embed", "canon_a", "canon_b")
        for part in (getattr(self, name, None) for name in names):
            if part is not None:
                part.reset_parameters()

    @property
    def shape(self) -> Shape:
        return replace(super().shape, causal=self.causal)

    def forward(
        self,
        x: Tensor,
        *,
        mask: Tensor | None = None,
        visible: Tensor | None = None,
        bias: Tensor | None = None,
        rotation: Rotation | None = None,
        cache: LayerCache | None = None,
        packing: Packing | None = None,
        plugs: Plugs | None = None,
        ids: Tensor | None = None,
        shared: SharedTensors | None = None,
        weights: bool = False,
    ) -> AttentionOutput:
        """Attend from x to all S tokens seen so far; S = L without a cache.

        Args:
            x: (B, L, dim) input tokens
            mask: (B, L), True at valid tokens; the cache stores the mask of earlier ones
            visible: (L, S), (B, L, S) or (B, 1 or heads, L, S), True where a query may attend;
                replaces the causal mask, while padding stays hidden
            bias: (heads, L, S) or (B, heads, L, S), added to the logits
            rotation: applied to queries and keys; rotary positions build it
            cache: keys and values of earlier tokens, to which the new ones are appended
            packing: of a batch (B, L), if x, (1, N, dim), holds its valid tokens only; visible,
                bias and probabilities are those of the batch, and mask is None
            plugs: of the wiring
            ids: (B, L) token ids, or (1, N) if packed, for value embeddings
            shared: tensors of this forward pass, for value residuals
            weights: whether to return also the probabilities, (B, heads, L, P + S), the P
                persistent keys first
        """
        check_input("the input of attention", x, self.dim)
        check_mask(mask, x)
        plugs = plugs or Plugs()
        x, q, k, v = self._project(x, plugs, mask, cache, packing, ids, shared)
        own = v if self.exclusive else None
        gates = self.gate_heads(x)
        if rotation is not None:
            rotation = rotation.for_window(self.window)
            q, k = rotation(q), rotation(k)
        if plugs.match is not None:
            q, k = plugs.match(q, k)
        groups = None
        if cache is not None:
            k, v, mask = cache.extend(k, v, mask, shared=not weights and not self.has_hooks)
            groups = cache.beam_groups
        batch, length = x.shape[:2] if packing is None else packing.mask.shape
        past = (k.shape[2] if groups is None else groups.num_tokens) - x.shape[1]
        shape = (batch, self.heads, length, past + length)
        if visible is not None:
            visible = _check_visible(visible, shape)
        bias = None if bias is None else _check_bias(bias, shape)
        # The kernel's own causal mask is faster, but cannot be combined with any other mask.
        is_causal = self.causal and visible is None and length > 1
        causal_only = mask is None and bias is None and not self.persistent and past == 0
        causal_only = causal_only and self.window is None
        if is_causal and not causal_only:
            visible = masks.causal_mask(length, past, device=x.device)
        if self.window is not None:
            near = masks.window_mask(length, self.window, past, device=x.device)
            visible = near if visible is None else visible & near
        if mask is not None:
            valid = mask[:, None, None, :]
            visible = valid if visible is None else visible & valid
        if groups is not None:
            visible, bias = groups.expand_masks(visible, bias)
            own = None if own is None else groups.beams_as_tokens(own)
            gates = None if gates is None else groups.beams_as_tokens(gates)
            y = self.attend(
                groups.beams_as_tokens(q),
                k,
                v,
                plugs=plugs,
                visible=visible,
                bias=bias,
                finish=_finish_heads(own, gates),
            )
            assert isinstance(y, Tensor)
            return groups.tokens_as_beams(y)
        return self.attend(
            q,
            k,
            v,
            plugs=plugs,
            visible=visible,
            bias=bias,
            causal=is_causal and causal_only,
            packing=packing,
            memory_packing=packing,
            finish=_finish_heads(own, gates),
            weights=weights,
        )

    def _project(
        self,
        x: Tensor,
        plugs: Plugs,
        mask: Tensor | None,
        cache: LayerCache | None,
        packing: Packing | None,
        ids: Tensor | None,
        shared: SharedTensors | None,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return the input behind its Canon layer, queries, keys and values."""

        convolve = partial(run_canon, mask=mask, cache=cache, packing=packing)
        if self.canon_a is not None:
            x = convolve(self.canon_a, x, "input")
        canon_b = self.canon_b
        mix = None if canon_b is None else lambda h: convolve(canon_b, h, "inner")
        q, k, v = self.project_qkv(x, plugs, mix=mix, values=self._mix_values(x, ids, shared))
        return x, q, k, v

    def _mix_values(
        self, x: Tensor, ids: Tensor | None, shared: SharedTensors | None
    ) -> HeadsFunction | None:
        """Return what happens to the projected values; None if nothing does."""
        needs_shared = self.shares_values or self.value_residual is not None
        if not needs_shared and self.value_embed is None:
            return None
        if needs_shared and shared is None:
            raise UserError("shared: expected SharedTensors for a value residual; use a stack")
        if self.value_embed is not None and ids is None:
            raise UserError("ids: expected the token ids for value embeddings; call with ids=...")

        def mix(v: Tensor) -> Tensor:
            if self.value_embed is not None and ids is not None:
                v = v + self.value_embed(x, ids)
            if shared is None:
                return v
            if self.shares_values:
                shared.values = v
            elif self.value_residual is not None:
                if shared.values is None:
                    raise UserError("value_residual: expected an earlier layer that is the source")
                v = self.value_residual(v, shared.values, x)
            return v

        return mix


def _finish_heads(own: Tensor | None, gates: Tensor | None) -> HeadsFunction | None:
    """Return what happens to the heads' outputs: own values are removed, then gates applied."""
    if own is None and gates is None:
        return None

    def finish(heads: Tensor) -> Tensor:
        heads = heads if own is None else remove_own_value(heads, own)
        return heads if gates is None else heads * gates

    return finish


class CrossAttention(MultiHeadAttention):
    """Attention of a sequence to a memory, such as the output of an encoder.

    y = out(join(softmax(q . k / sqrt(K)) v)),  q, k, v = query(x), key(memory), value(memory)

    x, y: (B, L, dim)
    memory: (B, S, memory_dim), memory_dim = dim unless given
    options: fields of `HeadConfig`
    q: (B, heads, L, K)
    k, v: (B, kv_heads, S, K)

    >>> attention = CrossAttention(12, 4, memory_dim=8)
    >>> attention(torch.randn(2, 5, 12), torch.randn(2, 7, 8)).shape
    torch.Size([2, 5, 12])
    """

    def __init__(self, dim: int, heads: int, **options: Any) -> None:
        super().__init__(HeadConfig(dim=dim, heads=heads, **options))

    @property
    def shape(self) -> Shape:
        return replace(super().shape, crosses=True)

    def forward(
        self,
        x: Tensor,
        memory: Tensor,
        *,
        memory_mask: Tensor | None = None,
        cache: LayerCache | None = None,
        packing: Packing | None = None,
        memory_packing: Packing | None = None,
        plugs: Plugs | None = None,
        weights: bool = False,
    ) -> AttentionOutput:
        """Attend from x to the memory.

        Args:
            x: (B, L, dim) input tokens
            memory: (B, S, memory_dim)
            memory_mask: (B, S), True at valid tokens of the memory
            cache: stores keys, values and mask of the first call's memory; later calls read those
            packing: of the batch of x, if x holds its valid tokens only
            memory_packing: of the batch of the memory, likewise
            plugs: of the wiring
            weights: whether to return also the probabilities, (B, heads, L, S)
        """
        check_input("the input of attention", x, self.dim)
        check_input("memory", memory, self.memory_dim)
        check_mask(memory_mask, memory, name="memory_mask")
        if memory.shape[0] != x.shape[0]:
            raise UserError(
                f"memory: expected a batch of {x.shape[0]}, one memory per input sequence, got "
                f"{memory.shape[0]}"
            )
        plugs = plugs or Plugs()
        groups = None
        if cache is None or cache.keys is None or cache.values is None:
            k, v = self.project_keys_values(memory, plugs)
            if cache is not None:
                cache.store_memory(k, v, memory_mask)
        else:
            cache.check_batch_size(x.shape[0])
            if weights or self.has_hooks or x.shape[1] > 1:
                cache.materialize()
            k, v, memory_mask, groups = cache.keys, cache.values, cache.valid, cache.beam_groups
        q = self.project_queries(x, plugs)
        gates = self.gate_heads(x)
        if groups is not None:
            q = groups.beams_as_tokens(q)
            gates = None if gates is None else groups.beams_as_tokens(gates)
        finish = _finish_heads(None, gates)
        if plugs.match is not None:
            q, k = plugs.match(q, k)
        visible = None if memory_mask is None else memory_mask[:, None, None, :]
        if groups is not None:
            y = self.attend(q, k, v, plugs=plugs, visible=visible, finish=finish)
            assert isinstance(y, Tensor)
            return groups.tokens_as_beams(y)
        return self.attend(
            q,
            k,
            v,
            plugs=plugs,
            visible=visible,
            packing=packing,
            memory_packing=memory_packing,
            finish=finish,
            weights=weights,
        )


AttentionShape = tuple[int, int, int, int]


def _check_visible(visible: Tensor, full_shape: AttentionShape) -> Tensor:
    """Return the mask in a shape that broadcasts to (B, heads, L, S)."""
    check_tensor("visible", visible, "a boolean tensor")
    batch, heads, length, keys = full_shape
    shapes = ((length, keys), (batch, length, keys), (batch, 1, length, keys), full_shape)
    if visible.dtype != torch.bool or not has_shape(visible, *shapes):
        raise UserError(
            f"visible: expected boolean, True where a query may attend, of shape ({length}, "
            f"{keys}), ({batch}, {length}, {keys}) or ({batch}, 1 or {heads}, {length}, {keys}), "
            f"got {visible.dtype} of shape {tuple(visible.shape)}; for torch's boolean attn_mask "
            "(True where attention is forbidden) pass ~attn_mask"
        )
    return visible[:, None] if visible.ndim == 3 else visible


def _check_bias(bias: Tensor, full_shape: AttentionShape) -> Tensor:
    check_tensor("bias", bias, "a floating-point tensor")
    batch, heads, length, keys = full_shape
    if not bias.is_floating_point() or not has_shape(bias, full_shape, full_shape[1:]):
        raise UserError(
            f"bias: expected floating point of shape ({heads}, {length}, {keys}) or ({batch}, "
            f"{heads}, {length}, {keys}), got {bias.dtype} of shape {tuple(bias.shape)}"
        )
    return bias
