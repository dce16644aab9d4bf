"""How to decode: one record, checked when it is made."""

import math
from dataclasses import dataclass
from typing import Literal

from addnorm.core.errors import UserError

STOP_MODES = ("likely", "exact")


@dataclass(frozen=True, kw_only=True)
class DecodingOptions:
    """Greedy as it stands; a beam with `beam`, sampling with any of the four settings below it.

    >>> DecodingOptions(beam=4, nbest=2).is_sampling, DecodingOptions(top_p=0.9).is_sampling
    (False, True)
    """

    beam: int = 1
    """Hypotheses kept for each sentence; 1 takes the likeliest token, again and again."""
    nbest: int = 1
    """Answers for each sentence: the best of the beam, or as many draws."""
    length_penalty: float | Literal["mean"] = 0.6
    """alpha of score / ((5 + n) / 6) ** alpha over n tokens, the end included (Wu et al., GNMT,
    2016, arXiv 1609.08144, eq. 14); 0 compares plain scores, "mean" divides by n."""
    stop: Literal["likely", "exact"] = "likely"
    """When a sentence is done. likely: `beam` hypotheses have ended, and none that has not would be
    better if it ended now. exact: none can ever become better, at whatever length it ends; with a
    penalty this takes far longer and seldom finds anything."""

    temperature: float | None = None
    """Divides the logits before a draw; 1 if None."""
    top_k: int | None = None
    """Draw from so many of the likeliest tokens."""
    top_p: float | None = None
    """Draw from the likeliest tokens that have this share of the probability together."""
    min_p: float | None = None
    """Draw from tokens with at least this share of the likeliest one's probability."""
    seed: int = 0
    """What all draws follow from, together with the number of the sentence."""

    max_new: int = 256
    """New tokens at most, the end included."""
    ratio: float = 2.0
    """New tokens for each token of the source at most, beside `extra` (translation)."""
    extra: int = 10
    """New tokens at most for a source of no tokens (translation)."""
    max_source: int = 1024
    """Tokens of a source or prompt that are read; what is beyond is cut, and counted."""
    batch_tokens: int = 8192
    """Tokens of a batch at most, padding and all hypotheses counted; one sentence always fits."""

    def __post_init__(self) -> None:
        for name in ("beam", "nbest", "max_new", "max_source", "batch_tokens", "top_k"):
            value = getattr(self, name)
            if value is not None and (type(value) is not int or value < 1):
                raise UserError(f"{name} is a whole number from 1, got {value!r}")
        for name in ("ratio", "extra"):
            value = getattr(self, name)
            if not isinstance(value, int | float) or not 0 <= value < math.inf:
                raise UserError(f"{name} is a number from 0, got {value!r}")
        if type(self.seed) is not int:
            raise UserError(f"seed is a whole number, got {self.seed!r}")
        if self.stop not in STOP_MODES:
            raise UserError(f"stop is one of {' and '.join(STOP_MODES)}, got {self.stop!r}")
        self._check_penalty()
        self._check_sampling()

    def _check_penalty(self) -> None:
        alpha = self.length_penalty
        if alpha != "mean" and (not isinstance(alpha, int | float) or not 0 <= alpha < math.inf):
            raise UserError(f"length_penalty is a number from 0 or 'mean', got {alpha!r}")

    def _check_sampling(self) -> None:
        if self.temperature is not None and not 0 < self.temperature < math.inf:
            raise UserError(
                f"temperature is a number above 0, got {self.temperature!r}; for the likeliest "
                "token leave it out"
            )
        for name in ("top_p", "min_p"):
            value = getattr(self, name)
            if value is not None and not 0 < value <= 1:
                raise UserError(f"{name} is a share above 0 and at most 1, got {value!r}")
        if self.is_sampling and self.beam > 1:
            drawn = ", ".join(
                f"{name}={value}" for name, value in self._sampling_settings().items()
            )
            raise UserError(
                f"beam={self.beam} searches and {drawn} draws at random; leave out one of them"
            )
        if self.nbest > self.beam and not self.is_sampling:
            raise UserError(
                f"nbest={self.nbest} of a beam of {self.beam}; wanted beam={self.nbest} or more, "
                "or a temperature to draw them"
            )

    def _sampling_settings(self) -> dict[str, float]:
        names = ("temperature", "top_k", "top_p", "min_p")
        return {name: getattr(self, name) for name in names if getattr(self, name) is not None}

    @property
    def is_sampling(self) -> bool:
        """Whether tokens are drawn."""
        return bool(self._sampling_settings())

    @property
    def hypotheses_per_sentence(self) -> int:
        """Hypotheses that one sentence has at a time."""
        return max(self.beam, self.nbest)

    def penalty(self, length: float) -> float:
        """What the score of so many tokens is divided by."""
        if self.length_penalty == "mean":
            return float(length)
        return ((5 + length) / 6) ** float(self.length_penalty)
