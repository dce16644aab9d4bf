"""Positions: how a token knows where it stands, chosen by call string. Here the absolute ones."""

from abc import ABC
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from addnorm.core.calls import Call
from addnorm.core.cards import Card
from addnorm.core.errors import UserError
from addnorm.core.registry import Count, Positive, Registry
from addnorm.sublayers.base import check_positive_int, init_normal_
from addnorm.sublayers.head_config import split_dim

Index = Annotated[int, Field(ge=0)]

registry: "Registry[Positions]" = Registry("position")
register = registry.register


def make_positions(
    call: "str | Call", *, dim: int, heads: int, head_dim: int | None = None, causal: bool = False
) -> "Positions":
    """Build the positions a call string names, for attention of those widths.

    >>> positions = make_positions("sinusoid(base=100.0)", dim=4, heads=2)
    >>> positions.add(torch.zeros(1, 2, 4), torch.arange(2))
    tensor([[[0.0000, 1.0000, 0.0000, 1.0000],
             [0.8415, 0.5403, 0.0998, 0.9950]]])
    """
    check_positive_int("dim", dim)
    check_positive_int("heads", heads)
    head_dim = split_dim(dim, heads) if head_dim is None else head_dim
    check_positive_int("head_dim", head_dim)
    return registry.make(call, dim, heads, head_dim, causal)


@dataclass(frozen=True)
class Rotation:
    """Turns pairs of features, each pair by its own angle, growing with the token's index.

    cos, sin: (L, R / 2) or (B, L, R / 2); the first R features of a head turn, the others stay
    interleaved: whether pairs are neighbours, (2 i, 2 i + 1), or half the features apart,
        (i, i + R / 2)
    """

    cos: Tensor
    sin: Tensor
    interleaved: bool

    def __call__(self, x: Tensor) -> Tensor:
        """Queries or keys, (B, H, L, K), turned."""
        turning = 2 * self.cos.shape[-1]
        if turning > x.shape[-1]:
            raise UserError(
                f"this rotation turns {turning} features and the heads have {x.shape[-1]}; make "
                "the positions with the attention's head_dim"
            )
        turned, rest = x[..., :turning], x[..., turning:]
        cos, sin = self.cos.unsqueeze(-3), self.sin.unsqueeze(-3)  # the same for all heads
        if self.interleaved:
            a, b = turned[..., 0::2], turned[..., 1::2]
        else:
            a, b = turned.chunk(2, -1)
        pair = (a * cos - b * sin, b * cos + a * sin)
        turned = torch.stack(pair, -1).flatten(-2) if self.interleaved else torch.cat(pair, -1)
        return torch.cat((turned.to(x.dtype), rest), -1)


class Positions(nn.Module, ABC):
    """Three doors through which a position can come in; a kind opens the one it needs.

    An index says where tokens stand: whole numbers from 0, (L) or, where sequences differ, (B, L).
    """

    def __init__(self, dim: int, heads: int, head_dim: int, causal: bool) -> None:
        super().__init__()
        self.dim, self.heads, self.head_dim, self.causal = dim, heads, head_dim, causal

    def add(self, x: Tensor, index: Tensor) -> Tensor:
        """Embeddings, (B, L, dim), that know their position."""
        return x

    def bias(self, query_index: Tensor, key_index: Tensor) -> Tensor | None:
        """What the logits get on top, (heads, L, S) or (B, heads, L, S)."""
        return None

    def rotation(self, index: Tensor) -> Rotation | None:
        """What turns queries and keys."""
        return None

    def reset_parameters(self) -> None:
        """Draw the parameters. Nothing to do where there are none."""


@register(
    Card(
        name="none",
        title="No positions",
        formula="x",
        paper=(
            "Haviv et al., Transformer Language Models without Positional Encodings Still Learn "
            "Positional Information, 2022, arXiv 2203.16634"
        ),
        summary="A set of tokens; causal stacks still learn to count, tables need nothing more.",
    )
)
class NoPositions(Positions):
    """All doors closed.

    Haviv et al. 2022, section 2.
    """


