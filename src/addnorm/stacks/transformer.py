"""Standard encoder and decoder stacks of attention and feed-forward."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from addnorm.core.errors import UserError
from addnorm.core.validation import MAX_DEPTH, MAX_WIDTH, check_memory
from addnorm.kernels.device_dtypes import default_device
from addnorm.kernels.host_copies import recall, to_device
from addnorm.kernels.inputs import check_tensor, has_shape
from addnorm.norms.base import Norm, make_norm
from addnorm.norms.base import registry as norms
from addnorm.scales import make_scale
from addnorm.stacks.layer_config import LayerConfig
from addnorm.stacks.stack import Stack
from addnorm.sublayers import KVCache, make_positions
from addnorm.sublayers.activations import resolve_activation
from addnorm.sublayers.base import check_input, check_positive_int, check_positive_number
from addnorm.sublayers.head_config import split_dim
from addnorm.sublayers.masks import is_right_padded
from addnorm.sublayers.packing import Packing
from addnorm.sublayers.positions import registry as position_kinds
from addnorm.sublayers.qk_norm import registry as qk_norms

MAX_PACKED_FRACTION = 0.95
"""Fraction of valid tokens above which packing costs more than it saves."""


class TransformerStack(Stack):
    """Stack that builds and initializes its own sub-layers and positions.

    Every layer is built and initialized separately; none is a copy of another.

    If the attribute `packed` is True and a batch has enough padding, the valid tokens run through
    the stack as one sequence (1, N, dim), and only attention separates the sequences. Outputs at
    valid tokens are the same, and zeros at padding. Hooks of sub-layers then see (1, N, dim); while
    a tap of the stack has a hook, batches are not packed.
    """

    side: ClassVar[str]
    """`encoder` or `decoder`."""

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
        embed_dim: int | None = None,
        dropout: float = 0.0,
        other_depth: int | None = None,
        scale: str | float | None = None,
        attention_scale: float | None = None,
        **layer_options: Any,
    ) -> None:
        check_positive_int("depth", depth, max_value=MAX_DEPTH)
        check_positive_int("dim", dim, max_value=MAX_WIDTH)
        check_positive_int("heads", heads)
        causal, paired = self.side == "decoder", other_depth is not None
        kinds = ("self", "cross", "ffn") if causal and paired else ("self", "ffn")
        rule = scale if isinstance(scale, str) and scale.strip()[:1].isalpha() else None
        if scale is not None and rule is None:  # the former name of attention_scale
            check_positive_number("scale", scale)
            attention_scale = scale  # type: ignore[assignment] # checked
        config = LayerConfig.from_options(
            type(self).__name__, {"scale": attention_scale, **layer_options}
        )
        if rule is not None and config.base_head_dim is None:
            base = make_scale(rule).find_base_head_dim(
                dim=dim, heads=heads, head_dim=config.head_dim
            )
            config = replace(config, base_head_dim=base)
        if default_device().type != "meta":
            num_weights = depth * config.count_weights(kinds, dim=dim, heads=heads)
            check_memory(type(self).__name__, num_weights * torch.get_default_dtype().itemsize)
        widths: dict[str, Any] = {"dim": dim, "heads": heads, "causal": causal, "depth": depth}
        layers = [config.build_layer(number, kinds, **widths) for number in range(depth)]
        super().__init__(
            [sublayer for layer in layers for sublayer in layer],
            dim=dim,
            wiring=wiring,
            norm=norm,
            kinds=kinds,
            role=self.side if paired else f"{self.side}_only",
            other_depth=other_depth,
            dropout=dropout,
            scale=rule,
        )
        self.heads, self.layer_config = heads, config
        self.embed_dim = dim if embed_dim is None else embed_dim
        check_positive_int("embed_dim", self.embed_dim, max_value=MAX_WIDTH)
        self.positions_call = position_kinds.resolve(positions)
        self.positions = make_positions(
            positions,
            dim=self.embed_dim,
            heads=heads,
            head_dim=config.head_dim or split_dim(dim, heads),
            causal=causal,
        )
        self.embed_norm_call = norms.resolve(embed_norm)
        self.embed_norm = make_norm(embed_norm, self.embed_dim)
        self.embed_proj = None if embed_dim is None else nn.Linear(embed_dim, dim)
        if causal and not self.embed_norm.causal:
            raise UserError(
                f"embed_norm: expected a token-wise norm in a decoder, got {embed_norm}, whose "
                "statistics would leak later tokens"
            )
        self.packed = False
        norms_inside = [module for module in self.modules() if isinstance(module, Norm)]
        self.has_tokenwise_norms = all(norm.causal for norm in norms_inside)
        """Whether every norm computes its statistics over single tokens."""
        self.init_weights()

    def forward(
        self, x: Tensor, *, mask: Tensor | None = None, cond: Tensor | None = None, **context: Any
    ) -> Tensor:
        check_input("the input of this stack", x, self.input_dim)
        masks = mask, context.get("memory_mask")
        if cond is not None or not self._should_pack(x, masks, context):
            return super().forward(x, mask=mask, cond=cond, **context)
        packing = _build_packing(x, mask)
        index = context.pop("position_index", None)
        index = _position_index(x, mask, None) if index is None else _check_position_index(index, x)
        context |= {"packing": packing, "position_index": packing.pack(index.expand(x.shape[:2]))}
        if context.get("ids") is not None:
            context["ids"] = packing.pack(context["ids"])
        if "memory" in context:
            memory = context["memory"]
            memory_packing = _build_packing(memory, context.pop("memory_mask", None))
            context |= {"memory": memory_packing.pack(memory)}
            context["memory_packing"] = memory_packing
        return packing.unpack(super().forward(packing.pack(x), **context))

    @property
    def input_dim(self) -> int:
        """Number of features of the input: `embed_dim`."""
        return self.embed_dim

    def input_weights(self) -> Iterator[tuple[str, Tensor]]:
        """Yield (role, weight) of the projection of the embedding, if there is one."""
        if self.embed_proj is not None:
            yield "ffn_in", self.embed_proj.weight
            yield "bias", self.embed_proj.bias

    def _should_pack(self, x: Tensor, masks: tuple[Any, Any], context: dict[str, Any]) -> bool:
        """Return whether to pack this batch. Invalid arguments are not packed; later checks reject
        them."""
        if (
            not (self.packed and self.has_tokenwise_norms and self.wiring.tokenwise)
            or torch.compiler.is_compiling()
        ):
            return False
        if context.get("cache") is not None or context.get("packing") is not None:
            return False
        num_valid = num_tokens = 0
        for each, mask in zip((x, context.get("memory")), masks, strict=True):
            if not isinstance(each, Tensor) or each.ndim != 3:
                continue
            if mask is not None and (mask.dtype != torch.bool or mask.shape != each.shape[:2]):
                return False
            host = None if mask is None else recall(mask)
            if mask is not None and mask.is_meta and host is None:
                return False
            num_tokens += each.shape[0] * each.shape[1]
            values = mask if host is None else host
            num_valid += each.shape[0] * each.shape[1] if values is None else int(values.sum())
        return num_valid <= MAX_PACKED_FRACTION * num_tokens and not self.taps.has_hooks

    @property
    def arrangement(self) -> dict[str, Any]:
        config = self.layer_config
        optional = {name: str(getattr(config, name)) for name in ("scale", "cap", "window")}
        if self.scale_call is not None:  # the name `scale` is taken
            optional = {"attention_scale": optional.pop("scale"), **optional}
        return super().arrangement | {
            "positions": str(self.positions_call),
            "embed_norm": str(self.embed_norm_call),
            "heads": str(self.heads),
            "activation": resolve_activation(config.activation),
            "qk_norm": str(qk_norms.resolve(config.qk_norm)),
            **{name: value for name, value in optional.items() if value != "None"},
            **{name: str(value) for name, value in config.attention_options.items()},
            **({} if self.embed_proj is None else {"embed_dim": str(self.embed_dim)}),
        }

    @property
    def takes_ids(self) -> bool:
        """Whether a call needs the token ids, for value embeddings."""
        return self.layer_config.value_embed is not None

    def _prepare_inputs(
        self, x: Tensor, mask: Tensor | None, cond: Tensor | None, context: dict[str, Any]
    ) -> tuple[Tensor, dict[str, Any]]:
        """Apply the positions and the norm of the embeddings after validation."""
        context = dict(context)
        index = context.pop("position_index", None)
        x, context = super()._prepare_inputs(x, mask, cond, context)
        cache = self._check_cache(context.get("cache"))
        packing = context.get("packing")
        if index is None:
            index = _position_index(x, mask, cache)
        elif packing is None:  # the index of packed tokens was checked before it was packed
            index = _check_position_index(index, x)
        # The bias of query and key has the shape of the batch, packed or not.
        query_index = index if packing is None else packing.unpack(index)
        key_index = query_index if cache is None else cache.append_positions(query_index)
        for name, value in (
            ("bias", self.positions.bias(query_index, key_index)),
            ("rotation", self.positions.rotation(index)),
        ):
            if value is not None and context.get(name) is not None:
                raise UserError(
                    f"{name}: expected None, because positions {self.positions_call} provide it; "
                    "build the stack with positions='none' to pass your own"
                )
            if value is not None:
                context[name] = value
        if self._is_padding_hidden(mask, cache, context):
            context["mask"] = None
        x = self.embed_norm(self.positions.add(x, index), mask=mask, cond=cond)
        return x if self.embed_proj is None else self.embed_proj(x), context

    def _is_padding_hidden(
        self, mask: Tensor | None, cache: KVCache | None, context: dict[str, Any]
    ) -> bool:
        """Return whether the causal mask alone hides all padding, so that attention needs no other
        mask."""
        is_causal = self.packed and self.plan.causal and cache is None
        is_causal = is_causal and context.get("visible") is None
        return (
            is_causal
            and mask is not None
            and not torch.compiler.is_compiling()
            and is_right_padded(mask)
        )

    def _check_cache(self, cache: Any) -> KVCache | None:
        if cache is None:
            return None
        if not self.plan.causal:
            raise UserError(
                "cache: expected None in an encoder, whose old tokens depend on the new ones; call "
                "it on whole sequences"
            )
        if not isinstance(cache, KVCache) or len(cache) != len(self.plan.sites):
            got = f"one of {len(cache)} sites" if isinstance(cache, KVCache) else repr(cache)
            raise UserError(
                f"cache: expected KVCache({len(self.plan.sites)}), one entry per site of this "
                f"stack, got {got}"
            )
        return cache


class Encoder(TransformerStack):
    """Self-attention and feed-forward; every token sees every valid one.

    With `other_depth`, the depth of the decoder, it is the encoder of an encoder-decoder pair.
    `embed_norm` is applied after the positions, before the first layer. With `embed_dim`, input,
    positions and this norm have so many features, and a linear map to `dim` follows them. Further
    options are the fields of `LayerConfig`: ffn_dim, activation, kv_heads, qk_norm, bias, ...

    Arguments of the call, after x, (B, L, dim), all by keyword:

    mask: (B, L), True at valid tokens
    visible: (L, L), (B, L, L) or (B, 1 or heads, L, L), True where a query may attend
    position_index: (L) or (B, L), positions of the tokens; by default valid tokens are counted from
        0
    cond: condition for norms that take one

    >>> encoder = Encoder(dim=8, depth=2, heads=2, wiring="post_ln", positions="sinusoid")
    >>> encoder(torch.randn(3, 5, 8)).shape
    torch.Size([3, 5, 8])
    """

    side = "encoder"


class Decoder(TransformerStack):
    """Causal self-attention and feed-forward; with `other_depth`, the encoder's depth, also
    cross-attention between them.

    `embed_norm` is applied after the positions, before the first layer. Further options are the
    fields of `LayerConfig`: ffn_dim, activation, kv_heads, qk_norm, bias, window, ...

    Arguments of the call, after x, (B, L, dim), all by keyword:

    mask: (B, L), True at valid tokens
    memory: (B, S, dim), output of the encoder; required if `other_depth` is set, an error otherwise
    memory_mask: (B, S), True at its valid tokens
    visible: (L, L), (B, L, L) or (B, 1 or heads, L, L), True where a query may attend, in place of
        the causal mask (prefix language models)
    cache: a `KVCache` of as many sites; then x, mask and the rows of visible are those of the new
        tokens
    position_index: (L) or (B, L), positions of the tokens; by default valid tokens are counted from
        0
    cond: condition for norms that take one

    >>> decoder = Decoder(dim=8, depth=2, heads=2, other_depth=2, positions="rotary")
    >>> decoder(torch.randn(3, 5, 8), memory=torch.randn(3, 7, 8)).shape
    torch.Size([3, 5, 8])
    """

    side = "decoder"


def _build_packing(x: Tensor, mask: Tensor | None) -> Packing:
    if mask is None:
        mask = to_device(torch.ones(x.shape[:2], dtype=torch.bool), x.device)
    return Packing.from_mask(mask)


def _position_index(x: Tensor, mask: Tensor | None, cache: KVCache | None) -> Tensor:
    """Return the number of valid tokens before each token; padding on either side is not
    counted."""
    steps = torch.arange(x.shape[1], device=x.device)
    if mask is not None:
        steps = (mask.cumsum(1) - 1).clamp(min=0)
    return steps if cache is None else steps + cache.num_valid


def _check_position_index(index: Tensor, x: Tensor) -> Tensor:
    shapes = (x.shape[1:2], x.shape[:2])
    check_tensor("position_index", index, f"integers of shape {tuple(shapes[0])}")
    if index.dtype not in (torch.int32, torch.int64) or not has_shape(index, *shapes):
        raise UserError(
            f"position_index: expected integers of shape {tuple(shapes[0])} or "
            f"{tuple(shapes[1])}, got {index.dtype} of shape {tuple(index.shape)}"
        )
    if not torch.compiler.is_compiling() and bool((index < 0).any()):
        raise UserError("position_index: expected integers from 0, got negative ones")
    return index
