"""From estimates to a verdict: one rule for all claims, whatever they measure.

A claim names numbers and the open range in which it wants each. A check is held if the whole
interval over seeds lies in the range, not held if it lies outside of it, and undecided if it
crosses a border or if there is no interval. A number without a range is told and not judged. A
claim is held if all its checks are, not held if one is not. Some checks are premises: what must be
so for the others to mean anything. A claim is undecided if a premise does not hold.
"""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from addnorm.comparison.statistics import Estimate
from addnorm.core.files import replace_nonfinite

Answer = Literal["held", "not held", "undecided"]
ANSWERS: tuple[Answer, ...] = ("held", "not held", "undecided")
NOT_JUDGED = "not judged"
RULE = (
    "Every number is a mean over seeds with its 95 % interval (Student's t); differences are taken "
    "seed by seed. A check is held if its whole interval lies inside the range that the claim "
    "wants, borders left out, not held if all of it lies outside, and undecided otherwise. A "
    "premise is a check without which the others mean nothing: where one is not held, the claim is "
    "undecided. Otherwise a claim is held if all its checks are, not held if one of them is not, "
    "and undecided if it is neither."
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
    premise: bool = False
    """Whether the other checks mean nothing without it."""

    @property
    def has_range(self) -> bool:
        """Whether there is a range at all."""
        return math.isfinite(self.low) or math.isfinite(self.high)

    @property
    def answer(self) -> Answer | str:
        """Where the interval lies; "not judged" without a range."""
        if not self.has_range:
            return NOT_JUDGED
        if self.found is None or self.found.half is None:
            return "undecided"
        bottom, top = self.found.mean - self.found.half, self.found.mean + self.found.half
        if self.low < bottom and top < self.high:
            return "held"
        if top <= self.low or bottom >= self.high:
            return "not held"
        return "undecided"

    @property
    def expected_range(self) -> str:
        """The range in words.

        >>> Check("", None, low=0.5).wanted, Check("", None, high=2.0).wanted
        ('above 0.5', 'below 2')
        """
        if not self.has_range:
            return "nothing"
        words = "premise: " if self.premise else ""
        if math.isinf(self.high):
            return f"{words}above {self.low:.8g}"
        if math.isinf(self.low):
            return f"{words}below {self.high:.8g}"
        return f"{words}{self.low:.8g} to {self.high:.8g}"

    def to_sentence(self) -> str:
        """The number and what was wanted, in words."""
        wanted = self.expected_range.removeprefix("premise: ")
        crosses = ", which cannot be told" if self.answer == "undecided" and self.found else ""
        return f"{self.what} is {self.format()}, wanted {wanted}{crosses}"

    def format(self) -> str:
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
        if any(check.premise and check.answer != "held" for check in self.checks):
            return "undecided"
        answers = {check.answer for check in self.checks if check.has_range and not check.premise}
        if "not held" in answers:
            return "not held"
        return "held" if answers == {"held"} else "undecided"

    @property
    def why(self) -> str:
        """The check that decides, in a sentence.

        >>> Verdict((Check("slope", Estimate(0.5, 0.1, 3), high=0.2),)).why
        'Not held: slope is 0.5 ± 0.1, wanted below 0.2.'
        """
        answer, judged = self.answer, [check for check in self.checks if check.has_range]
        premises = [check for check in judged if check.premise and check.answer != "held"]
        own = [check for check in judged if not check.premise and check.answer == answer]
        if premises:
            told = f"without this premise the rest means nothing: {premises[0].to_sentence()}"
            more = len(premises) - 1
        elif own:
            told, more = own[0].to_sentence(), len(own) - 1
        else:
            return "Undecided: nothing was measured."
        also = f"; and {more} more" if more else ""
        return f"{answer.capitalize()}: {told}{also}."

    def to_dict(self) -> dict[str, Any]:
        """Plain data, without numbers that JSON has no word for."""
        checks = [asdict(check) | {"answer": check.answer} for check in self.checks]
        told: dict[str, Any] = replace_nonfinite({"answer": self.answer, "checks": checks})
        return told


def estimate_over_seeds(values: Mapping[int, float]) -> Estimate | None:
    """The mean of one value a seed with its interval; None from none."""
    return Estimate.from_values(list(values.values()))
