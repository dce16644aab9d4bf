"""Rotary positions: queries and keys are rotated by position, so that only differences matter."""

import math
from typing import Literal

import torch
from torch import Tensor

from addnorm.core.cards import Card
from addnorm.core.errors import UserError
from addnorm.core.registry import Base, Count, Fraction, Positive
from addnorm.sublayers.positions import Positions, Rotation, frequencies, register


@register(
    Card(
        name="rotary",
        title="Rotary positions (RoPE)",
        formula="q_i . k_j -> (turn(i) q) . (turn(j) k) = q . turn(j - i) k",
        paper=(
            "Su et al., RoFormer: Enhanced Transformer with Rotary Position Embedding, 2021, arXiv "
            "2104.09864"
        ),
        summary="Rotates feature pairs of queries and keys; most language models since LLaMA.",
    )
)
class RotaryPositions(Positions):
    """Rotate pairs (a, b) of each head's features by an angle that grows with the position.

    a' = a * cos(i * f_j) - b * sin(i * f_j)
    b' = b * cos(i * f_j) + a * sin(i * f_j)

    i: position of the token
    f_j: base ** (-2 j / R), for pair j of R / 2
    R: share * head_dim features are rotated, the first ones
    layout: pair j is (j, j + R / 2) with "half" (GPT-NeoX, LLaMA), (2 j, 2 j + 1) with
        "interleaved" (the paper, GPT-J); weights of one are wrong in the other
    scaling: "linear" divides every f_j by factor; "llama3" those of wavelengths above length / low,
        none below length / high, and interpolates in between; "yarn" divides pairs that turn fewer
        than `slow` times within the length, none that turn more than `fast` times, interpolates
        over j (its bounds rounded outwards unless truncate=False), and multiplies all rotated
        features by `amplitude`, 0.1 log(factor) + 1 unless given; "longrope" divides each f_j by a
        number of its own, of `short` or, in sequences beyond the length, of `long`, each a text of
        R / 2 numbers, and multiplies by `amplitude`, sqrt(1 + log(factor) / log(length)); "dynamic"
        multiplies the base by g ** (R / (R - 2)), g = factor * n / length - (factor - 1), for
        sequences of n tokens beyond the length (n: the largest position of a call plus 1)
    local_base: base of layers with a window, which are not scaled (Gemma 3, ModernBERT); `base` if
        None

    Su et al. 2021, section 3.2; share: Black et al., GPT-NeoX-20B, 2022, arXiv 2204.06745; linear:
    Chen et al., Extending Context Window by Positional Interpolation, 2023, arXiv 2306.15595;
    llama3: the released code of Llama 3.1; yarn: Peng et al., YaRN: Efficient Context Window
    Extension of Large Language Models, 2023, arXiv 2309.00071; longrope: Ding et al., LongRoPE,
    2024, arXiv 2402.13753; dynamic: "Dynamic NTK" of the YaRN paper, as released in transformers;
    local_base: Gemma Team, Gemma 3 Technical Report, 2025, arXiv 2503.19786.

    Pitfall: "longrope" and "dynamic" depend on the longest sequence of a batch, and cached keys
    keep the rotation of the call that wrote them, as in transformers.
    """

    # NOTE[DIFF]: the paper pairs neighbors, layout=interleaved; the default is the layout of most
    # released weights. The two differ by a permutation of the features.
    def __init__(
        self,
        dim: int,
        heads: int,
        head_dim: int,
        causal: bool,
        *,
        base: Base = 10000.0,
        share: Fraction = 1.0,
        layout: Literal["half", "interleaved"] = "half",
        scaling: Literal["none", "linear", "llama3", "yarn", "longrope", "dynamic"] = "none",
        factor: Positive = 8.0,
        low: Positive = 1.0,
        high: Positive = 4.0,
        length: Count = 8192,
        fast: Positive = 32.0,
        slow: Positive = 1.0,
        truncate: bool = True,
        amplitude: Positive | None = None,
        short: str = "",
        long: str = "",
        local_base: Base | None = None,
    ) -> None:
        super().__init__(dim, heads, head_dim, causal)
        self.fast, self.slow, self.truncate, self.local_base = fast, slow, truncate, local_base
        self.amplitude = amplitude
        self.base, self.share, self.layout = base, share, layout
        self.scaling, self.factor = scaling, factor
        self.low, self.high, self.length = low, high, length
        if scaling == "llama3" and low >= high:
            raise UserError(f"scaling=llama3: expected low below high, got low={low}, high={high}")
        self.rotary_dim = int(share * head_dim)
        if self.rotary_dim % 2 or self.rotary_dim == 0:
            raise UserError(
                "rotary positions: expected an even number of features from 2, got "
                f"{self.rotary_dim} (share={share} of head_dim={head_dim}); change share or "
                "head_dim (dim / heads)"
            )
        if scaling == "dynamic" and (self.rotary_dim < 4 or factor < 1):
            raise UserError(
                "scaling=dynamic: expected at least 4 rotated features and a factor from 1, got "
                f"{self.rotary_dim} and factor={factor}"
            )
        self.short, self.long = short, long
        if scaling == "longrope":
            for name, text in (("short", short), ("long", long)):
                self._parse_divisors(name, text)

    def rotation(self, index: Tensor) -> Rotation:
        f = self._scale_frequencies(frequencies(self.rotary_dim, self.base, index), index)
        local = None
        if self.local_base is not None:
            local_f = frequencies(self.rotary_dim, self.local_base, index)
            local = self._rotate_by(index.unsqueeze(-1) * local_f)
        return self._rotate_by(index.unsqueeze(-1) * f, self._get_amplitude(), local)

    def _rotate_by(
        self, angle: Tensor, amplitude: float = 1.0, local: Rotation | None = None
    ) -> Rotation:
        cos, sin = angle.cos(), angle.sin()
        if amplitude != 1:
            cos, sin = cos * amplitude, sin * amplitude
        return Rotation(cos, sin, self.layout == "interleaved", local)

    def _get_amplitude(self) -> float:
        if self.scaling not in ("yarn", "longrope"):
            return 1.0
        if self.amplitude is not None:
            return self.amplitude
        growth = math.log(max(1.0, self.factor))
        if self.scaling == "yarn":
            return 0.1 * growth + 1.0
        return math.sqrt(1 + growth / math.log(self.length))

    def _parse_divisors(self, name: str, text: str) -> list[float]:
        try:
            values = [float(word) for word in text.split()]
        except ValueError:
            values = []
        if len(values) != self.rotary_dim // 2 or not all(value > 0 for value in values):
            raise UserError(
                f"{name}: expected {self.rotary_dim // 2} positive numbers separated by spaces for "
                f"scaling=longrope, got {text!r}"
            )
        return values

    def _scale_frequencies(self, f: Tensor, index: Tensor) -> Tensor:
        if self.scaling == "none":
            return f
        if self.scaling == "linear":
            return f / self.factor
        if self.scaling == "yarn":
            return self._scale_by_pair(f)
        if self.scaling == "longrope":
            short, long = (
                torch.tensor(self._parse_divisors("divisors", text), device=f.device)
                for text in (self.short, self.long)
            )
            return f / torch.where(index.max() >= self.length, long, short)
        if self.scaling == "dynamic":
            excess = (index.max() + 1 - self.length).clamp(min=0) / self.length
            even = torch.arange(0, self.rotary_dim, 2, device=f.device, dtype=torch.float32)
            return f * (1 + self.factor * excess) ** (-even / (self.rotary_dim - 2))
        turns = self.length * f / (2 * math.pi)  # within the length that was trained
        kept = ((turns - self.low) / (self.high - self.low)).clamp(0, 1)
        return f * (kept + (1 - kept) / self.factor)

    def _scale_by_pair(self, f: Tensor) -> Tensor:
        """Divide the slow frequencies, as YaRN does; pairs in between are interpolated."""
        first, last = (
            self.rotary_dim
            * math.log(self.length / (turns * 2 * math.pi))
            / (2 * math.log(self.base))
            for turns in (self.fast, self.slow)
        )
        if self.truncate:
            first, last = math.floor(first), math.ceil(last)
        first, last = max(first, 0), min(last, self.rotary_dim - 1)
        last = last + 0.001 if first == last else last
        pair = torch.arange(len(f), device=f.device, dtype=torch.float32)
        kept = 1 - ((pair - first) / (last - first)).clamp(0, 1)
        return f / self.factor * (1 - kept) + f * kept
