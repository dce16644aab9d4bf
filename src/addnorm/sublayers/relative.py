"""Relative positions: a bias of the logits by the distance of query and key."""

import math

import torch
from torch import Tensor, nn

from addnorm.core.cards import Card
from addnorm.core.errors import UserError
from addnorm.core.registry import Count
from addnorm.sublayers.base import init_normal_
from addnorm.sublayers.positions import LearnedPositions, Positions, register


@register(
    Card(
        name="t5",
        title="T5's relative bias",
        formula="logit_ij + table[bucket(j - i), head]",
        paper=(
            "Raffel et al., Exploring the Limits of Transfer Learning with a Unified Text-to-Text "
            "Transformer, 2020, arXiv 1910.10683"
        ),
        summary="A learned number for each head and range of distances, shared by all layers.",
    )
)
class T5Bias(Positions):
    """A learned bias for each head and bucket of distances.

    logit_ij + table[bucket(j - i), head]

    i, j: positions of query and key
    table: (buckets, heads), starts at N(0, 1 / dim); one for all layers of the stack
    bucket: distances below half of the range have one each, the others share theirs in logarithmic
        steps up to `distance`, beyond which there is only the last
    range: all buckets in a causal stack, where later keys count as distance 0; otherwise half of
        them for keys before the query, half for keys after it

    Raffel et al. 2020, section 2.1 and the released code.
    """

    # NOTE[DIFF]: T5 divides no logits by sqrt(head_dim), but draws its queries that much smaller;
    # here the attention divides, unless the wiring says otherwise.
    def __init__(
        self,
        dim: int,
        heads: int,
        head_dim: int,
        causal: bool,
        *,
        buckets: Count = 32,
        distance: Count = 128,
    ) -> None:
        super().__init__(dim, heads, head_dim, causal)
        self.buckets, self.distance = buckets, distance
        divisor = 2 if causal else 4
        if buckets % divisor or distance <= buckets // divisor:
            raise UserError(
                f"t5 positions{' of a causal stack' if causal else ''}: expected buckets divisible "
                f"by {divisor} and distance above buckets / {divisor}, got buckets={buckets}, "
                f"distance={distance}"
            )
        self.table = nn.Parameter(torch.empty(buckets, heads))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        init_normal_(self.table, self.dim**-0.5)

    def bias(self, query_index: Tensor, key_index: Tensor) -> Tensor:
        return self.table[self.bucket(_distance(query_index, key_index))].movedim(-1, -3)

    def bucket(self, distance: Tensor) -> Tensor:
        """Return the bucket of a distance j - i; later keys use the upper half."""
        if self.causal:
            return self._bucket(-distance.clamp(max=0), self.buckets)
        half = self.buckets // 2
        return self._bucket(distance.abs(), half) + half * (distance > 0)

    def _bucket(self, distance: Tensor, count: int) -> Tensor:
        exact = count // 2
        steps = (distance.clamp(min=1) / exact).log() / math.log(self.distance / exact)
        far = exact + (steps * (count - exact)).long()
        return torch.where(distance < exact, distance, far.clamp(max=count - 1))


@register(
    Card(
        name="learned_t5",
        title="Learned positions and T5's relative bias",
        formula="x + absolute.table[i]; logit_ij + relative.table[bucket(j - i), head]",
        paper=(
            "Song et al., MPNet: Masked and Permuted Pre-training for Language Understanding, "
            "2020, arXiv 2004.09297"
        ),
        summary="Learned vectors for absolute positions, and a learned bias for distances; MPNet.",
    )
)
class LearnedT5Positions(Positions):
    """A learned vector for each position, and a learned bias for each bucket of distances.

    y = x + absolute.table[i]
    logit_ij + relative.table[bucket(j - i), head]

    x, y: (B, L, dim)
    i, j: the position of a token in `absolute`, its place in the row in `relative`
    absolute: as `learned`, a table (length, dim)
    relative: as `t5`, a table (buckets, heads)

    Song et al. 2020, section 3.1 and the released code.
    """

    def __init__(
        self,
        dim: int,
        heads: int,
        head_dim: int,
        causal: bool,
        *,
        length: Count = 512,
        buckets: Count = 32,
        distance: Count = 128,
    ) -> None:
        super().__init__(dim, heads, head_dim, causal)
        widths = (dim, heads, head_dim, causal)
        self.max_length = length
        self.absolute = LearnedPositions(*widths, length=length)
        self.relative = T5Bias(*widths, buckets=buckets, distance=distance)

    def reset_parameters(self) -> None:
        self.absolute.reset_parameters()
        self.relative.reset_parameters()

    def add(self, x: Tensor, index: Tensor) -> Tensor:
        return self.absolute.add(x, index)

    def bias(self, query_index: Tensor, key_index: Tensor) -> Tensor:
        # The released code counts places in the row, also where positions skip padding. The
        # queries are the last tokens of the row.
        places = torch.arange(key_index.shape[-1], device=key_index.device)
        return self.relative.bias(places[-query_index.shape[-1] :], places)


@register(
    Card(
        name="alibi",
        title="ALiBi",
        formula="logit_ij - slope_head * |i - j|",
        paper=(
            "Press, Smith and Lewis, Train Short, Test Long: Attention with Linear Biases Enables "
            "Input Length Extrapolation, 2021, arXiv 2108.12409"
        ),
        summary=(
            "A fixed penalty for distance, steeper in some heads; extrapolates to unseen lengths."
        ),
    )
)
class AlibiBias(Positions):
    """A penalty that grows with the distance of query and key, by a slope for each head.

    logit_ij - slope * |i - j|

    i, j: positions of query and key
    slope: 2 ** (-8 / heads), its square, its cube, ... for a power of two of heads; otherwise those
        of the power below, then every other one of the power above

    Press et al. 2021, section 3; encoders: the authors' symmetric form.
    """

    def bias(self, query_index: Tensor, key_index: Tensor) -> Tensor:
        slopes = torch.tensor(alibi_slopes(self.heads), device=query_index.device)
        distance = _distance(query_index, key_index).abs()
        return -slopes[:, None, None] * distance.unsqueeze(-3)


def alibi_slopes(heads: int) -> list[float]:
    """Return the slopes of ALiBi's heads.

    >>> alibi_slopes(4)
    [0.25, 0.0625, 0.015625, 0.00390625]
    """
    power = 2 ** int(math.log2(heads))
    slopes = [2 ** (-8 * head / power) for head in range(1, power + 1)]
    if power < heads:
        slopes += alibi_slopes(2 * power)[0::2][: heads - power]
    return slopes


def _distance(query_index: Tensor, key_index: Tensor) -> Tensor:
    """Return key - query, (L, S) or (B, L, S)."""
    return key_index.unsqueeze(-2) - query_index.unsqueeze(-1)
