"""The usual stacks: encoders and decoders of attention and feed-forward."""

from typing import Any, ClassVar

import torch
from torch import Tensor

from addnorm.core.errors import UserError
from addnorm.norms.base import Norm, make_norm
from addnorm.norms.base import registry as norms
from addnorm.stacks.layer_config import LayerConfig
from addnorm.stacks.stack import Stack
from addnorm.sublayers import KVCache, make_positions
from addnorm.sublayers.base import check_input, check_positive_int
from addnorm.sublayers.masks import is_right_padded
from addnorm.sublayers.packing import Packing
from addnorm.sublayers.positions import registry as position_kinds
from addnorm.sublayers.qk_norm import registry as qk_norms

MAX_PACKED_FRACTION = 0.95
"""Share of valid tokens above which leaving out the others takes longer than it saves."""


class TransformerStack(Stack):
    """A stack that builds its own sub-layers, starts their weights and owns the positions.

    Every layer is built and drawn by itself: none starts as a copy of another.

    With `packed` set to True, padding is left out where there is much: the valid tokens of a batch
    run through the stack end to end, and only the product of attention knows the batch. The same
    numbers at valid tokens, zeros at padding. Sub-layers and wiring then see (1, N, dim), which a
    hook of one's own may not expect; while a tap of the stack is watched, nothing is left out.
    """

    side: ClassVar[str]
    """Which half of a pair it would be: `encoder` or `decoder`."""

    def __init__(
        self,
        *,
        dim: int,
        depth: int,
        heads: int,
        wiring: str = "pre_ln",
        norm: str = "layer",
        positions: str = "none",
        embed_norm: str = "none",
        dropout: float = 0.0,
        other_depth: int | None = None,
        **layer_options: Any,
    ) -> None:
        check_positive_int("depth", depth)
        causal, paired = self.side == "decoder", other_depth is not None
        kinds = ("self", "cross", "ffn") if causal and paired else ("self", "ffn")
        inside = LayerConfig.from_options(type(self).__name__, layer_options)
        widths: dict[str, Any] = {"dim": dim, "heads": heads, "causal": causal}
        layers = [inside.build_layer(number, kinds, **widths) for number in range(depth)]
        super().__init__(
            [sublayer for layer in layers for sublayer in layer],
            dim=dim,
            wiring=wiring,
            norm=norm,
            kinds=kinds,
            role=self.side if paired else f"{self.side}_only",
            other_depth=other_depth,
            dropout=dropout,
        )
        self.heads, self.layer_config = heads, inside
        self.positions_call = position_kinds.resolve(positions)
        self.positions = make_positions(
            positions, dim=dim, heads=heads, head_dim=inside.head_dim, causal=causal
        )
        self.embed_norm_call = norms.resolve(embed_norm)
        self.embed_norm = make_norm(embed_norm, dim)
        if causal and not self.embed_norm.causal:
            raise UserError(
                f"embed_norm {embed_norm} computes statistics over several tokens and would show "
                "later ones to a decoder; choose a norm of single tokens"
            )
        self.packed = False
        norms_inside = [module for module in self.modules() if isinstance(module, Norm)]
        self.has_tokenwise_norms = all(norm.causal for norm in norms_inside)
        """Whether every norm computes its statistics over single tokens."""
        self.init_weights()

    def forward(
        self, x: Tensor, *, mask: Tensor | None = None, cond: Tensor | None = None, **context: Any
    ) -> Tensor:
        """Run the stack; see the class for what it is called with."""
        masks = mask, context.get("memory_mask")
        if cond is not None or not self._should_pack(x, masks, context):
            return super().forward(x, mask=mask, cond=cond, **context)
        packing = _build_packing(x, mask)
        index = context.pop("position_index", None)
        index = _position_index(x, mask, None) if index is None else _check_position_index(index, x)
        context |= {"packing": packing, "position_index": packing.pack(index.expand(x.shape[:2]))}
        if "memory" in context:
            memory = context["memory"]
            within = _build_packing(memory, context.pop("memory_mask", None))
            context |= {"memory": within.pack(memory), "memory_packing": within}
        return packing.unpack(super().forward(packing.pack(x), **context))

    def _should_pack(self, x: Tensor, masks: tuple[Any, Any], context: dict[str, Any]) -> bool:
        """Whether to leave padding out; what is wrong is left to those who refuse it."""
        if (
            not (self.packed and self.has_tokenwise_norms and self.wiring.tokenwise)
            or torch.compiler.is_compiling()
        ):
            return False
        if context.get("cache") is not None or context.get("packing") is not None:
            return False
        counted = tokens = 0
        for each, mask in zip((x, context.get("memory")), masks, strict=True):
            if not isinstance(each, Tensor) or each.ndim != 3 or each.is_meta:
                continue
            if mask is not None and (mask.dtype != torch.bool or mask.shape != each.shape[:2]):
                return False
            tokens += each.shape[0] * each.shape[1]
            counted += each.shape[0] * each.shape[1] if mask is None else int(mask.sum())
        return counted <= MAX_PACKED_FRACTION * tokens and not self.taps.has_hooks

    @property
    def arrangement(self) -> dict[str, Any]:
        """What was chosen, with all that shapes of weights do not tell."""
        blocks = self.layer_config
        told = {name: str(getattr(blocks, name)) for name in ("scale", "cap", "window")}
        return super().arrangement | {
            "positions": str(self.positions_call),
            "embed_norm": str(self.embed_norm_call),
            "heads": str(self.heads),
            "activation": blocks.activation,
            "qk_norm": str(qk_norms.resolve(blocks.qk_norm)),
            **{name: value for name, value in told.items() if value != "None"},
        }

    def _prepare_inputs(
        self, x: Tensor, mask: Tensor | None, cond: Tensor | None, context: dict[str, Any]
    ) -> tuple[Tensor, dict[str, Any]]:
        """Positions come in through the door of their kind, and then the embedding's norm."""
        context = dict(context)
        given = context.pop("position_index", None)
        check_input("the input of this stack", x, self.plan.dim)
        x, context = super()._prepare_inputs(x, mask, cond, context)
        cache = self._check_cache(context.get("cache"))
        index = (
            _position_index(x, mask, cache) if given is None else _check_position_index(given, x)
        )
        packing = context.get("packing")
        # The bias of a pair of tokens is a matter of the batch, packed or not.
        spread = index if packing is None else packing.unpack(index)
        seen = spread if cache is None else cache.append_positions(spread)
        for name, placed in (
            ("bias", self.positions.bias(spread, seen)),
            ("rotation", self.positions.rotation(index)),
        ):
            if placed is not None and context.get(name) is not None:
                raise UserError(
                    f"positions {self.positions_call} give the attention a {name}, got another one;"
                    " leave it out, or build the stack with positions='none'"
                )
            if placed is not None:
                context[name] = placed
        if self._is_padding_hidden(mask, cache, context):
            context["mask"] = None
        return self.embed_norm(self.positions.add(x, index), mask=mask, cond=cond), context

    def _is_padding_hidden(
        self, mask: Tensor | None, cache: KVCache | None, context: dict[str, Any]
    ) -> bool:
        """Whether the causal rule hides all padding by itself: no token that counts sees it, and
        attention is faster without a mask.
        """
        ruled = self.packed and self.plan.causal and cache is None
        ruled = ruled and context.get("visible") is None
        return (
            ruled
            and mask is not None
            and not torch.compiler.is_compiling()
            and is_right_padded(mask)
        )

    def _check_cache(self, cache: Any) -> KVCache | None:
        if cache is None:
            return None
        if not self.plan.causal:
            raise UserError(
                "an encoder has no use for a cache: its old tokens would have to see the new ones;"
                " call it on whole sequences"
            )
        if not isinstance(cache, KVCache) or len(cache) != len(self.plan.sites):
            got = f"one of {len(cache)} sites" if isinstance(cache, KVCache) else repr(cache)
            raise UserError(
                f"cache must be a KVCache({len(self.plan.sites)}), as this stack has that many "
                f"sites, got {got}"
            )
        return cache


