"""Base class and registry of position encodings, and the absolute ones.

A position encoding enters at one of three points: it is added to the embeddings (`add`), added to
the logits (`bias`), or rotates queries and keys (`rotation`).
"""

from abc import ABC
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from addnorm.core.calls import Call
from addnorm.core.cards import Card
from addnorm.core.errors import UserError
from addnorm.core.registry import MAX_COUNT, Base, Count, Registry
from addnorm.kernels.dry_run import is_dry_run
from addnorm.sublayers.base import check_positive_int, init_normal_
from addnorm.sublayers.head_config import split_dim

Index = Annotated[int, Field(ge=0, le=MAX_COUNT)]

registry: "Registry[Positions]" = Registry("position")
register = registry.register


def make_positions(
    call: "str | Call", *, dim: int, heads: int, head_dim: int | None = None, causal: bool = False
) -> "Positions":
    """Build the position encoding that a call string names.

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


@dataclass(eq=False)  # not frozen: torch 2.6 cannot trace a call of a frozen one
class Rotation:
    """Rotation of pairs of features by angles that grow with the token's index.

    cos, sin: (L, R / 2) or (B, L, R / 2); the first R features of a head rotate, the others stay
    interleaved: whether pairs are adjacent, (2 i, 2 i + 1), or half the features apart,
        (i, i + R / 2)
    local: rotation of layers with a window, if they have another one
    """

    cos: Tensor
    sin: Tensor
    interleaved: bool
    local: "Rotation | None" = None

    def for_window(self, window: int | None) -> "Rotation":
        """Return the rotation of a layer, given its window."""
        return self if window is None or self.local is None else self.local

    def __call__(self, x: Tensor) -> Tensor:
        """Rotate queries or keys, (B, H, L, K)."""
        count = 2 * self.cos.shape[-1]
        if count > x.shape[-1]:
            raise UserError(
                f"rotation: expected heads of at least {count} features, got {x.shape[-1]}; build "
                "the positions with the attention's head_dim"
            )
        rotated, rest = x[..., :count], x[..., count:]
        cos, sin = self.cos.unsqueeze(-3), self.sin.unsqueeze(-3)  # the same for all heads
        if self.interleaved:
            a, b = rotated[..., 0::2], rotated[..., 1::2]
        else:
            a, b = rotated.chunk(2, -1)
        pair = (a * cos - b * sin, b * cos + a * sin)
        rotated = torch.stack(pair, -1).flatten(-2) if self.interleaved else torch.cat(pair, -1)
        return torch.cat((rotated.to(x.dtype), rest), -1)


class Positions(nn.Module, ABC):
    """Base class of position encodings; a subclass overrides `add`, `bias` or `rotation`.

    An index holds the positions of tokens, integers from 0: (L), or (B, L) if sequences differ.

    Attributes:
        max_length: number of positions; None without a limit
    """

    max_length: int | None = None

    def __init__(self, dim: int, heads: int, head_dim: int, causal: bool) -> None:
        super().__init__()
        self.dim, self.heads, self.head_dim, self.causal = dim, heads, head_dim, causal

    def add(self, x: Tensor, index: Tensor) -> Tensor:
        """Return the embeddings, (B, L, dim), with positions added."""
        return x

    def bias(self, query_index: Tensor, key_index: Tensor) -> Tensor | None:
        """Return the bias of the logits, (heads, L, S) or (B, heads, L, S)."""
        return None

    def rotation(self, index: Tensor) -> Rotation | None:
        """Return the rotation of queries and keys."""
        return None

    def reset_parameters(self) -> None:
        """Reset the parameters to their start values."""


@register(
    Card(
        name="none",
        title="No positions",
        formula="x",
        paper=(
            "Haviv et al., Transformer Language Models without Positional Encodings Still Learn "
            "Positional Information, 2022, arXiv 2203.16634"
        ),
        summary="No positions; causal stacks still learn them, and tables do not need any.",
    )
)
class NoPositions(Positions):
    """No position encoding.

    Haviv et al. 2022, section 2.
    """


@register(
    Card(
        name="sinusoid",
        title="Sinusoidal positions",
        formula="x + (sin(i * f_0), cos(i * f_0), sin(i * f_1), ...), f_j = base ** (-2 j / dim)",
        paper="Vaswani et al., Attention Is All You Need, 2017, arXiv 1706.03762",
        summary="The original: fixed sinusoids added to the embeddings, for any length.",
    )
)
class SinusoidalPositions(Positions):
    """Sinusoids of growing wavelength added to the embeddings.

    y[2 j]     = x[2 j]     + sin(i * f_j)
    y[2 j + 1] = x[2 j + 1] + cos(i * f_j)

    x, y: (B, L, dim)
    i: position of the token
    f_j: base ** (-2 j / dim); with steps=closed base ** (-2 j / (dim - 2)), whose last is 1 / base
    layout: "interleaved" as above; "half" puts all sines before all cosines
    silent: position without an encoding, if given (the padding of fairseq)

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
        base: Base = 10000.0,
        layout: Literal["interleaved", "half"] = "interleaved",
        steps: Literal["open", "closed"] = "open",
        silent: Index | None = None,
    ) -> None:
        super().__init__(dim, heads, head_dim, causal)
        if (layout, steps) != ("interleaved", "open") and (dim % 2 or dim < 4):
            raise UserError(
                f"dim: expected an even number from 4 for sinusoid(layout={layout}, "
                f"steps={steps}), got {dim}"
            )
        self.base, self.layout, self.steps, self.silent = base, layout, steps, silent

    def add(self, x: Tensor, index: Tensor) -> Tensor:
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
        self.length = self.max_length = length
        self.table = nn.Parameter(torch.empty(length, dim))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        init_normal_(self.table, 0.02)

    def add(self, x: Tensor, index: Tensor) -> Tensor:
        if is_dry_run():  # the index has no values
            last = index.shape[-1] - 1
        elif torch.compiler.is_compiling() or not index.numel() or index.device.type != "cpu":
            last = 0  # a GPU reports an index beyond the table by itself, and reading would wait
        else:
            last = int(index.max())
        length = len(self.table)
        if last >= length:
            raise UserError(
                f"position_index: expected below {length}, the learned positions, got {last}; "
                "set learned(length=...) to the longest sequence"
            )
        return x + self.table[index].to(x.dtype)


def frequencies(features: int, base: float, like: Tensor, *, last: bool = False) -> Tensor:
    """Return base ** (-2 j / features) for every pair j of features, on the device of `like`.

    With `last`, the exponents are spread so that the last frequency is 1 / base.
    """
    even = torch.arange(0, features, 2, device=like.device, dtype=torch.float32)
    return base ** (-even / (features - 2 if last else features))
