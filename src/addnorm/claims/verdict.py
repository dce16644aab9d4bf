"""From estimates to a verdict: one rule for all claims, whatever they measure.

A claim names numbers and the range in which it wants each. A check is held if the whole interval
over seeds lies in the range, not held if it lies outside of it, and undecided if it crosses a
border or if there is no interval. A claim is held if all its checks are, not held if one is not.
"""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from addnorm.lab.folder import plain
from addnorm.lab.statistics import Estimate

Answer = Literal["held", "not held", "undecided"]
ANSWERS: tuple[Answer, ...] = ("held", "not held", "undecided")
RULE = (
    "Every number is a mean over seeds with its 95 % interval (Student's t); differences are taken "
    "seed by seed. A check is held if its whole interval lies in the range that the claim wants, "
    "not held if all of it lies outside, and undecided otherwise. A claim is held if all its "
    "checks are, not held if one of them is not, and undecided otherwise."
)


@dataclass(frozen=True)
class Check:
    """A number that was measured, and the range in which the claim wants it.

    >>> Check("slope", Estimate(0.0, 0.1, 3), low=-0.2, high=0.2).answer
    'held'
    >>> Check("slope", Estimate(0.5, 0.1, 3), high=0.2).answer
    'not held'
    >>> Check("slope", Estimate(0.2, 0.1, 3), high=0.2).answer
    'undecided'
    """

    what: str
    """What was measured, in words."""
    found: Estimate | None
    """None if nothing could be measured."""
    low: float = -math.inf
    high: float = math.inf

    @property
    def answer(self) -> Answer:
        """Where the interval lies."""
        if self.found is None or self.found.half is None:
            return "undecided"
        bottom, top = self.found.mean - self.found.half, self.found.mean + self.found.half
        if self.low <= bottom and top <= self.high:
            return "held"
        if top < self.low or bottom > self.high:
            return "not held"
        return "undecided"

    @property
    def wanted(self) -> str:
        """The range in words.

        >>> Check("", None, low=0.5).wanted, Check("", None, high=2.0).wanted
        ('0.5 or more', '2 or less')
        """
        if math.isinf(self.high):
            return f"{self.low:.8g} or more"
        if math.isinf(self.low):
            return f"{self.high:.8g} or less"
        return f"{self.low:.8g} to {self.high:.8g}"

    def told(self) -> str:
        """The number with its interval.

        >>> Check("", Estimate(0.12345, 0.01, 3)).told(), Check("", None).told()
        ('0.1235 ± 0.01', 'not measured')
        """
        if self.found is None:
            return "not measured"
        half = "" if self.found.half is None else f" ± {self.found.half:.2g}"
        return f"{self.found.mean:.4g}{half}"


@dataclass(frozen=True)
class Verdict:
    """What became of a claim."""

    checks: tuple[Check, ...]

    @property
    def answer(self) -> Answer:
        """held, not held or undecided."""
        answers = [check.answer for check in self.checks]
        if "not held" in answers:
            return "not held"
        return "held" if answers and set(answers) == {"held"} else "undecided"

    def to_dict(self) -> dict[str, Any]:
        """Plain data, without numbers that JSON has no word for."""
        checks = [asdict(check) | {"answer": check.answer} for check in self.checks]
        told: dict[str, Any] = plain({"answer": self.answer, "checks": checks})
        return told

    @classmethod
    def from_dict(cls, told: Mapping[str, Any]) -> "Verdict":
        """As it was written."""
        return cls(tuple(map(_check, told["checks"])))


def _check(told: Mapping[str, Any]) -> Check:
    found = told["found"]
    estimate = None
    if found is not None:
        mean = math.nan if found["mean"] is None else found["mean"]
        # An interval that is not finite came of such a mean, or of no interval at all.
        half = math.nan if found["half"] is None and found["count"] > 1 else found["half"]
        estimate = Estimate(mean, half, found["count"])
    low = -math.inf if told["low"] is None else told["low"]
    high = math.inf if told["high"] is None else told["high"]
    return Check(told["what"], estimate, low, high)


def over_seeds(values: Mapping[int, float]) -> Estimate | None:
    """The mean of one value a seed with its interval; None from none."""
    return Estimate.of(list(values.values()))
