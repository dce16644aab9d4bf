"""The usual stacks: encoders and decoders of attention and feed-forward."""

import inspect
from typing import Any

import torch
from torch import Tensor, nn

from addnorm.core.errors import UserError, unknown
from addnorm.core.seeds import derive_seed
from addnorm.stacks.stack import Stack, Step
from addnorm.sublayers import CrossAttention, FeedForward, KVCache, SelfAttention, make_positions
from addnorm.sublayers.base import check_count, check_width
from addnorm.sublayers.positions import registry as position_kinds
from addnorm.sublayers.qk_norm import registry as qk_norms


def make_layer(
    kinds: tuple[str, ...],
    dim: int,
    heads: int,
    causal: bool,
    *,
    ffn_dim: int | None = None,
    activation: str = "relu",
    kv_heads: int | None = None,
    head_dim: int | None = None,
    qk_norm: str = "none",
    bias: bool = True,
    persistent: int = 0,
    attention_dropout: float = 0.0,
    activation_dropout: float = 0.0,
) -> list[nn.Module]:
    """The sub-layers of one layer, in the order of `kinds`: self, cross, ffn.

    `persistent` vectors stand in self-attention only.
    """
    attention: dict[str, Any] = {
        "kv_heads": kv_heads,
        "head_dim": head_dim,
        "bias": bias,
        "dropout": attention_dropout,
        "qk_norm": qk_norm,
    }
    made: dict[str, Any] = {
        "self": lambda: SelfAttention(
            dim, heads, causal=causal, persistent=persistent, **attention
        ),
        "cross": lambda: CrossAttention(dim, heads, **attention),
        "ffn": lambda: FeedForward(
            dim, ffn_dim, activation=activation, bias=bias, dropout=activation_dropout
        ),
    }
    return [made[kind]() for kind in kinds]


class UsualStack(Stack):
    """A stack that builds its own sub-layers, starts their weights and owns the positions.

    Every layer is built and drawn by itself: none starts as a copy of another.
    """

    def __init__(
        self,
        kinds: tuple[str, ...],
        role: str,
        *,
        dim: int,
        depth: int,
        heads: int,
        wiring: str,
        norm: str,
        positions: str,
        dropout: float,
        other_depth: int | None,
        blocks: dict[str, Any],
    ) -> None:
        check_count("depth", depth)
        _check_blocks(type(self).__name__, blocks)
        causal = role.startswith("decoder")
        layers = [make_layer(kinds, dim, heads, causal, **blocks) for _ in range(depth)]
        super().__init__(
            [sublayer for layer in layers for sublayer in layer],
            dim=dim,
            wiring=wiring,
            norm=norm,
            kinds=kinds,
            role=role,
            other_depth=other_depth,
            dropout=dropout,
        )
        self.heads, self.blocks = heads, dict(blocks)
        self.positions_call = position_kinds.resolve(positions)
        self.positions = make_positions(
            positions, dim=dim, heads=heads, head_dim=blocks.get("head_dim"), causal=causal
        )
        self.initialise()

    @property
    def arrangement(self) -> dict[str, Any]:
        """What was chosen, with all that shapes of weights do not tell."""
        blocks = _BLOCKS | self.blocks
        return super().arrangement | {
            "positions": str(self.positions_call),
            "heads": str(self.heads),
            "activation": blocks["activation"],
            "qk_norm": str(qk_norms.resolve(blocks["qk_norm"])),
        }

    def initialise(self, *, scheme: str | None = None, seed: int | None = None) -> "UsualStack":
        """Start anew, positions included; see `Stack.initialise`."""
        super().initialise(scheme=scheme, seed=seed)
        with torch.random.fork_rng(enabled=seed is not None):
            if seed is not None:
                torch.manual_seed(derive_seed(seed, "positions"))
            self.positions.reset_parameters()
        return self

    def _walk(
        self,
        x: Tensor,
        mask: Tensor | None,
        cond: Tensor | None,
        context: dict[str, Any],
        step: Step,
    ) -> Tensor:
        """The walk of a stack, after positions have come in through the door of their kind."""
        context = dict(context)
        given = context.pop("position_index", None)
        check_width("the input of this stack", x, self.plan.dim)
        self._check(x, mask, context)
        cache = self._checked_cache(context.get("cache"))
        index = _index(x, mask, cache) if given is None else _checked(given, x)
        seen = index if cache is None else cache.place(index)
        for name, placed in (
            ("bias", self.positions.bias(index, seen)),
            ("rotation", self.positions.rotation(index)),
        ):
            if placed is not None and context.get(name) is not None:
                raise UserError(
                    f"positions {self.positions_call} give the attention a {name}, got another one;"
                    " leave it out, or build the stack with positions='none'"
                )
            if placed is not None:
                context[name] = placed
        return super()._walk(self.positions.add(x, index), mask, cond, context, step)

    def _checked_cache(self, cache: Any) -> KVCache | None:
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