@register(
    Card(
        name="sinusoid",
        title="Sinusoidal positions",
        formula="x + (sin(i * f_0), cos(i * f_0), sin(i * f_1), ...), f_j = base ** (-2 j / dim)",
        paper="Vaswani et al., Attention Is All You Need, 2017, arXiv 1706.03762",
        summary="The original: fixed waves added to the embeddings, any length.",
    )
)
class SinusoidalPositions(Positions):
    """Waves of growing length added to the embeddings.

    y[2 j]     = x[2 j]     + sin(i * f_j)
    y[2 j + 1] = x[2 j + 1] + cos(i * f_j)

    x, y: (B, L, dim)
    i: position of the token
    f_j: base ** (-2 j / dim); with steps=closed base ** (-2 j / (dim - 2)), whose last is 1 / base
    layout: "interleaved" as above; "half" puts all sines before all cosines
    silent: the position that gets no wave, where given (the padding of fairseq)

    Vaswani et al. 2017, section 3.5. Pitfall: Marian and Pegasus have layout=half; tensor2tensor
    and fairseq (M2M-100) have layout=half and steps=closed. Neither changes what can be learned,
    but weights of one are wrong in the other.
    """

    def __init__(
        self,
        dim: int,
        heads: int,
        head_dim: int,
        causal: bool,
        *,
        base: Positive = 10000.0,
        layout: Literal["interleaved", "half"] = "interleaved",
        steps: Literal["open", "closed"] = "open",
        silent: Index | None = None,
    ) -> None:
        super().__init__(dim, heads, head_dim, causal)
        if (layout, steps) != ("interleaved", "open") and (dim % 2 or dim < 4):
            raise UserError(
                f"sinusoid(layout={layout}, steps={steps}) wants an even dim from 4, got {dim}"
            )
        self.base, self.layout, self.steps, self.silent = base, layout, steps, silent

    def add(self, x: Tensor, index: Tensor) -> Tensor:
        """The formula."""
        f = frequencies(self.dim, self.base, index, last=self.steps == "closed")
        angle = index.unsqueeze(-1) * f
        pair = (angle.sin(), angle.cos())
        if self.layout == "half":
            waves = torch.cat(pair, -1)
        else:
            waves = torch.stack(pair, -1).flatten(-2)[..., : self.dim]
        if self.silent is not None:
            waves = waves.masked_fill((index == self.silent).unsqueeze(-1), 0.0)
        return x + waves.to(x.dtype)


@register(
    Card(
        name="learned",
        title="Learned positions",
        formula="x + table[i]",
        paper=(
            "Gehring et al., Convolutional Sequence to Sequence Learning, 2017, arXiv 1705.03122"
        ),
        summary="A vector for each position, up to a length fixed beforehand; BERT and GPT-2.",
    )
)
class LearnedPositions(Positions):
    """A learned vector for each position, added to the embeddings.

    y = x + table[i]

    x, y: (B, L, dim)
    i: position of the token, below `length`
    table: (length, dim), starts at N(0, 0.02 ** 2)

    Gehring et al. 2017, section 3.1; start value: Radford et al. 2019 (GPT-2).
    """

    def __init__(
        self, dim: int, heads: int, head_dim: int, causal: bool, *, length: Count = 512
    ) -> None:
        super().__init__(dim, heads, head_dim, causal)
        self.length = length
        self.table = nn.Parameter(torch.empty(length, dim))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Small vectors."""
        init_normal_(self.table, 0.02)

    def add(self, x: Tensor, index: Tensor) -> Tensor:
        """The formula."""
        if not torch.compiler.is_compiling() and index.numel() and index.max() >= self.length:
            raise UserError(
                f"position {int(index.max())} is beyond the {self.length} learned ones; say "
                "learned(length=...) with the longest sequence, or choose positions without a limit"
            )
        return x + self.table[index].to(x.dtype)


def frequencies(features: int, base: float, like: Tensor, *, last: bool = False) -> Tensor:
    """base ** (-2 j / features) for every pair j of the features, in float32 where `like` is; with
    `last` the last pair's is 1 / base.
    """
    even = torch.arange(0, features, 2, device=like.device, dtype=torch.float32)
    return base ** (-even / (features - 2 if last else features))