class Encoder(TransformerStack):
    """Self-attention and feed-forward; every token sees every valid one.

    Alone, or with `other_depth`, the decoder's depth, the encoder of a pair. `embed_norm`
    stands behind the positions, before the first layer. `blocks` are the choices of `Blocks`:
    ffn_dim, activation, kv_heads, qk_norm, bias, window, ...

    Called with x, (B, L, dim), and by name:

    mask: (B, L), True at valid tokens
    visible: (L, L), (B, L, L) or (B, 1 or heads, L, L), True where a query may attend
    position_index: (L) or (B, L), where tokens stand; if absent, valid tokens are counted from 0
    cond: condition for norms that take one

    >>> encoder = Encoder(dim=8, depth=2, heads=2, wiring="post_ln", positions="sinusoid")
    >>> encoder(torch.randn(3, 5, 8)).shape
    torch.Size([3, 5, 8])
    """

    side = "encoder"


class Decoder(TransformerStack):
    """Causal self-attention and feed-forward; with `other_depth`, the encoder's depth, also
    cross-attention between them.

    `embed_norm` stands behind the positions, before the first layer. `blocks` are the choices of
    `Blocks`: ffn_dim, activation, kv_heads, qk_norm, bias, window, ...

    Called with x, (B, L, dim), and by name:

    mask: (B, L), True at valid tokens
    memory: (B, S, dim), what the encoder returned; needed by a decoder of a pair, refused by others
    memory_mask: (B, S), True at its valid tokens
    visible: (L, L), (B, L, L) or (B, 1 or heads, L, L), True where a query may attend, in place of
        the causal rule (prefix language models)
    cache: a `KVCache` of as many sites; then x, mask and the rows of visible are those of the new
        tokens
    position_index: (L) or (B, L), where tokens stand; if absent, valid tokens are counted from 0
    cond: condition for norms that take one

    >>> decoder = Decoder(dim=8, depth=2, heads=2, other_depth=2, positions="rotary")
    >>> decoder(torch.randn(3, 5, 8), memory=torch.randn(3, 7, 8)).shape
    torch.Size([3, 5, 8])
    """

    side = "decoder"


def _build_packing(x: Tensor, mask: Tensor | None) -> Packing:
    """Of a batch, where without a mask all tokens are valid."""
    if mask is None:
        mask = torch.ones(x.shape[:2], dtype=torch.bool, device=x.device)
    return Packing.from_mask(mask)


def _position_index(x: Tensor, mask: Tensor | None, cache: KVCache | None) -> Tensor:
    """Valid tokens before each: padding, on whatever side, moves nobody."""
    steps = torch.arange(x.shape[1], device=x.device)
    if mask is not None:
        steps = (mask.cumsum(1) - 1).clamp(min=0)
    return steps if cache is None else steps + cache.num_valid


def _check_position_index(index: Tensor, x: Tensor) -> Tensor:
    wanted = (x.shape[1:2], x.shape[:2])
    if index.dtype not in (torch.int32, torch.int64) or index.shape not in wanted:
        raise UserError(
            f"position_index must be whole numbers of shape {tuple(wanted[0])} or "
            f"{tuple(wanted[1])}, got {index.dtype} of shape {tuple(index.shape)}"
        )
    if not torch.compiler.is_compiling() and bool((index < 0).any()):
        raise UserError("position_index counts from 0, got negative numbers")
    return index