class Encoder(UsualStack):
    """Self-attention and feed-forward; every token sees every valid one.

    Alone, or with `other_depth`, the decoder's depth, the encoder of a pair. `blocks` are the
    options of `make_layer`: ffn_dim, activation, kv_heads, head_dim, qk_norm, bias, persistent,
    attention_dropout, activation_dropout.

    Called with x, (B, L, dim), and by name:

    mask: (B, L), True at valid tokens
    visible: (L, L), (B, L, L) or (B, 1 or heads, L, L), True where a query may attend
    position_index: (L) or (B, L), where tokens stand; if absent, valid tokens are counted from 0
    cond: condition for norms that take one

    >>> encoder = Encoder(dim=8, depth=2, heads=2, wiring="post_ln", positions="sinusoid")
    >>> encoder(torch.randn(3, 5, 8)).shape
    torch.Size([3, 5, 8])
    """

    def __init__(
        self,
        *,
        dim: int,
        depth: int,
        heads: int,
        wiring: str = "pre_ln",
        norm: str = "layer",
        positions: str = "none",
        dropout: float = 0.0,
        other_depth: int | None = None,
        **blocks: Any,
    ) -> None:
        super().__init__(
            ("self", "ffn"),
            "encoder_only" if other_depth is None else "encoder",
            dim=dim,
            depth=depth,
            heads=heads,
            wiring=wiring,
            norm=norm,
            positions=positions,
            dropout=dropout,
            other_depth=other_depth,
            blocks=blocks,
        )


class Decoder(UsualStack):
    """Causal self-attention and feed-forward; with `other_depth`, the encoder's depth, also
    cross-attention between them.

    `blocks` are the options of `make_layer`: ffn_dim, activation, kv_heads, head_dim, qk_norm,
    bias, persistent, attention_dropout, activation_dropout.

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

    def __init__(
        self,
        *,
        dim: int,
        depth: int,
        heads: int,
        wiring: str = "pre_ln",
        norm: str = "layer",
        positions: str = "none",
        dropout: float = 0.0,
        other_depth: int | None = None,
        **blocks: Any,
    ) -> None:
        super().__init__(
            ("self", "ffn") if other_depth is None else ("self", "cross", "ffn"),
            "decoder_only" if other_depth is None else "decoder",
            dim=dim,
            depth=depth,
            heads=heads,
            wiring=wiring,
            norm=norm,
            positions=positions,
            dropout=dropout,
            other_depth=other_depth,
            blocks=blocks,
        )


_BLOCKS = {
    name: parameter.default
    for name, parameter in inspect.signature(make_layer).parameters.items()
    if parameter.kind is parameter.KEYWORD_ONLY
}


def _check_blocks(stack: str, blocks: dict[str, Any]) -> None:
    for name in blocks:
        if name not in _BLOCKS:
            raise UserError(unknown(f"option of {stack}", name, _BLOCKS))


def _index(x: Tensor, mask: Tensor | None, cache: KVCache | None) -> Tensor:
    """Valid tokens before each: padding, on whatever side, moves nobody."""
    steps = torch.arange(x.shape[1], device=x.device)
    if mask is not None:
        steps = (mask.cumsum(1) - 1).clamp(min=0)
    return steps if cache is None else steps + cache.counted


def _checked(index: Tensor, x: Tensor) -> Tensor:
    wanted = (x.shape[1:2], x.shape[:2])
    if index.dtype not in (torch.int32, torch.int64) or index.shape not in wanted:
        raise UserError(
            f"position_index must be whole numbers of shape {tuple(wanted[0])} or "
            f"{tuple(wanted[1])}, got {index.dtype} of shape {tuple(index.shape)}"
        )
    return index
