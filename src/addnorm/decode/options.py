"""Decoding options, validated on construction."""

import math
from dataclasses import dataclass
from typing import Literal

from addnorm.core.errors import UserError

STOP_MODES = ("likely", "exact")
MAX_HYPOTHESES = 10_000
MAX_TOKENS = 1_000_000_000
LIMITS = {
    "beam": MAX_HYPOTHESES,
    "nbest": MAX_HYPOTHESES,
    "max_new": MAX_TOKENS,
    "max_source": MAX_TOKENS,
    "batch_tokens": MAX_TOKENS,
    "top_k": MAX_TOKENS,
}
"""Upper bounds of counts, beyond which tensors cannot be allocated."""


@dataclass(frozen=True, kw_only=True)
class DecodingOptions:
    """Options of `decode`: greedy by default, beam search with `beam`, sampling with `temperature`,
    `top_k`, `top_p` or `min_p`.

    >>> DecodingOptions(beam=4, nbest=2).is_sampling, DecodingOptions(top_p=0.9).is_sampling
    (False, True)
    """

    beam: int = 1
    """Hypotheses per sentence; 1 is greedy decoding."""
    nbest: int = 1
    """Outputs per sentence: the best of the beam, or samples."""
    length_penalty: float | Literal["mean"] = 0.6
    """alpha of score / ((5 + n) / 6) ** alpha over n tokens, the end included (Wu et al., GNMT,
    2016, arXiv 1609.08144, eq. 14); 0 compares plain scores, "mean" divides by n."""
    stop: Literal["likely", "exact"] = "likely"
    """Stopping rule of a sentence. likely: `beam` hypotheses have ended, and no running one would
    be better if it ended now. exact: no running one can become better at any length; with a length
    penalty this is much slower and rarely changes the result."""

    temperature: float | None = None
    """Divisor of the logits before sampling; None is 1."""
    top_k: int | None = None
    """Sample from the k most likely tokens."""
    top_p: float | None = None
    """Sample from the smallest set of most likely tokens with this total probability."""
    min_p: float | None = None
    """Sample from tokens with at least this fraction of the highest probability."""
    seed: int = 0
    """Seed of sampling; each sentence has its own stream of draws."""

    max_new: int = 256
    """Upper bound of new tokens, the end token included."""
    ratio: float = 2.0
    """New tokens per source token at most, in addition to `extra` (translation)."""
    extra: int = 10
    """New tokens in addition to `ratio` times the source length (translation)."""
    max_source: int = 1024
    """Upper bound of source or prompt tokens; longer ones are truncated."""
    batch_tokens: int = 8192
    """Upper bound of tokens per batch, with padding and all hypotheses."""

    def __post_init__(self) -> None:
        for name, limit in LIMITS.items():
            value = getattr(self, name)
            if value is not None and (type(value) is not int or not 1 <= value <= limit):
                raise UserError(
                    f"{name}: expected a whole number from 1 to {limit:,}, got {value!r}"
                )
        for name in ("ratio", "extra"):
            value = getattr(self, name)
            if not isinstance(value, int | float) or not 0 <= value < math.inf:
                raise UserError(f"{name}: expected a number from 0, got {value!r}")
        if type(self.seed) is not int:
            raise UserError(f"seed: expected a whole number, got {self.seed!r}")
        if self.stop not in STOP_MODES:
            raise UserError(f"stop: expected {' or '.join(STOP_MODES)}, got {self.stop!r}")
        self._check_penalty()
        self._check_sampling()

    def _check_penalty(self) -> None:
        alpha = self.length_penalty
        if alpha != "mean" and (not isinstance(alpha, int | float) or not 0 <= alpha < math.inf):
            raise UserError(f"length_penalty: expected a number from 0 or 'mean', got {alpha!r}")

    def _check_sampling(self) -> None:
        if self.temperature is not None and not 0 < self.temperature < math.inf:
            raise UserError(
                f"temperature: expected a number above 0, got {self.temperature!r}; leave it out "
                "for greedy decoding"
            )
        for name in ("top_p", "min_p"):
            value = getattr(self, name)
            if value is not None and not 0 < value <= 1:
                raise UserError(f"{name}: expected a number above 0 and at most 1, got {value!r}")
        if self.is_sampling and self.beam > 1:
            settings = ", ".join(
                f"{name}={value}" for name, value in self._sampling_settings().items()
            )
            raise UserError(
                f"beam: expected 1 for sampling ({settings}), got {self.beam}; leave one out"
            )
        if self.nbest > self.beam and not self.is_sampling:
            raise UserError(
                f"nbest: expected at most beam={self.beam}, got {self.nbest}; try "
                f"beam={self.nbest}, or a temperature to sample"
            )

    def _sampling_settings(self) -> dict[str, float]:
        names = ("temperature", "top_k", "top_p", "min_p")
        return {name: getattr(self, name) for name in names if getattr(self, name) is not None}

    @property
    def is_sampling(self) -> bool:
        """Whether tokens are sampled."""
        return bool(self._sampling_settings())

    @property
    def hypotheses_per_sentence(self) -> int:
        """Rows that a sentence takes in a batch."""
        return max(self.beam, self.nbest)

    def penalty(self, length: float) -> float:
        """Return the divisor of the score of a hypothesis with `length` tokens."""
        if self.length_penalty == "mean":
            return float(length)
        return ((5 + length) / 6) ** float(self.length_penalty)
